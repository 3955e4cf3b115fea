//! Log records: how a record of the WAL or the manifest stands in its file, little-endian.
//! ```text
//!  0  8  header checksum    u64, over bytes 8..36, seeded by file and offset
//!  8  4  payload bytes      u32
//! 12  4  count              u32, sequence numbers of the record; 0 for a mark-only record
//! 16  8  first number       u64, first sequence number; in a manifest the number of the edit
//! 24  8  sync mark          u64, bit 63: older files are synced, bits 0..63: synced bytes of this
//! 32  4  payload checksum   u32, seeded by file and offset
//! 36  n  payload
//! ```
//! Both checksums are seeded by the database, the number of the file and the offset of the record,
//! so that a record is valid in the one place where it was written. A record that carries nothing
//! but a sync mark has no payload and count 0. Zeros are not a record.

use lsmx_base::checksum::{location_seed, xxh3, xxh3_seeded};
use lsmx_base::coding::{len_u64, low_u32};
use lsmx_base::malformed::Malformed;

/// Bytes of a record before its payload.
pub const RECORD_HEADER_BYTES: usize = 36;
const _: () = assert!(
    RECORD_HEADER_BYTES == 3 * size_of::<u64>() + 3 * size_of::<u32>(),
    "the picture above says 36"
);

/// First number that is not a sequence number any more; they have 56 bits.
pub(crate) const SEQ_END: u64 = 1 << 56;
const OLDER_SYNCED: u64 = 1 << 63;

/// How far a log was on stable storage when a record was written.
///
/// A bad record below a mark is damage, one above every mark is a torn tail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncMark {
    /// This file is synced up to here, in bytes; 0 if it never was.
    pub position: u64,
    /// Every older segment is synced as far as it counts. Always so if `position` is not 0, for a
    /// sync goes oldest segment first.
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

/// The identity of a log file, from which the seeds of its checksums come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSeed(u64);

impl LogSeed {
    /// The seed of file `number` of the database `db_uid`.
    #[must_use]
    pub fn new(db_uid: u64, number: u64) -> LogSeed {
        let mut identity = [0; 16];
        identity[..8].copy_from_slice(&db_uid.to_le_bytes());
        identity[8..].copy_from_slice(&number.to_le_bytes());
        LogSeed(xxh3(&identity))
    }

    /// The checksum of bytes that belong to the record at `offset`.
    fn checksum(self, bytes: &[u8], offset: u64) -> u64 {
        xxh3_seeded(bytes, location_seed(self.0, offset))
    }

    /// The checksum of a payload: the low half, for the header before it has checked already.
    fn payload_checksum(self, payload: &[u8], offset: u64) -> u32 {
        low_u32(self.checksum(payload, offset))
    }
}

/// What stands before the payload of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Bytes of the payload.
    pub payload_bytes: u32,
    /// Sequence numbers that the record takes; 0 for a mark-only record.
    pub count: u32,
    /// First of them; of a mark-only record the next one to come.
    pub first_seq: u64,
    /// How far the log was synced when the record was written.
    pub mark: SyncMark,
    payload_checksum: u32,
}

impl RecordHeader {
    /// Appends a whole record that will stand at `offset` to `out`.
    ///
    /// # Errors
    /// A payload past `u32::MAX` bytes; nothing was appended then.
    pub fn encode_record(
        out: &mut Vec<u8>,
        (seed, offset): (LogSeed, u64),
        (first_seq, count): (u64, u32),
        mark: SyncMark,
        payload: &[u8],
    ) -> Result<(), Malformed> {
        let payload_bytes = u32::try_from(payload.len()).map_err(|_| Malformed::Field {
            what: "payload bytes",
            found: len_u64(payload.len()),
            expected: "less than 4 GiB",
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

    /// The header of the record at `offset`, of whose file `rest` bytes are there from `offset` on.
    ///
    /// # Errors
    /// What is wrong with it. A header whose checksum fits is still refused when it says what no
    /// writer writes.
    pub fn decode(
        bytes: &[u8; RECORD_HEADER_BYTES],
        (seed, offset): (LogSeed, u64),
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
        header.check(offset)?;
        if header.record_bytes() > rest {
            return Err(Malformed::Truncated {
                what: "log record",
                needed: header.record_bytes(),
                found: rest,
            });
        }
        Ok(header)
    }

    /// What must hold between the fields of a header.
    fn check(&self, offset: u64) -> Result<(), Malformed> {
        let field = |what, found, expected| Err(Malformed::Field { what, found, expected });
        if self.first_seq >= SEQ_END || self.first_seq + u64::from(self.count) > SEQ_END {
            return field("sequence number of a log record", self.first_seq, "less than 2^56");
        }
        if self.mark.position > offset {
            return field("sync mark", self.mark.position, "not beyond its own record");
        }
        if self.mark.position > 0 && !self.mark.older_synced {
            return field("sync mark", self.mark.position, "0 while older segments are not synced");
        }
        if self.count == 0 && self.payload_bytes > 0 {
            return field("count of a log record with a payload", 0, "1 or more");
        }
        Ok(())
    }

    /// Quickly rules out most places of a file where no record starts; what it lets pass must
    /// still be decoded.
    #[must_use]
    pub fn may_start(bytes: &[u8; RECORD_HEADER_BYTES], offset: u64, rest: u64) -> bool {
        bytes.iter().any(|&byte| byte != 0)
            && u64_at(bytes, 16) < SEQ_END
            && u64_at(bytes, 24) & !OLDER_SYNCED <= offset
            && u64::from(u32_at(bytes, 8)) + len_u64(RECORD_HEADER_BYTES) <= rest
    }

    /// Checks the payload of the record at `offset`.
    ///
    /// # Errors
    /// The checksum does not match.
    pub fn check_payload(
        &self,
        payload: &[u8],
        (seed, offset): (LogSeed, u64),
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

    /// Bytes of the whole record.
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        len_u64(RECORD_HEADER_BYTES) + u64::from(self.payload_bytes)
    }

    /// Whether the record carries a sync mark and nothing else.
    #[must_use]
    pub fn is_mark_only(&self) -> bool {
        self.count == 0
    }
}

/// The integer at a fixed place of a fixed-size header; the place is in bounds by construction.
pub(crate) fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

/// The integer at a fixed place of a fixed-size header; the place is in bounds by construction.
pub(crate) fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: (LogSeed, u64) = (LogSeed(77), 1000);

    fn record(payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mark = SyncMark { position: 900, older_synced: true };
        RecordHeader::encode_record(&mut out, PLACE, (5, 3), mark, payload).unwrap();
        out
    }

    fn decode(bytes: &[u8], place: (LogSeed, u64)) -> Result<RecordHeader, Malformed> {
        let header: &[u8; RECORD_HEADER_BYTES] = bytes.first_chunk().unwrap();
        let header = RecordHeader::decode(header, place, len_u64(bytes.len()))?;
        header.check_payload(&bytes[RECORD_HEADER_BYTES..], place)?;
        Ok(header)
    }

    #[test]
    fn a_record_comes_back() {
        let bytes = record(b"payload");
        let header = decode(&bytes, PLACE).unwrap();
        assert_eq!((header.first_seq, header.count, header.payload_bytes), (5, 3, 7));
        assert_eq!(header.mark, SyncMark { position: 900, older_synced: true });
        assert!(RecordHeader::may_start(bytes.first_chunk().unwrap(), 1000, 43));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = record(b"payload");
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bad, PLACE).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_record_elsewhere_is_not_valid() {
        let bytes = record(b"payload");
        assert!(decode(&bytes, (LogSeed(78), 1000)).is_err());
        assert!(decode(&bytes, (LogSeed(77), 1001)).is_err());
        assert_ne!(LogSeed::new(1, 2), LogSeed::new(2, 1));
    }

    #[test]
    fn zeros_are_no_record() {
        for offset in [0, 80, 1000, 4096] {
            assert!(decode(&[0; 64], (LogSeed::new(1, 2), offset)).is_err());
        }
    }

    #[test]
    fn a_record_longer_than_its_file_is_refused_before_it_is_read() {
        let bytes = record(b"payload");
        let short = RecordHeader::decode(bytes.first_chunk().unwrap(), PLACE, 42);
        assert!(matches!(short, Err(Malformed::Truncated { needed: 43, found: 42, .. })));
    }

    #[test]
    fn a_valid_checksum_does_not_excuse_a_mark_ahead_of_its_record() {
        let mut out = Vec::new();
        let mark = SyncMark { position: 1001, older_synced: true };
        RecordHeader::encode_record(&mut out, PLACE, (5, 3), mark, b"").unwrap();
        assert!(matches!(decode(&out, PLACE), Err(Malformed::Field { what: "sync mark", .. })));
    }
}
