use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use lsmx_base::error_chain::error_chain;
use lsmx_compaction::error::known_names;

use crate::report::text::format_bytes;
use crate::workload::record::{RecordError, to_hex};

pub type Result<T> = std::result::Result<T, Error>;

/// An error of a workload, an experiment or a report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter is out of range or malformed.
    #[error("{name} is {value}, must be {must}")]
    Invalid {
        /// Name of the parameter as users type it, such as `--entries`.
        name: &'static str,
        value: String,
        must: String,
    },
    /// Two parameters exclude each other.
    #[error("{first} contradicts {second}: {why}")]
    Contradiction { first: String, second: String, why: &'static str },
    #[error("unknown {what} {name:?}; {}", known_names(name, known))]
    Unknown { what: &'static str, name: String, known: String },
    /// A result cannot be converted to JSON.
    #[error("the result cannot be JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the simulation failed: {}", error_chain(&**source))]
    Simulation { source: Box<lsmx_simulator::Error> },
    /// A spec file is malformed. Lines and columns are counted from 1. Columns are characters.
    #[error("{}, line {line}, column {column}: {what}", path.display())]
    Spec { path: PathBuf, line: u64, column: u64, what: String },
    /// A line of a data file is malformed. Lines are counted from 1.
    #[error("{}, line {line} is malformed: {}", path.display(), error_chain(source))]
    Record { path: PathBuf, line: u64, source: RecordError },
    /// A data file is empty.
    #[error("{} holds no records", path.display())]
    NoRecords { path: PathBuf },
    #[error("cannot {action} {}: {}", path.display(), error_chain(source))]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    /// The directory of `--resume` cannot be used. For example, the directory contains results of another command.
    #[error("--resume {}: {why}", directory.display())]
    Resume { directory: PathBuf, why: String },
    /// A list of cells or a result of a cell cannot be used. For example, it belongs to another command.
    #[error("{}: {why}", path.display())]
    Cells { path: PathBuf, why: String },
    /// An lsmx database returned an error.
    #[error("cannot {action}: {source}")]
    Engine { action: &'static str, source: lsmx::Error },
    /// A database of another engine, such as RocksDB, returned an error.
    #[error("{engine}: cannot {action}: {}", error_chain(&**source))]
    Peer {
        engine: &'static str,
        action: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The child process that runs the workloads of an engine failed. `step` is the name of the workload that ran, or
    /// `start` or `close`.
    #[error("{engine}, {step}: {failure}")]
    EngineProcess { engine: &'static str, step: String, failure: EngineProcessFailure },
    /// A database returned a wrong value. `key` contains the hexadecimal digits of the key.
    #[error("wrong answer of the database: key {key} is {found}, must be {must}")]
    WrongAnswer { key: String, found: &'static str, must: &'static str },
}

/// Failure of a child process that runs the workloads of an engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineProcessFailure {
    /// The process reported an error of a workload.
    #[error("{text}")]
    Reported { text: String, is_usage: bool },
    #[error("the process needed more memory than --memory-limit {}, and the kernel ended it", format_bytes(*limit_bytes))]
    OutOfMemory { limit_bytes: u64 },
    /// The process ended before it answered.
    #[error("the process ended early, {status}")]
    Ended { status: ExitStatus },
    #[error("the process answered {answer:?}, which is not an answer of this version")]
    WrongAnswer { answer: String },
    #[error("no memory control group can be created: {reason}")]
    NoGroup { reason: String },
    /// The run was interrupted, and this process has killed all its child processes.
    #[error("the run was interrupted")]
    Interrupted,
    #[error("cannot exchange messages with the process: {source}")]
    Io { source: io::Error },
}

impl Error {
    pub(crate) fn invalid_argument(
        name: &'static str,
        value: impl ToString,
        must: impl Into<String>,
    ) -> Error {
        Error::Invalid { name, value: value.to_string(), must: must.into() }
    }

    pub(crate) fn contradictory_arguments(
        first: impl Into<String>,
        second: impl Into<String>,
        why: &'static str,
    ) -> Error {
        Error::Contradiction { first: first.into(), second: second.into(), why }
    }

    pub(crate) fn wrong_answer(key: &[u8], found: &'static str, must: &'static str) -> Error {
        Error::WrongAnswer { key: to_hex(key), found, must }
    }

    /// Returns [`Error::Invalid`] if the value is out of range.
    pub(crate) fn check_range(
        name: &'static str,
        value: u64,
        range: RangeInclusive<u64>,
    ) -> Result<()> {
        if range.contains(&value) {
            return Ok(());
        }
        Err(Error::invalid_argument(
            name,
            value,
            format!("from {} to {}", range.start(), range.end()),
        ))
    }

    /// Returns a closure for `map_err` that adds an action and a path to an I/O error.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Error {
        move |source| Error::Io { action, path: path.to_owned(), source }
    }

    /// Returns whether the error reports that the child process of an engine exceeded its memory limit.
    pub fn is_out_of_memory(&self) -> bool {
        let Error::EngineProcess { failure, .. } = self else { return false };
        matches!(failure, EngineProcessFailure::OutOfMemory { .. })
    }

    /// Returns whether command-line arguments or a spec file caused the error. All other errors occur during a run.
    pub fn is_usage(&self) -> bool {
        match self {
            Error::Invalid { .. }
            | Error::Unknown { .. }
            | Error::Contradiction { .. }
            | Error::Spec { .. }
            | Error::Resume { .. }
            | Error::Cells { .. } => true,
            Error::EngineProcess { failure, .. } => {
                matches!(failure, EngineProcessFailure::Reported { is_usage: true, .. })
            }
            Error::Engine { source, .. } => matches!(
                source,
                lsmx::Error::InvalidOption { .. } | lsmx::Error::Contradiction { .. }
            ),
            _ => false,
        }
    }
}
