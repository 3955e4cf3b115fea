//! Index blocks: which block of a table can hold a key, and where it lies.
//!
//! Two codings: `prefix.rs` for the top index, and for index blocks of tables written before there
//! was another; `succinct.rs` for index blocks. A reader takes either in either place.

mod elias_fano;
mod prefix;
mod radix;
mod separator;
mod strings;
mod succinct;
#[cfg(test)]
mod tests;

use bytes::Bytes;

#[cfg(any(test, feature = "testing"))]
pub(crate) use prefix::RESTART_INTERVAL;
pub(crate) use prefix::{CODING_PREFIX, IndexBuilder};
pub(crate) use separator::Boundary;
pub use separator::{Separator, Versions};
pub(crate) use succinct::{CODING_SUCCINCT, SuccinctBuilder};

use lsmx_base::coding::{Decoder, len_u64};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use prefix::PrefixIndex;
use succinct::SuccinctIndex;

use super::block::Handle;

/// The first eight bytes of a key as a number that orders as they do, padded with zeros.
#[inline]
fn key_head(user_key: &[u8]) -> u64 {
    let mut head = [0; size_of::<u64>()];
    let len = user_key.len().min(head.len());
    head[..len].copy_from_slice(&user_key[..len]);
    u64::from_be_bytes(head)
}

/// What all boundaries of a block begin with. No longer than a key, so that a damaged block does not
/// make so much of each of its boundaries.
fn prefix<'a>(decoder: &mut Decoder<'a>) -> Result<&'a [u8], Malformed> {
    let prefix = decoder.bytes("prefix of boundaries")?;
    if len_u64(prefix.len()) > super::KEY_BYTES_MAX {
        return Err(Malformed::Field {
            what: "prefix of boundaries",
            found: len_u64(prefix.len()),
            expected: "no more bytes than a key has",
        });
    }
    Ok(prefix)
}

/// A place in a block, kept in half the bytes: blocks are below 4 GiB.
fn offset_in_block(at: usize) -> Result<u32, Malformed> {
    u32::try_from(at).map_err(|_| Malformed::Field {
        what: "place in an index block",
        found: len_u64(at),
        expected: "below 4 GiB",
    })
}

/// The contents of an index block or a top index, to be searched in place.
#[derive(Clone, Debug)]
pub struct IndexBlock(Coding);

#[derive(Clone, Debug)]
enum Coding {
    Prefix(PrefixIndex),
    Succinct(SuccinctIndex),
}

impl IndexBlock {
    /// Takes block contents over, copied so that nothing beside them stays in memory; the entries are checked
    /// as they are read.
    ///
    /// # Errors
    /// When the frame is not that of an index block.
    pub fn new(block: Bytes) -> Result<IndexBlock, Malformed> {
        match Decoder::new(&block).u8("index coding")? {
            CODING_PREFIX => Ok(IndexBlock(Coding::Prefix(PrefixIndex::new(&block)?))),
            CODING_SUCCINCT => Ok(IndexBlock(Coding::Succinct(SuccinctIndex::new(&block)?))),
            coding => Err(Malformed::Field {
                what: "index coding",
                found: u64::from(coding),
                expected: "0 (prefix) or 1 (succinct)",
            }),
        }
    }

    /// Number of blocks it points to, at least one.
    #[must_use]
    pub fn count(&self) -> usize {
        match &self.0 {
            Coding::Prefix(index) => index.count(),
            Coding::Succinct(index) => index.count(),
        }
    }

    /// Bytes of the block's contents.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Coding::Prefix(index) => index.block.len(),
            Coding::Succinct(index) => index.block.len(),
        }
    }

    /// The first block that can hold an entry at or after (`user_key`, `seq`): its ordinal and
    /// where it lies. `None` if all entries are known to be before; a succinct index does not know.
    ///
    /// # Errors
    /// When what is read on the way is malformed.
    #[inline]
    pub fn seek(&self, user_key: &[u8], seq: SeqNo) -> Result<Option<(usize, Handle)>, Malformed> {
        match &self.0 {
            Coding::Prefix(index) => index.seek(user_key, seq),
            Coding::Succinct(index) => index.seek(user_key, seq).map(Some),
        }
    }

    /// Where the block with this ordinal lies, or `None` past the last.
    ///
    /// # Errors
    /// When what is read on the way is malformed.
    pub fn handle(&self, ordinal: usize) -> Result<Option<Handle>, Malformed> {
        match &self.0 {
            Coding::Prefix(index) => index.handle(ordinal),
            Coding::Succinct(index) => index.handle(ordinal),
        }
    }

    /// All blocks in order, each with the separator after it; a succinct index has none after the
    /// last.
    ///
    /// # Errors
    /// When the block is malformed anywhere.
    pub fn entries(&self) -> Result<Vec<(Option<Separator>, Handle)>, Malformed> {
        match &self.0 {
            Coding::Prefix(index) => index.entries(),
            Coding::Succinct(index) => index.entries(),
        }
    }
}
