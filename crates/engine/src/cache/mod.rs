//! Block cache: caches metadata blocks and data blocks within one memory budget. Metadata has priority.
//!
//! 1. A general-purpose cache (`data_cache`) contains the data blocks. Its capacity is the budget minus the size of the
//!    metadata.
//! 2. Metadata blocks are in slots of their open tables (`metadata_slots`). The block cache counts their bytes.
//! 3. If metadata alone exceeds the budget, metadata blocks are evicted in this order: index blocks, filters, top
//!    indexes, range tombstones. Top indexes are evicted after filters, because a top index has at most 1/30 of the
//!    size of the filters and saves as many reads. Blocks of the same kind are evicted by the CLOCK algorithm: the
//!    CLOCK hand skips a slot once if the slot was used since the last visit.
//!
//! If filters and top indexes fit in the budget, a lookup reads at most two blocks: an index block and a data block. If
//! index blocks also fit, it reads at most one block. The only lock protects the CLOCK queues. No file is read while
//! this lock is held.

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

/// The capacity of the data cache changes in steps of the budget divided by this number. Each change of the capacity
/// locks all shards of the data cache. Coarse steps make such changes rare.
const CAPACITY_STEPS: u64 = 256;

/// References to filled slots of one kind, oldest first.
type ClockQueue = VecDeque<SlotRef>;

/// Cached blocks of a database within a memory budget.
#[derive(Debug)]
pub struct BlockCache {
    kind: BlockCacheKind,
    budget_bytes: u64,
    /// Whether open tables, operand stores and transactions count towards the budget.
    includes_open_tables: bool,
    /// Memory of open tables in bytes, without their blocks.
    open_table_bytes: AtomicU64,
    operand_store_bytes: AtomicU64,
    transaction_bytes: AtomicU64,
    /// Memory of the read-ahead buffers of cursors in bytes.
    read_ahead_bytes: AtomicU64,
    data: Box<dyn DataBlockCache>,
    /// The last computed capacity of the data cache in bytes.
    data_capacity: AtomicU64,
    /// Whether a thread is applying the capacity to the data cache.
    applies_capacity: AtomicBool,
    /// Bytes in filled slots, indexed by [`MetadataKind`].
    metadata_bytes: [AtomicU64; MetadataKind::ALL.len()],
    /// CLOCK queues, indexed by [`MetadataKind`]. The lock protects only the queues.
    clock_queues: Mutex<[ClockQueue; MetadataKind::ALL.len()]>,
    pub(crate) counters: CacheCounters,
    /// Counts data blocks that are in memory, whether the cache or a reader holds them.
    live_blocks: Arc<BlockMemoryCounter>,
    table_count: AtomicU64,
}

impl BlockCache {
    /// Creates a cache with a budget of `budget_bytes` bytes. If the budget is 0, the cache stores nothing.
    #[must_use]
    pub fn new(budget_bytes: u64) -> Arc<BlockCache> {
        BlockCache::with_cache_kind(BlockCacheKind::default(), budget_bytes)
    }

    /// Like [`BlockCache::new`], but with the given implementation of the data cache.
    #[must_use]
    pub fn with_cache_kind(kind: BlockCacheKind, budget_bytes: u64) -> Arc<BlockCache> {
        BlockCache::create(kind, budget_bytes, false)
    }

    /// Creates a cache in which open tables, operand stores and transactions also count towards the budget.
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

    /// Returns the implementation of the data cache.
    #[must_use]
    pub fn cache_kind(&self) -> BlockCacheKind {
        self.kind
    }

    /// Returns the numbers of hits and misses since the cache was created. Reads of background jobs are not counted.
    #[must_use]
    pub fn hit_counts(&self) -> BlockKindMap<HitCounts> {
        self.counters.hit_counts()
    }

    /// Returns the filter results since the cache was created, by the level of the tables.
    #[must_use]
    pub fn filter_counts(&self) -> BTreeMap<u8, FilterCounts> {
        self.counters.filter_counts()
    }

    /// Returns the memory of cached blocks in bytes, including overhead.
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

    /// Returns a unique id for a table that is being opened. A table that reuses a file number therefore has other keys
    /// in the cache.
    pub(crate) fn next_cache_id(&self) -> u64 {
        self.table_count.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the data block at `offset` of a table if it is cached.
    #[inline]
    pub(crate) fn get_data_block(&self, table: u64, offset: u64) -> Option<BlockBytes> {
        self.data.get(BlockId { table, offset })
    }

    /// Like [`BlockCache::get_data_block`], but does not mark the block as used.
    pub(crate) fn peek_data_block(&self, table: u64, offset: u64) -> Option<BlockBytes> {
        self.data.peek(BlockId { table, offset })
    }

    /// Adds a data block to the cache.
    pub(crate) fn insert_data_block(&self, table: u64, offset: u64, block: &BlockBytes) {
        if self.data_capacity.load(Ordering::Relaxed) > 0 {
            self.data.insert(BlockId { table, offset }, block.clone());
        }
    }

    pub(crate) fn live_block_counter(&self) -> &Arc<BlockMemoryCounter> {
        &self.live_blocks
    }

    /// Returns the memory of data blocks in bytes that iterators and slices hold, but the cache does not contain. The
    /// result is approximate while blocks are read concurrently.
    #[must_use]
    pub fn bytes_held_by_readers(&self) -> u64 {
        self.live_blocks.bytes().saturating_sub(self.data.bytes_without_overhead())
    }

    /// Returns the memory of open tables in bytes without their blocks: handles, key ranges and empty slots.
    #[must_use]
    pub fn open_table_bytes(&self) -> u64 {
        self.open_table_bytes.load(Ordering::Relaxed)
    }

    /// Returns the memory of operand stores in bytes.
    #[must_use]
    pub fn operand_store_bytes(&self) -> u64 {
        self.operand_store_bytes.load(Ordering::Relaxed)
    }

    /// Replaces the memory of an operand store by a new value. Evicts blocks if necessary.
    pub(crate) fn update_operand_store_bytes(&self, old: u64, new: u64) {
        self.operand_store_bytes.fetch_add(new, Ordering::Relaxed);
        self.operand_store_bytes.fetch_sub(old, Ordering::Relaxed);
        if self.includes_open_tables {
            self.enforce_budget();
        }
    }

    /// Returns the memory in bytes that is reserved for transactions.
    #[must_use]
    pub fn transaction_bytes(&self) -> u64 {
        self.transaction_bytes.load(Ordering::Relaxed)
    }

    /// Reserves memory for a transaction. Evicts blocks if necessary.
    ///
    /// If the total reserved memory would exceed `bytes_max`, reserves nothing and returns this total as an error.
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

    /// Releases the memory of a transaction.
    pub(crate) fn release_transaction_bytes(&self, bytes: u64) {
        self.transaction_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if self.includes_open_tables {
            self.assign_data_capacity();
        }
    }

    /// Returns the memory of the read-ahead buffers of cursors in bytes.
    #[must_use]
    pub fn read_ahead_bytes(&self) -> u64 {
        self.read_ahead_bytes.load(Ordering::Relaxed)
    }

    /// Adds the memory of a read-ahead buffer.
    pub(crate) fn add_read_ahead_bytes(&self, bytes: u64) {
        self.read_ahead_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts the memory of a read-ahead buffer.
    pub(crate) fn sub_read_ahead_bytes(&self, bytes: u64) {
        self.read_ahead_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns how many bytes of metadata can be added without evicting metadata.
    pub(crate) fn available_metadata_bytes(&self) -> u64 {
        self.block_budget_bytes().saturating_sub(self.metadata_bytes())
    }

    /// Adds the memory of an opened table. Evicts blocks if necessary.
    fn add_open_table(&self, bytes: u64) {
        self.open_table_bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.includes_open_tables {
            self.enforce_budget();
        }
    }

    /// Subtracts the memory of a closed table. The caller must then call [`BlockCache::assign_data_capacity`].
    fn remove_open_table(&self, bytes: u64) {
        self.open_table_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the part of the budget that is available to blocks. Open tables, operand stores and transactions are
    /// subtracted if they count towards the budget.
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

    /// Subtracts bytes of metadata. The caller must then call [`BlockCache::assign_data_capacity`].
    fn subtract_metadata_bytes(&self, kind: MetadataKind, bytes: u64) {
        self.metadata_bytes[kind as usize].fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Appends a filled slot to its CLOCK queue, and enforces the budget. `slot` is `None` if the slot is already in
    /// the queue.
    fn finish_metadata_fill(&self, kind: MetadataKind, slot: Option<SlotRef>) {
        if let Some(slot) = slot {
            let mut queues = self.clock_queues.lock();
            let queue = &mut queues[kind as usize];
            if queue.len() == queue.capacity() {
                // Remove the slots of closed tables before the queue grows. The queue at least doubles its capacity
                // each time, so the removal takes amortized constant time per slot.
                queue.retain(|slot| slot.table.strong_count() > 0);
                queue.reserve(queue.len() + 1);
            }
            queue.push_back(slot);
        }
        self.enforce_budget();
    }

    /// Evicts metadata that exceeds the budget, and assigns the rest of the budget to the data cache.
    fn enforce_budget(&self) {
        if self.metadata_bytes() > self.block_budget_bytes() {
            for kind in MetadataKind::ALL {
                self.evict_kind(kind);
            }
        }
        self.assign_data_capacity();
    }

    /// Returns the part of the budget without metadata, in steps.
    fn budgeted_data_capacity(&self) -> u64 {
        let left = self.available_metadata_bytes();
        let step = (self.budget_bytes / CAPACITY_STEPS).max(1);
        left - left % step
    }

    /// Assigns the part of the budget without metadata to the data cache.
    fn assign_data_capacity(&self) {
        loop {
            let capacity = self.budgeted_data_capacity();
            if self.data_capacity.swap(capacity, Ordering::SeqCst) != capacity {
                self.apply_data_capacity();
            }
            // The swap may have replaced a newer capacity of another thread.
            if self.budgeted_data_capacity() == capacity {
                break;
            }
        }
    }

    /// Applies the last computed capacity to the data cache, without waiting for other threads.
    ///
    /// After a thread has applied a capacity, it checks whether a newer capacity was computed. The newest capacity is
    /// therefore always applied. Sequentially consistent ordering is necessary to order the accesses to the flag and to
    /// the capacity.
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

    /// Evicts blocks of one kind until all metadata fits in the budget or the queue is empty.
    fn evict_kind(&self, kind: MetadataKind) {
        let mut visited = Vec::new();
        let mut queues = self.clock_queues.lock();
        let queue = &mut queues[kind as usize];
        // The second pass evicts slots even if readers use them concurrently. The loop therefore ends.
        let mut visits = 2 * queue.len();
        while self.metadata_bytes() > self.block_budget_bytes() && visits > 0 {
            visits -= 1;
            let Some(slot) = queue.pop_front() else { break };
            let Some(table) = slot.table.upgrade() else { continue };
            table.set_in_clock_queue(kind, slot.ordinal, false);
            match table.take_state(kind, slot.ordinal) {
                SlotState::Empty => {}
                SlotState::Used if visits >= queue.len() => {
                    // A concurrent fill may have added the slot to the queue already.
                    if !table.set_in_clock_queue(kind, slot.ordinal, true) {
                        queue.push_back(slot);
                    }
                }
                SlotState::Used | SlotState::Idle => table.evict(kind, slot.ordinal),
            }
            // If this is the last reference to a table, dropping it empties its slots. It is therefore dropped after
            // the lock is released.
            visited.push(table);
        }
        drop(queues);
    }
}

#[cfg(test)]
mod tests;
