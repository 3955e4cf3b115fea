//! Workload traces: files with all operations on a database, for replay.
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
//! Recording neither delays an operation nor makes it fail. Successful operations are added to a buffer in memory, and
//! a thread writes the buffer to the file. While both buffers are full, operations are lost and counted. A write
//! error ends the trace, see [`Trace::summary`]. Without a trace, recording costs one relaxed load per operation.
//!
//! `lsmx explore --trace` replays a trace under any compaction policy. `docs/reference/format.md` describes the file format.

mod reader;
mod recorder;

use std::path::Path;

use lsmx_base::sync::{Arc, AtomicBool, Mutex, Ordering};

use crate::error::{Error, Result};
use crate::vfs::Vfs;

pub use crate::format::workload_trace::{TraceEvent, TraceHeader, TraceItem, TraceValue};
pub use reader::{TraceEnd, TraceReader};
pub(crate) use recorder::{ScanTrace, TraceRecorder};

/// Default size of each buffer, in bytes.
const BUFFER_BYTES_DEFAULT: u64 = 4 << 20;
/// Minimum size of a buffer, in bytes.
#[cfg_attr(feature = "internals", visibility::make(pub))]
pub(crate) const BUFFER_BYTES_MIN: u64 = 64 << 10;
/// Maximum size of a buffer, in bytes.
const BUFFER_BYTES_MAX: u64 = 1 << 30;

/// Options of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// Replaces keys by salted hashes of the same length, but at least eight bytes. Default: false.
    ///
    /// The salt is not stored. Equal keys have equal hashes, but their order is lost: a range delete is recorded
    /// as the delete of its first key, and scans begin at unrelated keys.
    pub hash_keys: bool,
    /// Stores values and operands instead of their sizes only. Default: false.
    pub keep_values: bool,
    /// Size of each of the two buffers, in bytes, 64 KiB to 1 GiB. Default: 4 MiB.
    ///
    /// Operations are lost while both are full.
    pub buffer_bytes: u64,
}

impl Default for TraceOptions {
    fn default() -> TraceOptions {
        TraceOptions { hash_keys: false, keep_values: false, buffer_bytes: BUFFER_BYTES_DEFAULT }
    }
}

/// Counts of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceSummary {
    /// Number of recorded operations.
    pub operations: u64,
    /// Number of operations lost because both buffers were full.
    pub lost: u64,
    /// Size of the file, in bytes.
    pub bytes: u64,
}

/// The trace that a database records, if any.
#[derive(Debug, Default)]
pub(crate) struct ActiveTrace {
    /// Whether `recorder` is set. Read by every operation, relaxed: an operation during the start or the end of a trace
    /// may be recorded or not.
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

    /// # Errors
    /// [`Error::InvalidOption`] if another trace is recorded.
    fn start(&self, recorder: &Arc<TraceRecorder>, path: &Path) -> Result<()> {
        let mut current = self.recorder.lock();
        if current.is_some() {
            return Err(already_recording(path));
        }
        *current = Some(Arc::clone(recorder));
        self.is_on.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Stops recording with `recorder`. Does nothing if it is not the current one.
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

/// Trace that is being recorded. Ends when it is stopped or dropped.
#[derive(Debug)]
#[must_use = "the trace ends when this is dropped"]
pub struct Trace {
    recorder: Arc<TraceRecorder>,
    active: Arc<ActiveTrace>,
    /// Writes the file. `None` if operations write it.
    thread: Option<crate::env::JoinHandle>,
}

impl Trace {
    /// Creates the file and starts the trace.
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
        // Checked before the file is created.
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

    /// Returns the counts so far. The size is that of the data already written.
    ///
    /// # Errors
    /// [`Error::Io`] if a write error ended the trace.
    pub fn summary(&self) -> Result<TraceSummary> {
        match self.recorder.error() {
            Some(error) => Err(error),
            None => Ok(self.recorder.summary()),
        }
    }

    /// Ends the trace and syncs its file.
    ///
    /// # Errors
    /// [`Error::Io`] if the file could not be written, now or earlier.
    pub fn stop(mut self) -> Result<TraceSummary> {
        self.end();
        self.summary()
    }

    fn end(&mut self) {
        self.active.stop(&self.recorder);
        self.recorder.stop();
        if let Some(thread) = self.thread.take() {
            // A panic was printed to standard error. The data written before it is valid.
            let _ = self.recorder.join_writer_thread(thread);
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.end();
    }
}
