//! Reads traces of operations: binary traces that a database recorded ([`lsmx::workload_trace`]), and text traces.
//!
//! A text trace has one operation per line. Tabs separate the fields. The escapes `\t` `\n` `\r` `\\` stand for tab,
//! newline, carriage return and backslash.
//! ```text
//! put           key    value
//! delete        key
//! get           key
//! merge         key    operand
//! delete-range  start  end        without end: deletes to the last key
//! scan          start  entries    empty start: reads from the first key
//! ```

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use lsmx::vfs::OsVfs;
use lsmx::workload_trace::{TraceEvent, TraceItem, TraceReader, TraceValue};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::experiment::resume::hash_file;
use crate::numbers;

use super::record::{LINE_BYTES_MAX, RecordError, strip_line_end, unescape_tsv};

/// A trace file, which is either a binary trace or a text trace.
#[derive(Clone, Debug)]
pub struct TraceFile {
    path: PathBuf,
    is_recorded: bool,
    counts: TraceCounts,
}

/// Numbers of operations in a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceCounts {
    pub puts: u64,
    pub deletes: u64,
    pub merges: u64,
    pub range_deletes: u64,
    pub gets: u64,
    pub scans: u64,
    /// Number of entries that all scans read.
    pub scanned_entries: u64,
    /// Total length of the keys and values of all puts, in bytes.
    pub put_bytes: u64,
    /// Total length of the keys and values of all writes, in bytes. A range delete counts as its two bounds.
    #[serde(skip)]
    pub written_bytes: u64,
    /// Number of operations that the recorder dropped.
    pub lost: u64,
    pub hash: String,
}

impl TraceCounts {
    pub fn writes(&self) -> u64 {
        self.puts + self.deletes + self.merges + self.range_deletes
    }

    pub fn ops(&self) -> u64 {
        self.writes() + self.gets + self.scans
    }

    fn count_event(&mut self, event: &TraceEvent<'_>) {
        let bytes = |key: &[u8], value_bytes: u64| numbers::to_u64(key.len()) + value_bytes;
        match event {
            TraceEvent::Put { key, value, .. } => {
                self.puts += 1;
                self.put_bytes += bytes(key, value.bytes);
                self.written_bytes += bytes(key, value.bytes);
            }
            TraceEvent::Delete { key, .. } => {
                self.deletes += 1;
                self.written_bytes += bytes(key, 0);
            }
            TraceEvent::Merge { key, operand, .. } => {
                self.merges += 1;
                self.written_bytes += bytes(key, operand.bytes);
            }
            TraceEvent::DeleteRange { start, end, .. } => {
                self.range_deletes += 1;
                self.written_bytes += bytes(start, end.map_or(0, |end| bytes(end, 0)));
            }
            TraceEvent::Get { .. } => self.gets += 1,
            TraceEvent::Scan { entries, .. } => {
                self.scans += 1;
                self.scanned_entries = self.scanned_entries.saturating_add(*entries);
            }
            TraceEvent::Lost { operations } => self.lost = self.lost.saturating_add(*operations),
            _ => {}
        }
    }
}

impl TraceFile {
    /// Opens a trace and counts its operations. Fails if the trace is malformed or has no operation.
    pub fn open(path: &Path) -> Result<TraceFile> {
        let is_recorded = TraceReader::is_trace(&OsVfs, path).map_err(read_error)?;
        let mut counts = TraceCounts::default();
        let trace = TraceFile { path: path.to_owned(), is_recorded, counts: counts.clone() };
        trace.visit_items(&mut |item| {
            counts.count_event(&item.event);
            Ok(())
        })?;
        if counts.ops() == 0 {
            return Err(Error::NoRecords { path: path.to_owned() });
        }
        counts.hash = hash_file(path).map_err(Error::io("read", path))?;
        Ok(TraceFile { counts, ..trace })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn counts(&self) -> &TraceCounts {
        &self.counts
    }

    /// Calls `visit` with each item of the trace in order. Fails if the trace is malformed or `visit` fails.
    pub fn visit_items(&self, visit: &mut dyn FnMut(TraceItem<'_>) -> Result<()>) -> Result<()> {
        if !self.is_recorded {
            return self.visit_lines(visit);
        }
        let reader = TraceReader::open(&OsVfs, &self.path).map_err(read_error)?;
        match reader.visit(&mut |item| visit(item).map_err(VisitError::Visitor)) {
            Ok(_) => Ok(()),
            Err(VisitError::Visitor(error)) => Err(error),
            Err(VisitError::Reader(error)) => Err(read_error(error)),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "reads a file of the user, not a database file")]
    fn visit_lines(&self, visit: &mut dyn FnMut(TraceItem<'_>) -> Result<()>) -> Result<()> {
        let file = File::open(&self.path).map_err(Error::io("open", &self.path))?;
        let mut file = BufReader::new(file);
        let mut text = Vec::new();
        let mut parser = TraceLineParser::default();
        for line in 1.. {
            text.clear();
            let taken = (&mut file).take(LINE_BYTES_MAX).read_until(b'\n', &mut text);
            if taken.map_err(Error::io("read", &self.path))? == 0 {
                break;
            }
            let event = parser.parse_line(&text).map_err(|source| {
                let path = self.path.clone();
                Error::Record { path, line, source }
            })?;
            visit(TraceItem { after_us: 0, synced: false, event })?;
        }
        Ok(())
    }
}

fn read_error(source: lsmx::Error) -> Error {
    Error::Engine { action: "read a trace", source }
}

/// An error of the trace reader, or of the visitor of trace items.
enum VisitError {
    Reader(lsmx::Error),
    Visitor(Error),
}

impl From<lsmx::Error> for VisitError {
    fn from(error: lsmx::Error) -> VisitError {
        VisitError::Reader(error)
    }
}

/// Parser of the lines of a text trace. The parser reuses its buffers for all lines.
#[derive(Debug, Default)]
pub struct TraceLineParser {
    first: Vec<u8>,
    second: Vec<u8>,
}

impl TraceLineParser {
    pub fn parse_line(&mut self, line: &[u8]) -> std::result::Result<TraceEvent<'_>, RecordError> {
        let mut parts = strip_line_end(line).split(|byte| *byte == b'\t');
        let name = parts.next().unwrap_or_default();
        let (first, second, more) = (parts.next(), parts.next(), parts.next());
        self.first.clear();
        self.second.clear();
        unescape_tsv(first.unwrap_or_default(), &mut self.first)?;
        unescape_tsv(second.unwrap_or_default(), &mut self.second)?;
        let name = String::from_utf8_lossy(name);
        let wrong = |what: &str| Err(RecordError::Operation(format!("{name} {what}")));
        let count = usize::from(first.is_some()) + usize::from(second.is_some());
        let (counts, fields) = match &*name {
            "put" | "merge" => (2..=2, "a key and a value"),
            "scan" => (2..=2, "a key and a count"),
            "delete" | "get" => (1..=1, "a key"),
            "delete-range" => (1..=2, "one key or two"),
            _ => {
                let known = "put, delete, get, merge, delete-range, scan";
                return wrong(&format!("is no operation; known: {known}"));
            }
        };
        if more.is_some() || !counts.contains(&count) {
            return wrong(&format!("takes {fields} behind it, separated by tabs"));
        }
        let (keyspace, key) = (0, self.first.as_slice());
        let content = self.second.as_slice();
        let value = TraceValue { bytes: numbers::to_u64(content.len()), content: Some(content) };
        Ok(match &*name {
            "put" => TraceEvent::Put { keyspace, key, value },
            "merge" => TraceEvent::Merge { keyspace, key, operand: value },
            "delete" => TraceEvent::Delete { keyspace, key },
            "get" => TraceEvent::Get { keyspace, key, found: None },
            "scan" => {
                let entries = std::str::from_utf8(content).ok().and_then(|text| text.parse().ok());
                let Some(entries) = entries else {
                    return wrong("takes a count of entries behind its key");
                };
                let start = (!key.is_empty()).then_some(key);
                TraceEvent::Scan { keyspace, backward: false, start, entries }
            }
            _ => {
                let end = second.is_some().then_some(content);
                if end.is_some_and(|end| end <= key) {
                    return wrong("ends where it begins, or before");
                }
                TraceEvent::DeleteRange { keyspace, start: key, end }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file(text: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text).unwrap();
        file
    }

    #[test]
    fn text_trace_has_counts_and_operations() {
        let text = b"put\ta\\tb\tred\\n\r\nget\ta\ndelete\tb\nmerge\ta\tmore\n\
                     delete-range\tp\tq\ndelete-range\tx\nscan\t\t10\nscan\tm\t5";
        let file = file(text);
        let trace = TraceFile::open(file.path()).unwrap();
        let counts = trace.counts();
        assert_eq!((counts.puts, counts.gets, counts.deletes, counts.merges), (1, 1, 1, 1));
        assert_eq!((counts.range_deletes, counts.scans, counts.scanned_entries), (2, 2, 15));
        assert_eq!((counts.put_bytes, counts.ops(), counts.writes()), (7, 8, 5));
        assert_eq!(counts.written_bytes, 7 + 1 + 5 + 2 + 1);
        let mut seen = Vec::new();
        trace
            .visit_items(&mut |item| {
                seen.push(format!("{:?}", item.event));
                Ok(())
            })
            .unwrap();
        assert!(seen[0].contains(&format!("{:?}", b"a\tb")), "{seen:?}");
        assert!(seen[5].contains("end: None") && seen[6].contains("start: None"), "{seen:?}");
    }

    #[test]
    fn malformed_line_error_names_the_cause() {
        for (line, what) in [
            ("", "is no operation"),
            ("putt\ta\tb", "putt is no operation; known: put"),
            ("put\ta", "put takes a key and a value"),
            ("put\ta\tb\tc", "put takes a key and a value"),
            ("get", "get takes a key"),
            ("get\ta\tb", "get takes a key"),
            ("scan\ta\tmany", "scan takes a count"),
            ("delete-range\tb\ta", "ends where it begins"),
            ("delete\t\\x", "unknown escape"),
        ] {
            let file = file(format!("get\ta\n{line}\n").as_bytes());
            match TraceFile::open(file.path()).unwrap_err() {
                Error::Record { line: 2, source, .. } => {
                    assert!(source.to_string().contains(what), "{line:?}: {source}");
                }
                error => panic!("{line:?}: {error}"),
            }
        }
        let empty = file(b"");
        assert!(matches!(TraceFile::open(empty.path()), Err(Error::NoRecords { .. })));
    }

    #[test]
    fn recorded_trace_is_recognized_by_its_first_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t");
        let db = lsmx::Db::open(directory.path().join("db"), lsmx::Options::default()).unwrap();
        let recording = db.record_trace(&path, Default::default()).unwrap();
        db.put("key", "value").unwrap();
        db.get("key").unwrap();
        recording.stop().unwrap();
        let trace = TraceFile::open(&path).unwrap();
        assert_eq!((trace.counts().puts, trace.counts().gets), (1, 1));
        assert_eq!(trace.counts().put_bytes, 8);
    }
}
