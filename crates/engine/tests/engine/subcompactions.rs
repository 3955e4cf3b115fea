//! Subcompactions: results, parallel execution, failures and deadlines.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lsmx::env::Background;
use lsmx::event::{CompactionEnd, Event, EventListener};
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::metrics::CompactionMetrics;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Error, Options, Slice};

use crate::harness::database::{
    self, assert_clean, assert_entries, compact, entries, files, inline, metrics, policy, settle,
    small,
};
use crate::harness::gate::each;

const KEYS: u32 = 600;

/// Returns options with the tiering policy.
fn options(background: Background) -> Options {
    let keyspace = small().block_bytes(128).merge_operator(Append::default());
    let keyspace = keyspace.policy(policy("tiering"));
    inline().background(background).keyspace_defaults(keyspace)
}

/// Opens a database with [`options`]. `parts` is the value of `subcompactions_max`. `None` keeps the default.
fn open(disk: &(impl Vfs + Clone), background: Background, parts: Option<usize>) -> Db {
    let options = options(background);
    database::open(
        disk,
        match parts {
            Some(parts) => options.subcompactions_max(parts),
            None => options,
        },
    )
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
    settle(db);
}

fn compactions(db: &Db) -> CompactionMetrics {
    metrics(db).compaction
}

fn tables(disk: &MemVfs) -> BTreeSet<PathBuf> {
    files(disk, ".sst").into_iter().collect()
}

/// Asserts that the database contains the entries of the last round of [`fill`].
fn assert_filled(db: &Db) {
    let expected = (0..KEYS).map(|number| (key(number).to_vec(), vec![2; 40])).collect();
    assert_entries(&db.default_keyspace(), &expected);
}

type View = Vec<(Slice, Slice)>;

/// Executes puts, merges, deletes and range deletes, creates snapshots between them, and compacts the keyspace. Returns
/// the entries of all snapshots, the shape of the tree, and the compaction metrics.
fn mixed(parts: usize) -> (Vec<View>, [u64; 4], CompactionMetrics) {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Inline, Some(parts));
    let default = db.default_keyspace();
    let mut snapshots = Vec::new();
    for turn in 0..12u8 {
        let round = u32::from(turn);
        for number in 0..KEYS {
            // A third of the writes go to key 300, so the versions of key 300 fill several blocks.
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
        // Each range delete covers at least two thirds of the keys.
        let (from, to) = (round * 31 % 100, KEYS - round * 17 % 100);
        if round % 4 == 1 {
            default.delete_range(key(from)..key(to)).unwrap();
        }
    }
    compact(&db).unwrap();
    let mut views: Vec<_> =
        snapshots.iter().map(|snapshot| entries(snapshot.iter(&default))).collect();
    views.push(entries(default.iter()));
    let total = metrics(&db).total();
    let has_range_tombstones = u64::from(total.range_tombstones > 0);
    let shape = [total.runs, total.entries, total.tombstones, has_range_tombstones];
    let metrics = compactions(&db);
    drop(snapshots);
    db.close(None).unwrap();
    assert_clean(&disk);
    (views, shape, metrics)
}

#[test]
fn subcompactions_give_the_result_of_an_undivided_compaction() {
    let (views, shape, whole) = mixed(1);
    assert_eq!((whole.divided_jobs, whole.subcompactions), (0, 0));
    assert_eq!((shape[0], shape[3]), (1, 1), "the compaction leaves one run with range tombstones");
    for parts in [2, 3, 8] {
        let (same_views, same_shape, metrics) = mixed(parts);
        assert!(
            metrics.divided_jobs > 0 && metrics.subcompactions > metrics.divided_jobs,
            "{metrics:?}"
        );
        assert!(metrics.subcompactions <= metrics.divided_jobs * parts as u64, "{metrics:?}");
        assert_eq!(metrics.jobs, whole.jobs);
        assert_eq!(same_shape, shape, "{parts} parts");
        assert!(same_views == views, "{parts} parts");
    }
}

#[test]
fn subcompactions_are_not_smaller_than_a_table() {
    let disk = MemVfs::new();
    let db = open(&disk, Background::Inline, Some(100));
    fill(&db);
    let before = compactions(&db);
    compact(&db).unwrap();
    let after = compactions(&db);
    let (parts, read) =
        (after.subcompactions - before.subcompactions, after.read_bytes - before.read_bytes);
    assert!(parts > 4 && parts * (4 << 10) <= read, "{parts} of {read} bytes");
    assert_filled(&db);
}

#[test]
fn subcompactions_run_on_idle_workers() {
    lsmx_testkit::time_test();
    let mut helped = 0;
    for seed in 0..20 {
        let disk = MemVfs::new();
        let db = open(&disk, Background::Stepped { seed, workers: 3 }, None);
        fill(&db);
        let before = compactions(&db);
        compact(&db).unwrap();
        let after = compactions(&db);
        assert_eq!(
            after.subcompactions - before.subcompactions,
            4,
            "the calling thread and three workers execute one subcompaction each"
        );
        helped += after.helper_subcompactions - before.helper_subcompactions;
        assert_filled(&db);
        db.close(None).unwrap();
        assert_clean(&disk);
    }
    assert!(helped > 20, "{helped}");
}

/// The first append of each subcompaction waits until another subcompaction also appends.
#[test]
fn subcompactions_run_in_parallel() {
    let disk = MemVfs::new();
    let faults = FaultVfs::new(Arc::new(disk), 0);
    let db = open(&faults, Background::Threads { workers: 1 }, None);
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
    faults.add_rule(each(&[VfsCall::Append], "sst"));
    compact(&db).unwrap();
    assert_eq!(inside.lock().unwrap().len(), 2);
    assert_filled(&db);
    assert_eq!(compactions(&db).helper_subcompactions, 1);
}

/// Keeps the reports of all compaction jobs.
#[derive(Default)]
struct EndedJobs(Mutex<Vec<CompactionEnd>>);

impl EventListener for EndedJobs {
    fn on_event(&self, event: &Event) {
        if let Event::Compaction(end) = event {
            self.0.lock().unwrap().push(end.clone());
        }
    }
}

/// Each read, append and sync of a table takes 2 ms. The calls of all threads are counted, so the reported waits must
/// include those of helpers.
#[test]
fn compaction_reports_waits_of_all_threads_by_kind() {
    const CALL_US: u64 = 2_000;
    const CALLS: [VfsCall; 3] = [VfsCall::Read, VfsCall::Append, VfsCall::Sync];
    let faults = FaultVfs::new(Arc::new(MemVfs::new()), 0);
    let jobs = Arc::new(EndedJobs::default());
    let options = options(Background::Threads { workers: 1 }).listener(jobs.clone());
    let db = database::open(&faults, options);
    fill(&db);
    jobs.0.lock().unwrap().clear();
    let counts: Arc<[AtomicU64; 3]> = Arc::default();
    let (env, counted) = (db.env().clone(), Arc::clone(&counts));
    faults.set_delay_hook(Some(Arc::new(move |call: VfsCall, _| {
        let kind = CALLS.iter().position(|kind| *kind == call).unwrap();
        counted[kind].fetch_add(1, Ordering::Relaxed);
        env.pause_us(CALL_US);
    })));
    faults.add_rule(each(&CALLS, "sst"));
    compact(&db).unwrap();
    db.wait_idle().unwrap();
    faults.clear_rules();
    let jobs = jobs.0.lock().unwrap();
    assert!(jobs.iter().any(|end| end.parts > 1), "no job was split");
    let sum = |time: fn(&CompactionEnd) -> u64| jobs.iter().map(time).sum::<u64>();
    let (thread_us, cpu_us) = (sum(|end| end.thread_us), sum(|end| end.cpu_us));
    let waits_us =
        [sum(|end| end.read_wait_us), sum(|end| end.write_wait_us), sum(|end| end.sync_wait_us)];
    for (kind, wait_us) in waits_us.into_iter().enumerate() {
        let calls = counts[kind].load(Ordering::Relaxed);
        assert!(calls > 0 && wait_us >= calls * CALL_US * 9 / 10, "{calls} calls: {waits_us:?}");
    }
    let parts_us = cpu_us + waits_us.iter().sum::<u64>();
    assert!(parts_us <= thread_us + thread_us / 20, "{cpu_us}, {waits_us:?} of {thread_us}");
}

#[test]
fn failed_subcompaction_fails_the_job_and_leaves_no_tables() {
    lsmx_testkit::time_test();
    for background in
        [Background::Inline, Background::Stepped { seed: 3, workers: 3 }, Background::default()]
    {
        for nth in [0, 1, 3, 5] {
            let disk = MemVfs::new();
            let faults = FaultVfs::new(Arc::new(disk.clone()), 0);
            let db = open(&faults, background, Some(4));
            fill(&db);
            let (before, jobs) = (tables(&disk), compactions(&db).jobs);
            let rule = FaultRule::new(Fault::Error(Errno::NoSpace)).for_calls(&[VfsCall::Append]);
            faults.add_rule(rule.path_contains("sst").nth(nth));
            let failed = compact(&db);
            assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
            assert_eq!(faults.fired_counts()[&Fault::Error(Errno::NoSpace)], 1);
            assert_filled(&db);
            // The engine removes the tables of a failed job at the latest when the next job ends.
            faults.clear_rules();
            assert_eq!(compactions(&db).jobs, jobs);
            let left = tables(&disk);
            compact(&db).unwrap();
            db.wait_idle().unwrap();
            assert_filled(&db);
            // A background thread may still use a table. Closing the database ends all background threads.
            db.close(None).unwrap();
            let after = tables(&disk);
            assert!(after.is_disjoint(&before) && after.is_disjoint(&left), "{nth} {background:?}");
            assert_clean(&disk);
        }
    }
}

#[test]
fn panic_in_a_subcompaction_fails_the_job() {
    for nth in [0, 2, 5] {
        let disk = MemVfs::new();
        let faults = FaultVfs::new(Arc::new(disk.clone()), 0);
        let db = open(&faults, Background::Threads { workers: 3 }, None);
        fill(&db);
        let count = AtomicU64::new(0);
        faults.set_delay_hook(Some(Arc::new(move |_, _| {
            assert_ne!(count.fetch_add(1, Ordering::Relaxed), nth, "injected panic");
        })));
        faults.add_rule(each(&[VfsCall::Append], "sst"));
        let failed = compact(&db);
        // A panic in a file system call is reported as an I/O error.
        assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
        assert_filled(&db);
        faults.clear_rules();
        db.resume().unwrap();
        compact(&db).unwrap();
        assert_filled(&db);
        db.close(None).unwrap();
        assert_clean(&disk);
    }
}

#[test]
fn close_or_deadline_ends_all_subcompactions() {
    lsmx_testkit::time_test();
    for seed in 0..20 {
        let disk = MemVfs::new();
        let background = Background::Stepped { seed, workers: 3 };
        let db = open(&disk, background, None);
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
        assert_clean(&disk);
        let db = open(&disk, Background::Inline, None);
        assert_filled(&db);
    }
}
