//! Data blocks in `moka`.
//!
//! A `moka` cache has the capacity it was made with; ours moves with the metadata beside it. So it is made
//! anew, with the blocks that fit, once the capacity has fallen below what it was made for, or has risen
//! well above. A little room is left each time, so that metadata that grows block by block does not
//! make it anew with every step.
//!
//! `moka` evicts when it gets round to it. Here that is after each fill: what it says it holds is at most
//! the capacity once the fill has returned, and no timer has a part in what it keeps. Its table of keys
//! lets removed entries go later, by the hundred; the blocks in them are taken out at once.

use std::fmt;
use std::hash::BuildHasherDefault;

use arc_swap::ArcSwapOption;
use lsmx_base::coding::len_u64;
use lsmx_base::slice::BlockBytes;
use lsmx_base::sync::{Arc, Mutex};
use moka::sync::Cache;

use crate::cache::blocks::{BlockId, BlockStore, IdHasher};

/// Bytes that an entry costs beside its block: key, links, what is known of its use, and the counts of
/// the owners of all these.
const ENTRY_OVERHEAD_BYTES: u64 = 448;

/// Bytes that a cache takes besides its entries: queues of reads and fills, locks, tables that begin
/// small. With no more than this nothing is kept.
const CACHE_OVERHEAD_BYTES: u64 = 192 << 10;

/// This part of the capacity is left free, or not yet used, rather than making the cache anew.
const SLACK: u64 = 16;

type Entries = Cache<BlockId, Arc<Held>, BuildHasherDefault<IdHasher>>;

/// A block, until its entry is removed.
struct Held(Mutex<Option<BlockBytes>>);

impl Held {
    fn block(&self) -> Option<BlockBytes> {
        self.0.lock().clone()
    }
}

/// A cache and what it was made for.
struct Made {
    entries: Entries,
    capacity_bytes: u64,
}

impl Made {
    fn new(capacity_bytes: u64) -> Made {
        let entries = Cache::builder()
            .max_capacity(capacity_bytes.saturating_sub(CACHE_OVERHEAD_BYTES))
            .weigher(|_: &BlockId, held: &Arc<Held>| {
                let bytes = held.0.lock().as_deref().map_or(0, <[u8]>::len);
                u32::try_from(len_u64(bytes) + ENTRY_OVERHEAD_BYTES).unwrap_or(u32::MAX)
            })
            .eviction_listener(|_, held, _| drop(held.0.lock().take()))
            .build_with_hasher(BuildHasherDefault::default());
        Made { entries, capacity_bytes }
    }

    fn insert(&self, id: BlockId, block: BlockBytes) {
        self.entries.insert(id, Arc::new(Held(Mutex::new(Some(block)))));
        self.entries.run_pending_tasks();
    }

    /// Takes blocks over as far as they fit. Which were used most is not known of the other any more.
    fn fill_from(&self, other: &Made) {
        let mut room = self.capacity_bytes.saturating_sub(CACHE_OVERHEAD_BYTES);
        for (id, held) in &other.entries {
            let Some(block) = held.block() else { continue };
            let Some(left) = room.checked_sub(len_u64(block.len()) + ENTRY_OVERHEAD_BYTES) else {
                continue;
            };
            room = left;
            self.entries.insert(*id, Arc::new(Held(Mutex::new(Some(block)))));
        }
        self.entries.run_pending_tasks();
    }
}

/// [`BlockStore`] by `moka`.
pub(crate) struct MokaStore {
    /// None while the capacity is too small for any.
    made: ArcSwapOption<Made>,
}

impl MokaStore {
    pub(crate) fn new(capacity_bytes: u64) -> MokaStore {
        let store = MokaStore { made: ArcSwapOption::empty() };
        store.make(capacity_bytes);
        store
    }

    fn make(&self, capacity_bytes: u64) {
        let made = (capacity_bytes > CACHE_OVERHEAD_BYTES).then(|| Made::new(capacity_bytes));
        if let (Some(made), Some(before)) = (&made, self.made.load().as_deref()) {
            made.fill_from(before);
        }
        self.made.store(made.map(Arc::new));
    }
}

impl BlockStore for MokaStore {
    #[inline]
    fn get(&self, id: BlockId) -> Option<BlockBytes> {
        self.made.load().as_deref()?.entries.get(&id)?.block()
    }

    fn peek(&self, id: BlockId) -> Option<BlockBytes> {
        // There is no other way to a value. At least what is not there is not asked for.
        let made = self.made.load();
        let entries = &made.as_deref()?.entries;
        if entries.contains_key(&id) { entries.get(&id)?.block() } else { None }
    }

    fn insert(&self, id: BlockId, block: BlockBytes) {
        // Into one that is being replaced meanwhile: then the block is missed once more.
        if let Some(made) = self.made.load().as_deref() {
            made.insert(id, block);
        }
    }

    fn set_capacity(&self, bytes: u64) {
        let made_for = self.made.load().as_deref().map_or(0, |made| made.capacity_bytes);
        if bytes < made_for {
            self.make(bytes - bytes / SLACK);
        } else if bytes - made_for > bytes / SLACK * 2 {
            self.make(bytes);
        }
    }

    fn bytes(&self) -> u64 {
        let made = self.made.load();
        made.as_deref().map_or(0, |made| made.entries.weighted_size() + CACHE_OVERHEAD_BYTES)
    }

    fn content_bytes(&self) -> u64 {
        // Two numbers that are not read at once.
        self.made.load().as_deref().map_or(0, |made| {
            let overhead = made.entries.entry_count() * ENTRY_OVERHEAD_BYTES;
            made.entries.weighted_size().saturating_sub(overhead)
        })
    }
}

impl fmt::Debug for MokaStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MokaStore").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}
