//! Flush trigger: seals memtables before they are full.
//!
//! A memtable is sealed early in these cases:
//!
//! - The WAL or all memtables together are too large.
//! - The memtable prevents the deletion of many WAL segments.
//! - The memtable has not been written for some time.
//!
//! The flush trigger also checks all trees periodically, and queues compactions that become due because of the time.
//!
//! If a keyspace has a delete persistence bound, the trigger empties the WAL periodically. It closes the current
//! segment and seals the memtables of all keyspaces, because all keyspaces share the WAL. After the flushes, no segment
//! contains an older commit.

use std::collections::HashMap;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};

use crate::env::NEVER_US;
use crate::error::Result;
use crate::jobs::delete_persistence::{report_overdue_data, request_operand_removal};
use crate::jobs::obsolete_files::retire_segments;
use crate::state::DbState;
use crate::state::work_queue::WorkKind;
use crate::tree::Tree;
use crate::write::commit::Committer;

/// Maximum time between two checks of all trees in microseconds.
const CHECK_US: u64 = 60_000_000;
/// Minimum time between two checks of all trees in microseconds.
const CHECK_US_MIN: u64 = 10_000;

/// A memtable pins the WAL segments that contain its commits, because recovery needs them. A memtable is flushed early
/// only if the closed segments that it pins are larger than this size in bytes.
const PINNED_BYTES_MIN: u64 = 16 << 20;
/// A memtable is flushed early only if the WAL has grown by this multiple of the memtable's size since the first write
/// to the memtable.
const PINNED_FACTOR: u64 = 16;
/// Minimum growth of the WAL in bytes between two searches for pinning memtables.
const PINNED_CHECK_BYTES: u64 = PINNED_BYTES_MIN / 4;

/// Limits above which memtables are flushed early.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlushTriggerLimits {
    /// Size of the WAL in bytes. Above it, the tree that pins the oldest segment is flushed.
    pub(crate) wal_bytes: u64,
    /// Total size of all memtables in bytes, half of the size at which writes wait. Above it, the largest memtable is
    /// flushed. Memtables of trees whose flush is blocked by an operand store count half.
    pub(crate) memtable_bytes: u64,
    /// Time without writes in microseconds after which a memtable is flushed. `None` if it is not limited.
    pub(crate) memtable_idle_us: Option<u64>,
}

/// Seals memtables early, and checks all trees periodically.
#[derive(Debug)]
pub(crate) struct FlushTrigger {
    state: Arc<DbState>,
    committer: Arc<Committer>,
    limits: FlushTriggerLimits,
    /// Whether a thread is sealing memtables early.
    is_sealing: AtomicBool,
    /// Time of the next check of all trees in microseconds.
    next_check_us: AtomicU64,
    /// Time at which the WAL is emptied next, in microseconds of the database clock. 0 if it was never emptied.
    next_log_us: AtomicU64,
    /// The next search for pinning memtables is due when this number of bytes has been written to the WAL in total.
    next_pinned_check_bytes: AtomicU64,
    /// Active memtables that were not written between the last two checks, by the id of the tree.
    unchanged: Mutex<HashMap<u32, UnchangedMemtable>>,
}

/// An active memtable that was not written since `since_us`.
#[derive(Clone, Copy, Debug)]
struct UnchangedMemtable {
    first_seq: SeqNo,
    bytes: u64,
    since_us: u64,
}

impl FlushTrigger {
    /// Creates a flush trigger. The first check of all trees is due after one interval.
    pub(crate) fn new(
        state: Arc<DbState>,
        committer: Arc<Committer>,
        limits: FlushTriggerLimits,
    ) -> FlushTrigger {
        let trigger = FlushTrigger {
            committer,
            limits,
            is_sealing: AtomicBool::new(false),
            next_check_us: AtomicU64::new(0),
            next_log_us: AtomicU64::new(0),
            next_pinned_check_bytes: AtomicU64::new(0),
            unchanged: Mutex::default(),
            state,
        };
        let first = trigger.state.env.now_us().saturating_add(trigger.check_interval_us());
        trigger.next_check_us.store(first, Ordering::Relaxed);
        trigger
    }

    /// Returns the time of the next check in microseconds. This is the next check of all trees, or an earlier time at
    /// which other work becomes due.
    pub(crate) fn next_check_us(&self) -> u64 {
        let env = &self.state.env;
        // Convert the remaining time from the database clock to the clock for scheduling.
        let left_us = self.state.work.due_us().saturating_sub(env.database_time_us());
        let due_us = env.now_us().saturating_add(left_us);
        self.next_check_us.load(Ordering::Relaxed).min(due_us)
    }

    /// Returns the time between two checks of all trees in microseconds. This is half of the idle time of memtables,
    /// clamped to the limits above.
    fn check_interval_us(&self) -> u64 {
        let half = self.limits.memtable_idle_us.map_or(CHECK_US, |idle_us| idle_us.div_ceil(2));
        half.clamp(CHECK_US_MIN, CHECK_US)
    }

    /// Returns true if [`FlushTrigger::flush_if_due`] may have work. There is work if a search for pinning memtables is
    /// due. There may also be work if the WAL or the memtables exceed their limit, and no unblocked flush is queued or
    /// running.
    pub(crate) fn is_flush_due(&self) -> bool {
        let state = &self.state;
        let wal_is_large = state.wal.live_bytes() > self.limits.wal_bytes;
        let memory_is_large = state.memtables.used_bytes() > self.limits.memtable_bytes;
        // A flush that is queued or running will reduce the size of the WAL and of the memtables. A flush that has
        // reserved an operand store, or waits for a reserved store, may take long and does not count.
        ((wal_is_large || memory_is_large) && !state.work.has_unblocked_flush())
            || self.is_pinned_segment_check_due()
    }

    fn is_pinned_segment_check_due(&self) -> bool {
        let wal = &self.state.wal;
        wal.live_bytes() > PINNED_BYTES_MIN
            && wal.written_bytes() >= self.next_pinned_check_bytes.load(Ordering::Relaxed)
            && !failpoint::is_on(Failpoint::IdleMemtablePinsLog)
    }

    /// Returns the trees whose active memtable is small in comparison to the WAL segments that it pins.
    ///
    /// A memtable pins all closed segments since its first write. The growth of the WAL since this write is counted in
    /// whole segments, without the segment that contains the write.
    fn find_pinning_trees(&self) -> Vec<Arc<Tree>> {
        let state = &self.state;
        let next = state.wal.written_bytes().saturating_add(PINNED_CHECK_BYTES);
        self.next_pinned_check_bytes.store(next, Ordering::Relaxed);
        let segments = state.wal.segments();
        let pins_wal = |tree: &Arc<Tree>| {
            let view = tree.super_version();
            let Some(first) = view.first_unflushed_seq() else { return false };
            let pinned =
                segments.iter().filter(|segment| segment.closed && segment.last_seq >= first);
            let written_since = segments.iter().filter(|segment| segment.first_seq > first);
            // A tree with a sealed memtable is flushed in any case.
            view.sealed.is_empty()
                && pinned.map(|segment| segment.bytes).sum::<u64>() > PINNED_BYTES_MIN
                && written_since.map(|segment| segment.bytes).sum::<u64>()
                    > view.active.bytes().saturating_mul(PINNED_FACTOR)
        };
        state.all_trees().into_iter().filter(pins_wal).collect()
    }

    /// Seals memtables if [`FlushTrigger::is_flush_due`] returns true. Sealing waits for all earlier commits. If they
    /// do not end before the deadline, no memtable is sealed.
    pub(crate) fn flush_if_due(&self, deadline_us: Option<u64>) {
        if self.is_flush_due() && !self.is_sealing.swap(true, Ordering::AcqRel) {
            // After an error, the database is read-only, and the next write fails. After a missed deadline, the next
            // write tries again.
            let _ = self.seal_memtables_early(deadline_us);
            self.is_sealing.store(false, Ordering::Release);
            // Writes wait for `is_sealing` only while memory is full. Each commit may get here during a long flush of a
            // tree with an operand store, so idle threads are not woken without need.
            if self.state.memtables.is_full() {
                self.state.progress.notify();
            }
        }
    }

    /// Returns whether a thread is sealing memtables early.
    pub(crate) fn is_flush_running(&self) -> bool {
        self.is_sealing.load(Ordering::Acquire)
    }

    /// Seals small memtables that pin many WAL segments. If there are none and the WAL limit is exceeded, seals the
    /// memtable that pins the oldest segment. Otherwise, or if that memtable is already sealed, seals the largest memtable
    /// if the memory limit is exceeded.
    fn seal_memtables_early(&self, deadline_us: Option<u64>) -> Result<()> {
        let state = &self.state;
        if self.is_pinned_segment_check_due() {
            let pinning = self.find_pinning_trees();
            if !pinning.is_empty() {
                return self.committer.seal_memtables(pinning, deadline_us);
            }
        }
        let wal_is_large = state.wal.live_bytes() > self.limits.wal_bytes;
        let used_bytes = state.memtables.used_bytes();
        let memory_is_large = used_bytes > self.limits.memtable_bytes;
        if !(wal_is_large || memory_is_large) || state.work.has_unblocked_flush() {
            return Ok(());
        }
        let trees = state.all_trees();
        // The flush of a sealed memtable is already queued, or waits for the operand store.
        let has_sealed = |tree: &Arc<Tree>| !tree.super_version().sealed.is_empty();
        let oldest = |tree: &&Arc<Tree>| tree.super_version().first_unflushed_seq();
        let mut selected = trees
            .iter()
            .filter(|tree| wal_is_large && oldest(tree).is_some())
            .min_by_key(oldest)
            .filter(|tree| !has_sealed(tree));
        if selected.is_none() && memory_is_large {
            let unblocked: Vec<_> = trees.iter().filter(|tree| !has_sealed(tree)).collect();
            let active_bytes = |tree: &&Arc<Tree>| tree.super_version().active.bytes();
            let unblocked_bytes: u64 = unblocked.iter().map(active_bytes).sum();
            // Blocked memtables may exceed the limit alone. If they counted fully, each write to another tree would then
            // cause a flush of a tiny memtable. When writes wait for memory, the sum exceeds the limit in any case.
            let blocked_bytes = used_bytes.saturating_sub(unblocked_bytes);
            if unblocked_bytes + blocked_bytes / 2 > self.limits.memtable_bytes {
                selected = unblocked.into_iter().max_by_key(active_bytes);
            }
        }
        match selected {
            Some(tree) => self.committer.seal_memtables(vec![Arc::clone(tree)], deadline_us),
            None => Ok(()),
        }
    }

    /// If a check of all trees is due, queues each tree for compaction and flushes idle memtables. Idle trees are
    /// checked, too, because their policies may depend on the time or on released snapshots.
    pub(crate) fn check_trees_if_due(&self) {
        let state = &self.state;
        let now_us = state.env.now_us();
        self.queue_due_work(state.env.database_time_us());
        let due_us = self.next_check_us.load(Ordering::Relaxed);
        if now_us < due_us {
            return;
        }
        let next_us = now_us.saturating_add(self.check_interval_us());
        let next_check = &self.next_check_us;
        if next_check
            .compare_exchange(due_us, next_us, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
        {
            return;
        }
        if state.error_state.check_writable().is_err() || state.is_closing() {
            return;
        }
        let trees = state.all_trees();
        for tree in &trees {
            let view = tree.super_version();
            if !view.version.runs().is_empty() || view.operand_view.is_some() {
                state.work.push(WorkKind::Compaction, tree.id);
            }
        }
        let idle = self.find_idle_trees(&trees, now_us);
        if !idle.is_empty() {
            // After an error, the database is read-only, and the next write returns the error.
            let _ = self.committer.seal_memtables(idle, None);
        }
        self.flush_if_due(None);
    }

    /// Queues compactions that have become due because of the time. Seals memtables whose oldest tombstone has reached
    /// its maximum age.
    fn queue_due_work(&self, now_us: u64) {
        let state = &self.state;
        // A read-only database cannot run jobs. `resume` checks all trees.
        if !state.work.take_due_tree_check(now_us)
            || state.error_state.check_writable().is_err()
            || state.is_closing()
        {
            return;
        }
        let (mut expired, mut next_us) = (Vec::new(), NEVER_US);
        for tree in state.all_trees() {
            let (compaction_us, memtable_us) = tree.take_due_times(now_us);
            if compaction_us <= now_us {
                state.work.push(WorkKind::Compaction, tree.id);
            } else {
                next_us = next_us.min(compaction_us);
            }
            if memtable_us <= now_us {
                expired.push(tree);
            } else {
                next_us = next_us.min(memtable_us);
            }
        }
        let persistence_us = self.check_delete_persistence(now_us).unwrap_or(NEVER_US);
        state.work.schedule_tree_check(next_us.min(persistence_us));
        if !expired.is_empty() {
            // After an error, the database is read-only, and the next write returns the error.
            let _ = self.committer.seal_memtables(expired, None);
        }
    }

    /// Checks the trees with a delete persistence bound: queues them for compaction, reports overdue data, and empties
    /// the WAL if this is due. Returns the time of the next check, or `None` if there are no such trees.
    fn check_delete_persistence(&self, now_us: u64) -> Option<u64> {
        let state = &self.state;
        let trees = state.all_trees();
        let with_parts = trees.iter().filter_map(|tree| Some((tree, tree.delete_persistence()?)));
        let bounded: Vec<_> = with_parts.collect();
        let parts = bounded.iter().map(|(_, parts)| *parts).min_by_key(|it| it.bound_us())?;
        for (tree, parts) in &bounded {
            request_operand_removal(state, tree, *parts, now_us);
            state.work.push(WorkKind::Compaction, tree.id);
            report_overdue_data(state, tree);
        }
        // The bound may have become shorter after `next_log_us` was set.
        let due_us = self.next_log_us.load(Ordering::Relaxed);
        let latest_us = now_us.saturating_add(parts.log_us());
        if due_us > now_us {
            self.next_log_us.store(due_us.min(latest_us), Ordering::Relaxed);
        } else {
            self.next_log_us.store(latest_us, Ordering::Relaxed);
            if let Err(error) = self.empty_log(&trees) {
                state.report_background_error("flush", None, &error);
                state.make_read_only(error);
            }
        }
        let next_us = now_us.saturating_add(parts.check_us());
        Some(next_us.min(self.next_log_us.load(Ordering::Relaxed)))
    }

    /// Closes the current WAL segment and seals all memtables with commits. Segments without unflushed commits are
    /// retired at once, and the other segments after the flushes.
    ///
    /// # Errors
    /// A segment cannot be created or synced, or the manifest cannot be written.
    fn empty_log(&self, trees: &[Arc<Tree>]) -> Result<()> {
        let state = &self.state;
        if !state.wal.has_commits() || failpoint::is_on(Failpoint::LogNotEmptied) {
            return Ok(());
        }
        state.wal.rotate()?;
        // A commit may be in the closed segment and not yet in its memtable. Such commits are announced to the
        // memtable.
        let has_commits =
            |tree: &&Arc<Tree>| tree.super_version().active.first_announced().is_some();
        let unflushed: Vec<_> = trees.iter().filter(has_commits).cloned().collect();
        if !unflushed.is_empty() && self.committer.seal_memtables(unflushed, None).is_err() {
            // The database is read-only, and the next write returns the error.
            return Ok(());
        }
        state.wal.sync()?;
        retire_segments(state)
    }

    /// Returns the trees whose active memtable is not empty and was not written during the idle time.
    fn find_idle_trees(&self, trees: &[Arc<Tree>], now_us: u64) -> Vec<Arc<Tree>> {
        let Some(idle_us) = self.limits.memtable_idle_us else { return Vec::new() };
        let mut unchanged = self.unchanged.lock();
        let mut previous = std::mem::take(&mut *unchanged);
        let mut idle = Vec::new();
        for tree in trees {
            let (first_seq, bytes) = {
                let view = tree.super_version();
                (view.active.first_seq(), view.active.bytes())
            };
            if bytes == 0 {
                continue;
            }
            let is_same = |previous: &UnchangedMemtable| {
                previous.first_seq == first_seq && previous.bytes == bytes
            };
            let since_us = previous
                .remove(&tree.id)
                .filter(is_same)
                .map_or(now_us, |previous| previous.since_us);
            if now_us.saturating_sub(since_us) >= idle_us {
                idle.push(Arc::clone(tree));
            } else {
                unchanged.insert(tree.id, UnchangedMemtable { first_seq, bytes, since_us });
            }
        }
        idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Db;
    use crate::db::inner::DbInner;
    use crate::env::Background;
    use crate::options::db::Options;
    use crate::options::keyspace::KeyspaceOptions;
    use crate::vfs::MemVfs;
    use crate::write::batch::WriteBatch;

    /// Seals the memtable of a tree. The flush does not start, like a flush that waits for an operand store.
    fn seal_without_flush(inner: &DbInner, tree: &Arc<Tree>) {
        let state = &inner.state;
        inner.committer.seal_memtables(vec![Arc::clone(tree)], None).unwrap();
        while state.work.take(WorkKind::Flush, &state.trees).is_some() {
            state.work.end_work(WorkKind::Flush);
        }
    }

    /// The memtable that pins the oldest segment was sealed, and its flush waited for an operand store. Because the WAL
    /// exceeded its limit, no other memtable was sealed, although the memory limit was exceeded, too.
    #[test]
    fn oldest_memtable_sealed_largest_memtable_is_sealed() {
        let options = Options::default().background(Background::Inline);
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        let other = db.keyspace("other", KeyspaceOptions::default()).unwrap();
        db.put("a", "1").unwrap();
        other.put("b", [2; 100]).unwrap();
        let inner = db.inner();
        let (state, oldest) = (&inner.state, &inner.default_tree);
        seal_without_flush(inner, oldest);
        let trees = state.all_trees();
        let largest = trees.iter().find(|tree| tree.id != oldest.id).unwrap();
        let try_flush = |memtable_bytes| {
            let limits =
                FlushTriggerLimits { wal_bytes: 0, memtable_bytes, memtable_idle_us: None };
            let committer = Arc::clone(&inner.committer);
            FlushTrigger::new(Arc::clone(state), committer, limits).flush_if_due(None);
            largest.super_version().sealed.len()
        };
        let sealed = [try_flush(u64::MAX), try_flush(0)];
        // The close of the database waits for the flushes.
        inner.schedule_all_trees();
        assert_eq!(sealed, [0, 1]);
    }

    /// The memtables of a keyspace waited for its operand store, and exceeded the memory limit alone. Each write to another
    /// keyspace caused a flush of a memtable with one entry.
    #[test]
    fn blocked_memtable_exceeds_limit_other_flushes_are_not_tiny() {
        let small = || KeyspaceOptions::default().memtable_bytes(64 << 10);
        let options = Options::default().background(Background::Inline);
        let options = options.keyspace_defaults(small()).memtable_bytes_max(64 << 10);
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        let other = db.keyspace("other", small()).unwrap();
        let inner = db.inner();
        let mut batch = WriteBatch::new();
        batch.put(&db.default_keyspace(), "a", vec![1; 40 << 10]);
        // This commit runs no inline flush.
        inner.committer.commit(batch, false, 0, None).unwrap();
        seal_without_flush(inner, &inner.default_tree);
        for number in 0..1_000u32 {
            other.put(number.to_be_bytes(), "value").unwrap();
        }
        let flushes = db.metrics().keyspaces["other"].flushes;
        // The close of the database waits for the flushes.
        inner.schedule_all_trees();
        assert!((1..50).contains(&flushes), "{flushes} flushes");
    }
}
