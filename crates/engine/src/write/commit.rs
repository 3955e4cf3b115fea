//! Commit pipeline. Each commit passes four stages in WAL order:
//!
//! 1. *Logging.* A writer adds its commit to the queue. If there is no leader, the writer becomes the leader. The
//!    leader takes a group of commits from the queue, checks their guards, seals full memtables and assigns sequence
//!    numbers. The leader then appends the whole group to the WAL with one write.
//! 2. *Sync.* If a commit of the group requests a sync, the leader syncs the WAL. If the append or the sync fails, the
//!    database becomes read-only. All commits of the group then fail, none is inserted, and the sequence numbers are
//!    not used again. If another thread has synced the group before the failed sync, the group succeeds.
//! 3. *Insertion.* The leader inserts the operations of all commits into the memtables. The other writers of the group
//!    sleep until all stages are done, so that each of them is woken only once.
//! 4. *Publication.* Groups become visible in WAL order, each after all earlier groups.
//!
//! The leader hands over the leadership to the first waiting thread. If the group is small, the leader first inserts
//! it, and publishes it together with the handover. If the group is large, the leader hands over the leadership before
//! the insertion, so that the next group can be logged at the same time. Each sleeping thread has its own signal.
//!
//! Async tasks also add commits to the queue, but they never become the leader. A thread becomes the leader for the
//! commits of tasks that precede its own commit. If only commits of tasks wait, the leadership is *offered*, and a
//! worker thread that [`TaskWorkerStarter`] starts takes it. Any other thread that commits or closes the database may
//! take it before the worker thread. Progress therefore does not depend on a free thread of the runtime.
//!
//! Only the leader changes the next sequence number and the active memtables, so that no lock is necessary for them. No
//! lock is held during I/O or while a thread waits.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::{Context, Poll};
use std::time::Duration;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, AtomicU64, Mutex, Ordering, Signal, thread_local, thread_signal};

use crate::env::{Background, WaitCause, YieldKind, duration_us};
use crate::error::{Error, Result};
use crate::metrics::CommitMetrics;
use crate::state::DbState;
use crate::tree::Tree;
use crate::tree::counters::add;
use crate::write::batch::WriteBatch;
use crate::write::group::{CommitGroup, GroupStage};
use crate::write::queue::{CommitQueue, InFlightGroup, Leadership};
use crate::write::ticket::{
    CommitRequest, CommitTicket, LongOperandChain, TaskWorkerStarter, TicketOwner,
};

/// Maximum payload in bytes of a group that is inserted before the leadership is handed over. Inserting such a group
/// does not take longer than waking the next leader.
const SMALL_GROUP_BYTES: usize = 4 << 10;
/// The leader waits for the writers of the last sync for at most the average sync time divided by this number.
const SYNC_WAIT_DIVISOR: u64 = 2;

thread_local! {
    /// Memory of the last group that this thread led. The next group reuses it.
    static SPARE_GROUP: Cell<CommitGroup> = Cell::default();
}

/// Commit pipeline of a database.
#[derive(Debug)]
pub(crate) struct Committer {
    state: Arc<DbState>,
    queue: Mutex<CommitQueue>,
    /// Notified when a group or exclusive work ends, and when a ticket is withdrawn.
    changed: Signal,
    /// Notified when all writers for which the leader waits are in the queue.
    writers_arrived: Signal,
    /// Moving average of the time to sync the WAL for a group, in microseconds.
    sync_us: AtomicU64,
    counters: CommitCounters,
}

#[derive(Debug, Default)]
struct CommitCounters {
    requests: AtomicU64,
    groups: AtomicU64,
    behind_sync: AtomicU64,
    guard_checks: AtomicU64,
}

impl Committer {
    /// Creates a commit pipeline. The first operation gets the sequence number `next_seq`.
    pub(crate) fn new(state: Arc<DbState>, next_seq: SeqNo) -> Committer {
        Committer {
            state,
            queue: Mutex::new(CommitQueue::new(next_seq)),
            changed: Signal::new(),
            writers_arrived: Signal::new(),
            sync_us: AtomicU64::new(0),
            counters: CommitCounters::default(),
        }
    }

    /// Commits a batch and waits until it is published. Returns the operand chains that reached their maximum length in
    /// this commit.
    ///
    /// When the commit finishes, `reserved_bytes` bytes of memtable memory are released.
    ///
    /// # Errors
    /// - [`Error::ReadOnly`] after an error of the write path.
    /// - [`Error::Conflict`] if a guard does not hold.
    /// - [`Error::ConflictUnknown`] if a guard cannot be decided.
    /// - [`Error::Deadline`] if the deadline passes before a leader takes the commit, and [`Error::Undecided`] if it
    ///   passes later.
    pub(crate) fn commit(
        &self,
        batch: WriteBatch,
        sync: bool,
        reserved_bytes: u64,
        deadline_us: Option<u64>,
    ) -> Result<Vec<LongOperandChain>> {
        self.submit(CommitRequest::from_batch(batch, sync, reserved_bytes), deadline_us)
    }

    /// Syncs the WAL. All commits before the call are durable afterwards.
    pub(crate) fn sync(&self, deadline_us: Option<u64>) -> Result<()> {
        self.submit(CommitRequest { sync: true, ..CommitRequest::default() }, deadline_us).map(drop)
    }

    /// Seals the active memtables of several trees at one position in the commit order.
    pub(crate) fn seal_memtables(
        &self,
        trees: Vec<Arc<Tree>>,
        deadline_us: Option<u64>,
    ) -> Result<()> {
        let request = CommitRequest { seal: trees, ..CommitRequest::default() };
        self.submit(request, deadline_us).map(drop)
    }

    /// Runs `work` as the only operation in the pipeline, at one position in the commit order. `work` receives the
    /// sequence number of this position. If `work` returns a value, the sequence number is published. If `work` returns
    /// `None`, or if it fails and the database is still writable, the next commit uses the sequence number.
    ///
    /// All earlier commits are published before `work` starts. Later commits wait until it ends. Only one thread may
    /// call this function at a time, and `work` must not commit.
    ///
    /// # Errors
    /// - The error of `work`.
    /// - [`Error::Deadline`] if the deadline passes before `work` starts.
    /// - If `work` panics, the database becomes read-only, and the error of the panic is returned.
    pub(crate) fn run_exclusive<R>(
        &self,
        deadline_us: Option<u64>,
        work: impl FnOnce(SeqNo) -> Result<Option<R>>,
    ) -> Result<Option<R>> {
        self.take_exclusive_lead(deadline_us)?;
        let (seq, incomplete_insert) = {
            let queue = self.queue.lock();
            (SeqNo(queue.next_seq), queue.incomplete_insert.clone())
        };
        let run = || incomplete_insert.map_or_else(|| work(seq), Err);
        let done = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            Err(self.state.make_read_only_under_lock(Error::from_panic(&*panic)))
        });
        let next = {
            let mut queue = self.queue.lock();
            let is_used = matches!(done, Ok(Some(_)));
            // After an error of the manifest, the manifest may already contain this sequence number, so it is not used
            // again.
            if is_used || self.state.error_state.check_writable().is_err() {
                queue.next_seq = seq.0 + 1;
            }
            if is_used {
                self.publish_up_to(seq);
            }
            queue.hand_over_lead()
        };
        self.wake_leader(next.as_ref());
        self.changed.notify();
        self.state.emit_pending_events();
        done
    }

    /// Waits until this thread is the leader for exclusive work and all earlier commits are published.
    fn take_exclusive_lead(&self, deadline_us: Option<u64>) -> Result<()> {
        self.state.env.yield_point(YieldKind::Commit);
        self.queue.lock().request_exclusive_lead();
        let can_run = &mut || self.queue.lock().can_run_exclusively();
        let cause = WaitCause::CommitAhead;
        if self.state.env.wait(cause, &self.changed, deadline_us, can_run) {
            return Ok(());
        }
        let next = {
            let mut queue = self.queue.lock();
            match queue.withdraw_exclusive_request() {
                true => None,
                false => queue.hand_over_lead(),
            }
        };
        self.wake_leader(next.as_ref());
        self.changed.notify();
        Err(Error::Deadline { cause: cause.as_str() })
    }

    pub(crate) fn metrics(&self) -> CommitMetrics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CommitMetrics {
            requests: read(&self.counters.requests),
            groups: read(&self.counters.groups),
            behind_sync: read(&self.counters.behind_sync),
            guard_checks: read(&self.counters.guard_checks),
        }
    }

    /// Returns the sequence number of the next operation.
    pub(crate) fn next_seq(&self) -> SeqNo {
        SeqNo(self.queue.lock().next_seq)
    }

    /// Waits until no commit is in progress. The caller must prevent new commits. Returns false if the deadline passes
    /// first.
    pub(crate) fn wait_until_idle(&self, deadline_us: Option<u64>) -> bool {
        loop {
            let cause = WaitCause::CommitAhead;
            let can_continue = self.state.env.wait(cause, &self.changed, deadline_us, &mut || {
                let queue = self.queue.lock();
                queue.is_idle() || queue.leadership == Leadership::Offered
            });
            if !can_continue {
                return false;
            }
            let mut queue = self.queue.lock();
            if queue.take_offered_lead() {
                // This thread leads the group, because the worker thread that was started for it may be waiting for
                // this thread.
                drop(queue);
                self.lead_group();
            } else if queue.is_idle() {
                return true;
            }
        }
    }

    /// Adds a batch of an async task to the queue. The commit continues if the returned value is dropped.
    ///
    /// If operand chains reach their maximum length in this commit, [`Committer::take_long_operand_chains`] returns
    /// them.
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "only async tasks use it"))]
    pub(crate) fn commit_for_task(
        self: &Arc<Self>,
        batch: WriteBatch,
        sync: bool,
        reserved_bytes: u64,
        workers: &Arc<dyn TaskWorkerStarter>,
    ) -> PendingCommit {
        let workers = Arc::clone(workers);
        let owner = TicketOwner::Task { waker: Mutex::default(), workers };
        let ticket =
            CommitTicket::new(CommitRequest::from_batch(batch, sync, reserved_bytes), owner);
        let needs_leader = {
            let mut queue = self.queue.lock();
            self.enqueue(&mut queue, &ticket);
            queue.leadership == Leadership::Idle && queue.offer_lead()
        };
        if needs_leader {
            self.wake_leader(Some(&ticket));
        }
        PendingCommit { committer: Arc::clone(self), ticket }
    }

    fn enqueue(&self, queue: &mut CommitQueue, ticket: &Arc<CommitTicket>) {
        if queue.is_syncing && !ticket.request.sync {
            add(&self.counters.behind_sync, 1);
        }
        if queue.push(ticket) {
            self.writers_arrived.notify();
        }
    }

    fn submit(
        &self,
        request: CommitRequest,
        deadline_us: Option<u64>,
    ) -> Result<Vec<LongOperandChain>> {
        let changed = thread_signal();
        let ticket = CommitTicket::new(request, TicketOwner::Thread(changed.clone()));
        self.state.env.yield_point(YieldKind::Commit);
        let mut leads = {
            let mut queue = self.queue.lock();
            self.enqueue(&mut queue, &ticket);
            // Takes even an offered leadership, because the worker thread that was started for it may be waiting for
            // this thread.
            queue.take_free_lead()
        };
        let wait = |deadline_us| {
            let has_changed = &mut || !ticket.is_queued();
            self.state.env.wait(WaitCause::CommitAhead, &changed, deadline_us, has_changed)
        };
        loop {
            if leads {
                // Usually, the group contains this thread's own ticket. The ticket may remain in the queue if the
                // commits of tasks before it fill the group. The ticket may also be unfinished because an earlier group
                // is not inserted yet.
                self.lead_group();
            }
            let is_late = !wait(deadline_us);
            if is_late && self.withdraw(&ticket) {
                return Err(Error::Deadline { cause: WaitCause::CommitAhead.as_str() });
            }
            if is_late && failpoint::is_on(Failpoint::FollowerExceedsDeadline) {
                wait(None);
            }
            if let Some(result) = ticket.result() {
                result?;
                return Ok(std::mem::take(&mut *ticket.long_chains.lock()));
            }
            leads = ticket.take_lead();
            if is_late && !leads {
                return Err(ticket.deadline_error());
            }
        }
    }

    /// Leads the next group if the leadership is offered, and returns true. If it returns false, the worker thread that
    /// [`TaskWorkerStarter`] started must exit.
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "only async tasks use it"))]
    pub(crate) fn lead_next_commit_group(&self) -> bool {
        let mut queue = self.queue.lock();
        if queue.take_offered_lead() {
            if !queue.waiting.is_empty() {
                drop(queue);
                self.lead_group();
                return true;
            }
            queue.leadership = Leadership::Idle;
        }
        queue.has_task_leader = false;
        drop(queue);
        self.changed.notify();
        false
    }

    /// Removes and returns the operand chains of commits of async tasks that must be folded. If there are none, the
    /// worker thread that [`TaskWorkerStarter`] started must exit.
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "only async tasks use it"))]
    pub(crate) fn take_long_operand_chains(&self) -> Vec<LongOperandChain> {
        self.queue.lock().take_long_operand_chains()
    }

    /// Returns whether the leadership is offered and no thread has taken it.
    pub(crate) fn is_lead_offered(&self) -> bool {
        self.queue.lock().leadership == Leadership::Offered
    }

    /// Leads one group if the leadership is offered.
    ///
    /// A thread calls this function before it waits for commits of async tasks, because the runtime of these tasks may
    /// have no other free thread.
    pub(crate) fn lead_if_offered(&self) {
        if self.queue.lock().take_offered_lead() {
            self.lead_group();
        }
    }

    /// Wakes the thread that is the next leader, or starts a worker thread. The queue must not be locked.
    fn wake_leader(&self, next: Option<&Arc<CommitTicket>>) {
        match next.map(|ticket| &ticket.owner) {
            Some(TicketOwner::Thread(changed)) => changed.notify(),
            Some(TicketOwner::Task { workers, .. }) => {
                workers.start_leader();
                // A thread that waits for memtable memory can take the leadership, too, so it is woken.
                if self.state.memtables.is_full() {
                    self.state.progress.notify();
                }
            }
            None => {}
        }
    }

    /// Finishes a commit: releases its reserved memory, stores the result and wakes the owner. The queue must not be
    /// locked.
    fn complete_ticket(&self, ticket: &CommitTicket, result: Result<()>) {
        self.state.memtables.release(ticket.request.reserved_bytes);
        if let TicketOwner::Task { workers, .. } = &ticket.owner {
            let chains = std::mem::take(&mut *ticket.long_chains.lock());
            if !chains.is_empty() && self.queue.lock().push_long_operand_chains(chains) {
                workers.start_folding();
            }
        }
        ticket.complete(result);
    }

    /// Removes a ticket from the queue. Returns false if a leader has already taken the ticket, or if its owner must
    /// become the leader.
    fn withdraw(&self, ticket: &Arc<CommitTicket>) -> bool {
        let is_removed = self.queue.lock().remove(ticket);
        if is_removed {
            self.state.memtables.release(ticket.request.reserved_bytes);
        }
        // The removal may have emptied the queue, so `wait_until_idle` must check it again.
        self.changed.notify();
        is_removed
    }

    /// Takes the next group through all stages.
    ///
    /// If a stage panics, the group fails. Otherwise, later commits and `close` would wait for its leader forever.
    fn lead_group(&self) {
        // Events are delivered after the leadership has been handed over and the group is finished.
        let _events =
            (!failpoint::is_on(Failpoint::EventsDuringLead)).then(|| self.state.defer_events());
        // Thread-local variables may be unavailable while the thread exits.
        let mut group = SPARE_GROUP.try_with(Cell::take).unwrap_or_default();
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run_stages(&mut group)));
        if let Err(panic) = outcome {
            if failpoint::is_on(Failpoint::PanicStrandsGroup) {
                resume_unwind(panic);
            }
            self.abort_group(&mut group, Error::from_panic(&*panic));
        }
        self.changed.notify();
        group.clear();
        let _ = SPARE_GROUP.try_with(|spare| spare.set(group));
    }

    fn run_stages(&self, group: &mut CommitGroup) {
        group.stage = GroupStage::Logging;
        group.has_lead = true;
        self.wait_for_writers();
        self.take_group(group);
        add(&self.counters.groups, 1);
        add(&self.counters.requests, group.members.len() as u64);
        let logged = self.write_log(group);
        self.state.env.yield_point(YieldKind::Commit);
        match logged {
            Ok(()) if group.payload_bytes <= SMALL_GROUP_BYTES => {
                self.insert(group);
                self.publish(group);
            }
            Ok(()) => match self.put_in_flight(group) {
                Ok(()) => {
                    self.insert(group);
                    self.publish_in_order(group);
                }
                Err(error) => self.fail_group(group, &error),
            },
            Err(error) => self.fail_group(group, &error),
        }
    }

    /// Ends a group after its leader panicked. The database becomes read-only, and the leadership is handed over.
    ///
    /// All commits of the group fail. If the panic happened during the insertion, all later unpublished groups fail as
    /// well.
    fn abort_group(&self, group: &mut CommitGroup, error: Error) {
        if group.stage == GroupStage::Finished {
            // The result is final, but some members may not have received it yet.
            for member in group.members.iter().filter(|member| member.result().is_none()) {
                self.complete_ticket(member, group.result());
            }
            return;
        }
        // After a panic, the last record of the WAL may be incomplete.
        self.state.wal.set_failure(&error);
        let error = self.state.make_read_only_under_lock(error);
        let mut failed = group.members.clone();
        failed.extend(group.rejected.drain(..).map(|(ticket, _)| ticket));
        let mut queue = self.queue.lock();
        if group.stage == GroupStage::Inserting {
            // The memtables may contain a part of the group. No group may be published from now on. The WAL contains
            // the whole group, and the next open replays it.
            queue.incomplete_insert = Some(error.clone());
            failed.extend(queue.remove_in_flight_groups_from(group.last_seq()));
        }
        let next = if group.has_lead { queue.pass_lead(group) } else { None };
        drop(queue);
        self.wake_leader(next.as_ref());
        for member in failed.iter().filter(|member| member.result().is_none()) {
            self.complete_ticket(member, Err(error.clone()));
        }
        self.state.emit_pending_events();
    }

    fn insert(&self, group: &mut CommitGroup) {
        group.stage = GroupStage::Inserting;
        if failpoint::is_on(Failpoint::CommitPublishedEarly) {
            self.publish_up_to(group.last_seq());
            self.state.env.yield_point(YieldKind::Commit);
        }
        self.state.memtables.add(group.insert(&self.state));
        self.state.env.yield_point(YieldKind::Commit);
    }

    fn publish_up_to(&self, last_seq: SeqNo) {
        self.state.sequence.publish(self.state.sequence.published().max(last_seq));
    }

    /// Hands over the leadership and publishes an inserted group. If an earlier group is not inserted yet, the leader
    /// of the earlier group publishes this group as well.
    fn publish(&self, group: &mut CommitGroup) {
        let last_seq = group.last_seq();
        let mut queue = self.queue.lock();
        let next = queue.pass_lead(group);
        group.stage = GroupStage::Finished;
        if let Some(error) = &queue.incomplete_insert {
            group.error = Some(error.clone());
        } else if queue.in_flight.is_empty() {
            self.publish_up_to(last_seq);
        } else {
            let members = Arc::new(std::mem::take(&mut group.members));
            queue.in_flight.push_back(InFlightGroup { members, last_seq, is_inserted: true });
        }
        drop(queue);
        self.wake_leader(next.as_ref());
        for member in &group.members {
            self.complete_ticket(member, group.result());
        }
    }

    /// Adds the group to the unpublished groups, and hands over the leadership before the group is inserted.
    ///
    /// # Errors
    /// The insertion of an earlier group has failed, so that this group cannot be published.
    fn put_in_flight(&self, group: &mut CommitGroup) -> Result<()> {
        let (members, last_seq) = (Arc::new(group.members.clone()), group.last_seq());
        let mut queue = self.queue.lock();
        if let Some(error) = &queue.incomplete_insert {
            return Err(error.clone());
        }
        queue.in_flight.push_back(InFlightGroup { members, last_seq, is_inserted: false });
        let next = queue.pass_lead(group);
        drop(queue);
        self.wake_leader(next.as_ref());
        Ok(())
    }

    /// Marks an unpublished group as inserted. Publishes the oldest groups up to the first one that is not inserted.
    fn publish_in_order(&self, group: &mut CommitGroup) {
        let last_seq = group.last_seq();
        let mut published = Vec::new();
        let mut queue = self.queue.lock();
        group.stage = GroupStage::Finished;
        // A large group contains operations. Its last sequence number therefore identifies it.
        if let Some(own) = queue.in_flight.iter_mut().find(|other| other.last_seq == last_seq) {
            own.is_inserted = true;
        }
        while let Some(InFlightGroup { members, last_seq, .. }) = queue.pop_inserted_group() {
            self.publish_up_to(last_seq);
            published.push(members);
        }
        drop(queue);
        for member in published.iter().flat_map(|members| members.iter()) {
            self.complete_ticket(member, Ok(()));
        }
    }

    fn fail_group(&self, group: &mut CommitGroup, error: &Error) {
        let next = self.queue.lock().pass_lead(group);
        (group.stage, group.error) = (GroupStage::Finished, Some(error.clone()));
        self.wake_leader(next.as_ref());
        for member in &group.members {
            self.complete_ticket(member, Err(error.clone()));
        }
    }

    /// Delays a group that will be synced until the writers of the last synced group have queued their next commits.
    ///
    /// These writers usually commit again after a short time. Without the delay, their commits would have to wait for a
    /// further sync.
    fn wait_for_writers(&self) {
        if !matches!(self.state.env.background(), Background::Threads { .. }) {
            return;
        }
        let wait_us = self.sync_us.load(Ordering::Relaxed) / SYNC_WAIT_DIVISOR;
        {
            let mut queue = self.queue.lock();
            if wait_us == 0
                || queue.waiting.len() >= queue.last_sync_writers
                || !queue.waiting.iter().any(|ticket| ticket.request.sync)
            {
                return;
            }
            queue.awaited_writers = queue.last_sync_writers;
        }
        let deadline_us = Some(self.state.env.now_us().saturating_add(wait_us));
        self.state.env.wait(
            WaitCause::CommitAhead,
            &self.writers_arrived,
            deadline_us,
            &mut || self.queue.lock().awaited_writers == 0,
        );
        self.queue.lock().awaited_writers = 0;
    }

    /// Takes the next group from the queue, rejects commits that must not be written, and assigns sequence numbers.
    ///
    /// The queue is not locked while guards are checked, because the checks can take long. This is safe, because only
    /// the leader changes sequence numbers and active memtables. Meanwhile, groups may be removed from `in_flight`, but
    /// none is added.
    fn take_group(&self, group: &mut CommitGroup) {
        let mut queue = self.queue.lock();
        let checks = if queue.take_members(group) {
            let in_flight: Vec<_> =
                queue.in_flight.iter().map(|other| Arc::clone(&other.members)).collect();
            drop(queue);
            let checks = group.reject_members(&self.state, &in_flight);
            queue = self.queue.lock();
            checks
        } else {
            group.reject_members(&self.state, &[])
        };
        add(&self.counters.guard_checks, checks);
        group.assign_sequence_numbers(&self.state, &mut queue.next_seq);
        queue.is_syncing = group.sync;
        drop(queue);
        for (ticket, error) in group.rejected.drain(..) {
            self.complete_ticket(&ticket, Err(error));
        }
    }

    /// Appends the group to the WAL. Syncs the WAL if a member requested this.
    fn write_log(&self, group: &CommitGroup) -> Result<()> {
        let considered = if failpoint::is_on(Failpoint::FollowerSyncForgotten) {
            1
        } else {
            group.members.len()
        };
        let sync = group.sync && group.members.iter().take(considered).any(|at| at.request.sync);
        let is_logged = sync || !failpoint::is_on(Failpoint::BufferedNotLogged);
        let write = || {
            let mut records = group.wal_records().peekable();
            if records.peek().is_some() && is_logged {
                self.state.wal.append(records)?;
                // Idle flush threads check the age of unsynced bytes.
                if !sync && self.state.wal.claim_wakeup() {
                    self.state.progress.notify();
                }
            }
            if sync {
                self.state.env.yield_point(YieldKind::Commit);
                let start_ns = self.state.env.monotonic_ns();
                self.sync_log(group.last_seq())?;
                let us = self.state.env.monotonic_ns().saturating_sub(start_ns) / 1_000;
                let average = self.sync_us.load(Ordering::Relaxed);
                self.sync_us.store(average - average / 8 + us / 8, Ordering::Relaxed);
            }
            Ok(())
        };
        write().map_err(|error| self.state.make_read_only(error))
    }

    /// Syncs the WAL, which contains all commits up to `last_seq`.
    ///
    /// # Errors
    /// The sync failed, and the last commits may not be on stable storage.
    fn sync_log(&self, last_seq: SeqNo) -> Result<()> {
        let Err(error) = self.state.wal.sync() else { return Ok(()) };
        let error = self.state.make_read_only(error);
        // Another thread may have synced the commits before the failure. A follower may show them already, so they must not
        // fail.
        if self.state.wal.durable_seq() >= last_seq { Ok(()) } else { Err(error) }
    }

    /// Publishes all sequence numbers that have been assigned. No commit may be in progress.
    ///
    /// # Errors
    /// If the memtables may contain an incomplete group, returns the error that caused this. The database must then be
    /// reopened.
    pub(crate) fn publish_all_inserted_groups(&self) -> Result<SeqNo> {
        let queue = self.queue.lock();
        if let Some(error) = &queue.incomplete_insert {
            return Err(error.clone());
        }
        let last = SeqNo(queue.next_seq - 1);
        self.state.sequence.publish(last);
        Ok(last)
    }

    /// Waits until `seq` is published. All operations up to `seq` are then inserted. Also returns when the database
    /// becomes read-only.
    pub(crate) fn wait_published(&self, seq: SeqNo) {
        let sequence = &self.state.sequence;
        if sequence.published() < seq {
            self.state.env.wait(WaitCause::CommitAhead, &self.changed, None, &mut || {
                sequence.published() >= seq || self.state.error_state.check_writable().is_err()
            });
        }
    }

    /// Converts a maximum waiting time to a deadline of the environment's clock.
    pub(crate) fn deadline_us(&self, wait_max: Option<Duration>) -> Option<u64> {
        Some(self.state.env.now_us().saturating_add(duration_us(wait_max?)))
    }
}

/// Commit of an async task.
#[derive(Debug)]
pub(crate) struct PendingCommit {
    committer: Arc<Committer>,
    ticket: Arc<CommitTicket>,
}

#[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "only async tasks use it"))]
impl PendingCommit {
    /// Returns the result if the commit has finished. Otherwise, wakes the task when it finishes.
    pub(crate) fn poll(&self, task: &mut Context<'_>) -> Poll<Result<()>> {
        self.ticket.poll(task.waker()).map_or(Poll::Pending, Poll::Ready)
    }

    /// Returns the error for a commit that could not be withdrawn before its deadline.
    pub(crate) fn deadline_error(&self) -> Error {
        self.ticket.deadline_error()
    }

    /// Removes the commit from the queue. Returns false if a leader has already taken it.
    pub(crate) fn withdraw(&self) -> bool {
        self.committer.withdraw(&self.ticket)
    }
}
