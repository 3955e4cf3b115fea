//! The visible sequence number and the registered snapshots.

use std::collections::BTreeMap;
use std::fmt;

use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, AtomicU64, Mutex, Ordering};
use lsmx_base::work_counter::{self, WorkKind};

/// Snapshots registered at one sequence number.
#[derive(Clone, Copy, Debug)]
struct SnapshotHolders {
    count: usize,
    /// Time of the first registration, in microseconds.
    since_us: u64,
}

/// Tracks the newest visible sequence number and the snapshots of a database.
#[derive(Debug, Default)]
pub(crate) struct SnapshotTracker {
    published: AtomicU64,
    snapshots: Mutex<BTreeMap<SeqNo, SnapshotHolders>>,
    /// Running jobs that remove entries which a snapshot could see. Modified under the lock of `snapshots`.
    entry_removals: AtomicU64,
    /// Number of sequence numbers whose last snapshot was released. Modified under the lock of `snapshots`.
    releases: AtomicU64,
    /// Locked after `snapshots`.
    drops: Mutex<KeyspaceDrops>,
}

/// Counts snapshots by the number of keyspaces that were dropped before them. A dropped keyspace is kept until the
/// snapshots before its drop are released.
#[derive(Debug, Default)]
struct KeyspaceDrops {
    /// Number of drops so far.
    count: u64,
    /// Number of registered snapshots, by the number of drops before them.
    snapshot_counts: BTreeMap<u64, usize>,
}

impl SnapshotTracker {
    /// Returns the newest visible sequence number.
    pub(crate) fn published(&self) -> SeqNo {
        SeqNo(self.published.load(Ordering::Acquire))
    }

    /// Makes all commits up to `seq` visible.
    ///
    /// The release store pairs with the acquire load of [`SnapshotTracker::published`]: a thread that loads
    /// `seq` also sees the memtable entries up to `seq`.
    pub(crate) fn publish(&self, seq: SeqNo) {
        self.published.store(seq.0, Ordering::Release);
    }

    /// Registers a snapshot of the visible state.
    ///
    /// Returns `None` while a job removes entries that the snapshot could see, see
    /// [`SnapshotTracker::begin_entry_removal`].
    ///
    /// The sequence number is read under the lock that [`SnapshotTracker::snapshot_seqs`] takes. So a job
    /// either sees the snapshot, or drops only entries that are shadowed by an entry visible to the snapshot.
    pub(crate) fn register(self: &Arc<Self>, now_us: u64) -> Option<SnapshotGuard> {
        self.register_snapshot_at(now_us, SnapshotTracker::published)
    }

    /// Registers a snapshot at the sequence number that `seq` returns under the lock.
    pub(crate) fn register_snapshot_at(
        self: &Arc<Self>,
        now_us: u64,
        seq: impl FnOnce(&SnapshotTracker) -> SeqNo,
    ) -> Option<SnapshotGuard> {
        let mut snapshots = self.snapshots.lock();
        if self.has_entry_removal() {
            return None;
        }
        let seq = seq(self);
        let holders = SnapshotHolders { count: 0, since_us: now_us };
        snapshots.entry(seq).or_insert(holders).count += 1;
        let mut drops = self.drops.lock();
        let keyspace_drops_before = drops.count;
        *drops.snapshot_counts.entry(keyspace_drops_before).or_insert(0) += 1;
        Some(SnapshotGuard { tracker: Arc::clone(self), seq, keyspace_drops_before })
    }

    /// Begins the removal of entries that were not deleted, the oldest of which has the number `seq_smallest`.
    ///
    /// Returns false if a snapshot sees such an entry. No snapshot is registered until
    /// [`SnapshotTracker::end_entry_removal`].
    pub(crate) fn begin_entry_removal(&self, seq_smallest: SeqNo) -> bool {
        let snapshots = self.snapshots.lock();
        let is_seen = snapshots.last_key_value().is_some_and(|(newest, _)| *newest >= seq_smallest);
        if !is_seen {
            self.entry_removals.fetch_add(1, Ordering::Release);
        }
        !is_seen
    }

    /// Ends the removal of entries, whether it succeeded or not.
    pub(crate) fn end_entry_removal(&self) {
        let _snapshots = self.snapshots.lock();
        let before = self.entry_removals.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "no removal of entries is running");
    }

    /// Returns whether a job removes entries that a snapshot could see.
    pub(crate) fn has_entry_removal(&self) -> bool {
        self.entry_removals.load(Ordering::Acquire) > 0
    }

    /// Counts the drop of a keyspace and returns its number, from 1.
    ///
    /// Snapshots registered before this call precede the drop.
    pub(crate) fn record_keyspace_drop(&self) -> u64 {
        let _snapshots = self.snapshots.lock();
        let mut drops = self.drops.lock();
        drops.count += 1;
        drops.count
    }

    /// Returns whether a snapshot that precedes this drop is still registered.
    pub(crate) fn has_snapshot_before_drop(&self, number: u64) -> bool {
        let drops = self.drops.lock();
        drops.snapshot_counts.keys().next().is_some_and(|oldest| *oldest < number)
    }

    /// Returns the registered sequence numbers, ascending.
    pub(crate) fn snapshot_seqs(&self) -> Vec<SeqNo> {
        let snapshots = self.snapshots.lock();
        work_counter::add(WorkKind::LockedVisits, snapshots.len());
        snapshots.keys().copied().collect()
    }

    /// Returns the oldest and the newest registered sequence number.
    pub(crate) fn oldest_and_newest_snapshot(&self) -> Option<(SeqNo, SeqNo)> {
        let snapshots = self.snapshots.lock();
        Some((*snapshots.first_key_value()?.0, *snapshots.last_key_value()?.0))
    }

    /// Returns the number of sequence numbers whose last snapshot was released.
    pub(crate) fn snapshot_release_count(&self) -> u64 {
        self.releases.load(Ordering::Acquire)
    }

    /// Returns the oldest registered sequence number and the time of its registration, in microseconds.
    pub(crate) fn oldest_snapshot(&self) -> Option<(SeqNo, u64)> {
        self.snapshots.lock().iter().next().map(|(&seq, holders)| (seq, holders.since_us))
    }

    /// Returns the number of registered snapshots.
    pub(crate) fn snapshot_count(&self) -> usize {
        let snapshots = self.snapshots.lock();
        work_counter::add(WorkKind::LockedVisits, snapshots.len());
        snapshots.values().map(|holders| holders.count).sum()
    }
}

/// A registered snapshot; released on drop.
pub(crate) struct SnapshotGuard {
    tracker: Arc<SnapshotTracker>,
    seq: SeqNo,
    keyspace_drops_before: u64,
}

impl SnapshotGuard {
    /// Returns the sequence number of the snapshot.
    pub(crate) fn seq(&self) -> SeqNo {
        self.seq
    }

    /// Returns the number of keyspaces that were dropped before the registration.
    pub(crate) fn keyspace_drops_before(&self) -> u64 {
        self.keyspace_drops_before
    }
}

impl Drop for SnapshotGuard {
    fn drop(&mut self) {
        let mut snapshots = self.tracker.snapshots.lock();
        if let Some(holders) = snapshots.get_mut(&self.seq) {
            holders.count -= 1;
            if holders.count == 0 {
                snapshots.remove(&self.seq);
                self.tracker.releases.fetch_add(1, Ordering::Release);
            }
        }
        let mut drops = self.tracker.drops.lock();
        if let Some(count) = drops.snapshot_counts.get_mut(&self.keyspace_drops_before) {
            *count -= 1;
            if *count == 0 {
                drops.snapshot_counts.remove(&self.keyspace_drops_before);
            }
        }
    }
}

impl fmt::Debug for SnapshotGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SnapshotGuard").field(&self.seq).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_seq_is_held_until_last_guard_is_dropped() {
        let tracker = Arc::new(SnapshotTracker::default());
        tracker.publish(SeqNo(7));
        let register = |now_us| tracker.register(now_us).unwrap();
        let (first, second) = (register(10), register(20));
        tracker.publish(SeqNo(9));
        let third = register(30);
        assert_eq!(tracker.oldest_snapshot(), Some((SeqNo(7), 10)));
        assert_eq!(tracker.snapshot_seqs(), [SeqNo(7), SeqNo(9)]);
        drop(first);
        assert_eq!(tracker.oldest_and_newest_snapshot(), Some((SeqNo(7), SeqNo(9))));
        drop(second);
        assert_eq!(tracker.oldest_and_newest_snapshot(), Some((SeqNo(9), SeqNo(9))));
        drop(third);
        assert_eq!((tracker.oldest_and_newest_snapshot(), tracker.snapshot_count()), (None, 0));
    }

    #[test]
    fn register_during_entry_removal_returns_none() {
        let tracker = Arc::new(SnapshotTracker::default());
        tracker.publish(SeqNo(7));
        let held = tracker.register(10).unwrap();
        assert!(!tracker.begin_entry_removal(SeqNo(7)), "the snapshot sees sequence number 7");
        assert!(tracker.begin_entry_removal(SeqNo(8)));
        assert!(tracker.register(20).is_none());
        tracker.end_entry_removal();
        assert!(tracker.register(30).is_some());
        drop(held);
        assert!(tracker.begin_entry_removal(SeqNo(1)));
    }
}
