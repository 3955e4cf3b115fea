//! Reading a trace from its first item to its last.

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

/// A trace on disk.
#[derive(Debug)]
pub struct TraceReader {
    file: Arc<dyn File>,
    path: PathBuf,
    bytes: u64,
    header: TraceHeader,
}

/// How a trace ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceEnd {
    /// Operations read.
    pub operations: u64,
    /// Operations that were made and not recorded.
    pub lost: u64,
    /// Whether it was ended in order; if not, what came last may be missing.
    pub complete: bool,
    /// Bytes behind the last whole record; 0 if it is complete.
    pub bytes_cut: u64,
}

impl TraceReader {
    /// Whether a file begins as a trace does.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn is_trace(vfs: &dyn Vfs, path: &Path) -> Result<bool> {
        let file = vfs.open(path).map_err(|error| Error::io("open", path, error))?;
        let mut magic = [0; 8];
        let read = file.read_at(&mut magic, 0).map_err(|error| Error::io("read", path, error))?;
        Ok(read == magic.len() && magic == TRACE_MAGIC)
    }

    /// Opens a trace and reads its header.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Corrupt`], [`Error::UnsupportedVersion`] for a header that is none.
    pub fn open(vfs: &dyn Vfs, path: &Path) -> Result<TraceReader> {
        let file = vfs.open(path).map_err(|error| Error::io("open", path, error))?;
        let bytes = file.len().map_err(|error| Error::io("read the size of", path, error))?;
        let mut first = [0; TRACE_HEADER_BYTES];
        let read = file.read_at(&mut first, 0).map_err(|error| Error::io("read", path, error))?;
        let header =
            TraceHeader::decode(&first[..read]).map_err(|what| Error::malformed(what, path, 0))?;
        Ok(TraceReader { file, path: path.to_owned(), bytes, header })
    }

    /// Its header.
    #[must_use]
    pub fn header(&self) -> TraceHeader {
        self.header
    }

    /// Bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Calls `visit` with every item in order; its error ends the reading.
    ///
    /// A trace whose end is missing, because the process that recorded it was killed, is read as far
    /// as it goes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for damage with whole records behind it, or for a record with a right
    /// checksum that no writer writes; [`Error::Io`]; what `visit` says.
    pub fn visit<E: From<Error>>(
        &self,
        visit: &mut dyn FnMut(TraceItem<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<TraceEnd, E> {
        let seed = self.header.seed();
        let mut reader = LogReader::new(&*self.file, &self.path, seed, self.bytes);
        let mut offset = len_u64(TRACE_HEADER_BYTES);
        let mut end = TraceEnd::default();
        let mut number_next = 1;
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
            let at = offset;
            let wrong = |what: Malformed| Error::malformed(what, &self.path, at);
            if end.complete {
                let found = len_u64(payload.len());
                return Err(wrong(field("bytes behind the end", found, "none")).into());
            }
            if record.first_seq != number_next {
                return Err(wrong(Malformed::Order { what: "items of a trace are" }).into());
            }
            let mut items = 0;
            for item in TraceItems::new(payload, self.header.values_kept) {
                let item = item.map_err(wrong)?;
                if end.complete {
                    return Err(wrong(field("items behind the end", 1, "none")).into());
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
                        let what = "operations recorded in all";
                        return Err(wrong(field(what, operations, "as many as are there")).into());
                    }
                    what => end.operations += u64::from(what.is_operation()),
                }
                visit(item)?;
            }
            if items != record.count {
                let found = u64::from(items);
                return Err(wrong(field("items of a record", found, "as its header says")).into());
            }
            number_next += u64::from(items);
            offset += record.record_bytes();
        }
    }
}

fn field(what: &'static str, found: u64, expected: &'static str) -> Malformed {
    Malformed::Field { what, found, expected }
}
