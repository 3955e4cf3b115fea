//! A whole index with the keys it leads to, for measurements.

use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::format::data_block::DataBlock;
use crate::format::data_block::cursor::DataBlockCursor;
use crate::format::index::IndexBlock;
use crate::table::access::Access;
use crate::table::reader::{FillCache, Table};

/// An index block, and the user keys of the data blocks it leads to.
pub type Indexed = (Arc<IndexBlock>, Vec<Vec<Vec<u8>>>);

impl Table {
    /// All index blocks, in order, with the user keys of their data blocks.
    ///
    /// # Errors
    /// When a block cannot be read.
    pub(crate) fn index_blocks(&self) -> Result<Vec<Indexed>> {
        let access = &mut Access::of(FillCache::No);
        let at = |what: Malformed| Error::malformed(what, &self.path, 0);
        let mut indexed = Vec::new();
        let Some(top) = self.top_index(access)? else { return Ok(indexed) };
        for (ordinal, (_, handle)) in top.entries().map_err(at)?.into_iter().enumerate() {
            let index = self.index_block(ordinal, &top, handle, access)?;
            let mut blocks = Vec::new();
            for (_, handle) in index.entries().map_err(at)? {
                let block = DataBlock::new(self.data_block(handle, access)?).map_err(at)?;
                let mut cursor = DataBlockCursor::new(block);
                let mut keys = Vec::new();
                cursor.first().map_err(at)?;
                while cursor.valid() {
                    keys.push(cursor.key().user_key.to_vec());
                    cursor.next().map_err(at)?;
                }
                blocks.push(keys);
            }
            indexed.push((index, blocks));
        }
        Ok(indexed)
    }
}
