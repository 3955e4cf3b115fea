//! Many sorted sources as one, both ways.

use std::cmp::Ordering;
use std::fmt;

use crate::cursor::Cursor;
use crate::error::Result;
#[cfg(test)]
use crate::key::Kind;
use crate::key::{InternalKey, SeqNo};
use crate::slice::Slice;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// Merges cursors over a binary heap of those that are valid.
///
/// Going forward all sources stand at or after the current entry, going backward at or before it;
/// a change of direction positions all of them anew. Internal keys are unique, so there are no ties.
pub(crate) struct MergingCursor {
    sources: Vec<Box<dyn Cursor>>,
    /// Indices of the valid sources; the one that stands on the current entry is the first.
    heap: Vec<usize>,
    direction: Direction,
    scratch: Vec<u8>,
}

impl MergingCursor {
    /// A cursor over all of `sources`, standing nowhere.
    pub(crate) fn new(sources: Vec<Box<dyn Cursor>>) -> MergingCursor {
        let heap = Vec::with_capacity(sources.len());
        MergingCursor { sources, heap, direction: Direction::Forward, scratch: Vec::new() }
    }

    fn comes_first(&self, a: usize, b: usize) -> bool {
        let order = self.sources[a].key().cmp(&self.sources[b].key());
        match self.direction {
            Direction::Forward => order == Ordering::Less,
            Direction::Backward => order == Ordering::Greater,
        }
    }

    fn sift_down(&mut self, mut place: usize) {
        loop {
            let left = 2 * place + 1;
            if left >= self.heap.len() {
                return;
            }
            let right = left + 1;
            let mut first = left;
            if right < self.heap.len() && self.comes_first(self.heap[right], self.heap[left]) {
                first = right;
            }
            if !self.comes_first(self.heap[first], self.heap[place]) {
                return;
            }
            self.heap.swap(place, first);
            place = first;
        }
    }

    fn rebuild(&mut self, direction: Direction) {
        self.direction = direction;
        self.heap.clear();
        self.heap.extend((0..self.sources.len()).filter(|&source| self.sources[source].valid()));
        for place in (0..self.heap.len() / 2).rev() {
            self.sift_down(place);
        }
    }

    /// Moves every source by `place`, then orders them for `direction`.
    fn place_all(
        &mut self,
        direction: Direction,
        mut place: impl FnMut(usize, &mut dyn Cursor) -> Result<()>,
    ) -> Result<()> {
        self.heap.clear();
        for (index, source) in self.sources.iter_mut().enumerate() {
            place(index, source.as_mut())?;
        }
        self.rebuild(direction);
        Ok(())
    }

    /// Brings the heap in order after its first source has moved, or failed to.
    fn after_move(&mut self, moved: Result<()>) -> Result<()> {
        if let Err(error) = moved {
            self.heap.clear();
            return Err(error);
        }
        if self.sources[self.heap[0]].valid() {
            self.sift_down(0);
        } else {
            self.heap.swap_remove(0);
            self.sift_down(0);
        }
        Ok(())
    }

    /// Turns round on the current entry: the first source takes a step, all others are placed on
    /// the far side of the entry.
    fn turn(&mut self, direction: Direction) -> Result<()> {
        let first = self.heap[0];
        let mut key = std::mem::take(&mut self.scratch);
        key.clear();
        key.extend_from_slice(self.sources[first].key().user_key);
        let seq = self.sources[first].key().seq;
        let turned = self.place_all(direction, |index, source| match (direction, index == first) {
            (Direction::Forward, true) => source.next(),
            (Direction::Forward, false) => source.seek(&key, seq),
            (Direction::Backward, true) => source.prev(),
            (Direction::Backward, false) => source.seek_before(&key, seq),
        });
        self.scratch = key;
        turned
    }
}

impl fmt::Debug for MergingCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MergingCursor")
            .field("sources", &self.sources.len())
            .field("valid", &self.heap.len())
            .finish()
    }
}

impl Cursor for MergingCursor {
    fn valid(&self) -> bool {
        !self.heap.is_empty()
    }

    fn key(&self) -> InternalKey<'_> {
        self.sources[self.heap[0]].key()
    }

    fn value(&self) -> &[u8] {
        self.sources[self.heap[0]].value()
    }

    fn value_slice(&self) -> Slice {
        self.sources[self.heap[0]].value_slice()
    }

    fn first(&mut self) -> Result<()> {
        self.place_all(Direction::Forward, |_, source| source.first())
    }

    fn last(&mut self) -> Result<()> {
        self.place_all(Direction::Backward, |_, source| source.last())
    }

    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.place_all(Direction::Forward, |_, source| source.seek(user_key, seq))
    }

    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.place_all(Direction::Backward, |_, source| source.seek_before(user_key, seq))
    }

    fn next(&mut self) -> Result<()> {
        if self.direction == Direction::Backward {
            return self.turn(Direction::Forward);
        }
        let first = self.heap[0];
        let moved = self.sources[first].next();
        self.after_move(moved)
    }

    fn prev(&mut self) -> Result<()> {
        if self.direction == Direction::Forward {
            return self.turn(Direction::Backward);
        }
        let first = self.heap[0];
        let moved = self.sources[first].prev();
        self.after_move(moved)
    }
}

/// A cursor over nothing but entries given in order; for tests and for folding small lists.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct ListCursor {
    pub(crate) entries: Vec<(Vec<u8>, SeqNo, Kind, Vec<u8>)>,
    pub(crate) place: Option<usize>,
}

#[cfg(test)]
impl ListCursor {
    pub(crate) fn new(mut entries: Vec<(Vec<u8>, SeqNo, Kind, Vec<u8>)>) -> ListCursor {
        entries.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        ListCursor { entries, place: None }
    }

    fn first_at(&self, user_key: &[u8], seq: SeqNo) -> usize {
        self.entries.partition_point(|entry| {
            entry.0.as_slice().cmp(user_key).then(seq.cmp(&entry.1)) == Ordering::Less
        })
    }
}

#[cfg(test)]
impl Cursor for ListCursor {
    fn valid(&self) -> bool {
        self.place.is_some()
    }
    fn key(&self) -> InternalKey<'_> {
        let (user_key, seq, kind, _) = &self.entries[self.place.unwrap()];
        InternalKey { user_key, seq: *seq, kind: *kind }
    }
    fn value(&self) -> &[u8] {
        &self.entries[self.place.unwrap()].3
    }
    fn value_slice(&self) -> Slice {
        Slice::from(self.value())
    }
    fn first(&mut self) -> Result<()> {
        self.place = (!self.entries.is_empty()).then_some(0);
        Ok(())
    }
    fn last(&mut self) -> Result<()> {
        self.place = self.entries.len().checked_sub(1);
        Ok(())
    }
    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.place = Some(self.first_at(user_key, seq)).filter(|&at| at < self.entries.len());
        Ok(())
    }
    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.place = self.first_at(user_key, seq).checked_sub(1);
        Ok(())
    }
    fn next(&mut self) -> Result<()> {
        self.place = Some(self.place.unwrap() + 1).filter(|&at| at < self.entries.len());
        Ok(())
    }
    fn prev(&mut self) -> Result<()> {
        self.place = self.place.unwrap().checked_sub(1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever steps are taken, the merged cursor stands where one over all entries would.
        #[test]
        fn merging_equals_one_sorted_list(
            entries in prop::collection::vec((0u8..12, 1u64..500, 0usize..5), 0..60),
            steps in prop::collection::vec((0u8..6, 0u8..12, 0u64..500), 1..60),
        ) {
            let mut seen = std::collections::HashSet::new();
            let entries: Vec<_> = entries.into_iter().filter(|e| seen.insert(e.1)).collect();
            let entry = |e: &(u8, u64, usize)| (vec![e.0], SeqNo(e.1), Kind::Put, vec![e.0, 1]);
            let mut all = ListCursor::new(entries.iter().map(entry).collect());
            let sources = (0..5).map(|source| {
                let list = entries.iter().filter(|e| e.2 == source).map(entry).collect();
                Box::new(ListCursor::new(list)) as Box<dyn Cursor>
            });
            let mut merged = MergingCursor::new(sources.collect());
            for (step, key, seq) in steps {
                for cursor in [&mut all as &mut dyn Cursor, &mut merged] {
                    match step {
                        0 => cursor.first().unwrap(),
                        1 => cursor.last().unwrap(),
                        2 => cursor.seek(&[key], SeqNo(seq)).unwrap(),
                        3 => cursor.seek_before(&[key], SeqNo(seq)).unwrap(),
                        4 if cursor.valid() => cursor.next().unwrap(),
                        5 if cursor.valid() => cursor.prev().unwrap(),
                        _ => {}
                    }
                }
                prop_assert_eq!(all.valid(), merged.valid());
                if all.valid() {
                    prop_assert_eq!(all.key(), merged.key());
                    prop_assert_eq!(all.value(), merged.value());
                }
            }
        }
    }
}
