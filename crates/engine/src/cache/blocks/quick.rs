//! Data blocks in `quick_cache`, whose hits take no exclusive lock.

use std::fmt;
use std::hash::BuildHasherDefault;

use lsmx_base::coding::len_u64;
use lsmx_base::slice::BlockBytes;
use quick_cache::sync::DefaultLifecycle;
use quick_cache::{OptionsBuilder, Weighter};

use crate::cache::blocks::{BlockId, BlockStore, IdHasher};

/// Bytes that an entry costs beside its block: key, links and the count of owners.
const ENTRY_OVERHEAD_BYTES: u64 = 160;

/// Bytes that a block is expected to have, to size the table of keys.
const BLOCK_BYTES_EXPECTED: u64 = 4096;

/// Fewest bytes for which a shard of its own pays.
const SHARD_BYTES_MIN: u64 = 256 << 10;

/// Most shards; with more of them than threads, two rarely meet at one.
const SHARDS_MAX: u64 = 64;

/// [`BlockStore`] by `quick_cache`.
pub(crate) struct QuickStore {
    cache: quick_cache::sync::Cache<BlockId, BlockBytes, BlockWeight, BuildHasherDefault<IdHasher>>,
}

impl QuickStore {
    pub(crate) fn new(capacity_bytes: u64) -> QuickStore {
        // The number of shards is not taken from the machine: equal budgets behave alike.
        let shards = (capacity_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        let items = usize::try_from(capacity_bytes / BLOCK_BYTES_EXPECTED).unwrap_or(usize::MAX);
        let options = OptionsBuilder::new()
            .shards(usize::try_from(shards).unwrap_or(1))
            .estimated_items_capacity(items.max(1))
            .weight_capacity(capacity_bytes)
            .build()
            .expect("both capacities, all that is required, are given");
        QuickStore {
            cache: quick_cache::sync::Cache::with_options(
                options,
                BlockWeight,
                BuildHasherDefault::default(),
                DefaultLifecycle::default(),
            ),
        }
    }
}

impl BlockStore for QuickStore {
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

    fn content_bytes(&self) -> u64 {
        // Two numbers that are not read at once.
        self.bytes().saturating_sub(len_u64(self.cache.len()) * ENTRY_OVERHEAD_BYTES)
    }
}

impl fmt::Debug for QuickStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuickStore").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
struct BlockWeight;

impl Weighter<BlockId, BlockBytes> for BlockWeight {
    fn weight(&self, _: &BlockId, block: &BlockBytes) -> u64 {
        len_u64(block.len()) + ENTRY_OVERHEAD_BYTES
    }
}
