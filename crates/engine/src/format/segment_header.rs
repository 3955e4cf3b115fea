//! Header of a WAL segment: the first 80 bytes of the file, little-endian. `file_header` describes the common part of
//! all file headers.
//!
//! ```text
//!  0  8  magic                     "LSMXWAL1"
//!  8  4  format version            u32
//! 12  4  reserved                  u32, 0
//! 16  8  database uid              u64
//! 24  8  segment id                u64, the number in the file's name, at least 1
//! 32  8  first sequence number     u64, lower bound for the records of this segment
//! 40  8  predecessor               u64, its id; 0 if this segment starts a chain
//! 48  8  its last sequence number  u64, last one before this segment
//! 56  8  its valid bytes           u64, bytes after them belong to failed commit groups
//! 64  8  its sync mark             u64, bytes of it synced when this header was written
//! 72  8  checksum                  u64, over bytes 0..72
//! ```
//!
//! If the segment has no predecessor, the fields at offsets 40 to 64 are 0.

use lsmx_base::coding::len_u64;
use lsmx_base::file_header::FileHeaderFormat;
use lsmx_base::malformed::Malformed;

use crate::format::FORMAT_VERSION;
use crate::format::log_record::SEQ_END;

/// Size of the header of a segment in bytes. The first record follows the header.
pub const SEGMENT_HEADER_BYTES: usize = 80;
const HEADER: FileHeaderFormat =
    FileHeaderFormat::new("segment header", *b"LSMXWAL1", FORMAT_VERSION);

/// Description of the previous segment of the WAL. The header of each segment contains this description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredecessorSegment {
    /// Segment id.
    pub id: u64,
    /// Last sequence number in the previous segment. If the previous segment has no records, the sequence number before
    /// it.
    pub last_seq: u64,
    /// Size of the valid part of the previous segment in bytes.
    pub bytes: u64,
    /// Number of bytes of the previous segment that were synced when this segment was created. 0 if the previous
    /// segment was never synced.
    pub mark: u64,
}

/// Header of a WAL segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Random uid of the database.
    pub db_uid: u64,
    /// Id of the segment, which is also in its file name.
    pub id: u64,
    /// Lower bound of the sequence numbers in the segment.
    pub first_seq: u64,
    /// The previous segment. `None` if this segment is the first one of the WAL.
    pub predecessor: Option<PredecessorSegment>,
}

impl SegmentHeader {
    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let none = PredecessorSegment { id: 0, last_seq: 0, bytes: 0, mark: 0 };
        let before = self.predecessor.unwrap_or(none);
        let PredecessorSegment { id, last_seq, bytes, mark } = before;
        HEADER.encode(0, [self.db_uid, self.id, self.first_seq, id, last_seq, bytes, mark])
    }

    /// Decodes the header from the first bytes of a segment. Use [`SegmentHeader::check_identity`] to check that the
    /// header belongs to the expected database and segment.
    ///
    /// # Errors
    /// Fails if the header is invalid, or if this build does not support its format version.
    pub fn decode(bytes: &[u8]) -> Result<SegmentHeader, Malformed> {
        let (reserved, [db_uid, id, first_seq, before, last_seq, bytes, mark]) =
            HEADER.decode(bytes)?;
        let predecessor =
            (before != 0).then_some(PredecessorSegment { id: before, last_seq, bytes, mark });
        if let (None, Some(&found)) =
            (predecessor, [last_seq, bytes, mark].iter().find(|field| **field != 0))
        {
            return Err(Malformed::invalid_field("field of an absent predecessor", found, "0"));
        }
        let header = SegmentHeader { db_uid, id, first_seq, predecessor };
        header.check_fields(reserved)?;
        Ok(header)
    }

    fn check_fields(&self, reserved: u32) -> Result<(), Malformed> {
        let field = |what, found, expected| Err(Malformed::invalid_field(what, found, expected));
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
                return field("id of the predecessor", before.id, "less than the segment id");
            }
            if before.last_seq >= self.first_seq {
                return field("predecessor's last number", before.last_seq, "before the first one");
            }
            if before.bytes < len_u64(SEGMENT_HEADER_BYTES) || before.mark > before.bytes {
                return field(
                    "bytes of the predecessor",
                    before.bytes,
                    "at least header and sync mark",
                );
            }
        }
        Ok(())
    }

    /// Checks that the header belongs to segment `id` of the database `db_uid`.
    ///
    /// # Errors
    /// Fails if the uid of the database or the id of the segment differs.
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
    use lsmx_base::checksum::xxh3;

    use super::*;
    use crate::format::assert_damage_is_detected;

    fn header() -> SegmentHeader {
        let predecessor = Some(PredecessorSegment { id: 6, last_seq: 40, bytes: 5000, mark: 300 });
        SegmentHeader { db_uid: 9, id: 7, first_seq: 41, predecessor }
    }

    #[test]
    fn segment_header_round_trips() {
        let start = SegmentHeader { predecessor: None, ..header() };
        for header in [header(), start] {
            assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
            assert_eq!(header.check_identity(9, 7), Ok(()));
        }
    }

    #[test]
    fn segment_header_damaged_is_error() {
        assert_damage_is_detected(&header().encode(), |bytes| SegmentHeader::decode(bytes).is_ok());
    }

    // Regression test: the decoder ignored these fields.
    #[test]
    fn segment_header_fields_of_absent_predecessor_are_error() {
        for at in [48, 56, 64] {
            let mut bytes = SegmentHeader { predecessor: None, ..header() }.encode();
            bytes[at] = 1;
            let covered = SEGMENT_HEADER_BYTES - size_of::<u64>();
            let sum = xxh3(&bytes[..covered]);
            bytes[covered..].copy_from_slice(&sum.to_le_bytes());
            assert!(matches!(SegmentHeader::decode(&bytes), Err(Malformed::Field { .. })));
        }
    }

    #[test]
    fn segment_header_other_identity_is_error() {
        assert!(matches!(header().check_identity(8, 7), Err(Malformed::Identity { .. })));
        assert!(matches!(header().check_identity(9, 8), Err(Malformed::Identity { .. })));
    }

    #[test]
    fn segment_header_newer_version_is_error() {
        let mut bytes = header().encode();
        bytes[8] = 3;
        let newer = SegmentHeader::decode(&bytes);
        assert_eq!(newer, Err(Malformed::Version { found: 3, supported: FORMAT_VERSION }));
    }
}
