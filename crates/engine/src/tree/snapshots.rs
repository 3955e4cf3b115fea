//! Published and pinned sequence numbers.

use std::collections::BTreeMap;
use std::fmt;

use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, AtomicU64, Mutex, Ordering};
use lsmx_base::work_counter::{self, WorkKind};

/// Those who hold one number.
#[derive(Clone, Copy, Debug)]
struct Holders {
    count: usize,
    /// When the first of them came.
    since_us: u64,
}

/// The number up to which commits are visible, and the numbers that snapshots hold.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    published: AtomicU64,
    /// Registered numbers: how often, and since when.
    snapshots: Mutex<BTreeMap<SeqNo, Holders>>,
    /// Jobs under way that let data go which snapshots could see; changes under the lock of
    /// `snapshots`.
    leaving: AtomicU64,
    /// How often a number was let go of; changes under the lock of `snapshots`.
    released: AtomicU64,
    /// Which snapshots are from before which drop of a keyspace. Taken under `snapshots`.
    drops: Mutex<Drops>,
}

/// Drops of keyspaces divide the snapshots into generations.
#[derive(Debug, Default)]
struct Drops {
    /// Drops so far.
    count: u64,
    /// Registered snapshots by the number of drops before them.
    held: BTreeMap<u64, usize>,
}

impl Sequence {
    /// The last visible number.
    pub(crate) fn published(&self) -> SeqNo {
        SeqNo(self.published.load(Ordering::Acquire))
    }

    /// Makes everything up to `seq` visible. Pairs with the load of [`Sequence::published`]: who
    /// sees the number sees the memtable entries too.
    pub(crate) fn publish(&self, seq: SeqNo) {
        self.published.store(seq.0, Ordering::Release);
    }

    /// Registers a snapshot of what is visible now.
    ///
    /// The number is read under the lock that [`Sequence::snapshots`] takes: so a job either sees
    /// the snapshot, or drops only what is shadowed by something the snapshot sees. `None` while
    /// data leaves that it could see at first and then no more, see [`Sequence::begin_leaving`].
    pub(crate) fn register(self: &Arc<Self>, now_us: u64) -> Option<Pinned> {
        self.register_as(now_us, Sequence::published)
    }

    /// Registers a snapshot of the number that `seq` tells.
    pub(crate) fn register_as(
        self: &Arc<Self>,
        now_us: u64,
        seq: impl FnOnce(&Sequence) -> SeqNo,
    ) -> Option<Pinned> {
        let mut snapshots = self.snapshots.lock();
        if self.is_leaving() {
            return None;
        }
        let seq = seq(self);
        let holders = Holders { count: 0, since_us: now_us };
        snapshots.entry(seq).or_insert(holders).count += 1;
        let mut drops = self.drops.lock();
        let drops_before = drops.count;
        *drops.held.entry(drops_before).or_insert(0) += 1;
        Some(Pinned { sequence: Arc::clone(self), seq, drops_before })
    }

    /// Begins to let entries go that nobody deleted, the oldest of which has this number. False if a
    /// snapshot sees them. Until the end of it no snapshot is registered.
    pub(crate) fn begin_leaving(&self, seq_smallest: SeqNo) -> bool {
        let snapshots = self.snapshots.lock();
        let seen = snapshots.last_key_value().is_some_and(|(newest, _)| *newest >= seq_smallest);
        if !seen {
            self.leaving.fetch_add(1, Ordering::Release);
        }
        !seen
    }

    /// The entries have left, or after all stay.
    pub(crate) fn end_leaving(&self) {
        let _snapshots = self.snapshots.lock();
        let before = self.leaving.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "a removal of entries ends that has not begun");
    }

    /// Whether entries are leaving.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire) > 0
    }

    /// Counts the drop of a keyspace and returns its number, from 1: snapshots registered so far
    /// are from before it, later ones from after.
    pub(crate) fn count_drop(&self) -> u64 {
        let _registered = self.snapshots.lock();
        let mut drops = self.drops.lock();
        drops.count += 1;
        drops.count
    }

    /// Whether a snapshot from before this drop is still registered.
    pub(crate) fn sees_before_drop(&self, number: u64) -> bool {
        self.drops.lock().held.keys().next().is_some_and(|oldest| *oldest < number)
    }

    /// Registered numbers, ascending.
    pub(crate) fn snapshots(&self) -> Vec<SeqNo> {
        let snapshots = self.snapshots.lock();
        work_counter::add(WorkKind::LockedVisits, snapshots.len());
        snapshots.keys().copied().collect()
    }

    /// The oldest and the newest registered number.
    pub(crate) fn snapshot_bounds(&self) -> Option<(SeqNo, SeqNo)> {
        let snapshots = self.snapshots.lock();
        Some((*snapshots.first_key_value()?.0, *snapshots.last_key_value()?.0))
    }

    /// How often the last snapshot of a number was let go of.
    pub(crate) fn released(&self) -> u64 {
        self.released.load(Ordering::Acquire)
    }

    /// The oldest registered number, and since when it is held.
    pub(crate) fn oldest_held(&self) -> Option<(SeqNo, u64)> {
        self.snapshots.lock().iter().next().map(|(&seq, holders)| (seq, holders.since_us))
    }

    /// How many snapshots are registered.
    pub(crate) fn snapshot_count(&self) -> usize {
        let snapshots = self.snapshots.lock();
        work_counter::add(WorkKind::LockedVisits, snapshots.len());
        snapshots.values().map(|holders| holders.count).sum()
    }
}

/// A registered number; dropping it lets go of what only it can see.
pub(crate) struct Pinned {
    sequence: Arc<Sequence>,
    seq: SeqNo,
    drops_before: u64,
}

impl Pinned {
    /// The number.
    pub(crate) fn seq(&self) -> SeqNo {
        self.seq
    }

    /// How many keyspaces had been dropped when it was registered.
    pub(crate) fn drops_before(&self) -> u64 {
        self.drops_before
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut snapshots = self.sequence.snapshots.lock();
        if let Some(holders) = snapshots.get_mut(&self.seq) {
            holders.count -= 1;
            if holders.count == 0 {
                snapshots.remove(&self.seq);
                self.sequence.released.fetch_add(1, Ordering::Release);
            }
        }
        let mut drops = self.sequence.drops.lock();
        if let Some(count) = drops.held.get_mut(&self.drops_before) {
            *count -= 1;
            if *count == 0 {
                drops.held.remove(&self.drops_before);
            }
        }
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pinned").field(&self.seq).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_held_until_its_last_snapshot_goes() {
        let sequence = Arc::new(Sequence::default());
        sequence.publish(SeqNo(7));
        let register = |now_us| sequence.register(now_us).unwrap();
        let (first, second) = (register(10), register(20));
        sequence.publish(SeqNo(9));
        let third = register(30);
        assert_eq!(sequence.oldest_held(), Some((SeqNo(7), 10)));
        assert_eq!(sequence.snapshots(), [SeqNo(7), SeqNo(9)]);
        drop(first);
        assert_eq!(sequence.snapshot_bounds(), Some((SeqNo(7), SeqNo(9))));
        drop(second);
        assert_eq!(sequence.snapshot_bounds(), Some((SeqNo(9), SeqNo(9))));
        drop(third);
        assert_eq!((sequence.snapshot_bounds(), sequence.snapshot_count()), (None, 0));
    }

    #[test]
    fn no_snapshot_comes_while_entries_leave() {
        let sequence = Arc::new(Sequence::default());
        sequence.publish(SeqNo(7));
        let held = sequence.register(10).unwrap();
        assert!(!sequence.begin_leaving(SeqNo(7)), "the snapshot sees number 7");
        assert!(sequence.begin_leaving(SeqNo(8)));
        assert!(sequence.register(20).is_none());
        sequence.end_leaving();
        assert!(sequence.register(30).is_some());
        drop(held);
        assert!(sequence.begin_leaving(SeqNo(1)));
    }
}
