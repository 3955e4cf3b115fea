//! Reading a file of log records: the WAL and the manifest share it.
//!
//! 1. [`LogReader::record`] reads the record at an offset, in chunks; nothing is allocated for a
//!    length that its own checksum has not vouched for and that the file does not hold.
//! 2. After a bad record the caller asks [`LogReader::beyond`], which tries every later offset for
//!    a header that checks: not to use what lies there, but to learn from the sync marks whether
//!    the bad record had been on stable storage.

use std::path::Path;

use lsmx_base::coding::{len_u64, to_usize};
use lsmx_base::failpoint::{self, Failpoint};

use crate::format::log_record::{LogSeed, RECORD_HEADER_BYTES, RecordHeader};
use crate::vfs::File;
use crate::{Error, Malformed, Result};

const CHUNK_BYTES: u64 = 256 << 10;

/// Reads the records of one file.
#[derive(Debug)]
pub(crate) struct LogReader<'a> {
    file: &'a dyn File,
    path: &'a Path,
    seed: LogSeed,
    end: u64,
    chunk: Vec<u8>,
    chunk_at: u64,
}

/// What stands at an offset.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    /// The log ends here.
    End,
    /// A record whose checksums fit.
    Record(RecordHeader, &'a [u8]),
    /// Something else.
    Bad(Malformed),
}

/// What lies beyond a bad record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Beyond {
    /// Largest synced position that a header claims.
    pub(crate) position: u64,
    /// Whether a header claims that all older files are synced.
    pub(crate) older_synced: bool,
    /// Whole valid records with a payload.
    pub(crate) records: u64,
}

impl<'a> LogReader<'a> {
    /// Reads `file` up to `end`, which must not be past its length.
    pub(crate) fn new(file: &'a dyn File, path: &'a Path, seed: LogSeed, end: u64) -> Self {
        LogReader { file, path, seed, end, chunk: Vec::new(), chunk_at: 0 }
    }

    /// The record at `offset`.
    pub(crate) fn record(&mut self, offset: u64) -> Result<Found<'_>> {
        let rest = self.end.saturating_sub(offset);
        if rest == 0 {
            return Ok(Found::End);
        }
        let needed = len_u64(RECORD_HEADER_BYTES);
        if rest < needed {
            let what = "header of a log record";
            return Ok(Found::Bad(Malformed::Truncated { what, needed, found: rest }));
        }
        let place = (self.seed, offset);
        let header = match RecordHeader::decode(&self.header_at(offset)?, place, rest) {
            Ok(header) => header,
            Err(what) => return Ok(Found::Bad(what)),
        };
        let payload_at = offset + len_u64(RECORD_HEADER_BYTES);
        let payload = self.bytes(payload_at, u64::from(header.payload_bytes))?;
        Ok(match header.check_payload(payload, place) {
            Err(what) if !failpoint::is_on(Failpoint::TornRecordReplayed) => Found::Bad(what),
            _ => Found::Record(header, payload),
        })
    }

    /// What can be found from `offset` on, where no valid record starts any more.
    pub(crate) fn beyond(&mut self, mut offset: u64) -> Result<Beyond> {
        let mut beyond = Beyond::default();
        while self.end.saturating_sub(offset) >= len_u64(RECORD_HEADER_BYTES) {
            let rest = self.end - offset;
            let bytes = self.header_at(offset)?;
            let header = RecordHeader::can_start(&bytes, offset, rest)
                .then(|| RecordHeader::decode(&bytes, (self.seed, offset), rest).ok());
            let Some(header) = header.flatten() else {
                offset += 1;
                continue;
            };
            beyond.position = beyond.position.max(header.mark.position);
            beyond.older_synced |= header.mark.older_synced;
            // The length is vouched for, the payload not yet: only a good one is skipped.
            if let Found::Record(header, _) = self.record(offset)? {
                beyond.records += u64::from(!header.is_mark_only());
                offset += header.record_bytes();
            } else {
                offset += 1;
            }
        }
        Ok(beyond)
    }

    /// Where the next valid record begins, from an offset on at which none does.
    pub(crate) fn next_record(&mut self, mut offset: u64) -> Result<Option<u64>> {
        while self.end.saturating_sub(offset) >= len_u64(RECORD_HEADER_BYTES) {
            let rest = self.end - offset;
            if RecordHeader::can_start(&self.header_at(offset)?, offset, rest)
                && let Found::Record(..) = self.record(offset)?
            {
                return Ok(Some(offset));
            }
            offset += 1;
        }
        Ok(None)
    }

    /// How far from an offset on the file was written to: it may have grown ahead, by zeros.
    pub(crate) fn written_beyond(&mut self, from: u64) -> Result<u64> {
        let (mut offset, mut written) = (from, 0);
        while offset < self.end {
            let len = CHUNK_BYTES.min(self.end - offset);
            if let Some(last) = self.bytes(offset, len)?.iter().rposition(|&byte| byte != 0) {
                written = offset - from + len_u64(last + 1);
            }
            offset += len;
        }
        Ok(written)
    }

    fn header_at(&mut self, offset: u64) -> Result<[u8; RECORD_HEADER_BYTES]> {
        let mut header = [0; RECORD_HEADER_BYTES];
        header.copy_from_slice(self.bytes(offset, len_u64(RECORD_HEADER_BYTES))?);
        Ok(header)
    }

    /// `len` bytes at `offset`, which lie before the end.
    fn bytes(&mut self, offset: u64, len: u64) -> Result<&[u8]> {
        let chunk_end = self.chunk_at + len_u64(self.chunk.len());
        if offset < self.chunk_at || offset + len > chunk_end {
            let wanted = len.max(CHUNK_BYTES).min(self.end - offset);
            let wanted = self.length(wanted, offset)?;
            self.chunk.resize(wanted, 0);
            self.chunk_at = offset;
            let read = self.file.read_at(&mut self.chunk, offset);
            self.chunk.truncate(*read.as_ref().unwrap_or(&0));
            read.map_err(|source| Error::io("read", self.path, source))?;
        }
        let start = self.length(offset - self.chunk_at, offset)?;
        let len = self.length(len, offset)?;
        self.chunk.get(start..start + len).ok_or_else(|| {
            let (needed, found) = (len_u64(start + len), len_u64(self.chunk.len()));
            // The file was longer when its length was asked for.
            Error::malformed(
                Malformed::Truncated { what: "log file", needed, found },
                self.path,
                self.chunk_at,
            )
        })
    }

    fn length(&self, bytes: u64, offset: u64) -> Result<usize> {
        to_usize("bytes of a log record", bytes)
            .map_err(|what| Error::malformed(what, self.path, offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::log_record::SyncMark;
    use crate::vfs::{MemVfs, Vfs};

    fn log(payloads: &[&[u8]]) -> (std::sync::Arc<dyn File>, Vec<u64>) {
        let file = MemVfs::new().create(Path::new("log")).unwrap();
        let mut bytes = Vec::new();
        let mut offsets = Vec::new();
        for (seq, payload) in (1..).zip(payloads) {
            let offset = len_u64(bytes.len());
            offsets.push(offset);
            let place = (LogSeed::new(1, 2), offset);
            let mark = SyncMark { position: offset, older_synced: true };
            let count = u32::from(!payload.is_empty());
            RecordHeader::encode_record(&mut bytes, place, (seq, count), mark, payload).unwrap();
        }
        file.append(&bytes).unwrap();
        (file, offsets)
    }

    #[test]
    fn records_larger_than_a_chunk_are_read_whole() {
        let large = vec![7; 600 << 10];
        let (file, offsets) = log(&[b"a", &large, b"b"]);
        let end = file.len().unwrap();
        let mut reader = LogReader::new(&*file, Path::new("log"), LogSeed::new(1, 2), end);
        for (offset, expected) in offsets.iter().zip([b"a".as_slice(), &large, b"b"]) {
            let Found::Record(_, payload) = reader.record(*offset).unwrap() else { panic!() };
            assert_eq!(payload, expected);
        }
        assert!(matches!(reader.record(end).unwrap(), Found::End));
    }

    #[test]
    fn marks_and_records_beyond_a_bad_one_are_found() {
        let (file, offsets) = log(&[b"first", b"second", b"third", b""]);
        let end = file.len().unwrap();
        let mut reader = LogReader::new(&*file, Path::new("log"), LogSeed::new(1, 2), end);
        let beyond = reader.beyond(offsets[0] + 1).unwrap();
        assert_eq!(beyond, Beyond { position: offsets[3], older_synced: true, records: 2 });
        assert_eq!(reader.beyond(offsets[3] + 1).unwrap(), Beyond::default());
        assert_eq!(reader.next_record(offsets[0] + 1).unwrap(), Some(offsets[1]));
        assert_eq!(reader.next_record(offsets[3] + 1).unwrap(), None);
    }
}
