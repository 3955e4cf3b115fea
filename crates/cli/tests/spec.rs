//! `lsmx explore --spec` and `--explain`: policies put together by the user, and what leads to a job.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and works on files of its own"
)]

mod common;

use std::fs;
use std::path::Path;

use common::{Said, lsmx};
use serde_json::Value;

const TINY: &str = "--entries 6000 --value-len 48 --memtable 32K --lookups 100 --ranges 5 \
                    --selectivity 0.01 --deterministic";

const TIERED_TOP: &str = "name = \"tiered-top\"\nlayout = \"leveling\"\ntiered = [2]\n\n\
    [[rule]]\ntrigger = \"run-count\"\nruns = 2\n\n\
    [[rule]]\ntrigger = \"level-full\"\nbase = 1\nsize-ratio = 3\n";

fn explore(directory: &Path, spec: &str, words: &str) -> Said {
    let file = directory.join("mine.toml");
    fs::write(&file, spec).unwrap();
    let (file, dir) = (file.display().to_string(), directory.display().to_string());
    let mut arguments = vec!["explore", "--spec", &file, "--dir", &dir];
    arguments.extend(words.split_whitespace());
    arguments.extend(TINY.split_whitespace());
    lsmx(&arguments)
}

#[test]
fn a_composed_policy_runs_beside_named_ones_and_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("result.json");
    let words = format!("--policy tiering --explain --json {}", json.display());
    let said = explore(directory.path(), TIERED_TOP, &words);
    assert_eq!(said.code, 0, "{}", said.stderr);
    let decisions = said.stderr;
    let result: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let cells = result["cells"].as_array().unwrap();
    let names: Vec<_> = cells.iter().map(|cell| cell["policy"].as_str().unwrap()).collect();
    assert_eq!(names, ["tiering", "tiered-top"]);
    // What the result says can be typed again.
    let spec = cells[1]["spec"].as_str().unwrap();
    assert_eq!(spec.parse::<lsmx::PolicySpec>().unwrap().to_string(), spec);
    // One decision for each job, moves included, with what it was weighed against.
    for (name, cell) in names.iter().zip(cells) {
        let told =
            decisions.lines().filter(|line| line.starts_with(&format!("{name} in default:")));
        let jobs = cell.pointer("/compaction/jobs").unwrap().as_u64().unwrap();
        let moves = cell.pointer("/compaction/trivial_moves").unwrap().as_u64().unwrap();
        assert!(jobs > 3, "{name}: {jobs} jobs");
        assert_eq!(told.count() as u64, jobs + moves, "{name}");
    }
    for part in ["scores L0 run-count", "candidate file", "overlaps", "picked merge", "why: "] {
        assert!(decisions.contains(part), "no {part:?} in {decisions}");
    }
}

#[test]
fn what_is_wrong_with_a_spec_is_told_on_one_line() {
    let directory = tempfile::tempdir().unwrap();
    for (text, parts) in [
        (TIERED_TOP.replace("runs = 2", "runs = two"), &["mine.toml", "line 7"][..]),
        (TIERED_TOP.replace("base = 1", "bass = 1"), &["mine.toml", "line 11", "bass", "base"]),
        (
            TIERED_TOP.replace("base = 1", "movement = \"all\""),
            &["mine.toml", "line 1", "granularity file needs a movement"],
        ),
        (String::new(), &["mine.toml", "has no layout"]),
    ] {
        let said = explore(directory.path(), &text, "");
        assert_eq!(said.code, 2, "{}", said.stderr);
        assert_eq!(said.stderr.trim_end().lines().count(), 1, "{}", said.stderr);
        for part in parts {
            assert!(said.stderr.contains(part), "{} lacks {part}", said.stderr);
        }
    }
    let said = lsmx(&["explore", "--spec", "nowhere.toml"]);
    assert!(said.code != 0 && said.stderr.contains("nowhere.toml"), "{}", said.stderr);
    let said = lsmx(&["explore"]);
    assert!(said.code == 2 && said.stderr.contains("--policy"), "{}", said.stderr);
}

#[test]
fn a_queue_is_explored_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let said = explore(directory.path(), "policy = \"fifo(100K)\"", "");
    let table = said.ok();
    assert!(table.lines().any(|line| line.trim_start().starts_with("fifo")), "{table}");
}
