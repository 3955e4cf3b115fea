//! Internal functions that the criterion benchmarks call. Not part of the stable interface.

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
use crate::memtable::Memtable;
pub use crate::memtable::MemtableKind;
pub use crate::table::IndexBlockKeys;
use crate::table::{Table, index_blocks_with_keys};

/// Memtable.
#[derive(Debug)]
pub struct BenchMemtable(Arc<Memtable>);

impl BenchMemtable {
    /// Creates an empty memtable.
    #[must_use]
    pub fn new(kind: MemtableKind) -> BenchMemtable {
        BenchMemtable(Arc::new(Memtable::new(kind, SeqNo(1), &DeferredDrop::default())))
    }

    /// Inserts a put with the sequence number `seq`.
    pub fn insert(&self, key: &[u8], seq: u64, value: &[u8]) {
        self.0.insert(key, SeqNo(seq), EntryKind::Put, value);
    }

    /// Returns the size of the newest value of `key`, in bytes.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<usize> {
        self.0.get(key, SeqNo::MAX).map(|(_, _, value)| value.len())
    }

    /// Returns a cursor over all entries.
    #[must_use]
    pub fn cursor(&self) -> Box<dyn Cursor> {
        Box::new(self.0.cursor())
    }
}

/// Data block.
#[derive(Debug)]
pub struct BenchBlock(DataBlock);

impl BenchBlock {
    /// Builds a block of puts. `entries` must be in key order.
    ///
    /// If `tagged` is set, the block also stores one hash byte per key, unless its entries are too short or it is too
    /// large.
    ///
    /// # Errors
    /// Returns an error if the built block is malformed.
    pub fn new<'a>(
        restart_interval: u32,
        tagged: bool,
        entries: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<BenchBlock, Malformed> {
        let mut builder = DataBlockBuilder::new(restart_interval, tagged);
        for (user_key, value) in entries {
            let common = common_prefix(builder.last_key(), user_key);
            let key = InternalKey { user_key, seq: SeqNo(1), kind: EntryKind::Put };
            builder.add_with_shared_prefix(key, common, value);
        }
        let mut bytes = Vec::new();
        builder.finish(&mut bytes);
        DataBlock::new(BlockBytes::copy_from(&bytes)).map(BenchBlock)
    }

    /// Returns whether the block has an entry for `key`.
    ///
    /// # Errors
    /// Returns an error if the block is malformed.
    pub fn contains(&self, key: &[u8]) -> Result<bool, Malformed> {
        Ok(self.0.get(key, SeqNo::MAX)?.is_some())
    }
}

/// Block cache in which all data blocks have the same contents.
#[derive(Debug)]
pub struct BenchBlockCache {
    cache: Arc<BlockCache>,
    block: BlockBytes,
}

impl BenchBlockCache {
    /// Creates an empty cache of `budget_bytes` for blocks of `block_bytes`.
    #[must_use]
    pub fn new(kind: BlockCacheKind, budget_bytes: u64, block_bytes: usize) -> BenchBlockCache {
        let block = BlockBytes::copy_from(&vec![0; block_bytes]);
        BenchBlockCache { cache: BlockCache::with_cache_kind(kind, budget_bytes), block }
    }

    /// Looks up the block with the given number and returns whether it is cached.
    #[must_use]
    pub fn get(&self, number: u64) -> bool {
        self.cache.get_data_block(0, number).is_some()
    }

    /// Inserts the block with the given number.
    pub fn insert(&self, number: u64) {
        self.cache.insert_data_block(0, number, &self.block);
    }
}

/// Returns a merging cursor over `sources`.
#[must_use]
pub fn merging_cursor(sources: Vec<Box<dyn Cursor>>) -> Box<dyn Cursor> {
    Box::new(MergingCursor::new(sources))
}

/// Returns the index blocks of a table in key order, with their keys.
///
/// # Errors
/// Returns an error if an index block or a data block cannot be read.
pub fn index_blocks(table: &Table) -> Result<Vec<IndexBlockKeys>> {
    index_blocks_with_keys(table)
}
