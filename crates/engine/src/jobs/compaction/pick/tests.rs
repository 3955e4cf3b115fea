//! Tests of the choice of compaction jobs.

use std::ops::Bound;
use std::time::Duration;

use lsmx_base::file_name::FileName;
use lsmx_base::sync::{AtomicU64, Mutex, Ordering};
use lsmx_compaction::{
    Debt, JobInput, KeyRange, LevelShape, OutputTarget, PolicySpec, RunId, RunningJobs, SortedRun,
    SplitRule,
};

use super::*;
use crate::db::Db;
use crate::db::snapshot::Snapshot;
use crate::env::{Background, ManualClock};
use crate::jobs::compaction::manual::{ManualPlan, plan_manual};
use crate::jobs::compaction::run::run_job;
use crate::options::db::Options;
use crate::options::keyspace::KeyspaceOptions;
use crate::options::policy::Policy;
use crate::options::value_separation::ValueSeparation;
use crate::state::work_queue::WorkKind;
use crate::tree::blob_set::BlobUsage;
use crate::vfs::call::VfsCall;
use crate::vfs::fault::{Errno, Fault, FaultRule, FaultVfs};
use crate::vfs::{MemVfs, Vfs};

/// Policy that releases a snapshot during a pick, and then needs another pick.
#[derive(Debug, Default)]
struct ReleasingPolicy {
    snapshot: Mutex<Option<Snapshot>>,
    /// For each pick, whether the shape contained a snapshot.
    picks: Mutex<Vec<bool>>,
}

impl CompactionPolicy for ReleasingPolicy {
    fn name(&self) -> &str {
        "releasing"
    }

    fn pick(&self, shape: &TreeShape, _: &RunningJobs) -> Option<Job> {
        self.picks.lock().push(shape.newest_snapshot.is_some());
        drop(self.snapshot.lock().take());
        None
    }

    fn debt(&self, _: &TreeShape, _: &RunningJobs) -> Debt {
        Debt::default()
    }

    fn must_stop_writes(&self, _: &TreeShape) -> bool {
        false
    }

    fn is_waiting_for_snapshots(&self, shape: &TreeShape) -> bool {
        shape.newest_snapshot.is_some()
    }
}

/// Policy with a job that is due at a time, which passes during each pick.
#[derive(Debug)]
struct DeadlinePolicy {
    clock: ManualClock,
    due_us: Mutex<u64>,
    /// Times of the picks.
    picks: Mutex<Vec<u64>>,
}

impl CompactionPolicy for DeadlinePolicy {
    fn name(&self) -> &str {
        "deadline"
    }

    fn pick(&self, shape: &TreeShape, _: &RunningJobs) -> Option<Job> {
        self.picks.lock().push(shape.now_us);
        self.clock.advance_us(1_000);
        None
    }

    fn debt(&self, _: &TreeShape, _: &RunningJobs) -> Debt {
        Debt::default()
    }

    fn must_stop_writes(&self, _: &TreeShape) -> bool {
        false
    }

    fn next_pick_due_us(&self, shape: &TreeShape) -> Option<u64> {
        Some(*self.due_us.lock()).filter(|due_us| *due_us > shape.now_us)
    }
}

/// Bug: the next time at which a job is due was searched after the current time. A job that became due between the
/// pick and this search was due for neither of them.
#[test]
fn job_that_becomes_due_during_pick_causes_another_pick() {
    let clock = ManualClock::new(1_800_000_000_000_000);
    let policy = Arc::new(DeadlinePolicy {
        clock: clock.clone(),
        due_us: Mutex::new(u64::MAX),
        picks: Mutex::default(),
    });
    let defaults = KeyspaceOptions::default().policy(Arc::clone(&policy));
    let options = Options::default().background(Background::Inline).keyspace_defaults(defaults);
    let options = options.clock(clock).vfs(Arc::new(MemVfs::new()));
    let db = Db::open("db", options).unwrap();
    db.put("key", "value").unwrap();
    let due_us = db.inner().state.env.database_time_us() + 500;
    *policy.due_us.lock() = due_us;
    policy.picks.lock().clear();
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let picks = policy.picks.lock();
    assert!(picks[0] < due_us && *picks.last().unwrap() >= due_us, "{due_us}: {picks:?}");
}

/// Opens a database with a due merge of L0 runs and an urgent blob garbage collection.
fn open_with_urgent_blob_gc(vfs: impl Vfs) -> Db {
    let separation = ValueSeparation {
        threshold_bytes: 100,
        space_amplification_max: 1.1,
        ..ValueSeparation::default()
    };
    let defaults = KeyspaceOptions::default()
        .policy("tiering(T=4)".parse::<PolicySpec>().unwrap())
        .value_separation(separation);
    let options = Options::default().background(Background::Inline).keyspace_defaults(defaults);
    let db = Db::open("db", options.vfs(Arc::new(vfs))).unwrap();
    let core = db.inner();
    let (state, tree) = (&core.state, &core.default_tree);
    let set_blocked = |is_blocked| tree.jobs.lock().manual_waiting = usize::from(is_blocked);
    let fill_l0 = |round: u64| {
        for run in 0..5 {
            db.put("overwritten", [7; 1000]).unwrap();
            db.put(format!("kept-{round}-{run}"), [7; 1000]).unwrap();
            db.flush().unwrap();
        }
    };
    set_blocked(true);
    fill_l0(0);
    set_blocked(false);
    // After the merge, half of each blob file is garbage.
    let merge = pick_job(state, tree).unwrap();
    run_job(state, &core.throttle, core.scheduler.workers(), tree, &merge).unwrap();
    set_blocked(true);
    fill_l0(1);
    set_blocked(false);
    db
}

fn is_blob_gc(picked: &PickedJob) -> bool {
    matches!(picked.job.reason, JobReason::BlobGarbage { .. })
}

/// Bug: writes at the hard stop waited until all urgent blob garbage collections had ended.
#[test]
fn urgent_blob_gc_waits_for_policy_job_while_writes_are_stopped() {
    let db = open_with_urgent_blob_gc(MemVfs::new());
    let (state, tree) = (&db.inner().state, &db.inner().default_tree);
    for (is_stopped, expects_gc) in [(false, true), (true, false)] {
        tree.set_backpressure(0, is_stopped);
        let picked = pick_job(state, tree).unwrap();
        assert_eq!(is_blob_gc(&picked), expects_gc, "{}", picked.job);
        tree.jobs.lock().running.finish(&picked.job);
    }
    tree.set_backpressure(0, false);
}

/// Makes all calls that create a blob file fail.
fn fail_blob_files(faults: &FaultVfs) {
    let rule = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Create]);
    faults.add_rule(rule.path_contains(".blob").nth(0).from_then_on());
}

/// Bug: no job of the policy ran while an urgent blob garbage collection was due and failed, until writes stopped.
///
/// Bug: each successful job of the policy reset the pause of the failed collection. After each of these jobs, the
/// collection failed again, a write returned its error, and the next job of the policy waited for the pause.
#[test]
fn failed_urgent_blob_gc_neither_delays_policy_jobs_nor_fails_further_writes() {
    let faults = FaultVfs::new(Arc::new(MemVfs::new()), 0);
    let db = open_with_urgent_blob_gc(faults.clone());
    let core = db.inner();
    let (state, tree) = (&core.state, &core.default_tree);
    let compaction = || db.metrics().keyspaces["default"].compaction.clone();
    fail_blob_files(&faults);
    let (mut pauses_ms, mut failed_puts) = (Vec::new(), 0);
    for failures in 1..=3 {
        let merges_before = compaction().jobs;
        // Flushes of small values create no blob file. The new runs make a job of the policy due.
        for _ in 0..5 {
            let put = || db.put("small", "value");
            if let Err(error) = put() {
                assert!(matches!(error, Error::Background { .. }), "{error}");
                failed_puts += 1;
                put().unwrap();
            }
            db.flush().unwrap();
        }
        assert_eq!(compaction().failures, failures);
        assert!(compaction().jobs > merges_before);
        let jobs = tree.jobs.lock();
        assert_eq!(jobs.retry_at_us, 0);
        let pause_us = jobs.blob_gc_retry.retry_at_us - state.env.now_us();
        assert_eq!(jobs.next_retry_us(), Some(jobs.blob_gc_retry.retry_at_us));
        drop(jobs);
        pauses_ms.push(pause_us.div_ceil(1_000));
        state.env.advance_us(pause_us);
    }
    assert_eq!((pauses_ms, failed_puts), (vec![100, 200, 400], 1));
    faults.clear_rules();
    // Bug: a collection changed the drain rate of merges, which determines the admitted write rate.
    let debt = Debt { pending_bytes: 1_000_000, headroom_bytes: 1_000_000 };
    let admitted_write_rate = || core.throttle.admitted_write_rate(debt);
    let before = admitted_write_rate();
    let collection = pick_job(state, tree).unwrap();
    assert!(is_blob_gc(&collection), "{}", collection.job);
    run_job(state, &core.throttle, core.scheduler.workers(), tree, &collection).unwrap();
    assert_eq!(admitted_write_rate(), before);
    assert!(tree.jobs.lock().next_retry_us().is_none() && state.failing_trees().is_empty());
}

#[test]
fn failure_of_blob_gc_that_is_no_longer_due_is_cleared() {
    let faults = FaultVfs::new(Arc::new(MemVfs::new()), 0);
    let db = open_with_urgent_blob_gc(faults.clone());
    fail_blob_files(&faults);
    db.put("small", "value").unwrap();
    db.flush().unwrap();
    // The collection is due again after a pause.
    assert!(db.wait_idle().is_err() && !db.health().is_good());
    db.default_keyspace().clear().unwrap_err();
    db.default_keyspace().clear().unwrap();
    db.flush().unwrap();
    db.wait_idle().unwrap();
    assert!(db.health().is_good() && db.inner().state.failing_trees().is_empty());
}

fn blob_files_with_garbage(tree: &Tree) -> Vec<FileId> {
    let version = Arc::clone(&tree.pin_super_version().version);
    let has_garbage = |used: &&BlobUsage| used.bytes < used.file.record().record_bytes();
    let files = version.blobs().files().filter(has_garbage);
    files.map(|used| used.file.record().id).collect()
}

fn quarantine_blob_files(state: &DbState, tree: &Tree, files: &[FileId]) {
    for id in files {
        let name = FileName::Blob(id.0);
        let path = name.in_dir(&state.dir);
        let cause = Error::io("read", &path, std::io::Error::other("unreadable"));
        let now_us = state.env.now_us();
        assert!(tree.jobs.lock().quarantine.add(name, path, Arc::new(cause), now_us));
    }
}

/// Bug: the garbage of quarantined blob files, which no job can remove, made collections of other files urgent.
#[test]
fn quarantined_blob_files_do_not_make_blob_gc_urgent() {
    let db = open_with_urgent_blob_gc(MemVfs::new());
    let (state, tree) = (&db.inner().state, &db.inner().default_tree);
    let files = blob_files_with_garbage(tree);
    assert_eq!(files.len(), 4);
    // One file with garbage stays readable. Without the other three, the value log is below its limit.
    for (quarantined, expects_gc) in [(0, true), (3, false)] {
        quarantine_blob_files(state, tree, &files[..quarantined]);
        let picked = pick_job(state, tree).unwrap();
        assert_eq!(is_blob_gc(&picked), expects_gc, "{}", picked.job);
        tree.jobs.lock().running.finish(&picked.job);
    }
}

/// Bug: an input with an unknown time was ignored, and the outputs got the time of a newer tombstone.
#[test]
fn oldest_tombstone_time_is_unknown_if_time_of_one_input_is_unknown() {
    let oldest_us = |files: &[(u64, Option<u64>)]| {
        let new_run = |(id, &(tombstones, oldest_tombstone_us)): (u64, &(u64, Option<u64>))| {
            let meta = TableMeta::new(FileId(id), KeyRange::new("a", "z"));
            let meta = TableMeta { tombstones, oldest_tombstone_us, ..meta };
            Arc::new(SortedRun { id: RunId(id), files: vec![Arc::new(meta)].into() })
        };
        let runs: Vec<_> = (0..).zip(files).map(new_run).collect();
        let job = Job {
            kind: JobKind::Merge,
            inputs: runs.iter().map(|run| JobInput::from_run(L0, run)).collect(),
            target: OutputTarget::oldest_run(L0),
            split: SplitRule::by_size(1),
            reason: JobReason::Manual,
        };
        let levels = vec![Arc::new(LevelShape { runs, cursor: None })];
        let shape = TreeShape { levels, ..TreeShape::default() };
        let reserved = PickedJob::reserve_inputs(&mut TreeJobState::default(), job, shape, None);
        reserved.oldest_tombstone_us()
    };
    assert_eq!(oldest_us(&[(0, None), (1, Some(7)), (2, Some(5))]), Some(5));
    assert_eq!(oldest_us(&[(0, None), (1, Some(7)), (2, None)]), None);
    assert_eq!(oldest_us(&[(0, None)]), None);
}

/// Bug: after the garbage of a quarantined blob file had reached its maximum age, collections of all other files
/// preceded the jobs of the policy.
#[test]
fn overdue_garbage_of_quarantined_blob_files_does_not_make_blob_gc_urgent() {
    let db = open_with_urgent_blob_gc(MemVfs::new());
    let core = db.inner();
    let (state, tree) = (&core.state, &core.default_tree);
    let set_blocked = |is_blocked| tree.jobs.lock().manual_waiting = usize::from(is_blocked);
    // The value log is below its limit. The age of garbage that exists now is unknown, so this garbage is overdue.
    let separation = ValueSeparation {
        threshold_bytes: 100,
        garbage_ratio: 0.3,
        space_amplification_max: 100.0,
        scan_read_bytes: 0,
        ..ValueSeparation::default()
    };
    let change = |options: KeyspaceOptions| {
        options.value_separation(separation).delete_persistence(Duration::from_secs(86_400))
    };
    set_blocked(true);
    db.default_keyspace().set_options(change).unwrap();
    set_blocked(false);
    let collection = pick_job(state, tree).unwrap();
    assert!(is_blob_gc(&collection), "{}", collection.job);
    tree.jobs.lock().running.finish(&collection.job);
    let overdue = blob_files_with_garbage(tree);
    quarantine_blob_files(state, tree, &overdue);
    // The merge creates garbage in other blob files. This garbage is not overdue.
    let merge = pick_job(state, tree).unwrap();
    assert!(!is_blob_gc(&merge), "{}", merge.job);
    run_job(state, &core.throttle, core.scheduler.workers(), tree, &merge).unwrap();
    assert!(blob_files_with_garbage(tree).len() > overdue.len());
    set_blocked(true);
    for run in 0..5 {
        db.put(format!("small-{run}"), "value").unwrap();
        db.flush().unwrap();
    }
    set_blocked(false);
    assert_eq!(tree.jobs.lock().quarantine.blobs(), overdue.into_iter().collect());
    let picked = pick_job(state, tree).unwrap();
    assert!(!is_blob_gc(&picked), "{}", picked.job);
}

/// Policy that drops the oldest file of L0, with the reason of delete-only compactions.
#[derive(Debug, Default)]
pub(crate) struct DroppingPolicy {
    /// Number of further picks that return a job.
    pub(crate) picks_left: AtomicU64,
    /// Number of L0 runs at which writes stop. `None` if they never stop.
    pub(crate) stop_runs: Option<usize>,
}

impl CompactionPolicy for DroppingPolicy {
    fn name(&self) -> &str {
        "dropping"
    }

    fn pick(&self, shape: &TreeShape, busy: &RunningJobs) -> Option<Job> {
        let oldest = shape.runs_of(L0).last()?;
        if busy.is_any_file_busy(oldest.files.iter().map(|file| file.id)) {
            return None;
        }
        let less = |left: u64| left.checked_sub(1);
        self.picks_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?;
        Some(Job {
            kind: JobKind::Drop,
            inputs: vec![JobInput::from_run(L0, oldest)],
            target: OutputTarget::oldest_run(L0),
            split: SplitRule::by_size(1),
            reason: JobReason::RangeDeleted,
        })
    }

    fn debt(&self, _: &TreeShape, _: &RunningJobs) -> Debt {
        Debt::default()
    }

    fn must_stop_writes(&self, shape: &TreeShape) -> bool {
        self.stop_runs.is_some_and(|stop_runs| shape.runs_of(L0).len() >= stop_runs)
    }

    fn can_drop_data(&self) -> bool {
        true
    }
}

/// Bug: the reason of a drop job decided whether snapshots keep the dropped entries.
#[test]
fn drop_job_of_policy_with_reason_of_delete_only_compaction_respects_snapshots() {
    let policy = Arc::new(DroppingPolicy::default());
    let defaults = KeyspaceOptions::default().policy(Arc::clone(&policy));
    let options = Options::default().background(Background::Inline).keyspace_defaults(defaults);
    let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
    let pick_once = || {
        policy.picks_left.store(1, Ordering::Relaxed);
        db.put("other", "value").unwrap();
        db.flush().unwrap();
        assert_eq!(policy.picks_left.load(Ordering::Relaxed), 0);
    };
    db.put("key", "value").unwrap();
    db.flush().unwrap();
    let snapshot = db.snapshot();
    pick_once();
    let found = snapshot.get(&db.default_keyspace(), "key").unwrap();
    assert_eq!(found.as_deref(), Some(&b"value"[..]));
    drop(snapshot);
    pick_once();
    assert_eq!(db.get("key").unwrap(), None);
}

/// Bug: a drop that a snapshot prevented was picked again at once, without end.
#[test]
fn drop_job_of_policy_waits_for_release_of_snapshot() {
    let policy = Arc::new(DroppingPolicy::default());
    let defaults = KeyspaceOptions::default().policy(Arc::clone(&policy));
    let options = Options::default().background(Background::Inline).keyspace_defaults(defaults);
    let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
    db.put("key", "value").unwrap();
    db.flush().unwrap();
    let snapshot = db.snapshot();
    policy.picks_left.store(100, Ordering::Relaxed);
    db.put("other", "value").unwrap();
    db.flush().unwrap();
    let picks = 100 - policy.picks_left.load(Ordering::Relaxed);
    assert!((1..10).contains(&picks), "{picks} picks");
    let found = snapshot.get(&db.default_keyspace(), "key").unwrap();
    assert_eq!(found.as_deref(), Some(&b"value"[..]));
    drop(snapshot);
    db.wait_idle().unwrap();
    assert_eq!(db.get("key").unwrap(), None);
}

/// Bug: writes failed with `PolicyStalled` while a snapshot prevented the drop for which they had to wait.
#[test]
fn stopped_write_waits_for_release_of_snapshot_that_prevents_drop_job() {
    for seed in 0..4 {
        let policy = Arc::new(DroppingPolicy { stop_runs: Some(2), ..DroppingPolicy::default() });
        let defaults = KeyspaceOptions::default().policy(Arc::clone(&policy));
        let background = Background::Stepped { seed, workers: 1 };
        let options = Options::default().background(background).keyspace_defaults(defaults);
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        db.put("key", "value").unwrap();
        db.flush().unwrap();
        let snapshot = db.snapshot();
        policy.picks_left.store(1_000, Ordering::Relaxed);
        db.put("other", "value").unwrap();
        db.flush().unwrap();
        let env = &db.inner().state.env;
        let is_done = Arc::new(AtomicU64::new(0));
        let writer = {
            let (db, is_done) = (db.clone(), Arc::clone(&is_done));
            let write = move || {
                db.put("new", "value").unwrap();
                is_done.store(1, Ordering::Relaxed);
            };
            env.spawn("writer", write).unwrap()
        };
        env.pause_us(10_000_000);
        assert_eq!(is_done.load(Ordering::Relaxed), 0, "seed {seed}");
        let found = snapshot.get(&db.default_keyspace(), "key").unwrap();
        assert_eq!(found.as_deref(), Some(&b"value"[..]));
        db.wait_idle().unwrap();
        drop(snapshot);
        env.join(writer).unwrap();
        assert_eq!(db.get("key").unwrap(), None);
        assert_eq!(db.get("new").unwrap().as_deref(), Some(&b"value"[..]));
    }
}

fn quarantine_oldest_table(state: &DbState, tree: &Tree) {
    let view = tree.pin_super_version();
    let oldest = view.version.runs().last().unwrap();
    let error = std::io::Error::other("unreadable");
    let error = Error::io("read", oldest.tables()[0].path(), error);
    assert!(quarantine::quarantine_file(state, tree, &error));
}

/// Bug: while a table was quarantined, the error of an earlier job stayed although no job was needed any more. Idle threads
/// checked the tree every 10 ms.
#[test]
fn failure_of_job_that_is_no_longer_needed_is_cleared_during_quarantine() {
    let options = Options::default().background(Background::Inline);
    let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
    let core = db.inner();
    let (state, tree) = (&core.state, &core.default_tree);
    db.put("key", "value").unwrap();
    db.flush().unwrap();
    quarantine_oldest_table(state, tree);
    let error = std::io::Error::other("no space");
    record_failure(state, tree, &Error::io("append to", std::path::Path::new("9.sst"), error));
    state.env.advance_us(200_000);
    assert!(pick_job(state, tree).is_none());
    let jobs = tree.jobs.lock();
    assert!(jobs.last_error.is_none());
    assert_eq!(jobs.next_retry_us(), jobs.quarantine.next_read_us());
}

/// Bug: writes failed with `PolicyStalled` while a snapshot prevented the drop of a quarantined file. After the release of the snapshot,
/// the file was not dropped until the next write.
#[test]
fn drop_job_of_quarantined_file_waits_for_release_of_snapshot() {
    let policy = Arc::new(DroppingPolicy { stop_runs: Some(2), ..DroppingPolicy::default() });
    let defaults = KeyspaceOptions::default().policy(Arc::clone(&policy));
    let options = Options::default().background(Background::Inline).keyspace_defaults(defaults);
    // The file is not read again, because the time does not advance.
    let options = options.clock(ManualClock::new(1_800_000_000_000_000));
    let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
    let core = db.inner();
    let (state, tree) = (&core.state, &core.default_tree);
    db.put("key", "value").unwrap();
    db.flush().unwrap();
    quarantine_oldest_table(state, tree);
    let snapshot = db.snapshot();
    policy.picks_left.store(1_000, Ordering::Relaxed);
    // The run with the quarantined file does not count for the hard stop.
    for number in 0..2 {
        db.put("other", number.to_string()).unwrap();
        db.flush().unwrap();
    }
    assert!(tree.is_write_stopped());
    db.put("new", "value").unwrap();
    let found = snapshot.get(&db.default_keyspace(), "key").unwrap();
    assert_eq!(found.as_deref(), Some(&b"value"[..]));
    drop(snapshot);
    db.wait_idle().unwrap();
    assert_eq!(db.get("key").unwrap(), None);
    assert!(db.health().is_good(), "{:?}", db.health());
}

/// Bug: a file was dropped after `set_policy` had replaced the policy that drops data.
#[test]
fn drop_job_of_replaced_policy_does_not_run() {
    let replacements: [Policy; 2] =
        [PolicySpec::default().into(), Arc::new(DroppingPolicy::default()).into()];
    for replacement in replacements {
        let policy = Arc::new(DroppingPolicy::default());
        let defaults = KeyspaceOptions::default().policy(Arc::clone(&policy));
        let options = Options::default().background(Background::Inline);
        let options = options.keyspace_defaults(defaults).vfs(Arc::new(MemVfs::new()));
        let db = Db::open("db", options).unwrap();
        let core = db.inner();
        let (state, tree) = (&core.state, &core.default_tree);
        db.put("key", "value").unwrap();
        db.flush().unwrap();
        policy.picks_left.store(1, Ordering::Relaxed);
        let picked = pick_job(state, tree).unwrap();
        assert_eq!(picked.job.kind, JobKind::Drop);
        db.default_keyspace().set_policy(replacement).unwrap();
        run_job(state, &core.throttle, core.scheduler.workers(), tree, &picked).unwrap();
        assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"value"[..]));
    }
}

/// Bug: a drop that had begun was installed after `set_policy` had replaced its policy.
#[test]
fn drop_job_that_has_begun_is_not_installed_after_set_policy() {
    let mut begun = 0;
    for seed in 0..50 {
        let policy = Arc::new(DroppingPolicy::default());
        let defaults = KeyspaceOptions::default().policy(Arc::clone(&policy));
        let background = Background::Stepped { seed, workers: 1 };
        let options = Options::default().background(background).keyspace_defaults(defaults);
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        let tree = &db.inner().default_tree;
        // A lookup would let other threads run.
        let count_runs = || tree.super_version().version.shape().runs_of(L0).len();
        db.put("key", "value").unwrap();
        db.flush().unwrap();
        policy.picks_left.store(1, Ordering::Relaxed);
        db.put("other", "value").unwrap();
        db.flush().unwrap();
        db.default_keyspace().set_policy(Arc::new(DroppingPolicy::default())).unwrap();
        let is_picked = policy.picks_left.load(Ordering::Relaxed) == 0;
        let runs = count_runs();
        begun += u64::from(is_picked && runs == 2);
        db.wait_idle().unwrap();
        assert_eq!(count_runs(), runs, "seed {seed}");
    }
    assert!(begun > 0, "no drop was running during set_policy");
}

/// Opens a database with small memtables and tables.
fn open_small() -> Db {
    let small =
        KeyspaceOptions::default().memtable_bytes(4 << 10).table_bytes(4 << 10).block_bytes(256);
    let options = Options::default().background(Background::Inline).keyspace_defaults(small);
    Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap()
}

/// Bug: no job made L0 smaller while a manual compaction waited for another job, and writes stopped.
#[test]
fn manual_compaction_that_waits_does_not_stop_writes() {
    let db = open_small();
    let (core, tree) = (db.inner(), &db.inner().default_tree);
    let key = |number: u64| (number * 7919 % 5_000).to_be_bytes();
    tree.jobs.lock().manual_waiting = 1;
    for number in 0..5_000 {
        db.put(key(number), number.to_be_bytes()).unwrap();
        assert!(!tree.is_write_stopped(), "{number}");
    }
    let shape = tree.shape(core.state.env.database_time_us(), &core.state.sequence);
    assert!(shape.levels.iter().skip(1).all(|level| level.runs.is_empty()), "{shape:?}");
    tree.jobs.lock().manual_waiting = 0;
    core.state.work.push(WorkKind::Compaction, tree.id);
    db.wait_idle().unwrap();
    for number in 0..5_000 {
        assert_eq!(db.get(key(number)).unwrap().unwrap(), number.to_be_bytes());
    }
}

/// Bug: no job made L0 smaller during a manual compaction with runs of L0, and the bytes of the manual compaction
/// counted as debt. Writes were throttled to the minimum rate, and then stopped until its end.
#[test]
fn manual_compaction_neither_throttles_nor_stops_writes() {
    let db = open_small();
    let core = db.inner();
    let (state, tree) = (&core.state, &core.default_tree);
    let put = |number: u64| {
        db.put((number * 7919 % 5_000).to_be_bytes(), [number.to_be_bytes(); 12].as_flattened())
    };
    (0..2_000).for_each(|number| put(number).unwrap());
    tree.jobs.lock().manual_waiting = 1;
    db.flush().unwrap();
    let manual = {
        let mut jobs = tree.jobs.lock();
        jobs.manual_waiting = 0;
        let shape = tree.shape(state.env.database_time_us(), &state.sequence);
        let all = (Bound::Unbounded, Bound::Unbounded);
        let plan = plan_manual(&shape, &jobs.running, &all, false).unwrap();
        let ManualPlan::Run(job) = plan else { panic!("{plan:?}") };
        assert_eq!(job.source_level(), Some(L0), "{job}");
        PickedJob::reserve_inputs(&mut jobs, *job, shape, None)
    };
    for number in 2_000..7_000 {
        put(number).unwrap();
        assert!(!tree.is_write_stopped(), "{number}");
        assert_eq!(tree.admitted_write_rate(), None, "{number}");
    }
    run_job(state, &core.throttle, core.scheduler.workers(), tree, &manual).unwrap();
    state.work.push(WorkKind::Compaction, tree.id);
    db.wait_idle().unwrap();
    for number in 2_000..7_000u64 {
        let key = (number * 7919 % 5_000).to_be_bytes();
        let value = db.get(key).unwrap().unwrap();
        assert_eq!(&*value, [number.to_be_bytes(); 12].as_flattened());
    }
}

/// Bug: the number of releases was read after the pick. A release during the pick then queued no further pick, and
/// `wait_idle` returned although a job was due.
#[test]
fn snapshot_release_during_pick_causes_another_pick() {
    let policy = Arc::new(ReleasingPolicy::default());
    let defaults = KeyspaceOptions::default().policy(Arc::clone(&policy));
    let options = Options::default().background(Background::Inline).keyspace_defaults(defaults);
    let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
    db.put("key", "value").unwrap();
    let snapshot = db.snapshot();
    policy.picks.lock().clear();
    *policy.snapshot.lock() = Some(snapshot);
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let picks = policy.picks.lock();
    assert_eq!((picks.first(), picks.last()), (Some(&true), Some(&false)), "{picks:?}");
    // Bug: the state was never reset, so idle compaction threads woke up each second.
    assert!(!db.inner().default_tree.has_files_held_by_snapshots());
}
