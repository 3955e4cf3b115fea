//! Tests of commands whose output ends early: a closed pipe, a full device, a pipe as a result file.

#![cfg(unix)]

use std::fs;
use std::process::Command;

use crate::common::{CliOutput, TestDir, assert_contains, command, lsmx, read_json};
use crate::db::TestDatabase;

/// Runs `lsmx` with arguments separated by spaces. The reader of its standard output has closed the pipe.
fn lsmx_closed(words: &str) -> CliOutput {
    run_closed(command(words))
}

fn run_closed(mut command: Command) -> CliOutput {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    CliOutput::new(command.stdout(writer).output().unwrap())
}

const SIMULATION: &str = "simulate --policy full --entries 100000";

#[test]
fn closed_output_ends_commands_without_an_error() {
    let data = TestDatabase::filled();
    let path = data.path.display();
    let verbs =
        ["scan", "export -", "dump", "stats", "verify", "explain key00001", "stats --watch 0"];
    for words in verbs.map(|verb| format!("db {path} {verb}")) {
        assert_eq!(lsmx_closed(&words).exits(0), "", "{words}");
    }
    for words in ["--help", "--version", SIMULATION] {
        assert_eq!(lsmx_closed(words).exits(0), "", "{words}");
    }
}

/// Regression test: if the output was closed, these commands exited with code 0.
#[test]
fn closed_output_does_not_change_a_failing_exit_code() {
    let dir = TestDir::new();
    let result =
        |number| format!(r#"{{"cells":[{{"policy":"full","write_amplification":{number}}}]}}"#);
    let (one, two) = (dir.write("1.json", result(1.5)), dir.write("2.json", result(3.0)));
    lsmx_closed(&format!("compare {one} {two} --fail-above 5")).fails(1, &["worse than allowed"]);
    lsmx_closed(&format!("compare {one} {one} --fail-above 5")).exits(0);

    let data = TestDatabase::filled();
    let path = data.path.display();
    lsmx_closed(&format!("db {path} verify --no-trace-of key00007")).exits(4);
    lsmx_closed(&format!("db {path} verify --no-trace-of key00007 --json")).exits(4);
    data.damage_table();
    lsmx_closed(&format!("db {path} repair")).exits(3);
}

/// Regression test: the JSON file was empty if the output was closed.
#[test]
fn closed_output_does_not_prevent_result_files() {
    let dir = TestDir::new();
    let [json, csv] = ["a.json", "a.csv"].map(|name| dir.path(name));
    lsmx_closed(&format!("{SIMULATION} --json {json} --csv {csv}")).exits(0);
    assert_eq!(read_json(&json)["cells"][0]["policy"], "full");
    assert_eq!(fs::read_to_string(csv).unwrap().lines().count(), 2);

    let (list, results) = (dir.path("list"), dir.path("results"));
    lsmx(&format!("{SIMULATION} --emit-cells {list}")).ok();
    fs::create_dir(&results).unwrap();
    lsmx(&format!("simulate --run-cell {list}:0 --json {results}")).ok();
    lsmx_closed(&format!("simulate --collect {results} --json {json}")).exits(0);
    assert_eq!(read_json(&json)["cells"][0]["policy"], "full");
}

/// Regression test: after a violated guarantee, a closed output or a full disk of the report caused the removal of the
/// database.
#[test]
fn failed_database_is_kept_if_an_output_fails() {
    let dir = TestDir::on_disk();
    // The file size limit of 0 bytes makes every write of a child process fail.
    let script = "ulimit -f 0; exec \"$0\" stress --seed 7 --runs 3 --dir \"$1\" \"$2\" \"$3\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_lsmx")]).arg(dir.root());
    let mut parts = vec!["seed 7: ", "; files: "];
    if cfg!(target_os = "linux") {
        shell.args(["--json", "/dev/full"]);
        parts.push("; cannot write /dev/full: ");
    } else {
        shell.args(["--runs", "3"]);
    }
    let stderr = run_closed(shell).fails(1, &parts);
    let kept = stderr.split("; files: ").nth(1).unwrap().split("; replay").next().unwrap();
    assert!(fs::exists(kept).unwrap(), "{kept}");
}

/// Regression test: after an error of one result file, the others and the table were lost.
#[cfg(target_os = "linux")]
#[test]
fn failing_output_does_not_prevent_the_others() {
    let dir = TestDir::new();
    let csv = dir.path("a.csv");
    let output = lsmx(&format!("{SIMULATION} --json /dev/full --csv {csv}"));
    assert_contains(&String::from_utf8_lossy(&output.stdout), &["full", "write amp"]);
    output.fails(1, &["cannot write /dev/full: "]);
    assert_eq!(fs::read_to_string(&csv).unwrap().lines().count(), 2);

    let json = dir.path("a.json");
    let mut full = command(&format!("{SIMULATION} --json {json}"));
    full.stdout(fs::File::create("/dev/full").unwrap());
    CliOutput::new(full.output().unwrap()).fails(1, &["cannot write to standard output"]);
    assert_eq!(read_json(&json)["cells"][0]["policy"], "full");
}

/// Regression test: the check before the run closed the pipe, so its reader ended and the run waited for ever.
#[cfg(target_os = "linux")]
#[test]
fn result_file_can_be_a_pipe() {
    let dir = TestDir::new();
    let script = "mkfifo pipe; cat pipe > a.json & timeout 300 \"$0\" \"$@\" --json pipe && wait";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_lsmx")]).current_dir(dir.root());
    shell.args(SIMULATION.split(' '));
    CliOutput::new(shell.output().unwrap()).ok();
    assert_eq!(read_json(dir.path("a.json"))["cells"][0]["policy"], "full");
}
