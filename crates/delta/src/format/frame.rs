//! Frame: what stands between a file's header and its end, one after the other, little-endian.
//!
//! ```text
//!  0  8  checksum  u64, XXH3-64 of bytes 8.., seeded by the file's uid and the frame's offset
//!  8  4  length    u32, bytes of the contents
//! 12  1  kind      u8
//! 13  3  zero
//! 16  n  contents
//! ```

use lsmx::Malformed;
use lsmx_base::checksum::xxh3_at;
use lsmx_base::coding::{Decoder, len_u64, to_usize};

/// Bytes before the contents.
pub(crate) const FRAME_HEADER_BYTES: usize = 16;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// What a frame holds. A number once on disk is never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum FrameKind {
            $($(#[$doc])* $name = $number,)*
        }

        impl FrameKind {
            fn from_u8(byte: u8) -> Option<FrameKind> {
                match byte { $($number => Some(FrameKind::$name),)* _ => None }
            }

            /// Its name in dumps.
            pub(crate) fn name(self) -> &'static str {
                match self { $(FrameKind::$name => $text,)* }
            }
        }
    };
}

kinds! {
    /// Bucket file: records of a sorted part.
    Sorted = 1, "sorted page";
    /// Bucket file: which page of the sorted part begins with which key.
    Index = 2, "index";
    /// Bucket file: filter of the keys of the sorted part; empty if there is none.
    Filter = 3, "filter";
    /// Bucket file: records of the unsorted part.
    Unsorted = 4, "unsorted page";
    /// Log: name of the keyspace.
    Name = 16, "keyspace";
    /// Log: a snapshot begins.
    Snapshot = 17, "snapshot";
    /// Log: a bucket of a snapshot or of a collection.
    Bucket = 18, "bucket";
    /// Log: a snapshot ends.
    SnapshotEnd = 19, "end of snapshot";
    /// Log: the first buckets of all.
    Made = 20, "first buckets";
    /// Log: records of a delivery.
    Records = 21, "records";
    /// Log: range anchors of a delivery.
    Ranges = 22, "range anchors";
    /// Log: a delivery ends.
    Delivered = 23, "end of delivery";
    /// Log: a collection ends.
    Collected = 24, "collection";
}

/// Appends a frame that will lie at `offset` of its file; the contents come from `fill`.
pub(crate) fn put_frame(
    out: &mut Vec<u8>,
    (uid, offset): (u64, u64),
    kind: FrameKind,
    fill: impl FnOnce(&mut Vec<u8>),
) -> Result<(), lsmx::Error> {
    let start = out.len();
    out.resize(start + FRAME_HEADER_BYTES, 0);
    fill(out);
    let bytes = len_u64(out.len() - start - FRAME_HEADER_BYTES);
    let Ok(length) = u32::try_from(bytes) else {
        out.truncate(start);
        let limit = u64::from(u32::MAX);
        return Err(lsmx::Error::TooLarge { what: "operands of a key", bytes, limit });
    };
    out[start + 8..start + 12].copy_from_slice(&length.to_le_bytes());
    out[start + 12] = kind as u8;
    let checksum = xxh3_at(&out[start + 8..], uid, offset);
    out[start..start + 8].copy_from_slice(&checksum.to_le_bytes());
    Ok(())
}

/// Bytes of the frame whose first bytes these are, header included, and its kind as far as it can be
/// known before the checksum was compared.
pub(crate) fn frame_bytes(header: &[u8]) -> Result<usize, Malformed> {
    let mut decoder = Decoder::new(header);
    decoder.u64("frame checksum")?;
    let length = to_usize("frame length", u64::from(decoder.u32("frame length")?))?;
    decoder.u32("frame kind")?;
    Ok(FRAME_HEADER_BYTES.saturating_add(length))
}

/// The frame at the start of `bytes`, which lie at `offset`: its kind, its contents, and its length with
/// the header.
pub(crate) fn decode_frame(
    bytes: &[u8],
    (uid, offset): (u64, u64),
) -> Result<(FrameKind, &[u8], usize), Malformed> {
    let len = frame_bytes(bytes)?;
    let frame = bytes.get(..len).ok_or(Malformed::Truncated {
        what: "frame",
        needed: len_u64(len),
        found: len_u64(bytes.len()),
    })?;
    let mut decoder = Decoder::new(frame);
    let found = decoder.u64("frame checksum")?;
    let expected = xxh3_at(&frame[8..], uid, offset);
    if found != expected {
        return Err(Malformed::Checksum { expected, found });
    }
    let number = frame[12];
    let kind = FrameKind::from_u8(number).filter(|_| frame[13..16] == [0; 3]);
    let kind = kind.ok_or(Malformed::Field {
        what: "frame kind",
        found: u64::from(number),
        expected: "a kind this build knows",
    })?;
    Ok((kind, &frame[FRAME_HEADER_BYTES..], len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_and_no_changed_cut_or_moved_one_does() {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, (5, 99), FrameKind::Records, |out| out.extend(b"contents")).unwrap();
        let (kind, contents, len) = decode_frame(&bytes, (5, 99)).unwrap();
        assert_eq!((kind, contents, len), (FrameKind::Records, &b"contents"[..], bytes.len()));
        assert!(decode_frame(&bytes, (5, 98)).is_err());
        assert!(decode_frame(&bytes, (6, 99)).is_err());
        for at in 0..bytes.len() {
            assert!(decode_frame(&bytes[..at], (5, 99)).is_err());
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                assert!(decode_frame(&bytes, (5, 99)).is_err());
            }
        }
    }
}
