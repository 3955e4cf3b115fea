//! The purpose of a read, and the counts that a read collects.

use lsmx_base::sync::Arc;

use crate::cache::{BlockCache, FilterCounts};
use crate::error::{Error, Result};
use crate::format::BlockKind;
use crate::format::block::BlockHandle;
use crate::table::read_deadline::ReadDeadline;

/// Levels whose filter counts need no allocation.
const INLINE_LEVELS: usize = 6;

/// Purpose of a read. It decides which blocks stay in the cache and whether hits and misses are counted.
///
/// Every purpose uses blocks that are already in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPurpose {
    /// A lookup. All blocks stay in the cache.
    Lookup,
    /// A scan. Metadata stays in the cache, and so does the data block that a seek leads to. Further data
    /// blocks do not stay, so that a long scan does not evict the blocks of lookups.
    Scan,
    /// A background job. No blocks stay in the cache, and nothing is counted.
    Job,
    /// A warm-up. Metadata stays in the cache, and nothing is counted.
    WarmUp,
    /// A read from memory alone. A block that is not in memory fails the read with [`Error::WouldBlock`].
    MemoryOnly,
}

impl ReadPurpose {
    /// Whether hits and misses are counted.
    #[inline]
    pub(crate) fn is_counted_in_statistics(self) -> bool {
        matches!(self, ReadPurpose::Lookup | ReadPurpose::Scan | ReadPurpose::MemoryOnly)
    }
}

/// Filter results of one level for keys that its tables do not hold.
#[derive(Clone, Copy, Debug, Default)]
struct LevelFilterCounts {
    level: u8,
    negatives: u16,
    false_positives: u16,
}

/// Permissions and counts of one read.
///
/// An asynchronous lookup first tries memory alone. If that fails, the lookup is repeated with reads. Hits are
/// therefore collected here and published once, after the last attempt. Collecting also costs less than one atomic
/// addition per block. Misses are counted at each read, because an attempt in memory alone reads nothing.
#[derive(Debug)]
pub struct ReadContext {
    purpose: ReadPurpose,
    /// Whether hits are collected until [`ReadContext::publish_counts`].
    collects_hits: bool,
    /// Bit set of the block kinds with at least one hit.
    hit_kinds: u8,
    hits: [u32; BlockKind::ALL.len()],
    /// Filter counts of the first levels. The first `inline_levels` elements are in use.
    inline_counts: [LevelFilterCounts; INLINE_LEVELS],
    inline_levels: usize,
    /// Filter counts of all further levels.
    overflow_counts: Vec<LevelFilterCounts>,
    /// Whether reads from blob files fail with [`Error::WouldBlock`].
    forbids_blob_reads: bool,
    /// The last block that a [`ReadPurpose::MemoryOnly`] read needed and did not find in memory.
    block_missing_in_memory: Option<BlockHandle>,
    /// Deadline of the call, checked before each read from storage.
    deadline: Option<Arc<ReadDeadline>>,
}

impl ReadContext {
    /// Creates a context that counts each hit at once.
    #[inline]
    pub fn new(purpose: ReadPurpose) -> ReadContext {
        ReadContext {
            purpose,
            collects_hits: false,
            hit_kinds: 0,
            hits: [0; BlockKind::ALL.len()],
            inline_counts: [LevelFilterCounts::default(); INLINE_LEVELS],
            inline_levels: 0,
            overflow_counts: Vec::new(),
            forbids_blob_reads: false,
            block_missing_in_memory: None,
            deadline: None,
        }
    }

    /// Sets the deadline of the call.
    #[inline]
    pub(crate) fn set_deadline(&mut self, deadline: Option<Arc<ReadDeadline>>) {
        self.deadline = deadline;
    }

    /// Creates a context for another purpose, with the same deadline.
    pub(super) fn for_purpose(&self, purpose: ReadPurpose) -> ReadContext {
        ReadContext { deadline: self.deadline.clone(), ..ReadContext::new(purpose) }
    }

    /// Returns an error if the deadline of the call has passed.
    ///
    /// # Errors
    /// [`Error::Deadline`].
    #[inline]
    fn check_deadline(&self) -> Result<()> {
        self.deadline.as_ref().map_or(Ok(()), |deadline| deadline.check())
    }

    /// Creates the context of a lookup, which collects hits until [`ReadContext::publish_counts`].
    #[inline]
    pub(crate) fn for_lookup(purpose: ReadPurpose) -> ReadContext {
        ReadContext { collects_hits: true, ..ReadContext::new(purpose) }
    }

    /// Returns the purpose of the read.
    #[inline]
    pub(crate) fn purpose(&self) -> ReadPurpose {
        self.purpose
    }

    /// Records that a block was found in memory.
    #[inline]
    pub(crate) fn record_hit(&mut self, cache: &BlockCache, kind: BlockKind) {
        if self.collects_hits {
            self.hit_kinds |= 1 << kind as u8;
            self.hits[kind as usize] += 1;
        } else if self.purpose.is_counted_in_statistics() {
            cache.counters.add_hits(kind, 1);
        }
    }

    /// Returns the purpose if this block of a table may be read from storage.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if the read is bound to memory; [`Error::Deadline`].
    #[inline]
    pub(super) fn admit_read(&mut self, block: BlockHandle) -> Result<ReadPurpose> {
        match self.purpose {
            ReadPurpose::MemoryOnly => {
                self.block_missing_in_memory = Some(block);
                Err(Error::WouldBlock)
            }
            purpose => self.check_deadline().map(|()| purpose),
        }
    }

    /// Returns the purpose if a record of a blob file may be read from storage.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if the read is bound to memory or blob reads are forbidden; [`Error::Deadline`].
    #[inline]
    pub(crate) fn admit_blob_read(&self) -> Result<ReadPurpose> {
        match self.purpose {
            ReadPurpose::MemoryOnly => Err(Error::WouldBlock),
            _ if self.forbids_blob_reads => Err(Error::WouldBlock),
            purpose => self.check_deadline().map(|()| purpose),
        }
    }

    /// Forbids reads from blob files. Values in memory are still returned.
    pub(crate) fn forbid_blob_reads(&mut self) {
        self.forbids_blob_reads = true;
    }

    /// Allows all further reads from storage.
    pub(crate) fn allow_storage_reads(&mut self) {
        (self.purpose, self.forbids_blob_reads) = (ReadPurpose::Lookup, false);
    }

    /// Returns the last block that a [`ReadPurpose::MemoryOnly`] read needed and did not find in memory.
    pub(crate) fn block_missing_in_memory(&self) -> Option<BlockHandle> {
        self.block_missing_in_memory
    }

    /// Records a filter of this level that ruled a key out.
    #[inline]
    pub(super) fn record_filter_negative(&mut self, level: u8) {
        let counts = self.counts_of_level(level);
        counts.negatives = counts.negatives.saturating_add(1);
    }

    /// Records a filter of this level that passed an absent key.
    #[inline]
    pub(super) fn record_filter_false_positive(&mut self, level: u8) {
        let counts = self.counts_of_level(level);
        counts.false_positives = counts.false_positives.saturating_add(1);
    }

    #[inline]
    fn counts_of_level(&mut self, level: u8) -> &mut LevelFilterCounts {
        let known = &self.inline_counts[..self.inline_levels];
        let index =
            known.iter().position(|counts| counts.level == level).unwrap_or(self.inline_levels);
        if index == INLINE_LEVELS {
            return self.counts_of_overflow_level(level);
        }
        if index == self.inline_levels {
            self.inline_levels += 1;
            self.inline_counts[index].level = level;
        }
        &mut self.inline_counts[index]
    }

    #[cold]
    fn counts_of_overflow_level(&mut self, level: u8) -> &mut LevelFilterCounts {
        let all = &mut self.overflow_counts;
        let index = all.iter().position(|counts| counts.level == level).unwrap_or(all.len());
        if index == all.len() {
            all.push(LevelFilterCounts { level, ..LevelFilterCounts::default() });
        }
        &mut all[index]
    }

    /// Adds the collected counts to those of the cache. Called once per lookup.
    #[inline]
    pub(crate) fn publish_counts(&self, cache: &BlockCache) {
        let mut kinds = self.hit_kinds;
        while kinds != 0 {
            let kind = BlockKind::ALL[kinds.trailing_zeros() as usize];
            cache.counters.add_hits(kind, u64::from(self.hits[kind as usize]));
            kinds &= kinds - 1;
        }
        for counts in self.inline_counts[..self.inline_levels].iter().chain(&self.overflow_counts) {
            let answers = FilterCounts {
                negatives: u64::from(counts.negatives),
                false_positives: u64::from(counts.false_positives),
            };
            cache.counters.add_filter_counts(counts.level, answers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publish_counts_adds_each_hit_and_filter_result_once() {
        let cache = BlockCache::new(1 << 20);
        let mut context = ReadContext::for_lookup(ReadPurpose::MemoryOnly);
        // More levels than have inline counts, in mixed order.
        let levels = 2 * INLINE_LEVELS;
        for round in 0..3u8 {
            for level in (0..levels).map(|index| u8::try_from(index * 5 % levels).unwrap_or(0)) {
                context.record_filter_negative(level);
                if level % 2 == 0 && round > 0 {
                    context.record_filter_false_positive(level);
                }
            }
        }
        (0..300).for_each(|_| context.record_hit(&cache, BlockKind::Data));
        context.record_hit(&cache, BlockKind::Bucket);
        assert!(cache.filter_counts().is_empty(), "counts were published early");
        context.publish_counts(&cache);
        let answers = cache.filter_counts();
        assert_eq!(answers.len(), levels);
        for (level, answers) in answers {
            let false_positives = if level % 2 == 0 { 2 } else { 0 };
            assert_eq!(answers, FilterCounts { negatives: 3, false_positives });
        }
        for (kind, counts) in cache.hit_counts().iter() {
            let hits = match kind {
                BlockKind::Data => 300,
                BlockKind::Bucket => 1,
                _ => 0,
            };
            assert_eq!((counts.hits, counts.misses), (hits, 0), "{kind:?}");
        }
    }
}
