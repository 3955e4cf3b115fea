//! Cache for data blocks based on `moka`.
//!
//! The capacity of a `moka` cache is fixed, but the capacity for data blocks changes with the size of the metadata. The
//! cache is therefore rebuilt, with the blocks that fit, after the capacity has fallen below or risen well above the
//! current one. Some slack avoids a rebuild for every metadata block.
//!
//! `moka` evicts in maintenance runs, here after each fill. The cache is therefore within its capacity when a fill
//! returns, and its contents do not depend on time. `moka` frees removed entries later, in batches; the eviction
//! listener frees their blocks at once.

use std::fmt;
use std::hash::BuildHasherDefault;

use arc_swap::ArcSwapOption;
use lsmx_base::coding::len_u64;
use lsmx_base::slice::BlockBytes;
use lsmx_base::sync::{Arc, Mutex};
use moka::sync::Cache;

use crate::cache::data_cache::{BlockId, BlockIdHasher, DataBlockCache};

/// Overhead of an entry in bytes: key, links, usage data and reference counts.
const ENTRY_OVERHEAD_BYTES: u64 = 448;

/// Overhead of an empty cache in bytes: queues of reads and fills, locks, initial tables. A capacity below this
/// overhead stores no blocks.
const CACHE_OVERHEAD_BYTES: u64 = 192 << 10;

/// Slack is the capacity divided by this. Within it the cache is not rebuilt.
const SLACK_DIVISOR: u64 = 16;

type MokaCache = Cache<BlockId, Arc<MokaEntry>, BuildHasherDefault<BlockIdHasher>>;

/// A block; `None` after its eviction.
struct MokaEntry(Mutex<Option<BlockBytes>>);

impl MokaEntry {
    fn block(&self) -> Option<BlockBytes> {
        self.0.lock().clone()
    }
}

/// A `moka` cache with its capacity.
struct FixedCapacityCache {
    entries: MokaCache,
    capacity_bytes: u64,
}

impl FixedCapacityCache {
    fn new(capacity_bytes: u64) -> FixedCapacityCache {
        let entries = Cache::builder()
            .max_capacity(capacity_bytes.saturating_sub(CACHE_OVERHEAD_BYTES))
            .weigher(|_: &BlockId, entry: &Arc<MokaEntry>| {
                let bytes = entry.0.lock().as_deref().map_or(0, <[u8]>::len);
                u32::try_from(len_u64(bytes) + ENTRY_OVERHEAD_BYTES).unwrap_or(u32::MAX)
            })
            .eviction_listener(|_, entry, _| drop(entry.0.lock().take()))
            .build_with_hasher(BuildHasherDefault::default());
        FixedCapacityCache { entries, capacity_bytes }
    }

    fn insert(&self, id: BlockId, block: BlockBytes) {
        self.entries.insert(id, Arc::new(MokaEntry(Mutex::new(Some(block)))));
        self.entries.run_pending_tasks();
    }

    /// Copies blocks of another cache as far as they fit. Their usage data is lost.
    fn copy_blocks_from(&self, other: &FixedCapacityCache) {
        let mut free_bytes = self.capacity_bytes.saturating_sub(CACHE_OVERHEAD_BYTES);
        for (id, entry) in &other.entries {
            let Some(block) = entry.block() else { continue };
            let Some(left) = free_bytes.checked_sub(len_u64(block.len()) + ENTRY_OVERHEAD_BYTES)
            else {
                continue;
            };
            free_bytes = left;
            self.entries.insert(*id, Arc::new(MokaEntry(Mutex::new(Some(block)))));
        }
        self.entries.run_pending_tasks();
    }
}

/// A [`DataBlockCache`] based on `moka`.
pub(crate) struct MokaDataCache {
    /// `None` if the capacity is too small for any block.
    cache: ArcSwapOption<FixedCapacityCache>,
}

impl MokaDataCache {
    pub(crate) fn new(capacity_bytes: u64) -> MokaDataCache {
        let store = MokaDataCache { cache: ArcSwapOption::empty() };
        store.rebuild_with_capacity(capacity_bytes);
        store
    }

    /// Replaces the cache by one of another capacity.
    fn rebuild_with_capacity(&self, capacity_bytes: u64) {
        let rebuilt = (capacity_bytes > CACHE_OVERHEAD_BYTES)
            .then(|| FixedCapacityCache::new(capacity_bytes));
        if let (Some(rebuilt), Some(before)) = (&rebuilt, self.cache.load().as_deref()) {
            rebuilt.copy_blocks_from(before);
        }
        self.cache.store(rebuilt.map(Arc::new));
    }
}

impl DataBlockCache for MokaDataCache {
    #[inline]
    fn get(&self, id: BlockId) -> Option<BlockBytes> {
        self.cache.load().as_deref()?.entries.get(&id)?.block()
    }

    fn peek(&self, id: BlockId) -> Option<BlockBytes> {
        // Only `get` returns a value, and it records a miss for an absent key. The check avoids that.
        let cache = self.cache.load();
        let entries = &cache.as_deref()?.entries;
        if entries.contains_key(&id) { entries.get(&id)?.block() } else { None }
    }

    fn insert(&self, id: BlockId, block: BlockBytes) {
        // If the cache is being rebuilt, the block may be lost and is read again.
        if let Some(cache) = self.cache.load().as_deref() {
            cache.insert(id, block);
        }
    }

    fn set_capacity(&self, bytes: u64) {
        let current = self.cache.load().as_deref().map_or(0, |cache| cache.capacity_bytes);
        if bytes < current {
            self.rebuild_with_capacity(bytes - bytes / SLACK_DIVISOR);
        } else if bytes - current > bytes / SLACK_DIVISOR * 2 {
            self.rebuild_with_capacity(bytes);
        }
    }

    fn bytes(&self) -> u64 {
        let cache = self.cache.load();
        cache.as_deref().map_or(0, |cache| cache.entries.weighted_size() + CACHE_OVERHEAD_BYTES)
    }

    fn bytes_without_overhead(&self) -> u64 {
        // The two numbers are not read atomically, so the result is approximate.
        self.cache.load().as_deref().map_or(0, |cache| {
            let overhead = cache.entries.entry_count() * ENTRY_OVERHEAD_BYTES;
            cache.entries.weighted_size().saturating_sub(overhead)
        })
    }
}

impl fmt::Debug for MokaDataCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MokaDataCache").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}
