//! What a criterion bench calls of the inside. Not for users: it may change with any release.

use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::BlockBytes;
use lsmx_base::sync::Arc;

use crate::cache::{BlockCache, BlockCacheKind};
use crate::cursor::Cursor;
use crate::deferred_drop::DeferredDrop;
use crate::error::Result;
use crate::format::data_block::{DataBlock, DataBlockBuilder, common_prefix};
use crate::iter::merging_iter::MergingCursor;
pub use crate::table::IndexBlockKeys;
use crate::table::{Table, index_blocks_with_keys};

/// A memtable.
#[derive(Debug)]
pub struct BenchMemtable(Arc<crate::memtable::Memtable>);

impl Default for BenchMemtable {
    fn default() -> BenchMemtable {
        BenchMemtable(Arc::new(crate::memtable::Memtable::new(SeqNo(1), &DeferredDrop::default())))
    }
}

impl BenchMemtable {
    /// Inserts a put with this number.
    pub fn insert(&self, key: &[u8], seq: u64, value: &[u8]) {
        self.0.insert(key, SeqNo(seq), EntryKind::Put, value);
    }

    /// Bytes of the newest value of `key`.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<usize> {
        self.0.get(key, SeqNo::MAX).map(|(_, _, value)| value.len())
    }

    /// A cursor over it.
    #[must_use]
    pub fn cursor(&self) -> Box<dyn Cursor> {
        Box::new(self.0.cursor())
    }
}

/// A data block.
#[derive(Debug)]
pub struct Block(DataBlock);

impl Block {
    /// A block of puts, in key order, with tags if `tagged` and they pay.
    ///
    /// # Errors
    /// When it is malformed, which would be a mistake of the builder.
    pub fn new<'a>(
        restart_interval: u32,
        tagged: bool,
        entries: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<Block, Malformed> {
        let mut builder = DataBlockBuilder::new(restart_interval, tagged);
        for (user_key, value) in entries {
            let common = common_prefix(builder.last_key(), user_key);
            let key = InternalKey { user_key, seq: SeqNo(1), kind: EntryKind::Put };
            builder.add_with(key, common, value);
        }
        let mut bytes = Vec::new();
        builder.finish(&mut bytes);
        DataBlock::new(BlockBytes::copy_from(&bytes)).map(Block)
    }

    /// Whether a key is in it.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn contains(&self, key: &[u8]) -> Result<bool, Malformed> {
        Ok(self.0.get(key, SeqNo::MAX)?.is_some())
    }
}

/// The data blocks of a cache, of which all have the same contents.
#[derive(Debug)]
pub struct BenchBlockCache {
    cache: Arc<BlockCache>,
    block: BlockBytes,
}

impl BenchBlockCache {
    /// With nothing in it.
    #[must_use]
    pub fn new(kind: BlockCacheKind, budget_bytes: u64, block_bytes: usize) -> BenchBlockCache {
        let block = BlockBytes::copy_from(&vec![0; block_bytes]);
        BenchBlockCache { cache: BlockCache::with_kind(kind, budget_bytes), block }
    }

    /// Whether the block with this number is there, which counts as a use.
    #[must_use]
    pub fn get(&self, number: u64) -> bool {
        self.cache.get_data_block(0, number).is_some()
    }

    /// Puts the block with this number in.
    pub fn insert(&self, number: u64) {
        self.cache.insert_data_block(0, number, &self.block);
    }
}

/// Cursors as one.
#[must_use]
pub fn merging(sources: Vec<Box<dyn Cursor>>) -> Box<dyn Cursor> {
    Box::new(MergingCursor::new(sources))
}

/// The index blocks of a table, in order.
///
/// # Errors
/// When one cannot be read, or what it leads to.
pub fn index_blocks(table: &Table) -> Result<Vec<IndexBlockKeys>> {
    index_blocks_with_keys(table)
}
