//! Where a data block ends: near its target size, where the next key differs early from the last one.
//!
//! The index keeps the bytes up to that difference. Of the few ends within an eighth of the target
//! size around it, the best has bits enough less to pay for sizes that differ more.

use lsmx_base::key::{EntryKind, InternalKey, SeqNo};

use crate::format::data_block::{DataBlockBuilder, SplitPoint};

/// The choice among the ends of one block.
#[derive(Debug)]
pub(crate) struct BlockEnds {
    /// Bytes from which on the block may end, and above which it must, unless it is one long entry.
    from: usize,
    to: usize,
    /// Bits up to the first difference at the best end so far; `None` as long as there is none.
    bits: Option<usize>,
    mark: SplitPoint,
}

/// What to do before an entry is added.
#[derive(Debug)]
pub(crate) enum BlockEnd<'a> {
    /// Go on with the block.
    No,
    /// End it before that entry.
    Here,
    /// End it at an earlier place, and ask again.
    At(&'a SplitPoint),
}

impl BlockEnds {
    /// For blocks of about so many bytes.
    pub(crate) fn new(target: usize) -> BlockEnds {
        let slack = target / 16;
        BlockEnds {
            from: target - slack,
            to: target + slack,
            bits: None,
            mark: SplitPoint::default(),
        }
    }

    /// Whether the block ends before an entry that makes it `with` bytes long, and has its first
    /// `common` bytes in common with the one before, whose number and kind are `last`. Now it has
    /// `bytes`.
    #[inline]
    pub(crate) fn before(
        &mut self,
        block: &DataBlockBuilder,
        (bytes, with): (usize, usize),
        key: InternalKey<'_>,
        common: usize,
        last: (SeqNo, EntryKind),
    ) -> BlockEnd<'_> {
        if with <= self.to && bytes < self.from {
            return BlockEnd::No;
        }
        let bits = difference(block.last_key(), key.user_key, common);
        let better = self.bits.is_none_or(|best| bits <= best);
        if with <= self.to {
            if better {
                block.record_split(&mut self.mark, last);
                self.bits = Some(bits);
            }
            return BlockEnd::No;
        }
        self.bits = None;
        // What follows an earlier end must not end up with a long entry in a block that is too long.
        if better || with - bytes > self.from { BlockEnd::Here } else { BlockEnd::At(&self.mark) }
    }
}

/// Bits that two keys have in common, as far as it matters: those of one user key differ last.
fn difference(last: &[u8], next: &[u8], common: usize) -> usize {
    let Some(&byte) = next.get(common) else { return usize::MAX };
    let before = last.get(common).copied().unwrap_or(0);
    8 * common + (byte ^ before).leading_zeros() as usize
}
