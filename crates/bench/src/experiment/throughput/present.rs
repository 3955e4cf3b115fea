//! The set of present records of one database.

use crate::workload::keys::Permutation;
use crate::workload::random::mix;

/// All records below `end`, except for the deleted ones.
#[derive(Clone, Debug, Default)]
pub(super) struct PresentRecords {
    end: u64,
    deleted: Option<Deleted>,
}

/// The first `count` records of `order`, a random order of the first `of` records, are deleted.
#[derive(Clone, Copy, Debug)]
struct Deleted {
    of: u64,
    order: Permutation,
    count: u64,
}

impl PresentRecords {
    /// Returns the set of the first `end` records.
    pub(super) fn first(end: u64) -> PresentRecords {
        PresentRecords { end, deleted: None }
    }

    /// Returns the number of present records.
    pub(super) fn count(&self) -> u64 {
        self.end - self.deleted.map_or(0, |deleted| deleted.count)
    }

    /// Returns the number of records that were ever put.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the `n`-th present record in a fixed order that differs from key order and age. `n` must be below
    /// the count.
    pub(super) fn nth(&self, n: u64) -> u64 {
        let Some(deleted) = &self.deleted else { return n };
        let left = deleted.of - deleted.count;
        if n < left { deleted.order.forward(deleted.count + n) } else { deleted.of + (n - left) }
    }

    /// Adds all records below `end`.
    pub(super) fn extend(&mut self, end: u64) {
        self.end = self.end.max(end);
    }

    /// Draws the order in which records are deleted, if there is none.
    pub(super) fn draw_deletion_order(&mut self, seed: u64) {
        if self.deleted.is_none() {
            let order = Permutation::new(self.end, mix(seed));
            self.deleted = Some(Deleted { of: self.end, order, count: 0 });
        }
    }

    /// Returns the number of records that can still be deleted in the drawn order.
    pub(super) fn deletable(&self) -> u64 {
        self.deleted.map_or(0, |deleted| deleted.of - deleted.count)
    }

    /// Returns the `n`-th record to delete next. `n` must be below [`PresentRecords::deletable`].
    pub(super) fn nth_deletable(&self, n: u64) -> u64 {
        self.deleted.map_or(n, |deleted| deleted.order.forward(deleted.count + n))
    }

    /// Removes the next `count` records in the drawn order.
    pub(super) fn delete(&mut self, count: u64) {
        if let Some(deleted) = &mut self.deleted {
            deleted.count += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn deleted_records_are_not_present() {
        let mut records = PresentRecords::first(100);
        records.draw_deletion_order(9);
        assert_eq!(records.deletable(), 100);
        let deleted: BTreeSet<u64> = (0..40).map(|n| records.nth_deletable(n)).collect();
        records.delete(40);
        records.extend(110);
        assert_eq!((records.count(), records.deletable(), records.end()), (70, 60, 110));
        let present: BTreeSet<u64> = (0..records.count()).map(|n| records.nth(n)).collect();
        assert_eq!(present.len(), 70);
        assert!(present.is_disjoint(&deleted));
        assert!((100..110).all(|record| present.contains(&record)));
    }
}
