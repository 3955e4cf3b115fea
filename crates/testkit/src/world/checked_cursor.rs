//! Cursors whose entries are compared with the pairs of the model.

use std::ops::Bound;
use std::sync::Arc;

use lsmx::{Error, KeyspaceCursor};

use super::change::{Bytes, Pairs};
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

    fn is_step(&self) -> bool {
        matches!(self, CursorMove::Next | CursorMove::Prev)
    }
}

/// A cursor, the pairs within its bounds, and its expected position.
pub struct CheckedCursor {
    cursor: KeyspaceCursor,
    pairs: Pairs,
    position: Option<Bytes>,
    /// Whether the last move failed because the read options allow no file read.
    was_refused: bool,
    /// Number of moves that failed because the read options allow no file read.
    pub(super) refused_moves: u64,
}

/// Returns whether a read failed because its options allow no file read.
pub(super) fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::WouldBlock | Error::Deadline { .. })
}

impl CheckedCursor {
    /// Expects the pairs whose keys `is_expected` accepts.
    pub fn new(
        cursor: KeyspaceCursor,
        pairs: &Pairs,
        is_expected: impl Fn(&Bytes) -> bool,
    ) -> CheckedCursor {
        let pairs = pairs.iter().filter(|(key, _)| is_expected(key));
        CheckedCursor {
            cursor,
            pairs: pairs.map(|(key, value)| (Arc::clone(key), Arc::clone(value))).collect(),
            position: None,
            was_refused: false,
            refused_moves: 0,
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

    /// Returns the expected key after a move.
    fn expected_key(&self, step: &CursorMove<Bytes>, before: Option<&Bytes>) -> Option<Bytes> {
        match (step, before) {
            (CursorMove::Seek(key), _) => self.first_from(Bound::Included(key)),
            (CursorMove::SeekForPrev(key), _) => self.last_up_to(Bound::Included(key)),
            (CursorMove::SeekToFirst, _) => self.first_from(Bound::Unbounded),
            (CursorMove::SeekToLast, _) => self.last_up_to(Bound::Unbounded),
            (CursorMove::Next, Some(key)) => self.first_from(Bound::Excluded(key)),
            (CursorMove::Prev, Some(key)) => self.last_up_to(Bound::Excluded(key)),
            (CursorMove::Next | CursorMove::Prev, None) => None,
        }
    }

    /// Moves the cursor, and compares its entry with the pair of the model. After a move that fails because the read
    /// options allow no file read, checks that the cursor has no position.
    ///
    /// # Errors
    /// Returns a difference, or another error of the cursor.
    pub fn apply(&mut self, step: &CursorMove<Bytes>) -> Result<(), Trouble> {
        let (before, was_refused) = (self.position.take(), self.was_refused);
        let cursor = &mut self.cursor;
        let moved = match step {
            CursorMove::Seek(key) => cursor.seek(key),
            CursorMove::SeekForPrev(key) => cursor.seek_for_prev(key),
            CursorMove::SeekToFirst => cursor.seek_to_first(),
            CursorMove::SeekToLast => cursor.seek_to_last(),
            CursorMove::Next => cursor.next(),
            CursorMove::Prev => cursor.prev(),
        };
        self.was_refused = moved.as_ref().is_err_and(is_refusal);
        if self.was_refused {
            self.refused_moves += 1;
            let value = self.cursor.value();
            return match (self.cursor.key(), value) {
                (None, Err(error)) if is_refusal(&error) => Ok(()),
                found => Err(Trouble::Wrong(format!("cursor after an error: {found:?}"))),
            };
        }
        moved?;
        if was_refused && step.is_step() {
            return Err(Trouble::Wrong(format!("cursor: {step:?} after an error succeeded")));
        }
        self.position = self.expected_key(step, before.as_ref());
        let expected = self.position.as_ref().map(|key| (Text(key), Text(&self.pairs[key])));
        let value = match self.cursor.value() {
            // The value is in the value log, and the read options allow no file read. The comparison uses the value of
            // the model.
            Err(error) if is_refusal(&error) => {
                self.position.as_ref().map(|key| Text(&self.pairs[key]))
            }
            value => value?.map(Text),
        };
        let found = self.cursor.key().map(Text).zip(value);
        if found != expected {
            let from = before.as_deref().map(Text);
            let what = format!("cursor: {step:?} from {from:?}: {found:?}, expected {expected:?}");
            return Err(Trouble::Wrong(what));
        }
        Ok(())
    }
}
