//! Cache for data blocks based on `quick_cache`. Hits take no exclusive lock.

use std::fmt;
use std::hash::BuildHasherDefault;

use arc_swap::ArcSwap;
use lsmx_base::coding::len_u64;
use lsmx_base::slice::BlockBytes;
use lsmx_base::sync::{Arc, AtomicU64, Ordering};
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

/// The slack is the capacity divided by this number. A decrease sets a capacity of one slack less than requested. An
/// increase takes effect only if it exceeds two slacks. Capacities that differ by less than a slack therefore cause only
/// one change.
const SLACK_DIVISOR: u64 = 32;

type QuickCache =
    quick_cache::sync::Cache<BlockId, BlockBytes, BlockWeight, BuildHasherDefault<BlockIdHasher>>;

/// A [`DataBlockCache`] based on `quick_cache`.
///
/// `quick_cache` remembers the keys of evicted blocks, and admits such a block to the main part of the cache when it is
/// read again. The number of these keys decreases with the capacity, but hardly increases again. An increase of the
/// capacity therefore rebuilds the cache.
pub(crate) struct QuickDataCache {
    cache: ArcSwap<QuickCache>,
    capacity_bytes: AtomicU64,
}

impl QuickDataCache {
    pub(crate) fn new(capacity_bytes: u64) -> QuickDataCache {
        QuickDataCache {
            cache: ArcSwap::from_pointee(QuickDataCache::build(capacity_bytes)),
            capacity_bytes: AtomicU64::new(capacity_bytes),
        }
    }

    fn build(capacity_bytes: u64) -> QuickCache {
        // The number of shards depends only on the capacity, so that hit rates are the same on all machines.
        let shards = (capacity_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        let items = usize::try_from(capacity_bytes / BLOCK_BYTES_EXPECTED).unwrap_or(usize::MAX);
        let options = OptionsBuilder::new()
            .shards(usize::try_from(shards).unwrap_or(1))
            .estimated_items_capacity(items.max(1))
            .weight_capacity(capacity_bytes)
            .build()
            .expect("both required capacities are set");
        QuickCache::with_options(
            options,
            BlockWeight,
            BuildHasherDefault::default(),
            DefaultLifecycle::default(),
        )
    }
}

impl DataBlockCache for QuickDataCache {
    #[inline]
    fn get(&self, id: BlockId) -> Option<BlockBytes> {
        self.cache.load().get(&id)
    }

    fn peek(&self, id: BlockId) -> Option<BlockBytes> {
        self.cache.load().peek(&id)
    }

    fn insert(&self, id: BlockId, block: BlockBytes) {
        // A block that is inserted during a rebuild may be lost. It is then read from the file again.
        self.cache.load().insert(id, block);
    }

    fn set_capacity(&self, bytes: u64) {
        let current = self.capacity_bytes.load(Ordering::Relaxed);
        if bytes < current {
            let reduced = bytes - bytes / SLACK_DIVISOR;
            self.cache.load().set_capacity(reduced);
            self.capacity_bytes.store(reduced, Ordering::Relaxed);
        } else if bytes - current > bytes / SLACK_DIVISOR * 2 {
            let rebuilt = QuickDataCache::build(bytes);
            for (id, block) in self.cache.load().iter() {
                rebuilt.insert(id, block);
            }
            self.cache.store(Arc::new(rebuilt));
            self.capacity_bytes.store(bytes, Ordering::Relaxed);
        }
    }

    fn bytes(&self) -> u64 {
        self.cache.load().weight()
    }

    fn bytes_without_overhead(&self) -> u64 {
        // The total size and the number of entries are not read atomically. The result is therefore approximate.
        let cache = self.cache.load();
        cache.weight().saturating_sub(len_u64(cache.len()) * ENTRY_OVERHEAD_BYTES)
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
