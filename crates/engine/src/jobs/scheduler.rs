//! Scheduler of the background jobs of a database.
//!
//! Trees that may need background work are in two queues: one for flushes, and one for compactions. Flush threads run
//! only flushes, so that a flush never waits for a merge. All other background threads run compactions. If there are no
//! background threads, the calling thread processes both queues. Failed work is retried after a pause.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, AtomicUsize, Mutex, Ordering};

use crate::deferred_drop::run_in_background;
use crate::env::{Background, JoinHandle, WaitCause, YieldKind, lower_thread_priority};
use crate::error::{Error, Result};
use crate::format::version_edit::{Change, VersionEdit};
use crate::jobs::compaction::pick::pick_job;
use crate::jobs::compaction::retry::{defer_blob_gc_error, defer_error, handle_failure};
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

/// Maximum time in microseconds that an idle flush thread sleeps. After each sleep and after each flush, the thread runs
/// the periodic work that is due, such as a sync of the WAL.
const TICK_US: u64 = 1_000_000;
/// Lower bound of [`JobScheduler::tick_us`] in microseconds.
const TICK_US_MIN: u64 = 1_000;
/// Pause between two writes of the database clock to the manifest while values may expire, in microseconds.
const CLOCK_STORE_US: u64 = 60_000_000;
/// Minimum time in microseconds between two checks of trees with failed compactions.
const RETRY_CHECK_US: u64 = 10_000;

/// Marks the work on a tree as ended when the guard is dropped.
struct WorkGuard<'a> {
    state: &'a DbState,
    kind: WorkKind,
}

impl Drop for WorkGuard<'_> {
    fn drop(&mut self) {
        self.state.work.end_work(self.kind);
    }
}

/// Runs the background work of a database.
#[derive(Debug)]
pub(crate) struct JobScheduler {
    state: Arc<DbState>,
    committer: Arc<Committer>,
    throttle: Arc<Throttle>,
    flush_trigger: Arc<FlushTrigger>,
    workers: WorkerPool,
    threads: Mutex<Vec<JoinHandle>>,
    /// Number of flush threads. Only one thread at a time may start flush threads.
    flush_threads: AtomicUsize,
    /// Number of running background threads.
    running_threads: AtomicUsize,
}

impl JobScheduler {
    /// Creates a scheduler that has not started any thread.
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

    /// Returns the workers that help with large merges.
    pub(crate) fn workers(&self) -> &WorkerPool {
        &self.workers
    }

    /// Starts the background threads that the environment requires.
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

    /// Starts flush threads, so that there is one for each operand store, one for each of `additional` further stores,
    /// and one for all other trees. A flush that waits for the device of an operand store therefore does not block
    /// flushes of other trees.
    ///
    /// The threads run until the database is closed.
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
            // Flush threads keep the priority of the writing threads, because writes wait for flushes.
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

    /// Runs work of the given kind until the database is closed. A panic makes the database read-only. It does not end
    /// the thread, because `resume` and `close` need the thread.
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
            // The wait prevents a busy loop if the work panics again immediately.
            let deadline = Some(state.env.now_us().saturating_add(TICK_US));
            let closing = &mut || state.is_closing();
            state.env.wait(WaitCause::Work, &state.progress, deadline, closing);
        }
    }

    /// Runs work on one tree, or waits for work if there is none.
    fn run_once(&self, kind: WorkKind) {
        let state = &self.state;
        self.queue_unblocked_trees();
        if state.tables.deferred_drop.has_queued() {
            state.remove_discarded();
        }
        if self.run_next(kind) {
            // Flushes may follow each other without a pause. The periodic work must not wait for their end.
            if kind == WorkKind::Flush {
                self.run_periodic_work();
                self.start_next_flush();
            }
            state.env.yield_point(YieldKind::JobStep);
            return;
        }
        // If `due_us` becomes earlier or `tick_us` shorter during the wait, the deadline must be computed again.
        let due_us = state.work.due_us();
        let tick_us = if kind == WorkKind::Flush { self.tick_us() } else { TICK_US };
        let deadline = self.next_wakeup_us(kind, tick_us);
        let was_notified = state.env.wait(WaitCause::Work, &state.progress, deadline, &mut || {
            let is_due = kind == WorkKind::Flush
                && (state.wal.is_sync_due_by_bytes() || state.is_reserve_resize_requested());
            state.is_closing()
                || state.tables.deferred_drop.has_queued()
                || (kind == WorkKind::Flush
                    && (state.obsolete_files.has_deletable_files()
                        || state.work.due_us() < due_us
                        || (tick_us == TICK_US && self.tick_us() < TICK_US)))
                || ((is_due || self.has_work(kind)) && state.error_state.check_writable().is_ok())
        });
        match kind {
            WorkKind::Flush => {
                self.run_periodic_work();
                state.resize_reserve();
            }
            WorkKind::Compaction if !was_notified => self.queue_retries(),
            WorkKind::Compaction => {}
        }
    }

    /// Returns whether [`JobScheduler::run_next`] would find work.
    fn has_work(&self, kind: WorkKind) -> bool {
        let state = &self.state;
        state.work.has_work(kind)
            || (kind == WorkKind::Compaction
                && self.workers.has_pending_subcompaction()
                && !state.work.is_paused(kind))
    }

    /// Returns the maximum sleep of an idle flush thread in microseconds. This is [`TICK_US`], or
    /// [`WalOptions::sync_every_us`] if it is shorter and the WAL has unsynced bytes. If the WAL has none, the next commit
    /// notifies `progress`.
    ///
    /// [`WalOptions::sync_every_us`]: crate::WalOptions::sync_every_us
    fn tick_us(&self) -> u64 {
        let state = &self.state;
        let sync_tick_us = state.wal.sync_every_us().clamp(TICK_US_MIN, TICK_US);
        // A read-only database does not sync the WAL.
        let has_sync = sync_tick_us < TICK_US
            && !state.wal.request_wakeup_if_synced()
            && state.error_state.check_writable().is_ok();
        if has_sync { sync_tick_us } else { TICK_US }
    }

    /// Returns the time at which an idle thread wakes up without a notification. `tick_us` is the maximum sleep of a flush
    /// thread. Returns `None` if the time exceeds the range of the clock. An overflowed time would be in the past and would
    /// cause a busy loop.
    fn next_wakeup_us(&self, kind: WorkKind, tick_us: u64) -> Option<u64> {
        let now_us = self.state.env.now_us();
        if kind == WorkKind::Flush {
            let tick_us = deadline_after(now_us, tick_us)?;
            return Some(
                tick_us.min(self.flush_trigger.next_check_us().max(deadline_after(now_us, 1)?)),
            );
        }
        let has_held_tree =
            self.state.trees.read().iter().any(|tree| tree.has_files_held_by_snapshots());
        let longest = if has_held_tree { TICK_US } else { 60 * TICK_US };
        let trees = self.state.failing_trees();
        let retries = trees.iter().filter_map(|tree| tree.jobs.lock().next_retry_us());
        // Retries that are due are already queued. The minimum wait prevents a busy loop until they run.
        let retry_us = deadline_after(now_us, RETRY_CHECK_US)?;
        let next = retries.min().map(|at_us| at_us.max(retry_us));
        Some(next.unwrap_or(u64::MAX).min(deadline_after(now_us, longest)?))
    }

    /// Queues the trees whose files may have become droppable because a snapshot was released. The release of a
    /// snapshot does not notify any thread.
    fn queue_unblocked_trees(&self) {
        let released = self.state.sequence.snapshot_release_count();
        let trees = self.state.trees.read();
        for tree in trees.iter().filter(|tree| tree.may_snapshots_have_released_files(released)) {
            tree.set_files_held_by_snapshots(true, released);
            self.state.work.push(WorkKind::Compaction, tree.id);
        }
    }

    /// Queues the trees for which a retry of a failed job or of a read from a quarantined file is due.
    fn queue_retries(&self) {
        let now_us = self.state.env.now_us();
        for tree in self.state.failing_trees() {
            let is_due = tree.jobs.lock().next_retry_us().is_some_and(|at_us| at_us <= now_us);
            if is_due {
                self.state.work.push(WorkKind::Compaction, tree.id);
            }
        }
    }

    /// Syncs the WAL, checks all trees, repeats failed deletions of files, and stores the clock, if this is due. Does
    /// nothing during a pause.
    fn run_periodic_work(&self) {
        // A resume waits for this work. Otherwise, an error of the work could make the database read-only after the
        // resume.
        if let Some(_work) = self.state.work.begin_periodic_work() {
            self.sync_wal_if_due();
            self.flush_trigger.check_trees_if_due();
            self.state.obsolete_files.retry_failed_deletions(self.state.env.now_us());
            self.store_clock_if_due();
        }
    }

    /// Seals the next memtable if an early flush is due. Writes that fail instead of waiting do not seal memtables. Without
    /// this call, they would fail until another write succeeds. Does nothing during a pause.
    fn start_next_flush(&self) {
        if let Some(_work) = self.state.work.begin_periodic_work()
            && self.state.error_state.check_writable().is_ok()
            && !self.state.is_closing()
        {
            self.flush_trigger.flush_if_due(None);
        }
    }

    /// Writes the database clock to the manifest once per [`CLOCK_STORE_US`] while values may expire.
    ///
    /// After a kill, the next open starts the clock at the stored time. With an old time, values that had expired before
    /// the kill would be visible again.
    fn store_clock_if_due(&self) {
        let state = &self.state;
        if state.error_state.check_writable().is_err()
            || !state.trees.read().iter().any(|tree| tree.may_expire())
        {
            return;
        }
        let time_us = state.env.database_time_us();
        let stored_us = state.manifest.with_state(|state| state.clock_us);
        if time_us.saturating_sub(stored_us) < CLOCK_STORE_US {
            return;
        }
        let edit = VersionEdit { changes: vec![Change::ClockUs(time_us)] };
        // After an error, the database is read-only, and the next write returns the error.
        if let Err(error) = state.manifest.append(&edit) {
            state.report_background_error("store the clock", None, &error);
            state.make_read_only(error);
            return;
        }
        let _ = obsolete_files::rewrite_manifest(state);
    }

    /// Syncs the WAL if the number or the age of its unsynced bytes exceeds the limit.
    fn sync_wal_if_due(&self) {
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

    /// Runs work of the given kind on one tree, or a subcompaction of another thread's merge. Returns whether there was
    /// work.
    fn run_next(&self, kind: WorkKind) -> bool {
        let state = &self.state;
        if kind == WorkKind::Flush {
            state.remove_discarded();
        }
        // In a read-only database, results of jobs cannot become durable.
        if state.error_state.check_writable().is_err() {
            return false;
        }
        let Some(tree) = state.work.take(kind, &state.trees) else {
            return kind == WorkKind::Compaction && self.workers.run_pending_subcompaction(state);
        };
        // The guard also ends the work after a panic, because `pause` waits until all work has ended.
        let _guard = WorkGuard { state, kind };
        let work = || {
            match kind {
                WorkKind::Flush => self.flush(&tree),
                WorkKind::Compaction => self.compact(&tree),
            }
            // After an error, the database is read-only, and the next write returns the error.
            let _ = obsolete_files::rewrite_manifest(state);
            backpressure::refresh_write_limits(state, &self.throttle, &tree);
            if let Some(attached) = tree.operand_store.attached() {
                attached.update_memory_charge();
            }
        };
        // A panic of the engine is a bug or a failed allocation. The database becomes read-only, because partial
        // results must not become durable. After a panic of user code, the work is retried after a pause.
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
        // The work may have freed disk space, or may have changed the required size of the disk reserve.
        state.tables.reserve.allow_growth();
        state.resize_reserve();
        true
    }

    fn flush(&self, tree: &Arc<Tree>) {
        let state = &self.state;
        // The error has already been reported and has made the database read-only.
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
        let collect = || {
            let has_collected = collect_if_due(state, tree);
            if has_collected {
                state.work.push(WorkKind::Compaction, tree.id);
            }
            has_collected
        };
        // While writes are stopped, collections run only if there is no merge. The collections may be due without end,
        // and the writes wait for merges.
        let is_write_stopped = tree.is_write_stopped();
        if !is_write_stopped && collect() {
            return;
        }
        let Some(picked) = pick_job(state, tree) else {
            if is_write_stopped {
                collect();
            }
            return;
        };
        // Another thread may find a further job in this tree.
        state.work.push(WorkKind::Compaction, tree.id);
        // The write limits are updated before a long job, so that writes are throttled according to the current debt
        // during the job.
        backpressure::refresh_write_limits(state, &self.throttle, tree);
        let _busy = self.workers.mark_busy();
        // The error has already been reported. The tree is checked again after a pause.
        if let Err(error) = run_job(state, &self.throttle, &self.workers, tree, &picked) {
            match picked.victims.is_empty() {
                true => defer_error(state, "compaction", tree, &error),
                false => defer_blob_gc_error(state, tree, &error),
            }
        }
        state.work.push(WorkKind::Compaction, tree.id);
    }

    /// Runs background work on the calling thread until there is none left. Does nothing if the database has background
    /// threads.
    pub(crate) fn run_inline(&self) {
        if self.state.env.background() == Background::Inline {
            self.run_periodic_work();
            if self.state.must_resize_reserve() {
                self.state.resize_reserve();
            }
            self.queue_unblocked_trees();
            self.queue_retries();
            while self.run_next(WorkKind::Flush) || self.run_next(WorkKind::Compaction) {}
            self.state.remove_discarded();
        }
    }

    /// Waits until all sealed memtables are flushed, no policy picks a job, and all obsolete files are deleted.
    ///
    /// # Errors
    /// - [`Error::Deadline`] if the deadline passes first.
    /// - [`Error::Closed`] if the database is being closed.
    /// - The error that made the database read-only.
    /// - An error that prevents background work of a tree, for example the error of its last failed compaction.
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

    /// Waits until the trees have no sealed memtable with writes before the sequence number `seq`.
    ///
    /// # Errors
    /// - [`Error::Deadline`] if the deadline passes first.
    /// - [`Error::Closed`] if the database is being closed.
    /// - The error that made the database read-only.
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
        // A tree that was flushed once is not checked again.
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
            // No thread flushes memtables any more. The commits of the sealed memtables remain in the WAL.
            return Err(Error::Closed);
        }
        if in_time { Ok(()) } else { Err(Error::Deadline { cause: WaitCause::Flush.as_str() }) }
    }

    /// Prevents new work from starting, and waits until no work is running. Returns false if the deadline passes first.
    pub(crate) fn pause(&self, deadline_us: Option<u64>) -> bool {
        let state = &self.state;
        state.work.set_paused(true);
        let cause = WaitCause::BackgroundWork;
        state
            .env
            .wait(cause, &state.progress, deadline_us, &mut || state.work.has_no_running_work())
    }

    /// Ends the pause that [`JobScheduler::pause`] has started, and queues all trees.
    pub(crate) fn unpause(&self) {
        self.state.work.set_paused(false);
        for tree in self.state.all_trees() {
            self.state.work.push(WorkKind::Flush, tree.id);
            self.state.work.push(WorkKind::Compaction, tree.id);
        }
    }

    /// Waits until all background threads have ended. The database must be closing. Returns false if the deadline
    /// passes first.
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
            // Threads catch all panics, so they end normally.
            let _ = state.env.join(thread);
        }
        true
    }
}

/// Returns the time after a pause that starts now. Returns `None` if this time exceeds the range of the clock.
fn deadline_after(now_us: u64, pause_us: u64) -> Option<u64> {
    match failpoint::is_on(Failpoint::TimeOverflows) {
        true => Some(now_us + pause_us),
        false => now_us.checked_add(pause_us),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Db;
    use crate::env::ManualClock;
    use crate::options::db::Options;
    use crate::vfs::MemVfs;
    use crate::vfs::call::VfsCall;
    use crate::vfs::fault::{Fault, FaultRule, FaultVfs};
    use crate::wal::WalOptions;
    use crate::write::batch::WriteBatch;

    /// The periodic work ran only on idle flush threads. While flushes followed each other, the log was not synced.
    #[test]
    fn flush_thread_after_flush_syncs_wal() {
        let clock = ManualClock::new(2_000_000_000_000_000);
        let options = Options::default().background(Background::Inline).clock(clock.clone());
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        let (inner, syncs) = (db.inner(), || db.inner().state.wal.sync_count());
        db.put("a", "1").unwrap();
        let before = syncs();
        for expected in [0, 1] {
            // The tree has no sealed memtable, so the flush itself does not sync the log.
            inner.state.work.push(WorkKind::Flush, inner.default_tree.id);
            inner.scheduler.run_once(WorkKind::Flush);
            assert_eq!(syncs() - before, expected);
            clock.advance_us(1_000_000);
        }
    }

    /// Bug 1: the age limit of unsynced bytes had no effect below one second. Bug 2: flush threads woke up at this rate
    /// although all bytes were synced.
    #[test]
    fn idle_flush_thread_wakes_up_within_sync_interval_if_bytes_are_unsynced() {
        for (sync_every_us, expected_us) in [(0, 1_000), (20_000, 20_000), (u64::MAX, TICK_US)] {
            let wal = WalOptions { sync_every_us, ..WalOptions::default() };
            let options = Options::default().background(Background::Inline).wal(wal);
            let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
            let (inner, scheduler) = (db.inner(), &db.inner().scheduler);
            let sleep_us = || {
                let wakeup_us = scheduler.next_wakeup_us(WorkKind::Flush, scheduler.tick_us());
                wakeup_us.unwrap() - inner.state.env.now_us()
            };
            // Commits without inline work, and returns the number of notifications.
            let commit = || {
                let before = inner.state.progress.generation();
                let mut batch = WriteBatch::new();
                batch.put(&db.default_keyspace(), "a", "1");
                inner.committer.commit(batch, false, 0, None).unwrap();
                inner.state.progress.generation() - before
            };
            for _ in 0..2 {
                inner.state.wal.sync().unwrap();
                assert_eq!(sleep_us(), TICK_US);
                assert_eq!(commit(), u64::from(expected_us < TICK_US));
                assert_eq!((sleep_us(), commit()), (expected_us, 0));
            }
        }
    }

    /// An early flush that became due during another flush started only with the next successful write.
    #[test]
    fn flush_thread_after_flush_starts_next_due_flush() {
        let options = Options::default().background(Background::Inline).wal_bytes_max(1);
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        let inner = db.inner();
        let (work, tree) = (&inner.state.work, &inner.default_tree);
        // The write does not seal the memtable, because a flush is running.
        assert!(work.begin_work(WorkKind::Flush));
        db.put("a", "1").unwrap();
        work.end_work(WorkKind::Flush);
        assert!(tree.super_version().sealed.is_empty());
        work.push(WorkKind::Flush, tree.id);
        inner.scheduler.run_once(WorkKind::Flush);
        assert_eq!(tree.super_version().sealed.len(), 1);
    }

    /// A flush that takes longer than the maximum age of unsynced bytes syncs the log before the end of the flush.
    #[test]
    fn flush_of_large_memtable_syncs_wal_meanwhile() {
        let clock = ManualClock::new(2_000_000_000_000_000);
        let disk = FaultVfs::new(Arc::new(MemVfs::new()), 0);
        let options = Options::default().background(Background::Inline).clock(clock.clone());
        let db = Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap();
        for number in 0u32..10_000 {
            db.put(number.to_be_bytes(), [1; 100]).unwrap();
        }
        // For each sync, whether the file is a table.
        let syncs: Arc<Mutex<Vec<bool>>> = Arc::default();
        let seen = Arc::clone(&syncs);
        disk.set_delay_hook(Some(Arc::new(move |call, path| {
            let is_table = path.extension().is_some_and(|extension| extension == "sst");
            match call {
                VfsCall::Append if is_table => clock.advance_us(1_000_000),
                VfsCall::Sync => seen.lock().push(is_table),
                _ => {}
            }
        })));
        disk.add_rule(FaultRule::new(Fault::Delay).chance(1.0));
        let inner = db.inner();
        inner.committer.seal_memtables(vec![Arc::clone(&inner.default_tree)], None).unwrap();
        inner.scheduler.run_inline();
        let syncs = syncs.lock();
        assert!(syncs.contains(&true));
        assert!(!syncs[0], "the log is synced before the table is complete");
    }

    /// Commits during each sync of the log made the next sync due at once. A flush synced the log after each block of
    /// entries.
    #[test]
    fn flush_during_slow_wal_syncs_does_not_sync_after_each_block() {
        let clock = ManualClock::new(2_000_000_000_000_000);
        let disk = FaultVfs::new(Arc::new(MemVfs::new()), 0);
        let wal = WalOptions { sync_every_bytes: 1_000, ..WalOptions::default() };
        let options = Options::default().background(Background::Inline).clock(clock.clone());
        let db = Db::open("db", options.wal(wal).vfs(Arc::new(disk.clone()))).unwrap();
        let inner = db.inner();
        // Commits without inline work.
        let commit = |db: &Db, number: u32, bytes: usize| {
            let mut batch = WriteBatch::new();
            batch.put(&db.default_keyspace(), number.to_be_bytes(), vec![1; bytes]);
            db.inner().committer.commit(batch, false, 0, None).unwrap();
        };
        (0..10_000).for_each(|number| commit(&db, number, 10));
        inner.committer.seal_memtables(vec![Arc::clone(&inner.default_tree)], None).unwrap();
        let during_sync = db.clone();
        disk.set_delay_hook(Some(Arc::new(move |_, _| {
            clock.advance_us(50_000);
            // The syncing thread holds a lock, so another thread commits.
            std::thread::scope(|scope| {
                scope.spawn(|| commit(&during_sync, 0, 2_000));
            });
        })));
        let slow = FaultRule::new(Fault::Delay).for_calls(&[VfsCall::Sync]).path_contains(".wal");
        disk.add_rule(slow.chance(1.0));
        let before = inner.state.wal.sync_count();
        assert!(inner.scheduler.run_next(WorkKind::Flush));
        let syncs = inner.state.wal.sync_count() - before;
        disk.set_delay_hook(None);
        // Without further syncs, the time does not advance, so no pause ends.
        assert_eq!(syncs, 2, "one background sync, and one sync before the manifest edit");
    }
}
