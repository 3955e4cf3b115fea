//! The memtable: writes of one interval of sequence numbers, sorted in memory.
//!
//! A merge operand may get a *folded value* beside it, later and at most once: what its key is worth
//! at its number. From then on the entry shows as a put or a delete, to readers and to the flush; it
//! hides the older ones from whoever reads at or past its number, and from nobody else. Either way of
//! showing it is right, so nobody has to wait for the other one.

mod arena;
mod entry;
mod growing;
#[cfg(all(test, loom))]
mod models;
mod node;
mod spans;
#[cfg(test)]
mod tests;
mod tree;

use std::fmt;

use bytes::Bytes;

use crate::cursor::Cursor;
use crate::disposal::Disposal;
use crate::error::Result;
pub(crate) use arena::{Arena, Copied};
use entry::{Chain, Entry, Label, OPERAND_BYTES};
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, AtomicU64, Ordering};
use lsmx_base::tombstone_index::TombstoneIndex;
use spans::MemtableSpans;
use tree::{Place, Target, Tree};

/// Set in the count of bytes when they no longer belong to the sum over all memtables.
const FREED: u64 = 1 << 63;

/// Writes of one keyspace in one interval of sequence numbers, sorted.
///
/// Filled by the writers of the commit pipeline, read by everybody at the same time. Once sealed
/// it is only read, and flushed when its last insert has ended.
pub(crate) struct Memtable {
    tree: Tree,
    spans: MemtableSpans,
    /// Bytes in the lower bits, [`FREED`] above.
    bytes: AtomicU64,
    /// Every number from here on, up to the seal, is in this memtable if it is in this keyspace.
    first_seq: SeqNo,
    /// Smallest number promised to this memtable, `u64::MAX` while there is none. Set by the
    /// leader before the append, so that no segment is let go between append and insert.
    first_promised: AtomicU64,
    /// When its first tombstone was written, in microseconds; [`NO_TOMBSTONE`] without any.
    tombstone_us: AtomicU64,
    /// Takes over what it is made of when it goes.
    disposal: Disposal,
}

/// Bytes that an entry takes besides its key and value, about: with its share of the nodes of the tree.
pub(crate) const ENTRY_BYTES_ABOUT: u64 = 100;

/// No tombstone was noted.
const NO_TOMBSTONE: u64 = u64::MAX;

impl Memtable {
    /// An empty memtable for all numbers from `first_seq` on.
    pub(crate) fn new(first_seq: SeqNo, disposal: &Disposal) -> Memtable {
        Memtable {
            tree: Tree::new(),
            spans: MemtableSpans::new(),
            bytes: AtomicU64::new(0),
            first_seq,
            first_promised: AtomicU64::new(u64::MAX),
            tombstone_us: AtomicU64::new(NO_TOMBSTONE),
            disposal: disposal.clone(),
        }
    }

    /// Notes that a tombstone or range delete was written; `now` is asked only for the first one, and
    /// then the answer is true.
    pub(crate) fn note_tombstone(&self, now_us: impl FnOnce() -> u64) -> bool {
        if self.tombstone_us.load(Ordering::Relaxed) != NO_TOMBSTONE {
            return false;
        }
        // There is one writer at a time.
        self.tombstone_us.store(now_us().min(NO_TOMBSTONE - 1), Ordering::Relaxed);
        true
    }

    /// When its first tombstone was written, in microseconds.
    pub(crate) fn tombstone_us(&self) -> Option<u64> {
        Some(self.tombstone_us.load(Ordering::Relaxed)).filter(|us| *us != NO_TOMBSTONE)
    }

    /// Where the interval of numbers begins.
    pub(crate) fn first_seq(&self) -> SeqNo {
        self.first_seq
    }

    /// Notes that a commit starting at `seq` will write here. Called in order of numbers.
    pub(crate) fn promise(&self, seq: SeqNo) {
        self.first_promised.fetch_min(seq.0, Ordering::Release);
    }

    /// Smallest number promised to this memtable: the WAL is needed from there on.
    pub(crate) fn first_promised(&self) -> Option<SeqNo> {
        match self.first_promised.load(Ordering::Acquire) {
            u64::MAX => None,
            seq => Some(SeqNo(seq)),
        }
    }

    /// Adds one entry; its number is its own, so there is never one like it. Returns the bytes
    /// that the memtable grew by.
    pub(crate) fn insert(&self, user_key: &[u8], seq: SeqNo, kind: EntryKind, value: &[u8]) -> u64 {
        if kind == EntryKind::Merge {
            return self.insert_operand(user_key, seq, value, 0).0;
        }
        let bytes = self.tree.insert(user_key, value, Label { seq, kind, chain: None });
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        bytes
    }

    /// [`Memtable::insert`] of what lies in memory of an arena already.
    pub(crate) fn insert_copied(&self, copied: Copied, seq: SeqNo, kind: EntryKind) -> u64 {
        if kind == EntryKind::Merge {
            return self.insert(copied.key(), seq, kind, copied.behind_key());
        }
        let bytes = self.tree.insert_copied(copied, Label { seq, kind, chain: None });
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        bytes
    }

    /// Adds a range delete. Returns the bytes that the memtable grew by.
    pub(crate) fn insert_span(&self, start: &[u8], end: Option<&[u8]>, seq: SeqNo) -> u64 {
        let (start, end) = (Bytes::copy_from_slice(start), end.map(Bytes::copy_from_slice));
        let bytes = self.spans.insert(start, end, seq);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        bytes
    }

    /// The newest range delete that covers `user_key` for a reader at `snapshot`.
    #[inline]
    pub(crate) fn covering(&self, user_key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
        self.spans.covering(user_key, snapshot)
    }

    /// Whether it has range deletes.
    pub(crate) fn has_spans(&self) -> bool {
        !self.spans.is_empty()
    }

    /// Indexes of its range deletes; none if there are none.
    pub(crate) fn tombstone_indexes(&self) -> Vec<Arc<TombstoneIndex>> {
        self.spans.indexes()
    }

    /// Its range deletes, each with its one number.
    pub(crate) fn range_tombstones(&self) -> Vec<RangeTombstone> {
        self.spans.range_tombstones()
    }

    /// Smallest and largest user key of an entry.
    pub(crate) fn key_range(&self) -> Option<(Bytes, Bytes)> {
        let (first, last) = (self.tree.first()?, self.tree.last()?);
        let key = |place: Place| self.tree.entry(place.entry).user_key_bytes();
        Some((key(first), key(last)))
    }

    /// A user key about in the middle of all of them; `None` if there are few.
    pub(crate) fn middle(&self) -> Option<Bytes> {
        self.tree.middle().map(Entry::user_key_bytes)
    }

    /// The newest entry of `user_key` that is not newer than `seq`.
    fn find(&self, user_key: &[u8], seq: SeqNo) -> Option<(Place, &Entry)> {
        let place = self.tree.at_or_after(Target::new(user_key, seq))?;
        let entry = self.tree.entry(place.entry);
        (entry.user_key() == user_key).then_some((place, entry))
    }

    /// Adds a merge operand. Returns the bytes that the memtable grew by, and whether the operands
    /// of the key are so many by now that they should be folded. If they are the first of their key
    /// here, they are counted as if there were `below` more.
    pub(crate) fn insert_operand(
        &self,
        user_key: &[u8],
        seq: SeqNo,
        operand: &[u8],
        below: u32,
    ) -> (u64, bool) {
        let older = self.find(user_key, seq);
        let chain = older.map_or_else(|| Chain::above(below), |(_, older)| older.chain());
        let (chain, long) = chain.with(operand.len());
        let label = Label { seq, kind: EntryKind::Merge, chain: Some(chain) };
        let bytes = self.tree.insert(user_key, operand, label) + OPERAND_BYTES;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        (bytes, long)
    }

    /// Puts beside an operand what its key is worth at its number. Returns the bytes that this takes,
    /// which are to be counted with [`Memtable::grow`]; 0 if there is no such operand or it has its
    /// value already.
    pub(crate) fn set_folded(&self, user_key: &[u8], seq: SeqNo, value: Option<Slice>) -> u64 {
        match self.find(user_key, seq) {
            Some((_, entry)) if entry.seq() == seq => {
                entry.set_folded(value.map(Slice::into_bytes))
            }
            _ => 0,
        }
    }

    /// Counts bytes that came after the last insert; false if the memtable was let go, and with it
    /// its bytes.
    pub(crate) fn grow(&self, bytes: u64) -> bool {
        let counted = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
            (old & FREED == 0).then_some(old + bytes)
        });
        counted.is_ok()
    }

    /// Lets the memtable's bytes go, once; returns how many.
    pub(crate) fn free(&self) -> u64 {
        let bytes = self.bytes.fetch_or(FREED, Ordering::Relaxed);
        if bytes & FREED == 0 { bytes } else { 0 }
    }

    /// Bytes it takes in memory, about.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) & !FREED
    }

    /// Entries of all kinds.
    pub(crate) fn entries(&self) -> u64 {
        u64::from(self.tree.len())
    }

    /// Whether nothing was written here.
    pub(crate) fn is_empty(&self) -> bool {
        self.tree.len() == 0 && self.spans.is_empty()
    }

    /// The newest entry of `user_key` that is not newer than `snapshot`.
    pub(crate) fn get(
        &self,
        user_key: &[u8],
        snapshot: SeqNo,
    ) -> Option<(SeqNo, EntryKind, Slice)> {
        let mut found = None;
        self.walk(user_key, snapshot, |seq, kind, value| {
            found = Some((seq, kind, value));
            false
        });
        found
    }

    /// Calls `take` with number, kind and value of the versions of `user_key` that are not newer than
    /// `snapshot`, newest first, until it wants no more. Returns whether it wants no more.
    pub(crate) fn walk(
        &self,
        user_key: &[u8],
        snapshot: SeqNo,
        mut take: impl FnMut(SeqNo, EntryKind, Slice) -> bool,
    ) -> bool {
        let mut found = self.find(user_key, snapshot);
        while let Some((place, entry)) = found {
            let folded = entry.is_folded();
            let key = entry.internal_key(folded);
            if !take(key.seq, key.kind, Slice::new(entry.value_bytes(folded))) {
                return true;
            }
            found = self.tree.after(place).map(|place| (place, self.tree.entry(place.entry)));
            found = found.filter(|(_, entry)| entry.user_key() == user_key);
        }
        false
    }

    /// A cursor over all entries; those inserted meanwhile may or may not show.
    pub(crate) fn cursor(self: &Arc<Memtable>) -> MemtableCursor {
        MemtableCursor { memtable: Arc::clone(self), place: None, folded: false }
    }
}

impl Drop for Memtable {
    /// Whoever lets it go last, perhaps a reader, does not free its entries.
    fn drop(&mut self) {
        if !self.is_empty() {
            let tree = std::mem::replace(&mut self.tree, Tree::new());
            let spans = std::mem::replace(&mut self.spans, MemtableSpans::new());
            self.disposal.dispose((tree, spans));
        }
    }
}

impl fmt::Debug for Memtable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memtable")
            .field("first_seq", &self.first_seq)
            .field("entries", &self.tree.len())
            .field("bytes", &self.bytes())
            .finish()
    }
}

/// Walks a memtable both ways and keeps it alive.
pub(crate) struct MemtableCursor {
    memtable: Arc<Memtable>,
    place: Option<Place>,
    /// Whether the entry shows its folded value; that is decided when the cursor comes to it, so
    /// that key and value go together.
    folded: bool,
}

impl MemtableCursor {
    fn place(&self) -> Place {
        // `Cursor` allows `key`, `value` and moves by one only while `valid()`, which is this.
        self.place.expect("the cursor stands on an entry")
    }

    fn entry(&self) -> &Entry {
        self.memtable.tree.entry(self.place().entry)
    }

    fn stand_on(&mut self, place: Option<Place>) {
        let entry = place.map(|place| self.memtable.tree.entry(place.entry));
        self.folded = entry.is_some_and(Entry::is_folded);
        self.place = place;
    }
}

impl fmt::Debug for MemtableCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemtableCursor").field("valid", &self.valid()).finish()
    }
}

impl Cursor for MemtableCursor {
    fn valid(&self) -> bool {
        self.place.is_some()
    }

    fn key(&self) -> InternalKey<'_> {
        self.entry().internal_key(self.folded)
    }

    fn value(&self) -> &[u8] {
        self.entry().value(self.folded)
    }

    fn value_slice(&self) -> Slice {
        Slice::new(self.entry().value_bytes(self.folded))
    }

    fn first(&mut self) -> Result<()> {
        self.stand_on(self.memtable.tree.first());
        Ok(())
    }

    fn last(&mut self) -> Result<()> {
        self.stand_on(self.memtable.tree.last());
        Ok(())
    }

    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.stand_on(self.memtable.tree.at_or_after(Target::new(user_key, seq)));
        Ok(())
    }

    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.stand_on(self.memtable.tree.before_target(Target::new(user_key, seq)));
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        self.stand_on(self.memtable.tree.after(self.place()));
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        self.stand_on(self.memtable.tree.before_place(self.place()));
        Ok(())
    }
}
