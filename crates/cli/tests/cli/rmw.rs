//! `lsmx rmw`, run as a user runs it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::common::{
    Said, assert_contains, cells as cells_of, number, read_json, read_rows, result, run, text,
};
use serde_json::Value;

/// Small enough for a test, large enough for several flushes.
const SMALL: &str = "--entries 3000 --ops 6000 --value-len 500 --field-len 50";
/// Values of UP2X are small.
const MANY: &str = "--entries 10000 --ops 10000";

fn rmw(words: &str) -> Said {
    run("rmw", words)
}

fn cells(words: &str, directory: &Path) -> Vec<Value> {
    cells_of("rmw", words, directory)
}

#[test]
fn a_run_has_every_field_of_the_contract_for_each_mode_and_ratio() {
    let directory = tempfile::tempdir().unwrap();
    let result = result("rmw", &format!("{SMALL} --read-ratio 0.1,0.5"), directory.path());
    let cells = result["cells"].as_array().unwrap();
    let named: Vec<(&str, &str, f64)> = cells
        .iter()
        .map(|cell| {
            assert_eq!(cell["engine"], "lsmx");
            (text(cell, "mode"), text(cell, "base"), number(cell, "/read_ratio"))
        })
        .collect();
    let modes = |ratio| ["get-put", "merge", "kd"].map(|mode| (mode, "tree", ratio));
    assert_eq!(named, [modes(0.1), modes(0.5)].concat());
    for cell in cells {
        for field in ["ops_per_s", "read_bytes", "written_bytes", "storage_bytes"] {
            assert!(number(cell, &format!("/{field}")) > 0.0, "{field}: {cell}");
        }
        for kind in ["read_latency_us", "rmw_latency_us"] {
            for percentile in ["mean", "p50", "p90", "p99", "p999", "max"] {
                assert!(number(cell, &format!("/{kind}/{percentile}")) > 0.0, "{kind}: {cell}");
            }
        }
        assert!(number(cell, "/ios_per_read") < 10.0);
        assert_eq!(cell["ops"], 6000);
        assert_eq!(number(cell, "/reads") + number(cell, "/rmws"), 6000.0);
        let share = number(cell, "/reads") / 6000.0;
        assert!((share - number(cell, "/read_ratio")).abs() < 0.03, "{cell}");
        // At least what the operations write, once to the log.
        let least = number(cell, "/rmws") * 50.0;
        assert!(number(cell, "/written_bytes") > least, "{cell}");
        assert!(number(cell, "/checked_records") > 500.0);
        if cfg!(target_os = "linux") {
            assert!(number(cell, "/memory_bytes") > 1e6);
            let times = ["/cpu/user_s", "/cpu/system_s"].map(|path| number(cell, path));
            let all =
                ["/process_cpu/user_s", "/process_cpu/system_s"].map(|path| number(cell, path));
            let (threads, process) = (times[0] + times[1], all[0] + all[1]);
            assert!(threads <= process + 0.05, "in steps of 10 ms: {cell}");
        }
    }
    // Equal operations, of which only the first mode writes whole values.
    let written = |cell: &Value| number(cell, "/written_bytes");
    assert!(written(&cells[0]) > 2.0 * written(&cells[1]), "{cells:?}");
}

#[test]
fn every_mix_runs_in_every_mode_over_both_bases() {
    let directory = tempfile::tempdir().unwrap();
    for mix in
        ["up2x", "ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-e", "ycsb-f", "am", "bm", "fm"]
    {
        let words = if mix == "up2x" { MANY } else { SMALL };
        let words = format!("{words} --mix {mix} --base tree,value-log");
        let cells = cells(&words, directory.path());
        assert_eq!(cells.len(), 6);
        for cell in &cells {
            assert_eq!(cell["workload"]["mix"], mix);
            let apart = number(cell, "/blob_bytes") > 0.5 * number(cell, "/workload/loaded_bytes");
            assert_eq!(apart, cell["base"] == "value-log", "{mix}: {cell}");
            let measured = |kind: &str| number(cell, &format!("/{kind}_latency_us/max")) > 0.0;
            let expected = match mix {
                "up2x" | "ycsb-f" | "am" | "bm" | "fm" => [true, true, false],
                "ycsb-a" | "ycsb-b" | "ycsb-d" => [true, false, false],
                "ycsb-c" => [true, false, false],
                _ => [false, false, true],
            };
            let seen = [measured("read"), measured("rmw"), measured("scan")];
            assert_eq!(seen, expected, "{mix}: {cell}");
            let puts = ["ycsb-a", "ycsb-b", "ycsb-d", "ycsb-e"].contains(&mix);
            assert!(measured("put") == puts || mix == "up2x", "{mix}: {cell}");
            assert_eq!(cell["ios_per_read"].is_null(), mix == "ycsb-e");
            let (scans, entries) = (number(cell, "/scans"), number(cell, "/scanned_entries"));
            assert_eq!((scans > 0.0, entries > 10.0 * scans), (expected[2], expected[2]), "{cell}");
        }
    }
    let up2x = &cells(&format!("{MANY} --mix up2x"), directory.path())[0];
    let bytes = number(up2x, "/workload/loaded_bytes") / 10_000.0;
    assert!((bytes - 57.25).abs() < 0.5, "keys of 10.45 B and values of 46.8 B: {bytes}");
}

/// The last values of both runs are compared with the same model, which knows nothing of threads.
#[test]
fn threads_share_one_stream() {
    let directory = tempfile::tempdir().unwrap();
    for threads in [1, 3] {
        let words = format!("{SMALL} --mix fm --threads {threads}");
        for cell in cells(&words, directory.path()) {
            assert_eq!(
                (&cell["ops"], &cell["workload"]["threads"]),
                (&6000.into(), &threads.into())
            );
        }
    }
}

#[test]
fn each_experiment_has_a_cell_for_each_value() {
    let directory = tempfile::tempdir().unwrap();
    for (experiment, key, values) in [
        ("read-ratio", "read_ratio", 5),
        ("zipf", "zipf", 5),
        ("value-size", "value_len", 6),
        ("delta-size", "delta_len", 6),
        ("recovery", "ops", 3),
        ("operands", "operands", 11),
        ("scans", "scan_entries", 4),
    ] {
        let words = format!("--entries 1100 --ops 600 --mode merge --experiment {experiment}");
        let result = result("rmw", &words, directory.path());
        assert_eq!(result["experiment"], experiment);
        let cells = result["cells"].as_array().unwrap();
        let swept: BTreeSet<String> =
            cells.iter().map(|cell| cell["sweep"][key].to_string()).collect();
        assert_eq!((cells.len(), swept.len()), (values, values), "{experiment}: {swept:?}");
        for cell in cells {
            assert_eq!(cell["recovery"].is_object(), experiment == "recovery");
            let loaded = number(cell, "/workload/loaded_bytes");
            let asked = 1100.0 * 1024.0;
            assert!((loaded / asked - 1.0).abs() < 0.02, "the bytes stay: {cell}");
        }
        if experiment == "operands" {
            let last = cells.last().unwrap();
            assert_eq!(number(last, "/rmws"), 1000.0 * number(last, "/reads"), "{last}");
            assert_eq!(number(&cells[0], "/rmws"), 0.0);
        }
        if experiment == "scans" {
            for (cell, entries) in cells.iter().zip([10.0, 100.0, 1000.0]) {
                let (scans, seen) = (number(cell, "/scans"), number(cell, "/scanned_entries"));
                assert!(scans >= 20.0 && seen > 0.3 * entries * scans, "{cell}");
                assert!(seen <= entries * scans, "{cell}");
                assert!(number(cell, "/scan_latency_us/mean") > 0.0, "{cell}");
            }
        }
    }
}

#[test]
fn repetitions_report_medians_and_finished_cells_are_not_run_again() {
    let directory = tempfile::tempdir().unwrap();
    let (kept, file) = (directory.path().join("kept"), directory.path().join("result.json"));
    let words = format!(
        "{SMALL} --mode merge --repeat 3 --resume {} --json {}",
        kept.display(),
        file.display()
    );
    rmw(&words).ok();
    let first = read_json(&file);
    let repeats = &first["cells"][0]["repeats"];
    assert_eq!(repeats["seeds"], serde_json::json!([0, 1, 2]));
    let rate = &repeats["metrics"]["ops_per_s"];
    assert_eq!(rate["median"], first["cells"][0]["ops_per_s"]);
    assert!(rate["low"].as_f64() <= rate["median"].as_f64());
    rmw(&words).ok();
    let again = read_json(&file);
    // Times would differ if anything had been run.
    assert_eq!(again["cells"], first["cells"]);
    let dry = words.replace(&format!("--json {}", file.display()), "--dry-run");
    assert!(rmw(&dry).ok().contains("finished"));
    rmw(&words.replace("--repeat 3", "--repeat 2")).fails(2, &["--resume", "--repeat 3"]);
}

#[test]
fn a_dry_run_lists_the_cells_and_runs_none() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().display();
    let text = rmw(&format!("--dry-run --read-ratio 0.1,0.9 --entries 1000000 --dir {dir}")).ok();
    let modes = ["lsmx get-put tree", "lsmx merge tree", "lsmx kd tree"];
    assert_contains(&text, &[&modes[..], &["10.0", "90.0", "976.6 MiB", "39.1 MiB"]].concat());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn flat_rows_and_the_page_have_every_cell() {
    let directory = tempfile::tempdir().unwrap();
    let (csv, html) = (directory.path().join("rows.csv"), directory.path().join("page.html"));
    let words = format!("{SMALL} --experiment read-ratio");
    let table = rmw(&format!("{words} --csv {} --html {}", csv.display(), html.display())).ok();
    assert!(
        table.contains("read ratio")
            && table.contains("blocks per plain read that came from files"),
        "{table}"
    );
    assert_eq!(read_rows(&csv).len(), 16);
    assert_contains(
        &fs::read_to_string(html).unwrap(),
        &[
            "<h3>Over read ratio</h3>",
            "Operations per second",
            "Storage at the end",
            "I/Os per read",
            "Bytes that the device read and wrote",
        ],
    );
}

/// What is about operands that are kept apart runs in that mode, over both bases.
#[test]
fn experiments_of_kept_apart_operands_vary_how_they_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    for experiment in ["kd-cache", "bucket-size", "split-threshold"] {
        let words = format!("{SMALL} --mode kd --base value-log --experiment {experiment}");
        let cells = cells(&words, directory.path());
        assert!(cells.len() > 3, "{experiment}");
        for cell in &cells {
            assert_eq!((&cell["mode"], &cell["base"]), (&"kd".into(), &"value-log".into()));
        }
    }
}

/// RocksDB answers every read, and ends with the values of the model, or the run fails.
#[cfg(feature = "peer-rocksdb")]
#[test]
fn a_peer_plays_the_same_operations() {
    let directory = tempfile::tempdir().unwrap();
    for words in ["--read-ratio 0.5", "--mix ycsb-d", "--mix ycsb-e", "--mix fm --threads 2"] {
        let words = format!("{SMALL} {words} --peers rocksdb");
        let cells = cells(&words, directory.path());
        let engines: Vec<&str> = cells.iter().map(|cell| text(cell, "engine")).collect();
        assert_eq!(engines, ["lsmx", "rocksdb", "lsmx", "rocksdb"]);
        for pair in cells.chunks(2) {
            assert_eq!(
                (&pair[0]["reads"], &pair[0]["rmws"]),
                (&pair[1]["reads"], &pair[1]["rmws"])
            );
        }
    }
    for experiment in ["recovery", "operands"] {
        let words = format!("--entries 1100 --ops 600 --experiment {experiment} --peers rocksdb");
        assert!(cells(&words, directory.path()).len() > 10);
    }
}
