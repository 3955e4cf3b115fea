//! Why a command ends early, and with which exit code.

use std::error::Error as StdError;
use std::io;
use std::process::ExitCode;

use crate::output;

/// Exit code for arguments and spec files that are wrong.
const USAGE: u8 = 2;
/// Exit code of a repair that lost data, or would.
const DATA_LOST: u8 = 3;

/// Why a command ends early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Help or version were asked for; nothing is wrong.
    Help(String),
    /// The arguments are wrong: one line that names the argument.
    Usage(String),
    /// The run failed.
    Run(Box<dyn StdError + Send + Sync>),
    /// Data is lost, or would be; the output says which.
    DataLost,
    /// Nobody reads standard output any more, so there is nothing left to do.
    NobodyReads,
}

impl Failure {
    /// Says on standard error what happened, and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        match self {
            Failure::Help(text) => match output::stdout(text.as_bytes()) {
                Ok(()) | Err(Failure::NobodyReads) => ExitCode::SUCCESS,
                Err(failure) => failure.report(),
            },
            Failure::Usage(line) => {
                output::stderr(&line);
                ExitCode::from(USAGE)
            }
            Failure::Run(error) => {
                output::stderr(&one_line(error.as_ref()));
                ExitCode::FAILURE
            }
            Failure::DataLost => ExitCode::from(DATA_LOST),
            Failure::NobodyReads => ExitCode::SUCCESS,
        }
    }

    /// A failure to write to standard output.
    pub(crate) fn stdout(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::NobodyReads;
        }
        Failure::Run(Box::new(FileError {
            action: "write to",
            what: "standard output".to_owned(),
            source: error,
        }))
    }

    /// A failure of a call on a file of the user.
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

impl From<lsmx_bench::Error> for Failure {
    fn from(error: lsmx_bench::Error) -> Failure {
        if error.is_usage() {
            Failure::Usage(one_line(&error))
        } else {
            Failure::Run(Box::new(error))
        }
    }
}

/// A call on a file of the user, or on a standard stream, failed.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_stand_behind_colons_on_one_line() {
        let source = io::Error::other("no\nspace");
        let Failure::Run(error) = Failure::file("write", "a.tsv", source) else { unreachable!() };
        assert_eq!(one_line(error.as_ref()), "cannot write a.tsv: no space");
    }

    #[test]
    fn a_broken_pipe_is_no_error() {
        let broken = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(matches!(Failure::stdout(broken), Failure::NobodyReads));
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(matches!(Failure::stdout(full), Failure::Run(_)));
    }
}
