//! Workload traces: files that contain the operations on a database, so that they can be replayed.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("day.trace");
//! use lsmx::workload_trace::{TraceEvent, TraceOptions, TraceReader};
//!
//! # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
//! let trace = db.record_trace(&path, TraceOptions::default())?;
//! db.put(b"apple", b"red")?;
//! db.get(b"apple")?;
//! let summary = trace.stop()?;
//! assert_eq!((summary.operations, summary.lost), (2, 0));
//!
//! let reader = TraceReader::open(&lsmx::vfs::OsVfs, &path)?;
//! let mut puts = 0;
//! reader.visit(&mut |item| {
//!     puts += u64::from(matches!(item.event, TraceEvent::Put { .. }));
//!     Ok::<(), lsmx::Error>(())
//! })?;
//! assert_eq!(puts, 1);
//! # Ok(())
//! # }
//! ```
//!
//! Recording does not delay operations and cannot make them fail. A successful operation is added to a buffer in
//! memory, and a separate thread writes the buffer to the file. While both buffers are full, operations are not
//! recorded but counted as lost. A write error ends the trace, and [`Trace::summary`] returns this error. If no trace
//! is active, each operation performs only one relaxed atomic load.
//!
//! The command `lsmx explore --trace` replays a trace with any compaction policy. `docs/reference/format.md` describes
//! the file format.

mod reader;
mod recorder;

use std::path::Path;

use lsmx_base::sync::{Arc, AtomicBool, Mutex, Ordering};

use crate::error::{Error, Result};
use crate::vfs::Vfs;

pub use crate::format::workload_trace::{TraceEvent, TraceHeader, TraceItem, TraceValue};
pub use reader::{TraceEnd, TraceReader};
pub(crate) use recorder::{ScanTrace, TraceRecorder};

/// Default size of each of the two buffers in bytes.
const BUFFER_BYTES_DEFAULT: u64 = 4 << 20;
/// Minimum size of a buffer in bytes.
#[cfg_attr(feature = "internals", visibility::make(pub))]
pub(crate) const BUFFER_BYTES_MIN: u64 = 64 << 10;
/// Maximum size of a buffer in bytes.
const BUFFER_BYTES_MAX: u64 = 1 << 30;

/// Options of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// Records salted hashes instead of keys. A hash has the length of the key, but at least eight bytes and at most
    /// 64 KiB. Default: false.
    ///
    /// The salt is not stored. Equal keys have equal hashes, but the order of keys is lost. A range delete is therefore
    /// recorded as the delete of its first key, and scans start at unrelated keys.
    pub hash_keys: bool,
    /// Records values and merge operands in addition to their sizes. Default: false.
    pub keep_values: bool,
    /// Size of each of the two buffers in bytes. Must be from 64 KiB to 1 GiB. Default: 4 MiB.
    ///
    /// While both buffers are full, operations are lost.
    pub buffer_bytes: u64,
}

impl Default for TraceOptions {
    fn default() -> TraceOptions {
        TraceOptions { hash_keys: false, keep_values: false, buffer_bytes: BUFFER_BYTES_DEFAULT }
    }
}

/// Numbers of operations and bytes of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceSummary {
    /// Number of recorded operations.
    pub operations: u64,
    /// Number of operations that were not recorded, because both buffers were full.
    pub lost: u64,
    /// Size of the trace file in bytes.
    pub bytes: u64,
}

/// The active trace of a database, if there is one.
#[derive(Debug, Default)]
pub(crate) struct ActiveTrace {
    /// Whether `recorder` is set. Each operation reads this flag with relaxed ordering. Operations that run
    /// concurrently with the start or the end of a trace may or may not be recorded.
    is_on: AtomicBool,
    recorder: Mutex<Option<Arc<TraceRecorder>>>,
}

impl ActiveTrace {
    #[inline]
    pub(crate) fn recorder(&self) -> Option<Arc<TraceRecorder>> {
        if !self.is_on.load(Ordering::Relaxed) {
            return None;
        }
        self.recorder.lock().clone()
    }

    fn check_not_recording(&self, path: &Path) -> Result<()> {
        if self.recorder.lock().is_none() { Ok(()) } else { Err(already_recording(path)) }
    }

    /// Activates a recorder.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if another trace is active.
    fn start(&self, recorder: &Arc<TraceRecorder>, path: &Path) -> Result<()> {
        let mut current = self.recorder.lock();
        if current.is_some() {
            return Err(already_recording(path));
        }
        *current = Some(Arc::clone(recorder));
        self.is_on.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Deactivates a recorder. Does nothing if another recorder is active.
    fn stop(&self, recorder: &TraceRecorder) {
        let mut current = self.recorder.lock();
        if current.as_ref().is_some_and(|it| std::ptr::eq(Arc::as_ptr(it), recorder)) {
            self.is_on.store(false, Ordering::Relaxed);
            *current = None;
        }
    }
}

fn already_recording(path: &Path) -> Error {
    Error::InvalidOption {
        name: "trace",
        value: path.display().to_string(),
        must: "the only trace of the database; another one is being recorded",
    }
}

/// Handle of an active trace. The trace ends when the handle is stopped or dropped.
#[derive(Debug)]
#[must_use = "the trace ends when this is dropped"]
pub struct Trace {
    recorder: Arc<TraceRecorder>,
    active: Arc<ActiveTrace>,
    /// Thread that writes the trace file. `None` if operations write it.
    thread: Option<crate::env::JoinHandle>,
}

impl Trace {
    /// Creates the trace file and starts recording.
    pub(crate) fn start(
        active: &Arc<ActiveTrace>,
        vfs: Arc<dyn Vfs>,
        env: &crate::env::Env,
        path: &Path,
        options: TraceOptions,
    ) -> Result<Trace> {
        if !(BUFFER_BYTES_MIN..=BUFFER_BYTES_MAX).contains(&options.buffer_bytes) {
            return Err(Error::InvalidOption {
                name: "trace.buffer_bytes",
                value: options.buffer_bytes.to_string(),
                must: "from 64 KiB to 1 GiB",
            });
        }
        // This check precedes the creation of the file, so that an error leaves no file.
        active.check_not_recording(path)?;
        let recorder = TraceRecorder::create(vfs, env.clone(), path, options, active)?;
        active.start(&recorder, path)?;
        let mut trace =
            Trace { recorder: Arc::clone(&recorder), active: Arc::clone(active), thread: None };
        if !recorder.writes_inline() {
            let thread = env.spawn("lsmx-trace", move || recorder.run());
            let thread = thread.map_err(|error| Error::io("start the thread of", path, error))?;
            trace.thread = Some(thread);
        }
        Ok(trace)
    }

    /// Returns the current counts. `bytes` is the number of bytes that have been written so far.
    ///
    /// # Errors
    /// [`Error::Io`] if a write error has ended the trace.
    pub fn summary(&self) -> Result<TraceSummary> {
        match self.recorder.error() {
            Some(error) => Err(error),
            None => Ok(self.recorder.summary()),
        }
    }

    /// Stops recording, writes the remaining items, and syncs the file.
    ///
    /// # Errors
    /// [`Error::Io`] if a write to the file has failed.
    pub fn stop(mut self) -> Result<TraceSummary> {
        self.end();
        self.summary()
    }

    fn end(&mut self) {
        self.active.stop(&self.recorder);
        self.recorder.stop();
        if let Some(thread) = self.thread.take() {
            // The panic message has been printed to standard error. The data that was written before the panic is
            // valid.
            let _ = self.recorder.join_writer_thread(thread);
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.end();
    }
}
