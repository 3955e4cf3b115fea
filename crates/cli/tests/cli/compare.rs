//! Tests of `lsmx compare`.

use crate::common::{TestDir, assert_contains, experiment, list, lsmx, number, read_json};
use serde_json::{Value, json};

const TINY: &str = "--entries 6000 --value-len 48 --memtable 64K --lookups 100 --ranges 5 \
                    --selectivity 0.01 --deterministic";

/// Runs an experiment and returns the path of its JSON result.
fn run(dir: &TestDir, name: &str, words: &str) -> String {
    dir.write(name, experiment(words).result.to_string())
}

/// Writes a copy of a JSON result in which `change` has modified each element of `cells`. Returns the path of the copy.
fn change(dir: &TestDir, from: &str, name: &str, change: impl Fn(&mut Value)) -> String {
    let mut result = read_json(from);
    result["cells"].as_array_mut().unwrap().iter_mut().for_each(change);
    dir.write(name, result.to_string())
}

#[test]
fn compare_worse_result_fails_above_the_limit() {
    let dir = TestDir::new();
    let words = format!("explore --policy full,tiering --sweep updates=0,0.5 {TINY}");
    let (one, other) = (run(&dir, "one.json", &words), run(&dir, "other.json", &words));
    let compare = |a: &str, b: &str, flags: &str| lsmx(&format!("compare {a} {b} {flags}"));
    let table = compare(&one, &other, "--fail-above 0").ok();
    assert_eq!(table.matches("the same digest").count(), 4, "{table}");
    assert_contains(&table, &["full updates=0.5"]);
    assert!(!table.contains("write_amplification"), "no count differs: {table}");

    let worse = change(&dir, &one, "worse.json", |cell| {
        if cell["policy"] == "full" && cell["sweep"]["updates"] == 0 {
            cell["write_amplification"] = (number(cell, "/write_amplification") * 1.125).into();
        }
    });
    let table = compare(&one, &worse, "--fail-above 12.6%").ok();
    let line = table.lines().find(|line| line.contains("write_amplification")).unwrap();
    assert!(line.contains("1.125") && line.trim_end().ends_with("worse"), "{table}");
    compare(&one, &worse, "--fail-above 10")
        .fails(1, &["worse than allowed", "write_amplification of full updates=0 by 12.5 %"]);
    compare(&worse, &one, "--fail-above 0").ok();

    let slow = change(&dir, &one, "slow.json", |cell| cell["put_latency_us"]["p99"] = 1e6.into());
    compare(&one, &slow, "--fail-above 0").ok();
    compare(&one, &slow, "--fail-latency-above 50").fails(1, &["put_latency_us.p99 of full"]);
}

#[test]
fn repetitions_have_intervals() {
    let dir = TestDir::new();
    let words = format!("explore --policy lo+1 --repeat 3 {TINY}");
    let [one, other] =
        [1, 50].map(|seed| run(&dir, &format!("{seed}.json"), &format!("{words} --seed {seed}")));
    let json = dir.path("difference.json");
    let table = lsmx(&format!("compare {one} {other} --all --json {json}")).ok();
    let line = table.lines().find(|line| line.starts_with("data_moved_ratio ")).unwrap();
    assert_eq!(line.matches('–').count(), 2, "both intervals are shown: {table}");
    let differences = read_json(json);
    let mut all = list(&differences, "/pairs/0/differences").iter();
    let moved = all.find(|at| at["metric"] == "data_moved_ratio").unwrap();
    assert!(moved["old_interval"].is_array() && moved["ratio"].is_number(), "{moved}");
}

#[test]
fn results_of_bench_and_rmw_are_compared() {
    let dir = TestDir::new();
    let file = run(&dir, "bench.json", "bench fillseq readrandom --entries 2000");
    let slow = change(&dir, &file, "slow.json", |cell| {
        cell["ops_per_s"] = (number(cell, "/ops_per_s") / 2.0).into();
    });
    let words = format!("compare {file} {slow}");
    assert_contains(&lsmx(&words).ok(), &["fillseq lsmx threads 1"]);
    lsmx(&format!("{words} --fail-above 40")).fails(1, &["ops_per_s of fillseq", "by 50.0 %"]);

    // Cells of `bench` do not contain the sizes of their workload.
    let other = run(&dir, "other.json", "bench fillseq readrandom --entries 3000");
    let output = lsmx(&format!("compare {file} {other}"));
    let note = "note: the results have different settings: entries 2000 and 3000\n";
    assert_eq!((output.code, output.stderr.as_str()), (0, note), "{output:?}");

    // Regression test: options and settings that one of the results lacks were not compared.
    let mut result = read_json(&file);
    result["settings"]["options"] = json!(["policy=tiering"]);
    result["settings"]["rate"] = json!(5.0);
    let other = dir.write("other.json", result.to_string());
    for (one, two, note) in [
        (&file, &other, "options [] and [\"policy=tiering\"], rate null and 5.0"),
        (&other, &file, "options [\"policy=tiering\"] and [], rate 5.0 and null"),
    ] {
        let note = format!("note: the results have different settings: {note}\n");
        assert_eq!(lsmx(&format!("compare {one} {two}")).stderr, note);
    }

    let small = "--records 2000 --ops 2000 --read-ratio 0.1,0.5 --mode merge,kd";
    let file = run(&dir, "rmw.json", &format!("rmw {small}"));
    let worse = change(&dir, &file, "worse.json", |cell| {
        cell["memory_bytes_before"] = 1e12.into();
        if cell["mode"] == "kd" && cell["read_ratio"] == 0.5 {
            cell["ios_per_read"] = 40.0.into();
        }
    });
    let words = format!("compare {file} {worse}");
    let table = lsmx(&words).ok();
    assert_eq!(table.lines().filter(|line| line.contains("numbers equal")).count(), 4, "{table}");
    assert_contains(&table, &["lsmx kd tree reads 0.5"]);
    assert!(!table.contains("memory_bytes_before"), "{table}");
    lsmx(&format!("{words} --fail-above 20")).fails(1, &["ios_per_read of lsmx kd tree reads 0.5"]);
}

#[test]
fn files_without_comparable_cells_are_rejected() {
    let dir = TestDir::new();
    let good = r#"{"cells":[{"policy":"full","write_amplification":1.5}]}"#;
    let good = dir.write("good.json", good);
    lsmx(&format!("compare {good} {good}")).ok();
    lsmx(&format!("compare {good} no/such.json")).fails(2, &["no/such.json"]);
    for (text, part) in [
        ("{", "not JSON"),
        ("[]", "not a result"),
        (r#"{"cells":[]}"#, "no cells"),
        (r#"{"cells":[{"policy":"tiering"}]}"#, "in common"),
    ] {
        let file = dir.write("other.json", text);
        lsmx(&format!("compare {good} {file}")).fails(2, &["other.json", part]);
    }
    let both = r#"{"cells":[{"policy":"full","write_amplification":1.5},{"policy":"tiering"}]}"#;
    let both = dir.write("both.json", both);
    lsmx(&format!("compare {both} {good} --fail-above 5"))
        .fails(1, &["not measured again", "tiering"]);
}
