//! Tests of `lsmx stress`. The command kills child processes that run the same binary.

use crate::common::{TestDir, assert_contains, lsmx, number, read_json};
use serde_json::Value;

#[test]
fn stress_run_without_failure_removes_databases() {
    let dir = TestDir::on_disk();
    let json = dir.path("stress.json");
    let root = dir.root().display();
    let text = lsmx(&format!("stress --seed 7 --runs 2 --dir {root} --json {json}")).ok();
    assert!(text.starts_with("seed 7: kills ") && text.contains("\nseed 8: kills "), "{text}");
    let report = read_json(&json);
    assert_eq!((&report["databases"], &report["failure"]), (&2.into(), &Value::Null));
    for (count, title) in [
        ("databases", "databases without a lost, torn or invented commit"),
        ("kills", "killed processes"),
        ("acknowledged", "acknowledged commits"),
        ("looks", "complete comparisons and verifications"),
    ] {
        let count = number(&report, &format!("/{count}"));
        assert!(count > 0.0, "{title}: {report}");
        assert_contains(&text, &[&format!(" {count} {title}\n")]);
    }
    assert_eq!(dir.names(), ["stress.json"]);
}

#[cfg(unix)]
#[test]
fn failed_database_is_kept_and_reported_with_its_seed() {
    let dir = TestDir::on_disk();
    // The file size limit of 0 bytes makes every write of a child process fail.
    let limited = "ulimit -f 0; exec \"$0\" stress --seed 7 --runs 3 --dir \"$1\"";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", limited, env!("CARGO_BIN_EXE_lsmx")]).arg(dir.root());
    let output = crate::common::CliOutput::new(shell.output().unwrap());
    let parts = ["seed 7: ", "; files: ", "; replay: lsmx stress --seed 7 --runs 1"];
    let stderr = output.fails(1, &parts);
    let kept = stderr.split("; files: ").nth(1).unwrap().split("; replay").next().unwrap();
    assert!(std::fs::exists(kept).unwrap(), "{kept}");
}

/// Regression test: a terminal also sends SIGINT to the child. Its end was reported as a violated guarantee.
#[cfg(unix)]
#[test]
fn interrupted_stress_run_reports_no_violated_guarantee() {
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use crate::common::{CliOutput, command};

    let dir = TestDir::on_disk();
    let json = dir.path("stress.json");
    for seed in 0..4 {
        let root = dir.root().display();
        let words = format!("stress --seed {seed} --seconds 1000 --dir {root} --json {json}");
        let mut child = command(&words).process_group(0).spawn().unwrap();
        let mut first = [0];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        let group = format!("-{}", child.id());
        assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
        let output = CliOutput::new(child.wait_with_output().unwrap());
        assert_eq!((output.code, output.stderr.as_str()), (130, ""), "{output:?}");
        assert!(!std::fs::exists(&json).unwrap(), "a report was written");
    }
}

#[test]
fn in_memory_histories_with_equal_seed_are_equal() {
    let dir = TestDir::new();
    let file = dir.path("stress.json");
    let run = || {
        let text = lsmx(&format!("stress --in-memory --seed 9 --runs 5 --json {file}")).ok();
        assert!(text.starts_with("histories from seed 9 on\n"), "{text}");
        assert_contains(&text, &[" 5 histories in which every answer equals that of the model\n"]);
        let report = read_json(&file);
        assert_eq!((&report["histories"], &report["failure"]), (&5.into(), &Value::Null));
        ["/operations", "/reopenings", "/flushes", "/operands"].map(|path| number(&report, path))
    };
    let counts = run();
    assert!(counts.iter().all(|count| *count > 0.0), "{counts:?}");
    assert_eq!(run(), counts);
}
