//! The commit pipeline: four stations in the order of the log.
//!
//! 1. *Appended.* Writers queue; the one that finds nobody leading leads. It takes a group off the
//!    queue, checks guards, gives out sequence numbers, seals full memtables, and appends the whole
//!    group to the log in one write.
//! 2. *Synced*, if any in the group asked for it. A failed append or sync fails the whole group,
//!    leaves nothing in memory, and makes the database read-only; its numbers are never given again.
//! 3. *Inserted* into the memtables, by each writer itself.
//! 4. *Published*, strictly in order: a commit is seen only when all before it are.
//!
//! The leader changes what later commits depend on (numbers, active memtables) alone, so neither
//! needs a lock of its own. No lock is held over I/O or a wait.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use crate::coding::low_u32;
use crate::env::{WaitCause, YieldKind};
use crate::error::{Error, Result};
use crate::format::batch::{Action, Operation, Operations};
use crate::key::{Kind, SeqNo};
use crate::keyspace::Tree;
use crate::keyspace::counters::add;
use crate::memtable::Memtable;
use crate::merge::CHAIN_OPERANDS_MAX;
use crate::metrics::CommitMetrics;
use crate::sabotage::{self, Bug};
use crate::store::{Store, Work};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, Signal};
use crate::wal::WalRecord;
use crate::write::batch::{Guard, WriteBatch};

/// Payload bytes at which a group takes no further member.
const GROUP_BYTES_MAX: usize = 1 << 20;

/// Operands that their writer should fold, as many as they are in the memtable by now.
#[derive(Debug)]
pub(crate) struct LongChain {
    pub(crate) tree: Arc<Tree>,
    pub(crate) memtable: Arc<Memtable>,
    pub(crate) key: Bytes,
    /// Number of the newest of them.
    pub(crate) seq: SeqNo,
}

/// What a writer hands in.
#[derive(Debug, Default)]
struct Request {
    payload: Bytes,
    count: u32,
    trees: Vec<Arc<Tree>>,
    guards: Vec<Guard>,
    sync: bool,
    /// Trees whose active memtable is to be sealed at this point of the order.
    seal: Vec<Arc<Tree>>,
}

/// Where a commit stands.
#[derive(Debug)]
enum Station {
    Waiting,
    /// In the log; the writer inserts into these memtables, one per tree of the request.
    Appended(Vec<Arc<Memtable>>),
    Failed(Error),
}

#[derive(Debug)]
struct Ticket {
    request: Request,
    /// First number; 0 until it is given.
    first_seq: AtomicU64,
    station: Mutex<Station>,
}

impl Ticket {
    fn first_seq(&self) -> u64 {
        self.first_seq.load(Ordering::Acquire)
    }

    /// Last number; one less than the first for a request without operations.
    fn last_seq(&self) -> SeqNo {
        SeqNo(self.first_seq() + u64::from(self.request.count) - 1)
    }

    fn decided(&self) -> bool {
        !matches!(*self.station.lock(), Station::Waiting)
    }

    fn decide(&self, station: Station) {
        *self.station.lock() = station;
    }

    /// Whether it writes or deletes a key of a tree with a number above `read`.
    fn writes(&self, guard: &Guard) -> bool {
        let payload = &self.request.payload;
        let hits = |operation: &Operation| {
            let (key, guarded) = (&payload[operation.key.clone()], &*guard.key);
            match &operation.action {
                Action::Entry { .. } => key == guarded,
                Action::DeleteRange { end } => {
                    key <= guarded && end.clone().is_none_or(|end| *guarded < payload[end])
                }
            }
        };
        let operations = (self.first_seq()..).zip(Operations::new(payload).flatten());
        let mut newer = operations.filter(|(seq, _)| *seq > guard.read.0);
        newer.any(|(_, operation)| operation.keyspace == guard.tree.id && hits(&operation))
    }
}

#[derive(Debug)]
struct InFlight {
    ticket: Arc<Ticket>,
    inserted: bool,
}

#[derive(Debug)]
struct Queue {
    /// The number that the next operation gets.
    seq_next: u64,
    leading: bool,
    /// Whether the group at hand is being synced.
    syncing: bool,
    waiting: VecDeque<Arc<Ticket>>,
    /// In the log, not published yet; in the order of the log.
    in_flight: VecDeque<InFlight>,
}

/// Takes commits through the four stations.
#[derive(Debug)]
pub(crate) struct Committer {
    store: Arc<Store>,
    queue: Mutex<Queue>,
    /// Given when a group is decided, a leader steps down, or something was published.
    changed: Signal,
    counters: CommitCounters,
}

#[derive(Debug, Default)]
struct CommitCounters {
    requests: AtomicU64,
    groups: AtomicU64,
    behind_sync: AtomicU64,
}

impl Committer {
    /// A pipeline whose first operation gets the number `seq_next`.
    pub(crate) fn new(store: Arc<Store>, seq_next: SeqNo) -> Committer {
        let queue = Queue {
            seq_next: seq_next.0,
            leading: false,
            syncing: false,
            waiting: VecDeque::new(),
            in_flight: VecDeque::new(),
        };
        Committer {
            store,
            queue: Mutex::new(queue),
            changed: Signal::new(),
            counters: CommitCounters::default(),
        }
    }

    /// Commits a batch. Returns the chains of operands that it made too long.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] after a write-path error, [`Error::GuardRefused`], [`Error::Deadline`].
    pub(crate) fn commit(
        &self,
        batch: WriteBatch,
        sync: bool,
        deadline_us: Option<u64>,
    ) -> Result<Vec<LongChain>> {
        let request = Request {
            payload: Bytes::from(batch.payload),
            count: batch.count,
            trees: batch.trees,
            guards: batch.guards,
            sync,
            seal: Vec::new(),
        };
        self.submit(request, deadline_us)
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
        }
    }

    /// The number that the next operation gets.
    pub(crate) fn seq_next(&self) -> SeqNo {
        SeqNo(self.queue.lock().seq_next)
    }

    /// Waits until no commit is under way. New ones must be kept out by other means.
    pub(crate) fn drain(&self, deadline_us: Option<u64>) -> bool {
        self.store.env.wait(WaitCause::CommitAhead, &self.changed, deadline_us, &mut || {
            let queue = self.queue.lock();
            !queue.leading && queue.waiting.is_empty() && queue.in_flight.is_empty()
        })
    }

    fn submit(&self, request: Request, deadline_us: Option<u64>) -> Result<Vec<LongChain>> {
        let ticket = Arc::new(Ticket {
            request,
            first_seq: AtomicU64::new(0),
            station: Mutex::new(Station::Waiting),
        });
        self.store.env.yield_point(YieldKind::Commit);
        let mut lead = {
            let mut queue = self.queue.lock();
            if queue.syncing && !ticket.request.sync {
                add(&self.counters.behind_sync, 1);
            }
            queue.waiting.push_back(Arc::clone(&ticket));
            !std::mem::replace(&mut queue.leading, true)
        };
        let mut patience = deadline_us;
        while !lead && !ticket.decided() {
            let turn = &mut || ticket.decided() || self.try_lead(&mut lead);
            let met = self.store.env.wait(WaitCause::CommitAhead, &self.changed, patience, turn);
            if !met {
                if self.withdraw(&ticket) {
                    return Err(Error::Deadline { cause: WaitCause::CommitAhead.as_str() });
                }
                // A leader has it already: what happens to it is told, however long it takes.
                patience = None;
            }
        }
        if lead {
            while !ticket.decided() {
                self.lead_group();
            }
            self.queue.lock().leading = false;
            self.changed.notify();
        }
        self.finish(&ticket)
    }

    fn try_lead(&self, lead: &mut bool) -> bool {
        let mut queue = self.queue.lock();
        if !queue.leading {
            queue.leading = true;
            *lead = true;
        }
        *lead
    }

    /// Takes a ticket back that no leader has taken yet.
    fn withdraw(&self, ticket: &Arc<Ticket>) -> bool {
        let mut queue = self.queue.lock();
        let place = queue.waiting.iter().position(|waiting| Arc::ptr_eq(waiting, ticket));
        let removed = place.and_then(|place| queue.waiting.remove(place)).is_some();
        drop(queue);
        // Whoever waits for the queue to drain asks again.
        self.changed.notify();
        removed
    }

    /// Takes the next group through the first two stations.
    fn lead_group(&self) {
        let mut group = Vec::new();
        let mut memtables = Vec::new();
        {
            let mut queue = self.queue.lock();
            let mut bytes = 0;
            while bytes < GROUP_BYTES_MAX
                && let Some(ticket) = queue.waiting.pop_front()
            {
                bytes += ticket.request.payload.len();
                match self.admit(&mut queue, &group, &ticket) {
                    Ok(targets) => {
                        memtables.push(targets);
                        group.push(ticket);
                    }
                    Err(error) => ticket.decide(Station::Failed(error)),
                }
            }
            queue.syncing = group.iter().any(|ticket| ticket.request.sync);
        }
        add(&self.counters.groups, 1);
        add(&self.counters.requests, group.len() as u64);
        let written = self.write_log(&group);
        self.store.env.yield_point(YieldKind::Commit);
        let mut queue = self.queue.lock();
        queue.syncing = false;
        for (ticket, memtables) in group.into_iter().zip(memtables) {
            match &written {
                Ok(()) => {
                    ticket.decide(Station::Appended(memtables));
                    queue.in_flight.push_back(InFlight { ticket, inserted: false });
                }
                Err(error) => ticket.decide(Station::Failed(error.clone())),
            }
        }
        drop(queue);
        self.changed.notify();
    }

    /// Checks one request and gives it numbers and memtables. `group` are the members before it.
    fn admit(
        &self,
        queue: &mut Queue,
        group: &[Arc<Ticket>],
        ticket: &Ticket,
    ) -> Result<Vec<Arc<Memtable>>> {
        self.store.health.check()?;
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
            let ahead = queue.in_flight.iter().map(|ahead| &ahead.ticket).chain(group);
            if !memtables_allow(guard) || ahead.into_iter().any(|ahead| ahead.writes(guard)) {
                return Err(Error::GuardRefused { read: guard.read.0 });
            }
        }
        let first = SeqNo(queue.seq_next);
        ticket.first_seq.store(first.0, Ordering::Release);
        for tree in &request.seal {
            self.seal_active(tree, first);
        }
        for tree in &request.trees {
            if tree.view().active.bytes() >= tree.settings().options.memtable_bytes {
                self.seal_active(tree, first);
            }
        }
        queue.seq_next += u64::from(request.count);
        let targets = request.trees.iter().map(|tree| {
            let active = Arc::clone(&tree.view().active);
            active.promise(first);
            active
        });
        Ok(targets.collect())
    }

    /// Seals a tree's active memtable, if anything was promised to it, and has it flushed.
    fn seal_active(&self, tree: &Arc<Tree>, first_seq: SeqNo) {
        if tree.view().active.first_promised().is_some() {
            tree.change(|view| view.seal(first_seq));
            self.store.make_ready(Work::Flush, tree.id);
        }
    }

    fn write_log(&self, group: &[Arc<Ticket>]) -> Result<()> {
        let with_operations = group.iter().filter(|ticket| ticket.request.count > 0);
        let records: Vec<WalRecord<'_>> = with_operations
            .map(|ticket| WalRecord {
                first_seq: SeqNo(ticket.first_seq()),
                count: ticket.request.count,
                payload: &ticket.request.payload,
            })
            .collect();
        let asking = if sabotage::on(Bug::FollowerSyncForgotten) { 1 } else { group.len() };
        let sync = group.iter().take(asking).any(|ticket| ticket.request.sync);
        let logged = sync || !sabotage::on(Bug::BufferedNotLogged);
        let append = || {
            if !records.is_empty() && logged {
                self.store.wal.append(&records)?;
            }
            if sync {
                self.store.wal.sync()?;
            }
            Ok(())
        };
        append().map_err(|error| self.store.fail(error))
    }

    /// The last two stations, by the writer itself.
    fn finish(&self, ticket: &Arc<Ticket>) -> Result<Vec<LongChain>> {
        let station = std::mem::replace(&mut *ticket.station.lock(), Station::Waiting);
        let memtables = match station {
            Station::Appended(memtables) => memtables,
            Station::Failed(error) => return Err(error),
            // `submit` comes here only when the ticket is decided.
            Station::Waiting => unreachable!("the ticket is decided"),
        };
        self.store.env.yield_point(YieldKind::Commit);
        let (bytes, long) = insert(ticket, &memtables);
        self.store.memtable_bytes_grown(bytes);
        self.store.env.yield_point(YieldKind::Commit);
        let last = ticket.last_seq();
        if self.publish(ticket) < last {
            let sequence = &self.store.sequence;
            self.store.env.wait(WaitCause::CommitAhead, &self.changed, None, &mut || {
                sequence.published() >= last
            });
        }
        Ok(long)
    }

    /// Marks a commit as inserted and publishes all that have none before them which is not.
    fn publish(&self, ticket: &Arc<Ticket>) -> SeqNo {
        let mut queue = self.queue.lock();
        let own = queue.in_flight.iter_mut().find(|at| Arc::ptr_eq(&at.ticket, ticket));
        if let Some(own) = own {
            own.inserted = true;
        }
        let mut published = self.store.sequence.published();
        while let Some(first) = queue.in_flight.front()
            && (first.inserted || sabotage::on(Bug::PublishedEarly))
        {
            published = published.max(first.ticket.last_seq());
            self.store.sequence.publish(published);
            queue.in_flight.pop_front();
        }
        drop(queue);
        self.changed.notify();
        published
    }

    /// Makes every number given so far visible; only while no commit is under way.
    pub(crate) fn publish_all(&self) -> SeqNo {
        let queue = self.queue.lock();
        let last = SeqNo(queue.seq_next - 1);
        self.store.sequence.publish(last);
        last
    }

    /// Waits until everything up to `seq` is published: then all inserts up to there have ended.
    pub(crate) fn wait_published(&self, seq: SeqNo) {
        let sequence = &self.store.sequence;
        if sequence.published() < seq {
            self.store.env.wait(WaitCause::CommitAhead, &self.changed, None, &mut || {
                sequence.published() >= seq || self.store.health.check().is_err()
            });
        }
    }

    /// The deadline of a call that may wait this long.
    pub(crate) fn deadline_us(&self, patience: Option<Duration>) -> Option<u64> {
        let patience = u64::try_from(patience?.as_micros()).unwrap_or(u64::MAX);
        Some(self.store.env.now_us().saturating_add(patience))
    }
}

/// Whether the memtables reach back to the number a guard names, and hold nothing newer.
fn memtables_allow(guard: &Guard) -> bool {
    let view = guard.tree.view();
    let oldest = view.sealed.last().unwrap_or(&view.active);
    let newer = |memtable: &Arc<Memtable>| {
        let written = memtable.get(&guard.key, SeqNo::MAX).map(|(seq, ..)| seq);
        written.max(memtable.covering(&guard.key, SeqNo::MAX)).is_some_and(|seq| seq > guard.read)
    };
    oldest.first_seq().0 <= guard.read.0.saturating_add(1) && !view.memtables().any(newer)
}

/// Puts the operations of a commit into the memtables of its trees; returns the bytes they grew by,
/// and the chains of operands that have become long.
fn insert(ticket: &Ticket, memtables: &[Arc<Memtable>]) -> (u64, Vec<LongChain>) {
    let request = &ticket.request;
    let mut last = 0;
    let mut grown = 0;
    let mut long = Vec::new();
    // The payload was encoded by this process, so every operation decodes.
    let operations = Operations::new(&request.payload).flatten();
    for (seq, operation) in (ticket.first_seq()..).zip(operations) {
        // Neighbouring operations mostly go to the same tree.
        if request.trees[last].id != operation.keyspace {
            last = request
                .trees
                .iter()
                .position(|tree| tree.id == operation.keyspace)
                .expect("a batch lists every tree it writes");
        }
        let key = request.payload.slice(operation.key);
        let counters = &request.trees[last].counters;
        let (tree, memtable, seq) = (&request.trees[last], &memtables[last], SeqNo(seq));
        grown += match operation.action {
            Action::Entry { kind, value } => {
                let value = request.payload.slice(value);
                let bytes = (key.len() + value.len()) as u64;
                counters.ingested_bytes.add(bytes);
                if kind == Kind::Put {
                    counters.put_bytes.add(bytes);
                }
                if kind == Kind::Merge {
                    let below = operands_below(tree, seq);
                    let operand = memtable.insert_operand(key.clone(), seq, value, below);
                    let (bytes, is_long) = operand;
                    if is_long {
                        let (tree, memtable) = (Arc::clone(tree), Arc::clone(memtable));
                        long.push(LongChain { tree, memtable, key, seq });
                    }
                    bytes
                } else {
                    memtable.insert(key, seq, kind, value)
                }
            }
            Action::DeleteRange { end } => {
                let end = end.map(|end| request.payload.slice(end));
                let bytes = key.len() + end.as_ref().map_or(0, Bytes::len);
                counters.ingested_bytes.add(bytes as u64);
                memtable.insert_span(key, end, seq)
            }
        };
        if sabotage::on(Bug::BatchTorn) && request.count > 1 {
            break;
        }
    }
    (grown, long)
}

/// How many operands of its key the first one in a memtable is to count as lying below it.
///
/// Nobody knows without reading. Where jobs fold operands partially it does not matter, there are as
/// many as runs. Elsewhere, were it 0, a key that gets a few operands in each memtable would gather
/// them without end in the tables above its base. Drawn evenly up to the bound, each operand has the
/// same chance of being the one that makes its writer fold: one in [`CHAIN_OPERANDS_MAX`], so a
/// chain of *n* times as many has a probability below e^-n. The draw follows from the number, so that
/// equal seeds give equal files.
fn operands_below(tree: &Tree, seq: SeqNo) -> u32 {
    if !tree.merging.keeps_operands() {
        return 0;
    }
    let mixed = seq.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    low_u32(mixed) % CHAIN_OPERANDS_MAX
}
