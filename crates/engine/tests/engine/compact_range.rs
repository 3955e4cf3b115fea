//! Manual compactions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::MemVfs;
use lsmx::{Db, Error, KeyspaceOptions, Options, PolicySpec};

fn open(disk: &MemVfs, background: Background, policy: &PolicySpec) -> Db {
    let keyspace = KeyspaceOptions::default()
        .memtable_bytes(4 << 10)
        .table_bytes(4 << 10)
        .policy(policy.clone());
    let options = Options::default().background(background).keyspace_defaults(keyspace).seed(1);
    Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap()
}

fn leveled() -> PolicySpec {
    PolicySpec::default()
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Runs, entries and tombstones of the default keyspace.
fn shape(db: &Db) -> (u64, u64, u64) {
    let levels = &db.metrics().keyspaces["default"].levels;
    levels.iter().fold((0, 0, 0), |(runs, entries, tombstones), level| {
        (runs + level.runs, entries + level.entries, tombstones + level.tombstones)
    })
}

#[test]
fn every_policy_ends_with_one_run_without_a_dead_entry() {
    for policy in PolicySpec::all_presets() {
        let disk = MemVfs::new();
        let db = open(&disk, Background::Inline, &policy);
        let mut model = BTreeMap::new();
        for round in 0..4u8 {
            for number in 0..300 {
                let number = number * 7 % 300;
                if (number + u32::from(round)) % 5 == 0 {
                    db.delete(key(number)).unwrap();
                    model.remove(&key(number));
                } else {
                    db.put(key(number), [round; 40]).unwrap();
                    model.insert(key(number), [round; 40]);
                }
            }
        }
        db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
        let (runs, entries, tombstones) = shape(&db);
        assert_eq!((entries, tombstones), (model.len() as u64, 0), "{policy}");
        assert_eq!(runs, 1, "{policy}");
        let entries = db.default_keyspace().iter().map(Result::unwrap);
        assert!(entries.eq(model.iter().map(|(k, v)| (k[..].into(), v[..].into()))), "{policy}");
        // There is nothing left to do.
        let jobs = |db: &Db| db.metrics().keyspaces["default"].compaction.jobs;
        let before = jobs(&db);
        db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
        assert_eq!(jobs(&db), before, "{policy}");
        db.close(None).unwrap();
        assert!(lsmx::verify("db", &Options::default().vfs(Arc::new(disk))).is_ok());
    }
}

#[test]
fn what_a_snapshot_holds_goes_with_the_next_one() {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Inline, &leveled());
    for number in 0..200 {
        db.put(key(number), "v").unwrap();
    }
    let snapshot = db.snapshot();
    for number in 0..200 {
        db.delete(key(number)).unwrap();
    }
    let default = db.default_keyspace();
    default.compact_range::<&[u8]>(..).unwrap();
    assert_eq!(shape(&db), (1, 400, 200));
    assert_eq!(snapshot.iter(&default).count(), 200);
    drop(snapshot);
    // Only files in the range are written again.
    default.compact_range(key(1_000)..).unwrap();
    assert_eq!(shape(&db), (1, 400, 200));
    default.compact_range(key(0)..=key(199)).unwrap();
    assert_eq!(shape(&db), (0, 0, 0));
    // Nothing at all is no error.
    default.compact_range::<&[u8]>(..).unwrap();
}

#[test]
fn a_part_of_the_keys_leaves_the_others_where_they_are() {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Inline, &"tiering".parse().unwrap());
    for round in 0..3 {
        for number in 0..2_000 {
            db.put(key(number), [round; 20]).unwrap();
        }
    }
    let default = db.default_keyspace();
    default.compact_range::<&[u8]>(..).unwrap();
    let written = |db: &Db| db.metrics().keyspaces["default"].compaction.written_bytes;
    let (whole, before) = (default.approximate_size::<&[u8]>(..).unwrap(), written(&db));
    db.put(key(1_000), "new").unwrap();
    db.delete(key(1_001)).unwrap();
    default.compact_range(key(1_000)..key(1_002)).unwrap();
    let part = written(&db) - before;
    assert!(part < whole / 4, "{part} of {whole} bytes were written again");
    assert_eq!(shape(&db), (1, 1_999, 0));
    assert_eq!(default.get(key(1_000)).unwrap().unwrap(), *b"new");
}

/// Writers, flushes and the policy's own jobs go on; the job waits for its turn and gets it.
#[test]
fn it_comes_to_its_turn_while_others_work() {
    lsmx_testkit::time_test();
    for seed in 0..30 {
        let disk = MemVfs::new();
        let db = open(&disk, Background::Stepped { seed, workers: 2 }, &leveled());
        let env = db.env().clone();
        let writer = {
            let db = db.clone();
            env.spawn("writer", move || {
                for number in 0..1_200u32 {
                    db.put(key(number * 7 % 500), [7; 30]).unwrap();
                }
            })
        };
        let writer = writer.unwrap();
        for _ in 0..4 {
            for number in 500..600 {
                db.put(key(number), [1; 30]).unwrap();
                db.delete(key(number)).unwrap();
            }
            db.default_keyspace().compact_range(key(500)..).unwrap();
            let seen = db.default_keyspace().range(key(500)..).count();
            assert_eq!(seen, 0, "seed {seed}");
        }
        env.join(writer).unwrap();
        db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
        db.wait_idle().unwrap();
        assert_eq!(db.default_keyspace().iter().count(), 500);
        db.close(None).unwrap();
        assert!(lsmx::verify("db", &Options::default().vfs(Arc::new(disk))).is_ok(), "seed {seed}");
    }
}

#[test]
fn with_threads_several_at_once_end() {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Threads { workers: 2 }, &leveled());
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let db = &db;
            scope.spawn(move || {
                for number in 0..2_000 {
                    db.put(key(thread * 10_000 + number), [7; 30]).unwrap();
                    if number % 500 == 499 {
                        let range = key(thread * 10_000)..key(thread * 10_000 + number);
                        db.default_keyspace().compact_range(range).unwrap();
                    }
                }
            });
        }
    });
    db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
    assert_eq!(shape(&db).1, 8_000);
    drop(db);
}

#[test]
fn a_deadline_or_a_failure_leaves_the_tree_as_it_was() {
    let disk = MemVfs::new();
    let faults = FaultVfs::new(Arc::new(disk.clone()), 0);
    let keyspace = KeyspaceOptions::default().memtable_bytes(4 << 10).table_bytes(4 << 10);
    let options = Options::default()
        .background(Background::Inline)
        .keyspace_defaults(keyspace.policy("tiering".parse::<PolicySpec>().unwrap()));
    let db = Db::open("db", options.vfs(Arc::new(faults.clone()))).unwrap();
    let default = db.default_keyspace();
    for number in 0..500 {
        db.put(key(number % 50), [7; 40]).unwrap();
    }
    db.flush().unwrap();
    let before = shape(&db);
    let late = default.with_write_options(Duration::ZERO).compact_range::<&[u8]>(..);
    assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
    assert_eq!(shape(&db), before);
    faults.add_rule(
        FaultRule::new(Fault::Error(Errno::NoSpace))
            .for_calls(&[VfsCall::Append])
            .path_contains("sst"),
    );
    let failed = default.compact_range::<&[u8]>(..);
    assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
    assert_eq!(shape(&db), before);
    default.compact_range::<&[u8]>(..).unwrap();
    assert_eq!(shape(&db), (1, 50, 0));
}
