//! `lsmx iocost`, run as a user runs it.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and works on files of its own"
)]

mod common;

use std::fs;
use std::path::Path;

use common::lsmx;
use lsmx::vfs::{OsVfs, Vfs};
use serde_json::Value;

const SMALL: &str = "--entries 20000 --memtable 64K --table 64K --gets 500";

fn result(words: &str, directory: &Path) -> Value {
    let file = directory.join("result.json");
    let words = format!("iocost {words} --json {}", file.display());
    lsmx(&words.split_whitespace().collect::<Vec<_>>()).ok();
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

#[test]
fn a_sweep_has_all_fields_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let databases = directory.path().join("databases");
    fs::create_dir(&databases).unwrap();
    let csv = directory.path().join("rows.csv");
    let words = format!("{SMALL} --dir {} --csv {}", databases.display(), csv.display());
    let result = result(&words, directory.path());
    assert_eq!(fs::read_dir(&databases).unwrap().count(), 0);
    for field in [
        "db_bytes",
        "entries",
        "filter_bytes",
        "top_index_bytes",
        "index_bytes",
        "all_filters_bytes",
    ] {
        assert!(result[field].as_u64().unwrap() > 0, "{field}");
    }
    assert!(result.get("others").is_none());
    let points = result["points"].as_array().unwrap();
    for inflection in ["inflection_1", "inflection_2"] {
        let bytes = &result[inflection]["bytes"];
        let at = |point: &&Value| point["at"] == *inflection && point["cache_bytes"] == *bytes;
        assert_eq!(points.iter().filter(at).count(), 1, "{inflection}");
    }
    for point in points {
        for field in ["cache_fraction", "ios_per_get", "ios_per_absent_get"] {
            assert!(point[field].as_f64().unwrap() > 0.0, "{field}: {point}");
        }
        assert!(point["get_latency_us"]["p99"].as_f64().unwrap() > 0.0);
        assert!(point["hit_rate"]["data"].as_f64().unwrap() < 1.0);
    }
    let rows = fs::read_to_string(csv).unwrap();
    assert_eq!(rows.lines().count(), points.len() + 2);
    let columns = |line: &str| line.split(',').count();
    assert!(rows.lines().all(|line| columns(line) == columns(rows.lines().next().unwrap())));
}

#[test]
fn block_sizes_are_swept_and_equal_seeds_ask_for_equal_keys() {
    let directory = tempfile::tempdir().unwrap();
    let words = format!(
        "{SMALL} --block-bytes 512,4096 --cache-sweep 100 --dir {}",
        directory.path().display()
    );
    let result = result(&words, directory.path());
    let others = result["others"].as_array().unwrap();
    assert_eq!((others.len(), &result["block_bytes"]), (1, &Value::from(512)));
    assert_eq!(others[0]["block_bytes"], 4096);
    let blocks = |cost: &Value| cost["data_blocks"].as_u64().unwrap();
    assert!(blocks(&result) > 6 * blocks(&others[0]));
}

#[test]
fn an_existing_database_is_asked_for_its_own_keys() {
    let directory = tempfile::tempdir().unwrap();
    let db = directory.path().join("db");
    let fill = format!("bench fillrandom --entries 5000 --memtable 64K --db {}", db.display());
    lsmx(&fill.split_whitespace().collect::<Vec<_>>()).ok();
    let words = format!("--db {} --gets 500 --cache-sweep 0,200", db.display());
    let result = result(&words, directory.path());
    assert_eq!(result["settings"]["key_len"], Value::Null);
    assert!(result["entries"].as_u64().unwrap() >= 5000);
    let points = result["points"].as_array().unwrap();
    let ios = |point: &Value| point["ios_per_get"].as_f64().unwrap();
    // Without a cache each block of each lookup is read.
    assert!(ios(&points[0]) >= 3.0 && ios(&points[1]) < 0.5, "{points:?}");
}

#[test]
fn past_the_page_cache_each_block_is_a_read_of_the_device() {
    let directory = tempfile::tempdir().unwrap();
    let probe = directory.path().join("probe");
    fs::write(&probe, "").unwrap();
    let words =
        format!("{SMALL} --direct-io --cache-sweep 100 --dir {}", directory.path().display());
    if OsVfs.open_direct(&probe).is_err() {
        let words: Vec<_> = words.split_whitespace().collect();
        lsmx(&[&["iocost"][..], &words].concat()).fails(1, &["direct reads"]);
        return;
    }
    let result = result(&words, directory.path());
    assert_eq!(result["settings"]["direct_io"], true);
    for point in result["points"].as_array().unwrap() {
        let figure = |name: &str| point[name].as_f64();
        assert_eq!(figure("ios_per_get"), figure("physical_reads_per_get"));
        // The system's counts are absent where it has none; others add to that of the device.
        if let Some(bytes) = figure("device_read_bytes_per_get") {
            assert!(bytes >= figure("physical_read_bytes_per_get").unwrap(), "{point}");
        }
        if let Some(reads) = figure("device_reads_per_get") {
            assert!(reads >= 0.9 * figure("physical_reads_per_get").unwrap(), "{point}");
        }
    }
}

#[test]
fn wrong_arguments_are_named() {
    for (words, named) in [
        ("--cache-sweep often", "--cache-sweep"),
        ("--key-len 4", "--key-len is 4"),
        ("--gets 0", "--gets"),
        ("--block-bytes 10 --entries 10", "block"),
        ("--db nowhere --entries 5", "--db"),
        ("--keyspace k", "--db"),
    ] {
        let words = format!("iocost {words}");
        let said = lsmx(&words.split_whitespace().collect::<Vec<_>>());
        said.fails(2, &[named]);
    }
    lsmx(&["iocost", "--db", "no/such/database"]).fails(1, &["not a database"]);
}
