//! Trigger, the first primitive of a policy: when a job is due.

use crate::ids::Level;
use crate::shape::TreeShape;

/// Condition that makes a job due. A policy has one or more triggers, in order of priority.
///
/// A [`PolicySpec`](crate::PolicySpec) permits only the numbers that can be written in a spec, for example a `wait` of
/// at least 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// A level with a single run has reached its capacity.
    LevelFull(LevelCapacity),
    /// L0 or a tiered level has this number of runs. In a run list, the whole tree has this number of runs.
    ///
    /// A merge from L0 into a level with a single run rewrites the overlapping data of that level. The merge therefore
    /// waits until L0 has as many bytes as the merge rewrites, or until L0 has `wait` runs. For `wait`, a run with the
    /// data of several memtables counts as several runs. A merge into a tiered level rewrites no data of that level and
    /// never waits. Merges of a run list never wait either.
    ///
    /// In two cases the runs of L0 are merged with each other instead:
    ///
    /// - No data is written.
    /// - L0 has `wait` runs, but a merge into the next level would rewrite more than the size ratio times the bytes of
    ///   these runs.
    ///
    /// If one run of L0 has more than the size ratio times the bytes of all newer runs, only these newer runs are
    /// merged with each other. For `wait`, they count as the number of memtables that their bytes fill.
    RunCount {
        /// Number of runs that makes a merge due, provided that the merge rewrites at most as many bytes as L0 has. At
        /// least 1.
        runs: usize,
        /// Number of runs that makes a merge due, however many bytes it rewrites. If `wait` is at most `runs`, merges
        /// never wait. It may exceed `runs` only in a leveling layout without tiered levels, and not with the
        /// granularities `preemptive` and `partition`.
        wait: usize,
    },
    /// A level has more runs than a fluid layout allows.
    TooManyRuns,
    /// The size of all runs except the oldest has reached this percentage of the size of the oldest run.
    SpaceAmplification {
        /// Threshold in per cent.
        percent: u64,
    },
    /// Adjacent runs have similar sizes. Each run of the sequence is at most `percent` per cent larger than all newer
    /// runs of the sequence together.
    SizeRatio {
        /// Tolerance in per cent.
        percent: u64,
        /// Minimum number of merged runs, at least 2.
        runs_min: usize,
        /// Maximum number of merged runs.
        runs_max: usize,
    },
    /// The share of droppable tombstones among the entries of a file has reached a threshold.
    TombstoneDensity {
        /// Threshold in tombstones per million entries.
        ppm: u64,
    },
    /// The oldest tombstone of a file exceeds the maximum age of its level.
    ///
    /// Memtables get one tenth of `bound_us`. The levels above the last level share the rest. The share of each level
    /// is `size_ratio` times the share of the level above.
    ///
    /// Source: Sarkar et al., "Lethe", SIGMOD 2020, section 4.1 ("FADE").
    TombstoneTtl {
        /// Maximum age of a tombstone, in microseconds. Tombstones that a snapshot needs may exceed it.
        bound_us: u64,
        /// Ratio of the shares of adjacent levels.
        size_ratio: u64,
    },
    /// A file exceeds a maximum age. The file moves to the next level. In a FIFO layout it is dropped.
    FileStaleness {
        /// Maximum age in microseconds.
        ttl_us: u64,
    },
    /// The size of the tree exceeds a maximum. Only for FIFO layouts.
    TotalBytes {
        /// Maximum size of all table files in bytes. Blob files do not count.
        bytes: u64,
    },
}

impl Trigger {
    /// Returns the name as written in a spec.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Trigger::LevelFull(_) => "level-full",
            Trigger::RunCount { .. } => "run-count",
            Trigger::TooManyRuns => "too-many-runs",
            Trigger::SpaceAmplification { .. } => "space-amplification",
            Trigger::SizeRatio { .. } => "size-ratio",
            Trigger::TombstoneDensity { .. } => "tombstone-density",
            Trigger::TombstoneTtl { .. } => "tombstone-ttl",
            Trigger::FileStaleness { .. } => "file-staleness",
            Trigger::TotalBytes { .. } => "total-bytes",
        }
    }

    /// Returns whether the trigger depends on tombstones.
    #[must_use]
    pub fn needs_tombstones(&self) -> bool {
        matches!(self, Trigger::TombstoneDensity { .. } | Trigger::TombstoneTtl { .. })
    }

    /// Returns whether the trigger is a condition on single files of all levels.
    #[must_use]
    pub fn is_file_trigger(&self) -> bool {
        self.needs_tombstones() || matches!(self, Trigger::FileStaleness { .. })
    }
}

/// Rule for the capacity of each level, which is its maximum size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LevelCapacity {
    /// The capacity of the first leveled level is fixed. Each deeper level has `size_ratio` times the capacity of the
    /// level above.
    FromTop {
        /// Capacity of the first leveled level, in memtables. Without tiered levels, this is the capacity of L1.
        l1_memtables: u64,
        /// Ratio of the capacities of adjacent levels.
        size_ratio: u64,
    },
    /// The last level has no capacity. The capacity of the level above it is the size of the last level divided by
    /// `size_ratio`. The capacity of each level further up is the capacity of the level below divided by `size_ratio`.
    ///
    /// The base level receives the data from L0. It is the uppermost level whose capacity is at least `base_memtables`,
    /// or the last level if there is no such level. Levels between L0 and the base level are empty.
    ///
    /// Source: Dong et al., "Optimizing Space Amplification in RocksDB", CIDR 2017.
    FromBottom {
        /// Number of the last level. The level counts as the last level even if it is empty.
        last: Level,
        /// Minimum capacity of the base level, in memtables.
        base_memtables: u64,
        /// Ratio of the capacities of adjacent levels.
        size_ratio: u64,
    },
}

/// Capacities of the levels of one tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelCapacities {
    /// Level that receives data from L0.
    pub base: Level,
    /// Last level. It has no capacity, and no job takes data from it because of its size.
    pub last: Level,
    /// Capacity of `base` in bytes, at least 1.
    pub base_bytes: u64,
    /// Ratio of the capacities of adjacent levels.
    pub size_ratio: u64,
}

/// Number of the last level for [`LevelCapacity::FromTop`]. Even with a size ratio of 2, the capacity of this level is
/// 2^62 times that of L1, which no tree reaches.
const LAST_LEVEL_FROM_TOP: Level = Level(63);

impl LevelCapacity {
    /// Returns the level capacities for a tree. The base level is `first` or a deeper level.
    #[must_use]
    pub fn level_capacities(&self, shape: &TreeShape, first: Level) -> LevelCapacities {
        let deepest = shape.deepest_level().unwrap_or(Level(0));
        let memtable = shape.memtable_bytes.max(1);
        match *self {
            LevelCapacity::FromTop { l1_memtables, size_ratio } => LevelCapacities {
                base: first,
                last: LAST_LEVEL_FROM_TOP.max(deepest),
                base_bytes: memtable.saturating_mul(l1_memtables.max(1)),
                size_ratio,
            },
            LevelCapacity::FromBottom { last, base_memtables, size_ratio } => {
                let last = last.max(deepest).max(first);
                let base_bytes_min = memtable.saturating_mul(base_memtables.max(1));
                let (mut base, mut bytes) = (last, shape.level_bytes(last));
                while base > first && bytes / size_ratio.max(2) >= base_bytes_min {
                    base = Level(base.0 - 1);
                    bytes /= size_ratio.max(2);
                }
                // In a small tree, the last level may have fewer bytes than the minimum. If the base level had this
                // smaller capacity, each run in L0 would be due at once.
                let base_bytes = bytes.max(base_bytes_min);
                LevelCapacities { base, last, base_bytes, size_ratio }
            }
        }
    }
}

impl LevelCapacities {
    /// Returns the capacity of a level in bytes. It is 0 above the base level and `u64::MAX` for the last level.
    #[must_use]
    pub fn bytes(&self, level: Level) -> u64 {
        if level >= self.last {
            u64::MAX
        } else if level < self.base {
            0
        } else {
            let factor = self.size_ratio.checked_pow(u32::from(level.0 - self.base.0));
            factor.map_or(u64::MAX, |factor| self.base_bytes.saturating_mul(factor))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{FileId, RunId};
    use crate::key_range::KeyRange;
    use crate::run::SortedRun;
    use crate::shape::LevelShape;
    use crate::table_meta::TableMeta;
    use std::sync::Arc;

    fn file(bytes: u64) -> TableMeta {
        TableMeta { bytes, entries: 100, ..TableMeta::new(FileId(1), KeyRange::new("a", "z")) }
    }

    /// Returns a tree with memtables of one byte and one file in `level`.
    fn tree(level: usize, bytes: u64) -> TreeShape {
        let run = SortedRun { id: RunId(0), files: vec![Arc::new(file(bytes))].into() };
        let mut levels = Vec::new();
        levels.resize_with(level, Arc::<LevelShape>::default);
        levels.push(Arc::new(LevelShape { runs: vec![Arc::new(run)], cursor: None }));
        TreeShape { levels, memtable_bytes: 1, ..TreeShape::default() }
    }

    #[test]
    fn capacity_from_bottom_follows_last_level() {
        let capacity =
            LevelCapacity::FromBottom { last: Level(6), base_memtables: 4, size_ratio: 10 };
        let cases = [(0, 6, 4), (39, 6, 39), (40, 5, 4), (399, 5, 39), (400, 4, 4), (4000, 3, 4)];
        for (bytes, base, base_bytes) in cases {
            let found = capacity.level_capacities(&tree(6, bytes), Level(1));
            assert_eq!((found.base, found.base_bytes), (Level(base), base_bytes), "{bytes}");
            assert_eq!(found.bytes(Level(6)), u64::MAX);
            assert_eq!(found.bytes(Level(base - 1)), 0);
        }
        // The base level is never L0.
        assert_eq!(capacity.level_capacities(&tree(6, u64::MAX), Level(1)).base, Level(1));
    }

    #[test]
    fn capacity_from_top_grows_by_size_ratio_and_saturates() {
        let found = LevelCapacity::FromTop { l1_memtables: 2, size_ratio: 10 }
            .level_capacities(&tree(1, 5), Level(1));
        assert_eq!(found.bytes(Level(1)), 2);
        assert_eq!(found.bytes(Level(3)), 200);
        assert_eq!(found.bytes(Level(40)), u64::MAX);
        assert_eq!(found.last, Level(63));
    }
}
