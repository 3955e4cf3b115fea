//! Cache for data blocks based on `moka`.
//!
//! The capacity of a `moka` cache is fixed, but the memory that remains for data blocks changes with the size of the
//! metadata. The cache is therefore rebuilt if the capacity decreases or if it increases considerably. A rebuild copies
//! the blocks that fit. Some slack prevents a rebuild for every metadata block.
//!
//! `moka` evicts entries in maintenance runs. This implementation requests a run after every insertion. The cache is
//! therefore within its capacity when the insertion returns, and its contents do not depend on time. `moka` frees
//! removed entries later in batches. The eviction listener therefore frees their blocks immediately.

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

/// Overhead of an empty cache in bytes: queues of reads and insertions, locks, and initial tables. A cache with a
/// smaller capacity stores no blocks.
const CACHE_OVERHEAD_BYTES: u64 = 192 << 10;

/// The slack is the capacity divided by this number. If the capacity decreases, the cache is rebuilt with one slack
/// less than requested. If it increases, the cache is rebuilt only if the increase exceeds two slacks.
const SLACK_DIVISOR: u64 = 16;

type MokaCache = Cache<BlockId, Arc<MokaEntry>, BuildHasherDefault<BlockIdHasher>>;

/// A cached block. `None` after the block was evicted.
struct MokaEntry(Mutex<Option<BlockBytes>>);

impl MokaEntry {
    fn block(&self) -> Option<BlockBytes> {
        self.0.lock().clone()
    }
}

/// A `moka` cache and its fixed capacity.
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

    /// Copies blocks of another cache as long as they fit. Access frequencies are not copied.
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
    /// `None` if the capacity is too small to store blocks.
    cache: ArcSwapOption<FixedCapacityCache>,
}

impl MokaDataCache {
    pub(crate) fn new(capacity_bytes: u64) -> MokaDataCache {
        let store = MokaDataCache { cache: ArcSwapOption::empty() };
        store.rebuild_with_capacity(capacity_bytes);
        store
    }

    /// Replaces the cache by a new one with this capacity, and copies the blocks that fit.
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
        // `moka` returns values only through `get`, which records a miss if the key is absent. `contains_key` records
        // nothing.
        let cache = self.cache.load();
        let entries = &cache.as_deref()?.entries;
        if entries.contains_key(&id) { entries.get(&id)?.block() } else { None }
    }

    fn insert(&self, id: BlockId, block: BlockBytes) {
        // A block that is inserted during a rebuild may be lost. It is then read from the file again.
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
        // Total size and number of entries are not read atomically, so the result is approximate.
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
