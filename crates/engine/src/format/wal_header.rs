//! Header of a WAL segment: the first 80 bytes of the file, little-endian.
//! ```text
//!  0  8  magic
//!  8  4  format version            u32
//! 12  4  reserved                  u32, 0
//! 16  8  database uid              u64
//! 24  8  segment id                u64, the number in the file's name
//! 32  8  first sequence number     u64, that may come in this segment
//! 40  8  predecessor               u64, its id; 0 if this segment starts a chain
//! 48  8  its last sequence number  u64, last one before this segment
//! 56  8  its bytes that count      u64, what lies beyond belongs to failed groups
//! 64  8  its sync mark             u64, bytes of it that were synced when this header was written
//! 72  8  checksum                  u64, over bytes 0..72
//! ```
//! The three fields after the predecessor are 0 where there is none.

use lsmx_base::checksum::xxh3;
use lsmx_base::coding::len_u64;
use lsmx_base::malformed::Malformed;

use crate::format::FORMAT_VERSION;
use crate::format::frame::{SEQ_END, u32_at, u64_at};

/// Bytes of a segment before its first record.
pub const SEGMENT_HEADER_BYTES: usize = 80;
/// `LSMXWAL1` read as a little-endian number.
pub const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"LSMXWAL1");
const CHECKSUM_AT: usize = SEGMENT_HEADER_BYTES - size_of::<u64>();
const _: () = assert!(CHECKSUM_AT == 72, "the picture above says 72");

/// What a segment says of the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predecessor {
    /// Its id.
    pub id: u64,
    /// Last sequence number in it, or before it if it has no records.
    pub last_seq: u64,
    /// Its length as far as it counts, in bytes.
    pub bytes: u64,
    /// How many of its bytes were synced when this segment was begun; 0 if it never was.
    pub mark: u64,
}

/// Header of a WAL segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Random number of the database.
    pub db_uid: u64,
    /// Number of the segment's file.
    pub id: u64,
    /// No record of the segment has a smaller sequence number.
    pub first_seq: u64,
    /// The segment before it, or `None` at the start of a chain.
    pub predecessor: Option<Predecessor>,
}

impl SegmentHeader {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let none = Predecessor { id: 0, last_seq: 0, bytes: 0, mark: 0 };
        let before = self.predecessor.unwrap_or(none);
        let mut out = [0; SEGMENT_HEADER_BYTES];
        out[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        for (at, field) in [
            (0, SEGMENT_MAGIC),
            (16, self.db_uid),
            (24, self.id),
            (32, self.first_seq),
            (40, before.id),
            (48, before.last_seq),
            (56, before.bytes),
            (64, before.mark),
        ] {
            out[at..at + 8].copy_from_slice(&field.to_le_bytes());
        }
        let sum = xxh3(&out[..CHECKSUM_AT]);
        out[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads a header from the first bytes of a segment.
    ///
    /// Whether it is the header of *this* file of *this* database, the caller must ask with
    /// [`SegmentHeader::check_identity`].
    ///
    /// # Errors
    /// What is wrong: too short, wrong magic number, newer version, wrong checksum, wrong field.
    pub fn decode(bytes: &[u8]) -> Result<SegmentHeader, Malformed> {
        let Some(bytes) = bytes.first_chunk::<SEGMENT_HEADER_BYTES>() else {
            return Err(Malformed::Truncated {
                what: "segment header",
                needed: len_u64(SEGMENT_HEADER_BYTES),
                found: len_u64(bytes.len()),
            });
        };
        if u64_at(bytes, 0) != SEGMENT_MAGIC {
            return Err(Malformed::Magic { expected: SEGMENT_MAGIC, found: u64_at(bytes, 0) });
        }
        let version = u32_at(bytes, 8);
        if version > FORMAT_VERSION {
            return Err(Malformed::Version { found: version, supported: FORMAT_VERSION });
        }
        let (expected, found) = (xxh3(&bytes[..CHECKSUM_AT]), u64_at(bytes, CHECKSUM_AT));
        if found != expected {
            return Err(Malformed::Checksum { expected, found });
        }
        let predecessor = (u64_at(bytes, 40) != 0).then(|| Predecessor {
            id: u64_at(bytes, 40),
            last_seq: u64_at(bytes, 48),
            bytes: u64_at(bytes, 56),
            mark: u64_at(bytes, 64),
        });
        if let (None, Some(at)) =
            (predecessor, [48, 56, 64].iter().find(|at| u64_at(bytes, **at) != 0))
        {
            return Err(Malformed::Field {
                what: "what a segment without a predecessor says of it",
                found: u64_at(bytes, *at),
                expected: "0",
            });
        }
        let header = SegmentHeader {
            db_uid: u64_at(bytes, 16),
            id: u64_at(bytes, 24),
            first_seq: u64_at(bytes, 32),
            predecessor,
        };
        header.check(version, u32_at(bytes, 12))?;
        Ok(header)
    }

    fn check(&self, version: u32, reserved: u32) -> Result<(), Malformed> {
        let field = |what, found, expected| Err(Malformed::Field { what, found, expected });
        if version == 0 {
            return field("format version", 0, "1 or more");
        }
        if reserved != 0 {
            return field("reserved bytes of a segment header", u64::from(reserved), "0");
        }
        if self.id == 0 {
            return field("segment id", 0, "1 or more");
        }
        if self.first_seq > SEQ_END {
            return field("first sequence number", self.first_seq, "at most 2^56");
        }
        if let Some(before) = self.predecessor {
            if before.id >= self.id {
                return field("id of the predecessor", before.id, "smaller than the own id");
            }
            if before.last_seq >= self.first_seq {
                return field("predecessor's last number", before.last_seq, "before the first one");
            }
            if before.bytes < len_u64(SEGMENT_HEADER_BYTES) || before.mark > before.bytes {
                return field("bytes of the predecessor", before.bytes, "its header and its mark");
            }
        }
        Ok(())
    }

    /// Checks that the header belongs to segment `id` of the database `db_uid`.
    ///
    /// # Errors
    /// Which of the two does not match.
    pub fn check_identity(&self, db_uid: u64, id: u64) -> Result<(), Malformed> {
        if self.db_uid != db_uid {
            let found = self.db_uid;
            return Err(Malformed::Identity { what: "database uid", expected: db_uid, found });
        }
        if self.id != id {
            return Err(Malformed::Identity { what: "segment id", expected: id, found: self.id });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        let predecessor = Some(Predecessor { id: 6, last_seq: 40, bytes: 5000, mark: 300 });
        SegmentHeader { db_uid: 9, id: 7, first_seq: 41, predecessor }
    }

    #[test]
    fn a_header_comes_back() {
        let start = SegmentHeader { predecessor: None, ..header() };
        for header in [header(), start] {
            assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
            assert_eq!(header.check_identity(9, 7), Ok(()));
        }
    }

    #[test]
    fn every_truncation_is_noticed() {
        let bytes = header().encode();
        for length in 0..bytes.len() {
            let cut = SegmentHeader::decode(&bytes[..length]);
            assert!(matches!(cut, Err(Malformed::Truncated { .. })), "{length}");
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for bit in 0..SEGMENT_HEADER_BYTES * 8 {
            let mut bytes = header().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    // Found by encoding again what decodes: these fields were read over.
    #[test]
    fn without_a_predecessor_nothing_is_said_of_it() {
        for at in [48, 56, 64] {
            let mut bytes = SegmentHeader { predecessor: None, ..header() }.encode();
            bytes[at] = 1;
            let sum = xxh3(&bytes[..CHECKSUM_AT]);
            bytes[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
            assert!(matches!(SegmentHeader::decode(&bytes), Err(Malformed::Field { .. })));
        }
    }

    #[test]
    fn a_header_of_another_place_is_foreign() {
        assert!(matches!(header().check_identity(8, 7), Err(Malformed::Identity { .. })));
        assert!(matches!(header().check_identity(9, 8), Err(Malformed::Identity { .. })));
    }

    #[test]
    fn a_newer_version_is_refused_by_number() {
        let mut bytes = header().encode();
        bytes[8] = 2;
        let newer = SegmentHeader::decode(&bytes);
        assert_eq!(newer, Err(Malformed::Version { found: 2, supported: FORMAT_VERSION }));
    }
}
