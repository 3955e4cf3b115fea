//! Tests of memtable reads.

use lsmx_base::sync::Mutex;
use proptest::prelude::*;

use crate::deferred_drop::DeferredDrop;
use crate::memtable::*;

fn new_memtable(kind: MemtableKind) -> Memtable {
    Memtable::new(kind, SeqNo(1), &DeferredDrop::default())
}

/// Generates keys, many of which are equal or have equal first sixteen bytes.
fn colliding_key() -> impl Strategy<Value = Vec<u8>> {
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

/// Maximum number of entries in a test case. The number is large enough for several nodes.
const ENTRIES_MAX: usize = if cfg!(miri) { 40 } else { 400 };

proptest! {
    #[test]
    fn has_newer_write_equals_linear_search(
        kind in prop::sample::select(&MemtableKind::ALL[..]),
        writes in prop::collection::vec((0u8..20, prop::option::weighted(0.2, 0u8..20)), 0..40),
        ranges in prop::collection::vec((0u8..20, prop::option::of(1u8..20), 0u64..45), 30),
    ) {
        let memtable = new_memtable(kind);
        // Element n is the number of entries with a sequence number of at most n.
        let mut counts = vec![0];
        for (seq, &(key, range_end)) in (1..).zip(&writes) {
            let _bytes = match range_end {
                Some(end) => memtable.insert_range_tombstone(&[key], Some(&[end]), SeqNo(seq)),
                None => memtable.insert(&[key], SeqNo(seq), EntryKind::Put, b""),
            };
            counts.push(memtable.inserted_count());
        }
        for (start, count, seq) in ranges {
            let end = count.map(|count| start + count);
            let newer = (1..).zip(&writes).filter(|(at, _)| *at > seq);
            let expected = newer.map(|(_, write)| *write).any(|(key, range_end)| {
                let until = range_end.unwrap_or(key + 1);
                key < until && start < until && end.is_none_or(|end| key < end)
            });
            let end = end.map(|end| [end]);
            let end = end.as_ref().map(|end| &end[..]);
            let not_newer = usize::try_from(seq).ok().and_then(|seq| counts.get(seq).copied());
            let not_newer = not_newer.unwrap_or(memtable.inserted_count());
            for checked in [0, not_newer / 2, not_newer] {
                let found = memtable.has_newer_write(&[start], end, SeqNo(seq), checked);
                prop_assert_eq!(found, expected, "{} checked", checked);
            }
        }
    }

    #[test]
    fn cursor_equals_sorted_list_model(
        kind in prop::sample::select(&MemtableKind::ALL[..]),
        entries in prop::collection::vec((colliding_key(), any::<bool>()), 0..ENTRIES_MAX),
        steps in prop::collection::vec((0u8..8, colliding_key(), 0u64..400), 1..40),
    ) {
        let memtable = Arc::new(new_memtable(kind));
        let mut sorted: Vec<(Vec<u8>, u64, EntryKind)> = Vec::new();
        for ((key, put), seq) in entries.into_iter().zip(1..) {
            let kind = if put { EntryKind::Put } else { EntryKind::Delete };
            memtable.insert(&key, SeqNo(seq), kind, &seq.to_be_bytes());
            sorted.push((key, seq, kind));
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
            let current = cursor.valid().then(|| {
                let InternalKey { user_key, seq, kind } = cursor.key();
                (user_key.to_vec(), seq.0, kind)
            });
            prop_assert_eq!(current.as_ref(), expected.map(|at| &sorted[at]));
            if cursor.valid() {
                prop_assert_eq!(cursor.value(), cursor.key().seq.0.to_be_bytes());
            }
            let found = memtable.get(&key, SeqNo(seq)).map(|(seq, kind, _)| (seq.0, kind));
            let newest = sorted.get(before(&key, seq)).filter(|at| at.0 == key);
            prop_assert_eq!(found, newest.map(|at| (at.1, at.2)));
        }
    }
}

/// Four writers insert while readers look up keys and iterate in both directions. Readers find every entry that was
/// inserted before their read began, in order.
#[test]
fn concurrent_readers_find_all_earlier_entries() {
    MemtableKind::ALL.into_iter().for_each(read_during_inserts);
}

fn read_during_inserts(kind: MemtableKind) {
    // The number of entries is large enough for a tree of at least two levels.
    const ENTRIES: u64 = if cfg!(miri) { 120 } else { 20_000 };
    let memtable = Arc::new(new_memtable(kind));
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
                    memtable.insert(&key(number), SeqNo(number), EntryKind::Put, &value);
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
                    assert_eq!(count, there, "entries from before the iteration");
                    if there == ENTRIES {
                        break;
                    }
                }
            });
        }
    });
    assert_eq!(u64::from(memtable.entries.len()), ENTRIES);
}

/// Returns the versions of the key `k` that are visible at a sequence number, newest first. Stops after the first
/// version that is not an operand.
fn read_versions(memtable: &Memtable, seq: u64) -> Vec<(EntryKind, Slice)> {
    let mut seen = Vec::new();
    memtable.visit_versions(b"k", SeqNo(seq), |_, kind, value| {
        seen.push((kind, value));
        kind == EntryKind::Merge
    });
    seen
}

#[test]
fn folded_value_hides_older_operands_from_its_sequence_number_on() {
    let memtable = Arc::new(new_memtable(MemtableKind::default()));
    for seq in 1..=4 {
        memtable.insert(b"k", SeqNo(seq), EntryKind::Merge, b"o");
    }
    let mut cursor = memtable.cursor();
    cursor.seek(b"k", SeqNo(3)).unwrap();
    let bytes = memtable.set_folded_value(b"k", SeqNo(3), Some(Slice::from(&b"ooo"[..])));
    assert!(
        bytes == Some(3) && memtable.set_folded_value(b"k", SeqNo(3), None).is_none(),
        "a folded value is set once"
    );
    assert_eq!(memtable.set_folded_value(b"k", SeqNo(9), None), None, "there is no such operand");
    assert_eq!(read_versions(&memtable, 9).len(), 2);
    assert_eq!(read_versions(&memtable, 3), [(EntryKind::Put, Slice::from(&b"ooo"[..]))]);
    assert_eq!(
        read_versions(&memtable, 2).len(),
        2,
        "readers at older sequence numbers see the older operands"
    );
    // A cursor on the entry still sees the operand. After a move it sees the folded value.
    assert_eq!((cursor.key().kind, cursor.value()), (EntryKind::Merge, &b"o"[..]));
    cursor.prev().unwrap();
    cursor.next().unwrap();
    assert_eq!((cursor.key().kind, cursor.value()), (EntryKind::Put, &b"ooo"[..]));
    // A folded value of `None` is a delete.
    memtable.set_folded_value(b"k", SeqNo(4), None);
    assert_eq!(
        memtable.get(b"k", SeqNo(9)).map(|(seq, kind, _)| (seq.0, kind)),
        Some((4, EntryKind::Delete))
    );
}

#[test]
fn long_operand_chain_requests_a_fold_and_restarts() {
    use crate::merge_operator::{CHAIN_BYTES_MAX, CHAIN_OPERANDS_MAX};
    let memtable = new_memtable(MemtableKind::default());
    let add = |key: &'static str, seq: u32, below| {
        memtable.insert_operand(key.as_bytes(), SeqNo(seq.into()), b"o", below).1
    };
    let long: Vec<u32> = (1..100).filter(|&seq| add("k", seq, 0)).collect();
    assert_eq!(long, [1, 2, 3].map(|times| times * CHAIN_OPERANDS_MAX));
    assert!(!add("below", 100, CHAIN_OPERANDS_MAX - 2) && add("below", 101, 0));
    memtable.insert(b"put", SeqNo(110), EntryKind::Put, b"");
    assert!(!add("put", 111, CHAIN_OPERANDS_MAX), "a put ends the chain");
    let large = vec![0; usize::try_from(CHAIN_BYTES_MAX).unwrap() / 2];
    let large = |seq| memtable.insert_operand(b"large", SeqNo(seq), &large, 0).1;
    assert_eq!([large(120), large(121), large(122), large(123)], [false, true, false, true]);
}

#[test]
fn bytes_are_released_once_and_none_are_added_afterwards() {
    let memtable = new_memtable(MemtableKind::default());
    let bytes = memtable.insert(b"k", SeqNo(1), EntryKind::Put, b"v");
    assert!(memtable.add_bytes(5));
    assert_eq!((memtable.release_bytes(), memtable.release_bytes()), (bytes + 5, 0));
    assert!(!memtable.add_bytes(5));
    assert_eq!(memtable.bytes(), bytes + 5);
}

/// `ENTRY_OVERHEAD_BYTES` is used for the memory budget of a batch, so it must be close to the real overhead. An entry
/// of a skip list has a larger overhead.
#[test]
fn entry_overhead_is_close_to_its_estimate() {
    const ENTRIES: u64 = if cfg!(miri) { 500 } else { 20_000 };
    for (kind, overhead) in
        [(MemtableKind::BLinkTree, ENTRY_OVERHEAD_BYTES), (MemtableKind::SkipList, 170)]
    {
        for value_bytes in [0_usize, 100, 1_000] {
            let memtable = new_memtable(kind);
            let empty = memtable.bytes();
            for seq in 1..=ENTRIES {
                let key = u128::from(seq.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes();
                memtable.insert(&key, SeqNo(seq), EntryKind::Put, &vec![7; value_bytes]);
            }
            let payload = 16 + u64::try_from(value_bytes).unwrap();
            let counted = (memtable.bytes() - empty) / ENTRIES - payload;
            let expected = overhead / 5 * 4..=overhead / 5 * 6;
            assert!(
                expected.contains(&counted),
                "{kind}: {counted} bytes, values of {value_bytes}"
            );
        }
    }
}

#[test]
fn middle_key_is_near_the_median() {
    const ENTRIES: u16 = 10_000;
    for kind in MemtableKind::ALL {
        let memtable = new_memtable(kind);
        assert_eq!(memtable.middle_key(), None);
        for number in 0..ENTRIES {
            let key = number.wrapping_mul(7919) % ENTRIES;
            memtable.insert(&key.to_be_bytes(), SeqNo(1 + u64::from(number)), EntryKind::Put, b"");
        }
        let middle = memtable.middle_key().unwrap();
        let middle = u16::from_be_bytes(middle[..].try_into().unwrap());
        assert!((ENTRIES / 4..ENTRIES / 4 * 3).contains(&middle), "{kind}: {middle}");
    }
}
