//! Write set of a commit: the keys and ranges that the commit writes. Guards of later commits are checked against it.

use std::ops::Range;

use lsmx_base::key::SeqNo;
use lsmx_base::sync::OnceLock;

use crate::format::batch::{BatchOperationIter, OperationEffect};
use crate::tree::guard_history::GuardedKeys;
use crate::tree::key_hashes::{KeyHashes, key_hash};

/// Keys and ranges that a commit writes. Construction takes O(n log n) time for n range deletes, and linear time for
/// other operations.
#[derive(Debug)]
pub(super) struct WriteSet {
    keys: KeyHashes,
    /// Deleted ranges, which are disjoint. Sorted by keyspace and start.
    ranges: Vec<DeletedRange>,
    /// Keys of all entries, sorted by keyspace and key. Computed for the first guard of a range.
    sorted_keys: OnceLock<Vec<WrittenKey>>,
}

/// Id of the keyspace and key of an entry. The key is a byte range of the payload.
type WrittenKey = (u32, Range<usize>);

/// A deleted range of keys. Start and end are byte ranges of the payload.
#[derive(Debug)]
struct DeletedRange {
    keyspace: u32,
    start: Range<usize>,
    /// Exclusive end of the range. `None` stands for the end of the keyspace.
    end: Option<Range<usize>>,
}

impl WriteSet {
    /// Builds the write set of a payload with `count` operations. This process must have encoded the payload.
    pub(super) fn new(payload: &[u8], count: u32) -> WriteSet {
        // The sequence number of a guard is never between two operations of a commit. The order of the operations is
        // therefore irrelevant.
        let mut keys = KeyHashes::with_capacity(count as usize, SeqNo::ZERO);
        let mut ranges = Vec::new();
        for operation in BatchOperationIter::new(payload).flatten() {
            let (keyspace, start) = (operation.keyspace, operation.key);
            match operation.action {
                OperationEffect::Entry { .. } => {
                    keys.insert(key_hash(keyspace, &payload[start]), SeqNo::ZERO);
                }
                OperationEffect::DeleteRange { end } => {
                    ranges.push(DeletedRange { keyspace, start, end })
                }
            }
        }
        ranges.sort_unstable_by(|a, b| {
            a.keyspace_and_start(payload).cmp(&b.keyspace_and_start(payload))
        });
        ranges.dedup_by(|next, last| last.extend(next, payload));
        WriteSet { keys, ranges, sorted_keys: OnceLock::new() }
    }

    /// Returns whether the commit writes or deletes one of the guarded keys.
    pub(super) fn writes_guarded_keys(
        &self,
        payload: &[u8],
        keyspace: u32,
        keys: &GuardedKeys,
    ) -> bool {
        match keys {
            GuardedKeys::Key { key, key_hash } => {
                let after = self
                    .ranges
                    .partition_point(|at| at.keyspace_and_start(payload) <= (keyspace, &key[..]));
                self.keys.newest_seq(*key_hash).is_some()
                    || self.ends_after(payload, after, keyspace, key)
            }
            GuardedKeys::Range { start, end } => {
                let is_before_end = |at: (u32, &[u8])| match end {
                    Some(end) => at < (keyspace, &end[..]),
                    None => at.0 <= keyspace,
                };
                let sorted_keys = self.sorted_keys.get_or_init(|| sort_keys(payload));
                let at = |(keyspace, key): &WrittenKey| (*keyspace, &payload[key.clone()]);
                let first = sorted_keys.partition_point(|key| at(key) < (keyspace, &start[..]));
                let after =
                    self.ranges.partition_point(|at| is_before_end(at.keyspace_and_start(payload)));
                sorted_keys.get(first).is_some_and(|key| is_before_end(at(key)))
                    || self.ends_after(payload, after, keyspace, start)
            }
        }
    }

    /// Returns whether the deleted range before index `after` belongs to the keyspace and ends after `key`.
    fn ends_after(&self, payload: &[u8], after: usize, keyspace: u32, key: &[u8]) -> bool {
        let last = after.checked_sub(1).and_then(|last| self.ranges.get(last));
        last.is_some_and(|range| {
            let is_after = |end: &Range<usize>| *key < payload[end.clone()];
            range.keyspace == keyspace && range.end.as_ref().is_none_or(is_after)
        })
    }
}

/// Returns the keys of all entries in a payload in ascending order.
fn sort_keys(payload: &[u8]) -> Vec<WrittenKey> {
    let operations = BatchOperationIter::new(payload).flatten();
    let entries = operations.filter(|at| matches!(at.action, OperationEffect::Entry { .. }));
    let mut keys: Vec<WrittenKey> = entries.map(|at| (at.keyspace, at.key)).collect();
    keys.sort_unstable_by(|a, b| (a.0, &payload[a.1.clone()]).cmp(&(b.0, &payload[b.1.clone()])));
    keys
}

impl DeletedRange {
    fn keyspace_and_start<'a>(&self, payload: &'a [u8]) -> (u32, &'a [u8]) {
        (self.keyspace, &payload[self.start.clone()])
    }

    /// Extends this range by `next`, which must not start before it. Returns false if there is a gap between the
    /// ranges.
    fn extend(&mut self, next: &DeletedRange, payload: &[u8]) -> bool {
        let bytes = |range: &Range<usize>| &payload[range.clone()];
        let touches = |end: &Range<usize>| bytes(&next.start) <= bytes(end);
        if self.keyspace != next.keyspace || !self.end.as_ref().is_none_or(touches) {
            return false;
        }
        self.end = match (self.end.take(), &next.end) {
            (Some(end), Some(other)) if bytes(&end) < bytes(other) => Some(other.clone()),
            (end, Some(_)) => end,
            (_, None) => None,
        };
        true
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use lsmx_base::key::EntryKind;
    use proptest::prelude::*;

    use super::*;
    use crate::format::batch::{put_operation, put_range_delete};

    proptest! {
        #[test]
        fn write_set_guards_match_linear_search(
            operations in prop::collection::vec((0u32..3, 0u8..10, prop::option::of(prop::option::of(1u8..4))), 0..12),
            guards in prop::collection::vec((0u32..3, 0u8..10, prop::option::of(1u8..6)), 30),
        ) {
            let key = |key: u8| Bytes::copy_from_slice(&[key]);
            let mut payload = Vec::new();
            for &(keyspace, at, deleted) in &operations {
                match deleted {
                    None => put_operation(&mut payload, EntryKind::Put, keyspace, &[at], b""),
                    Some(count) => {
                        let end = count.map(|count| [at + count]);
                        put_range_delete(&mut payload, keyspace, &[at], end.as_ref().map(|end| &end[..]));
                    }
                }
            }
            let write_set = WriteSet::new(&payload, u32::try_from(operations.len()).unwrap());
            let writes = |keyspace: u32, key: u8| {
                operations.iter().any(|&(other, at, deleted)| {
                    let is_within = match deleted {
                        None => key == at,
                        Some(None) => at <= key,
                        Some(Some(count)) => (at..at + count).contains(&key),
                    };
                    keyspace == other && is_within
                })
            };
            for (keyspace, start, count) in guards {
                let guarded = GuardedKeys::new_key(keyspace, key(start));
                let found = write_set.writes_guarded_keys(&payload, keyspace, &guarded);
                prop_assert_eq!(found, writes(keyspace, start));
                let end = count.map(|count| key(start + count));
                let guarded = GuardedKeys::Range { start: key(start), end };
                let found = write_set.writes_guarded_keys(&payload, keyspace, &guarded);
                let mut all = start..count.map_or(u8::MAX, |count| start + count);
                prop_assert_eq!(found, all.any(|at| writes(keyspace, at)));
            }
        }
    }
}
