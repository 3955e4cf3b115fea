//! What a keyspace must hold after the operations of a trace, as far as that can be known.

use std::collections::BTreeMap;
use std::ops::Bound;

use xxhash_rust::xxh3::xxh3_64;

use crate::numbers;

/// What is known of the value of a key that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Its hash.
    Value(u64),
    /// That it is there: an operand was merged into it, and what comes of that is the operator's
    /// business.
    Present,
}

impl Known {
    /// Whether an answer agrees with what is known.
    #[must_use]
    pub fn agrees(self, answer: &[u8]) -> bool {
        match self {
            Known::Value(hash) => xxh3_64(answer) == hash,
            Known::Present => true,
        }
    }
}

/// One keyspace: every key that is there. Some 60 bytes of memory a key besides the key itself.
#[derive(Clone, Debug, Default)]
pub struct Model {
    entries: BTreeMap<Box<[u8]>, Known>,
}

impl Model {
    /// A put.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.set(key, Known::Value(xxh3_64(value)));
    }

    /// A merge.
    pub fn merge(&mut self, key: &[u8]) {
        self.set(key, Known::Present);
    }

    fn set(&mut self, key: &[u8], known: Known) {
        match self.entries.get_mut(key) {
            Some(entry) => *entry = known,
            None => {
                self.entries.insert(key.into(), known);
            }
        }
    }

    /// A delete.
    pub fn delete(&mut self, key: &[u8]) {
        self.entries.remove(key);
    }

    /// A range delete, to the last key if there is no end.
    pub fn delete_range(&mut self, start: &[u8], end: Option<&[u8]>) {
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        let bounds = (Bound::Included(start), end);
        let gone: Vec<Box<[u8]>> =
            self.entries.range::<[u8], _>(bounds).map(|(key, _)| key.clone()).collect();
        for key in gone {
            self.entries.remove(&key);
        }
    }

    /// What is known of a key; none if it is not there.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Known> {
        self.entries.get(key).copied()
    }

    /// The last key and the number of those that a scan of at most so many entries gives.
    #[must_use]
    pub fn scan(&self, backward: bool, start: Option<&[u8]>, entries: u64) -> (u64, Option<&[u8]>) {
        let start = start.map_or(Bound::Unbounded, Bound::Included);
        let bounds = if backward { (Bound::Unbounded, start) } else { (start, Bound::Unbounded) };
        let mut keys = self.entries.range::<[u8], _>(bounds).map(|(key, _)| &**key);
        let next = || if backward { keys.next_back() } else { keys.next() };
        let found = std::iter::from_fn(next).take(numbers::length(entries));
        found.fold((0, None), |(count, _), key| (count + 1, Some(key)))
    }

    /// Keys that are there.
    #[must_use]
    pub fn len(&self) -> u64 {
        numbers::count(self.entries.len())
    }

    /// Whether no key is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_follows_the_operations() {
        let mut model = Model::default();
        for key in ["a", "b", "c", "d"] {
            model.put(key.as_bytes(), b"1");
        }
        model.put(b"a", b"2");
        model.merge(b"b");
        model.delete_range(b"c", Some(b"d"));
        assert!(model.get(b"a").unwrap().agrees(b"2") && !model.get(b"a").unwrap().agrees(b"1"));
        assert_eq!(model.get(b"b"), Some(Known::Present));
        assert_eq!((model.get(b"c"), model.len()), (None, 3));
        assert_eq!(model.scan(false, Some(b"b"), 10), (2, Some(&b"d"[..])));
        assert_eq!(model.scan(true, Some(b"c"), 1), (1, Some(&b"b"[..])));
        assert_eq!(model.scan(false, None, 0), (0, None));
        model.delete_range(b"b", None);
        model.delete(b"a");
        assert!(model.is_empty());
    }
}
