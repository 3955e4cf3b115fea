//! Commit tickets: one commit in the pipeline, its state, and the thread or task that waits for it.

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

/// Commits of one group. Guard checks clone the `Arc` under the queue lock, in constant time.
pub(super) type GroupMembers = Arc<Vec<Arc<CommitTicket>>>;

/// Operands of one key in a memtable that reached the limit and should be folded.
#[derive(Debug)]
pub(crate) struct LongOperandChain {
    pub(crate) tree: Arc<Tree>,
    pub(crate) memtable: Arc<Memtable>,
    pub(crate) key: Bytes,
    /// Sequence number of the newest operand.
    pub(crate) seq: SeqNo,
}

/// A request to the commit pipeline: a batch, a sync, or a seal of memtables.
#[derive(Debug, Default)]
pub(crate) struct CommitRequest {
    pub(crate) payload: Vec<u8>,
    pub(crate) count: u32,
    pub(crate) trees: Vec<Arc<Tree>>,
    pub(crate) guards: Vec<KeyGuard>,
    pub(crate) sync: bool,
    /// Reserved memtable bytes. They are released when the commit finishes.
    pub(crate) reserved_bytes: u64,
    /// Trees whose active memtables are sealed at this position in the commit order.
    pub(crate) seal: Vec<Arc<Tree>>,
}

impl CommitRequest {
    pub(crate) fn from_batch(batch: WriteBatch, sync: bool, reserved_bytes: u64) -> CommitRequest {
        let WriteBatch { payload, count, trees, guards, .. } = batch;
        CommitRequest { payload, count, trees, guards, sync, reserved_bytes, seal: Vec::new() }
    }
}

/// Starts worker threads for the commits of async tasks, which cannot lead a group or fold operands.
pub(crate) trait TaskWorkerStarter: std::fmt::Debug + Send + Sync {
    /// Starts a thread that calls [`Committer::lead_next_commit_group`](crate::write::commit::Committer::lead_next_commit_group)
    /// until it returns false. If no thread can be started, the calling thread does this.
    fn start_leader(&self);
    /// Starts a thread that folds the chains of
    /// [`Committer::take_long_operand_chains`](crate::write::commit::Committer::take_long_operand_chains) until none is left.
    fn start_folding(&self);
}

/// Thread or task that submitted a commit.
#[derive(Debug)]
pub(crate) enum TicketOwner {
    /// A thread, which sleeps on this signal. It can lead a group.
    Thread(Signal),
    /// A task. Threads of `workers` lead for it.
    Task { waker: Mutex<Option<Waker>>, workers: Arc<dyn TaskWorkerStarter> },
}

/// State of a ticket.
#[derive(Debug)]
pub(crate) enum TicketState {
    Queued,
    /// First thread in the queue. It leads the next group.
    Leading,
    /// Published or failed.
    Finished(Result<()>),
}

/// One commit in the pipeline.
#[derive(Debug)]
pub(crate) struct CommitTicket {
    pub(crate) request: CommitRequest,
    /// First sequence number; 0 until the leader assigns it.
    pub(crate) first_seq: AtomicU64,
    pub(crate) state: Mutex<TicketState>,
    /// Operand chains that reached their maximum length by this commit.
    pub(crate) long_chains: Mutex<Vec<LongOperandChain>>,
    /// Keys and ranges that the commit writes. Built when the first guard of a later commit needs it.
    write_set: OnceLock<Box<WriteSet>>,
    /// Woken after each change of the state.
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

    /// Returns the last sequence number. Without operations it is the first number minus one.
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
                    // A panic of a runtime's waker must not prevent the wake-up of the other members.
                    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
                }
            }
        }
    }

    /// Returns whether the owner is a thread, which can lead a group.
    pub(crate) fn can_lead(&self) -> bool {
        matches!(self.owner, TicketOwner::Thread(_))
    }

    /// Returns whether the owner must lead now, and resets the state to [`TicketState::Queued`].
    pub(crate) fn take_lead(&self) -> bool {
        let mut state = self.state.lock();
        let leads = matches!(*state, TicketState::Leading);
        if leads {
            *state = TicketState::Queued;
        }
        leads
    }

    /// Returns the result of a finished commit. Otherwise `task` is woken when the commit finishes.
    pub(crate) fn poll(&self, task: &Waker) -> Option<Result<()>> {
        if let TicketOwner::Task { waker, .. } = &self.owner {
            // The waker is stored before the state is read: `finish` sets the state before it takes the waker.
            let before = waker.lock().replace(task.clone());
            drop(before);
        }
        self.result()
    }

    /// Returns the error for a caller whose deadline has passed after a leader took the ticket.
    pub(crate) fn deadline_error(&self) -> Error {
        let cause = WaitCause::CommitAhead.as_str();
        match self.request.count {
            // A sync or a seal may happen later without harm to the caller.
            0 => Error::Deadline { cause },
            _ => Error::Undecided { cause },
        }
    }

    /// Returns the result of a finished commit.
    pub(crate) fn result(&self) -> Option<Result<()>> {
        match &*self.state.lock() {
            TicketState::Finished(result) => Some(result.clone()),
            TicketState::Queued | TicketState::Leading => None,
        }
    }

    /// Returns whether the commit writes or deletes a key of a guard. Adds the number of visited operations to
    /// `checks`.
    ///
    /// The first call builds the write set. Later calls cost one hash probe for a key, and one search for a range.
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
