//! Commit groups: commits that pass the stages of the pipeline together.

use bytes::Bytes;
use lsmx_base::coding::{len_u64, low_u32};
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::sync::{Arc, Ordering};
use lsmx_base::work_counter::{self, WorkKind};

use crate::error::{Error, Result};
use crate::format::batch::{BatchOperationIter, OperationEffect};
use crate::format::expiry::without_expiry;
use crate::memtable::Memtable;
use crate::merge_operator::CHAIN_OPERANDS_MAX;
use crate::state::DbState;
use crate::state::work_queue::WorkKind as QueuedWork;
use crate::tree::Tree;
use crate::tree::guard_history::{GuardCheck, GuardedKeys};
use crate::tree::super_version::SuperVersion;
use crate::wal::WalRecord;
use crate::write::batch::{CheckedWrites, KeyGuard, TreeIndexes};
use crate::write::ticket::{CommitTicket, GroupMembers, LongOperandChain};

/// Progress of a group in the pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum GroupStage {
    /// The group may be missing or incomplete in the WAL.
    #[default]
    Logging,
    /// The WAL contains the group. The memtables may contain a part of the group.
    Inserting,
    /// The group is published or has failed. Some members may not have received the result yet.
    Finished,
}

/// Commits that pass the stages of the pipeline together.
#[derive(Debug, Default)]
pub(super) struct CommitGroup {
    pub(super) members: Vec<Arc<CommitTicket>>,
    /// Memtables into which the group is inserted: one for each tree of each member, in the order of members and trees.
    targets: Vec<Arc<Memtable>>,
    /// Members that were rejected, with their errors. They have not received the errors yet.
    pub(super) rejected: Vec<(Arc<CommitTicket>, Error)>,
    pub(super) payload_bytes: usize,
    pub(super) sync: bool,
    pub(super) stage: GroupStage,
    /// True while the leader of this group is the leader of the queue.
    pub(super) has_lead: bool,
    /// Error of a failed group.
    pub(super) error: Option<Error>,
}

impl CommitGroup {
    /// Returns the result of all members. The stage must be [`GroupStage::Finished`].
    pub(super) fn result(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    pub(super) fn last_seq(&self) -> SeqNo {
        self.members.last().map_or(SeqNo::ZERO, |member| member.last_seq())
    }

    /// Removes all members and keeps the allocated memory.
    pub(super) fn clear(&mut self) {
        self.members.clear();
        self.targets.clear();
        (self.payload_bytes, self.sync, self.error) = (0, false, None);
    }

    pub(super) fn wal_records(&self) -> impl Iterator<Item = WalRecord<'_>> + Clone {
        let with_operations = self.members.iter().filter(|member| member.request.count > 0);
        with_operations.map(|member| WalRecord {
            first_seq: SeqNo(member.first_seq()),
            count: member.request.count,
            payload: &member.request.payload,
        })
    }

    /// Moves members that must not be written to `rejected`. Returns the number of visited operations and write sets,
    /// for metrics.
    ///
    /// `in_flight` contains the members of all groups that are not yet published.
    pub(super) fn reject_members(&mut self, state: &DbState, in_flight: &[GroupMembers]) -> u64 {
        let (mut checks, mut kept) = (0, 0);
        for index in 0..self.members.len() {
            let (earlier, ticket) = (&self.members[..kept], &self.members[index]);
            match check_guards_of_member(state, ticket, in_flight, earlier, &mut checks) {
                Ok(()) => {
                    self.payload_bytes += ticket.request.payload.len();
                    self.sync |= ticket.request.sync;
                    self.members.swap(kept, index);
                    kept += 1;
                }
                Err(error) => self.rejected.push((Arc::clone(ticket), error)),
            }
        }
        self.members.truncate(kept);
        checks
    }

    /// Seals full memtables, and assigns sequence numbers and memtables to all members. The first sequence number is
    /// `next_seq`.
    pub(super) fn assign_sequence_numbers(&mut self, state: &DbState, next_seq: &mut u64) {
        for ticket in &self.members {
            let request = &ticket.request;
            let first = SeqNo(*next_seq);
            ticket.first_seq.store(first.0, Ordering::Release);
            for tree in &request.seal {
                seal_active_memtable_of(state, tree, first);
            }
            for tree in &request.trees {
                if tree.super_version().active.bytes() >= tree.settings().options.memtable_bytes {
                    seal_active_memtable_of(state, tree, first);
                }
                let active = Arc::clone(&tree.super_version().active);
                active.announce_commit(first);
                self.targets.push(active);
            }
            *next_seq += u64::from(request.count);
        }
    }

    /// Inserts the operations of all members into the memtables. Returns the number of bytes by which the memtables
    /// grew.
    pub(super) fn insert(&self, state: &DbState) -> u64 {
        let (mut first_target, mut added_bytes) = (0, 0);
        for member in &self.members {
            let tree_count = member.request.trees.len();
            let targets = &self.targets[first_target..first_target + tree_count];
            first_target += tree_count;
            added_bytes += insert_commit(state, member, targets);
        }
        added_bytes
    }
}

/// Seals the active memtable of a tree and schedules its flush. Does nothing if no commit uses the memtable yet.
fn seal_active_memtable_of(state: &DbState, tree: &Arc<Tree>, first_seq: SeqNo) {
    if tree.super_version().active.first_announced().is_some() {
        let kind = tree.settings().options.memtable_kind;
        tree.update_super_version(|view| view.with_sealed_memtable(kind, first_seq));
        state.work.push(QueuedWork::Flush, tree.id);
    }
}

/// Checks whether a commit may be written. `earlier` contains the commits that precede it in its own group.
fn check_guards_of_member(
    state: &DbState,
    ticket: &CommitTicket,
    in_flight: &[GroupMembers],
    earlier: &[Arc<CommitTicket>],
    checks: &mut u64,
) -> Result<()> {
    state.error_state.check_writable()?;
    if state.is_closing() {
        // `close` waits only for writes that were admitted before it set this flag.
        return Err(Error::Closed);
    }
    let request = &ticket.request;
    for tree in &request.trees {
        tree.check_accepts_writes()?;
    }
    for guard in &request.guards {
        guard.tree.check_accepts_writes()?;
        let mut unpublished = in_flight.iter().flat_map(|members| members.iter()).chain(earlier);
        let mut check = check_published_writes(state, &guard.tree.super_version(), guard);
        if check == GuardCheck::Holds
            && !is_ignored(guard, Failpoint::UnpublishedRangesIgnored)
            && unpublished.any(|other| other.writes_guarded_keys(guard, checks))
        {
            check = GuardCheck::Refused;
        }
        if check != GuardCheck::Holds {
            return Err(guard.error(check));
        }
    }
    Ok(())
}

/// Checks guards of ranges before their commit is queued, so that the leader only has to check later writes. The time
/// that the leader needs then does not depend on the number of older entries in a range.
///
/// # Errors
/// - [`Error::Conflict`] if a guard does not hold.
/// - [`Error::ConflictUnknown`] if a guard cannot be decided.
pub(crate) fn check_ranges(state: &DbState, guards: &mut [KeyGuard]) -> Result<()> {
    for guard in guards.iter_mut().filter(|guard| guard.protects_range()) {
        let published = state.sequence.published();
        let view = guard.tree.super_version();
        // The newest entry does not count as checked. A search may not find it, because its insertion may not be
        // finished.
        let entries = view.active.inserted_count().saturating_sub(1);
        let check = check_published_writes(state, &view, guard);
        if check != GuardCheck::Holds {
            return Err(guard.error(check));
        }
        // If the active memtable contains all commits after `published`, no commit can be inserted into an older
        // memtable any more. The leader then does not have to check older memtables again.
        if view.active.first_seq().0 <= published.0.saturating_add(1) {
            guard.checked = Some(CheckedWrites { memtable: Arc::clone(&view.active), entries });
        }
    }
    Ok(())
}

/// Checks the guards of a transaction that has no writes.
///
/// If it succeeds, each value that the transaction read was the newest one of its key when this call began.
///
/// # Errors
/// - [`Error::Conflict`] if a guard does not hold.
/// - [`Error::ConflictUnknown`] if a guard cannot be decided.
/// - [`Error::KeyspaceDropped`]: the write history no longer contains the keyspace, and reads of other keyspaces may be
///   later than the drop.
pub(crate) fn check_reads(state: &DbState, guards: &[KeyGuard]) -> Result<()> {
    for guard in guards {
        guard.tree.check_live()?;
        let check = check_published_writes(state, &guard.tree.super_version(), guard);
        if check != GuardCheck::Holds {
            return Err(guard.error(check));
        }
    }
    Ok(())
}

/// Checks a guard against published writes: first ingested ranges, then the memtables of `view`, and then the history
/// of flushed writes.
///
/// A flush adds its writes to the history before its memtable is removed from the view. The caller must therefore load
/// the view before this call.
fn check_published_writes(state: &DbState, view: &SuperVersion, guard: &KeyGuard) -> GuardCheck {
    if guard.checked.is_some() && failpoint::is_on(Failpoint::QueuedRangesNotChecked) {
        return GuardCheck::Holds;
    }
    if guard.tree.ingested_ranges.may_contain_newer(&guard.keys, guard.read)
        && !failpoint::is_on(Failpoint::GuardIgnoresIngest)
    {
        return GuardCheck::Unknown;
    }
    for memtable in view.memtables() {
        work_counter::add(WorkKind::LeaderVisits, 1);
        let checked = guard.checked.as_ref().filter(|at| Arc::ptr_eq(&at.memtable, memtable));
        let has_newer_write = match &guard.keys {
            GuardedKeys::Key { key, .. } => {
                let written = memtable.get(key, SeqNo::MAX).map(|(seq, ..)| seq);
                written.max(memtable.newest_covering_seq(key, SeqNo::MAX)) > Some(guard.read)
            }
            GuardedKeys::Range { start, end } => {
                let checked_entries = checked.map_or(0, |checked| checked.entries);
                memtable.has_newer_write(start, end.as_deref(), guard.read, checked_entries)
            }
        };
        if has_newer_write {
            return GuardCheck::Refused;
        }
        // Older memtables and tables contain only writes that have been checked or are not newer than the read.
        if checked.is_some() || memtable.first_seq().0 <= guard.read.0.saturating_add(1) {
            return GuardCheck::Holds;
        }
    }
    if is_ignored(guard, Failpoint::FlushedRangesIgnored) {
        return GuardCheck::Holds;
    }
    let oldest = view.sealed.last().unwrap_or(&view.active).first_seq();
    state.guard_history.check_guard(guard.tree.id, &guard.keys, guard.read, oldest)
}

/// Returns whether the failpoint is enabled and the guard protects a range.
fn is_ignored(guard: &KeyGuard, failpoint: Failpoint) -> bool {
    failpoint::is_on(failpoint) && guard.protects_range()
}

/// Inserts the operations of a commit into the memtables of its trees. Returns the number of bytes by which the
/// memtables grew.
///
/// Operand chains that reach their maximum length are added to the ticket.
fn insert_commit(state: &DbState, ticket: &CommitTicket, memtables: &[Arc<Memtable>]) -> u64 {
    let request = &ticket.request;
    let payload = &request.payload;
    let tree_indexes = TreeIndexes::new(&request.trees);
    let (mut last, mut added_bytes) = (0, 0);
    // This process has encoded the payload, so all operations can be decoded.
    let operations = BatchOperationIter::new(payload).flatten();
    for (seq, operation) in (ticket.first_seq()..).zip(operations) {
        work_counter::add(WorkKind::LeaderVisits, 1);
        // Consecutive operations usually write to the same tree.
        if request.trees[last].id != operation.keyspace {
            let found = tree_indexes.find(operation.keyspace);
            last = found.expect("a batch lists every tree that it writes");
        }
        let key = &payload[operation.key];
        let (tree, memtable, seq) = (&request.trees[last], &memtables[last], SeqNo(seq));
        let counters = &tree.counters;
        added_bytes += match operation.action {
            OperationEffect::Entry { kind, value } => {
                let value = &payload[value];
                let bytes = len_u64(key.len() + without_expiry(kind, value).len());
                counters.count_write(kind, bytes);
                if kind.is_expiring() {
                    tree.set_may_expire();
                }
                if kind == EntryKind::Merge {
                    let below = operand_count_below(tree, seq);
                    let (bytes, is_long) = memtable.insert_operand(key, seq, value, below);
                    if is_long {
                        let (tree, memtable) = (Arc::clone(tree), Arc::clone(memtable));
                        let key = Bytes::copy_from_slice(key);
                        let chain = LongOperandChain { tree, memtable, key, seq };
                        ticket.long_chains.lock().push(chain);
                    }
                    bytes
                } else {
                    if kind == EntryKind::Delete {
                        record_tombstone(state, tree, memtable);
                    }
                    memtable.insert(key, seq, kind, value)
                }
            }
            OperationEffect::DeleteRange { end } => {
                let end = end.map(|end| &payload[end]);
                counters.count_range_delete(len_u64(key.len() + end.map_or(0, <[u8]>::len)));
                record_tombstone(state, tree, memtable);
                memtable.insert_range_tombstone(key, end, seq)
            }
        };
        if failpoint::is_on(Failpoint::BatchSplit) && request.count > 1 {
            break;
        }
    }
    added_bytes
}

/// Records that a memtable contains a tombstone. For the first tombstone, also schedules the flush that the maximum age
/// of tombstones requires.
fn record_tombstone(state: &DbState, tree: &Tree, memtable: &Memtable) {
    if memtable.record_tombstone(|| state.env.database_time_us()) {
        state.work.schedule_tree_check(tree.record_first_tombstone(state.env.database_time_us()));
    }
}

/// Returns the number of older operands that is assumed for the first operand of a key in a memtable.
///
/// The actual number is unknown, because it would require a read. If compactions can merge operands partially, the
/// number is irrelevant, and the function returns 0. Otherwise, a key with few operands per memtable could accumulate
/// any number of operands in tables. The function therefore returns a pseudorandom number in `0..CHAIN_OPERANDS_MAX`.
///
/// Each operand then reaches the limit with a probability of 1 / [`CHAIN_OPERANDS_MAX`]. The probability of a chain of
/// n × [`CHAIN_OPERANDS_MAX`] operands is less than e^-n. The number is computed from the sequence number, so that
/// tests with equal seeds produce equal files.
fn operand_count_below(tree: &Tree, seq: SeqNo) -> u32 {
    if !tree.merge_resolver.has_unmergeable_operands() {
        return 0;
    }
    let mixed = seq.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    low_u32(mixed) % CHAIN_OPERANDS_MAX
}
