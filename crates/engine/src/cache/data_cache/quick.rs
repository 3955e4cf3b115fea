//! Cache for data blocks based on `quick_cache`. Hits take no exclusive lock.

use std::fmt;
use std::hash::BuildHasherDefault;

use lsmx_base::coding::len_u64;
use lsmx_base::slice::BlockBytes;
use quick_cache::sync::DefaultLifecycle;
use quick_cache::{OptionsBuilder, Weighter};

use crate::cache::data_cache::{BlockId, BlockIdHasher, DataBlockCache};

/// Overhead of an entry in bytes: key, links and reference count.
const ENTRY_OVERHEAD_BYTES: u64 = 160;

/// Expected size of a block in bytes. The size of the hash table is derived from it.
const BLOCK_BYTES_EXPECTED: u64 = 4096;

/// Minimum capacity of a shard in bytes.
const SHARD_BYTES_MIN: u64 = 256 << 10;

/// Maximum number of shards. Contention is rare if there are more shards than threads.
const SHARDS_MAX: u64 = 64;

/// A [`DataBlockCache`] based on `quick_cache`.
pub(crate) struct QuickDataCache {
    cache: quick_cache::sync::Cache<
        BlockId,
        BlockBytes,
        BlockWeight,
        BuildHasherDefault<BlockIdHasher>,
    >,
}

impl QuickDataCache {
    pub(crate) fn new(capacity_bytes: u64) -> QuickDataCache {
        // The number of shards depends only on the capacity, so that hit rates are the same on all machines.
        let shards = (capacity_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        let items = usize::try_from(capacity_bytes / BLOCK_BYTES_EXPECTED).unwrap_or(usize::MAX);
        let options = OptionsBuilder::new()
            .shards(usize::try_from(shards).unwrap_or(1))
            .estimated_items_capacity(items.max(1))
            .weight_capacity(capacity_bytes)
            .build()
            .expect("both required capacities are set");
        QuickDataCache {
            cache: quick_cache::sync::Cache::with_options(
                options,
                BlockWeight,
                BuildHasherDefault::default(),
                DefaultLifecycle::default(),
            ),
        }
    }
}

impl DataBlockCache for QuickDataCache {
    #[inline]
    fn get(&self, id: BlockId) -> Option<BlockBytes> {
        self.cache.get(&id)
    }

    fn peek(&self, id: BlockId) -> Option<BlockBytes> {
        self.cache.peek(&id)
    }

    fn insert(&self, id: BlockId, block: BlockBytes) {
        self.cache.insert(id, block);
    }

    fn set_capacity(&self, bytes: u64) {
        self.cache.set_capacity(bytes);
    }

    fn bytes(&self) -> u64 {
        self.cache.weight()
    }

    fn bytes_without_overhead(&self) -> u64 {
        // The total size and the number of entries are not read atomically. The result is therefore approximate.
        self.bytes().saturating_sub(len_u64(self.cache.len()) * ENTRY_OVERHEAD_BYTES)
    }
}

impl fmt::Debug for QuickDataCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuickDataCache").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
struct BlockWeight;

impl Weighter<BlockId, BlockBytes> for BlockWeight {
    fn weight(&self, _: &BlockId, block: &BlockBytes) -> u64 {
        len_u64(block.len()) + ENTRY_OVERHEAD_BYTES
    }
}
