//! Several threads on one database: visibility of commits, linearizability, and calls during a close.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lsmx::env::{Background, Env, JoinHandle};
use lsmx::internals::vfs::{Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::merge_operator::Counter;
use lsmx::vfs::{MemVfs, OsVfs, Vfs};
use lsmx::{
    Db, Durability, Error, Keyspace, KeyspaceOptions, Options, Slice, Snapshot, WriteBatch,
    WriteOptions,
};
use lsmx_stress::modelling::linear::{Call, PLACES, Record, linearizable};
use lsmx_stress::modelling::watchdog;
use lsmx_testkit::{TestRng, case_seeds, scale, seed};

const PATIENCE: Duration = Duration::from_secs(100);

fn tuning() -> KeyspaceOptions {
    KeyspaceOptions::default()
        .policy("leveled(T=3)".parse::<lsmx::PolicySpec>().unwrap())
        .memtable_bytes(4 << 10)
        .table_bytes(4 << 10)
        .block_bytes(256)
}

fn options() -> Options {
    Options::default().keyspace_defaults(tuning())
}

fn stepped(seed: u64) -> Options {
    let tuning = tuning().memtable_bytes(1 << 10).table_bytes(1 << 10).block_bytes(64);
    Options::default()
        .background(Background::Stepped { seed, workers: 2 })
        .keyspace_defaults(tuning)
}

fn number(value: Option<Slice>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value.as_ref().try_into().unwrap()))
}

fn join(env: &Env, handles: Vec<JoinHandle>) {
    for handle in handles {
        if let Err(panic) = env.join(handle) {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Seeds of the schedules of a test, each with a watch on it.
fn schedules(test: &'static str, count: u64) -> impl Iterator<Item = (u64, impl Drop)> {
    struct Told(u64, #[expect(dead_code, reason = "held")] std::sync::mpsc::Sender<()>);
    impl Drop for Told {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("replay with LSMX_TEST_SEED={}", self.0);
            }
        }
    }
    case_seeds(&[], count).map(move |seed| (seed, Told(seed, watchdog(test, seed, PATIENCE))))
}

/// Writers write the same number under `w` in two keyspaces, and an entry of their own for each
/// number; readers look through snapshots and iterators.
fn readers_and_writers(vfs: &Arc<dyn Vfs>, path: &str) {
    const WRITERS: usize = 2;
    const COMMITS: u64 = 1_500;
    let db = Db::open(path, options().vfs(Arc::clone(vfs))).unwrap();
    let other = db.keyspace("other", tuning()).unwrap();
    let main = db.default_keyspace();
    let writing = AtomicU64::new(WRITERS as u64);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (db, main, other, writing) = (&db, &main, &other, &writing);
            scope.spawn(move || {
                for count in 1..=COMMITS {
                    let mut batch = WriteBatch::new();
                    batch.put(main, format!("count-{writer}"), count.to_le_bytes());
                    batch.put(other, format!("entry-{writer}-{count:06}"), count.to_le_bytes());
                    batch.put(other, format!("count-{writer}"), count.to_le_bytes());
                    let sync = count % 97 == 0;
                    let durability = if sync { Durability::Sync } else { Durability::Buffered };
                    db.write(batch, durability).unwrap();
                    // Read your writes.
                    assert_eq!(number(main.get(format!("count-{writer}")).unwrap()), count);
                    assert_eq!(number(other.get(format!("count-{writer}")).unwrap()), count);
                }
                writing.fetch_sub(1, Ordering::Release);
            });
        }
        for _ in 0..2 {
            let (db, main, other, writing) = (&db, &main, &other, &writing);
            scope.spawn(move || {
                let mut last = [0; WRITERS];
                let mut last_seq = lsmx::SeqNo::ZERO;
                let mut rounds = 0;
                while writing.load(Ordering::Acquire) > 0 {
                    let snapshot = db.snapshot();
                    assert!(snapshot.seq() >= last_seq);
                    last_seq = snapshot.seq();
                    for (writer, last) in last.iter_mut().enumerate() {
                        let key = format!("count-{writer}");
                        let count = number(snapshot.get(main, &key).unwrap());
                        assert_eq!(number(snapshot.get(other, &key).unwrap()), count);
                        assert!(count >= *last, "a later snapshot sees less");
                        *last = count;
                        if rounds % 8 == 0 {
                            whole_prefix(&snapshot, other, writer, count);
                        }
                    }
                    // An iterator has a view of its own, taken no earlier than the snapshot.
                    let newer = other.prefix("count-").map(Result::unwrap);
                    let newer: BTreeMap<Slice, Slice> = newer.collect();
                    for (writer, last) in last.into_iter().enumerate() {
                        let count = newer.get(&Slice::from(format!("count-{writer}").as_bytes()));
                        assert!(number(count.cloned()) >= last, "an iterator sees less");
                    }
                    rounds += 1;
                }
                assert!(rounds > 5);
            });
        }
    });
    drop((main, other, db));
    let db = Db::open(path, options().vfs(Arc::clone(vfs))).unwrap();
    let snapshot = db.snapshot();
    for writer in 0..WRITERS {
        let other = db.open_keyspace("other", None).unwrap();
        whole_prefix(&snapshot, &other, writer, COMMITS);
    }
}

/// All entries of a writer up to `count`, and none past it, both ways.
fn whole_prefix(snapshot: &Snapshot, keyspace: &Keyspace, writer: usize, count: u64) {
    let (from, to) = (format!("entry-{writer}-"), format!("entry-{writer}."));
    let values = |item: lsmx::Result<(Slice, Slice)>| number(Some(item.unwrap().1));
    let forward = snapshot.range(keyspace, from.clone()..to.clone()).map(values);
    assert!(forward.eq(1..=count), "not a prefix");
    let backward = snapshot.range(keyspace, from..to).rev().map(values);
    assert!(backward.eq((1..=count).rev()), "not a prefix, backward");
}

#[test]
fn threads_see_whole_batches_and_their_own_writes() {
    let _dog = watchdog("threads_see_whole_batches_and_their_own_writes", 0, PATIENCE);
    let memory: Arc<dyn Vfs> = Arc::new(MemVfs::new());
    readers_and_writers(&memory, "db");
    let dir = tempfile::tempdir().unwrap();
    let real: Arc<dyn Vfs> = Arc::new(OsVfs);
    readers_and_writers(&real, dir.path().join("db").to_str().unwrap());
}

/// Whichever handle goes last, the next opening finds the lock free and everything there.
#[test]
fn last_handle_closes_and_frees_the_lock() {
    let _dog = watchdog("last_handle_closes_and_frees_the_lock", 0, PATIENCE);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    for round in 0..20u64 {
        let db = Db::open(&path, options()).unwrap();
        assert_eq!(number(db.get("round").unwrap()), round);
        let keyspace = db.keyspace("other", tuning()).unwrap();
        let snapshot = db.snapshot();
        for fill in 0..100u64 {
            keyspace.put(fill.to_le_bytes(), [7; 100]).unwrap();
        }
        db.put("round", (round + 1).to_le_bytes()).unwrap();
        assert!(matches!(Db::open(&path, options()), Err(Error::Locked { .. })));
        // An iterator alone keeps nothing open.
        let mut iterator = keyspace.iter();
        std::thread::scope(|scope| {
            match round % 3 {
                0 => drop((db, keyspace, snapshot)),
                1 => drop((snapshot, db, scope.spawn(move || drop(keyspace)))),
                _ => drop((keyspace, scope.spawn(move || drop(snapshot)), db)),
            };
        });
        assert_eq!(iterator.next().unwrap().unwrap().1.len(), 100);
    }
    let names: Vec<_> = OsVfs.list(&path).unwrap();
    assert!(names.len() < 30, "files are left behind: {names:?}");
}

/// What each writer was told, in order.
#[derive(Default)]
struct Told {
    acknowledged: AtomicU64,
}

/// Writes 1, 2, 3, … under a key of its own until the database is closed.
fn write_until_closed(keyspace: &Keyspace, writer: usize, told: &Told) {
    for count in 1..=100_000u64 {
        let sync = count % 5 == 0;
        let durability = if sync { Durability::Sync } else { Durability::Buffered };
        match keyspace
            .with_write_options(durability)
            .put(format!("writer-{writer}"), count.to_le_bytes())
        {
            Ok(()) => told.acknowledged.store(count, Ordering::Release),
            Err(Error::Closed) => return,
            Err(error) => panic!("a writer was told {error}"),
        }
    }
    panic!("nobody closed");
}

fn assert_nothing_lost(db: &Db, told: &[Arc<Told>]) {
    for (writer, told) in told.iter().enumerate() {
        let found = number(db.get(format!("writer-{writer}")).unwrap());
        let acknowledged = told.acknowledged.load(Ordering::Acquire);
        assert!(
            found == acknowledged || found == acknowledged + 1,
            "writer {writer}: {acknowledged} acknowledged, {found} there"
        );
    }
}

#[test]
fn close_among_writing_threads_loses_nothing() {
    let _dog = watchdog("close_among_writing_threads_loses_nothing", 0, PATIENCE);
    let disk = MemVfs::new();
    for round in 0..60 {
        let db = Db::open("db", options().vfs(Arc::new(disk.clone()))).unwrap();
        for writer in 0..2 {
            db.delete(format!("writer-{writer}")).unwrap();
        }
        let told: Vec<Arc<Told>> = (0..2).map(|_| Arc::default()).collect();
        std::thread::scope(|scope| {
            for (writer, told) in told.iter().enumerate() {
                let (keyspace, told) = (db.default_keyspace(), Arc::clone(told));
                scope.spawn(move || write_until_closed(&keyspace, writer, &told));
            }
            while told[0].acknowledged.load(Ordering::Acquire) < round {
                std::thread::yield_now();
            }
            db.close(None).unwrap();
            // The lock is free, though writers may not have been told yet.
            let db = Db::open("db", options().vfs(Arc::new(disk.clone()))).unwrap();
            db.put("mine", "now").unwrap();
        });
        let db = Db::open("db", options().vfs(Arc::new(disk.clone()))).unwrap();
        assert_nothing_lost(&db, &told);
    }
}

/// A commit that is on its way while the database closes without having anything to flush: so
/// quickly that under some schedules it is overtaken. See the next test.
#[test]
fn a_commit_overtaken_by_close_is_refused() {
    let mut refused = 0;
    for (seed, _told) in schedules("a_commit_overtaken_by_close_is_refused", 300) {
        let disk = MemVfs::new();
        let db = Db::open("db", stepped(seed).vfs(Arc::new(disk.clone()))).unwrap();
        let env = db.env().clone();
        let told: Vec<Arc<Told>> = (0..6).map(|_| Arc::default()).collect();
        let writers = told.iter().enumerate().map(|(writer, told)| {
            let (keyspace, told) = (db.default_keyspace(), Arc::clone(told));
            let write = move || match keyspace.put(format!("writer-{writer}"), 1u64.to_le_bytes()) {
                Ok(()) => told.acknowledged.store(1, Ordering::Release),
                Err(Error::Closed) => {}
                Err(error) => panic!("a writer was told {error}"),
            };
            env.spawn("writer", write).unwrap()
        });
        let writers = writers.collect();
        // Each of these lets somebody else go on for a step.
        (0..seed % 5).for_each(|_| drop(db.snapshot()));
        db.close(None).unwrap();
        let files = disk.snapshot_all();
        join(&env, writers);
        let left = disk.snapshot_all();
        // The drop of the last handle cuts the zeros by which the last segment has grown.
        let end =
            |bytes: &Vec<u8>| bytes.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1);
        let written = |bytes: &Vec<u8>| bytes[..end(bytes)].to_vec();
        let changed = |path: &&std::path::PathBuf| {
            files.get(*path).map(written) != left.get(*path).map(written)
        };
        let changed: Vec<_> = files.keys().chain(left.keys()).filter(changed).collect();
        assert!(changed.is_empty(), "written after the close: {changed:?}");
        let options = options().background(Background::Inline);
        let db = Db::open("db", options.vfs(Arc::new(disk))).unwrap();
        for (writer, told) in told.iter().enumerate() {
            let acknowledged = told.acknowledged.load(Ordering::Acquire);
            assert_eq!(number(db.get(format!("writer-{writer}")).unwrap()), acknowledged);
            refused += 1 - acknowledged;
        }
    }
    assert!(refused > 10, "no writer was ever overtaken");
}

/// A writer that had passed the first check before `close()` came used to write to the log after
/// the lock was free: its commit was acknowledged and belonged to nobody.
#[test]
fn no_byte_is_written_after_close_has_returned() {
    for (seed, _told) in schedules("no_byte_is_written_after_close_has_returned", 400) {
        let disk = MemVfs::new();
        let db = Db::open("db", stepped(seed).vfs(Arc::new(disk.clone()))).unwrap();
        let env = db.env().clone();
        let told: Vec<Arc<Told>> = (0..2).map(|_| Arc::default()).collect();
        let mut handles = Vec::new();
        for (writer, told) in told.iter().enumerate() {
            let (keyspace, told) = (db.default_keyspace(), Arc::clone(told));
            let write = move || write_until_closed(&keyspace, writer, &told);
            handles.push(env.spawn("writer", write).unwrap());
        }
        let waiter = db.clone();
        handles.push(
            env.spawn("waiter", move || {
                loop {
                    let asked = waiter.flush().and_then(|()| waiter.wait_idle());
                    match asked.and_then(|()| waiter.sync()) {
                        Ok(()) => {}
                        Err(Error::Closed) => return,
                        Err(error) => panic!("a waiter was told {error}"),
                    }
                }
            })
            .unwrap(),
        );
        for fill in 0..TestRng::new(seed).below(40) as u64 {
            db.put(fill.to_le_bytes(), [1; 60]).unwrap();
        }
        db.close(None).unwrap();
        let files = disk.snapshot_all();
        join(&env, handles);
        drop(db);
        let left = disk.snapshot_all();
        // The drop of the last handle cuts the zeros by which the last segment has grown.
        let end =
            |bytes: &Vec<u8>| bytes.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1);
        let written = |bytes: &Vec<u8>| bytes[..end(bytes)].to_vec();
        let changed = |path: &&std::path::PathBuf| {
            files.get(*path).map(written) != left.get(*path).map(written)
        };
        let changed: Vec<_> = files.keys().chain(left.keys()).filter(changed).collect();
        assert!(changed.is_empty(), "written after the close: {changed:?}");
        let db = Db::open("db", options().background(Background::Inline).vfs(Arc::new(disk)));
        assert_nothing_lost(&db.unwrap(), &told);
    }
}

/// Adds 1 by guard until it holds.
fn increment(db: &Db, refused: &AtomicU64) {
    let keyspace = db.default_keyspace();
    loop {
        let snapshot = db.snapshot();
        let count = number(snapshot.get(&keyspace, "sum").unwrap());
        let mut batch = WriteBatch::new();
        batch.put(&keyspace, "sum", (count + 1).to_le_bytes());
        batch.put(&keyspace, format!("fill-{count}"), [3; 90]);
        batch.guard(&keyspace, "sum", snapshot.seq());
        match db.write(batch, WriteOptions::default()) {
            Ok(()) => return,
            Err(Error::GuardRefused { key, read, .. } | Error::GuardUnknown { key, read, .. }) => {
                assert_eq!((&key[..], read), (&b"sum"[..], snapshot.seq().0));
                refused.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn guarded_increments_add_up() {
    let _dog = watchdog("guarded_increments_add_up", 0, PATIENCE);
    let refused = Arc::new(AtomicU64::new(0));
    let db = Db::open("db", options().vfs(Arc::new(MemVfs::new()))).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..500).for_each(|_| increment(&db, &refused)));
        }
    });
    assert_eq!(number(db.get("sum").unwrap()), 2_000);
    assert_eq!(db.default_keyspace().prefix("fill-").count(), 2_000);
    drop(db);
    for (seed, _told) in schedules("guarded_increments_add_up", 30) {
        let db = Db::open("db", stepped(seed).vfs(Arc::new(MemVfs::new()))).unwrap();
        let env = db.env().clone();
        let handles = (0..3).map(|_| {
            let (db, refused) = (db.clone(), Arc::clone(&refused));
            env.spawn("adder", move || (0..10).for_each(|_| increment(&db, &refused))).unwrap()
        });
        join(&env, handles.collect());
        assert_eq!(number(db.get("sum").unwrap()), 30);
    }
    assert!(refused.load(Ordering::Relaxed) > 100, "no two threads ever met");
}

/// A guard that finds a newer write is refused, and nothing is done.
#[test]
fn a_refused_guard_leaves_nothing() {
    let options = options().background(Background::Inline);
    let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
    let (main, other) = (db.default_keyspace(), db.keyspace("other", tuning()).unwrap());
    let guarded = |read| {
        let mut batch = WriteBatch::new();
        batch.put(&main, "a", "guarded");
        batch.put(&other, "b", "guarded");
        batch.guard(&other, "guard", read);
        db.write(batch, Durability::Sync)
    };
    let refused = |read: lsmx::SeqNo| {
        assert!(
            matches!(guarded(read), Err(Error::GuardRefused { read: named, .. }) if named == read.0)
        );
        assert_eq!((db.get("a").unwrap(), other.get("b").unwrap()), (None, None));
    };
    let before = db.snapshot().seq();
    main.put("guard", "the same key elsewhere").unwrap();
    other.put("guard-not", "another key").unwrap();
    other.put("guard", "newer").unwrap();
    refused(before);
    other.delete("guard").unwrap();
    refused(before);
    let between = db.snapshot().seq();
    other.delete("guard").unwrap();
    refused(between);
    // Written since and flushed.
    let old = db.snapshot().seq();
    db.put("one", "more").unwrap();
    other.put("guard", "more").unwrap();
    db.flush().unwrap();
    refused(old);
    // A guard alone is a question.
    let mut question = WriteBatch::new();
    question.guard(&other, "guard", db.snapshot().seq());
    db.write(question.clone(), Durability::Buffered).unwrap();
    other.put("guard", "again").unwrap();
    assert!(matches!(db.write(question, Durability::Buffered), Err(Error::GuardRefused { .. })));
    guarded(db.snapshot().seq()).unwrap();
    assert_eq!(db.get("a").unwrap().unwrap(), "guarded");
    // A batch may write what it guards.
    let mut own = WriteBatch::new();
    own.put(&main, "a", "1");
    own.put(&main, "a", "2");
    own.guard(&main, "a", db.snapshot().seq());
    db.write(own, Durability::Buffered).unwrap();
    assert_eq!(db.get("a").unwrap().unwrap(), "2");
}

/// One user of a recorded history.
struct User {
    db: Db,
    /// Places 0 and 1 are keys of the default keyspace, 2 is one of another.
    places: [(Keyspace, &'static str); PLACES],
    clock: Arc<AtomicU64>,
    ids: Arc<AtomicU32>,
    rng: TestRng,
    records: Vec<Record>,
}

impl User {
    fn seen(&self, value: lsmx::Result<Option<Slice>>) -> Option<u32> {
        value.unwrap().map(|value| u32::from_le_bytes(value[..4].try_into().unwrap()))
    }

    fn value(id: u32) -> Vec<u8> {
        // Large enough that memtables fill up within a history.
        [&id.to_le_bytes()[..], &[9; 60]].concat()
    }

    fn call(&mut self) {
        let begin = self.clock.fetch_add(1, Ordering::SeqCst);
        let place = self.rng.below(PLACES);
        let (keyspace, key) = self.places[place].clone();
        let id = self.ids.fetch_add(1, Ordering::SeqCst);
        let call = match self.rng.below(10) {
            0..2 => {
                keyspace.put(key, User::value(id)).unwrap();
                Call::Write { id, places: vec![place], deletes: false }
            }
            2 => {
                keyspace.with_write_options(Durability::Sync).put(key, User::value(id)).unwrap();
                Call::Write { id, places: vec![place], deletes: false }
            }
            3 => {
                keyspace.delete(key).unwrap();
                Call::Write { id, places: vec![place], deletes: true }
            }
            4 => {
                let mut batch = WriteBatch::new();
                for (keyspace, key) in &self.places {
                    batch.put(keyspace, key, User::value(id));
                }
                self.db.write(batch, Durability::Buffered).unwrap();
                Call::Write { id, places: (0..PLACES).collect(), deletes: false }
            }
            5..7 => Call::Read { seen: vec![(place, self.seen(keyspace.get(key)))] },
            7 => {
                let snapshot = self.db.snapshot();
                let places = self.places.iter().enumerate();
                let see = |(place, (keyspace, key)): (usize, &(Keyspace, &str))| {
                    (place, self.seen(snapshot.get(keyspace, key)))
                };
                Call::Read { seen: places.map(see).collect() }
            }
            8 => {
                // Both keys of the default keyspace by one iterator.
                let mut seen = vec![(0, None), (1, None)];
                for item in self.places[0].0.iter() {
                    let (key, value) = item.unwrap();
                    let place = seen.iter_mut().find(|seen| key == self.places[seen.0].1);
                    place.unwrap().1 = self.seen(Ok(Some(value)));
                }
                Call::Read { seen }
            }
            _ => {
                let snapshot = self.db.snapshot();
                match self.seen(snapshot.get(&keyspace, key)) {
                    None => Call::Read { seen: vec![(place, None)] },
                    Some(last) => {
                        let mut batch = WriteBatch::new();
                        batch.put(&keyspace, key, User::value(id));
                        batch.guard(&keyspace, key, snapshot.seq());
                        match self.db.write(batch, Durability::Buffered) {
                            Ok(()) => Call::GuardHeld { id, place, last },
                            Err(Error::GuardRefused { .. } | Error::GuardUnknown { .. }) => {
                                Call::GuardRefused
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            }
        };
        let end = self.clock.fetch_add(1, Ordering::SeqCst);
        self.records.push(Record { call, begin, end });
    }
}

#[test]
fn histories_of_three_threads_are_linearizable() {
    const THREADS: usize = 3;
    const CALLS: usize = 30;
    let (mut held, mut overlapping) = (0, 0);
    for (seed, _told) in schedules("histories_of_three_threads_are_linearizable", 300) {
        let db = Db::open("db", stepped(seed).vfs(Arc::new(MemVfs::new()))).unwrap();
        let env = db.env().clone();
        let (main, other) = (db.default_keyspace(), db.keyspace("other", tuning()).unwrap());
        let (clock, ids) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU32::new(1)));
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let users = (0..THREADS).map(|thread| {
            let mut user = User {
                db: db.clone(),
                places: [(main.clone(), "a"), (main.clone(), "b"), (other.clone(), "a")],
                clock: Arc::clone(&clock),
                ids: Arc::clone(&ids),
                rng: TestRng::new(seed ^ ((thread as u64 + 1) << 60)),
                records: Vec::new(),
            };
            let recorded = Arc::clone(&recorded);
            let body = move || {
                (0..CALLS).for_each(|_| user.call());
                recorded.lock().unwrap().push(user.records);
            };
            env.spawn("user", body).unwrap()
        });
        join(&env, users.collect());
        let threads = std::mem::take(&mut *recorded.lock().unwrap());
        assert!(linearizable(&threads), "no order explains {threads:#?}");
        let calls = threads.iter().flatten();
        held += calls.clone().filter(|at| matches!(at.call, Call::GuardHeld { .. })).count();
        overlapping += calls.filter(|record| record.end > record.begin + 1).count();
    }
    let enough = scale() < 1.0 || (held > 50 && overlapping > 1_000);
    assert!(enough, "{held} guards held, {overlapping} calls overlapped");
}

/// Holds up calls until it is opened.
#[derive(Clone, Default)]
struct Gate {
    shut: Arc<AtomicBool>,
    waiting: Arc<AtomicBool>,
}

impl Gate {
    /// A disk on which creating or appending to `files` waits while the gate is shut, for threads
    /// whose name has `thread` in it.
    fn disk(&self, files: &'static str, thread: &'static str) -> FaultVfs {
        let disk = FaultVfs::new(Arc::new(MemVfs::new()), seed());
        let rule = FaultRule::new(Fault::Delay).path_contains(files).chance(1.0);
        disk.add_rule(rule.for_calls(&[VfsCall::Create, VfsCall::Append]));
        let gate = self.clone();
        disk.set_delay_hook(Some(Arc::new(move |_, _| {
            if std::thread::current().name().unwrap_or_default().contains(thread) {
                while gate.shut.load(Ordering::Acquire) {
                    gate.waiting.store(true, Ordering::Release);
                    pause();
                }
            }
        })));
        disk
    }

    fn shut(&self) {
        self.shut.store(true, Ordering::Release);
    }

    fn open(&self) {
        self.shut.store(false, Ordering::Release);
    }
}

#[expect(clippy::disallowed_methods, reason = "threads of the test wait for threads of the engine")]
fn pause() {
    std::thread::sleep(Duration::from_millis(1));
}

fn no_slowdown() -> WriteOptions {
    WriteOptions { no_slowdown: true, ..WriteOptions::default() }
}

fn within(patience: Duration) -> WriteOptions {
    WriteOptions { deadline: Some(patience), ..WriteOptions::default() }
}

/// Fills the database until a write would wait; returns the cause.
fn fill(db: &Db, flushes: bool) -> &'static str {
    let sealed = || db.metrics().keyspaces["default"].memtables_sealed;
    for count in 0..100_000u64 {
        // Scattered, so that runs overlap and no job is a trivial move.
        let key = count.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        match db.default_keyspace().with_write_options(no_slowdown()).put(key, [5; 200]) {
            Ok(()) => {}
            Err(Error::WouldWait { cause }) => {
                assert_eq!(db.get(key).unwrap(), None, "refused and done");
                return cause;
            }
            Err(error) => panic!("{error}"),
        }
        // Let flushes catch up, so that only what is held up holds up.
        while flushes && sealed() > 0 {
            pause();
        }
    }
    panic!("no write ever waited");
}

fn stall(gate: &Gate, disk: FaultVfs, tuning: KeyspaceOptions, expected: &str) {
    let options = || Options::default().keyspace_defaults(tuning.clone());
    let options = || options().write_control(lsmx::WriteControl::Stop).wal_bytes_max(1 << 30);
    let db = Db::open("db", options().vfs(Arc::new(disk.clone()))).unwrap();
    gate.shut();
    assert_eq!(fill(&db, expected != "a free memtable"), expected);
    let main = db.default_keyspace();
    // Over a keyspace that could take it and one that cannot: nothing of it.
    let other = db.keyspace("other", tuning.clone()).unwrap();
    let mut batch = WriteBatch::new();
    batch.put(&other, "late", "x");
    batch.put(&main, "late", "x");
    match db.write(batch, within(Duration::from_millis(30))) {
        Err(Error::Deadline { cause }) => assert_eq!(cause, expected),
        other => panic!("{other:?}"),
    }
    assert_eq!((main.get("late").unwrap(), other.get("late").unwrap()), (None, None));
    // Reads and writes elsewhere go on.
    assert!(db.get(0u64.to_be_bytes()).unwrap().is_some());
    other.put("elsewhere", "x").unwrap();
    // A write without a deadline waits, and no longer than it must.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| main.put("patient", "x"));
        for _ in 0..20 {
            pause();
        }
        assert!(!waiting.is_finished());
        gate.open();
        waiting.join().unwrap().unwrap();
    });
    db.wait_idle().unwrap();
    let stalls = db.metrics().keyspaces["default"].stalls.clone();
    assert!(stalls.count >= 2 && stalls.us_max >= 15_000, "{stalls:?}");
    main.with_write_options(no_slowdown()).put("after", "x").unwrap();
    drop((main, other, db));
    let db = Db::open("db", options().vfs(Arc::new(disk))).unwrap();
    assert_eq!(db.get("late").unwrap(), None);
    assert_eq!(db.open_keyspace("other", None).unwrap().get("late").unwrap(), None);
    assert!(db.get("patient").unwrap().is_some() && db.get("after").unwrap().is_some());
}

#[test]
fn full_memtables_refuse_by_type_and_do_nothing() {
    let _dog = watchdog("full_memtables_refuse_by_type_and_do_nothing", 0, PATIENCE);
    let gate = Gate::default();
    stall(&gate, gate.disk(".sst", "lsmx"), tuning(), "a free memtable");
}

#[test]
fn too_many_runs_refuse_by_type_and_do_nothing() {
    let _dog = watchdog("too_many_runs_refuse_by_type_and_do_nothing", 0, PATIENCE);
    let gate = Gate::default();
    let tuning = tuning().policy("tiering(T=2, stop=4)".parse::<lsmx::PolicySpec>().unwrap());
    stall(&gate, gate.disk(".sst", "lsmx-compact"), tuning, "a compaction to release runs");
}

/// A commit whose leader hangs in the log gives up at its deadline and is nowhere to be found.
#[test]
fn a_commit_behind_a_hanging_one_keeps_its_deadline() {
    let _dog = watchdog("a_commit_behind_a_hanging_one_keeps_its_deadline", 0, PATIENCE);
    let gate = Gate::default();
    let disk = gate.disk(".wal", "hanging");
    let db = Db::open("db", options().vfs(Arc::new(disk.clone()))).unwrap();
    gate.shut();
    std::thread::scope(|scope| {
        let hanging = std::thread::Builder::new().name("hanging".to_owned());
        let hanging = hanging.spawn_scoped(scope, || db.put("hanging", "x")).unwrap();
        while !gate.waiting.load(Ordering::Acquire) {
            pause();
        }
        let late = db
            .default_keyspace()
            .with_write_options(within(Duration::from_millis(20)))
            .put("late", "x");
        assert!(matches!(late, Err(Error::Deadline { cause: "the commits ahead" })), "{late:?}");
        // What is on its way is not visible, and reads do not wait for it.
        assert_eq!(db.get("hanging").unwrap(), None);
        gate.open();
        hanging.join().unwrap().unwrap();
    });
    assert!(db.get("hanging").unwrap().is_some());
    db.put("after", "x").unwrap();
    drop(db);
    let db = Db::open("db", options().vfs(Arc::new(disk))).unwrap();
    let keys: Vec<_> = db.default_keyspace().iter().map(|item| item.unwrap().0).collect();
    assert_eq!(keys, ["after", "hanging"]);
}

/// Past its deadline `close` leaves what is in memory to the log.
#[test]
fn a_close_past_its_deadline_loses_nothing() {
    let _dog = watchdog("a_close_past_its_deadline_loses_nothing", 0, PATIENCE);
    let gate = Gate::default();
    let disk = gate.disk(".sst", "lsmx");
    let db = Db::open("db", options().vfs(Arc::new(disk.clone()))).unwrap();
    gate.shut();
    for count in 0..60u64 {
        db.put(count.to_be_bytes(), [1; 100]).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..100 {
                pause();
            }
            gate.open();
        });
        let closed = db.close(Some(Duration::from_millis(10)));
        assert!(matches!(closed, Err(Error::Deadline { .. })), "{closed:?}");
    });
    assert!(matches!(db.put("k", "v"), Err(Error::Closed)));
    // The lock stays until the close is done, be it by the last handle.
    drop(db);
    let db = Db::open("db", options().vfs(Arc::new(disk))).unwrap();
    assert_eq!(db.default_keyspace().iter().count(), 60);
}

/// Threads add to the same counters by merges and by updates, while others flush, read and hold
/// snapshots: no addition is lost or counted twice, and no counter is ever seen to go back.
fn count_together(options: Options, background: Background, rounds: u64) {
    const THREADS: u64 = 3;
    let disk = MemVfs::new();
    let counters = tuning().memtable_bytes(2 << 10).merge_operator(Counter);
    let options = options.background(background);
    let db = Db::open("db", options.clone().vfs(Arc::new(disk.clone()))).unwrap();
    let keyspace = db.keyspace("counters", counters.clone()).unwrap();
    let env = db.env().clone();
    let one = 1u64.to_le_bytes();
    let mut threads = Vec::new();
    for thread in 0..THREADS {
        let (keyspace, db) = (keyspace.clone(), db.clone());
        let count = move || {
            let mut seen = 0;
            for round in 0..rounds {
                keyspace.merge("merged", one).unwrap();
                let add = |old: Option<&[u8]>| {
                    let old = old.map_or(0, |old| u64::from_le_bytes(old.try_into().unwrap()));
                    (old + 1).to_le_bytes().to_vec()
                };
                let before = number(keyspace.fetch_update("updated", add).unwrap());
                assert!(before >= seen, "an update saw an older value");
                seen = before + 1;
                // Both ways on one key.
                if (round + thread) % 2 == 0 {
                    keyspace.update_fetch("both", add).unwrap();
                } else {
                    keyspace.merge("both", one).unwrap();
                }
                let snapshot = db.snapshot();
                let merged = number(snapshot.get(&keyspace, "merged").unwrap());
                assert!(merged > round, "own merges are seen");
                if round % 5 == thread {
                    db.flush().unwrap();
                }
                assert_eq!(number(snapshot.get(&keyspace, "merged").unwrap()), merged);
                let scanned = snapshot.iter(&keyspace).map(Result::unwrap);
                let scanned: BTreeMap<Slice, Slice> = scanned.collect();
                assert_eq!(number(scanned.get(&Slice::from(&b"merged"[..])).cloned()), merged);
            }
        };
        threads.push(env.spawn("counter", count).unwrap());
    }
    join(&env, threads);
    let check = |keyspace: &Keyspace| {
        for key in ["merged", "updated", "both"] {
            assert_eq!(number(keyspace.get(key).unwrap()), THREADS * rounds, "{key}");
        }
    };
    check(&keyspace);
    db.wait_idle().unwrap();
    check(&keyspace);
    drop((keyspace, db));
    let options = options.background(Background::Inline);
    let db = Db::open("db", options.vfs(Arc::new(disk))).unwrap();
    check(&db.keyspace("counters", counters).unwrap());
}

#[test]
fn counters_add_up_under_any_schedule() {
    for (seed, _told) in schedules("counters_add_up_under_any_schedule", 40) {
        count_together(stepped(seed), Background::Stepped { seed, workers: 2 }, 25);
    }
}

#[test]
fn counters_of_real_threads_add_up() {
    let _dog = watchdog("counters_of_real_threads_add_up", 0, PATIENCE);
    count_together(options(), Background::Threads { workers: 2 }, 400);
}
