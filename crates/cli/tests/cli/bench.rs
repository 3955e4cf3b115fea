//! Tests of `lsmx bench`.

use crate::common::{
    TestDir, assert_contains, cells, experiment, list, lsmx, number, numbers, text,
};
use serde_json::{Value, json};

/// Arguments of a short run with several flushes.
const SMALL: &str = "--entries 3000 --memtable 64K";
/// Arguments of a short steady state. The memtable is so large that no write waits for a flush. With stalls, a short
/// testing phase may end without an operation in its second half, which is an error.
const STEADY: &str = "--entries 3000 --memtable 256M";

#[test]
fn every_workload_runs_in_one_command() {
    let words = "fillseq fillrandom overwrite readrandom readmissing seekrandom scan \
                 readwhilewriting fillsync ycsb-a ycsb-b ycsb-c ycsb-d ycsb-e ycsb-f mixgraph deleterandom";
    let run = experiment(&format!("bench {words} {SMALL} --ops 1000"));
    let cells = run.cells();
    let names: Vec<&str> = cells.iter().map(|cell| text(cell, "workload")).collect();
    let mut expected: Vec<&str> = words.split_whitespace().collect();
    expected.insert(7, "scan-backward");
    expected.insert(10, "fillsync");
    assert_eq!(names, expected);
    for (at, cell) in cells.iter().enumerate() {
        assert_eq!((&cell["engine"], &cell["loaded_first"]), (&json!("lsmx"), &json!(false)));
        assert_eq!(cell["threads"], if at == 10 { 8 } else { 1 });
        let is_fill = names[at] == "fillseq" || names[at] == "fillrandom";
        assert_eq!(cell["ops"], if is_fill { 3000 } else { 1000 }, "{cell}");
        for percentile in ["mean", "p50", "p90", "p99", "p999", "max"] {
            assert!(number(cell, &format!("/latency_us/{percentile}")) > 0.0, "{cell}");
        }
        assert!(number(cell, "/ops_per_s") > 0.0);
        assert!(number(cell, "/ops_per_s_unsettled") >= number(cell, "/ops_per_s"));
        let writes = number(cell, "/put_bytes") > 0.0;
        assert_eq!(cell["device_write_amplification"].is_number(), writes, "{cell}");
        assert!(number(cell, "/space_amplification") > 1.0, "{cell}");
    }
    // ycsb-d and ycsb-e insert 50 records each, and deleterandom deletes 1000 records.
    assert_eq!(cells.last().unwrap()["logical_bytes"], (3000 + 100 - 1000) * 116);
    let load = &cells[1];
    assert_eq!(load["put_bytes"], 3000 * 116);
    let kinds = ["/wal_bytes", "/flushed_bytes", "/compaction_bytes"];
    let written: f64 = kinds.iter().map(|kind| number(&load["written"], kind)).sum();
    let amplification = written / (3000.0 * 116.0);
    assert!((number(load, "/device_write_amplification") - amplification).abs() < 1e-9);
    assert!(amplification > 2.0, "the WAL and the flushes each write every byte");
    let writer = &cells[8];
    assert_eq!(number(writer, "/put_bytes"), number(writer, "/writer/ops") * 116.0);
    assert!(number(&run.result, "/settings/clock_ns") > 0.0);

    assert_eq!(run.csv.len(), 1 + cells.len());
    assert!(run.csv[0].starts_with("workload,engine,threads,ops,"), "{}", run.csv[0]);
    assert!(run.csv[5].starts_with("readmissing,lsmx,1,1000,"), "{}", run.csv[5]);
}

/// The writer puts whenever it is not ahead of its rate, so it puts at most one more than the elapsed time allows.
#[test]
fn writer_rate_limits_the_concurrent_writer() {
    let words = "fillrandom readwhilewriting:writer-rate=2,ops=100K";
    let cell = &cells(&format!("bench {words} {SMALL}"))[1];
    assert_eq!(text(cell, "workload"), "readwhilewriting:writer-rate=2");
    let allowed = 2.0 * number(cell, "/elapsed_s") + 1.0;
    let puts = number(cell, "/writer/ops");
    assert!(puts <= allowed.ceil(), "{puts} puts, {allowed} allowed");
}

#[test]
fn read_workload_on_empty_database_loads_records_first() {
    let run = experiment(&format!("bench readrandom {SMALL} --ops 100"));
    let cell = &run.cells()[0];
    assert_eq!((&cell["loaded_first"], &cell["ops"]), (&json!(true), &json!(100)));
    assert!(cell["device_write_amplification"].is_null(), "{cell}");
    assert_contains(&run.table, &["3000 records were put in random order first"]);
}

#[test]
fn kept_database_is_reused_by_later_reads() {
    let dir = TestDir::new();
    let path = dir.path("data");
    let at = format!("--db {path} {SMALL}");
    cells(&format!("bench fillrandom {at} --option policy=tiering"));
    assert_eq!(dir.names(), ["data"]);
    let stats = lsmx(&format!("db {path} stats")).ok();
    assert_contains(&stats, &["keyspace default (tiering)"]);
    let cell = &cells(&format!("bench readrandom {at}"))[0];
    assert_eq!((&cell["loaded_first"], &cell["ops"]), (&json!(false), &json!(3000)));
    // Regression test: a directory that a killed `fillsync` left made every later `fillsync` fail.
    std::fs::create_dir(format!("{path}.fillsync")).unwrap();
    std::fs::write(format!("{path}.fillsync/left"), "").unwrap();
    lsmx(&format!("bench fillsync --ops 10 --threads 1 {at}")).ok();
    std::fs::remove_dir_all(format!("{path}.fillsync")).unwrap();
    lsmx(&format!("bench fillrandom {at}")).fails(2, &["fillrandom", "--db", "one already"]);
    lsmx(&format!("bench readrandom {at} --seed 9")).fails(2, &["--db", "--seed"]);

    let caching = cells(&format!("bench --experiment caching {at} --ops 500"));
    assert_eq!(caching.len(), 16);
    let cell = &cells(&format!("bench --experiment put-over-time {at} --ops 500"))[0];
    assert_eq!((&cell["workload"], &cell["ops"]), (&json!("overwrite"), &json!(500)));
    // readrandom and scan fail if a record does not have its original value.
    lsmx(&format!("bench readrandom scan {at} --ops 500")).ok();
    lsmx(&format!("bench --experiment caching {at} --seed 9")).fails(1, &["wrong answer"]);
    lsmx(&format!("db {path} verify")).ok();
}

/// Regression test: `put-over-time` put generated records into a database of other records.
#[test]
fn put_over_time_refuses_a_database_of_other_records() {
    let dir = TestDir::new();
    let path = dir.path("data");
    lsmx(&format!("db {path} put key value")).ok();
    lsmx(&format!("bench --experiment put-over-time --db {path} {SMALL} --ops 500"))
        .fails(2, &["--db", "must be new, or filled with the same --entries"]);
    assert_eq!(lsmx(&format!("db {path} scan")).ok(), "key\tvalue\n");
}

/// The scan workload fails if entries or bytes are missing. A successful scan shows that each key was put exactly once.
#[test]
fn fill_with_threads_puts_each_key_once() {
    let words = "fillrandom scan readrandom deleterandom scan ycsb-d";
    let cells = cells(&format!("bench {words} {SMALL} --threads 3"));
    // Each of the 3 threads scans all records. Before the second scan, deleterandom deletes half of the 3000 records.
    let ops = [3000.0, 9000.0, 9000.0, 3000.0, 1500.0, 4500.0, 4500.0, 3000.0];
    assert_eq!(numbers(&cells, "/ops"), ops);
    assert_eq!(numbers(&cells, "/threads"), [3.0; 8]);
}

#[test]
fn latencies_at_a_rate_count_from_the_due_time() {
    let run = cells(&format!("bench fillrandom overwrite {SMALL} --ops 300 --rate 2000"));
    // At a rate of 2000 operations per second, one operation is scheduled every 0.5 ms. The schedule ends 0.5 ms after
    // the last operation is due, so that the rate is never above 2000.
    assert!(number(&run[0], "/elapsed_s") >= 3000.0 / 2000.0, "{}", run[0]);
    assert!(number(&run[1], "/elapsed_s") >= 300.0 / 2000.0, "{}", run[1]);
    // Regression test: with one operation, the rate was that of an operation without a schedule.
    let cell = &cells(&format!("bench readrandom {SMALL} --ops 1 --rate 20"))[0];
    assert!(number(cell, "/ops_per_s") <= 20.0, "{cell}");
    // A rate of 10⁹ operations per second exceeds the speed of any machine, so operations queue and their latencies
    // grow.
    let cell = &cells(&format!("bench fillrandom {SMALL} --rate 1e9"))[0];
    let elapsed_us = number(cell, "/elapsed_s") * 1e6;
    assert!(number(cell, "/latency_us/max") > elapsed_us / 2.0, "{cell}");
}

#[test]
fn repetitions_report_the_median_and_the_interval() {
    let cell = &cells(&format!("bench readrandom {SMALL} --repeat 3"))[0];
    let runs = list(cell, "/ops_per_s_runs").iter().map(|rate| rate.as_f64().unwrap());
    let mut runs: Vec<f64> = runs.collect();
    runs.sort_by(f64::total_cmp);
    assert_eq!(runs.len(), 3);
    assert_eq!(cell["ops_per_s"], json!(runs[1]));
    assert_eq!(cell["ops_per_s_interval"], json!([runs[0], runs[2]]));
}

#[test]
fn settings_of_a_workload_replace_the_flags() {
    let words = "seekrandom seekrandom:entries=100 readrandom:threads=2,ops=50 readrandom";
    let run = experiment(&format!("bench {words} {SMALL} --ops 20 --seek-entries 5"));
    let cells = run.cells();
    let names: Vec<&str> = cells.iter().map(|cell| text(cell, "workload")).collect();
    assert_eq!(names, ["seekrandom", "seekrandom:entries=100", "readrandom", "readrandom"]);
    assert_eq!(numbers(cells, "/threads"), [1.0, 1.0, 2.0, 1.0]);
    assert_eq!(numbers(cells, "/ops"), [20.0, 20.0, 50.0, 20.0]);
    assert!(number(&cells[0], "/entries_read") <= 100.0);
    assert!(number(&cells[1], "/entries_read") > 1000.0);
    assert!(run.csv[2].starts_with("seekrandom:entries=100,lsmx,1,20,"), "{}", run.csv[2]);
    assert_contains(&run.table, &["seekrandom:entries=100"]);
    assert_contains(&run.html, &["seekrandom:entries=100"]);
}

#[test]
fn options_reach_the_engine() {
    let bytes = |words: &str| {
        let words = format!("bench fillseq {SMALL} --value-len 400 {words}");
        number(&cells(&words)[0], "/table_bytes")
    };
    // Tables with small blocks are larger: each block has a trailer and an index entry.
    assert!(bytes("--option block_bytes=128") > bytes("--option block_bytes=32K") * 1.02);
    lsmx(&format!("bench fillseq {SMALL} --option table_bytes=1K --option block_bytes=2K"))
        .fails(2, &["table_bytes", "block_bytes"]);
}

#[test]
fn caching_experiment_shows_the_effect_of_index_and_filters() {
    let cells = cells("bench --experiment caching --entries 20000 --memtable 64K --ops 2000");
    assert_eq!(cells.len(), 16, "4 cache contents, 2 filter settings, 2 workloads");
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
        let [nothing, filters, index] = [(false, false), (false, true), (true, true)]
            .map(|(index, filters)| ios("readrandom", index, filters, last_run));
        assert!(nothing > filters && filters > index, "{nothing} {filters} {index}");
        // With cached filters, a lookup reads an index block and a data block. With a cached index, a lookup reads only
        // a data block.
        assert!((1.5..=2.2).contains(&filters) && (0.9..=1.2).contains(&index));
    }
    assert!(ios("readmissing", true, true, true) < 0.1, "filters exclude absent keys");
    assert!(ios("readmissing", true, true, false) > 0.9, "the last run has no filter");
    for cell in &cells {
        assert_eq!(cell["ops"], 2000);
        assert!(number(cell, "/ops_per_s") > 0.0 && number(cell, "/latency_us/p99") > 0.0);
        let [ios, physical] =
            ["/reads/ios_per_get", "/reads/physical_reads_per_get"].map(|path| number(cell, path));
        assert!((ios - physical).abs() < 0.05, "{cell}");
        // If the block cache holds all blocks, a lookup reads a file only for a block that the warm-up has not loaded.
        assert!(ios < 0.05 || !text(cell, "setting").starts_with("all cached"), "{cell}");
    }
}

#[test]
fn wider_filters_are_larger_and_have_fewer_false_positives() {
    let mut cells =
        cells("bench --experiment filter-size --entries 30000 --memtable 64K --ops 30000");
    assert_eq!(cells.len(), 12, "4 filter sizes, a load and 2 workloads");
    for load in cells.iter().filter(|cell| cell["workload"] == "fillrandom") {
        assert_eq!((&load["ops"], &load["threads"]), (&json!(30_000), &json!(1)));
        assert!(number(load, "/ops_per_s") > 0.0 && number(load, "/latency_us/p99") > 0.0);
    }
    cells.retain(|cell| cell["workload"] == "readmissing");
    let widths: Vec<&str> = cells.iter().map(|cell| text(cell, "setting")).collect();
    assert_eq!(widths, ["filters 8", "filters monkey(10)", "filters monkey(13)", "filters 16"]);
    let bytes = numbers(&cells, "/reads/filter_bytes");
    assert!(bytes[3] > 1.7 * bytes[0], "{bytes:?}");
    // The expected false positive rate is 1/256 with 8-bit fingerprints and 1/65,536 with 16-bit fingerprints.
    let rates = numbers(&cells, "/reads/filter_false_positive_rate");
    assert!((0.002..0.008).contains(&rates[0]) && rates[3] < 0.001, "{rates:?}");
    assert!(numbers(&cells, "/reads/ios_per_get").iter().all(|ios| *ios < 0.1));
}

/// The experiment fails if a get returns another record's value, or if a deleted record is present.
#[test]
fn data_size_experiment_measures_each_operation_by_the_number_of_records() {
    let run = experiment("bench --experiment data-size --entries 800 --memtable 64K --threads 2");
    let operations: Vec<&str> = run.cells().iter().map(|cell| text(cell, "workload")).collect();
    assert_eq!(operations, ["put", "get", "delete"].repeat(4));
    for (cells, entries) in run.cells().chunks(3).zip([100, 200, 400, 800]) {
        // Keys have 16 bytes, values from 1 to `entries` bytes.
        let bytes = entries * 16 + entries * (entries + 1) / 2;
        for cell in cells {
            assert_eq!(cell["data"], json!({ "entries": entries, "bytes": bytes }));
            assert_eq!((&cell["ops"], &cell["threads"]), (&json!(entries), &json!(2)));
            assert!(number(cell, "/ops_per_s") > 0.0 && number(cell, "/latency_us/p50") > 0.0);
        }
    }
    assert_eq!(run.csv.len(), 13);
    assert!(run.csv[1].starts_with("data-size,put,lsmx,2,100,"), "{}", run.csv[1]);
    assert_contains(
        &run.table,
        &["up to 800 records of 16 + 800 B", "the value of record i has i B"],
    );
}

#[test]
fn puts_over_time_are_slices_of_all_puts() {
    let words = "--experiment put-over-time --entries 60000 --memtable 64K --threads 2";
    let run = experiment(&format!("bench {words}"));
    let cell = &run.cells()[0];
    let slices = list(cell, "/slices");
    let ops: f64 = numbers(slices, "/ops").iter().sum();
    assert_eq!((ops, &cell["ops"]), (60_000.0, &json!(60_000)));
    assert!(numbers(slices, "/end_s").is_sorted() && slices.len() <= 400);
    let longest = numbers(slices, "/max_us").into_iter().fold(0.0, f64::max);
    // Percentiles have a relative error of up to 0.1 %.
    assert!((longest / number(cell, "/latency_us/max") - 1.0).abs() < 0.002);
    let compacted: f64 = numbers(slices, "/compaction_bytes").iter().sum();
    assert!(compacted > 0.0, "no compaction ran during the puts");
    assert_eq!(run.csv.len(), slices.len() + 1);
    assert_contains(
        &run.html,
        &["Puts per second", "The longest put of each slice", "Bytes that compaction wrote"],
    );
}

#[test]
fn steady_state_schedules_95_percent_of_the_sustained_rate() {
    let words = "--experiment steady-state --testing-minutes 0.02 --minutes 0.01 --threads 2";
    let run = experiment(&format!("bench {words} {STEADY}"));
    let cell = &run.cells()[0];
    let [sustained, scheduled] =
        ["/sustained_ops_per_s", "/scheduled_ops_per_s"].map(|path| number(cell, path));
    assert!(sustained > 0.0 && (scheduled / sustained - 0.95).abs() < 1e-9, "{cell}");
    let minutes = list(cell, "/by_minute");
    assert_eq!(minutes.len(), 1);
    for name in ["/ops", "/gets", "/puts"] {
        assert_eq!(number(&minutes[0], name), number(cell, name));
    }
    assert_eq!(number(cell, "/gets") + number(cell, "/puts"), number(cell, "/ops"));
    for kind in ["put", "get"] {
        for percentile in ["p50", "p99", "p999", "max"] {
            let path = format!("/{kind}_latency_us/{percentile}");
            let [whole, minute] = [cell, &minutes[0]].map(|it| number(it, &path));
            assert!(whole > 0.0 && (minute / whole - 1.0).abs() < 0.02, "{path}: {cell}");
        }
    }
    assert!(cell["stall_s"].is_number() && number(cell, "/space_amplification") > 1.0, "{cell}");
    assert_eq!(run.csv.len(), 3);
    assert!(run.csv[1].starts_with("lsmx,1,2,0.5,"), "{}", run.csv[1]);
    assert!(run.csv[2].starts_with("lsmx,all,2,0.5,"), "{}", run.csv[2]);
    assert_contains(&run.table, &["testing phase of 0.02 min", "operations per s sustained"]);
}

#[test]
fn steady_state_given_rate_replaces_the_testing_phase() {
    let dir = TestDir::new();
    let words = format!("--experiment steady-state --db {} --rate 2000 {STEADY}", dir.path("data"));
    let cell = &cells(&format!("bench {words} --minutes 0.01 --read-ratio 0"))[0];
    assert!(cell["sustained_ops_per_s"].is_null(), "{cell}");
    assert_eq!((&cell["scheduled_ops_per_s"], &cell["gets"]), (&json!(2000.0), &json!(0)));
    // 2000 operations per second are scheduled for 0.6 s. A slow machine completes fewer of them.
    let puts = number(cell, "/puts");
    assert!(puts > 0.0 && puts <= 1200.0, "{cell}");
    assert!(cell["device_read_bytes_per_get"].is_null(), "{cell}");

    let cell = &cells(&format!("bench {words} --minutes 0.005 --read-ratio 1"))[0];
    assert_eq!(cell["puts"], 0);
    let both = &cells(&format!("bench {words} --minutes 0.005 --testing-minutes 0.01"))[0];
    assert!(number(both, "/sustained_ops_per_s") > 0.0, "{both}");
    assert_eq!(both["scheduled_ops_per_s"], json!(2000.0));
    let other = format!("bench {words} --minutes 0.005 --seed 9");
    lsmx(&other).fails(2, &["--db", "--seed"]);
}

#[cfg(not(any(feature = "peers", feature = "peer-rocksdb")))]
#[test]
fn missing_peer_error_names_the_feature() {
    lsmx("bench fillseq --entries 10 --peers rocksdb").fails(2, &["rocksdb", "--features peers"]);
}

/// The benchmark fails if another engine returns a wrong result.
#[cfg(feature = "peer-fjall")]
#[test]
fn peers_run_the_same_workloads() {
    let peers = if cfg!(feature = "peer-rocksdb") { "rocksdb,fjall" } else { "fjall" };
    let workloads =
        "fillrandom overwrite readrandom readmissing seekrandom scan deleterandom scan ycsb-d";
    let cells = cells(&format!("bench {workloads} {SMALL} --peers {peers}"));
    let engines = 1 + peers.split(',').count();
    assert_eq!(cells.len(), 11 * engines);
    for of_workload in cells.chunk_by(|a, b| a["workload"] == b["workload"]) {
        assert_eq!(of_workload.len() % engines, 0);
        assert!(of_workload.iter().all(|cell| cell["ops"] == of_workload[0]["ops"]));
    }
}

#[cfg(target_os = "linux")]
mod memory_limit;

#[cfg(unix)]
#[test]
fn interrupted_run_removes_its_databases() {
    use crate::common::{interrupt, spawn};

    let dir = TestDir::new();
    let root = dir.root().display();
    let mut child = spawn(&format!("bench fillrandom --entries 1G --memtable 1M --dir {root}"));
    // The signal handler is installed before the database is created. The test therefore sends SIGINT after the
    // database exists.
    let has_database = || {
        let mut created = std::fs::read_dir(dir.root()).unwrap().flatten();
        created.any(|entry| {
            std::fs::read_dir(entry.path()).is_ok_and(|mut entries| entries.next().is_some())
        })
    };
    while !has_database() {
        assert!(child.try_wait().unwrap().is_none(), "the run ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(interrupt(child).code, 130);
    assert!(dir.names().is_empty());
}
