//! Errors of the engine, with file, offset and cause.
//!
//! The message of an [`Error`] is one line that ends with its causes, joined by `: `.
//! [`source`](std::error::Error::source) returns the same causes to programs.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx_base::error_chain::error_chain;
use lsmx_base::malformed::Malformed;

use crate::callback::panic_message;
use crate::merge_operator::MergeError;

/// Result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the engine.
///
/// Clones share the cause, because all members of a failed commit group and all later writes return the same error.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call to the file system failed.
    #[error("cannot {action} {}: {}", path.display(), error_chain(&**source))]
    Io {
        /// Verb of the failed call, such as `read` or `sync`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Error of the operating system.
        source: Arc<io::Error>,
    },
    /// The bytes of a file differ from those that were written.
    #[error("{} is corrupt at byte {offset}: {source}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Offset in the file.
        offset: u64,
        /// Reason why the bytes cannot be decoded.
        source: Malformed,
    },
    /// A file does not exist although another file refers to it, or a directory with tables or commits has no
    /// `CURRENT`.
    #[error("{} is missing, required by {}", path.display(), named_by.display())]
    Missing {
        /// The missing file.
        path: PathBuf,
        /// The file that refers to the missing file. For `CURRENT`, the directory.
        named_by: PathBuf,
    },
    /// The directory contains no database.
    #[error("{} is not a database: {why}", path.display())]
    NotADatabase {
        /// The directory.
        path: PathBuf,
        /// Reason.
        why: &'static str,
    },
    /// A repair cannot restore all keyspaces to the last commit before the damage in the WAL. The repair changed
    /// nothing.
    #[error(
        "keyspace {keyspace:?} cannot be restored to the last commit before the damage in the WAL, because {why}; \
         repair without a common prefix"
    )]
    NoCommonPrefix {
        /// The keyspace.
        keyspace: String,
        /// Reason.
        why: &'static str,
    },
    /// The format version of the file is newer than this build supports.
    #[error("{} has format version {found}, this build supports up to {supported}", path.display())]
    UnsupportedVersion {
        /// The file.
        path: PathBuf,
        /// Version of the file.
        found: u32,
        /// Newest version that this build reads.
        supported: u32,
    },
    /// Another process or handle has opened the database.
    #[error("{} is locked by another owner", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// An error of the write path made the database read-only. `resume()` retries the failed work.
    #[error("the database is read-only after a write error: {cause}")]
    ReadOnly {
        /// The first error.
        #[source]
        cause: Arc<Error>,
    },
    /// Background work, such as a compaction, has failed before this write. The write was not done.
    ///
    /// The engine repeats compactions and collections after a pause. A file that was not removed stays until the next
    /// open. One write returns the error. The next error of this kind is returned only after such work has succeeded in
    /// between. Exception: while L0 is at the hard stop of the policy and compactions fail, every write to the keyspace
    /// returns the error.
    #[error("{work}{} failed in the background; this write was not done, later writes may succeed: {cause}", of_keyspace(keyspace.as_deref()))]
    Background {
        /// Failed work: `compaction`, `collection`, `removal`, `delete-only compaction`.
        work: &'static str,
        /// Name of the keyspace, if the work belongs to one.
        keyspace: Option<String>,
        /// Error of the work.
        #[source]
        cause: Arc<Error>,
    },
    /// Background work panicked. This is a bug of the engine. The work had no effect.
    #[error("background work panicked: {message}")]
    Panicked {
        /// Message of the panic.
        message: String,
    },
    /// Code of the user panicked. The panic ended only the engine's call of this code.
    #[error("{code} panicked: {message}")]
    UserPanic {
        /// The code that panicked.
        code: UserCode,
        /// Message of the panic.
        message: String,
    },
    /// The process can open fewer files than the database needs. Nothing was changed.
    #[error(
        "the database needs {needed} file descriptors, {available} are available: raise the limit of open files (ulimit -n)"
    )]
    TooFewDescriptors {
        /// Descriptors that the process can still open.
        available: u64,
        /// Descriptors that the database needs, see [`Options::open_files_max`](crate::Options::open_files_max).
        needed: u64,
    },
    /// The database has been closed.
    #[error("the database is closed")]
    Closed,
    /// A key, a value, a batch or the memory of all transactions exceeds a documented limit. The call had no effect.
    #[error("{what} has {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// `key`, `value`, `batch` or `memory of all transactions`.
        what: &'static str,
        /// Size, in bytes.
        bytes: u64,
        /// Limit, in bytes.
        limit: u64,
    },
    /// A write that must not wait would have had to wait. It was not done.
    #[error("the write would wait for {cause}")]
    WouldWait {
        /// Event that the write would have waited for.
        cause: &'static str,
    },
    /// A read that is restricted to memory would have had to read a file or would have taken long.
    ///
    /// The read is not counted in the metrics. Functions without this restriction, such as
    /// [`Keyspace::get`](crate::Keyspace::get), return the result.
    #[error("the result is not in memory")]
    WouldBlock,
    /// The runtime of an asynchronous call was shut down before the call returned. A write may have been done,
    /// completely or not at all.
    #[error("the runtime was shut down before the call returned")]
    RuntimeEnded,
    /// The blocking pool of the runtime of an asynchronous call has no thread, and the operating system creates none. A
    /// write may have been done, completely or not at all.
    #[error("the runtime cannot start a thread for the call")]
    NoThread,
    /// A call that may wait for background work was made on a thread that the background work may need. Nothing was
    /// done.
    ///
    /// Such threads are the threads of the engine and threads that run a listener, a merge operator, a compaction policy
    /// or a compaction filter.
    #[error(
        "{call} was called from {context} and might wait for itself; call it from a thread of your own"
    )]
    Reentrant {
        /// Name of the call, such as `flush`.
        call: &'static str,
        /// Context of the thread, such as `an event listener`.
        context: &'static str,
    },
    /// The deadline of a call passed while it waited.
    ///
    /// A write was not done, and a read has no result. Any other call may have done a part of its work. Its current
    /// device call still completes.
    #[error("the deadline passed while waiting for {cause}")]
    Deadline {
        /// Event that the call waited for.
        cause: &'static str,
    },
    /// The deadline of a write passed after another thread had added the write to its commit group.
    ///
    /// The write takes effect completely or fails when the device calls of that group return. To determine the
    /// result, read the written keys after a later write has returned.
    #[error("the deadline passed while waiting for {cause}; the write may still be done")]
    Undecided {
        /// Event that the write waited for.
        cause: &'static str,
    },
    /// A guarded key, or a key that a transaction read, was written or deleted after the read. The batch or the
    /// transaction was not committed.
    ///
    /// The caller reads again and retries.
    #[error(
        "{} was written after sequence number {read}: read it again and retry",
        key_in(key, keyspace)
    )]
    Conflict {
        /// The keyspace.
        keyspace: String,
        /// The key, or the first key of a range that a transaction read and in which a key was written.
        key: Vec<u8>,
        /// The sequence number of the guard or of the snapshot of the transaction.
        read: u64,
    },
    /// It is unknown whether a guarded key, or a key that a transaction read, was written after the read. The read is
    /// older than the write history of the keyspace, or than an ingest whose key range contains the key. The batch or
    /// the transaction was not committed.
    ///
    /// The caller reads again and retries. The history covers at least the memtables. It is empty after an open.
    #[error(
        "the history does not show whether {} was written after sequence number {read}: read it again and retry",
        key_in(key, keyspace)
    )]
    ConflictUnknown {
        /// The keyspace.
        keyspace: String,
        /// The key, or the first key of a range that a transaction read.
        key: Vec<u8>,
        /// The sequence number of the guard or of the snapshot of the transaction.
        read: u64,
    },
    /// A locking transaction waited too long for a key that another transaction has locked. The call did nothing.
    #[error("{} is locked by another transaction", key_in(key, keyspace))]
    LockTimeout {
        /// The keyspace.
        keyspace: String,
        /// The key.
        key: Vec<u8>,
    },
    /// A locking transaction would wait for itself: the owner of the key waits, directly or through other transactions,
    /// for a key that this transaction has locked. The call did nothing. The caller drops the transaction and repeats
    /// it.
    #[error("deadlock of transactions: {}", display_cycle(cycle))]
    Deadlock {
        /// Keyspaces and keys. The transaction waits for the first key. The owner of each key waits for the next key, and the
        /// transaction itself has locked the last one. If another call of the transaction waits, the key of this call may
        /// be the last one.
        cycle: Vec<(String, Vec<u8>)>,
    },
    /// The savepoint belongs to another transaction, or the transaction was rolled back to an earlier savepoint.
    #[error("the transaction has no such savepoint")]
    UnknownSavepoint,
    /// An operation needs a merge operator, but the keyspace was opened without one.
    ///
    /// Keys without merge operands can be read.
    #[error("keyspace {keyspace:?} has no merge operator: it was opened without {}", operator.as_deref().unwrap_or("one"))]
    NoMergeOperator {
        /// The keyspace.
        keyspace: String,
        /// Name of the operator that an earlier open passed, if there was one.
        operator: Option<String>,
    },
    /// The operand store of a keyspace was not passed to the open, or could not be opened.
    ///
    /// The keyspace cannot be read or written until [`Db::keyspace`](crate::Db::keyspace) is called with the
    /// store. Other keyspaces are not affected.
    #[error("keyspace {keyspace:?} has no operand store {store:?}: {}", missing_store_reason(cause.as_deref()))]
    NoOperandStore {
        /// The keyspace.
        keyspace: String,
        /// Name of the store.
        store: String,
        /// Error of opening the store, or `None` if the store was not passed.
        #[source]
        cause: Option<Arc<Error>>,
    },
    /// A follower cannot read this part of the database.
    #[error("a follower cannot read {what}: open the database itself")]
    FollowerUnsupported {
        /// The part of the database, such as `operand stores`.
        what: &'static str,
    },
    /// A follower could not read a consistent state, because the keyspaces of the database changed during each attempt.
    /// The follower keeps its previous state. The caller repeats the call.
    #[error("{} changed during each of {attempts} attempts to read it", path.display())]
    FollowerOvertaken {
        /// The directory of the database.
        path: PathBuf,
        /// Number of attempts.
        attempts: u32,
    },
    /// A keyspace with a custom compaction policy was opened without it.
    #[error(
        "keyspace {keyspace:?} was opened without its compaction policy {policy:?}: pass it, or set another one"
    )]
    NoCompactionPolicy {
        /// The keyspace.
        keyspace: String,
        /// Name of the policy.
        policy: String,
    },
    /// The stored compaction policy of a keyspace cannot be read. A newer version may have stored it.
    #[error(
        "this version cannot read the compaction policy {policy:?} of keyspace {keyspace:?}, so another one must be set: {cause}"
    )]
    UnreadablePolicy {
        /// The keyspace.
        keyspace: String,
        /// Text of the policy.
        policy: String,
        /// Reason.
        #[source]
        cause: Box<lsmx_compaction::Error>,
    },
    /// An operand store violated the contract of its trait. The operation was not done.
    #[error("operand store {store:?} of keyspace {keyspace:?} {wrong}")]
    OperandStoreMistake {
        /// The keyspace.
        keyspace: String,
        /// Name of the store.
        store: String,
        /// Description of the violation.
        wrong: &'static str,
    },
    /// The operation would change the view of open snapshots.
    #[error("{what} would change the view of open snapshots")]
    SnapshotsHeld {
        /// The operation.
        what: &'static str,
    },
    /// The merge operator failed to combine the operands of a key.
    ///
    /// Other keys are not affected. A put or a delete of the key makes it readable again.
    #[error("cannot merge {}: {why}", key_in(key, keyspace))]
    MergeFailed {
        /// The keyspace.
        keyspace: String,
        /// The key.
        key: Vec<u8>,
        /// Error of the operator.
        #[source]
        why: MergeError,
    },
    /// Files or entries cannot be ingested into a keyspace. The keyspace is unchanged.
    #[error("cannot ingest{} into keyspace {keyspace:?}: {why}", of_file(file.as_deref()))]
    IngestRefused {
        /// The keyspace.
        keyspace: String,
        /// The file, or `None` if no single file is the reason.
        file: Option<PathBuf>,
        /// Reason.
        why: &'static str,
    },
    /// The entries of a bulk load are not in ascending order of distinct keys. The keyspace is unchanged.
    #[error(
        "{} is not after the key before it: sort the entries, or set a memory bound for sorting",
        key_in(key, keyspace)
    )]
    UnsortedInput {
        /// The keyspace.
        keyspace: String,
        /// The key.
        key: Vec<u8>,
    },
    /// No keyspace has this name.
    #[error("there is no keyspace {name:?}")]
    UnknownKeyspace {
        /// The requested name.
        name: String,
    },
    /// Another keyspace has this name.
    #[error("keyspace {name:?} exists")]
    KeyspaceExists {
        /// The requested name.
        name: String,
    },
    /// [`Db::resume`](crate::Db::resume) rewrote the database during a clone of a keyspace. The clone does not exist.
    #[error("the database was resumed while keyspace {name:?} was created as a clone")]
    CloneInterrupted {
        /// Name of the clone.
        name: String,
    },
    /// The keyspace of this handle was dropped. A newer keyspace with the same name is a different one.
    #[error("keyspace {name:?} was dropped")]
    KeyspaceDropped {
        /// Name of the keyspace.
        name: String,
    },
    /// A custom compaction policy picked an invalid job. The job was not started.
    ///
    /// The policy may pick another job after a pause.
    #[error("policy {policy} picked an invalid job: {job}")]
    PolicyMistake {
        /// Name of the policy.
        policy: String,
        /// The job, on one line.
        job: String,
        /// The violated rule.
        #[source]
        rule: Arc<JobRule>,
    },
    /// A custom compaction policy stops writes but picks no job, so that the writes would never continue.
    #[error(
        "policy {policy} of keyspace {keyspace:?} stops writes but picks no job for this tree: {shape}; set another policy"
    )]
    PolicyStalled {
        /// The keyspace.
        keyspace: String,
        /// Name of the policy.
        policy: String,
        /// Runs, files and bytes of each non-empty level, on one line.
        shape: String,
    },
    /// The jobs of a keyspace's policy need a file that cannot be read.
    ///
    /// Writes continue while other runs of L0 can be merged. After that, writes and
    /// [`Db::wait_idle`](crate::Db::wait_idle) return this error. [`Db::health`](crate::Db::health) lists
    /// all unreadable files.
    #[error("compaction of keyspace {keyspace:?} is blocked by {}, which cannot be read: restore the file or its device and call resume(), or close the database and repair it: {cause}", file.display())]
    CompactionBlocked {
        /// The keyspace.
        keyspace: String,
        /// The quarantined file.
        file: PathBuf,
        /// Error of the read.
        #[source]
        cause: Arc<Error>,
    },
    /// The requested policy is not usable for a database.
    #[error(transparent)]
    Policy(lsmx_compaction::Error),
    /// The default keyspace cannot be dropped or renamed.
    #[error("the default keyspace cannot be dropped or renamed")]
    DefaultKeyspace,
    /// The database was opened in read-only mode.
    #[error("the database was opened read-only")]
    OpenedReadOnly,
    /// The target path exists and is not an empty directory.
    #[error("{} exists and is not an empty directory", path.display())]
    TargetNotEmpty {
        /// The target path.
        path: PathBuf,
    },
    /// An output path is the path of an engine file in a database directory, or is below such a path.
    #[error("{} has the name of an engine file in a database directory, choose another path", path.display())]
    OutputInDatabase {
        /// The output path.
        path: PathBuf,
    },
    /// A [`LogArchiver`](crate::LogArchiver) cannot return further commits. A new archiver and a new backup are needed.
    #[error("the log archiver ended after commit {last_seq}: {reason}")]
    LogArchiveEnded {
        /// Last sequence number that the archiver has returned.
        last_seq: u64,
        /// Reason.
        reason: LogArchiveEnd,
    },
    /// The bytes are not a chunk of a [`LogArchiver`](crate::LogArchiver), or were changed.
    #[error("the log chunk is corrupt at byte {offset}: {source}")]
    MalformedLogChunk {
        /// Offset in the chunk.
        offset: u64,
        /// Reason why the bytes cannot be decoded.
        source: Malformed,
    },
    /// Commits between a checkpoint and a log chunk, or between two chunks, are missing.
    #[error("the log chunk begins at sequence number {first_seq}, expected at most {}", last_seq + 1)]
    LogChunkGap {
        /// Last sequence number before the chunk.
        last_seq: u64,
        /// First sequence number of the chunk.
        first_seq: u64,
    },
    /// The keyspace handle belongs to another database.
    #[error("keyspace {name:?} belongs to another database")]
    ForeignKeyspace {
        /// Name of the keyspace.
        name: String,
    },
    /// A batch puts an expiring value into a keyspace with an operand store. The batch is not written.
    #[error("values of keyspace {keyspace:?} cannot expire, because it has an operand store")]
    ExpiryRefused {
        /// The keyspace.
        keyspace: String,
    },
    /// Two options contradict each other, or an option contradicts the state on disk.
    #[error("option {first} contradicts {second}: {why}")]
    Contradiction {
        /// One option with its value.
        first: String,
        /// The other option or the state, with its value.
        second: String,
        /// Reason.
        why: &'static str,
    },
    /// An option has a value outside its range.
    #[error("option {name} is {value}, must be {must}")]
    InvalidOption {
        /// Name of the option.
        name: &'static str,
        /// Invalid value.
        value: String,
        /// Description of the valid values.
        must: &'static str,
    },
    /// Entries were not added to a table in ascending order. The table must not be used.
    #[error("entries for {} are out of order", path.display())]
    OutOfOrder {
        /// The table.
        path: PathBuf,
    },
    /// A table was finished without entries and range tombstones.
    #[error("no entries were added to {}", path.display())]
    EmptyTable {
        /// The table.
        path: PathBuf,
    },
    /// A compaction policy returned a job that does not match the tree.
    #[error("invalid compaction job: {}", error_chain(.0))]
    Compaction(#[from] lsmx_compaction::Error),
}

/// Formats a key for a message. Includes at most its first 64 bytes.
fn key_in(key: &[u8], keyspace: &str) -> String {
    format!("key \"{}\" of keyspace {keyspace:?}", key[..key.len().min(64)].escape_ascii())
}

/// Describes the keys of a deadlock.
fn display_cycle(cycle: &[(String, Vec<u8>)]) -> String {
    let keys: Vec<_> = cycle.iter().map(|(keyspace, key)| key_in(key, keyspace)).collect();
    format!(
        "the owner of {} waits for a key of this transaction",
        keys.join(", whose owner waits for ")
    )
}

/// Returns a space and the path of a file, or an empty string for `None`.
fn of_file(file: Option<&Path>) -> String {
    file.map_or_else(String::new, |file| format!(" {}", file.display()))
}

/// Describes why an operand store is not open, and the action for the caller.
fn missing_store_reason(cause: Option<&Error>) -> String {
    match cause {
        None => "open the keyspace with the store".to_owned(),
        Some(cause) => format!("open the keyspace with the store to try again: {cause}"),
    }
}

/// A rule for the jobs of a compaction policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobRule {
    /// Only a policy whose `can_drop_data()` is true may drop data that was not deleted.
    #[error("it drops data, and can_drop_data() of the policy is false")]
    DropsData,
    /// A job must not use a busy file and must not write to the key range of a running job.
    #[error("it conflicts with a running job")]
    Busy,
    /// The inputs must be in the tree, newest first, and the outputs must not precede newer data.
    #[error(transparent)]
    Shape(lsmx_compaction::Error),
}

/// Reason why a [`LogArchiver`](crate::LogArchiver) ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogArchiveEnd {
    /// The log does not contain the next change of the database: a keyspace was created, dropped, renamed or cloned,
    /// its stored options were changed, or tables were ingested or loaded.
    #[error("the next change of the database is not in the log")]
    StructureChanged,
    /// The retired log segments that the archiver needed exceeded its limit. They were deleted.
    #[error("it needed {bytes} bytes of retired log segments, and its limit is {limit} bytes")]
    HeldBytesExceeded {
        /// Size of the segments in bytes.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// [`Db::resume`](crate::Db::resume) started a new log.
    #[error("the database was resumed with a new log")]
    Resumed,
    /// The database was closed.
    #[error("the database was closed")]
    Closed,
}

/// Code of the user that the engine calls.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UserCode {
    /// The [`Vfs`](crate::vfs::Vfs) of the database or one of its files.
    ///
    /// The failed call returns [`Error::Io`] with the file name. Its source is a [`std::io::Error`] that contains
    /// the [`Error::UserPanic`].
    #[error("the file system")]
    FileSystem,
    /// A compaction policy, by name.
    #[error("compaction policy {0:?}")]
    CompactionPolicy(String),
    /// An operand store, by name.
    #[error("operand store {0:?}")]
    OperandStore(String),
}

/// Formats the keyspace of background work for a message.
fn of_keyspace(name: Option<&str>) -> String {
    name.map_or_else(String::new, |name| format!(" of keyspace {name:?}"))
}

impl Error {
    /// Returns the error for malformed bytes at `offset` of the file `path`.
    #[must_use]
    pub fn malformed(source: Malformed, path: &Path, offset: u64) -> Error {
        match source {
            Malformed::Version { found, supported } => {
                Error::UnsupportedVersion { path: path.to_owned(), found, supported }
            }
            source => Error::Corrupt { path: path.to_owned(), offset, source },
        }
    }

    /// Converts a caught panic of the engine to an error. Returns the original error if [`Error::resume_panic`] caused
    /// the panic.
    pub(crate) fn from_panic(panic: &(dyn Any + Send)) -> Error {
        match panic.downcast_ref::<Error>() {
            Some(known) => known.clone(),
            None => Error::Panicked { message: panic_message(panic) },
        }
    }

    /// Calls user code. Returns [`Error::UserPanic`] if it panics.
    pub(crate) fn catch_user_panic<T>(
        code: impl FnOnce() -> UserCode,
        call: impl FnOnce() -> T,
    ) -> Result<T> {
        // Unwind safety: the engine passes shared references and plain values, and reads no state that the call
        // may have left incomplete.
        catch_unwind(AssertUnwindSafe(call)).map_err(|panic| match panic.downcast_ref::<Error>() {
            Some(known) => known.clone(),
            None => Error::UserPanic { code: code(), message: panic_message(&*panic) },
        })
    }

    /// Panics with this error, for callers that cannot return an error. [`Error::from_panic`] converts the panic back.
    pub(crate) fn resume_panic(self) -> ! {
        resume_unwind(Box::new(self))
    }

    /// Returns whether user code panicked.
    pub(crate) fn is_user_panic(&self) -> bool {
        matches!(self, Error::UserPanic { .. })
    }

    /// Returns the file or directory that the error concerns, if there is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Error::Io { path, .. }
            | Error::Corrupt { path, .. }
            | Error::Missing { path, .. }
            | Error::NotADatabase { path, .. }
            | Error::UnsupportedVersion { path, .. }
            | Error::Locked { path }
            | Error::TargetNotEmpty { path }
            | Error::OutputInDatabase { path }
            | Error::OutOfOrder { path }
            | Error::EmptyTable { path } => Some(path),
            Error::CompactionBlocked { file, .. } => Some(file),
            Error::NoOperandStore { cause: Some(cause), .. } => cause.path(),
            _ => None,
        }
    }

    /// Creates the error of a failed call on a file in a database directory. The error is
    /// [`Error::NotADatabase`] if the parent is not a directory.
    pub(crate) fn io_in_database(action: &'static str, path: &Path, source: io::Error) -> Error {
        match path.parent() {
            Some(dir) if source.kind() == io::ErrorKind::NotADirectory => {
                Error::NotADatabase { path: dir.to_owned(), why: "it is not a directory" }
            }
            _ => Error::io(action, path, source),
        }
    }

    /// Returns true if the cause is a file that does not exist.
    pub(crate) fn is_missing_file(&self) -> bool {
        match self {
            Error::Missing { .. } => true,
            Error::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }

    /// Converts the error of a file that does not exist to [`Error::Missing`], and returns any other error unchanged.
    pub(crate) fn or_missing(self, named_by: &Path) -> Error {
        match self {
            Error::Io { path, source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Error::Missing { path, named_by: named_by.to_owned() }
            }
            error => error,
        }
    }

    /// Creates the error of a failed file system call.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io { action, path: path.to_owned(), source: Arc::new(source) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the messages of an error and of all its causes.
    fn messages(error: &dyn std::error::Error) -> Vec<String> {
        std::iter::successors(Some(error), |error| error.source())
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn error_message_ends_with_each_of_its_causes() {
        let path = Path::new("a/000001.wal");
        let io = || Error::io("sync", path, io::Error::other("no space"));
        let (found, expected) = (1, 2);
        let errors = [
            io(),
            Error::malformed(Malformed::Checksum { expected, found }, path, 7),
            Error::ReadOnly { cause: Arc::new(io()) },
            Error::Background { work: "compaction", keyspace: None, cause: Arc::new(io()) },
            Error::MergeFailed {
                keyspace: "k".to_owned(),
                key: b"key".to_vec(),
                why: MergeError::new("not a number"),
            },
            Error::NoOperandStore {
                keyspace: "k".to_owned(),
                store: "s".to_owned(),
                cause: Some(Arc::new(io())),
            },
            Error::Compaction(lsmx_compaction::Error::UnknownFile {
                file: lsmx_compaction::FileId(3),
            }),
            Error::UnreadablePolicy {
                keyspace: "k".to_owned(),
                policy: "p".to_owned(),
                cause: Box::new("p".parse::<lsmx_compaction::PolicySpec>().unwrap_err()),
            },
        ];
        for error in errors {
            let messages = messages(&error);
            assert!(messages.len() > 1, "{error:?} has no cause");
            for cause in &messages[1..] {
                assert!(messages[0].ends_with(&format!(": {cause}")), "{messages:?}");
            }
            assert_eq!(error_chain(&error), messages[0], "no cause is printed twice");
        }
        let read_only = Error::ReadOnly { cause: Arc::new(io()) };
        let text =
            "the database is read-only after a write error: cannot sync a/000001.wal: no space";
        assert_eq!(read_only.to_string(), text);
    }

    /// An error whose message does not include its causes.
    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] io::Error);

    #[test]
    fn error_message_foreign_cause_has_its_causes() {
        let source = io::Error::other(Outer(io::Error::other("inner")));
        let error = Error::io("read", Path::new("f"), source);
        assert_eq!(error.to_string(), "cannot read f: outer: inner");
    }
}
