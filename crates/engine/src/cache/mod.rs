//! The block cache: one byte budget for metadata and data blocks, in which metadata has priority.
//!
//! 1. Data blocks are in a general-purpose cache (`data_cache`). Its capacity is the budget minus the metadata.
//! 2. Metadata blocks are in slots of their open tables (`metadata_slots`). The block cache counts their bytes.
//! 3. If metadata alone exceeds the budget, slots are evicted in this order: index blocks, filters, top indexes, range
//!    tombstones. A top index has at most 1/30 of the size of the filters and saves as many reads. Within a kind, slots
//!    are evicted by the CLOCK algorithm: a slot that was used since the last visit is skipped once.
//!
//! If filters and top indexes fit the budget, a lookup reads at most two blocks: an index block and a data block. If
//! index blocks also fit, a lookup reads one block. The only lock is that of the CLOCK queues. No file is read while
//! that lock is held.

mod counters;
mod data_cache;
mod metadata_slots;

use std::collections::{BTreeMap, VecDeque};

use crate::format::BlockKind;
use counters::CacheCounters;
pub use counters::{BlockKindMap, FilterCounts, HitCounts};
pub use data_cache::BlockCacheKind;
use data_cache::{BlockId, DataBlockCache};
use lsmx_base::slice::{BlockBytes, BlockMemoryCounter};
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
pub(crate) use metadata_slots::{
    INDEX_OVERHEAD_BYTES, MetadataBlock, MetadataKind, MetadataSlot, SLOT_OVERHEAD_BYTES,
    TableMetadataSlots,
};
use metadata_slots::{SlotRef, SlotState};

/// The capacity of the data cache is a multiple of the budget divided by this number. Coarse steps make changes rare,
/// because each change locks all shards of the data cache.
const CAPACITY_STEPS: u64 = 256;

/// Filled slots of one kind, oldest first.
type ClockQueue = VecDeque<SlotRef>;

/// Cached blocks of a database, within a byte budget.
#[derive(Debug)]
pub struct BlockCache {
    kind: BlockCacheKind,
    budget_bytes: u64,
    /// Whether open tables, operand stores and transactions use the budget.
    includes_open_tables: bool,
    /// Bytes of open tables without their blocks.
    open_table_bytes: AtomicU64,
    operand_store_bytes: AtomicU64,
    transaction_bytes: AtomicU64,
    /// Bytes in read-ahead buffers of cursors.
    read_ahead_bytes: AtomicU64,
    data: Box<dyn DataBlockCache>,
    /// Capacity for the data cache, computed last.
    data_capacity: AtomicU64,
    /// Whether a thread is applying the capacity.
    applies_capacity: AtomicBool,
    /// Bytes of filled slots, by [`MetadataKind`].
    metadata_bytes: [AtomicU64; MetadataKind::ALL.len()],
    /// Filled slots in eviction order, by [`MetadataKind`]. The lock guards only the queues.
    clock_queues: Mutex<[ClockQueue; MetadataKind::ALL.len()]>,
    pub(crate) counters: CacheCounters,
    /// Data blocks that were read for the cache and are still in memory.
    live_blocks: Arc<BlockMemoryCounter>,
    table_count: AtomicU64,
}

impl BlockCache {
    /// Creates a cache of at most `budget_bytes`. With 0 it stores nothing.
    #[must_use]
    pub fn new(budget_bytes: u64) -> Arc<BlockCache> {
        BlockCache::with_cache_kind(BlockCacheKind::default(), budget_bytes)
    }

    /// Like [`BlockCache::new`], with a choice of the cache for data blocks.
    #[must_use]
    pub fn with_cache_kind(kind: BlockCacheKind, budget_bytes: u64) -> Arc<BlockCache> {
        BlockCache::create(kind, budget_bytes, false)
    }

    /// Creates a cache whose budget includes open tables, operand stores and transactions.
    #[must_use]
    pub fn with_open_tables_in_budget(kind: BlockCacheKind, budget_bytes: u64) -> Arc<BlockCache> {
        BlockCache::create(kind, budget_bytes, true)
    }

    fn create(
        kind: BlockCacheKind,
        budget_bytes: u64,
        includes_open_tables: bool,
    ) -> Arc<BlockCache> {
        Arc::new(BlockCache {
            kind,
            budget_bytes,
            includes_open_tables,
            open_table_bytes: AtomicU64::new(0),
            operand_store_bytes: AtomicU64::new(0),
            transaction_bytes: AtomicU64::new(0),
            read_ahead_bytes: AtomicU64::new(0),
            data: data_cache::new_data_cache(kind, budget_bytes),
            data_capacity: AtomicU64::new(budget_bytes),
            applies_capacity: AtomicBool::new(false),
            metadata_bytes: Default::default(),
            clock_queues: Mutex::new(Default::default()),
            counters: CacheCounters::new(),
            live_blocks: Arc::default(),
            table_count: AtomicU64::new(0),
        })
    }

    /// Returns the kind of the cache for data blocks.
    #[must_use]
    pub fn cache_kind(&self) -> BlockCacheKind {
        self.kind
    }

    /// Returns hits and misses since the creation of the cache. Reads of jobs are not counted.
    #[must_use]
    pub fn hit_counts(&self) -> BlockKindMap<HitCounts> {
        self.counters.hit_counts()
    }

    /// Returns the results of filters since the creation of the cache, by level of their tables.
    #[must_use]
    pub fn filter_counts(&self) -> BTreeMap<u8, FilterCounts> {
        self.counters.filter_counts()
    }

    /// Returns the bytes of cached blocks, including overhead.
    #[must_use]
    pub fn resident_bytes(&self) -> BlockKindMap<u64> {
        BlockKindMap::from_fn(|kind| match kind {
            BlockKind::Data => self.data.bytes(),
            BlockKind::Index => self.metadata_bytes_of_kind(MetadataKind::Index),
            BlockKind::TopIndex => self.metadata_bytes_of_kind(MetadataKind::TopIndex),
            BlockKind::Filter => self.metadata_bytes_of_kind(MetadataKind::Filter),
            BlockKind::RangeTombstones => {
                self.metadata_bytes_of_kind(MetadataKind::RangeTombstones)
            }
            BlockKind::Open | BlockKind::Blob | BlockKind::Bucket => 0,
        })
    }

    fn metadata_bytes_of_kind(&self, kind: MetadataKind) -> u64 {
        self.metadata_bytes[kind as usize].load(Ordering::Relaxed)
    }

    fn metadata_bytes(&self) -> u64 {
        self.metadata_bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
    }

    /// Returns a unique number for a table that is being opened. Blocks of a reused file id then have different keys.
    pub(crate) fn next_cache_id(&self) -> u64 {
        self.table_count.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the data block at `offset` of a table, if it is cached.
    #[inline]
    pub(crate) fn get_data_block(&self, table: u64, offset: u64) -> Option<BlockBytes> {
        self.data.get(BlockId { table, offset })
    }

    /// Like [`BlockCache::get_data_block`], but does not count as a use for the eviction.
    pub(crate) fn peek_data_block(&self, table: u64, offset: u64) -> Option<BlockBytes> {
        self.data.peek(BlockId { table, offset })
    }

    /// Caches a data block.
    pub(crate) fn insert_data_block(&self, table: u64, offset: u64, block: &BlockBytes) {
        if self.data_capacity.load(Ordering::Relaxed) > 0 {
            self.data.insert(BlockId { table, offset }, block.clone());
        }
    }

    pub(crate) fn live_block_counter(&self) -> &Arc<BlockMemoryCounter> {
        &self.live_blocks
    }

    /// Returns the bytes of data blocks that iterators and slices hold, but not the cache. Approximate under concurrent
    /// changes.
    #[must_use]
    pub fn bytes_held_by_readers(&self) -> u64 {
        self.live_blocks.bytes().saturating_sub(self.data.bytes_without_overhead())
    }

    /// Returns the bytes of open tables without their blocks: handles, key ranges, empty slots.
    #[must_use]
    pub fn open_table_bytes(&self) -> u64 {
        self.open_table_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes of operand stores.
    #[must_use]
    pub fn operand_store_bytes(&self) -> u64 {
        self.operand_store_bytes.load(Ordering::Relaxed)
    }

    /// Replaces the byte count of an operand store.
    pub(crate) fn update_operand_store_bytes(&self, old: u64, new: u64) {
        self.operand_store_bytes.fetch_add(new, Ordering::Relaxed);
        self.operand_store_bytes.fetch_sub(old, Ordering::Relaxed);
        if self.includes_open_tables {
            self.enforce_budget();
        }
    }

    /// Returns the reserved bytes of transactions.
    #[must_use]
    pub fn transaction_bytes(&self) -> u64 {
        self.transaction_bytes.load(Ordering::Relaxed)
    }

    /// Reserves bytes for a transaction, and evicts blocks if necessary.
    ///
    /// If all transactions would then have more than `bytes_max`, reserves nothing and returns their total as an error.
    pub(crate) fn reserve_transaction_bytes(&self, bytes: u64, bytes_max: u64) -> Result<(), u64> {
        let add = |reserved: u64| reserved.checked_add(bytes).filter(|total| *total <= bytes_max);
        let reserved =
            self.transaction_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        reserved.map_err(|reserved| reserved.saturating_add(bytes))?;
        if self.includes_open_tables {
            self.enforce_budget();
        }
        Ok(())
    }

    /// Releases the bytes of a transaction. The next fill makes them available to blocks.
    pub(crate) fn release_transaction_bytes(&self, bytes: u64) {
        self.transaction_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes in read-ahead buffers of cursors.
    #[must_use]
    pub fn read_ahead_bytes(&self) -> u64 {
        self.read_ahead_bytes.load(Ordering::Relaxed)
    }

    /// Counts a new read-ahead buffer.
    pub(crate) fn add_read_ahead_bytes(&self, bytes: u64) {
        self.read_ahead_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts a freed read-ahead buffer.
    pub(crate) fn sub_read_ahead_bytes(&self, bytes: u64) {
        self.read_ahead_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes of metadata that fit without an eviction of metadata.
    pub(crate) fn available_metadata_bytes(&self) -> u64 {
        self.block_budget_bytes().saturating_sub(self.metadata_bytes())
    }

    /// Counts the bytes of an opened table, and evicts blocks if necessary.
    fn add_open_table(&self, bytes: u64) {
        self.open_table_bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.includes_open_tables {
            self.enforce_budget();
        }
    }

    /// Subtracts the bytes of a closed table. The next fill makes them available to blocks.
    fn remove_open_table(&self, bytes: u64) {
        self.open_table_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the budget for blocks: without open tables, operand stores and transactions, if these are included.
    pub(crate) fn block_budget_bytes(&self) -> u64 {
        let others = || {
            let tables_and_stores =
                self.open_table_bytes().saturating_add(self.operand_store_bytes());
            tables_and_stores.saturating_add(self.transaction_bytes())
        };
        let others = if self.includes_open_tables { others() } else { 0 };
        self.budget_bytes.saturating_sub(others)
    }

    fn add_metadata_bytes(&self, kind: MetadataKind, bytes: u64) {
        self.metadata_bytes[kind as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts bytes of metadata. The next fill makes them available to data blocks.
    fn subtract_metadata_bytes(&self, kind: MetadataKind, bytes: u64) {
        self.metadata_bytes[kind as usize].fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Enforces the budget after a slot was filled. Appends `slot` to the CLOCK queue; `None` if the queue contains the
    /// slot already.
    fn finish_metadata_fill(&self, kind: MetadataKind, slot: Option<SlotRef>) {
        if let Some(slot) = slot {
            let mut queues = self.clock_queues.lock();
            let queue = &mut queues[kind as usize];
            if queue.len() == queue.capacity() {
                // Removes slots of dropped tables before the queue grows. The queue at least doubles its capacity, so
                // the removals take amortized constant time per slot.
                queue.retain(|slot| slot.table.strong_count() > 0);
                queue.reserve(queue.len() + 1);
            }
            queue.push_back(slot);
        }
        self.enforce_budget();
    }

    /// Evicts metadata until it fits the budget, and gives the rest of the budget to the data cache.
    fn enforce_budget(&self) {
        if self.metadata_bytes() > self.block_budget_bytes() {
            for kind in MetadataKind::ALL {
                self.evict_kind(kind);
            }
        }
        let left = self.block_budget_bytes().saturating_sub(self.metadata_bytes());
        let step = (self.budget_bytes / CAPACITY_STEPS).max(1);
        let capacity = left - left % step;
        if self.data_capacity.swap(capacity, Ordering::SeqCst) != capacity {
            self.apply_data_capacity();
        }
    }

    /// Sets the capacity of the data cache to the last computed value, without waiting.
    ///
    /// The thread that applies a capacity checks for a newer one afterwards, so the newest capacity takes effect. The
    /// sequentially consistent accesses order the flag and the capacity.
    fn apply_data_capacity(&self) {
        while !self.applies_capacity.swap(true, Ordering::SeqCst) {
            let capacity = self.data_capacity.load(Ordering::SeqCst);
            self.data.set_capacity(capacity);
            self.applies_capacity.store(false, Ordering::SeqCst);
            if self.data_capacity.load(Ordering::SeqCst) == capacity {
                break;
            }
        }
    }

    /// Evicts slots of one kind until all metadata fits the budget or the queue is empty.
    fn evict_kind(&self, kind: MetadataKind) {
        let mut visited = Vec::new();
        let mut queues = self.clock_queues.lock();
        let queue = &mut queues[kind as usize];
        // The second pass evicts slots even if readers use them again meanwhile, so the loop ends.
        let mut visits = 2 * queue.len();
        while self.metadata_bytes() > self.block_budget_bytes() && visits > 0 {
            visits -= 1;
            let Some(slot) = queue.pop_front() else { break };
            let Some(table) = slot.table.upgrade() else { continue };
            table.set_in_clock_queue(kind, slot.ordinal, false);
            match table.take_state(kind, slot.ordinal) {
                SlotState::Empty => {}
                SlotState::Used if visits >= queue.len() => {
                    // A concurrent fill may have queued the slot already.
                    if !table.set_in_clock_queue(kind, slot.ordinal, true) {
                        queue.push_back(slot);
                    }
                }
                SlotState::Used | SlotState::Idle => table.evict(kind, slot.ordinal),
            }
            // If this is the last handle of a dropped table, dropping it empties its slots. That happens after the
            // lock is released.
            visited.push(table);
        }
        drop(queues);
    }
}

#[cfg(test)]
mod tests;
