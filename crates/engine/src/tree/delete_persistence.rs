//! State of a tree with a delete persistence bound, the maximum time until deleted values are removed. The state
//! consists of live iterators, the ages of blob garbage and of obsolete operands, and overdue data.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, AtomicBool, Mutex, Ordering, Weak};
use lsmx_compaction::{DeletePersistence, FileId};

use crate::event::PersistenceHolder;
use crate::tree::blob_set::BlobSet;
use crate::tree::super_version::SuperVersion;

/// Registered iterators of a tree with a delete persistence bound, in order of creation.
#[derive(Debug, Default)]
pub(crate) struct IteratorRegistry {
    /// True if the tree has a bound. Without a bound, iterators are not registered, and their creation takes no lock.
    is_enabled: AtomicBool,
    iterators: Mutex<RegisteredIterators>,
}

#[derive(Debug, Default)]
struct RegisteredIterators {
    next_id: u64,
    by_id: BTreeMap<u64, RegisteredIterator>,
}

/// A live iterator.
#[derive(Clone, Debug)]
pub(crate) struct RegisteredIterator {
    /// Identifies the iterator in its tree.
    pub(crate) id: u64,
    /// Sequence number up to which the iterator sees writes.
    pub(crate) seq: SeqNo,
    /// Creation time in microseconds of the database clock.
    pub(crate) created_us: u64,
    pub(crate) view: Weak<SuperVersion>,
}

/// Registration of an iterator. Dropping it ends the registration.
#[derive(Debug)]
pub(crate) struct IteratorRegistration {
    registry: Arc<IteratorRegistry>,
    id: u64,
}

impl IteratorRegistry {
    pub(crate) fn set_enabled(&self, is_enabled: bool) {
        self.is_enabled.store(is_enabled, Ordering::Relaxed);
    }

    /// Registers an iterator over `view`. `clock` returns the database clock, in microseconds.
    pub(crate) fn register(
        self: &Arc<Self>,
        view: &Arc<SuperVersion>,
        seq: SeqNo,
        clock: impl FnOnce() -> u64,
    ) -> Option<IteratorRegistration> {
        if !self.is_enabled.load(Ordering::Relaxed) {
            return None;
        }
        let (created_us, view) = (clock(), Arc::downgrade(view));
        let mut iterators = self.iterators.lock();
        let id = iterators.next_id;
        iterators.next_id += 1;
        iterators.by_id.insert(id, RegisteredIterator { id, seq, created_us, view });
        Some(IteratorRegistration { registry: Arc::clone(self), id })
    }

    /// Returns the live iterators in order of creation.
    pub(crate) fn iterators(&self) -> Vec<RegisteredIterator> {
        self.iterators.lock().by_id.values().cloned().collect()
    }
}

impl Drop for IteratorRegistration {
    fn drop(&mut self) {
        // The entry is dropped after the lock is released.
        let _removed = self.registry.iterators.lock().by_id.remove(&self.id);
    }
}

/// Times at which garbage was first seen in blob files.
#[derive(Debug, Default)]
pub(crate) struct BlobGarbageAges {
    by_file: BTreeMap<FileId, GarbageAge>,
    /// True after the first update. The age of garbage that the first update finds is unknown.
    is_updated: bool,
}

#[derive(Clone, Copy, Debug)]
struct GarbageAge {
    seen_us: u64,
    /// True if the garbage may be older than `seen_us`. Such garbage exceeds every maximum age.
    may_be_older: bool,
}

impl BlobGarbageAges {
    /// Adds the files that have garbage now, and removes files that no longer exist.
    pub(crate) fn update(&mut self, blobs: &BlobSet, now_us: u64) {
        let may_be_older = !std::mem::replace(&mut self.is_updated, true);
        let age = GarbageAge { seen_us: now_us, may_be_older };
        let mut with_garbage = BTreeMap::new();
        for used in blobs.files() {
            let record = used.file.record();
            if used.bytes < record.record_bytes() {
                let known = self.by_file.get(&record.id).copied();
                with_garbage.insert(record.id, known.unwrap_or(age));
            }
        }
        self.by_file = with_garbage;
    }

    /// Returns the files whose garbage is older than `age_max_us`.
    pub(crate) fn files_due(&self, age_max_us: u64, now_us: u64) -> BTreeSet<FileId> {
        let is_due = |age: &GarbageAge| age.due_us(age_max_us) <= now_us;
        self.by_file.iter().filter(|(_, age)| is_due(age)).map(|(&id, _)| id).collect()
    }

    /// Returns the first time after `now_us` at which garbage is older than `age_max_us`.
    pub(crate) fn next_due_us(&self, age_max_us: u64, now_us: u64) -> Option<u64> {
        let due = self.by_file.values().map(|age| age.due_us(age_max_us));
        due.filter(|due_us| *due_us > now_us).min()
    }

    /// Returns the earliest time at which garbage was first seen in a blob file.
    pub(crate) fn oldest_us(&self) -> Option<u64> {
        self.by_file.values().map(|age| age.seen_us).min()
    }
}

impl GarbageAge {
    fn due_us(self, age_max_us: u64) -> u64 {
        if self.may_be_older { 0 } else { self.seen_us.saturating_add(age_max_us) }
    }
}

/// A check adds a record only if the last record is older than the bound divided by this number. This limits the number
/// of records.
const RECORDS_PER_BOUND: u64 = 64;

/// Ages of the deletes that may cover operands in an operand store. Operands that a delete covers are obsolete.
///
/// Operand stores know sequence numbers, but no times. Each check therefore records the time and the published sequence
/// number.
#[derive(Debug, Default)]
pub(crate) struct VoidOperandAges {
    /// Records in ascending order: a time in microseconds, and the sequence number that was published at this time. The
    /// records cover the time of one bound.
    published: VecDeque<(u64, SeqNo)>,
    /// Published sequence number of the first record. The age of earlier deletes is unknown.
    unknown_through: SeqNo,
    /// Oldest delete at the last check, and the time at which it was recorded.
    oldest: Option<(SeqNo, u64)>,
}

impl VoidOperandAges {
    /// Adds a record of the published sequence number. `oldest` is a lower bound of the deletes that may cover operands
    /// in the store.
    pub(crate) fn record(
        &mut self,
        (now_us, published): (u64, SeqNo),
        bound_us: u64,
        oldest: Option<SeqNo>,
    ) {
        match self.published.back() {
            None => {
                self.unknown_through = published;
                self.published.push_back((now_us, published));
            }
            Some(&(last_us, last)) => {
                let is_spaced = now_us >= last_us.saturating_add(bound_us / RECORDS_PER_BOUND);
                if is_spaced && published > last {
                    self.published.push_back((now_us, published));
                }
            }
        }
        // A delete before the first record gets the time of the first record. The newest record that is older than the
        // bound must therefore stay.
        let is_old = |(us, _): &(u64, SeqNo)| us.saturating_add(bound_us) <= now_us;
        while self.published.get(1).is_some_and(is_old) {
            self.published.pop_front();
        }
        self.oldest = oldest.and_then(|seq| Some((seq, self.recorded_us(seq)?)));
    }

    /// Returns the sequence number up to which deletes are too old. The operands that these deletes cover must be
    /// removed now. Deletes of unknown age count as too old.
    pub(crate) fn due_through(&self, parts: DeletePersistence, now_us: u64) -> SeqNo {
        let age_us = parts.void_operand_us();
        let is_old = |(us, _): &&(u64, SeqNo)| us.saturating_add(age_us) <= now_us;
        let newest = self.published.iter().rev().find(is_old);
        newest.map_or(SeqNo::ZERO, |(_, seq)| *seq).max(self.unknown_through)
    }

    /// Returns the time of the first record at or after a delete. Returns `None` if there is no such record.
    ///
    /// The time of the oldest delete remains known after its record is removed.
    pub(crate) fn recorded_us(&self, seq: SeqNo) -> Option<u64> {
        let known = self.oldest.filter(|(oldest, _)| *oldest == seq).map(|(_, us)| us);
        let first = || self.published.iter().find(|(_, published)| *published >= seq);
        known.or_else(|| first().map(|(us, _)| *us))
    }
}

/// Deleted or expired data that may exceed the bound, and its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OverdueData {
    pub(crate) holder: PersistenceHolder,
    /// Maximum time by which the data exceeds the bound, in microseconds.
    pub(crate) overdue_us: u64,
    /// Identifies the holder among the holders of the same kind.
    pub(crate) holder_id: u64,
}

/// Holders that events have already reported.
#[derive(Debug, Default)]
pub(crate) struct ReportedHolders(BTreeSet<(u8, u64)>);

impl ReportedHolders {
    /// Returns the elements whose holder was not yet reported. Forgets the holders that no longer hold overdue data.
    pub(crate) fn take_new(&mut self, overdue: Vec<OverdueData>) -> Vec<OverdueData> {
        let key = |data: &OverdueData| match data.holder {
            PersistenceHolder::Jobs => (0, data.holder_id),
            PersistenceHolder::Snapshot { .. } => (1, data.holder_id),
            PersistenceHolder::Iterator { .. } => (2, data.holder_id),
        };
        let holders = overdue.iter().map(key).collect();
        let reported = std::mem::replace(&mut self.0, holders);
        overdue.into_iter().filter(|data| !reported.contains(&key(data))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_holders_are_new_once_until_they_hold_nothing() {
        let data = |holder, holder_id| OverdueData { holder, overdue_us: 1, holder_id };
        let snapshot = data(PersistenceHolder::Snapshot { seq: 7, age_us: 1 }, 7);
        let iterator = data(PersistenceHolder::Iterator { seq: 7, age_us: 1 }, 7);
        let mut reported = ReportedHolders::default();
        assert_eq!(reported.take_new(vec![snapshot]), [snapshot]);
        assert_eq!(reported.take_new(vec![snapshot, iterator]), [iterator]);
        assert!(reported.take_new(Vec::new()).is_empty());
        assert_eq!(reported.take_new(vec![snapshot]), [snapshot]);
    }

    #[test]
    fn void_operands_are_due_by_the_record_of_their_delete() {
        let parts = DeletePersistence::new(800);
        let mut ages = VoidOperandAges::default();
        let seq = |seq: u64| Some(SeqNo(seq));
        ages.record((1_000, SeqNo(10)), 800, seq(0));
        assert_eq!(ages.due_through(parts, 1_000), SeqNo(10), "the age is unknown");
        ages.record((1_100, SeqNo(20)), 800, seq(15));
        ages.record((1_105, SeqNo(21)), 800, seq(15));
        assert_eq!(ages.due_through(parts, 1_199), SeqNo(10));
        assert_eq!(ages.due_through(parts, 1_200), SeqNo(20));
        assert_eq!((ages.recorded_us(SeqNo(15)), ages.recorded_us(SeqNo(21))), (Some(1_100), None));
        for number in 2..100 {
            ages.record((1_000 + number * 100, SeqNo(10 * (number + 1))), 800, seq(15));
        }
        assert!(ages.published.len() < 12, "{}", ages.published.len());
        assert_eq!(ages.recorded_us(SeqNo(15)), Some(1_100), "its record was removed");
        assert_eq!(ages.recorded_us(SeqNo(995)), Some(10_900));
    }

    #[test]
    fn garbage_age_of_first_update_is_due_at_once() {
        let unknown = GarbageAge { seen_us: 100, may_be_older: true };
        let known = GarbageAge { seen_us: 100, may_be_older: false };
        assert_eq!((unknown.due_us(50), known.due_us(50)), (0, 150));
        let by_file = BTreeMap::from([(FileId(1), unknown), (FileId(2), known)]);
        let ages = BlobGarbageAges { by_file, is_updated: true };
        assert_eq!(ages.files_due(50, 149), BTreeSet::from([FileId(1)]));
        assert_eq!(ages.files_due(50, 150).len(), 2);
        assert_eq!((ages.next_due_us(50, 149), ages.next_due_us(50, 150)), (Some(150), None));
    }
}
