//! Traces of a live database: every operation of users goes to a file, to be played again elsewhere.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("day.trace");
//! use lsmx::workload_trace::{TraceEvent, TraceReader};
//!
//! # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
//! let trace = db.record_trace(&path)?;
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
//! Recording never holds an operation up and never makes one fail. Operations are noted in memory when
//! they have ended well, and written by a thread of the trace; while both buffers are full, operations
//! are counted as lost, and the trace says where and how many. If its file cannot be written the trace
//! ends, and its handle says why. While nothing is recorded, an operation pays one relaxed load.
//!
//! `lsmx explore --trace` plays a trace under any compaction policy; `docs/reference/format.md` has its bytes.

mod reader;
mod recorder;
mod scan;

use std::path::{Path, PathBuf};

use lsmx_base::sync::{Arc, AtomicBool, Mutex, Ordering};

use crate::error::{Error, Result};
use crate::vfs::Vfs;

pub use crate::format::workload_trace::{TraceEvent, TraceHeader, TraceItem, TraceValue};
pub use reader::{TraceEnd, TraceReader};
pub(crate) use recorder::Recorder;
pub(crate) use scan::ScanTrace;

/// Bytes of each of the two buffers by default: 4 MiB.
pub const BUFFER_BYTES_DEFAULT: u64 = 4 << 20;
/// Fewest bytes of a buffer.
pub const BUFFER_BYTES_MIN: u64 = 64 << 10;
/// Most bytes of a buffer.
pub const BUFFER_BYTES_MAX: u64 = 1 << 30;

/// What a trace holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// Keys are replaced by hashes of the same length (eight bytes at least) under a random number
    /// that nobody keeps: equal keys stay equal, and nothing else is told. Their order is lost: a range
    /// delete becomes that of its first key, and a scan begins somewhere. Default: no.
    pub hash_keys: bool,
    /// Values and operands are kept, not their sizes alone. Default: no.
    pub keep_values: bool,
    /// Bytes of each of two buffers between the operations and the file; what comes while both are
    /// full is lost to the trace. Default: [`BUFFER_BYTES_DEFAULT`].
    pub buffer_bytes: u64,
}

impl Default for TraceOptions {
    fn default() -> TraceOptions {
        TraceOptions { hash_keys: false, keep_values: false, buffer_bytes: BUFFER_BYTES_DEFAULT }
    }
}

/// What a trace has recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceSummary {
    /// Operations in it.
    pub operations: u64,
    /// Operations that came while both buffers were full.
    pub lost: u64,
    /// Bytes of its file.
    pub bytes: u64,
}

/// Whether operations are recorded, and by whom.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    /// Read by every operation, in no order with anything: one that comes while a trace begins or
    /// ends may be in it or not.
    on: AtomicBool,
    current: Mutex<Option<Arc<Recorder>>>,
}

impl Recording {
    /// Who records now, if anybody does.
    #[inline]
    pub(crate) fn recorder(&self) -> Option<Arc<Recorder>> {
        if !self.on.load(Ordering::Relaxed) {
            return None;
        }
        self.current.lock().clone()
    }

    fn check_free(&self, path: &Path) -> Result<()> {
        if self.current.lock().is_none() { Ok(()) } else { Err(another_is_under_way(path)) }
    }

    /// From here on `recorder` records.
    fn begin(&self, recorder: &Arc<Recorder>, path: &Path) -> Result<()> {
        let mut current = self.current.lock();
        if current.is_some() {
            return Err(another_is_under_way(path));
        }
        *current = Some(Arc::clone(recorder));
        self.on.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// From here on nobody records, if `recorder` did.
    fn end(&self, recorder: &Recorder) {
        let mut current = self.current.lock();
        if current.as_ref().is_some_and(|at| std::ptr::eq(Arc::as_ptr(at), recorder)) {
            self.on.store(false, Ordering::Relaxed);
            *current = None;
        }
    }
}

fn another_is_under_way(path: &Path) -> Error {
    Error::InvalidOption {
        name: "trace",
        value: path.display().to_string(),
        must: "the only one that is recorded: another one is under way",
    }
}

/// A trace that is being recorded; ends when it is stopped or dropped.
#[derive(Debug)]
#[must_use = "the trace ends when this is dropped"]
pub struct Trace {
    recorder: Arc<Recorder>,
    recording: Arc<Recording>,
    thread: Option<crate::env::JoinHandle>,
    path: PathBuf,
}

impl Trace {
    /// Begins a trace in a new file.
    pub(crate) fn begin(
        recording: &Arc<Recording>,
        vfs: Arc<dyn Vfs>,
        env: &crate::env::Env,
        path: &Path,
        options: TraceOptions,
    ) -> Result<Trace> {
        if !(BUFFER_BYTES_MIN..=BUFFER_BYTES_MAX).contains(&options.buffer_bytes) {
            return Err(Error::InvalidOption {
                name: "buffer_bytes of a trace",
                value: options.buffer_bytes.to_string(),
                must: "from 64 KiB to 1 GiB",
            });
        }
        // Before a file is made that would have to go again.
        recording.check_free(path)?;
        let recorder = Recorder::create(vfs, env.clone(), path, options, recording)?;
        recording.begin(&recorder, path)?;
        let mut trace = Trace {
            recorder: Arc::clone(&recorder),
            recording: Arc::clone(recording),
            thread: None,
            path: path.to_owned(),
        };
        if !recorder.writes_inline() {
            let body = move || recorder.run();
            let thread = env.spawn("lsmx-trace", body);
            trace.thread =
                Some(thread.map_err(|error| Error::io("start the thread of", path, error))?);
        }
        Ok(trace)
    }

    /// Where it is recorded.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why it ended by itself, if it did: its file could not be written.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        self.recorder.error()
    }

    /// What has been recorded so far; bytes are those written.
    #[must_use]
    pub fn summary(&self) -> TraceSummary {
        self.recorder.summary()
    }

    /// Ends the trace; it is on stable storage when the call returns.
    ///
    /// # Errors
    /// [`Error::Io`] if its file could not be written, now or before.
    pub fn stop(mut self) -> Result<TraceSummary> {
        self.end();
        match self.recorder.error() {
            Some(error) => Err(error),
            None => Ok(self.recorder.summary()),
        }
    }

    fn end(&mut self) {
        self.recording.end(&self.recorder);
        self.recorder.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was told on standard error; what it had written is there.
            let _ = self.recorder.env().join(thread);
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.end();
    }
}
