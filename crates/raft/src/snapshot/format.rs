//! Layout of a snapshot stream, little-endian.
//!
//! ```text
//! stream   frame 0, frame 1, …
//! frame    payload, FRAME_PAYLOAD_BYTES except in the last frame
//!          u64 checksum: XXH3-64 of the payload, seed = stream key + number of the frame
//! content  the payloads of all frames: header, file list, contents of the files in the order of the list
//! header    0  8  magic
//!           8  4  format version, u32
//!          12  4  bytes of the file list, u32
//!          16  8  stream key, u64: random number of the snapshot
//! file list       Vec<FileRecord>, encoded by postcard
//! ```
//!
//! The stream key differs between snapshots, so a frame of another snapshot fails its checksum.

use lsmx_base::checksum::xxh3_seeded;
use serde::{Deserialize, Serialize};

use crate::error::StreamFault;

const MAGIC: [u8; 8] = *b"lsmxsnap";
const VERSION: u32 = 1;
pub(crate) const HEADER_BYTES: usize = 24;
const CHECKSUM_BYTES: usize = 8;
/// Bytes of a frame with its checksum. Sender and receiver each keep one frame in memory.
pub(crate) const FRAME_BYTES: usize = 256 << 10;
pub(crate) const FRAME_PAYLOAD_BYTES: usize = FRAME_BYTES - CHECKSUM_BYTES;
/// Maximum of the bytes of the file list, which the receiver keeps in memory. It suffices for half a million files.
pub(crate) const FILE_LIST_BYTES_MAX: u32 = 16 << 20;

/// A file of the snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    pub(crate) name: String,
    pub(crate) bytes: u64,
}

/// The first bytes of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamHeader {
    pub(crate) stream_key: u64,
    pub(crate) file_list_bytes: u32,
}

impl StreamHeader {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.file_list_bytes.to_le_bytes());
        bytes.extend(self.stream_key.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<StreamHeader, StreamFault> {
        let (magic, rest) = bytes.split_first_chunk().ok_or(StreamFault::Truncated)?;
        let (version, rest) = rest.split_first_chunk().ok_or(StreamFault::Truncated)?;
        let (list, rest) = rest.split_first_chunk().ok_or(StreamFault::Truncated)?;
        let (key, _) = rest.split_first_chunk().ok_or(StreamFault::Truncated)?;
        if *magic != MAGIC {
            return Err(StreamFault::Magic);
        }
        let (found, supported) = (u32::from_le_bytes(*version), VERSION);
        if found != supported {
            return Err(StreamFault::Version { found, supported });
        }
        let file_list_bytes = u32::from_le_bytes(*list);
        if file_list_bytes > FILE_LIST_BYTES_MAX {
            return Err(StreamFault::FileListTooLarge { bytes: file_list_bytes });
        }
        Ok(StreamHeader { stream_key: u64::from_le_bytes(*key), file_list_bytes })
    }
}

fn checksum(payload: &[u8], stream_key: u64, frame_number: u64) -> u64 {
    xxh3_seeded(payload, stream_key.wrapping_add(frame_number))
}

/// Appends the checksum to a payload, which makes it a frame.
pub(crate) fn seal_frame(payload: &mut Vec<u8>, stream_key: u64, frame_number: u64) {
    let checksum = checksum(payload, stream_key, frame_number);
    payload.extend(checksum.to_le_bytes());
}

/// Verifies the checksum of a frame and returns its payload. `stream_key` is `None` for the first frame, which contains
/// the key.
pub(crate) fn open_frame(
    frame: &[u8],
    stream_key: Option<u64>,
    frame_number: u64,
) -> Result<&[u8], StreamFault> {
    let (payload, stored) = frame.split_last_chunk().ok_or(StreamFault::Truncated)?;
    let stream_key = match stream_key {
        Some(key) => key,
        None => StreamHeader::decode(payload)?.stream_key,
    };
    let (found, expected) =
        (checksum(payload, stream_key, frame_number), u64::from_le_bytes(*stored));
    if found == expected { Ok(payload) } else { Err(StreamFault::Checksum { found, expected }) }
}

/// Returns the checksum at the end of a frame, without a verification. Returns `None` if the frame is too short.
pub(crate) fn frame_checksum(frame: &[u8]) -> Option<u64> {
    frame.last_chunk().map(|checksum| u64::from_le_bytes(*checksum))
}

/// Returns the length in bytes of a stream whose frames contain `content_bytes` bytes of payload.
pub(crate) fn stream_bytes(content_bytes: u64) -> u64 {
    content_bytes + content_bytes.div_ceil(FRAME_PAYLOAD_BYTES as u64) * CHECKSUM_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trip_and_truncations() {
        let header = StreamHeader { stream_key: 7 << 40, file_list_bytes: 99 };
        let bytes = header.encode();
        assert_eq!(bytes, *b"lsmxsnap\x01\0\0\0\x63\0\0\0\0\0\0\0\0\x07\0\0");
        assert_eq!(bytes.len(), HEADER_BYTES);
        assert_eq!(StreamHeader::decode(&bytes).unwrap(), header);
        for len in 0..bytes.len() {
            assert!(matches!(StreamHeader::decode(&bytes[..len]), Err(StreamFault::Truncated)));
        }
    }

    #[test]
    fn frame_flipped_bits_are_detected() {
        let mut frame = StreamHeader { stream_key: 3, file_list_bytes: 0 }.encode();
        seal_frame(&mut frame, 3, 0);
        assert_eq!(open_frame(&frame, None, 0).unwrap().len(), HEADER_BYTES);
        assert!(open_frame(&frame, Some(4), 0).is_err());
        assert!(open_frame(&frame, Some(3), 1).is_err());
        for bit in 0..frame.len() * 8 {
            frame[bit / 8] ^= 1 << (bit % 8);
            assert!(open_frame(&frame, None, 0).is_err(), "bit {bit}");
            frame[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
