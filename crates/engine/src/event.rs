//! What happens in the background, told to a listener; every event prints as one line.

use std::fmt;
use std::path::PathBuf;

use lsmx_base::sync::Arc;
use lsmx_compaction::{Explanation, FileId, Job};

use crate::env::ClockReport;
use crate::error::Error;
use crate::wal::RecoveryReport;

/// Receives events, on the threads on which they happen.
///
/// The thread continues only when the call returns, so be short. No lock of the engine is held, and a thread that
/// leads commits has handed its lead on. A listener may read. A write that would have to wait for a flush or a
/// compaction fails with [`Error::WouldWait`]. `flush`, `wait_idle`, `compact_range`, `checkpoint`, `resume`,
/// `drop_keyspace`, `operands_to_tree` and `close` fail with [`Error::Reentrant`], because they might wait for the
/// very thread that calls them; call them from a thread of your own. If the last handle is dropped in a listener,
/// another thread closes the database. A panic in a listener is caught and has no effect on the engine.
pub trait EventListener: Send + Sync {
    /// Something happened.
    fn on_event(&self, event: &Event);
}

/// A flush begins.
#[derive(Clone, Debug)]
pub struct FlushBegin {
    /// Name of the keyspace.
    pub keyspace: String,
    /// Bytes of the memtable in memory.
    pub memtable_bytes: u64,
}

/// A compaction job begins.
#[derive(Clone, Debug)]
pub struct CompactionBegin {
    /// Name of the keyspace.
    pub keyspace: String,
    /// The job as the policy gave it.
    pub job: Job,
    /// Bytes of whole input files.
    pub input_bytes: u64,
}

/// What led a policy to a job.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Name of the keyspace.
    pub keyspace: String,
    /// Name of its policy.
    pub policy: String,
    /// Scores, candidates, and the job that was picked.
    pub explanation: Explanation,
}

/// A memtable became a sorted run in L0.
#[derive(Clone, Debug)]
pub struct FlushEnd {
    /// Name of the keyspace.
    pub keyspace: String,
    /// The new file; none if everything in the memtable was shadowed.
    pub output: Option<FileId>,
    /// Entries in the new file.
    pub entries: u64,
    /// Bytes of the new file.
    pub written_bytes: u64,
    /// Time it took, in microseconds.
    pub elapsed_us: u64,
}

/// A compaction job became part of the tree.
#[derive(Clone, Debug)]
pub struct CompactionEnd {
    /// Name of the keyspace.
    pub keyspace: String,
    /// The job as the policy gave it.
    pub job: Job,
    /// Files it made.
    pub outputs: Vec<FileId>,
    /// Bytes of whole input files.
    pub read_bytes: u64,
    /// Bytes of output files.
    pub written_bytes: u64,
    /// Entries read.
    pub entries_read: u64,
    /// Entries written.
    pub entries_written: u64,
    /// Ranges of keys that it was divided into; 1 if it was not.
    pub parts: usize,
    /// Bytes of the files that left the tree: the inputs, but for those of a trivial move.
    pub released_bytes: u64,
    /// Tombstones in the inputs, unless they were moved.
    pub tombstones_read: u64,
    /// Tombstones in the outputs.
    pub tombstones_written: u64,
    /// When the oldest tombstone of the inputs was written, in microseconds of the database's clock.
    pub oldest_tombstone_us: Option<u64>,
    /// From the pick to the end of the manifest edit, in microseconds.
    pub elapsed_us: u64,
    /// Time of all threads that worked on it, in microseconds; with one part that is `elapsed_us`.
    pub thread_us: u64,
    /// Processor time in `thread_us`; the rest they waited, for files mostly. 0 on a driven clock.
    pub cpu_us: u64,
    /// When it ended, in microseconds of the database's clock.
    pub ended_us: u64,
}

/// An operand store was collected.
#[derive(Clone, Debug)]
pub struct OperandsCollected {
    /// Name of the keyspace.
    pub keyspace: String,
    /// Entries that came to the tree.
    pub entries: u64,
    /// Bytes of their files.
    pub written_bytes: u64,
    /// Time it took, in microseconds.
    pub elapsed_us: u64,
}

/// A file that background work cannot read was quarantined: no job takes it until a read of it succeeds.
#[derive(Clone, Debug)]
pub struct FileQuarantined {
    /// Name of the keyspace.
    pub keyspace: String,
    /// The file.
    pub path: PathBuf,
    /// Why it cannot be read.
    pub error: Arc<Error>,
}

/// The quarantine of a file ended: a read of the whole file succeeded, or the keyspace needs it no more.
#[derive(Clone, Debug)]
pub struct QuarantineEnd {
    /// Name of the keyspace.
    pub keyspace: String,
    /// The file.
    pub path: PathBuf,
}

/// Background work failed.
#[derive(Clone, Debug)]
pub struct BackgroundError {
    /// What failed: `flush`, `compaction`, `collection`, `sync`, `removal`.
    pub work: &'static str,
    /// Name of the keyspace, where there is one.
    pub keyspace: Option<String>,
    /// Why.
    pub error: Error,
}

/// A write begins to wait.
#[derive(Clone, Debug)]
pub struct StallBegin {
    /// Name of the keyspace.
    pub keyspace: String,
    /// What it waits for.
    pub cause: &'static str,
}

/// A write waited.
#[derive(Clone, Debug)]
pub struct Stall {
    /// Name of the keyspace.
    pub keyspace: String,
    /// What it waited for.
    pub cause: &'static str,
    /// How long, in microseconds.
    pub waited_us: u64,
}

/// Something that happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Opening the database replayed its log.
    Recovery(Arc<RecoveryReport>),
    /// A flush begins; [`Event::Flush`] or [`Event::Failure`] follows.
    FlushBegin(FlushBegin),
    /// A compaction job begins; [`Event::Compaction`] or [`Event::Failure`] follows, or nothing if
    /// the database is closed meanwhile.
    CompactionBegin(CompactionBegin),
    /// A policy picked a job; only with [`Options::explain_decisions`](crate::Options::explain_decisions).
    Decision(Arc<Decision>),
    /// A new manifest took the place of one that had grown long; the number in its name.
    ManifestAfresh(u64),
    /// A flush ended well.
    Flush(FlushEnd),
    /// A compaction job ended well.
    Compaction(CompactionEnd),
    /// A collection of an operand store ended well.
    OperandsCollected(OperandsCollected),
    /// Background work failed; it is tried again or the database is read-only.
    Failure(BackgroundError),
    /// A job read corrupt bytes, and a second read of them past all caches succeeded. Carries the
    /// error of the first read.
    ReadRepeated(Arc<Error>),
    /// A file that background work cannot read was quarantined.
    FileQuarantined(FileQuarantined),
    /// The quarantine of a file ended.
    QuarantineEnd(QuarantineEnd),
    /// The database became read-only.
    ReadOnly(Arc<Error>),
    /// The database takes writes again.
    Resumed,
    /// A write begins to wait; [`Event::Stalled`] follows on the same thread.
    StallBegin(StallBegin),
    /// A write waited for a stall to end.
    Stalled(Stall),
    /// A file that nothing names was found when the database was opened, and removed.
    OrphanRemoved(PathBuf),
    /// The file `RESERVE` cannot be made or grown. The database works without it. At most once per opening.
    NoReserve(Arc<Error>),
    /// A file with the name of an engine file has a number that no file of this database can have. It is
    /// ignored and left alone.
    StrayFile(PathBuf),
    /// The wall clock and the database clock disagree.
    Clock(ClockReport),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Recovery(report) => {
                write!(
                    f,
                    "recovered {} records of {} segments, {} bytes cut",
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
                "[{}] flushes a memtable of {} bytes",
                begin.keyspace, begin.memtable_bytes
            ),
            Event::CompactionBegin(begin) => write!(
                f,
                "[{}] begins a {:?} of {} bytes to L{}: {}",
                begin.keyspace,
                begin.job.kind,
                begin.input_bytes,
                begin.job.target.level.0,
                begin.job.reason
            ),
            Event::Decision(decision) => {
                let Decision { keyspace, policy, explanation } = &**decision;
                write!(f, "[{keyspace}] {policy} decides: {explanation}")
            }
            Event::ManifestAfresh(number) => write!(f, "began manifest {number}"),
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
            Event::Failure(failure) => {
                let keyspace = failure.keyspace.as_deref().unwrap_or("-");
                write!(f, "[{keyspace}] {} failed: {}", failure.work, failure.error)
            }
            Event::ReadRepeated(first) => {
                write!(f, "a second read past all caches succeeded after: {first}")
            }
            Event::FileQuarantined(file) => {
                write!(f, "[{}] quarantined {}: {}", file.keyspace, file.path.display(), file.error)
            }
            Event::QuarantineEnd(end) => {
                write!(f, "[{}] ended the quarantine of {}", end.keyspace, end.path.display())
            }
            Event::ReadOnly(cause) => write!(f, "the database is read-only: {cause}"),
            Event::Resumed => write!(f, "the database takes writes again"),
            Event::StallBegin(stall) => {
                write!(f, "[{}] a write waits for {}", stall.keyspace, stall.cause)
            }
            Event::Stalled(stall) => write!(
                f,
                "[{}] a write waited {} us for {}",
                stall.keyspace, stall.waited_us, stall.cause
            ),
            Event::StrayFile(path) => {
                write!(f, "ignored {}, no file of this database has such a number", path.display())
            }
            Event::Clock(report) => write!(f, "{report}"),
            Event::OrphanRemoved(path) => write!(f, "removed {}, nothing names it", path.display()),
            Event::NoReserve(cause) => {
                write!(f, "no room is kept for a full disk: {cause}")
            }
        }
    }
}
