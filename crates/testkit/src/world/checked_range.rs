//! Iterators whose results are compared with the pairs of the model.

use std::collections::VecDeque;
use std::sync::Arc;

use lsmx::{Error, Range, ReadOptions, Result, Slice};

use super::change::{Bytes, Pairs};
use super::compare::compare_pairs;

/// An iterator, and the expected pairs that it has not returned yet.
pub(super) struct CheckedRange {
    /// `None` only while the read options change.
    range: Option<Range>,
    expected: VecDeque<(Bytes, Bytes)>,
    /// Maximum number of pairs that the iterator may still return.
    left: u64,
}

impl CheckedRange {
    /// Returns a checked iterator. The expected pairs are those whose keys `is_expected` accepts, up to `limit` pairs.
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
        CheckedRange { range: Some(range), expected, left: limit.unwrap_or(u64::MAX) }
    }

    fn range(&mut self) -> &mut Range {
        self.range.as_mut().expect("the options do not change")
    }

    /// Sets the read options for the following pairs.
    pub(super) fn set_options(&mut self, options: &ReadOptions) {
        self.range = self.range.take().map(|range| range.options(options));
    }

    /// Returns the next pair of the iterator in one direction. A pair that is not in memory is read from files.
    fn next(&mut self, is_forward: bool) -> Option<Result<(Slice, Slice)>> {
        let next = |range: &mut Range| if is_forward { range.next() } else { range.next_back() };
        match next(self.range()) {
            Some(Err(Error::WouldBlock)) => {
                self.set_options(&ReadOptions::default());
                next(self.range())
            }
            found => found,
        }
    }

    /// Compares the next pair of the iterator in one direction. Returns whether a pair was expected.
    fn step(&mut self, is_forward: bool) -> bool {
        let has_pair = self.left > 0 && !self.expected.is_empty();
        self.left -= u64::from(has_pair);
        let expected = match is_forward {
            _ if !has_pair => None,
            true => self.expected.pop_front(),
            false => self.expected.pop_back(),
        };
        assert_pair(self.next(is_forward), expected);
        has_pair
    }

    /// Moves by the given numbers of pairs: forward for a positive number, backward for a negative number. Returns how
    /// often the direction changed.
    pub(super) fn steps(&mut self, steps: &[i8]) -> u64 {
        for &count in steps {
            for _ in 0..count.unsigned_abs() {
                self.step(count > 0);
            }
        }
        steps.windows(2).filter(|pair| (pair[0] < 0) != (pair[1] < 0)).count() as u64
    }

    /// Moves to the end, and checks that further calls return no pair.
    pub(super) fn finish(mut self) {
        while self.step(true) {}
        assert!(self.next(true).is_none() && self.next(false).is_none());
    }
}

/// Compares a pair that an iterator returned with the expected pair of the model.
pub(super) fn assert_pair(found: Option<Result<(Slice, Slice)>>, expected: Option<(Bytes, Bytes)>) {
    let expected = expected.iter().map(|(key, value)| (key, value));
    compare_pairs("iterator", found.into_iter(), expected).unwrap();
}
