//! Creation, drop and reopen of keyspaces.

use std::path::Path;
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::inspect::BlockSource;
use lsmx::vfs::CrashImage;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Durability, Error, Keyspace, KeyspaceOptions, Options, WriteBatch};

fn options(background: Background) -> Options {
    let keyspace = KeyspaceOptions::default().memtable_bytes(8 << 10).table_bytes(8 << 10);
    Options::default().background(background).keyspace_defaults(keyspace).seed(1)
}

fn open(disk: &MemVfs, background: Background) -> Db {
    Db::open("db", options(background).vfs(Arc::new(disk.clone()))).unwrap()
}

fn users(db: &Db) -> Keyspace {
    db.keyspace("users", KeyspaceOptions::default().memtable_bytes(8 << 10)).unwrap()
}

fn fill(keyspace: &Keyspace, keys: u32) {
    for key in 0..keys {
        keyspace.put(key.to_be_bytes(), vec![b'v'; 100]).unwrap();
    }
}

fn tables(disk: &MemVfs) -> usize {
    let names = disk.list(Path::new("db")).unwrap();
    names.iter().filter(|name| name.ends_with(".sst")).count()
}

fn is_gone<T: std::fmt::Debug>(answer: lsmx::Result<T>) {
    assert!(matches!(answer, Err(Error::KeyspaceDropped { name }) if name == "users"));
}

#[test]
fn a_dropped_keyspace_is_gone_for_handles_and_leaves_no_file() {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Inline);
    let users = users(&db);
    fill(&users, 1_000);
    assert!(tables(&disk) > 0);
    db.drop_keyspace("users").unwrap();
    is_gone(users.get("k"));
    is_gone(users.put("k", "v"));
    is_gone(users.multi_get(["k"]));
    is_gone(users.approximate_size::<&[u8]>(..));
    is_gone(users.first());
    is_gone(users.iter().next().unwrap());
    let mut batch = WriteBatch::new();
    batch.put(&db.default_keyspace(), "k", "v");
    batch.put(&users, "k", "v");
    is_gone(db.write(batch, Durability::Sync));
    assert_eq!(db.get("k").unwrap(), None, "a refused batch did something");
    // A snapshot from after the drop does not see it.
    is_gone(db.snapshot().get(&users, "k"));
    assert_eq!(db.keyspaces(), ["default"]);
    assert!(matches!(db.open_keyspace("users", None), Err(Error::UnknownKeyspace { .. })));
    assert!(matches!(db.drop_keyspace("users"), Err(Error::UnknownKeyspace { .. })));
    assert!(matches!(db.drop_keyspace("default"), Err(Error::DefaultKeyspace)));
    db.put("k", "v").unwrap();
    assert_eq!(tables(&disk), 0);
    db.close(None).unwrap();
    let report = lsmx::verify("db", &Options::default().vfs(Arc::new(disk.clone()))).unwrap();
    // One table holds the one key of the default keyspace.
    assert_eq!((report.keyspaces, report.tables, report.orphans.len()), (1, 1, 0));
    assert_eq!(open(&disk, Background::Inline).keyspaces(), ["default"]);
}

#[test]
fn a_keyspace_of_the_same_name_is_a_new_one() {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Inline);
    let old = users(&db);
    old.put("k", "old").unwrap();
    db.drop_keyspace("users").unwrap();
    let new = users(&db);
    assert_eq!(new.get("k").unwrap(), None);
    new.put("k", "new").unwrap();
    is_gone(old.get("k"));
    db.sync().unwrap();
    // What is in the log for the old one does not come back under the new one's name.
    let killed = disk.crash(CrashImage::Keep, 0);
    let again = open(&killed, Background::Inline);
    assert_eq!(again.open_keyspace("users", None).unwrap().iter().count(), 1);
    assert_eq!(again.open_keyspace("users", None).unwrap().get("k").unwrap().unwrap(), *b"new");
}

#[test]
fn snapshots_and_iterators_from_before_go_on_seeing_it() {
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
        is_gone(users.get("k"));
        drop(snapshot);
        assert_eq!(walk.filter(Result::is_ok).count(), 499);
        db.close(None).unwrap();
        let report = lsmx::verify("db", &Options::default().vfs(Arc::new(disk.clone()))).unwrap();
        assert_eq!(report.orphans, Vec::<std::path::PathBuf>::new());
    }
}

/// Jobs and writers at work on a keyspace when it goes end cleanly; nothing hangs, nothing fails.
#[test]
fn a_keyspace_goes_while_it_is_written_flushed_and_compacted() {
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
        is_gone(users.put("k", "v"));
        assert!(db.health().read_only.is_none());
        db.wait_idle().unwrap();
        assert_eq!(db.metrics().keyspaces.len(), 1);
        drop(users);
        db.close(None).unwrap();
        let report = lsmx::verify("db", &Options::default().vfs(Arc::new(disk.clone()))).unwrap();
        assert_eq!(report.orphans, Vec::<std::path::PathBuf>::new(), "seed {seed}");
    }
}

#[test]
fn many_keys_are_got_in_the_order_they_were_asked_for() {
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
fn the_size_of_a_range_is_about_that_of_its_share() {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Inline);
    let default = db.default_keyspace();
    fill(&default, 20_000);
    db.flush().unwrap();
    let levels = &db.metrics().keyspaces["default"].levels;
    let all: u64 = levels.iter().map(|level| level.bytes).sum();
    assert_eq!(default.approximate_size::<&[u8]>(..).unwrap(), all);
    for (from, to) in [(0u32, 10_000u32), (5_000, 15_000), (0, 20_000), (19_000, 30_000), (3, 3)] {
        let size = default.approximate_size(from.to_be_bytes()..to.to_be_bytes()).unwrap();
        let share = all * u64::from(to.min(20_000) - from) / 20_000;
        // Tables of 8 KiB have one index block: each end is wrong by half a table in each run.
        let runs: u64 = levels.iter().map(|level| level.runs).sum();
        assert!(size.abs_diff(share) <= runs * 12 * 1024, "{from}..{to}: {size}, {share}");
    }
    let (from, to) = (9u32.to_be_bytes(), 3u32.to_be_bytes());
    assert_eq!(default.approximate_size(from..to).unwrap(), 0);
}

#[test]
fn a_lookup_tells_where_it_went() {
    let disk = MemVfs::new();
    let options = options(Background::Inline).keyspace_defaults(
        KeyspaceOptions::default()
            .memtable_bytes(1 << 20)
            .policy("tiering".parse::<lsmx::PolicySpec>().unwrap()),
    );
    let db = Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap();
    let default = db.default_keyspace();
    fill(&default, 100);
    db.flush().unwrap();
    for key in 0..100u32 {
        default.put((key * 2).to_be_bytes(), "v").unwrap();
    }
    db.flush().unwrap();
    default.delete(3u32.to_be_bytes()).unwrap();
    let runs = db.metrics().keyspaces["default"].levels.iter().map(|level| level.runs).sum::<u64>();
    assert_eq!(runs, 2);
    // In the memtable: no run is asked.
    let seen = default.explain(3u32.to_be_bytes()).unwrap();
    assert_eq!(seen.memtables[0].found[0].kind, "delete");
    assert_eq!((seen.runs.len(), seen.runs_left, seen.value_bytes), (0, 2, None));
    // In the oldest run: the filter of the newer one says absent.
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
    // The same blocks are cached now; the lookup is counted as one.
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

/// A close that has no time says so and keeps others out until it has had it.
#[test]
fn a_close_past_its_deadline_goes_on_with_the_next_one() {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Inline);
    fill(&db.default_keyspace(), 10);
    // A thread that a listener holds up would do the same to a flush.
    db.close(Some(std::time::Duration::ZERO)).unwrap();
    db.close(None).unwrap();
    assert!(matches!(db.put("k", "v"), Err(Error::Closed)));
    assert_eq!(open(&disk, Background::Inline).default_keyspace().iter().count(), 10);
}

#[test]
fn thousands_of_keyspaces_open_and_close() {
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
    // Quadratic work would take many times as long on any machine.
    let seconds = (db.env().monotonic_ns() - started) / 1_000_000_000;
    assert!(seconds < 120, "{seconds} s");
}

#[test]
fn an_owner_does_not_notice_that_it_is_observed() {
    let disk = MemVfs::new();
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    let none = lsmx::observe("db", &Options::default().vfs(Arc::clone(&vfs)));
    assert!(matches!(none, Err(Error::NotADatabase { .. })));
    let db = open(&disk, Background::Threads { workers: 2 });
    let users = users(&db);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| fill(&users, 20_000));
        let mut looks = 0;
        while !writer.is_finished() || looks < 20 {
            let seen = lsmx::observe("db", &Options::default().vfs(Arc::clone(&vfs))).unwrap();
            assert_eq!(seen.keyspaces.len(), 2);
            assert!(!seen.clean_close);
            looks += 1;
        }
    });
    db.wait_idle().unwrap();
    let seen = lsmx::observe("db", &Options::default().vfs(Arc::clone(&vfs))).unwrap();
    let seen_levels = seen.keyspaces["users"].levels.iter();
    let seen_levels = seen_levels.map(|at| (at.level, at.runs, at.files, at.bytes, at.entries));
    let levels = &db.metrics().keyspaces["users"].levels;
    let levels = levels.iter().filter(|at| at.runs > 0);
    let levels = levels.map(|at| (at.level, at.runs, at.files, at.bytes, at.entries));
    assert_eq!(seen_levels.collect::<Vec<_>>(), levels.collect::<Vec<_>>());
    assert_eq!(seen.wal_bytes, disk_bytes(&disk, ".wal"));
    assert_eq!(seen.table_bytes + seen.other_bytes, disk_bytes(&disk, ".sst"));
    assert!(format!("{seen}").contains("[users] leveled"));
    drop(users);
    db.close(None).unwrap();
    assert!(lsmx::observe("db", &Options::default().vfs(vfs)).unwrap().clean_close);
}

fn disk_bytes(disk: &MemVfs, suffix: &str) -> u64 {
    let files = disk.snapshot_all();
    let files = files.iter().filter(|(path, _)| path.to_string_lossy().ends_with(suffix));
    files.map(|(_, bytes)| bytes.len() as u64).sum()
}
