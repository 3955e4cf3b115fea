//! Block: the smallest unit of a table that is read and verified. Integers are little-endian.
//!
//! ```text
//!  0  n  payload
//!     p  padding      only if the flag 0x80 is set: zeros, then p as u16, 2 to 65,535
//!     1  kind         u8, see `BlockKind`
//!     1  compression  u8, see `Compression`, and the flag 0x80 if there is padding
//!     8  checksum     u64, XXH3-64 over all bytes before it,
//!                     seeded by the file's uid and the block's offset
//! ```
//!
//! Padding extends a data block to the end of a page, so that the next block starts at a page boundary.
//!
//! If the compression is 1 (lz4), the payload has this layout:
//!
//! ```text
//!  0  4  length  u32, bytes of the contents
//!  4  m  lz4     one raw lz4 block
//! ```
//!
//! A checksum of 64 bits makes undetected errors negligible, even in large installations. Compared with a checksum of
//! 32 bits, it adds four bytes to each block, which is one thousandth of a block of 4 KiB. The size in a block handle
//! includes the padding and the trailer.

use bytes::Bytes;
use lsmx_base::checksum::{file_location_seed, xxh3_seeded};
use lsmx_base::coding::{Decoder, get_u32, get_u64, len_u64, put_u64, put_varint, to_usize};
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::{BlockBytes, BlockMemoryCounter};
use lsmx_base::sync::Arc;
use lsmx_base::work_counter::{self, WorkKind};

use super::{BlockKind, KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Size of a block trailer in bytes: block kind, compression and checksum.
pub const TRAILER_BYTES: usize = 2 * size_of::<u8>() + size_of::<u64>();
const _: () = assert!(TRAILER_BYTES == 10, "the diagram above says 10");

/// Flag in the compression byte. It is set if the block has padding.
const PADDED: u8 = 0x80;
/// Minimum size of the padding in bytes. The length field is part of the padding.
pub(crate) const PADDING_BYTES_MIN: usize = size_of::<u16>();

/// Maximum size of the contents of a block in bytes, before compression. A block ends with the entry that reaches the
/// target size. The limit allows an entry with the longest key and the longest value after 64 MiB of other entries.
pub const BLOCK_CONTENT_BYTES_MAX: u64 = VALUE_BYTES_MAX + KEY_BYTES_MAX + (64 << 20);

/// Maximum compression ratio of lz4. The decoder uses this bound to limit an allocation before it decompresses a block.
const LZ4_RATIO_MAX: u64 = 255;

/// Compression of block contents. Files store the compression as a number, which is never reused for another one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Compression {
    /// No compression.
    #[default]
    None = 0,
    /// Compression with lz4. A block stays uncompressed if compression saves less than an eighth of its bytes.
    Lz4 = 1,
    // 2 is reserved for zstd.
}

impl Compression {
    /// Returns the compression stored as `byte`, or `None` if the number is unknown.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    #[must_use]
    pub(crate) fn from_u8(byte: u8) -> Option<Compression> {
        match byte {
            0 => Some(Compression::None),
            1 => Some(Compression::Lz4),
            _ => None,
        }
    }
}

/// Returns whether the byte is a valid compression byte of a block trailer.
pub(crate) fn is_compression_byte(byte: u8) -> bool {
    Compression::from_u8(byte & !PADDED).is_some()
}

/// Location of a block in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHandle {
    /// Offset of the first byte of the block.
    pub offset: u64,
    /// Size of the block in bytes: payload, padding and trailer.
    pub bytes: u64,
}

impl BlockHandle {
    /// Returns the offset of the first byte after the block.
    ///
    /// # Errors
    /// Fails if the sum of offset and size overflows.
    pub fn end_offset(self) -> Result<u64, Malformed> {
        self.offset.checked_add(self.bytes).ok_or(Malformed::invalid_field(
            "block handle offset",
            self.offset,
            "an offset inside the file",
        ))
    }

    /// Checks that the block is larger than a trailer and ends within the first `limit` bytes of its file.
    ///
    /// # Errors
    /// Fails if one of these conditions is not met.
    pub(crate) fn check_bounds(self, limit: u64) -> Result<(), Malformed> {
        if self.bytes <= len_u64(TRAILER_BYTES) {
            return Err(Malformed::invalid_field(
                "block handle size",
                self.bytes,
                "more than a trailer",
            ));
        }
        if self.end_offset()? > limit {
            return Err(Malformed::invalid_field(
                "block handle end",
                self.end_offset()?,
                "an offset inside the file",
            ));
        }
        Ok(())
    }

    /// Appends the offset and the size as varints.
    pub(crate) fn put(self, out: &mut Vec<u8>) {
        put_varint(out, self.offset);
        put_varint(out, self.bytes);
    }

    /// Decodes a handle that [`BlockHandle::put`] encoded.
    pub(crate) fn decode(decoder: &mut Decoder<'_>) -> Result<BlockHandle, Malformed> {
        let offset = decoder.varint("block handle offset")?;
        let bytes = decoder.varint("block handle size")?;
        Ok(BlockHandle { offset, bytes })
    }
}

/// Returns the checksum of `covered`, which is a block or a blob record without its checksum field. The uid of the file
/// and the offset of the block seed the checksum. A block that is read from the wrong file or offset therefore fails
/// the check.
pub fn checksum(covered: &[u8], uid: u64, offset: u64) -> u64 {
    let seed = if failpoint::is_on(Failpoint::ChecksumWithoutLocation) {
        0
    } else {
        file_location_seed(uid, offset)
    };
    xxh3_seeded(covered, seed)
}

/// Encodes a block in place: replaces the contents by the payload, and appends padding and trailer. `uid` and `offset`
/// state the file and the offset where the block will be written. The contents are compressed only if this saves at
/// least an eighth of the bytes. `padding` is the number of padding bytes. If `padding` is less than 2 or more than
/// 65,535, the block has no padding. `scratch` is a reusable buffer for the compressor.
pub fn encode_block(
    contents: &mut Vec<u8>,
    kind: BlockKind,
    compression: Compression,
    padding: usize,
    uid: u64,
    offset: u64,
    scratch: &mut Vec<u8>,
) {
    let packed = match compression {
        Compression::None => false,
        Compression::Lz4 => compress_lz4(contents, scratch),
    };
    if packed {
        std::mem::swap(contents, scratch);
    }
    let mut flags = if packed { compression } else { Compression::None } as u8;
    if let Ok(bytes) = u16::try_from(padding)
        && padding >= PADDING_BYTES_MIN
    {
        contents.resize(contents.len() + padding - PADDING_BYTES_MIN, 0);
        contents.extend_from_slice(&bytes.to_le_bytes());
        flags |= PADDED;
    }
    contents.push(kind as u8);
    contents.push(flags);
    let sum = checksum(contents, uid, offset);
    put_u64(contents, sum);
}

/// Compresses `contents` into `packed`. Returns true if this saves at least an eighth of the bytes. If it returns
/// false, the contents of `packed` are unspecified.
pub(super) fn compress_lz4(contents: &[u8], packed: &mut Vec<u8>) -> bool {
    let Ok(length) = u32::try_from(contents.len()) else {
        return false;
    };
    packed.clear();
    packed.extend_from_slice(&length.to_le_bytes());
    let head = packed.len();
    packed.resize(head + lz4_flex::block::get_maximum_output_size(contents.len()), 0);
    let Ok(bytes) = lz4_flex::block::compress_into(contents, &mut packed[head..]) else {
        return false;
    };
    packed.truncate(head + bytes);
    packed.len() <= contents.len() - contents.len() / 8
}

/// Verifies a block that was read at `offset` of the file `uid`. Returns the decompressed contents.
///
/// # Errors
/// Fails if the checksum does not match, if the block has another kind, or if its padding or compression is invalid.
pub fn decode_block(
    mut block: Vec<u8>,
    kind: BlockKind,
    uid: u64,
    offset: u64,
) -> Result<Bytes, Malformed> {
    work_counter::add(WorkKind::BlockBytes, block.len());
    let (payload_bytes, compression) = verify_block(&block, kind, uid, offset)?;
    block.truncate(payload_bytes);
    match compression {
        Compression::None => Ok(Bytes::from(block)),
        Compression::Lz4 => decompress_lz4(&block).map(Bytes::from),
    }
}

/// Verifies a block and returns a copy of its decompressed contents, so that the caller can reuse the buffer of
/// `block`. `live` counts the bytes of the copy until the copy is dropped.
pub(crate) fn decode_block_copy(
    block: &[u8],
    kind: BlockKind,
    uid: u64,
    offset: u64,
    live: Option<&Arc<BlockMemoryCounter>>,
) -> Result<BlockBytes, Malformed> {
    work_counter::add(WorkKind::BlockBytes, block.len());
    let (payload_bytes, compression) = verify_block(block, kind, uid, offset)?;
    let payload = &block[..payload_bytes];
    match compression {
        Compression::None => Ok(BlockBytes::copy_and_count(payload, live)),
        Compression::Lz4 => Ok(BlockBytes::copy_and_count(&decompress_lz4(payload)?, live)),
    }
}

/// Verifies a block. Returns the size of its payload in bytes, and its compression.
fn verify_block(
    block: &[u8],
    kind: BlockKind,
    uid: u64,
    offset: u64,
) -> Result<(usize, Compression), Malformed> {
    let Some(payload_bytes) = block.len().checked_sub(TRAILER_BYTES) else {
        return Err(Malformed::Truncated {
            what: "block trailer",
            needed: len_u64(TRAILER_BYTES),
            found: len_u64(block.len()),
        });
    };
    let covered = payload_bytes + 2;
    let found = get_u64(block, covered).unwrap_or_default();
    let expected = checksum(&block[..covered], uid, offset);
    if found != expected {
        return Err(Malformed::Checksum { expected, found });
    }
    if block[payload_bytes] != kind as u8 {
        return Err(Malformed::Identity {
            what: "block kind",
            expected: u64::from(kind as u8),
            found: u64::from(block[payload_bytes]),
        });
    }
    let flags = block[payload_bytes + 1];
    let Some(compression) = Compression::from_u8(flags & !PADDED) else {
        let expected = "0 (none) or 1 (lz4), and 128 for padding";
        return Err(Malformed::invalid_field("block compression", u64::from(flags), expected));
    };
    if flags & PADDED == 0 {
        return Ok((payload_bytes, compression));
    }
    let padding = match block[..payload_bytes] {
        [.., low, high] => usize::from(u16::from_le_bytes([low, high])),
        _ => 0,
    };
    if padding < PADDING_BYTES_MIN || padding > payload_bytes {
        let expected = "at least 2, and at most the bytes of the block";
        return Err(Malformed::invalid_field("block padding", len_u64(padding), expected));
    }
    Ok((payload_bytes - padding, compression))
}

pub(super) fn decompress_lz4(payload: &[u8]) -> Result<Vec<u8>, Malformed> {
    let Some(length) = get_u32(payload, 0) else {
        return Err(Malformed::Truncated {
            what: "length of compressed contents",
            needed: 4,
            found: len_u64(payload.len()),
        });
    };
    let packed = &payload[size_of::<u32>()..];
    let length = u64::from(length);
    let bound = BLOCK_CONTENT_BYTES_MAX.min(len_u64(packed.len()).saturating_mul(LZ4_RATIO_MAX));
    let wrong =
        |expected| Malformed::invalid_field("length of compressed contents", length, expected);
    if length > bound {
        return Err(wrong("at most what lz4 can compress to that size"));
    }
    let mut contents = vec![0; to_usize("length of compressed contents", length)?];
    match lz4_flex::block::decompress_into(packed, &mut contents) {
        Ok(bytes) if bytes == contents.len() => Ok(contents),
        _ => Err(wrong("the decompressed size")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::assert_damage_is_detected;

    fn sealed(contents: &[u8], compression: Compression) -> Vec<u8> {
        sealed_with_padding(contents, compression, 0)
    }

    fn sealed_with_padding(contents: &[u8], compression: Compression, padding: usize) -> Vec<u8> {
        let mut block = contents.to_vec();
        encode_block(&mut block, BlockKind::Data, compression, padding, 7, 4096, &mut Vec::new());
        block
    }

    fn samples() -> Vec<Vec<u8>> {
        vec![
            vec![],
            vec![0],
            b"abc".to_vec(),
            vec![9; 5_000],
            (0..3_000u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect(),
        ]
    }

    #[test]
    fn block_any_compression_round_trips() {
        for contents in samples() {
            for compression in [Compression::None, Compression::Lz4] {
                let block = sealed(&contents, compression);
                let copied = decode_block_copy(&block, BlockKind::Data, 7, 4096, None).unwrap();
                assert_eq!(*copied, *contents);
                assert_eq!(decode_block(block, BlockKind::Data, 7, 4096).unwrap(), contents);
            }
        }
        assert!(sealed(&[9; 5_000], Compression::Lz4).len() < 200);
    }

    #[test]
    fn block_with_padding_round_trips() {
        for contents in samples() {
            for compression in [Compression::None, Compression::Lz4] {
                let plain = sealed(&contents, compression).len();
                for padding in [2, 3, 100, 65_535] {
                    let block = sealed_with_padding(&contents, compression, padding);
                    assert_eq!(block.len(), plain + padding);
                    let copied = decode_block_copy(&block, BlockKind::Data, 7, 4096, None).unwrap();
                    assert_eq!(*copied, *contents);
                    assert_eq!(decode_block(block, BlockKind::Data, 7, 4096).unwrap(), contents);
                }
                for padding in [1, 65_536] {
                    assert_eq!(sealed_with_padding(&contents, compression, padding).len(), plain);
                }
            }
        }
    }

    #[test]
    fn block_with_invalid_padding_length_is_error() {
        for length in [0, 1, 13, u16::MAX] {
            let mut block = vec![7; 10];
            block.extend_from_slice(&length.to_le_bytes());
            block.extend_from_slice(&[BlockKind::Data as u8, PADDED]);
            let sum = checksum(&block, 1, 0);
            put_u64(&mut block, sum);
            let error = decode_block(block, BlockKind::Data, 1, 0).unwrap_err();
            assert!(matches!(error, Malformed::Field { what: "block padding", .. }), "{error}");
        }
    }

    #[test]
    fn block_damaged_is_error() {
        for contents in [&b"some contents"[..], &[3; 300]] {
            for compression in [Compression::None, Compression::Lz4] {
                for padding in [0, 50] {
                    let block = sealed_with_padding(contents, compression, padding);
                    assert_damage_is_detected(&block, |block| {
                        decode_block(block.to_vec(), BlockKind::Data, 7, 4096).is_ok()
                    });
                }
            }
        }
    }

    #[test]
    fn block_other_location_is_error() {
        let block = sealed(b"contents", Compression::None);
        assert!(decode_block(block.clone(), BlockKind::Data, 7, 4096).is_ok());
        assert!(decode_block(block.clone(), BlockKind::Data, 7, 4097).is_err());
        assert!(decode_block(block.clone(), BlockKind::Data, 8, 4096).is_err());
        let error = decode_block(block, BlockKind::Index, 7, 4096).unwrap_err();
        assert!(matches!(error, Malformed::Identity { what: "block kind", .. }), "{error}");
    }

    #[test]
    fn block_oversized_lz4_length_is_error() {
        for length in [u32::MAX, 1 << 30, 14 * 255 + 1, 13] {
            let mut block = length.to_le_bytes().to_vec();
            block.extend_from_slice(&[0xff; 14]);
            block.push(BlockKind::Data as u8);
            block.push(Compression::Lz4 as u8);
            let sum = checksum(&block, 1, 0);
            put_u64(&mut block, sum);
            let error = decode_block(block, BlockKind::Data, 1, 0).unwrap_err();
            assert!(matches!(error, Malformed::Field { .. }), "{error}");
        }
    }
}
