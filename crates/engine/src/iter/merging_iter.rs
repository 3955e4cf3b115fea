//! Bidirectional iterator that merges several sorted sources.

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

/// A valid source and the prefix of its current key.
#[derive(Clone, Copy, Debug)]
struct SourceHead {
    source: usize,
    prefix: KeyPrefix,
}

/// Merges several cursors into one sorted cursor.
///
/// If the last move was forward, all sources are at or after the current entry. If it was backward, they are at or
/// before the current entry. A change of the direction repositions all sources. Internal keys are unique, so two
/// sources never have equal keys.
///
/// A step moves the first source, and compares its new key with the key of the second source. If the second source now
/// comes first, a binary search finds the new position of the moved source. Keys are first compared by their prefixes.
/// The full keys are compared only if the prefixes are equal.
pub(crate) struct MergingCursor<C = Box<dyn Cursor>> {
    sources: Vec<C>,
    /// The valid sources, sorted by their current keys in the current direction. The first source is at the current
    /// entry.
    heads: Vec<SourceHead>,
    direction: Direction,
    /// Buffer for a copy of the current key while the direction changes.
    scratch: Vec<u8>,
}

impl<C: Cursor> MergingCursor<C> {
    /// Creates a cursor that is not positioned at an entry.
    pub(crate) fn new(sources: Vec<C>) -> MergingCursor<C> {
        let heads = Vec::with_capacity(sources.len());
        MergingCursor { sources, heads, direction: Direction::Forward, scratch: Vec::new() }
    }

    fn source_head(&self, source: usize) -> SourceHead {
        SourceHead { source, prefix: KeyPrefix::new(self.sources[source].key().user_key) }
    }

    /// Returns whether source `a` comes before source `b` in the current direction.
    #[inline]
    fn is_before(&self, a: SourceHead, b: SourceHead) -> bool {
        let order = a.prefix.cmp(&b.prefix);
        let order =
            order.then_with(|| self.sources[a.source].key().cmp(&self.sources[b.source].key()));
        match self.direction {
            Direction::Forward => order == Ordering::Less,
            Direction::Backward => order == Ordering::Greater,
        }
    }

    /// Calls `reposition` for each source, and sorts the valid sources in `direction`.
    fn reposition_all(
        &mut self,
        direction: Direction,
        mut reposition: impl FnMut(usize, &mut C) -> Result<()>,
    ) -> Result<()> {
        self.heads.clear();
        for (index, source) in self.sources.iter_mut().enumerate() {
            reposition(index, source)?;
        }
        self.direction = direction;
        for source in 0..self.sources.len() {
            if self.sources[source].valid() {
                let head = self.source_head(source);
                let at = self.heads.partition_point(|other| self.is_before(*other, head));
                self.heads.insert(at, head);
            }
        }
        Ok(())
    }

    /// Moves forward to the first entry at or after (`user_key`, `seq`).
    ///
    /// The target must not be before the target of the last seek. After that seek, the caller may have called only this
    /// method and `next`. Sources that are already at or after the target are not moved, so that their blocks are not
    /// read again.
    /// # Errors
    /// Fails if a block cannot be read.
    pub(crate) fn seek_forward(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        while let Some(first) = self.heads.first() {
            let source = &mut self.sources[first.source];
            let key = source.key();
            if (key.user_key, Reverse(key.seq)) >= (user_key, Reverse(seq)) {
                break;
            }
            let moved = source.seek(user_key, seq);
            self.restore_order(moved)?;
        }
        Ok(())
    }

    /// Restores the order of the sources after the first source has moved.
    #[inline]
    fn restore_order(&mut self, moved: Result<()>) -> Result<()> {
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
        let head = self.source_head(source);
        self.heads[0] = head;
        if self.heads.get(1).is_some_and(|second| self.is_before(*second, head)) {
            let others = &self.heads[2..];
            let at = 1 + others.partition_point(|other| self.is_before(*other, head));
            self.heads[..=at].rotate_left(1);
        }
        Ok(())
    }

    /// Changes the direction, and moves by one entry from the current entry. The first source moves by one entry. All
    /// other sources seek to the entries on the other side of the current entry.
    fn reverse(&mut self, direction: Direction) -> Result<()> {
        let first = self.heads[0].source;
        let mut key = std::mem::take(&mut self.scratch);
        key.clear();
        key.extend_from_slice(self.sources[first].key().user_key);
        let seq = self.sources[first].key().seq;
        let result =
            self.reposition_all(direction, |index, source| match (direction, index == first) {
                (Direction::Forward, true) => source.next(),
                (Direction::Forward, false) => source.seek(&key, seq),
                (Direction::Backward, true) => source.prev(),
                (Direction::Backward, false) => source.seek_before(&key, seq),
            });
        self.scratch = key;
        result
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
        self.reposition_all(Direction::Forward, |_, source| source.first())
    }

    fn last(&mut self) -> Result<()> {
        self.reposition_all(Direction::Backward, |_, source| source.last())
    }

    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.reposition_all(Direction::Forward, |_, source| source.seek(user_key, seq))
    }

    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.reposition_all(Direction::Backward, |_, source| source.seek_before(user_key, seq))
    }

    fn next(&mut self) -> Result<()> {
        if self.direction == Direction::Backward {
            return self.reverse(Direction::Forward);
        }
        let first = self.heads[0].source;
        let moved = self.sources[first].next();
        self.restore_order(moved)
    }

    fn prev(&mut self) -> Result<()> {
        if self.direction == Direction::Forward {
            return self.reverse(Direction::Backward);
        }
        let first = self.heads[0].source;
        let moved = self.sources[first].prev();
        self.restore_order(moved)
    }
}

/// Cursor over a list of entries.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct VecCursor {
    pub(crate) entries: Vec<(Vec<u8>, SeqNo, EntryKind, Vec<u8>)>,
    pub(crate) position: Option<usize>,
}

#[cfg(test)]
impl VecCursor {
    pub(crate) fn new(mut entries: Vec<(Vec<u8>, SeqNo, EntryKind, Vec<u8>)>) -> VecCursor {
        entries.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        VecCursor { entries, position: None }
    }

    fn lower_bound(&self, user_key: &[u8], seq: SeqNo) -> usize {
        self.entries.partition_point(|entry| {
            entry.0.as_slice().cmp(user_key).then(seq.cmp(&entry.1)) == Ordering::Less
        })
    }
}

#[cfg(test)]
impl Cursor for VecCursor {
    fn valid(&self) -> bool {
        self.position.is_some()
    }
    fn key(&self) -> InternalKey<'_> {
        let (user_key, seq, kind, _) = &self.entries[self.position.unwrap()];
        InternalKey { user_key, seq: *seq, kind: *kind }
    }
    fn value(&self) -> &[u8] {
        &self.entries[self.position.unwrap()].3
    }
    fn value_slice(&self) -> Slice {
        Slice::from(self.value())
    }
    fn first(&mut self) -> Result<()> {
        self.position = (!self.entries.is_empty()).then_some(0);
        Ok(())
    }
    fn last(&mut self) -> Result<()> {
        self.position = self.entries.len().checked_sub(1);
        Ok(())
    }
    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.position = Some(self.lower_bound(user_key, seq)).filter(|&at| at < self.entries.len());
        Ok(())
    }
    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.position = self.lower_bound(user_key, seq).checked_sub(1);
        Ok(())
    }
    fn next(&mut self) -> Result<()> {
        self.position = Some(self.position.unwrap() + 1).filter(|&at| at < self.entries.len());
        Ok(())
    }
    fn prev(&mut self) -> Result<()> {
        self.position = self.position.unwrap().checked_sub(1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns two cursors over the same entries: a cursor over a sorted list, and a merging cursor over five sources.
    /// An entry consists of key, sequence number and source.
    fn cursors(mut entries: Vec<(u8, u64, usize)>) -> (VecCursor, MergingCursor) {
        let mut seqs = std::collections::HashSet::new();
        entries.retain(|entry| seqs.insert(entry.1));
        let entry = |e: &(u8, u64, usize)| (vec![e.0], SeqNo(e.1), EntryKind::Put, vec![e.0, 1]);
        let sources = (0..5).map(|source| {
            let list = entries.iter().filter(|e| e.2 == source).map(entry).collect();
            Box::new(VecCursor::new(list)) as Box<dyn Cursor>
        });
        let merged = MergingCursor::new(sources.collect());
        (VecCursor::new(entries.iter().map(entry).collect()), merged)
    }

    proptest! {
        /// After random moves, the merging cursor is at the same entry as a cursor over a sorted list of all entries.
        #[test]
        fn merging_cursor_random_moves_match_sorted_list(
            entries in prop::collection::vec((0u8..12, 1u64..500, 0usize..5), 0..60),
            steps in prop::collection::vec((0u8..6, 0u8..12, 0u64..500), 1..60),
        ) {
            let (mut all, mut merged) = cursors(entries);
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

        /// After calls of `seek_forward` with ascending targets and steps in between, the cursor is at the same entry
        /// as after `seek`.
        #[test]
        fn seek_forward_ascending_targets_matches_seek(
            entries in prop::collection::vec((0u8..12, 1u64..500, 0usize..5), 0..60),
            mut targets in prop::collection::vec((0u8..13, 0u64..500, 0usize..4), 1..20),
        ) {
            let (mut all, mut merged) = cursors(entries);
            targets.sort_by_key(|(key, seq, _)| (*key, Reverse(*seq)));
            merged.seek(&[targets[0].0], SeqNo(targets[0].1)).unwrap();
            let mut last_key = None;
            for (key, seq, steps) in targets {
                if last_key.is_some_and(|last_key| (key, Reverse(seq)) <= last_key) {
                    continue;
                }
                all.seek(&[key], SeqNo(seq)).unwrap();
                merged.seek_forward(&[key], SeqNo(seq)).unwrap();
                for step in 0..=steps {
                    prop_assert_eq!(all.valid(), merged.valid());
                    if all.valid() {
                        prop_assert_eq!(all.key(), merged.key());
                        if step < steps {
                            // The next target must be after the current entry.
                            let current = all.key();
                            last_key = Some((current.user_key[0], Reverse(current.seq.0)));
                            all.next().unwrap();
                            merged.next().unwrap();
                        }
                    }
                }
            }
        }
    }
}
