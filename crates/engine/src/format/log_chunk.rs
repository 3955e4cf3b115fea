//! Log chunk: consecutive commits of the WAL, copied for an archive. Numbers are little-endian.
//!
//! ```text
//!  0  8  magic                  "LSMXLCH1"
//!  8  4  format version         u32
//! 12  4  reserved               u32, 0
//! 16  8  database uid           u64
//! 24  8  first sequence number  u64, at least 1
//! 32  8  last sequence number   u64, at least the first one
//! 40  8  size of the records    u64, in bytes
//! 48  8  checksum               u64, over bytes 0..48
//! 56  +  records                as in a WAL segment, without sync marks
//! ```
//!
//! A chunk contains all commits whose sequence numbers are between the first and the last one. The uid of the database,
//! the first sequence number of the chunk, and the offset of a record in the chunk seed the checksums of the record.

use lsmx_base::coding::len_u64;
use lsmx_base::file_header::FileHeaderFormat;
use lsmx_base::malformed::Malformed;

use crate::format::FORMAT_VERSION;
use crate::format::log_record::{
    LogChecksumSeed, RECORD_HEADER_BYTES, RecordHeader, SEQ_END, SyncMark,
};

/// Size of the header of a chunk in bytes. The first record follows the header.
pub(crate) const LOG_CHUNK_HEADER_BYTES: usize = 56;
const HEADER: FileHeaderFormat =
    FileHeaderFormat::new("log chunk header", *b"LSMXLCH1", FORMAT_VERSION);

/// Header of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogChunkHeader {
    /// Uid of the database whose commits the chunk contains.
    pub(crate) db_uid: u64,
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
}

impl LogChunkHeader {
    fn seed(&self) -> LogChecksumSeed {
        LogChecksumSeed::new(self.db_uid, self.first_seq)
    }
}

/// Encodes a chunk.
#[derive(Debug)]
pub(crate) struct LogChunkBuilder {
    db_uid: u64,
    first_seq: u64,
    last_seq: u64,
    bytes: Vec<u8>,
}

impl LogChunkBuilder {
    /// Begins a chunk. `first_seq` is the number after the last one of the previous chunk.
    pub(crate) fn new(db_uid: u64, first_seq: u64) -> LogChunkBuilder {
        let bytes = vec![0; LOG_CHUNK_HEADER_BYTES];
        LogChunkBuilder { db_uid, first_seq, last_seq: 0, bytes }
    }

    /// Appends a commit with the sequence numbers `first_seq` to `first_seq + count - 1`.
    ///
    /// # Errors
    /// The payload has 4 GiB or more.
    pub(crate) fn add_commit(
        &mut self,
        (first_seq, count): (u64, u32),
        payload: &[u8],
    ) -> Result<(), Malformed> {
        let seed = LogChecksumSeed::new(self.db_uid, self.first_seq);
        let location = (seed, len_u64(self.bytes.len()));
        let (numbers, mark) = ((first_seq, count), SyncMark::default());
        RecordHeader::encode_record(&mut self.bytes, location, numbers, mark, payload)?;
        self.last_seq = first_seq + u64::from(count) - 1;
        Ok(())
    }

    /// Returns the size of the records so far, in bytes.
    pub(crate) fn record_bytes(&self) -> usize {
        self.bytes.len() - LOG_CHUNK_HEADER_BYTES
    }

    /// Returns the chunk with its first and last sequence number, or `None` if it contains no commit.
    pub(crate) fn finish(self) -> Option<(u64, u64, Vec<u8>)> {
        let LogChunkBuilder { db_uid, first_seq, last_seq, mut bytes } = self;
        let records = len_u64(bytes.len() - LOG_CHUNK_HEADER_BYTES);
        let header: [u8; LOG_CHUNK_HEADER_BYTES] =
            HEADER.encode(0, [db_uid, first_seq, last_seq, records]);
        bytes[..LOG_CHUNK_HEADER_BYTES].copy_from_slice(&header);
        (records > 0).then_some((first_seq, last_seq, bytes))
    }
}

/// A commit of a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkCommit<'a> {
    pub(crate) first_seq: u64,
    pub(crate) count: u32,
    pub(crate) payload: &'a [u8],
}

impl ChunkCommit<'_> {
    /// Returns the last sequence number of the commit.
    pub(crate) fn last_seq(&self) -> u64 {
        // The decoder of the record checks that the sum is at most 2^56.
        self.first_seq + u64::from(self.count) - 1
    }
}

/// Decodes a chunk and verifies all its checksums. An error has the offset of the malformed part.
pub(crate) fn decode_log_chunk(
    bytes: &[u8],
) -> Result<(LogChunkHeader, Vec<ChunkCommit<'_>>), (Malformed, u64)> {
    let at_start = |what| (what, 0);
    let (_, [db_uid, first_seq, last_seq, record_bytes]) =
        HEADER.decode(bytes).map_err(at_start)?;
    let found = len_u64(bytes.len() - LOG_CHUNK_HEADER_BYTES);
    if found != record_bytes {
        let what = "records of a log chunk";
        return Err(at_start(Malformed::Truncated { what, needed: record_bytes, found }));
    }
    if first_seq == 0 || first_seq > last_seq || last_seq >= SEQ_END {
        let (what, expected) = ("first number of a log chunk", "1 to the last number");
        return Err(at_start(Malformed::invalid_field(what, first_seq, expected)));
    }
    let header = LogChunkHeader { db_uid, first_seq, last_seq };
    let (mut commits, mut rest) = (Vec::new(), &bytes[LOG_CHUNK_HEADER_BYTES..]);
    let mut previous = first_seq - 1;
    while !rest.is_empty() {
        let offset = len_u64(bytes.len() - rest.len());
        let commit = split_commit(&mut rest, (header.seed(), offset));
        let commit = commit.map_err(|what| (what, offset))?;
        if commit.first_seq <= previous || commit.last_seq() > last_seq {
            let (what, expected) =
                ("number of a commit in a log chunk", "ascending up to the last");
            return Err((Malformed::invalid_field(what, commit.first_seq, expected), offset));
        }
        previous = commit.last_seq();
        commits.push(commit);
    }
    if previous != last_seq {
        let (what, expected) = ("last number of a log chunk", "that of its last commit");
        return Err(at_start(Malformed::invalid_field(what, last_seq, expected)));
    }
    Ok((header, commits))
}

/// Decodes the record at the start of `rest`, and removes it from `rest`.
fn split_commit<'a>(
    rest: &mut &'a [u8],
    location: (LogChecksumSeed, u64),
) -> Result<ChunkCommit<'a>, Malformed> {
    let found = len_u64(rest.len());
    let Some((header, after)) = rest.split_first_chunk::<RECORD_HEADER_BYTES>() else {
        let (what, needed) = ("header of a log record", len_u64(RECORD_HEADER_BYTES));
        return Err(Malformed::Truncated { what, needed, found });
    };
    let header = RecordHeader::decode(header, location, found)?;
    // The decoder checks that the record ends within `rest`.
    let payload_bytes = usize::try_from(header.payload_bytes).unwrap_or(usize::MAX);
    let (payload, after) = after.split_at(payload_bytes.min(after.len()));
    header.check_payload(payload, location)?;
    if header.is_mark_only() {
        return Err(Malformed::invalid_field("count of a log record", 0, "1 or more"));
    }
    *rest = after;
    Ok(ChunkCommit { first_seq: header.first_seq, count: header.count, payload })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::copies_with_flipped_bit;

    fn chunk() -> Vec<u8> {
        let mut builder = LogChunkBuilder::new(7, 10);
        builder.add_commit((12, 2), b"first").unwrap();
        builder.add_commit((14, 1), b"second").unwrap();
        let (first_seq, last_seq, bytes) = builder.finish().unwrap();
        assert_eq!((first_seq, last_seq), (10, 14));
        bytes
    }

    #[test]
    fn log_chunk_round_trips() {
        let bytes = chunk();
        let (header, commits) = decode_log_chunk(&bytes).unwrap();
        assert_eq!(header, LogChunkHeader { db_uid: 7, first_seq: 10, last_seq: 14 });
        let commits: Vec<_> =
            commits.iter().map(|commit| (commit.first_seq, commit.count, commit.payload)).collect();
        assert_eq!(commits, [(12, 2, &b"first"[..]), (14, 1, b"second")]);
        assert!(LogChunkBuilder::new(7, 10).finish().is_none());
    }

    #[test]
    fn log_chunk_with_flipped_bit_or_other_length_is_error() {
        let good = chunk();
        for (bit, bad) in copies_with_flipped_bit(&good) {
            assert!(decode_log_chunk(&bad).is_err(), "bit {bit}");
        }
        for len in 0..good.len() {
            assert!(decode_log_chunk(&good[..len]).is_err(), "length {len}");
        }
        assert!(decode_log_chunk(&[&good[..], &[0]].concat()).is_err());
    }
}
