//! Tests of `lsmx rmw`.

use std::collections::BTreeSet;

use crate::common::{
    Experiment, TestDir, assert_contains, cells, experiment, lsmx, number, numbers, read_json, text,
};
use serde_json::{Value, json};

/// Arguments of a short run with several flushes.
const SMALL: &str = "rmw --entries 3000 --ops 6000 --value-len 500 --field-len 50";
/// Arguments of a run with more records, which is used for the mix UP2X because UP2X has small values.
const MANY: &str = "rmw --entries 10000 --ops 10000";

/// Returns the header and the rows of the CSV file of a run.
fn csv_rows(run: &Experiment) -> (Vec<&str>, Vec<Vec<&str>>) {
    let mut lines = run.csv.iter().map(|line| line.split(',').collect());
    (lines.next().unwrap(), lines.collect())
}

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
        let wal_bytes = number(cell, "/wal_bytes");
        assert!(wal_bytes > rmws * 50.0 && wal_bytes < number(cell, "/written_bytes"), "{cell}");
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
        "changing", "put-only", "up2x", "ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-e", "ycsb-f",
        "am", "bm", "fm",
    ] {
        let words = if mix == "up2x" { MANY } else { SMALL };
        let cells = cells(&format!("{words} --mix {mix} --base tree,value-log"));
        assert_eq!(cells.len(), 6);
        let [reads, rmws, scans] = match mix {
            "changing" | "up2x" | "ycsb-f" | "am" | "bm" | "fm" => [true, true, false],
            "put-only" => [false, false, false],
            "ycsb-e" => [false, false, true],
            _ => [true, false, false],
        };
        let puts = ["put-only", "ycsb-a", "ycsb-b", "ycsb-d", "ycsb-e"].contains(&mix);
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

#[test]
fn bucket_and_memtable_sizes_are_fixed_parameters() {
    let words = format!("{SMALL} --mode merge,kd --read-ratio 0 --zipf 0.01");
    let sized = cells(&format!("{words} --bucket-bytes 8K --memtable 64K"));
    assert_eq!(sized[0]["workload"]["bucket_bytes"], Value::Null, "merge has no buckets");
    assert_eq!(sized[1]["workload"]["bucket_bytes"], 8192);
    assert_eq!(sized[1]["workload"]["memtable_bytes"], 65_536);
    let defaults = cells(&words);
    assert_eq!(defaults[1]["workload"]["bucket_bytes"], Value::Null);
    let splits = |cells: &[Value]| number(&cells[1], "/operand_store/splits");
    assert!(splits(&sized) > 10.0 && splits(&defaults) == 0.0, "{sized:?} {defaults:?}");
}

/// The updates fill the buckets many times. A bucket whose remaining share is S is rewritten after 1 − S of its size
/// has been delivered, and S is at most the threshold.
#[test]
fn split_threshold_bounds_rewriting_by_collections() {
    let words = "rmw --entries 400 --ops 30000 --value-len 200 --field-len 20 --mode kd --read-ratio 0 --zipf 0.01 \
                 --bucket-bytes 8K --memtable 64K --experiment split-threshold";
    let run = experiment(words);
    let (header, rows) = csv_rows(&run);
    let column = |name: &str| -> Vec<f64> {
        let place = header.iter().position(|at| *at == name).unwrap();
        rows.iter().map(|row| row[place].parse().unwrap()).collect()
    };
    let [thresholds, reads, writes] =
        ["value", "collection_read_ratio", "collection_write_ratio"].map(column);
    for (place, threshold) in thresholds.iter().enumerate() {
        let (read, written) = (reads[place], writes[place]);
        assert!(read < 1.3 / (1.0 - threshold), "{threshold}: {read}");
        assert!(written < 1.3 * threshold / (1.0 - threshold) + 0.2, "{threshold}: {written}");
    }
    // How far collections keep up with the updates depends on the machine, so only the upper bounds are exact.
    assert!(reads.iter().chain(&writes).all(|ratio| *ratio > 0.0), "{reads:?} {writes:?}");
    let collections = column("collections");
    assert!(collections.iter().all(|count| *count > 0.0), "{collections:?}");
}

#[test]
fn read_sources_add_up_and_show_operands() {
    let mut missing =
        vec![("merge", "tree"), ("merge", "value-log"), ("kd", "tree"), ("kd", "value-log")];
    // The last compaction of a run may combine all operands with their values, so several runs are tried.
    for seed in 0..20 {
        let words = "--mode get-put,merge,kd --base tree,value-log --experiment read-sources";
        let all = cells(&format!("{SMALL} {words} --seed {seed}"));
        for mode in ["get-put", "merge", "kd"] {
            for base in ["tree", "value-log"] {
                if shows_operands(&all, mode, base) {
                    missing.retain(|found| *found != (mode, base));
                }
            }
        }
        if missing.is_empty() {
            return;
        }
    }
    panic!("no operands: {missing:?}");
}

/// Checks the sums over the sources of reads. Returns whether reads found operands where the mode stores them.
fn shows_operands(all: &[Value], mode: &str, base: &str) -> bool {
    let cells: Vec<&Value> =
        all.iter().filter(|cell| cell["mode"] == mode && cell["base"] == base).collect();
    let (total, sources) = cells.split_last().unwrap();
    assert_eq!((&total["sweep"]["source"], number(total, "/reads")), (&json!("all"), 600.0));
    let first = text(&sources[0]["sweep"], "source");
    assert!(first.starts_with('L') && number(sources[0], "/source/bytes") > 0.0, "{first}");
    let names: Vec<&Value> = sources.iter().map(|cell| &cell["sweep"]["source"]).collect();
    assert_eq!(names.contains(&&json!("operand store")), mode == "kd", "{names:?}");
    assert_eq!(names.contains(&&json!("value log")), base == "value-log", "{names:?}");
    for field in ["searches_per_read", "block_reads_per_read", "operands_per_read"] {
        let path = format!("/source/{field}");
        let sum: f64 = sources.iter().map(|cell| number(cell, &path)).sum();
        assert!((sum - number(total, &path)).abs() < 1e-9, "{mode} {base} {field}");
    }
    assert!(number(total, "/source/searches_per_read") >= 1.0, "{total}");
    let [operands, share, bytes] = ["operands_per_read", "operand_share", "bytes"]
        .map(|field| number(total, &format!("/source/{field}")));
    assert!(operands == 0.0 || mode != "get-put", "{base}: {operands}");
    assert!(share == 0.0 || mode == "merge", "{mode} {base}: {share}");
    assert!(share < 0.8 && bytes > 3000.0 * 24.0, "{mode} {base}: {share} of {bytes}");
    operands > 0.0 && (share > 0.0 || mode == "kd")
}

#[test]
fn repeated_runs_have_ranges_in_csv() {
    let modes = "get-put,merge,kd,merge-adaptive,kd-adaptive";
    let words = format!("rmw --entries 300 --ops 500 --mode {modes} --experiment read-ratio");
    let run = experiment(&format!("{words} --repeat 2"));
    let (header, rows) = csv_rows(&run);
    assert_eq!(rows.len(), 25);
    let place = header.iter().position(|name| *name == "ops_per_s").unwrap();
    assert_eq!(header[place + 1..place + 3], ["ops_per_s.low", "ops_per_s.high"]);
    for (row, cell) in rows.iter().zip(run.cells()) {
        let rates: Vec<f64> =
            row[place..place + 3].iter().map(|rate| rate.parse().unwrap()).collect();
        assert!(rates[1] <= rates[0] && rates[0] <= rates[2], "{rates:?}");
        assert_eq!(rates[2], number(cell, "/repeats/metrics/ops_per_s/high"));
    }
    let once = experiment(&words.replace("--experiment read-ratio", "--mix changing"));
    assert_eq!(once.csv.len(), 6);
    assert!(!once.csv[0].contains(".low"), "{:?}", once.csv[0]);
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
