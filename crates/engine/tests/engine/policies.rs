//! Compaction policies in a database: bounds on tombstone age, time triggers, FIFO with snapshots, and user-defined
//! policies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use lsmx::compaction::{
    self, CompactionPolicy, Debt, FileId, Job, JobInput, JobKind, JobReason, Level,
    OutputPlacement, OutputTarget, RunId, RunningJobs, SplitRule, TreeShape,
};
use lsmx::dump::{DumpOptions, dump};
use lsmx::env::Background;
use lsmx::event::Event;
use lsmx::vfs::{CrashImage, MemVfs};
use lsmx::{Db, Error, JobRule, Keyspace, KeyspaceOptions, Options};
use lsmx_testkit::EventLog;

use crate::harness::database::{
    Entries, assert_clean, assert_entries, files, inline, metrics, open, policy, settle, small,
    try_open,
};

fn options(text: &str) -> Options {
    inline().keyspace_defaults(small().policy(policy(text)))
}

fn key(number: u64) -> String {
    format!("key-{:05}", number.wrapping_mul(7919) % 1000)
}

/// Puts an entry for each number. The value is the number in decimal. Numbers that differ by 1,000 have the same key.
fn fill(keyspace: &Keyspace, count: u64) {
    for number in 0..count {
        keyspace.put(key(number), number.to_string()).unwrap();
    }
}

fn tombstones_in_tables(disk: &MemVfs) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    for path in files(disk, ".sst") {
        let mut text = Vec::new();
        let options = DumpOptions { entries: true, ..DumpOptions::default() };
        dump(disk, Path::new(&path), &options, &mut text).unwrap();
        for line in String::from_utf8_lossy(&text).lines() {
            let mut words = line.split_whitespace();
            if words.next() == Some("entry") && words.any(|word| word == "Delete") {
                let seq = words.nth(1).and_then(|word| word.strip_suffix(',')?.parse().ok());
                found.insert(seq.unwrap_or_else(|| panic!("no sequence number in {line:?}")));
            }
        }
    }
    found
}

/// A database with puts and deletes, its expected entries, and the times of its deletes.
struct History {
    db: Db,
    disk: MemVfs,
    bound_us: u64,
    /// Maps the sequence number of each delete to its time and key.
    deletes: BTreeMap<u64, (u64, String)>,
    model: Entries,
    /// Sequence numbers of all tombstones that were found in a table so far.
    seen: BTreeSet<u64>,
}

impl History {
    fn new(policy: &str, bound_us: u64) -> History {
        let disk = MemVfs::new();
        let db = open(&disk, options(policy));
        let (deletes, model, seen) = (BTreeMap::new(), Entries::new(), BTreeSet::new());
        History { db, disk, bound_us, deletes, model, seen }
    }

    fn step(&mut self, number: u64) {
        let key = key(number.wrapping_mul(31));
        if number % 5 == 2 && self.model.remove(key.as_bytes()).is_some() {
            self.db.delete(&key).unwrap();
            let seq = self.db.metrics().published_seq;
            self.deletes.insert(seq, (self.db.env().now_us(), key));
        } else {
            self.db.put(&key, number.to_string()).unwrap();
            self.model.insert(key.into(), number.to_string().into());
        }
    }

    /// Returns the sequence numbers of tombstones that are older than the bound, in memtables and in tables. Must be
    /// called right after a commit, because a commit runs the background jobs that are due.
    fn overdue(&mut self) -> Vec<u64> {
        let now_us = self.db.env().now_us();
        let in_tables = tombstones_in_tables(&self.disk);
        self.seen.extend(&in_tables);
        let keyspace = self.db.default_keyspace();
        let in_memtable = |key: &String, seq: u64| {
            let memtables = keyspace.explain(key).unwrap().memtables;
            let mut found = memtables.iter().flat_map(|memtable| &memtable.found);
            found.any(|found| found.kind == "delete" && found.seq == seq)
        };
        let old = self.deletes.iter().filter(|(_, (at_us, _))| now_us - at_us > self.bound_us);
        old.filter(|(seq, (_, key))| in_tables.contains(seq) || in_memtable(key, **seq))
            .map(|(seq, _)| *seq)
            .collect()
    }
}

/// Policies that limit the age of tombstones to 700 µs. Each layout that supports such a limit occurs at least once.
const BOUNDED: [&str; 5] = [
    "tsa(D=700us,T=3,l1=1)",
    "tsa(D=700us)",
    r#"{layout="leveling", tiered=[3], rule=[{trigger="tombstone-ttl",bound="700us"},
        {trigger="run-count",runs=3}, {trigger="level-full",base=1,size-ratio=3}]}"#,
    r#"{layout="fluid", runs=[3], size-ratio=4,
        rule=[{trigger="tombstone-ttl",bound="700us"}, {trigger="too-many-runs"}]}"#,
    r#"{layout="run-list", rule=[{trigger="tombstone-ttl",bound="700us"},
        {trigger="run-count",runs=4}, {trigger="size-ratio"}]}"#,
];

#[test]
fn tombstone_ttl_is_never_exceeded() {
    lsmx_testkit::time_test();
    for policy in BOUNDED {
        let mut history = History::new(policy, 700);
        for number in 0..4_000 {
            history.step(number);
            if number % 13 == 0 {
                assert_eq!(history.overdue(), [0u64; 0], "{policy}: after {number}");
            }
        }
        assert_entries(&history.db.default_keyspace(), &history.model);
        assert!(history.deletes.len() > 300 && history.seen.len() > 100, "{policy}");
    }
}

#[test]
fn tombstone_without_ttl_becomes_old() {
    let mut history = History::new("lo+1(T=3,l1=1)", 700);
    let mut overdue = 0;
    for number in 0..4_000 {
        history.step(number);
        if number % 13 == 0 {
            overdue += history.overdue().len();
        }
    }
    assert!(overdue > 100, "only {overdue} tombstones are older than 700 us");
}

#[test]
fn tombstone_ttl_with_a_snapshot_is_exceeded_by_newer_tombstones_only() {
    lsmx_testkit::time_test();
    for policy in BOUNDED {
        let mut history = History::new(policy, 700);
        for number in 0..1_000 {
            history.step(number);
        }
        let snapshot = history.db.snapshot();
        let seen = history.model.clone();
        let mut held = 0;
        for number in 1_000..3_000 {
            history.step(number);
            if number % 13 == 0 {
                let overdue = history.overdue();
                assert!(overdue.iter().all(|seq| *seq > snapshot.seq().0), "{policy}: {overdue:?}");
                held = overdue.len();
            }
        }
        assert!(held > 0, "{policy}: the snapshot delayed no tombstone");
        for (key, value) in &seen {
            let found = snapshot.get(&history.db.default_keyspace(), key).unwrap();
            assert_eq!(found.as_deref(), Some(&**value), "{policy}");
        }
        drop(snapshot);
        history.step(3_000);
        assert_eq!(history.overdue(), [0u64; 0], "{policy}");
        assert_entries(&history.db.default_keyspace(), &history.model);
    }
}

/// After the deletes, the test only calls `get`. Background threads must drop the tombstones without any write.
#[test]
fn tombstone_ttl_is_enforced_in_an_idle_database() {
    for seed in 1..4 {
        let disk = MemVfs::new();
        let background = Background::Stepped { seed, workers: 2 };
        let db = open(&disk, options("tsa(D=50ms,T=3,l1=1)").background(background));
        fill(&db.default_keyspace(), 600);
        for number in 0..600 {
            db.delete(key(number)).unwrap();
        }
        let start_us = db.env().now_us();
        let mut reads = 0u64;
        while db.env().now_us() < start_us + 50_000 || !tombstones_in_tables(&disk).is_empty() {
            db.env().advance_us(1_000);
            assert_eq!(db.get("absent").unwrap(), None);
            reads += 1;
            assert!(reads < 2_000, "seed {seed}: {:?}", tombstones_in_tables(&disk));
        }
        assert_eq!(metrics(&db).total().entries, 0, "seed {seed}");
    }
}

/// With `Background::Inline`, a time trigger takes effect at the next commit.
#[test]
fn file_staleness_trigger_moves_old_files_down() {
    let stale = r#"{layout="leveling", rule=[{trigger="file-staleness",ttl="2ms"},
        {trigger="run-count",runs=8}, {trigger="level-full",base=100}]}"#;
    let db = open(&MemVfs::new(), options(stale));
    fill(&db.default_keyspace(), 300);
    db.flush().unwrap();
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    let runs = || metrics(&db).total().runs;
    assert!(runs() > 1, "L0 was merged before it had eight runs");
    db.env().advance_us(2_000);
    db.put("b", "2").unwrap();
    assert_eq!(runs(), 1);
}

#[test]
fn fifo_drops_the_oldest_files_that_no_snapshot_reads() {
    let db = open(&MemVfs::new(), options("fifo(40K)"));
    let keyspace = db.default_keyspace();
    let put = |range: std::ops::Range<u64>| {
        for number in range {
            keyspace.put(format!("{number:08}"), [7; 100]).unwrap();
        }
    };
    put(0..200);
    let snapshot = db.snapshot();
    put(200..1_000);
    for number in 0..200u64 {
        let found = snapshot.get(&keyspace, format!("{number:08}")).unwrap();
        assert!(found.is_some(), "the snapshot lost {number}");
    }
    drop(snapshot);
    put(1_000..1_100);
    settle(&db);
    let bytes = metrics(&db).total().bytes;
    assert!((20_000..=40 << 10).contains(&bytes), "{bytes}");
    assert_eq!(db.get("00000000").unwrap(), None);
    assert!(db.get("00001099").unwrap().is_some());
    // FIFO drops the oldest entries, so the remaining entries are exactly the newest.
    let first = keyspace.first().unwrap().unwrap().0;
    let first: u64 = String::from_utf8_lossy(&first).parse().unwrap();
    assert_eq!(keyspace.iter().count() as u64, 1_100 - first);
    // The leveled policy drops no further entries.
    keyspace.set_policy(policy("leveled")).unwrap();
    put(1_100..2_000);
    assert_eq!(keyspace.iter().count() as u64, 2_000 - first);
}

#[test]
fn policy_set_at_run_time_survives_close_and_crash() {
    let disk = MemVfs::new();
    let composed = policy(
        r#"{name="mine", layout="fluid", runs=[2, 1], size-ratio=3,
        rule=[{trigger="too-many-runs"}]}"#,
    );
    let policy_of = |db: &Db| db.default_keyspace().options().policy.to_string();
    let db = open(&disk, options("tiering(T=3)"));
    db.default_keyspace().set_policy(composed.clone()).unwrap();
    db.put("a", "1").unwrap();
    drop(db);
    let db = open(&disk, inline());
    assert_eq!(policy_of(&db), composed.to_string());
    db.default_keyspace().set_policy(policy("rr")).unwrap();
    let crashed = disk.crash(CrashImage::Drop, 3);
    assert_eq!(policy_of(&open(&crashed, inline())), "rr");
}

/// A tombstone age without a time unit is relative to the duration of the experiment. Such an age is valid in
/// simulations only.
#[test]
fn tombstone_ttl_relative_to_an_experiment_is_refused() {
    let disk = MemVfs::new();
    let message = try_open(&disk, options("tsa(0.33)")).unwrap_err().to_string();
    assert!(message.contains("D = 0.33"), "{message}");
    let keyspace = open(&disk, options("tsa")).default_keyspace();
    let message = keyspace.set_policy(policy("tsa(0.2)")).unwrap_err().to_string();
    assert!(message.contains("tsa(D=3600s)"), "{message}");
    assert_eq!(keyspace.options().policy.to_string(), "tsa");
}

type Pick = fn(&TreeShape, &RunningJobs) -> Option<Job>;

/// A user-defined compaction policy that calls a function to pick jobs.
#[derive(Debug)]
struct CustomPolicy {
    name: &'static str,
    pick: Pick,
    stop_runs: usize,
    needs_file_read_times: bool,
    /// Maps each file number to the time of the last read, as passed to the last call of `pick`.
    last_read_us: Mutex<BTreeMap<u64, u64>>,
}

impl CustomPolicy {
    fn new(name: &'static str, stop_runs: usize, pick: Pick) -> Arc<CustomPolicy> {
        let (needs_file_read_times, last_read_us) = (false, Mutex::default());
        Arc::new(CustomPolicy { name, pick, stop_runs, needs_file_read_times, last_read_us })
    }
}

impl CompactionPolicy for CustomPolicy {
    fn name(&self) -> &str {
        self.name
    }

    fn pick(&self, shape: &TreeShape, busy: &RunningJobs) -> Option<Job> {
        let files = shape.files().map(|file| (file.id.0, file.last_read_us));
        *self.last_read_us.lock().unwrap() = files.collect();
        (self.pick)(shape, busy)
    }

    fn debt(&self, _shape: &TreeShape, _busy: &RunningJobs) -> Debt {
        Debt { pending_bytes: 0, headroom_bytes: u64::MAX }
    }

    fn must_stop_writes(&self, shape: &TreeShape) -> bool {
        shape.runs_of(Level(0)).len() >= self.stop_runs
    }

    fn needs_file_read_times(&self) -> bool {
        self.needs_file_read_times
    }
}

/// Returns a job with an output in a new run of L1.
fn job_to_l1(kind: JobKind, inputs: Vec<JobInput>) -> Job {
    Job {
        kind,
        inputs,
        target: OutputTarget {
            level: Level(1),
            placement: OutputPlacement::NewRun { before: None },
        },
        split: SplitRule { file_bytes: 4096, grandparent: None, boundaries: Vec::new() },
        reason: JobReason::Manual,
    }
}

/// Returns a policy that merges the whole tree into one run when L0 has three runs.
fn one_run() -> Arc<CustomPolicy> {
    CustomPolicy::new("one-run", 12, |shape, busy| {
        let inputs = shape.runs().map(|(level, run)| JobInput::from_run(level, run)).collect();
        let is_due = shape.runs_of(Level(0)).len() >= 3;
        if is_due { busy.admit_job(job_to_l1(JobKind::Merge, inputs), shape) } else { None }
    })
}

#[test]
fn custom_policy_is_stored_by_name_and_required_at_open() {
    let disk = MemVfs::new();
    let custom = small().policy(one_run());
    let try_open_with =
        |tuning: KeyspaceOptions| try_open(&disk, inline().keyspace_defaults(tuning));
    let deepest_level = |db: &Db| {
        let levels = metrics(db).levels;
        levels.iter().filter(|level| level.runs > 0).map(|level| level.level).max()
    };
    let policy_of = |keyspace: &Keyspace| keyspace.options().policy.to_string();
    let db = try_open_with(custom.clone()).unwrap();
    fill(&db.default_keyspace(), 2_000);
    db.flush().unwrap();
    assert!(deepest_level(&db) <= Some(1));
    assert_eq!(policy_of(&db.default_keyspace()), "custom:one-run");
    let side = db.keyspace("side", small().policy(one_run())).unwrap();
    fill(&side, 500);
    // If the options of an open call name no policy, the keyspace keeps its current policy.
    let side = db.keyspace("side", KeyspaceOptions::default()).unwrap();
    assert_eq!(policy_of(&side), "custom:one-run");
    db.close(None).unwrap();
    // If the options lack the custom policy of the default keyspace, opening the database fails and changes no file.
    let before = disk.snapshot_all();
    let refused = try_open_with(KeyspaceOptions::default());
    let Err(Error::NoCompactionPolicy { keyspace, policy: name }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((&*keyspace, &*name), ("default", "one-run"));
    assert_eq!(disk.snapshot_all(), before);
    let db = open(&disk, inline().read_only(true));
    assert_eq!(db.open_keyspace("side", None).unwrap().iter().count(), 500);
    drop(db);
    // The custom policy of any other keyspace is only required when that keyspace is opened.
    let db = try_open_with(custom).unwrap();
    for opened in [db.open_keyspace("side", None), db.keyspace("side", KeyspaceOptions::default())]
    {
        assert!(matches!(opened, Err(Error::NoCompactionPolicy { .. })), "{opened:?}");
    }
    let side = db.keyspace("side", small().policy(policy("leveled"))).unwrap();
    assert_eq!((&*policy_of(&side), side.iter().count()), ("leveled", 500));
    drop((side, db));
    // Opening the database with a built-in policy replaces the custom policy.
    let db = try_open_with(small().policy(policy("tiering"))).unwrap();
    fill(&db.default_keyspace(), 4_000);
    assert_eq!(policy_of(&db.default_keyspace()), "tiering");
    assert!(metrics(&db).total().runs > 1);
    db.default_keyspace().set_policy(one_run()).unwrap();
    fill(&db.default_keyspace(), 500);
    assert!(deepest_level(&db) <= Some(1));
    assert_eq!(db.default_keyspace().iter().count(), 1_000);
}

/// Returns all files of the L0 run at index `run` as a job input, or `None` if there are fewer runs.
fn input_of_l0(shape: &TreeShape, run: usize) -> Option<JobInput> {
    shape.runs_of(Level(0)).get(run).map(|run| JobInput::from_run(Level(0), run))
}

#[test]
fn invalid_job_is_reported_and_not_executed() {
    type Case = (&'static str, Pick, fn(&JobRule) -> bool);
    let cases: [Case; 4] = [
        (
            "unknown run",
            |shape, _| {
                input_of_l0(shape, 0)?;
                let (run, files) = (RunId(9999), vec![FileId(9999)]);
                Some(job_to_l1(JobKind::Merge, vec![JobInput { level: Level(0), run, files }]))
            },
            |rule| matches!(rule, JobRule::Shape(compaction::Error::NoSuchRun { .. })),
        ),
        (
            "drop of the oldest data without a declaration",
            |shape, _| {
                let oldest = shape.runs_of(Level(0)).len().checked_sub(1)?;
                Some(job_to_l1(JobKind::Drop, vec![input_of_l0(shape, oldest)?]))
            },
            |rule| *rule == JobRule::DropsData,
        ),
        (
            "newest run moved below older runs",
            |shape, _| {
                input_of_l0(shape, 1)?;
                Some(job_to_l1(JobKind::Merge, vec![input_of_l0(shape, 0)?]))
            },
            |rule| matches!(rule, JobRule::Shape(compaction::Error::L0Order { .. })),
        ),
        (
            "inputs with the oldest run first",
            |shape, _| {
                let newer = shape.runs_of(Level(0)).len().checked_sub(2)?;
                let inputs = vec![input_of_l0(shape, newer + 1)?, input_of_l0(shape, newer)?];
                Some(job_to_l1(JobKind::Merge, inputs))
            },
            |rule| matches!(rule, JobRule::Shape(compaction::Error::InputOrder { .. })),
        ),
    ];
    for (name, pick, is_expected) in cases {
        let (disk, events) = (MemVfs::new(), EventLog::default());
        let tuning = small().policy(CustomPolicy::new("wrong", usize::MAX, pick));
        let options = inline().listener(Arc::new(events.clone())).keyspace_defaults(tuning);
        let db = open(&disk, options);
        let mut refused = 0;
        for number in 0..800 {
            let put = || db.put(key(number), number.to_string());
            match put() {
                Err(Error::Background { .. }) => {
                    refused += 1;
                    put().unwrap();
                }
                done => done.unwrap(),
            }
        }
        assert_eq!(refused, 1, "{name}");
        let failures = events.select(|event| match event {
            Event::Failure(_) | Event::Compaction(_) => Some(event.to_string()),
            _ => None,
        });
        assert!(!failures.is_empty() && failures.len() < 10, "{name}: {failures:?}");
        for number in 0..800 {
            assert_eq!(&*db.get(key(number)).unwrap().unwrap(), number.to_string().as_bytes());
        }
        let Err(Error::PolicyMistake { policy: by, rule, .. }) = db.wait_idle() else {
            panic!("{name}: the invalid job is not reported")
        };
        assert_eq!(by, "wrong");
        assert!(is_expected(&rule), "{name}: {rule}");
        assert_eq!(metrics(&db).compaction.jobs, 0, "{name}");
        let begun = events.count(|event| matches!(event, Event::CompactionBegin(_)));
        assert_eq!(begun, 0, "{name}");
        // After a change to a valid policy, compactions run again.
        db.default_keyspace().set_policy(policy("leveled")).unwrap();
        db.env().advance_us(120_000_000);
        db.put("z", "1").unwrap();
        settle(&db);
        assert_eq!(db.default_keyspace().iter().count(), 801);
        db.close(None).unwrap();
        assert_clean(&disk);
    }
}

/// Regression test. A policy stopped writes and picked no job. Writes then waited forever, `wait_idle` returned `Ok`,
/// and no error named the policy.
#[test]
fn policy_that_stops_writes_and_picks_no_job_is_named_by_the_error() {
    for background in [Background::Inline, Background::Stepped { seed: 3, workers: 2 }] {
        let stalls = small().policy(CustomPolicy::new("stalls", 6, |_, _| None));
        let db = open(&MemVfs::new(), inline().background(background).keyspace_defaults(stalls));
        let put = |number: u64| db.put(key(number), [7; 100]);
        let stopped = (0..10_000).find_map(|number| put(number).err());
        let stopped = stopped.expect("writes were not stopped");
        let Error::PolicyStalled { keyspace, policy: by, shape } = &stopped else {
            panic!("{background:?}: {stopped:?}")
        };
        assert_eq!((&**keyspace, &**by), ("default", "stalls"));
        assert!(shape.starts_with("L0 has 6 runs of 6 files, "), "{shape}");
        assert!(stopped.to_string().contains("set another policy"));
        assert!(matches!(db.wait_idle(), Err(Error::PolicyStalled { .. })));
        let health = db.health();
        assert!(health.compaction_blocked[0].writes_stopped, "{health:?}");
        put(1).unwrap_err();
        assert!(db.health().read_only.is_none());
        db.default_keyspace().set_policy(policy("leveled")).unwrap();
        (0..1_000).for_each(|number| put(number).unwrap());
        db.wait_idle().unwrap();
        assert!(db.health().is_good());
    }
}

#[test]
fn policy_that_needs_file_read_times_gets_the_times_of_lookups() {
    for needs_file_read_times in [true, false] {
        let spy = CustomPolicy::new("spy", usize::MAX, |_, _| None);
        let spy = Arc::into_inner(spy).unwrap();
        let spy = Arc::new(CustomPolicy { needs_file_read_times, ..spy });
        let tuning = small().policy(Arc::<CustomPolicy>::clone(&spy));
        let db = open(&MemVfs::new(), inline().keyspace_defaults(tuning));
        // The keyspace has three files with one key each. The lookup reads only the second file.
        for name in ["a", "b", "c"] {
            db.put(name, "v").unwrap();
            db.flush().unwrap();
        }
        let last_read_us = || {
            db.default_keyspace().set_policy(Arc::<CustomPolicy>::clone(&spy)).unwrap();
            spy.last_read_us.lock().unwrap().clone()
        };
        let before = last_read_us();
        let ids: Vec<u64> = before.keys().copied().collect();
        assert_eq!(ids.len(), 3);
        db.env().advance_us(1_000_000);
        assert!(db.get("b").unwrap().is_some());
        let read_us = db.env().now_us();
        let after = last_read_us();
        assert_eq!((after[&ids[0]], after[&ids[2]]), (before[&ids[0]], before[&ids[2]]));
        let expected_us = if needs_file_read_times { read_us } else { before[&ids[1]] };
        assert_eq!(after[&ids[1]], expected_us);
    }
}
