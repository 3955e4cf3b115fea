//! The entries of a memtable in insertion order.
//!
//! Entries are never moved or removed, so cursors and tree nodes refer to entries by number.

use lsmx_base::sync::{AtomicU32, OnceLock, Ordering};

use crate::memtable::entry::MemtableEntry;
use crate::memtable::stable_vec::StableVec;

/// Base-2 logarithm of the maximum number of entries in a segment: 256 entries, or 14 KiB.
const SEGMENT_BITS: u32 = 8;
/// Bytes of an entry without its key and value, including a share of the list of segments.
pub(crate) const ENTRY_BYTES: u64 = size_of::<OnceLock<MemtableEntry>>() as u64 + 1;

/// A growing array of entries. One thread at a time adds entries. Readers take no lock.
#[derive(Debug)]
pub(crate) struct EntryArray {
    cells: StableVec<OnceLock<MemtableEntry>, SEGMENT_BITS>,
    count: AtomicU32,
}

impl EntryArray {
    pub(crate) fn new() -> EntryArray {
        EntryArray { cells: StableVec::new(), count: AtomicU32::new(0) }
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Returns the entry with this number, if the entry exists.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&MemtableEntry> {
        self.cells.get(number)?.get()
    }

    /// Returns the entry with a number that a search returned.
    #[inline]
    pub(crate) fn entry(&self, number: u32) -> &MemtableEntry {
        // The writer stores an entry in this array before it stores the number elsewhere.
        self.get(number).expect("the number belongs to an entry")
    }

    /// Adds an entry and returns its number. Only one thread may call this method at a time.
    pub(crate) fn push(&self, entry: MemtableEntry) -> u32 {
        let number = self.count.load(Ordering::Relaxed);
        let cell = self.cells.get_or_grow(number).expect("it is the next entry");
        // Only one thread adds entries at a time, so the cell is empty and `set` succeeds.
        let _ = cell.set(entry);
        // An entry takes more than 64 bytes, so the memory is exhausted before there are 2^32 entries.
        self.count
            .store(number.checked_add(1).expect("memory is exhausted before"), Ordering::Release);
        number
    }
}
