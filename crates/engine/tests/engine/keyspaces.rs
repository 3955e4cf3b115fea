//! Tests of creating, renaming, dropping and reopening keyspaces, and of `multi_get`, `approximate_size`, `explain` and
//! `observe`.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lsmx::env::Background;
use lsmx::event::{Event, EventListener};
use lsmx::inspect::BlockSource;
use lsmx::vfs::{CrashImage, MemVfs, Vfs};
use lsmx::{Db, Durability, Error, Keyspace, KeyspaceOptions, Options, Update, WriteBatch};

use crate::harness::database::{self, assert_clean, entries, files, inline, metrics, policy};

fn options(background: Background) -> Options {
    let keyspace = KeyspaceOptions::default().memtable_bytes(8 << 10).table_bytes(8 << 10);
    inline().background(background).keyspace_defaults(keyspace)
}

fn open(disk: &MemVfs, background: Background) -> Db {
    database::open(disk, options(background))
}

fn small() -> KeyspaceOptions {
    KeyspaceOptions::default().memtable_bytes(8 << 10)
}

fn users(db: &Db) -> Keyspace {
    db.keyspace("users", small()).unwrap()
}

fn fill(keyspace: &Keyspace, keys: u32) {
    for key in 0..keys {
        keyspace.put(key.to_be_bytes(), vec![b'v'; 100]).unwrap();
    }
}

fn assert_dropped<T: std::fmt::Debug>(result: lsmx::Result<T>) {
    assert!(
        matches!(result, Err(Error::KeyspaceDropped { ref name }) if name == "users"),
        "{result:?}"
    );
}

/// Blocks the first compaction.
struct BlocksCompaction {
    begun: Mutex<Option<Sender<()>>>,
    continues: Mutex<Receiver<()>>,
}

impl EventListener for BlocksCompaction {
    fn on_event(&self, event: &Event) {
        if matches!(event, Event::CompactionBegin(_))
            && let Some(begun) = self.begun.lock().unwrap().take()
        {
            begun.send(()).unwrap();
            self.continues.lock().unwrap().recv().unwrap();
        }
    }
}

/// The drop removes the tables before the compaction reads them. The compaction must not fail the next write.
#[test]
fn keyspace_dropped_during_its_compaction_causes_no_error() {
    let ((begun, begins), (unblock, continues)) = (channel(), channel());
    let (begun, continues) = (Mutex::new(Some(begun)), Mutex::new(continues));
    let listener = Arc::new(BlocksCompaction { begun, continues });
    let disk = MemVfs::new();
    let db = database::open(&disk, options(Background::Threads { workers: 2 }).listener(listener));
    // The number of runs must not stop the writes before a compaction begins.
    let users = db.keyspace("users", small().policy(policy("leveled(stop=2000)"))).unwrap();
    for round in 0.. {
        fill(&users, 100);
        db.flush().unwrap();
        match begins.recv_timeout(Duration::from_millis(if round < 10 { 0 } else { 100 })) {
            Ok(()) => break,
            Err(_) => assert!(round < 1_000, "no compaction begins"),
        }
    }
    db.drop_keyspace("users").unwrap();
    unblock.send(()).unwrap();
    db.wait_idle().unwrap();
    db.put("key", "value").unwrap();
    assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn dropped_keyspace_refuses_all_calls_and_leaves_no_file() {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Inline);
    let users = users(&db);
    fill(&users, 1_000);
    assert!(!files(&disk, ".sst").is_empty());
    db.drop_keyspace("users").unwrap();
    assert_dropped(users.get("k"));
    assert_dropped(users.put("k", "v"));
    assert_dropped(users.multi_get(["k"]));
    assert_dropped(users.fetch_update("k", |_| -> Update { panic!("the function was called") }));
    assert_dropped(users.approximate_size::<&[u8]>(..));
    assert_dropped(users.approximate_count::<&[u8]>(..));
    assert_dropped(users.first());
    assert_dropped(users.iter().next().unwrap());
    let mut batch = WriteBatch::new();
    batch.put(&db.default_keyspace(), "k", "v");
    batch.put(&users, "k", "v");
    assert_dropped(db.write(batch, Durability::Sync));
    assert_eq!(db.get("k").unwrap(), None, "a refused batch was applied in part");
    // A snapshot created after the drop cannot read the keyspace.
    assert_dropped(db.snapshot().get(&users, "k"));
    assert_eq!(db.keyspaces(), ["default"]);
    assert!(matches!(db.open_keyspace("users", None), Err(Error::UnknownKeyspace { .. })));
    assert!(matches!(db.drop_keyspace("users"), Err(Error::UnknownKeyspace { .. })));
    assert!(matches!(db.drop_keyspace("default"), Err(Error::DefaultKeyspace)));
    db.put("k", "v").unwrap();
    assert_eq!(files(&disk, ".sst").len(), 0);
    db.close(None).unwrap();
    let report = assert_clean(&disk);
    // Only one table is left, with the only key of the default keyspace.
    assert_eq!((report.keyspaces, report.tables), (1, 1));
    assert_eq!(open(&disk, Background::Inline).keyspaces(), ["default"]);
}

#[test]
fn keyspace_created_after_a_drop_of_its_name_is_empty() {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Inline);
    let old = users(&db);
    old.put("k", "old").unwrap();
    db.drop_keyspace("users").unwrap();
    let new = users(&db);
    assert_eq!(new.get("k").unwrap(), None);
    new.put("k", "new").unwrap();
    assert_dropped(old.get("k"));
    db.sync().unwrap();
    // Recovery does not apply log records of the dropped keyspace to the new keyspace of the same name.
    let killed = disk.crash(CrashImage::Keep, 0);
    let again = open(&killed, Background::Inline);
    let users = again.open_keyspace("users", None).unwrap();
    assert_eq!(entries(users.iter()), [(b"k"[..].into(), b"new"[..].into())]);
}

#[test]
fn dropped_keyspace_is_readable_by_older_snapshots_and_iterators() {
    for background in [Background::Inline, Background::Threads { workers: 2 }] {
        let disk = MemVfs::new();
        let db = open(&disk, background);
        let users = users(&db);
        fill(&users, 500);
        let snapshot = db.snapshot();
        let mut walk = users.iter();
        assert!(walk.next().unwrap().is_ok());
        db.drop_keyspace("users").unwrap();
        fill(&db.default_keyspace(), 500);
        db.flush().unwrap();
        assert_eq!(snapshot.iter(&users).filter(Result::is_ok).count(), 500);
        assert!(snapshot.get(&users, 7u32.to_be_bytes()).unwrap().is_some());
        assert_eq!(snapshot.multi_get(&users, [7u32.to_be_bytes()]).unwrap().len(), 1);
        assert_dropped(users.get("k"));
        drop(snapshot);
        assert_eq!(walk.filter(Result::is_ok).count(), 499);
        db.close(None).unwrap();
        assert_clean(&disk);
    }
}

#[test]
fn keyspace_dropped_during_writes_flushes_and_compactions_causes_no_error() {
    lsmx_testkit::time_test();
    for seed in 0..40 {
        let disk = MemVfs::new();
        let db = open(&disk, Background::Stepped { seed, workers: 2 });
        let users = users(&db);
        let env = db.env().clone();
        let writer = {
            let (users, db) = (users.clone(), db.clone());
            env.spawn("writer", move || {
                for key in 0..2_000u32 {
                    match users.put(key.to_be_bytes(), vec![b'v'; 100]) {
                        Ok(()) => {}
                        Err(Error::KeyspaceDropped { .. }) => break,
                        Err(error) => panic!("{error:?}"),
                    }
                }
                db.flush().unwrap();
            })
        };
        let writer = writer.unwrap();
        for key in 0..100 + seed * 10 {
            db.put(key.to_be_bytes(), "v").unwrap();
        }
        db.drop_keyspace("users").unwrap();
        env.join(writer).unwrap();
        assert_dropped(users.put("k", "v"));
        assert!(db.health().read_only.is_none());
        db.wait_idle().unwrap();
        assert_eq!(db.metrics().keyspaces.len(), 1);
        drop(users);
        db.close(None).unwrap();
        assert_clean(&disk);
    }
}

/// Regression: a flush that ended after the drop of its keyspace left its writes in the history of flushed writes.
#[test]
fn keyspace_dropped_during_flush_leaves_no_history_of_writes() {
    for seed in 0..40 {
        let db = open(&MemVfs::new(), Background::Stepped { seed, workers: 2 });
        let users = users(&db);
        fill(&users, 10);
        let env = db.env().clone();
        let flusher = {
            let db = db.clone();
            env.spawn("flusher", move || db.flush().unwrap()).unwrap()
        };
        db.drop_keyspace("users").unwrap();
        env.join(flusher).unwrap();
        db.wait_idle().unwrap();
        assert_eq!(db.metrics().memory.guard_history, 0, "seed {seed}");
    }
}

#[test]
fn renamed_keyspace_keeps_its_entries_handles_and_snapshots() {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Inline);
    let keyspace = users(&db);
    fill(&keyspace, 500);
    let snapshot = db.snapshot();
    let mut walk = keyspace.iter();
    assert!(walk.next().unwrap().is_ok());
    db.rename_keyspace("users", "people").unwrap();
    assert_eq!(keyspace.name(), "people");
    assert_eq!(db.keyspaces(), ["default", "people"]);
    assert!(db.keyspace_exists("people") && db.metrics().keyspaces.contains_key("people"));
    keyspace.put("k", "after the rename").unwrap();
    assert_eq!(walk.filter(Result::is_ok).count(), 499);
    assert_eq!(snapshot.iter(&keyspace).filter(Result::is_ok).count(), 500);
    // The old name is free. The new keyspace has another id, so the log separates the two.
    let other = users(&db);
    assert_eq!(other.iter().count(), 0);
    other.put("k", "of the other").unwrap();
    db.sync().unwrap();
    let killed = open(&disk.crash(CrashImage::Keep, 0), Background::Inline);
    for db in [db, killed] {
        let people = db.open_keyspace("people", None).unwrap();
        assert_eq!(people.get("k").unwrap().as_deref(), Some(&b"after the rename"[..]));
        assert_eq!(people.iter().count(), 501);
        let users = db.open_keyspace("users", None).unwrap();
        assert_eq!(entries(users.iter()), [(b"k"[..].into(), b"of the other"[..].into())]);
    }
}

#[test]
fn rename_to_invalid_name_or_of_unknown_keyspace_is_refused() {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Inline);
    let users = users(&db);
    let long = "x".repeat(255);
    for (old, new, error) in [
        ("absent", "x", "there is no keyspace \"absent\""),
        ("absent", "absent", "there is no keyspace \"absent\""),
        ("users", "default", "keyspace \"default\" exists"),
        ("default", "x", "the default keyspace cannot be dropped or renamed"),
        ("users", "", "keyspace name"),
        ("users", &format!("{long}x"), "keyspace name"),
    ] {
        let refused = db.rename_keyspace(old, new).unwrap_err().to_string();
        assert!(refused.contains(error), "{old} to {new}: {refused}");
    }
    let manifest = || disk.read_all(&files(&disk, "MANIFEST-000002")[0]).unwrap().len();
    let before = manifest();
    db.rename_keyspace("users", "users").unwrap();
    db.rename_keyspace("default", "default").unwrap();
    assert_eq!(manifest(), before, "a rename to the same name was written");
    assert_eq!(db.keyspaces(), ["default", "users"]);
    db.rename_keyspace("users", &long).unwrap();
    db.rename_keyspace(&long, "users").unwrap();
    db.drop_keyspace("users").unwrap();
    assert!(matches!(db.rename_keyspace("users", "x"), Err(Error::UnknownKeyspace { .. })));
    assert_dropped(users.put("k", "v"));
    db.close(None).unwrap();
    assert!(matches!(db.rename_keyspace("users", "x"), Err(Error::Closed)));
    let read_only = database::open(&disk, options(Background::Inline).read_only(true));
    assert!(matches!(read_only.rename_keyspace("a", "b"), Err(Error::OpenedReadOnly)));
}

#[test]
fn keyspaces_renamed_during_writes_and_jobs_keep_their_entries() {
    lsmx_testkit::time_test();
    for seed in 0..20 {
        let disk = MemVfs::new();
        let db = open(&disk, Background::Stepped { seed, workers: 2 });
        let (one, two) = (db.keyspace("1", small()).unwrap(), db.keyspace("2", small()).unwrap());
        let env = db.env().clone();
        let writer = {
            let (one, two, db) = (one.clone(), two.clone(), db.clone());
            env.spawn("writer", move || {
                for key in 0..1_000u32 {
                    one.put(key.to_be_bytes(), vec![b'1'; 100]).unwrap();
                    two.put(key.to_be_bytes(), vec![b'2'; 100]).unwrap();
                    assert_eq!(db.metrics().keyspaces.len(), 3);
                }
                db.flush().unwrap();
            })
        };
        let writer = writer.unwrap();
        // An odd number of exchanges.
        for _ in 0..9 {
            db.rename_keyspace("1", "other").unwrap();
            db.rename_keyspace("2", "1").unwrap();
            db.rename_keyspace("other", "2").unwrap();
        }
        db.rename_keyspace("1", "2 at the end").unwrap();
        env.join(writer).unwrap();
        assert_eq!((one.name(), two.name()), ("2".to_owned(), "2 at the end".to_owned()));
        db.wait_idle().unwrap();
        db.close(None).unwrap();
        drop((one, two));
        assert_clean(&disk);
        let db = open(&disk, Background::Inline);
        for (name, byte) in [("2", b'1'), ("2 at the end", b'2')] {
            let found = entries(db.open_keyspace(name, None).unwrap().iter());
            assert_eq!(found.len(), 1_000);
            assert!(found.iter().all(|(_, value)| **value == [byte; 100]));
        }
    }
}

#[test]
fn multi_get_returns_values_in_the_order_of_the_keys() {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Inline);
    fill(&db.default_keyspace(), 2_000);
    db.delete(5u32.to_be_bytes()).unwrap();
    let snapshot = db.snapshot();
    db.put(9u32.to_be_bytes(), "new").unwrap();
    let keys: Vec<[u8; 4]> = [1999u32, 5, 9, 70_000, 9, 0, 1].map(u32::to_be_bytes).to_vec();
    let lengths = |values: Vec<Option<lsmx::Slice>>| {
        values.iter().map(|value| value.as_ref().map_or(0, |value| value.len())).collect::<Vec<_>>()
    };
    assert_eq!(
        lengths(db.default_keyspace().multi_get(&keys).unwrap()),
        [100, 0, 3, 0, 3, 100, 100]
    );
    let default = db.default_keyspace();
    let before = snapshot.multi_get(&default, &keys).unwrap();
    assert_eq!(lengths(before), [100, 0, 100, 0, 100, 100, 100]);
    assert!(db.default_keyspace().multi_get::<[u8; 4]>([]).unwrap().is_empty());
    assert!(db.default_keyspace().contains_key(1u32.to_be_bytes()).unwrap());
    assert!(!default.contains_key(5u32.to_be_bytes()).unwrap());
    assert!(snapshot.contains_key(&default, 9u32.to_be_bytes()).unwrap());
    assert_eq!(default.first().unwrap().unwrap().0, 0u32.to_be_bytes());
    assert_eq!(default.last().unwrap().unwrap().0, 1_999u32.to_be_bytes());
    assert_eq!(snapshot.last(&default).unwrap().unwrap().0, 1_999u32.to_be_bytes());
    assert!(users(&db).first().unwrap().is_none());
    drop(default);
    db.close(None).unwrap();
    assert!(matches!(db.default_keyspace().multi_get(&keys), Err(Error::Closed)));
}

#[test]
fn approximate_size_of_a_range_is_proportional_to_its_keys() {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Inline);
    let default = db.default_keyspace();
    fill(&default, 20_000);
    db.flush().unwrap();
    let total = metrics(&db).total();
    let all = total.bytes;
    assert_eq!(default.approximate_size::<&[u8]>(..).unwrap(), all);
    for (from, to) in [(0u32, 10_000u32), (5_000, 15_000), (0, 20_000), (19_000, 30_000), (3, 3)] {
        let size = default.approximate_size(from.to_be_bytes()..to.to_be_bytes()).unwrap();
        let share = all * u64::from(to.min(20_000) - from) / 20_000;
        // A table of 8 KiB has one index block. For each run, each bound of the range therefore adds an error of about
        // half a table.
        assert!(size.abs_diff(share) <= total.runs * 12 * 1024, "{from}..{to}: {size} != {share}");
    }
    let (from, to) = (9u32.to_be_bytes(), 3u32.to_be_bytes());
    assert_eq!(default.approximate_size(from..to).unwrap(), 0);
}

#[test]
fn approximate_count_of_a_range_is_within_its_error() {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Inline);
    let default = db.default_keyspace();
    fill(&default, 20_000);
    let count = |from: u32, to: u32| {
        default.approximate_count(from.to_be_bytes()..to.to_be_bytes()).unwrap()
    };
    database::compact(&db).unwrap();
    assert_eq!(default.approximate_count::<&[u8]>(..).unwrap(), 20_000);
    let total = metrics(&db).total();
    let table_entries = 20_000 / total.files + 1;
    for (from, to) in [(0u32, 10_000u32), (5_000, 15_000), (0, 30_000), (19_000, 30_000), (3, 3)] {
        let keys = u64::from(to.min(20_000) - from);
        let error = count(from, to).abs_diff(keys);
        assert!(error <= 2 * total.runs * table_entries, "{from}..{to}: error {error}");
    }
    assert_eq!(count(9, 3), 0);
    // Old versions and the entries that tombstones hide count until they are compacted.
    for number in 0..10_000u32 {
        match number % 2 {
            0 => default.put(number.to_be_bytes(), "new").unwrap(),
            _ => default.delete(number.to_be_bytes()).unwrap(),
        }
    }
    db.flush().unwrap();
    assert!((15_000..=25_000).contains(&count(0, u32::MAX)));
    database::compact(&db).unwrap();
    assert_eq!(count(0, u32::MAX), 15_000);
}

#[test]
fn explain_lists_memtables_runs_and_blocks_of_a_lookup() {
    let tiering = KeyspaceOptions::default().memtable_bytes(1 << 20).policy(policy("tiering"));
    let db = database::open(&MemVfs::new(), inline().keyspace_defaults(tiering));
    let default = db.default_keyspace();
    fill(&default, 100);
    db.flush().unwrap();
    for key in 0..100u32 {
        default.put((key * 2).to_be_bytes(), "v").unwrap();
    }
    db.flush().unwrap();
    default.delete(3u32.to_be_bytes()).unwrap();
    assert_eq!(metrics(&db).total().runs, 2);
    // The memtable contains the newest entry, so the lookup searches no run.
    let seen = default.explain(3u32.to_be_bytes()).unwrap();
    assert_eq!(seen.memtables[0].found[0].kind, "delete");
    assert_eq!((seen.runs.len(), seen.runs_left, seen.value_bytes), (0, 2, None));
    // The filter of the newer run excludes the key. The older run contains the entry.
    let seen = default.explain(1u32.to_be_bytes()).unwrap();
    assert_eq!(seen.value_bytes, Some(100));
    assert_eq!(
        seen.runs.iter().map(|run| run.filter_may_contain).collect::<Vec<_>>(),
        [Some(false), None]
    );
    let kinds = |seen: &lsmx::Explanation| {
        let blocks = seen.runs.iter().flat_map(|run| &run.blocks);
        blocks.map(|block| format!("{:?}", block.kind)).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&seen), ["Filter", "TopIndex", "Index", "Data"]);
    assert_eq!(seen.runs[1].found.unwrap().kind, "put");
    // The first `explain` loaded all needed blocks into the cache, so the second call causes no cache miss.
    let misses = |db: &Db| db.metrics().cache.values().map(|cache| cache.misses).sum::<u64>();
    let before = misses(&db);
    let again = default.explain(1u32.to_be_bytes()).unwrap();
    let blocks = again.runs.iter().flat_map(|run| &run.blocks);
    let from_storage = blocks.filter(|block| block.source == BlockSource::Storage).count();
    assert_eq!((from_storage, misses(&db)), (0, before));
    let absent = default.explain([9; 9]).unwrap();
    assert_eq!(absent.value_bytes, None);
    let text = format!("{again}");
    assert!(text.contains("says absent") && text.contains("value of 100 bytes"), "{text}");
    let json = serde_json::to_string(&again).unwrap();
    assert!(json.contains("\"kind\":\"put\"") && json.contains("\"source\":\"cache\""), "{json}");
}

#[test]
fn thousands_of_keyspaces_are_created_dropped_and_reopened() {
    lsmx_testkit::time_test();
    let disk = MemVfs::new();
    let db = open(&disk, Background::Threads { workers: 2 });
    let started = db.env().monotonic_ns();
    let names: Vec<String> = (0..3_000).map(|number| format!("keyspace-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        let keyspace = db.keyspace(name, KeyspaceOptions::default()).unwrap();
        if number % 10 == 0 {
            keyspace.put("k", name).unwrap();
        }
    }
    for name in names.iter().skip(1).step_by(10) {
        db.drop_keyspace(name).unwrap();
    }
    db.close(None).unwrap();
    let db = open(&disk, Background::Threads { workers: 2 });
    assert_eq!(db.keyspaces().len(), 2_701);
    for name in names.iter().step_by(10) {
        let value = db.open_keyspace(name, None).unwrap().get("k").unwrap();
        assert_eq!(value.unwrap(), *name.as_bytes());
    }
    db.wait_idle().unwrap();
    // If the cost were quadratic in the number of keyspaces, the test would take more than 120 seconds.
    let seconds = (db.env().monotonic_ns() - started) / 1_000_000_000;
    assert!(seconds < 120, "{seconds} s");
}

#[test]
fn observe_during_writes_matches_the_metrics_of_the_owner() {
    let disk = MemVfs::new();
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    let observe = || lsmx::observe("db", &Options::default().vfs(Arc::clone(&vfs)));
    assert!(matches!(observe(), Err(Error::NotADatabase { .. })));
    let db = open(&disk, Background::Threads { workers: 2 });
    let users = users(&db);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| fill(&users, 20_000));
        let mut observations = 0;
        while !writer.is_finished() || observations < 20 {
            let observed = observe().unwrap();
            assert_eq!((observed.keyspaces.len(), observed.clean_close), (2, false));
            observations += 1;
        }
    });
    db.wait_idle().unwrap();
    let observed = observe().unwrap();
    let levels = observed.keyspaces["users"].levels.iter();
    let levels: Vec<_> =
        levels.map(|at| (at.level, at.runs, at.files, at.bytes, at.entries)).collect();
    let expected = db.metrics().keyspaces.remove("users").unwrap().levels;
    let expected = expected.iter().filter(|at| at.runs > 0);
    let expected: Vec<_> =
        expected.map(|at| (at.level, at.runs, at.files, at.bytes, at.entries)).collect();
    assert_eq!(levels, expected);
    assert_eq!(observed.wal_bytes, disk_bytes(&disk, ".wal"));
    assert_eq!(observed.table_bytes + observed.other_bytes, disk_bytes(&disk, ".sst"));
    assert!(format!("{observed}").contains("[users] leveled"));
    drop(users);
    db.close(None).unwrap();
    assert!(observe().unwrap().clean_close);
}

fn disk_bytes(disk: &MemVfs, suffix: &str) -> u64 {
    files(disk, suffix).iter().map(|path| disk.read_all(path).unwrap().len() as u64).sum()
}
