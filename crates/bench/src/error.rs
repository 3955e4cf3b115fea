//! What can go wrong before and while an experiment runs.

use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use lsmx_base::error_chain::error_chain;

use crate::workload::record::{RecordError, to_hex};

/// Result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of workloads, experiments and reports.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter has a value that it must not have.
    #[error("{name} is {value}, must be {must}")]
    Invalid {
        /// The parameter as it is typed, such as `--entries`.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        must: String,
    },
    /// Two parameters do not go together.
    #[error("{first} contradicts {second}: {why}")]
    Contradiction {
        /// One as it is typed.
        first: String,
        /// The other.
        second: String,
        /// Why they do not go together.
        why: &'static str,
    },
    /// A name is unknown.
    #[error("unknown {what} {name:?}; known: {known}")]
    Unknown {
        /// Kind of the name.
        what: &'static str,
        /// The name.
        name: String,
        /// Known names.
        known: String,
    },
    /// A part of a result cannot be JSON.
    #[error("the result cannot be JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A simulation ended early.
    #[error("the simulation failed: {}", error_chain(&**source))]
    Simulation {
        /// Why.
        source: Box<lsmx_simulator::Error>,
    },
    /// A spec file is not what it should be.
    #[error("{}, line {line}, column {column}: {what}", path.display())]
    Spec {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The column in characters, counted from 1.
        column: u64,
        /// What is wrong there.
        what: String,
    },
    /// A line of a data file is malformed.
    #[error("{}, line {line} is malformed: {}", path.display(), error_chain(source))]
    Record {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong there.
        source: RecordError,
    },
    /// A data file holds nothing to load.
    #[error("{} holds no records", path.display())]
    NoRecords {
        /// The file.
        path: PathBuf,
    },
    /// A call to the file system failed.
    #[error("cannot {action} {}: {}", path.display(), error_chain(source))]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A directory of finished cells does not go with this run.
    #[error("--resume {}: {why}", directory.display())]
    Resume {
        /// The directory.
        directory: PathBuf,
        /// Why not.
        why: String,
    },
    /// The database failed.
    #[error("cannot {action}: {source}")]
    Engine {
        /// What was tried.
        action: &'static str,
        /// What the database said.
        source: lsmx::Error,
    },
    /// Another engine failed.
    #[error("{engine}: cannot {action}: {}", error_chain(&**source))]
    Peer {
        /// Its name.
        engine: &'static str,
        /// What was tried.
        action: &'static str,
        /// What it said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The database gave a wrong answer.
    #[error("wrong answer of the database: key {key} is {found}, must be {must}")]
    WrongAnswer {
        /// The key, in hexadecimal.
        key: String,
        /// What was found.
        found: &'static str,
        /// What the workload says.
        must: &'static str,
    },
}

impl Error {
    pub(crate) fn invalid(
        name: &'static str,
        value: impl ToString,
        must: impl Into<String>,
    ) -> Error {
        Error::Invalid { name, value: value.to_string(), must: must.into() }
    }

    pub(crate) fn contradiction(
        first: impl Into<String>,
        second: impl Into<String>,
        why: &'static str,
    ) -> Error {
        Error::Contradiction { first: first.into(), second: second.into(), why }
    }

    pub(crate) fn wrong_answer(key: &[u8], found: &'static str, must: &'static str) -> Error {
        Error::WrongAnswer { key: to_hex(key), found, must }
    }

    /// Checks that a parameter is in a range.
    ///
    /// # Errors
    /// [`Error::Invalid`] if not.
    pub(crate) fn check_range(
        name: &'static str,
        value: u64,
        range: RangeInclusive<u64>,
    ) -> Result<()> {
        if range.contains(&value) {
            return Ok(());
        }
        Err(Error::invalid(name, value, format!("from {} to {}", range.start(), range.end())))
    }

    /// Whether what was asked for was wrong, rather than the run.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        match self {
            Error::Invalid { .. }
            | Error::Unknown { .. }
            | Error::Contradiction { .. }
            | Error::Spec { .. }
            | Error::Resume { .. } => true,
            Error::Engine { source, .. } => matches!(
                source,
                lsmx::Error::InvalidOption { .. } | lsmx::Error::Contradiction { .. }
            ),
            _ => false,
        }
    }
}
