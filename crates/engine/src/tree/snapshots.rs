//! Snapshot tracker: the newest visible sequence number and the registered snapshots.

use std::collections::BTreeMap;
use std::fmt;

use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, AtomicU64, Mutex, Ordering};
use lsmx_base::work_counter::{self, WorkKind};

/// State of the database that a read sees: all writes up to a sequence number, and the time that determines which
/// entries have expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadPoint {
    pub(crate) seq: SeqNo,
    /// Time at which expiry is determined, in microseconds of the database clock. 0 if the read can find no expiring
    /// entries.
    pub(crate) time_us: u64,
}

impl ReadPoint {
    /// Returns a read point for a read that finds no expiring entries, or whose result does not depend on expiry.
    pub(crate) fn without_time(seq: SeqNo) -> ReadPoint {
        ReadPoint { seq, time_us: 0 }
    }
}

/// Key of the snapshots that are registered at the same sequence number and at the same time. The oldest snapshots come
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SnapshotKey {
    seq: SeqNo,
    /// Database clock at the registration, in microseconds.
    time_us: u64,
    /// Time of the registration in microseconds.
    since_us: u64,
}

impl SnapshotKey {
    fn new(read_point: ReadPoint, since_us: u64) -> SnapshotKey {
        let ReadPoint { seq, time_us } = read_point;
        SnapshotKey { seq, time_us, since_us }
    }

    /// Returns the smallest key with this sequence number.
    fn smallest(seq: SeqNo) -> SnapshotKey {
        SnapshotKey { seq, time_us: 0, since_us: 0 }
    }
}

/// Tracks the newest visible sequence number and the snapshots of a database.
#[derive(Debug, Default)]
pub(crate) struct SnapshotTracker {
    published: AtomicU64,
    /// Number of registered snapshots for each key.
    snapshots: Mutex<BTreeMap<SnapshotKey, usize>>,
    /// Number of running jobs that remove live entries. Modified only while `snapshots` is locked.
    entry_removals: AtomicU64,
    /// Number of snapshot releases. A release counts only if no older registered snapshot has the same sequence number.
    /// Modified only while `snapshots` is locked.
    releases: AtomicU64,
    /// If both locks are needed, `snapshots` is locked first.
    drops: Mutex<KeyspaceDrops>,
}

/// Counts snapshots by the number of keyspaces that had been dropped before them. The data of a dropped keyspace is
/// kept until all snapshots before the drop are released.
#[derive(Debug, Default)]
struct KeyspaceDrops {
    /// Number of keyspaces that have been dropped.
    count: u64,
    /// Number of registered snapshots, by the number of keyspaces that had been dropped before.
    snapshot_counts: BTreeMap<u64, usize>,
}

impl SnapshotTracker {
    /// Returns the newest visible sequence number.
    pub(crate) fn published(&self) -> SeqNo {
        SeqNo(self.published.load(Ordering::Acquire))
    }

    /// Makes all commits up to `seq` visible.
    ///
    /// The release store pairs with the acquire load in [`SnapshotTracker::published`]. A thread that loads `seq`
    /// therefore sees all memtable entries up to `seq`.
    pub(crate) fn publish(&self, seq: SeqNo) {
        self.published.store(seq.0, Ordering::Release);
    }

    /// Returns the read point of the newest visible state. `clock` returns the database clock in microseconds.
    ///
    /// If a commit becomes visible while the clock is read, the clock is read again. Otherwise, a read could combine an
    /// old version of a key with a time at which a newer version was already visible. A commit takes much longer than
    /// reading the clock, so the loop ends after a few iterations.
    pub(crate) fn read_point(&self, clock: impl Fn() -> u64) -> ReadPoint {
        let mut seq = self.published();
        loop {
            let time_us = clock();
            let later = self.published();
            if later == seq {
                return ReadPoint { seq, time_us };
            }
            seq = later;
        }
    }

    /// Registers a snapshot of the newest visible state. `clock` returns the database clock in microseconds.
    ///
    /// Returns `None` while a job removes live entries, see [`SnapshotTracker::begin_entry_removal`].
    ///
    /// The sequence number is read under the lock that [`SnapshotTracker::snapshot_seqs`] also takes. A job therefore
    /// either sees the snapshot, or drops only entries that a newer entry hides from the snapshot.
    ///
    /// The clock is read under the same lock. A job reads the clock before [`SnapshotTracker::expiry_limit_us`] takes
    /// this lock. The job therefore either sees the snapshot, or drops only entries that have expired for the snapshot.
    pub(crate) fn register(
        self: &Arc<Self>,
        now_us: u64,
        clock: impl Fn() -> u64,
    ) -> Option<SnapshotGuard> {
        self.register_snapshot_at(now_us, |tracker| tracker.read_point(clock))
    }

    /// Registers a snapshot at the read point that `read_point` returns. `read_point` is called while the lock is held.
    pub(crate) fn register_snapshot_at(
        self: &Arc<Self>,
        now_us: u64,
        read_point: impl FnOnce(&SnapshotTracker) -> ReadPoint,
    ) -> Option<SnapshotGuard> {
        let mut snapshots = self.snapshots.lock();
        if self.has_entry_removal() {
            return None;
        }
        let read_point = read_point(self);
        *snapshots.entry(SnapshotKey::new(read_point, now_us)).or_insert(0) += 1;
        let mut drops = self.drops.lock();
        let keyspace_drops_before = drops.count;
        *drops.snapshot_counts.entry(keyspace_drops_before).or_insert(0) += 1;
        let (tracker, since_us) = (Arc::clone(self), now_us);
        Some(SnapshotGuard { tracker, read_point, since_us, keyspace_drops_before })
    }

    /// Begins the removal of live entries. `seq_smallest` is the smallest sequence number of these entries.
    ///
    /// Returns false if a snapshot sees one of these entries. Otherwise, no snapshot can be registered until
    /// [`SnapshotTracker::end_entry_removal`] is called.
    pub(crate) fn begin_entry_removal(&self, seq_smallest: SeqNo) -> bool {
        let snapshots = self.snapshots.lock();
        let newest = snapshots.last_key_value();
        let is_seen = newest.is_some_and(|(newest, _)| newest.seq >= seq_smallest);
        if !is_seen {
            self.entry_removals.fetch_add(1, Ordering::Release);
        }
        !is_seen
    }

    /// Ends the removal of entries, after a success or a failure.
    pub(crate) fn end_entry_removal(&self) {
        let _snapshots = self.snapshots.lock();
        let before = self.entry_removals.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "no removal of entries is running");
    }

    /// Returns true while a job removes live entries.
    pub(crate) fn has_entry_removal(&self) -> bool {
        self.entry_removals.load(Ordering::Acquire) > 0
    }

    /// Records that a keyspace is dropped. Returns the number of this drop, counted from 1.
    ///
    /// Snapshots that were registered before this call can still read the keyspace.
    pub(crate) fn record_keyspace_drop(&self) -> u64 {
        let _snapshots = self.snapshots.lock();
        let mut drops = self.drops.lock();
        drops.count += 1;
        drops.count
    }

    /// Returns whether a snapshot is registered that was taken before the drop with this number.
    pub(crate) fn has_snapshot_before_drop(&self, number: u64) -> bool {
        let drops = self.drops.lock();
        drops.snapshot_counts.keys().next().is_some_and(|oldest| *oldest < number)
    }

    /// Returns the sequence numbers of all registered snapshots in ascending order.
    pub(crate) fn snapshot_seqs(&self) -> Vec<SeqNo> {
        let snapshots = self.snapshots.lock();
        work_counter::add(WorkKind::LockedVisits, snapshots.len());
        let mut seqs: Vec<SeqNo> = snapshots.keys().map(|key| key.seq).collect();
        seqs.dedup();
        seqs
    }

    /// Returns the sequence numbers of the oldest and the newest registered snapshot.
    pub(crate) fn oldest_and_newest_snapshot(&self) -> Option<(SeqNo, SeqNo)> {
        let snapshots = self.snapshots.lock();
        Some((snapshots.first_key_value()?.0.seq, snapshots.last_key_value()?.0.seq))
    }

    /// Returns the number of snapshot releases. A release counts only if no older registered snapshot has the same
    /// sequence number.
    pub(crate) fn snapshot_release_count(&self) -> u64 {
        self.releases.load(Ordering::Acquire)
    }

    /// Returns the sequence number of the oldest registered snapshot, and the time of its registration in microseconds.
    pub(crate) fn oldest_snapshot(&self) -> Option<(SeqNo, u64)> {
        self.snapshots.lock().keys().next().map(|oldest| (oldest.seq, oldest.since_us))
    }

    /// Returns the time up to which entries have expired for all readers, in microseconds. This is the earlier of
    /// `now_us` and the time of the oldest snapshot. `now_us` must be read from the database clock before this call.
    ///
    /// Sequence numbers and times of snapshots never decrease. The oldest snapshot therefore has the earliest time.
    pub(crate) fn expiry_limit_us(&self, now_us: u64) -> u64 {
        let snapshots = self.snapshots.lock();
        snapshots.keys().next().map_or(now_us, |oldest| oldest.time_us.min(now_us))
    }

    /// Returns the number of registered snapshots.
    pub(crate) fn snapshot_count(&self) -> usize {
        let snapshots = self.snapshots.lock();
        work_counter::add(WorkKind::LockedVisits, snapshots.len());
        snapshots.values().sum()
    }
}

/// A registered snapshot. Dropping the guard releases the snapshot.
pub(crate) struct SnapshotGuard {
    tracker: Arc<SnapshotTracker>,
    read_point: ReadPoint,
    /// Time of the registration in microseconds.
    since_us: u64,
    keyspace_drops_before: u64,
}

impl SnapshotGuard {
    /// Returns the sequence number of the snapshot.
    pub(crate) fn seq(&self) -> SeqNo {
        self.read_point.seq
    }

    /// Returns the sequence number and the time of the snapshot.
    pub(crate) fn read_point(&self) -> ReadPoint {
        self.read_point
    }

    /// Returns the number of keyspaces that had been dropped before this snapshot was registered.
    pub(crate) fn keyspace_drops_before(&self) -> u64 {
        self.keyspace_drops_before
    }
}

impl Drop for SnapshotGuard {
    fn drop(&mut self) {
        let mut snapshots = self.tracker.snapshots.lock();
        let key = SnapshotKey::new(self.read_point, self.since_us);
        if let Some(count) = snapshots.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                snapshots.remove(&key);
                // While an older snapshot has the same sequence number, this release permits no job.
                if snapshots.range(SnapshotKey::smallest(key.seq)..key).next().is_none() {
                    self.tracker.releases.fetch_add(1, Ordering::Release);
                }
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
        f.debug_tuple("SnapshotGuard").field(&self.read_point.seq).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_seq_is_held_until_last_guard_is_dropped() {
        let tracker = Arc::new(SnapshotTracker::default());
        tracker.publish(SeqNo(7));
        let register = |now_us| tracker.register(now_us, || now_us).unwrap();
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

    /// Bug: while snapshots with the same sequence number overlapped, the first of them counted as the oldest snapshot
    /// after its release. Without commits, expired values were never dropped.
    #[test]
    fn expiry_limit_is_time_of_oldest_snapshot() {
        let tracker = Arc::new(SnapshotTracker::default());
        tracker.publish(SeqNo(7));
        assert_eq!(tracker.expiry_limit_us(50), 50);
        let first = tracker.register(0, || 10).unwrap();
        let second = tracker.register(1, || 20).unwrap();
        assert_eq!(first.read_point(), ReadPoint { seq: SeqNo(7), time_us: 10 });
        assert_eq!(second.read_point(), ReadPoint { seq: SeqNo(7), time_us: 20 });
        assert_eq!(tracker.expiry_limit_us(50), 10);
        drop(first);
        assert_eq!(tracker.expiry_limit_us(50), 20, "both have the same sequence number");
        let third = tracker.register(2, || 30).unwrap();
        assert_eq!(
            (tracker.oldest_snapshot(), tracker.snapshot_release_count()),
            (Some((SeqNo(7), 1)), 1)
        );
        drop(third);
        assert_eq!(tracker.snapshot_release_count(), 1, "the second is older");
        drop(second);
        assert_eq!((tracker.expiry_limit_us(50), tracker.snapshot_release_count()), (50, 2));
    }

    #[test]
    fn read_point_is_repeated_if_a_commit_is_published() {
        let tracker = SnapshotTracker::default();
        let time_us = std::cell::Cell::new(0);
        let clock = || {
            time_us.set(time_us.get() + 1);
            tracker.publish(SeqNo(time_us.get().min(3)));
            time_us.get()
        };
        assert_eq!(tracker.read_point(clock), ReadPoint { seq: SeqNo(3), time_us: 4 });
    }

    #[test]
    fn register_during_entry_removal_returns_none() {
        let tracker = Arc::new(SnapshotTracker::default());
        tracker.publish(SeqNo(7));
        let held = tracker.register(10, || 10).unwrap();
        assert!(!tracker.begin_entry_removal(SeqNo(7)), "the snapshot sees sequence number 7");
        assert!(tracker.begin_entry_removal(SeqNo(8)));
        assert!(tracker.register(20, || 20).is_none());
        tracker.end_entry_removal();
        assert!(tracker.register(30, || 30).is_some());
        drop(held);
        assert!(tracker.begin_entry_removal(SeqNo(1)));
    }
}
