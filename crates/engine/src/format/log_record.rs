//! Log record: the unit in which the WAL, the manifest and workload traces are written and verified. Integers are
//! little-endian.
//!
//! ```text
//!  0  8  header checksum    u64, over bytes 8..36, seeded by file and offset
//!  8  4  payload bytes      u32
//! 12  4  count              u32, sequence numbers of the record; 0 for a mark-only record
//! 16  8  first number       u64, first sequence number; in a manifest the number of the edit
//! 24  8  sync mark          u64, bit 63: older files are synced, bits 0..63: synced bytes of this
//! 32  4  payload checksum   u32, seeded by file and offset
//! 36  n  payload
//! ```
//!
//! The uid of the database, the number of the file and the offset of the record seed both checksums. A record is
//! therefore valid only at the location where it was written. A mark-only record contains a sync mark and has no
//! payload. Zeros are never a valid record.

use lsmx_base::checksum::{file_location_seed, xxh3, xxh3_seeded};
use lsmx_base::coding::{len_u64, low_u32};
use lsmx_base::malformed::Malformed;

/// Size of the header of a record in bytes. The payload follows the header.
pub const RECORD_HEADER_BYTES: usize = 36;
const _: () = assert!(
    RECORD_HEADER_BYTES == 3 * size_of::<u64>() + 3 * size_of::<u32>(),
    "the diagram above says 36"
);

/// Exclusive upper bound of sequence numbers, which have 56 bits.
pub(crate) const SEQ_END: u64 = 1 << 56;
const OLDER_SYNCED: u64 = 1 << 63;

/// Extent of the log that was synced when a record was written.
///
/// An invalid record before the position of a later sync mark is corruption. An invalid record after all sync marks is
/// a torn tail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncMark {
    /// Number of bytes of this file that were synced. 0 if the file was never synced.
    pub position: u64,
    /// True if all valid bytes of older segments were synced. Always true if `position` is not 0, because older
    /// segments are synced before newer segments.
    pub older_synced: bool,
}

impl SyncMark {
    fn encode(self) -> u64 {
        self.position | if self.older_synced { OLDER_SYNCED } else { 0 }
    }

    fn decode(bits: u64) -> SyncMark {
        SyncMark { position: bits & !OLDER_SYNCED, older_synced: bits & OLDER_SYNCED != 0 }
    }
}

/// Seed of the checksums of a log file. The seed identifies the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogChecksumSeed(u64);

impl LogChecksumSeed {
    /// Returns the seed for file `number` of the database `db_uid`.
    #[must_use]
    pub fn new(db_uid: u64, number: u64) -> LogChecksumSeed {
        let mut identity = [0; 16];
        identity[..8].copy_from_slice(&db_uid.to_le_bytes());
        identity[8..].copy_from_slice(&number.to_le_bytes());
        LogChecksumSeed(xxh3(&identity))
    }

    /// Returns the checksum of `bytes`, which are part of the record at `offset`.
    fn checksum(self, bytes: &[u8], offset: u64) -> u64 {
        xxh3_seeded(bytes, file_location_seed(self.0, offset))
    }

    /// Returns the checksum of the payload of the record at `offset`. 32 bits are sufficient, because the header has
    /// its own checksum.
    fn payload_checksum(self, payload: &[u8], offset: u64) -> u32 {
        low_u32(self.checksum(payload, offset))
    }
}

/// Header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Size of the payload in bytes.
    pub payload_bytes: u32,
    /// Number of sequence numbers that the record uses. 0 for a mark-only record.
    pub count: u32,
    /// First sequence number of the record. For a mark-only record, the next unused sequence number.
    pub first_seq: u64,
    /// Synced extent of the log when the record was written.
    pub mark: SyncMark,
    payload_checksum: u32,
}

impl RecordHeader {
    /// Appends a record that will be written at `offset`.
    ///
    /// # Errors
    /// Fails if the payload has 4 GiB or more. In this case, nothing is appended.
    pub fn encode_record(
        out: &mut Vec<u8>,
        (seed, offset): (LogChecksumSeed, u64),
        (first_seq, count): (u64, u32),
        mark: SyncMark,
        payload: &[u8],
    ) -> Result<(), Malformed> {
        let payload_bytes = u32::try_from(payload.len()).map_err(|_| {
            Malformed::invalid_field("payload bytes", len_u64(payload.len()), "less than 4 GiB")
        })?;
        let mut header = [0; RECORD_HEADER_BYTES];
        header[8..12].copy_from_slice(&payload_bytes.to_le_bytes());
        header[12..16].copy_from_slice(&count.to_le_bytes());
        header[16..24].copy_from_slice(&first_seq.to_le_bytes());
        header[24..32].copy_from_slice(&mark.encode().to_le_bytes());
        header[32..36].copy_from_slice(&seed.payload_checksum(payload, offset).to_le_bytes());
        let sum = seed.checksum(&header[8..], offset);
        header[..8].copy_from_slice(&sum.to_le_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(payload);
        Ok(())
    }

    /// Decodes the header of the record at `offset`. `rest` is the number of bytes from `offset` to the end of the
    /// file.
    ///
    /// # Errors
    /// Fails if the checksum does not match, if a field is invalid, or if the record extends beyond the end of the
    /// file.
    pub fn decode(
        bytes: &[u8; RECORD_HEADER_BYTES],
        (seed, offset): (LogChecksumSeed, u64),
        rest: u64,
    ) -> Result<RecordHeader, Malformed> {
        let found = u64_at(bytes, 0);
        let expected = seed.checksum(&bytes[8..], offset);
        if found != expected {
            return Err(Malformed::Checksum { expected, found });
        }
        let header = RecordHeader {
            payload_bytes: u32_at(bytes, 8),
            count: u32_at(bytes, 12),
            first_seq: u64_at(bytes, 16),
            mark: SyncMark::decode(u64_at(bytes, 24)),
            payload_checksum: u32_at(bytes, 32),
        };
        header.check_fields(offset)?;
        if header.record_bytes() > rest {
            return Err(Malformed::Truncated {
                what: "log record",
                needed: header.record_bytes(),
                found: rest,
            });
        }
        Ok(header)
    }

    /// Checks the values of the fields against each other and against their limits.
    fn check_fields(&self, offset: u64) -> Result<(), Malformed> {
        let field = |what, found, expected| Err(Malformed::invalid_field(what, found, expected));
        if self.first_seq >= SEQ_END || self.first_seq + u64::from(self.count) > SEQ_END {
            return field("sequence number of a log record", self.first_seq, "less than 2^56");
        }
        if self.mark.position > offset {
            return field("sync mark", self.mark.position, "at most the offset of its record");
        }
        if self.mark.position > 0 && !self.mark.older_synced {
            return field("sync mark", self.mark.position, "0 unless older segments are synced");
        }
        if self.count == 0 && self.payload_bytes > 0 {
            return field("count of a log record with a payload", 0, "1 or more");
        }
        Ok(())
    }

    /// Returns whether a record may start at `offset`. Scans of damaged files use this fast check to find candidates. A
    /// candidate must still be decoded, because the checksum is not verified.
    #[must_use]
    pub fn can_start_record(bytes: &[u8; RECORD_HEADER_BYTES], offset: u64, rest: u64) -> bool {
        bytes.iter().any(|&byte| byte != 0)
            && u64_at(bytes, 16) < SEQ_END
            && u64_at(bytes, 24) & !OLDER_SYNCED <= offset
            && u64::from(u32_at(bytes, 8)) + len_u64(RECORD_HEADER_BYTES) <= rest
    }

    /// Verifies the checksum of the payload of the record at `offset`.
    ///
    /// # Errors
    /// Fails if the checksum does not match.
    pub fn check_payload(
        &self,
        payload: &[u8],
        (seed, offset): (LogChecksumSeed, u64),
    ) -> Result<(), Malformed> {
        let expected = seed.payload_checksum(payload, offset);
        if expected == self.payload_checksum {
            return Ok(());
        }
        Err(Malformed::Checksum {
            expected: u64::from(expected),
            found: u64::from(self.payload_checksum),
        })
    }

    /// Returns the size of the record in bytes, including the header.
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        len_u64(RECORD_HEADER_BYTES) + u64::from(self.payload_bytes)
    }

    /// Returns whether the record contains only a sync mark.
    #[must_use]
    pub fn is_mark_only(&self) -> bool {
        self.count == 0
    }
}

/// Reads a little-endian integer. `at` is a constant that is within bounds.
pub(crate) fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

/// Reads a little-endian integer. `at` is a constant that is within bounds.
pub(crate) fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::copies_with_flipped_bit;

    const LOCATION: (LogChecksumSeed, u64) = (LogChecksumSeed(77), 1000);

    fn record(payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mark = SyncMark { position: 900, older_synced: true };
        RecordHeader::encode_record(&mut out, LOCATION, (5, 3), mark, payload).unwrap();
        out
    }

    fn decode(bytes: &[u8], location: (LogChecksumSeed, u64)) -> Result<RecordHeader, Malformed> {
        let header: &[u8; RECORD_HEADER_BYTES] = bytes.first_chunk().unwrap();
        let header = RecordHeader::decode(header, location, len_u64(bytes.len()))?;
        header.check_payload(&bytes[RECORD_HEADER_BYTES..], location)?;
        Ok(header)
    }

    #[test]
    fn log_record_round_trips() {
        let bytes = record(b"payload");
        let header = decode(&bytes, LOCATION).unwrap();
        assert_eq!((header.first_seq, header.count, header.payload_bytes), (5, 3, 7));
        assert_eq!(header.mark, SyncMark { position: 900, older_synced: true });
        assert!(RecordHeader::can_start_record(bytes.first_chunk().unwrap(), 1000, 43));
    }

    #[test]
    fn log_record_flipped_bit_is_error() {
        let good = record(b"payload");
        for (bit, bad) in copies_with_flipped_bit(&good) {
            assert!(decode(&bad, LOCATION).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn log_record_other_location_is_error() {
        let bytes = record(b"payload");
        assert!(decode(&bytes, (LogChecksumSeed(78), 1000)).is_err());
        assert!(decode(&bytes, (LogChecksumSeed(77), 1001)).is_err());
        assert_ne!(LogChecksumSeed::new(1, 2), LogChecksumSeed::new(2, 1));
    }

    #[test]
    fn log_record_zeros_are_error() {
        for offset in [0, 80, 1000, 4096] {
            assert!(decode(&[0; 64], (LogChecksumSeed::new(1, 2), offset)).is_err());
        }
    }

    #[test]
    fn log_record_longer_than_file_is_error() {
        let bytes = record(b"payload");
        let short = RecordHeader::decode(bytes.first_chunk().unwrap(), LOCATION, 42);
        assert!(matches!(short, Err(Malformed::Truncated { needed: 43, found: 42, .. })));
    }

    #[test]
    fn log_record_sync_mark_after_record_is_error() {
        let mut out = Vec::new();
        let mark = SyncMark { position: 1001, older_synced: true };
        RecordHeader::encode_record(&mut out, LOCATION, (5, 3), mark, b"").unwrap();
        assert!(matches!(decode(&out, LOCATION), Err(Malformed::Field { what: "sync mark", .. })));
    }
}
