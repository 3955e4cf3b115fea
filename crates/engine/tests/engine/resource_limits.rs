//! Tests of resource limits: memory budget, open file descriptors, background I/O rate, and removal of unused files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lsmx::env::Background;
use lsmx::internals::vfs::{CountingVfs, Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Error, Event, KeyspaceOptions, Malformed, Options, WriteOptions};
use lsmx_testkit::EventLog;

use crate::harness::database::{
    self, compact, entries, files, metrics, open, policy, settle, small, wait_until,
};
use crate::harness::gate::{Gate, each};

fn inline() -> Options {
    database::inline().keyspace_defaults(small())
}

/// Maps consecutive numbers to keys in random order, so the key ranges of all runs overlap.
fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn value(number: u64) -> [u8; 60] {
    [u8::try_from(number % 256).unwrap(); 60]
}

fn load(db: &Db, numbers: std::ops::Range<u64>) {
    for number in numbers {
        db.put(key(number), value(number)).unwrap();
    }
}

fn check(db: &Db, numbers: std::ops::Range<u64>) {
    for number in numbers {
        assert_eq!(db.get(key(number)).unwrap().as_deref(), Some(&value(number)[..]));
    }
}

fn tables(db: &Db) -> u64 {
    metrics(db).total().files
}

#[test]
fn memory_budget_with_full_memtables_stops_writes() {
    let (gate, events) = (Gate::default(), EventLog::default());
    let disk = gate.disk(each(&[VfsCall::Create], ".sst"), "");
    let options = Options::default().memory_budget(4 << 20).listener(Arc::new(events.clone()));
    let db = open(&disk, options);
    let other = db.keyspace("other", KeyspaceOptions::default()).unwrap();
    let main = db.default_keyspace();
    let keyspace_of = |number: u64| if number.is_multiple_of(2) { &main } else { &other };
    gate.shut();
    let cause = "memory for memtables";
    let quick = WriteOptions { no_slowdown: true, ..WriteOptions::default() };
    let put = |number: u64| {
        keyspace_of(number).with_write_options(quick).put(key(number), vec![1; 20_000])
    };
    let (written, refused) =
        (0..1_000).find_map(|number| Some((number, put(number).err()?))).expect("no write fails");
    assert!(matches!(refused, Error::WouldWait { cause: found } if found == cause), "{refused}");
    let memory = db.metrics().memory;
    assert_eq!((memory.budget_bytes, memory.memtable_bytes_max), (Some(4 << 20), 3 << 19));
    let used = memory.memtables_active + memory.memtables_sealed;
    assert!((3 << 19..(3 << 19) + 21_000).contains(&used), "{memory:?}");
    let deadline = Some(Duration::from_millis(20));
    let short = WriteOptions { deadline, ..WriteOptions::default() };
    let late = main.with_write_options(short).put("late", "x").unwrap_err();
    assert!(matches!(late, Error::Deadline { cause: found } if found == cause), "{late}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| main.put("patient", "x"));
        wait_until("the start of a second stall", || {
            events.count(|event| matches!(event, Event::StallBegin(_))) == 2
        });
        assert!(!waiting.is_finished());
        gate.open();
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(db.get("late").unwrap(), None);
    let stall = metrics(&db).stalls.memory_full;
    assert!(stall.count >= 2 && stall.us_max > 0, "{stall:?}");
    for number in 0..written {
        let found = keyspace_of(number).get(key(number)).unwrap();
        assert_eq!(found.map(|value| value.len()), Some(20_000));
    }
}

#[test]
fn memtable_pinned_by_an_iterator_does_not_stop_writes() {
    let db = open(&MemVfs::new(), Options::default().memory_budget(4 << 20));
    db.put("held", vec![1; 500_000]).unwrap();
    let iterator = db.default_keyspace().iter();
    db.flush().unwrap();
    // The writes are twice as large as the memtable limit, which the engine derives from the memory budget.
    for number in 0..30 {
        db.put(key(number), vec![1; 100_000]).unwrap();
    }
    let memory = db.metrics().memory;
    assert!(memory.memtables_pinned >= 500_000, "{memory:?}");
    let held = db.metrics().held;
    assert!(held.old_views >= 1 && held.view_pins >= 1, "{held:?}");
    assert_eq!(entries(iterator)[0].1.len(), 500_000);
    // A background thread may still be writing a sealed memtable to a table.
    db.wait_idle().unwrap();
    wait_until("all memtables are unpinned", || db.metrics().memory.memtables_pinned == 0);
}

#[test]
fn memory_budget_bounds_block_cache_and_open_tables() {
    lsmx_testkit::time_test();
    let disk = MemVfs::new();
    let options = || inline().memory_budget(4 << 20);
    let db = open(&disk, options());
    load(&db, 0..20_000);
    check(&db, 0..20_000);
    let memory = db.metrics().memory;
    assert_eq!(memory.block_cache_bytes_max, (4 << 20) / 2);
    assert!(memory.open_tables > 200 << 10, "{memory:?}");
    let blocks = memory.data_blocks + memory.metadata_blocks;
    assert!(blocks + memory.open_tables <= memory.block_cache_bytes_max, "{memory:?}");
    assert!(memory.total() <= 4 << 20, "{memory:?}");
    drop(db);
    let db = open(&disk, options());
    check(&db, 0..20_000);
    assert!(db.metrics().memory.total() <= 4 << 20);
}

#[test]
fn open_files_max_below_the_number_of_tables_allows_all_reads() {
    let disk = CountingVfs::new(Arc::new(MemVfs::new()));
    for limit in [1, 8] {
        let db = open(&disk, inline().open_files_max(limit).block_cache_bytes(8 << 20));
        load(&db, 0..3_000);
        assert!(tables(&db) > 30, "{} tables", tables(&db));
        check(&db, 0..3_000);
        let descriptors = db.metrics().descriptors;
        assert!(descriptors.open <= limit as u64, "{descriptors:?}");
        assert!(descriptors.reopened > 0);
        // All blocks are in the block cache, and closing a file descriptor evicts no blocks. Reads of these blocks
        // therefore open no file.
        let opens = disk.counts().calls.count_of(VfsCall::Open);
        check(&db, 0..3_000);
        assert_eq!(disk.counts().calls.count_of(VfsCall::Open), opens);
        assert_eq!(db.default_keyspace().iter().rev().count(), 3_000);
        db.close(None).unwrap();
    }
}

#[test]
fn iterator_of_a_closed_database_reads_files_removed_after_a_reopen() {
    let disk = MemVfs::new();
    let options = || inline().open_files_max(1).block_cache_bytes(0);
    let db = open(&disk, options());
    load(&db, 0..2_000);
    let before = files(&disk, ".sst");
    let mut iterators = vec![db.default_keyspace().iter()];
    load(&db, 2_000..2_500);
    iterators.push(db.default_keyspace().iter());
    db.keyspace("other", small()).unwrap().put("k", "v").unwrap();
    db.flush().unwrap();
    iterators.push(db.open_keyspace("other", None).unwrap().iter());
    db.drop_keyspace("other").unwrap();
    drop(db);
    let db = open(&disk, options());
    load(&db, 0..2_500);
    compact(&db).unwrap();
    let after = files(&disk, ".sst");
    assert!(before.iter().all(|path| !after.contains(path)));
    let counts: Vec<_> = iterators.into_iter().map(|range| entries(range).len()).collect();
    assert_eq!(counts, [2_000, 2_500, 1]);
}

#[test]
fn open_files_max_bounds_descriptors_of_the_process() {
    lsmx_testkit::time_test();
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), inline().open_files_max(8).block_cache_bytes(0)).unwrap();
    load(&db, 0..3_000);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| check(&db, 0..3_000));
        }
    });
    #[cfg(target_os = "linux")]
    {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let is_table = |target: PathBuf| {
            target.starts_with(dir.path()) && target.extension().is_some_and(|it| it == "sst")
        };
        let tables = open.filter(|at| std::fs::read_link(at.path()).is_ok_and(is_table));
        assert!(tables.count() <= 8);
    }
    db.close(None).unwrap();
}

#[test]
fn table_replaced_on_disk_is_reported_as_corrupt() {
    let disk = MemVfs::new();
    let tiering = small().policy(policy("tiering(T=10)"));
    let options = inline().keyspace_defaults(tiering).open_files_max(1).block_cache_bytes(0);
    let db = open(&disk, options);
    load(&db, 0..100);
    let tables = files(&disk, ".sst");
    assert!(tables.len() > 1);
    // The test overwrites all other tables with the bytes of the first table. One table stays readable through its open
    // descriptor.
    let bytes = disk.read_all(&tables[0]).unwrap();
    for path in &tables[1..] {
        disk.remove(path).unwrap();
        disk.create(path).unwrap().append(&bytes).unwrap();
    }
    let mut refused = 0;
    for number in 0..100 {
        match db.get(key(number)) {
            Ok(Some(found)) => assert_eq!(found, value(number)),
            Ok(None) => panic!("{number} is lost"),
            Err(Error::Corrupt { source: Malformed::Identity { .. }, .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 0);
}

#[test]
fn call_without_free_descriptors_closes_tables_and_retries() {
    let none_left = Fault::Error(Errno::TooManyFiles);
    for call in [VfsCall::Create, VfsCall::Open, VfsCall::SyncDir] {
        let disk = FaultVfs::new(Arc::new(MemVfs::new()), 1);
        let db = open(&disk, inline().block_cache_bytes(0).open_files_max(9));
        load(&db, 0..500);
        check(&db, 0..500);
        assert!(db.metrics().descriptors.open > 1);
        disk.add_rule(FaultRule::new(none_left).for_calls(&[call]).nth(0));
        load(&db, 500..1_000);
        check(&db, 0..1_000);
        assert_eq!(disk.fired_counts().get(&none_left), Some(&1), "{call:?}");
        assert!(db.health().read_only.is_none());
    }
}

/// After the iterator is dropped, background threads remove its files. No further write is needed.
#[test]
fn files_of_an_iterator_are_readable_and_removed_after_its_drop() {
    let disk = MemVfs::new();
    let table_files = || files(&disk, ".sst").len() as u64;
    let workers = Background::Threads { workers: 1 };
    let db = open(&disk, inline().background(workers).open_files_max(1).block_cache_bytes(0));
    load(&db, 0..2_000);
    settle(&db);
    let iterator = db.default_keyspace().iter();
    for number in (0..3).flat_map(|_| 0..2_000) {
        db.put(key(number), [0xee; 60]).unwrap();
    }
    settle(&db);
    let held = db.metrics().held;
    assert!(held.files > 0 && held.file_bytes > 0, "{held:?}");
    let before = table_files();
    let found = entries(iterator);
    let mut expected: Vec<_> = (0..2_000).map(|number| (key(number), value(number))).collect();
    expected.sort_unstable();
    assert!(
        found
            .iter()
            .map(|(key, value)| (&**key, &**value))
            .eq(expected.iter().map(|(key, value)| (&key[..], &value[..])))
    );
    drop(found);
    wait_until("removal of the iterator's files", || {
        db.metrics().held.files == 0 && table_files() == tables(&db)
    });
    assert!(table_files() < before);
}

/// A returned value keeps its block in memory after the cache evicts the block. The metric counts such blocks.
#[test]
fn metrics_count_blocks_pinned_by_values() {
    let disk = MemVfs::new();
    let db = open(&disk, inline().block_cache_bytes(1 << 20));
    load(&db, 0..2_000);
    db.flush().unwrap();
    let held = || db.metrics().held.block_bytes;
    assert_eq!(held(), 0);
    let cached = db.get(key(7)).unwrap().unwrap();
    assert_eq!(held(), 0, "the block of {cached:?} is in the block cache");
    // Scans do not add data blocks to the block cache.
    let mut scanned = entries(db.default_keyspace().iter());
    let all = held();
    assert!(all >= 1_000 * 60, "{all}");
    let mut number = 0;
    scanned.retain(|_| {
        number += 1;
        number % 50 == 0
    });
    assert!((1..all / 4).contains(&held()), "{} of {all}", held());
    assert!(db.metrics().to_string().contains("; blocks "));
    drop(scanned);
    assert_eq!(held(), 0);
    db.close(None).unwrap();
    drop(db);
    let db = open(&disk, inline().block_cache_bytes(0));
    let value = db.get(key(7)).unwrap().unwrap();
    assert!(db.metrics().held.block_bytes >= 60);
    drop(value);
    assert_eq!(db.metrics().held.block_bytes, 0);
}

#[test]
fn resume_keeps_files_of_iterators() {
    let memory = MemVfs::new();
    let disk = FaultVfs::new(Arc::new(memory.clone()), 1);
    let db = open(&disk, inline().open_files_max(1).block_cache_bytes(0));
    load(&db, 0..1_000);
    let iterator = db.default_keyspace().iter();
    load(&db, 1_000..3_000);
    assert!(db.metrics().held.files > 0);
    let rule = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Append]);
    disk.add_rule(rule.path_contains(".wal").nth(0));
    assert!(db.put("fails", "x").is_err());
    disk.clear_rules();
    db.resume().unwrap();
    assert_eq!(entries(iterator).len(), 1_000);
    load(&db, 3_000..3_100);
    db.wait_idle().unwrap();
    assert_eq!(db.metrics().held.files, 0);
    assert_eq!(files(&memory, ".sst").len() as u64, tables(&db));
}

#[test]
fn idle_memtable_is_flushed_after_its_time() {
    let db = open(&MemVfs::new(), inline().flush_idle_after(Duration::from_secs(10)));
    let flushes = || metrics(&db).flushes;
    db.put("trickle", "x").unwrap();
    for _ in 0..3 {
        // Each write restarts the time after which an idle memtable is flushed.
        db.env().advance_us(6_000_000);
        db.put("trickle", "x").unwrap();
        db.wait_idle().unwrap();
    }
    assert_eq!(flushes(), 0);
    for _ in 0..3 {
        db.env().advance_us(6_000_000);
        db.wait_idle().unwrap();
    }
    assert_eq!((flushes(), db.metrics().memory.memtables_active), (1, 0));
    db.env().advance_us(20_000_000);
    db.wait_idle().unwrap();
    assert_eq!(flushes(), 1, "an empty memtable was flushed");
}

#[test]
fn idle_memtable_is_flushed_by_background_threads() {
    let options = inline().background(Background::Threads { workers: 1 });
    let db = open(&MemVfs::new(), options.flush_idle_after(Duration::from_millis(20)));
    db.put("once", "x").unwrap();
    wait_until("a flush", || metrics(&db).flushes == 1);
}

#[test]
fn background_io_rate_slows_background_work() {
    let measure = |options: Options| {
        let db =
            open(&MemVfs::new(), options.background(Background::Stepped { seed: 3, workers: 1 }));
        let start_us = db.env().now_us();
        load(&db, 0..2_000);
        settle(&db);
        let io = db.metrics().background_io;
        let waited_us = io.flush.waited_us + io.compaction.waited_us;
        (db.env().now_us() - start_us, io.flush.bytes + io.compaction.bytes, waited_us)
    };
    let (unlimited_us, unlimited_bytes, unlimited_waited_us) = measure(inline());
    assert!(unlimited_bytes > 200_000 && unlimited_waited_us == 0);
    let (limited_us, bytes, waited_us) = measure(inline().background_io_rate(100_000));
    // At 100,000 bytes per second, one byte takes 10 µs. Bursts are allowed, so the test accepts 20 % less time.
    assert!(limited_us > unlimited_us + bytes * 10 * 8 / 10, "{limited_us} us for {bytes} bytes");
    assert!(waited_us > 0);
}

#[test]
fn level_metrics_sum_to_the_keyspace_metrics() {
    let db = open(&MemVfs::new(), inline());
    load(&db, 0..3_000);
    check(&db, 0..10);
    let _snapshot = db.snapshot();
    db.env().advance_us(5_000_000);
    let metrics = db.metrics();
    assert_eq!(metrics.held.snapshots, 1);
    assert!(metrics.held.oldest_snapshot_age_us >= 5_000_000);
    let keyspace = &metrics.keyspaces["default"];
    let flows: Vec<_> = keyspace.levels.iter().map(|level| &level.flow).collect();
    assert_eq!(flows[0].written_bytes, keyspace.flushed_bytes);
    let merged: u64 = flows[1..].iter().map(|flow| flow.written_bytes).sum();
    assert_eq!(merged, keyspace.compaction.written_bytes);
    let read: u64 = flows.iter().map(|flow| flow.read_bytes).sum();
    assert_eq!(read, keyspace.compaction.read_bytes);
    assert_eq!(metrics.flush_us.count, keyspace.flushes);
    let text = metrics.to_string();
    for word in ["keyspace default (", "total", "memory", "1 snapshots", "w-amp"] {
        assert!(text.contains(word), "{word} in\n{text}");
    }
    let json = serde_json::to_value(&metrics).unwrap();
    assert_eq!(json["held"]["snapshots"], 1);
    assert!(json["memory"]["memtables_active"].is_u64());
}
