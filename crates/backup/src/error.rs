//! Errors of backups.

use std::io;
use std::path::{Path, PathBuf};

/// Error of a backup, a restore or a change of a repository.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call to the engine failed.
    #[error(transparent)]
    Engine(#[from] lsmx::Error),
    /// A call to the object store failed.
    #[error("cannot {action} the object {object}: {source}")]
    Store {
        /// Verb of the failed call, such as `read` or `write`.
        action: &'static str,
        /// Path of the object in the repository.
        object: String,
        /// Error of the object store.
        source: object_store::Error,
    },
    /// A call to the file system failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Verb of the failed call.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// An object is missing, has another size, or does not match its checksum.
    #[error("the object {object} is damaged: {reason}")]
    Damaged {
        /// Path of the object in the repository.
        object: String,
        /// The difference.
        reason: String,
    },
    /// A file of the database does not match its checksum in the manifest of the database. No backup was created.
    #[error("{} is damaged: {reason}", path.display())]
    DamagedFile {
        /// The file.
        path: PathBuf,
        /// The difference.
        reason: String,
    },
    /// The repository was written by a newer version of this crate.
    #[error("the object {object} has format version {found}, this build supports {supported}")]
    UnsupportedFormat {
        /// Path of the object in the repository.
        object: String,
        /// Version of the object.
        found: u32,
        /// Newest version that this build supports.
        supported: u32,
    },
    /// The repository contains no such backup.
    #[error("the repository has no backup {id}")]
    UnknownBackup {
        /// Number of the backup.
        id: u64,
    },
    /// The repository contains no backup.
    #[error("the repository has no backups")]
    NoBackups,
    /// The repository contains no backup of the writer.
    #[error("the repository has no backups of the writer {writer:?}")]
    NoBackupsOf {
        /// Name of the writer.
        writer: String,
    },
    /// No backup and no archived log contains the state after the commit.
    #[error("the commit {seq} cannot be restored; {}", display_ranges(.ranges))]
    CommitNotArchived {
        /// The requested sequence number.
        seq: u64,
        /// The nearest ranges of sequence numbers that can be restored, before and after it.
        ranges: Vec<(u64, u64)>,
    },
    /// The repository contains no backup that is old enough.
    #[error(
        "the repository has no backup that contains only commits before {time_ms} ms since 1970-01-01 UTC"
    )]
    NoBackupBefore {
        /// The requested time in milliseconds since 1970-01-01 UTC.
        time_ms: u64,
    },
    /// The backup was created by an earlier version of this crate, so that it cannot be extended by the archived log.
    #[error("the backup {id} was created by an earlier version and cannot be extended by the log")]
    NotExtensible {
        /// Number of the backup.
        id: u64,
    },
    /// Another archiver has written a chunk of the log of the same backup.
    #[error("another archiver has written the object {object}")]
    ChunkExists {
        /// Path of the object in the repository.
        object: String,
    },
    /// The location of a repository is invalid.
    #[error("cannot use the repository {location}: {source}")]
    Location {
        /// The location.
        location: String,
        /// Reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another run of the same writer has started. This run has no effect.
    #[error("the backup run {run} ended, because another run of the writer {writer:?} has started")]
    Superseded {
        /// Number of this run.
        run: u64,
        /// Name of the writer.
        writer: String,
    },
    /// Another backup run uses the staging directory.
    #[error("another backup run uses the staging directory {}", path.display())]
    StagingInUse {
        /// The staging directory.
        path: PathBuf,
    },
    /// The target of a restore has files that do not belong to an interrupted restore of the same backup, or the staging directory of
    /// a backup has a checkpoint that does not belong to an interrupted backup.
    #[error("the target {} is not empty: it contains {found:?}", path.display())]
    TargetNotEmpty {
        /// The target directory, or the staging directory.
        path: PathBuf,
        /// Name of the first unexpected file or directory.
        found: String,
    },
}

/// Describes ranges of sequence numbers.
fn display_ranges(ranges: &[(u64, u64)]) -> String {
    if ranges.is_empty() {
        return "the repository has no backup with a known last commit".to_owned();
    }
    let texts: Vec<_> = ranges.iter().map(|(first, last)| format!("{first} to {last}")).collect();
    format!("the nearest restorable commits are {}", texts.join(" and "))
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
    }

    pub(crate) fn store(
        action: &'static str,
        object: impl ToString,
    ) -> impl FnOnce(object_store::Error) -> Error {
        let object = object.to_string();
        move |source| Error::Store { action, object, source }
    }

    pub(crate) fn damaged(object: impl ToString, reason: impl ToString) -> Error {
        Error::Damaged { object: object.to_string(), reason: reason.to_string() }
    }
}
