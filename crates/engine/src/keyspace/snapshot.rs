//! Published and pinned sequence numbers.

use std::collections::BTreeMap;
use std::fmt;

use crate::key::SeqNo;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};

/// The number up to which commits are visible, and the numbers that snapshots hold.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    published: AtomicU64,
    snapshots: Mutex<BTreeMap<SeqNo, usize>>,
    /// How often a number was let go of; changes under the lock of `snapshots`.
    released: AtomicU64,
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
    /// the snapshot, or drops only what is shadowed by something the snapshot sees.
    pub(crate) fn register(self: &Arc<Self>) -> Pinned {
        let mut snapshots = self.snapshots.lock();
        let seq = self.published();
        *snapshots.entry(seq).or_insert(0) += 1;
        Pinned { sequence: Arc::clone(self), seq }
    }

    /// Registered numbers, ascending.
    pub(crate) fn snapshots(&self) -> Vec<SeqNo> {
        self.snapshots.lock().keys().copied().collect()
    }

    /// The oldest registered number.
    pub(crate) fn oldest_snapshot(&self) -> Option<SeqNo> {
        self.snapshots.lock().keys().next().copied()
    }

    /// How often the last snapshot of a number was let go of.
    pub(crate) fn released(&self) -> u64 {
        self.released.load(Ordering::Acquire)
    }

    /// How many snapshots are registered.
    pub(crate) fn snapshot_count(&self) -> usize {
        self.snapshots.lock().values().sum()
    }
}

/// A registered number; dropping it lets go of what only it can see.
pub(crate) struct Pinned {
    sequence: Arc<Sequence>,
    seq: SeqNo,
}

impl Pinned {
    /// The number.
    pub(crate) fn seq(&self) -> SeqNo {
        self.seq
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut snapshots = self.sequence.snapshots.lock();
        if let Some(count) = snapshots.get_mut(&self.seq) {
            *count -= 1;
            if *count == 0 {
                snapshots.remove(&self.seq);
                self.sequence.released.fetch_add(1, Ordering::Release);
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
        let (first, second) = (sequence.register(), sequence.register());
        sequence.publish(SeqNo(9));
        let third = sequence.register();
        assert_eq!(sequence.snapshots(), [SeqNo(7), SeqNo(9)]);
        drop(first);
        assert_eq!(sequence.oldest_snapshot(), Some(SeqNo(7)));
        drop(second);
        assert_eq!(sequence.oldest_snapshot(), Some(SeqNo(9)));
        drop(third);
        assert_eq!((sequence.oldest_snapshot(), sequence.snapshot_count()), (None, 0));
    }
}
