//! Compactions in parts.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::metrics::CompactionMetrics;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Error, KeyspaceOptions, Options};

const KEYS: u32 = 600;

fn options(background: Background, parts: Option<usize>) -> Options {
    let keyspace = KeyspaceOptions::default()
        .memtable_bytes(4 << 10)
        .table_bytes(4 << 10)
        .block_bytes(128)
        .merge_operator(Append::default())
        // Runs lie beside each other until they are merged by hand.
        .policy("tiering".parse::<lsmx::PolicySpec>().unwrap());
    let options = Options::default().background(background).keyspace_defaults(keyspace).seed(1);
    match parts {
        Some(parts) => options.subcompactions_max(parts),
        None => options,
    }
}

fn open(vfs: Arc<dyn Vfs>, background: Background, parts: Option<usize>) -> Db {
    Db::open("db", options(background, parts).vfs(vfs)).unwrap()
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn fill(db: &Db) {
    for round in 0..3u8 {
        for number in 0..KEYS {
            db.put(key(number * 7 % KEYS), [round; 40]).unwrap();
        }
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
}

fn compactions(db: &Db) -> CompactionMetrics {
    db.metrics().keyspaces["default"].compaction.clone()
}

fn compact(db: &Db) -> Result<(), Error> {
    db.default_keyspace().compact_range::<&[u8]>(..)
}

/// Numbers of the tables in the directory.
fn tables(vfs: &dyn Vfs) -> BTreeSet<String> {
    let names = vfs.list(Path::new("db")).unwrap();
    names.into_iter().filter(|name| name.ends_with(".sst")).collect()
}

fn is_whole(db: &Db) -> bool {
    let entries = db.default_keyspace().iter().map(Result::unwrap);
    let expected = (0..KEYS).map(|number| (key(number)[..].into(), [2; 40][..].into()));
    entries.eq(expected)
}

/// What a reader sees.
type View = Vec<(Vec<u8>, Vec<u8>)>;

/// Puts, operands and deletes of keys and ranges, with snapshots in between: what is seen, and what
/// lies in the tree after one merge of all of it.
fn mixed(parts: usize) -> (Vec<View>, [u64; 4], CompactionMetrics) {
    let disk = MemVfs::new();
    let db = open(Arc::new(disk.clone()), Background::Inline, Some(parts));
    let default = db.default_keyspace();
    let mut snapshots = Vec::new();
    for turn in 0..12u8 {
        let round = u32::from(turn);
        for number in 0..KEYS {
            // A key with so many versions that many blocks are full of them.
            let number = if number % 3 == 0 { 300 } else { (number * 7 + round) % KEYS };
            match (number + round) % 5 {
                0 => default.delete(key(number)).unwrap(),
                1 => default.merge(key(number), [turn]).unwrap(),
                _ => default.put(key(number), [turn; 20]).unwrap(),
            }
            if number == 300 && round % 2 == 0 && snapshots.len() < 60 {
                snapshots.push(db.snapshot());
            }
        }
        // They begin and end anywhere, and reach over most of the keys.
        let (from, to) = (round * 31 % 100, KEYS - round * 17 % 100);
        if round % 4 == 1 {
            default.delete_range(key(from)..key(to)).unwrap();
        }
    }
    compact(&db).unwrap();
    let seen = |entries: lsmx::Range| -> Vec<_> {
        entries.map(Result::unwrap).map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
    };
    let mut views: Vec<_> =
        snapshots.iter().map(|snapshot| seen(snapshot.iter(&default))).collect();
    views.push(seen(default.iter()));
    let levels = &db.metrics().keyspaces["default"].levels;
    let sum = |of: fn(&lsmx::metrics::LevelMetrics) -> u64| levels.iter().map(of).sum();
    let shape = [
        sum(|level| level.runs),
        sum(|level| level.entries),
        sum(|level| level.tombstones),
        u64::from(levels.iter().any(|level| level.range_tombstones > 0)),
    ];
    let metrics = compactions(&db);
    drop(snapshots);
    db.close(None).unwrap();
    assert!(lsmx::verify("db", &Options::default().vfs(Arc::new(disk))).is_ok());
    (views, shape, metrics)
}

#[test]
fn a_merge_in_parts_is_the_same_as_in_one() {
    let (views, shape, whole) = mixed(1);
    assert_eq!((whole.jobs_divided, whole.parts), (0, 0));
    assert_eq!((shape[0], shape[3]), (1, 1), "one run, and range deletes that snapshots hold");
    for parts in [2, 3, 8] {
        let (same_views, same_shape, metrics) = mixed(parts);
        assert!(metrics.jobs_divided > 0 && metrics.parts > metrics.jobs_divided, "{metrics:?}");
        assert!(metrics.parts <= metrics.jobs_divided * parts as u64, "{metrics:?}");
        assert_eq!(metrics.jobs, whole.jobs);
        assert_eq!(same_shape, shape, "{parts} parts");
        assert!(same_views == views, "{parts} parts");
    }
}

#[test]
fn no_part_is_smaller_than_an_output_file() {
    let disk = MemVfs::new();
    let db = open(Arc::new(disk), Background::Inline, Some(100));
    fill(&db);
    let before = compactions(&db);
    compact(&db).unwrap();
    let after = compactions(&db);
    let (parts, read) = (after.parts - before.parts, after.read_bytes - before.read_bytes);
    assert!(parts > 4 && parts * (4 << 10) <= read, "{parts} of {read} bytes");
    assert!(is_whole(&db));
}

#[test]
fn idle_workers_take_parts() {
    lsmx_testkit::time_test();
    let mut helped = 0;
    for seed in 0..20 {
        let disk = MemVfs::new();
        let db = open(Arc::new(disk.clone()), Background::Stepped { seed, workers: 3 }, None);
        fill(&db);
        let before = compactions(&db);
        compact(&db).unwrap();
        let after = compactions(&db);
        assert_eq!(after.parts - before.parts, 4, "the caller's thread and three workers");
        helped += after.parts_helped - before.parts_helped;
        assert!(is_whole(&db));
        db.close(None).unwrap();
        assert!(lsmx::verify("db", &Options::default().vfs(Arc::new(disk))).is_ok());
    }
    assert!(helped > 20, "{helped}");
}

/// Parts run at the same time: each of them waits in its first append until another one is there.
#[test]
fn parts_run_beside_each_other() {
    let disk = MemVfs::new();
    let faults = FaultVfs::new(Arc::new(disk), 0);
    let db = open(Arc::new(faults.clone()), Background::Threads { workers: 1 }, None);
    fill(&db);
    let inside = Arc::new(Mutex::new(BTreeSet::new()));
    let threads = Arc::clone(&inside);
    let env = db.env().clone();
    faults.set_delay_hook(Some(Arc::new(move |_, _| {
        threads.lock().unwrap().insert(format!("{:?}", std::thread::current().id()));
        let until_us = env.now_us() + 20_000_000;
        while threads.lock().unwrap().len() < 2 && env.now_us() < until_us {
            std::thread::yield_now();
        }
    })));
    faults.add_rule(
        FaultRule::new(Fault::Delay)
            .for_calls(&[VfsCall::Append])
            .path_contains("sst")
            .from_then_on(),
    );
    compact(&db).unwrap();
    assert_eq!(inside.lock().unwrap().len(), 2);
    assert!(is_whole(&db));
    assert_eq!(compactions(&db).parts_helped, 1);
}

#[test]
fn a_part_that_fails_takes_all_others_along() {
    lsmx_testkit::time_test();
    for background in
        [Background::Inline, Background::Stepped { seed: 3, workers: 3 }, Background::default()]
    {
        for nth in [0, 1, 3, 5] {
            let disk = MemVfs::new();
            let faults = FaultVfs::new(Arc::new(disk.clone()), 0);
            let db = open(Arc::new(faults.clone()), background, Some(4));
            fill(&db);
            let (before, jobs) = (tables(&disk), compactions(&db).jobs);
            let rule = FaultRule::new(Fault::Error(Errno::NoSpace)).for_calls(&[VfsCall::Append]);
            faults.add_rule(rule.path_contains("sst").nth(nth));
            let failed = compact(&db);
            assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
            assert_eq!(faults.fired_counts()[&Fault::Error(Errno::NoSpace)], 1);
            assert!(is_whole(&db));
            // What the parts had written is taken away, at the latest by the next job.
            faults.clear_rules();
            assert_eq!(compactions(&db).jobs, jobs);
            let left = tables(&disk);
            compact(&db).unwrap();
            db.wait_idle().unwrap();
            assert!(is_whole(&db));
            // A background thread may be about to let the last of them go.
            db.close(None).unwrap();
            let after = tables(&disk);
            assert!(after.is_disjoint(&before) && after.is_disjoint(&left), "{nth} {background:?}");
            assert!(lsmx::verify("db", &Options::default().vfs(Arc::new(disk))).is_ok());
        }
    }
}

#[test]
fn a_panic_in_a_part_ends_the_job_and_nobody_waits() {
    for nth in [0, 2, 5] {
        let disk = MemVfs::new();
        let faults = FaultVfs::new(Arc::new(disk.clone()), 0);
        let db = open(Arc::new(faults.clone()), Background::Threads { workers: 3 }, None);
        fill(&db);
        let count = AtomicU64::new(0);
        faults.set_delay_hook(Some(Arc::new(move |_, _| {
            assert_ne!(count.fetch_add(1, Ordering::Relaxed), nth, "a panic that was asked for");
        })));
        faults.add_rule(
            FaultRule::new(Fault::Delay)
                .for_calls(&[VfsCall::Append])
                .path_contains("sst")
                .from_then_on(),
        );
        let failed = compact(&db);
        // The panic of a file system is an error of its call.
        assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
        assert!(is_whole(&db));
        faults.clear_rules();
        db.resume().unwrap();
        compact(&db).unwrap();
        assert!(is_whole(&db));
        db.close(None).unwrap();
        assert!(lsmx::verify("db", &Options::default().vfs(Arc::new(disk))).is_ok());
    }
}

#[test]
fn a_close_or_a_deadline_ends_all_parts() {
    lsmx_testkit::time_test();
    for seed in 0..20 {
        let disk = MemVfs::new();
        let background = Background::Stepped { seed, workers: 3 };
        let db = open(Arc::new(disk.clone()), background, None);
        fill(&db);
        let late =
            db.default_keyspace().with_write_options(Duration::ZERO).compact_range::<&[u8]>(..);
        assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
        let other = db.clone();
        let thread = db.env().spawn("caller", move || match compact(&other) {
            Ok(()) | Err(Error::Closed) => {}
            Err(error) => panic!("{error}"),
        });
        let thread = thread.unwrap();
        for _ in 0..seed * 3 {
            db.env().yield_point(lsmx::env::YieldKind::UserOperation);
        }
        let env = db.env().clone();
        db.close(None).unwrap();
        env.join(thread).unwrap();
        drop(db);
        assert!(lsmx::verify("db", &Options::default().vfs(Arc::new(disk.clone()))).is_ok());
        let db = open(Arc::new(disk), Background::Inline, None);
        assert!(is_whole(&db), "seed {seed}");
    }
}
