//! Errors of the storage, and their conversion to errors of openraft.

use std::io;
use std::path::PathBuf;

use lsmx_base::error_chain::error_chain;
use openraft::{AnyError, ErrorSubject, ErrorVerb, NodeId, StorageError, StorageIOError};

/// Error of the storage of a Raft node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call to the engine failed.
    #[error(transparent)]
    Engine(#[from] lsmx::Error),
    /// A call to the file system for a file or directory of a snapshot failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Verb of the failed call, such as `read` or `sync`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A record cannot be encoded, for example because its type needs a self-describing format.
    #[error("cannot encode the record {record:?}: {source}")]
    Encode {
        /// Name of the record.
        record: &'static str,
        /// Error of the serialization.
        source: postcard::Error,
    },
    /// A stored record cannot be decoded, for example because the program uses other types than the one that wrote it.
    #[error("cannot decode the record {record:?}: {source}")]
    Decode {
        /// Name of the record.
        record: &'static str,
        /// Error of the deserialization.
        source: postcard::Error,
    },
    /// The log has an entry under the index of another one.
    #[error("the log has the entry {index} under the key {key:?}")]
    LogIndex {
        /// Index of the entry.
        index: u64,
        /// Key of the entry.
        key: Vec<u8>,
    },
    /// The database has a format that this version does not support.
    #[error("the Raft storage has format version {found}, this build supports {supported}")]
    UnsupportedFormat {
        /// Version of the database.
        found: u32,
        /// Version of this build.
        supported: u32,
    },
    /// A received snapshot stream is damaged or incomplete. Nothing was installed.
    #[error("the snapshot stream is invalid at byte {offset}: {source}")]
    Stream {
        /// Offset in the stream.
        offset: u64,
        /// Reason.
        source: StreamFault,
    },
    /// The database of a snapshot has another state than openraft expects. Nothing was installed.
    #[error("the snapshot contains the state at log id {found}, expected {expected}")]
    SnapshotState {
        /// Log id of the state in the snapshot.
        found: String,
        /// Log id in the metadata of the snapshot.
        expected: String,
    },
    /// The snapshot that precedes the new log entries could not be installed. The entries were not appended.
    #[error("the installation of a snapshot failed")]
    InstallationFailed,
    /// The application panicked while it applied a command. The commands of the same commit were not applied.
    #[error("the application panicked while it applied a command: {message}")]
    ApplicationPanicked {
        /// Message of the panic.
        message: String,
    },
}

/// Reason why a snapshot stream is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamFault {
    /// The bytes of a frame differ from those that were sent.
    #[error("the checksum of the frame is {found:016x}, expected {expected:016x}")]
    Checksum {
        /// Checksum of the received bytes.
        found: u64,
        /// Checksum in the frame.
        expected: u64,
    },
    /// The stream does not start with the magic number.
    #[error("it is not a snapshot stream")]
    Magic,
    /// The version of the stream is not supported.
    #[error("it has format version {found}, this build supports {supported}")]
    Version {
        /// Version of the stream.
        found: u32,
        /// Version of this build.
        supported: u32,
    },
    /// The list of files cannot be decoded.
    #[error("cannot decode the list of files: {source}")]
    FileList {
        /// Error of the deserialization.
        source: postcard::Error,
    },
    /// The list of files is longer than the receiver accepts.
    #[error("the list of files has {bytes} bytes")]
    FileListTooLarge {
        /// Length in bytes.
        bytes: u32,
    },
    /// The name of a file is a path.
    #[error("{name:?} is not the name of a file")]
    FileName {
        /// The name.
        name: String,
    },
    /// The stream ended before its last file, or in a frame, or its last frame is damaged.
    #[error("the stream ends early, or its last frame is damaged")]
    Truncated,
    /// The stream continues after its last file.
    #[error("the stream continues after its last file")]
    TooLong,
    /// A write left a hole in the stream.
    #[error("bytes up to {position} are missing")]
    Hole {
        /// Offset of the write.
        position: u64,
    },
}

impl StreamFault {
    pub(crate) fn at(self, offset: u64) -> Error {
        Error::Stream { offset, source: self }
    }
}

impl Error {
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { action, path, source }
    }

    /// Returns the error for a failed operation of openraft on `subject`.
    pub(crate) fn into_storage<N: NodeId>(
        self,
        subject: ErrorSubject<N>,
        verb: ErrorVerb,
    ) -> StorageError<N> {
        StorageIOError::new(subject, verb, AnyError::error(error_chain(&self))).into()
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::other(error)
    }
}
