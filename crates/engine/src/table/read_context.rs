//! Read context: the purpose of a read, and the counters that the read collects.

use lsmx_base::sync::Arc;

use crate::cache::{BlockCache, FilterCounts};
use crate::error::{Error, Result};
use crate::format::BlockKind;
use crate::format::block::BlockHandle;
use crate::table::read_deadline::ReadDeadline;

/// Number of levels whose filter counts are stored without an allocation.
const INLINE_LEVELS: usize = 6;

/// Purpose of a read. The purpose determines which blocks are added to the cache, and whether hits and misses are
/// counted.
///
/// Reads of every purpose use blocks that are already cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPurpose {
    /// Point lookup. All blocks are added to the cache.
    Lookup,
    /// Scan. Metadata blocks and the data blocks read directly after a seek are added to the cache. Further data blocks
    /// are not added, so that a long scan does not evict the blocks that lookups use.
    Scan,
    /// Background job. No blocks are added to the cache, and nothing is counted.
    Job,
    /// Warm-up. Metadata blocks are added to the cache, and nothing is counted.
    WarmUp,
    /// Read that does not access files. It fails with [`Error::WouldBlock`] if a block is not in memory.
    MemoryOnly,
}

impl ReadPurpose {
    /// Returns whether hits and misses are counted.
    #[inline]
    pub(crate) fn is_counted_in_statistics(self) -> bool {
        matches!(self, ReadPurpose::Lookup | ReadPurpose::Scan | ReadPurpose::MemoryOnly)
    }
}

/// Filter results for tables of one level. Only lookups of keys that the table does not contain are counted.
#[derive(Clone, Copy, Debug, Default)]
struct LevelFilterCounts {
    level: u8,
    negatives: u16,
    false_positives: u16,
}

impl LevelFilterCounts {
    #[inline]
    fn publish(&self, cache: &BlockCache) {
        let answers = FilterCounts {
            negatives: u64::from(self.negatives),
            false_positives: u64::from(self.false_positives),
        };
        cache.counters.add_filter_counts(self.level, answers);
    }
}

/// Permissions and counters of a read.
///
/// An asynchronous lookup first reads only from memory. If this fails, the lookup is repeated and may read files. Hits
/// are therefore collected in the context and published once, after the last attempt. This also costs less than an
/// atomic addition per block. Misses are counted immediately, because an attempt that reads only from memory has no
/// misses.
#[derive(Debug)]
pub struct ReadContext {
    purpose: ReadPurpose,
    /// Whether hits are collected until [`ReadContext::publish_counts`] is called.
    collects_hits: bool,
    /// Bit set of the block kinds with at least one hit.
    hit_kinds: u8,
    hits: [u32; BlockKind::ALL.len()],
    /// Filter counts of the first levels that were visited. The first `inline_levels` elements are used. A level has
    /// several elements if a lookup visits it again after another level.
    inline_counts: [LevelFilterCounts; INLINE_LEVELS],
    inline_levels: usize,
    /// Filter counts of all further levels.
    overflow_counts: Vec<LevelFilterCounts>,
    /// Whether reads from blob files fail with [`Error::WouldBlock`].
    forbids_blob_reads: bool,
    /// The last block that a [`ReadPurpose::MemoryOnly`] read did not find in memory.
    block_missing_in_memory: Option<BlockHandle>,
    /// Deadline of the call. It is checked before each read from a file.
    deadline: Option<Arc<ReadDeadline>>,
}

impl ReadContext {
    /// Creates a context that counts each hit immediately.
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

    /// Creates a context for another purpose with the same deadline.
    pub(super) fn for_purpose(&self, purpose: ReadPurpose) -> ReadContext {
        ReadContext { deadline: self.deadline.clone(), ..ReadContext::new(purpose) }
    }

    /// Checks whether the call may continue.
    ///
    /// # Errors
    /// [`Error::Deadline`] if the deadline of the call has passed.
    #[inline]
    fn check_deadline(&self) -> Result<()> {
        self.deadline.as_ref().map_or(Ok(()), |deadline| deadline.check())
    }

    /// Creates the context of a lookup. It collects hits until [`ReadContext::publish_counts`] is called.
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

    /// Checks whether a block of a table may be read from its file. Returns the purpose of the read.
    ///
    /// # Errors
    /// - [`Error::WouldBlock`] if the read must not access files.
    /// - [`Error::Deadline`] if the deadline of the call has passed.
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

    /// Checks whether a record may be read from a blob file. Returns the purpose of the read.
    ///
    /// # Errors
    /// - [`Error::WouldBlock`] if the read must not access files or blob files.
    /// - [`Error::Deadline`] if the deadline of the call has passed.
    #[inline]
    pub(crate) fn admit_blob_read(&self) -> Result<ReadPurpose> {
        match self.purpose {
            ReadPurpose::MemoryOnly => Err(Error::WouldBlock),
            _ if self.forbids_blob_reads => Err(Error::WouldBlock),
            purpose => self.check_deadline().map(|()| purpose),
        }
    }

    /// Forbids reads from blob files. Values that are in memory can still be read.
    pub(crate) fn forbid_blob_reads(&mut self) {
        self.forbids_blob_reads = true;
    }

    /// Allows all further reads from files.
    pub(crate) fn allow_storage_reads(&mut self) {
        (self.purpose, self.forbids_blob_reads) = (ReadPurpose::Lookup, false);
    }

    /// Returns the last block that a [`ReadPurpose::MemoryOnly`] read did not find in memory.
    pub(crate) fn block_missing_in_memory(&self) -> Option<BlockHandle> {
        self.block_missing_in_memory
    }

    /// Records that a filter of this level excluded a key.
    #[inline]
    pub(super) fn record_filter_negative(&mut self, level: u8) {
        let counts = self.counts_of_level(level);
        counts.negatives = counts.negatives.saturating_add(1);
    }

    /// Records that a filter of this level did not exclude an absent key.
    #[inline]
    pub(super) fn record_filter_false_positive(&mut self, level: u8) {
        let counts = self.counts_of_level(level);
        counts.false_positives = counts.false_positives.saturating_add(1);
    }

    /// Returns the counts of a level. A lookup searches the levels in order, so only the last counts are usually of this
    /// level.
    #[inline]
    fn counts_of_level(&mut self, level: u8) -> &mut LevelFilterCounts {
        let count = self.inline_levels;
        let index = match count.checked_sub(1) {
            Some(last) if self.inline_counts[last].level == level => last,
            _ if count == INLINE_LEVELS => return self.counts_of_overflow_level(level),
            _ => {
                self.inline_levels += 1;
                self.inline_counts[count].level = level;
                count
            }
        };
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

    /// Adds the collected counts to the counters of the cache. Must be called once per lookup.
    #[inline]
    pub(crate) fn publish_counts(&self, cache: &BlockCache) {
        let mut kinds = self.hit_kinds;
        while kinds != 0 {
            let kind = BlockKind::ALL[kinds.trailing_zeros() as usize];
            cache.counters.add_hits(kind, u64::from(self.hits[kind as usize]));
            kinds &= kinds - 1;
        }
        for counts in &self.inline_counts[..self.inline_levels] {
            counts.publish(cache);
        }
        // The overflow counts are usually empty. Two loops take fewer instructions than a chained iterator.
        for counts in &self.overflow_counts {
            counts.publish(cache);
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
        // More levels than there are inline counts, in mixed order.
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
