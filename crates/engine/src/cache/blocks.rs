//! Data blocks in memory: what the cache asks of a general-purpose cache, and `quick_cache` as that.

use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use quick_cache::sync::DefaultLifecycle;
use quick_cache::{OptionsBuilder, Weighter};

use crate::coding::len_u64;
use crate::slice::BlockBytes;

/// Bytes that an entry costs beside its block: key, links and the count of owners.
const ENTRY_OVERHEAD_BYTES: u64 = 160;

/// Bytes that a block is expected to have, to size the table of keys.
const BLOCK_BYTES_EXPECTED: u64 = 4096;

/// Fewest bytes for which a shard of its own pays.
const SHARD_BYTES_MIN: u64 = 256 << 10;

/// Most shards; with more of them than threads, two rarely meet at one.
const SHARDS_MAX: u64 = 64;

/// Names a data block: which open table, at which offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BlockId {
    /// Number of the opened table in this cache, never given twice.
    pub(super) table: u64,
    /// Offset of the block in its file.
    pub(super) offset: u64,
}

/// A cache of data blocks with a capacity in bytes.
pub(super) trait BlockStore: fmt::Debug + Send + Sync {
    /// The block, if it is there; counts as a use.
    fn get(&self, id: BlockId) -> Option<BlockBytes>;
    /// The block, if it is there; does not count as a use.
    fn peek(&self, id: BlockId) -> Option<BlockBytes>;
    /// Puts a block in, and others out to make room.
    fn insert(&self, id: BlockId, block: BlockBytes);
    /// Sets the capacity; puts blocks out until it is kept.
    fn set_capacity(&self, bytes: u64);
    /// Bytes of the blocks that are there, overhead included.
    fn bytes(&self) -> u64;
    /// Bytes of the blocks that are there, alone.
    fn content_bytes(&self) -> u64;
}

/// [`BlockStore`] by `quick_cache`, whose hits take no exclusive lock.
pub(super) struct QuickStore {
    cache: quick_cache::sync::Cache<BlockId, BlockBytes, BlockWeight, BuildHasherDefault<IdHasher>>,
}

impl QuickStore {
    pub(super) fn new(capacity_bytes: u64) -> QuickStore {
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

/// Hashes the two numbers of a [`BlockId`], the same in every run, so that what a cache holds can
/// be repeated. Nobody outside chooses these numbers, so no one can make them collide.
#[derive(Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number ^ 0x243f_6a88_85a3_08d3)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        // The upper half depends on all bits; folding keeps what the lower one knows.
        let [low, high] = [product, product >> 64].map(|half| half & u128::from(u64::MAX));
        self.0 = u64::try_from(low ^ high).unwrap_or_default();
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
