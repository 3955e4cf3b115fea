//! Chooses where data blocks end.
//!
//! 1. A block may end within 1/16 of its target size, below or above it.
//! 2. The index stores keys up to the first bit in which the last key of a block and the next key differ. Among the
//!    possible ends, the splitter takes the one with the fewest common bits.
//! 3. The shorter index keys outweigh the variation of the block sizes.

use lsmx_base::key::{EntryKind, InternalKey, SeqNo};

use crate::format::data_block::{DataBlockBuilder, SplitPoint};

/// Best end found so far for the current data block, and the limits of its size.
#[derive(Debug)]
pub(super) struct BlockSplitter {
    /// Bytes from which on the block may end.
    bytes_min: usize,
    /// Maximum bytes of a block with more than one entry.
    bytes_max: usize,
    /// Common bits at the best end so far.
    best_bits: Option<usize>,
    best_end: SplitPoint,
}

/// Decision of the splitter before an entry is added.
#[derive(Debug)]
pub(super) enum SplitDecision<'a> {
    /// The block continues.
    Continue,
    /// The block ends before the entry.
    EndHere,
    /// The block ends at an earlier entry. The caller then repeats the call for the rest.
    EndAt(&'a SplitPoint),
}

impl BlockSplitter {
    /// Creates a splitter for blocks of about `target` bytes.
    pub(super) fn new(target: usize) -> BlockSplitter {
        let slack = target / 16;
        BlockSplitter {
            bytes_min: target - slack,
            bytes_max: target + slack,
            best_bits: None,
            best_end: SplitPoint::default(),
        }
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
        self.best_bits = None;
        // After an earlier end, the remaining entries and a long entry could form a block that is too long.
        if is_better || bytes_with - bytes > self.bytes_min {
            SplitDecision::EndHere
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
