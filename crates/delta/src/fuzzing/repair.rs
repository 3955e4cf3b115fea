//! Puts checksums right around contents that are wrong, so that decoders see the contents.

use lsmx_base::checksum::xxh3_at;
use lsmx_base::coding::len_u64;

use crate::format::frame::{FRAME_HEADER_BYTES, decode_frame_len};
use crate::format::header::HEADER_BYTES;

/// Uid of the file that single frames are taken to come from.
pub(super) const UID: u64 = 0x0123_4567_89ab_cdef;
/// Where in that file they lie.
pub(super) const OFFSET: u64 = 4096;

/// The uid that a file says it has.
pub(super) fn uid_of(file: &[u8]) -> u64 {
    let uid = file.get(16..24).and_then(|bytes| bytes.try_into().ok());
    uid.map_or(0, u64::from_le_bytes)
}

/// The first bytes of a file.
pub(super) fn header(file: &mut [u8]) {
    if file.len() >= HEADER_BYTES {
        let sum = xxh3_at(&file[..24], 0, 0);
        file[24..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    }
}

/// A frame, from its first byte to its last.
pub(super) fn frame(bytes: &mut [u8], uid: u64, offset: u64) {
    let Some(length) = bytes.len().checked_sub(FRAME_HEADER_BYTES) else { return };
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    let sum = xxh3_at(&bytes[8..], uid, offset);
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
}

/// Where the frames of a file begin and end, as far as their lengths lead.
pub(super) fn frames(file: &[u8]) -> Vec<(usize, usize)> {
    let mut frames = Vec::new();
    let mut at = HEADER_BYTES;
    while let Some(left) = file.get(at..)
        && let Ok(len) = decode_frame_len(left)
        && len <= left.len()
    {
        frames.push((at, at + len));
        at += len;
    }
    frames
}

/// Header and frames of a file.
pub(super) fn file(file: &mut [u8]) {
    header(file);
    let uid = uid_of(file);
    for (from, to) in frames(file) {
        frame(&mut file[from..to], uid, len_u64(from));
    }
}
