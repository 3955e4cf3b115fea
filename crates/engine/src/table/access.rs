//! How a reader comes to blocks, and what it has met on its way.
//!
//! A lookup that may not read, and finds that it would have to, is tried again by somebody who may.
//! So that nothing is counted twice, a lookup keeps to itself what it met until it is known to be the
//! last try; that also costs less than to count each block for itself. A miss needs no such care: who
//! may not read has none.

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::format::BlockKind;
use crate::format::block::Handle;

use super::reader::FillCache;

/// What one reader may do, and has met.
#[derive(Debug)]
pub(crate) struct Access {
    fill: FillCache,
    /// Whether hits are kept until [`Access::settle`].
    tallies: bool,
    hits: [u32; BlockKind::ALL.len()],
    filter_negatives: u32,
    filter_false_positives: u32,
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
            hits: [0; BlockKind::ALL.len()],
            filter_negatives: 0,
            filter_false_positives: 0,
            missing: None,
        }
    }

    /// One lookup, whose caller says at the end that it counts.
    #[inline]
    pub(crate) fn lookup(memory_only: bool) -> Access {
        let fill = if memory_only { FillCache::Memory } else { FillCache::Yes };
        Access { tallies: true, ..Access::of(fill) }
    }

    /// What becomes of blocks that are read.
    #[inline]
    pub(super) fn fill(&self) -> FillCache {
        self.fill
    }

    /// A block was in memory.
    #[inline]
    pub(super) fn hit(&mut self, cache: &Cache, kind: BlockKind) {
        if self.tallies {
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
    pub(super) fn to_read(&mut self, block: Handle) -> Result<FillCache> {
        match self.fill {
            FillCache::Memory => {
                self.missing = Some(block);
                Err(Error::WouldBlock)
            }
            fill => Ok(fill),
        }
    }

    /// The block that was not in memory, of one who must not read.
    pub(crate) fn missing(&self) -> Option<Handle> {
        self.missing
    }

    #[inline]
    pub(super) fn filter_negative(&mut self) {
        self.filter_negatives += 1;
    }

    #[inline]
    pub(super) fn filter_false_positive(&mut self) {
        self.filter_false_positives += 1;
    }

    /// Counts what was met.
    #[inline]
    pub(crate) fn settle(self, cache: &Cache) {
        for (kind, &hits) in BlockKind::ALL.iter().zip(&self.hits) {
            if hits > 0 {
                cache.count_hits(*kind, u64::from(hits));
            }
        }
        if self.filter_negatives > 0 {
            cache.count_filter_negatives(u64::from(self.filter_negatives));
        }
        if self.filter_false_positives > 0 {
            cache.count_filter_false_positives(u64::from(self.filter_false_positives));
        }
    }
}
