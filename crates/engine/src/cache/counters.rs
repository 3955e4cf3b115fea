//! Counters of cache hits, cache misses and filter results.

use std::collections::BTreeMap;
use std::ops::Index;

use lsmx_base::sync::ShardedCounter;

use crate::format::BlockKind;

const KINDS: usize = BlockKind::ALL.len();

/// Map with a value for each kind of block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockKindMap<T>([T; KINDS]);

impl<T> BlockKindMap<T> {
    /// Creates a map. `value` returns the value of each kind.
    #[must_use]
    pub fn from_fn(value: impl FnMut(BlockKind) -> T) -> BlockKindMap<T> {
        BlockKindMap(BlockKind::ALL.map(value))
    }

    /// Returns the kinds and their values in the order of the kind numbers.
    pub fn iter(&self) -> impl Iterator<Item = (BlockKind, &T)> {
        BlockKind::ALL.into_iter().zip(&self.0)
    }
}

impl<T> Index<BlockKind> for BlockKindMap<T> {
    type Output = T;
    fn index(&self, kind: BlockKind) -> &T {
        &self.0[kind as usize]
    }
}

/// Numbers of cache hits and misses for one kind of block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct HitCounts {
    /// Number of reads that found the block in memory.
    pub hits: u64,
    /// Number of reads that read the block from the file.
    pub misses: u64,
}

/// Filter results of point lookups. Only lookups of keys that the table does not contain are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FilterCounts {
    /// Number of lookups in which the filter excluded the key.
    pub negatives: u64,
    /// Number of lookups in which the filter did not exclude the key.
    pub false_positives: u64,
}

impl FilterCounts {
    /// Returns the fraction of false positives among all lookups of absent keys. Returns 0 if there are no such
    /// lookups.
    #[must_use]
    pub fn false_positive_rate(&self) -> f64 {
        match self.negatives + self.false_positives {
            0 => 0.0,
            lookups => self.false_positives as f64 / lookups as f64,
        }
    }
}

impl std::ops::Sub for FilterCounts {
    type Output = FilterCounts;

    /// Returns the difference from an earlier count.
    fn sub(self, earlier: FilterCounts) -> FilterCounts {
        FilterCounts {
            negatives: self.negatives - earlier.negatives,
            false_positives: self.false_positives - earlier.false_positives,
        }
    }
}

impl std::iter::Sum for FilterCounts {
    fn sum<I: Iterator<Item = FilterCounts>>(all: I) -> FilterCounts {
        all.fold(FilterCounts::default(), |sum, one| FilterCounts {
            negatives: sum.negatives + one.negatives,
            false_positives: sum.false_positives + one.false_positives,
        })
    }
}

/// Counters that [`FilterCounts`] are computed from.
#[derive(Debug, Default)]
struct FilterCounters {
    negatives: ShardedCounter,
    false_positives: ShardedCounter,
}

/// Maximum number of levels in a tree.
const LEVELS: usize = 1 << u8::BITS;

/// Counters that [`HitCounts`] and [`FilterCounts`] are computed from.
#[derive(Debug)]
pub(crate) struct CacheCounters {
    hits: BlockKindMap<ShardedCounter>,
    misses: BlockKindMap<ShardedCounter>,
    /// Filter results, indexed by the level of the table.
    filters: Box<[FilterCounters; LEVELS]>,
}

impl CacheCounters {
    pub(crate) fn new() -> CacheCounters {
        CacheCounters {
            hits: BlockKindMap::from_fn(|_| ShardedCounter::new()),
            misses: BlockKindMap::from_fn(|_| ShardedCounter::new()),
            filters: Box::new(std::array::from_fn(|_| FilterCounters::default())),
        }
    }

    #[inline]
    pub(crate) fn add_hits(&self, kind: BlockKind, count: u64) {
        self.hits[kind].add(count);
    }

    #[inline]
    pub(crate) fn add_miss(&self, kind: BlockKind) {
        self.misses[kind].add(1);
    }

    /// Adds filter results of lookups in tables of one level. The tables must not contain the keys.
    #[inline]
    pub(crate) fn add_filter_counts(&self, level: u8, counts: FilterCounts) {
        let counters = &self.filters[usize::from(level)];
        // Usually, one of the counts is 0. The check saves an atomic addition.
        if counts.negatives > 0 {
            counters.negatives.add(counts.negatives);
        }
        if counts.false_positives > 0 {
            counters.false_positives.add(counts.false_positives);
        }
    }

    /// Returns the filter results by level. Levels without results are omitted.
    pub(crate) fn filter_counts(&self) -> BTreeMap<u8, FilterCounts> {
        let all = (0..=u8::MAX).zip(&self.filters[..]).map(|(level, counters)| {
            let (negatives, false_positives) =
                (counters.negatives.sum(), counters.false_positives.sum());
            (level, FilterCounts { negatives, false_positives })
        });
        all.filter(|(_, counts)| *counts != FilterCounts::default()).collect()
    }

    pub(crate) fn hit_counts(&self) -> BlockKindMap<HitCounts> {
        BlockKindMap::from_fn(|kind| HitCounts {
            hits: self.hits[kind].sum(),
            misses: self.misses[kind].sum(),
        })
    }
}
