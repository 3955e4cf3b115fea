//! Searches among keys in order that lie scattered in memory: what they begin with lies side by side, so
//! that a search meets few of them.

use std::ops::Range;

/// What each of some keys in order begins with.
#[derive(Clone, Debug, Default)]
pub struct KeySearch {
    /// With which all begin.
    shared: Box<[u8]>,
    /// Of each the next eight bytes, as a number.
    heads: Box<[u64]>,
}

/// The first eight bytes as a number; who has fewer is followed by zeros.
fn head(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let mut first = [0; 8];
            first[..bytes.len()].copy_from_slice(bytes);
            u64::from_be_bytes(first)
        }
    }
}

impl KeySearch {
    /// Of keys in order.
    pub fn new<'a>(
        keys: impl ExactSizeIterator<Item = &'a [u8]> + DoubleEndedIterator + Clone,
    ) -> KeySearch {
        let ends = keys.clone().next().zip(keys.clone().next_back());
        let shared = ends
            .map_or(0, |(first, last)| first.iter().zip(last).take_while(|(a, b)| a == b).count());
        let start = ends.map_or(&[][..], |(first, _)| &first[..shared]);
        KeySearch { shared: start.into(), heads: keys.map(|key| head(&key[shared..])).collect() }
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// How many keys lie before `key`: all those, and no others, of which `is_before` says so. It is asked
    /// of keys that begin like `key` alone, by their places.
    pub fn partition_point(&self, key: &[u8], is_before: impl Fn(usize) -> bool) -> usize {
        let Range { mut start, mut end } = self.alike(key);
        while start < end {
            let middle = start.midpoint(end);
            match is_before(middle) {
                true => start = middle + 1,
                false => end = middle,
            }
        }
        start
    }

    /// Places of the keys that begin like `key`: those before come before it, those behind after it.
    fn alike(&self, key: &[u8]) -> Range<usize> {
        let Some(rest) = key.strip_prefix(&*self.shared) else {
            let place = if key < &*self.shared { 0 } else { self.heads.len() };
            return place..place;
        };
        let head = head(rest);
        let start = self.heads.partition_point(|other| *other < head);
        let alike = self.heads[start..].partition_point(|other| *other == head);
        start..start + alike
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn same(keys: &[Vec<u8>], key: &[u8]) {
        let fences = KeySearch::new(keys.iter().map(Vec::as_slice));
        let before = keys.partition_point(|other| &**other < key);
        assert_eq!(fences.partition_point(key, |at| &*keys[at] < key), before, "{keys:?} {key:?}");
        let up_to = keys.partition_point(|other| &**other <= key);
        assert_eq!(fences.partition_point(key, |at| &*keys[at] <= key), up_to, "{keys:?} {key:?}");
    }

    #[test]
    fn zeros_at_the_end_count() {
        let keys = ["", "a", "a\0", "a\0\0\0\0\0\0\0\0", "a\0\0\0\0\0\0\0\0b", "a\0b", "b"];
        let keys = keys.map(|key| key.as_bytes().to_vec());
        for from in 0..keys.len() {
            for to in from..=keys.len() {
                keys.iter().for_each(|key| same(&keys[from..to], key));
            }
        }
    }

    #[test]
    fn few_keys_are_looked_at() {
        let keys: Vec<Vec<u8>> = (0..1000).map(|at| format!("user:{at:08}").into_bytes()).collect();
        let fences = KeySearch::new(keys.iter().map(Vec::as_slice));
        let asked = std::cell::Cell::new(0);
        let place = fences.partition_point(b"user:00000700", |at| {
            asked.set(asked.get() + 1);
            *keys[at] < b"user:00000700"[..]
        });
        assert_eq!((place, asked.get()), (700, 1));
    }

    proptest! {
        #[test]
        fn finds_what_a_search_of_all_keys_finds(
            start in proptest::collection::vec(0..3_u8, 0..4),
            rest in proptest::collection::btree_set(proptest::collection::vec(0..3_u8, 0..12), 0..12),
            key in proptest::collection::vec(0..3_u8, 0..16),
        ) {
            let keys: Vec<Vec<u8>> = rest.iter().map(|rest| [&*start, rest].concat()).collect();
            same(&keys, &key);
            keys.iter().for_each(|key| same(&keys, key));
        }
    }
}
