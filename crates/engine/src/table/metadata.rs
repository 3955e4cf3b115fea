//! What a table's metadata takes in memory once all of it is there.

use lsmx_base::coding::len_u64;

use crate::cache::{INDEX_OVERHEAD_BYTES, MetadataBlock, SLOT_OVERHEAD_BYTES};
use crate::error::Result;
use crate::format::block::{Handle, TRAILER_BYTES};

use crate::table::reader::{FillCache, Table};

/// Bytes of memory by kind, as the block cache counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableMetadata {
    pub(crate) filter: u64,
    pub(crate) top_index: u64,
    pub(crate) index: u64,
    pub(crate) range_tombstones: u64,
}

impl Table {
    /// What its filter, index and range tombstones take once they are all in memory. Of blocks only the
    /// range tombstones are read, whose size in memory the file does not tell.
    ///
    /// # Errors
    /// When the range tombstones cannot be read or are damaged.
    pub(crate) fn metadata(&self) -> Result<TableMetadata> {
        let properties = &self.properties;
        let one = |handle: Option<Handle>, overhead| {
            handle.map_or(0, |handle| resident(handle.bytes, 1, overhead))
        };
        let range_tombstones = match properties.range_tombstones {
            Some(_) => self.spans(FillCache::Job)?.resident_bytes(),
            None => 0,
        };
        Ok(TableMetadata {
            filter: one(properties.filter, SLOT_OVERHEAD_BYTES),
            top_index: one(properties.top_index, INDEX_OVERHEAD_BYTES),
            index: resident(properties.index_bytes, properties.index_blocks, INDEX_OVERHEAD_BYTES),
            range_tombstones,
        })
    }
}

/// What so many blocks, of these bytes in the file, take in memory. Metadata is never compressed.
fn resident(stored_bytes: u64, blocks: u64, overhead: u64) -> u64 {
    let trailers = blocks.saturating_mul(len_u64(TRAILER_BYTES));
    let slots = blocks.saturating_mul(overhead);
    stored_bytes.saturating_sub(trailers).saturating_add(slots)
}
