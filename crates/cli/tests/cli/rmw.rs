//! Tests of `lsmx rmw`.

use std::collections::BTreeSet;

use crate::common::{
    TestDir, assert_contains, cells, experiment, lsmx, number, numbers, read_json, text,
};
use serde_json::{Value, json};

/// Arguments of a short run with several flushes.
const SMALL: &str = "rmw --entries 3000 --ops 6000 --value-len 500 --field-len 50";
/// Arguments of a run with more records, which is used for the mix UP2X because UP2X has small values.
const MANY: &str = "rmw --entries 10000 --ops 10000";

#[test]
fn cells_have_every_documented_field_for_each_mode_and_ratio() {
    let cells = cells(&format!("{SMALL} --read-ratio 0.1,0.5"));
    let modes: Vec<&str> = cells.iter().map(|cell| text(cell, "mode")).collect();
    assert_eq!(modes, ["get-put", "merge", "kd"].repeat(2));
    assert_eq!(numbers(&cells, "/read_ratio"), [0.1, 0.1, 0.1, 0.5, 0.5, 0.5]);
    for cell in &cells {
        assert_eq!((&cell["engine"], &cell["base"]), (&json!("lsmx"), &json!("tree")));
        for field in ["ops_per_s", "read_bytes", "written_bytes", "storage_bytes"] {
            assert!(number(cell, &format!("/{field}")) > 0.0, "{field}: {cell}");
        }
        for kind in ["read_latency_us", "rmw_latency_us"] {
            for percentile in ["mean", "p50", "p90", "p99", "p999", "max"] {
                assert!(number(cell, &format!("/{kind}/{percentile}")) > 0.0, "{kind}: {cell}");
            }
        }
        let [reads, rmws] = ["/reads", "/rmws"].map(|path| number(cell, path));
        assert!(number(cell, "/ios_per_read") < 10.0);
        assert_eq!((&cell["ops"], reads + rmws), (&json!(6000), 6000.0));
        assert!((reads / 6000.0 - number(cell, "/read_ratio")).abs() < 0.03, "{cell}");
        // The WAL contains at least the updated field of each read-modify-write.
        assert!(number(cell, "/written_bytes") > rmws * 50.0, "{cell}");
        assert!(number(cell, "/checked_records") > 500.0);
        if cfg!(target_os = "linux") {
            assert!(number(cell, "/memory_bytes") > 1e6);
            let [threads, process] = ["cpu", "process_cpu"].map(|of| {
                number(cell, &format!("/{of}/user_s")) + number(cell, &format!("/{of}/system_s"))
            });
            assert!(threads <= process + 0.05, "CPU times have a resolution of 10 ms: {cell}");
        }
    }
    // All modes run the same operations, but only get-put writes complete values.
    let written = numbers(&cells, "/written_bytes");
    assert!(written[0] > 2.0 * written[1], "{written:?}");
}

#[test]
fn every_mix_runs_in_every_mode_over_both_bases() {
    for mix in [
        "changing", "up2x", "ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-e", "ycsb-f", "am", "bm",
        "fm",
    ] {
        let words = if mix == "up2x" { MANY } else { SMALL };
        let cells = cells(&format!("{words} --mix {mix} --base tree,value-log"));
        assert_eq!(cells.len(), 6);
        let [reads, rmws, scans] = match mix {
            "changing" | "up2x" | "ycsb-f" | "am" | "bm" | "fm" => [true, true, false],
            "ycsb-e" => [false, false, true],
            _ => [true, false, false],
        };
        let puts = ["ycsb-a", "ycsb-b", "ycsb-d", "ycsb-e"].contains(&mix);
        for cell in &cells {
            assert_eq!(cell["workload"]["mix"], mix);
            let has_blobs =
                number(cell, "/blob_bytes") > 0.5 * number(cell, "/workload/loaded_bytes");
            assert_eq!(has_blobs, cell["base"] == "value-log", "{mix}: {cell}");
            let measured = |kind: &str| number(cell, &format!("/{kind}_latency_us/max")) > 0.0;
            let seen = ["read", "rmw", "scan"].map(measured);
            assert_eq!(seen, [reads, rmws, scans], "{mix}: {cell}");
            assert!(measured("put") == puts || mix == "up2x", "{mix}: {cell}");
            assert_eq!(cell["ios_per_read"].is_null(), !reads);
            let [count, entries] = ["/scans", "/scanned_entries"].map(|path| number(cell, path));
            assert_eq!((count > 0.0, entries > 10.0 * count), (scans, scans), "{cell}");
        }
        if mix == "up2x" {
            let bytes = number(&cells[0], "/workload/loaded_bytes") / 10_000.0;
            assert!((bytes - 57.25).abs() < 0.5, "a record has 57.25 bytes on average: {bytes}");
        }
    }
}

/// The experiment compares the final values with a model that does not depend on the number of threads.
#[test]
fn threads_share_one_stream_of_operations() {
    for threads in [1, 3] {
        for cell in cells(&format!("{SMALL} --mix fm --threads {threads}")) {
            assert_eq!(cell["ops"], 6000);
            assert_eq!(cell["workload"]["threads"], threads);
        }
    }
}

#[test]
fn each_experiment_has_a_cell_for_each_value() {
    for (experiment, key, values) in [
        ("read-ratio", "read_ratio", 5),
        ("zipf", "zipf", 5),
        ("value-size", "value_len", 6),
        ("delta-size", "delta_len", 6),
        ("recovery", "ops", 3),
        ("operands", "operands", 11),
        ("scans", "scan_entries", 4),
    ] {
        let words = format!("rmw --entries 1100 --ops 600 --mode merge --experiment {experiment}");
        let run = crate::common::experiment(&words);
        assert_eq!(run.result["experiment"], experiment);
        let cells = run.cells();
        let swept: BTreeSet<String> =
            cells.iter().map(|cell| cell["sweep"][key].to_string()).collect();
        assert_eq!((cells.len(), swept.len()), (values, values), "{experiment}: {swept:?}");
        for cell in cells {
            assert_eq!(cell["recovery"].is_object(), experiment == "recovery");
            let share = number(cell, "/workload/loaded_bytes") / (1100.0 * 1024.0);
            assert!((share - 1.0).abs() < 0.02, "the number of loaded bytes varies: {cell}");
        }
        if experiment == "operands" {
            let last = cells.last().unwrap();
            assert_eq!(number(last, "/rmws"), 1000.0 * number(last, "/reads"), "{last}");
            assert_eq!(number(&cells[0], "/rmws"), 0.0);
            for cell in cells {
                // Regression test: the rate and the time were 0, and `ops` counted the updates.
                let [ops, reads, rate, elapsed_s] =
                    ["/ops", "/reads", "/ops_per_s", "/elapsed_s"].map(|path| number(cell, path));
                assert_eq!(ops, reads, "{cell}");
                assert!((rate * elapsed_s / ops - 1.0).abs() < 1e-6, "{cell}");
            }
        }
        if experiment == "scans" {
            for (cell, entries) in cells.iter().zip([10.0, 100.0, 1000.0]) {
                let [scans, seen] = ["/scans", "/scanned_entries"].map(|path| number(cell, path));
                let expected = entries * scans;
                assert!(scans >= 20.0 && seen > 0.3 * expected && seen <= expected, "{cell}");
                assert!(number(cell, "/scan_latency_us/mean") > 0.0, "{cell}");
            }
        }
    }
}

#[test]
fn resume_does_not_repeat_finished_runs() {
    let dir = TestDir::new();
    let file = dir.path("result.json");
    let words = format!("{SMALL} --mode merge --repeat 3 --resume {}", dir.path("kept"));
    let run = || {
        lsmx(&format!("{words} --json {file}")).ok();
        read_json(&file)["cells"].clone()
    };
    let first = run();
    let repeats = &first[0]["repeats"];
    assert_eq!(repeats["seeds"], json!([0, 1, 2]));
    let rate = &repeats["metrics"]["ops_per_s"];
    assert_eq!(rate["median"], first[0]["ops_per_s"]);
    assert!(number(rate, "/low") <= number(rate, "/median"));
    // Equal times show that the second run reuses the measurements of the first run.
    assert_eq!(run(), first);
    assert_contains(&lsmx(&format!("{words} --dry-run")).ok(), &["finished"]);
    lsmx(&words.replace("--repeat 3", "--repeat 2")).fails(2, &["--resume", "--repeat 3"]);
}

#[test]
fn table_csv_and_page_have_every_cell() {
    let run = experiment(&format!("{SMALL} --experiment read-ratio"));
    assert_contains(&run.table, &["read ratio", "blocks of any kind per plain read"]);
    assert_eq!(run.csv.len(), 16);
    assert_contains(
        &run.html,
        &[
            "<h3>Over read ratio</h3>",
            "Operations per second",
            "Storage at the end",
            "I/Os per read",
            "Bytes that the device read and wrote",
        ],
    );
}

#[test]
fn experiments_of_operand_stores_run_over_the_value_log() {
    for (experiment, mode) in [
        ("kd-cache", "kd"),
        ("bucket-size", "kd"),
        ("bucket-count", "kd"),
        ("split-threshold", "kd-adaptive"),
        ("memtable", "kd-adaptive"),
    ] {
        let words = format!("{SMALL} --mode {mode} --base value-log --experiment {experiment}");
        let cells = cells(&words);
        assert!(cells.len() > 3, "{experiment}");
        let fits = |cell: &Value| cell["mode"] == mode && cell["base"] == "value-log";
        assert!(cells.iter().all(fits), "{cells:?}");
    }
}

/// The experiment fails if RocksDB returns a wrong value, or if its final values differ from the model.
#[cfg(feature = "peer-rocksdb")]
#[test]
fn peer_runs_the_same_operations() {
    for words in ["--read-ratio 0.5", "--mix ycsb-d", "--mix ycsb-e", "--mix fm --threads 2"] {
        let cells = cells(&format!("{SMALL} {words} --peers rocksdb"));
        let engines: Vec<&str> = cells.iter().map(|cell| text(cell, "engine")).collect();
        assert_eq!(engines, ["lsmx", "rocksdb", "lsmx", "rocksdb"]);
        for pair in cells.chunks(2) {
            for field in ["reads", "rmws"] {
                assert_eq!(pair[0][field], pair[1][field], "{field}");
            }
        }
    }
    for experiment in ["recovery", "operands"] {
        let words = format!("rmw --entries 1100 --ops 600 --experiment {experiment}");
        assert!(cells(&format!("{words} --peers rocksdb")).len() > 10);
    }
}
