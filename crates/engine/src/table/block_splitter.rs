//! Chooses where data blocks end.
//!
//! 1. A block may end within 1/16 of its target size, below or above it.
//! 2. The index stores keys up to the first bit in which the last key of a block and the next key differ. Among the
//!    possible ends, the splitter takes the one with the fewest common bits.
//! 3. The shorter index keys outweigh the variation of the block sizes.
//!
//! **Pages.** A read of a block that crosses the end of a page fetches one page more. If the target is a multiple of
//! the page size, the splitter therefore ends a block before the page end that is nearest to the target, and pads the
//! block up to this page end. Large entries can leave a gap of more than 1/16 of the target. Such a block gets no
//! padding, and ends by the rules above.

use lsmx_base::key::{EntryKind, InternalKey, SeqNo};

use crate::format::block::PADDING_BYTES_MIN;
use crate::format::data_block::{DataBlockBuilder, SplitPoint};

/// Bytes of a page of the page cache, and of the reads of most devices.
const PAGE_BYTES: usize = 4096;

/// Best end found so far for the current data block, and the limits of its size.
#[derive(Debug)]
pub(super) struct BlockSplitter {
    /// Target size of a block in bytes.
    target: usize,
    /// Bytes from which on the block may end.
    bytes_min: usize,
    /// Maximum bytes of a block with more than one entry.
    bytes_max: usize,
    /// Bytes of a block that ends at the end of a page. `None` if blocks are not padded, or if no entry ends closely
    /// before the page end.
    page_end: Option<usize>,
    /// Whether blocks are padded up to the end of a page.
    pads_to_pages: bool,
    /// Common bits at the best end so far.
    best_bits: Option<usize>,
    best_end: SplitPoint,
}

/// Decision of the splitter before an entry is added.
#[derive(Debug)]
pub(super) enum SplitDecision<'a> {
    /// The block continues.
    Continue,
    /// The block ends before the entry. With `Some`, padding extends the block to this number of bytes.
    EndHere(Option<usize>),
    /// The block ends at an earlier entry. The caller then repeats the call for the rest.
    EndAt(&'a SplitPoint),
}

impl BlockSplitter {
    /// Creates a splitter for blocks of about `target` bytes. With `pads_to_pages`, blocks end at the end of a page if
    /// the target is a multiple of the page size.
    pub(super) fn new(target: usize, pads_to_pages: bool) -> BlockSplitter {
        let slack = target / 16;
        let mut splitter = BlockSplitter {
            target,
            bytes_min: target - slack,
            bytes_max: target + slack,
            page_end: None,
            pads_to_pages: pads_to_pages && target.is_multiple_of(PAGE_BYTES),
            best_bits: None,
            best_end: SplitPoint::default(),
        };
        splitter.start_block(0);
        splitter
    }

    /// Starts a block at `offset` of the file.
    pub(super) fn start_block(&mut self, offset: u64) {
        if self.pads_to_pages {
            let page = PAGE_BYTES as u64;
            // The remainder is less than `PAGE_BYTES`, and the target at least that large.
            let in_page = usize::try_from(offset % page).unwrap_or_default();
            let nearest = (in_page + self.target + PAGE_BYTES / 2) / PAGE_BYTES * PAGE_BYTES;
            self.page_end = Some(nearest - in_page);
        }
        self.best_bits = None;
    }

    /// Decides whether the block ends before the entry `key`.
    ///
    /// The block has `bytes` without the entry and `bytes_with` with it. The user key shares its first `common` bytes
    /// with that of the last entry, whose sequence number and kind are `last`.
    #[inline]
    pub(super) fn decide_split(
        &mut self,
        block: &DataBlockBuilder,
        (bytes, bytes_with): (usize, usize),
        key: InternalKey<'_>,
        common: usize,
        last: (SeqNo, EntryKind),
    ) -> SplitDecision<'_> {
        if let Some(page_end) = self.page_end {
            if bytes_with + PADDING_BYTES_MIN <= page_end {
                return SplitDecision::Continue;
            }
            let fits = bytes == page_end || bytes + PADDING_BYTES_MIN <= page_end;
            if fits && page_end - bytes <= self.target / 16 {
                return SplitDecision::EndHere(Some(page_end));
            }
            self.page_end = None;
        }
        if bytes_with <= self.bytes_max && bytes < self.bytes_min {
            return SplitDecision::Continue;
        }
        let bits = common_bits(block.last_key(), key.user_key, common);
        let is_better = self.best_bits.is_none_or(|best| bits <= best);
        if bytes_with <= self.bytes_max {
            if is_better {
                block.record_split(&mut self.best_end, last);
                self.best_bits = Some(bits);
            }
            return SplitDecision::Continue;
        }
        // After an earlier end, the remaining entries and a long entry could form a block that is too long.
        if is_better || bytes_with - bytes > self.bytes_min {
            SplitDecision::EndHere(None)
        } else {
            SplitDecision::EndAt(&self.best_end)
        }
    }
}

/// Returns the number of common leading bits of two user keys, or `usize::MAX` if `next` has only `common` bytes, as
/// for two versions of one key.
fn common_bits(last: &[u8], next: &[u8], common: usize) -> usize {
    let Some(&byte) = next.get(common) else { return usize::MAX };
    let last_byte = last.get(common).copied().unwrap_or(0);
    8 * common + (byte ^ last_byte).leading_zeros() as usize
}
