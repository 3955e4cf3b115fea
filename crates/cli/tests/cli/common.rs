//! Runs `lsmx` and reads its results.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// Exit code and output of a run.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Said {
    pub(crate) fn of(output: Output) -> Said {
        Said {
            code: output.status.code().expect("a signal ended the binary"),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Returns standard output. The run must have exit code 0 and no errors.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""), "{self:?}");
        String::from_utf8(self.stdout).unwrap()
    }

    /// Returns standard output as JSON. The run must have exit code 0 and no errors.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// Returns standard output of a repair that lost data, or would lose data.
    #[track_caller]
    pub(crate) fn loses_data(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (3, ""), "{self:?}");
        String::from_utf8(self.stdout).unwrap()
    }

    /// Returns standard error. The run must have this exit code and one line of error that contains `parts`.
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
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs `lsmx` with these arguments.
pub(crate) fn lsmx<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Said {
    Said::of(command(arguments).output().unwrap())
}

/// Runs a command of `lsmx` with these words.
pub(crate) fn run(command: &str, words: &str) -> Said {
    let words: Vec<&str> = command.split(' ').chain(words.split_whitespace()).collect();
    lsmx(&words)
}

/// Runs a command in the background.
pub(crate) fn spawn(words: &str) -> Child {
    command(&words.split_whitespace().collect::<Vec<_>>()).spawn().unwrap()
}

/// Sends SIGINT to a run and waits for its end.
#[cfg(unix)]
pub(crate) fn interrupt(child: Child) -> Said {
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    Said::of(child.wait_with_output().unwrap())
}

/// Runs `lsmx db PATH` with these words.
pub(crate) fn db(path: &Path, words: &str) -> Said {
    let mut arguments = vec!["db", path.to_str().unwrap()];
    arguments.extend(words.split_whitespace());
    lsmx(&arguments)
}

/// Runs `lsmx db PATH` with these words and this standard input.
pub(crate) fn db_with_input(path: &Path, words: &str, input: &[u8]) -> Said {
    let mut arguments = vec!["db", path.to_str().unwrap()];
    arguments.extend(words.split_whitespace());
    let mut child = command(&arguments).stdin(Stdio::piped()).spawn().unwrap();
    // A run that fails early does not read all of its input.
    let _ = child.stdin.take().unwrap().write_all(input);
    Said::of(child.wait_with_output().unwrap())
}

/// Reads a JSON file.
pub(crate) fn read_json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Runs an experiment and returns its result. Temporary databases are in `directory/databases`, which must be empty
/// after the run.
pub(crate) fn result(command: &str, words: &str, directory: &Path) -> Value {
    let (file, databases) = (directory.join("result.json"), directory.join("databases"));
    fs::create_dir_all(&databases).unwrap();
    let dir = match command == "simulate" || words.contains("--db ") {
        true => String::new(),
        false => format!("--dir {}", databases.display()),
    };
    run(command, &format!("{words} {dir} --json {}", file.display())).ok();
    assert_eq!(fs::read_dir(&databases).unwrap().count(), 0, "a temporary database is left");
    let result = read_json(&file);
    assert!(result["provenance"]["command"].as_str().unwrap().contains(command));
    result
}

/// Runs an experiment and returns the cells of its result.
pub(crate) fn cells(command: &str, words: &str, directory: &Path) -> Vec<Value> {
    result(command, words, directory)["cells"].as_array().unwrap().clone()
}

/// Returns the number at a path in a result.
#[track_caller]
pub(crate) fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {value}"))
}

/// Returns the string in a field of a result.
#[track_caller]
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}"))
}

/// Checks that a page contains all parts.
#[track_caller]
pub(crate) fn assert_contains(page: &str, parts: &[&str]) {
    for part in parts {
        assert!(page.contains(part), "{part:?} is not in {page}");
    }
}

/// Reads CSV rows. Each must have as many columns as the header.
#[track_caller]
pub(crate) fn read_rows(path: &Path) -> Vec<String> {
    let rows: Vec<_> = fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect();
    let columns = |line: &str| line.split(',').count();
    assert!(rows.iter().all(|row| columns(row) == columns(&rows[0])), "{rows:?}");
    rows
}
