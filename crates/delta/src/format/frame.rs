//! Frame: a checksummed block of a bucket file or a log. Frames follow the file header without gaps. Numbers are
//! little-endian.
//!
//! ```text
//!  0  8  checksum  u64, XXH3-64 of bytes 8.., seeded by the uid of the file and the offset of the frame
//!  8  4  length    u32, bytes of the contents
//! 12  1  kind      u8
//! 13  3  zero
//! 16  n  contents
//! ```

use lsmx::Error;
use lsmx_base::checksum::xxh3_at_file_location;
use lsmx_base::coding::{Decoder, len_u64, to_usize};
use lsmx_base::malformed::Malformed;

use super::invalid_field;

/// Bytes of a frame before its contents.
pub const FRAME_HEADER_BYTES: usize = 16;

macro_rules! frame_kinds {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        /// Type of the contents of a frame. The number of a removed type is not reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum FrameKind {
            $($name = $number,)*
        }

        impl FrameKind {
            fn from_u8(byte: u8) -> Option<FrameKind> {
                match byte { $($number => Some(FrameKind::$name),)* _ => None }
            }

            /// Returns the name that dumps and error messages use for the type.
            pub fn name(self) -> &'static str {
                match self { $(FrameKind::$name => $text,)* }
            }
        }
    };
}

frame_kinds! {
    // Frames of a bucket file. A filter frame without contents matches every key.
    SortedPage = 1, "sorted page";
    Index = 2, "index";
    Filter = 3, "filter";
    UnsortedPage = 4, "unsorted page";
    // Frames of a log.
    Keyspace = 16, "keyspace";
    Snapshot = 17, "snapshot";
    Bucket = 18, "bucket";
    SnapshotEnd = 19, "end of snapshot";
    FirstBuckets = 20, "first buckets";
    Records = 21, "records";
    RangeMarkers = 22, "range delete markers";
    DeliveryEnd = 23, "end of delivery";
    CollectionEnd = 24, "collection";
}

impl FrameKind {
    /// Returns an error if the frame is not of the expected kind.
    pub fn check_kind(self, expected: FrameKind) -> Result<(), Malformed> {
        if self == expected { Ok(()) } else { Err(self.unexpected_kind(expected.name())) }
    }

    /// Returns the error for a frame of this kind where another kind is required.
    pub fn unexpected_kind(self, expected: &'static str) -> Malformed {
        invalid_field("kind of a frame", u64::from(self as u8), expected)
    }
}

/// Appends a frame to `out`. `offset` is the file offset of the frame. `fill` appends the contents.
///
/// Fails with [`Error::TooLarge`] if the contents have 4 GiB or more. In this case `out` does not change.
pub fn put_frame(
    out: &mut Vec<u8>,
    (uid, offset): (u64, u64),
    kind: FrameKind,
    fill: impl FnOnce(&mut Vec<u8>),
) -> Result<(), Error> {
    let start = out.len();
    out.resize(start + FRAME_HEADER_BYTES, 0);
    fill(out);
    let bytes = len_u64(out.len() - start - FRAME_HEADER_BYTES);
    let Ok(length) = u32::try_from(bytes) else {
        out.truncate(start);
        let limit = u64::from(u32::MAX);
        return Err(Error::TooLarge { what: "operands of a key", bytes, limit });
    };
    out[start + 8..start + 12].copy_from_slice(&length.to_le_bytes());
    out[start + 12] = kind as u8;
    let checksum = xxh3_at_file_location(&out[start + 8..], uid, offset);
    out[start..start + 8].copy_from_slice(&checksum.to_le_bytes());
    Ok(())
}

/// Reads the size of a frame, in bytes, from its header. Does not verify the checksum.
pub fn decode_frame_len(header: &[u8]) -> Result<usize, Malformed> {
    let mut decoder = Decoder::new(header);
    decoder.u64("frame checksum")?;
    let length = to_usize("frame length", u64::from(decoder.u32("frame length")?))?;
    decoder.u32("frame kind")?;
    Ok(FRAME_HEADER_BYTES.saturating_add(length))
}

/// Decodes the frame at the start of `bytes`. `offset` is the file offset of the frame.
///
/// Returns the kind, the contents, and the size of the frame in bytes, including its header.
pub fn decode_frame(
    bytes: &[u8],
    (uid, offset): (u64, u64),
) -> Result<(FrameKind, &[u8], usize), Malformed> {
    let len = decode_frame_len(bytes)?;
    let frame = bytes.get(..len).ok_or(Malformed::Truncated {
        what: "frame",
        needed: len_u64(len),
        found: len_u64(bytes.len()),
    })?;
    let mut decoder = Decoder::new(frame);
    let found = decoder.u64("frame checksum")?;
    let expected = xxh3_at_file_location(&frame[8..], uid, offset);
    if found != expected {
        return Err(Malformed::Checksum { expected, found });
    }
    let number = frame[12];
    let kind = FrameKind::from_u8(number).filter(|_| frame[13..16] == [0; 3]);
    let expected = "a kind this build knows";
    let kind = kind.ok_or(invalid_field("frame kind", u64::from(number), expected))?;
    Ok((kind, &frame[FRAME_HEADER_BYTES..], len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_round_trips_and_damage_is_rejected() {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, (5, 99), FrameKind::Records, |out| out.extend(b"contents")).unwrap();
        let (kind, contents, len) = decode_frame(&bytes, (5, 99)).unwrap();
        assert_eq!((kind, contents, len), (FrameKind::Records, &b"contents"[..], bytes.len()));
        assert!(decode_frame(&bytes, (5, 98)).is_err());
        assert!(decode_frame(&bytes, (6, 99)).is_err());
        for at in 0..bytes.len() {
            assert!(decode_frame(&bytes[..at], (5, 99)).is_err(), "truncated to {at} bytes");
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert!(decode_frame(&damaged, (5, 99)).is_err(), "bit {bit} of byte {at}");
            }
        }
    }
}
