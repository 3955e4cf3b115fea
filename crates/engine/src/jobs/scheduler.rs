//! Schedules flushes and compactions of one database.
//!
//! Trees with possible work are in two queues, one for flushes and one for compactions. With background threads, flush
//! threads run only flushes, so a flush never waits for a merge; the others run compactions. Inline, the caller's
//! thread empties both queues. Failed work is retried after a pause.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, AtomicUsize, Mutex, Ordering};

use crate::deferred_drop::run_in_background;
use crate::env::{Background, JoinHandle, WaitCause, YieldKind, lower_thread_priority};
use crate::error::{Error, Result};
use crate::jobs::compaction::pick::pick_job;
use crate::jobs::compaction::retry::{defer_error, handle_failure};
use crate::jobs::compaction::run::run_job;
use crate::jobs::flush_trigger::FlushTrigger;
use crate::jobs::operand_store::collect::collect_if_due;
use crate::jobs::worker_pool::WorkerPool;
use crate::jobs::{flush, obsolete_files, quarantine};
use crate::state::DbState;
use crate::state::work_queue::WorkKind;
use crate::tree::Tree;
use crate::write::backpressure;
use crate::write::commit::Committer;
use crate::write::throttle::Throttle;

/// Interval at which an idle flush thread checks whether the WAL is due for a sync, in microseconds.
const TICK_US: u64 = 1_000_000;
/// Shortest time between two checks of trees with failed compactions, in microseconds.
const RETRY_CHECK_US: u64 = 10_000;

/// Ends the work on a tree that [`DbState::take_ready`] returned.
struct WorkGuard<'a> {
    state: &'a DbState,
    kind: WorkKind,
}

impl Drop for WorkGuard<'_> {
    fn drop(&mut self) {
        self.state.work.end_work(self.kind);
    }
}

/// Runs the background work of one database.
#[derive(Debug)]
pub(crate) struct JobScheduler {
    state: Arc<DbState>,
    committer: Arc<Committer>,
    throttle: Arc<Throttle>,
    flush_trigger: Arc<FlushTrigger>,
    workers: WorkerPool,
    threads: Mutex<Vec<JoinHandle>>,
    /// Number of flush threads. Only one call at a time starts them.
    flush_threads: AtomicUsize,
    /// Number of threads that have not ended.
    running_threads: AtomicUsize,
}

impl JobScheduler {
    /// Creates a scheduler without threads.
    pub(crate) fn new(
        state: Arc<DbState>,
        committer: Arc<Committer>,
        throttle: Arc<Throttle>,
        flush_trigger: Arc<FlushTrigger>,
        workers: WorkerPool,
    ) -> JobScheduler {
        let (threads, flush_threads) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
        let running_threads = AtomicUsize::new(0);
        JobScheduler {
            state,
            committer,
            throttle,
            flush_trigger,
            workers,
            threads,
            flush_threads,
            running_threads,
        }
    }

    /// Workers that help with large merges.
    pub(crate) fn workers(&self) -> &WorkerPool {
        &self.workers
    }

    /// Starts the background threads of the environment.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<()> {
        if self.state.env.background() == Background::Inline {
            return Ok(());
        }
        self.start_flush_threads(0)?;
        for number in 0..self.workers.count() {
            self.spawn(&format!("lsmx-compact-{number}"), WorkKind::Compaction)?;
        }
        self.state.tables.deferred_drop.start();
        Ok(())
    }

    /// Starts flush threads until there is one per operand store, one for each of `additional` stores, and one for all
    /// other trees. If a device blocks under an operand store, other trees are still flushed.
    ///
    /// The threads run until the database closes.
    pub(crate) fn start_flush_threads(self: &Arc<Self>, additional: usize) -> io::Result<()> {
        if self.state.env.background() == Background::Inline {
            return Ok(());
        }
        let trees = self.state.all_trees();
        let stores = trees.iter().filter(|tree| tree.operand_store.attached().is_some()).count();
        let single_thread = failpoint::is_on(Failpoint::OneFlushThread)
            || failpoint::is_on(Failpoint::FlushWaitsForStore);
        let wanted = if single_thread { 1 } else { 1 + stores.saturating_add(additional) };
        while self.flush_threads.load(Ordering::Relaxed) < wanted {
            self.spawn("lsmx-flush", WorkKind::Flush)?;
            self.flush_threads.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn spawn(self: &Arc<Self>, name: &str, kind: WorkKind) -> io::Result<()> {
        let scheduler = Arc::clone(self);
        self.running_threads.fetch_add(1, Ordering::AcqRel);
        let body = move || {
            // Writes wait for flushes, so flushes keep the priority of the writers.
            if kind == WorkKind::Compaction {
                lower_thread_priority();
            }
            run_in_background(|| scheduler.run_thread(kind));
            scheduler.running_threads.fetch_sub(1, Ordering::AcqRel);
            scheduler.state.progress.notify();
        };
        let thread = self.state.env.spawn(name, body).inspect_err(|_| {
            self.running_threads.fetch_sub(1, Ordering::AcqRel);
        })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Runs work of one kind until the database closes. A panic makes the database read-only but does not end the
    /// thread, because `resume` and `close` need it.
    fn run_thread(&self, kind: WorkKind) {
        let state = &self.state;
        while !state.is_closing() {
            let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.run_once(kind))) else {
                continue;
            };
            if failpoint::is_on(Failpoint::PanicEndsThread) {
                resume_unwind(panic);
            }
            state.make_read_only(Error::from_panic(&*panic));
            // The wait keeps work that panics immediately from using a whole processor.
            let deadline = Some(state.env.now_us().saturating_add(TICK_US));
            let closing = &mut || state.is_closing();
            state.env.wait(WaitCause::Work, &state.progress, deadline, closing);
        }
    }

    /// Runs work on one tree, or waits until there is some.
    fn run_once(&self, kind: WorkKind) {
        let state = &self.state;
        self.queue_unblocked_trees();
        if state.tables.deferred_drop.has_queued() {
            state.remove_discarded();
        }
        if self.run_next(kind) {
            state.env.yield_point(YieldKind::JobStep);
            return;
        }
        // If work becomes due before this time, the deadline has to be computed again.
        let due_us = state.work.due_us();
        let deadline = self.next_wakeup_us(kind);
        let was_notified = state.env.wait(WaitCause::Work, &state.progress, deadline, &mut || {
            let is_due = kind == WorkKind::Flush
                && (state.wal.is_sync_due_by_bytes() || state.is_reserve_resize_requested());
            state.is_closing()
                || state.tables.deferred_drop.has_queued()
                || (kind == WorkKind::Flush
                    && (state.obsolete_files.has_deletable_files() || state.work.due_us() < due_us))
                || ((is_due || self.has_work(kind)) && state.error_state.check_writable().is_ok())
        });
        match kind {
            WorkKind::Flush => {
                self.sync_wal_if_due();
                state.resize_reserve();
                self.flush_trigger.check_trees_if_due();
            }
            WorkKind::Compaction if !was_notified => self.queue_retries(),
            WorkKind::Compaction => {}
        }
    }

    /// Whether [`JobScheduler::run_next`] would find work.
    fn has_work(&self, kind: WorkKind) -> bool {
        let state = &self.state;
        state.work.has_work(kind)
            || (kind == WorkKind::Compaction
                && self.workers.has_pending_subcompaction()
                && !state.work.is_paused(kind))
    }

    /// Returns the time at which an idle thread wakes without a notification. `None` if it exceeds the range of the
    /// clock: an overflowed deadline would already have passed, and the thread would spin.
    fn next_wakeup_us(&self, kind: WorkKind) -> Option<u64> {
        let now_us = self.state.env.now_us();
        if kind == WorkKind::Flush {
            let tick_us = deadline_after(now_us, TICK_US)?;
            return Some(
                tick_us.min(self.flush_trigger.next_check_us().max(deadline_after(now_us, 1)?)),
            );
        }
        let has_held_tree =
            self.state.trees.read().iter().any(|tree| tree.has_files_held_by_snapshots());
        let longest = if has_held_tree { TICK_US } else { 60 * TICK_US };
        let trees = self.state.failing_trees();
        let retries = trees.iter().filter_map(|tree| tree.jobs.lock().next_retry_us());
        // Retries that are due were queued just now. The pause avoids a busy loop until they run.
        let retry_us = deadline_after(now_us, RETRY_CHECK_US)?;
        let next = retries.min().map(|at_us| at_us.max(retry_us));
        Some(next.unwrap_or(u64::MAX).min(deadline_after(now_us, longest)?))
    }

    /// Queues trees with files that a released snapshot held. No notification announces the release.
    fn queue_unblocked_trees(&self) {
        let released = self.state.sequence.snapshot_release_count();
        let trees = self.state.trees.read();
        for tree in trees.iter().filter(|tree| tree.may_snapshots_have_released_files(released)) {
            tree.set_files_held_by_snapshots(true, released);
            self.state.work.push(WorkKind::Compaction, tree.id);
        }
    }

    /// Queues trees whose next retry is due. A retry follows a failed job or a failed read of a quarantined file.
    fn queue_retries(&self) {
        let now_us = self.state.env.now_us();
        for tree in self.state.failing_trees() {
            let is_due = tree.jobs.lock().next_retry_us().is_some_and(|at_us| at_us <= now_us);
            if is_due {
                self.state.work.push(WorkKind::Compaction, tree.id);
            }
        }
    }

    /// Syncs the WAL if the number or the age of unsynced bytes exceeds its limit.
    pub(crate) fn sync_wal_if_due(&self) {
        let state = &self.state;
        state.report_clock_jumps();
        if state.error_state.check_writable().is_ok()
            && state.wal.is_sync_due(state.env.now_us())
            && let Err(error) = state.wal.sync()
        {
            state.report_background_error("sync", None, &error);
            state.make_read_only(error);
        }
    }

    /// Runs work of this kind on one tree, or helps another thread. Returns whether there was any work.
    fn run_next(&self, kind: WorkKind) -> bool {
        let state = &self.state;
        if kind == WorkKind::Flush {
            state.remove_discarded();
        }
        // In a read-only database no result can be made durable.
        if state.error_state.check_writable().is_err() {
            return false;
        }
        let Some(tree) = state.work.take(kind, &state.trees) else {
            return kind == WorkKind::Compaction && self.workers.run_pending_subcompaction(state);
        };
        // Dropped also on a panic, because `pause` waits for it.
        let _guard = WorkGuard { state, kind };
        let work = || {
            match kind {
                WorkKind::Flush => self.flush(&tree),
                WorkKind::Compaction => self.compact(&tree),
            }
            // An error has made the database read-only, so the next write returns it.
            let _ = obsolete_files::rewrite_manifest(state);
            backpressure::refresh_write_limits(state, &self.throttle, &tree);
            if let Some(attached) = tree.operand_store.attached() {
                attached.update_memory_charge();
            }
        };
        // A panic of the engine is a bug or an allocation failure; partial results must not become durable. A panic
        // of user code fails this work, which is retried after a pause.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            let error = Error::from_panic(&*panic);
            if kind == WorkKind::Flush {
                tree.jobs.lock().flushing = false;
            }
            if kind == WorkKind::Compaction && error.is_user_panic() {
                handle_failure(state, "compaction", &tree, &error);
            } else {
                state.make_read_only(error);
            }
        }
        // The work may have freed disk space or changed the required size of the reserve, so the reserve is resized.
        state.tables.reserve.allow_growth();
        state.resize_reserve();
        true
    }

    fn flush(&self, tree: &Arc<Tree>) {
        let state = &self.state;
        // An error has been reported and has made the database read-only.
        if let Ok(true) = flush::flush_oldest_memtable(state, &self.committer, tree) {
            let _ = obsolete_files::retire_segments(state);
            state.work.push(WorkKind::Compaction, tree.id);
            if !tree.super_version().sealed.is_empty() {
                state.work.push(WorkKind::Flush, tree.id);
            }
        }
    }

    fn compact(&self, tree: &Arc<Tree>) {
        let state = &self.state;
        quarantine::recheck_due_files(state, tree);
        if collect_if_due(state, tree) {
            state.work.push(WorkKind::Compaction, tree.id);
            return;
        }
        let Some(picked) = pick_job(state, tree) else { return };
        // Another thread may find a second job in the same tree.
        state.work.push(WorkKind::Compaction, tree.id);
        // The write limits are recomputed before a long job, so that writes are throttled by the debt during the job.
        backpressure::refresh_write_limits(state, &self.throttle, tree);
        let _busy = self.workers.mark_busy();
        // The error has been reported; the tree is checked again after a pause.
        if let Err(error) = run_job(state, &self.throttle, &self.workers, tree, &picked) {
            defer_error(state, "compaction", tree, &error);
        }
        state.work.push(WorkKind::Compaction, tree.id);
    }

    /// Runs background work on the calling thread until none is left, if the environment has no threads.
    pub(crate) fn run_inline(&self) {
        if self.state.env.background() == Background::Inline {
            self.sync_wal_if_due();
            if self.state.must_resize_reserve() {
                self.state.resize_reserve();
            }
            self.queue_unblocked_trees();
            self.queue_retries();
            self.flush_trigger.check_trees_if_due();
            while self.run_next(WorkKind::Flush) || self.run_next(WorkKind::Compaction) {}
            self.state.remove_discarded();
        }
    }

    /// Waits until all sealed memtables are flushed, no policy picks a job, and obsolete files are removed.
    ///
    /// # Errors
    /// [`Error::Deadline`]; [`Error::Closed`]; the error that made the database read-only or compactions pause.
    pub(crate) fn wait_idle(&self, cause: WaitCause, deadline_us: Option<u64>) -> Result<()> {
        self.run_inline();
        self.queue_unblocked_trees();
        let state = &self.state;
        let in_time = state.env.wait(cause, &state.progress, deadline_us, &mut || {
            let idle = state.work.is_idle()
                && (state.is_clean() || failpoint::is_on(Failpoint::RemovalNotAwaited));
            idle || state.error_state.check_writable().is_err() || state.is_closing()
        });
        state.error_state.check_writable()?;
        if state.is_closing() {
            return Err(Error::Closed);
        }
        if !in_time {
            return Err(Error::Deadline { cause: cause.as_str() });
        }
        for tree in state.all_trees() {
            if let Some(error) = tree.jobs.lock().background_error() {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits until the trees have no sealed memtable with sequence numbers below `seq`.
    ///
    /// # Errors
    /// [`Error::Deadline`]; [`Error::Closed`]; the error that made the database read-only.
    pub(crate) fn wait_flushed(
        &self,
        trees: &[Arc<Tree>],
        seq: SeqNo,
        deadline_us: Option<u64>,
    ) -> Result<()> {
        self.run_inline();
        let state = &self.state;
        let is_flushed = |tree: &Arc<Tree>| {
            tree.is_dropped()
                || tree.super_version().sealed.last().is_none_or(|oldest| oldest.first_seq() >= seq)
        };
        // A flushed tree stays flushed, so trees that were found flushed are not checked again.
        let mut done = 0;
        let mut flushed = || {
            done += trees[done..].iter().take_while(|tree| is_flushed(tree)).count();
            done == trees.len()
        };
        let in_time = state.env.wait(WaitCause::Flush, &state.progress, deadline_us, &mut || {
            flushed() || state.error_state.check_writable().is_err() || state.is_closing()
        });
        state.error_state.check_writable()?;
        if state.is_closing() && !flushed() {
            // No thread flushes any more; the sealed memtables remain in the WAL.
            return Err(Error::Closed);
        }
        if in_time { Ok(()) } else { Err(Error::Deadline { cause: WaitCause::Flush.as_str() }) }
    }

    /// Starts no new work and waits until none is running. Returns false if the deadline passes first.
    pub(crate) fn pause(&self, deadline_us: Option<u64>) -> bool {
        let state = &self.state;
        state.work.set_paused(true);
        let cause = WaitCause::BackgroundWork;
        state
            .env
            .wait(cause, &state.progress, deadline_us, &mut || state.work.has_no_running_work())
    }

    /// Continues after [`JobScheduler::pause`] and queues every tree.
    pub(crate) fn unpause(&self) {
        self.state.work.set_paused(false);
        for tree in self.state.all_trees() {
            self.state.work.push(WorkKind::Flush, tree.id);
            self.state.work.push(WorkKind::Compaction, tree.id);
        }
    }

    /// Waits until the threads have ended; the database must be closing. Returns false if the deadline passes first.
    pub(crate) fn join(&self, deadline_us: Option<u64>) -> bool {
        let state = &self.state;
        state.progress.notify();
        let ended = || self.running_threads.load(Ordering::Acquire) == 0;
        let cause = WaitCause::Close;
        if !state.env.wait(cause, &state.progress, deadline_us, &mut || ended()) {
            return false;
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // Panics of a thread are caught, so it ends normally.
            let _ = state.env.join(thread);
        }
        true
    }
}

/// Returns the end of a pause that starts now, or `None` if it exceeds the range of the clock.
fn deadline_after(now_us: u64, pause_us: u64) -> Option<u64> {
    match failpoint::is_on(Failpoint::TimeOverflows) {
        true => Some(now_us + pause_us),
        false => now_us.checked_add(pause_us),
    }
}
