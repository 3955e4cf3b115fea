//! `lsmx explore --spec` and `--explain`: policies put together by the user, and what leads to a job.

use std::fs;
use std::path::Path;

use crate::common::{Said, assert_contains, number, read_json, run, text};

const TINY: &str = "--entries 6000 --value-len 48 --memtable 32K --lookups 100 --ranges 5 \
                    --selectivity 0.01 --deterministic";

const TIERED_TOP: &str = "name = \"tiered-top\"\nlayout = \"leveling\"\ntiered = [2]\n\n\
    [[rule]]\ntrigger = \"run-count\"\nruns = 2\n\n\
    [[rule]]\ntrigger = \"level-full\"\nbase = 1\nsize-ratio = 3\n";

fn explore(directory: &Path, spec: &str, words: &str) -> Said {
    let file = directory.join("mine.toml");
    fs::write(&file, spec).unwrap();
    let (file, dir) = (file.display(), directory.display());
    run("explore", &format!("--spec {file} --dir {dir} {words} {TINY}"))
}

#[test]
fn composed_policies_run_after_named_ones_and_explain_each_job() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let json = path("result.json");
    fs::write(path("second.toml"), TIERED_TOP.replace("tiered-top", "second")).unwrap();
    let (second, file) = (path("second.toml").display().to_string(), json.display());
    let words = format!("--policy tiering --spec {second} --explain --json {file}");
    let said = explore(directory.path(), TIERED_TOP, &words);
    assert_eq!(said.code, 0, "{}", said.stderr);
    let table = String::from_utf8(said.stdout).unwrap();
    let result = read_json(&json);
    let cells = result["cells"].as_array().unwrap();
    let names: Vec<_> = cells.iter().map(|cell| text(cell, "policy")).collect();
    assert_eq!(names, ["tiering", "tiered-top", "second"]);
    // The spec in the result is valid.
    let spec = text(&cells[1], "spec");
    assert_eq!(spec.parse::<lsmx::PolicySpec>().unwrap().to_string(), spec);
    // One decision for each job and each move, with its alternatives.
    for (name, cell) in names.iter().zip(cells) {
        assert!(table.contains(name) && !table.contains("{name"), "{table}");
        let head = format!("{name} in default:");
        let decisions = said.stderr.lines().filter(|line| line.starts_with(&head)).count();
        let jobs = number(cell, "/compaction/jobs");
        assert!(jobs >= 3.0, "{name}: {jobs} jobs");
        assert_eq!(decisions as f64, jobs + number(cell, "/compaction/trivial_moves"), "{name}");
    }
    assert_contains(
        &said.stderr,
        &["scores L0 run-count", "candidate file", "overlaps", "picked merge", "why: "],
    );
    explore(directory.path(), TIERED_TOP, &format!("--spec {}", path("mine.toml").display()))
        .fails(2, &["mine.toml", "another --spec has name \"tiered-top\""]);
}

#[test]
fn mistake_in_a_spec_file_is_named_with_file_line_and_column() {
    let directory = tempfile::tempdir().unwrap();
    for (text, parts) in [
        (TIERED_TOP.replace("runs = 2", "runs = two"), &["mine.toml, line 7, column 8: "][..]),
        (
            TIERED_TOP.replace("base = 1", "bass = 1"),
            &["mine.toml, line 11, column 1: ", "\"bass\"", "did you mean base? known: "],
        ),
        (
            TIERED_TOP.replace("base = 1", "movement = \"all\""),
            &["mine.toml, line 11, column 12: ", "granularity file needs a movement"],
        ),
        (
            "policy = \"tierring\"".to_owned(),
            &["mine.toml, line 1, column 10: ", "did you mean tiering?"],
        ),
        (String::new(), &["mine.toml, line 1, column 1: ", "has no layout"]),
    ] {
        explore(directory.path(), &text, "").fails(2, parts);
    }
}

#[test]
fn a_queue_is_explored_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let table = explore(directory.path(), "policy = \"fifo(100K)\"", "").ok();
    assert!(table.lines().any(|line| line.trim_start().starts_with("fifo")), "{table}");
}
