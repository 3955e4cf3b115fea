//! Hits and misses by kind of block.

use std::ops::Index;

use crate::format::BlockKind;
use crate::sync::ShardedCounter;

const KINDS: usize = BlockKind::ALL.len();

/// One value for each kind of block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerKind<T>([T; KINDS]);

impl<T> PerKind<T> {
    /// What `value` says of each kind.
    #[must_use]
    pub fn from_fn(value: impl FnMut(BlockKind) -> T) -> PerKind<T> {
        PerKind(BlockKind::ALL.map(value))
    }

    /// Kinds and their values, in the order of the kinds' numbers.
    pub fn iter(&self) -> impl Iterator<Item = (BlockKind, &T)> {
        BlockKind::ALL.into_iter().zip(&self.0)
    }
}

impl<T> Index<BlockKind> for PerKind<T> {
    type Output = T;
    fn index(&self, kind: BlockKind) -> &T {
        &self.0[kind as usize]
    }
}

/// How often a block was in memory, and how often storage had to give it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct HitsMisses {
    /// Times it was in memory.
    pub hits: u64,
    /// Times it was read from its file.
    pub misses: u64,
}

/// What filters answered to point lookups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct FilterAnswers {
    /// Times a filter ruled a table out.
    pub negatives: u64,
    /// Times it let a key pass that the table then did not have.
    pub false_positives: u64,
}

/// The counters behind [`HitsMisses`] and [`FilterAnswers`].
#[derive(Debug)]
pub(super) struct Counts {
    hits: PerKind<ShardedCounter>,
    misses: PerKind<ShardedCounter>,
    filter_negatives: ShardedCounter,
    filter_false_positives: ShardedCounter,
}

impl Counts {
    pub(super) fn new() -> Counts {
        Counts {
            hits: PerKind::from_fn(|_| ShardedCounter::new()),
            misses: PerKind::from_fn(|_| ShardedCounter::new()),
            filter_negatives: ShardedCounter::new(),
            filter_false_positives: ShardedCounter::new(),
        }
    }

    #[inline]
    pub(super) fn hit(&self, kind: BlockKind, count: u64) {
        self.hits[kind].add(count);
    }

    #[inline]
    pub(super) fn miss(&self, kind: BlockKind) {
        self.misses[kind].add(1);
    }

    #[inline]
    pub(super) fn filter_negative(&self, count: u64) {
        self.filter_negatives.add(count);
    }

    #[inline]
    pub(super) fn filter_false_positive(&self, count: u64) {
        self.filter_false_positives.add(count);
    }

    pub(super) fn filter_answers(&self) -> FilterAnswers {
        FilterAnswers {
            negatives: self.filter_negatives.sum(),
            false_positives: self.filter_false_positives.sum(),
        }
    }

    pub(super) fn read(&self) -> PerKind<HitsMisses> {
        PerKind::from_fn(|kind| HitsMisses {
            hits: self.hits[kind].sum(),
            misses: self.misses[kind].sum(),
        })
    }
}
