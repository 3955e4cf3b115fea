//! The commit queue: waiting commits, leadership, and groups that are not published yet.

use std::collections::VecDeque;

use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use crate::error::Error;
use crate::write::group::CommitGroup;
use crate::write::ticket::{CommitTicket, GroupMembers, LongOperandChain, TicketState};

/// Payload size at which a group accepts no further member, in bytes.
const GROUP_BYTES_MAX: usize = 1 << 20;
/// Maximum number of members of a group. It bounds how long the queue is locked.
const GROUP_MEMBERS_MAX: usize = 4 << 10;
/// Number of pairs of a guard and an earlier commit at which a group accepts no further member.
const GROUP_CHECKS_MAX: usize = 8 << 10;
/// Maximum number of operand chains that wait to be folded for tasks.
const LONG_CHAINS_MAX: usize = 1 << 10;

/// A group that is in the WAL but not published.
#[derive(Debug)]
pub(super) struct InFlightGroup {
    pub(super) members: GroupMembers,
    pub(super) last_seq: SeqNo,
    pub(super) is_inserted: bool,
}

/// Leadership of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Leadership {
    /// No leader, and no commit waits.
    #[default]
    Idle,
    /// A thread leads.
    Held,
    /// Only tasks wait. A worker thread or the next committing thread takes the lead.
    Offered,
    /// A thread holds the lead for exclusive work. It takes no commits from the queue.
    Exclusive,
}

/// State of the commit pipeline that the queue lock guards.
#[derive(Debug, Default)]
pub(super) struct CommitQueue {
    /// Sequence number of the next operation.
    pub(super) next_seq: u64,
    pub(super) leadership: Leadership,
    /// Whether a thread waits for the lead for exclusive work. It is the next leader.
    is_exclusive_requested: bool,
    /// Whether a worker thread leads for tasks or was started to do so. There is at most one.
    pub(super) has_task_leader: bool,
    /// Whether the current group is synced.
    pub(super) is_syncing: bool,
    pub(super) waiting: VecDeque<Arc<CommitTicket>>,
    /// Number of waiting tickets that threads own.
    waiting_threads: usize,
    /// Groups in WAL order.
    pub(super) in_flight: VecDeque<InFlightGroup>,
    /// Number of waiting writers for which the leader delays its group; 0 without a delay.
    pub(super) awaited_writers: usize,
    /// Number of writers that requested the last sync or arrived during it.
    pub(super) last_sync_writers: usize,
    /// Operand chains of task commits that wait to be folded.
    long_chains: Vec<LongOperandChain>,
    /// Whether a worker thread folds chains or was started to do so.
    has_folding_worker: bool,
    /// Error that left the memtables with an incomplete group. Nothing is published until the database is reopened.
    pub(super) incomplete_insert: Option<Error>,
}

impl CommitQueue {
    /// Creates an empty queue.
    pub(super) fn new(next_seq: SeqNo) -> CommitQueue {
        CommitQueue { next_seq: next_seq.0, ..CommitQueue::default() }
    }

    /// Returns whether no commit is in progress.
    pub(super) fn is_idle(&self) -> bool {
        self.leadership == Leadership::Idle && self.waiting.is_empty() && self.in_flight.is_empty()
    }

    /// Offers the lead. Returns whether the caller must start a worker thread that takes it.
    pub(super) fn offer_lead(&mut self) -> bool {
        self.leadership = Leadership::Offered;
        !std::mem::replace(&mut self.has_task_leader, true)
    }

    /// Takes the lead if it is offered. Returns whether it was.
    pub(super) fn take_offered_lead(&mut self) -> bool {
        let is_offered = self.leadership == Leadership::Offered;
        if is_offered {
            self.leadership = Leadership::Held;
        }
        is_offered
    }

    /// Takes the lead unless a thread holds it. Returns whether it was taken.
    pub(super) fn take_free_lead(&mut self) -> bool {
        let is_free = matches!(self.leadership, Leadership::Idle | Leadership::Offered);
        if is_free {
            self.leadership = Leadership::Held;
        }
        is_free
    }

    /// Requests the lead for exclusive work. If a thread holds the lead, it passes the lead to the requester.
    pub(super) fn request_exclusive_lead(&mut self) {
        match self.leadership {
            Leadership::Idle | Leadership::Offered => self.leadership = Leadership::Exclusive,
            Leadership::Held | Leadership::Exclusive => self.is_exclusive_requested = true,
        }
    }

    /// Withdraws a request. Returns false if the requester holds the lead already.
    pub(super) fn withdraw_exclusive_request(&mut self) -> bool {
        std::mem::take(&mut self.is_exclusive_requested)
    }

    /// Returns whether the requester holds the lead and all groups are published.
    pub(super) fn can_run_exclusively(&self) -> bool {
        self.leadership == Leadership::Exclusive && self.in_flight.is_empty()
    }

    /// Appends a ticket. Returns whether all writers for which the leader waits are now in the queue.
    pub(super) fn push(&mut self, ticket: &Arc<CommitTicket>) -> bool {
        self.waiting_threads += usize::from(ticket.can_lead());
        self.waiting.push_back(Arc::clone(ticket));
        let is_complete = self.awaited_writers > 0 && self.waiting.len() >= self.awaited_writers;
        if is_complete {
            self.awaited_writers = 0;
        }
        is_complete
    }

    /// Removes a waiting ticket unless it must lead. Returns whether it was removed.
    pub(super) fn remove(&mut self, ticket: &Arc<CommitTicket>) -> bool {
        let index = self.waiting.iter().position(|waiting| Arc::ptr_eq(waiting, ticket));
        let index = index.filter(|_| ticket.is_queued());
        let is_removed = index.and_then(|index| self.waiting.remove(index)).is_some();
        self.waiting_threads -= usize::from(is_removed && ticket.can_lead());
        is_removed
    }

    /// Moves waiting tickets into a group, up to its limits. Returns whether any of them has guards.
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

    /// Passes the lead to the first waiting thread. If only tasks wait, it is offered.
    ///
    /// Returns the ticket whose thread must be woken, or for which a worker must be started, after the queue is
    /// unlocked.
    pub(super) fn pass_lead(&mut self, group: &mut CommitGroup) -> Option<Arc<CommitTicket>> {
        group.has_lead = false;
        self.is_syncing = false;
        if group.sync {
            self.last_sync_writers = group.members.len() + self.waiting.len();
        }
        self.hand_over_lead()
    }

    /// Passes the lead as [`CommitQueue::pass_lead`] does. Exclusive work comes first.
    pub(super) fn hand_over_lead(&mut self) -> Option<Arc<CommitTicket>> {
        if std::mem::take(&mut self.is_exclusive_requested) {
            self.leadership = Leadership::Exclusive;
            return None;
        }
        let Some(first) = self.waiting.front() else {
            self.leadership = Leadership::Idle;
            return None;
        };
        // If a thread waits in the queue, the first such thread becomes the leader, also for the asynchronous commits
        // before it. A background thread becomes the leader only if no thread waits.
        let mut threads = self.waiting.iter().filter(|ticket| ticket.can_lead());
        match if self.waiting_threads > 0 { threads.next() } else { None } {
            Some(thread) => {
                // Set under the queue lock, so that the ticket is not withdrawn.
                *thread.state.lock() = TicketState::Leading;
                let next = Some(Arc::clone(thread));
                // The lead may have been held for exclusive work.
                self.leadership = Leadership::Held;
                next
            }
            None => {
                let first = Arc::clone(first);
                self.offer_lead().then_some(first)
            }
        }
    }

    /// Removes and returns the oldest group if it is inserted.
    pub(super) fn pop_inserted_group(&mut self) -> Option<InFlightGroup> {
        self.in_flight.front().filter(|first| first.is_inserted)?;
        self.in_flight.pop_front()
    }

    /// Removes the group that ends at `last_seq` and all later groups. Returns their members.
    pub(super) fn remove_in_flight_groups_from(
        &mut self,
        last_seq: SeqNo,
    ) -> Vec<Arc<CommitTicket>> {
        let index = self.in_flight.iter().position(|group| group.last_seq >= last_seq);
        let removed = index.map(|index| self.in_flight.split_off(index)).unwrap_or_default();
        removed.iter().flat_map(|group| group.members.iter().cloned()).collect()
    }

    /// Adds operand chains to be folded. Returns whether the caller must start a folding worker.
    pub(super) fn push_long_operand_chains(&mut self, chains: Vec<LongOperandChain>) -> bool {
        // Readers fold the chains beyond the limit.
        let room = LONG_CHAINS_MAX.saturating_sub(self.long_chains.len());
        self.long_chains.extend(chains.into_iter().take(room));
        !std::mem::replace(&mut self.has_folding_worker, true)
    }

    /// Removes and returns the operand chains to be folded. If it returns none, the folding worker must exit.
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

    /// After exclusive work a waiting thread leads. The next exclusive work waits for the end of its group.
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
