//! The metrics file `METRICS`, which shows the metrics of an open database to other processes.
//!
//! A thread periodically writes `METRICS.tmp` and renames it to `METRICS`, so that readers see a complete file. The
//! file is never synced. A failed write is counted and not retried. It does not release the disk reserve. `close`
//! removes the file. If the process is killed, the next open removes it.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use lsmx_base::file_name::{METRICS, METRICS_TEMPORARY};
use lsmx_base::sync::Arc;
use serde::{Deserialize, Serialize};

use crate::db::inner::DbInner;
use crate::db::metrics::metrics;
use crate::env::{Background, WaitCause};
use crate::error::{Error, Result};
use crate::metrics::Metrics;
use crate::options::db::Options;
use crate::tree::counters::add;
use crate::vfs::Vfs;

/// Maximum size of a metrics file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Metrics of a database at one moment, as its metrics file stores them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct MetricsReading {
    /// Process that has the database open.
    pub process_id: u32,
    /// Time of the open, in microseconds since the Unix epoch.
    pub open_us: u64,
    /// Time of the reading, in microseconds since the Unix epoch.
    pub time_us: u64,
    /// Time between two readings, in microseconds.
    pub interval_us: u64,
    /// The metrics.
    pub metrics: Metrics,
}

/// Reads the metrics file of a database that another process has open.
///
/// Returns `None` if there is no complete file: the database is closed, or it was opened without
/// [`Options::metrics_file`]. After a kill of the process, the file remains until the next open. Of the options only
/// [`Options::vfs`] is used.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("data");
/// use std::time::Duration;
/// use lsmx::{Db, Options, read_metrics_file};
///
/// let db = Db::open(&path, Options::default().metrics_file(Duration::from_secs(1)))?;
/// // Another process can read the file, too.
/// let reading = loop {
///     match read_metrics_file(&path, &Options::default())? {
///         Some(reading) => break reading,
///         None => std::thread::sleep(Duration::from_millis(1)), // not written yet
///     }
/// };
/// assert_eq!(reading.process_id, std::process::id());
/// assert!(reading.metrics.keyspaces.contains_key("default"));
/// # drop(db);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Io`] if the file cannot be read.
pub fn read_metrics_file(
    path: impl AsRef<Path>,
    options: &Options,
) -> Result<Option<MetricsReading>> {
    let path = path.as_ref().join(METRICS);
    let read = || {
        let file = options.file_system().open(&path)?;
        let bytes = usize::try_from(file.len()?.min(FILE_BYTES_MAX)).unwrap_or(0);
        let mut text = vec![0; bytes];
        let read = file.read_at(&mut text, 0)?;
        text.truncate(read);
        Ok(text)
    };
    match read() {
        // An incomplete file is possible after a power loss.
        Ok(text) => Ok(serde_json::from_slice(&text).ok()),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(Error::io("read", &path, error)),
    }
}

fn is_not_found(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Starts the thread that writes the metrics file, if the options have an interval. A failure to start it is counted.
pub(super) fn start_metrics_file(inner: &Arc<DbInner>) {
    let is_inline = inner.state.env.background() == Background::Inline;
    let Some(interval_us) = inner.options.metrics_file_us else { return };
    if inner.read_only.is_some() || is_inline {
        return;
    }
    let of_thread = Arc::clone(inner);
    let is_started = inner.metrics_thread.start(&inner.state, "lsmx-metrics", move || {
        write_in_interval(&of_thread, interval_us);
    });
    if !is_started {
        add(&inner.metrics_file_failures, 1);
    }
}

/// Writes the file periodically until the database is closed.
fn write_in_interval(inner: &DbInner, interval_us: u64) {
    let (state, vfs) = (&inner.state, inner.options.file_system());
    let open_us = state.env.wall_us();
    while !state.is_closing() {
        let begin_us = state.env.now_us();
        // Readers compare it with their wall clock. The scheduling clock differs from the wall clock after a step of the
        // wall clock, and after a suspension of the machine.
        let time_us = state.env.wall_us();
        let write = || {
            let reading = MetricsReading {
                process_id: std::process::id(),
                open_us,
                time_us,
                interval_us,
                metrics: metrics(inner),
            };
            write_file(&*vfs, &state.dir, &reading)
        };
        // The metrics of an operand store run user code, which may panic.
        if !matches!(catch_unwind(AssertUnwindSafe(write)), Ok(Ok(()))) {
            add(&inner.metrics_file_failures, 1);
        }
        let deadline_us = Some(begin_us.saturating_add(interval_us).max(state.env.now_us() + 1));
        let closing = &mut || state.is_closing();
        state.env.wait(WaitCause::Work, &state.progress, deadline_us, closing);
    }
}

fn write_file(vfs: &dyn Vfs, dir: &Path, reading: &MetricsReading) -> io::Result<()> {
    let text = serde_json::to_vec(reading)?;
    let temporary = dir.join(METRICS_TEMPORARY);
    let file = match vfs.create(&temporary) {
        // The previous write failed and left its temporary file.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            vfs.remove(&temporary)?;
            vfs.create(&temporary)?
        }
        created => created?,
    };
    file.append(&text)?;
    drop(file);
    vfs.rename(&temporary, &dir.join(METRICS))
}

/// Removes the metrics file and its temporary file. Errors are ignored.
pub(crate) fn remove_metrics_file(vfs: &dyn Vfs, dir: &Path) {
    for name in [METRICS_TEMPORARY, METRICS] {
        let _ = vfs.remove(&dir.join(name));
    }
}
