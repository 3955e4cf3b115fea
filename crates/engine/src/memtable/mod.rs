//! Memtable: the sorted writes of one keyspace in memory, for one interval of sequence numbers.
//!
//! A merge operand can get a *folded value* after its insert: the result of combining the operand with all older
//! operands and the older value of its key. Readers and the flush then treat the entry as a put or a delete. The
//! operand and the folded value give the same result for every reader, so readers and the thread that sets the folded
//! value need no synchronization.

mod arena;
mod btree;
mod btree_node;
mod entry;
mod entry_array;
#[cfg(all(test, loom))]
mod loom_models;
mod range_tombstones;
mod skip_list;
mod sorted_entries;
mod stable_vec;
#[cfg(test)]
mod tests;

use std::fmt;

use bytes::Bytes;

use crate::cursor::Cursor;
use crate::deferred_drop::DeferredDrop;
use crate::error::Result;
pub(crate) use arena::{Arena, CopiedEntry};
use entry::{EntryAttributes, MemtableEntry, OPERAND_OVERHEAD_BYTES, OperandChain, SeekTarget};
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, AtomicU64, Ordering};
use lsmx_base::tombstone_index::TombstoneIndex;
use lsmx_base::work_counter::{self, WorkKind};
use range_tombstones::MemtableRangeTombstones;
pub use sorted_entries::MemtableKind;
use sorted_entries::{EntryPosition, SortedEntries};

/// Flag in the byte count of a memtable: the bytes are no longer included in the total of all memtables.
const RELEASED: u64 = 1 << 63;

/// Sorted writes of one keyspace in one interval of sequence numbers.
///
/// The commit pipeline inserts while other threads read. A sealed memtable is flushed only after its last insert has
/// ended.
pub(crate) struct Memtable {
    entries: SortedEntries,
    range_tombstones: MemtableRangeTombstones,
    /// Approximate size in bytes, with the flag [`RELEASED`] in the highest bit.
    bytes: AtomicU64,
    /// First sequence number of the interval. All writes of the keyspace from this number up to the seal are in this
    /// memtable.
    first_seq: SeqNo,
    /// Smallest sequence number of a commit that writes to this memtable; `u64::MAX` if there is none. The commit
    /// leader sets the value before the WAL append. Otherwise the WAL segment could be deleted between append and
    /// insert.
    first_announced: AtomicU64,
    /// Write time of the first tombstone in microseconds; [`NO_TOMBSTONE`] if there is none.
    first_tombstone_us: AtomicU64,
    /// Frees the entries in the background when the memtable is dropped.
    deferred_drop: DeferredDrop,
}

/// Approximate bytes of an entry in addition to its key and value, including its share of tree nodes.
pub(crate) const ENTRY_OVERHEAD_BYTES: u64 = 100;

const NO_TOMBSTONE: u64 = u64::MAX;

impl Memtable {
    /// Creates an empty memtable for sequence numbers from `first_seq` on.
    pub(crate) fn new(
        kind: MemtableKind,
        first_seq: SeqNo,
        deferred_drop: &DeferredDrop,
    ) -> Memtable {
        Memtable {
            entries: SortedEntries::new(kind),
            range_tombstones: MemtableRangeTombstones::new(),
            bytes: AtomicU64::new(0),
            first_seq,
            first_announced: AtomicU64::new(u64::MAX),
            first_tombstone_us: AtomicU64::new(NO_TOMBSTONE),
            deferred_drop: deferred_drop.clone(),
        }
    }

    /// Returns the data structure of the entries.
    pub(crate) fn kind(&self) -> MemtableKind {
        self.entries.kind()
    }

    /// Records the write time of a tombstone or range tombstone, if it is the first one. Returns whether it was the
    /// first.
    pub(crate) fn record_tombstone(&self, now_us: impl FnOnce() -> u64) -> bool {
        if self.first_tombstone_us.load(Ordering::Relaxed) != NO_TOMBSTONE {
            return false;
        }
        // The leaders of two commit groups may call this function at the same time.
        let (us, relaxed) = (now_us().min(NO_TOMBSTONE - 1), Ordering::Relaxed);
        self.first_tombstone_us.compare_exchange(NO_TOMBSTONE, us, relaxed, relaxed).is_ok()
    }

    /// Returns the write time of the first tombstone, in microseconds.
    pub(crate) fn first_tombstone_us(&self) -> Option<u64> {
        Some(self.first_tombstone_us.load(Ordering::Relaxed)).filter(|us| *us != NO_TOMBSTONE)
    }

    /// Returns the start of the interval of sequence numbers.
    pub(crate) fn first_seq(&self) -> SeqNo {
        self.first_seq
    }

    /// Records that a commit which starts at `seq` writes to this memtable. The commit leader calls this method before
    /// the WAL append, in order of sequence numbers.
    pub(crate) fn announce_commit(&self, seq: SeqNo) {
        self.first_announced.fetch_min(seq.0, Ordering::Release);
    }

    /// Returns the smallest sequence number passed to [`Memtable::announce_commit`]. WAL records from this number on
    /// must be kept.
    pub(crate) fn first_announced(&self) -> Option<SeqNo> {
        match self.first_announced.load(Ordering::Acquire) {
            u64::MAX => None,
            seq => Some(SeqNo(seq)),
        }
    }

    /// Inserts an entry with a unique sequence number. Returns the number of added bytes.
    pub(crate) fn insert(&self, user_key: &[u8], seq: SeqNo, kind: EntryKind, value: &[u8]) -> u64 {
        if kind == EntryKind::Merge {
            return self.insert_operand(user_key, seq, value, 0).0;
        }
        let bytes =
            self.entries.insert(user_key, value, EntryAttributes { seq, kind, chain: None });
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        bytes
    }

    /// Like [`Memtable::insert`], for an entry that was already copied into an arena.
    pub(crate) fn insert_copied(&self, copied: CopiedEntry, seq: SeqNo, kind: EntryKind) -> u64 {
        if kind == EntryKind::Merge {
            return self.insert(copied.key(), seq, kind, copied.payload());
        }
        let bytes = self.entries.insert_copied(copied, EntryAttributes { seq, kind, chain: None });
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        bytes
    }

    /// Inserts a range tombstone. Returns the number of added bytes.
    pub(crate) fn insert_range_tombstone(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        seq: SeqNo,
    ) -> u64 {
        let (start, end) = (Bytes::copy_from_slice(start), end.map(Bytes::copy_from_slice));
        let bytes = self.range_tombstones.insert(start, end, seq);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        bytes
    }

    /// Returns the sequence number of the newest range tombstone that covers `user_key` and is not newer than
    /// `snapshot`.
    #[inline]
    pub(crate) fn newest_covering_seq(&self, user_key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
        self.range_tombstones.newest_covering_seq(user_key, snapshot)
    }

    /// Returns the number of entries whose insert has started. The insert of the last entry may not have ended yet.
    pub(crate) fn inserted_count(&self) -> u32 {
        self.entries.len()
    }

    /// Returns whether a write newer than `seq` changes a key in the range from `start` (inclusive) to `end`
    /// (exclusive). If `end` is `None`, the range extends to the end of the keyspace.
    ///
    /// The caller has already checked the first `checked` entries in insertion order. The method searches two lists in
    /// alternation: the entries of the range in key order, and the unchecked entries in insertion order. Each list
    /// alone gives the result, so the search stops at the end of the shorter list.
    pub(crate) fn has_newer_write(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        seq: SeqNo,
        checked: u32,
    ) -> bool {
        let is_before_end = |entry: &MemtableEntry| end.is_none_or(|end| entry.user_key() < end);
        let mut unchecked = self.entries.inserted_from(checked);
        let mut next = self.entries.seek(SeekTarget::new(start, SeqNo::MAX));
        while let (Some(at), Some(inserted)) = (next, unchecked.next()) {
            work_counter::add(WorkKind::LeaderVisits, 2);
            let entry = self.entries.entry(at);
            if !is_before_end(entry) {
                break;
            }
            let is_inserted_in_range = start <= inserted.user_key() && is_before_end(inserted);
            if entry.seq() > seq || is_inserted_in_range && inserted.seq() > seq {
                return true;
            }
            next = self.entries.next(at);
        }
        self.tombstone_indexes().iter().any(|index| index.has_newer_overlap(start, end, seq))
    }

    /// Returns whether there are range tombstones.
    pub(crate) fn has_range_tombstones(&self) -> bool {
        !self.range_tombstones.is_empty()
    }

    /// Returns the indexes that together contain all range tombstones.
    pub(crate) fn tombstone_indexes(&self) -> Vec<Arc<TombstoneIndex>> {
        self.range_tombstones.chunk_indexes()
    }

    /// Returns the range tombstones, each with one sequence number.
    pub(crate) fn range_tombstones(&self) -> Vec<RangeTombstone> {
        self.range_tombstones.to_vec()
    }

    /// Returns the smallest and the largest user key of the entries, or `None` if there are no entries.
    pub(crate) fn key_range(&self) -> Option<(Bytes, Bytes)> {
        let (first, last) = (self.entries.first()?, self.entries.last()?);
        let key = |at: EntryPosition| self.entries.entry(at).user_key_bytes();
        Some((key(first), key(last)))
    }

    /// Returns a user key near the median of the entries, or `None` if the memtable is small.
    pub(crate) fn middle_key(&self) -> Option<Bytes> {
        self.entries.middle_entry().map(MemtableEntry::user_key_bytes)
    }

    /// Finds the newest entry of `user_key` that is not newer than `seq`.
    fn find(&self, user_key: &[u8], seq: SeqNo) -> Option<(EntryPosition, &MemtableEntry)> {
        let at = self.entries.seek(SeekTarget::new(user_key, seq))?;
        let entry = self.entries.entry(at);
        (entry.user_key() == user_key).then_some((at, entry))
    }

    /// Inserts a merge operand. Returns the number of added bytes, and whether the operands of the key should be
    /// folded.
    ///
    /// `older_operands` is the assumed number of operands in older data. It is used only if the memtable has no entry
    /// for the key.
    pub(crate) fn insert_operand(
        &self,
        user_key: &[u8],
        seq: SeqNo,
        operand: &[u8],
        older_operands: u32,
    ) -> (u64, bool) {
        let older = self.find(user_key, seq);
        let chain = older.map_or_else(
            || OperandChain::with_operands(older_operands),
            |(_, older)| older.chain(),
        );
        let (chain, is_long) = chain.add_operand(operand.len());
        let meta = EntryAttributes { seq, kind: EntryKind::Merge, chain: Some(chain) };
        let bytes = self.entries.insert(user_key, operand, meta) + OPERAND_OVERHEAD_BYTES;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        (bytes, is_long)
    }

    /// Sets the folded value of the merge operand of `user_key` at `seq`. `None` means that the key is deleted.
    ///
    /// Returns the number of bytes that the caller must add by [`Memtable::add_bytes`]. Returns `None` if there is no
    /// such operand or if the operand already has a folded value.
    pub(crate) fn set_folded_value(
        &self,
        user_key: &[u8],
        seq: SeqNo,
        value: Option<Slice>,
    ) -> Option<u64> {
        match self.find(user_key, seq) {
            Some((_, entry)) if entry.seq() == seq => {
                entry.set_folded_value(value.map(Slice::into_bytes))
            }
            _ => None,
        }
    }

    /// Adds `bytes` to the byte count. Returns false, without an effect, if the bytes were already released.
    pub(crate) fn add_bytes(&self, bytes: u64) -> bool {
        let counted = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
            (old & RELEASED == 0).then_some(old + bytes)
        });
        counted.is_ok()
    }

    /// Marks the bytes as released and returns their number, which the caller subtracts from the total of all
    /// memtables. Later calls return 0.
    pub(crate) fn release_bytes(&self) -> u64 {
        let bytes = self.bytes.fetch_or(RELEASED, Ordering::Relaxed);
        if bytes & RELEASED == 0 { bytes } else { 0 }
    }

    /// Returns the approximate memory of the entries and range tombstones in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) & !RELEASED
    }

    /// Returns the number of entries, without range tombstones.
    pub(crate) fn entry_count(&self) -> u64 {
        u64::from(self.entries.len())
    }

    /// Returns whether the memtable has neither entries nor range tombstones.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.len() == 0 && self.range_tombstones.is_empty()
    }

    /// Returns the newest entry of `user_key` that is not newer than `snapshot`.
    pub(crate) fn get(
        &self,
        user_key: &[u8],
        snapshot: SeqNo,
    ) -> Option<(SeqNo, EntryKind, Slice)> {
        let mut found = None;
        self.visit_versions(user_key, snapshot, |seq, kind, value| {
            found = Some((seq, kind, value));
            false
        });
        found
    }

    /// Calls `visit` for the versions of `user_key` that are not newer than `snapshot`, newest first. Stops when
    /// `visit` returns false. Returns whether `visit` returned false.
    pub(crate) fn visit_versions(
        &self,
        user_key: &[u8],
        snapshot: SeqNo,
        mut visit: impl FnMut(SeqNo, EntryKind, Slice) -> bool,
    ) -> bool {
        let mut found = self.find(user_key, snapshot);
        while let Some((at, entry)) = found {
            let folded = entry.is_folded();
            let key = entry.internal_key(folded);
            if !visit(key.seq, key.kind, Slice::new(entry.value_bytes(folded))) {
                return true;
            }
            found = self.entries.next(at).map(|at| (at, self.entries.entry(at)));
            found = found.filter(|(_, entry)| entry.user_key() == user_key);
        }
        false
    }

    /// Returns a cursor over all entries. The cursor may or may not see entries that are inserted later.
    pub(crate) fn cursor(self: &Arc<Memtable>) -> MemtableCursor {
        MemtableCursor { memtable: Arc::clone(self), position: None, is_folded: false }
    }
}

impl Drop for Memtable {
    /// Frees the entries in the background, because the thread that drops the last reference may be a reader.
    fn drop(&mut self) {
        if !self.is_empty() {
            let entries =
                std::mem::replace(&mut self.entries, SortedEntries::new(MemtableKind::BLinkTree));
            let empty = MemtableRangeTombstones::new();
            let range_tombstones = std::mem::replace(&mut self.range_tombstones, empty);
            self.deferred_drop.drop_later((entries, range_tombstones));
        }
    }
}

impl fmt::Debug for Memtable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memtable")
            .field("first_seq", &self.first_seq)
            .field("entries", &self.entries.len())
            .field("bytes", &self.bytes())
            .finish()
    }
}

/// A cursor over the entries of a memtable. The cursor holds a reference to the memtable.
pub(crate) struct MemtableCursor {
    memtable: Arc<Memtable>,
    position: Option<EntryPosition>,
    /// True if the cursor returns the folded value of its entry. Set when the cursor moves to the entry, so that kind
    /// and value match.
    is_folded: bool,
}

impl MemtableCursor {
    fn position(&self) -> EntryPosition {
        // The trait `Cursor` allows `key`, `value`, `next` and `prev` only while `valid` returns true.
        self.position.expect("the cursor is valid")
    }

    fn entry(&self) -> &MemtableEntry {
        self.memtable.entries.entry(self.position())
    }

    fn set_position(&mut self, position: Option<EntryPosition>) {
        let entry = position.map(|at| self.memtable.entries.entry(at));
        self.is_folded = entry.is_some_and(MemtableEntry::is_folded);
        self.position = position;
    }
}

impl fmt::Debug for MemtableCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemtableCursor").field("valid", &self.valid()).finish()
    }
}

impl Cursor for MemtableCursor {
    fn valid(&self) -> bool {
        self.position.is_some()
    }

    fn key(&self) -> InternalKey<'_> {
        self.entry().internal_key(self.is_folded)
    }

    fn value(&self) -> &[u8] {
        self.entry().value(self.is_folded)
    }

    fn value_slice(&self) -> Slice {
        Slice::new(self.entry().value_bytes(self.is_folded))
    }

    fn first(&mut self) -> Result<()> {
        self.set_position(self.memtable.entries.first());
        Ok(())
    }

    fn last(&mut self) -> Result<()> {
        self.set_position(self.memtable.entries.last());
        Ok(())
    }

    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.set_position(self.memtable.entries.seek(SeekTarget::new(user_key, seq)));
        Ok(())
    }

    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.set_position(self.memtable.entries.seek_before(SeekTarget::new(user_key, seq)));
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        self.set_position(self.memtable.entries.next(self.position()));
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        self.set_position(self.memtable.entries.prev(self.position()));
        Ok(())
    }
}
