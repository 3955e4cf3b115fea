//! Metadata blocks in memory: slots on the open table that owns them.
//!
//! A reader that knows the table needs no hash table to find its filter: the slot is a field. The
//! cache only counts the slots' bytes, and its governor empties those that were not used since it
//! last came by.

use std::fmt;

use arc_swap::{ArcSwapOption, Guard};
use lsmx_base::coding::len_u64;
use lsmx_base::filter::Filter;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU8, OnceLock, Ordering, Weak};

use crate::cache::Cache;
use crate::format::index::IndexBlock;
use crate::format::range_tombstones::FragmentedTombstones;

/// Bytes that a slot's content costs beside its block.
pub(crate) const SLOT_OVERHEAD_BYTES: u64 = 112;

/// As [`SLOT_OVERHEAD_BYTES`], for index blocks: the places of its parts, counts of its owners, and what
/// the allocator needs for two allocations.
pub(crate) const INDEX_OVERHEAD_BYTES: u64 = 48 + len_u64(size_of::<IndexBlock>());

/// Bytes that an open table costs besides keys and blocks: handle, slots, shape, what the manifest
/// keeps of it, and its places in versions.
const HANDLE_BYTES: u64 = 2 << 10;

/// How often an open table has its smallest and largest key and its path in memory: in its
/// properties, in the shape that policies see, and in what the manifest keeps.
const KEY_COPIES: u64 = 3;

/// Metadata that the governor may evict, in the order in which it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metadata {
    Index = 0,
    Filter = 1,
    TopIndex = 2,
    RangeTombstones = 3,
}

impl Metadata {
    pub(crate) const ALL: [Metadata; 4] =
        [Metadata::Index, Metadata::Filter, Metadata::TopIndex, Metadata::RangeTombstones];
}

/// A decoded block that says how much memory it takes.
pub(crate) trait Resident: Send + Sync {
    fn resident_bytes(&self) -> u64;
}

impl Resident for Filter {
    fn resident_bytes(&self) -> u64 {
        len_u64(self.bytes()) + SLOT_OVERHEAD_BYTES
    }
}

impl Resident for IndexBlock {
    fn resident_bytes(&self) -> u64 {
        len_u64(self.bytes()) + INDEX_OVERHEAD_BYTES
    }
}

impl Resident for FragmentedTombstones {
    fn resident_bytes(&self) -> u64 {
        len_u64(self.bytes()) + SLOT_OVERHEAD_BYTES
    }
}

/// A place for one metadata block.
pub(crate) struct Slot<T> {
    content: ArcSwapOption<T>,
    /// The clock bit: set by use, cleared by the governor on its way. Pairs with nothing: a use that
    /// the governor misses costs at most a read.
    used: AtomicBool,
    /// Whether the governor's rounds list the slot, filled or not. A slot is listed once, however often it
    /// is filled and emptied.
    listed: AtomicBool,
}

impl<T> Default for Slot<T> {
    fn default() -> Slot<T> {
        Slot {
            content: ArcSwapOption::empty(),
            used: AtomicBool::new(false),
            listed: AtomicBool::new(false),
        }
    }
}

impl<T: Resident> Slot<T> {
    /// The content, if it is there; counts as a use.
    #[inline]
    pub(crate) fn get(&self) -> Guard<Option<Arc<T>>> {
        let content = self.content.load();
        // Read first: a bit that is set already needs no write, which would take the cache line
        // from other readers.
        if content.is_some() && !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        content
    }

    /// Puts content in unless somebody was faster; returns whether it did. The fill itself is not
    /// a use: what was asked for just once is the first to go.
    fn fill(&self, content: &Arc<T>) -> bool {
        self.used.store(false, Ordering::Relaxed);
        let none: Option<Arc<T>> = None;
        self.content.compare_and_swap(&none, Some(content.clone())).is_none()
    }

    /// Takes the content out; returns its bytes.
    fn empty(&self) -> Option<u64> {
        self.content.swap(None).map(|content| content.resident_bytes())
    }

    /// Whether there is content that was not used since this was last asked.
    fn idle(&self) -> Visit {
        if self.content.load().is_none() {
            Visit::Empty
        } else if self.used.swap(false, Ordering::Relaxed) {
            Visit::Used
        } else {
            Visit::Idle
        }
    }
}

impl<T> fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("full", &self.content.load().is_some()).finish()
    }
}

/// What the governor finds at a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    Empty,
    Used,
    Idle,
}

/// The metadata slots of one open table. Dropping them takes their bytes off the count.
#[derive(Debug)]
pub(crate) struct TableSlots {
    cache: Arc<Cache>,
    /// Bytes that the open table takes besides its blocks.
    open_bytes: u64,
    /// Level that the table lies in, for what its filter answers to be counted there. Pairs with
    /// nothing.
    level: AtomicU8,
    pub(crate) filter: Slot<Filter>,
    pub(crate) top_index: Slot<IndexBlock>,
    pub(crate) range_tombstones: Slot<FragmentedTombstones>,
    /// One for each index block; as many as the top index has entries, so not known before that
    /// was read.
    index: OnceLock<Box<[Slot<IndexBlock>]>>,
}

impl TableSlots {
    /// Empty slots of a table whose handle holds `key_bytes` of keys and paths, and that has so
    /// many index blocks.
    pub(crate) fn new(cache: &Arc<Cache>, key_bytes: u64, index_blocks: u64) -> Arc<TableSlots> {
        let slots = index_blocks.saturating_mul(len_u64(size_of::<Slot<IndexBlock>>()));
        let keys = key_bytes.saturating_mul(KEY_COPIES);
        let open_bytes = HANDLE_BYTES.saturating_add(keys).saturating_add(slots);
        cache.table_opened(open_bytes);
        Arc::new(TableSlots {
            cache: cache.clone(),
            open_bytes,
            level: AtomicU8::new(0),
            filter: Slot::default(),
            top_index: Slot::default(),
            range_tombstones: Slot::default(),
            index: OnceLock::new(),
        })
    }

    pub(crate) fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Says which level the table lies in.
    pub(crate) fn set_level(&self, level: u8) {
        // It seldom moves, and a write would take the cache line from readers.
        if self.level.load(Ordering::Relaxed) != level {
            self.level.store(level, Ordering::Relaxed);
        }
    }

    /// The level that the table lies in.
    #[inline]
    pub(crate) fn level(&self) -> u8 {
        self.level.load(Ordering::Relaxed)
    }

    /// The slot of an index block of a table whose top index has `count` entries.
    #[inline]
    pub(crate) fn index(&self, ordinal: usize, count: usize) -> Option<&Slot<IndexBlock>> {
        self.index.get_or_init(|| (0..count).map(|_| Slot::default()).collect()).get(ordinal)
    }

    fn index_if_known(&self, ordinal: usize) -> Option<&Slot<IndexBlock>> {
        self.index.get()?.get(ordinal)
    }

    /// Puts a block into its slot and on the count.
    pub(crate) fn fill<T: Resident>(
        self: &Arc<Self>,
        slot: &Slot<T>,
        kind: Metadata,
        ordinal: usize,
        content: &Arc<T>,
    ) {
        // On the count first: an eviction in between must not take off what is not on yet.
        let bytes = content.resident_bytes();
        self.cache.charge(kind, bytes);
        if slot.fill(content) {
            // The governor clears the flag before it looks at the content, so it misses no content.
            let listed = slot.listed.swap(true, Ordering::AcqRel);
            let place = Place { table: Arc::downgrade(self), ordinal };
            self.cache.filled(kind, (!listed).then_some(place));
        } else {
            self.cache.discharge(kind, bytes);
        }
    }

    /// Takes the filter out of memory, for a table that has come to lie in the last sorted run.
    pub(crate) fn release_filter(&self) {
        // Most have none, and to look costs less than to swap.
        if self.filter.content.load().is_some()
            && let Some(bytes) = self.filter.empty()
        {
            self.cache.discharge(Metadata::Filter, bytes);
        }
    }

    /// Sets whether the governor's rounds list a slot. Returns whether they did.
    pub(crate) fn set_listed(&self, kind: Metadata, ordinal: usize, listed: bool) -> bool {
        let flag = match kind {
            Metadata::Index => match self.index_if_known(ordinal) {
                Some(slot) => &slot.listed,
                None => return false,
            },
            Metadata::TopIndex => &self.top_index.listed,
            Metadata::Filter => &self.filter.listed,
            Metadata::RangeTombstones => &self.range_tombstones.listed,
        };
        flag.swap(listed, Ordering::AcqRel)
    }

    pub(crate) fn visit(&self, kind: Metadata, ordinal: usize) -> Visit {
        match kind {
            Metadata::Index => self.index_if_known(ordinal).map_or(Visit::Empty, Slot::idle),
            Metadata::TopIndex => self.top_index.idle(),
            Metadata::Filter => self.filter.idle(),
            Metadata::RangeTombstones => self.range_tombstones.idle(),
        }
    }

    /// Empties a slot and takes its bytes off the count.
    pub(crate) fn evict(&self, kind: Metadata, ordinal: usize) {
        let bytes = match kind {
            Metadata::Index => self.index_if_known(ordinal).and_then(Slot::empty),
            Metadata::TopIndex => self.top_index.empty(),
            Metadata::Filter => self.filter.empty(),
            Metadata::RangeTombstones => self.range_tombstones.empty(),
        };
        if let Some(bytes) = bytes {
            self.cache.discharge(kind, bytes);
        }
    }
}

impl Drop for TableSlots {
    fn drop(&mut self) {
        self.cache.table_closed(self.open_bytes);
        for kind in [Metadata::TopIndex, Metadata::Filter, Metadata::RangeTombstones] {
            self.evict(kind, 0);
        }
        for ordinal in 0..self.index.get().map_or(0, |slots| slots.len()) {
            self.evict(Metadata::Index, ordinal);
        }
    }
}

/// Where a filled slot is.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) table: Weak<TableSlots>,
    pub(crate) ordinal: usize,
}
