//! Compaction policies in a database: age of tombstones, time triggers, FIFO with snapshots, policies of users.

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
use lsmx::vfs::CrashImage;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Error, JobRule, KeyspaceOptions, Options, PolicySpec};
use lsmx_testkit::EventLog;

fn tuning(policy: &str) -> KeyspaceOptions {
    KeyspaceOptions::default()
        .policy(policy.parse::<PolicySpec>().unwrap())
        .memtable_bytes(4 << 10)
        .table_bytes(4 << 10)
        .block_bytes(256)
}

fn options(background: Background, policy: &str) -> Options {
    Options::default().background(background).seed(1).keyspace_defaults(tuning(policy))
}

fn open(disk: &MemVfs, policy: &str) -> Db {
    let options = options(Background::Inline, policy);
    Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap()
}

fn key(number: u64) -> String {
    format!("key-{:05}", number.wrapping_mul(7919) % 1000)
}

/// Sequence numbers of all point tombstones in the tables that the database has now.
fn tombstones_in_tables(disk: &MemVfs) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    for path in disk.snapshot_all().into_keys() {
        if path.extension().is_none_or(|extension| extension != "sst") {
            continue;
        }
        let mut text = Vec::new();
        let options = DumpOptions { entries: true, ..DumpOptions::default() };
        dump(disk, Path::new(&path), &options, &mut text).unwrap();
        for line in String::from_utf8_lossy(&text).lines() {
            let mut words = line.split_whitespace();
            if words.next() == Some("entry") && words.any(|word| word == "Delete") {
                let seq = words.nth(1).and_then(|word| word.strip_suffix(',')?.parse().ok());
                found.insert(seq.unwrap_or_else(|| panic!("what is {line:?}?")));
            }
        }
    }
    found
}

/// A history of puts and deletes under a bound on the age of tombstones, looked at all along.
struct Persistence {
    db: Db,
    disk: MemVfs,
    bound_us: u64,
    /// When each delete was made, by its number, with its key.
    deletes: BTreeMap<u64, (u64, String)>,
    model: BTreeMap<String, u64>,
    /// Tombstones that were seen in tables at all.
    seen: BTreeSet<u64>,
    looks: u64,
}

impl Persistence {
    fn new(policy: &str, bound_us: u64) -> Persistence {
        let disk = MemVfs::new();
        let db = open(&disk, policy);
        let (deletes, model) = (BTreeMap::new(), BTreeMap::new());
        Persistence { db, disk, bound_us, deletes, model, seen: BTreeSet::new(), looks: 0 }
    }

    fn step(&mut self, number: u64) {
        let key = key(number.wrapping_mul(31));
        if number % 5 == 2 && self.model.remove(&key).is_some() {
            self.db.delete(&key).unwrap();
            let seq = self.db.metrics().published_seq;
            self.deletes.insert(seq, (self.db.env().now_us(), key));
        } else {
            self.db.put(&key, number.to_string()).unwrap();
            self.model.insert(key, number);
        }
    }

    /// Tombstones older than the bound, in tables and memtables, after a commit that ended just now.
    fn overdue(&mut self) -> Vec<u64> {
        let now_us = self.db.env().now_us();
        let in_tables = tombstones_in_tables(&self.disk);
        self.seen.extend(&in_tables);
        self.looks += 1;
        let is_old = |at_us: u64| now_us - at_us > self.bound_us;
        let keyspace = self.db.default_keyspace();
        let old = self.deletes.iter().filter(|(_, (at_us, _))| is_old(*at_us));
        old.filter(|(seq, (_, key))| {
            in_tables.contains(seq)
                || keyspace.explain(key).unwrap().memtables.iter().any(|memtable| {
                    memtable.found.iter().any(|found| found.kind == "delete" && found.seq == **seq)
                })
        })
        .map(|(seq, _)| *seq)
        .collect()
    }

    fn check_values(&self) {
        let keyspace = self.db.default_keyspace();
        let found: Vec<_> = keyspace.iter().map(Result::unwrap).collect();
        assert_eq!(found.len(), self.model.len());
        for ((key, value), (wanted_key, number)) in found.iter().zip(&self.model) {
            assert_eq!(
                (&key[..], &value[..]),
                (wanted_key.as_bytes(), number.to_string().as_bytes())
            );
        }
    }
}

/// Under any layout that takes the trigger.
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
fn no_tombstone_outlives_its_bound() {
    lsmx_testkit::time_test();
    for policy in BOUNDED {
        let mut history = Persistence::new(policy, 700);
        for number in 0..4_000 {
            history.step(number);
            if number % 13 == 0 {
                assert_eq!(history.overdue(), [0u64; 0], "{policy}: after {number}");
            }
        }
        history.check_values();
        assert!(history.deletes.len() > 300 && history.seen.len() > 100, "{policy}");
    }
}

#[test]
fn without_a_bound_tombstones_live_longer() {
    let mut history = Persistence::new("lo+1(T=3,l1=1)", 700);
    let mut overdue = 0;
    for number in 0..4_000 {
        history.step(number);
        if number % 13 == 0 {
            overdue += history.overdue().len();
        }
    }
    assert!(overdue > 100, "the test above would not notice: {overdue}");
}

/// A snapshot holds those that are newer than it, and no others; let go of, it holds none.
#[test]
fn a_snapshot_puts_off_what_it_needs_and_nothing_else() {
    lsmx_testkit::time_test();
    for policy in BOUNDED {
        let mut history = Persistence::new(policy, 700);
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
        assert!(held > 0, "{policy}: the snapshot held nothing");
        for (key, number) in &seen {
            assert_eq!(
                &*snapshot.get(&history.db.default_keyspace(), key).unwrap().unwrap(),
                number.to_string().as_bytes()
            );
        }
        drop(snapshot);
        history.step(3_000);
        assert_eq!(history.overdue(), [0u64; 0], "{policy}");
        history.check_values();
    }
}

/// With real threads and a clock that moves: nobody writes, nobody waits for anything, and the last
/// tombstone goes all the same.
#[test]
fn an_idle_database_loses_its_tombstones() {
    for seed in 1..4 {
        let disk = MemVfs::new();
        let background = Background::Stepped { seed, workers: 2 };
        let options = options(background, "tsa(D=50ms,T=3,l1=1)");
        let db = Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap();
        for number in 0..600 {
            db.put(key(number), "v").unwrap();
        }
        for number in 0..600 {
            db.delete(key(number)).unwrap();
        }
        let start_us = db.env().now_us();
        // The clock moves by these reads alone.
        let mut reads = 0u64;
        while db.env().now_us() < start_us + 50_000 || !tombstones_in_tables(&disk).is_empty() {
            db.env().advance_us(1_000);
            assert_eq!(db.get("absent").unwrap(), None);
            reads += 1;
            assert!(reads < 2_000, "seed {seed}: {:?}", tombstones_in_tables(&disk));
        }
        let level = |metrics: &lsmx::Metrics| {
            let tree = &metrics.keyspaces["default"];
            tree.levels.iter().map(|level| level.entries).sum::<u64>()
        };
        assert_eq!(level(&db.metrics()), 0, "nothing is left");
    }
}

/// What time does under `Inline` happens with the next commit, whatever it writes.
#[test]
fn files_grow_stale_and_move_on() {
    let stale = r#"{layout="leveling", rule=[{trigger="file-staleness",ttl="2ms"},
        {trigger="run-count",runs=8}, {trigger="level-full",base=100}]}"#;
    let disk = MemVfs::new();
    let db = open(&disk, stale);
    for number in 0..300 {
        db.put(key(number), "v").unwrap();
    }
    db.flush().unwrap();
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    let runs = |db: &Db| {
        let tree = &db.metrics().keyspaces["default"];
        tree.levels.iter().map(|level| level.runs).sum::<u64>()
    };
    assert!(runs(&db) > 1, "L0 waits for more runs");
    db.env().advance_us(2_000);
    db.put("b", "2").unwrap();
    assert_eq!(runs(&db), 1, "all that was old is in the last run");
}

#[test]
fn a_queue_lets_its_oldest_go_once_no_snapshot_sees_them() {
    let disk = MemVfs::new();
    let db = open(&disk, "fifo(40K)");
    let put = |range: std::ops::Range<u64>| {
        for number in range {
            db.put(format!("{number:08}"), [7; 100]).unwrap();
        }
    };
    put(0..200);
    let snapshot = db.snapshot();
    put(200..1_000);
    for number in 0..200u64 {
        let found = snapshot.get(&db.default_keyspace(), format!("{number:08}")).unwrap();
        assert!(found.is_some(), "{number} left a snapshot");
    }
    drop(snapshot);
    put(1_000..1_100);
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let bytes: u64 = db.metrics().keyspaces["default"].levels.iter().map(|level| level.bytes).sum();
    assert!((20_000..=40 << 10).contains(&bytes), "{bytes}");
    assert_eq!(db.get("00000000").unwrap(), None);
    assert!(db.get("00001099").unwrap().is_some());
    // What is left is the newest, without a gap.
    let keys: Vec<_> = db.default_keyspace().iter().map(|entry| entry.unwrap().0).collect();
    let first: u64 = String::from_utf8_lossy(&keys[0]).parse().unwrap();
    assert_eq!(keys.len() as u64, 1_100 - first);
    // Another policy takes over, and loses nothing more.
    db.default_keyspace().set_policy("leveled".parse::<PolicySpec>().unwrap()).unwrap();
    put(1_100..2_000);
    assert_eq!(db.default_keyspace().iter().count() as u64, 2_000 - first);
}

#[test]
fn a_policy_stays_over_reopenings_and_a_composed_one_too() {
    let disk = MemVfs::new();
    let composed = r#"{name="mine", layout="fluid", runs=[2, 1], size-ratio=3,
        rule=[{trigger="too-many-runs"}]}"#;
    let composed: PolicySpec = composed.parse().unwrap();
    let db = open(&disk, "tiering(T=3)");
    db.default_keyspace().set_policy(composed.clone()).unwrap();
    db.put("a", "1").unwrap();
    drop(db);
    let plain = || Options::default().background(Background::Inline).seed(1);
    let db = Db::open("db", plain().vfs(Arc::new(disk.clone()))).unwrap();
    assert_eq!(db.default_keyspace().options().policy.to_string(), composed.to_string());
    drop(db);
    // A crash right after the change returned: the change was made.
    let db = Db::open("db", plain().vfs(Arc::new(disk.clone()))).unwrap();
    db.default_keyspace().set_policy("rr".parse::<PolicySpec>().unwrap()).unwrap();
    let crashed = disk.crash(CrashImage::Drop, 3);
    let again = Db::open("db", plain().vfs(Arc::new(crashed))).unwrap();
    assert_eq!(again.default_keyspace().options().policy.to_string(), "rr");
}

#[test]
fn a_share_of_a_run_rules_no_database() {
    let disk = MemVfs::new();
    let refused = Db::open(
        "db",
        options(Background::Inline, "tsa(0.5)")
            .keyspace_defaults(tuning("tsa(0.33)"))
            .vfs(Arc::new(disk.clone())),
    );
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("D = 0.33"), "{message}");
    let db = open(&disk, "tsa");
    let message =
        db.default_keyspace().set_policy("tsa(0.2)".parse::<PolicySpec>().unwrap()).unwrap_err();
    assert!(message.to_string().contains("tsa(D=3600s)"), "{message}");
    assert_eq!(db.default_keyspace().options().policy.to_string(), "tsa");
}

/// Merges the whole tree into one run whenever L0 holds three.
#[derive(Debug)]
struct OneRun;

impl CompactionPolicy for OneRun {
    fn name(&self) -> &str {
        "one-run"
    }

    fn pick(&self, shape: &TreeShape, busy: &RunningJobs) -> Option<Job> {
        let runs = shape.runs_of(Level(0)).len();
        let job = Job {
            kind: JobKind::Merge,
            inputs: shape.runs().map(|(level, run)| JobInput::from_run(level, run)).collect(),
            target: OutputTarget {
                level: Level(1),
                placement: OutputPlacement::NewRun { before: None },
            },
            split: SplitRule {
                file_bytes: shape.table_bytes,
                grandparent: None,
                boundaries: Vec::new(),
            },
            reason: JobReason::RunCount { level: Level(0), runs },
        };
        if runs < 3 { None } else { busy.admit_job(job, shape) }
    }

    fn debt(&self, _shape: &TreeShape, _busy: &RunningJobs) -> Debt {
        Debt { pending_bytes: 0, headroom_bytes: u64::MAX }
    }

    fn must_stop_writes(&self, shape: &TreeShape) -> bool {
        shape.runs_of(Level(0)).len() >= 12
    }
}

#[test]
fn custom_policy_is_remembered_by_name() {
    let disk = MemVfs::new();
    let own = || Arc::new(OneRun) as Arc<dyn CompactionPolicy>;
    let given = tuning("tiering").policy(own());
    let try_open_with = |tuning: KeyspaceOptions| {
        let options = Options::default().background(Background::Inline).seed(1);
        let options = options.keyspace_defaults(tuning);
        Db::open("db", options.vfs(Arc::new(disk.clone())))
    };
    let open_with = |tuning: KeyspaceOptions| try_open_with(tuning).unwrap();
    let levels = |db: &Db| {
        let tree = &db.metrics().keyspaces["default"];
        tree.levels
            .iter()
            .filter(|level| level.runs > 0)
            .map(|level| level.level)
            .collect::<Vec<_>>()
    };
    let db = open_with(given.clone());
    for number in 0..2_000 {
        db.put(key(number), number.to_string()).unwrap();
    }
    db.flush().unwrap();
    assert!(levels(&db).iter().all(|level| *level <= 1), "{:?}", levels(&db));
    assert_eq!(db.default_keyspace().options().policy.to_string(), "custom:one-run");
    let side = db.keyspace("side", tuning("leveled").policy(own())).unwrap();
    for number in 0..500 {
        side.put(key(number), number.to_string()).unwrap();
    }
    // What was given before stays in force.
    let side = db.keyspace("side", KeyspaceOptions::default()).unwrap();
    assert_eq!(side.options().policy.to_string(), "custom:one-run");
    db.close(None).unwrap();
    // Without the policy the default keyspace does not open, and nothing has changed.
    let before = disk.snapshot_all();
    let refused = try_open_with(KeyspaceOptions::default());
    let Err(Error::NoCompactionPolicy { keyspace, policy }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((&*keyspace, &*policy), ("default", "one-run"));
    assert_eq!(disk.snapshot_all(), before);
    let read = Options::default().background(Background::Inline);
    let db = Db::open("db", read.read_only(true).vfs(Arc::new(disk.clone()))).unwrap();
    assert_eq!(db.open_keyspace("side", None).unwrap().iter().count(), 500);
    drop(db);
    // A keyspace that nobody opens keeps its shape; opening it without the policy is an error.
    let options = Options::default().background(Background::Inline).seed(1);
    let options = options.keyspace_defaults(given);
    let db = Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap();
    for opened in [db.open_keyspace("side", None), db.keyspace("side", KeyspaceOptions::default())]
    {
        assert!(matches!(opened, Err(Error::NoCompactionPolicy { .. })), "{opened:?}");
    }
    let side = db.keyspace("side", tuning("leveled")).unwrap();
    assert_eq!(
        (side.options().policy.to_string(), side.iter().count()),
        ("leveled".to_owned(), 500)
    );
    drop((side, db));
    // Another policy is given: that one is in force.
    let db = open_with(tuning("tiering"));
    for number in 0..4_000 {
        db.put(key(number), number.to_string()).unwrap();
    }
    assert!(levels(&db).len() > 1 || levels(&db).iter().any(|level| *level > 1));
    db.default_keyspace().set_policy(own()).unwrap();
    for number in 0..500 {
        db.put(key(number), number.to_string()).unwrap();
    }
    assert!(levels(&db).iter().all(|level| *level <= 1), "{:?}", levels(&db));
    assert_eq!(db.default_keyspace().iter().count(), 1_000);
}

/// A policy that is wrong in a way of its own.
#[derive(Debug)]
enum Wrong {
    /// Names a run that is not there.
    Nowhere,
    /// Drops a file, and does not say that it drops data.
    Drops,
    /// Carries older entries over newer ones.
    Reorders,
    /// Names its inputs oldest first.
    InputOrder,
}

impl CompactionPolicy for Wrong {
    fn name(&self) -> &str {
        "wrong"
    }

    fn pick(&self, shape: &TreeShape, _busy: &RunningJobs) -> Option<Job> {
        let runs = shape.runs_of(Level(0));
        let (newest, oldest) = (runs.first()?, runs.last()?);
        let level = Level(0);
        let (kind, input) = match self {
            Wrong::Nowhere => {
                let (run, files) = (RunId(9999), vec![FileId(9999)]);
                (JobKind::Merge, JobInput { level, run, files })
            }
            Wrong::Drops => (JobKind::Drop, JobInput::from_run(level, oldest)),
            Wrong::Reorders | Wrong::InputOrder if runs.len() < 2 => return None,
            Wrong::InputOrder => (JobKind::Merge, JobInput::from_run(level, oldest)),
            Wrong::Reorders => (JobKind::Merge, JobInput::from_run(level, newest)),
        };
        let mut inputs = vec![input];
        if matches!(self, Wrong::InputOrder) {
            inputs.push(JobInput::from_run(level, &runs[runs.len() - 2]));
        }
        Some(Job {
            kind,
            inputs,
            target: OutputTarget {
                level: Level(1),
                placement: OutputPlacement::NewRun { before: None },
            },
            split: SplitRule { file_bytes: 4096, grandparent: None, boundaries: Vec::new() },
            reason: JobReason::Manual,
        })
    }

    fn debt(&self, _shape: &TreeShape, _busy: &RunningJobs) -> Debt {
        Debt::default()
    }

    fn must_stop_writes(&self, _shape: &TreeShape) -> bool {
        false
    }
}

#[test]
fn a_wrong_policy_is_reported_and_harms_nothing() {
    for wrong in [Wrong::Nowhere, Wrong::Drops, Wrong::Reorders, Wrong::InputOrder] {
        let (disk, events) = (MemVfs::new(), EventLog::default());
        let name = format!("{wrong:?}");
        let options = Options::default()
            .background(Background::Inline)
            .seed(1)
            .listener(Arc::new(events.clone()))
            .keyspace_defaults(tuning("leveled").policy(Arc::new(wrong)));
        let db = Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap();
        let mut told = 0;
        for number in 0..800 {
            let put = || db.put(key(number), number.to_string());
            match put() {
                Err(Error::Background { .. }) => {
                    told += 1;
                    put().unwrap();
                }
                done => done.unwrap(),
            }
        }
        assert_eq!(told, 1, "{name}");
        let failures = events.select(|event| match event {
            Event::Failure(_) | Event::Compaction(_) => Some(event.to_string()),
            _ => None,
        });
        assert!(!failures.is_empty() && failures.len() < 10, "{name}: {failures:?}");
        for number in 0..800 {
            assert_eq!(&*db.get(key(number)).unwrap().unwrap(), number.to_string().as_bytes());
        }
        let Err(Error::PolicyMistake { policy, rule, .. }) = db.wait_idle() else {
            panic!("{name}: no mistake")
        };
        assert_eq!(policy, "wrong");
        let expected = match &*name {
            "Nowhere" => matches!(&*rule, JobRule::Shape(compaction::Error::NoSuchRun { .. })),
            "Drops" => *rule == JobRule::DropsData,
            "InputOrder" => matches!(&*rule, JobRule::Shape(compaction::Error::InputOrder { .. })),
            _ => matches!(&*rule, JobRule::Shape(compaction::Error::L0Order { .. })),
        };
        assert!(expected, "{name}: {rule}");
        // It was found before anything was merged.
        assert_eq!(db.metrics().keyspaces["default"].compaction.jobs, 0, "{name}");
        let begun = events.count(|event| matches!(event, Event::CompactionBegin(_)));
        assert_eq!(begun, 0, "{name}: a job was begun");
        // A sound one takes over.
        db.default_keyspace().set_policy("leveled".parse::<PolicySpec>().unwrap()).unwrap();
        db.env().advance_us(120_000_000);
        db.put("z", "1").unwrap();
        db.flush().unwrap();
        db.wait_idle().unwrap();
        assert_eq!(db.default_keyspace().iter().count(), 801);
        drop(db);
        lsmx::verify("db", &Options::default().vfs(Arc::new(disk))).unwrap();
    }
}

/// Stops writes at six runs, and does nothing about it.
#[derive(Debug)]
struct Stalls;

impl CompactionPolicy for Stalls {
    fn name(&self) -> &str {
        "stalls"
    }

    fn pick(&self, _shape: &TreeShape, _busy: &RunningJobs) -> Option<Job> {
        None
    }

    fn debt(&self, _shape: &TreeShape, _busy: &RunningJobs) -> Debt {
        Debt::default()
    }

    fn must_stop_writes(&self, shape: &TreeShape) -> bool {
        shape.runs_of(Level(0)).len() >= 6
    }
}

/// Writes stopped for good, `wait_idle` returned `Ok`, and nothing said why.
#[test]
fn policy_that_stops_writes_and_picks_no_job_is_an_error_that_names_it() {
    for background in [Background::Inline, Background::Stepped { seed: 3, workers: 2 }] {
        let own = tuning("leveled").policy(Arc::new(Stalls));
        let options = Options::default().background(background).seed(1).keyspace_defaults(own);
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        let put = |number: u64| db.put(key(number), [7; 100]);
        let stopped = (0..10_000).find_map(|number| put(number).err());
        let stopped = stopped.expect("L0 does not grow for ever");
        let Error::PolicyStalled { keyspace, policy, shape } = &stopped else {
            panic!("{background:?}: {stopped:?}")
        };
        assert_eq!((&**keyspace, &**policy), ("default", "stalls"));
        assert!(shape.starts_with("L0 has 6 runs of 6 files, "), "{shape}");
        assert!(stopped.to_string().contains("set another policy"));
        assert!(matches!(db.wait_idle(), Err(Error::PolicyStalled { .. })));
        let health = db.health();
        assert!(health.compaction_blocked[0].writes_stopped, "{health:?}");
        put(1).unwrap_err();
        assert!(db.health().read_only.is_none());
        // The way out.
        db.default_keyspace().set_policy("leveled".parse::<PolicySpec>().unwrap()).unwrap();
        (0..1_000).for_each(|number| put(number).unwrap());
        db.wait_idle().unwrap();
        assert!(db.health().is_good());
    }
}

/// Picks nothing, and notes when each file was last read.
#[derive(Debug, Default)]
struct Spy {
    asks: bool,
    last_read: Mutex<BTreeMap<u64, u64>>,
}

impl CompactionPolicy for Spy {
    fn name(&self) -> &str {
        "spy"
    }

    fn pick(&self, shape: &TreeShape, _busy: &RunningJobs) -> Option<Job> {
        let files = shape.files().map(|file| (file.id.0, file.last_read_us));
        *self.last_read.lock().unwrap() = files.collect();
        None
    }

    fn debt(&self, _shape: &TreeShape, _busy: &RunningJobs) -> Debt {
        Debt::default()
    }

    fn must_stop_writes(&self, _shape: &TreeShape) -> bool {
        false
    }

    fn needs_file_read_times(&self) -> bool {
        self.asks
    }
}

#[test]
fn a_policy_that_asks_knows_which_files_lookups_read() {
    for asks in [true, false] {
        let (disk, spy) = (MemVfs::new(), Arc::new(Spy { asks, ..Spy::default() }));
        let own: Arc<dyn CompactionPolicy> = Arc::<Spy>::clone(&spy);
        let options = Options::default()
            .background(Background::Inline)
            .seed(1)
            .keyspace_defaults(tuning("leveled").policy(own));
        let db = Db::open("db", options.vfs(Arc::new(disk))).unwrap();
        // Three files, of which only the second has the key that is read.
        for name in ["a", "b", "c"] {
            db.put(name, "v").unwrap();
            db.flush().unwrap();
        }
        let look = || {
            db.default_keyspace().set_policy(Arc::<Spy>::clone(&spy)).unwrap();
            spy.last_read.lock().unwrap().clone()
        };
        let before = look();
        let ids: Vec<u64> = before.keys().copied().collect();
        assert_eq!(ids.len(), 3);
        db.env().advance_us(1_000_000);
        assert!(db.get("b").unwrap().is_some());
        let read_us = db.env().now_us();
        let after = look();
        assert_eq!((after[&ids[0]], after[&ids[2]]), (before[&ids[0]], before[&ids[2]]));
        assert_eq!(after[&ids[1]], if asks { read_us } else { before[&ids[1]] });
    }
}
