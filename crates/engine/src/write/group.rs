//! Commits on their way through the pipeline, and the groups that they go in.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use bytes::Bytes;
use lsmx_base::coding::{len_u64, low_u32};
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::sync::{Arc, AtomicU64, Mutex, OnceLock, Ordering, Signal};
use lsmx_base::work_counter::{self, WorkKind};

use crate::env::WaitCause;
use crate::error::{Error, Result};
use crate::format::batch::{BatchAction, BatchOperations};
use crate::memtable::Memtable;
use crate::merge_operator::CHAIN_OPERANDS_MAX;
use crate::state::DbState;
use crate::tree::Tree;
use crate::tree::guard_history::GuardState;
use crate::wal::WalRecord;
use crate::write::batch::{Guard, WriteBatch};
use crate::write::write_set::WriteSet;

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
pub(crate) struct Request {
    pub(crate) payload: Vec<u8>,
    pub(crate) count: u32,
    pub(crate) trees: Vec<Arc<Tree>>,
    pub(crate) guards: Vec<Guard>,
    pub(crate) sync: bool,
    /// Memtable bytes reserved for it, released when it is decided.
    pub(crate) reserved_bytes: u64,
    /// Trees whose active memtable is to be sealed at this point of the order.
    pub(crate) seal: Vec<Arc<Tree>>,
}

/// What a database has done by somebody else for tasks that commit: tasks cannot lead.
pub(crate) trait Attendant: std::fmt::Debug + Send + Sync {
    /// Has some thread call [`Committer::attend`](crate::write::commit::Committer::attend) until it answers
    /// false. Where no thread can be had, this does.
    fn lead(&self);
    /// Has some thread fold what [`Committer::chains`](crate::write::commit::Committer::chains) gives until
    /// there is no more.
    fn fold(&self);
}

/// Who waits for a commit, if anybody does.
#[derive(Debug)]
pub(crate) enum Owner {
    /// A thread, by this signal. It can lead.
    Thread(Signal),
    /// A task. Whoever leads in its place is sent by the attendant.
    Task { waker: Mutex<Option<Waker>>, attendant: Arc<dyn Attendant> },
}

impl Owner {
    /// Has a leader sent for a task. No lock is held.
    pub(crate) fn send(&self) {
        if let Owner::Task { attendant, .. } = self {
            attendant.lead();
        }
    }
}

impl Request {
    /// A batch to commit.
    pub(crate) fn of(batch: WriteBatch, sync: bool, reserved_bytes: u64) -> Request {
        let WriteBatch { payload, count, trees, guards, .. } = batch;
        Request { payload, count, trees, guards, sync, reserved_bytes, seal: Vec::new() }
    }
}

/// Where a commit stands.
#[derive(Debug)]
pub(crate) enum Station {
    Waiting,
    /// First in the queue, and to lead the next group.
    Leading,
    /// Published, or failed.
    Decided(Result<()>),
}

#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) request: Request,
    /// First number; 0 until it is given.
    pub(crate) first_seq: AtomicU64,
    pub(crate) station: Mutex<Station>,
    /// Chains of operands that it made too long.
    pub(crate) long: Mutex<Vec<LongChain>>,
    /// Keys and ranges that it writes. Set by the first guard of a later commit that needs it.
    write_set: OnceLock<Box<WriteSet>>,
    /// Told when the station has changed.
    pub(crate) owner: Owner,
}

impl Ticket {
    pub(crate) fn new(request: Request, owner: Owner) -> Arc<Ticket> {
        Arc::new(Ticket {
            request,
            first_seq: AtomicU64::new(0),
            station: Mutex::new(Station::Waiting),
            long: Mutex::default(),
            write_set: OnceLock::new(),
            owner,
        })
    }

    pub(crate) fn first_seq(&self) -> u64 {
        self.first_seq.load(Ordering::Acquire)
    }

    /// Last number; one less than the first for a request without operations.
    pub(crate) fn last_seq(&self) -> SeqNo {
        SeqNo(self.first_seq() + u64::from(self.request.count) - 1)
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(*self.station.lock(), Station::Waiting)
    }

    pub(crate) fn go_to(&self, station: Station) {
        *self.station.lock() = station;
        if failpoint::is_on(Failpoint::WakeUpLost) {
            return;
        }
        match &self.owner {
            Owner::Thread(changed) => changed.notify(),
            Owner::Task { waker, .. } => {
                let waker = waker.lock().take();
                if let Some(waker) = waker {
                    // A runtime's waker that panics must not keep the other members of the group from theirs.
                    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
                }
            }
        }
    }

    /// Whether its owner is a thread, which can lead.
    pub(crate) fn can_lead(&self) -> bool {
        matches!(self.owner, Owner::Thread(_))
    }

    /// Whether its owner is to lead now. Who has asked leads.
    pub(crate) fn take_lead(&self) -> bool {
        let mut station = self.station.lock();
        let leads = matches!(*station, Station::Leading);
        if leads {
            *station = Station::Waiting;
        }
        leads
    }

    /// What became of it; if that is not decided, the task is woken when it is.
    pub(crate) fn poll(&self, task: &Waker) -> Option<Result<()>> {
        if let Owner::Task { waker, .. } = &self.owner {
            // Put in place first: who decides after this finds it, and of who decided before the
            // station tells.
            let before = waker.lock().replace(task.clone());
            drop(before);
        }
        self.decided()
    }

    /// The error of a caller that waits no longer for a request which a leader has taken.
    pub(crate) fn undecided(&self) -> Error {
        let cause = WaitCause::CommitAhead.as_str();
        match self.request.count {
            // A sync, or a seal: the caller loses nothing if it happens later.
            0 => Error::Deadline { cause },
            _ => Error::Undecided { cause },
        }
    }

    /// What became of it, once that is decided.
    pub(crate) fn decided(&self) -> Option<Result<()>> {
        match &*self.station.lock() {
            Station::Decided(result) => Some(result.clone()),
            Station::Waiting | Station::Leading => None,
        }
    }

    /// Returns whether the commit writes or deletes the key of a guard. Builds the write set on the first
    /// call; then a call costs one hash probe. Adds the work to `checks`.
    pub(crate) fn writes(&self, guard: &Guard, checks: &mut u64) -> bool {
        let Request { payload, count, .. } = &self.request;
        let mut build = || {
            *checks += u64::from(*count);
            work_counter::add(WorkKind::LeaderVisits, *count as usize);
            Box::new(WriteSet::new(payload, *count))
        };
        if failpoint::is_on(Failpoint::GuardScansCommit) {
            return build().writes(payload, guard);
        }
        let write_set = self.write_set.get_or_init(build);
        *checks += 1;
        work_counter::add(WorkKind::LeaderVisits, 1);
        write_set.writes(payload, guard)
    }
}

/// How far a group is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not in the log, or not known to be there wholly.
    #[default]
    Logging,
    /// In the log, and perhaps partly in the memtables.
    Inserting,
    /// Published or failed; its members are being notified.
    Decided,
}

/// Commits that go through the stations together.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) members: Vec<Arc<Ticket>>,
    /// The memtables they write to, one for each tree of each request, in that order.
    pub(crate) targets: Vec<Arc<Memtable>>,
    /// Members that were set aside, with the reasons; they have not been notified.
    pub(crate) refused: Vec<(Arc<Ticket>, Error)>,
    pub(crate) payload_bytes: usize,
    pub(crate) sync: bool,
    pub(crate) stage: Stage,
    /// Whether its leader has the lead of the queue.
    pub(crate) leads: bool,
    /// What its members are told at [`Stage::Decided`].
    pub(crate) decision: Result<()>,
}

impl Default for Group {
    fn default() -> Group {
        Group {
            members: Vec::new(),
            targets: Vec::new(),
            refused: Vec::new(),
            payload_bytes: 0,
            sync: false,
            stage: Stage::default(),
            leads: false,
            decision: Ok(()),
        }
    }
}

impl Group {
    pub(crate) fn last_seq(&self) -> SeqNo {
        self.members.last().map_or(SeqNo::ZERO, |member| member.last_seq())
    }

    pub(crate) fn clear(&mut self) {
        self.members.clear();
        self.targets.clear();
        (self.payload_bytes, self.sync, self.decision) = (0, false, Ok(()));
    }

    pub(crate) fn records(&self) -> Vec<WalRecord<'_>> {
        let with_operations = self.members.iter().filter(|member| member.request.count > 0);
        let records = with_operations.map(|member| WalRecord {
            first_seq: SeqNo(member.first_seq()),
            count: member.request.count,
            payload: &member.request.payload,
        });
        records.collect()
    }

    /// Puts the operations of all members into the memtables; returns the bytes these grew by.
    pub(crate) fn insert(&self, store: &DbState) -> u64 {
        let (mut target, mut grown) = (0, 0);
        for member in &self.members {
            let request = &member.request;
            let targets = &self.targets[target..target + request.trees.len()];
            target += request.trees.len();
            grown += insert(store, member, targets);
        }
        grown
    }
}

/// Checks a guard against published writes: memtables first, then the history of flushed writes.
pub(crate) fn check_published(store: &DbState, guard: &Guard) -> GuardState {
    // A flush appends to the history before its memtable leaves the view, so the view is loaded first.
    let view = guard.tree.view();
    let oldest = view.sealed.last().unwrap_or(&view.active).first_seq();
    let newer = |memtable: &Arc<Memtable>| {
        work_counter::add(WorkKind::LeaderVisits, 1);
        let written = memtable.get(&guard.key, SeqNo::MAX).map(|(seq, ..)| seq);
        written
            .max(memtable.newest_covering(&guard.key, SeqNo::MAX))
            .is_some_and(|seq| seq > guard.read)
    };
    if view.memtables().any(newer) {
        return GuardState::Refused;
    }
    if oldest.0 <= guard.read.0.saturating_add(1) {
        return GuardState::Holds;
    }
    let key = (&guard.key[..], guard.key_hash);
    store.guard_history.check(guard.tree.id, key, guard.read, oldest)
}

/// Puts the operations of a commit into the memtables of its trees; returns the bytes they grew by.
/// The ticket learns of the chains of operands that have become long.
fn insert(store: &DbState, ticket: &Ticket, memtables: &[Arc<Memtable>]) -> u64 {
    let request = &ticket.request;
    let payload = &request.payload;
    let (mut last, mut grown) = (0, 0);
    // The payload was encoded by this process, so every operation decodes.
    let operations = BatchOperations::new(payload).flatten();
    for (seq, operation) in (ticket.first_seq()..).zip(operations) {
        work_counter::add(WorkKind::LeaderVisits, 1);
        // Neighbouring operations mostly go to the same tree.
        if request.trees[last].id != operation.keyspace {
            last = request
                .trees
                .iter()
                .position(|tree| tree.id == operation.keyspace)
                .expect("a batch lists every tree it writes");
        }
        let key = &payload[operation.key];
        let (tree, memtable, seq) = (&request.trees[last], &memtables[last], SeqNo(seq));
        let counters = &tree.counters;
        grown += match operation.action {
            BatchAction::Entry { kind, value } => {
                let value = &payload[value];
                let bytes = len_u64(key.len() + value.len());
                counters.ingested_bytes.add(bytes);
                if kind == EntryKind::Put {
                    counters.put_bytes.add(bytes);
                }
                if kind == EntryKind::Merge {
                    let below = operands_below(tree, seq);
                    let (bytes, is_long) = memtable.insert_operand(key, seq, value, below);
                    if is_long {
                        let (tree, memtable) = (Arc::clone(tree), Arc::clone(memtable));
                        let key = Bytes::copy_from_slice(key);
                        ticket.long.lock().push(LongChain { tree, memtable, key, seq });
                    }
                    bytes
                } else {
                    if kind == EntryKind::Delete {
                        note_tombstone(store, tree, memtable);
                    }
                    memtable.insert(key, seq, kind, value)
                }
            }
            BatchAction::DeleteRange { end } => {
                let end = end.map(|end| &payload[end]);
                counters.ingested_bytes.add(len_u64(key.len() + end.map_or(0, <[u8]>::len)));
                note_tombstone(store, tree, memtable);
                memtable.insert_range_tombstone(key, end, seq)
            }
        };
        if failpoint::is_on(Failpoint::BatchSplit) && request.count > 1 {
            break;
        }
    }
    grown
}

/// Notes when a memtable got its first tombstone, and when that has to leave it.
fn note_tombstone(store: &DbState, tree: &Tree, memtable: &Memtable) {
    if memtable.record_tombstone(|| store.env.database_us()) {
        store.work.schedule_check(tree.tombstone_written(store.env.database_us()));
    }
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
