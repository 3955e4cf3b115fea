//! `lsmx bench`, run as a user runs it.

use std::fs;
use std::path::Path;

use crate::common::{
    Said, assert_contains, cells as cells_of, db, interrupt, number, read_rows, result, run, spawn,
    text,
};
use serde_json::Value;

/// Small enough for a test, large enough for several flushes.
const SMALL: &str = "--entries 3000 --memtable 64K";

fn bench(words: &str) -> Said {
    run("bench", words)
}

fn cells(words: &str, directory: &Path) -> Vec<Value> {
    cells_of("bench", words, directory)
}

#[test]
fn every_workload_runs_in_one_command_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let words = "fillseq fillrandom overwrite readrandom readmissing seekrandom scan \
                 readwhilewriting fillsync ycsb-a ycsb-b ycsb-c ycsb-d ycsb-e ycsb-f deleterandom";
    let result = result("bench", &format!("{words} {SMALL} --ops 1000"), directory.path());
    let cells = result["cells"].as_array().unwrap();
    let ran: Vec<(&str, u64)> = cells
        .iter()
        .map(|cell| (text(cell, "workload"), cell["threads"].as_u64().unwrap()))
        .collect();
    let one = |name| (name, 1);
    let mut expected: Vec<(&str, u64)> = words.split_whitespace().map(one).collect();
    expected.insert(7, ("scan-backward", 1));
    expected.insert(10, ("fillsync", 8));
    assert_eq!(ran, expected);
    for cell in cells {
        assert_eq!(cell["engine"], "lsmx");
        assert_eq!(cell["loaded_first"], false);
        let ops = if cell["workload"] == "fillseq" || cell["workload"] == "fillrandom" {
            3000
        } else {
            1000
        };
        assert_eq!(cell["ops"], ops, "{cell}");
        for percentile in ["mean", "p50", "p90", "p99", "p999", "max"] {
            assert!(number(cell, &format!("/latency_us/{percentile}")) > 0.0, "{cell}");
        }
        assert!(number(cell, "/ops_per_s") > 0.0);
        assert!(number(cell, "/ops_per_s_unsettled") >= number(cell, "/ops_per_s"));
        let writes = number(cell, "/put_bytes") > 0.0;
        assert_eq!(cell["device_write_amplification"].is_number(), writes, "{cell}");
        assert!(number(cell, "/space_amplification") > 1.0, "{cell}");
    }
    // 50 inserts each of ycsb-d and ycsb-e, 1000 deletes.
    assert_eq!(cells.last().unwrap()["logical_bytes"], (3000 + 100 - 1000) * 116);
    let load = &cells[1];
    assert_eq!(load["put_bytes"], 3000 * 116);
    let written: f64 = ["wal_bytes", "flushed_bytes", "compaction_bytes"]
        .iter()
        .map(|kind| number(load, &format!("/written/{kind}")))
        .sum();
    let amplification = written / (3000.0 * 116.0);
    assert!((number(load, "/device_write_amplification") - amplification).abs() < 1e-9);
    assert!(amplification > 2.0, "log and flush alone write everything twice");
    let writer = cells.iter().find(|cell| cell["workload"] == "readwhilewriting").unwrap();
    assert_eq!(number(writer, "/put_bytes"), number(writer, "/writer/ops") * 116.0);
    assert!(number(&result, "/settings/clock_ns") > 0.0);
}

#[test]
fn reads_of_an_empty_temporary_database_load_it_and_say_so() {
    let directory = tempfile::tempdir().unwrap();
    let words = format!("readrandom {SMALL} --ops 100");
    let cell = &cells(&words, directory.path())[0];
    assert_eq!((&cell["loaded_first"], &cell["ops"]), (&Value::from(true), &Value::from(100)));
    assert!(cell["device_write_amplification"].is_null(), "{cell}");
    let table = bench(&words).ok();
    assert!(table.contains("3000 records were put in random order first"), "{table}");
}

#[test]
fn a_database_that_stays_is_read_again_and_never_filled_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let at = format!("--db {} {SMALL}", path.display());
    let words = format!("fillrandom {at} --option policy=tiering");
    assert_eq!(cells(&words, directory.path()).len(), 1);
    let stats = db(&path, "stats").ok();
    assert!(stats.contains("keyspace default (tiering)"), "{stats}");
    let cell = &cells(&format!("readrandom {at}"), directory.path())[0];
    assert_eq!((&cell["loaded_first"], &cell["ops"]), (&Value::from(false), &Value::from(3000)));
    bench(&format!("fillrandom {at}")).fails(2, &["fillrandom", "--db", "one already"]);
    bench(&format!("readrandom {at} --seed 9")).fails(2, &["--db", "--seed"]);
    db(&path, "verify").ok();
    let names: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "the database, the report, an empty directory: {names:?}");
}

#[test]
fn threads_share_the_operations_and_every_key_is_put_once() {
    let directory = tempfile::tempdir().unwrap();
    let words = format!("fillrandom scan readrandom deleterandom scan ycsb-d {SMALL} --threads 3");
    let cells = cells(&words, directory.path());
    let ops: Vec<u64> = cells.iter().map(|cell| cell["ops"].as_u64().unwrap()).collect();
    // Each thread scans everything; half of it once half is deleted. A scan of fewer entries, or of
    // other bytes, fails.
    assert_eq!(ops, [3000, 9000, 9000, 3000, 1500, 4500, 4500, 3000]);
    assert!(cells.iter().all(|cell| cell["threads"] == 3));
}

#[test]
fn under_a_rate_latencies_count_from_the_due_moment() {
    let directory = tempfile::tempdir().unwrap();
    let words = format!("fillrandom overwrite {SMALL} --ops 300 --rate 2000");
    let cells = cells(&words, directory.path());
    // 3000 operations at 2000 a second, from the first to the last of them.
    assert!(number(&cells[0], "/elapsed_s") >= 2999.0 / 2000.0, "{}", cells[0]);
    assert!(number(&cells[1], "/elapsed_s") >= 299.0 / 2000.0, "{}", cells[1]);
    // More than any machine does: the queue grows, and so does what the last ones waited.
    let words = format!("fillrandom {SMALL} --rate 1e9");
    let cell = &self::cells(&words, directory.path())[0];
    let elapsed_us = number(cell, "/elapsed_s") * 1e6;
    assert!(number(cell, "/latency_us/max") > elapsed_us / 2.0, "{cell}");
}

#[test]
fn repetitions_report_the_median_and_the_interval() {
    let directory = tempfile::tempdir().unwrap();
    let cell = &cells(&format!("readrandom {SMALL} --repeat 3"), directory.path())[0];
    let mut runs: Vec<f64> =
        cell["ops_per_s_runs"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    assert_eq!(runs.len(), 3);
    runs.sort_by(f64::total_cmp);
    let interval = [number(cell, "/ops_per_s_interval/0"), number(cell, "/ops_per_s_interval/1")];
    assert_eq!((number(cell, "/ops_per_s"), interval), (runs[1], [runs[0], runs[2]]));
}

#[test]
fn flat_rows_have_a_line_per_cell() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("result.csv");
    bench(&format!("fillseq readmissing {SMALL} --csv {}", file.display())).ok();
    let rows = read_rows(&file);
    assert_eq!(rows.len(), 3);
    assert!(rows[0].starts_with("workload,engine,threads,ops,"), "{rows:?}");
    assert!(rows[2].starts_with("readmissing,lsmx,1,3000,"), "{rows:?}");
}

#[test]
fn options_reach_the_engine() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = |words: &str| {
        let words = format!("fillseq {SMALL} --value-len 400 {words}");
        number(&cells(&words, directory.path())[0], "/table_bytes")
    };
    // Block padding and the index make small blocks cost more.
    assert!(bytes("--option block_bytes=1K") > bytes("--option block_bytes=32K") * 1.02);
    bench(&format!("fillseq {SMALL} --option table_bytes=1K --option block_bytes=2K"))
        .fails(2, &["table_bytes", "block_bytes"]);
}

#[test]
fn caching_shows_what_index_and_filters_save() {
    let directory = tempfile::tempdir().unwrap();
    let cells =
        cells("--experiment caching --entries 20000 --memtable 64K --ops 2000", directory.path());
    assert_eq!(cells.len(), 16, "four caches, two ways to ask filters, present and absent keys");
    let ios = |workload: &str, index: bool, filters: bool, last_run: bool| {
        let fits = |cell: &&Value| {
            cell["workload"] == workload
                && cell["reads"]["index_cached"] == index
                && cell["reads"]["filters_cached"] == filters
                && cell["reads"]["filter_last_run"] == last_run
        };
        number(cells.iter().find(fits).unwrap(), "/reads/ios_per_get")
    };
    for last_run in [false, true] {
        let (nothing, filters, index) = (
            ios("readrandom", false, false, last_run),
            ios("readrandom", false, true, last_run),
            ios("readrandom", true, true, last_run),
        );
        assert!(nothing > filters && filters > index, "{nothing} {filters} {index}");
        // An index block and a data block, then the data block alone.
        assert!(
            (1.5..=2.2).contains(&filters) && (0.9..=1.2).contains(&index),
            "{filters} {index}"
        );
    }
    assert!(ios("readmissing", true, true, true) < 0.1, "filters rule absent keys out");
    assert!(
        ios("readmissing", true, true, false) > 0.9,
        "without the last one they are looked for"
    );
    let all = cells.iter().filter(|cell| text(cell, "setting").starts_with("all cached"));
    for cell in all {
        // What the warming up has not met is read once.
        assert!(number(cell, "/reads/ios_per_get") < 0.05, "{cell}");
    }
    for cell in &cells {
        assert_eq!(cell["ops"], 2000);
        assert!(number(cell, "/ops_per_s") > 0.0 && number(cell, "/latency_us/p99") > 0.0);
        let physical = number(cell, "/reads/physical_reads_per_get");
        assert!((number(cell, "/reads/ios_per_get") - physical).abs() < 0.05, "{cell}");
    }
}

#[test]
fn wider_filters_are_larger_and_wrong_less_often() {
    let directory = tempfile::tempdir().unwrap();
    let words = "--experiment filter-size --entries 30000 --memtable 64K --ops 30000";
    let cells = cells(words, directory.path());
    let missing: Vec<&Value> =
        cells.iter().filter(|cell| cell["workload"] == "readmissing").collect();
    let widths: Vec<&str> = missing.iter().map(|cell| text(cell, "setting")).collect();
    assert_eq!(widths, ["filters 8", "filters monkey(10)", "filters monkey(13)", "filters 16"]);
    let bytes = |cell: &Value| number(cell, "/reads/filter_bytes");
    let rate = |cell: &Value| number(cell, "/reads/filter_false_positive_rate");
    let (narrow, wide) = (missing[0], missing[3]);
    assert!(bytes(wide) > 1.7 * bytes(narrow), "{narrow} {wide}");
    // One in 256, and one in 65536.
    assert!((0.002..0.008).contains(&rate(narrow)) && rate(wide) < 0.001, "{narrow} {wide}");
    assert!(missing.iter().all(|cell| number(cell, "/reads/ios_per_get") < 0.1));
}

#[test]
fn puts_over_time_are_slices_of_all_puts() {
    let directory = tempfile::tempdir().unwrap();
    let (csv, html) = (directory.path().join("rows.csv"), directory.path().join("page.html"));
    let words = format!(
        "--experiment put-over-time --entries 60000 --memtable 64K --threads 2 --csv {} --html {}",
        csv.display(),
        html.display()
    );
    let cell = &cells(&words, directory.path())[0];
    let slices = cell["slices"].as_array().unwrap();
    let ops: f64 = slices.iter().map(|slice| number(slice, "/ops")).sum();
    assert_eq!((ops, &cell["ops"]), (60_000.0, &Value::from(60_000)));
    let ends: Vec<f64> = slices.iter().map(|slice| number(slice, "/end_s")).collect();
    assert!(ends.is_sorted() && slices.len() <= 400);
    let longest = slices.iter().map(|slice| number(slice, "/max_us")).fold(0.0, f64::max);
    // Percentiles are right to a thousandth.
    assert!((longest / number(cell, "/latency_us/max") - 1.0).abs() < 0.002);
    let compacted: f64 = slices.iter().map(|slice| number(slice, "/compaction_bytes")).sum();
    assert!(compacted > 0.0, "compactions ran meanwhile");
    assert_eq!(fs::read_to_string(csv).unwrap().lines().count(), slices.len() + 1);
    assert_contains(
        &fs::read_to_string(html).unwrap(),
        &["Puts per second", "The longest put of each slice", "Bytes that compaction wrote"],
    );
}

#[test]
fn experiments_run_on_a_database_that_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let at = format!("--db {} {SMALL} --ops 500", path.display());
    bench(&format!("fillrandom {at}")).ok();
    let caching = cells(&format!("--experiment caching {at}"), directory.path());
    assert_eq!(caching.len(), 16);
    let cell = &cells(&format!("--experiment put-over-time {at}"), directory.path())[0];
    assert_eq!((&cell["workload"], &cell["ops"]), (&"overwrite".into(), &500.into()));
    // Every record is still there, with a value of its own.
    bench(&format!("readrandom scan {at}")).ok();
    bench(&format!("--experiment caching {at} --seed 9")).fails(1, &["wrong answer"]);
}

#[cfg(not(feature = "peers"))]
#[test]
fn without_the_feature_peers_say_how_to_build_with_it() {
    if cfg!(feature = "peer-rocksdb") {
        return;
    }
    bench("fillseq --entries 10 --peers rocksdb").fails(2, &["rocksdb", "--features peers"]);
}

/// A peer answers every read with what was put, or the run fails.
#[cfg(feature = "peer-fjall")]
#[test]
fn a_peer_plays_the_same_workloads() {
    let directory = tempfile::tempdir().unwrap();
    let peers = if cfg!(feature = "peer-rocksdb") { "rocksdb,fjall" } else { "fjall" };
    let words = format!(
        "fillrandom overwrite readrandom readmissing seekrandom scan deleterandom scan ycsb-d \
         {SMALL} --peers {peers}"
    );
    let cells = cells(&words, directory.path());
    let engines = 1 + peers.split(',').count();
    assert_eq!(cells.len(), 11 * engines);
    for of_workload in cells.chunk_by(|a, b| a["workload"] == b["workload"]) {
        assert_eq!(of_workload.len() % engines, 0);
        assert!(of_workload.iter().all(|cell| cell["ops"] == of_workload[0]["ops"]));
    }
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_removes_its_databases() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().display();
    let mut child = spawn(&format!("bench fillrandom --entries 1G --memtable 1M --dir {dir}"));
    // The signal handler is set before the database is created.
    let database = || {
        let mut made = fs::read_dir(directory.path()).unwrap().flatten();
        made.any(|made| fs::read_dir(made.path()).is_ok_and(|mut inside| inside.next().is_some()))
    };
    while !database() {
        assert!(child.try_wait().unwrap().is_none(), "the run ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(interrupt(child).code, 130);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}
