//! `lsmx iocost`, run as a user runs it.

use std::fs;
use std::path::Path;

use crate::common::{number, read_rows, result as result_of, run, text};
use lsmx::vfs::{OsVfs, Vfs};
use serde_json::Value;

const SMALL: &str = "--entries 20000 --memtable 64K --table 64K --lookups 500";

fn result(words: &str, directory: &Path) -> Value {
    result_of("iocost", words, directory)
}

#[test]
fn a_sweep_has_all_fields_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("rows.csv");
    let result = result(&format!("{SMALL} --csv {}", csv.display()), directory.path());
    let bytes = ["filter_bytes", "top_index_bytes", "index_bytes", "all_filters_bytes"];
    for field in ["db_bytes", "entries"].iter().chain(&bytes) {
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
        for path in
            ["/cache_fraction", "/ios_per_get", "/ios_per_absent_get", "/get_latency_us/p99"]
        {
            assert!(number(point, path) > 0.0, "{path}: {point}");
        }
        assert!(number(point, "/hit_rate/data") < 1.0);
    }
    assert_eq!(read_rows(&csv).len(), points.len() + 2);
}

#[test]
fn block_sizes_are_swept_and_equal_seeds_ask_for_equal_keys() {
    let directory = tempfile::tempdir().unwrap();
    let words = format!("{SMALL} --block-bytes 512,4096 --cache-sweep 100");
    let result = result(&words, directory.path());
    let others = result["others"].as_array().unwrap();
    assert_eq!((others.len(), &result["block_bytes"]), (1, &Value::from(512)));
    assert_eq!(others[0]["block_bytes"], 4096);
    let blocks = |cost: &Value| cost["data_blocks"].as_u64().unwrap();
    assert!(blocks(&result) > 6 * blocks(&others[0]));
}

#[test]
fn both_block_caches_and_all_filters_are_swept() {
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("rows.csv");
    let words = format!(
        "{SMALL} --filter-bits 8,monkey(10),16 --cache-kind moka,quick --cache-sweep 20 --csv {}",
        csv.display()
    );
    let result = result(&words, directory.path());
    let others = result["others"].as_array().unwrap();
    let all: Vec<&Value> = std::iter::once(&result).chain(others).collect();
    let names: Vec<_> =
        all.iter().map(|cost| (text(cost, "filter_bits"), text(cost, "cache_kind"))).collect();
    let expected: Vec<_> = ["8", "monkey(10)", "16"]
        .iter()
        .flat_map(|bits| ["moka", "quick"].map(|kind| (*bits, kind)))
        .collect();
    assert_eq!(names, expected);
    let bytes = |at: usize| all[at]["all_filters_bytes"].as_u64().unwrap();
    assert!(bytes(0) == bytes(1) && bytes(4) > bytes(0) * 17 / 10);
    for cost in &all {
        let point = &cost["with_all_filters"];
        let count = |of: &Value, field: &str| of[field].as_u64().unwrap();
        let levels = point["filter_by_level"].as_array().unwrap();
        for field in ["filter_negatives", "filter_false_positives"] {
            let sum: u64 = levels.iter().map(|level| count(level, field_of_level(field))).sum();
            assert_eq!(sum, count(point, field), "{field}");
        }
        assert!(count(point, "filter_negatives") > 400);
        assert!(point["filter_false_positive_rate"].as_f64().unwrap() < 0.05);
    }
    assert_eq!(read_rows(&csv).len(), 1 + 2 * all.len());
}

/// A level has the counts of a point under shorter names.
fn field_of_level(field: &str) -> &str {
    field.strip_prefix("filter_").unwrap()
}

/// Creates a database of 5000 records.
fn fill(db: &Path, words: &str) {
    let db = db.display();
    run("bench fillrandom", &format!("--entries 5000 --memtable 64K {words} --db {db}")).ok();
}

#[test]
fn an_existing_database_is_read_with_both_caches() {
    let directory = tempfile::tempdir().unwrap();
    let db = directory.path().join("db");
    fill(&db, "--option cache_kind=moka --option filter_bits=16");
    let words =
        format!("--db {} --lookups 500 --cache-kind quick,moka --cache-sweep 200", db.display());
    let result = result(&words, directory.path());
    assert_eq!((&result["filter_bits"], &result["cache_kind"]), (&Value::Null, &"quick".into()));
    assert_eq!(result["others"][0]["cache_kind"], "moka");
    // At 18 bits a key and more.
    let (bytes, entries) = (&result["all_filters_bytes"], &result["entries"]);
    assert!(bytes.as_u64().unwrap() >= entries.as_u64().unwrap() * 18 / 8);
}

#[test]
fn an_existing_database_is_asked_for_its_own_keys() {
    let directory = tempfile::tempdir().unwrap();
    let db = directory.path().join("db");
    fill(&db, "");
    let words = format!("--db {} --lookups 500 --cache-sweep 0,200", db.display());
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
    let words = format!("{SMALL} --direct-io --cache-sweep 100");
    if OsVfs.open_direct(&probe).is_err() {
        let dir = directory.path().display();
        run("iocost", &format!("{words} --dir {dir}")).fails(1, &["direct reads"]);
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
