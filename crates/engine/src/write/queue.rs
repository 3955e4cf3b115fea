//! Commit queue: commits that wait for a leader, the leadership of the queue, and groups that are not yet published.

use std::collections::VecDeque;

use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use crate::error::Error;
use crate::write::group::CommitGroup;
use crate::write::ticket::{CommitTicket, GroupMembers, LongOperandChain, TicketState};

/// Total payload of a group in bytes at which no further commit is added to the group.
const GROUP_BYTES_MAX: usize = 1 << 20;
/// Maximum number of commits in a group. This limits how long the queue is locked.
const GROUP_MEMBERS_MAX: usize = 4 << 10;
/// Number of checks of a group at which no further commit is added. A check compares a guard with an earlier commit.
const GROUP_CHECKS_MAX: usize = 8 << 10;
/// Maximum number of operand chains that wait until a worker thread folds them.
const LONG_CHAINS_MAX: usize = 1 << 10;

/// A group of commits that is in the WAL but not yet published.
#[derive(Debug)]
pub(super) struct InFlightGroup {
    pub(super) members: GroupMembers,
    pub(super) last_seq: SeqNo,
    pub(super) is_inserted: bool,
}

/// State of the leadership of the queue. At most one thread is the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Leadership {
    /// There is no leader, and no commit waits.
    #[default]
    Idle,
    /// A thread is the leader.
    Held,
    /// There is no leader, and only commits of async tasks wait. A worker thread or the next committing thread becomes
    /// the leader.
    Offered,
    /// A thread is the leader for exclusive work, and does not take commits from the queue.
    Exclusive,
}

/// State of the commit pipeline that is protected by the queue lock.
#[derive(Debug, Default)]
pub(super) struct CommitQueue {
    /// Sequence number of the next operation.
    pub(super) next_seq: u64,
    pub(super) leadership: Leadership,
    /// True if a thread waits to become the leader for exclusive work. This thread becomes the next leader.
    is_exclusive_requested: bool,
    /// True if a worker thread leads groups for async tasks, or has been started to lead them. At most one worker
    /// thread does this.
    pub(super) has_task_leader: bool,
    /// True while the leader processes a group that requires a sync.
    pub(super) is_syncing: bool,
    pub(super) waiting: VecDeque<Arc<CommitTicket>>,
    /// Number of waiting tickets whose owner is a thread.
    waiting_threads: usize,
    /// Groups that are in the WAL but not yet published, in WAL order.
    pub(super) in_flight: VecDeque<InFlightGroup>,
    /// Queue length, in commits, for which the leader delays its group. 0 if the leader does not wait.
    pub(super) awaited_writers: usize,
    /// Number of commits in the last synced group, plus the number of commits in the queue when that sync ended.
    pub(super) last_sync_writers: usize,
    /// Long operand chains from commits of async tasks. They wait until a worker thread folds them.
    long_chains: Vec<LongOperandChain>,
    /// True if a worker thread folds operand chains, or has been started to fold them.
    has_folding_worker: bool,
    /// Set if an error has left an incomplete group in the memtables. In this case, no commit is published until the
    /// database is reopened.
    pub(super) incomplete_insert: Option<Error>,
}

impl CommitQueue {
    /// Creates an empty queue.
    pub(super) fn new(next_seq: SeqNo) -> CommitQueue {
        CommitQueue { next_seq: next_seq.0, ..CommitQueue::default() }
    }

    /// Returns whether there is no leader, no waiting commit and no unpublished group.
    pub(super) fn is_idle(&self) -> bool {
        self.leadership == Leadership::Idle && self.waiting.is_empty() && self.in_flight.is_empty()
    }

    /// Offers the leadership to any thread. Returns whether the caller must start a worker thread that takes it.
    pub(super) fn offer_lead(&mut self) -> bool {
        self.leadership = Leadership::Offered;
        !std::mem::replace(&mut self.has_task_leader, true)
    }

    /// Takes the leadership if it is offered. Returns whether the leadership was taken.
    pub(super) fn take_offered_lead(&mut self) -> bool {
        let is_offered = self.leadership == Leadership::Offered;
        if is_offered {
            self.leadership = Leadership::Held;
        }
        is_offered
    }

    /// Takes the leadership if no thread has it. Returns whether the leadership was taken.
    pub(super) fn take_free_lead(&mut self) -> bool {
        let is_free = matches!(self.leadership, Leadership::Idle | Leadership::Offered);
        if is_free {
            self.leadership = Leadership::Held;
        }
        is_free
    }

    /// Requests the leadership for exclusive work. If another thread is the leader, it will hand over the leadership to
    /// the requesting thread.
    pub(super) fn request_exclusive_lead(&mut self) {
        match self.leadership {
            Leadership::Idle | Leadership::Offered => self.leadership = Leadership::Exclusive,
            Leadership::Held | Leadership::Exclusive => self.is_exclusive_requested = true,
        }
    }

    /// Withdraws a request for exclusive work. Returns false if the requesting thread is already the leader.
    pub(super) fn withdraw_exclusive_request(&mut self) -> bool {
        std::mem::take(&mut self.is_exclusive_requested)
    }

    /// Returns whether the requesting thread is the leader for exclusive work and all groups are published.
    pub(super) fn can_run_exclusively(&self) -> bool {
        self.leadership == Leadership::Exclusive && self.in_flight.is_empty()
    }

    /// Appends a ticket. Returns whether this ticket is the last one for which the leader waits.
    pub(super) fn push(&mut self, ticket: &Arc<CommitTicket>) -> bool {
        self.waiting_threads += usize::from(ticket.can_lead());
        self.waiting.push_back(Arc::clone(ticket));
        let is_complete = self.awaited_writers > 0 && self.waiting.len() >= self.awaited_writers;
        if is_complete {
            self.awaited_writers = 0;
        }
        is_complete
    }

    /// Removes a waiting ticket. Returns false if the ticket is no longer in the queue, or if its owner must become the
    /// leader.
    pub(super) fn remove(&mut self, ticket: &Arc<CommitTicket>) -> bool {
        let index = self.waiting.iter().position(|waiting| Arc::ptr_eq(waiting, ticket));
        let index = index.filter(|_| ticket.is_queued());
        let is_removed = index.and_then(|index| self.waiting.remove(index)).is_some();
        self.waiting_threads -= usize::from(is_removed && ticket.can_lead());
        is_removed
    }

    /// Moves waiting tickets into a group, up to the limits of a group. Returns whether any of these commits has
    /// guards.
    pub(super) fn take_members(&mut self, group: &mut CommitGroup) -> bool {
        let in_flight: usize = self.in_flight.iter().map(|group| group.members.len()).sum();
        let (mut bytes, mut checks, mut has_guards) = (0, 0, false);
        while bytes < GROUP_BYTES_MAX
            && group.members.len() < GROUP_MEMBERS_MAX
            && checks < GROUP_CHECKS_MAX
            && let Some(ticket) = self.waiting.pop_front()
        {
            self.waiting_threads -= usize::from(ticket.can_lead());
            bytes += ticket.request.payload.len();
            checks += ticket.request.guards.len() * (1 + in_flight + group.members.len());
            has_guards |= !ticket.request.guards.is_empty();
            group.members.push(ticket);
        }
        has_guards
    }

    /// Ends the leadership of a group's leader, and selects the next leader.
    ///
    /// Returns a ticket if the caller must wake a thread or start a worker thread. The owner of the ticket determines
    /// which of the two. The caller must unlock the queue first.
    pub(super) fn pass_lead(&mut self, group: &mut CommitGroup) -> Option<Arc<CommitTicket>> {
        group.has_lead = false;
        self.is_syncing = false;
        if group.sync {
            self.last_sync_writers = group.members.len() + self.waiting.len();
        }
        self.hand_over_lead()
    }

    /// Selects the next leader. Threads that wait for exclusive work have priority. The result is as in
    /// [`CommitQueue::pass_lead`].
    pub(super) fn hand_over_lead(&mut self) -> Option<Arc<CommitTicket>> {
        if std::mem::take(&mut self.is_exclusive_requested) {
            self.leadership = Leadership::Exclusive;
            return None;
        }
        let Some(first) = self.waiting.front() else {
            self.leadership = Leadership::Idle;
            return None;
        };
        // If a thread waits in the queue, the first such thread becomes the leader. Its group also contains the commits
        // of async tasks before it. A worker thread becomes the leader only if no thread waits.
        let mut threads = self.waiting.iter().filter(|ticket| ticket.can_lead());
        match if self.waiting_threads > 0 { threads.next() } else { None } {
            Some(thread) => {
                // The state is set while the queue is locked, so that the ticket cannot be withdrawn.
                *thread.state.lock() = TicketState::Leading;
                let next = Some(Arc::clone(thread));
                // The previous state may be `Leadership::Exclusive`.
                self.leadership = Leadership::Held;
                next
            }
            None => {
                let first = Arc::clone(first);
                self.offer_lead().then_some(first)
            }
        }
    }

    /// Removes and returns the oldest unpublished group if it has been inserted into the memtables.
    pub(super) fn pop_inserted_group(&mut self) -> Option<InFlightGroup> {
        self.in_flight.front().filter(|first| first.is_inserted)?;
        self.in_flight.pop_front()
    }

    /// Removes the unpublished group that ends at `last_seq` and all later groups. Returns their members.
    pub(super) fn remove_in_flight_groups_from(
        &mut self,
        last_seq: SeqNo,
    ) -> Vec<Arc<CommitTicket>> {
        let index = self.in_flight.iter().position(|group| group.last_seq >= last_seq);
        let removed = index.map(|index| self.in_flight.split_off(index)).unwrap_or_default();
        removed.iter().flat_map(|group| group.members.iter().cloned()).collect()
    }

    /// Adds operand chains that a worker thread will fold. Returns whether the caller must start this worker thread.
    pub(super) fn push_long_operand_chains(&mut self, chains: Vec<LongOperandChain>) -> bool {
        // Chains beyond the limit are dropped. Readers fold them later.
        let room = LONG_CHAINS_MAX.saturating_sub(self.long_chains.len());
        self.long_chains.extend(chains.into_iter().take(room));
        !std::mem::replace(&mut self.has_folding_worker, true)
    }

    /// Removes and returns all operand chains that wait to be folded. If there are none, the calling worker thread must
    /// exit.
    pub(super) fn take_long_operand_chains(&mut self) -> Vec<LongOperandChain> {
        let chains = std::mem::take(&mut self.long_chains);
        self.has_folding_worker = !chains.is_empty();
        chains
    }
}

#[cfg(test)]
mod tests {
    use lsmx_base::sync::thread_signal;

    use super::*;
    use crate::write::ticket::{CommitRequest, TicketOwner};

    /// After exclusive work, a waiting thread becomes the leader. The next exclusive work waits until its group ends.
    #[test]
    fn lead_after_exclusive_work_is_held_by_one_thread() {
        let mut queue = CommitQueue::new(SeqNo(1));
        queue.request_exclusive_lead();
        assert!(queue.can_run_exclusively());
        let owner = TicketOwner::Thread(thread_signal());
        let ticket = CommitTicket::new(CommitRequest::default(), owner);
        queue.push(&ticket);
        assert!(!queue.take_free_lead());
        assert!(queue.hand_over_lead().is_some() && ticket.take_lead());
        queue.request_exclusive_lead();
        assert!(!queue.can_run_exclusively());
        queue.take_members(&mut CommitGroup::default());
        assert!(queue.hand_over_lead().is_none());
        assert!(queue.can_run_exclusively());
    }
}
