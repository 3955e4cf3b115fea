//! Loom models of a memtable with one writer and concurrent readers.
//!
//! The reader runs in the spawned thread, the writer in the main thread. Loom records only the last access to each
//! atomic. If the writer ran in the spawned thread, a load by the writer before its store would replace the recorded
//! access of the reader.

use lsmx_base::sync::loom_model::{explore_interleavings, spawn};
use lsmx_base::sync::{AtomicU32, AtomicUsize};

use crate::memtable::stable_vec::StableVec;
use crate::memtable::*;

/// Number of entries of a full leaf.
const LEAF_ENTRIES: u64 = crate::memtable::btree_node::SLOTS as u64;

/// Creates a memtable with `count` entries. The entry with sequence number n has the key 2 n. Numbering starts at 1.
fn new_memtable(count: u64) -> Arc<Memtable> {
    let memtable = Memtable::new(MemtableKind::BLinkTree, SeqNo(1), &DeferredDrop::default());
    for number in 1..=count {
        put(&memtable, 2 * number, number);
    }
    Arc::new(memtable)
}

fn put(memtable: &Memtable, key: u64, seq: u64) {
    memtable.insert(&key.to_be_bytes(), SeqNo(seq), EntryKind::Put, &[]);
}

fn find(memtable: &Memtable, key: u64) -> Option<u64> {
    memtable.get(&key.to_be_bytes(), SeqNo::MAX).map(|(seq, ..)| seq.0)
}

/// Returns the keys that a cursor visits from `from` on.
fn read_keys(memtable: &Arc<Memtable>, from: u64) -> Vec<u64> {
    let (mut cursor, mut keys) = (memtable.cursor(), Vec::new());
    cursor.seek(&from.to_be_bytes(), SeqNo::MAX).unwrap();
    while cursor.valid() {
        keys.push(u64::from_be_bytes(cursor.key().user_key.try_into().unwrap()));
        cursor.next().unwrap();
    }
    keys
}

/// Detects two errors: a new entry is visible before its slot is written, or an existing entry disappears during an
/// insert.
#[test]
fn existing_entry_is_found_during_an_insert() {
    for new in [1, 3] {
        explore_interleavings(None, move || {
            let memtable = new_memtable(1);
            let other = Arc::clone(&memtable);
            let reader = spawn(move || {
                assert_eq!(find(&other, 2), Some(1));
                assert!(matches!(find(&other, new), None | Some(2)));
            });
            put(&memtable, new, 2);
            reader.join().unwrap();
            assert_eq!(find(&memtable, new), Some(2));
        });
    }
}

/// Detects two errors: during a split, the upper half of the entries is in neither node, or a reader reads a reused
/// slot.
#[test]
fn existing_entry_is_found_during_a_split() {
    // After the split, the insert of 3 immediately reuses the slot of 18.
    for (new, sought) in
        [(3, 18), (3, 2), (3, 2 * LEAF_ENTRIES), (2 * LEAF_ENTRIES - 1, 2 * LEAF_ENTRIES), (17, 16)]
    {
        explore_interleavings(Some(2), move || {
            let memtable = new_memtable(LEAF_ENTRIES);
            let other = Arc::clone(&memtable);
            let reader = spawn(move || assert_eq!(find(&other, sought), Some(sought / 2)));
            put(&memtable, new, LEAF_ENTRIES + 1);
            reader.join().unwrap();
            assert_eq!(find(&memtable, new), Some(LEAF_ENTRIES + 1));
        });
    }
}

/// A cursor returns all entries although its leaf is split during the iteration, before or after its position.
#[test]
fn cursor_misses_no_entry_during_a_split() {
    explore_interleavings(Some(1), || {
        let memtable = new_memtable(LEAF_ENTRIES);
        let other = Arc::clone(&memtable);
        let reader = spawn(move || {
            let mut keys = read_keys(&other, 12);
            keys.retain(|&key| key != 13);
            let expected: Vec<u64> = (6..=LEAF_ENTRIES).map(|number| 2 * number).collect();
            assert_eq!(keys, expected);
        });
        put(&memtable, 13, LEAF_ENTRIES + 1);
        reader.join().unwrap();
    });
}

/// Detects a published number whose item is not yet readable while the array grows.
#[test]
fn published_number_has_an_item() {
    explore_interleavings(None, || {
        let array: Arc<StableVec<AtomicU32, 2>> = Arc::new(StableVec::new());
        let count = Arc::new(AtomicU32::new(0));
        let (other, counted) = (Arc::clone(&array), Arc::clone(&count));
        let reader = spawn(move || {
            let known = counted.load(Ordering::Acquire);
            for number in 0..known {
                assert_eq!(other.get(number).unwrap().load(Ordering::Relaxed), number + 1);
            }
            let _ = other.get(known);
        });
        for number in 0..3 {
            array.get_or_grow(number).unwrap().store(number + 1, Ordering::Relaxed);
            count.store(number + 1, Ordering::Release);
        }
        reader.join().unwrap();
    });
}

/// Detects that a reader misses a range tombstone of its sequence number while two chunks are combined.
#[test]
fn range_tombstone_is_visible_from_its_sequence_number_on() {
    explore_interleavings(None, || {
        let memtable = new_memtable(0);
        let published = Arc::new(AtomicU64::new(0));
        let (other, sees) = (Arc::clone(&memtable), Arc::clone(&published));
        let reader = spawn(move || {
            let read = sees.load(Ordering::Acquire);
            let covering = other.newest_covering_seq(b"b", SeqNo(read)).map_or(0, |seq| seq.0);
            assert_eq!(covering, read);
        });
        for seq in 1..=2 {
            memtable.insert_range_tombstone(b"a", Some(b"c"), SeqNo(seq));
            published.store(seq, Ordering::Release);
        }
        reader.join().unwrap();
    });
}

/// Detects that the bytes of a folded value are released twice or never, if they are added during the release.
#[test]
fn bytes_added_during_release_are_counted_once_or_not_at_all() {
    explore_interleavings(None, || {
        let memtable = new_memtable(1);
        let before = memtable.bytes();
        let counted = Arc::new(AtomicUsize::new(0));
        let (other, counts) = (Arc::clone(&memtable), Arc::clone(&counted));
        let writer = spawn(move || {
            if other.add_bytes(5) {
                counts.store(5, Ordering::Relaxed);
            }
        });
        let released = memtable.release_bytes();
        writer.join().unwrap();
        assert_eq!(released, before + counted.load(Ordering::Relaxed) as u64);
        assert_eq!(memtable.release_bytes(), 0);
    });
}
