//! Models of one that writes into a memtable while others read it.
//!
//! The reader is the thread that is started: loom remembers of an atomic who touched it last, so that a
//! writer which loads before it stores would hide a reader that came before.

use lsmx_base::sync::loom_model::{explore, spawn};
use lsmx_base::sync::{AtomicU32, AtomicUsize};

use crate::memtable::growing::Growing;
use crate::memtable::*;

/// Entries of a full leaf.
const FULL: u64 = crate::memtable::node::SLOTS as u64;

/// With entries at the numbers 1 to `count`; their keys are the even numbers from 2 on.
fn filled(count: u64) -> Arc<Memtable> {
    let memtable = Memtable::new(SeqNo(1), &Disposal::default());
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

/// The keys that a cursor comes to from `from` on.
fn walk(memtable: &Arc<Memtable>, from: u64) -> Vec<u64> {
    let (mut cursor, mut keys) = (memtable.cursor(), Vec::new());
    cursor.seek(&from.to_be_bytes(), SeqNo::MAX).unwrap();
    while cursor.valid() {
        keys.push(u64::from_be_bytes(cursor.key().user_key.try_into().unwrap()));
        cursor.next().unwrap();
    }
    keys
}

/// An entry shows in the order of a node before what it holds, or one that is there does not show while
/// another comes.
#[test]
fn an_entry_is_found_while_another_comes() {
    for new in [1, 3] {
        explore(None, move || {
            let memtable = filled(1);
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

/// A full leaf is split: its upper half is in neither node, or a slot is read that is used again.
#[test]
fn an_entry_is_found_while_its_leaf_is_split() {
    // With 3 the slot of 18 is used again, at once.
    for (new, sought) in [(3, 18), (3, 2), (3, 2 * FULL), (2 * FULL - 1, 2 * FULL), (17, 16)] {
        explore(Some(2), move || {
            let memtable = filled(FULL);
            let other = Arc::clone(&memtable);
            let reader = spawn(move || assert_eq!(find(&other, sought), Some(sought / 2)));
            put(&memtable, new, FULL + 1);
            reader.join().unwrap();
            assert_eq!(find(&memtable, new), Some(FULL + 1));
        });
    }
}

/// A cursor walks over a leaf that is split behind or before it.
#[test]
fn a_cursor_misses_nothing_while_its_leaf_is_split() {
    explore(Some(1), || {
        let memtable = filled(FULL);
        let other = Arc::clone(&memtable);
        let reader = spawn(move || {
            let mut keys = walk(&other, 12);
            keys.retain(|&key| key != 13);
            let expected: Vec<u64> = (6..=FULL).map(|number| 2 * number).collect();
            assert_eq!(keys, expected);
        });
        put(&memtable, 13, FULL + 1);
        reader.join().unwrap();
    });
}

/// The array grows while it is read: a number is known before its place is.
#[test]
fn a_number_that_is_known_has_its_place() {
    explore(None, || {
        let array: Arc<Growing<AtomicU32, 2>> = Arc::new(Growing::new());
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
            array.reach(number).unwrap().store(number + 1, Ordering::Relaxed);
            count.store(number + 1, Ordering::Release);
        }
        reader.join().unwrap();
    });
}

/// Two range deletes come, and are made one piece: a reader at a number misses one that it is to heed.
#[test]
fn a_range_delete_is_heeded_from_its_number_on() {
    explore(None, || {
        let memtable = filled(0);
        let published = Arc::new(AtomicU64::new(0));
        let (other, sees) = (Arc::clone(&memtable), Arc::clone(&published));
        let reader = spawn(move || {
            let read = sees.load(Ordering::Acquire);
            let covering = other.covering(b"b", SeqNo(read)).map_or(0, |seq| seq.0);
            assert_eq!(covering, read);
        });
        for seq in 1..=2 {
            memtable.insert_span(b"a", Some(b"c"), SeqNo(seq));
            published.store(seq, Ordering::Release);
        }
        reader.join().unwrap();
    });
}

/// A folded value comes while the memtable is let go: its bytes stay counted for ever, or go twice.
#[test]
fn bytes_that_come_late_are_counted_once_or_not_at_all() {
    explore(None, || {
        let memtable = filled(1);
        let before = memtable.bytes();
        let counted = Arc::new(AtomicUsize::new(0));
        let (other, counts) = (Arc::clone(&memtable), Arc::clone(&counted));
        let writer = spawn(move || {
            if other.grow(5) {
                counts.store(5, Ordering::Relaxed);
            }
        });
        let freed = memtable.free();
        writer.join().unwrap();
        assert_eq!(freed, before + counted.load(Ordering::Relaxed) as u64);
        assert_eq!(memtable.free(), 0);
    });
}
