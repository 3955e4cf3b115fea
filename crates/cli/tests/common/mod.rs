//! Runs the binary and looks at what it says.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// What a run said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Said {
    fn of(output: Output) -> Said {
        Said {
            code: output.status.code().expect("the binary was killed"),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Standard output of a run that must have gone well.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""), "{self:?}");
        String::from_utf8(self.stdout).unwrap()
    }

    /// Standard output of a repair that lost data, or would.
    #[allow(dead_code, reason = "not every test file repairs")]
    #[track_caller]
    pub(crate) fn loses_data(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (3, ""), "{self:?}");
        String::from_utf8(self.stdout).unwrap()
    }

    /// The one line on standard error of a run that must have failed with this exit code.
    #[allow(dead_code, reason = "not every test file has runs that fail")]
    #[track_caller]
    pub(crate) fn fails(self, code: i32, parts: &[&str]) -> String {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(self.stderr.starts_with("error: "), "{self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is not in {self:?}");
        }
        self.stderr
    }
}

fn command<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lsmx"));
    command.args(arguments);
    command
}

/// Runs `lsmx` with these arguments.
pub(crate) fn lsmx<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Said {
    Said::of(command(arguments).stdin(Stdio::null()).output().unwrap())
}

/// Runs `lsmx` with these words after `lsmx db PATH`.
#[allow(dead_code, reason = "not every test file works on databases")]
pub(crate) fn db(path: &Path, words: &str) -> Said {
    let mut arguments = vec!["db", path.to_str().unwrap()];
    arguments.extend(words.split_whitespace());
    lsmx(&arguments)
}

/// As [`db`], with this standard input.
#[allow(dead_code, reason = "not every test file works on databases")]
pub(crate) fn db_with_input(path: &Path, words: &str, input: &[u8]) -> Said {
    let mut arguments = vec!["db", path.to_str().unwrap()];
    arguments.extend(words.split_whitespace());
    let mut child = command(&arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A run that fails early does not read to the end.
    let _ = child.stdin.take().unwrap().write_all(input);
    Said::of(child.wait_with_output().unwrap())
}
