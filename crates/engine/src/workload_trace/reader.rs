//! Reader of workload traces.

use std::path::{Path, PathBuf};

use lsmx_base::coding::len_u64;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::format::workload_trace::{
    TRACE_HEADER_BYTES, TRACE_MAGIC, TraceEvent, TraceHeader, TraceItem, TraceItems,
};
use crate::log_reader::{LogRead, LogReader};
use crate::vfs::{File, Vfs};

/// Reads a trace file.
#[derive(Debug)]
pub struct TraceReader {
    file: Arc<dyn File>,
    path: PathBuf,
    bytes: u64,
    header: TraceHeader,
}

/// Result of reading a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceEnd {
    /// Number of operations in the trace.
    pub operations: u64,
    /// Number of operations that are missing, because the recorder could not record them.
    pub lost: u64,
    /// True if the trace ends with an end item. Otherwise, operations may be missing at the end.
    pub complete: bool,
    /// Number of bytes after the last valid record. 0 if the trace is complete.
    pub bytes_cut: u64,
}

impl TraceReader {
    /// Returns whether a file starts with the magic number of a trace.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    pub(crate) fn is_trace(vfs: &dyn Vfs, path: &Path) -> Result<bool> {
        let file = vfs.open(path).map_err(|error| Error::io("open", path, error))?;
        let mut magic = [0; 8];
        let read = file.read_at(&mut magic, 0).map_err(|error| Error::io("read", path, error))?;
        Ok(read == magic.len() && magic == TRACE_MAGIC)
    }

    /// Opens a trace file and reads its header.
    ///
    /// # Errors
    /// - [`Error::Io`] if the file cannot be opened or read.
    /// - [`Error::Corrupt`] if the header is invalid.
    /// - [`Error::UnsupportedVersion`] if this version of lsmx does not support the format version.
    pub fn open(vfs: &dyn Vfs, path: &Path) -> Result<TraceReader> {
        let file = vfs.open(path).map_err(|error| Error::io("open", path, error))?;
        let bytes = file.len().map_err(|error| Error::io("read the size of", path, error))?;
        let mut header = [0; TRACE_HEADER_BYTES];
        let read = file.read_at(&mut header, 0).map_err(|error| Error::io("read", path, error))?;
        let header =
            TraceHeader::decode(&header[..read]).map_err(|what| Error::malformed(what, path, 0))?;
        Ok(TraceReader { file, path: path.to_owned(), bytes, header })
    }

    /// Returns the header of the trace.
    #[must_use]
    pub fn header(&self) -> TraceHeader {
        self.header
    }

    /// Calls `visit` with each item in order. Stops at the first error that `visit` returns.
    ///
    /// If the trace has no end item, for example because the process was killed, it is read up to the last valid
    /// record.
    ///
    /// # Errors
    /// - [`Error::Corrupt`] if an invalid record precedes valid records, or if the contents of a record are invalid.
    /// - [`Error::Io`] if the file cannot be read.
    /// - The error that `visit` returned.
    pub fn visit<E: From<Error>>(
        &self,
        visit: &mut dyn FnMut(TraceItem<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<TraceEnd, E> {
        let seed = self.header.seed();
        let mut reader = LogReader::new(&*self.file, &self.path, seed, self.bytes);
        let mut offset = len_u64(TRACE_HEADER_BYTES);
        let mut end = TraceEnd::default();
        let mut next_item = 1;
        loop {
            let (record, payload) = match reader.read_record(offset)? {
                LogRead::End => return Ok(end),
                LogRead::Record(record, payload) => (record, payload),
                LogRead::Malformed(what) => {
                    let tail = reader.scan_tail(offset)?;
                    if tail.records > 0 || end.complete {
                        return Err(Error::malformed(what, &self.path, offset).into());
                    }
                    end.bytes_cut = self.bytes - offset;
                    return Ok(end);
                }
            };
            let corrupt = |what: Malformed| Error::malformed(what, &self.path, offset);
            if end.complete {
                let bytes = len_u64(payload.len());
                return Err(corrupt(field("bytes after the end", bytes, "none")).into());
            }
            if record.first_seq != next_item {
                return Err(corrupt(Malformed::Order { what: "items of a trace are" }).into());
            }
            let mut items = 0;
            for item in TraceItems::new(payload, self.header.values_kept) {
                let item = item.map_err(corrupt)?;
                if end.complete {
                    return Err(corrupt(field("items after the end", 1, "none")).into());
                }
                items += 1;
                match item.event {
                    TraceEvent::Lost { operations } => {
                        end.lost = end.lost.saturating_add(operations);
                    }
                    TraceEvent::End { operations } if operations == end.operations => {
                        end.complete = true;
                    }
                    TraceEvent::End { operations } => {
                        let what = field("number of operations", operations, "that of the items");
                        return Err(corrupt(what).into());
                    }
                    event => end.operations += u64::from(event.is_operation()),
                }
                visit(item)?;
            }
            if items != record.count {
                let what = field("number of items", u64::from(items), "that of the record header");
                return Err(corrupt(what).into());
            }
            next_item += u64::from(items);
            offset += record.record_bytes();
        }
    }
}

fn field(what: &'static str, found: u64, expected: &'static str) -> Malformed {
    Malformed::Field { what, found, expected }
}
