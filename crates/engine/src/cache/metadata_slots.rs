//! Slots for cached metadata blocks: index blocks, filters and range tombstones. Each open table has its own slots.
//!
//! A slot is a field of the open table, so a reader finds a metadata block without a hash table. The block cache counts
//! the bytes in all slots. If these bytes exceed the budget, the block cache evicts metadata blocks that were not used
//! recently.

use std::fmt;

use arc_swap::{ArcSwapOption, Guard};
use lsmx_base::coding::len_u64;
use lsmx_base::filter::Filter;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU8, OnceLock, Ordering, Weak};

use crate::cache::BlockCache;
use crate::format::BlockKind;
use crate::format::index::IndexBlock;
use crate::format::range_tombstones::FragmentedTombstones;

/// Overhead of a filled slot in bytes.
pub(crate) const SLOT_OVERHEAD_BYTES: u64 = 112;

/// Overhead of an index block in a slot in bytes: offsets of its parts, reference counts, and the headers of two
/// allocations.
pub(crate) const INDEX_OVERHEAD_BYTES: u64 = 48 + len_u64(size_of::<IndexBlock>());

/// Estimated memory in bytes of an open table without its keys and blocks: handle, slots, manifest record, and
/// references in versions of the tree.
const HANDLE_BYTES: u64 = 2 << 10;

/// Estimated number of copies of the smallest key, the largest key and the path of a table in memory.
const KEY_COPIES: u64 = 3;

/// Kind of a metadata block. The order of the kinds is the order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetadataKind {
    Index = 0,
    Filter = 1,
    TopIndex = 2,
    RangeTombstones = 3,
}

impl MetadataKind {
    pub(crate) const ALL: [MetadataKind; 4] = [
        MetadataKind::Index,
        MetadataKind::Filter,
        MetadataKind::TopIndex,
        MetadataKind::RangeTombstones,
    ];

    /// Returns the kind by which the block cache counts these blocks.
    #[inline]
    pub(crate) fn block_kind(self) -> BlockKind {
        match self {
            MetadataKind::Index => BlockKind::Index,
            MetadataKind::TopIndex => BlockKind::TopIndex,
            MetadataKind::Filter => BlockKind::Filter,
            MetadataKind::RangeTombstones => BlockKind::RangeTombstones,
        }
    }
}

/// A decoded metadata block.
pub(crate) trait MetadataBlock: Send + Sync {
    /// Returns the size in memory in bytes, including the overhead of a slot.
    fn resident_bytes(&self) -> u64;
}

impl MetadataBlock for Filter {
    fn resident_bytes(&self) -> u64 {
        len_u64(self.bytes()) + SLOT_OVERHEAD_BYTES
    }
}

impl MetadataBlock for IndexBlock {
    fn resident_bytes(&self) -> u64 {
        len_u64(self.bytes()) + INDEX_OVERHEAD_BYTES
    }
}

impl MetadataBlock for FragmentedTombstones {
    fn resident_bytes(&self) -> u64 {
        len_u64(self.bytes()) + SLOT_OVERHEAD_BYTES
    }
}

/// Slot for one metadata block.
pub(crate) struct MetadataSlot<T> {
    content: ArcSwapOption<T>,
    /// Reference bit of the CLOCK algorithm. A read of the slot sets it, and the CLOCK hand clears it. Relaxed ordering
    /// is sufficient, because a lost update costs at most one additional read of the block.
    is_used: AtomicBool,
    /// Whether the slot is in the CLOCK queue. An empty slot may be in the queue. A slot is in the queue at most once.
    is_queued: AtomicBool,
}

impl<T> Default for MetadataSlot<T> {
    fn default() -> MetadataSlot<T> {
        MetadataSlot {
            content: ArcSwapOption::empty(),
            is_used: AtomicBool::new(false),
            is_queued: AtomicBool::new(false),
        }
    }
}

impl<T: MetadataBlock> MetadataSlot<T> {
    /// Returns the block if the slot is filled, and marks the slot as used.
    #[inline]
    pub(crate) fn get(&self) -> Guard<Option<Arc<T>>> {
        let content = self.content.load();
        // The bit is set only if it is clear, because a store would invalidate the cache line in other cores.
        if content.is_some() && !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
        content
    }

    /// Stores a block in the slot if the slot is empty. Returns false if the slot is already filled. Clears the
    /// reference bit, so that a block that is not read again is evicted early.
    fn fill(&self, content: &Arc<T>) -> bool {
        self.is_used.store(false, Ordering::Relaxed);
        let none: Option<Arc<T>> = None;
        self.content.compare_and_swap(&none, Some(content.clone())).is_none()
    }

    /// Empties the slot. Returns the size of the removed block in bytes.
    fn clear(&self) -> Option<u64> {
        self.content.swap(None).map(|content| content.resident_bytes())
    }

    /// Returns the state of the slot and clears the reference bit.
    fn take_state(&self) -> SlotState {
        if self.content.load().is_none() {
            SlotState::Empty
        } else if self.is_used.swap(false, Ordering::Relaxed) {
            SlotState::Used
        } else {
            SlotState::Idle
        }
    }
}

impl<T> fmt::Debug for MetadataSlot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetadataSlot").field("is_full", &self.content.load().is_some()).finish()
    }
}

/// State of a slot when the CLOCK hand visits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    Empty,
    Used,
    Idle,
}

/// Metadata slots of an open table. Dropping the slots subtracts their bytes from the metadata bytes of the block
/// cache.
#[derive(Debug)]
pub(crate) struct TableMetadataSlots {
    cache: Arc<BlockCache>,
    /// Memory of the open table in bytes, without its blocks.
    open_bytes: u64,
    /// Level of the table, to which filter results are attributed. Relaxed ordering is sufficient, because no other
    /// data depends on it.
    level: AtomicU8,
    pub(crate) filter: MetadataSlot<Filter>,
    pub(crate) top_index: MetadataSlot<IndexBlock>,
    pub(crate) range_tombstones: MetadataSlot<FragmentedTombstones>,
    /// One slot for each index block. Created when the top index is read, because its number of entries is the number
    /// of index blocks.
    index: OnceLock<Box<[MetadataSlot<IndexBlock>]>>,
}

impl TableMetadataSlots {
    /// Creates empty slots for a table. `key_bytes` is the total size of the smallest key, the largest key and the
    /// path. `index_blocks` is the number of index blocks.
    pub(crate) fn new(
        cache: &Arc<BlockCache>,
        key_bytes: u64,
        index_blocks: u64,
    ) -> Arc<TableMetadataSlots> {
        let slots = index_blocks.saturating_mul(len_u64(size_of::<MetadataSlot<IndexBlock>>()));
        let keys = key_bytes.saturating_mul(KEY_COPIES);
        let open_bytes = HANDLE_BYTES.saturating_add(keys).saturating_add(slots);
        cache.add_open_table(open_bytes);
        Arc::new(TableMetadataSlots {
            cache: cache.clone(),
            open_bytes,
            level: AtomicU8::new(0),
            filter: MetadataSlot::default(),
            top_index: MetadataSlot::default(),
            range_tombstones: MetadataSlot::default(),
            index: OnceLock::new(),
        })
    }

    pub(crate) fn cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    pub(crate) fn set_level(&self, level: u8) {
        // The level is stored only if it changes, because a store would invalidate the cache line in other cores.
        if self.level.load(Ordering::Relaxed) != level {
            self.level.store(level, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn level(&self) -> u8 {
        self.level.load(Ordering::Relaxed)
    }

    /// Returns the slot of the index block with this ordinal. `count` is the number of entries of the top index.
    #[inline]
    pub(crate) fn index_slot(
        &self,
        ordinal: usize,
        count: usize,
    ) -> Option<&MetadataSlot<IndexBlock>> {
        self.index
            .get_or_init(|| (0..count).map(|_| MetadataSlot::default()).collect())
            .get(ordinal)
    }

    fn existing_index_slot(&self, ordinal: usize) -> Option<&MetadataSlot<IndexBlock>> {
        self.index.get()?.get(ordinal)
    }

    /// Stores a block in a slot and counts its bytes.
    pub(crate) fn fill<T: MetadataBlock>(
        self: &Arc<Self>,
        slot: &MetadataSlot<T>,
        kind: MetadataKind,
        ordinal: usize,
        content: &Arc<T>,
    ) {
        // The bytes are added before the slot is filled. Otherwise, a concurrent eviction could subtract bytes that
        // have not been added.
        let bytes = content.resident_bytes();
        self.cache.add_metadata_bytes(kind, bytes);
        if slot.fill(content) {
            // If `is_queued` is already set, the CLOCK hand will visit the slot and decide about this block. The visit
            // clears the flag before it reads the slot.
            let was_queued = slot.is_queued.swap(true, Ordering::AcqRel);
            let slot = SlotRef { table: Arc::downgrade(self), ordinal };
            self.cache.finish_metadata_fill(kind, (!was_queued).then_some(slot));
        } else {
            self.cache.subtract_metadata_bytes(kind, bytes);
            self.cache.assign_data_capacity();
        }
    }

    /// Removes the filter from its slot. Called if the table becomes part of the last sorted run.
    pub(crate) fn release_filter(&self) {
        // Most tables of the last sorted run have no filter in memory. The load is cheaper than the swap in `clear`.
        if self.filter.content.load().is_some()
            && let Some(bytes) = self.filter.clear()
        {
            self.cache.subtract_metadata_bytes(MetadataKind::Filter, bytes);
            self.cache.assign_data_capacity();
        }
    }

    /// Sets whether the slot is in the CLOCK queue. Returns the previous value.
    pub(crate) fn set_in_clock_queue(
        &self,
        kind: MetadataKind,
        ordinal: usize,
        is_queued: bool,
    ) -> bool {
        let flag = match kind {
            MetadataKind::Index => match self.existing_index_slot(ordinal) {
                Some(slot) => &slot.is_queued,
                None => return false,
            },
            MetadataKind::TopIndex => &self.top_index.is_queued,
            MetadataKind::Filter => &self.filter.is_queued,
            MetadataKind::RangeTombstones => &self.range_tombstones.is_queued,
        };
        flag.swap(is_queued, Ordering::AcqRel)
    }

    pub(crate) fn take_state(&self, kind: MetadataKind, ordinal: usize) -> SlotState {
        match kind {
            MetadataKind::Index => {
                self.existing_index_slot(ordinal).map_or(SlotState::Empty, MetadataSlot::take_state)
            }
            MetadataKind::TopIndex => self.top_index.take_state(),
            MetadataKind::Filter => self.filter.take_state(),
            MetadataKind::RangeTombstones => self.range_tombstones.take_state(),
        }
    }

    /// Empties a slot and subtracts its bytes. The caller must then call [`BlockCache::assign_data_capacity`].
    pub(crate) fn evict(&self, kind: MetadataKind, ordinal: usize) {
        let bytes = match kind {
            MetadataKind::Index => self.existing_index_slot(ordinal).and_then(MetadataSlot::clear),
            MetadataKind::TopIndex => self.top_index.clear(),
            MetadataKind::Filter => self.filter.clear(),
            MetadataKind::RangeTombstones => self.range_tombstones.clear(),
        };
        if let Some(bytes) = bytes {
            self.cache.subtract_metadata_bytes(kind, bytes);
        }
    }
}

impl Drop for TableMetadataSlots {
    fn drop(&mut self) {
        self.cache.remove_open_table(self.open_bytes);
        for kind in [MetadataKind::TopIndex, MetadataKind::Filter, MetadataKind::RangeTombstones] {
            self.evict(kind, 0);
        }
        for ordinal in 0..self.index.get().map_or(0, |slots| slots.len()) {
            self.evict(MetadataKind::Index, ordinal);
        }
        self.cache.assign_data_capacity();
    }
}

/// Reference to a metadata slot of a table. It does not keep the table open.
#[derive(Debug)]
pub(crate) struct SlotRef {
    pub(crate) table: Weak<TableMetadataSlots>,
    pub(crate) ordinal: usize,
}
