//! What a reader at one sequence number sees: newest versions only, tombstones and what range
//! deletes hide left out.

use std::fmt;

use crate::cursor::Cursor;
use crate::error::Result;
use crate::key::{InternalKey, Kind, SeqNo};
use crate::read::deleted::Deleted;
use crate::slice::Slice;

/// Steps over versions of one key before it is cheaper to search for the next key.
const STEPS_BEFORE_SEEK: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Stands on no entry.
    Nowhere,
    /// The current entry is the one that `inner` stands on.
    Forward,
    /// The current entry is kept in `key` and `value`; `inner` stands before all its versions.
    Backward,
}

/// Walks the visible entries of a cursor over all versions, both ways.
///
/// A lending cursor: going forward it copies nothing but the key it has to step over.
pub(crate) struct VisibleCursor<C> {
    inner: C,
    snapshot: SeqNo,
    /// What range deletes hide, if there are any.
    deleted: Option<Deleted>,
    state: State,
    key: Vec<u8>,
    value: Slice,
}

impl<C: Cursor> VisibleCursor<C> {
    /// What is visible of `inner` at `snapshot`, without what `deleted` hides; stands nowhere.
    pub(crate) fn new(inner: C, snapshot: SeqNo, deleted: Option<Deleted>) -> VisibleCursor<C> {
        let (key, value) = (Vec::new(), Slice::default());
        VisibleCursor { inner, snapshot, deleted, state: State::Nowhere, key, value }
    }

    /// Whether the cursor stands on an entry.
    pub(crate) fn valid(&self) -> bool {
        self.state != State::Nowhere
    }

    /// The current key. Only while valid.
    pub(crate) fn key(&self) -> &[u8] {
        match self.state {
            State::Backward => &self.key,
            _ => self.inner.key().user_key,
        }
    }

    /// The current value, as bytes that outlive the next move. Only while valid.
    pub(crate) fn value_slice(&self) -> Slice {
        match self.state {
            State::Backward => self.value.clone(),
            _ => self.inner.value_slice(),
        }
    }

    /// Moves to the first visible entry.
    pub(crate) fn first(&mut self) -> Result<()> {
        self.state = State::Nowhere;
        self.inner.first()?;
        self.find_forward()
    }

    /// Moves to the last visible entry.
    pub(crate) fn last(&mut self) -> Result<()> {
        self.state = State::Nowhere;
        self.inner.last()?;
        self.find_backward()
    }

    /// Moves to the first visible entry at or after `key`.
    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.state = State::Nowhere;
        self.inner.seek(key, SeqNo::MAX)?;
        self.find_forward()
    }

    /// Moves to the last visible entry before `key`.
    pub(crate) fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.state = State::Nowhere;
        self.inner.seek_before(key, SeqNo::MAX)?;
        self.find_backward()
    }

    /// Moves to the next visible entry. Only while valid.
    pub(crate) fn next(&mut self) -> Result<()> {
        let state = std::mem::replace(&mut self.state, State::Nowhere);
        if state == State::Backward {
            self.inner.seek(&self.key, SeqNo::ZERO)?;
        } else {
            self.skip_versions()?;
        }
        self.find_forward()
    }

    /// Moves to the visible entry before. Only while valid.
    pub(crate) fn prev(&mut self) -> Result<()> {
        let state = std::mem::replace(&mut self.state, State::Nowhere);
        if state == State::Forward {
            self.key.clear();
            self.key.extend_from_slice(self.inner.key().user_key);
            self.inner.seek_before(&self.key, SeqNo::MAX)?;
        }
        self.find_backward()
    }

    /// Takes `inner` from one version of a key to the first version of the next key.
    fn skip_versions(&mut self) -> Result<()> {
        self.key.clear();
        self.key.extend_from_slice(self.inner.key().user_key);
        for _ in 0..STEPS_BEFORE_SEEK {
            self.inner.next()?;
            if !self.inner.valid() || self.inner.key().user_key != self.key {
                return Ok(());
            }
        }
        self.inner.seek(&self.key, SeqNo::ZERO)
    }

    fn find_forward(&mut self) -> Result<()> {
        let mut newer = 0;
        while self.inner.valid() {
            let key = self.inner.key();
            if key.seq > self.snapshot {
                newer += 1;
                if newer <= STEPS_BEFORE_SEEK {
                    self.inner.next()?;
                } else {
                    newer = 0;
                    self.key.clear();
                    self.key.extend_from_slice(key.user_key);
                    self.inner.seek(&self.key, self.snapshot)?;
                }
            } else if is_deleted(&mut self.deleted, key) {
                self.skip_versions()?;
            } else {
                self.state = State::Forward;
                break;
            }
        }
        Ok(())
    }

    /// From the oldest version of a key (or any later place in it) finds the newest that is
    /// visible; goes on to smaller keys while there is none.
    fn find_backward(&mut self) -> Result<()> {
        while self.inner.valid() {
            self.key.clear();
            self.key.extend_from_slice(self.inner.key().user_key);
            let mut found = None;
            while self.inner.valid() {
                let key = self.inner.key();
                if key.user_key != self.key {
                    break;
                }
                if key.seq > self.snapshot {
                    // All that is left of this key is newer still.
                    self.inner.seek_before(&self.key, SeqNo::MAX)?;
                    break;
                }
                found = (!is_deleted(&mut self.deleted, key)).then(|| self.inner.value_slice());
                self.inner.prev()?;
            }
            if let Some(value) = found {
                self.value = value;
                self.state = State::Backward;
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Whether the newest visible entry of a key leaves the key without a value.
#[inline]
fn is_deleted(deleted: &mut Option<Deleted>, key: InternalKey<'_>) -> bool {
    key.kind == Kind::Delete
        || deleted.as_mut().is_some_and(|deleted| deleted.hides(key.user_key, key.seq))
}

impl<C> fmt::Debug for VisibleCursor<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VisibleCursor")
            .field("snapshot", &self.snapshot)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::Bound;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::format::range_tombstones::{RangeTombstone, Spans};
    use crate::read::deleted::Reach;
    use crate::read::merging::ListCursor;
    use crate::sync::Arc;

    proptest! {
        /// Any walk over the visible entries stands where a map of the newest versions says.
        #[test]
        fn walks_equal_a_map(
            versions in prop::collection::vec((0u8..10, prop::bool::weighted(0.3), prop::option::weighted(0.1, 0u8..12)), 0..80),
            snapshot in 0u64..90,
            steps in prop::collection::vec((0u8..6, 0u8..11), 1..80),
        ) {
            let entries: Vec<_> = versions
                .iter()
                .enumerate()
                .filter(|(_, (.., range))| range.is_none())
                .map(|(at, &(key, delete, _))| {
                    let kind = if delete { Kind::Delete } else { Kind::Put };
                    let value = at.to_string().into_bytes();
                    (vec![key], SeqNo(at as u64 + 1), kind, value)
                })
                .collect();
            let mut model = BTreeMap::new();
            let mut spans = Vec::new();
            for (seq, &(key, delete, range)) in (1..).zip(&versions) {
                match range {
                    Some(end) => {
                        let bytes = |key: u8| Bytes::copy_from_slice(&[key]);
                        // An end that is no end stands for that of the keyspace.
                        let until = (end > key).then(|| bytes(end));
                        let span = RangeTombstone { start: bytes(key), end: until, seqs: vec![SeqNo(seq)] };
                        spans.push(span);
                        if seq <= snapshot {
                            model.retain(|at: &Vec<u8>, _| at[0] < key || (end > key && at[0] >= end));
                        }
                    }
                    None if seq > snapshot => {}
                    None if delete => drop(model.remove(&vec![key])),
                    None => drop(model.insert(vec![key], (seq - 1).to_string().into_bytes())),
                }
            }
            let half = spans.split_off(spans.len() / 2);
            let sources: Arc<[_]> = [spans, half].iter().map(|part| Arc::new(Spans::of(part))).collect();
            let deleted = Deleted::new(sources, Reach::Reader(SeqNo(snapshot)));
            let mut cursor = VisibleCursor::new(ListCursor::new(entries), SeqNo(snapshot), deleted);
            let mut place: Option<Vec<u8>> = None;
            for (step, key) in steps {
                let first_from = |from: &[u8]| {
                    model.range::<[u8], _>((Bound::Included(from), Bound::Unbounded)).next().map(|(key, _)| key.clone())
                };
                let last_before = |to: &[u8]| {
                    model.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(to))).next_back().map(|(key, _)| key.clone())
                };
                match (step, place.clone()) {
                    (0, _) => { cursor.first().unwrap(); place = first_from(&[]); }
                    (1, _) => { cursor.last().unwrap(); place = last_before(&[255]); }
                    (2, _) => { cursor.seek(&[key]).unwrap(); place = first_from(&[key]); }
                    (3, _) => { cursor.seek_before(&[key]).unwrap(); place = last_before(&[key]); }
                    (4, Some(at)) => {
                        cursor.next().unwrap();
                        place = first_from(&[at.as_slice(), &[0]].concat());
                    }
                    (5, Some(at)) => { cursor.prev().unwrap(); place = last_before(&at); }
                    _ => {}
                }
                prop_assert_eq!(cursor.valid(), place.is_some());
                if let Some(at) = &place {
                    prop_assert_eq!(cursor.key(), at.as_slice());
                    prop_assert_eq!(&*cursor.value_slice(), model[at].as_slice());
                }
            }
        }
    }
}
