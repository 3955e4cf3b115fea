//! Iterators with the entries that the model expects of them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use lsmx::Range;

type Bytes = Arc<[u8]>;
/// A map for each keyspace of [`KEYSPACES`](super::KEYSPACES); `None` if the keyspace does not exist.
pub(super) type State = Vec<Option<Arc<BTreeMap<Bytes, Bytes>>>>;

/// An iterator and the entries that it has not returned yet.
pub(super) struct Walk {
    pub(super) range: Range,
    pub(super) left: VecDeque<(Bytes, Bytes)>,
    /// Maximum number of entries that the iterator still returns.
    most: usize,
}

impl Walk {
    pub(super) fn new(range: Range, left: VecDeque<(Bytes, Bytes)>) -> Walk {
        Walk { range, left, most: usize::MAX }
    }

    /// Limits the number of entries.
    pub(super) fn limit(self, entries: u64) -> Walk {
        let most = usize::try_from(entries).unwrap();
        Walk { range: self.range.limit(entries), left: self.left, most }
    }

    /// Returns whether the model expects another entry.
    fn goes_on(&mut self) -> bool {
        let more = self.most > 0 && !self.left.is_empty();
        self.most -= usize::from(more);
        more
    }

    pub(super) fn compare(
        found: Option<lsmx::Result<(lsmx::Slice, lsmx::Slice)>>,
        model: Option<(Bytes, Bytes)>,
    ) {
        match (found, model) {
            (None, None) => {}
            (Some(Ok((key, value))), Some((model_key, model_value))) => {
                assert_eq!(Text(&key), Text(&model_key), "another key");
                assert_eq!(Text(&value), Text(&model_value), "another value of {}", Text(&key));
            }
            (Some(Err(error)), _) => panic!("an iterator failed: {error}"),
            (Some(Ok((key, _))), None) => panic!("key {} too many", Text(&key)),
            (None, Some((key, _))) => panic!("key {} is missing", Text(&key)),
        }
    }

    fn step(&mut self) -> bool {
        let more = self.goes_on();
        let model = if more { self.left.pop_front() } else { None };
        Walk::compare(self.range.next(), model);
        more
    }

    pub(super) fn step_back(&mut self) -> bool {
        let more = self.goes_on();
        let model = if more { self.left.pop_back() } else { None };
        Walk::compare(self.range.next_back(), model);
        more
    }

    /// Steps forward, or back for negative counts. Returns the number of changes of direction.
    pub(super) fn steps(&mut self, steps: &[i8]) -> u64 {
        for &count in steps {
            for _ in 0..count.unsigned_abs() {
                if count > 0 {
                    self.step();
                } else {
                    self.step_back();
                }
            }
        }
        steps.windows(2).filter(|pair| (pair[0] < 0) != (pair[1] < 0)).count() as u64
    }

    /// Steps to the end and past it.
    pub(super) fn finish(mut self) {
        while self.step() {}
        assert!(self.range.next().is_none() && self.range.next_back().is_none());
    }
}

/// Bytes with a short printed form.
#[derive(PartialEq, Eq)]
pub(super) struct Text<'a>(pub &'a [u8]);

impl std::fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.0[..self.0.len().min(60)];
        write!(f, "\"{}\" ({} bytes)", shown.escape_ascii(), self.0.len())
    }
}

impl std::fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

pub(super) fn assert_value(
    found: lsmx::Result<Option<lsmx::Slice>>,
    state: &State,
    keyspace: usize,
    key: &Bytes,
) {
    let found = found.unwrap();
    let model = state[keyspace].as_ref().and_then(|map| map.get(key));
    assert_eq!(
        found.as_deref().map(Text),
        model.map(|value| Text(value)),
        "the value of {} in keyspace {keyspace}",
        Text(key)
    );
}

/// Returns the entries of the model within bounds.
pub(super) fn between(
    state: &State,
    keyspace: usize,
    bounds: &(Bound<Bytes>, Bound<Bytes>),
) -> VecDeque<(Bytes, Bytes)> {
    let map = state[keyspace].iter().flat_map(|map| map.iter());
    let entries = map.filter(|(key, _)| within(bounds, key));
    entries.map(|(key, value)| (Arc::clone(key), Arc::clone(value))).collect()
}

pub(super) fn within(bounds: &(Bound<Bytes>, Bound<Bytes>), key: &Bytes) -> bool {
    let above = match &bounds.0 {
        Bound::Unbounded => true,
        Bound::Included(from) => key >= from,
        Bound::Excluded(from) => key > from,
    };
    let below = match &bounds.1 {
        Bound::Unbounded => true,
        Bound::Included(to) => key <= to,
        Bound::Excluded(to) => key < to,
    };
    above && below
}
