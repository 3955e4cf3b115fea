//! Events of background work for a listener. Each event prints as one line.

use std::fmt;
use std::path::PathBuf;

use lsmx_base::sync::Arc;
use lsmx_compaction::{Explanation, FileId, Job};

use crate::compaction_filter::FilterError;
use crate::env::ClockJumpReport;
use crate::error::Error;
use crate::followers::FollowerFileMetrics;
use crate::wal::RecoveryReport;

/// Receives events on the threads on which they occur.
///
/// The thread waits for the call, so the call should be short. The thread holds no lock of the engine and does not lead
/// a commit group.
///
/// A listener may read. A write fails with [`Error::WouldWait`] if it would have to wait for a flush or a
/// compaction. `flush`, `wait_idle`, `compact_range`, `checkpoint`, `resume`, `drop_keyspace`, `rename_keyspace`,
/// `clone_keyspace`, `operands_to_tree`, `ingest`, `bulk_load`, `archive_log`, `close` and `Follower::catch_up` fail with
/// [`Error::Reentrant`], because they might wait for the thread of the listener. Call them from a thread of your own.
///
/// If a listener drops the last handle, another thread closes the database. A panic in a listener is caught and
/// has no effect on the engine.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("data");
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use lsmx::{Db, Event, EventListener, Options};
///
/// /// Counts flushed bytes and prints errors.
/// #[derive(Default)]
/// struct Monitor {
///     flushed_bytes: AtomicU64,
/// }
///
/// impl EventListener for Monitor {
///     fn on_event(&self, event: &Event) {
///         match event {
///             Event::Flush(flush) => {
///                 self.flushed_bytes.fetch_add(flush.written_bytes, Ordering::Relaxed);
///             }
///             Event::Failure(_) => eprintln!("{event}"),
///             _ => {}
///         }
///     }
/// }
///
/// let monitor = Arc::new(Monitor::default());
/// let db = Db::open(&path, Options::default().listener(monitor.clone()))?;
/// db.put("k", "v")?;
/// db.flush()?;
/// assert!(monitor.flushed_bytes.load(Ordering::Relaxed) > 0);
/// # Ok(())
/// # }
/// ```
pub trait EventListener: Send + Sync {
    /// Handles an event.
    fn on_event(&self, event: &Event);
}

/// Start of a flush.
#[derive(Clone, Debug)]
pub struct FlushBegin {
    /// Name of the keyspace.
    pub keyspace: String,
    /// Memory usage of the memtable, in bytes.
    pub memtable_bytes: u64,
}

/// Start of a compaction job.
#[derive(Clone, Debug)]
pub struct CompactionBegin {
    /// Name of the keyspace.
    pub keyspace: String,
    /// The job that the policy picked.
    pub job: Job,
    /// Total size of the input files, in bytes.
    pub input_bytes: u64,
}

/// Explanation of a policy's decision for a job.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Name of the keyspace.
    pub keyspace: String,
    /// Name of the policy.
    pub policy: String,
    /// Scores, candidates, and the picked job.
    pub explanation: Explanation,
}

/// End of a flush: a memtable became a sorted run in L0.
#[derive(Clone, Debug)]
pub struct FlushEnd {
    /// Name of the keyspace.
    pub keyspace: String,
    /// The new file, or `None` if the memtable had no visible entry.
    pub output: Option<FileId>,
    /// Number of entries in the new file.
    pub entries: u64,
    /// Size of the new file, in bytes.
    pub written_bytes: u64,
    /// Duration, in microseconds.
    pub elapsed_us: u64,
}

/// End of a compaction job: its outputs are part of the tree.
#[derive(Clone, Debug)]
pub struct CompactionEnd {
    /// Name of the keyspace.
    pub keyspace: String,
    /// The job that the policy picked.
    pub job: Job,
    /// Output files.
    pub outputs: Vec<FileId>,
    /// Total size of the input files, in bytes.
    pub read_bytes: u64,
    /// Total size of the output files, in bytes.
    pub written_bytes: u64,
    /// Number of entries read.
    pub entries_read: u64,
    /// Number of entries written.
    pub entries_written: u64,
    /// Number of subcompactions; 1 if the job was not split.
    pub parts: usize,
    /// Total size of the input files that left the tree, in bytes. 0 for a trivial move.
    pub released_bytes: u64,
    /// Number of tombstones in the inputs. 0 for a trivial move.
    pub tombstones_read: u64,
    /// Number of tombstones in the outputs.
    pub tombstones_written: u64,
    /// Write time of the oldest tombstone in the inputs, in microseconds of the database clock. `None` if the inputs have
    /// no tombstones, or if the time of an input with tombstones is unknown.
    pub oldest_tombstone_us: Option<u64>,
    /// Duration from the pick to the end of the manifest edit, in microseconds.
    pub elapsed_us: u64,
    /// Total time of all threads of the job, in microseconds. Without subcompactions it equals `elapsed_us`.
    pub thread_us: u64,
    /// Processor time within `thread_us`. 0 with a simulated clock, like the waits below.
    ///
    /// This time and the waits do not overlap. The rest of `thread_us` is waiting for locks, rate limits, other threads
    /// and a processor.
    pub cpu_us: u64,
    /// Time within `thread_us` in which threads waited for reads of tables and blob files: the elapsed time of the read
    /// calls minus their processor time. A read from the page cache therefore counts as processor time.
    pub read_wait_us: u64,
    /// Wait time of appends to tables and blob files, measured like `read_wait_us`.
    pub write_wait_us: u64,
    /// Wait time of syncs and of the manifest edit, measured like `read_wait_us`. Includes the wait for concurrent
    /// manifest edits.
    pub sync_wait_us: u64,
    /// End time, in microseconds of the database clock.
    pub ended_us: u64,
}

/// End of a collection: operands of an operand store moved to the tree.
#[derive(Clone, Debug)]
pub struct OperandsCollected {
    /// Name of the keyspace.
    pub keyspace: String,
    /// Number of entries added to the tree.
    pub entries: u64,
    /// Size of the new files, in bytes.
    pub written_bytes: u64,
    /// Duration, in microseconds.
    pub elapsed_us: u64,
}

/// Failed calls of a compaction filter in one compaction. The compaction has kept the values.
#[derive(Clone, Debug)]
pub struct CompactionFilterFailed {
    /// Name of the keyspace.
    pub keyspace: String,
    /// Name of the filter.
    pub filter: String,
    /// Number of failed calls.
    pub failures: u64,
    /// Key of the first failed call.
    pub key: Vec<u8>,
    /// Error of the first failed call.
    pub error: FilterError,
}

/// End of an ingest, of a bulk load, or of a clone into a new keyspace: the tables are part of the tree.
#[derive(Clone, Debug)]
pub struct IngestEnd {
    /// Name of the keyspace.
    pub keyspace: String,
    /// Sequence number of all ingested entries.
    pub seq: u64,
    /// The new files.
    pub files: Vec<FileId>,
    /// Number of entries.
    pub entries: u64,
    /// Total size of the files, in bytes.
    pub bytes: u64,
}

/// Quarantine of a file that background work cannot read. No job uses the file until a read of it succeeds.
#[derive(Clone, Debug)]
pub struct FileQuarantined {
    /// Name of the keyspace.
    pub keyspace: String,
    /// The file.
    pub path: PathBuf,
    /// Error of the read.
    pub error: Arc<Error>,
}

/// End of the quarantine of a file. The whole file was read, or the keyspace does not need it any more.
#[derive(Clone, Debug)]
pub struct QuarantineEnd {
    /// Name of the keyspace.
    pub keyspace: String,
    /// The file.
    pub path: PathBuf,
}

/// Error of background work.
#[derive(Clone, Debug)]
pub struct BackgroundError {
    /// Failed work: `flush`, `compaction`, `delete-only compaction`, `collection`, `sync`, `removal`, or `catch-up` of a
    /// follower.
    pub work: &'static str,
    /// Name of the keyspace, if the work belongs to one.
    pub keyspace: Option<String>,
    /// The error.
    pub error: Error,
}

/// Start of a write stall.
#[derive(Clone, Debug)]
pub struct StallBegin {
    /// Name of the keyspace.
    pub keyspace: String,
    /// Event that the write waits for.
    pub cause: &'static str,
}

/// End of a write stall.
#[derive(Clone, Debug)]
pub struct Stall {
    /// Name of the keyspace.
    pub keyspace: String,
    /// Event that the write waited for.
    pub cause: &'static str,
    /// Duration, in microseconds.
    pub waited_us: u64,
}

/// Reason why deleted data exceeds [`KeyspaceOptions::delete_persistence`](crate::KeyspaceOptions::delete_persistence).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PersistenceHolder {
    /// Compactions and garbage collection have not kept up.
    Jobs,
    /// A snapshot or a transaction may see the data.
    Snapshot {
        /// Sequence number of the snapshot.
        seq: u64,
        /// Time since the snapshot was taken, in microseconds.
        age_us: u64,
    },
    /// An iterator or a cursor uses obsolete files that contain the data.
    Iterator {
        /// Sequence number up to which the iterator sees writes.
        seq: u64,
        /// Time since the iterator was created, in microseconds.
        age_us: u64,
    },
}

/// Deleted or expired data exists for longer than
/// [`KeyspaceOptions::delete_persistence`](crate::KeyspaceOptions::delete_persistence).
#[derive(Clone, Debug)]
pub struct DeletePersistenceOverdue {
    /// Name of the keyspace.
    pub keyspace: String,
    /// Reason.
    pub holder: PersistenceHolder,
    /// Maximum time by which the data exceeds `delete_persistence`, in microseconds.
    pub overdue_us: u64,
}

/// An event of the engine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// An open of the database replayed the WAL.
    Recovery(Arc<RecoveryReport>),
    /// A flush starts. [`Event::Flush`] or [`Event::Failure`] follows.
    FlushBegin(FlushBegin),
    /// A compaction job starts. [`Event::Compaction`] or [`Event::Failure`] follows, unless the database is
    /// closed before the end of the job.
    CompactionBegin(CompactionBegin),
    /// A policy picked a job. Sent only with
    /// [`Options::explain_decisions`](crate::Options::explain_decisions).
    Decision(Arc<Decision>),
    /// A new manifest replaced one that had become too long. The value is the number in its file name.
    ManifestCreated(u64),
    /// A flush succeeded.
    Flush(FlushEnd),
    /// A compaction job succeeded.
    Compaction(CompactionEnd),
    /// A collection of an operand store succeeded.
    OperandsCollected(OperandsCollected),
    /// A compaction filter failed. The compaction continues.
    CompactionFilterFailed(CompactionFilterFailed),
    /// An ingest, a bulk load or a clone succeeded. Sent once per keyspace that received tables.
    Ingest(IngestEnd),
    /// Background work failed. The engine repeats it, or the database is read-only. A file that was not removed stays
    /// until the next open.
    Failure(BackgroundError),
    /// A job read corrupt bytes, or a collection could not read a file of an operand store, but a second read that
    /// bypassed all caches succeeded. The value is the error of the first read.
    ReadRepeated(Arc<Error>),
    /// Background work cannot read a file, so the file was quarantined.
    FileQuarantined(FileQuarantined),
    /// The quarantine of a file ended.
    QuarantineEnd(QuarantineEnd),
    /// The database became read-only.
    ReadOnly(Arc<Error>),
    /// The database accepts writes again.
    Resumed,
    /// A write starts to wait. [`Event::Stalled`] follows on the same thread.
    StallBegin(StallBegin),
    /// A write has waited.
    Stalled(Stall),
    /// An open removed a file that no manifest names.
    OrphanRemoved(PathBuf),
    /// The file `RESERVE` cannot be created or extended. The database works without it. Sent at most once per
    /// open.
    NoReserve(Arc<Error>),
    /// A file has the name of an engine file, but a number that this database cannot have used. The file is
    /// ignored and not removed.
    StrayFile(PathBuf),
    /// The wall clock and the database clock differ.
    Clock(ClockJumpReport),
    /// Deleted or expired data may exceed the `delete_persistence` of its keyspace. Sent once per holder.
    DeletePersistenceOverdue(DeletePersistenceOverdue),
    /// The number of followers has changed since the previous deletion of obsolete files.
    Followers(FollowerFileMetrics),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Recovery(report) => {
                write!(
                    f,
                    "recovered {} records of {} segments, {} bytes truncated",
                    report.records, report.segments, report.bytes_cut
                )?;
                let Some(damage) = &report.damage else { return Ok(()) };
                write!(f, "; {damage}")?;
                let mut keyspaces = report.complete_through.iter();
                keyspaces.try_for_each(|(name, seq)| {
                    write!(f, "; keyspace {name} is complete through sequence number {}", seq.0)
                })
            }
            Event::FlushBegin(begin) => write!(
                f,
                "[{}] flush of a memtable of {} bytes starts",
                begin.keyspace, begin.memtable_bytes
            ),
            Event::CompactionBegin(begin) => write!(
                f,
                "[{}] {:?} of {} bytes to L{} starts: {}",
                begin.keyspace,
                begin.job.kind,
                begin.input_bytes,
                begin.job.target.level.0,
                begin.job.reason
            ),
            Event::Decision(decision) => {
                let Decision { keyspace, policy, explanation } = &**decision;
                write!(f, "[{keyspace}] {policy} decision: {explanation}")
            }
            Event::ManifestCreated(number) => write!(f, "created manifest {number}"),
            Event::Flush(end) => write!(
                f,
                "[{}] flushed {} entries, {} bytes in {} us",
                end.keyspace, end.entries, end.written_bytes, end.elapsed_us
            ),
            Event::Compaction(end) => write!(
                f,
                "[{}] {:?} of {} files to L{}, {} bytes read, {} written in {} us: {}",
                end.keyspace,
                end.job.kind,
                end.job.inputs.iter().map(|input| input.files.len()).sum::<usize>(),
                end.job.target.level.0,
                end.read_bytes,
                end.written_bytes,
                end.elapsed_us,
                end.job.reason
            ),
            Event::OperandsCollected(end) => write!(
                f,
                "[{}] collected operands, {} entries to the tree, {} bytes in {} us",
                end.keyspace, end.entries, end.written_bytes, end.elapsed_us
            ),
            Event::CompactionFilterFailed(failed) => write!(
                f,
                "[{}] compaction filter {} failed for {} values, which were kept; first for key \"{}\": {}",
                failed.keyspace,
                failed.filter,
                failed.failures,
                failed.key.escape_ascii(),
                failed.error
            ),
            Event::Ingest(end) => write!(
                f,
                "[{}] ingested {} files, {} entries, {} bytes at sequence number {}",
                end.keyspace,
                end.files.len(),
                end.entries,
                end.bytes,
                end.seq
            ),
            Event::Failure(failure) => {
                let keyspace = failure.keyspace.as_deref().unwrap_or("-");
                write!(f, "[{keyspace}] {} failed: {}", failure.work, failure.error)
            }
            Event::ReadRepeated(first) => {
                write!(f, "a second read without caches succeeded after: {first}")
            }
            Event::FileQuarantined(file) => {
                write!(f, "[{}] quarantined {}: {}", file.keyspace, file.path.display(), file.error)
            }
            Event::QuarantineEnd(end) => {
                write!(f, "[{}] ended the quarantine of {}", end.keyspace, end.path.display())
            }
            Event::ReadOnly(cause) => write!(f, "the database is read-only: {cause}"),
            Event::Resumed => write!(f, "the database accepts writes again"),
            Event::StallBegin(stall) => {
                write!(f, "[{}] a write waits for {}", stall.keyspace, stall.cause)
            }
            Event::Stalled(stall) => write!(
                f,
                "[{}] a write waited {} us for {}",
                stall.keyspace, stall.waited_us, stall.cause
            ),
            Event::StrayFile(path) => {
                write!(f, "ignored {}: the database cannot have used this number", path.display())
            }
            Event::Clock(report) => write!(f, "{report}"),
            Event::OrphanRemoved(path) => {
                write!(f, "removed {}: the manifest does not name it", path.display())
            }
            Event::NoReserve(cause) => {
                write!(f, "no disk space is reserved: {cause}")
            }
            Event::Followers(FollowerFileMetrics { followers, files, file_bytes }) => {
                write!(
                    f,
                    "{followers} followers, {files} obsolete files of {file_bytes} bytes kept"
                )
            }
            Event::DeletePersistenceOverdue(overdue) => {
                let DeletePersistenceOverdue { keyspace, holder, overdue_us } = overdue;
                write!(f, "[{keyspace}] deleted data exceeds its bound by {overdue_us} us: ")?;
                match holder {
                    PersistenceHolder::Jobs => write!(f, "compactions have not kept up"),
                    PersistenceHolder::Snapshot { seq, age_us } => {
                        write!(f, "the snapshot at {seq} exists for {age_us} us")
                    }
                    PersistenceHolder::Iterator { seq, age_us } => {
                        write!(f, "an iterator at {seq} exists for {age_us} us")
                    }
                }
            }
        }
    }
}
