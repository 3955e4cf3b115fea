//! The records of a benchmark: which keys there are, which of them are in the database, and what
//! their values hold.
//!
//! Record `i` is the one that a fill in random order puts as the `i`-th; its key is spread evenly
//! over the key domain by the key space of the workloads, so that neither a dense range of numbers
//! nor text flatters an engine that packs keys. All engines get the same keys.

use crate::error::{Error, Result};
use crate::numbers;
use crate::workload::KeyDistribution;
use crate::workload::keys::{KeySpace, Permutation};
use crate::workload::random::{Random, fill, mix};
use crate::workload::record::to_hex;

/// Bytes of the value that say whose it is.
const TAG_BYTES: usize = size_of::<u64>();
/// Random bytes that values are cut from.
const POOL_BYTES: usize = 1 << 20;

/// The keys that can be asked for and the values they get. Shared by all engines and threads.
#[derive(Debug)]
pub(in crate::experiment) struct Records {
    keys: KeySpace,
    value_bytes: usize,
    /// Random bytes, one value longer than places where a value may begin.
    pool: Vec<u8>,
}

impl Records {
    /// `capacity` records in all.
    pub(in crate::experiment) fn new(
        capacity: u64,
        key_bytes: u64,
        value_bytes: u64,
        seed: u64,
    ) -> Result<Records> {
        let keys =
            KeySpace::new(KeyDistribution::Uniform, capacity, numbers::length(key_bytes), seed)?;
        let value_bytes = numbers::length(value_bytes);
        let mut pool = Vec::new();
        fill(seed, POOL_BYTES + value_bytes, &mut pool);
        Ok(Records { keys, value_bytes, pool })
    }

    /// Records in all.
    pub(super) fn capacity(&self) -> u64 {
        self.keys.len()
    }

    /// Key and value bytes of a record.
    pub(in crate::experiment) fn bytes(&self) -> u64 {
        numbers::count(self.keys.key_bytes() + self.value_bytes)
    }

    /// Replaces `key` by that of a record.
    pub(in crate::experiment) fn key(&self, record: u64, key: &mut Vec<u8>) {
        key.clear();
        self.keys.write_present(record, key);
    }

    /// Replaces `key` by one that no record has, close behind that of a record.
    pub(in crate::experiment) fn absent_key(&self, record: u64, salt: u64, key: &mut Vec<u8>) {
        key.clear();
        self.keys.write_absent(record, salt, key);
    }

    /// The record that stands at this place in key order.
    pub(super) fn at_rank(&self, rank: u64) -> u64 {
        self.keys.record_at(rank)
    }

    /// Replaces `value` by a new one for this record, which does not compress.
    pub(in crate::experiment) fn value(
        &self,
        record: u64,
        random: &mut Random,
        value: &mut Vec<u8>,
    ) {
        let start = numbers::length(random.below(numbers::count(POOL_BYTES)));
        value.clear();
        value.extend_from_slice(&self.pool[start..start + self.value_bytes]);
        let tag = mix(record).to_le_bytes();
        for (byte, tag) in value.iter_mut().zip(tag) {
            *byte = tag;
        }
    }

    /// Checks that a value is one of this record's.
    pub(in crate::experiment) fn is_value(&self, record: u64, value: &[u8]) -> bool {
        let tag = mix(record).to_le_bytes();
        value.len() == self.value_bytes
            && value.iter().take(TAG_BYTES).zip(tag).all(|(byte, tag)| *byte == tag)
    }
}

/// Which records are in one database: all below `loaded` but those that were deleted.
#[derive(Clone, Debug, Default)]
pub(super) struct Live {
    loaded: u64,
    deleted: Option<Deleted>,
}

/// Of the first `of` records the first `count` in a random order are deleted.
#[derive(Clone, Copy, Debug)]
struct Deleted {
    of: u64,
    order: Permutation,
    count: u64,
}

impl Live {
    /// The first `loaded` records.
    pub(super) fn loaded(loaded: u64) -> Live {
        Live { loaded, deleted: None }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.loaded - self.deleted.map_or(0, |deleted| deleted.count)
    }

    /// Records that were ever put.
    pub(super) fn end(&self) -> u64 {
        self.loaded
    }

    /// The `n`-th record that is there, in no order that means anything; `n` below the count.
    pub(super) fn nth(&self, n: u64) -> u64 {
        let Some(deleted) = &self.deleted else { return n };
        let left = deleted.of - deleted.count;
        if n < left { deleted.order.forward(deleted.count + n) } else { deleted.of + (n - left) }
    }

    /// Says that records up to `end` were put.
    pub(super) fn extend(&mut self, end: u64) {
        self.loaded = self.loaded.max(end);
    }

    /// Draws up an order in which records are deleted, if there is none yet.
    pub(super) fn mark_for_deletion(&mut self, seed: u64) {
        if self.deleted.is_none() {
            let order = Permutation::new(self.loaded, mix(seed));
            self.deleted = Some(Deleted { of: self.loaded, order, count: 0 });
        }
    }

    /// How many more records can be deleted in the order drawn up.
    pub(super) fn deletable(&self) -> u64 {
        self.deleted.map_or(0, |deleted| deleted.of - deleted.count)
    }

    /// The `n`-th record from now on in the order drawn up; `n` below [`Live::deletable`].
    pub(super) fn nth_deletable(&self, n: u64) -> u64 {
        self.deleted.map_or(n, |deleted| deleted.order.forward(deleted.count + n))
    }

    /// Says that `count` more are deleted.
    pub(super) fn delete(&mut self, count: u64) {
        if let Some(deleted) = &mut self.deleted {
            deleted.count += count;
        }
    }
}

/// An error that says what was found instead of a record.
pub(in crate::experiment) fn wrong(key: &[u8], found: &'static str, must: &'static str) -> Error {
    Error::WrongAnswer { key: to_hex(key), found, must }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_value_is_known_by_its_record_and_by_no_other() {
        for value_bytes in [0, 3, 8, 100] {
            let records = Records::new(100, 16, value_bytes, 1).unwrap();
            let mut random = Random::new(1, 1);
            let mut value = Vec::new();
            records.value(7, &mut random, &mut value);
            assert_eq!(value.len() as u64, value_bytes);
            assert!(records.is_value(7, &value));
            assert_eq!(records.is_value(8, &value), value_bytes == 0);
            value.push(0);
            assert!(!records.is_value(7, &value));
        }
    }

    #[test]
    fn records_at_ascending_ranks_have_ascending_keys() {
        let records = Records::new(1000, 16, 8, 3).unwrap();
        let (mut key, mut before, mut absent) = (Vec::new(), Vec::new(), Vec::new());
        for rank in 0..1000 {
            let record = records.at_rank(rank);
            records.key(record, &mut key);
            assert!(key > before);
            records.absent_key(record, rank, &mut absent);
            assert!(absent > key);
            before.clone_from(&absent);
        }
    }

    #[test]
    fn what_is_deleted_is_never_among_the_living() {
        let mut live = Live::loaded(100);
        live.mark_for_deletion(9);
        assert_eq!(live.deletable(), 100);
        let gone: BTreeSet<u64> = (0..40).map(|n| live.nth_deletable(n)).collect();
        live.delete(40);
        live.extend(110);
        assert_eq!((live.count(), live.deletable(), live.end()), (70, 60, 110));
        let there: BTreeSet<u64> = (0..live.count()).map(|n| live.nth(n)).collect();
        assert_eq!(there.len(), 70);
        assert!(there.is_disjoint(&gone));
        assert!((100..110).all(|record| there.contains(&record)));
    }
}
