//! Tests of data blocks in both encodings, intact and damaged.

use lsmx_base::key::InternalKey;
use proptest::prelude::*;

use super::cursor::DataBlockCursor;
use super::*;
use crate::format::copies_with_flipped_bit;

type OwnedEntry = (Vec<u8>, u64, EntryKind, Vec<u8>);

fn build(entries: &[OwnedEntry], interval: u32, tagged: bool) -> Vec<u8> {
    let mut builder = DataBlockBuilder::new(interval, tagged);
    for (user_key, seq, kind, value) in entries {
        let key = InternalKey { user_key, seq: SeqNo(*seq), kind: *kind };
        let common = common_prefix(builder.last_key(), key.user_key);
        let expected = builder.bytes_after_add(key, common, value);
        builder.add(key, value);
        assert_eq!(builder.bytes(), expected);
    }
    let mut out = Vec::new();
    builder.finish(&mut out);
    assert!(builder.is_empty());
    assert_eq!(DataBlock::new(out.clone().into()).unwrap().has_tags(), tagged);
    out
}

fn sample() -> Vec<OwnedEntry> {
    let mut entries = Vec::new();
    for (index, key) in
        ["", "\0", "a", "aa", "ab", "abcdef", "abcdeg", "b", "\u{7f}\u{7f}"].into_iter().enumerate()
    {
        for version in (0..=index as u64 % 4).rev() {
            let kind = EntryKind::from_u8(u8::try_from(version % 4).unwrap()).unwrap();
            entries.push((key.into(), 10 * version + 1, kind, vec![7; 30 + index * 3]));
        }
    }
    entries
}

fn model_get(entries: &[OwnedEntry], key: &[u8], snapshot: u64) -> Option<OwnedEntry> {
    entries.iter().find(|entry| entry.0 == key && entry.1 <= snapshot).cloned()
}

fn get(block: &DataBlock, key: &[u8], snapshot: u64) -> Option<OwnedEntry> {
    let hit = block.get(key, SeqNo(snapshot)).unwrap()?;
    let value = block.bytes()[hit.value_at..hit.value_end].to_vec();
    Some((key.to_vec(), hit.seq.0, hit.kind, value))
}

#[test]
fn common_prefix_stops_at_first_difference() {
    for len in 0..40 {
        let a: Vec<u8> = (0..len).collect();
        for at in 0..a.len() {
            for bit in 0..8 {
                let mut b = a.clone();
                b[at] ^= 1 << bit;
                assert_eq!(common_prefix(&a, &b), at);
            }
            assert_eq!(common_prefix(&a, &a[..at]), at);
            assert_eq!(common_prefix(&a[..at], &a), at);
        }
        assert_eq!(common_prefix(&a, &a), a.len());
    }
}

#[test]
fn data_block_get_any_restart_interval_finds_all_versions() {
    let entries = sample();
    for (interval, tagged) in [1, 2, 3, 16].into_iter().flat_map(|n| [(n, false), (n, true)]) {
        let block = DataBlock::new(build(&entries, interval, tagged).into()).unwrap();
        block.check_invariants().unwrap();
        for key in ["", "\0", "\0\0", "a", "aaa", "ab", "abc", "abcdef", "abcdeh", "b", "~"] {
            for snapshot in 0..45 {
                let expected = model_get(&entries, key.as_bytes(), snapshot);
                assert_eq!(get(&block, key.as_bytes(), snapshot), expected, "{key} {snapshot}");
            }
        }
    }
}

#[test]
fn data_block_damaged_does_not_panic() {
    check_damaged(&build(&sample(), 3, false));
    check_damaged(&build(&sample(), 3, true));
}

fn check_damaged(whole: &[u8]) {
    let probe = |bytes: Vec<u8>| {
        let Ok(block) = DataBlock::new(bytes.into()) else { return };
        for key in ["", "a", "abcdef", "zz"] {
            let _ = block.get(key.as_bytes(), SeqNo(20));
        }
        let mut cursor = DataBlockCursor::new(block);
        if cursor.first().is_ok() {
            while cursor.valid() && cursor.next().is_ok() {}
        }
        if cursor.last().is_ok() {
            while cursor.valid() && cursor.prev().is_ok() {}
        }
        let _ = cursor.seek(b"abc", SeqNo(7));
    };
    for len in 0..whole.len() {
        probe(whole[..len].to_vec());
    }
    copies_with_flipped_bit(whole).for_each(|(_, damaged)| probe(damaged));
}

// Regression test: `verify` only iterated forward and did not check restarts. It accepted a block in which searches did
// not find entries, and in which backward iteration ended early without an error.
#[test]
fn data_block_check_wrong_restarts_is_error() {
    let good = build(&sample(), 3, false);
    let block = DataBlock::new(good.clone().into()).unwrap();
    block.check_invariants().unwrap();
    for index in 0..block.restart_count() {
        let second = block.entry(block.restart_offset(index).unwrap()).unwrap().next;
        for at in
            [second, ENTRIES_AT - 1, block.entries_end(), block.restart_offset(index).unwrap() + 1]
        {
            let mut bad = good.clone();
            let place = block.entries_end() + 4 * index;
            bad[place..place + 4].copy_from_slice(&u32::try_from(at).unwrap().to_le_bytes());
            assert!(
                DataBlock::new(bad.into()).unwrap().check_invariants().is_err(),
                "{index} at {at}"
            );
        }
    }
    // `b` shares no bytes with the previous key, although it could share one byte.
    let shares_too_little =
        [0, 0, 2, 1, 1, 0, b'a', b'a', 0, 2, 1, 1, 0, b'a', b'b', 1, 0, 0, 0, 1, 0, 0, 0];
    let block = DataBlock::new(shares_too_little.to_vec().into()).unwrap();
    assert!(block.check_invariants().is_err());
}

#[test]
fn data_block_check_wrong_tags_is_error() {
    let entries = sample();
    let good = build(&entries, 3, true);
    let block = DataBlock::new(good.clone().into()).unwrap();
    let tail_at = block.entries_end();
    assert_eq!(good.len() - tail_at, entries.len() + 2 * entries.len().div_ceil(3) + 3);
    for (bit, bad) in copies_with_flipped_bit(&good).skip(8 * tail_at) {
        let is_accepted = |block: DataBlock| block.check_invariants().is_ok();
        assert!(!DataBlock::new(bad.into()).is_ok_and(is_accepted), "bit {bit}");
    }
}

// Tags are omitted if entries are too short, or if an offset does not fit in its field.
#[test]
fn data_block_tags_small_entries_or_large_offsets_are_omitted() {
    let entry = |n: u32, value: usize| {
        let key = n.to_be_bytes().to_vec();
        (key, 1, EntryKind::Put, vec![1; value])
    };
    let has_tags = |count: u32, value: usize, interval: u32| {
        let mut builder = DataBlockBuilder::new(interval, true);
        for (key, seq, kind, value) in (0..count).map(|n| entry(n, value)) {
            builder.add(InternalKey { user_key: &key, seq: SeqNo(seq), kind }, &value);
        }
        let (bytes, mut out) = (builder.bytes(), Vec::new());
        builder.finish(&mut out);
        assert_eq!(out.len(), bytes);
        let block = DataBlock::new(out.into()).unwrap();
        block.check_invariants().unwrap();
        assert!((0..count).all(|n| block.get(&n.to_be_bytes(), SeqNo::MAX).unwrap().is_some()));
        block.has_tags()
    };
    assert!(has_tags(20, 40, 16));
    assert!(!has_tags(20, 10, 16));
    assert!(has_tags(1, 65_000, 16) && !has_tags(1, 66_000, 16));
    assert!(has_tags(600, 80, 255) && !has_tags(600, 80, 256));
    assert!(!has_tags(3_000, 40, 1));
}

#[test]
fn data_block_cursor_prev_missing_restart_is_error() {
    let entries = [b"a", b"b"].map(|key| (key.to_vec(), 1, EntryKind::Put, b"v".to_vec()));
    let mut bytes = build(&entries, 16, false);
    let second = DataBlock::new(bytes.clone().into()).unwrap().entry(ENTRIES_AT).unwrap().next;
    let place = bytes.len() - 8;
    bytes[place..place + 4].copy_from_slice(&u32::try_from(second).unwrap().to_le_bytes());
    let mut cursor = DataBlockCursor::new(DataBlock::new(bytes.into()).unwrap());
    cursor.last().unwrap();
    assert_eq!(cursor.key().user_key, b"b");
    assert!(cursor.prev().is_err());
}

#[test]
fn data_block_unknown_kind_is_error() {
    let whole = build(&[(b"k".to_vec(), 1, EntryKind::Put, b"v".to_vec())], 16, false);
    let kind_at = ENTRIES_AT + 2;
    assert_eq!(whole[kind_at], EntryKind::Put as u8);
    for kind in (0..=u8::MAX).filter(|kind| EntryKind::from_u8(*kind).is_none()) {
        let mut bytes = whole.clone();
        bytes[kind_at] = kind;
        let error = DataBlock::new(bytes.into()).unwrap().get(b"k", SeqNo::MAX).unwrap_err();
        assert!(matches!(error, Malformed::Field { what: "entry kind", .. }), "{error}");
    }
}

proptest! {
    /// Checks that lookups with and without tags return the same entries as a linear search.
    #[test]
    fn data_block_lookup_random_entries_matches_model(
        keys in proptest::collection::btree_map("[ab]{0,5}", 1u64..4, 1..60),
        lookups in proptest::collection::vec(("[abc]{0,6}", 0u64..5), 1..40),
        interval in 1u32..20,
    ) {
        let mut entries: Vec<OwnedEntry> = Vec::new();
        for (key, versions) in keys {
            for seq in (1..=versions).rev() {
                entries.push((key.clone().into(), seq, EntryKind::Put, vec![7; 40]));
            }
        }
        for tagged in [false, true] {
            let block = DataBlock::new(build(&entries, interval, tagged).into()).unwrap();
            block.check_invariants().unwrap();
            for (key, snapshot) in &lookups {
                let expected = model_get(&entries, key.as_bytes(), *snapshot);
                prop_assert_eq!(get(&block, key.as_bytes(), *snapshot), expected);
            }
            for (key, seq, ..) in &entries {
                prop_assert_eq!(get(&block, key, *seq).map(|found| found.1), Some(*seq));
            }
        }
    }

    #[test]
    fn data_block_random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = bytes;
        if let Some(coding) = bytes.first_mut() {
            *coding %= 2;
        }
        if let Ok(block) = DataBlock::new(bytes.into()) {
            let _ = block.get(b"key", SeqNo::MAX);
            let mut cursor = DataBlockCursor::new(block);
            if cursor.last().is_ok() {
                while cursor.valid() && cursor.prev().is_ok() {}
            }
        }
    }
}

/// A scan ended at a block without entries, although the table has further blocks.
#[test]
fn data_block_without_entries_is_error() {
    let untagged = [0, 1, 0, 0, 0, 1, 0, 0, 0];
    let tagged = [1, 7, 1, 0, 16, 1, 0];
    for block in [&untagged[..], &tagged] {
        let error = DataBlock::new(block.to_vec().into()).unwrap_err();
        assert!(matches!(error, Malformed::Field { .. }), "{error}");
    }
}
