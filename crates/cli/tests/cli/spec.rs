//! Tests of `lsmx explore --spec`, which runs composed policies, and of `--explain`, which prints the reasons for each
//! job.

use crate::common::{CliOutput, TestDir, assert_contains, list, lsmx, number, read_json, text};

const TIERED_TOP: &str = "name = \"tiered-top\"\nlayout = \"leveling\"\ntiered = [2]\n\n\
    [[rule]]\ntrigger = \"run-count\"\nruns = 2\n\n\
    [[rule]]\ntrigger = \"level-full\"\nbase = 1\nsize-ratio = 3\n";

fn explore(dir: &TestDir, spec: &str, words: &str) -> CliOutput {
    let file = dir.write("mine.toml", spec);
    lsmx(&format!(
        "explore --spec {file} --dir {} {words} --entries 6000 --value-len 48 --memtable 32K \
         --lookups 100 --ranges 5 --selectivity 0.01 --deterministic",
        dir.root().display()
    ))
}

#[test]
fn composed_policies_run_after_named_ones_and_explain_each_job() {
    let dir = TestDir::new();
    let second = dir.write("second.toml", TIERED_TOP.replace("tiered-top", "second"));
    let json = dir.path("result.json");
    let words = format!("--policy tiering --spec {second} --explain --json {json}");
    let output = explore(&dir, TIERED_TOP, &words);
    assert_eq!(output.code, 0, "{}", output.stderr);
    let table = String::from_utf8(output.stdout).unwrap();
    let result = read_json(&json);
    let cells = list(&result, "/cells");
    let names: Vec<_> = cells.iter().map(|cell| text(cell, "policy")).collect();
    assert_eq!(names, ["tiering", "tiered-top", "second"]);
    // Parsing the policy text of a result and formatting the parsed policy gives the same text.
    let spec = text(&cells[1], "spec");
    assert_eq!(spec.parse::<lsmx::PolicySpec>().unwrap().to_string(), spec);
    // The explanation lists one decision for each compaction job and each trivial move.
    for (name, cell) in names.iter().zip(cells) {
        assert!(table.contains(name) && !table.contains("{name"), "{table}");
        let head = format!("{name} in default:");
        let decisions = output.stderr.lines().filter(|line| line.starts_with(&head)).count();
        let jobs = number(cell, "/compaction/jobs");
        assert!(jobs >= 3.0, "{name}: {jobs} jobs");
        assert_eq!(decisions as f64, jobs + number(cell, "/compaction/trivial_moves"), "{name}");
    }
    let parts = ["scores L0 run-count", "candidate file", "overlaps", "picked merge", "why: "];
    assert_contains(&output.stderr, &parts);
    explore(&dir, TIERED_TOP, &format!("--spec {}", dir.path("mine.toml")))
        .fails(2, &["mine.toml", "another --spec has name \"tiered-top\""]);
}

#[test]
fn mistake_in_a_spec_file_is_named_with_file_line_and_column() {
    let dir = TestDir::new();
    let change = |old: &str, new: &str| TIERED_TOP.replace(old, new);
    for (text, parts) in [
        (change("runs = 2", "runs = two"), &["line 7, column 8: "][..]),
        (
            change("base = 1", "bass = 1"),
            &["line 11, column 1: ", "\"bass\"", "did you mean base? known: "],
        ),
        (
            change("base = 1", "movement = \"all\""),
            &["line 11, column 12: ", "granularity file needs a movement"],
        ),
        ("policy = \"tierring\"".to_owned(), &["line 1, column 10: ", "did you mean tiering?"]),
        (String::new(), &["line 1, column 1: ", "has no layout"]),
    ] {
        explore(&dir, &text, "").fails(2, &[&["mine.toml, "], parts].concat());
    }
}

#[test]
fn spec_file_with_a_preset_is_run_under_its_name() {
    let table = explore(&TestDir::new(), "policy = \"fifo(100K)\"", "").ok();
    assert!(table.lines().any(|line| line.trim_start().starts_with("fifo")), "{table}");
}
