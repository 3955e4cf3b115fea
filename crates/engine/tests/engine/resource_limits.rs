//! Resource limits: bounded memory, few descriptors, a limited I/O rate, nothing left after a close.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lsmx::env::Background;
use lsmx::internals::vfs::{CountingVfs, Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Error, Event, KeyspaceOptions, Malformed, Options, WriteOptions};
use lsmx_testkit::EventLog;

fn tuning() -> KeyspaceOptions {
    KeyspaceOptions::default().memtable_bytes(4 << 10).table_bytes(4 << 10).block_bytes(256)
}

fn inline() -> Options {
    Options::default().background(Background::Inline).seed(1).keyspace_defaults(tuning())
}

fn open(disk: &impl AsVfs, options: Options) -> Db {
    Db::open("db", options.vfs(disk.vfs())).unwrap()
}

trait AsVfs {
    fn vfs(&self) -> Arc<dyn Vfs>;
}

impl<V: Vfs + Clone> AsVfs for V {
    fn vfs(&self) -> Arc<dyn Vfs> {
        Arc::new(self.clone())
    }
}

fn key(number: u64) -> [u8; 8] {
    // Scattered, so that runs overlap.
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

#[expect(clippy::disallowed_methods, reason = "threads of the test wait for threads of the engine")]
fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("a minute passed without: {what}");
}

/// A disk on which tables are not created while the gate is shut.
fn gated() -> (FaultVfs, Arc<AtomicBool>) {
    let disk = FaultVfs::new(Arc::new(MemVfs::new()), 1);
    let shut = Arc::new(AtomicBool::new(false));
    disk.add_rule(FaultRule::new(Fault::Delay).for_calls(&[VfsCall::Create]).path_contains(".sst"));
    let gate = Arc::clone(&shut);
    disk.set_delay_hook(Some(Arc::new(move |_, _| {
        until("the gate opens", || !gate.load(Ordering::Acquire));
    })));
    (disk, shut)
}

#[test]
fn writes_wait_where_all_memtables_are_at_their_bound() {
    let (disk, shut) = gated();
    let events = EventLog::default();
    let db =
        open(&disk, Options::default().memory_budget(4 << 20).listener(Arc::new(events.clone())));
    let other = db.keyspace("other", KeyspaceOptions::default()).unwrap();
    let main = db.default_keyspace();
    shut.store(true, Ordering::Release);
    let cause = "memory for memtables";
    let quick = WriteOptions { no_slowdown: true, ..WriteOptions::default() };
    let mut number = 0;
    let refused = loop {
        let keyspace = if number % 2 == 0 { &main } else { &other };
        match keyspace.with_write_options(quick).put(key(number), vec![1; 20_000]) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
        assert!(number < 1_000, "no write ever waited");
    };
    assert!(matches!(refused, Error::WouldWait { cause: found } if found == cause), "{refused}");
    let memory = db.metrics().memory;
    assert_eq!((memory.budget_bytes, memory.memtable_bytes_max), (Some(4 << 20), 3 << 19));
    let used = memory.memtables_active + memory.memtables_sealed;
    assert!((3 << 19..(3 << 19) + 21_000).contains(&used), "{memory:?}");
    let patience = Some(Duration::from_millis(20));
    let short = WriteOptions { deadline: patience, ..WriteOptions::default() };
    let late = main.with_write_options(short).put("late", "x").unwrap_err();
    assert!(matches!(late, Error::Deadline { cause: found } if found == cause), "{late}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| main.put("patient", "x"));
        until("a second stall begins", || {
            events.count(|event| matches!(event, Event::StallBegin(_))) == 2
        });
        assert!(!waiting.is_finished());
        shut.store(false, Ordering::Release);
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(db.get("late").unwrap(), None);
    let stall = db.metrics().keyspaces["default"].stalls.memory_full;
    assert!(stall.count >= 2 && stall.us_max >= 15_000, "{stall:?}");
    for number in 0..number {
        let keyspace = if number % 2 == 0 { &main } else { &other };
        assert_eq!(keyspace.get(key(number)).unwrap().map(|value| value.len()), Some(20_000));
    }
}

#[test]
fn an_iterator_that_holds_a_flushed_memtable_stops_no_write() {
    let disk = MemVfs::new();
    let db = open(&disk, Options::default().memory_budget(4 << 20));
    db.put("held", vec![1; 500_000]).unwrap();
    let main = db.default_keyspace();
    let mut iterator = main.iter();
    db.flush().unwrap();
    // As much as all memtables may have, twice.
    for number in 0..30 {
        db.put(key(number), vec![1; 100_000]).unwrap();
    }
    let memory = db.metrics().memory;
    assert!(memory.memtables_pinned >= 500_000, "{memory:?}");
    let held = db.metrics().held;
    assert!(held.old_views >= 1 && held.view_pins >= 1, "{held:?}");
    assert_eq!(iterator.next().unwrap().unwrap().1.len(), 500_000);
    drop(iterator);
    assert_eq!(db.metrics().memory.memtables_pinned, 0);
}

#[test]
fn the_cache_and_open_tables_keep_to_what_memtables_leave() {
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
fn many_files_are_read_through_few_descriptors() {
    let disk = CountingVfs::new(Arc::new(MemVfs::new()));
    for limit in [1, 8] {
        let db = open(&disk, inline().open_files_max(limit).block_cache_bytes(8 << 20));
        load(&db, 0..3_000);
        let files: u64 = db.metrics().keyspaces["default"].levels.iter().map(|at| at.files).sum();
        assert!(files > 30, "{files} files");
        check(&db, 0..3_000);
        let metrics = db.metrics();
        assert!(metrics.descriptors.open <= limit as u64, "{:?}", metrics.descriptors);
        assert!(metrics.descriptors.reopened > 0);
        // All blocks are in memory now: a closed descriptor takes nothing of it away.
        let opens = disk.counts().calls.count_of(VfsCall::Open);
        check(&db, 0..3_000);
        assert_eq!(disk.counts().calls.count_of(VfsCall::Open), opens);
        // Backward as well, through all files at once.
        assert_eq!(db.default_keyspace().iter().rev().count(), 3_000);
        db.close(None).unwrap();
    }
}

#[test]
fn what_an_iterator_holds_stays_readable_when_the_next_owner_has_removed_it() {
    let disk = MemVfs::new();
    let options = || inline().open_files_max(1).block_cache_bytes(0);
    let db = open(&disk, options());
    load(&db, 0..2_000);
    let before = disk.paths();
    let mut iterators = vec![db.default_keyspace().iter()];
    load(&db, 2_000..2_500);
    iterators.push(db.default_keyspace().iter());
    db.keyspace("other", tuning()).unwrap().put("k", "v").unwrap();
    db.flush().unwrap();
    iterators.push(db.open_keyspace("other", None).unwrap().iter());
    db.drop_keyspace("other").unwrap();
    drop(db);
    let db = open(&disk, options());
    load(&db, 0..2_500);
    db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
    let is_table = |path: &&PathBuf| path.extension().is_some_and(|it| it == "sst");
    let after = disk.paths();
    assert!(before.iter().filter(is_table).all(|path| !after.contains(path)));
    let counts: Vec<_> = iterators.into_iter().map(|all| all.map(Result::unwrap).count()).collect();
    assert_eq!(counts, [2_000, 2_500, 1]);
}

#[test]
fn real_descriptors_stay_within_the_budget() {
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
        let ours = open.filter(|at| {
            std::fs::read_link(at.path()).is_ok_and(|target| {
                target.starts_with(dir.path()) && target.extension().is_some_and(|it| it == "sst")
            })
        });
        assert!(ours.count() <= 8);
    }
    db.close(None).unwrap();
}

#[test]
fn a_file_replaced_behind_a_closed_descriptor_is_refused() {
    let disk = MemVfs::new();
    let tuning = tuning().policy("tiering(T=10)".parse::<lsmx::PolicySpec>().unwrap());
    let options = || inline().keyspace_defaults(tuning.clone()).open_files_max(1);
    let db = open(&disk, options().block_cache_bytes(0));
    load(&db, 0..100);
    let tables: Vec<PathBuf> = disk
        .paths()
        .into_iter()
        .filter(|path| path.extension().is_some_and(|e| e == "sst"))
        .collect();
    assert!(tables.len() > 1);
    // Every table is now the first one; that one may be the one that is open.
    let bytes = disk.read_all(&tables[0]).unwrap();
    for path in &tables[1..] {
        disk.remove(path).unwrap();
        disk.create(path).unwrap().append(&bytes).unwrap();
    }
    let mut refused = 0;
    for number in 0..100 {
        match db.get(key(number)) {
            Ok(Some(value)) => assert_eq!(value, self::value(number)),
            Ok(None) => panic!("{number} is lost"),
            Err(Error::Corrupt { source: Malformed::Identity { .. }, .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 0);
}

#[test]
fn without_descriptors_left_in_the_process_others_are_closed() {
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

#[test]
fn an_old_view_reads_on_through_one_descriptor_and_its_files_go_with_it() {
    let disk = MemVfs::new();
    let files =
        || disk.paths().iter().filter(|path| path.extension().is_some_and(|e| e == "sst")).count();
    let workers = Background::Threads { workers: 1 };
    let options = inline().background(workers).open_files_max(1).block_cache_bytes(0);
    let db = open(&disk, options);
    load(&db, 0..2_000);
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let main = db.default_keyspace();
    let mut iterator = main.iter();
    let first = iterator.next().unwrap().unwrap();
    for _ in 0..3 {
        for number in 0..2_000 {
            db.put(key(number), [0xee; 60]).unwrap();
        }
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let held = db.metrics().held;
    assert!(held.files > 0 && held.file_bytes > 0, "{held:?}");
    let rest: Vec<_> = iterator.by_ref().map(Result::unwrap).collect();
    assert_eq!(rest.len(), 1_999);
    for (found, value) in rest.iter().chain([&first]) {
        assert!(value.iter().all(|&byte| byte == value[0]), "{found:?} is torn");
        let number = (0..2_000).find(|&number| key(number) == found[..]).unwrap();
        assert_eq!(value[..], self::value(number), "an old view shows a new value");
    }
    let before = files();
    drop((first, rest, iterator));
    // Nobody writes: the files go all the same.
    until("files of the old view go", || {
        db.metrics().held.files == 0
            && files() as u64
                == db.metrics().keyspaces["default"].levels.iter().map(|at| at.files).sum::<u64>()
    });
    assert!(files() < before);
}

/// Values that callers keep are told, as far as the cache does not have their blocks anyway.
#[test]
fn blocks_that_values_keep_are_told() {
    let disk = MemVfs::new();
    let db = open(&disk, inline().block_cache_bytes(1 << 20));
    load(&db, 0..2_000);
    db.flush().unwrap();
    let held = || db.metrics().held.block_bytes;
    assert_eq!(held(), 0);
    let cached = db.get(key(7)).unwrap().unwrap();
    assert_eq!(held(), 0, "the cache has the block of {cached:?}");
    // What a scan reads does not go into the cache.
    let mut scanned: Vec<_> = db.default_keyspace().iter().map(Result::unwrap).collect();
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
    // Nor does anything if there is none.
    db.close(None).unwrap();
    drop(db);
    let db = open(&disk, inline().block_cache_bytes(0));
    let value = db.get(key(7)).unwrap().unwrap();
    assert!(db.metrics().held.block_bytes >= 60);
    drop(value);
    assert_eq!(db.metrics().held.block_bytes, 0);
}

#[test]
fn resuming_leaves_the_files_of_old_views_alone() {
    let disk = FaultVfs::new(Arc::new(MemVfs::new()), 1);
    let db = open(&disk, inline().open_files_max(1).block_cache_bytes(0));
    load(&db, 0..1_000);
    let main = db.default_keyspace();
    let mut iterator = main.iter();
    load(&db, 1_000..3_000);
    assert!(db.metrics().held.files > 0);
    disk.add_rule(
        FaultRule::new(Fault::Error(Errno::Io))
            .for_calls(&[VfsCall::Append])
            .path_contains(".wal")
            .nth(0),
    );
    assert!(db.put("fails", "x").is_err());
    disk.clear_rules();
    db.resume().unwrap();
    assert_eq!(iterator.by_ref().map(Result::unwrap).count(), 1_000);
    drop(iterator);
    load(&db, 3_000..3_100);
    db.wait_idle().unwrap();
    assert_eq!(db.metrics().held.files, 0);
    let names = disk.list(Path::new("db")).unwrap();
    let tables = names.iter().filter(|name| name.ends_with(".sst")).count() as u64;
    let named: u64 = db.metrics().keyspaces["default"].levels.iter().map(|at| at.files).sum();
    assert_eq!(tables, named);
}

#[test]
fn an_idle_memtable_is_flushed_and_frees_the_log() {
    let disk = MemVfs::new();
    let db = open(&disk, inline().flush_idle_after(Duration::from_secs(10)));
    db.put("trickle", "x").unwrap();
    let flushes = || db.metrics().keyspaces["default"].flushes;
    for _ in 0..3 {
        // Written to again and again, it is not idle.
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
    assert_eq!(flushes(), 1, "there is nothing to flush");
}

#[test]
fn an_idle_memtable_is_flushed_by_the_engines_own_threads() {
    let disk = MemVfs::new();
    let options = inline().background(Background::Threads { workers: 1 });
    let db = open(&disk, options.flush_idle_after(Duration::from_millis(20)));
    db.put("once", "x").unwrap();
    until("a flush", || db.metrics().keyspaces["default"].flushes == 1);
}

#[test]
fn background_work_keeps_to_its_rate() {
    let took_us = |rate: Option<u64>| {
        let stepped = Background::Stepped { seed: 3, workers: 1 };
        let mut options = inline().background(stepped);
        if let Some(rate) = rate {
            options = options.background_io_rate(rate);
        }
        let db = open(&MemVfs::new(), options);
        let start_us = db.env().now_us();
        load(&db, 0..2_000);
        db.flush().unwrap();
        db.wait_idle().unwrap();
        let io = db.metrics().background_io;
        let waited_us = io.flush.waited_us + io.compaction.waited_us;
        let took = (db.env().now_us() - start_us, io.flush.bytes + io.compaction.bytes, waited_us);
        db.close(None).unwrap();
        took
    };
    let (free_us, free_bytes, free_waited_us) = took_us(None);
    assert!(free_bytes > 200_000 && free_waited_us == 0);
    let (limited_us, bytes, waited_us) = took_us(Some(100_000));
    // Less the burst, and what an average over jobs that never ran long enough leaves.
    assert!(limited_us > free_us + bytes * 10 * 8 / 10, "{limited_us} us for {bytes} bytes");
    assert!(waited_us > 0);
}

#[test]
fn metrics_print_and_serialise() {
    let db = open(&MemVfs::new(), inline());
    load(&db, 0..3_000);
    check(&db, 0..10);
    let snapshot = db.snapshot();
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
    drop(snapshot);
}
