//! Finds and reports data that exceeds its delete persistence bound, the maximum time until deleted values are removed.
//! Also requests the removal of obsolete operands from operand stores. An operand is obsolete if a newer delete covers
//! it.

use std::collections::BTreeSet;

use lsmx_base::key::SeqNo;
use lsmx_compaction::{DeletePersistence, FileId};

use crate::event::{DeletePersistenceOverdue, Event, PersistenceHolder};
use crate::jobs::operand_store::collect::list_snapshots;
use crate::state::DbState;
use crate::tree::Tree;
use crate::tree::delete_persistence::{OverdueData, RegisteredIterator};
use crate::tree::snapshots::SnapshotTracker;

/// Requests the removal of operands from the operand store of a tree if deletes have covered them for too long.
pub(crate) fn request_operand_removal(
    state: &DbState,
    tree: &Tree,
    parts: DeletePersistence,
    now_us: u64,
) {
    let Some(attached) = tree.operand_store.attached() else { return };
    let snapshots = list_snapshots(&state.sequence);
    let oldest = attached.store.oldest_void_delete();
    let through = {
        let mut jobs = tree.jobs.lock();
        let ages = &mut jobs.void_operands;
        ages.record((now_us, state.sequence.published()), parts.bound_us(), oldest);
        ages.due_through(parts, now_us)
    };
    attached.store.remove_void_operands(through, &snapshots);
}

/// Sends an event for each new holder of overdue data. A holder is not new if the previous check also found it.
pub(crate) fn report_overdue_data(state: &DbState, tree: &Tree) {
    let overdue = find_overdue_data(tree, &state.sequence);
    let new_holders = tree.jobs.lock().reported_holders.take_new(overdue);
    for data in new_holders {
        state.emit(&Event::DeletePersistenceOverdue(DeletePersistenceOverdue {
            keyspace: tree.name(),
            holder: data.holder,
            overdue_us: data.overdue_us,
        }));
    }
}

/// Returns the overdue data of a tree, with at most one element per holder. Data is overdue if its bound has passed:
///
/// - For tables and blob files of the current version, the bound starts at the write time of the oldest tombstone, at
///   the earliest expiry time, or at the time at which garbage was found. If a snapshot is older than the tombstone or
///   does not see the expiry, the snapshot is the holder. Otherwise, background jobs are late and are the holder.
/// - For operands in an operand store, the bound starts when the delete that covers them was recorded. If a snapshot is
///   older than the delete, the snapshot is the holder. Otherwise, background jobs are the holder.
/// - For files that only an iterator uses, the iterator is the holder. Jobs remove deleted data from the current
///   version within three quarters of the bound. An iterator may therefore exceed the bound a quarter of the bound
///   after its creation.
pub(crate) fn find_overdue_data(tree: &Tree, tracker: &SnapshotTracker) -> Vec<OverdueData> {
    let Some(parts) = tree.delete_persistence() else { return Vec::new() };
    let now_us = tree.env().database_time_us();
    let shape = tree.shape(now_us, tracker);
    let overdue_us = |since_us: u64| {
        let due_us = since_us.saturating_add(parts.bound_us());
        Some(now_us.saturating_sub(due_us)).filter(|us| *us > 0)
    };
    let (mut by_jobs, mut by_snapshot) = (0, 0);
    for file in shape.files() {
        if file.tombstones > 0 {
            let since_us = file.oldest_tombstone_us.unwrap_or(file.created_us);
            let overdue_us = overdue_us(since_us).unwrap_or(0);
            let is_held = !shape.has_droppable_tombstone(file);
            let longest = if is_held { &mut by_snapshot } else { &mut by_jobs };
            *longest = overdue_us.max(*longest);
        }
        if let Some(expiry) = &file.expiry {
            let overdue_us = overdue_us(expiry.earliest_us).unwrap_or(0);
            let is_held = expiry.earliest_us > shape.expiry_limit_us;
            let longest = if is_held { &mut by_snapshot } else { &mut by_jobs };
            *longest = overdue_us.max(*longest);
        }
    }
    let garbage_us = tree.jobs.lock().blob_garbage.oldest_us();
    by_jobs = garbage_us.and_then(overdue_us).unwrap_or(0).max(by_jobs);
    if let Some((seq, since_us)) = find_void_operands(tree) {
        let overdue_us = overdue_us(since_us).unwrap_or(0);
        let is_held = tracker.oldest_snapshot().is_some_and(|(snapshot, _)| snapshot < seq);
        let longest = if is_held { &mut by_snapshot } else { &mut by_jobs };
        *longest = overdue_us.max(*longest);
    }
    let mut overdue = Vec::new();
    if by_jobs > 0 {
        let holder = PersistenceHolder::Jobs;
        overdue.push(OverdueData { holder, overdue_us: by_jobs, holder_id: 0 });
    }
    if let (true, Some((seq, since_us))) = (by_snapshot > 0, tracker.oldest_snapshot()) {
        let age_us = tree.env().now_us().saturating_sub(since_us);
        let holder = PersistenceHolder::Snapshot { seq: seq.0, age_us };
        overdue.push(OverdueData { holder, overdue_us: by_snapshot, holder_id: seq.0 });
    }
    overdue.extend(find_data_of_iterators(tree, parts, now_us));
    overdue
}

/// Returns the oldest delete that may cover operands in the operand store of a tree, and the time in microseconds at
/// which this delete was recorded.
fn find_void_operands(tree: &Tree) -> Option<(SeqNo, u64)> {
    let seq = tree.operand_store.attached()?.store.oldest_void_delete()?;
    Some((seq, tree.jobs.lock().void_operands.recorded_us(seq)?))
}

/// Returns the data that only iterators use, with one element for each iterator that may exceed the bound.
fn find_data_of_iterators(tree: &Tree, parts: DeletePersistence, now_us: u64) -> Vec<OverdueData> {
    let reserve_us = parts.bound_us() / 4;
    let due_us = |iterator: &RegisteredIterator| iterator.created_us.saturating_add(reserve_us);
    let mut iterators = tree.iterators.iterators();
    iterators.retain(|iterator| due_us(iterator) < now_us);
    if iterators.is_empty() {
        return Vec::new();
    }
    let current = tree.pin_super_version();
    let current_files: BTreeSet<FileId> =
        current.version.shape().files().map(|file| file.id).collect();
    let holds_files = |iterator: &RegisteredIterator| {
        iterator.view.upgrade().is_some_and(|view| {
            view.collection_count() != current.collection_count()
                || view.version.shape().files().any(|file| !current_files.contains(&file.id))
        })
    };
    let held = iterators.into_iter().filter(holds_files);
    held.map(|iterator| {
        let age_us = now_us.saturating_sub(iterator.created_us);
        let holder = PersistenceHolder::Iterator { seq: iterator.seq.0, age_us };
        let overdue_us = now_us.saturating_sub(due_us(&iterator));
        OverdueData { holder, overdue_us, holder_id: iterator.id }
    })
    .collect()
}
