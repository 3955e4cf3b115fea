//! Cursors whose entries are compared with the pairs of the model.

use std::ops::Bound;
use std::sync::Arc;

use lsmx::KeyspaceCursor;

use super::change::{Bounds, Bytes, Pairs, is_within};
use super::compare::{Text, Trouble};
use crate::rng::TestRng;

/// A move of a cursor. `K` is a key or the index of a key.
#[derive(Clone, Copy, Debug)]
pub enum CursorMove<K> {
    Seek(K),
    SeekForPrev(K),
    SeekToFirst,
    SeekToLast,
    Next,
    Prev,
}

impl<K> CursorMove<K> {
    /// Draws a move. Half of the moves are single steps.
    pub fn random(rng: &mut TestRng, key: K) -> CursorMove<K> {
        match rng.below(12) {
            0..2 => CursorMove::Seek(key),
            2..4 => CursorMove::SeekForPrev(key),
            4 => CursorMove::SeekToFirst,
            5 => CursorMove::SeekToLast,
            6..9 => CursorMove::Next,
            _ => CursorMove::Prev,
        }
    }

    /// Replaces the key.
    pub(super) fn map<L>(self, key: impl FnOnce(K) -> L) -> CursorMove<L> {
        match self {
            CursorMove::Seek(target) => CursorMove::Seek(key(target)),
            CursorMove::SeekForPrev(target) => CursorMove::SeekForPrev(key(target)),
            CursorMove::SeekToFirst => CursorMove::SeekToFirst,
            CursorMove::SeekToLast => CursorMove::SeekToLast,
            CursorMove::Next => CursorMove::Next,
            CursorMove::Prev => CursorMove::Prev,
        }
    }
}

/// A cursor, the pairs within its bounds, and its expected key.
pub struct CheckedCursor {
    cursor: KeyspaceCursor,
    pairs: Pairs,
    position: Option<Bytes>,
}

impl CheckedCursor {
    /// Limits a cursor to `bounds`. `pairs` are all pairs that the cursor can see.
    #[must_use]
    pub fn new(cursor: KeyspaceCursor, bounds: &Bounds, pairs: &Pairs) -> CheckedCursor {
        let within = pairs.iter().filter(|(key, _)| is_within(bounds, key));
        CheckedCursor {
            cursor: cursor.with_bounds::<Bytes>(bounds.clone()),
            pairs: within.map(|(key, value)| (Arc::clone(key), Arc::clone(value))).collect(),
            position: None,
        }
    }

    fn first_from(&self, lower: Bound<&Bytes>) -> Option<Bytes> {
        let mut range = self.pairs.range::<Bytes, _>((lower, Bound::Unbounded));
        range.next().map(|(key, _)| Arc::clone(key))
    }

    fn last_up_to(&self, upper: Bound<&Bytes>) -> Option<Bytes> {
        let mut range = self.pairs.range::<Bytes, _>((Bound::Unbounded, upper));
        range.next_back().map(|(key, _)| Arc::clone(key))
    }

    /// Moves the cursor, and compares its entry with the pair of the model.
    ///
    /// # Errors
    /// Returns a difference, or an error of the cursor.
    pub fn apply(&mut self, step: &CursorMove<Bytes>) -> Result<(), Trouble> {
        let (cursor, before) = (&mut self.cursor, self.position.take());
        match step {
            CursorMove::Seek(key) => cursor.seek(key)?,
            CursorMove::SeekForPrev(key) => cursor.seek_for_prev(key)?,
            CursorMove::SeekToFirst => cursor.seek_to_first()?,
            CursorMove::SeekToLast => cursor.seek_to_last()?,
            CursorMove::Next => cursor.next()?,
            CursorMove::Prev => cursor.prev()?,
        }
        self.position = match (step, &before) {
            (CursorMove::Seek(key), _) => self.first_from(Bound::Included(key)),
            (CursorMove::SeekForPrev(key), _) => self.last_up_to(Bound::Included(key)),
            (CursorMove::SeekToFirst, _) => self.first_from(Bound::Unbounded),
            (CursorMove::SeekToLast, _) => self.last_up_to(Bound::Unbounded),
            (CursorMove::Next, Some(key)) => self.first_from(Bound::Excluded(key)),
            (CursorMove::Prev, Some(key)) => self.last_up_to(Bound::Excluded(key)),
            (CursorMove::Next | CursorMove::Prev, None) => None,
        };
        let found = self.cursor.key().map(Text).zip(self.cursor.value()?.map(Text));
        let expected = self.position.as_ref().map(|key| (Text(key), Text(&self.pairs[key])));
        if found != expected {
            let from = before.as_deref().map(Text);
            let what = format!("cursor: {step:?} from {from:?}: {found:?}, expected {expected:?}");
            return Err(Trouble::Wrong(what));
        }
        Ok(())
    }
}
