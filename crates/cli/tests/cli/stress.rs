//! `lsmx stress`, run as a user runs it: it starts itself as the children that it kills.

use std::fs;

use crate::common::{Said, assert_contains, read_json, run};
use serde_json::Value;

#[test]
fn databases_are_killed_compared_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("stress.json");
    let (dir, json) = (directory.path().display(), file.display());
    let text = run("stress", &format!("--seed 7 --runs 2 --dir {dir} --json {json}")).ok();
    assert!(text.starts_with("seed 7: kills ") && text.contains("\nseed 8: kills "), "{text}");
    assert!(text.contains(" 2 databases, in which nothing was lost"), "{text}");
    let report = read_json(&file);
    assert_eq!((&report["databases"], &report["failure"]), (&2.into(), &Value::Null));
    for count in ["kills", "acknowledged", "looks"] {
        assert!(report[count].as_u64().unwrap() > 0, "{count}: {report}");
    }
    let left: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|it| it.unwrap().path()).collect();
    assert_eq!(left, [file]);
}

#[cfg(unix)]
#[test]
fn a_database_that_fails_stays_and_is_told_with_its_seed() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    // No file may grow, so no child can write.
    let limited = "ulimit -f 0; exec \"$0\" stress --seed 7 --runs 3 --dir \"$1\"";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", limited, env!("CARGO_BIN_EXE_lsmx"), dir]);
    let said = Said::of(shell.output().unwrap());
    let stderr =
        said.fails(1, &["seed 7: ", "; files: ", "; replay: lsmx stress --seed 7 --runs 1"]);
    let kept = stderr.split("; files: ").nth(1).unwrap().split("; replay").next().unwrap();
    assert!(fs::exists(kept).unwrap(), "{kept}");
}

#[test]
fn histories_in_memory_follow_from_their_seed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("stress.json");
    let play = || {
        let words = format!("--in-memory --seed 9 --runs 5 --json {}", file.display());
        let text = run("stress", &words).ok();
        assert!(text.starts_with("histories from seed 9 on\n"), "{text}");
        assert_contains(&text, &[" 5 histories, in which every answer was that of"]);
        let report = read_json(&file);
        assert_eq!((&report["histories"], &report["failure"]), (&5.into(), &Value::Null));
        ["operations", "reopenings", "flushes", "operands"].map(|count| report[count].as_u64())
    };
    let counts = play();
    assert!(counts.iter().all(|count| count.is_some_and(|count| count > 0)), "{counts:?}");
    assert_eq!(play(), counts);
}
