//! `lsmx compare`, run as a user runs it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Said, lsmx};
use serde_json::Value;

const TINY: &str = "--entries 6000 --value-len 48 --memtable 64K --lookups 100 --ranges 5 \
                    --selectivity 0.01";

fn run(words: &str) -> Said {
    lsmx(&words.split_whitespace().collect::<Vec<_>>())
}

fn explored(directory: &Path, name: &str, words: &str) -> PathBuf {
    let file = directory.join(name);
    let dir = directory.display();
    run(&format!("explore {words} {TINY} --dir {dir} --json {}", file.display())).ok();
    file
}

fn changed(from: &Path, name: &str, change: impl Fn(&mut Value)) -> PathBuf {
    let mut result: Value = serde_json::from_str(&fs::read_to_string(from).unwrap()).unwrap();
    result["cells"].as_array_mut().unwrap().iter_mut().for_each(change);
    let file = from.with_file_name(name);
    fs::write(&file, result.to_string()).unwrap();
    file
}

#[test]
fn equal_runs_are_equal_and_a_worse_one_fails_where_that_is_asked() {
    let directory = tempfile::tempdir().unwrap();
    let words = "--policy full,tiering --deterministic --sweep updates=0,0.5";
    let one = explored(directory.path(), "one.json", words);
    let other = explored(directory.path(), "other.json", words);
    let compare = |a: &Path, b: &Path, more: &str| {
        run(&format!("compare {} {} {more}", a.display(), b.display()))
    };
    let text = compare(&one, &other, "--fail-above 0").ok();
    assert_eq!(text.matches("the same digest").count(), 4, "{text}");
    assert!(text.contains("full updates=0.5"), "{text}");
    assert!(!text.contains("write_amplification"), "nothing that counts differs: {text}");

    let worse = changed(&one, "worse.json", |cell| {
        if cell["policy"] == "full" && cell["sweep"]["updates"] == 0 {
            let old = cell["write_amplification"].as_f64().unwrap();
            cell["write_amplification"] = (old * 1.125).into();
        }
    });
    let text = compare(&one, &worse, "--fail-above 12.6%").ok();
    let line = text.lines().find(|line| line.contains("write_amplification")).unwrap();
    assert!(line.contains("1.125") && line.trim_end().ends_with("worse"), "{text}");
    let said = compare(&one, &worse, "--fail-above 10");
    assert_eq!(said.code, 1);
    let parts = ["worse than allowed", "write_amplification of full updates=0 by 12.5 %"];
    said.fails(1, &parts);
    compare(&worse, &one, "--fail-above 0").ok();

    let slow = changed(&one, "slow.json", |cell| {
        cell["put_latency_us"]["p99"] = 1e6.into();
    });
    compare(&one, &slow, "--fail-above 0").ok();
    compare(&one, &slow, "--fail-latency-above 50").fails(1, &["put_latency_us.p99 of full"]);
}

#[test]
fn repetitions_tell_noise_from_change() {
    let directory = tempfile::tempdir().unwrap();
    let words = "--policy lo+1 --deterministic --repeat 3";
    let one = explored(directory.path(), "one.json", &format!("{words} --seed 1"));
    let other = explored(directory.path(), "other.json", &format!("{words} --seed 50"));
    let compare = format!("compare {} {}", one.display(), other.display());
    let json = directory.path().join("difference.json");
    let text = run(&format!("{compare} --all --json {}", json.display())).ok();
    let line = text.lines().find(|line| line.starts_with("data_moved_ratio ")).unwrap();
    assert_eq!(line.matches('–').count(), 2, "both intervals are shown: {text}");
    let differences: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let all = differences["pairs"][0]["differences"].as_array().unwrap();
    let moved = all.iter().find(|at| at["metric"] == "data_moved_ratio").unwrap();
    assert!(moved["old_interval"].is_array() && moved["ratio"].is_number(), "{moved}");
}

#[test]
fn results_of_bench_are_compared() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bench.json");
    let dir = directory.path().display();
    run(&format!("bench fillseq readrandom --entries 2000 --dir {dir} --json {}", file.display()))
        .ok();
    let slow = changed(&file, "slow.json", |cell| {
        let rate = cell["ops_per_s"].as_f64().unwrap();
        cell["ops_per_s"] = (rate / 2.0).into();
    });
    let words = format!("compare {} {}", file.display(), slow.display());
    assert!(run(&words).ok().contains("fillseq lsmx threads 1"));
    run(&format!("{words} --fail-above 40")).fails(1, &["ops_per_s of fillseq", "by 50.0 %"]);
}

#[test]
fn results_of_rmw_are_compared_mode_by_mode() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rmw.json");
    let dir = directory.path().display();
    let small = "--records 2000 --ops 2000 --read-ratio 0.1,0.5 --mode merge,kd";
    run(&format!("rmw {small} --dir {dir} --json {}", file.display())).ok();
    let worse = changed(&file, "worse.json", |cell| {
        cell["memory_bytes_before"] = 1e12.into();
        if cell["mode"] == "kd" && cell["read_ratio"] == 0.5 {
            cell["ios_per_read"] = 40.0.into();
        }
    });
    let words = format!("compare {} {}", file.display(), worse.display());
    let text = run(&words).ok();
    assert_eq!(text.lines().filter(|line| line.contains("numbers equal")).count(), 4, "{text}");
    assert!(text.contains("lsmx kd tree reads 0.5"), "{text}");
    assert!(!text.contains("memory_bytes_before"), "{text}");
    run(&format!("{words} --fail-above 20")).fails(1, &["ios_per_read of lsmx kd tree reads 0.5"]);
}

#[test]
fn files_that_are_no_results_are_named_with_exit_code_2() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = directory.path().join(name);
        fs::write(&file, text).unwrap();
        file
    };
    let good = write("good.json", r#"{"cells":[{"policy":"full","write_amplification":1.5}]}"#);
    let compare = |file: &Path, more: &str| {
        run(&format!("compare {} {} {more}", good.display(), file.display()))
    };
    compare(&good, "").ok();
    compare(Path::new("no/such.json"), "").fails(2, &["no/such.json"]);
    compare(&write("a.json", "{"), "").fails(2, &["a.json", "not JSON"]);
    compare(&write("b.json", "[]"), "").fails(2, &["b.json", "not a result"]);
    compare(&write("c.json", r#"{"cells":[]}"#), "").fails(2, &["c.json", "no cells"]);
    let other = write("d.json", r#"{"cells":[{"policy":"tiering"}]}"#);
    compare(&other, "").fails(2, &["d.json", "in common"]);
    compare(&good, "--fail-above much").fails(2, &["--fail-above", "much"]);
    compare(&good, "--fail-above -1").fails(2, &["--fail-above", "-1"]);
    let both = r#"{"cells":[{"policy":"full","write_amplification":1.5},{"policy":"tiering"}]}"#;
    let both = write("both.json", both);
    let words = format!("compare {} {} --fail-above 5", both.display(), good.display());
    run(&words).fails(1, &["not measured again", "tiering"]);
}
