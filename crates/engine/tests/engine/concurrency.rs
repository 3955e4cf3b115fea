//! Several threads use one database: visibility of commits, linearizability, and calls during a close.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lsmx::env::{Background, Env, JoinHandle};
use lsmx::internals::vfs::VfsCall;
use lsmx::merge_operator::Counter;
use lsmx::vfs::{MemVfs, OsVfs, Vfs};
use lsmx::{
    Db, Durability, Error, Keyspace, KeyspaceOptions, Options, Slice, Snapshot, WriteBatch,
    WriteControl, WriteOptions,
};
use lsmx_testkit::linear::{Call, PLACES, Record, linearizable};
use lsmx_testkit::simple_store::SimpleStore;
use lsmx_testkit::{TestRng, case_seeds, scale, watchdog};

use crate::harness::database::{entries, open, policy, small};
use crate::harness::gate::{Gate, each};

/// Time limit of one test or one thread schedule. A test or a schedule normally takes a few seconds.
const PATIENCE: Duration = Duration::from_secs(300);

fn tuning() -> KeyspaceOptions {
    small().policy(policy("leveled(T=3)"))
}

fn options() -> Options {
    Options::default().keyspace_defaults(tuning())
}

fn stepped(seed: u64) -> Options {
    let tuning = tuning().memtable_bytes(1 << 10).table_bytes(1 << 10).block_bytes(64);
    options().background(Background::Stepped { seed, workers: 2 }).keyspace_defaults(tuning)
}

fn number(value: Option<Slice>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value.as_ref().try_into().unwrap()))
}

/// Returns the durability of commit number `count`: `Sync` for multiples of `one_in`, and `Buffered` for all others.
fn durability(count: u64, one_in: u64) -> Durability {
    if count.is_multiple_of(one_in) { Durability::Sync } else { Durability::Buffered }
}

fn join(env: &Env, handles: Vec<JoinHandle>) {
    for handle in handles {
        if let Err(panic) = env.join(handle) {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Returns the seeds of the thread schedules of a test. Each seed comes with a guard. A watchdog runs until the guard
/// is dropped.
fn schedules(test: &'static str, count: u64) -> impl Iterator<Item = (u64, impl Drop)> {
    struct Schedule(u64, #[expect(dead_code, reason = "drop guard")] std::sync::mpsc::Sender<()>);
    impl Drop for Schedule {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("replay with LSMX_TEST_SEED={}", self.0);
            }
        }
    }
    case_seeds(&[], count).map(move |seed| (seed, Schedule(seed, watchdog(test, seed, PATIENCE))))
}

/// Two threads write batches to two keyspaces. Each batch stores its number under `count-WRITER` in both keyspaces and
/// adds an entry `entry-WRITER-NUMBER`. Two more threads read through snapshots and iterators.
fn readers_and_writers(vfs: &Arc<dyn Vfs>, path: &str) {
    const WRITERS: usize = 2;
    const COMMITS: u64 = 1_500;
    let db = Db::open(path, options().vfs(Arc::clone(vfs))).unwrap();
    let other = db.keyspace("other", tuning()).unwrap();
    let main = db.default_keyspace();
    let writing = AtomicU64::new(WRITERS as u64);
    std::thread::scope(|scope| {
        let (db, main, other, writing) = (&db, &main, &other, &writing);
        for writer in 0..WRITERS {
            scope.spawn(move || {
                for count in 1..=COMMITS {
                    let mut batch = WriteBatch::new();
                    batch.put(main, format!("count-{writer}"), count.to_le_bytes());
                    batch.put(other, format!("entry-{writer}-{count:06}"), count.to_le_bytes());
                    batch.put(other, format!("count-{writer}"), count.to_le_bytes());
                    db.write(batch, durability(count, 97)).unwrap();
                    for keyspace in [main, other] {
                        let own = keyspace.get(format!("count-{writer}")).unwrap();
                        assert_eq!(number(own), count, "a thread does not read its own write");
                    }
                }
                writing.fetch_sub(1, Ordering::Release);
            });
        }
        for _ in 0..2 {
            scope.spawn(move || {
                let mut last = [0; WRITERS];
                let mut last_seq = lsmx::SeqNo::ZERO;
                let mut rounds = 0;
                // On a busy machine, a reader may begin when the writers have finished.
                while writing.load(Ordering::Acquire) > 0 || rounds < 5 {
                    let snapshot = db.snapshot();
                    assert!(snapshot.seq() >= last_seq);
                    last_seq = snapshot.seq();
                    for (writer, last) in last.iter_mut().enumerate() {
                        let key = format!("count-{writer}");
                        let count = number(snapshot.get(main, &key).unwrap());
                        assert_eq!(number(snapshot.get(other, &key).unwrap()), count);
                        assert!(count >= *last, "a later snapshot has count {count} < {last}");
                        *last = count;
                        if rounds % 8 == 0 {
                            assert_prefix(&snapshot, other, writer, count);
                        }
                    }
                    // The iterator was created after the snapshot, so the iterator must not show older data.
                    let newer: BTreeMap<_, _> =
                        entries(other.prefix("count-")).into_iter().collect();
                    for (writer, last) in last.into_iter().enumerate() {
                        let count = newer.get(&Slice::from(format!("count-{writer}").as_bytes()));
                        assert!(
                            number(count.cloned()) >= last,
                            "an iterator shows less than {last}"
                        );
                    }
                    rounds += 1;
                }
            });
        }
    });
    assert!(matches!(Db::open(path, options().vfs(Arc::clone(vfs))), Err(Error::Locked { .. })));
    db.wait_idle().unwrap();
    drop((main, other, db));
    let report = lsmx::verify(path, &Options::default().vfs(Arc::clone(vfs))).unwrap();
    assert_eq!((report.keyspaces, report.orphans.len()), (2, 0));
    let db = Db::open(path, options().vfs(Arc::clone(vfs))).unwrap();
    let snapshot = db.snapshot();
    for writer in 0..WRITERS {
        let other = db.open_keyspace("other", None).unwrap();
        assert_prefix(&snapshot, &other, writer, COMMITS);
    }
}

/// Asserts that forward and backward scans of a snapshot return exactly the entries 1 to `count` of a writer.
fn assert_prefix(snapshot: &Snapshot, keyspace: &Keyspace, writer: usize, count: u64) {
    let range = || snapshot.range(keyspace, format!("entry-{writer}-")..format!("entry-{writer}."));
    let values = |item: lsmx::Result<(Slice, Slice)>| number(Some(item.unwrap().1));
    assert!(range().map(values).eq(1..=count), "entries differ from 1..={count}");
    assert!(range().rev().map(values).eq((1..=count).rev()), "reverse scan: not 1..={count}");
}

#[test]
fn concurrent_batches_are_read_atomically() {
    let _dog = watchdog("concurrent_batches_are_read_atomically", 0, PATIENCE);
    let memory: Arc<dyn Vfs> = Arc::new(MemVfs::new());
    readers_and_writers(&memory, "db");
    let dir = tempfile::tempdir().unwrap();
    let real: Arc<dyn Vfs> = Arc::new(OsVfs);
    readers_and_writers(&real, dir.path().join("nested/db").to_str().unwrap());
}

/// The handle that is dropped last may be a `Db`, a `Keyspace` or a `Snapshot`.
#[test]
fn last_handle_dropped_closes_the_database_and_releases_the_lock() {
    let _dog = watchdog("last_handle_dropped", 0, PATIENCE);
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
        // An iterator does not keep the database open.
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
    // Compactions that a drop has interrupted leave live files.
    let db = Db::open(&path, options()).unwrap();
    db.wait_idle().unwrap();
    drop(db);
    let names = OsVfs.list(&path).unwrap();
    assert!(names.len() < 30, "obsolete files were not removed: {names:?}");
}

/// For each writer thread, the number of its last acknowledged write.
type Acknowledged = Vec<Arc<AtomicU64>>;

fn writers(count: usize) -> Acknowledged {
    (0..count).map(|_| Arc::default()).collect()
}

/// Writes 1, 2, 3, … under the key of the writer. Stops after `last` or when the database is closed.
fn write_until_closed(keyspace: &Keyspace, writer: usize, acknowledged: &AtomicU64, last: u64) {
    for count in 1..=last {
        let keyspace = keyspace.with_write_options(durability(count, 5));
        match keyspace.put(format!("writer-{writer}"), count.to_le_bytes()) {
            Ok(()) => acknowledged.store(count, Ordering::Release),
            Err(Error::Closed) => return,
            Err(error) => panic!("writer {writer}: {error}"),
        }
    }
}

/// Asserts that the database contains the last acknowledged write of each writer or the write that the close
/// interrupted.
fn assert_nothing_lost(db: &Db, acknowledged: &Acknowledged) {
    for (writer, acknowledged) in acknowledged.iter().enumerate() {
        let found = number(db.get(format!("writer-{writer}")).unwrap());
        let acknowledged = acknowledged.load(Ordering::Acquire);
        assert!(
            found == acknowledged || found == acknowledged + 1,
            "writer {writer}: {acknowledged} acknowledged, {found} found"
        );
    }
}

#[test]
fn close_during_concurrent_writes_loses_no_acknowledged_write() {
    let _dog = watchdog("close_during_concurrent_writes", 0, PATIENCE);
    let disk = MemVfs::new();
    for round in 0..60 {
        let db = open(&disk, options());
        for writer in 0..2 {
            db.delete(format!("writer-{writer}")).unwrap();
        }
        let acknowledged = writers(2);
        std::thread::scope(|scope| {
            for (writer, acknowledged) in acknowledged.iter().enumerate() {
                let keyspace = db.default_keyspace();
                scope.spawn(move || write_until_closed(&keyspace, writer, acknowledged, u64::MAX));
            }
            while acknowledged[0].load(Ordering::Acquire) < round {
                std::thread::yield_now();
            }
            db.close(None).unwrap();
            // Closing releases the lock even if writer threads still run.
            open(&disk, options()).put("next", "owner").unwrap();
        });
        assert_nothing_lost(&open(&disk, options()), &acknowledged);
    }
}

/// Closes a database while its writer threads run. Asserts that no file changes after the close.
fn close_and_join(disk: &MemVfs, db: Db, handles: Vec<JoinHandle>) {
    // Dropping the last handle truncates the preallocated zeros of the last WAL segment, so the comparison ignores
    // trailing zeros.
    let contents = || -> BTreeMap<PathBuf, Vec<u8>> {
        let files = disk.snapshot_all().into_iter();
        files
            .map(|(path, bytes)| {
                let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
                (path, bytes[..end].to_vec())
            })
            .collect()
    };
    db.close(None).unwrap();
    let env = db.env().clone();
    let closed = contents();
    join(&env, handles);
    drop(db);
    let after = contents();
    let changed = |path: &&PathBuf| closed.get(*path) != after.get(*path);
    let changed: Vec<_> = closed.keys().chain(after.keys()).filter(changed).collect();
    assert!(changed.is_empty(), "files changed after the close: {changed:?}");
}

/// The memtable is empty, so closing flushes nothing. In some schedules the close ends before the writers commit.
#[test]
fn close_without_flush_refuses_concurrent_commits() {
    let mut refused = 0;
    for (seed, _schedule) in schedules("close_without_flush_refuses_concurrent_commits", 300) {
        let disk = MemVfs::new();
        let db = open(&disk, stepped(seed));
        let acknowledged = writers(6);
        let spawn = |(writer, acknowledged): (usize, &Arc<AtomicU64>)| {
            let (keyspace, acknowledged) = (db.default_keyspace(), Arc::clone(acknowledged));
            let write = move || write_until_closed(&keyspace, writer, &acknowledged, 1);
            db.env().spawn("writer", write).unwrap()
        };
        let handles = acknowledged.iter().enumerate().map(spawn).collect();
        // Creating a snapshot is a scheduling point, at which another thread may run.
        (0..seed % 5).for_each(|_| drop(db.snapshot()));
        close_and_join(&disk, db, handles);
        let db = open(&disk, options().background(Background::Inline));
        for (writer, acknowledged) in acknowledged.iter().enumerate() {
            let acknowledged = acknowledged.load(Ordering::Acquire);
            assert_eq!(number(db.get(format!("writer-{writer}")).unwrap()), acknowledged);
            refused += 1 - acknowledged;
        }
    }
    assert!(refused > 10, "only {refused} commits were refused");
}

/// Regression test. A writer checked that the database was open, and the close returned before the writer appended to
/// the log. The commit was acknowledged and lost.
#[test]
fn files_after_close_during_writes_do_not_change() {
    for (seed, _schedule) in schedules("files_after_close_during_writes_do_not_change", 400) {
        let disk = MemVfs::new();
        let db = open(&disk, stepped(seed));
        let env = db.env().clone();
        let acknowledged = writers(2);
        let mut handles = Vec::new();
        for (writer, acknowledged) in acknowledged.iter().enumerate() {
            let (keyspace, acknowledged) = (db.default_keyspace(), Arc::clone(acknowledged));
            let write = move || write_until_closed(&keyspace, writer, &acknowledged, u64::MAX);
            handles.push(env.spawn("writer", write).unwrap());
        }
        let waiter = db.clone();
        let wait = move || {
            loop {
                let waited = waiter.flush().and_then(|()| waiter.wait_idle());
                match waited.and_then(|()| waiter.sync()) {
                    Ok(()) => {}
                    Err(Error::Closed) => return,
                    Err(error) => panic!("waiter: {error}"),
                }
            }
        };
        handles.push(env.spawn("waiter", wait).unwrap());
        for fill in 0..TestRng::new(seed).below(40) as u64 {
            db.put(fill.to_le_bytes(), [1; 60]).unwrap();
        }
        close_and_join(&disk, db, handles);
        assert_nothing_lost(&open(&disk, options().background(Background::Inline)), &acknowledged);
    }
}

/// Adds 1 to a stored number with a guarded batch. Retries while another thread's write makes the guard fail.
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
            Err(Error::Conflict { key, read, .. } | Error::ConflictUnknown { key, read, .. }) => {
                assert_eq!((&key[..], read), (&b"sum"[..], snapshot.seq().0));
                refused.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn concurrent_guarded_increments_are_not_lost() {
    let _dog = watchdog("concurrent_guarded_increments_are_not_lost", 0, PATIENCE);
    let refused = Arc::new(AtomicU64::new(0));
    let db = open(&MemVfs::new(), options());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..500).for_each(|_| increment(&db, &refused)));
        }
    });
    assert_eq!(number(db.get("sum").unwrap()), 2_000);
    assert_eq!(db.default_keyspace().prefix("fill-").count(), 2_000);
    drop(db);
    for (seed, _schedule) in schedules("concurrent_guarded_increments_are_not_lost", 30) {
        let db = open(&MemVfs::new(), stepped(seed));
        let handles = (0..3).map(|_| {
            let (db_clone, refused) = (db.clone(), Arc::clone(&refused));
            let add = move || (0..10).for_each(|_| increment(&db_clone, &refused));
            db.env().spawn("adder", add).unwrap()
        });
        join(db.env(), handles.collect());
        assert_eq!(number(db.get("sum").unwrap()), 30);
    }
    assert!(refused.load(Ordering::Relaxed) > 100, "fewer than 100 conflicts between threads");
}

#[test]
fn batch_with_a_refused_guard_writes_nothing() {
    let db = open(&MemVfs::new(), options().background(Background::Inline));
    let (main, other) = (db.default_keyspace(), db.keyspace("other", tuning()).unwrap());
    let guarded = |read| {
        let mut batch = WriteBatch::new();
        batch.put(&main, "a", "guarded");
        batch.put(&other, "b", "guarded");
        batch.guard(&other, "guard", read);
        db.write(batch, Durability::Sync)
    };
    let assert_refused = |read: lsmx::SeqNo| {
        let written = guarded(read);
        assert!(
            matches!(written, Err(Error::Conflict { read: named, .. }) if named == read.0),
            "{written:?}"
        );
        assert_eq!((db.get("a").unwrap(), other.get("b").unwrap()), (None, None));
    };
    let before = db.snapshot().seq();
    main.put("guard", "the same key of another keyspace").unwrap();
    other.put("guard-not", "another key").unwrap();
    other.put("guard", "newer").unwrap();
    assert_refused(before);
    other.delete("guard").unwrap();
    assert_refused(before);
    let between = db.snapshot().seq();
    other.delete("guard").unwrap();
    assert_refused(between);
    // The write that conflicts with the guard has been flushed to a table.
    let old = db.snapshot().seq();
    db.put("one", "more").unwrap();
    other.put("guard", "more").unwrap();
    db.flush().unwrap();
    assert_refused(old);
    // A batch may consist of a guard without writes.
    let mut check = WriteBatch::new();
    check.guard(&other, "guard", db.snapshot().seq());
    db.write(check.clone(), Durability::Buffered).unwrap();
    other.put("guard", "again").unwrap();
    assert!(matches!(db.write(check, Durability::Buffered), Err(Error::Conflict { .. })));
    guarded(db.snapshot().seq()).unwrap();
    assert_eq!(db.get("a").unwrap().unwrap(), "guarded");
    let mut own = WriteBatch::new();
    own.put(&main, "a", "1");
    own.put(&main, "a", "2");
    own.guard(&main, "a", db.snapshot().seq());
    db.write(own, Durability::Buffered).unwrap();
    assert_eq!(db.get("a").unwrap().unwrap(), "2");
}

/// A thread that executes random calls and records them for the linearizability check.
struct User {
    db: Db,
    /// The registers of the linearizability check. The first two are keys of the default keyspace. The third is a key
    /// of another keyspace.
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
        // The padding makes the values large enough that one test run fills several memtables.
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
                // One iterator reads both keys of the default keyspace.
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
                            Err(Error::Conflict { .. } | Error::ConflictUnknown { .. }) => {
                                Call::GuardFailed
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
    for (seed, _schedule) in schedules("histories_of_three_threads_are_linearizable", 300) {
        let db = open(&MemVfs::new(), stepped(seed));
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
        assert!(linearizable(&threads), "the calls are not linearizable: {threads:#?}");
        let calls = threads.iter().flatten();
        held += calls.clone().filter(|at| matches!(at.call, Call::GuardHeld { .. })).count();
        overlapping += calls.filter(|record| record.end > record.begin + 1).count();
    }
    let enough = scale() < 1.0 || (held > 50 && overlapping > 1_000);
    assert!(enough, "{held} guards held, {overlapping} calls overlapped");
}
/// A batch writes to two keyspaces, and the memtables of one of them are full. The batch must fail as a whole. Reads
/// must succeed, and also writes to the other keyspace alone.
#[test]
fn batch_over_a_stalled_keyspace_is_refused_as_a_whole() {
    let _dog = watchdog("batch_over_a_stalled_keyspace", 0, PATIENCE);
    let gate = Gate::default();
    let disk = gate.disk(each(&[VfsCall::Create, VfsCall::Append], ".sst"), "lsmx");
    let stopping = || options().write_control(WriteControl::Stop).wal_bytes_max(1 << 30);
    let db = open(&disk, stopping());
    let (main, other) = (db.default_keyspace(), db.keyspace("other", tuning()).unwrap());
    gate.shut();
    let no_slowdown = WriteOptions { no_slowdown: true, ..WriteOptions::default() };
    let quick = main.with_write_options(no_slowdown);
    let stalled = (0..1_000u64).find_map(|key| quick.put(key.to_be_bytes(), [5; 200]).err());
    assert!(matches!(stalled, Some(Error::WouldWait { cause: "a free memtable" })), "{stalled:?}");
    let mut batch = WriteBatch::new();
    batch.put(&other, "late", "x");
    batch.put(&main, "late", "x");
    let deadline = Some(Duration::from_millis(30));
    let late = db.write(batch, WriteOptions { deadline, ..WriteOptions::default() });
    assert!(matches!(late, Err(Error::Deadline { cause: "a free memtable" })), "{late:?}");
    let assert_absent = |db: &Db| {
        assert_eq!(db.get("late").unwrap(), None);
        assert_eq!(db.open_keyspace("other", None).unwrap().get("late").unwrap(), None);
    };
    assert_absent(&db);
    assert!(db.get(0u64.to_be_bytes()).unwrap().is_some());
    other.put("elsewhere", "x").unwrap();
    gate.open();
    db.wait_idle().unwrap();
    quick.put("after", "x").unwrap();
    db.close(None).unwrap();
    assert_absent(&open(&disk, stopping()));
}

/// Several threads increment the same counters with merges and with atomic updates. Each thread also flushes, reads and
/// holds snapshots. Asserts that each increment is counted once, that no counter decreases, and that snapshots do not
/// change.
fn count_in_threads(options: Options, counters: &KeyspaceOptions, rounds: u64) {
    const THREADS: u64 = 3;
    let disk = MemVfs::new();
    let counters = counters.clone().memtable_bytes(2 << 10).merge_operator(Counter);
    let db = open(&disk, options.clone());
    let keyspace = db.keyspace("counters", counters.clone()).unwrap();
    let one = 1u64.to_le_bytes();
    let mut threads = Vec::new();
    for thread in 0..THREADS {
        let (keyspace, db_clone) = (keyspace.clone(), db.clone());
        let count = move || {
            let mut seen = 0;
            for round in 0..rounds {
                keyspace.merge("merged", one).unwrap();
                let add = |old: Option<&[u8]>| {
                    let old = old.map_or(0, |old| u64::from_le_bytes(old.try_into().unwrap()));
                    (old + 1).to_le_bytes().to_vec()
                };
                let before = number(keyspace.fetch_update("updated", add).unwrap());
                assert!(before >= seen, "the counter decreased from {seen} to {before}");
                seen = before + 1;
                if (round + thread) % 2 == 0 {
                    keyspace.update_fetch("both", add).unwrap();
                } else {
                    keyspace.merge("both", one).unwrap();
                }
                match (round + thread) % 10 {
                    9 => keyspace.delete("deleted").unwrap(),
                    _ => keyspace.merge("deleted", one).unwrap(),
                }
                let snapshot = db_clone.snapshot();
                let contents = entries(snapshot.iter(&keyspace));
                let merged = snapshot.get(&keyspace, "merged").unwrap();
                assert!(number(merged.clone()) > round, "a thread does not read its own merges");
                if round % 5 == thread {
                    db_clone.flush().unwrap();
                }
                assert_eq!(snapshot.get(&keyspace, "merged").unwrap(), merged);
                assert_eq!(entries(snapshot.iter(&keyspace)), contents);
                for (key, value) in contents {
                    assert_eq!(snapshot.get(&keyspace, key).unwrap(), Some(value));
                }
            }
        };
        threads.push(db.env().spawn("counter", count).unwrap());
    }
    join(db.env(), threads);
    let check = |keyspace: &Keyspace| {
        for key in ["merged", "updated", "both"] {
            assert_eq!(number(keyspace.get(key).unwrap()), THREADS * rounds, "{key}");
        }
    };
    check(&keyspace);
    db.wait_idle().unwrap();
    check(&keyspace);
    if let Some(store) = db.metrics().keyspaces["counters"].operand_store {
        assert!(store.to_tree > 0, "{store:?}");
        keyspace.operands_to_tree().unwrap();
        check(&keyspace);
    }
    drop((keyspace, db));
    let db = open(&disk, options.background(Background::Inline));
    check(&db.keyspace("counters", counters).unwrap());
}

/// Returns keyspace options with an operand store. The collections of the store often move operands to the tree.
fn counters_in_a_store(seed: u64) -> KeyspaceOptions {
    let to_tree_one_in = 1 + seed % 2;
    tuning().operand_store(SimpleStore {
        collect_after: 1,
        to_tree_one_in,
        lazy: seed.is_multiple_of(3),
    })
}

#[test]
fn counters_of_stepped_threads_are_exact() {
    for (seed, _schedule) in schedules("counters_of_stepped_threads_are_exact", 70) {
        let counters = if seed % 2 == 0 { tuning() } else { counters_in_a_store(seed / 2) };
        count_in_threads(stepped(seed), &counters, 25);
    }
}

#[test]
fn counters_of_os_threads_are_exact() {
    let _dog = watchdog("counters_of_os_threads_are_exact", 0, PATIENCE);
    for counters in [tuning(), counters_in_a_store(1)] {
        let options = options().background(Background::Threads { workers: 2 });
        count_in_threads(options, &counters, 400);
    }
}
