//! Tests of `lsmx explore --trace` with recorded traces and with traces in text form.

use std::fs;
use std::path::PathBuf;

use crate::common::{TestDir, assert_contains, cells, list, lsmx, number, sum_of_levels, text};
use lsmx::merge_operator::FieldUpdate;
use lsmx::workload_trace::TraceOptions;
use lsmx::{Db, Durability, KeyspaceOptions, Options, WriteBatch};
use serde_json::json;

/// Records a trace of a database with two keyspaces. The trace contains all kinds of operations, with reads of present
/// and of absent keys.
fn record(dir: &TestDir, options: TraceOptions) -> PathBuf {
    let path = dir.root().join("hour.trace");
    let keyspace = KeyspaceOptions::default().merge_operator(FieldUpdate::default());
    let db = Db::open(dir.path("data"), Options::default().keyspace_defaults(keyspace)).unwrap();
    // A write before the recording starts is not in the trace.
    db.put("before", "x").unwrap();
    let trace = db.record_trace(&path, options).unwrap();
    let default = db.default_keyspace();
    let other = db.keyspace("other", KeyspaceOptions::default()).unwrap();
    let key_of = |number: u32| format!("user{:08}", number.wrapping_mul(2_654_435_761) % 3000);
    for number in 0..4000u32 {
        let key = key_of(number);
        match number % 8 {
            0..=3 => db.put(&key, vec![7; (number % 90) as usize]).unwrap(),
            4 => default.merge(&key, FieldUpdate::operand(3, b"field")).unwrap(),
            // Reads a key that was written two operations ago, or a key that was never written.
            5 if number % 16 == 5 => drop(db.get(key_of(number - 2)).unwrap()),
            5 => drop(db.get(&key).unwrap()),
            6 if number % 24 == 6 => db.delete(&key).unwrap(),
            6 => {
                let mut batch = WriteBatch::new();
                batch.put(&other, &key, "from a batch");
                batch.delete(&default, &key);
                db.write(batch, Durability::Buffered).unwrap();
            }
            _ if number % 400 == 7 => {
                default.delete_range(key.as_str()..format!("{key}9").as_str()).unwrap();
            }
            _ => {
                assert!(default.range(key.as_str()..).take(5).all(|entry| entry.is_ok()));
                drop(other.iter().next_back());
            }
        }
    }
    drop(db.get("before").unwrap());
    trace.stop().unwrap();
    path
}

/// The experiment fails if a replayed lookup returns a wrong value.
#[test]
fn recorded_trace_is_replayed_under_every_policy() {
    for options in [
        TraceOptions::default(),
        TraceOptions { keep_values: true, ..TraceOptions::default() },
        TraceOptions { hash_keys: true, ..TraceOptions::default() },
    ] {
        let dir = TestDir::new();
        let words = format!(
            "explore --policy full,tiering,leveled --memtable 32K --deterministic --trace {}",
            record(&dir, options).display()
        );
        let (first, again) = (cells(&words), cells(&words));
        assert_eq!(first.len(), 3);
        for (cell, same) in first.iter().zip(&again) {
            assert_eq!(text(cell, "digest"), text(same, "digest"));
            let records = &cell["workload"]["records"];
            for (field, value) in [
                ("source", json!("trace")),
                ("name", json!("hour.trace")),
                ("puts", json!(2333)),
                ("merges", json!(500)),
                ("gets", json!(501)),
            ] {
                assert_eq!(records[field], value, "{field}");
            }
            let lookups = &cell["point_lookups"][0];
            assert_eq!(lookups["ops"], 501);
            let alpha = number(lookups, "/alpha");
            assert!(alpha > 0.0 && alpha < 1.0, "{alpha}");
            assert_eq!(cell["range_lookups"]["ops"], records["scans"]);
            assert!(number(cell, "/compaction/jobs") > 0.0 || cell["policy"] != "full");
            assert!(number(cell, "/ingested_bytes") > 0.0);
        }
    }
}

#[test]
fn trace_as_text_is_replayed_and_checked() {
    let dir = TestDir::new();
    let put = |number: u32| format!("put\tk{number:05}\tvalue\\t{number}\n");
    let mut trace: String = (0..3000).map(put).collect();
    trace.push_str("delete\tk00001\ndelete-range\tk01000\tk02000\nmerge\tk00002\t!!\n");
    trace.push_str("get\tk00001\nget\tk00003\nget\tk01500\nget\tk00002\n");
    trace.push_str("scan\tk00990\t20\nscan\t\t5\ndelete-range\tk02990\n");
    let file = dir.write("ops.tsv", trace);
    let cell = &cells(&format!("explore --policy lo+1 --memtable 16K --trace {file}"))[0];
    let lookups = &list(cell, "/point_lookups")[0];
    assert_eq!((number(lookups, "/ops"), number(lookups, "/alpha")), (4.0, 0.5));
    assert_eq!(cell["range_lookups"]["entries"], 25);
    assert!(sum_of_levels(cell, "/entries") >= 1989.0);
}

/// Regression test: the replay required all keys that the policy `fifo` had dropped.
#[test]
fn trace_is_replayed_with_a_policy_that_drops_data() {
    let dir = TestDir::new();
    let put = |number: u32| format!("put\tk{number:05}\tvalue {number}\n");
    let get = |number: u32| format!("get\tk{number:05}\n");
    let trace: String = (0..3000).map(put).chain((0..3000).map(get)).collect();
    let file = dir.write("ops.tsv", format!("{trace}scan\t\t5\nget\tabsent\n"));
    let words = "explore --policy fifo(20K) --memtable 16K --deterministic";
    let cell = &cells(&format!("{words} --trace {file}"))[0];
    let lookups = &list(cell, "/point_lookups")[0];
    let alpha = number(lookups, "/alpha");
    assert!(number(lookups, "/ops") == 3001.0 && alpha > 0.1 && alpha < 1.0, "{lookups}");
    assert_eq!(cell["range_lookups"]["entries"], 5);
}

#[test]
fn recorded_trace_is_dumped_and_its_damage_is_named() {
    let dir = TestDir::new();
    let trace = record(&dir, TraceOptions::default());
    let (data, path) = (dir.path("data"), trace.display());
    let dump = lsmx(&format!("db {data} dump {path} --limit 12")).ok();
    assert_contains(&dump, &["keys stored", "keyspace 0 is \"default\"", "put \"user"]);
    let mut bytes = fs::read(&trace).unwrap();
    bytes[100] ^= 1;
    fs::write(&trace, &bytes).unwrap();
    lsmx(&format!("explore --policy full --trace {path}"))
        .fails(1, &["cannot read a trace", "hour.trace is corrupt at byte 40"]);
}

/// Regression test: the default memtable of a trace without puts had terabytes, because its size was derived from the
/// bytes of puts.
#[test]
fn default_memtable_of_a_trace_of_merges_is_small() {
    let dir = TestDir::new();
    let line = |key: u32| format!("merge\t{key:08}\toperand of a merge\n");
    let lines = (0..5000).map(line).collect::<String>();
    let trace = dir.write("trace.tsv", format!("put\ta\tb\n{lines}"));
    let table = lsmx(&format!("explore --policy full --trace {trace} --dry-run")).ok();
    assert!(!table.contains("GiB") && !table.contains("TiB"), "{table}");
}
