//! Failures of a command and their exit codes.

use std::error::Error as StdError;
use std::io;
use std::process::ExitCode;

use crate::output;

/// Exit code for invalid arguments and spec files.
const USAGE: u8 = 2;
/// Exit code of a repair that lost data or would lose data.
const DATA_LOST: u8 = 3;
/// Exit code of a search that found an entry of the key, or could not search all files.
const KEY_REMAINS: u8 = 4;

/// Reason why a command stops before it completes.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The output of `--help` or `--version`, which is not an error.
    Help(String),
    /// Invalid arguments. The message is one line that names the argument.
    Usage(String),
    /// Error that occurred while the command ran.
    Run(Box<dyn StdError + Send + Sync>),
    /// Another process has the database open, and the command can read it with `--follower`.
    DatabaseLocked(lsmx::Error),
    /// A repair lost data or would lose data. The printed report lists the lost data.
    DataLost,
    /// An entry of the searched key remains, or a file was not searched completely. The printed report lists them.
    KeyRemains,
    /// The reader of a long output closed the pipe, which is not an error.
    OutputClosed,
}

impl Failure {
    /// Prints the error to standard error and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        match self {
            Failure::Help(text) => {
                output::stdout(text.as_bytes()).map_or_else(Failure::report, |()| ExitCode::SUCCESS)
            }
            Failure::Usage(line) => {
                output::stderr(&line);
                ExitCode::from(USAGE)
            }
            Failure::Run(error) => {
                output::stderr(&one_line(error.as_ref()));
                ExitCode::FAILURE
            }
            Failure::DatabaseLocked(error) => {
                let hint = "--follower reads the database while another process has it open";
                output::stderr(&format!("{}; {hint}", one_line(&error)));
                ExitCode::FAILURE
            }
            Failure::DataLost => ExitCode::from(DATA_LOST),
            Failure::KeyRemains => ExitCode::from(KEY_REMAINS),
            Failure::OutputClosed => ExitCode::SUCCESS,
        }
    }

    /// Converts the error of a write to standard output. A closed pipe becomes [`Failure::OutputClosed`].
    pub(crate) fn stdout(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::OutputClosed;
        }
        Failure::file("write to", "standard output", error)
    }

    /// Wraps the I/O error of an operation on a file that the user named.
    pub(crate) fn file(
        action: &'static str,
        what: impl Into<String>,
        source: io::Error,
    ) -> Failure {
        Failure::Run(Box::new(FileError { action, what: what.into(), source }))
    }
}

impl From<lsmx::Error> for Failure {
    fn from(error: lsmx::Error) -> Failure {
        Failure::Run(Box::new(error))
    }
}

impl From<lsmx_backup::Error> for Failure {
    fn from(error: lsmx_backup::Error) -> Failure {
        Failure::Run(Box::new(error))
    }
}

impl From<lsmx_bench::Error> for Failure {
    fn from(error: lsmx_bench::Error) -> Failure {
        if error.is_usage() {
            Failure::Usage(one_line(&error))
        } else {
            Failure::Run(Box::new(error))
        }
    }
}

/// I/O error of a file that the user named or of a standard stream.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {what}")]
struct FileError {
    action: &'static str,
    what: String,
    source: io::Error,
}

/// Returns an error and all its causes as one line.
fn one_line(error: &dyn StdError) -> String {
    lsmx_base::error_chain::error_chain(error).replace('\n', " ")
}
