//! Manual compaction of a key range.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lsmx_base::sync::Arc;

use crate::db::inner::DbInner;
use crate::env::WaitCause;
use crate::error::{Error, Result};
use crate::jobs::compaction::manual::{KeyBounds, ManualPlan, plan_manual};
use crate::jobs::compaction::pick::PickedJob;
use crate::jobs::compaction::run::run_job;
use crate::jobs::{obsolete_files, quarantine};
use crate::state::work_queue::WorkKind;
use crate::tree::Tree;
use crate::write::backpressure;

/// Merges all entries of a key range into one sorted run in the deepest level. Does nothing but a flush if the policy
/// drops data by its age, because the outputs would be new files.
pub(crate) fn compact_range(
    inner: &DbInner,
    tree: &Arc<Tree>,
    bounds: &KeyBounds,
    deadline_us: Option<u64>,
) -> Result<()> {
    inner.check_writable()?;
    tree.check_live()?;
    inner.begin_operation();
    let state = &inner.state;
    // Reads quarantined files again at once, without the pause between background retries.
    quarantine::recheck_all_files(state, tree);
    inner.flush_trees(&[Arc::clone(tree)], deadline_us)?;
    if tree.settings().policy.can_drop_data() {
        return Ok(());
    }
    let picked = {
        let _waiting = WaitingManual::new(tree);
        wait_for_files(inner, tree, bounds, deadline_us)
    };
    // The policy may now use the other files.
    state.work.push(WorkKind::Compaction, tree.id);
    let compacted = match picked {
        Ok(Some(picked)) => {
            let workers = inner.scheduler.workers();
            let run = || run_job(state, &inner.throttle, workers, tree, &picked);
            // A panic makes the database read-only. Otherwise other threads would wait for the job forever.
            let result = catch_unwind(AssertUnwindSafe(run))
                .unwrap_or_else(|panic| Err(state.make_read_only(Error::from_panic(&*panic))));
            // A failure here has made the database read-only.
            let _ = obsolete_files::rewrite_manifest(state);
            backpressure::refresh_write_limits(state, &inner.throttle, tree);
            state.work.end_work(WorkKind::Compaction);
            result
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    state.work.push(WorkKind::Compaction, tree.id);
    inner.scheduler.run_inline();
    compacted
}

/// A manual compaction that waits for its files. While it exists, the policy starts no jobs.
struct WaitingManual<'a>(&'a Tree);

impl WaitingManual<'_> {
    fn new(tree: &Tree) -> WaitingManual<'_> {
        tree.jobs.lock().manual_waiting += 1;
        WaitingManual(tree)
    }
}

impl Drop for WaitingManual<'_> {
    fn drop(&mut self) {
        self.0.jobs.lock().manual_waiting -= 1;
    }
}

/// Waits until the required job can run, and reserves its files. Returns `None` if no job is required.
fn wait_for_files(
    inner: &DbInner,
    tree: &Tree,
    bounds: &KeyBounds,
    deadline_us: Option<u64>,
) -> Result<Option<PickedJob>> {
    let state = &inner.state;
    let mut reserved = None;
    let cause = WaitCause::Compaction;
    state.env.wait(cause, &state.progress, deadline_us, &mut || {
        reserved = try_reserve_files(inner, tree, bounds, deadline_us).transpose();
        reserved.is_some()
    });
    reserved.unwrap_or(Err(Error::Deadline { cause: cause.as_str() }))
}

/// Reserves the files of the required job. Returns `None` while another job uses them, and `Some(None)` if no job is
/// required.
fn try_reserve_files(
    inner: &DbInner,
    tree: &Tree,
    bounds: &KeyBounds,
    deadline_us: Option<u64>,
) -> Result<Option<Option<PickedJob>>> {
    let state = &inner.state;
    state.error_state.check_writable()?;
    tree.check_live()?;
    if state.is_closing() {
        return Err(Error::Closed);
    }
    // The lock is held until the files are reserved, so that no other job can reserve them in between.
    let mut jobs = tree.jobs.lock();
    let shape = tree.shape(state.env.database_time_us(), &state.sequence);
    let settings = tree.settings();
    if settings.policy.can_drop_data() {
        // The policy was set after the call began.
        return Ok(Some(None));
    }
    let has_filter = settings.options.compaction_filter.is_some();
    match plan_manual(&shape, &jobs.running, bounds, has_filter)? {
        ManualPlan::UpToDate => Ok(Some(None)),
        ManualPlan::Run(_) if jobs.is_ingesting => Ok(None),
        ManualPlan::Run(job) if state.work.begin_work(WorkKind::Compaction) => {
            Ok(Some(Some(PickedJob::reserve_inputs(&mut jobs, *job, shape, deadline_us))))
        }
        ManualPlan::Run(_) => Ok(None),
        ManualPlan::Wait(job) => {
            match quarantine::find_quarantined_input(tree, &jobs, job.input_files()) {
                Some((_, error)) => Err(error),
                None => Ok(None),
            }
        }
    }
}
