//! Sizes and key distributions of a table, computed from its properties and its index.

use lsmx_base::coding::len_u64;
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;

use crate::cache::{INDEX_OVERHEAD_BYTES, MetadataBlock, SLOT_OVERHEAD_BYTES};
use crate::error::{Error, Result};
use crate::format::block::{BlockHandle, TRAILER_BYTES};
use crate::format::index::Separator;
use crate::table::read_context::{ReadContext, ReadPurpose};
use crate::table::reader::Table;

/// Minimum number of index blocks for which [`estimate_bytes_by_key`] returns one range per index block.
const INDEX_BLOCKS_MIN: usize = 16;

/// Memory of the metadata blocks of a table in bytes, as the block cache counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableMetadataSizes {
    pub(crate) filter: u64,
    pub(crate) top_index: u64,
    pub(crate) index: u64,
    pub(crate) range_tombstones: u64,
}

/// Returns the memory that all metadata blocks of a table would need in the block cache.
///
/// Reads the range tombstones, because the properties do not contain their size in memory.
pub(crate) fn metadata_sizes(table: &Table) -> Result<TableMetadataSizes> {
    let properties = table.properties();
    let block_bytes = |handle: Option<BlockHandle>, overhead| {
        handle.map_or(0, |handle| resident_bytes(handle.bytes, 1, overhead))
    };
    let range_tombstones = match properties.range_tombstones {
        Some(_) => table.range_tombstones(ReadPurpose::Job)?.resident_bytes(),
        None => 0,
    };
    let (index_bytes, index_blocks) = (properties.index_bytes, properties.index_blocks);
    Ok(TableMetadataSizes {
        filter: block_bytes(properties.filter, SLOT_OVERHEAD_BYTES),
        top_index: block_bytes(properties.top_index, INDEX_OVERHEAD_BYTES),
        index: resident_bytes(index_bytes, index_blocks, INDEX_OVERHEAD_BYTES),
        range_tombstones,
    })
}

/// Returns the memory in bytes of `blocks` metadata blocks with a total size of `stored_bytes` in the file. Metadata
/// blocks are not compressed.
fn resident_bytes(stored_bytes: u64, blocks: u64, overhead: u64) -> u64 {
    let trailers = blocks.saturating_mul(len_u64(TRAILER_BYTES));
    let slots = blocks.saturating_mul(overhead);
    stored_bytes.saturating_sub(trailers).saturating_add(slots)
}

/// Estimates which part of `amount` belongs to keys before `user_key`. `amount` is a total of the table, such as its
/// size in bytes. The estimate is based on the top index.
///
/// The estimate assumes that `user_key` is in the middle of its index block.
pub(crate) fn share_before_key(table: &Table, amount: u64, user_key: &[u8]) -> Result<u64> {
    let Some(top) = table.top_index(&mut ReadContext::new(ReadPurpose::Lookup))? else {
        return Ok(amount / 2);
    };
    let blocks = len_u64(top.count()).max(1);
    let found =
        top.seek(user_key, SeqNo::MAX).map_err(|what| Error::malformed(what, table.path(), 0))?;
    let Some((ordinal, _)) = found else { return Ok(amount) };
    let half_blocks = u128::from(2 * len_u64(ordinal) + 1);
    let before = u128::from(amount) * half_blocks / u128::from(2 * blocks);
    Ok(u64::try_from(before).unwrap_or(amount))
}

/// A key range of a table, and its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyWeight {
    /// Upper bound of the user keys in this range, and lower bound of those in the next range. Versions of this key may
    /// be in both ranges.
    pub(crate) until: Vec<u8>,
    /// Approximate size of the range in the file in bytes.
    pub(crate) bytes: u64,
}

/// Divides the entries of a table into key ranges, in key order. If there are many index blocks, each range is an index
/// block. Otherwise, each range is a data block. Returns no ranges for a table without entries.
pub(crate) fn estimate_bytes_by_key(table: &Table, purpose: ReadPurpose) -> Result<Vec<KeyWeight>> {
    let context = &mut ReadContext::new(purpose);
    let Some(top) = table.top_index(context)? else { return Ok(Vec::new()) };
    let corrupt = |offset: u64| move |what: Malformed| Error::malformed(what, table.path(), offset);
    let until = |separator: Option<Separator>| match separator {
        Some(separator) => separator.user_key,
        None => table.properties().largest.to_vec(),
    };
    let top_offset = table.properties().top_index.map_or(0, |handle| handle.offset);
    let index_blocks = top.entries().map_err(corrupt(top_offset))?;
    if index_blocks.len() >= INDEX_BLOCKS_MIN {
        let bytes = table.identity().bytes / len_u64(index_blocks.len());
        let weight = |(separator, _)| KeyWeight { until: until(separator), bytes };
        return Ok(index_blocks.into_iter().map(weight).collect());
    }
    let mut weights = Vec::new();
    for (ordinal, (top_separator, handle)) in index_blocks.into_iter().enumerate() {
        let index = table.index_block(ordinal, &top, handle, context)?;
        let data_blocks = index.entries().map_err(corrupt(handle.offset))?;
        weights.extend(data_blocks.into_iter().map(|(separator, data)| {
            // The separator after the last data block of an index block is stored in the top index.
            let separator = separator.or_else(|| top_separator.clone());
            KeyWeight { until: until(separator), bytes: data.bytes }
        }));
    }
    Ok(weights)
}

/// An index block, and the user keys of each of its data blocks.
#[cfg(feature = "internals")]
pub type IndexBlockKeys =
    (lsmx_base::sync::Arc<crate::format::index::IndexBlock>, Vec<Vec<Vec<u8>>>);

/// Returns all index blocks of a table in key order. Used to measure the size of the index.
#[cfg(feature = "internals")]
pub(crate) fn index_blocks_with_keys(table: &Table) -> Result<Vec<IndexBlockKeys>> {
    use crate::format::data_block::DataBlock;
    use crate::format::data_block::cursor::DataBlockCursor;

    let context = &mut ReadContext::new(ReadPurpose::Scan);
    let at = |what: Malformed| Error::malformed(what, table.path(), 0);
    let mut index_blocks = Vec::new();
    let Some(top) = table.top_index(context)? else { return Ok(index_blocks) };
    for (ordinal, (_, handle)) in top.entries().map_err(at)?.into_iter().enumerate() {
        let index = table.index_block(ordinal, &top, handle, context)?;
        let mut keys_of_blocks = Vec::new();
        for (_, handle) in index.entries().map_err(at)? {
            let block = DataBlock::new(table.data_block(handle, context)?).map_err(at)?;
            let mut cursor = DataBlockCursor::new(block);
            let mut keys = Vec::new();
            cursor.first().map_err(at)?;
            while cursor.valid() {
                keys.push(cursor.key().user_key.to_vec());
                cursor.next().map_err(at)?;
            }
            keys_of_blocks.push(keys);
        }
        index_blocks.push((index, keys_of_blocks));
    }
    Ok(index_blocks)
}
