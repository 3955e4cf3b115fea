//! Executes lookups, scans and steps of iterators and cursors, and compares their results with the model.

use std::ops::Bound;

use lsmx::ReadOptions;

use super::super::change::{Bounds, Bytes, is_within};
use super::super::checked_cursor::{CheckedCursor, CursorMove, is_refusal};
use super::super::checked_range::{CheckedRange, assert_pair};
use super::super::compare::{Text, compare_value};
use super::super::operations::{Operation, Span};
use super::{HELD_MAX, ModelledDb, NO_PAIRS};

impl ModelledDb {
    /// Returns an iterator over a range of the current contents or of a snapshot.
    fn checked_range(
        &self,
        snapshot: Option<usize>,
        span: Span,
        limit: Option<u64>,
    ) -> CheckedRange {
        let (index, keyspace, bounds) = self.span(span);
        let is_expected = |key: &Bytes| is_within(&bounds, key);
        match self.held(snapshot, &keyspace) {
            Some((held, index, keyspace)) => {
                let range = held.snapshot.range::<Bytes>(&keyspace, bounds.clone());
                CheckedRange::new(range, held.contents[index].as_ref(), is_expected, limit)
            }
            None => {
                let range = keyspace.range::<Bytes>(bounds.clone());
                CheckedRange::new(range, self.contents[index].as_ref(), is_expected, limit)
            }
        }
    }

    /// Executes a lookup, a scan or a step of an iterator.
    pub(super) fn read(&mut self, operation: &Operation) {
        match operation {
            Operation::Get(snapshot, place) => {
                let (index, keyspace, key) = self.place(*place);
                let (found, pairs) = match self.held(*snapshot, &keyspace) {
                    Some((held, index, keyspace)) => {
                        (held.snapshot.get(&keyspace, &key), &held.contents[index])
                    }
                    None if index == 0 => (self.db().get(&key), &self.contents[0]),
                    None => (keyspace.get(&key), &self.contents[index]),
                };
                let pairs = pairs.as_deref().unwrap_or(&NO_PAIRS);
                compare_value(&key, found.unwrap(), pairs).unwrap();
                self.counts.snapshot_reads += u64::from(snapshot.is_some());
            }
            Operation::ContainsKey(snapshot, place) => {
                let (index, keyspace, key) = self.place(*place);
                let (found, pairs) = match self.held(*snapshot, &keyspace) {
                    Some((held, index, keyspace)) => {
                        (held.snapshot.contains_key(&keyspace, &key), &held.contents[index])
                    }
                    None => (keyspace.contains_key(&key), &self.contents[index]),
                };
                let pairs = pairs.as_deref().unwrap_or(&NO_PAIRS);
                assert_eq!(found.unwrap(), pairs.contains_key(&key), "{:?}", Text(&key));
            }
            Operation::GetWith(place, options) => {
                let (index, keyspace, key) = self.place(*place);
                let pairs = self.contents[index].as_deref().unwrap_or(&NO_PAIRS);
                match keyspace.get_with(&key, options) {
                    Err(error) if is_refusal(&error) => self.counts.refused_gets += 1,
                    found => compare_value(&key, found.unwrap(), pairs).unwrap(),
                }
            }
            Operation::MultiGet(snapshot, keyspace, keys) => {
                let (index, keyspace) = self.keyspace(*keyspace);
                let keys: Vec<Bytes> = keys.iter().map(|key| self.key(*key)).collect();
                let (found, pairs) = match self.held(*snapshot, &keyspace) {
                    Some((held, index, keyspace)) => {
                        (held.snapshot.multi_get(&keyspace, &keys), &held.contents[index])
                    }
                    None => (keyspace.multi_get(&keys), &self.contents[index]),
                };
                let pairs = pairs.as_deref().unwrap_or(&NO_PAIRS);
                for (found, key) in found.unwrap().into_iter().zip(&keys) {
                    compare_value(key, found, pairs).unwrap();
                }
            }
            Operation::Ends(keyspace) => {
                let (index, keyspace) = self.keyspace(*keyspace);
                let pairs = self.contents[index].as_ref().expect("it exists");
                let owned = |(key, value): (&Bytes, &Bytes)| (key.clone(), value.clone());
                assert_pair(keyspace.first().transpose(), pairs.first_key_value().map(owned));
                assert_pair(keyspace.last().transpose(), pairs.last_key_value().map(owned));
            }
            Operation::Scan(snapshot, span, limit, steps) => {
                let mut range = self.checked_range(*snapshot, *span, *limit);
                self.counts.direction_changes += range.steps(steps);
                range.finish();
                self.counts.snapshot_reads += u64::from(snapshot.is_some());
            }
            Operation::Cursor(snapshot, span, options, moves) => {
                let (index, keyspace, bounds) = self.span(*span);
                let (cursor, pairs) = match self.held(*snapshot, &keyspace) {
                    Some((held, index, keyspace)) => {
                        (held.snapshot.cursor(&keyspace, options), &held.contents[index])
                    }
                    None => (keyspace.cursor(options), &self.contents[index]),
                };
                let cursor = cursor.unwrap().with_bounds::<Bytes>(bounds.clone());
                let pairs = pairs.as_deref().unwrap_or(&NO_PAIRS);
                let is_expected = |key: &Bytes| is_within(&bounds, key);
                self.move_cursor(CheckedCursor::new(cursor, pairs, is_expected), moves);
            }
            Operation::PrefixCursor(place, bytes, moves) => {
                let (index, keyspace, key) = self.place(*place);
                let prefix = &key[..key.len().min(*bytes)];
                let cursor = keyspace.cursor(&ReadOptions::default()).unwrap().with_prefix(prefix);
                let pairs = self.contents[index].as_deref().unwrap_or(&NO_PAIRS);
                let is_expected = |key: &Bytes| key.starts_with(prefix);
                self.move_cursor(CheckedCursor::new(cursor, pairs, is_expected), moves);
            }
            Operation::Estimate(span) => {
                let (_, keyspace, bounds) = self.span(*span);
                let estimates = |bounds: Bounds| {
                    let bytes = keyspace.approximate_size::<Bytes>(bounds.clone()).unwrap();
                    (bytes, keyspace.approximate_count::<Bytes>(bounds).unwrap())
                };
                let unbounded = || (Bound::Unbounded, Bound::Unbounded);
                // A job may change the tables between two estimates, so an implausible result is checked again. A wrong
                // estimate is implausible in each attempt.
                let is_plausible = (0..10).any(|_| {
                    let all = estimates(unbounded());
                    let part = estimates(bounds.clone());
                    estimates(unbounded()) != all || (part.0 <= all.0 && part.1 <= all.1)
                });
                assert!(is_plausible, "estimate of {bounds:?} exceeds that of all keys");
            }
            Operation::Prefix(place, bytes) => {
                let (index, keyspace, key) = self.place(*place);
                let prefix = &key[..key.len().min(*bytes)];
                let is_expected = |key: &Bytes| key.starts_with(prefix);
                let (range, pairs) = (keyspace.prefix(prefix), self.contents[index].as_ref());
                CheckedRange::new(range, pairs, is_expected, None).finish();
            }
            Operation::OpenIterator(snapshot, span) if self.iterators.len() < HELD_MAX => {
                self.iterators.push(self.checked_range(*snapshot, *span, None));
            }
            Operation::StepIterator(index, options, steps) => {
                if let Some(index) = index.checked_rem(self.iterators.len()) {
                    if let Some(options) = options {
                        self.iterators[index].set_options(options);
                    }
                    self.counts.direction_changes += self.iterators[index].steps(steps);
                }
            }
            Operation::DropIterator(index) => {
                if let Some(index) = index.checked_rem(self.iterators.len()) {
                    self.iterators.swap_remove(index).finish();
                }
            }
            _ => {}
        }
    }

    fn move_cursor(&mut self, mut cursor: CheckedCursor, moves: &[CursorMove<usize>]) {
        for step in moves {
            cursor.apply(&step.map(|key| self.key(key))).unwrap();
        }
        self.counts.cursor_moves += moves.len() as u64;
        self.counts.refused_cursor_moves += cursor.refused_moves;
    }
}
