//! How a reader comes to blocks, and what it has met on its way.
//!
//! A lookup that may not read, and finds that it would have to, is tried again by somebody who may.
//! So that nothing is counted twice, a lookup keeps to itself what it met until it is known to be the
//! last try; that also costs less than to count each block for itself. A miss needs no such care: who
//! may not read has none.

use crate::cache::{BlockCache, FilterCounts};
use crate::error::{Error, Result};
use crate::format::BlockKind;
use crate::format::block::Handle;

use crate::table::reader::FillCache;

/// Levels whose filters nearly every lookup gets along with, so that it takes no memory for them.
const LEVELS_HERE: usize = 6;

/// What the filters of one level answered for keys that their tables do not have.
#[derive(Clone, Copy, Debug, Default)]
struct Answers {
    level: u8,
    negatives: u16,
    false_positives: u16,
}

/// What one reader may do, and has met.
#[derive(Debug)]
pub(crate) struct Access {
    fill: FillCache,
    /// Whether hits are kept until [`Access::settle`].
    tallies: bool,
    /// Kinds of which there are any, a bit each.
    hit_kinds: u8,
    hits: [u32; BlockKind::ALL.len()],
    /// What filters answered, by level: of the first few here, and of all others behind.
    answers: [Answers; LEVELS_HERE],
    /// How many of the first few are in use.
    levels: usize,
    answers_behind: Vec<Answers>,
    /// Whether values in the value log must not be read.
    leaves_blobs: bool,
    /// What it would have to read, and must not.
    missing: Option<Handle>,
}

impl Access {
    /// Counts as it goes.
    #[inline]
    pub(crate) fn of(fill: FillCache) -> Access {
        Access {
            fill,
            tallies: false,
            hit_kinds: 0,
            hits: [0; BlockKind::ALL.len()],
            answers: [Answers::default(); LEVELS_HERE],
            levels: 0,
            answers_behind: Vec::new(),
            leaves_blobs: false,
            missing: None,
        }
    }

    /// One lookup, whose caller says at the end that it counts.
    #[inline]
    pub(crate) fn lookup(fill: FillCache) -> Access {
        Access { tallies: true, ..Access::of(fill) }
    }

    /// What becomes of blocks that are read.
    #[inline]
    pub(crate) fn fill(&self) -> FillCache {
        self.fill
    }

    /// A block was in memory.
    #[inline]
    pub(crate) fn hit(&mut self, cache: &BlockCache, kind: BlockKind) {
        if self.tallies {
            self.hit_kinds |= 1 << kind as u8;
            self.hits[kind as usize] += 1;
        } else if self.fill.counts() {
            cache.count_hits(kind, 1);
        }
    }

    /// A block is not in memory: how it is to be read.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if it must not be.
    #[inline]
    pub(crate) fn may_read(&mut self, block: Handle) -> Result<FillCache> {
        match self.fill {
            FillCache::Memory => {
                self.missing = Some(block);
                Err(Error::WouldBlock)
            }
            fill => Ok(fill),
        }
    }

    /// As [`Access::may_read`] of a value in the value log; which one it is, the caller knows.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if it must not be.
    #[inline]
    pub(crate) fn may_read_blob(&self) -> Result<FillCache> {
        match self.fill {
            FillCache::Memory => Err(Error::WouldBlock),
            _ if self.leaves_blobs => Err(Error::WouldBlock),
            fill => Ok(fill),
        }
    }

    /// Values in the value log are not read, unless they are in memory.
    pub(crate) fn leave_blobs(&mut self) {
        self.leaves_blobs = true;
    }

    /// A lookup may read what it needs from here on.
    pub(crate) fn allow_reads(&mut self) {
        (self.fill, self.leaves_blobs) = (FillCache::Yes, false);
    }

    /// The block that was not in memory, of one who must not read.
    pub(crate) fn missing(&self) -> Option<Handle> {
        self.missing
    }

    #[inline]
    pub(crate) fn filter_negative(&mut self, level: u8) {
        let answers = self.answers_of(level);
        answers.negatives = answers.negatives.saturating_add(1);
    }

    #[inline]
    pub(crate) fn filter_false_positive(&mut self, level: u8) {
        let answers = self.answers_of(level);
        answers.false_positives = answers.false_positives.saturating_add(1);
    }

    /// The counts of a level.
    #[inline]
    fn answers_of(&mut self, level: u8) -> &mut Answers {
        let known = &self.answers[..self.levels];
        let place = known.iter().position(|answers| answers.level == level).unwrap_or(self.levels);
        if place == LEVELS_HERE {
            return self.answers_behind_of(level);
        }
        if place == self.levels {
            self.levels += 1;
            self.answers[place].level = level;
        }
        &mut self.answers[place]
    }

    #[cold]
    fn answers_behind_of(&mut self, level: u8) -> &mut Answers {
        let all = &mut self.answers_behind;
        let place = all.iter().position(|answers| answers.level == level).unwrap_or(all.len());
        if place == all.len() {
            all.push(Answers { level, ..Answers::default() });
        }
        &mut all[place]
    }

    /// Counts what was met, once. Most lookups meet blocks of few kinds, and filters of few levels: only
    /// these are looked at.
    #[inline]
    pub(crate) fn settle(&self, cache: &BlockCache) {
        let mut kinds = self.hit_kinds;
        while kinds != 0 {
            let kind = BlockKind::ALL[kinds.trailing_zeros() as usize];
            cache.count_hits(kind, u64::from(self.hits[kind as usize]));
            kinds &= kinds - 1;
        }
        for answers in self.answers[..self.levels].iter().chain(&self.answers_behind) {
            let counted = FilterCounts {
                negatives: u64::from(answers.negatives),
                false_positives: u64::from(answers.false_positives),
            };
            cache.count_filter_results(answers.level, counted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lookup_counts_each_thing_it_met_and_nothing_else() {
        let cache = BlockCache::new(1 << 20);
        let mut access = Access::lookup(FillCache::Memory);
        // More levels than it keeps by itself, each more than once, and in no order.
        let levels = 2 * LEVELS_HERE;
        for round in 0..3u8 {
            for level in (0..levels).map(|at| u8::try_from(at * 5 % levels).unwrap_or(0)) {
                access.filter_negative(level);
                if level % 2 == 0 && round > 0 {
                    access.filter_false_positive(level);
                }
            }
        }
        (0..300).for_each(|_| access.hit(&cache, BlockKind::Data));
        access.hit(&cache, BlockKind::Bucket);
        assert!(cache.filter_counts().is_empty(), "nothing counts before the end");
        access.settle(&cache);
        let answers = cache.filter_counts();
        assert_eq!(answers.len(), levels);
        for (level, answers) in answers {
            let false_positives = if level % 2 == 0 { 2 } else { 0 };
            assert_eq!(answers, FilterCounts { negatives: 3, false_positives });
        }
        for (kind, counts) in cache.counts().iter() {
            let hits = match kind {
                BlockKind::Data => 300,
                BlockKind::Bucket => 1,
                _ => 0,
            };
            assert_eq!((counts.hits, counts.misses), (hits, 0), "{kind:?}");
        }
    }
}
