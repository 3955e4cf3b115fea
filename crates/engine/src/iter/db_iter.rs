//! What a reader at one sequence number sees: newest versions only, operands folded, tombstones and
//! what range deletes hide left out. A key whose operands do not fold is an entry whose value is an error.

use std::fmt;

use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::cursor::Cursor;
use crate::error::{Error, Result};
use crate::iter::operand_fold::Fold;
use crate::iter::range_tombstone_filter::Deleted;
use crate::iter::value_resolver::PointedValues;
use crate::tree::merge_resolver::Merging;

/// Steps over versions of one key before it is cheaper to search for the next key.
const STEPS_BEFORE_SEEK: usize = 8;

/// Versions that one move may step over where nobody may be kept waiting.
const STEPS_PER_MOVE_MAX: u64 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Stands on no entry.
    Nowhere,
    /// The current entry is the one that `inner` stands on.
    Forward,
    /// The current entry was folded, and is kept in `key` and `value`; `inner` stands at one of its
    /// versions or at the first of the next key.
    Folded,
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
    /// Number of the current entry if `value` is a value pointer.
    pointer: Option<SeqNo>,
    /// Why the current entry, one that was folded, has no value.
    unfolded: Option<Box<Error>>,
    merging: Arc<Merging>,
    /// Where the values of entries lie that are pointers.
    values: PointedValues,
    /// Most versions that one move steps over.
    steps_max: u64,
    /// What the current move has left of them.
    steps_left: u64,
}

impl<C: Cursor> VisibleCursor<C> {
    /// What is visible of `inner` at `snapshot`, without what `deleted` hides; stands nowhere.
    pub(crate) fn new(
        inner: C,
        snapshot: SeqNo,
        deleted: Option<Deleted>,
        merging: Arc<Merging>,
        values: PointedValues,
    ) -> VisibleCursor<C> {
        let (key, value) = (Vec::new(), Slice::default());
        VisibleCursor {
            inner,
            snapshot,
            deleted,
            state: State::Nowhere,
            key,
            value,
            pointer: None,
            unfolded: None,
            merging,
            values,
            steps_max: u64::MAX,
            steps_left: u64::MAX,
        }
    }

    /// The same, whose moves give up with [`Error::WouldBlock`] where they would take long. It is of
    /// no use after that.
    pub(crate) fn impatient(self) -> VisibleCursor<C> {
        VisibleCursor { steps_max: STEPS_PER_MOVE_MAX, ..self }
    }

    /// Begins a move.
    #[inline]
    fn begin(&mut self) -> State {
        self.steps_left = self.steps_max;
        self.unfolded = None;
        std::mem::replace(&mut self.state, State::Nowhere)
    }

    /// Goes on by one version.
    #[inline]
    fn step(&mut self) -> Result<()> {
        self.steps_left = self.steps_left.checked_sub(1).ok_or(Error::WouldBlock)?;
        Ok(())
    }

    /// Whether the cursor stands on an entry.
    pub(crate) fn valid(&self) -> bool {
        self.state != State::Nowhere
    }

    /// The current key. Only while valid.
    pub(crate) fn key(&self) -> &[u8] {
        match self.state {
            State::Backward | State::Folded => &self.key,
            _ => self.inner.key().user_key,
        }
    }

    /// The current value, as bytes that outlive the next move, read from the value log if it lies there.
    /// Only while valid.
    ///
    /// # Errors
    /// When the value cannot be read; [`Error::WouldBlock`], after which this may be called again;
    /// [`Error::MergeFailed`] of this key, after which the cursor can move on.
    #[inline]
    pub(crate) fn value_slice(&mut self) -> Result<Slice> {
        match self.state {
            State::Backward | State::Folded => match (&self.unfolded, self.pointer) {
                (Some(why), _) => Err((**why).clone()),
                (None, None) => Ok(self.value.clone()),
                (None, Some(seq)) => self.values.read((&self.key, seq), &self.value),
            },
            _ => {
                let key = self.inner.key();
                if key.kind == EntryKind::ValuePointer {
                    return self.values.read((key.user_key, key.seq), self.inner.value());
                }
                Ok(self.inner.value_slice())
            }
        }
    }

    /// Number of the current entry, and where its value lies, if that is in the value log and was not read.
    /// Only while valid.
    #[inline]
    pub(crate) fn pointer(&self) -> Option<(SeqNo, &[u8])> {
        match self.state {
            State::Backward | State::Folded => self.pointer.map(|seq| (seq, &*self.value)),
            _ => {
                let key = self.inner.key();
                (key.kind == EntryKind::ValuePointer).then(|| (key.seq, self.inner.value()))
            }
        }
    }

    /// Takes what a key was folded to; returns whether it is an entry.
    fn folded(&mut self, value: Result<Option<Slice>>) -> Result<bool> {
        match value {
            Ok(value) => {
                let found = value.is_some();
                self.value = value.unwrap_or_default();
                Ok(found)
            }
            // Nothing has failed but this key's own operands.
            Err(why @ Error::MergeFailed { .. }) => {
                self.unfolded = Some(Box::new(why));
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// Moves to the first visible entry.
    pub(crate) fn first(&mut self) -> Result<()> {
        self.begin();
        self.inner.first()?;
        self.find_forward()
    }

    /// Moves to the last visible entry.
    pub(crate) fn last(&mut self) -> Result<()> {
        self.begin();
        self.inner.last()?;
        self.find_backward()
    }

    /// Moves to the first visible entry at or after `key`.
    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.begin();
        self.inner.seek(key, SeqNo::MAX)?;
        self.find_forward()
    }

    /// Moves to the last visible entry before `key`.
    pub(crate) fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.begin();
        self.inner.seek_before(key, SeqNo::MAX)?;
        self.find_backward()
    }

    /// Moves to the next visible entry. Only while valid.
    pub(crate) fn next(&mut self) -> Result<()> {
        let state = self.begin();
        match state {
            State::Backward => self.inner.seek(&self.key, SeqNo::ZERO)?,
            State::Folded => self.skip_folded()?,
            State::Forward | State::Nowhere => self.skip_versions()?,
        }
        self.find_forward()
    }

    /// Moves to the visible entry before. Only while valid.
    pub(crate) fn prev(&mut self) -> Result<()> {
        let state = self.begin();
        if state == State::Forward {
            self.key.clear();
            self.key.extend_from_slice(self.inner.key().user_key);
        }
        if matches!(state, State::Forward | State::Folded) {
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
            self.step()?;
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
            } else {
                match kind_of(&mut self.deleted, key) {
                    EntryKind::Delete => self.skip_versions()?,
                    EntryKind::Merge => {
                        if self.fold_forward()? {
                            self.state = State::Folded;
                            break;
                        }
                        self.skip_folded()?;
                    }
                    EntryKind::Put | EntryKind::ValuePointer => {
                        self.state = State::Forward;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// From the newest visible version of a key, an operand, finds the key's value, which it keeps;
    /// returns whether it has one.
    #[cold]
    fn fold_forward(&mut self) -> Result<bool> {
        self.key.clear();
        self.key.extend_from_slice(self.inner.key().user_key);
        let mut fold = Fold::default();
        while self.inner.valid() && self.inner.key().user_key == self.key {
            self.step()?;
            let key = self.inner.key();
            let (seq, kind) = (key.seq, kind_of(&mut self.deleted, key));
            if !fold.older(seq, kind, self.inner.value_slice()) {
                break;
            }
            self.inner.next()?;
        }
        self.settle(fold)
    }

    /// Keeps what the versions of the key amount to; returns whether it has a value. One in the value
    /// log is read here only if operands change it.
    fn settle(&mut self, mut fold: Fold) -> Result<bool> {
        if fold.has_operands() {
            fold.resolve(|seq, pointer| self.values.read((&self.key, seq), pointer))?;
        }
        self.pointer = fold.pointer();
        let value = fold.finish(&self.merging, &self.key);
        self.folded(value)
    }

    /// Takes `inner` to the first version of the key after the one that was folded.
    fn skip_folded(&mut self) -> Result<()> {
        if self.inner.valid() && self.inner.key().user_key == self.key {
            self.skip_versions()?;
        }
        Ok(())
    }

    /// From the oldest version of a key (or any later place in it) finds the newest that is
    /// visible; goes on to smaller keys while there is none.
    fn find_backward(&mut self) -> Result<()> {
        while self.inner.valid() {
            self.key.clear();
            self.key.extend_from_slice(self.inner.key().user_key);
            let mut fold = Fold::default();
            while self.inner.valid() {
                self.step()?;
                let key = self.inner.key();
                if key.user_key != self.key {
                    break;
                }
                if key.seq > self.snapshot {
                    // All that is left of this key is newer still.
                    self.inner.seek_before(&self.key, SeqNo::MAX)?;
                    break;
                }
                let (seq, kind) = (key.seq, kind_of(&mut self.deleted, key));
                fold.newer(seq, kind, || self.inner.value_slice());
                self.inner.prev()?;
            }
            if self.settle(fold)? {
                self.state = State::Backward;
                return Ok(());
            }
        }
        Ok(())
    }
}

/// What an entry does, which is to delete if a range delete hides it: nothing older counts then.
#[inline]
fn kind_of(deleted: &mut Option<Deleted>, key: InternalKey<'_>) -> EntryKind {
    let hidden = deleted.as_mut().is_some_and(|deleted| deleted.hides(key.user_key, key.seq));
    if hidden { EntryKind::Delete } else { key.kind }
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
    use crate::iter::merging_iter::ListCursor;
    use crate::merge_operator::{MergeError, MergeOperator, MergeResult};
    use lsmx_base::range_tombstone::{RangeTombstone, build_index};
    use lsmx_base::sync::Arc;

    /// Stands in the model for a key that does not fold.
    const REFUSED: &[u8] = b"refused";

    /// Whether the snake chokes on it.
    fn is_refused(operand: &[u8]) -> bool {
        operand.ends_with(b"7")
    }

    /// Appends, and eats what has become long.
    #[derive(Debug)]
    struct Snake;

    impl MergeOperator for Snake {
        fn name(&self) -> &'static str {
            "snake"
        }
        fn full_merge(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
            operands.iter().try_fold(base.map(<[u8]>::to_vec), |old, operand| {
                if is_refused(operand) {
                    return Err(MergeError::new("bad food"));
                }
                Ok(match old.unwrap_or_default() {
                    old if old.len() > 6 => None,
                    old => Some([&old, *operand].concat()),
                })
            })
        }
    }

    fn kind_of_dice(dice: u8) -> EntryKind {
        match dice {
            0..3 => EntryKind::Delete,
            3..6 => EntryKind::Put,
            _ => EntryKind::Merge,
        }
    }

    proptest! {
        /// Any walk over the visible entries stands where a map of the newest versions says.
        #[test]
        fn walks_equal_a_map(
            versions in prop::collection::vec((0u8..10, 0u8..10, prop::option::weighted(0.1, 0u8..12)), 0..80),
            snapshot in 0u64..90,
            steps in prop::collection::vec((0u8..6, 0u8..11), 1..80),
        ) {
            let entries: Vec<_> = versions
                .iter()
                .enumerate()
                .filter(|(_, (.., range))| range.is_none())
                .map(|(at, &(key, kind, _))| {
                    let kind = kind_of_dice(kind);
                    let value = at.to_string().into_bytes();
                    (vec![key], SeqNo(at as u64 + 1), kind, value)
                })
                .collect();
            let mut model = BTreeMap::<Vec<u8>, Vec<u8>>::new();
            let mut spans = Vec::new();
            for (seq, &(key, kind, range)) in (1..).zip(&versions) {
                if let Some(end) = range {
                    let bytes = |key: u8| Bytes::copy_from_slice(&[key]);
                    // An end that is no end stands for that of the keyspace.
                    let until = (end > key).then(|| bytes(end));
                    let span = RangeTombstone { start: bytes(key), end: until, seqs: vec![SeqNo(seq)] };
                    spans.push(span);
                    if seq <= snapshot {
                        model.retain(|at: &Vec<u8>, _| at[0] < key || (end > key && at[0] >= end));
                    }
                    continue;
                }
                if seq > snapshot {
                    continue;
                }
                let (key, value) = (vec![key], (seq - 1).to_string().into_bytes());
                match kind_of_dice(kind) {
                    EntryKind::Delete => drop(model.remove(&key)),
                    // An order-sensitive operator, for which an emptied value is none.
                    // It stays so whatever is merged on top.
                    EntryKind::Merge if is_refused(&value) || model.get(&key).is_some_and(|at| at == REFUSED) => {
                        drop(model.insert(key, REFUSED.to_vec()));
                    }
                    EntryKind::Merge => match model.remove(&key).unwrap_or_default() {
                        old if old.len() > 6 => {}
                        old => drop(model.insert(key, [old, value].concat())),
                    },
                    _ => drop(model.insert(key, value)),
                }
            }
            let half = spans.split_off(spans.len() / 2);
            let sources: Arc<[_]> = [spans, half].iter().map(|part| Arc::new(build_index(part))).collect();
            let deleted = Deleted::for_reader(sources, SeqNo(snapshot));
            let merging = Arc::new(Merging::new("test".to_owned(), Some(Arc::new(Snake))));
            let inner = ListCursor::new(entries);
            let mut cursor = VisibleCursor::new(
                inner,
                SeqNo(snapshot),
                deleted,
                merging,
                PointedValues::default(),
            );
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
                    match cursor.value_slice() {
                        Ok(value) => prop_assert_eq!(&*value, model[at].as_slice()),
                        Err(error) => {
                            let of_key = matches!(error, Error::MergeFailed { .. });
                            prop_assert!(of_key);
                            prop_assert_eq!(model[at].as_slice(), REFUSED);
                        }
                    }
                }
            }
        }
    }
}
