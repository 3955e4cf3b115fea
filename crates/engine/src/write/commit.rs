//! The commit pipeline: four stations in the order of the log.
//!
//! 1. *Appended.* Writers queue; the one that finds nobody leading leads. It takes a group off the
//!    queue, checks guards, gives out sequence numbers, seals full memtables, and appends the whole
//!    group to the log in one write.
//! 2. *Synced*, if any in the group asked for it. A failed append or sync fails the whole group,
//!    leaves nothing in memory, and makes the database read-only; its numbers are never given again.
//! 3. *Inserted* into the memtables by the leader, for all of its group: so a member sleeps once and
//!    not at every station.
//! 4. *Published*, strictly in order: a commit is seen only when all before it are.
//!
//! A leader has one group. It hands the lead to whoever waits first: a large group before it is
//! inserted, so that the next one can go to the log meanwhile; a small one only when it is
//! published, under one lock with that. Every sleeper has a signal of its own.
//!
//! Tasks of an asynchronous runtime queue as threads do, and do not lead. A thread that commits leads
//! for those ahead of it; where none does, the lead is *promised*, and a thread that the tasks'
//! attendant sends comes for it. Until it has come, any other that commits or closes takes the lead: so
//! the queue never depends on whether the runtime has a thread to spare.
//!
//! The leader changes what later commits depend on (numbers, active memtables) alone, so neither
//! needs a lock of its own. No lock is held over I/O or a wait.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::{Context, Poll};
use std::time::Duration;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, AtomicU64, Mutex, Ordering, Signal, thread_local, thread_signal};

use crate::env::{Background, WaitCause, YieldKind};
use crate::error::{Error, Result};
use crate::memtable::Memtable;
use crate::metrics::CommitMetrics;
use crate::state::DbState;
use crate::state::work_queue::WorkKind;
use crate::tree::Tree;
use crate::tree::counters::add;
use crate::tree::guard_history::GuardState;
use crate::write::batch::WriteBatch;
use crate::write::group::check_published;
use crate::write::group::{Attendant, Group, LongChain, Owner, Request, Stage, Station, Ticket};

/// Payload bytes at which a group takes no further member.
const GROUP_BYTES_MAX: usize = 1 << 20;
/// Members at which it takes none either: tasks that queue wait for the lock under which it is made up.
const GROUP_MEMBERS_MAX: usize = 4 << 10;
/// Pairs of guards and earlier commits at which a group takes no further member.
const GROUP_CHECKS_MAX: usize = 8 << 10;
/// Payload bytes up to which a group is inserted before the lead goes on: that takes no longer than
/// waking the next leader does.
const SMALL_GROUP_BYTES: usize = 4 << 10;
/// Which part of the time of a sync a leader waits for writers that are on their way back.
const GATHER_PART: u64 = 2;
/// Most chains of operands that are kept to be folded for tasks.
const CHAINS_MAX: usize = 1 << 10;

/// Commits of one group. Shared, so that checks of guards clone a group under the lock in constant time.
type Members = Arc<Vec<Arc<Ticket>>>;

/// A group between the log and its publication.
#[derive(Debug)]
struct InFlight {
    members: Members,
    last_seq: SeqNo,
    inserted: bool,
}

thread_local! {
    /// The memory of a group that this thread has led.
    static SPARE: Cell<Group> = Cell::default();
}

/// Who leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lead {
    /// Nobody, and nobody waits.
    Free,
    /// A thread.
    Taken,
    /// Whoever comes first: the thread that an attendant sends for the tasks that wait, or another that
    /// commits.
    Promised,
}

#[derive(Debug)]
struct Queue {
    /// The number that the next operation gets.
    seq_next: u64,
    lead: Lead,
    /// Whether a thread that leads for tasks is there, or on its way: one at a time.
    attended: bool,
    /// Whether the leader syncs the group at hand.
    lead_syncs: bool,
    waiting: VecDeque<Arc<Ticket>>,
    /// How many of these are threads'.
    threads: usize,
    /// In the log, not published yet; in the order of the log.
    in_flight: VecDeque<InFlight>,
    /// How many waiting writers the leader holds its group back for; 0 if it does not.
    gathering: usize,
    /// Writers that asked for the last sync, or came during it.
    sync_writers: usize,
    /// Chains of operands that commits of tasks made too long.
    chains: Vec<LongChain>,
    /// Whether a thread that folds them is there, or on its way.
    folding: bool,
    /// Why the memtables may hold a part of a group, if they may. Nothing is published any more until the database is
    /// opened again.
    torn: Option<Error>,
}

impl Queue {
    /// Promises the lead; returns whether somebody has to be sent for it.
    fn promise(&mut self) -> bool {
        self.lead = Lead::Promised;
        !std::mem::replace(&mut self.attended, true)
    }
}

/// Takes commits through the four stations.
#[derive(Debug)]
pub(crate) struct Committer {
    store: Arc<DbState>,
    queue: Mutex<Queue>,
    /// Given when nobody leads any more, or something was published.
    changed: Signal,
    /// Given when as many wait as the leader gathers.
    gathered: Signal,
    /// How long a sync of a group takes, averaged, in microseconds.
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
    /// A pipeline whose first operation gets the number `seq_next`.
    pub(crate) fn new(store: Arc<DbState>, seq_next: SeqNo) -> Committer {
        let queue = Queue {
            seq_next: seq_next.0,
            lead: Lead::Free,
            attended: false,
            lead_syncs: false,
            waiting: VecDeque::new(),
            threads: 0,
            in_flight: VecDeque::new(),
            gathering: 0,
            sync_writers: 0,
            chains: Vec::new(),
            folding: false,
            torn: None,
        };
        Committer {
            store,
            queue: Mutex::new(queue),
            changed: Signal::new(),
            gathered: Signal::new(),
            sync_us: AtomicU64::new(0),
            counters: CommitCounters::default(),
        }
    }

    /// Commits a batch for which so many memtable bytes are reserved. Returns the chains of operands that
    /// it made too long.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] after a write-path error, [`Error::GuardRefused`], [`Error::GuardUnknown`],
    /// [`Error::Deadline`].
    pub(crate) fn commit(
        &self,
        batch: WriteBatch,
        sync: bool,
        reserved_bytes: u64,
        deadline_us: Option<u64>,
    ) -> Result<Vec<LongChain>> {
        self.submit(Request::of(batch, sync, reserved_bytes), deadline_us)
    }

    /// Syncs the log through everything committed before the call.
    pub(crate) fn sync(&self, deadline_us: Option<u64>) -> Result<()> {
        self.submit(Request { sync: true, ..Request::default() }, deadline_us).map(drop)
    }

    /// Seals the active memtables of trees, at one point of the order of commits.
    pub(crate) fn seal(&self, trees: Vec<Arc<Tree>>, deadline_us: Option<u64>) -> Result<()> {
        self.submit(Request { seal: trees, ..Request::default() }, deadline_us).map(drop)
    }

    /// What came through so far.
    pub(crate) fn metrics(&self) -> CommitMetrics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CommitMetrics {
            requests: read(&self.counters.requests),
            groups: read(&self.counters.groups),
            behind_sync: read(&self.counters.behind_sync),
            guard_checks: read(&self.counters.guard_checks),
        }
    }

    /// The number that the next operation gets.
    pub(crate) fn seq_next(&self) -> SeqNo {
        SeqNo(self.queue.lock().seq_next)
    }

    /// Waits until no commit is under way. New ones must be kept out by other means.
    pub(crate) fn drain(&self, deadline_us: Option<u64>) -> bool {
        loop {
            let idle = |queue: &Queue| {
                queue.lead == Lead::Free && queue.waiting.is_empty() && queue.in_flight.is_empty()
            };
            let cause = WaitCause::CommitAhead;
            let met = self.store.env.wait(cause, &self.changed, deadline_us, &mut || {
                let queue = self.queue.lock();
                idle(&queue) || queue.lead == Lead::Promised
            });
            if !met {
                return false;
            }
            let mut queue = self.queue.lock();
            if queue.lead == Lead::Promised {
                // Whoever is to come for it may be waiting for this thread.
                queue.lead = Lead::Taken;
                drop(queue);
                self.lead_group();
            } else if idle(&queue) {
                return true;
            }
        }
    }

    /// Commits a batch for a task: what is returned tells when it is decided. Whether anybody asks or
    /// not, the commit takes its way. Chains of operands that it makes too long are among
    /// [`Committer::chains`].
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "tasks alone need it"))]
    pub(crate) fn commit_for_task(
        self: &Arc<Self>,
        batch: WriteBatch,
        sync: bool,
        reserved_bytes: u64,
        attendant: &Arc<dyn Attendant>,
    ) -> Pending {
        let attendant = Arc::clone(attendant);
        let owner = Owner::Task { waker: Mutex::default(), attendant };
        let ticket = Ticket::new(Request::of(batch, sync, reserved_bytes), owner);
        let send = {
            let mut queue = self.queue.lock();
            self.enqueue(&mut queue, &ticket);
            queue.lead == Lead::Free && queue.promise()
        };
        if send {
            self.send_for(&ticket);
        }
        Pending { committer: Arc::clone(self), ticket }
    }

    fn enqueue(&self, queue: &mut Queue, ticket: &Arc<Ticket>) {
        if queue.lead_syncs && !ticket.request.sync {
            add(&self.counters.behind_sync, 1);
        }
        queue.threads += usize::from(ticket.can_lead());
        queue.waiting.push_back(Arc::clone(ticket));
        if queue.gathering > 0 && queue.waiting.len() >= queue.gathering {
            queue.gathering = 0;
            self.gathered.notify();
        }
    }

    fn submit(&self, request: Request, deadline_us: Option<u64>) -> Result<Vec<LongChain>> {
        let changed = thread_signal();
        let ticket = Ticket::new(request, Owner::Thread(changed.clone()));
        self.store.env.yield_point(YieldKind::Commit);
        let mut lead = {
            let mut queue = self.queue.lock();
            self.enqueue(&mut queue, &ticket);
            // Who was promised the lead has not come for it, and may be waiting for this very thread.
            std::mem::replace(&mut queue.lead, Lead::Taken) != Lead::Taken
        };
        let wait = |deadline_us| {
            let turn = &mut || !ticket.is_waiting();
            self.store.env.wait(WaitCause::CommitAhead, &changed, deadline_us, turn)
        };
        loop {
            if lead {
                // Most often the own ticket is in the group. It is not where threads lead for tasks
                // ahead of them that fill a group, and not decided where a group before is not
                // inserted yet.
                self.lead_group();
            }
            let late = !wait(deadline_us);
            if late && self.withdraw(&ticket) {
                return Err(Error::Deadline { cause: WaitCause::CommitAhead.as_str() });
            }
            if late && failpoint::is_on(Failpoint::FollowerExceedsDeadline) {
                wait(None);
            }
            if let Some(result) = ticket.decided() {
                result?;
                return Ok(std::mem::take(&mut *ticket.long.lock()));
            }
            lead = ticket.take_lead();
            if late && !lead {
                return Err(ticket.undecided());
            }
        }
    }

    /// Leads the next group for tasks, if that was promised; false if it was not, or not any more: then
    /// whoever the [`Attendant`] sent may go.
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "tasks alone need it"))]
    pub(crate) fn attend(&self) -> bool {
        let mut queue = self.queue.lock();
        let promised = queue.lead == Lead::Promised;
        if promised && !queue.waiting.is_empty() {
            queue.lead = Lead::Taken;
            drop(queue);
            self.lead_group();
            return true;
        }
        if promised {
            queue.lead = Lead::Free;
        }
        queue.attended = false;
        drop(queue);
        self.changed.notify();
        false
    }

    /// Takes the chains of operands that commits of tasks made too long; without any, whoever the
    /// [`Attendant`] sent may go.
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "tasks alone need it"))]
    pub(crate) fn chains(&self) -> Vec<LongChain> {
        let mut queue = self.queue.lock();
        let chains = std::mem::take(&mut queue.chains);
        queue.folding = !chains.is_empty();
        chains
    }

    /// Whether the lead is promised and no thread has come for it yet.
    pub(crate) fn is_promised(&self) -> bool {
        self.queue.lock().lead == Lead::Promised
    }

    /// Leads one group if the lead is promised. A thread that waits for the commits of tasks calls this:
    /// their runtime may have no other thread.
    pub(crate) fn lead_if_promised(&self) {
        let mut queue = self.queue.lock();
        if queue.lead == Lead::Promised {
            queue.lead = Lead::Taken;
            drop(queue);
            self.lead_group();
        }
    }

    /// Has a thread sent that leads for a task, or wakes one that waits in admission. No lock is held.
    fn send_for(&self, ticket: &Ticket) {
        ticket.owner.send();
        if self.store.memtables.is_full() {
            self.store.progress.notify();
        }
    }

    /// Wakes the thread that leads next, or has one sent.
    fn wake(&self, next: Option<Arc<Ticket>>) {
        match next.as_deref() {
            Some(Ticket { owner: Owner::Thread(changed), .. }) => changed.notify(),
            Some(ticket) => self.send_for(ticket),
            None => {}
        }
    }

    /// Says what became of a commit. No lock is held.
    fn decide(&self, ticket: &Ticket, result: Result<()>) {
        self.store.memtables.release(ticket.request.reserved_bytes);
        if let Owner::Task { attendant, .. } = &ticket.owner {
            let long = std::mem::take(&mut *ticket.long.lock());
            if !long.is_empty() {
                let send = {
                    let mut queue = self.queue.lock();
                    // What is past the bound is left to whoever reads the keys.
                    let room = CHAINS_MAX.saturating_sub(queue.chains.len());
                    queue.chains.extend(long.into_iter().take(room));
                    !std::mem::replace(&mut queue.folding, true)
                };
                if send {
                    attendant.fold();
                }
            }
        }
        ticket.go_to(Station::Decided(result));
    }

    /// Takes a ticket back that no leader has taken yet, and that is not to lead.
    fn withdraw(&self, ticket: &Arc<Ticket>) -> bool {
        let mut queue = self.queue.lock();
        let place = queue.waiting.iter().position(|waiting| Arc::ptr_eq(waiting, ticket));
        let place = place.filter(|_| ticket.is_waiting());
        let removed = place.and_then(|place| queue.waiting.remove(place)).is_some();
        queue.threads -= usize::from(removed && ticket.can_lead());
        drop(queue);
        if removed {
            self.store.memtables.release(ticket.request.reserved_bytes);
        }
        // Whoever waits for the queue to drain asks again.
        self.changed.notify();
        removed
    }

    /// Takes the next group through all stations. A panic on the way fails the group, for later commits and `close`
    /// would wait for its leader without end.
    fn lead_group(&self) {
        // Until the lead is handed on and the group is decided.
        let _events =
            (!failpoint::is_on(Failpoint::EventsDuringLead)).then(|| self.store.hold_events());
        // Where the thread's locals are gone it is ending.
        let mut group = SPARE.try_with(Cell::take).unwrap_or_default();
        let led = catch_unwind(AssertUnwindSafe(|| self.lead(&mut group)));
        if let Err(panic) = led {
            if failpoint::is_on(Failpoint::PanicStrandsGroup) {
                resume_unwind(panic);
            }
            self.abandon(&mut group, Error::from_panic(&*panic));
        }
        self.changed.notify();
        group.clear();
        let _ = SPARE.try_with(|spare| spare.set(group));
    }

    fn lead(&self, group: &mut Group) {
        group.stage = Stage::Logging;
        group.leads = true;
        self.gather();
        self.take_group(group);
        add(&self.counters.groups, 1);
        add(&self.counters.requests, group.members.len() as u64);
        let written = self.write_log(group);
        self.store.env.yield_point(YieldKind::Commit);
        match written {
            Ok(()) if group.payload_bytes <= SMALL_GROUP_BYTES => {
                self.insert(group);
                self.publish(group);
            }
            Ok(()) => {
                self.put_in_flight(group);
                self.insert(group);
                self.publish_in_order(group);
            }
            Err(error) => self.fail(group, &error),
        }
    }

    /// Ends a group whose leader has panicked: the database becomes read-only, the group and those behind it fail, and
    /// the lead goes on.
    fn abandon(&self, group: &mut Group, error: Error) {
        if group.stage == Stage::Decided {
            // Its fate is sealed; only some of its members have not been notified.
            for member in group.members.iter().filter(|member| member.decided().is_none()) {
                self.decide(member, group.decision.clone());
            }
            return;
        }
        // No panic is known to have left the log whole.
        self.store.wal.fail(&error);
        let error = self.store.fail_locked(error);
        let mut failed = group.members.clone();
        failed.extend(group.refused.drain(..).map(|(ticket, _)| ticket));
        let mut queue = self.queue.lock();
        if group.stage == Stage::Inserting {
            // Some of its operations may be in the memtables, so nothing from here on may be published. The log has
            // all of them: reopening makes the group whole.
            queue.torn = Some(error.clone());
            let own = group.last_seq();
            let at = queue.in_flight.iter().position(|at| at.last_seq >= own);
            let behind = at.map(|at| queue.in_flight.split_off(at));
            failed
                .extend(behind.iter().flatten().flat_map(|behind| behind.members.iter().cloned()));
        }
        let next = if group.leads { self.hand_over(&mut queue, group) } else { None };
        drop(queue);
        self.wake(next);
        for member in failed.iter().filter(|member| member.decided().is_none()) {
            self.decide(member, Err(error.clone()));
        }
        self.store.emit_pending_events();
    }

    fn insert(&self, group: &mut Group) {
        group.stage = Stage::Inserting;
        if failpoint::is_on(Failpoint::CommitPublishedEarly) {
            self.store.sequence.publish(self.store.sequence.published().max(group.last_seq()));
            self.store.env.yield_point(YieldKind::Commit);
        }
        self.store.memtables.add(group.insert(&self.store));
        self.store.env.yield_point(YieldKind::Commit);
    }

    /// Hands the lead over and publishes a group; where one before it is not inserted yet, its
    /// leader does that.
    fn publish(&self, group: &mut Group) {
        let last_seq = group.last_seq();
        let mut queue = self.queue.lock();
        let next = self.hand_over(&mut queue, group);
        group.stage = Stage::Decided;
        if let Some(torn) = &queue.torn {
            group.decision = Err(torn.clone());
        } else if queue.in_flight.is_empty() {
            self.store.sequence.publish(self.store.sequence.published().max(last_seq));
        } else {
            let members = Arc::new(std::mem::take(&mut group.members));
            queue.in_flight.push_back(InFlight { members, last_seq, inserted: true });
        }
        drop(queue);
        self.wake(next);
        for member in &group.members {
            self.decide(member, group.decision.clone());
        }
    }

    /// Hands the lead over before a group is inserted.
    fn put_in_flight(&self, group: &mut Group) {
        let (members, last_seq) = (Arc::new(group.members.clone()), group.last_seq());
        let mut queue = self.queue.lock();
        queue.in_flight.push_back(InFlight { members, last_seq, inserted: false });
        let next = self.hand_over(&mut queue, group);
        drop(queue);
        self.wake(next);
    }

    /// Publishes a group that is in flight, and those behind it that are inserted, unless one before
    /// it is not: then that one's leader does.
    fn publish_in_order(&self, group: &mut Group) {
        let last_seq = group.last_seq();
        let mut done = Vec::new();
        let mut queue = self.queue.lock();
        group.stage = Stage::Decided;
        // Only a group with operations is large, so its last number is its own.
        if let Some(own) = queue.in_flight.iter_mut().find(|at| at.last_seq == last_seq) {
            own.inserted = true;
        }
        while queue.in_flight.front().is_some_and(|first| first.inserted)
            && let Some(InFlight { members, last_seq, .. }) = queue.in_flight.pop_front()
        {
            self.store.sequence.publish(self.store.sequence.published().max(last_seq));
            done.push(members);
        }
        drop(queue);
        for member in done.iter().flat_map(|members| members.iter()) {
            self.decide(member, Ok(()));
        }
    }

    fn fail(&self, group: &mut Group, error: &Error) {
        let next = self.hand_over(&mut self.queue.lock(), group);
        (group.stage, group.decision) = (Stage::Decided, Err(error.clone()));
        self.wake(next);
        for member in &group.members {
            self.decide(member, Err(error.clone()));
        }
    }

    /// Holds a group that is to be synced back for the writers of the last sync: they are on their
    /// way with their next commits, and would else wait for the sync after this one.
    fn gather(&self) {
        if !matches!(self.store.env.background(), Background::Threads { .. }) {
            return;
        }
        let patience_us = self.sync_us.load(Ordering::Relaxed) / GATHER_PART;
        {
            let mut queue = self.queue.lock();
            if patience_us == 0
                || queue.waiting.len() >= queue.sync_writers
                || !queue.waiting.iter().any(|ticket| ticket.request.sync)
            {
                return;
            }
            queue.gathering = queue.sync_writers;
        }
        let deadline_us = Some(self.store.env.now_us().saturating_add(patience_us));
        self.store.env.wait(WaitCause::CommitAhead, &self.gathered, deadline_us, &mut || {
            self.queue.lock().gathering == 0
        });
        self.queue.lock().gathering = 0;
    }

    /// Takes the next group off the queue, refuses members that may not be written, and numbers the rest.
    ///
    /// Only the leader changes numbers and active memtables, so the lock may be released for the checks
    /// of guards: their cost depends on the batches. Groups leave `in_flight` meanwhile, none enters.
    fn take_group(&self, group: &mut Group) {
        let mut queue = self.queue.lock();
        if Self::take_members(&mut queue, group) {
            let ahead: Vec<_> = queue.in_flight.iter().map(|at| Arc::clone(&at.members)).collect();
            drop(queue);
            self.refuse(group, &ahead);
            queue = self.queue.lock();
        } else {
            self.refuse(group, &[]);
        }
        let Group { members, targets, .. } = &mut *group;
        for ticket in members {
            self.number(&mut queue, targets, ticket);
        }
        queue.lead_syncs = group.sync;
        drop(queue);
        for (ticket, error) in group.refused.drain(..) {
            self.decide(&ticket, Err(error));
        }
    }

    /// Moves waiting commits into a group. Returns whether any of them has guards.
    fn take_members(queue: &mut Queue, group: &mut Group) -> bool {
        let in_flight: usize = queue.in_flight.iter().map(|at| at.members.len()).sum();
        let (mut bytes, mut checks, mut guarded) = (0, 0, false);
        while bytes < GROUP_BYTES_MAX
            && group.members.len() < GROUP_MEMBERS_MAX
            && checks < GROUP_CHECKS_MAX
            && let Some(ticket) = queue.waiting.pop_front()
        {
            queue.threads -= usize::from(ticket.can_lead());
            bytes += ticket.request.payload.len();
            checks += ticket.request.guards.len() * (1 + in_flight + group.members.len());
            guarded |= !ticket.request.guards.is_empty();
            group.members.push(ticket);
        }
        guarded
    }

    /// Sets members aside that may not be written, with the reasons. `ahead` are the groups in flight.
    fn refuse(&self, group: &mut Group, ahead: &[Members]) {
        let (mut checks, mut kept) = (0, 0);
        for index in 0..group.members.len() {
            let (earlier, ticket) = (&group.members[..kept], &group.members[index]);
            match self.check(ticket, ahead, earlier, &mut checks) {
                Ok(()) => {
                    group.payload_bytes += ticket.request.payload.len();
                    group.sync |= ticket.request.sync;
                    group.members.swap(kept, index);
                    kept += 1;
                }
                Err(error) => group.refused.push((Arc::clone(ticket), error)),
            }
        }
        group.members.truncate(kept);
        add(&self.counters.guard_checks, checks);
    }

    /// Checks whether a commit may be written. `ahead` are the groups in flight, `members` the commits
    /// before it in its own group.
    fn check(
        &self,
        ticket: &Ticket,
        ahead: &[Members],
        members: &[Arc<Ticket>],
        checks: &mut u64,
    ) -> Result<()> {
        self.store.error_state.check_writable()?;
        if self.store.is_closing() {
            // `close` waits for those admitted before it said so, and for nobody else.
            return Err(Error::Closed);
        }
        let request = &ticket.request;
        for tree in &request.trees {
            tree.check_takes_writes()?;
        }
        for guard in &request.guards {
            guard.tree.check_takes_writes()?;
            let mut earlier = ahead.iter().flat_map(|members| members.iter()).chain(members);
            let (keyspace, key, read) = (&guard.tree.name, &guard.key, guard.read.0);
            match check_published(&self.store, guard) {
                GuardState::Holds if !earlier.any(|earlier| earlier.writes(guard, checks)) => {}
                GuardState::Unknown => {
                    let (keyspace, key) = (keyspace.clone(), key.to_vec());
                    return Err(Error::GuardUnknown { keyspace, key, read });
                }
                GuardState::Holds | GuardState::Refused => {
                    let (keyspace, key) = (keyspace.clone(), key.to_vec());
                    return Err(Error::GuardRefused { keyspace, key, read });
                }
            }
        }
        Ok(())
    }

    /// Gives a commit its sequence numbers and its memtables, which are added to `targets`.
    fn number(&self, queue: &mut Queue, targets: &mut Vec<Arc<Memtable>>, ticket: &Ticket) {
        let request = &ticket.request;
        let first = SeqNo(queue.seq_next);
        ticket.first_seq.store(first.0, Ordering::Release);
        for tree in &request.seal {
            self.seal_active(tree, first);
        }
        for tree in &request.trees {
            if tree.view().active.bytes() >= tree.settings().options.memtable_bytes {
                self.seal_active(tree, first);
            }
            let active = Arc::clone(&tree.view().active);
            active.announce_commit(first);
            targets.push(active);
        }
        queue.seq_next += u64::from(request.count);
    }

    /// Seals a tree's active memtable, if anything was promised to it, and has it flushed.
    fn seal_active(&self, tree: &Arc<Tree>, first_seq: SeqNo) {
        if tree.view().active.first_announced().is_some() {
            tree.change(|view| view.seal(first_seq));
            self.store.work.push(WorkKind::Flush, tree.id);
        }
    }

    /// The first two stations.
    fn write_log(&self, group: &Group) -> Result<()> {
        let asking = if failpoint::is_on(Failpoint::FollowerSyncForgotten) {
            1
        } else {
            group.members.len()
        };
        let sync = group.sync && group.members.iter().take(asking).any(|at| at.request.sync);
        let logged = sync || !failpoint::is_on(Failpoint::BufferedNotLogged);
        let write = || {
            let records = group.records();
            if !records.is_empty() && logged {
                self.store.wal.append(&records)?;
            }
            if sync {
                let start_ns = self.store.env.monotonic_ns();
                self.store.wal.sync()?;
                let us = self.store.env.monotonic_ns().saturating_sub(start_ns) / 1_000;
                let average = self.sync_us.load(Ordering::Relaxed);
                self.sync_us.store(average - average / 8 + us / 8, Ordering::Relaxed);
            }
            Ok(())
        };
        write().map_err(|error| self.store.fail(error))
    }

    /// Gives the lead, after this group, to the thread that waits first, or promises it to whoever comes
    /// for the tasks; the caller wakes that writer, or has somebody sent, once the queue is free.
    fn hand_over(&self, queue: &mut Queue, group: &mut Group) -> Option<Arc<Ticket>> {
        group.leads = false;
        queue.lead_syncs = false;
        if group.sync {
            queue.sync_writers = group.members.len() + queue.waiting.len();
        }
        let Some(first) = queue.waiting.front() else {
            queue.lead = Lead::Free;
            return None;
        };
        // Tasks cannot lead, so a thread leads for those that wait before it: it needs no waking of
        // another one, and it may be the one that the other would have to wait for.
        let mut threads = queue.waiting.iter().filter(|ticket| ticket.can_lead());
        match if queue.threads > 0 { threads.next() } else { None } {
            Some(thread) => {
                // Under the lock of the queue, so that it is not withdrawn.
                *thread.station.lock() = Station::Leading;
                Some(Arc::clone(thread))
            }
            None => {
                let first = Arc::clone(first);
                queue.promise().then_some(first)
            }
        }
    }

    /// Makes every number given so far visible; only while no commit is under way.
    ///
    /// # Errors
    /// The cause, if the memtables may hold a part of a group: only reopening continues then.
    pub(crate) fn publish_all(&self) -> Result<SeqNo> {
        let queue = self.queue.lock();
        if let Some(torn) = &queue.torn {
            return Err(torn.clone());
        }
        let last = SeqNo(queue.seq_next - 1);
        self.store.sequence.publish(last);
        Ok(last)
    }

    /// Waits until everything up to `seq` is published: then all inserts up to there have ended.
    pub(crate) fn wait_published(&self, seq: SeqNo) {
        let sequence = &self.store.sequence;
        if sequence.published() < seq {
            self.store.env.wait(WaitCause::CommitAhead, &self.changed, None, &mut || {
                sequence.published() >= seq || self.store.error_state.check_writable().is_err()
            });
        }
    }

    /// The deadline of a call that may wait this long.
    pub(crate) fn deadline_us(&self, patience: Option<Duration>) -> Option<u64> {
        let patience = u64::try_from(patience?.as_micros()).unwrap_or(u64::MAX);
        Some(self.store.env.now_us().saturating_add(patience))
    }
}

/// A commit that a task waits for.
#[derive(Debug)]
pub(crate) struct Pending {
    committer: Arc<Committer>,
    ticket: Arc<Ticket>,
}

impl Pending {
    /// What became of it.
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "tasks alone need it"))]
    pub(crate) fn poll(&self, task: &mut Context<'_>) -> Poll<Result<()>> {
        self.ticket.poll(task.waker()).map_or(Poll::Pending, Poll::Ready)
    }

    /// The error of a task that gives up waiting though the commit could not be withdrawn.
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "tasks alone need it"))]
    pub(crate) fn undecided(&self) -> Error {
        self.ticket.undecided()
    }

    /// Takes it back, unless a leader has it already.
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "tasks alone need it"))]
    pub(crate) fn withdraw(&self) -> bool {
        self.committer.withdraw(&self.ticket)
    }
}
