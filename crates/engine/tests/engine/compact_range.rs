//! Manual compactions.

use lsmx::env::Background;
use lsmx::vfs::MemVfs;
use lsmx::{Db, PolicySpec};

use crate::harness::database::{
    self, Entries, assert_clean, assert_entries, compact, inline, metrics, policy, small,
};

fn open(disk: &MemVfs, background: Background, policy: &PolicySpec) -> Db {
    let options = inline().background(background);
    database::open(disk, options.keyspace_defaults(small().policy(policy.clone())))
}

fn leveled() -> PolicySpec {
    PolicySpec::default()
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Returns the number of runs, the number of entries and the number of tombstones in the default keyspace.
fn shape(db: &Db) -> (u64, u64, u64) {
    let total = metrics(db).total();
    (total.runs, total.entries, total.tombstones)
}

#[test]
fn compact_range_of_all_keys_leaves_one_run_of_live_entries() {
    for policy in PolicySpec::all_presets() {
        let disk = MemVfs::new();
        let db = open(&disk, Background::Inline, &policy);
        let mut model = Entries::new();
        for round in 0..4u8 {
            for number in 0..300 {
                let number = number * 7 % 300;
                if (number + u32::from(round)) % 5 == 0 {
                    db.delete(key(number)).unwrap();
                    model.remove(&key(number)[..]);
                } else {
                    db.put(key(number), [round; 40]).unwrap();
                    model.insert(key(number).into(), vec![round; 40]);
                }
            }
        }
        compact(&db).unwrap();
        assert_eq!(shape(&db), (1, model.len() as u64, 0), "{policy}");
        assert_entries(&db.default_keyspace(), &model);
        // A second manual compaction starts no job, because the tree is fully compacted.
        let before = metrics(&db).compaction.jobs;
        compact(&db).unwrap();
        assert_eq!(metrics(&db).compaction.jobs, before, "{policy}");
        db.close(None).unwrap();
        assert_clean(&disk);
    }
}

#[test]
fn compact_range_after_a_snapshot_drops_its_entries() {
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
    compact(&db).unwrap();
    assert_eq!(shape(&db), (1, 400, 200));
    assert_eq!(snapshot.iter(&default).count(), 200);
    drop(snapshot);
    // A manual compaction does not rewrite files outside its range.
    default.compact_range(key(1_000)..).unwrap();
    assert_eq!(shape(&db), (1, 400, 200));
    default.compact_range(key(0)..=key(199)).unwrap();
    assert_eq!(shape(&db), (0, 0, 0));
    // Compacting an empty tree succeeds.
    compact(&db).unwrap();
}

#[test]
fn compact_range_of_few_keys_rewrites_few_files() {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Inline, &policy("tiering"));
    for round in 0..3 {
        for number in 0..2_000 {
            db.put(key(number), [round; 20]).unwrap();
        }
    }
    let default = db.default_keyspace();
    compact(&db).unwrap();
    let written = |db: &Db| metrics(db).compaction.written_bytes;
    let (whole, before) = (default.approximate_size::<&[u8]>(..).unwrap(), written(&db));
    db.put(key(1_000), "new").unwrap();
    db.delete(key(1_001)).unwrap();
    default.compact_range(key(1_000)..key(1_002)).unwrap();
    let part = written(&db) - before;
    assert!(part < whole / 4, "{part} of {whole} bytes were rewritten");
    assert_eq!(shape(&db), (1, 1_999, 0));
    assert_eq!(default.get(key(1_000)).unwrap().unwrap(), *b"new");
}

#[test]
fn compact_range_during_writes_and_other_jobs_terminates() {
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
        compact(&db).unwrap();
        db.wait_idle().unwrap();
        assert_eq!(db.default_keyspace().iter().count(), 500);
        db.close(None).unwrap();
        assert_clean(&disk);
    }
}

#[test]
fn compact_range_on_several_threads_terminates() {
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
    compact(&db).unwrap();
    assert_eq!(shape(&db).1, 8_000);
    drop(db);
}

/// Bug: the merge wrote all data of a FIFO keyspace to new files, which began their maximum age anew.
#[test]
fn compact_range_of_fifo_keyspace_keeps_ages_of_files() {
    let db = open(&MemVfs::new(), Background::Inline, &policy("fifo(1G,ttl=1s)"));
    let put = |number: u32| {
        db.put(key(number), [7; 100]).unwrap();
        db.flush().unwrap();
    };
    put(1);
    db.env().advance_us(900_000);
    put(2);
    compact(&db).unwrap();
    db.env().advance_us(200_000);
    put(3);
    assert_eq!([1, 2, 3].map(|number| db.get(key(number)).unwrap().is_some()), [false, true, true]);
}
