//! The sorted entries of a memtable, in one of two data structures.

use std::fmt;

use crate::memtable::arena::CopiedEntry;
use crate::memtable::btree::{BLinkTree, TreePosition};
use crate::memtable::entry::{EntryAttributes, MemtableEntry, SeekTarget};
use crate::memtable::entry_array::EntryArray;
use crate::memtable::skip_list::SkipList;

/// Data structure of the sorted entries of a memtable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemtableKind {
    /// A B-link tree with one writer at a time and lock-free readers.
    #[default]
    BLinkTree,
    /// The skip list of the package `crossbeam-skiplist`.
    ///
    /// The skip list needs more memory per entry than the B-link tree, and each step of an iterator is a search.
    SkipList,
}

impl MemtableKind {
    /// All kinds.
    #[cfg(feature = "internals")]
    pub const ALL: [MemtableKind; 2] = [MemtableKind::BLinkTree, MemtableKind::SkipList];
}

impl fmt::Display for MemtableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemtableKind::BLinkTree => "b-link-tree",
            MemtableKind::SkipList => "skip-list",
        })
    }
}

impl std::str::FromStr for MemtableKind {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<MemtableKind, &'static str> {
        match text {
            "b-link-tree" => Ok(MemtableKind::BLinkTree),
            "skip-list" => Ok(MemtableKind::SkipList),
            _ => Err("b-link-tree or skip-list"),
        }
    }
}

/// The sorted entries of a memtable. Inserts are serialized by a lock. Readers take no lock.
#[derive(Debug)]
pub(crate) enum SortedEntries {
    BLinkTree(BLinkTree),
    SkipList(SkipList),
}

/// Position of an entry. For a B-link tree, the position includes the leaf, so that the next entry can be found without
/// a search.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EntryPosition {
    InTree(TreePosition),
    Number(u32),
}

impl EntryPosition {
    #[inline]
    fn number(self) -> u32 {
        match self {
            EntryPosition::InTree(at) => at.entry,
            EntryPosition::Number(number) => number,
        }
    }
}

impl SortedEntries {
    pub(crate) fn new(kind: MemtableKind) -> SortedEntries {
        match kind {
            MemtableKind::BLinkTree => SortedEntries::BLinkTree(BLinkTree::new()),
            MemtableKind::SkipList => SortedEntries::SkipList(SkipList::new()),
        }
    }

    pub(crate) fn kind(&self) -> MemtableKind {
        match self {
            SortedEntries::BLinkTree(_) => MemtableKind::BLinkTree,
            SortedEntries::SkipList(_) => MemtableKind::SkipList,
        }
    }

    #[inline]
    fn entries(&self) -> &EntryArray {
        match self {
            SortedEntries::BLinkTree(tree) => tree.entries(),
            SortedEntries::SkipList(list) => list.entries(),
        }
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> u32 {
        self.entries().len()
    }

    /// Returns the entries in insertion order, starting with entry number `first`. The oldest entry has number 0.
    pub(crate) fn inserted_from(&self, first: u32) -> impl Iterator<Item = &MemtableEntry> {
        (first..self.len()).map(|number| self.entries().entry(number))
    }

    /// Returns the entry at a position.
    #[inline]
    pub(crate) fn entry(&self, at: EntryPosition) -> &MemtableEntry {
        self.entries().entry(at.number())
    }

    /// Inserts an entry with a unique sequence number. Returns the number of allocated bytes.
    pub(crate) fn insert(&self, user_key: &[u8], value: &[u8], meta: EntryAttributes) -> u64 {
        match self {
            SortedEntries::BLinkTree(tree) => tree.insert(user_key, value, meta),
            SortedEntries::SkipList(list) => list.insert(user_key, value, meta),
        }
    }

    /// Like [`SortedEntries::insert`], for an entry that was already copied into an arena.
    pub(crate) fn insert_copied(&self, copied: CopiedEntry, meta: EntryAttributes) -> u64 {
        match self {
            SortedEntries::BLinkTree(tree) => tree.insert_copied(copied, meta),
            SortedEntries::SkipList(list) => list.insert_copied(copied, meta),
        }
    }

    /// Finds the first entry at or after a target.
    #[inline]
    pub(crate) fn seek(&self, target: SeekTarget<'_>) -> Option<EntryPosition> {
        match self {
            SortedEntries::BLinkTree(tree) => tree.seek(target).map(EntryPosition::InTree),
            SortedEntries::SkipList(list) => list.seek(target).map(EntryPosition::Number),
        }
    }

    /// Finds the last entry before a target.
    pub(crate) fn seek_before(&self, target: SeekTarget<'_>) -> Option<EntryPosition> {
        match self {
            SortedEntries::BLinkTree(tree) => tree.seek_before(target).map(EntryPosition::InTree),
            SortedEntries::SkipList(list) => list.seek_before(target).map(EntryPosition::Number),
        }
    }

    /// Returns the first entry.
    pub(crate) fn first(&self) -> Option<EntryPosition> {
        match self {
            SortedEntries::BLinkTree(tree) => tree.first().map(EntryPosition::InTree),
            SortedEntries::SkipList(list) => list.first().map(EntryPosition::Number),
        }
    }

    /// Returns the last entry.
    pub(crate) fn last(&self) -> Option<EntryPosition> {
        match self {
            SortedEntries::BLinkTree(tree) => tree.last().map(EntryPosition::InTree),
            SortedEntries::SkipList(list) => list.last().map(EntryPosition::Number),
        }
    }

    /// Returns an entry near the median, or `None` if there are few entries. There must be no concurrent insert.
    pub(crate) fn middle_entry(&self) -> Option<&MemtableEntry> {
        match self {
            SortedEntries::BLinkTree(tree) => tree.middle_entry(),
            SortedEntries::SkipList(list) => list.middle_entry(),
        }
    }

    /// Returns the next entry.
    #[inline]
    pub(crate) fn next(&self, at: EntryPosition) -> Option<EntryPosition> {
        match (self, at) {
            (SortedEntries::BLinkTree(tree), EntryPosition::InTree(at)) => {
                tree.next(at).map(EntryPosition::InTree)
            }
            _ => self.seek(self.entry(at).seek_target().after()),
        }
    }

    /// Returns the previous entry.
    #[inline]
    pub(crate) fn prev(&self, at: EntryPosition) -> Option<EntryPosition> {
        match (self, at) {
            (SortedEntries::BLinkTree(tree), EntryPosition::InTree(at)) => {
                tree.prev(at).map(EntryPosition::InTree)
            }
            _ => self.seek_before(self.entry(at).seek_target()),
        }
    }
}
