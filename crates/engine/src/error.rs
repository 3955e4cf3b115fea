//! What can go wrong, with the file, the offset and the cause.
//!
//! The message of an [`Error`] is one line that ends with its causes, joined by `: `.
//! [`source`](std::error::Error::source) returns the same causes to programs.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx_base::malformed::Malformed;

use crate::merge_operator::MergeError;
use crate::panics;

/// Result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the engine. Clones share the cause, so that every member of a failed commit group
/// and every later write can be told the same.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call to the file system failed.
    #[error("cannot {action} {}: {}", path.display(), chain(&**source))]
    Io {
        /// What was tried, such as `read` or `sync`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The bytes of a file are not what was written.
    #[error("{} is corrupt at byte {offset}: {source}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Offset in the file.
        offset: u64,
        /// What is wrong there.
        source: Malformed,
    },
    /// A file that another file names is not there, or `CURRENT` of a directory that holds tables or commits.
    #[error("{} is missing, required by {}", path.display(), named_by.display())]
    Missing {
        /// The missing file.
        path: PathBuf,
        /// The file that names it; of `CURRENT` the directory.
        named_by: PathBuf,
    },
    /// The directory holds no database.
    #[error("{} is not a database: {why}", path.display())]
    NotADatabase {
        /// The directory.
        path: PathBuf,
        /// What is lacking.
        why: &'static str,
    },
    /// A repair cannot bring all keyspaces to the last commit before the damage of the log. Nothing was changed.
    #[error(
        "keyspace {keyspace:?} cannot go back to the last commit before the damage of the log, because {why}; \
         repair without a common prefix"
    )]
    NoCommonPrefix {
        /// The keyspace.
        keyspace: String,
        /// What is lacking.
        why: &'static str,
    },
    /// The file was written by a version that this one does not know.
    #[error("{} has format version {found}, this build knows up to {supported}", path.display())]
    UnsupportedVersion {
        /// The file.
        path: PathBuf,
        /// Version in the file.
        found: u32,
        /// Newest version this build reads.
        supported: u32,
    },
    /// Somebody else has the database open.
    #[error("{} is locked by another owner", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// A write-path error made the database read-only; `resume()` tries again.
    #[error("the database is read-only after a write error: {cause}")]
    ReadOnly {
        /// The first error.
        #[source]
        cause: Arc<Error>,
    },
    /// Work in the background has failed, such as a compaction, and this is the first write since. It was
    /// not done; nothing stands in the way of the next one. The work is tried again after a pause, and the next
    /// error of its kind is told once some has ended well in between.
    #[error("{work}{} failed in the background; this write was not done, the next may be: {cause}", of_keyspace(keyspace.as_deref()))]
    Background {
        /// What failed: `compaction`, `collection`, `removal`, `delete-only compaction`.
        work: &'static str,
        /// Name of the keyspace, where there is one.
        keyspace: Option<String>,
        /// Why.
        #[source]
        cause: Arc<Error>,
    },
    /// Background work panicked: a bug of the engine. What it was at is left as it was before.
    #[error("background work panicked: {message}")]
    Panicked {
        /// What the panic said.
        message: String,
    },
    /// Code that the user supplied panicked. The panic ended only the call that the engine made of it.
    #[error("{code} panicked: {message}")]
    UserPanic {
        /// Whose code it was.
        code: UserCode,
        /// The message of the panic.
        message: String,
    },
    /// The process may open fewer files than the database needs. Nothing was changed.
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
    /// A key, value or batch is past a documented limit. Nothing of the write was done.
    #[error("{what} has {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// What is too large: `key`, `value` or `batch`.
        what: &'static str,
        /// Its bytes.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A write would have had to wait, and was asked not to.
    #[error("the write would wait for {cause}")]
    WouldWait {
        /// What it would have waited for.
        cause: &'static str,
    },
    /// A read that was to touch nothing but memory would have had to read a file, or would have gone
    /// on for long. Nothing of it was counted; [`Keyspace::get`](crate::Keyspace::get) and its like
    /// answer.
    #[error("the answer is not in memory")]
    WouldBlock,
    /// The runtime of an asynchronous call was shut down before the call was done. A write may yet be
    /// there, wholly.
    #[error("the runtime was shut down before the call was done")]
    RuntimeEnded,
    /// A call that may wait for background work was made on a thread which that work may need: a thread of the
    /// engine, or one that runs a listener or a merge operator. Nothing was done.
    #[error(
        "{call} was called from {context} and might wait for itself; call it from a thread of your own"
    )]
    Reentrant {
        /// The call, such as `flush`.
        call: &'static str,
        /// Where it was made, such as `an event listener`.
        context: &'static str,
    },
    /// The deadline of a call passed while it waited. Of a write nothing was done. Other calls may have done a
    /// part of their work, and end the device call that they are in.
    #[error("the deadline passed while waiting for {cause}")]
    Deadline {
        /// What it waited for.
        cause: &'static str,
    },
    /// The deadline of a write passed when another thread had taken the write into a group of commits. The write
    /// becomes visible, wholly, or fails, when the device calls of that group return. To learn which, read
    /// what was written after a later write has returned.
    #[error("the deadline passed while waiting for {cause}; the write may still be done")]
    Undecided {
        /// What it waited for.
        cause: &'static str,
    },
    /// A guarded key was written after the caller read it, or a range delete covers it since. Nothing of
    /// the batch was done. The caller reads again and decides anew.
    #[error(
        "{} was written after sequence number {read}: read it again and retry",
        key_in(key, keyspace)
    )]
    GuardRefused {
        /// The keyspace.
        keyspace: String,
        /// The guarded key.
        key: Vec<u8>,
        /// The sequence number of the guard.
        read: u64,
    },
    /// A guard names a sequence number that is older than the known history of its keyspace, so whether
    /// it holds cannot be decided. Nothing of the batch was done. The caller reads again and retries. The
    /// history covers at least the memtables, and begins anew when the database is opened.
    #[error(
        "whether {} was written after sequence number {read} is not known any more: read it again and retry",
        key_in(key, keyspace)
    )]
    GuardUnknown {
        /// The keyspace.
        keyspace: String,
        /// The guarded key.
        key: Vec<u8>,
        /// The sequence number of the guard.
        read: u64,
    },
    /// A keyspace was asked to merge, or to show merged operands, and was not given the operator
    /// that knows how. Its other keys are read as ever.
    #[error("keyspace {keyspace:?} has no merge operator: it was opened without {}", operator.as_deref().unwrap_or("one"))]
    NoMergeOperator {
        /// The keyspace.
        keyspace: String,
        /// Name of the operator it was given before, if there was one.
        operator: Option<String>,
    },
    /// The operand store of a keyspace was not given, or could not be opened. The keyspace cannot be read or
    /// written until [`Db::keyspace`](crate::Db::keyspace) is called with the store; other keyspaces work.
    #[error("keyspace {keyspace:?} has no operand store {store:?}: {}", unopened(cause.as_deref()))]
    NoOperandStore {
        /// The keyspace.
        keyspace: String,
        /// Name of the store.
        store: String,
        /// Why the store could not be opened; `None` if it was not given.
        #[source]
        cause: Option<Arc<Error>>,
    },
    /// A keyspace has a custom compaction policy and was opened without it.
    #[error(
        "keyspace {keyspace:?} was opened without its compaction policy {policy:?}: give it, or set another one"
    )]
    NoCompactionPolicy {
        /// The keyspace.
        keyspace: String,
        /// Name of the policy.
        policy: String,
    },
    /// An operand store broke the terms between it and the tree. What it wanted was not done.
    #[error("operand store {store:?} of keyspace {keyspace:?} {wrong}")]
    OperandStoreMistake {
        /// The keyspace.
        keyspace: String,
        /// Name of the store.
        store: String,
        /// What it did.
        wrong: &'static str,
    },
    /// Snapshots are held that see what is to change for all of them.
    #[error("snapshots are held that {what} would change")]
    SnapshotsHeld {
        /// What was to be done.
        what: &'static str,
    },
    /// The operands of a key do not fold; other keys are read as ever. A put or a delete of the key
    /// makes it readable again.
    #[error("cannot merge {}: {why}", key_in(key, keyspace))]
    MergeFailed {
        /// The keyspace.
        keyspace: String,
        /// The key.
        key: Vec<u8>,
        /// What the operator said.
        #[source]
        why: MergeError,
    },
    /// There is no keyspace of this name.
    #[error("there is no keyspace {name:?}")]
    UnknownKeyspace {
        /// The name asked for.
        name: String,
    },
    /// The keyspace of this handle was dropped. One of the same name that was made since is another.
    #[error("keyspace {name:?} was dropped")]
    KeyspaceDropped {
        /// Its name.
        name: String,
    },
    /// A custom compaction policy picked a job that breaks a rule. The job was not begun; the policy may
    /// pick again after a pause.
    #[error("policy {policy} picked a job that breaks a rule: {job}")]
    PolicyMistake {
        /// Name of the policy.
        policy: String,
        /// The job, on one line.
        job: String,
        /// The rule.
        #[source]
        rule: Arc<JobRule>,
    },
    /// A custom compaction policy stops writes and picks no job, so that nothing would ever release them.
    #[error(
        "policy {policy} of keyspace {keyspace:?} stops writes and picks no job for this tree: {shape}; set another policy"
    )]
    PolicyStalled {
        /// The keyspace.
        keyspace: String,
        /// Name of the policy.
        policy: String,
        /// Runs, files and bytes of each level that holds something, on one line.
        shape: String,
    },
    /// The jobs that a keyspace's policy wants need a file that cannot be read. Writes continue while
    /// other runs of L0 can be merged; this is what they fail with once none can, and what
    /// [`Db::wait_idle`](crate::Db::wait_idle) returns. [`Db::health`](crate::Db::health) lists all such
    /// files.
    #[error("compaction of keyspace {keyspace:?} is blocked by {}, which cannot be read: restore the file or its device and call resume(), or close the database and repair it: {cause}", file.display())]
    CompactionBlocked {
        /// The keyspace.
        keyspace: String,
        /// The quarantined file.
        file: PathBuf,
        /// Why it cannot be read.
        #[source]
        cause: Arc<Error>,
    },
    /// The policy that was asked for cannot rule a database.
    #[error(transparent)]
    Policy(lsmx_compaction::Error),
    /// The default keyspace is there as long as the database.
    #[error("the default keyspace cannot be dropped")]
    DefaultKeyspace,
    /// The database was opened for reading only.
    #[error("the database was opened read-only")]
    OpenedReadOnly,
    /// What is to be made would stand where something is already.
    #[error("{} is there and is not an empty directory", path.display())]
    TargetNotEmpty {
        /// The path that was named.
        path: PathBuf,
    },
    /// An output would have, or lie below, the name of an engine file in a database directory.
    #[error("{} has the name of an engine file in a database directory, choose another path", path.display())]
    OutputInDatabase {
        /// The path that was named.
        path: PathBuf,
    },
    /// A handle of another database was used.
    #[error("keyspace {name:?} belongs to another database")]
    ForeignKeyspace {
        /// Its name.
        name: String,
    },
    /// Two options contradict each other, or one contradicts what is on disk.
    #[error("option {first} contradicts {second}: {why}")]
    Contradiction {
        /// One option with its value.
        first: String,
        /// The other, with its value.
        second: String,
        /// Why they do not go together.
        why: &'static str,
    },
    /// An option has a value outside its range.
    #[error("option {name} is {value}, must be {must}")]
    InvalidOption {
        /// The option.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        must: &'static str,
    },
    /// Entries for a table came out of order. Nothing of the table may be used.
    #[error("entries for {} came out of order", path.display())]
    OutOfOrder {
        /// The table that was being written.
        path: PathBuf,
    },
    /// A table was finished without any entry or range tombstone.
    #[error("nothing was written to {}", path.display())]
    EmptyTable {
        /// The table that was being written.
        path: PathBuf,
    },
    /// A compaction policy returned a job that does not fit the tree.
    #[error("compaction job refused: {}", chain(.0))]
    Compaction(#[from] lsmx_compaction::Error),
}

/// Returns the message of an error and those of its causes as one line, joined by `: `. A cause is left out if
/// the message before it ends with it already, as that of an [`Error`] does.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = error.source();
    }
    line
}

/// Names a key in a message, by at most its first 64 bytes.
fn key_in(key: &[u8], keyspace: &str) -> String {
    format!("key \"{}\" of keyspace {keyspace:?}", key[..key.len().min(64)].escape_ascii())
}

/// Why an operand store is not open, and what the caller can do.
fn unopened(cause: Option<&Error>) -> String {
    match cause {
        None => "open the keyspace with the store".to_owned(),
        Some(cause) => format!("open the keyspace with the store to try again: {cause}"),
    }
}

/// A rule that a job of a compaction policy must keep.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobRule {
    /// Only a policy that says so may drop data that was not deleted.
    #[error("it drops data, and can_drop_data() of the policy is false")]
    DropsData,
    /// A job takes no file that is busy, and does not write into the range of a running job.
    #[error("it collides with a running job")]
    Busy,
    /// The inputs are in the tree, newest first, and nothing older comes to stand above something newer.
    #[error(transparent)]
    Shape(lsmx_compaction::Error),
}

/// Code that users supply and the engine calls.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UserCode {
    /// The [`Vfs`](crate::vfs::Vfs) of the database or one of its files. The error of the call that panicked is
    /// [`Error::Io`], which names the file; its source is an [`std::io::Error`] that holds the [`Error::UserPanic`].
    #[error("the file system")]
    FileSystem,
    /// A compaction policy, by name.
    #[error("compaction policy {0:?}")]
    CompactionPolicy(String),
    /// An operand store, by name.
    #[error("operand store {0:?}")]
    OperandStore(String),
}

/// As part of a message: whose work it was.
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

    /// The error for a caught panic of the engine, or of user code if [`Error::rethrow`] passed it on.
    pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Error {
        match panic.downcast_ref::<Error>() {
            Some(known) => known.clone(),
            None => Error::Panicked { message: panics::message(panic) },
        }
    }

    /// Calls user code. A panic in it is returned as [`Error::UserPanic`].
    pub(crate) fn catch_user<T>(
        code: impl FnOnce() -> UserCode,
        call: impl FnOnce() -> T,
    ) -> Result<T> {
        // The engine passes shared references and plain values, and reads nothing that the call has left unfinished.
        catch_unwind(AssertUnwindSafe(call)).map_err(|panic| match panic.downcast_ref::<Error>() {
            Some(known) => known.clone(),
            None => Error::UserPanic { code: code(), message: panics::message(&*panic) },
        })
    }

    /// Goes on with a panic of user code where the caller takes no error; [`Error::panicked`] recognises it.
    pub(crate) fn rethrow(self) -> ! {
        resume_unwind(Box::new(self))
    }

    /// Whether user code panicked, rather than the engine.
    pub(crate) fn is_user_panic(&self) -> bool {
        matches!(self, Error::UserPanic { .. })
    }

    /// The file or directory that it is about, if it is about one.
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

    /// A failed call on a file in the directory of a database: where that is no directory, it is no
    /// database.
    pub(crate) fn inside(action: &'static str, path: &Path, source: io::Error) -> Error {
        match path.parent() {
            Some(dir) if source.kind() == io::ErrorKind::NotADirectory => {
                Error::NotADatabase { path: dir.to_owned(), why: "it is no directory" }
            }
            _ => Error::io(action, path, source),
        }
    }

    /// A failed call to the file system.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io { action, path: path.to_owned(), source: Arc::new(source) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message and those of all causes, each cause as its own message has it.
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
        ];
        for error in errors {
            let messages = messages(&error);
            assert!(messages.len() > 1, "{error:?} has no cause");
            for cause in &messages[1..] {
                assert!(messages[0].ends_with(&format!(": {cause}")), "{messages:?}");
            }
            assert_eq!(chain(&error), messages[0], "a cause is printed twice");
        }
        let read_only = Error::ReadOnly { cause: Arc::new(io()) };
        let text =
            "the database is read-only after a write error: cannot sync a/000001.wal: no space";
        assert_eq!(read_only.to_string(), text);
    }

    /// A cause that does not print its own causes.
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
