//! Reader of log files. The WAL, the manifest and workload traces use this reader.
//!
//! 1. [`LogReader::read_record`] reads the record at an offset. Before the reader allocates memory for a payload, it
//!    verifies the checksum of the header and checks that the file has enough bytes.
//! 2. After an invalid record, [`LogReader::scan_tail`] searches every later offset for a valid record header. The
//!    records are not returned, but their sync marks show whether the invalid record was on stable storage.

use std::path::Path;

use lsmx_base::coding::{len_u64, to_usize};
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::malformed::Malformed;

use crate::error::{Error, Result};
use crate::format::log_record::{LogChecksumSeed, RECORD_HEADER_BYTES, RecordHeader};
use crate::vfs::File;

/// Minimum number of bytes of one read, except at the end of the log.
const CHUNK_BYTES: u64 = 256 << 10;

/// Reads the records of one file.
#[derive(Debug)]
pub(crate) struct LogReader<'a> {
    file: &'a dyn File,
    path: &'a Path,
    seed: LogChecksumSeed,
    /// Offset at which the log ends. At most the size of the file.
    end: u64,
    chunk: Vec<u8>,
    chunk_offset: u64,
}

/// Result of reading a record.
#[derive(Debug)]
pub(crate) enum LogRead<'a> {
    /// The offset is the end of the log.
    End,
    /// A record with valid checksums: header and payload.
    Record(RecordHeader, &'a [u8]),
    /// The record at the offset is invalid.
    Malformed(Malformed),
}

/// Sync marks and records found after an invalid record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TailScan {
    /// Largest synced position that any record header states.
    pub(crate) position: u64,
    /// True if a record header states that all older files were synced.
    pub(crate) older_synced: bool,
    /// Number of valid records, without mark-only records.
    pub(crate) records: u64,
}

impl<'a> LogReader<'a> {
    /// Returns a reader of the first `end` bytes of `file`. `end` must not exceed the size of the file.
    pub(crate) fn new(file: &'a dyn File, path: &'a Path, seed: LogChecksumSeed, end: u64) -> Self {
        LogReader { file, path, seed, end, chunk: Vec::new(), chunk_offset: 0 }
    }

    /// Reads the record at `offset`.
    pub(crate) fn read_record(&mut self, offset: u64) -> Result<LogRead<'_>> {
        let rest = self.end.saturating_sub(offset);
        if rest == 0 {
            return Ok(LogRead::End);
        }
        let needed = len_u64(RECORD_HEADER_BYTES);
        if rest < needed {
            let what = "header of a log record";
            return Ok(LogRead::Malformed(Malformed::Truncated { what, needed, found: rest }));
        }
        let location = (self.seed, offset);
        let header = match RecordHeader::decode(&self.header_at(offset)?, location, rest) {
            Ok(header) => header,
            Err(what) => return Ok(LogRead::Malformed(what)),
        };
        let payload_at = offset + len_u64(RECORD_HEADER_BYTES);
        let payload = self.read_bytes(payload_at, u64::from(header.payload_bytes))?;
        Ok(match header.check_payload(payload, location) {
            Err(what) if !failpoint::is_on(Failpoint::TornRecordReplayed) => {
                LogRead::Malformed(what)
            }
            _ => LogRead::Record(header, payload),
        })
    }

    /// Searches for valid record headers at and after `offset`, at which an invalid record starts.
    pub(crate) fn scan_tail(&mut self, mut offset: u64) -> Result<TailScan> {
        let mut tail = TailScan::default();
        while self.end.saturating_sub(offset) >= len_u64(RECORD_HEADER_BYTES) {
            let rest = self.end - offset;
            let bytes = self.header_at(offset)?;
            let header = RecordHeader::can_start_record(&bytes, offset, rest)
                .then(|| RecordHeader::decode(&bytes, (self.seed, offset), rest).ok());
            let Some(header) = header.flatten() else {
                offset += 1;
                continue;
            };
            tail.position = tail.position.max(header.mark.position);
            tail.older_synced |= header.mark.older_synced;
            // If the payload is invalid although the header is valid, the scan continues after the first byte of the
            // header.
            if let LogRead::Record(header, _) = self.read_record(offset)? {
                tail.records += u64::from(!header.is_mark_only());
                offset += header.record_bytes();
            } else {
                offset += 1;
            }
        }
        Ok(tail)
    }

    /// Returns the offset of the first valid record at or after `offset`.
    pub(crate) fn find_next_record(&mut self, mut offset: u64) -> Result<Option<u64>> {
        while self.end.saturating_sub(offset) >= len_u64(RECORD_HEADER_BYTES) {
            let rest = self.end - offset;
            if RecordHeader::can_start_record(&self.header_at(offset)?, offset, rest)
                && let LogRead::Record(..) = self.read_record(offset)?
            {
                return Ok(Some(offset));
            }
            offset += 1;
        }
        Ok(None)
    }

    /// Returns the number of bytes from `from` up to and including the last nonzero byte. Zeros at the end of the file
    /// do not count, because they may be preallocated.
    pub(crate) fn written_bytes_after(&mut self, from: u64) -> Result<u64> {
        self.written_bytes_between(from, self.end)
    }

    /// Returns the number of bytes from `from` up to and including the last nonzero byte before `to`.
    pub(crate) fn written_bytes_between(&mut self, from: u64, to: u64) -> Result<u64> {
        let (mut offset, mut written) = (from, 0);
        while offset < to {
            let len = CHUNK_BYTES.min(to - offset);
            if let Some(last) = self.read_bytes(offset, len)?.iter().rposition(|&byte| byte != 0) {
                written = offset - from + len_u64(last + 1);
            }
            offset += len;
        }
        Ok(written)
    }

    fn header_at(&mut self, offset: u64) -> Result<[u8; RECORD_HEADER_BYTES]> {
        let mut header = [0; RECORD_HEADER_BYTES];
        header.copy_from_slice(self.read_bytes(offset, len_u64(RECORD_HEADER_BYTES))?);
        Ok(header)
    }

    /// Returns `len` bytes at `offset`. The range must be within the log.
    fn read_bytes(&mut self, offset: u64, len: u64) -> Result<&[u8]> {
        let chunk_end = self.chunk_offset + len_u64(self.chunk.len());
        if offset < self.chunk_offset || offset + len > chunk_end {
            let wanted = len.max(CHUNK_BYTES).min(self.end - offset);
            let wanted = self.to_length(wanted, offset)?;
            self.chunk.resize(wanted, 0);
            self.chunk_offset = offset;
            let read = self.file.read_at(&mut self.chunk, offset);
            self.chunk.truncate(*read.as_ref().unwrap_or(&0));
            read.map_err(|source| Error::io("read", self.path, source))?;
        }
        let start = self.to_length(offset - self.chunk_offset, offset)?;
        let len = self.to_length(len, offset)?;
        self.chunk.get(start..start + len).ok_or_else(|| {
            let (needed, found) = (len_u64(start + len), len_u64(self.chunk.len()));
            // The file was truncated after the caller read its size.
            Error::malformed(
                Malformed::Truncated { what: "log file", needed, found },
                self.path,
                self.chunk_offset,
            )
        })
    }

    fn to_length(&self, bytes: u64, offset: u64) -> Result<usize> {
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
            let location = (LogChecksumSeed::new(1, 2), offset);
            let mark = SyncMark { position: offset, older_synced: true };
            let count = u32::from(!payload.is_empty());
            RecordHeader::encode_record(&mut bytes, location, (seq, count), mark, payload).unwrap();
        }
        file.append(&bytes).unwrap();
        (file, offsets)
    }

    #[test]
    fn log_reader_record_larger_than_chunk_is_read() {
        let large = vec![7; 600 << 10];
        let (file, offsets) = log(&[b"a", &large, b"b"]);
        let end = file.len().unwrap();
        let mut reader = LogReader::new(&*file, Path::new("log"), LogChecksumSeed::new(1, 2), end);
        for (offset, expected) in offsets.iter().zip([b"a".as_slice(), &large, b"b"]) {
            let LogRead::Record(_, payload) = reader.read_record(*offset).unwrap() else {
                panic!("no record at {offset}")
            };
            assert_eq!(payload, expected);
        }
        assert!(matches!(reader.read_record(end).unwrap(), LogRead::End));
    }

    #[test]
    fn log_reader_tail_scan_finds_marks_and_records() {
        let (file, offsets) = log(&[b"first", b"second", b"third", b""]);
        let end = file.len().unwrap();
        let mut reader = LogReader::new(&*file, Path::new("log"), LogChecksumSeed::new(1, 2), end);
        let tail = reader.scan_tail(offsets[0] + 1).unwrap();
        assert_eq!(tail, TailScan { position: offsets[3], older_synced: true, records: 2 });
        assert_eq!(reader.scan_tail(offsets[3] + 1).unwrap(), TailScan::default());
        assert_eq!(reader.find_next_record(offsets[0] + 1).unwrap(), Some(offsets[1]));
        assert_eq!(reader.find_next_record(offsets[3] + 1).unwrap(), None);
    }
}
