//! How long each level may keep a tombstone.
//!
//! Of a bound D the memtable gets a tenth. The rest is shared by the levels: L0 gets d, the next level that
//! holds anything T × d and so on down to the one above the last. What is in the last level had all of it.
//!
//! Source: Sarkar et al., "Lethe", SIGMOD 2020, section 4.1. There the memtable is the first of the levels,
//! with D ÷ T^L or so. Taken at its word that has memtables flushed when they are nearly empty: with
//! half a run as the bound, 300 k writes and T = 10 it multiplies the bytes moved by three.

use crate::{FileShape, Level, TreeShape};

/// The memtable's part of a bound.
const MEMTABLE_PART: u64 = 10;

/// The shares of a bound, worked out for one shape.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ttl {
    bound_us: u64,
    /// For L0 and each deeper level down to the last: age at which a tombstone there is too old.
    ages_us: Vec<u64>,
    memtable_us: u64,
}

impl Ttl {
    pub(crate) fn of(shape: &TreeShape, bound_us: u64, size_ratio: u64) -> Ttl {
        let deepest = shape.deepest().unwrap_or(Level(0)).index();
        let holds = |level: usize| {
            level == 0 || Level::from_index(level).is_some_and(|l| shape.level_bytes(l) > 0)
        };
        let memtable_us = bound_us / MEMTABLE_PART;
        let uppers = (0..deepest).filter(|level| holds(*level)).count();
        // Shares as parts of the longest one: …, 1/T², 1/T, 1.
        #[expect(clippy::cast_precision_loss, reason = "a share of a time needs no more digits")]
        let (ratio, levels_us) =
            (size_ratio.max(2) as f64, bound_us.saturating_sub(memtable_us) as f64);
        let mut sums = vec![1.0; uppers];
        for index in (1..uppers).rev() {
            sums[index - 1] = sums[index] / ratio;
        }
        for index in 1..uppers {
            sums[index] += sums[index - 1];
        }
        let all = sums.last().copied().unwrap_or(1.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a float becomes the nearest whole number that there is"
        )]
        let age = |sum: f64| {
            memtable_us.saturating_add((levels_us * (sum / all)).round() as u64).min(bound_us)
        };
        let mut rank = 0;
        let ages_us = (0..=deepest)
            .map(|level| {
                if level == deepest {
                    return bound_us;
                }
                rank += usize::from(holds(level));
                // L0 counts always, so the first rank is 1.
                age(sums[rank - 1])
            })
            .collect();
        Ttl { bound_us, ages_us, memtable_us }
    }

    /// Age at which a memtable with a tombstone is to be flushed.
    pub(crate) fn memtable_us(&self) -> u64 {
        self.memtable_us
    }

    /// Age at which a tombstone in this level is too old.
    pub(crate) fn age_us(&self, level: Level) -> u64 {
        self.ages_us.get(level.index()).copied().unwrap_or(self.bound_us)
    }

    /// When the oldest tombstone of a file will be too old; `None` if there is none to drop.
    pub(crate) fn due_us(&self, shape: &TreeShape, level: Level, file: &FileShape) -> Option<u64> {
        let written_us = file.oldest_tombstone_us.filter(|_| shape.has_droppable(file))?;
        Some(written_us.saturating_add(self.age_us(level)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileId, KeyRange, LevelShape, RunId, RunShape};
    use std::sync::Arc;

    fn tree(levels: &[u64]) -> TreeShape {
        let level = |(index, &bytes): (u64, &u64)| {
            let file =
                FileShape { bytes, ..FileShape::new(FileId(index), KeyRange::new("a", "z")) };
            let run = RunShape { id: RunId(index), files: vec![Arc::new(file)].into() };
            let runs = if bytes == 0 { Vec::new() } else { vec![Arc::new(run)] };
            Arc::new(LevelShape { runs, cursor: None })
        };
        TreeShape { levels: (0..).zip(levels).map(level).collect(), ..TreeShape::default() }
    }

    #[test]
    fn shares_grow_by_the_ratio_and_sum_up_to_the_bound() {
        // A tenth, and 1 + 8 parts for L0 and L1; L2 is empty, L3 the last level.
        let ttl = Ttl::of(&tree(&[1, 1, 0, 1]), 1000, 8);
        assert_eq!(ttl.memtable_us(), 100);
        let ages: Vec<u64> = (0..5).map(|level| ttl.age_us(Level(level))).collect();
        assert_eq!(ages, [200, 1000, 1000, 1000, 1000]);
    }

    #[test]
    fn empty_levels_get_no_share() {
        let (full, sparse) = (tree(&[1, 1, 1, 1]), tree(&[1, 0, 0, 1, 1, 0, 1]));
        let (full, sparse) = (Ttl::of(&full, 1_000_000, 4), Ttl::of(&sparse, 1_000_000, 4));
        assert_eq!(full.memtable_us(), sparse.memtable_us());
        assert_eq!(full.age_us(Level(1)), sparse.age_us(Level(3)));
        assert_eq!(full.age_us(Level(2)), sparse.age_us(Level(4)));
    }

    #[test]
    fn what_is_in_the_last_level_has_the_whole_bound() {
        for shape in [tree(&[]), tree(&[5])] {
            let ttl = Ttl::of(&shape, 77, 10);
            assert_eq!((ttl.memtable_us(), ttl.age_us(Level(0))), (7, 77));
        }
        assert_eq!(Ttl::of(&tree(&[1; 200]), u64::MAX, 1_000_000).age_us(Level(199)), u64::MAX);
    }
}
