//! Block splitter: determines where data blocks end.
//!
//! 1. The size of a block may differ from its target size by up to 1/16.
//! 2. The index stores a key only up to the first bit in which the last key of a block and the next key differ. Among
//!    the possible ends of a block, the splitter chooses the one with the smallest number of common bits.
//! 3. The shorter keys in the index save more than the different block sizes cost.
//!
//! **Pages.** If a block crosses a page boundary, a read of the block fetches one more page. If the target size is a
//! multiple of the page size, blocks are therefore padded to the page boundary that is nearest to the target size. The
//! splitter ends the block before the first entry that does not fit below this boundary. If the padding would exceed
//! 1/16 of the target size, the block is not padded and ends according to the rules above.
//!
//! **Last block.** An index block stores the sizes of its data blocks in one or two bits each if they are equal, and in
//! about 13 bits each if one of them is smaller. The last data block of a table is therefore padded to the size of the
//! others if the index block has enough of them.

use lsmx_base::coding::len_u64;
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};

use crate::format::block::PADDING_BYTES_MIN;
use crate::format::data_block::{DataBlockBuilder, SplitPoint};

/// Size of a page in bytes. The page cache and most devices read whole pages.
const PAGE_BYTES: usize = 4096;

/// Maximum padding of the last data block of a table, in bytes per preceding data block of the same index block.
const LAST_PADDING_PER_BLOCK: usize = 4;

/// The best end found so far for the block under construction, and limits of its size.
#[derive(Debug)]
pub(super) struct BlockSplitter {
    /// Target size of a block in bytes.
    target: usize,
    /// Minimum size of a block in bytes. The last block of a table and a block before a large entry may be smaller.
    bytes_min: usize,
    /// Maximum size in bytes of a block with more than one entry.
    bytes_max: usize,
    /// Size in bytes of a block that ends at a page end. `None` if blocks are not padded, or if no entry of this block
    /// ends shortly before the page end.
    page_end: Option<usize>,
    /// Whether blocks are padded up to a page end.
    pads_to_pages: bool,
    /// Number of common bits at the best end. `None` if no possible end was found yet.
    best_bits: Option<usize>,
    best_end: SplitPoint,
}

/// Decision before an entry is added.
#[derive(Debug)]
pub(super) enum SplitDecision<'a> {
    /// The block does not end before the entry.
    Continue,
    /// The block ends before the entry. If a number is given, padding extends the block to this size in bytes.
    EndHere(Option<usize>),
    /// The block ends at an earlier position. The caller must then decide again for the remaining entries.
    EndAt(&'a SplitPoint),
}

impl BlockSplitter {
    /// Creates a splitter for blocks with a target size of `target` bytes. If `pads_to_pages` is true and `target` is a
    /// multiple of the page size, blocks are padded to page ends.
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

    /// Starts a new block at this offset of the file.
    pub(super) fn start_block(&mut self, offset: u64) {
        if self.pads_to_pages {
            let page = PAGE_BYTES as u64;
            // The remainder is less than `PAGE_BYTES`, and the target size is at least `PAGE_BYTES`.
            let in_page = usize::try_from(offset % page).unwrap_or_default();
            let nearest = (in_page + self.target + PAGE_BYTES / 2) / PAGE_BYTES * PAGE_BYTES;
            self.page_end = Some(nearest - in_page);
        }
        self.best_bits = None;
    }

    /// Returns the size in bytes to which the last block of a table is padded. Returns `None` if it is not padded.
    ///
    /// `bytes` is the size of the block without padding. `sizes` are the sizes of the data blocks before it in the same
    /// index block.
    pub(super) fn padded_last_block(&self, bytes: usize, sizes: &[u64]) -> Option<usize> {
        let page_end = self.page_end?;
        let padding =
            page_end.checked_sub(bytes).filter(|padding| *padding >= PADDING_BYTES_MIN)?;
        let is_worth = padding <= LAST_PADDING_PER_BLOCK * sizes.len();
        (is_worth && sizes.iter().all(|&size| size == len_u64(page_end))).then_some(page_end)
    }

    /// Decides whether the block ends before the entry `key`.
    ///
    /// `bytes` is the size of the block without this entry, and `bytes_with` its size with this entry. `common` is the
    /// number of bytes that the user key shares with the user key of the previous entry. `last` is the sequence number
    /// and the kind of the previous entry.
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
        // If the block ended at an earlier position, its remaining entries would move to the next block. Together with
        // a long entry, they could make the next block too large.
        if is_better || bytes_with - bytes > self.bytes_min {
            SplitDecision::EndHere(None)
        } else {
            SplitDecision::EndAt(&self.best_end)
        }
    }
}

/// Returns the number of leading bits that two user keys have in common. Returns `usize::MAX` if `next` is only
/// `common` bytes long, as for two versions of one key.
fn common_bits(last: &[u8], next: &[u8], common: usize) -> usize {
    let Some(&byte) = next.get(common) else { return usize::MAX };
    let last_byte = last.get(common).copied().unwrap_or(0);
    8 * common + (byte ^ last_byte).leading_zeros() as usize
}
