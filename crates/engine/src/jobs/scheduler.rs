//! Who does background work, and what comes next.
//!
//! Trees that may have work stand in two queues, one for flushes and one for compactions. With
//! threads, one thread does nothing but flushes, so a flush never waits for a merge; the others
//! compact. Inline, the caller's thread takes both queues until they are empty. Work that failed is
//! tried again after a pause, never in a loop.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, AtomicUsize, Mutex, Ordering};

use crate::disposal::as_background;
use crate::env::{Background, JoinHandle, WaitCause, YieldKind};
use crate::error::{Error, Result};
use crate::jobs::compaction::run;
use crate::jobs::governor::Governor;
use crate::jobs::operand_store::collect;
use crate::jobs::worker_pool::Workers;
use crate::jobs::{flush, obsolete_files, quarantine};
use crate::state::{DbState, Work};
use crate::tree::Tree;
use crate::write::backpressure;
use crate::write::commit::Committer;
use crate::write::throttle::Throttle;

/// How often the flush thread looks whether the log is due for a sync, in microseconds.
const TICK_US: u64 = 1_000_000;
/// Shortest time between two looks at trees whose compactions fail, in microseconds.
const RETRY_LOOK_US: u64 = 10_000;

/// A look at a tree, which [`DbState::take_ready`] has begun.
struct Look<'a> {
    store: &'a DbState,
    kind: Work,
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        self.store.looked(self.kind);
    }
}

/// Runs background work of one database.
#[derive(Debug)]
pub(crate) struct JobScheduler {
    store: Arc<DbState>,
    committer: Arc<Committer>,
    throttle: Arc<Throttle>,
    governor: Arc<Governor>,
    workers: Workers,
    threads: Mutex<Vec<JoinHandle>>,
    /// Threads that flush. One call at a time starts them.
    flush_threads: AtomicUsize,
    /// Threads that have not come to their end.
    at_work: AtomicUsize,
}

impl JobScheduler {
    /// A runner without threads yet.
    pub(crate) fn new(
        store: Arc<DbState>,
        committer: Arc<Committer>,
        throttle: Arc<Throttle>,
        governor: Arc<Governor>,
        workers: Workers,
    ) -> JobScheduler {
        let (threads, flush_threads) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
        let at_work = AtomicUsize::new(0);
        JobScheduler {
            store,
            committer,
            throttle,
            governor,
            workers,
            threads,
            flush_threads,
            at_work,
        }
    }

    /// Who helps with large merges.
    pub(crate) fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Starts the threads that the environment asks for.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<()> {
        if self.store.env.background() == Background::Inline {
            return Ok(());
        }
        self.start_flush_threads(0)?;
        for number in 0..self.workers.count() {
            self.spawn(&format!("lsmx-compact-{number}"), Work::Compaction)?;
        }
        self.store.tables.disposal.begin();
        Ok(())
    }

    /// Starts flush threads until there is one for each operand store, for `coming` more, and one for all other
    /// trees. So a device that hangs under operand stores leaves a thread that flushes the other trees.
    ///
    /// The threads run until the database closes.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(crate) fn start_flush_threads(self: &Arc<Self>, coming: usize) -> io::Result<()> {
        if self.store.env.background() == Background::Inline {
            return Ok(());
        }
        let trees = self.store.all_trees();
        let stores = trees.iter().filter(|tree| tree.beside.attached().is_some()).count();
        let one = failpoint::is_on(Failpoint::OneFlushThread)
            || failpoint::is_on(Failpoint::FlushWaitsForStore);
        let wanted = if one { 1 } else { 1 + stores.saturating_add(coming) };
        while self.flush_threads.load(Ordering::Relaxed) < wanted {
            self.spawn("lsmx-flush", Work::Flush)?;
            self.flush_threads.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn spawn(self: &Arc<Self>, name: &str, kind: Work) -> io::Result<()> {
        let runner = Arc::clone(self);
        self.at_work.fetch_add(1, Ordering::AcqRel);
        let body = move || {
            as_background(|| runner.work(kind));
            runner.at_work.fetch_sub(1, Ordering::AcqRel);
            runner.store.progress.notify();
        };
        let thread = self.store.env.spawn(name, body).inspect_err(|_| {
            self.at_work.fetch_sub(1, Ordering::AcqRel);
        })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Does work of one kind until the database closes. A panic makes the database read-only and does not end the
    /// thread: `resume` and `close` need it.
    fn work(&self, kind: Work) {
        let store = &self.store;
        while !store.is_closing() {
            let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.work_once(kind))) else {
                continue;
            };
            if failpoint::is_on(Failpoint::PanicEndsThread) {
                resume_unwind(panic);
            }
            store.fail(Error::panicked(&*panic));
            // Work that panics again at once must not keep a processor busy.
            let deadline = Some(store.env.now_us().saturating_add(TICK_US));
            let closing = &mut || store.is_closing();
            store.env.wait(WaitCause::Work, &store.progress, deadline, closing);
        }
    }

    /// Looks at one tree, or waits until there is something to do.
    fn work_once(&self, kind: Work) {
        let store = &self.store;
        self.look_at_freed();
        if store.tables.disposal.has_some() {
            store.remove_discarded();
        }
        if self.step(kind) {
            store.env.yield_point(YieldKind::JobStep);
            return;
        }
        // If something is to be looked at sooner than that, the deadline is another one.
        let due_us = store.due_us();
        let deadline = self.next_look_us(kind);
        let told = store.env.wait(WaitCause::Work, &store.progress, deadline, &mut || {
            let due = store.wal.is_sync_due_by_bytes() || store.is_reserve_requested();
            let due = kind == Work::Flush && due;
            store.is_closing()
                || store.tables.disposal.has_some()
                || (kind == Work::Flush && (store.janitor.has_some() || store.due_us() < due_us))
                || ((due || self.has_work(kind)) && store.health.check().is_ok())
        });
        match kind {
            Work::Flush => {
                self.sync_if_due();
                store.fit_reserve();
                self.governor.look_if_due();
            }
            Work::Compaction if !told => self.ready_again(),
            Work::Compaction => {}
        }
    }

    /// Whether there is something that [`JobScheduler::step`] would do.
    fn has_work(&self, kind: Work) -> bool {
        let store = &self.store;
        store.has_ready(kind)
            || (kind == Work::Compaction && self.workers.has_offer() && !store.is_paused(kind))
    }

    /// The time of the next look of an idle thread that gets no signal. `None` if that time is past the
    /// end of the clock: a deadline there would have passed already, and the thread would spin.
    fn next_look_us(&self, kind: Work) -> Option<u64> {
        let now_us = self.store.env.now_us();
        if kind == Work::Flush {
            let tick_us = end_of_pause(now_us, TICK_US)?;
            return Some(tick_us.min(self.governor.next_look_us().max(end_of_pause(now_us, 1)?)));
        }
        let held = self.store.trees.read().all().any(|tree| tree.is_held());
        let longest = if held { TICK_US } else { 60 * TICK_US };
        let trees = self.store.failing_trees();
        let retries = trees.iter().filter_map(|tree| tree.jobs.lock().next_try_us());
        // A retry that is due was looked at just now, so the next look at it comes a little later.
        let retry_us = end_of_pause(now_us, RETRY_LOOK_US)?;
        let next = retries.min().map(|at_us| at_us.max(retry_us));
        Some(next.unwrap_or(u64::MAX).min(end_of_pause(now_us, longest)?))
    }

    /// Has trees looked at again in which a snapshot held files, once one has been let go: that is
    /// no event that anybody is told of.
    fn look_at_freed(&self) {
        let released = self.store.sequence.released();
        let trees = self.store.trees.read();
        for tree in trees.all().filter(|tree| tree.may_be_free(released)) {
            tree.set_held(true, released);
            self.store.make_ready(Work::Compaction, tree.id);
        }
    }

    /// Looks again at trees whose pause after a failure, or since a quarantined file was read, is over.
    fn ready_again(&self) {
        let now_us = self.store.env.now_us();
        for tree in self.store.failing_trees() {
            let due = tree.jobs.lock().next_try_us().is_some_and(|at_us| at_us <= now_us);
            if due {
                self.store.make_ready(Work::Compaction, tree.id);
            }
        }
    }

    /// Syncs the log if much of it, or some of it for long, is not on stable storage.
    pub(crate) fn sync_if_due(&self) {
        let store = &self.store;
        store.report_clock();
        if store.health.check().is_ok()
            && store.wal.is_sync_due(store.env.now_us())
            && let Err(error) = store.wal.sync()
        {
            store.report("sync", None, &error);
            store.fail(error);
        }
    }

    /// Looks at one tree for this kind of work, or takes part in the work of another thread; returns
    /// whether there was one to look at.
    fn step(&self, kind: Work) -> bool {
        let store = &self.store;
        if kind == Work::Flush {
            store.remove_discarded();
        }
        // While the database is read-only nothing can be made durable.
        if store.health.check().is_err() {
            return false;
        }
        let Some(tree) = store.take_ready(kind) else {
            return kind == Work::Compaction && self.workers.help(store);
        };
        // Ends also by a panic, for `pause` waits for it.
        let _look = Look { store, kind };
        let work = || {
            match kind {
                Work::Flush => self.flush(&tree),
                Work::Compaction => self.compact(&tree),
            }
            // A failure there is told by having made the database read-only.
            let _ = obsolete_files::shorten_manifest(store);
            backpressure::refresh(store, &self.throttle, &tree);
            if let Some(attached) = tree.beside.attached() {
                attached.charge();
            }
        };
        // Of the engine a panic is a bug or the end of memory, and nothing it left half done may become durable. Of user
        // code it is a failure of the work at hand, which is tried again after a pause.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            let error = Error::panicked(&*panic);
            if kind == Work::Flush {
                tree.jobs.lock().flushing = false;
            }
            if kind == Work::Compaction && error.is_user_panic() {
                run::failed(store, "compaction", &tree, &error);
            } else {
                store.fail(error);
            }
        }
        // It may have freed room, and changed the sizes that bound the reserve.
        store.tables.reserve.unblock();
        store.fit_reserve();
        true
    }

    fn flush(&self, tree: &Arc<Tree>) {
        let store = &self.store;
        // An error is reported where it happens, and has made the database read-only.
        if let Ok(true) = flush::flush_oldest(store, &self.committer, tree) {
            let _ = obsolete_files::retire_segments(store);
            store.make_ready(Work::Compaction, tree.id);
            if !tree.view().sealed.is_empty() {
                store.make_ready(Work::Flush, tree.id);
            }
        }
    }

    fn compact(&self, tree: &Arc<Tree>) {
        let store = &self.store;
        quarantine::reread_due(store, tree);
        if collect::collect_if_due(store, tree) {
            store.make_ready(Work::Compaction, tree.id);
            return;
        }
        let Some(picked) = run::pick(store, tree) else { return };
        // Another thread may find a second job in the same tree.
        store.make_ready(Work::Compaction, tree.id);
        // It may take long, and what waits for it comes on top.
        backpressure::refresh(store, &self.throttle, tree);
        let _occupied = self.workers.occupy();
        // The listener is told where it happens; the tree is looked at again after a pause.
        if let Err(error) = run::run(store, &self.throttle, &self.workers, tree, picked) {
            run::tell_next_write(store, "compaction", tree, &error);
        }
        store.make_ready(Work::Compaction, tree.id);
    }

    /// Does background work on the calling thread until there is none; only where that is how it is
    /// done.
    pub(crate) fn run_inline(&self) {
        if self.store.env.background() == Background::Inline {
            self.sync_if_due();
            if self.store.is_reserve_due() {
                self.store.fit_reserve();
            }
            self.look_at_freed();
            self.ready_again();
            self.governor.look_if_due();
            while self.step(Work::Flush) || self.step(Work::Compaction) {}
            self.store.remove_discarded();
        }
    }

    /// Waits until every sealed memtable is flushed, every policy rests, and the files that nothing needs are
    /// removed.
    ///
    /// # Errors
    /// [`Error::Deadline`]; [`Error::Closed`]; what made the database read-only; why compactions of
    /// a tree pause.
    pub(crate) fn wait_idle(&self, cause: WaitCause, deadline_us: Option<u64>) -> Result<()> {
        self.run_inline();
        self.look_at_freed();
        let store = &self.store;
        let met = store.env.wait(cause, &store.progress, deadline_us, &mut || {
            let idle = store.is_idle()
                && (store.is_clean() || failpoint::is_on(Failpoint::RemovalNotAwaited));
            idle || store.health.check().is_err() || store.is_closing()
        });
        store.health.check()?;
        if store.is_closing() {
            return Err(Error::Closed);
        }
        if !met {
            return Err(Error::Deadline { cause: cause.as_str() });
        }
        for tree in store.all_trees() {
            if let Some(error) = tree.jobs.lock().trouble() {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits until these trees have no sealed memtable with numbers below `seq`.
    ///
    /// # Errors
    /// [`Error::Deadline`]; [`Error::Closed`]; what made the database read-only.
    pub(crate) fn wait_flushed(
        &self,
        trees: &[Arc<Tree>],
        seq: SeqNo,
        deadline_us: Option<u64>,
    ) -> Result<()> {
        self.run_inline();
        let store = &self.store;
        let above = |tree: &Arc<Tree>| {
            tree.is_dropped()
                || tree.view().sealed.last().is_none_or(|oldest| oldest.first_seq() >= seq)
        };
        // What is flushed stays so: each tree is asked until it is, and then never again.
        let mut done = 0;
        let mut flushed = || {
            done += trees[done..].iter().take_while(|tree| above(tree)).count();
            done == trees.len()
        };
        let met = store.env.wait(WaitCause::Flush, &store.progress, deadline_us, &mut || {
            flushed() || store.health.check().is_err() || store.is_closing()
        });
        store.health.check()?;
        if store.is_closing() && !flushed() {
            // Nobody flushes any more; what is sealed waits in the log.
            return Err(Error::Closed);
        }
        if met { Ok(()) } else { Err(Error::Deadline { cause: WaitCause::Flush.as_str() }) }
    }

    /// Begins no new work and waits until none is under way; false if the deadline passed before.
    pub(crate) fn pause(&self, deadline_us: Option<u64>) -> bool {
        let store = &self.store;
        store.set_paused(true);
        let cause = WaitCause::BackgroundWork;
        store.env.wait(cause, &store.progress, deadline_us, &mut || store.is_quiet())
    }

    /// Goes on after [`JobScheduler::pause`], with a look at every tree.
    pub(crate) fn unpause(&self) {
        self.store.set_paused(false);
        for tree in self.store.all_trees() {
            self.store.make_ready(Work::Flush, tree.id);
            self.store.make_ready(Work::Compaction, tree.id);
        }
    }

    /// Waits until the threads have ended; the store says that it closes already. False if the
    /// deadline passed before.
    pub(crate) fn join(&self, deadline_us: Option<u64>) -> bool {
        let store = &self.store;
        store.progress.notify();
        let ended = || self.at_work.load(Ordering::Acquire) == 0;
        let cause = WaitCause::Close;
        if !store.env.wait(cause, &store.progress, deadline_us, &mut || ended()) {
            return false;
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // What a worker does is caught, so it ends well.
            let _ = store.env.join(thread);
        }
        true
    }
}

/// The end of a pause that begins now, or `None` past the end of the clock.
fn end_of_pause(now_us: u64, pause_us: u64) -> Option<u64> {
    match failpoint::is_on(Failpoint::TimeOverflows) {
        true => Some(now_us + pause_us),
        false => now_us.checked_add(pause_us),
    }
}
