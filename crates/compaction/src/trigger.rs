//! Primitive 1: when a job is due.

use crate::{FileShape, Level, TreeShape};

/// What makes a job due. A policy has several, in order of priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// A level with one run is full: its bytes reach its capacity.
    LevelFull(Capacity),
    /// A level, or the tree if it is one list of runs, holds this many runs, whatever their bytes.
    ///
    /// Into a level of one run a merge rewrites what it overlaps there, so it waits until it is worth
    /// it: until the runs hold as many bytes as that, or are `wait`, one of several memtables' worth
    /// counting for as many. If even `wait` of them are a small part of what it would rewrite, less than
    /// one to the size ratio, or if nothing is written any more, they are merged among themselves. So are
    /// runs that together are as small beside the next older one; those count by their bytes alone.
    /// Elsewhere nothing is rewritten, and nothing waits.
    RunCount {
        /// Runs that make a merge due if it is worth it; at least 1.
        runs: usize,
        /// Runs that make it due whatever it rewrites; no waiting if that is `runs`.
        wait: usize,
    },
    /// A level holds more runs than the layout allows it; for fluid layouts, which say how many.
    TooManyRuns,
    /// The bytes above the oldest run, in per cent of the bytes of that run, reach this.
    SpaceAmplification {
        /// The threshold in per cent.
        percent: u64,
    },
    /// Neighbouring runs are of like size: the next older one is no larger than all newer ones of
    /// the chain together, and some per cent more.
    SizeRatio {
        /// Per cent that the older run may be larger.
        percent: u64,
        /// Fewest runs of a chain; at least 2.
        runs_min: usize,
        /// Most runs of a chain.
        runs_max: usize,
    },
    /// Of the entries of a file, this share are tombstones that a job could drop.
    TombstoneDensity {
        /// The threshold, in millionths of the entries.
        ppm: u64,
    },
    /// The oldest tombstone of a file has spent the time that all levels down to that of the file may
    /// keep it. Memtables have a tenth of `bound_us`, the levels above the last share the rest, each
    /// `size_ratio` times as much as the level above.
    ///
    /// Source: Sarkar et al., "Lethe", SIGMOD 2020, section 4.1 ("FADE").
    TombstoneTtl {
        /// No tombstone that no snapshot holds gets older than this, in microseconds.
        bound_us: u64,
        /// How much longer each deeper level may keep it.
        size_ratio: u64,
    },
    /// A file was written so long ago. Above the last level it moves on; in a queue it leaves.
    FileStaleness {
        /// Age in microseconds.
        ttl_us: u64,
    },
    /// All files together hold more than this; for a queue.
    TotalBytes {
        /// The threshold.
        bytes: u64,
    },
}

impl Trigger {
    /// The name as written in a spec.
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

    /// Whether it never makes anything due where there are no tombstones.
    #[must_use]
    pub fn needs_tombstones(&self) -> bool {
        matches!(self, Trigger::TombstoneDensity { .. } | Trigger::TombstoneTtl { .. })
    }

    /// Whether single files make a job due, wherever they stand.
    #[must_use]
    pub fn is_about_files(&self) -> bool {
        matches!(
            self,
            Trigger::TombstoneDensity { .. }
                | Trigger::TombstoneTtl { .. }
                | Trigger::FileStaleness { .. }
        )
    }
}

/// How many bytes a level may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// The first leveled level holds a number of memtables, each deeper one `size_ratio` times as much.
    FromTop {
        /// Capacity of the first leveled level, L1 unless levels above it are tiered, in memtables.
        l1_memtables: u64,
        /// How much more each deeper level holds.
        size_ratio: u64,
    },
    /// The last level holds what it holds, each level above it `size_ratio` times less. The base,
    /// which takes what leaves L0, is the smallest level of at least `base_memtables`, or the last
    /// level if there is none; levels between L0 and the base hold nothing.
    ///
    /// Source: Dong et al., "Optimizing Space Amplification in RocksDB", CIDR 2017.
    FromBottom {
        /// The last level, whether it holds anything or not.
        last: Level,
        /// Least capacity of the base in memtables.
        base_memtables: u64,
        /// How much less each level above holds.
        size_ratio: u64,
    },
}

/// Capacities worked out for one shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// The level that takes what leaves L0.
    pub base: Level,
    /// The last level: never a source.
    pub last: Level,
    /// Capacity of `base` in bytes, at least 1.
    pub base_bytes: u64,
    size_ratio: u64,
}

/// Deepest level that a tree sized from the top grows to. With a ratio of 2 it holds 2^62 × L1.
const LAST_LEVEL_FROM_TOP: Level = Level(63);

impl Capacity {
    /// Works out base and capacities for a tree. `first` is the first level that may be the base.
    #[must_use]
    pub fn of(&self, shape: &TreeShape, first: Level) -> Capacities {
        let deepest = shape.deepest().unwrap_or(Level(0));
        let memtable = shape.memtable_bytes.max(1);
        match *self {
            Capacity::FromTop { l1_memtables, size_ratio } => Capacities {
                base: first,
                last: LAST_LEVEL_FROM_TOP.max(deepest),
                base_bytes: memtable.saturating_mul(l1_memtables.max(1)),
                size_ratio,
            },
            Capacity::FromBottom { last, base_memtables, size_ratio } => {
                let last = last.max(deepest).max(first);
                let base_bytes_min = memtable.saturating_mul(base_memtables.max(1));
                let (mut base, mut bytes) = (last, shape.level_bytes(last));
                while base > first && bytes / size_ratio.max(2) >= base_bytes_min {
                    base = Level(base.0 - 1);
                    bytes /= size_ratio.max(2);
                }
                // A young last level is smaller than any base should be. By its own bytes L0 would
                // be full with the first run that arrives.
                Capacities { base, last, base_bytes: bytes.max(base_bytes_min), size_ratio }
            }
        }
    }
}

impl Capacities {
    /// How much more each level holds than the one above.
    pub(crate) fn size_ratio(&self) -> u64 {
        self.size_ratio
    }

    /// Capacity of a level in bytes: 0 between L0 and the base, without limit for the last level.
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

/// Bytes of a file as the trigger counts them: where tombstones are half of the entries or more,
/// each one above that half counts as two values, so that they are merged away sooner.
///
/// Source: RocksDB, `compensated_file_size`.
#[must_use]
pub fn compensated_bytes(file: &FileShape) -> u64 {
    file.compensated_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileId, KeyRange, LevelShape, RunId, RunShape};
    use std::sync::Arc;

    fn file(bytes: u64) -> FileShape {
        FileShape { bytes, entries: 100, ..FileShape::new(FileId(1), KeyRange::new("a", "z")) }
    }

    /// A tree with memtables of one byte and one file in one level.
    fn tree(level: usize, bytes: u64) -> TreeShape {
        let run = RunShape { id: RunId(0), files: vec![Arc::new(file(bytes))].into() };
        let mut levels = Vec::new();
        levels.resize_with(level, Arc::<LevelShape>::default);
        levels.push(Arc::new(LevelShape { runs: vec![Arc::new(run)], cursor: None }));
        TreeShape { levels, memtable_bytes: 1, ..TreeShape::default() }
    }

    #[test]
    fn capacities_from_the_bottom_follow_the_last_level() {
        let capacity = Capacity::FromBottom { last: Level(6), base_memtables: 4, size_ratio: 10 };
        let cases = [(0, 6, 4), (39, 6, 39), (40, 5, 4), (399, 5, 39), (400, 4, 4), (4000, 3, 4)];
        for (bytes, base, base_bytes) in cases {
            let found = capacity.of(&tree(6, bytes), Level(1));
            assert_eq!((found.base, found.base_bytes), (Level(base), base_bytes), "{bytes}");
            assert_eq!(found.bytes(Level(6)), u64::MAX);
            assert_eq!(found.bytes(Level(base - 1)), 0);
        }
        // However much there is, the base never becomes L0.
        assert_eq!(capacity.of(&tree(6, u64::MAX), Level(1)).base, Level(1));
    }

    #[test]
    fn capacities_from_the_top_grow_by_the_ratio_and_saturate() {
        let found = Capacity::FromTop { l1_memtables: 2, size_ratio: 10 }.of(&tree(1, 5), Level(1));
        assert_eq!(found.bytes(Level(1)), 2);
        assert_eq!(found.bytes(Level(3)), 200);
        assert_eq!(found.bytes(Level(40)), u64::MAX);
        assert_eq!(found.last, Level(63));
    }

    #[test]
    fn tombstones_count_from_half_of_the_entries() {
        let with = |tombstones| {
            compensated_bytes(&FileShape { tombstones, value_bytes: 500, ..file(1000) })
        };
        assert_eq!(with(49), 1000);
        assert_eq!(with(50), 1000);
        // Ten values of 50 bytes; 80 tombstones above half, two values each.
        assert_eq!(with(90), 1000 + 80 * 50 * 2);
        assert_eq!(with(100), 1000 + 100 * 500 * 2);
    }
}
