//! Which keys are asked for: those of the data set, or a sample of what a database holds.

use lsmx::Keyspace;

use crate::error::{Error, Result};
use crate::numbers;
use crate::workload::random::{Random, mix};

/// Keys of an existing database that are kept to be asked for.
const SAMPLE_MAX: u64 = 1 << 20;
/// Bytes of a key that tell records apart.
const WORD_BYTES: usize = size_of::<u64>();

/// Keys that are there, and keys that are not.
#[derive(Debug)]
pub(super) enum Keys {
    /// Those of the data set.
    Hashed(Hashed),
    /// Keys that a database was found to hold.
    Sampled(Vec<Vec<u8>>),
}

/// Keys that are hashes of the numbers of their records, as those of a blockchain's state are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hashed {
    entries: u64,
    key_bytes: usize,
    seed: u64,
}

impl Hashed {
    /// The keys of so many records.
    pub(super) fn new(entries: u64, key_bytes: u64, seed: u64) -> Hashed {
        Hashed { entries, key_bytes: numbers::length(key_bytes), seed: mix(seed) }
    }

    /// Replaces `key` by that of a record; beyond the last there are keys that no record has.
    pub(super) fn write(&self, record: u64, key: &mut Vec<u8>) {
        key.clear();
        // Different numbers have different first words, for `mix` can be undone.
        let mut word = mix(record ^ self.seed);
        while key.len() < self.key_bytes {
            let bytes = word.to_be_bytes();
            let left = self.key_bytes - key.len();
            key.extend_from_slice(&bytes[..left.min(WORD_BYTES)]);
            word = mix(word.wrapping_add(self.seed | 1));
        }
    }
}

impl Keys {
    /// A sample of the keys of a keyspace, each as likely as any other: reads all of it once.
    ///
    /// # Errors
    /// When the database cannot be read, or has no entry.
    pub(super) fn sample(keyspace: &Keyspace, random: &mut Random) -> Result<Keys> {
        let mut sample: Vec<Vec<u8>> = Vec::new();
        // A key whose absent neighbour turns out to be there is not asked for.
        let mut place: Option<usize> = None;
        let mut seen = 0_u64;
        for entry in keyspace.iter() {
            let (key, _) = entry.map_err(|source| Error::Engine { action: "scan", source })?;
            if let Some(before) = place.take()
                && is_neighbour(&sample[before], &key)
            {
                sample.swap_remove(before);
            }
            seen += 1;
            let at = if seen <= SAMPLE_MAX { seen - 1 } else { random.below(seen) };
            if at < SAMPLE_MAX {
                let at = numbers::length(at).min(sample.len());
                if at == sample.len() {
                    sample.push(key.to_vec());
                } else {
                    sample[at] = key.to_vec();
                }
                place = Some(at);
            }
        }
        if sample.is_empty() {
            return Err(Error::Invalid {
                name: "--db",
                value: "empty".to_owned(),
                must: "a database with entries in this keyspace".to_owned(),
            });
        }
        Ok(Keys::Sampled(sample))
    }

    /// Replaces `key` by one that is there.
    pub(super) fn present(&self, random: &mut Random, key: &mut Vec<u8>) {
        match self {
            Keys::Hashed(keys) => keys.write(random.below(keys.entries), key),
            Keys::Sampled(sample) => {
                key.clone_from(
                    &sample[numbers::length(random.below(numbers::count(sample.len())))],
                );
            }
        }
    }

    /// Replaces `key` by one that is not there.
    pub(super) fn absent(&self, random: &mut Random, key: &mut Vec<u8>) {
        match self {
            // A hash like all others.
            Keys::Hashed(keys) => {
                let others = u64::MAX - keys.entries;
                keys.write(keys.entries + random.below(others), key);
            }
            Keys::Sampled(_) => {
                self.present(random, key);
                key.push(0);
            }
        }
    }
}

/// Whether `key` is the smallest above `before`.
fn is_neighbour(before: &[u8], key: &[u8]) -> bool {
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
    fn hashed_keys_differ_and_absent_ones_are_none_of_them() {
        for key_bytes in [8, 13, 32] {
            let keys = Keys::Hashed(Hashed::new(5_000, key_bytes, 7));
            let Keys::Hashed(hashed) = &keys else { unreachable!() };
            let (mut all, mut key) = (BTreeSet::new(), Vec::new());
            for record in 0..5_000 {
                hashed.write(record, &mut key);
                assert_eq!(numbers::count(key.len()), key_bytes);
                assert!(all.insert(key.clone()));
            }
            let mut random = Random::new(1, 2);
            for _ in 0..1_000 {
                keys.present(&mut random, &mut key);
                assert!(all.contains(&key));
                keys.absent(&mut random, &mut key);
                assert!(!all.contains(&key));
            }
        }
    }

    #[test]
    fn what_is_sampled_is_there_and_its_neighbours_are_not() {
        let db = lsmx::Db::open("db", Options::default().vfs(Arc::new(MemVfs::new()))).unwrap();
        let keyspace = db.default_keyspace();
        let mut random = Random::new(3, 4);
        assert!(Keys::sample(&keyspace, &mut random).unwrap_err().to_string().contains("entries"));
        for key in ["a", "a\0", "a\0\0", "b", "c", "c\0"] {
            db.put(key, "").unwrap();
        }
        let keys = Keys::sample(&keyspace, &mut random).unwrap();
        let Keys::Sampled(sample) = &keys else { unreachable!() };
        let sample: BTreeSet<&[u8]> = sample.iter().map(Vec::as_slice).collect();
        assert_eq!(sample, BTreeSet::from([&b"a\0\0"[..], b"b", b"c\0"]));
        let mut key = Vec::new();
        for _ in 0..100 {
            keys.absent(&mut random, &mut key);
            assert!(db.get(&key).unwrap().is_none());
        }
    }
}
