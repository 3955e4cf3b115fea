//! Tests of the succinct index against a model of separators.

use lsmx_base::coding::len_u64;
use lsmx_base::key::{EntryKind, InternalKey};
use proptest::prelude::*;
use proptest::sample::Index;

use super::separator::PrecedingKey;
use super::succinct::SuccinctIndexBuilder;
use super::*;
use crate::format::copies_with_flipped_bit;

type OwnedKey = (Vec<u8>, u64);

fn internal((user_key, seq): &OwnedKey) -> InternalKey<'_> {
    InternalKey { user_key, seq: SeqNo(*seq), kind: EntryKind::Put }
}

/// First and last key of each block.
struct TestBlocks(Vec<(OwnedKey, OwnedKey)>);

impl TestBlocks {
    /// Sorts the keys and splits them into blocks of `each` keys.
    fn from_keys(mut keys: Vec<OwnedKey>, each: usize) -> TestBlocks {
        keys.sort_by(|a, b| internal(a).cmp(&internal(b)));
        keys.dedup();
        let block = |keys: &[OwnedKey]| Some((keys.first()?.clone(), keys.last()?.clone()));
        TestBlocks(keys.chunks(each).filter_map(block).collect())
    }

    fn build(&self) -> (Vec<u8>, Vec<BlockHandle>) {
        let mut builder = SuccinctIndexBuilder::default();
        let mut offset = 12_345;
        let mut handles = Vec::new();
        for (index, (_, last)) in self.0.iter().enumerate() {
            let handle = BlockHandle { offset, bytes: 4000 + len_u64(index * index) % 97 };
            offset += handle.bytes;
            let next = self.0.get(index + 1).map(|(first, _)| internal(first));
            builder.add(handle, next.map(|next| Boundary::between(internal(last), next)));
            handles.push(handle);
        }
        assert_eq!(builder.count(), handles.len());
        (builder.finish(), handles)
    }

    fn contains(&self, ordinal: usize, key: &OwnedKey) -> bool {
        let after =
            |at: usize| self.0.get(at).is_some_and(|(first, _)| internal(first) <= internal(key));
        (ordinal == 0 || after(ordinal)) && !after(ordinal + 1)
    }

    /// Checks lookups of the first and last key of each block, and of all keys in `others`. Returns the encoded index
    /// block.
    fn check(&self, others: &[OwnedKey]) -> Vec<u8> {
        let (block, handles) = self.build();
        let index = IndexBlock::new(block.clone().into()).unwrap();
        assert_eq!((index.count(), index.bytes()), (handles.len(), block.len()));
        let entries = index.entries().unwrap();
        assert_eq!(entries.iter().map(|(_, handle)| *handle).collect::<Vec<_>>(), handles);
        for (ordinal, handle) in handles.iter().enumerate() {
            assert_eq!(index.handle(ordinal).unwrap(), Some(*handle));
        }
        assert_eq!(index.handle(handles.len()).unwrap(), None);
        for (at, pair) in self.0.windows(2).enumerate() {
            let [(_, last), (next, _)] = pair else { continue };
            let separator = entries[at].0.as_ref().unwrap();
            assert!(!separator.is_before(&last.0, SeqNo(last.1)), "{separator:?} {last:?}");
            assert!(separator.is_before(&next.0, SeqNo(next.1)), "{separator:?} {next:?}");
        }
        assert_eq!(entries.last().unwrap().0, None);
        let ends = self.0.iter().enumerate().flat_map(|(at, (a, b))| [(at, a), (at, b)]);
        for (at, key) in ends {
            assert_eq!(
                index.seek(&key.0, SeqNo(key.1)).unwrap(),
                Some((at, handles[at])),
                "{key:?}"
            );
        }
        for key in others {
            let (found, handle) = index.seek(&key.0, SeqNo(key.1)).unwrap().unwrap();
            let by_separators = entries.iter().position(|(after, _)| {
                !after.as_ref().is_some_and(|a| a.is_before(&key.0, SeqNo(key.1)))
            });
            assert_eq!((Some(found), handle), (by_separators, handles[found]), "{key:?}");
        }
        block
    }
}

/// Returns keys that are close to `key` in key order.
fn neighbours(key: &OwnedKey) -> Vec<OwnedKey> {
    let (user_key, seq) = key;
    let mut keys = vec![(user_key.clone(), seq + 1), (user_key.clone(), seq.saturating_sub(1))];
    for end in user_key.len().saturating_sub(40)..=user_key.len() {
        keys.push((user_key[..end].to_vec(), *seq));
        for byte in [0, 1, b'0', b'm', 255] {
            keys.push(([&user_key[..end], &[byte]].concat(), *seq));
        }
        if let Some(byte) = user_key.get(end) {
            for byte in [byte.wrapping_sub(1), byte.wrapping_add(1)] {
                keys.push(([&user_key[..end], &[byte]].concat(), *seq));
            }
        }
    }
    keys
}

fn hashes(count: u64) -> Vec<OwnedKey> {
    let word = |n: u64| xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes()).to_be_bytes();
    (0..count).map(|n| ([word(n), word(n ^ 1 << 40)].concat(), 1)).collect()
}

fn ids(count: u64) -> Vec<OwnedKey> {
    let fields = ["address", "age", "email", "name", "phone"];
    let key = |n: u64| format!("user:{:06}:{}", n / 5, fields[(n % 5) as usize]);
    (0..count).map(|n| (key(n).into_bytes(), n)).collect()
}

fn names(count: u64) -> Vec<OwnedKey> {
    let parts = ["lib", "core", "rust", "-dev", "_", "perl", "mod", "python3-", "x", "qt", "doc"];
    (0..count)
        .map(|n| {
            let mut hash = xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes());
            let mut name = String::new();
            for _ in 0..3 + n % 4 {
                name += parts[(hash % 11) as usize];
                hash /= 11;
            }
            (name.into_bytes(), n)
        })
        .collect()
}

#[test]
fn succinct_index_all_key_shapes_find_their_blocks() {
    let versions = (0..300).map(|n| (b"one key of many versions".to_vec(), n)).collect::<Vec<_>>();
    let long = (0..60usize)
        .map(|n| ([vec![b'k'; 20_000 + n % 7 * 10], n.to_be_bytes().to_vec()].concat(), 3));
    let nested = (0..400).map(|n| (vec![0; n % 40 + n / 40], len_u64(n))).collect::<Vec<_>>();
    let mixed = hashes(100).into_iter().chain(ids(300)).chain(names(200)).chain(versions.clone());
    let sets: [(&str, Vec<OwnedKey>, usize); 9] = [
        ("hashes", hashes(6_000), 5),
        ("ids", ids(6_000), 7),
        ("names", names(6_000), 4),
        ("versions", versions, 3),
        ("long", long.collect(), 1),
        ("nested", nested, 2),
        ("mixed", mixed.collect(), 3),
        ("one block", ids(10), 10),
        ("two blocks", ids(10), 5),
    ];
    for (what, keys, each) in sets {
        let others: Vec<OwnedKey> =
            keys.iter().step_by(keys.len() / 20 + 1).flat_map(neighbours).collect();
        let blocks = TestBlocks::from_keys(keys, each);
        let block = blocks.check(&others);
        let first_keys: Vec<OwnedKey> = blocks.0.iter().map(|(first, _)| first.clone()).collect();
        for key in first_keys.iter().step_by(first_keys.len() / 30 + 1) {
            let index = IndexBlock::new(block.clone().into()).unwrap();
            for other in neighbours(key) {
                let (found, _) = index.seek(&other.0, SeqNo(other.1)).unwrap().unwrap();
                let between = !blocks.contains(found, &other);
                // A key between two blocks may map to either block, because neither block contains the key.
                assert!(
                    !between || !blocks.0.iter().any(|(a, b)| *a == other || *b == other),
                    "{what}"
                );
            }
        }
    }
}

#[test]
fn succinct_index_hashes_and_ids_take_under_two_bytes_per_block() {
    for (keys, each, most) in [(hashes(28_000), 28, 2.0), (ids(28_000), 28, 1.6)] {
        let blocks = TestBlocks::from_keys(keys, each);
        let (block, handles) = blocks.build();
        assert_eq!(block[1], 0, "numbers");
        // For these sizes, the handles need 8.6 bits per block.
        let each = block.len() as f64 / handles.len() as f64 - 8.6 / 8.0;
        assert!(each < most, "{each}");
    }
    let (block, _) = TestBlocks::from_keys(names(20_000), 28).build();
    assert_eq!(block[1], 1, "strings");
}

#[test]
fn boundary_between_keys_is_minimal() {
    let between = |last: &str, next: &str| {
        let (last, next) = ((last.as_bytes().to_vec(), 9), (next.as_bytes().to_vec(), 8));
        let boundary = Boundary::between(internal(&last), internal(&next));
        (String::from_utf8(boundary.user_key).unwrap(), boundary.preceding)
    };
    assert_eq!(
        between("user:0001234", "user:00013"),
        ("user:00013".into(), PrecedingKey::Byte(b'2'))
    );
    assert_eq!(between("ab", "abcd"), ("abc".into(), PrecedingKey::End));
    assert_eq!(between("", "z"), ("z".into(), PrecedingKey::End));
    assert_eq!(between("same", "same"), ("same".into(), PrecedingKey::Version(SeqNo(9))));
}

/// Returns the sizes of all index blocks except the last one. Each data block has `each` keys.
fn full_block_sizes(keys: Vec<OwnedKey>, each: usize, target: usize) -> Vec<usize> {
    let blocks = TestBlocks::from_keys(keys, each);
    let mut builder = SuccinctIndexBuilder::default();
    let mut sizes = Vec::new();
    for (at, (_, last)) in blocks.0.iter().enumerate() {
        let next = blocks.0.get(at + 1).map(|(first, _)| internal(first));
        let boundary = next.map(|next| Boundary::between(internal(last), next));
        builder.add(BlockHandle { offset: len_u64(at) * 4096, bytes: 4096 }, boundary);
        if builder.is_full(target) {
            let expected_bytes = builder.bytes();
            sizes.push(builder.finish().len());
            assert_eq!((sizes.last(), builder.count()), (Some(&expected_bytes), 0));
        }
    }
    sizes
}

#[test]
fn succinct_index_blocks_close_near_target_size() {
    for keys in [hashes(40_000), ids(40_000), names(40_000)] {
        let sizes = full_block_sizes(keys, 2, 2048);
        assert!(sizes.len() > 2, "{sizes:?}");
        assert!(sizes.iter().all(|size| (1900..2500).contains(size)), "{sizes:?}");
    }
}

// Regression test: the estimated size included the boundary after the last block, which is not part of the index block.
// After one long boundary, the builder then added thousands of further blocks.
#[test]
fn succinct_index_long_keys_do_not_exceed_target_size() {
    // Each document extends over several data blocks.
    let path = |n: u64| hashes(n + 1).pop().unwrap().0.repeat(400);
    let key = |n: u64| ([path(n / 4), n.to_be_bytes().to_vec()].concat(), 1);
    let sizes = full_block_sizes((0..400).map(key).collect(), 1, 4096);
    // A path is longer than the target size. Every boundary within a document contains the whole path.
    assert!(sizes.len() > 20 && sizes.iter().all(|&size| size < 20_000), "{sizes:?}");

    // One long boundary between short ones.
    let mut keys = ids(20_000);
    let long = [&keys[300].0[..], &[b'x'; 60_000]].concat();
    keys.extend([(long.clone(), 1), ([&long[..], b"y"].concat(), 1)]);
    let sizes = full_block_sizes(keys, 1, 4096);
    let over = sizes.iter().filter(|&&size| size > 5_000).count();
    assert!(sizes.len() > 2 && over <= 1, "{sizes:?}");
}

#[test]
fn succinct_index_damaged_block_does_not_panic() {
    let sets = [hashes(400), ids(400), names(400), (0..60).map(|n| (b"key".to_vec(), n)).collect()];
    for keys in sets {
        let (whole, _) = TestBlocks::from_keys(keys, 4).build();
        let probe = |bytes: Vec<u8>| {
            let Ok(index) = IndexBlock::new(bytes.into()) else { return };
            for key in [&b""[..], b"key", b"user:000001:b", b"python3-", &[7; 16]] {
                let _ = index.seek(key, SeqNo(9));
            }
            for ordinal in [0, index.count() / 2, index.count() - 1] {
                let _ = index.handle(ordinal);
            }
            let _ = index.entries();
        };
        for len in 0..whole.len() {
            let cut = whole[..len].to_vec();
            assert!(IndexBlock::new(cut.into()).is_err(), "cut to {len} of {}", whole.len());
        }
        for (_, damaged) in copies_with_flipped_bit(&whole) {
            probe(damaged);
        }
    }
}

fn any_key() -> impl Strategy<Value = OwnedKey> {
    let byte = prop_oneof![Just(0u8), Just(255), Just(b'a'), b'0'..=b'9', any::<u8>()];
    let free = proptest::collection::vec(byte, 0..8);
    let id = (0..50u32, 0..3u8).prop_map(|(a, b)| format!("id/{a:03}/{b}").into_bytes());
    (prop_oneof![free, id], 0..5u64)
}

proptest! {
    #[test]
    fn succinct_index_random_keys_find_their_blocks(
        keys in proptest::collection::vec(any_key(), 1..120),
        each in 1..6usize,
        others in proptest::collection::vec(any_key(), 0..30),
        key_index in any::<Index>(),
    ) {
        let neighbours = neighbours(key_index.get(&keys));
        let blocks = TestBlocks::from_keys(keys, each);
        blocks.check(&others);
        blocks.check(&neighbours);
    }

    #[test]
    fn succinct_index_random_bytes_do_not_panic(form in 0..2u8, bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let block = [&[ENCODING_SUCCINCT, form], &bytes[..]].concat();
        if let Ok(index) = IndexBlock::new(block.into()) {
            let _ = index.seek(b"key", SeqNo::MAX);
            let _ = index.entries();
        }
    }
}
