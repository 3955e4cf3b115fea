//! The entries of a memtable in insertion order.
//!
//! Entries are never moved or removed. A cursor refers to its entry by number.

use lsmx_base::sync::{AtomicU32, OnceLock, Ordering};

use crate::memtable::entry::MemtableEntry;
use crate::memtable::stable_vec::StableVec;

/// Base-2 logarithm of the maximum number of entries in a segment: 256 entries, or 14 KiB.
const SEGMENT_BITS: u32 = 8;
/// Bytes of an entry without key and value, including its share of the segment list.
pub(crate) const ENTRY_BYTES: u64 = size_of::<OnceLock<MemtableEntry>>() as u64 + 1;

/// A growing array of entries for one writer at a time and lock-free readers.
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

    /// Returns an entry, if it exists.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&MemtableEntry> {
        self.cells.get(number)?.get()
    }

    /// Returns an entry by a number that a search returned.
    #[inline]
    pub(crate) fn entry(&self, number: u32) -> &MemtableEntry {
        // An entry is stored here before its number is stored elsewhere.
        self.get(number).expect("the number belongs to an entry")
    }

    /// Adds an entry and returns its number. For one thread at a time.
    pub(crate) fn push(&self, entry: MemtableEntry) -> u32 {
        let number = self.count.load(Ordering::Relaxed);
        let cell = self.cells.get_or_grow(number).expect("it is the next entry");
        // There is one writer at a time, so no other thread has filled the cell of this number.
        let _ = cell.set(entry);
        // An entry takes more than 64 bytes, so memory is exhausted before 2^32 entries.
        self.count
            .store(number.checked_add(1).expect("memory is exhausted before"), Ordering::Release);
        number
    }
}
