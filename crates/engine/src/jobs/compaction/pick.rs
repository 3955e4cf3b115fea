//! Picks the next compaction job of a tree, and reserves its inputs.

use std::collections::{BTreeSet, HashSet};

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::Arc;
use lsmx_compaction::{
    CompactionPolicy, FileId, Job, JobKind, JobReason, Level, TableMeta, TreeShape,
};

use crate::callback::{self, CallbackContext};
use crate::error::{Error, JobRule, Result, UserCode};
use crate::event::{Decision, Event};
use crate::jobs::compaction::delete_only::pick_delete_only;
use crate::jobs::compaction::l0_bypass::pick_l0_merge;
use crate::jobs::compaction::retry::{
    RETRY_US_MAX, clear_last_failure, defer_error, record_failure,
};
use crate::jobs::quarantine;
use crate::jobs::value_log::garbage_collection::{self, BlobGcJob};
use crate::state::DbState;
use crate::tree::version::Version;
use crate::tree::{CompactionBlock, Tree, TreeJobState};

const L0: Level = Level(0);

/// A job whose inputs are reserved, and the shape for which it was picked.
#[derive(Clone, Debug)]
pub(crate) struct PickedJob {
    pub(crate) job: Job,
    pub(crate) shape: TreeShape,
    /// Deadline of a manual compaction in microseconds. `None` for other jobs.
    pub(crate) deadline_us: Option<u64>,
    /// Blob files whose values the job moves to other files.
    pub(crate) victims: Arc<BTreeSet<FileId>>,
    /// The policy that picked a drop. Readers may see entries of the dropped files. `None` for other jobs.
    pub(crate) dropping_policy: Option<Arc<dyn CompactionPolicy>>,
}

impl PickedJob {
    /// Reserves the inputs of a job. No running job may use these inputs or conflict with the job.
    pub(crate) fn reserve_inputs(
        jobs: &mut TreeJobState,
        job: Job,
        shape: TreeShape,
        deadline_us: Option<u64>,
    ) -> PickedJob {
        let (victims, dropping_policy) = (Arc::default(), None);
        let picked = PickedJob { job, shape, deadline_us, victims, dropping_policy };
        let write_bytes = match picked.job.kind {
            JobKind::Merge | JobKind::Rewrite => picked.input_bytes(),
            JobKind::Move | JobKind::Drop => 0,
        };
        jobs.running.start(picked.job.clone(), write_bytes);
        picked
    }

    /// Returns the input files of the job.
    pub(crate) fn input_files(&self) -> impl Iterator<Item = &Arc<TableMeta>> {
        self.job.inputs.iter().flat_map(|input| {
            let wanted: HashSet<_> = input.files.iter().copied().collect();
            let run = self.shape.run(input.level, input.run);
            let files = run.into_iter().flat_map(|run| &run.files);
            files.filter(move |file| wanted.contains(&file.id))
        })
    }

    /// Returns the total size of all inputs in bytes.
    pub(crate) fn input_bytes(&self) -> u64 {
        self.input_files().map(|file| file.bytes).sum()
    }

    /// Returns the write time of the oldest tombstone among the inputs, in microseconds. Returns `None` if the inputs
    /// have no tombstones, or if the time of an input with tombstones is unknown.
    pub(crate) fn oldest_tombstone_us(&self) -> Option<u64> {
        let with_tombstones = self.input_files().filter(|file| file.tombstones > 0);
        // `None` is smaller than any time.
        with_tombstones.map(|file| file.oldest_tombstone_us).min().flatten()
    }

    /// Returns whether the inputs contain tombstones.
    pub(crate) fn has_tombstones(&self) -> bool {
        self.input_files().any(|file| file.tombstones > 0)
    }

    /// Returns the total size in bytes of the inputs that are not in the target level.
    pub(crate) fn incoming_bytes(&self) -> u64 {
        let inputs = self.job.inputs.iter();
        let own: HashSet<_> = inputs
            .filter(|input| input.level == self.job.target.level)
            .flat_map(|input| input.files.iter().copied())
            .collect();
        self.input_files().filter(|file| !own.contains(&file.id)).map(|file| file.bytes).sum()
    }
}

/// Picks the next job of a tree and reserves its inputs.
///
/// Jobs are picked in this order:
///
/// 1. Delete-only compactions.
/// 2. Blob garbage collections, if the value log exceeds its space limit or garbage has reached its maximum age, unless
///    writes are stopped. The collections may be due without end, and writes must not wait for all of them.
/// 3. Jobs of the policy.
/// 4. Other blob garbage collections.
///
/// After a failed blob garbage collection, none is picked during a pause.
pub(crate) fn pick_job(state: &DbState, tree: &Tree) -> Option<PickedJob> {
    if state.error_state.check_writable().is_err() || state.is_closing() {
        return None;
    }
    let now_us = state.env.now_us();
    // A tree that is blocked is queued when the block ends, so it needs no check in the meantime.
    let blocked = |jobs: &mut TreeJobState| {
        jobs.picked_at_us = state.env.database_time_us();
        now_us < jobs.retry_at_us || jobs.is_ingesting
    };
    let is_manual_waiting = {
        let mut jobs = tree.jobs.lock();
        if blocked(&mut jobs) || tree.is_dropped() {
            return None;
        }
        jobs.manual_waiting > 0
    };
    if is_manual_waiting {
        return pick_beside_waiting_manual(state, tree);
    }
    let version = Arc::clone(&tree.pin_super_version().version);
    let delete_only = version
        .has_range_tombstones()
        .then(|| find_delete_only_job(state, tree, &version))
        .flatten();
    let mut jobs = tree.jobs.lock();
    if blocked(&mut jobs) || jobs.manual_waiting > 0 {
        return None;
    }
    // The counter must be read before the snapshots. Otherwise, a release in between would be lost.
    let released = state.sequence.snapshot_release_count();
    let shape = tree.shape(jobs.picked_at_us, &state.sequence);
    // The search for these files used an older version. If a file no longer exists, the job is rejected. The job may
    // drop quarantined files, because it does not read its inputs.
    let delete_only =
        delete_only.and_then(|job| jobs.running.without_blocked_files().admit_job(job, &shape));
    let overdue = find_overdue_garbage(tree, &version, &mut jobs, shape.now_us);
    let find_gc = |jobs: &TreeJobState, urgent| {
        find_blob_gc(tree, &version, &shape, (jobs, &overdue), urgent)
    };
    let mut victims = Arc::default();
    let mut take_victims = |found: BlobGcJob| {
        victims = Arc::new(found.victims);
        found.job
    };
    let is_delete_only = delete_only.is_some();
    let is_gc_paused = now_us < jobs.blob_gc_retry.retry_at_us;
    let urgent_gc = |jobs: &TreeJobState| {
        let is_postponed = tree.is_write_stopped() || is_gc_paused;
        if is_postponed { None } else { find_gc(jobs, true) }
    };
    let first = delete_only.or_else(|| urgent_gc(&jobs).map(&mut take_victims));
    let policy = Arc::clone(&tree.settings().policy);
    let job = match first {
        Some(job) => job,
        None => match pick_policy_job(state, tree, &policy, &mut jobs, &shape, released) {
            Ok(Some(job)) => job,
            Ok(None) => {
                let gc = find_gc(&jobs, false);
                let is_gc_due = gc.is_some();
                match gc.filter(|_| !is_gc_paused).map(&mut take_victims) {
                    Some(job) => job,
                    None => {
                        clear_last_failure(state, tree, &mut jobs, &shape, is_gc_due);
                        return None;
                    }
                }
            }
            Err(error) => {
                drop(jobs);
                if error.is_user_panic() {
                    record_failure(state, tree, &error);
                }
                state.report_background_error("compaction", Some(tree), &error);
                defer_error(state, "compaction", tree, &error);
                return None;
            }
        },
    };
    let decision = state.explains.then_some(&policy).and_then(|policy| {
        // If the explanation fails, the job runs without one.
        let explain = || policy.explain(&shape, &jobs.running);
        let explanation = Error::catch_user_panic(
            || UserCode::CompactionPolicy(policy.name().to_owned()),
            explain,
        )
        .ok()?;
        let (keyspace, policy) = (tree.name(), policy.name().to_owned());
        Some(Decision { keyspace, policy, explanation })
    });
    let dropping_policy = (job.kind == JobKind::Drop && !is_delete_only).then_some(policy);
    let reserved = PickedJob::reserve_inputs(&mut jobs, job, shape, None);
    let picked = PickedJob { victims, dropping_policy, ..reserved };
    drop(jobs);
    // The policy does not explain delete-only compactions and blob garbage collections.
    if let Some(decision) = decision.filter(|d| d.explanation.picked.as_ref() == Some(&picked.job))
    {
        state.emit(&Event::Decision(Arc::new(decision)));
    }
    Some(picked)
}

/// Returns the blob files whose garbage has reached its maximum age, and records the ages of new garbage. Returns no
/// files if the keyspace has no delete persistence bound.
fn find_overdue_garbage(
    tree: &Tree,
    version: &Version,
    jobs: &mut TreeJobState,
    now_us: u64,
) -> BTreeSet<FileId> {
    let Some(parts) = tree.delete_persistence() else { return BTreeSet::new() };
    jobs.blob_garbage.update(version.blobs(), now_us);
    if failpoint::is_on(Failpoint::GarbageAgeIgnored) {
        return BTreeSet::new();
    }
    jobs.blob_garbage.files_due(parts.blob_garbage_us(), now_us)
}

/// Returns a job that moves the values of some blob files of `version` to other files. `version` may be outdated.
/// `overdue` contains the files whose garbage has reached its maximum age.
fn find_blob_gc(
    tree: &Tree,
    version: &Version,
    shape: &TreeShape,
    (jobs, overdue): (&TreeJobState, &BTreeSet<FileId>),
    urgent: bool,
) -> Option<BlobGcJob> {
    // Without the options of the application, the bounds are unknown, and the values might be moved to tables.
    if version.blobs().is_empty() || tree.awaits_value_separation() {
        return None;
    }
    let settings = tree.settings();
    // A policy that drops tables by age also frees the values of these tables. A rewrite would reset the age of a
    // table, and the policy would drop the table later.
    if settings.policy.can_drop_data() {
        return None;
    }
    let separation = settings.options.value_separation.unwrap_or_default();
    let excluded = garbage_collection::find_uncollectable_files(version, jobs);
    let overdue = overdue - &excluded;
    let is_urgent = !overdue.is_empty()
        || garbage_collection::is_over_space_limit(version.blobs(), &excluded, &separation);
    if urgent && !is_urgent {
        return None;
    }
    garbage_collection::pick_blob_gc(
        version,
        shape,
        (&jobs.running, &excluded, &overdue),
        (&separation, settings.options.table_target_bytes()),
    )
}

/// Returns the job of `policy`. If a custom policy returns an invalid job, the policy is called again after a pause.
/// `released` is the number of snapshot releases that `shape` considers.
fn pick_policy_job(
    state: &DbState,
    tree: &Tree,
    policy: &Arc<dyn CompactionPolicy>,
    jobs: &mut TreeJobState,
    shape: &TreeShape,
    released: u64,
) -> Result<Option<Job>> {
    jobs.blocked = None;
    let _inside = callback::enter(CallbackContext::CompactionPolicy);
    let pick = || {
        let is_held = |job: &Job| is_drop_held(job, shape) && policy.can_drop_data();
        match policy.pick(shape, &jobs.running) {
            Some(job) if is_held(&job) => (None, true, true),
            Some(job) => (Some(job), false, false),
            None => (None, false, policy.is_waiting_for_snapshots(shape)),
        }
    };
    let code = || UserCode::CompactionPolicy(policy.name().to_owned());
    let (job, is_held, waits) = Error::catch_user_panic(code, pick)?;
    // The search for a delete-only job has already updated the state of a tree with range tombstones.
    let is_done = job.is_none() && !tree.super_version().version.has_range_tombstones();
    if waits || is_done {
        tree.set_files_held_by_snapshots(waits, released);
    }
    let Some(job) = job else {
        let pick_around = || {
            let job = pick_around_block(tree, &**policy, jobs, shape);
            // A drop that a snapshot prevents runs after the release of the snapshot. Stopped writes wait for it.
            if job.is_none() && !is_held && jobs.blocked.is_none() {
                jobs.blocked = find_stall(tree, &**policy, jobs, shape);
            }
            job
        };
        return Error::catch_user_panic(code, pick_around);
    };
    let is_custom = tree.settings().options.custom_policy().is_some();
    let rule = match jobs.running.can_run_job(&job, shape) {
        Ok(true) if job.kind == JobKind::Drop && !policy.can_drop_data() => JobRule::DropsData,
        // Jobs of built-in policies are checked when they are applied, and by tests. This check is only necessary for
        // custom policies.
        Ok(true) if !is_custom && !cfg!(debug_assertions) => return Ok(Some(job)),
        Ok(true) => match shape.check_job(&job) {
            Ok(()) => return Ok(Some(job)),
            Err(broken) => JobRule::Shape(broken),
        },
        Ok(false) => JobRule::Busy,
        Err(broken) => JobRule::Shape(broken),
    };
    debug_assert!(is_custom, "{}: {job}: {rule}", policy.name());
    let (policy, job) = (policy.name().to_owned(), job.to_string());
    let error = Error::PolicyMistake { policy, job, rule: Arc::new(rule) };
    jobs.retry_at_us = state.env.now_us().saturating_add(RETRY_US_MAX);
    jobs.last_error = Some(error.clone());
    state.set_compaction_failing(tree.id, true);
    Err(error)
}

/// Returns whether the job drops a file of which a snapshot sees an entry. If such a job were picked, it would end without
/// an effect, and would be picked again at once.
fn is_drop_held(job: &Job, shape: &TreeShape) -> bool {
    let Some(newest) = shape.newest_snapshot.filter(|_| job.kind == JobKind::Drop) else {
        return false;
    };
    let inputs: HashSet<FileId> = job.input_files().collect();
    shape.files().any(|file| newest >= file.seq_smallest && inputs.contains(&file.id))
}

/// Returns the error for stopped writes if the policy picks no job and no job is running. Without this error, the
/// writes would wait forever.
fn find_stall(
    tree: &Tree,
    policy: &dyn CompactionPolicy,
    jobs: &TreeJobState,
    shape: &TreeShape,
) -> Option<CompactionBlock> {
    let stopped = policy.must_stop_writes(&jobs.quarantine.without_unreadable_runs(shape));
    if !stopped || !jobs.running.jobs.is_empty() {
        return None;
    }
    let error = Error::PolicyStalled {
        keyspace: tree.name(),
        policy: policy.name().to_owned(),
        shape: describe_levels(shape),
    };
    (!failpoint::is_on(Failpoint::StallUnnoticed))
        .then_some(CompactionBlock { error, at_hard_stop: true })
}

/// Describes the number of runs, files and bytes of each level that is not empty.
fn describe_levels(shape: &TreeShape) -> String {
    let levels = (0..).zip(&shape.levels).filter(|(_, level)| !level.runs.is_empty());
    let levels = levels.map(|(number, level): (u32, _)| {
        let (runs, files) = (level.runs.len(), level.files().count());
        format!("L{number} has {runs} runs of {files} files, {} bytes", level.total_bytes())
    });
    levels.collect::<Vec<_>>().join("; ")
}

/// Picks a job while files are quarantined or a manual compaction is running. Returns the job that the policy would pick
/// otherwise, if this job can run. If it cannot run, returns a merge of other L0 runs.
fn pick_around_block(
    tree: &Tree,
    policy: &dyn CompactionPolicy,
    jobs: &mut TreeJobState,
    shape: &TreeShape,
) -> Option<Job> {
    let is_manual = |(job, _): &(Job, u64)| job.reason == JobReason::Manual;
    // A custom policy may use the reason for its own jobs.
    let is_custom = tree.settings().options.custom_policy().is_some();
    let has_manual = !is_custom && jobs.running.jobs.iter().any(is_manual);
    if jobs.quarantine.is_empty() && !has_manual {
        return None;
    }
    let running = jobs.running.without_blocked_files();
    let unblocked = if has_manual { &running.without_manual_jobs() } else { &running };
    let wanted = policy.pick(shape, unblocked).filter(|job| !job.inputs.is_empty())?;
    let stopped = policy.must_stop_writes(&jobs.quarantine.without_unreadable_runs(shape));
    if matches!(wanted.kind, JobKind::Move | JobKind::Drop) {
        let allowed = wanted.kind == JobKind::Move
            || (policy.can_drop_data() && !is_drop_held(&wanted, shape));
        let admitted = running.admit_job(wanted, shape).filter(|_| allowed);
        if admitted.is_some() || !has_manual {
            return admitted;
        }
    } else if let Some((file, error)) =
        quarantine::find_quarantined_input(tree, jobs, wanted.input_files())
    {
        let reason = JobReason::Quarantine { file };
        let merge = pick_l0_merge(shape, &jobs.running, reason, stopped);
        if merge.is_none() && jobs.running.jobs.is_empty() {
            jobs.blocked = Some(CompactionBlock { error, at_hard_stop: stopped });
        }
        return merge;
    } else if let Some(job) = jobs.running.admit_job(wanted, shape) {
        return Some(job);
    }
    let reason = JobReason::RunCount { level: L0, runs: shape.runs_of(L0).len() };
    has_manual.then(|| pick_l0_merge(shape, &jobs.running, reason, stopped)).flatten()
}

/// Picks a merge of L0 runs while a manual compaction waits for its files, which may take hours. Without this merge,
/// writes would stop until then. It is picked only if L0 is half full, so that the manual compaction gets its files from
/// L0 in between.
fn pick_beside_waiting_manual(state: &DbState, tree: &Tree) -> Option<PickedJob> {
    let mut jobs = tree.jobs.lock();
    let settings = tree.settings();
    let is_custom = settings.options.custom_policy().is_some();
    if jobs.is_ingesting || is_custom || settings.policy.can_drop_data() {
        return None;
    }
    let shape = tree.shape(jobs.picked_at_us, &state.sequence);
    let readable = jobs.quarantine.without_unreadable_runs(&shape);
    let stopped = settings.policy.must_stop_writes(&readable);
    let runs = shape.runs_of(L0).len();
    let headroom_bytes = settings.policy.debt(&shape, &jobs.running).headroom_bytes;
    if headroom_bytes > settings.options.memtable_bytes.saturating_mul(len_u64(runs)) {
        return None;
    }
    let reason = JobReason::RunCount { level: L0, runs };
    let merge = pick_l0_merge(&shape, &jobs.running, reason, stopped)?;
    Some(PickedJob::reserve_inputs(&mut jobs, merge, shape, None))
}

/// Returns a job that drops files whose entries no reader can see.
fn find_delete_only_job(state: &DbState, tree: &Tree, version: &Version) -> Option<Job> {
    let released = state.sequence.snapshot_release_count();
    let snapshots = state.sequence.snapshot_seqs();
    let tombstones = match version.range_tombstones() {
        Ok(tombstones) => tombstones?,
        // The error was reported when the file was quarantined.
        Err(error) if quarantine::is_quarantined(tree, &error) => return None,
        // Files that the unreadable range tombstones may cover are checked again later.
        Err(error) => {
            quarantine::quarantine_file(state, tree, &error);
            state.report_background_error("delete-only compaction", Some(tree), &error);
            defer_error(state, "delete-only compaction", tree, &error);
            return None;
        }
    };
    let busy = tree.jobs.lock().running.without_blocked_files();
    let is_busy = |file: &TableMeta| busy.is_file_busy(file.id);
    let pick = pick_delete_only(version.shape(), &tombstones, &snapshots, is_busy);
    tree.set_files_held_by_snapshots(pick.waits_for_snapshot, released);
    pick.job
}

#[cfg(test)]
mod tests {
    use std::ops::Bound;
    use std::time::Duration;

    use lsmx_base::file_name::FileName;
    use lsmx_base::sync::{AtomicU64, Mutex, Ordering};
    use lsmx_compaction::{
        Debt, JobInput, KeyRange, LevelShape, OutputTarget, PolicySpec, RunId, RunningJobs,
        SortedRun, SplitRule,
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
            let reserved =
                PickedJob::reserve_inputs(&mut TreeJobState::default(), job, shape, None);
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
    struct DroppingPolicy {
        /// Number of further picks that return a job.
        picks_left: AtomicU64,
        /// Number of L0 runs at which writes stop. `None` if they never stop.
        stop_runs: Option<usize>,
    }

    impl CompactionPolicy for DroppingPolicy {
        fn name(&self) -> &str {
            "dropping"
        }

        fn pick(&self, shape: &TreeShape, _: &RunningJobs) -> Option<Job> {
            let oldest = shape.runs_of(L0).last()?;
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
            let policy =
                Arc::new(DroppingPolicy { stop_runs: Some(2), ..DroppingPolicy::default() });
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
        let small = KeyspaceOptions::default()
            .memtable_bytes(4 << 10)
            .table_bytes(4 << 10)
            .block_bytes(256);
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
}
