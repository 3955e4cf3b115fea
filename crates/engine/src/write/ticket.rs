//! Commit tickets. A ticket contains a commit in the pipeline, its state, and its owner: the thread or async task that
//! waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use bytes::Bytes;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, AtomicU64, Mutex, OnceLock, Ordering, Signal};
use lsmx_base::work_counter::{self, WorkKind};

use crate::env::WaitCause;
use crate::error::{Error, Result};
use crate::memtable::Memtable;
use crate::tree::Tree;
use crate::write::batch::{KeyGuard, WriteBatch};
use crate::write::write_set::WriteSet;

/// Members of a group. Guard checks clone the `Arc` while the queue is locked, which takes constant time.
pub(super) type GroupMembers = Arc<Vec<Arc<CommitTicket>>>;

/// Operands of one key in a memtable whose number or size has reached the limit. They should be folded into one value.
#[derive(Debug)]
pub(crate) struct LongOperandChain {
    pub(crate) tree: Arc<Tree>,
    pub(crate) memtable: Arc<Memtable>,
    pub(crate) key: Bytes,
    /// Sequence number of the newest operand.
    pub(crate) seq: SeqNo,
}

/// Request to the commit pipeline: a batch, a sync, or a request to seal memtables.
#[derive(Debug, Default)]
pub(crate) struct CommitRequest {
    pub(crate) payload: Vec<u8>,
    pub(crate) count: u32,
    pub(crate) trees: Vec<Arc<Tree>>,
    pub(crate) guards: Vec<KeyGuard>,
    pub(crate) sync: bool,
    /// Memtable memory in bytes that was reserved for this request. It is released when the commit finishes.
    pub(crate) reserved_bytes: u64,
    /// Trees whose active memtables are sealed at the position of this request in the commit order.
    pub(crate) seal: Vec<Arc<Tree>>,
}

impl CommitRequest {
    pub(crate) fn from_batch(batch: WriteBatch, sync: bool, reserved_bytes: u64) -> CommitRequest {
        let WriteBatch { payload, count, trees, guards, .. } = batch;
        CommitRequest { payload, count, trees, guards, sync, reserved_bytes, seal: Vec::new() }
    }
}

/// Starts worker threads for commits of async tasks, because async tasks cannot lead a group or fold operands.
pub(crate) trait TaskWorkerStarter: std::fmt::Debug + Send + Sync {
    /// Starts a thread that calls
    /// [`Committer::lead_next_commit_group`](crate::write::commit::Committer::lead_next_commit_group) until it returns
    /// false. If no thread can be started, the calling thread makes these calls.
    fn start_leader(&self);
    /// Starts a thread that folds the operand chains that
    /// [`Committer::take_long_operand_chains`](crate::write::commit::Committer::take_long_operand_chains) returns,
    /// until it returns none.
    fn start_folding(&self);
}

/// Thread or async task that waits for a commit.
#[derive(Debug)]
pub(crate) enum TicketOwner {
    /// A thread that sleeps on this signal. It can lead a group.
    Thread(Signal),
    /// An async task. Worker threads that `workers` starts lead groups for it.
    Task { waker: Mutex<Option<Waker>>, workers: Arc<dyn TaskWorkerStarter> },
}

/// State of a ticket.
#[derive(Debug)]
pub(crate) enum TicketState {
    Queued,
    /// The owner is a thread that must lead the next group.
    Leading,
    /// The commit is published or has failed.
    Finished(Result<()>),
}

/// One commit in the pipeline.
#[derive(Debug)]
pub(crate) struct CommitTicket {
    pub(crate) request: CommitRequest,
    /// First sequence number of the commit. 0 until the leader assigns it.
    pub(crate) first_seq: AtomicU64,
    pub(crate) state: Mutex<TicketState>,
    /// Operand chains that reached their maximum length in this commit.
    pub(crate) long_chains: Mutex<Vec<LongOperandChain>>,
    /// Keys and ranges that the commit writes. Built when a guard of a later commit is checked for the first time.
    write_set: OnceLock<Box<WriteSet>>,
    /// Thread or task that is woken when the commit finishes or the thread must become the leader.
    pub(crate) owner: TicketOwner,
}

impl CommitTicket {
    pub(crate) fn new(request: CommitRequest, owner: TicketOwner) -> Arc<CommitTicket> {
        Arc::new(CommitTicket {
            request,
            first_seq: AtomicU64::new(0),
            state: Mutex::new(TicketState::Queued),
            long_chains: Mutex::default(),
            write_set: OnceLock::new(),
            owner,
        })
    }

    pub(crate) fn first_seq(&self) -> u64 {
        self.first_seq.load(Ordering::Acquire)
    }

    /// Returns the last sequence number. If the commit has no operations, returns the number before the first one.
    pub(crate) fn last_seq(&self) -> SeqNo {
        SeqNo(self.first_seq() + u64::from(self.request.count) - 1)
    }

    pub(crate) fn is_queued(&self) -> bool {
        matches!(*self.state.lock(), TicketState::Queued)
    }

    /// Sets the state to [`TicketState::Finished`] and wakes the owner.
    pub(crate) fn complete(&self, result: Result<()>) {
        *self.state.lock() = TicketState::Finished(result);
        if failpoint::is_on(Failpoint::WakeUpLost) {
            return;
        }
        match &self.owner {
            TicketOwner::Thread(changed) => changed.notify(),
            TicketOwner::Task { waker, .. } => {
                let waker = waker.lock().take();
                if let Some(waker) = waker {
                    // If the waker of a runtime panics, the other members must still be woken.
                    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
                }
            }
        }
    }

    /// Returns whether the owner is a thread. Only threads can lead a group.
    pub(crate) fn can_lead(&self) -> bool {
        matches!(self.owner, TicketOwner::Thread(_))
    }

    /// Returns true if the owner must lead the next group, and then resets the state to [`TicketState::Queued`].
    pub(crate) fn take_lead(&self) -> bool {
        let mut state = self.state.lock();
        let leads = matches!(*state, TicketState::Leading);
        if leads {
            *state = TicketState::Queued;
        }
        leads
    }

    /// Returns the result if the commit has finished. Otherwise, `task` is woken when it finishes.
    pub(crate) fn poll(&self, task: &Waker) -> Option<Result<()>> {
        if let TicketOwner::Task { waker, .. } = &self.owner {
            // The waker is stored before the state is read, because `complete` sets the state before it takes the
            // waker.
            let before = waker.lock().replace(task.clone());
            drop(before);
        }
        self.result()
    }

    /// Returns the error for a commit whose deadline passed after a leader had taken it.
    pub(crate) fn deadline_error(&self) -> Error {
        let cause = WaitCause::CommitAhead.as_str();
        match self.request.count {
            // The caller can tolerate a sync or a seal that still takes place later.
            0 => Error::Deadline { cause },
            _ => Error::Undecided { cause },
        }
    }

    /// Returns the result if the commit has finished.
    pub(crate) fn result(&self) -> Option<Result<()>> {
        match &*self.state.lock() {
            TicketState::Finished(result) => Some(result.clone()),
            TicketState::Queued | TicketState::Leading => None,
        }
    }

    /// Returns whether the commit writes or deletes a key that the guard protects. Adds the number of visited
    /// operations and write sets to `checks`.
    ///
    /// The first call builds the write set. Each later call performs one hash lookup for a guarded key, or one binary
    /// search for a guarded range.
    pub(crate) fn writes_guarded_keys(&self, guard: &KeyGuard, checks: &mut u64) -> bool {
        let CommitRequest { payload, count, .. } = &self.request;
        let mut build = || {
            *checks += u64::from(*count);
            work_counter::add(WorkKind::LeaderVisits, *count as usize);
            Box::new(WriteSet::new(payload, *count))
        };
        if failpoint::is_on(Failpoint::GuardScansCommit) {
            return build().writes_guarded_keys(payload, guard.tree.id, &guard.keys);
        }
        let write_set = self.write_set.get_or_init(build);
        *checks += 1;
        work_counter::add(WorkKind::LeaderVisits, 1);
        write_set.writes_guarded_keys(payload, guard.tree.id, &guard.keys)
    }
}
