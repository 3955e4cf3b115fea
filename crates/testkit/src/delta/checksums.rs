//! Corrects the checksums of changed files. Otherwise, decoders would reject each changed file because of a wrong
//! checksum.

use lsmx_base::checksum::xxh3_at_file_location;
use lsmx_base::coding::{get_u64, len_u64};
use lsmx_delta::internals::frame::{FRAME_HEADER_BYTES, decode_frame_len};
use lsmx_delta::internals::header::HEADER_BYTES;

pub(super) use crate::engine::{OFFSET, UID};

pub(super) fn file_uid(file: &[u8]) -> u64 {
    get_u64(file, 16).unwrap_or(0)
}

/// Returns the start and end offsets of the frames of a file, up to the first frame with an invalid length.
pub fn frame_ranges(file: &[u8]) -> Vec<(usize, usize)> {
    let mut frames = Vec::new();
    let mut start = HEADER_BYTES;
    while let Some(rest) = file.get(start..)
        && let Ok(len) = decode_frame_len(rest)
        && len <= rest.len()
    {
        frames.push((start, start + len));
        start += len;
    }
    frames
}

/// Corrects the checksum in the header of a file.
pub(super) fn repair_header(file: &mut [u8]) {
    if file.len() >= HEADER_BYTES {
        let checksum = xxh3_at_file_location(&file[..24], 0, 0);
        file[24..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Corrects the length and the checksum of a frame.
pub(super) fn repair_frame(frame: &mut [u8], uid: u64, offset: u64) {
    let Some(len) = frame.len().checked_sub(FRAME_HEADER_BYTES) else { return };
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    frame[8..12].copy_from_slice(&len.to_le_bytes());
    let checksum = xxh3_at_file_location(&frame[8..], uid, offset);
    frame[..8].copy_from_slice(&checksum.to_le_bytes());
}

/// Corrects the checksums of the header and the frames of a file.
pub fn repair_file(file: &mut [u8]) {
    repair_header(file);
    let uid = file_uid(file);
    for (start, end) in frame_ranges(file) {
        repair_frame(&mut file[start..end], uid, len_u64(start));
    }
}
