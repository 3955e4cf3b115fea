//! Compaction by hand, on the caller's thread.

use std::ops::{Bound, RangeBounds};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use lsmx_base::sync::Arc;

use crate::db::{DbInner, Keyspace, WaitOptions, check_reentry};
use crate::env::WaitCause;
use crate::error::{Error, Result};
use crate::jobs::compaction::manual::{KeyBounds, ManualPlan, plan_manual};
use crate::jobs::compaction::pick::PickedJob;
use crate::jobs::compaction::run::run_job;
use crate::jobs::{obsolete_files, quarantine};
use crate::state::work_queue::WorkKind;
use crate::tree::Tree;
use crate::write::backpressure;

impl Keyspace {
    /// Brings everything that was written to a range of keys so far into one sorted run in the deepest
    /// level: memtables are flushed, then one job merges all files that overlap the range, with all
    /// that has to go with them. Deleted and overwritten entries that no snapshot sees are gone
    /// afterwards, and tombstones with them. Reads and writes go on meanwhile; files are replaced at
    /// the end, so the range takes its space twice until then. What the policy does with the tree next
    /// is its business.
    ///
    /// # Errors
    /// As [`Keyspace::compact_range_with`], without [`Error::Deadline`].
    pub fn compact_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<()> {
        self.compact_range_with(range, &WaitOptions::default())
    }

    /// [`Keyspace::compact_range`] with a deadline. The job gives up between two blocks when the deadline has
    /// passed; apart from the flush the tree is as before then.
    ///
    /// # Errors
    /// [`Error::Deadline`], [`Error::Closed`], [`Error::KeyspaceDropped`], [`Error::OpenedReadOnly`],
    /// [`Error::ReadOnly`] with the cause; [`Error::Corrupt`] and [`Error::Io`] if an input cannot be
    /// read or an output not be written; [`Error::CompactionBlocked`] if an input is quarantined. The tree is
    /// as before.
    pub fn compact_range_with<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K>,
        options: &WaitOptions,
    ) -> Result<()> {
        check_reentry("compact_range")?;
        let owned = |bound: Bound<&K>| bound.map(|key| Bytes::copy_from_slice(key.as_ref()));
        let bounds = (owned(range.start_bound()), owned(range.end_bound()));
        let (core, tree) = (self.inner(), Arc::clone(self.tree()));
        let deadline_us = core.committer.deadline_us(options.deadline);
        let work = move |core: &DbInner| core.compact_range(&tree, &bounds, deadline_us);
        core.run_with_deadline(WaitCause::Compaction, deadline_us, work)
    }
}

impl DbInner {
    fn compact_range(
        &self,
        tree: &Arc<Tree>,
        bounds: &KeyBounds,
        deadline_us: Option<u64>,
    ) -> Result<()> {
        self.check_writable()?;
        tree.check_live()?;
        self.begin_operation();
        let store = &self.state;
        // The caller wants these files merged now, so the pause before their next read does not apply.
        quarantine::recheck_all_files(store, tree);
        let trees = [Arc::clone(tree)];
        self.committer.seal(trees.to_vec(), deadline_us)?;
        self.scheduler.wait_flushed(&trees, self.committer.next_seq(), deadline_us)?;
        let picked = {
            tree.jobs.lock().manual_waiting += 1;
            let picked = self.wait_for_files(tree, bounds, deadline_us);
            tree.jobs.lock().manual_waiting -= 1;
            // The policy goes on with what is left.
            store.work.push(WorkKind::Compaction, tree.id);
            picked
        };
        let compacted = match picked {
            Ok(Some(picked)) => {
                let workers = self.scheduler.workers();
                let ran = || run_job(store, &self.throttle, workers, tree, &picked);
                // As in a worker: nothing may wait for ever for what a panic leaves behind.
                let ran = catch_unwind(AssertUnwindSafe(ran))
                    .unwrap_or_else(|panic| Err(store.fail(Error::from_panic(&*panic))));
                // A failure there is told by having made the database read-only.
                let _ = obsolete_files::rewrite_manifest(store);
                backpressure::refresh(store, &self.throttle, tree);
                store.work.end_work(WorkKind::Compaction);
                ran
            }
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        store.work.push(WorkKind::Compaction, tree.id);
        self.scheduler.run_inline();
        compacted
    }

    /// Waits until the job that is needed may run, and holds its files. `None` if none is.
    fn wait_for_files(
        &self,
        tree: &Tree,
        bounds: &KeyBounds,
        deadline_us: Option<u64>,
    ) -> Result<Option<PickedJob>> {
        let store = &self.state;
        let mut answer = None;
        let cause = WaitCause::Compaction;
        store.env.wait(cause, &store.progress, deadline_us, &mut || {
            answer = self.try_hold(tree, bounds, deadline_us).transpose();
            answer.is_some()
        });
        answer.unwrap_or(Err(Error::Deadline { cause: cause.as_str() }))
    }

    /// One try; `None` while something is in the way.
    fn try_hold(
        &self,
        tree: &Tree,
        bounds: &KeyBounds,
        deadline_us: Option<u64>,
    ) -> Result<Option<Option<PickedJob>>> {
        let store = &self.state;
        store.error_state.check_writable()?;
        tree.check_live()?;
        if store.is_closing() {
            return Err(Error::Closed);
        }
        // Shape, plan and hold under one lock, as a policy picks.
        let mut jobs = tree.jobs.lock();
        let shape = tree.shape(store.env.database_us(), store.sequence.snapshot_bounds());
        match plan_manual(&shape, &jobs.busy, bounds)? {
            ManualPlan::UpToDate => Ok(Some(None)),
            ManualPlan::Run(job) if store.work.begin_work(WorkKind::Compaction) => {
                Ok(Some(Some(PickedJob::reserve(&mut jobs, *job, shape, deadline_us))))
            }
            ManualPlan::Run(_) => Ok(None),
            ManualPlan::Wait(job) => {
                match quarantine::find_blocking_file(tree, &jobs, job.input_files()) {
                    Some((_, error)) => Err(error),
                    None => Ok(None),
                }
            }
        }
    }
}
