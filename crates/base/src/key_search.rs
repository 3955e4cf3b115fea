//! Binary search over sorted keys that are scattered in memory.

use std::cmp::Ordering;
use std::ops::Range;

use crate::key::first_eight_bytes;

/// An index of sorted keys for binary searches.
///
/// An array holds eight bytes of each key, so most steps of a search do not access the keys themselves.
#[derive(Clone, Debug, Default)]
pub struct KeySearch {
    /// Common prefix of all keys.
    common_prefix: Box<[u8]>,
    /// For each key, the eight bytes after the common prefix, see [`first_eight_bytes`].
    words: Box<[u64]>,
}

impl KeySearch {
    /// Builds an index of `keys`, which must be sorted.
    pub fn new<'a>(
        keys: impl ExactSizeIterator<Item = &'a [u8]> + DoubleEndedIterator + Clone,
    ) -> KeySearch {
        let ends = keys.clone().next().zip(keys.clone().next_back());
        let common_prefix = ends.map_or(&[][..], |(first, last)| {
            &first[..first.iter().zip(last).take_while(|(a, b)| a == b).count()]
        });
        KeySearch {
            common_prefix: common_prefix.into(),
            words: keys.map(|key| first_eight_bytes(&key[common_prefix.len()..])).collect(),
        }
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Returns whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns the number of keys for which `is_before` is true, as [`slice::partition_point`] does.
    ///
    /// `is_before(index)` states whether the key at `index` is before the searched position. It is called only for keys
    /// whose indexed bytes equal those of `key`.
    #[inline]
    pub fn partition_point(&self, key: &[u8], is_before: impl Fn(usize) -> bool) -> usize {
        let Range { mut start, mut end } = self.indices_with_equal_word(key);
        while start < end {
            let middle = start.midpoint(end);
            match is_before(middle) {
                true => start = middle + 1,
                false => end = middle,
            }
        }
        start
    }

    /// Returns the indices of the keys whose indexed bytes equal those of `key`. All keys before this range are less
    /// than `key`, and all keys after it are greater.
    #[inline]
    fn indices_with_equal_word(&self, key: &[u8]) -> Range<usize> {
        let (start, rest) = key.split_at(key.len().min(self.common_prefix.len()));
        match start.cmp(&self.common_prefix) {
            Ordering::Less => return 0..0,
            Ordering::Greater => return self.words.len()..self.words.len(),
            Ordering::Equal => {}
        }
        let word = first_eight_bytes(rest);
        let start = self.words.partition_point(|other| *other < word);
        if self.words.get(start) != Some(&word) {
            return start..start;
        }
        let count = self.words[start..].partition_point(|other| *other == word);
        start..start + count
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn assert_equals_slice_search(keys: &[Vec<u8>], key: &[u8]) {
        let search = KeySearch::new(keys.iter().map(Vec::as_slice));
        let before = keys.partition_point(|other| &**other < key);
        assert_eq!(search.partition_point(key, |at| &*keys[at] < key), before, "{keys:?} {key:?}");
        let up_to = keys.partition_point(|other| &**other <= key);
        assert_eq!(search.partition_point(key, |at| &*keys[at] <= key), up_to, "{keys:?} {key:?}");
    }

    #[test]
    fn partition_point_distinguishes_trailing_zeros() {
        let keys = ["", "a", "a\0", "a\0\0\0\0\0\0\0\0", "a\0\0\0\0\0\0\0\0b", "a\0b", "b"];
        let keys = keys.map(|key| key.as_bytes().to_vec());
        for from in 0..keys.len() {
            for to in from..=keys.len() {
                keys.iter().for_each(|key| assert_equals_slice_search(&keys[from..to], key));
            }
        }
    }

    #[test]
    fn partition_point_compares_few_keys() {
        let keys: Vec<Vec<u8>> = (0..1000).map(|at| format!("user:{at:08}").into_bytes()).collect();
        let search = KeySearch::new(keys.iter().map(Vec::as_slice));
        let compared = std::cell::Cell::new(0);
        let index = search.partition_point(b"user:00000700", |at| {
            compared.set(compared.get() + 1);
            *keys[at] < b"user:00000700"[..]
        });
        assert_eq!((index, compared.get()), (700, 1));
    }

    proptest! {
        #[test]
        fn partition_point_equals_search_of_all_keys(
            prefix in proptest::collection::vec(0..3_u8, 0..4),
            rest in proptest::collection::btree_set(proptest::collection::vec(0..3_u8, 0..12), 0..12),
            key in proptest::collection::vec(0..3_u8, 0..16),
        ) {
            let keys: Vec<Vec<u8>> = rest.iter().map(|rest| [&*prefix, rest].concat()).collect();
            assert_equals_slice_search(&keys, &key);
            keys.iter().for_each(|key| assert_equals_slice_search(&keys, key));
        }
    }
}
