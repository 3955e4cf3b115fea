//! Skip list of the package `crossbeam-skiplist`: an alternative to the B-link tree for the entries of a memtable.
//!
//! The skip list allows concurrent writers. The array of entries does not, so inserts are serialized.
//!
//! A cursor stores the number of its entry. A reference to a node of the skip list would need unsafe code. Therefore
//! each step of a cursor is a search.

use std::borrow::Borrow;
use std::cmp::Ordering as Order;
use std::fmt;
use std::ops::Bound;

use bytes::Bytes;
use crossbeam_skiplist::SkipMap;
use lsmx_base::key::KeyPrefix;
use lsmx_base::sync::Mutex;

use crate::memtable::arena::{Arena, CopiedEntry};
use crate::memtable::entry::{EntryAttributes, MemtableEntry, SeekTarget};
use crate::memtable::entry_array::{ENTRY_BYTES, EntryArray};

/// Estimated bytes of a node of the skip list: key, entry number, header, two pointers on average, and the overhead of
/// the allocation.
const NODE_BYTES: u64 = (size_of::<SkipKey>() + size_of::<u64>() * 6) as u64;

/// Number of entries in the sample from which [`SkipList::middle_entry`] takes the median.
const SAMPLE: u32 = 63;

/// A skip list that refers to entries by number.
pub(crate) struct SkipList {
    entries: EntryArray,
    /// Numbers of the entries, sorted by key and tag.
    numbers: SkipMap<SkipKey, u32>,
    /// Guards the arena and serializes inserts.
    arena: Mutex<Arena>,
}

/// Sort key of an entry in the skip list.
struct SkipKey {
    prefix: KeyPrefix,
    user_key: Bytes,
    tag: u64,
}

/// A sort key of an entry or the target of a search. The trait allows a search with a borrowed user key.
trait Comparable {
    fn target(&self) -> SeekTarget<'_>;
}

impl Comparable for SkipKey {
    fn target(&self) -> SeekTarget<'_> {
        SeekTarget { prefix: self.prefix, user_key: &self.user_key, tag: self.tag }
    }
}

impl Comparable for SeekTarget<'_> {
    fn target(&self) -> SeekTarget<'_> {
        *self
    }
}

impl Ord for dyn Comparable + '_ {
    fn cmp(&self, other: &Self) -> Order {
        let (a, b) = (self.target(), other.target());
        let order = a.prefix.0.cmp(&b.prefix.0).then_with(|| a.user_key.cmp(b.user_key));
        // Entries of one user key are sorted by descending tag.
        order.then(b.tag.cmp(&a.tag))
    }
}

impl PartialOrd for dyn Comparable + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn Comparable + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for dyn Comparable + '_ {}

impl<'a> Borrow<dyn Comparable + 'a> for SkipKey {
    fn borrow(&self) -> &(dyn Comparable + 'a) {
        self
    }
}

impl Ord for SkipKey {
    fn cmp(&self, other: &Self) -> Order {
        (self as &dyn Comparable).cmp(other as &dyn Comparable)
    }
}

impl PartialOrd for SkipKey {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl PartialEq for SkipKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for SkipKey {}

impl fmt::Debug for SkipList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SkipList").field("entries", &self.entries.len()).finish()
    }
}

impl SkipList {
    pub(crate) fn new() -> SkipList {
        SkipList {
            entries: EntryArray::new(),
            numbers: SkipMap::new(),
            arena: Mutex::new(Arena::new()),
        }
    }

    /// Returns the array of entries. Searches return numbers of entries in this array.
    pub(crate) fn entries(&self) -> &EntryArray {
        &self.entries
    }

    /// Finds the first entry at or after a target.
    pub(crate) fn seek(&self, target: SeekTarget<'_>) -> Option<u32> {
        let bound: Bound<&dyn Comparable> = Bound::Included(&target);
        self.numbers.lower_bound(bound).map(|entry| *entry.value())
    }

    /// Finds the last entry before a target.
    pub(crate) fn seek_before(&self, target: SeekTarget<'_>) -> Option<u32> {
        let bound: Bound<&dyn Comparable> = Bound::Excluded(&target);
        self.numbers.upper_bound(bound).map(|entry| *entry.value())
    }

    /// Returns the first entry.
    pub(crate) fn first(&self) -> Option<u32> {
        self.numbers.front().map(|entry| *entry.value())
    }

    /// Returns the last entry.
    pub(crate) fn last(&self) -> Option<u32> {
        self.numbers.back().map(|entry| *entry.value())
    }

    /// Returns an entry near the median, or `None` if there are few entries. The result is the median of a sample.
    pub(crate) fn middle_entry(&self) -> Option<&MemtableEntry> {
        let step = self.entries.len() / SAMPLE;
        let mut sample: Vec<_> = (0..SAMPLE).filter_map(|at| self.entries.get(at * step)).collect();
        sample.sort_unstable_by_key(|entry| entry.user_key());
        (step > 0).then(|| sample.get(sample.len() / 2).copied())?
    }

    /// Inserts an entry with a unique sequence number. Returns the number of allocated bytes.
    pub(crate) fn insert(&self, user_key: &[u8], value: &[u8], meta: EntryAttributes) -> u64 {
        let mut arena = self.arena.lock();
        let copied = arena.copy_entry(user_key, value);
        self.link_entry(copied, meta)
    }

    /// Like [`SkipList::insert`], for an entry that was already copied into an arena.
    pub(crate) fn insert_copied(&self, copied: CopiedEntry, meta: EntryAttributes) -> u64 {
        let _writer = self.arena.lock();
        self.link_entry(copied, meta)
    }

    /// Adds an entry to the array and to the skip list. Returns the number of allocated bytes. The caller must hold the
    /// lock of the arena.
    fn link_entry(&self, copied: CopiedEntry, meta: EntryAttributes) -> u64 {
        let allocated_bytes = copied.allocated_bytes;
        let number = self.entries.push(MemtableEntry::new(copied.data, copied.key_bytes, meta));
        let entry = self.entries.entry(number);
        let SeekTarget { prefix, tag, .. } = entry.seek_target();
        self.numbers.insert(SkipKey { prefix, user_key: entry.user_key_bytes(), tag }, number);
        allocated_bytes + ENTRY_BYTES + NODE_BYTES
    }
}
