//! Model of a keyspace: the keys and values that a trace should produce.

use std::collections::BTreeMap;
use std::ops::Bound;

use xxhash_rust::xxh3::xxh3_64;

use crate::numbers;

/// Expected value of a key in a keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownValue {
    Hash(u64),
    /// The key is present, but the value is unknown because an operand was merged.
    Present,
}

impl KnownValue {
    /// Returns whether a value read from the database is as expected. If the expected value is unknown, every value is
    /// accepted.
    pub fn matches_answer(self, answer: &[u8]) -> bool {
        match self {
            KnownValue::Hash(hash) => xxh3_64(answer) == hash,
            KnownValue::Present => true,
        }
    }
}

/// Expected content of a keyspace. An entry takes about 60 bytes of memory in addition to its key.
#[derive(Clone, Debug, Default)]
pub struct KeyspaceModel {
    entries: BTreeMap<Box<[u8]>, KnownValue>,
}

impl KeyspaceModel {
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.entries.insert(key.into(), KnownValue::Hash(xxh3_64(value)));
    }

    pub fn merge(&mut self, key: &[u8]) {
        self.entries.insert(key.into(), KnownValue::Present);
    }

    pub fn delete(&mut self, key: &[u8]) {
        self.entries.remove(key);
    }

    /// Deletes the keys from `start` (inclusive) to `end` (exclusive). If `end` is `None`, deletes all keys from
    /// `start` on.
    pub fn delete_range(&mut self, start: &[u8], end: Option<&[u8]>) {
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        let bounds = (Bound::Included(start), end);
        let deleted: Vec<Box<[u8]>> =
            self.entries.range::<[u8], _>(bounds).map(|(key, _)| key.clone()).collect();
        for key in deleted {
            self.entries.remove(&key);
        }
    }

    /// Returns the expected value, or `None` if the key is absent.
    pub fn get(&self, key: &[u8]) -> Option<KnownValue> {
        self.entries.get(key).copied()
    }

    /// Returns the number of entries and the last key that a scan of at most `entries` entries should find.
    pub fn scan(&self, backward: bool, start: Option<&[u8]>, entries: u64) -> (u64, Option<&[u8]>) {
        let start = start.map_or(Bound::Unbounded, Bound::Included);
        let bounds = if backward { (Bound::Unbounded, start) } else { (start, Bound::Unbounded) };
        let mut keys = self.entries.range::<[u8], _>(bounds).map(|(key, _)| &**key);
        let next = || if backward { keys.next_back() } else { keys.next() };
        let found = std::iter::from_fn(next).take(numbers::to_usize(entries));
        found.fold((0, None), |(count, _), key| (count + 1, Some(key)))
    }

    #[expect(clippy::len_without_is_empty, reason = "no caller needs `is_empty`")]
    pub fn len(&self) -> u64 {
        numbers::to_u64(self.entries.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_applies_operations() {
        let mut model = KeyspaceModel::default();
        for key in ["a", "b", "c", "d"] {
            model.put(key.as_bytes(), b"1");
        }
        model.put(b"a", b"2");
        model.merge(b"b");
        model.delete_range(b"c", Some(b"d"));
        assert!(
            model.get(b"a").unwrap().matches_answer(b"2")
                && !model.get(b"a").unwrap().matches_answer(b"1")
        );
        assert_eq!(model.get(b"b"), Some(KnownValue::Present));
        assert_eq!((model.get(b"c"), model.len()), (None, 3));
        assert_eq!(model.scan(false, Some(b"b"), 10), (2, Some(&b"d"[..])));
        assert_eq!(model.scan(true, Some(b"c"), 1), (1, Some(&b"b"[..])));
        assert_eq!(model.scan(false, None, 0), (0, None));
        model.delete_range(b"b", None);
        model.delete(b"a");
        assert_eq!(model.len(), 0);
    }
}
