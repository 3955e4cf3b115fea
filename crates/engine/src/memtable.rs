//! The memtable: writes of one interval of sequence numbers, sorted in memory.

use std::borrow::Borrow;
use std::cmp::Ordering as Order;
use std::fmt;
use std::ops::Bound;

use bytes::Bytes;
use crossbeam_skiplist::SkipMap;
use crossbeam_skiplist::map::Entry;
use self_cell::self_cell;

use crate::cursor::Cursor;
use crate::error::Result;
use crate::key::{InternalKey, Kind, SeqNo};
use crate::slice::Slice;
use crate::sync::{Arc, AtomicU64, Ordering};

/// Bytes that an entry costs besides key and value: node, tower, two handles, the header of the
/// batch and what the allocator adds. Measured as resident memory of a million single puts.
const ENTRY_OVERHEAD_BYTES: u64 = 160;

/// Anything that has an internal key; lets the skip list be searched by borrowed parts.
trait HasKey {
    fn internal_key(&self) -> InternalKey<'_>;
}

#[derive(Debug)]
struct OwnedKey {
    user_key: Bytes,
    seq: SeqNo,
    kind: Kind,
}

impl HasKey for OwnedKey {
    fn internal_key(&self) -> InternalKey<'_> {
        InternalKey { user_key: &self.user_key, seq: self.seq, kind: self.kind }
    }
}

impl HasKey for InternalKey<'_> {
    fn internal_key(&self) -> InternalKey<'_> {
        *self
    }
}

impl PartialEq for OwnedKey {
    fn eq(&self, other: &Self) -> bool {
        self.internal_key() == other.internal_key()
    }
}
impl Eq for OwnedKey {}
impl PartialOrd for OwnedKey {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}
impl Ord for OwnedKey {
    fn cmp(&self, other: &Self) -> Order {
        self.internal_key().cmp(&other.internal_key())
    }
}

impl<'a> Borrow<dyn HasKey + 'a> for OwnedKey {
    fn borrow(&self) -> &(dyn HasKey + 'a) {
        self
    }
}
impl PartialEq for dyn HasKey + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.internal_key() == other.internal_key()
    }
}
impl Eq for dyn HasKey + '_ {}
impl PartialOrd for dyn HasKey + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}
impl Ord for dyn HasKey + '_ {
    fn cmp(&self, other: &Self) -> Order {
        self.internal_key().cmp(&other.internal_key())
    }
}

/// The first internal key that a search for (`user_key`, `seq`) may land on.
fn search_key(user_key: &[u8], seq: SeqNo) -> InternalKey<'_> {
    InternalKey { user_key, seq, kind: Kind::ValuePointer }
}

/// Writes of one keyspace in one interval of sequence numbers, sorted.
///
/// Filled by the writers of the commit pipeline, read by everybody at the same time. Once sealed
/// it is only read, and flushed when its last insert has ended.
pub(crate) struct Memtable {
    map: SkipMap<OwnedKey, Bytes>,
    bytes: AtomicU64,
    /// Every number from here on, up to the seal, is in this memtable if it is in this keyspace.
    first_seq: SeqNo,
    /// Smallest number promised to this memtable, `u64::MAX` while there is none. Set by the
    /// leader before the append, so that no segment is let go between append and insert.
    first_promised: AtomicU64,
}

impl Memtable {
    /// An empty memtable for all numbers from `first_seq` on.
    pub(crate) fn new(first_seq: SeqNo) -> Memtable {
        Memtable {
            map: SkipMap::new(),
            bytes: AtomicU64::new(0),
            first_seq,
            first_promised: AtomicU64::new(u64::MAX),
        }
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
    pub(crate) fn insert(&self, user_key: Bytes, seq: SeqNo, kind: Kind, value: Bytes) -> u64 {
        let bytes = (user_key.len() + value.len()) as u64 + ENTRY_OVERHEAD_BYTES;
        self.map.insert(OwnedKey { user_key, seq, kind }, value);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        bytes
    }

    /// Bytes it takes in memory, about.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether nothing was written here.
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The newest entry of `user_key` that is not newer than `snapshot`.
    pub(crate) fn get(&self, user_key: &[u8], snapshot: SeqNo) -> Option<(SeqNo, Kind, Slice)> {
        let at = search_key(user_key, snapshot);
        let entry = self.map.lower_bound::<dyn HasKey>(Bound::Included(&at))?;
        let key = entry.key();
        (key.user_key == user_key).then(|| (key.seq, key.kind, Slice::new(entry.value().clone())))
    }

    /// A cursor over all entries; those inserted meanwhile may or may not show.
    pub(crate) fn cursor(self: &Arc<Memtable>) -> MemtableCursor {
        MemtableCursor { place: Place::new(Arc::clone(self), |_| None) }
    }
}

impl fmt::Debug for Memtable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memtable")
            .field("first_seq", &self.first_seq)
            .field("entries", &self.map.len())
            .field("bytes", &self.bytes())
            .finish()
    }
}

type MaybeEntry<'a> = Option<Entry<'a, OwnedKey, Bytes>>;

self_cell!(
    struct Place {
        owner: Arc<Memtable>,
        #[covariant]
        dependent: MaybeEntry,
    }
);

/// Walks a memtable both ways and keeps it alive.
pub(crate) struct MemtableCursor {
    place: Place,
}

impl MemtableCursor {
    fn entry(&self) -> &Entry<'_, OwnedKey, Bytes> {
        // `Cursor` allows `key`, `value` and moves by one only while `valid()`, which is this.
        self.place.borrow_dependent().as_ref().expect("the cursor stands on an entry")
    }

    fn seek_where(&mut self, find: impl for<'q> FnOnce(&'q Memtable) -> MaybeEntry<'q>) {
        self.place.with_dependent_mut(|owner, entry| *entry = find(owner));
    }
}

impl fmt::Debug for MemtableCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemtableCursor").field("valid", &self.valid()).finish()
    }
}

impl Cursor for MemtableCursor {
    fn valid(&self) -> bool {
        self.place.borrow_dependent().is_some()
    }

    fn key(&self) -> InternalKey<'_> {
        self.entry().key().internal_key()
    }

    fn value(&self) -> &[u8] {
        self.entry().value()
    }

    fn value_slice(&self) -> Slice {
        Slice::new(self.entry().value().clone())
    }

    fn first(&mut self) -> Result<()> {
        self.seek_where(|memtable| memtable.map.front());
        Ok(())
    }

    fn last(&mut self) -> Result<()> {
        self.seek_where(|memtable| memtable.map.back());
        Ok(())
    }

    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        let at = search_key(user_key, seq);
        self.seek_where(|memtable| memtable.map.lower_bound::<dyn HasKey>(Bound::Included(&at)));
        Ok(())
    }

    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        let at = search_key(user_key, seq);
        self.seek_where(|memtable| memtable.map.upper_bound::<dyn HasKey>(Bound::Excluded(&at)));
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        self.place.with_dependent_mut(|_, entry| {
            *entry = entry.as_ref().and_then(Entry::next);
        });
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        self.place.with_dependent_mut(|_, entry| {
            *entry = entry.as_ref().and_then(Entry::prev);
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled() -> Arc<Memtable> {
        let memtable = Arc::new(Memtable::new(SeqNo(1)));
        for (key, seq, value) in [("b", 1, "b1"), ("a", 2, "a2"), ("b", 5, "b5"), ("c", 3, "c3")] {
            memtable.insert(Bytes::from(key), SeqNo(seq), Kind::Put, Bytes::from(value));
        }
        memtable.insert(Bytes::from("c"), SeqNo(6), Kind::Delete, Bytes::new());
        memtable
    }

    #[test]
    fn get_answers_as_of_a_number() {
        let memtable = filled();
        let value = |key: &str, seq| {
            memtable.get(key.as_bytes(), SeqNo(seq)).map(|(seq, kind, _)| (seq.0, kind))
        };
        assert_eq!(value("b", 9), Some((5, Kind::Put)));
        assert_eq!(value("b", 4), Some((1, Kind::Put)));
        assert_eq!(value("b", 0), None);
        assert_eq!(value("c", 9), Some((6, Kind::Delete)));
        assert_eq!(value("bb", 9), None);
    }

    #[test]
    fn cursor_walks_newest_first_both_ways() {
        let memtable = filled();
        let mut cursor = memtable.cursor();
        let at = |cursor: &MemtableCursor| {
            let key = cursor.key();
            (String::from_utf8(key.user_key.to_vec()).unwrap(), key.seq.0)
        };
        let mut seen = Vec::new();
        cursor.first().unwrap();
        while cursor.valid() {
            seen.push(at(&cursor));
            cursor.next().unwrap();
        }
        let expected: Vec<_> = [("a", 2), ("b", 5), ("b", 1), ("c", 6), ("c", 3)]
            .map(|(key, seq)| (key.to_owned(), seq))
            .to_vec();
        assert_eq!(seen, expected);
        let mut back = Vec::new();
        cursor.last().unwrap();
        while cursor.valid() {
            back.push(at(&cursor));
            cursor.prev().unwrap();
        }
        back.reverse();
        assert_eq!(back, expected);
        cursor.seek(b"b", SeqNo(4)).unwrap();
        assert_eq!(at(&cursor), ("b".to_owned(), 1));
        cursor.seek_before(b"b", SeqNo(4)).unwrap();
        assert_eq!(at(&cursor), ("b".to_owned(), 5));
        cursor.seek_before(b"b", SeqNo::MAX).unwrap();
        assert_eq!(at(&cursor), ("a".to_owned(), 2));
    }
}
