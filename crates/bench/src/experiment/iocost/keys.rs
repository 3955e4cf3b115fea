//! Keys to look up: the keys of a database built for the measurement, or a sample of the keys of an existing database.

use lsmx::Keyspace;

use crate::error::{Error, Result};
use crate::numbers;
use crate::peers::lsmx::engine_error;
use crate::workload::random::{Random, hash_u64};

const SAMPLE_MAX: u64 = 1 << 20;
/// Length of the key prefix that is unique for each record, in bytes.
const WORD_BYTES: usize = size_of::<u64>();

#[derive(Debug)]
pub(super) enum LookupKeys {
    /// Keys of a database built for the measurement.
    Hashed(HashedKeys),
    /// Sampled keys of an existing database.
    Sampled(Vec<Vec<u8>>),
}

/// Keys that are hashes of record numbers, like the keys of a blockchain's state. The gaps between hashes vary, unlike
/// the gaps between the keys of [`crate::workload::keys::KeySpace`]. The size of the index depends on the gaps.
#[derive(Clone, Copy, Debug)]
pub(super) struct HashedKeys {
    entries: u64,
    key_bytes: usize,
    seed: u64,
}

impl HashedKeys {
    /// Creates the keys of `entries` records, each `key_bytes` long.
    pub(super) fn new(entries: u64, key_bytes: u64, seed: u64) -> HashedKeys {
        HashedKeys { entries, key_bytes: numbers::to_usize(key_bytes), seed: hash_u64(seed) }
    }

    /// Writes the key with this number to `key`. Keys with numbers below `entries` are present in the database, all
    /// other keys are absent.
    pub(super) fn write_key(&self, number: u64, key: &mut Vec<u8>) {
        key.clear();
        // `hash_u64` is a bijection, so all keys differ in their first eight bytes.
        let mut word = hash_u64(number ^ self.seed);
        while key.len() < self.key_bytes {
            let bytes = word.to_be_bytes();
            let left = self.key_bytes - key.len();
            key.extend_from_slice(&bytes[..left.min(WORD_BYTES)]);
            word = hash_u64(word.wrapping_add(self.seed | 1));
        }
    }
}

impl LookupKeys {
    /// Reads all keys of the keyspace and draws a uniform sample.
    pub(super) fn sample_keyspace(keyspace: &Keyspace, random: &mut Random) -> Result<LookupKeys> {
        let mut sample: Vec<Vec<u8>> = Vec::new();
        // An absent key is a sampled key followed by a zero byte. If that longer key is present, the sampled key is
        // removed.
        let mut place: Option<usize> = None;
        let mut seen = 0_u64;
        for entry in keyspace.iter() {
            let (key, _) = entry.map_err(engine_error("scan"))?;
            if let Some(before) = place.take()
                && is_next_key(&sample[before], &key)
            {
                sample.swap_remove(before);
            }
            seen += 1;
            let at = if seen <= SAMPLE_MAX { seen - 1 } else { random.next_below(seen) };
            if at < SAMPLE_MAX {
                let at = numbers::to_usize(at).min(sample.len());
                if at == sample.len() {
                    sample.push(key.to_vec());
                } else {
                    sample[at] = key.to_vec();
                }
                place = Some(at);
            }
        }
        if sample.is_empty() {
            let must = "a database with entries in this keyspace";
            return Err(Error::invalid_argument("--db", "empty", must));
        }
        Ok(LookupKeys::Sampled(sample))
    }

    pub(super) fn write_present(&self, random: &mut Random, key: &mut Vec<u8>) {
        match self {
            LookupKeys::Hashed(keys) => keys.write_key(random.next_below(keys.entries), key),
            LookupKeys::Sampled(sample) => {
                key.clone_from(
                    &sample[numbers::to_usize(random.next_below(numbers::to_u64(sample.len())))],
                );
            }
        }
    }

    /// Writes a random absent key to `key`.
    pub(super) fn write_absent(&self, random: &mut Random, key: &mut Vec<u8>) {
        match self {
            // Absent keys are hashes of unused record numbers.
            LookupKeys::Hashed(keys) => {
                let others = u64::MAX - keys.entries;
                keys.write_key(keys.entries + random.next_below(others), key);
            }
            LookupKeys::Sampled(_) => {
                self.write_present(random, key);
                key.push(0);
            }
        }
    }
}

/// Returns whether `key` is `before` followed by a zero byte, which is the next key in key order.
fn is_next_key(before: &[u8], key: &[u8]) -> bool {
    key.split_last() == Some((&0, before))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use lsmx::Options;
    use lsmx::vfs::MemVfs;
    use lsmx_base::sync::Arc;

    use super::*;

    #[test]
    fn hashed_keys_are_distinct_and_absent_keys_are_absent() {
        for key_bytes in [8, 13, 32] {
            let keys = LookupKeys::Hashed(HashedKeys::new(5_000, key_bytes, 7));
            let LookupKeys::Hashed(hashed) = &keys else { unreachable!() };
            let (mut all, mut key) = (BTreeSet::new(), Vec::new());
            for record in 0..5_000 {
                hashed.write_key(record, &mut key);
                assert_eq!(numbers::to_u64(key.len()), key_bytes);
                assert!(all.insert(key.clone()));
            }
            let mut random = Random::new(1, 2);
            for _ in 0..1_000 {
                keys.write_present(&mut random, &mut key);
                assert!(all.contains(&key));
                keys.write_absent(&mut random, &mut key);
                assert!(!all.contains(&key));
            }
        }
    }

    #[test]
    fn sampled_keys_are_present_and_their_neighbours_are_not() {
        let db = lsmx::Db::open("db", Options::default().vfs(Arc::new(MemVfs::new()))).unwrap();
        let keyspace = db.default_keyspace();
        let mut random = Random::new(3, 4);
        assert!(
            LookupKeys::sample_keyspace(&keyspace, &mut random)
                .unwrap_err()
                .to_string()
                .contains("entries")
        );
        for key in ["a", "a\0", "a\0\0", "b", "c", "c\0"] {
            db.put(key, "").unwrap();
        }
        let keys = LookupKeys::sample_keyspace(&keyspace, &mut random).unwrap();
        let LookupKeys::Sampled(sample) = &keys else { unreachable!() };
        let sample: BTreeSet<&[u8]> = sample.iter().map(Vec::as_slice).collect();
        assert_eq!(sample, BTreeSet::from([&b"a\0\0"[..], b"b", b"c\0"]));
        let mut key = Vec::new();
        for _ in 0..100 {
            keys.write_absent(&mut random, &mut key);
            assert!(db.get(&key).unwrap().is_none());
        }
    }
}
