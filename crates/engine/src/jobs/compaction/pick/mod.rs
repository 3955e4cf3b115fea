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
                        clear_last_failure(state, tree, &mut jobs, is_gc_due);
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
    let (job, mut is_held, waits) = Error::catch_user_panic(code, pick)?;
    // The search for a delete-only job has already updated the state of a tree with range tombstones.
    let is_done = job.is_none() && !tree.super_version().version.has_range_tombstones();
    if waits || is_done {
        tree.set_files_held_by_snapshots(waits, released);
    }
    let Some(job) = job else {
        let pick_around = || {
            let job = pick_around_block(tree, &**policy, jobs, shape, &mut is_held);
            // A drop that a snapshot prevents runs after the release of the snapshot. Stopped writes wait for it.
            if job.is_none() && !is_held && jobs.blocked.is_none() {
                jobs.blocked = find_stall(tree, &**policy, jobs, shape);
            }
            job
        };
        let job = Error::catch_user_panic(code, pick_around)?;
        if is_held {
            tree.set_files_held_by_snapshots(true, released);
        }
        return Ok(job);
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
/// otherwise, if this job can run. If it cannot run, returns a merge of other L0 runs. Sets `is_held` if the job is a drop
/// that a snapshot prevents.
fn pick_around_block(
    tree: &Tree,
    policy: &dyn CompactionPolicy,
    jobs: &mut TreeJobState,
    shape: &TreeShape,
    is_held: &mut bool,
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
        let may_run = wanted.kind == JobKind::Move || policy.can_drop_data();
        let prevented = may_run && is_drop_held(&wanted, shape);
        *is_held |= prevented;
        let admitted = running.admit_job(wanted, shape).filter(|_| may_run && !prevented);
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
pub(crate) mod tests;
