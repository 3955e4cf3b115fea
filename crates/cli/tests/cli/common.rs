//! Helpers that run the `lsmx` binary and read its results.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// Exit code and output of an `lsmx` process.
#[derive(Debug)]
pub(crate) struct CliOutput {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl CliOutput {
    pub(crate) fn new(output: Output) -> CliOutput {
        CliOutput {
            code: output.status.code().expect("no signal ended the process"),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Returns standard output. Panics if the exit code is not `code` or if standard error is not empty.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (code, ""), "{self:?}");
        String::from_utf8(self.stdout).unwrap()
    }

    /// Returns standard output. Panics if the process failed.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        self.exits(0)
    }

    /// Returns standard error. Panics if the exit code is not `code`, or if the error is not one line that contains all
    /// `parts`.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, parts: &[&str]) -> String {
        assert_eq!((self.code, self.stderr.lines().count()), (code, 1), "{self:?}");
        assert!(self.stderr.starts_with("error: "), "{self:?}");
        assert_contains(&self.stderr, parts);
        self.stderr
    }
}

/// Directory of an in-memory file system. `explore` and `advise` sync every flush, which is much faster in memory.
const IN_MEMORY: &str = "/dev/shm";

pub(crate) fn command(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lsmx"));
    command.args(words.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs `lsmx` with arguments separated by spaces and waits until the process ends.
pub(crate) fn lsmx(words: &str) -> CliOutput {
    CliOutput::new(command(words).output().unwrap())
}

/// Starts `lsmx` with arguments separated by spaces.
pub(crate) fn spawn(words: &str) -> Child {
    command(words).spawn().unwrap()
}

/// Sends SIGINT to an `lsmx` process and waits until the process ends.
#[cfg(unix)]
pub(crate) fn interrupt(child: Child) -> CliOutput {
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    CliOutput::new(child.wait_with_output().unwrap())
}

/// Temporary directory whose methods return paths as strings for command lines.
pub(crate) struct TestDir(TempDir);

impl TestDir {
    /// Creates a temporary directory, in memory if the system has an in-memory file system.
    pub(crate) fn new() -> TestDir {
        tempfile::tempdir_in(IN_MEMORY).map_or_else(|_| TestDir::on_disk(), TestDir)
    }

    pub(crate) fn on_disk() -> TestDir {
        TestDir(tempfile::tempdir().unwrap())
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    /// Returns the path of a file in the directory. The file need not exist.
    pub(crate) fn path(&self, name: &str) -> String {
        self.root().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        fs::write(self.root().join(name), text).unwrap();
        self.path(name)
    }

    /// Returns the names of all files, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }
}

/// Output of an experiment in all formats.
pub(crate) struct Experiment {
    pub(crate) table: String,
    pub(crate) result: Value,
    /// Lines of the CSV file. The first line is the header. All lines have the same number of columns.
    pub(crate) csv: Vec<String>,
    pub(crate) html: String,
}

impl Experiment {
    pub(crate) fn cells(&self) -> &[Value] {
        list(&self.result, "/cells")
    }
}

/// Runs an experiment and returns its output. Panics if temporary files remain.
#[track_caller]
pub(crate) fn experiment(words: &str) -> Experiment {
    let files = TestDir::new();
    // Results of the other experiments include device I/O, so those experiments need a real file system.
    let in_memory = words.starts_with("explore") || words.starts_with("advise");
    let databases = if in_memory { TestDir::new() } else { TestDir::on_disk() };
    let [json, csv, html] = ["a.json", "a.csv", "a.html"].map(|name| files.path(name));
    let mut command = command(words);
    command.args(["--json", &json, "--csv", &csv, "--html", &html]);
    if !words.starts_with("simulate") && !words.contains("--db ") {
        command.args(["--dir", databases.root().to_str().unwrap()]);
    }
    let table = CliOutput::new(command.output().unwrap()).ok();
    assert!(databases.names().is_empty(), "temporary files remain: {:?}", databases.names());
    let result = read_json(&json);
    assert!(text(&result["provenance"], "command").contains(words.split(' ').next().unwrap()));
    let csv: Vec<String> = fs::read_to_string(csv).unwrap().lines().map(str::to_owned).collect();
    // Removes quoted text from a CSV line, because commas in quotes do not separate columns.
    let unquoted = |line: &String| line.split('"').step_by(2).collect::<String>();
    let columns = |line: &String| unquoted(line).matches(',').count();
    assert!(csv.iter().all(|line| columns(line) == columns(&csv[0])), "{csv:?}");
    Experiment { table, result, csv, html: fs::read_to_string(html).unwrap() }
}

/// Runs an experiment and returns the `cells` array of its JSON result.
#[track_caller]
pub(crate) fn cells(words: &str) -> Vec<Value> {
    experiment(words).cells().to_vec()
}

pub(crate) fn read_json(path: impl AsRef<Path>) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Removes times and the command line from a result. The rest of the result depends only on the seed.
pub(crate) fn remove_times(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|name, _| {
                !name.contains("latency_us") && name != "elapsed_s" && name != "command"
            });
            members.values_mut().for_each(remove_times);
        }
        Value::Array(elements) => elements.iter_mut().for_each(remove_times),
        _ => {}
    }
}

/// Returns the number at a JSON pointer in a result.
#[track_caller]
pub(crate) fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {value}"))
}

/// Returns the array at a JSON pointer in a result.
#[track_caller]
pub(crate) fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    value.pointer(path).and_then(Value::as_array).unwrap_or_else(|| panic!("no {path} in {value}"))
}

/// Returns the number at the JSON pointer `path` in each element of a list.
#[track_caller]
pub(crate) fn numbers(list: &[Value], path: &str) -> Vec<f64> {
    list.iter().map(|value| number(value, path)).collect()
}

/// Returns the sum of a metric over all levels of the tree.
#[track_caller]
pub(crate) fn sum_of_levels(cell: &Value, path: &str) -> f64 {
    numbers(list(cell, "/levels"), path).iter().sum()
}

#[track_caller]
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}"))
}

#[track_caller]
pub(crate) fn assert_contains(page: &str, parts: &[&str]) {
    for part in parts {
        assert!(page.contains(part), "{part:?} is not in {page}");
    }
}
