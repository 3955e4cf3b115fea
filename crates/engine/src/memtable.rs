//! The memtable: writes of one interval of sequence numbers, sorted in memory.
//!
//! A merge operand may get a *folded value* beside it, later and at most once: what its key is worth
//! at its number. From then on the entry shows as a put or a delete, to readers and to the flush; it
//! hides the older ones from whoever reads at or past its number, and from nobody else. Either way of
//! showing it is right, so nobody has to wait for the other one.

mod stored;

mod spans;

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
use crate::format::range_tombstones::{RangeTombstone, Spans};
use crate::key::{InternalKey, Kind, SeqNo};
use crate::slice::Slice;
use crate::sync::{Arc, AtomicU64, Ordering};
use spans::MemtableSpans;
use stored::{Chain, Stored};

/// Bytes that an entry costs besides key and value: node, tower, two handles, the header of the
/// batch and what the allocator adds. Measured as resident memory of a million single puts.
const ENTRY_OVERHEAD_BYTES: u64 = 160;
/// Bytes of an operand's place for a folded value, besides the value.
const OPERAND_OVERHEAD_BYTES: u64 = 96;
/// Set in the count of bytes when they no longer belong to the sum over all memtables.
const FREED: u64 = 1 << 63;

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
    map: SkipMap<OwnedKey, Stored>,
    spans: MemtableSpans,
    /// Bytes in the lower bits, [`FREED`] above.
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
            spans: MemtableSpans::new(),
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
        if kind == Kind::Merge {
            return self.insert_operand(user_key, seq, value, 0).0;
        }
        let bytes = (user_key.len() + value.len()) as u64 + ENTRY_OVERHEAD_BYTES;
        self.map.insert(OwnedKey { user_key, seq, kind }, Stored::Value(value));
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        bytes
    }

    /// Adds a range delete. Returns the bytes that the memtable grew by.
    pub(crate) fn insert_span(&self, start: Bytes, end: Option<Bytes>, seq: SeqNo) -> u64 {
        let bytes = self.spans.insert(RangeTombstone { start, end, seqs: vec![seq] });
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        bytes
    }

    /// The newest range delete that covers `user_key` for a reader at `snapshot`.
    #[inline]
    pub(crate) fn covering(&self, user_key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
        self.spans.covering(user_key, snapshot)
    }

    /// Its range deletes, in pieces that do not change; none if there are none.
    pub(crate) fn spans(&self) -> Vec<Arc<Spans>> {
        self.spans.chunks()
    }

    /// Smallest and largest user key of an entry.
    pub(crate) fn key_range(&self) -> Option<(Bytes, Bytes)> {
        let (first, last) = (self.map.front()?, self.map.back()?);
        Some((first.key().user_key.clone(), last.key().user_key.clone()))
    }

    /// Adds a merge operand. Returns the bytes that the memtable grew by, and whether the operands
    /// of the key are so many by now that they should be folded. If they are the first of their key
    /// here, they are counted as if there were `below` more.
    pub(crate) fn insert_operand(
        &self,
        user_key: Bytes,
        seq: SeqNo,
        operand: Bytes,
        below: u32,
    ) -> (u64, bool) {
        let older = {
            let at = search_key(&user_key, seq);
            let older = self.map.lower_bound::<dyn HasKey>(Bound::Included(&at));
            older.filter(|older| older.key().user_key == user_key)
        };
        let chain = older.map_or_else(|| Chain::above(below), |older| older.value().chain());
        let (chain, long) = chain.with(operand.len());
        let bytes = (user_key.len() + operand.len()) as u64;
        let bytes = bytes + ENTRY_OVERHEAD_BYTES + OPERAND_OVERHEAD_BYTES;
        let stored = Stored::operand(operand, chain);
        self.map.insert(OwnedKey { user_key, seq, kind: Kind::Merge }, stored);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        (bytes, long)
    }

    /// Puts beside an operand what its key is worth at its number. Returns the bytes that this takes,
    /// which are to be counted with [`Memtable::grow`]; 0 if there is no such operand or it has its
    /// value already.
    pub(crate) fn set_folded(&self, user_key: &[u8], seq: SeqNo, value: Option<Slice>) -> u64 {
        let at = search_key(user_key, seq);
        let Some(entry) = self.map.lower_bound::<dyn HasKey>(Bound::Included(&at)) else {
            return 0;
        };
        if entry.key().user_key != user_key || entry.key().seq != seq {
            return 0;
        }
        entry.value().set_folded(value.map(Slice::into_bytes))
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

    /// Whether nothing was written here.
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty() && self.spans.is_empty()
    }

    /// The newest entry of `user_key` that is not newer than `snapshot`.
    pub(crate) fn get(&self, user_key: &[u8], snapshot: SeqNo) -> Option<(SeqNo, Kind, Slice)> {
        let at = search_key(user_key, snapshot);
        let entry = self.map.lower_bound::<dyn HasKey>(Bound::Included(&at))?;
        let key = entry.key();
        (key.user_key == user_key).then(|| {
            let stored = entry.value();
            let (kind, value) = stored.shown(key.kind, stored.is_folded());
            (key.seq, kind, Slice::new(value.clone()))
        })
    }

    /// Calls `take` with number, kind and value of the versions of `user_key` that are not newer than
    /// `snapshot`, newest first, until it wants no more. Returns whether it wants no more.
    pub(crate) fn walk(
        &self,
        user_key: &[u8],
        snapshot: SeqNo,
        mut take: impl FnMut(SeqNo, Kind, Slice) -> bool,
    ) -> bool {
        let at = search_key(user_key, snapshot);
        let mut place = self.map.lower_bound::<dyn HasKey>(Bound::Included(&at));
        while let Some(entry) = place {
            let key = entry.key();
            if key.user_key != user_key {
                return false;
            }
            let stored = entry.value();
            let (kind, value) = stored.shown(key.kind, stored.is_folded());
            if !take(key.seq, kind, Slice::new(value.clone())) {
                return true;
            }
            place = entry.next();
        }
        false
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

/// An entry, and whether it shows its folded value; that is decided when the cursor comes to it, so
/// that key and value go together.
struct Standing<'a> {
    entry: Entry<'a, OwnedKey, Stored>,
    folded: bool,
}

impl<'a> Standing<'a> {
    fn new(entry: Entry<'a, OwnedKey, Stored>) -> Standing<'a> {
        let folded = entry.value().is_folded();
        Standing { entry, folded }
    }

    fn shown(&self) -> (Kind, &Bytes) {
        self.entry.value().shown(self.entry.key().kind, self.folded)
    }
}

type MaybeEntry<'a> = Option<Entry<'a, OwnedKey, Stored>>;
type MaybeStanding<'a> = Option<Standing<'a>>;

self_cell!(
    struct Place {
        owner: Arc<Memtable>,
        #[covariant]
        dependent: MaybeStanding,
    }
);

/// Walks a memtable both ways and keeps it alive.
pub(crate) struct MemtableCursor {
    place: Place,
}

impl MemtableCursor {
    fn stand(&self) -> &Standing<'_> {
        // `Cursor` allows `key`, `value` and moves by one only while `valid()`, which is this.
        self.place.borrow_dependent().as_ref().expect("the cursor stands on an entry")
    }

    fn seek_where(&mut self, find: impl for<'q> FnOnce(&'q Memtable) -> MaybeEntry<'q>) {
        self.place.with_dependent_mut(|owner, at| *at = find(owner).map(Standing::new));
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
        let stand = self.stand();
        InternalKey { kind: stand.shown().0, ..stand.entry.key().internal_key() }
    }

    fn value(&self) -> &[u8] {
        self.stand().shown().1
    }

    fn value_slice(&self) -> Slice {
        Slice::new(self.stand().shown().1.clone())
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
        self.place.with_dependent_mut(|_, at| {
            *at = at.as_ref().and_then(|at| at.entry.next()).map(Standing::new);
        });
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        self.place.with_dependent_mut(|_, at| {
            *at = at.as_ref().and_then(|at| at.entry.prev()).map(Standing::new);
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

    /// Everything that a walk sees of a key at a number, newest first.
    fn seen(memtable: &Memtable, seq: u64) -> Vec<(Kind, Slice)> {
        let mut seen = Vec::new();
        memtable.walk(b"k", SeqNo(seq), |_, kind, value| {
            seen.push((kind, value));
            kind == Kind::Merge
        });
        seen
    }

    #[test]
    fn a_folded_value_hides_what_is_older_from_its_number_on() {
        let memtable = Arc::new(Memtable::new(SeqNo(1)));
        for seq in 1..=4 {
            memtable.insert(Bytes::from("k"), SeqNo(seq), Kind::Merge, Bytes::from("o"));
        }
        let mut cursor = memtable.cursor();
        cursor.seek(b"k", SeqNo(3)).unwrap();
        let bytes = memtable.set_folded(b"k", SeqNo(3), Some(Slice::from(&b"ooo"[..])));
        assert!(bytes >= 3 && memtable.set_folded(b"k", SeqNo(3), None) == 0, "once");
        assert_eq!(memtable.set_folded(b"k", SeqNo(9), None), 0, "no such operand");
        assert_eq!(seen(&memtable, 9).len(), 2);
        assert_eq!(seen(&memtable, 3), [(Kind::Put, Slice::from(&b"ooo"[..]))]);
        assert_eq!(seen(&memtable, 2).len(), 2, "older readers see the older operands");
        // Where a cursor stands nothing changes; where it comes to, it sees the value.
        assert_eq!((cursor.key().kind, cursor.value()), (Kind::Merge, &b"o"[..]));
        cursor.prev().unwrap();
        cursor.next().unwrap();
        assert_eq!((cursor.key().kind, cursor.value()), (Kind::Put, &b"ooo"[..]));
        // A key that merges to nothing shows as deleted.
        memtable.set_folded(b"k", SeqNo(4), None);
        assert_eq!(
            memtable.get(b"k", SeqNo(9)).map(|(seq, kind, _)| (seq.0, kind)),
            Some((4, Kind::Delete))
        );
    }

    #[test]
    fn long_chains_ask_to_be_folded_and_start_again_from_there() {
        use crate::merge::{CHAIN_BYTES_MAX, CHAIN_OPERANDS_MAX};
        let memtable = Memtable::new(SeqNo(1));
        let add = |key: &'static str, seq: u32, below| {
            let (seq, operand) = (SeqNo(seq.into()), Bytes::from("o"));
            memtable.insert_operand(Bytes::from(key), seq, operand, below).1
        };
        let long: Vec<u32> = (1..100).filter(|&seq| add("k", seq, 0)).collect();
        assert_eq!(long, [1, 2, 3].map(|times| times * CHAIN_OPERANDS_MAX));
        assert!(!add("below", 100, CHAIN_OPERANDS_MAX - 2) && add("below", 101, 0));
        memtable.insert(Bytes::from("put"), SeqNo(110), Kind::Put, Bytes::new());
        assert!(!add("put", 111, CHAIN_OPERANDS_MAX), "a put is a base");
        let large = Bytes::from(vec![0; usize::try_from(CHAIN_BYTES_MAX).unwrap() / 2]);
        let large =
            |seq| memtable.insert_operand(Bytes::from("large"), SeqNo(seq), large.clone(), 0).1;
        assert_eq!([large(120), large(121), large(122), large(123)], [false, true, false, true]);
    }

    #[test]
    fn bytes_are_let_go_once_and_none_come_after() {
        let memtable = Memtable::new(SeqNo(1));
        let bytes = memtable.insert(Bytes::from("k"), SeqNo(1), Kind::Put, Bytes::from("v"));
        assert!(memtable.grow(5));
        assert_eq!((memtable.free(), memtable.free()), (bytes + 5, 0));
        assert!(!memtable.grow(5));
        assert_eq!(memtable.bytes(), bytes + 5);
    }
}
