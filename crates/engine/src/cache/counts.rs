//! Hits and misses by kind of block.

use std::collections::BTreeMap;
use std::ops::Index;

use lsmx_base::sync::ShardedCounter;

use crate::format::BlockKind;

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

impl FilterAnswers {
    /// Of the keys that tables did not have, the share that their filters let pass; 0 if none was
    /// asked for.
    #[must_use]
    pub fn false_positive_rate(&self) -> f64 {
        match self.negatives + self.false_positives {
            0 => 0.0,
            asked => self.false_positives as f64 / asked as f64,
        }
    }

    /// What was answered since an earlier count.
    #[must_use]
    pub fn since(&self, earlier: &FilterAnswers) -> FilterAnswers {
        FilterAnswers {
            negatives: self.negatives - earlier.negatives,
            false_positives: self.false_positives - earlier.false_positives,
        }
    }
}

impl std::iter::Sum for FilterAnswers {
    fn sum<I: Iterator<Item = FilterAnswers>>(all: I) -> FilterAnswers {
        all.fold(FilterAnswers::default(), |sum, one| FilterAnswers {
            negatives: sum.negatives + one.negatives,
            false_positives: sum.false_positives + one.false_positives,
        })
    }
}

/// The counters behind [`FilterAnswers`].
#[derive(Debug, Default)]
struct AnswerCounts {
    negatives: ShardedCounter,
    false_positives: ShardedCounter,
}

/// How many levels there may be.
const LEVELS: usize = 1 << u8::BITS;

/// The counters behind [`HitsMisses`] and [`FilterAnswers`].
#[derive(Debug)]
pub(crate) struct Counts {
    hits: PerKind<ShardedCounter>,
    misses: PerKind<ShardedCounter>,
    /// By level of the table.
    filters: Box<[AnswerCounts; LEVELS]>,
}

impl Counts {
    pub(crate) fn new() -> Counts {
        Counts {
            hits: PerKind::from_fn(|_| ShardedCounter::new()),
            misses: PerKind::from_fn(|_| ShardedCounter::new()),
            filters: Box::new(std::array::from_fn(|_| AnswerCounts::default())),
        }
    }

    #[inline]
    pub(crate) fn hit(&self, kind: BlockKind, count: u64) {
        self.hits[kind].add(count);
    }

    #[inline]
    pub(crate) fn miss(&self, kind: BlockKind) {
        self.misses[kind].add(1);
    }

    #[inline]
    pub(crate) fn filter_answers_of(&self, level: u8, answers: FilterAnswers) {
        let counts = &self.filters[usize::from(level)];
        // Mostly there are answers of one kind alone, and to add nothing costs as much.
        if answers.negatives > 0 {
            counts.negatives.add(answers.negatives);
        }
        if answers.false_positives > 0 {
            counts.false_positives.add(answers.false_positives);
        }
    }

    /// By level, of those whose filters were asked for keys that they do not have.
    pub(crate) fn filter_answers(&self) -> BTreeMap<u8, FilterAnswers> {
        let all = (0..=u8::MAX).zip(&self.filters[..]).map(|(level, counts)| {
            let (negatives, false_positives) =
                (counts.negatives.sum(), counts.false_positives.sum());
            (level, FilterAnswers { negatives, false_positives })
        });
        all.filter(|(_, answers)| *answers != FilterAnswers::default()).collect()
    }

    pub(crate) fn read(&self) -> PerKind<HitsMisses> {
        PerKind::from_fn(|kind| HitsMisses {
            hits: self.hits[kind].sum(),
            misses: self.misses[kind].sum(),
        })
    }
}
