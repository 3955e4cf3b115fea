//! `lsmx explore --trace`: traces recorded by a database, and traces written by hand.

use std::fs;
use std::path::Path;

use crate::common::{assert_contains, cells as cells_of, db, run};
use lsmx::merge_operator::FieldUpdate;
use lsmx::workload_trace::TraceOptions;
use lsmx::{Db, Durability, KeyspaceOptions, Options, WriteBatch};
use serde_json::Value;

fn cells(words: &str, directory: &Path) -> Vec<Value> {
    cells_of("explore", words, directory)
}

/// Records a trace with two keyspaces, all operations, and reads of present and absent keys.
fn record(directory: &Path, options: TraceOptions) -> std::path::PathBuf {
    let path = directory.join("hour.trace");
    let keyspace = KeyspaceOptions::default().merge_operator(FieldUpdate::default());
    let options_of_db = Options::default().keyspace_defaults(keyspace);
    let db = Db::open(directory.join("data"), options_of_db).unwrap();
    // What was there before the trace is not in it.
    db.put("before", "x").unwrap();
    let trace = db.record_trace(&path, options).unwrap();
    let other = db.keyspace("other", KeyspaceOptions::default()).unwrap();
    let key_of = |number: u32| format!("user{:08}", number.wrapping_mul(2_654_435_761) % 3000);
    for number in 0..4000u32 {
        let key = key_of(number);
        match number % 8 {
            0..=3 => db.put(&key, vec![7; (number % 90) as usize]).unwrap(),
            4 => db.default_keyspace().merge(&key, FieldUpdate::operand(3, b"field")).unwrap(),
            // Written two operations ago, or never.
            5 if number % 16 == 5 => drop(db.get(key_of(number - 2)).unwrap()),
            5 => drop(db.get(&key).unwrap()),
            6 if number % 24 == 6 => db.delete(&key).unwrap(),
            6 => {
                let mut batch = WriteBatch::new();
                batch.put(&other, &key, "from a batch");
                batch.delete(&db.default_keyspace(), &key);
                db.write(batch, Durability::Buffered).unwrap();
            }
            _ if number % 400 == 7 => {
                db.default_keyspace()
                    .delete_range(key.as_str()..format!("{key}9").as_str())
                    .unwrap();
            }
            _ => {
                let range = db.default_keyspace().range(key.as_str()..);
                assert!(range.take(5).all(|entry| entry.is_ok()));
                drop(other.iter().next_back());
            }
        }
    }
    drop(db.get("before").unwrap());
    trace.stop().unwrap();
    path
}

#[test]
fn a_recorded_hour_is_played_under_every_policy() {
    let directory = tempfile::tempdir().unwrap();
    for options in [
        TraceOptions::default(),
        TraceOptions { keep_values: true, ..TraceOptions::default() },
        TraceOptions { hash_keys: true, ..TraceOptions::default() },
    ] {
        let directory = tempfile::tempdir_in(directory.path()).unwrap();
        let trace = record(directory.path(), options);
        // A run fails on a wrong answer.
        let words = format!(
            "--policy full,tiering,leveled --memtable 32K --deterministic --trace {}",
            trace.display()
        );
        let first = cells(&words, directory.path());
        assert_eq!(first.len(), 3);
        for cell in &first {
            let records = &cell["workload"]["records"];
            assert_eq!(
                (&records["source"], &records["name"]),
                (&"trace".into(), &"hour.trace".into())
            );
            assert_eq!(records["puts"], 2333, "{records}");
            assert_eq!(records["merges"], 500);
            assert_eq!(records["gets"], 501);
            let lookups = &cell["point_lookups"][0];
            assert_eq!(lookups["ops"], 501);
            let alpha = lookups["alpha"].as_f64().unwrap();
            assert!(alpha > 0.0 && alpha < 1.0, "{alpha}");
            assert_eq!(cell["range_lookups"]["ops"], records["scans"]);
            assert!(cell["compaction"]["jobs"].as_u64().unwrap() > 0 || cell["policy"] != "full");
            assert!(cell["ingested_bytes"].as_u64().unwrap() > 0);
        }
        let again = cells(&words, directory.path());
        for (one, other) in first.iter().zip(&again) {
            assert!(one["digest"].is_string() && one["digest"] == other["digest"]);
        }
    }
}

#[test]
fn operations_line_by_line_are_played_and_checked() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("ops.tsv");
    let mut text = String::new();
    for number in 0..3000 {
        text.push_str(&format!("put\tk{number:05}\tvalue\\t{number}\n"));
    }
    text.push_str("delete\tk00001\ndelete-range\tk01000\tk02000\nmerge\tk00002\t!!\n");
    text.push_str("get\tk00001\nget\tk00003\nget\tk01500\nget\tk00002\n");
    text.push_str("scan\tk00990\t20\nscan\t\t5\ndelete-range\tk02990\n");
    fs::write(&trace, text).unwrap();
    let words = format!("--policy lo+1 --memtable 16K --trace {}", trace.display());
    let cell = &cells(&words, directory.path())[0];
    assert_eq!(cell["point_lookups"][0]["ops"], 4);
    assert_eq!(cell["point_lookups"][0]["alpha"], 0.5);
    assert_eq!(cell["range_lookups"]["entries"], 25);
    let entries: u64 =
        cell["levels"].as_array().unwrap().iter().map(|at| at["entries"].as_u64().unwrap()).sum();
    assert!(entries >= 1989, "{entries}");
}

#[test]
fn what_is_wrong_with_a_trace_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let (path, dir) = (directory.path().join("ops.tsv"), directory.path().display().to_string());
    let replay =
        || run("explore", &format!("--policy full --trace {} --dir {dir}", path.display()));
    fs::write(&path, "put\ta\tb\nfetch\ta\n").unwrap();
    replay().fails(1, &["ops.tsv, line 2 is malformed", "fetch is no operation", "delete-range"]);
    fs::write(&path, "").unwrap();
    replay().fails(1, &["ops.tsv holds no records"]);

    let trace = record(directory.path(), TraceOptions::default());
    let mut bytes = fs::read(&trace).unwrap();
    bytes[100] ^= 1;
    fs::write(&trace, &bytes).unwrap();
    let said = run("explore", &format!("--policy full --trace {}", trace.display()));
    said.fails(1, &["cannot read a trace", "hour.trace is corrupt at byte 40"]);
}

#[test]
fn a_trace_is_dumped() {
    let directory = tempfile::tempdir().unwrap();
    let trace = record(directory.path(), TraceOptions::default());
    let words = format!("dump {} --limit 12", trace.display());
    let text = db(&directory.path().join("data"), &words).ok();
    assert_contains(&text, &["keys stored", "keyspace 0 is \"default\"", "put \"user"]);
}
