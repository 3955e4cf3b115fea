//! The set of records that are present in a database.

use crate::workload::keys::{KeySpace, Permutation};
use crate::workload::random::hash_u64;

/// The present records are those with numbers below `end`, except deleted records.
#[derive(Clone, Debug, Default)]
pub(super) struct PresentRecords {
    end: u64,
    deleted: Option<DeletedRecords>,
}

/// Set of deleted records. `order` is a random permutation of the records with numbers below `of`. The first `count`
/// records in this order are deleted.
#[derive(Clone, Copy, Debug)]
struct DeletedRecords {
    of: u64,
    order: Permutation,
    count: u64,
}

impl PresentRecords {
    /// Creates the set of the records with numbers below `end`.
    pub(super) fn with_records_below(end: u64) -> PresentRecords {
        PresentRecords { end, deleted: None }
    }

    pub(super) fn count(&self) -> u64 {
        self.end - self.deleted.map_or(0, |deleted| deleted.count)
    }

    pub(super) fn contains(&self, record: u64) -> bool {
        let is_deleted = |deleted: &DeletedRecords| {
            record < deleted.of && deleted.order.invert(record) < deleted.count
        };
        record < self.end && !self.deleted.as_ref().is_some_and(is_deleted)
    }

    /// Returns the first present record whose position in key order is at least `rank`. After the last key, the search
    /// continues at the first key. `None` if no record is present.
    pub(super) fn next_in_key_order(&self, rank: u64, keys: &KeySpace) -> Option<u64> {
        let ranks = (rank..keys.len()).chain(0..rank);
        ranks.map(|rank| keys.record_at(rank)).find(|record| self.contains(*record))
    }

    /// Returns the number of records that were put, including records deleted later.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the `n`-th present record in a fixed order, which is unrelated to key order. `n` must be below
    /// [`PresentRecords::count`].
    pub(super) fn nth_record(&self, n: u64) -> u64 {
        let Some(deleted) = &self.deleted else { return n };
        let left = deleted.of - deleted.count;
        if n < left { deleted.order.permute(deleted.count + n) } else { deleted.of + (n - left) }
    }

    /// Marks all records with numbers below `end` as put.
    pub(super) fn extend_to(&mut self, end: u64) {
        self.end = self.end.max(end);
    }

    /// Draws the random order in which records will be deleted, unless the order was drawn before.
    pub(super) fn draw_deletion_order(&mut self, seed: u64) {
        if self.deleted.is_none() {
            let order = Permutation::new(self.end, hash_u64(seed));
            self.deleted = Some(DeletedRecords { of: self.end, order, count: 0 });
        }
    }

    /// Returns the number of records in the drawn order that are not deleted yet.
    pub(super) fn deletable_count(&self) -> u64 {
        self.deleted.map_or(0, |deleted| deleted.of - deleted.count)
    }

    /// Returns the `n`-th of the records that [`PresentRecords::delete_next`] will delete, counted from 0. `n` must be
    /// below [`PresentRecords::deletable_count`].
    pub(super) fn nth_deletable_record(&self, n: u64) -> u64 {
        self.deleted.map_or(n, |deleted| deleted.order.permute(deleted.count + n))
    }

    /// Marks the next `count` records in the drawn order as deleted.
    pub(super) fn delete_next(&mut self, count: u64) {
        if let Some(deleted) = &mut self.deleted {
            deleted.count += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::KeyDistribution;
    use std::collections::BTreeSet;

    #[test]
    fn next_in_key_order_skips_absent_records() {
        let keys = KeySpace::new(KeyDistribution::Uniform, 120, 8, 1).unwrap();
        let mut records = PresentRecords::default();
        assert_eq!(records.next_in_key_order(7, &keys), None);
        records.extend_to(100);
        records.draw_deletion_order(9);
        records.delete_next(40);
        for rank in 0..120 {
            let found = keys.rank(records.next_in_key_order(rank, &keys).unwrap());
            let skipped =
                if found < rank { (rank..120).chain(0..found) } else { (rank..found).chain(0..0) };
            assert!(records.contains(keys.record_at(found)));
            assert!(skipped.map(|rank| keys.record_at(rank)).all(|it| !records.contains(it)));
        }
    }

    #[test]
    fn deleted_records_are_not_present() {
        let mut records = PresentRecords::with_records_below(100);
        records.draw_deletion_order(9);
        assert_eq!(records.deletable_count(), 100);
        let deleted: BTreeSet<u64> = (0..40).map(|n| records.nth_deletable_record(n)).collect();
        records.delete_next(40);
        records.extend_to(110);
        assert_eq!((records.count(), records.deletable_count(), records.end()), (70, 60, 110));
        let present: BTreeSet<u64> = (0..records.count()).map(|n| records.nth_record(n)).collect();
        assert_eq!(present.len(), 70);
        assert!(present.is_disjoint(&deleted));
        assert!((100..110).all(|record| present.contains(&record)));
        assert!((0..120).all(|record| records.contains(record) == present.contains(&record)));
    }
}
