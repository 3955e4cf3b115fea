//! Tests of `lsmx iocost`.

use crate::common::{TestDir, experiment, list, lsmx, number, numbers, text};
use lsmx::vfs::{OsVfs, Vfs};
use serde_json::{Value, json};

const SMALL: &str = "iocost --entries 40000 --memtable 64K --table 64K --lookups 500";

#[test]
fn automatic_sweep_has_all_fields_and_both_inflections() {
    let run = experiment(SMALL);
    let result = &run.result;
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
    let points = list(result, "/points");
    for inflection in ["inflection_1", "inflection_2"] {
        let bytes = &result[inflection]["bytes"];
        let at = |point: &&Value| point["at"] == *inflection && point["cache_bytes"] == *bytes;
        assert_eq!(points.iter().filter(at).count(), 1, "{inflection}");
    }
    for path in ["/cache_fraction", "/ios_per_get", "/ios_per_absent_get", "/get_latency_us/p99"] {
        assert!(numbers(points, path).iter().all(|value| *value > 0.0), "{path}");
    }
    assert!(numbers(points, "/hit_rate/data").iter().all(|rate| *rate < 1.0));
    assert_eq!(run.csv.len(), points.len() + 2);
}

#[test]
fn block_sizes_are_swept() {
    let result = experiment(&format!("{SMALL} --block-bytes 512,4096 --cache-sweep 100")).result;
    let others = list(&result, "/others");
    assert_eq!((others.len(), &result["block_bytes"]), (1, &json!(512)));
    assert_eq!(others[0]["block_bytes"], 4096);
    assert!(number(&result, "/data_blocks") > 6.0 * number(&others[0], "/data_blocks"));
}

#[test]
fn both_block_caches_and_all_filters_are_swept() {
    let run = experiment(&format!(
        "{SMALL} --filter-bits 8,monkey(10),16 --cache-kind moka,quick --cache-sweep 20"
    ));
    let others = list(&run.result, "/others");
    let all: Vec<&Value> = std::iter::once(&run.result).chain(others).collect();
    let names = all.iter().map(|cost| [text(cost, "filter_bits"), text(cost, "cache_kind")]);
    let expected =
        ["8", "monkey(10)", "16"].iter().flat_map(|bits| [[bits, "moka"], [bits, "quick"]]);
    assert!(names.eq(expected), "{all:?}");
    let bytes: Vec<f64> = all.iter().map(|cost| number(cost, "/all_filters_bytes")).collect();
    assert!(bytes[0] == bytes[1] && bytes[4] > bytes[0] * 1.7, "{bytes:?}");
    for cost in &all {
        let point = &cost["with_all_filters"];
        let levels = list(point, "/filter_by_level");
        for field in ["negatives", "false_positives"] {
            let sum: f64 = numbers(levels, &format!("/{field}")).iter().sum();
            assert_eq!(sum, number(point, &format!("/filter_{field}")), "{field}");
        }
        assert!(number(point, "/filter_negatives") > 400.0);
        assert!(number(point, "/filter_false_positive_rate") < 0.05);
    }
    assert_eq!(run.csv.len(), 1 + 2 * all.len());
}

#[test]
fn existing_database_is_read_with_its_own_keys_and_both_caches() {
    let dir = TestDir::new();
    let db = dir.path("db");
    let options = "--option cache_kind=moka --option filter_bits=16";
    lsmx(&format!("bench fillrandom --entries 5000 --memtable 64K {options} --db {db}")).ok();
    let words = "--lookups 500 --cache-kind quick,moka --cache-sweep 0,200";
    let result = experiment(&format!("iocost --db {db} {words}")).result;
    assert_eq!((&result["filter_bits"], &result["cache_kind"]), (&Value::Null, &json!("quick")));
    assert_eq!(result["others"][0]["cache_kind"], "moka");
    assert_eq!(result["settings"]["key_len"], Value::Null);
    let entries = number(&result, "/entries");
    assert!(entries >= 5000.0);
    // A filter with 16-bit fingerprints needs 18 bits per key.
    assert!(number(&result, "/all_filters_bytes") >= entries * 18.0 / 8.0);
    // Without a block cache, each lookup reads several blocks from a file.
    let ios = numbers(list(&result, "/points"), "/ios_per_get");
    assert!(ios[0] >= 3.0 && ios[1] < 0.5, "{ios:?}");
}

#[test]
fn direct_io_reads_each_block_from_the_device() {
    let dir = TestDir::on_disk();
    let words = format!("{SMALL} --direct-io --cache-sweep 100");
    let probe = dir.write("probe", "");
    if OsVfs.open_direct(probe.as_ref()).is_err() {
        lsmx(&format!("{words} --dir {}", dir.root().display())).fails(1, &["direct reads"]);
        return;
    }
    let result = experiment(&words).result;
    assert_eq!(result["settings"]["direct_io"], true);
    for point in list(&result, "/points") {
        let metric = |name: &str| point[name].as_f64();
        assert_eq!(metric("ios_per_get"), metric("physical_reads_per_get"));
        // Only some systems count device I/O. The counts include the I/O of other processes.
        if let Some(bytes) = metric("device_read_bytes_per_get") {
            assert!(bytes >= metric("physical_read_bytes_per_get").unwrap(), "{point}");
        }
        if let Some(reads) = metric("device_reads_per_get") {
            assert!(reads >= 0.9 * metric("physical_reads_per_get").unwrap(), "{point}");
        }
    }
}
