//! Index blocks: map keys to the blocks of a table.
//!
//! There are two encodings. The writer uses `prefix_index` for the top index, and `succinct` for index blocks. Older
//! versions of lsmx used `prefix_index` for index blocks, too. A reader accepts both encodings for both kinds of block.

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

/// Returns the first eight bytes of a key as a big-endian number. Shorter keys are padded with zero bytes.
#[inline]
fn key_head(user_key: &[u8]) -> u64 {
    let mut head = [0; size_of::<u64>()];
    let len = user_key.len().min(head.len());
    head[..len].copy_from_slice(&user_key[..len]);
    u64::from_be_bytes(head)
}

/// Decodes the common prefix of all boundaries of a block. Fails if the prefix is longer than the longest key. Without
/// this limit, a corrupt block could cause large allocations.
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

/// Converts an offset in a block to `u32`. Decoded index blocks store offsets in 32 bits to save memory.
fn offset_in_block(at: usize) -> Result<u32, Malformed> {
    u32::try_from(at).map_err(|_| {
        Malformed::invalid_field("offset in an index block", len_u64(at), "below 4 GiB")
    })
}

/// Contents of an index block or a top index. A search reads the encoded bytes and does not decode the whole block.
#[derive(Clone, Debug)]
pub struct IndexBlock(IndexEncoding);

#[derive(Clone, Debug)]
enum IndexEncoding {
    Prefix(PrefixIndex),
    Succinct(SuccinctIndex),
}

impl IndexBlock {
    /// Copies the contents of a block. The copy does not keep the shared buffer of `block` in memory. Entries are
    /// checked only when they are read.
    ///
    /// # Errors
    /// Fails if the header or the trailer of the encoding is invalid.
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

    /// Returns the number of blocks that the index describes. There is at least one.
    #[must_use]
    pub fn count(&self) -> usize {
        match &self.0 {
            IndexEncoding::Prefix(index) => index.count(),
            IndexEncoding::Succinct(index) => index.count(),
        }
    }

    /// Returns the size of the encoded contents in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.0 {
            IndexEncoding::Prefix(index) => index.block.len(),
            IndexEncoding::Succinct(index) => index.block.len(),
        }
    }

    /// Returns the first block that can contain an entry at or after (`user_key`, `seq`), as ordinal and handle.
    /// Returns `None` if this position is after the last block. A succinct index returns the last block instead of
    /// `None`, because it stores no upper bound of the last block.
    ///
    /// # Errors
    /// Fails if the search reads a malformed entry.
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

    /// Returns the handle of the block with this ordinal. Ordinals start at 0. Returns `None` if there is no such
    /// block.
    ///
    /// # Errors
    /// Fails if the search reads a malformed entry.
    pub fn handle(&self, ordinal: usize) -> Result<Option<BlockHandle>, Malformed> {
        match &self.0 {
            IndexEncoding::Prefix(index) => index.handle(ordinal),
            IndexEncoding::Succinct(index) => index.handle(ordinal),
        }
    }

    /// Returns the handles of all blocks in key order, each with the separator between this block and the next block. A
    /// succinct index has no separator after the last block.
    ///
    /// # Errors
    /// Fails if any part of the index block is malformed.
    pub fn entries(&self) -> Result<Vec<(Option<Separator>, BlockHandle)>, Malformed> {
        match &self.0 {
            IndexEncoding::Prefix(index) => index.entries(),
            IndexEncoding::Succinct(index) => index.entries(),
        }
    }
}
