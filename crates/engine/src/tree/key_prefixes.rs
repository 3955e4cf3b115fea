//! Sorted key prefixes with sequence numbers. Used to check whether a key in a range was written after a given sequence
//! number.
//!
//! ```text
//! common      common prefix of all keys
//! prefixes    the next 8 bytes of each key as a big-endian number, ascending, without duplicates
//! numbers     the newest sequence number of each prefix, relative to `base`
//! maxima      the largest of each 64 consecutive numbers
//! ```
//!
//! Keys with equal prefixes share an element. A search may therefore find a write that is outside of the range, but it
//! never misses a write in the range. For n keys, a search compares at most n / 64 + 128 sequence numbers.

use std::ops::Range;

use lsmx_base::coding::{len_u64, low_u32};
use lsmx_base::key::{KeyPrefix, SeqNo};
use lsmx_base::work_counter::{self, WorkKind};

/// Number of consecutive elements for which one maximum is stored.
const BLOCK: usize = 64;

/// Largest relative sequence number. It represents all sequence numbers that do not fit in 32 bits.
const RELATIVE_MAX: u32 = u32::MAX;

/// Prefixes of all keys of a memtable.
#[derive(Debug)]
pub(crate) struct KeyPrefixes {
    common: Box<[u8]>,
    prefixes: Vec<u64>,
    numbers: Vec<u32>,
    maxima: Vec<u32>,
    base: SeqNo,
}

/// Returns the memory in bytes for a number of keys. Their common prefix is not included.
pub(crate) fn memory_bytes(keys: u64) -> u64 {
    let per_key = len_u64(size_of::<u64>() + size_of::<u32>());
    let maxima = keys.div_ceil(len_u64(BLOCK)) * len_u64(size_of::<u32>());
    keys.saturating_mul(per_key).saturating_add(maxima)
}

/// Returns the length of the longest common prefix of two keys in bytes.
pub(crate) fn common_prefix_len(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// Returns the first eight bytes of a key as a big-endian number. `suffix` is the key without the common prefix of all
/// keys.
fn prefix_of(suffix: &[u8]) -> u64 {
    KeyPrefix::new(suffix).0[0]
}

impl KeyPrefixes {
    /// Creates an empty list for at most `keys` keys. All keys must start with `common`, and their sequence numbers
    /// must be at least `base`.
    pub(crate) fn with_capacity(keys: usize, common: &[u8], base: SeqNo) -> KeyPrefixes {
        let (prefixes, numbers) = (Vec::with_capacity(keys), Vec::with_capacity(keys));
        let maxima = Vec::with_capacity(keys.div_ceil(BLOCK));
        KeyPrefixes { common: common.into(), prefixes, numbers, maxima, base }
    }

    /// Adds a write. Keys must be added in ascending order.
    pub(crate) fn push(&mut self, key: &[u8], seq: SeqNo) {
        let prefix = prefix_of(key.get(self.common.len()..).unwrap_or_default());
        let relative = seq.0.saturating_sub(self.base.0).min(u64::from(RELATIVE_MAX));
        let number = low_u32(relative);
        if self.prefixes.last() != Some(&prefix) {
            if self.prefixes.len().is_multiple_of(BLOCK) {
                self.maxima.push(number);
            }
            self.prefixes.push(prefix);
            self.numbers.push(number);
        }
        for newest in self.numbers.last_mut().into_iter().chain(self.maxima.last_mut()) {
            *newest = number.max(*newest);
        }
    }

    /// Returns whether a write with a sequence number after `read` may have changed a key in the range from `start`
    /// (inclusive) to `end` (exclusive). If `end` is `None`, the range ends at the end of the keyspace.
    pub(crate) fn may_have_newer_write(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        read: SeqNo,
    ) -> bool {
        let first = self.count_before(start, false);
        let after = end.map_or(self.prefixes.len(), |end| self.count_before(end, true));
        let Some(newest) = self.largest_number(first..after) else { return false };
        // If all sequence numbers of the list are larger than `read`, each of its writes is newer.
        let Some(read) = read.0.checked_sub(self.base.0) else { return true };
        newest == RELATIVE_MAX || u64::from(newest) > read
    }

    /// Returns the largest sequence number in a range of elements.
    fn largest_number(&self, indexes: Range<usize>) -> Option<u32> {
        let blocks = indexes.start.div_ceil(BLOCK)..indexes.end / BLOCK;
        let (head, maxima, tail) = match blocks.is_empty() {
            true => (indexes, 0..0, 0..0),
            false => {
                let (first, last) = (blocks.start * BLOCK, blocks.end * BLOCK);
                (indexes.start..first, blocks, last..indexes.end)
            }
        };
        work_counter::add(WorkKind::LeaderVisits, head.len() + maxima.len() + tail.len());
        let parts = [(&self.numbers, head), (&self.maxima, maxima), (&self.numbers, tail)];
        parts
            .into_iter()
            .filter_map(|(numbers, part)| numbers.get(part)?.iter().max())
            .copied()
            .max()
    }

    /// Returns the number of elements before a bound. If `is_end` is true, elements with the same prefix as the bound
    /// are counted, except if no key with this prefix can be before the bound.
    fn count_before(&self, bound: &[u8], is_end: bool) -> usize {
        let Some(suffix) = bound.strip_prefix(&*self.common) else {
            return if *bound < *self.common { 0 } else { self.prefixes.len() };
        };
        let prefix = prefix_of(suffix);
        // Prefixes are padded with zero bytes. If a suffix has at most eight bytes and does not end with a zero byte,
        // it is the smallest key with its prefix.
        let is_smallest = suffix.len() <= size_of::<u64>() && suffix.last() != Some(&0);
        match is_end && !is_smallest {
            true => self.prefixes.partition_point(|&other| other <= prefix),
            false => self.prefixes.partition_point(|&other| other < prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn prefixes_of(writes: &BTreeMap<Vec<u8>, u64>, base: u64) -> KeyPrefixes {
        let (first, last) = (writes.keys().next(), writes.keys().next_back());
        let common = first
            .zip(last)
            .map_or(&[][..], |(first, last)| &first[..common_prefix_len(first, last)]);
        let mut prefixes = KeyPrefixes::with_capacity(writes.len(), common, SeqNo(base));
        for (key, seq) in writes {
            prefixes.push(key, SeqNo(*seq));
        }
        prefixes
    }

    proptest! {
        /// A newer write in the range is always found. Keys of at most 8 bytes that contain no zero byte are never
        /// confused with each other.
        #[test]
        fn key_prefixes_search_finds_every_newer_write(
            common in prop::collection::vec(0u8..3, 0..4),
            writes in prop::collection::btree_map(prop::collection::vec(0u8..3, 0..11), 10u64..30, 0..30),
            ranges in prop::collection::vec(
                (prop::collection::vec(0u8..3, 0..12), prop::option::of(prop::collection::vec(0u8..3, 0..12)), 0u64..35),
                40,
            ),
        ) {
            let writes: BTreeMap<Vec<u8>, u64> =
                writes.into_iter().map(|(key, seq)| ([&common[..], &key].concat(), seq)).collect();
            let prefixes = prefixes_of(&writes, 10);
            let is_exact = |key: &[u8]| key.len() <= 8 && !key.contains(&0);
            for (start, end, read) in ranges {
                if end.as_ref().is_some_and(|end| *end <= start) {
                    continue;
                }
                let within = |key: &Vec<u8>| *key >= start && end.as_ref().is_none_or(|end| key < end);
                let expected = writes.iter().any(|(key, seq)| within(key) && *seq > read);
                let found = prefixes.may_have_newer_write(&start, end.as_deref(), SeqNo(read));
                prop_assert!(found || !expected, "{start:?} {end:?} {read}");
                let mut all = writes.keys().chain([&start]).chain(&end);
                if all.all(|key| is_exact(key)) {
                    prop_assert_eq!(found, expected, "{:?} {:?} {}", start, end, read);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn key_prefixes_largest_number_equals_linear_search(
            numbers in prop::collection::vec(1u64..1_000, 0..300),
            ranges in prop::collection::vec((0usize..310, 0usize..310), 40),
        ) {
            let mut prefixes = KeyPrefixes::with_capacity(numbers.len(), b"", SeqNo(1));
            for (key, seq) in (0u64..).zip(&numbers) {
                prefixes.push(&key.to_be_bytes(), SeqNo(*seq));
            }
            for (start, end) in ranges {
                let (start, end) = (start.min(numbers.len()), end.min(numbers.len()));
                let expected = numbers.get(start..end).and_then(|part| part.iter().max());
                let found = prefixes.largest_number(start..end).map(|number| u64::from(number) + 1);
                prop_assert_eq!(found, expected.copied());
            }
        }
    }

    #[test]
    fn key_prefixes_number_too_large_counts_as_newest() {
        let mut prefixes = KeyPrefixes::with_capacity(1, b"", SeqNo(1));
        prefixes.push(b"a", SeqNo(1 + (1 << 40)));
        assert!(prefixes.may_have_newer_write(b"a", Some(b"b"), SeqNo(1 << 50)));
        assert!(!prefixes.may_have_newer_write(b"b", None, SeqNo(1)));
    }
}
