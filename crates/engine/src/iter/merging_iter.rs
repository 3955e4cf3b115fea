//! Many sorted sources as one, both ways.

use std::cmp::{Ordering, Reverse};
use std::fmt;

#[cfg(test)]
use lsmx_base::key::EntryKind;
use lsmx_base::key::{InternalKey, KeyPrefix, SeqNo};
use lsmx_base::slice::Slice;
use lsmx_base::work_counter::{self, WorkKind};

use crate::cursor::Cursor;
use crate::error::Result;
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// A source that stands on an entry.
#[derive(Clone, Copy, Debug)]
struct Head {
    source: usize,
    prefix: KeyPrefix,
}

/// Merges cursors: those that are valid stand in a list in the order of their entries.
///
/// Going forward all sources stand at or after the current entry, going backward at or before it;
/// a change of direction positions all of them anew. Internal keys are unique, so there are no ties.
///
/// The first source mostly stays first, which costs one comparison; else its new place is found by
/// halves. Keys are looked at only where prefixes are equal.
pub(crate) struct MergingCursor<C = Box<dyn Cursor>> {
    sources: Vec<C>,
    /// The valid sources; the one that stands on the current entry is the first.
    heads: Vec<Head>,
    direction: Direction,
    scratch: Vec<u8>,
}

impl<C: Cursor> MergingCursor<C> {
    /// A cursor over all of `sources`, standing nowhere.
    pub(crate) fn new(sources: Vec<C>) -> MergingCursor<C> {
        let heads = Vec::with_capacity(sources.len());
        MergingCursor { sources, heads, direction: Direction::Forward, scratch: Vec::new() }
    }

    fn head(&self, source: usize) -> Head {
        Head { source, prefix: KeyPrefix::new(self.sources[source].key().user_key) }
    }

    #[inline]
    fn comes_first(&self, a: Head, b: Head) -> bool {
        let order = a.prefix.cmp(&b.prefix);
        let order =
            order.then_with(|| self.sources[a.source].key().cmp(&self.sources[b.source].key()));
        match self.direction {
            Direction::Forward => order == Ordering::Less,
            Direction::Backward => order == Ordering::Greater,
        }
    }

    /// Moves every source by `place`, then orders them for `direction`.
    fn place_all(
        &mut self,
        direction: Direction,
        mut place: impl FnMut(usize, &mut C) -> Result<()>,
    ) -> Result<()> {
        self.heads.clear();
        for (index, source) in self.sources.iter_mut().enumerate() {
            place(index, source)?;
        }
        self.direction = direction;
        for source in 0..self.sources.len() {
            if self.sources[source].valid() {
                let head = self.head(source);
                let at = self.heads.partition_point(|other| self.comes_first(*other, head));
                self.heads.insert(at, head);
            }
        }
        Ok(())
    }

    /// [`Cursor::seek`] of what is not before what was sought last, nothing but this and `next` in between.
    /// Sources that stand there or beyond stay where they are, and so read none of their blocks again.
    ///
    /// # Errors
    /// When a block cannot be read.
    pub(crate) fn seek_on(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        while let Some(first) = self.heads.first() {
            let source = &mut self.sources[first.source];
            let key = source.key();
            if (key.user_key, Reverse(key.seq)) >= (user_key, Reverse(seq)) {
                break;
            }
            let moved = source.seek(user_key, seq);
            self.after_move(moved)?;
        }
        Ok(())
    }

    /// Brings the list in order after its first source has moved, or failed to.
    #[inline]
    fn after_move(&mut self, moved: Result<()>) -> Result<()> {
        work_counter::add(WorkKind::EntrySteps, 1);
        if let Err(error) = moved {
            self.heads.clear();
            return Err(error);
        }
        let source = self.heads[0].source;
        if !self.sources[source].valid() {
            self.heads.remove(0);
            return Ok(());
        }
        let head = self.head(source);
        self.heads[0] = head;
        if self.heads.get(1).is_some_and(|second| self.comes_first(*second, head)) {
            let others = &self.heads[2..];
            let at = 1 + others.partition_point(|other| self.comes_first(*other, head));
            self.heads[..=at].rotate_left(1);
        }
        Ok(())
    }

    /// Turns round on the current entry: the first source takes a step, all others are placed on
    /// the far side of the entry.
    fn turn(&mut self, direction: Direction) -> Result<()> {
        let first = self.heads[0].source;
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

impl<C> fmt::Debug for MergingCursor<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MergingCursor")
            .field("sources", &self.sources.len())
            .field("valid", &self.heads.len())
            .finish()
    }
}

impl<C: Cursor> Cursor for MergingCursor<C> {
    fn valid(&self) -> bool {
        !self.heads.is_empty()
    }

    fn key(&self) -> InternalKey<'_> {
        self.sources[self.heads[0].source].key()
    }

    fn value(&self) -> &[u8] {
        self.sources[self.heads[0].source].value()
    }

    fn value_slice(&self) -> Slice {
        self.sources[self.heads[0].source].value_slice()
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
        let first = self.heads[0].source;
        let moved = self.sources[first].next();
        self.after_move(moved)
    }

    fn prev(&mut self) -> Result<()> {
        if self.direction == Direction::Forward {
            return self.turn(Direction::Backward);
        }
        let first = self.heads[0].source;
        let moved = self.sources[first].prev();
        self.after_move(moved)
    }
}

/// A cursor over nothing but entries given in order; for tests and for folding small lists.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct ListCursor {
    pub(crate) entries: Vec<(Vec<u8>, SeqNo, EntryKind, Vec<u8>)>,
    pub(crate) place: Option<usize>,
}

#[cfg(test)]
impl ListCursor {
    pub(crate) fn new(mut entries: Vec<(Vec<u8>, SeqNo, EntryKind, Vec<u8>)>) -> ListCursor {
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
            let entry = |e: &(u8, u64, usize)| (vec![e.0], SeqNo(e.1), EntryKind::Put, vec![e.0, 1]);
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

        /// Seeks of ascending targets, with steps in between.
        #[test]
        fn seeking_on_equals_seeking(
            entries in prop::collection::vec((0u8..12, 1u64..500, 0usize..5), 0..60),
            mut targets in prop::collection::vec((0u8..13, 0u64..500, 0usize..4), 1..20),
        ) {
            let mut seen = std::collections::HashSet::new();
            let entries: Vec<_> = entries.into_iter().filter(|e| seen.insert(e.1)).collect();
            let entry = |e: &(u8, u64, usize)| (vec![e.0], SeqNo(e.1), EntryKind::Put, vec![e.0, 1]);
            let mut all = ListCursor::new(entries.iter().map(entry).collect());
            let sources = (0..5).map(|source| {
                ListCursor::new(entries.iter().filter(|e| e.2 == source).map(entry).collect())
            });
            let mut merged = MergingCursor::new(sources.collect());
            targets.sort_by_key(|(key, seq, _)| (*key, Reverse(*seq)));
            merged.seek(&[targets[0].0], SeqNo(targets[0].1)).unwrap();
            let mut beyond = None;
            for (key, seq, steps) in targets {
                if beyond.is_some_and(|beyond| (key, Reverse(seq)) <= beyond) {
                    continue;
                }
                all.seek(&[key], SeqNo(seq)).unwrap();
                merged.seek_on(&[key], SeqNo(seq)).unwrap();
                for step in 0..=steps {
                    prop_assert_eq!(all.valid(), merged.valid());
                    if all.valid() {
                        prop_assert_eq!(all.key(), merged.key());
                        if step < steps {
                            // What is sought next is behind what the step has left.
                            let left = all.key();
                            beyond = Some((left.user_key[0], Reverse(left.seq.0)));
                            all.next().unwrap();
                            merged.next().unwrap();
                        }
                    }
                }
            }
        }
    }
}
