//! Iterators with the pairs that the model expects of them.

use std::collections::VecDeque;
use std::sync::Arc;

use lsmx::{Range, Result, Slice};

use super::change::{Bytes, Pairs};
use super::compare::compare_pairs;

/// An iterator and the pairs that it has not returned yet.
pub(super) struct CheckedRange {
    range: Range,
    expected: VecDeque<(Bytes, Bytes)>,
    /// Maximum number of pairs that the iterator still returns.
    left: u64,
}

impl CheckedRange {
    /// Returns the iterator, limited to a number of pairs. It is expected to return the pairs that `is_expected` accepts.
    pub(super) fn new(
        range: Range,
        pairs: Option<&Arc<Pairs>>,
        is_expected: impl Fn(&Bytes) -> bool,
        limit: Option<u64>,
    ) -> CheckedRange {
        let pairs = pairs.iter().flat_map(|pairs| pairs.iter());
        let expected = pairs.filter(|(key, _)| is_expected(key));
        let expected = expected.map(|(key, value)| (key.clone(), value.clone())).collect();
        let range = match limit {
            Some(limit) => range.limit(limit),
            None => range,
        };
        CheckedRange { range, expected, left: limit.unwrap_or(u64::MAX) }
    }

    /// Moves by one pair. Returns whether there was one.
    fn step(&mut self, is_forward: bool) -> bool {
        let has_pair = self.left > 0 && !self.expected.is_empty();
        self.left -= u64::from(has_pair);
        let (found, expected) = match is_forward {
            true => (self.range.next(), has_pair.then(|| self.expected.pop_front())),
            false => (self.range.next_back(), has_pair.then(|| self.expected.pop_back())),
        };
        assert_pair(found, expected.flatten());
        has_pair
    }

    /// Moves forward, or back for negative counts. Returns the number of changes of direction.
    pub(super) fn steps(&mut self, steps: &[i8]) -> u64 {
        for &count in steps {
            for _ in 0..count.unsigned_abs() {
                self.step(count > 0);
            }
        }
        steps.windows(2).filter(|pair| (pair[0] < 0) != (pair[1] < 0)).count() as u64
    }

    /// Moves to the end and past it.
    pub(super) fn finish(mut self) {
        while self.step(true) {}
        assert!(self.range.next().is_none() && self.range.next_back().is_none());
    }
}

/// Compares a pair with that of the model.
pub(super) fn assert_pair(found: Option<Result<(Slice, Slice)>>, expected: Option<(Bytes, Bytes)>) {
    let expected = expected.iter().map(|(key, value)| (key, value));
    compare_pairs("iterator", found.into_iter(), expected).unwrap();
}
