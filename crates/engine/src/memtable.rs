//! The memtable: writes of one interval of sequence numbers, sorted in memory.

mod arena;
mod node;
mod tree;

use std::fmt;

use crate::coding::len_u64;
use crate::cursor::Cursor;
use crate::error::Result;
use crate::key::{InternalKey, Kind, SeqNo};
use crate::slice::Slice;
use crate::sync::{Arc, AtomicU64, Ordering};
use tree::{Entry, Place, Target, Tree};

/// Bytes that an entry takes besides its key and value: 56 for itself, and its share of nodes that
/// are between half full and full.
const ENTRY_OVERHEAD_BYTES: u64 = 96;

/// Writes of one keyspace in one interval of sequence numbers, sorted.
///
/// Filled by the writers of the commit pipeline, read by everybody at the same time. Once sealed
/// it is only read, and flushed when its last insert has ended.
pub(crate) struct Memtable {
    tree: Tree,
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
            tree: Tree::new(),
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
    pub(crate) fn insert(&self, user_key: &[u8], seq: SeqNo, kind: Kind, value: &[u8]) -> u64 {
        let unused = self.tree.insert(user_key, seq, kind, value);
        let bytes = len_u64(user_key.len() + value.len() + unused) + ENTRY_OVERHEAD_BYTES;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        bytes
    }

    /// Bytes it takes in memory, about.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether nothing was written here.
    pub(crate) fn is_empty(&self) -> bool {
        self.tree.len() == 0
    }

    /// The newest entry of `user_key` that is not newer than `snapshot`.
    pub(crate) fn get(&self, user_key: &[u8], snapshot: SeqNo) -> Option<(SeqNo, Kind, Slice)> {
        let place = self.tree.at_or_after(Target::new(user_key, snapshot))?;
        let entry = self.tree.entry(place.entry);
        (entry.user_key() == user_key)
            .then(|| (entry.seq(), entry.kind(), Slice::new(entry.value_bytes())))
    }

    /// A cursor over all entries; those inserted meanwhile may or may not show.
    pub(crate) fn cursor(self: &Arc<Memtable>) -> MemtableCursor {
        MemtableCursor { memtable: Arc::clone(self), place: None }
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
}

impl MemtableCursor {
    fn stand(&self) -> Place {
        // `Cursor` allows `key`, `value` and moves by one only while `valid()`, which is this.
        self.place.expect("the cursor stands on an entry")
    }

    fn entry(&self) -> &Entry {
        self.memtable.tree.entry(self.stand().entry)
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
        self.entry().internal_key()
    }

    fn value(&self) -> &[u8] {
        self.entry().value()
    }

    fn value_slice(&self) -> Slice {
        Slice::new(self.entry().value_bytes())
    }

    fn first(&mut self) -> Result<()> {
        self.place = self.memtable.tree.first();
        Ok(())
    }

    fn last(&mut self) -> Result<()> {
        self.place = self.memtable.tree.last();
        Ok(())
    }

    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.place = self.memtable.tree.at_or_after(Target::new(user_key, seq));
        Ok(())
    }

    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.place = self.memtable.tree.before_target(Target::new(user_key, seq));
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        self.place = self.memtable.tree.after(self.stand());
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        self.place = self.memtable.tree.before_place(self.stand());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sync::Mutex;

    fn filled() -> Arc<Memtable> {
        let memtable = Arc::new(Memtable::new(SeqNo(1)));
        for (key, seq, value) in [("b", 1, "b1"), ("a", 2, "a2"), ("b", 5, "b5"), ("c", 3, "c3")] {
            memtable.insert(key.as_bytes(), SeqNo(seq), Kind::Put, value.as_bytes());
        }
        memtable.insert(b"c", SeqNo(6), Kind::Delete, b"");
        memtable
    }

    /// Every key that the tests of order use: few different ones, many that share sixteen bytes.
    fn awkward_key() -> impl Strategy<Value = Vec<u8>> {
        let long = prop::collection::vec(0u8..3, 0..4).prop_map(|tail| {
            let mut key = b"sixteen bytes or more, all the same".to_vec();
            key.truncate(16);
            key.extend(tail);
            key
        });
        prop_oneof![
            prop::collection::vec(0u8..3, 0..4),
            long,
            any::<u16>().prop_map(|key| { key.to_be_bytes().to_vec() })
        ]
    }

    proptest! {
        /// Whatever is put in and whatever steps are taken, a cursor stands where one over the
        /// sorted entries would.
        #[test]
        fn a_cursor_stands_where_one_over_a_sorted_list_would(
            entries in prop::collection::vec((awkward_key(), any::<bool>()), 0..400),
            steps in prop::collection::vec((0u8..8, awkward_key(), 0u64..400), 1..40),
        ) {
            let memtable = Arc::new(Memtable::new(SeqNo(1)));
            let mut sorted: Vec<(Vec<u8>, u64)> = Vec::new();
            for ((key, put), seq) in entries.into_iter().zip(1..) {
                let kind = if put { Kind::Put } else { Kind::Delete };
                memtable.insert(&key, SeqNo(seq), kind, &seq.to_be_bytes());
                sorted.push((key, seq));
            }
            sorted.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
            let before = |key: &[u8], seq: u64| {
                sorted.partition_point(|at| at.0.as_slice().cmp(key).then(seq.cmp(&at.1)).is_lt())
            };
            let mut cursor = memtable.cursor();
            let mut expected = None;
            for (step, key, seq) in steps {
                match step {
                    0 => { cursor.first().unwrap(); expected = Some(0); }
                    1 => { cursor.last().unwrap(); expected = sorted.len().checked_sub(1); }
                    2 => {
                        cursor.seek(&key, SeqNo(seq)).unwrap();
                        expected = Some(before(&key, seq));
                    }
                    3 => {
                        cursor.seek_before(&key, SeqNo(seq)).unwrap();
                        expected = before(&key, seq).checked_sub(1);
                    }
                    _ if !cursor.valid() => {}
                    4 | 5 => { cursor.next().unwrap(); expected = expected.map(|at| at + 1); }
                    _ => { cursor.prev().unwrap(); expected = expected.and_then(|at| at.checked_sub(1)); }
                }
                expected = expected.filter(|&at| at < sorted.len());
                let stands = cursor.valid().then(|| (cursor.key().user_key.to_vec(), cursor.key().seq.0));
                prop_assert_eq!(stands.as_ref(), expected.map(|at| &sorted[at]));
                if cursor.valid() {
                    prop_assert_eq!(cursor.value(), cursor.key().seq.0.to_be_bytes());
                }
                let found = memtable.get(&key, SeqNo(seq)).map(|(seq, ..)| seq.0);
                let newest = sorted.get(before(&key, seq)).filter(|at| at.0 == key);
                prop_assert_eq!(found, newest.map(|at| at.1));
            }
        }
    }

    /// Readers under way while four writers put entries in: whatever was there before a look began
    /// is found, by lookups and by walks both ways, and walks are in order.
    #[test]
    fn readers_miss_nothing_while_nodes_split() {
        const ENTRIES: u64 = 20_000;
        let memtable = Arc::new(Memtable::new(SeqNo(1)));
        let (given, done) = (AtomicU64::new(0), AtomicU64::new(0));
        let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let ended = Mutex::new(std::collections::BTreeSet::new());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    loop {
                        let number = given.fetch_add(1, Ordering::Relaxed) + 1;
                        if number > ENTRIES {
                            break;
                        }
                        let value = number.to_be_bytes();
                        memtable.insert(&key(number), SeqNo(number), Kind::Put, &value);
                        let mut ended = ended.lock();
                        ended.insert(number);
                        while ended.remove(&(done.load(Ordering::Relaxed) + 1)) {
                            done.fetch_add(1, Ordering::Release);
                        }
                    }
                });
            }
            for forward in [true, false] {
                let (memtable, done) = (&memtable, &done);
                scope.spawn(move || {
                    loop {
                        let there = done.load(Ordering::Acquire);
                        for number in (1..=there).step_by(97) {
                            let (seq, ..) = memtable.get(&key(number), SeqNo::MAX).unwrap();
                            assert_eq!(seq.0, number);
                        }
                        let mut cursor = memtable.cursor();
                        if forward { cursor.first() } else { cursor.last() }.unwrap();
                        let (mut count, mut last) = (0, None);
                        while cursor.valid() {
                            let at = cursor.key();
                            let at = (at.user_key.to_vec(), at.seq.0);
                            if let Some(last) = last.replace(at.clone()) {
                                assert!(if forward { last < at } else { last > at });
                            }
                            count += u64::from(at.1 <= there);
                            if forward { cursor.next() } else { cursor.prev() }.unwrap();
                        }
                        assert_eq!(count, there, "of those that were there before the walk");
                        if there == ENTRIES {
                            break;
                        }
                    }
                });
            }
        });
        assert_eq!(memtable.tree.len() as u64, ENTRIES);
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
