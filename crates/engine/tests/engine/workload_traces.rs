//! Tests of workload traces of a running database: contents, excluded operations, and recording without delaying
//! operations.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::internals::format::log_record::{RECORD_HEADER_BYTES, RecordHeader, SyncMark};
use lsmx::internals::format::workload_trace::TraceItems;
use lsmx::internals::vfs::{CrashImage, Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::merge_operator::FieldUpdate;
use lsmx::vfs::{MemVfs, OsVfs, Vfs};
use lsmx::workload_trace::{
    BUFFER_BYTES_MIN, TraceEnd, TraceEvent, TraceHeader, TraceOptions, TraceReader,
};
use lsmx::{Db, Durability, Error, KeyspaceOptions, Options, ReadOptions, Update, WriteBatch};

use crate::harness::database;
use crate::harness::gate::{Gate, each};
use crate::harness::golden::{golden, golden_path};

const TRACE: &str = "day.trace";

fn open(disk: &(impl Vfs + Clone), background: Background) -> Db {
    let keyspace = KeyspaceOptions::default().merge_operator(FieldUpdate::default());
    let options = Options::default().background(background).keyspace_defaults(keyspace);
    database::open(disk, options.seed(3))
}

/// Records a trace of the calls that `operate` makes on a database without background threads. Returns the disk and the
/// result of `operate`.
fn record<T>(options: TraceOptions, operate: impl FnOnce(&Db) -> T) -> (MemVfs, T) {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Inline);
    let trace = db.record_trace(TRACE, options).unwrap();
    let result = operate(&db);
    trace.stop().unwrap();
    (disk, result)
}

/// Reads a trace. Returns one line of text per item, and the end of the trace.
fn items(vfs: &dyn Vfs, path: &str) -> Result<(Vec<String>, TraceEnd), Error> {
    let reader = TraceReader::open(vfs, Path::new(path))?;
    let mut items = Vec::new();
    let end = reader.visit(&mut |item| {
        let synced = if item.synced { " synced" } else { "" };
        items.push(format!("{:?}{synced}", item.event));
        Ok::<(), Error>(())
    })?;
    Ok((items, end))
}

/// Executes at least one operation of each kind. Returns the number of operations that the trace must contain.
fn execute_all_kinds(db: &Db) -> u64 {
    let plums = db.keyspace("plums", KeyspaceOptions::default()).unwrap();
    db.put("a", "red").unwrap();
    db.default_keyspace().merge("a", FieldUpdate::operand(0, b"R")).unwrap();
    db.get("a").unwrap();
    db.get("nothing").unwrap();
    db.delete("b").unwrap();
    let mut batch = WriteBatch::new();
    batch.put(&plums, "x", "12345");
    batch.delete_range(&db.default_keyspace(), "p".."q");
    batch.delete_range::<&str>(&plums, "y"..);
    db.write(batch, Durability::Sync).unwrap();
    assert_eq!(plums.multi_get(["x", "z"]).unwrap().iter().flatten().count(), 1);
    assert_eq!(db.default_keyspace().range("0".."b").count(), 1);
    assert_eq!(plums.iter().rev().take(1).count(), 1);
    // A trace does not count an iterator that is dropped before the first call of `next`.
    drop(plums.iter());
    plums.fetch_update("x", |_| Update::Put(b"7".to_vec())).unwrap();
    14
}

#[test]
fn trace_has_each_seek_of_a_cursor_as_a_scan() {
    let (disk, ()) = record(TraceOptions::default(), |db| {
        let keyspace = db.default_keyspace();
        for key in ["a", "b", "c"] {
            keyspace.put(key, "").unwrap();
        }
        let mut cursor = keyspace.cursor(&ReadOptions::default()).unwrap();
        cursor.seek("b").unwrap();
        cursor.next().unwrap();
        cursor.next().unwrap();
        cursor.seek_to_last().unwrap();
        cursor.seek_for_prev("bb").unwrap();
        cursor.prev().unwrap();
        // A trace does not count a cursor that is dropped before the first seek.
        drop(keyspace.cursor(&ReadOptions::default()).unwrap());
    });
    let (items, end) = items(&disk, TRACE).unwrap();
    assert_eq!(end.operations, 6);
    let scan = |backward: bool, start: Option<&[u8]>, entries: u64| {
        let start = start.map(<[u8]>::to_vec);
        format!(
            "Scan {{ keyspace: 0, backward: {backward}, start: {start:?}, entries: {entries} }}"
        )
    };
    let expected = [scan(false, Some(b"b"), 2), scan(true, None, 1), scan(true, Some(b"bb"), 2)];
    assert_eq!(items[4..7], expected);
}

/// A read may have a key that is longer than every stored key. The reader of a trace rejected such a key, and with it all
/// later items. It also rejected the end of a range delete that follows the longest key, if keys were hashed.
#[test]
fn trace_with_reads_of_too_long_keys_is_readable() {
    let (longest, longer) = (vec![b'a'; 64 << 10], vec![b'a'; 100_000]);
    for (hash_keys, recorded_bytes) in [(false, (64 << 10) + 1), (true, 64 << 10)] {
        let options = TraceOptions { hash_keys, ..TraceOptions::default() };
        let (disk, ()) = record(options, |db| {
            let keyspace = db.default_keyspace();
            keyspace.put(&longest, "").unwrap();
            assert_eq!(keyspace.get(&longer).unwrap(), None);
            assert_eq!(keyspace.multi_get([&longer]).unwrap(), [None]);
            assert_eq!(keyspace.range(longer.clone()..).count(), 0);
            let mut cursor = keyspace.cursor(&ReadOptions::default()).unwrap();
            cursor.seek_for_prev(&longer).unwrap();
            assert_eq!(cursor.key(), Some(&longest[..]));
            drop(cursor);
            let after_longest = (Bound::Excluded(&longest[..]), Bound::Excluded(&b"b"[..]));
            keyspace.delete_range::<&[u8]>(after_longest).unwrap();
        });
        let reader = TraceReader::open(&disk, Path::new(TRACE)).unwrap();
        let mut read_keys = Vec::new();
        let end = reader.visit(&mut |item| {
            if let TraceEvent::Get { key, .. } | TraceEvent::Scan { start: Some(key), .. } =
                item.event
            {
                read_keys.push(key.len());
            }
            Ok::<(), Error>(())
        });
        assert_eq!(end.unwrap(), TraceEnd { operations: 6, complete: true, ..TraceEnd::default() });
        assert_eq!(read_keys, [recorded_bytes; 4], "hashed: {hash_keys}");
    }
}

#[test]
fn trace_has_every_operation_in_order() {
    for background in [Background::Inline, Background::Threads { workers: 1 }] {
        let disk = MemVfs::new();
        let db = open(&disk, background);
        db.put("before", "unseen").unwrap();
        let trace = db.record_trace(TRACE, TraceOptions::default()).unwrap();
        let operations = execute_all_kinds(&db);
        let summary = trace.stop().unwrap();
        db.put("after", "unseen").unwrap();
        // A power loss after `stop` must not affect the trace file or its directory entry.
        let disk = disk.crash(CrashImage::Drop, 0);
        assert_eq!((summary.operations, summary.lost), (operations, 0));
        let bytes = disk.open(Path::new(TRACE)).unwrap().len().unwrap();
        assert_eq!(summary.bytes, bytes);
        let (items, end) = items(&disk, TRACE).unwrap();
        assert_eq!(end, TraceEnd { operations, lost: 0, complete: true, bytes_cut: 0 });
        let sized = |bytes: u64| format!("TraceValue {{ bytes: {bytes}, content: None }}");
        let key = |text: &str| format!("{:?}", text.as_bytes());
        let expected = [
            "Keyspace { keyspace: 0, name: \"default\" }".to_owned(),
            format!("Put {{ keyspace: 0, key: {}, value: {} }}", key("a"), sized(3)),
            format!("Merge {{ keyspace: 0, key: {}, operand: {} }}", key("a"), sized(9)),
            format!("Get {{ keyspace: 0, key: {}, found: Some(3) }}", key("a")),
            format!("Get {{ keyspace: 0, key: {}, found: None }}", key("nothing")),
            format!("Delete {{ keyspace: 0, key: {} }}", key("b")),
            "Keyspace { keyspace: 1, name: \"plums\" }".to_owned(),
            "Batch { operations: 3 } synced".to_owned(),
            format!("Put {{ keyspace: 1, key: {}, value: {} }} synced", key("x"), sized(5)),
            format!(
                "DeleteRange {{ keyspace: 0, start: {}, end: Some({}) }} synced",
                key("p"),
                key("q")
            ),
            format!("DeleteRange {{ keyspace: 1, start: {}, end: None }} synced", key("y")),
            format!("Get {{ keyspace: 1, key: {}, found: Some(5) }}", key("x")),
            format!("Get {{ keyspace: 1, key: {}, found: None }}", key("z")),
            format!(
                "Scan {{ keyspace: 0, backward: false, start: Some({}), entries: 1 }}",
                key("0")
            ),
            "Scan { keyspace: 1, backward: true, start: None, entries: 1 }".to_owned(),
            format!("Get {{ keyspace: 1, key: {}, found: Some(5) }}", key("x")),
            format!("Put {{ keyspace: 1, key: {}, value: {} }}", key("x"), sized(1)),
            format!("End {{ operations: {operations} }}"),
        ];
        assert_eq!(items, expected);
    }
}

#[test]
fn trace_omits_refused_and_empty_batches() {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Inline);
    let trace = db.record_trace(TRACE, TraceOptions::default()).unwrap();
    let seen = db.snapshot().seq();
    db.put("k", "1").unwrap();
    let mut batch = WriteBatch::new();
    batch.put(&db.default_keyspace(), "k", "2");
    batch.guard(&db.default_keyspace(), "k", seen);
    assert!(matches!(db.write(batch, Durability::Buffered), Err(Error::Conflict { .. })));
    db.write(WriteBatch::new(), Durability::Sync).unwrap();
    assert_eq!(trace.stop().unwrap().operations, 1);
}

#[test]
fn trace_with_hashed_keys_keeps_equality_and_length_only() {
    let options = TraceOptions { hash_keys: true, ..TraceOptions::default() };
    let (disk, ()) = record(options, |db| {
        db.put("a secret key", "1").unwrap();
        db.get("a secret key").unwrap();
        db.get("k").unwrap();
        db.default_keyspace().delete_range("a secret key".."z").unwrap();
    });
    let bytes = disk.read_all(Path::new(TRACE)).unwrap();
    assert!(!bytes.windows(6).any(|window| window == b"secret"));
    let reader = TraceReader::open(&disk, Path::new(TRACE)).unwrap();
    assert!(reader.header().keys_hashed && !reader.header().values_kept);
    let mut keys = Vec::new();
    let visit = &mut |item: lsmx::workload_trace::TraceItem<'_>| {
        match item.event {
            TraceEvent::Put { key, .. } | TraceEvent::Get { key, .. } => keys.push(key.to_vec()),
            TraceEvent::DeleteRange { start, end, .. } => {
                keys.push(start.to_vec());
                assert_eq!(end, Some([start, &[0]].concat().as_slice()), "not only the first key");
            }
            _ => {}
        }
        Ok::<(), Error>(())
    };
    reader.visit(visit).unwrap();
    assert!(keys[0] == keys[1] && keys[0] == keys[3] && keys[0] != keys[2]);
    assert_eq!((keys[0].len(), keys[2].len()), (12, 8));
}

#[test]
fn trace_with_keep_values_contains_values() {
    let options = TraceOptions { keep_values: true, ..TraceOptions::default() };
    let (disk, ()) = record(options, |db| db.put("k", "value").unwrap());
    let (items, _) = items(&disk, TRACE).unwrap();
    assert!(items[1].contains(&format!("content: Some({:?})", b"value")), "{items:?}");
}

#[test]
fn record_trace_second_trace_existing_file_or_invalid_options_are_refused() {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Threads { workers: 1 });
    let trace = db.record_trace(TRACE, TraceOptions::default()).unwrap();
    let second = db.record_trace("other.trace", TraceOptions::default()).unwrap_err().to_string();
    assert!(second.contains("other.trace") && second.contains("being recorded"), "{second}");
    assert!(disk.open(Path::new("other.trace")).is_err());
    drop(trace);
    assert!(matches!(
        db.record_trace(TRACE, TraceOptions::default()),
        Err(Error::Io { action: "create", .. })
    ));
    assert!(matches!(
        db.record_trace("db/000099.sst", TraceOptions::default()),
        Err(Error::OutputInDatabase { .. })
    ));
    let options = TraceOptions { buffer_bytes: 1, ..TraceOptions::default() };
    let refused = db.record_trace("small.trace", options);
    assert!(matches!(refused, Err(Error::InvalidOption { .. })));
    let trace = db.record_trace("other.trace", TraceOptions::default()).unwrap();
    db.put("k", "v").unwrap();
    db.close(None).unwrap();
    assert!(matches!(db.record_trace("late.trace", TraceOptions::default()), Err(Error::Closed)));
    // The trace handle remains usable after the database handle is dropped.
    drop(db);
    assert_eq!(trace.stop().unwrap().operations, 1);
    assert!(items(&disk, "other.trace").unwrap().1.complete);
}

#[test]
fn trace_on_a_failing_disk_ends_and_operations_continue() {
    for background in [Background::Inline, Background::Threads { workers: 1 }] {
        for call in [VfsCall::Append, VfsCall::Sync] {
            let disk = MemVfs::new();
            let faulty = FaultVfs::new(Arc::new(disk.clone()), 1);
            let db = open(&faulty, background);
            let trace = db.record_trace(TRACE, TraceOptions::default()).unwrap();
            let rule = FaultRule::new(Fault::Error(Errno::NoSpace)).for_calls(&[call]);
            faulty.add_rule(rule.path_contains(TRACE).from_then_on());
            for number in 0..3000u32 {
                db.put(format!("key {number:08}"), "value").unwrap();
                assert!(db.get(format!("key {number:08}")).unwrap().is_some());
            }
            assert!(db.health().read_only.is_none());
            let error = trace.stop().unwrap_err();
            assert!(matches!(&error, Error::Io { path, .. } if path.ends_with(TRACE)), "{error:?}");
            // After a failed trace, a new trace can be recorded to another file.
            let trace = db.record_trace("second.trace", TraceOptions::default()).unwrap();
            db.put("k", "v").unwrap();
            assert_eq!(trace.stop().unwrap().operations, 1);
        }
    }
}

/// If the trace buffer is full, an operation is not recorded. The summary and the trace contain the number of lost
/// operations.
#[test]
fn trace_on_a_blocked_disk_delays_no_operation() {
    let disk = MemVfs::new();
    let gate = Gate::default();
    let append = each(&[VfsCall::Append], TRACE);
    let faulty = gate.over(Arc::new(disk.clone()), append, "");
    let db = open(&faulty, Background::Threads { workers: 1 });
    let options = TraceOptions { buffer_bytes: BUFFER_BYTES_MIN, ..TraceOptions::default() };
    let trace = db.record_trace(TRACE, options).unwrap();
    gate.shut();
    let puts = 20_000u64;
    for number in 0..puts {
        db.put(format!("key {number:020}"), "v").unwrap();
    }
    let halfway = trace.summary().unwrap();
    assert!(halfway.lost > 0 && halfway.operations > 1000, "{halfway:?}");
    assert_eq!(halfway.operations + halfway.lost, puts);
    gate.open();
    // Recording resumes as soon as the trace buffer has free space.
    let mut more = 0;
    while trace.summary().unwrap().lost == halfway.lost && more < 1000 {
        db.put("again", "v").unwrap();
        more += 1;
    }
    let summary = trace.stop().unwrap();
    assert_eq!(summary.operations + summary.lost, puts + more);
    let (items, end) = items(&disk, TRACE).unwrap();
    assert_eq!((end.operations, end.lost), (summary.operations, summary.lost));
    assert!(end.complete && items.iter().any(|item| item.starts_with("Lost")));
}

#[test]
fn trace_has_the_operations_of_all_threads() {
    const THREADS: u64 = 4;
    const OPERATIONS: u64 = 3000;
    let disk = MemVfs::new();
    let db = open(&disk, Background::Threads { workers: 1 });
    let options = TraceOptions { buffer_bytes: 64 << 20, ..TraceOptions::default() };
    let trace = db.record_trace(TRACE, options).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let db = &db;
            scope.spawn(move || {
                for number in 0..OPERATIONS {
                    db.put(format!("{thread}-{number}"), "v").unwrap();
                }
            });
        }
    });
    assert_eq!(trace.stop().unwrap().operations, THREADS * OPERATIONS);
    let (items, end) = items(&disk, TRACE).unwrap();
    assert_eq!((end.operations, end.lost), (THREADS * OPERATIONS, 0));
    let puts: std::collections::BTreeSet<_> = items.iter().collect();
    // The trace contains the puts, the name of the keyspace, and an end item.
    assert_eq!(puts.len() as u64, THREADS * OPERATIONS + 2);
}

#[test]
fn trace_cut_or_damaged_is_read_up_to_the_damage_or_refused() {
    lsmx_testkit::time_test();
    let (disk, ()) = record(TraceOptions::default(), |db| {
        for number in 0..6000u32 {
            db.put(format!("key {number:016}"), "v").unwrap();
        }
    });
    let bytes = disk.read_all(Path::new(TRACE)).unwrap();
    let (whole, _) = items(&disk, TRACE).unwrap();
    let with = |bytes: &[u8]| {
        let copy = MemVfs::new();
        copy.write_all(Path::new(TRACE), bytes).unwrap();
        items(&copy, TRACE)
    };
    let (mut ends, mut errors) = (0, 0);
    for at in (0..bytes.len()).step_by(bytes.len() / 200) {
        match with(&bytes[..at]) {
            Ok((read, end)) => {
                assert!(!end.complete && whole.starts_with(&read), "cut at {at}");
                ends += 1;
            }
            Err(error) => assert!(at < 40, "cut at {at}: {error}"),
        }
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        match with(&damaged) {
            Ok((read, end)) => assert!(!end.complete && whole.starts_with(&read), "damage at {at}"),
            Err(Error::Corrupt { .. } | Error::UnsupportedVersion { .. }) => errors += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(ends > 150 && errors > 50, "{ends} cut traces were read, {errors} errors");
}

#[test]
fn golden_traces_of_every_version_are_read() {
    let options = TraceOptions { keep_values: true, ..TraceOptions::default() };
    let (disk, operations) = record(options, execute_all_kinds);
    golden("trace-v2", || disk.read_all(Path::new(TRACE)).unwrap());
    let (written, _) = items(&disk, TRACE).unwrap();
    for name in ["trace-v1", "trace-v2"] {
        let (read, end) = items(&OsVfs, golden_path(name).to_str().unwrap()).unwrap();
        assert_eq!(written, read);
        assert!(end.complete && end.operations == operations);
    }
}

#[test]
fn golden_trace_is_encoded_unchanged() {
    let golden = golden("trace-v2", || panic!("the golden file is missing"));
    let header = TraceHeader::decode(&golden).unwrap();
    assert!(header.values_kept && !header.keys_hashed);
    let mut written = header.encode().to_vec();
    while written.len() < golden.len() {
        let rest = &golden[written.len()..];
        let place = (header.seed(), written.len() as u64);
        let first = rest.first_chunk().unwrap();
        let record = RecordHeader::decode(first, place, rest.len() as u64).unwrap();
        let payload = &rest[RECORD_HEADER_BYTES..usize::try_from(record.record_bytes()).unwrap()];
        let mut items = Vec::new();
        for item in TraceItems::new(payload, true) {
            item.unwrap().encode(true, &mut items);
        }
        let numbers = (record.first_seq, record.count);
        RecordHeader::encode_record(&mut written, place, numbers, SyncMark::default(), &items)
            .unwrap();
    }
    assert_eq!(written, golden);
}
