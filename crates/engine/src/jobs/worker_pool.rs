//! Worker pool: the compaction workers of a database, and the subcompactions that idle workers may run.
//!
//! A worker first looks for a job of its own. If there is none, it helps with a merge of another worker and runs a
//! pending subcompaction. The owner of a merge runs all subcompactions that no other worker takes. No thread therefore
//! waits until a worker becomes idle.

use lsmx_base::sync::{Arc, AtomicUsize, Mutex, Ordering};

use crate::env::{Background, WORKERS_DEFAULT};
use crate::error::Result;
use crate::jobs::compaction::subcompactions::{MergeResult, SubcompactionThread, Subcompactions};
use crate::state::DbState;
use crate::state::work_queue::WorkKind;

/// Compaction workers of a database.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    /// Number of workers.
    count: usize,
    /// Maximum number of subcompactions of a merge. `None` means one per idle worker, and one for the calling thread.
    subcompactions_max: Option<usize>,
    /// Number of workers that run a job or a subcompaction. Only a hint, so relaxed ordering is sufficient.
    busy: AtomicUsize,
    /// Merges with pending subcompactions, oldest first.
    offers: Mutex<Vec<Arc<Subcompactions>>>,
}

/// Counts a worker as busy until it is dropped.
#[derive(Debug)]
pub(crate) struct BusyWorker<'a>(&'a AtomicUsize);

impl Drop for BusyWorker<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl WorkerPool {
    /// Creates the worker pool for an environment.
    pub(crate) fn new(background: Background, subcompactions_max: Option<usize>) -> WorkerPool {
        let count = match background {
            Background::Inline => 0,
            Background::Threads { workers } | Background::Stepped { workers, .. } => workers.max(1),
        };
        let busy = AtomicUsize::new(0);
        WorkerPool { count, subcompactions_max, busy, offers: Mutex::default() }
    }

    /// Returns the number of workers. 0 if calling threads run the jobs.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Counts the calling worker as busy.
    pub(crate) fn mark_busy(&self) -> BusyWorker<'_> {
        self.busy.fetch_add(1, Ordering::Relaxed);
        BusyWorker(&self.busy)
    }

    /// Returns the maximum number of subcompactions of a job that starts now: one for the calling thread, and one for
    /// each idle worker.
    ///
    /// If there are no workers because calling threads run the jobs, returns the number for the default number of
    /// workers. Trees therefore have the same shape with and without workers.
    pub(crate) fn max_subcompactions(&self) -> usize {
        if self.count == 0 {
            return self.subcompactions_max.unwrap_or(WORKERS_DEFAULT);
        }
        let idle = self.count.saturating_sub(self.busy.load(Ordering::Relaxed));
        // If the calling thread is not a worker, as in `compact_range`, all workers may be idle.
        (idle + 1).min(self.subcompactions_max.unwrap_or(usize::MAX))
    }

    /// Runs all subcompactions of a merge. Idle workers may help.
    pub(crate) fn run(
        &self,
        state: &DbState,
        subcompactions: Subcompactions,
    ) -> Result<MergeResult> {
        let subcompactions = Arc::new(subcompactions);
        let is_offered = self.count > 0 && subcompactions.count() > 1;
        if is_offered {
            self.offers.lock().push(Arc::clone(&subcompactions));
            state.progress.notify();
        }
        while subcompactions.run_next(state, SubcompactionThread::JobOwner) {}
        if is_offered {
            self.offers.lock().retain(|offer| !Arc::ptr_eq(offer, &subcompactions));
        }
        subcompactions.wait_for_all(state)
    }

    /// Returns whether a subcompaction is pending.
    pub(crate) fn has_pending_subcompaction(&self) -> bool {
        self.offers.lock().iter().any(|subcompactions| subcompactions.has_pending())
    }

    /// Runs a pending subcompaction for the owner of its merge. Returns false if no subcompaction is pending, or if
    /// compactions are paused.
    pub(crate) fn run_pending_subcompaction(&self, state: &DbState) -> bool {
        if !self.has_pending_subcompaction() || !state.work.begin_work(WorkKind::Compaction) {
            return false;
        }
        let offer = {
            let offers = self.offers.lock();
            offers.iter().find(|subcompactions| subcompactions.has_pending()).cloned()
        };
        let busy = self.mark_busy();
        let helped = offer.is_some_and(|subcompactions| {
            subcompactions.run_next(state, SubcompactionThread::Helper)
        });
        drop(busy);
        state.work.end_work(WorkKind::Compaction);
        helped
    }
}
