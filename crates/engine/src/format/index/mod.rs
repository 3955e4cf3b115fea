//! Index blocks, which map keys to the blocks of a table.
//!
//! Two encodings exist. `prefix_index` is used for the top index, and for index blocks of tables that
//! predate the succinct encoding. `succinct` is used for index blocks. A reader accepts both encodings for
//! both kinds of block.

mod boundary_strings;
mod elias_fano;
mod mixed_radix;
mod prefix_index;
mod separator;
mod succinct;
#[cfg(test)]
mod tests;

use bytes::Bytes;

#[cfg(any(test, feature = "internals"))]
pub use prefix_index::RESTART_INTERVAL;
pub use prefix_index::{ENCODING_PREFIX, PrefixIndexBuilder};
pub(crate) use separator::Boundary;
pub use separator::{Separator, SeparatorSide};
pub(crate) use succinct::{ENCODING_SUCCINCT, SuccinctIndexBuilder};

use lsmx_base::coding::{Decoder, len_u64};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use prefix_index::PrefixIndex;
use succinct::SuccinctIndex;

use super::block::BlockHandle;

/// Returns the first eight bytes of a key as a big-endian number. Shorter keys are padded with zeros.
#[inline]
fn key_head(user_key: &[u8]) -> u64 {
    let mut head = [0; size_of::<u64>()];
    let len = user_key.len().min(head.len());
    head[..len].copy_from_slice(&user_key[..len]);
    u64::from_be_bytes(head)
}

/// Reads the prefix that all boundaries of a block share.
///
/// The limit on its length keeps a damaged block from producing very long boundaries.
fn decode_prefix<'a>(decoder: &mut Decoder<'a>) -> Result<&'a [u8], Malformed> {
    let prefix = decoder.bytes("prefix of boundaries")?;
    if len_u64(prefix.len()) > super::KEY_BYTES_MAX {
        return Err(Malformed::invalid_field(
            "prefix of boundaries",
            len_u64(prefix.len()),
            "at most the maximum length of a key",
        ));
    }
    Ok(prefix)
}

/// Converts an offset in a block to `u32`, which halves the memory of a decoded index.
fn offset_in_block(at: usize) -> Result<u32, Malformed> {
    u32::try_from(at).map_err(|_| {
        Malformed::invalid_field("offset in an index block", len_u64(at), "below 4 GiB")
    })
}

/// Contents of an index block or a top index, searched in place.
#[derive(Clone, Debug)]
pub struct IndexBlock(IndexEncoding);

#[derive(Clone, Debug)]
enum IndexEncoding {
    Prefix(PrefixIndex),
    Succinct(SuccinctIndex),
}

impl IndexBlock {
    /// Copies the contents of a block, so that a larger shared buffer is not kept alive. Entries are
    /// checked when they are read.
    ///
    /// # Errors
    /// Fails when the header or the trailer is not that of an index block.
    pub fn new(block: Bytes) -> Result<IndexBlock, Malformed> {
        match Decoder::new(&block).u8("index encoding")? {
            ENCODING_PREFIX => Ok(IndexBlock(IndexEncoding::Prefix(PrefixIndex::new(&block)?))),
            ENCODING_SUCCINCT => {
                Ok(IndexBlock(IndexEncoding::Succinct(SuccinctIndex::new(&block)?)))
            }
            coding => Err(Malformed::invalid_field(
                "index encoding",
                u64::from(coding),
                "0 (prefix) or 1 (succinct)",
            )),
        }
    }

    /// Returns the number of blocks in the index, at least one.
    #[must_use]
    pub fn count(&self) -> usize {
        match &self.0 {
            IndexEncoding::Prefix(index) => index.count(),
            IndexEncoding::Succinct(index) => index.count(),
        }
    }

    /// Returns the size of the contents, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.0 {
            IndexEncoding::Prefix(index) => index.block.len(),
            IndexEncoding::Succinct(index) => index.block.len(),
        }
    }

    /// Returns ordinal and handle of the first block that can hold an entry at or after
    /// (`user_key`, `seq`). Returns `None` if all entries precede that position. A succinct index
    /// never returns `None`, because it has no upper bound for the last block.
    ///
    /// # Errors
    /// Fails when an entry read by the search is malformed.
    #[inline]
    pub fn seek(
        &self,
        user_key: &[u8],
        seq: SeqNo,
    ) -> Result<Option<(usize, BlockHandle)>, Malformed> {
        match &self.0 {
            IndexEncoding::Prefix(index) => index.seek(user_key, seq),
            IndexEncoding::Succinct(index) => index.seek(user_key, seq).map(Some),
        }
    }

    /// Returns the handle of a block by ordinal, or `None` after the last block.
    ///
    /// # Errors
    /// Fails when an entry read by the search is malformed.
    pub fn handle(&self, ordinal: usize) -> Result<Option<BlockHandle>, Malformed> {
        match &self.0 {
            IndexEncoding::Prefix(index) => index.handle(ordinal),
            IndexEncoding::Succinct(index) => index.handle(ordinal),
        }
    }

    /// Returns the handles of all blocks in order, each with the separator that follows the block.
    /// A succinct index has no separator after the last block.
    ///
    /// # Errors
    /// Fails when any part of the block is malformed.
    pub fn entries(&self) -> Result<Vec<(Option<Separator>, BlockHandle)>, Malformed> {
        match &self.0 {
            IndexEncoding::Prefix(index) => index.entries(),
            IndexEncoding::Succinct(index) => index.entries(),
        }
    }
}
