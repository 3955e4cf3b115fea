//! Keys and ranges that one commit writes, for the guards of later commits.

use std::ops::Range;

use lsmx_base::key::SeqNo;

use crate::format::batch::{BatchAction, BatchOperations};
use crate::tree::key_hashes::{KeyHashes, key_hash};
use crate::write::batch::Guard;

/// Write set of one commit. Building it takes n log n time for n range deletes, and linear time for
/// other operations.
#[derive(Debug)]
pub(crate) struct WriteSet {
    keys: KeyHashes,
    /// Disjoint deleted ranges, by keyspace and start.
    ranges: Vec<DeletedRange>,
}

/// A range of keys. Both bounds are places in the commit's payload.
#[derive(Debug)]
struct DeletedRange {
    keyspace: u32,
    start: Range<usize>,
    /// `None` for the end of the keyspace.
    end: Option<Range<usize>>,
}

impl WriteSet {
    /// Builds the set from a payload of `count` operations that this process encoded.
    pub(crate) fn new(payload: &[u8], count: u32) -> WriteSet {
        // The order within the commit does not matter: a guard never names a number inside of it.
        let mut keys = KeyHashes::with_capacity(count as usize, SeqNo::ZERO);
        let mut ranges = Vec::new();
        for operation in BatchOperations::new(payload).flatten() {
            let (keyspace, start) = (operation.keyspace, operation.key);
            match operation.action {
                BatchAction::Entry { .. } => {
                    keys.insert(key_hash(keyspace, &payload[start]), SeqNo::ZERO);
                }
                BatchAction::DeleteRange { end } => {
                    ranges.push(DeletedRange { keyspace, start, end })
                }
            }
        }
        ranges.sort_unstable_by(|a, b| {
            let place = |range: &DeletedRange| (range.keyspace, &payload[range.start.clone()]);
            place(a).cmp(&place(b))
        });
        ranges.dedup_by(|next, last| last.join(next, payload));
        WriteSet { keys, ranges }
    }

    /// Returns whether an operation writes or deletes the key of the guard.
    pub(crate) fn writes(&self, payload: &[u8], guard: &Guard) -> bool {
        if self.keys.newest(guard.key_hash).is_some() {
            return true;
        }
        let key = (guard.tree.id, &guard.key[..]);
        let after = self
            .ranges
            .partition_point(|range| (range.keyspace, &payload[range.start.clone()]) <= key);
        after.checked_sub(1).is_some_and(|last| {
            let DeletedRange { keyspace, end, .. } = &self.ranges[last];
            let reaches = |end: &Range<usize>| guard.key < payload[end.clone()];
            *keyspace == guard.tree.id && end.as_ref().is_none_or(reaches)
        })
    }
}

impl DeletedRange {
    /// Extends this range by one that starts at or behind its start, unless there is a gap between them.
    fn join(&mut self, next: &DeletedRange, payload: &[u8]) -> bool {
        let bytes = |place: &Range<usize>| &payload[place.clone()];
        let meets = |end: &Range<usize>| bytes(&next.start) <= bytes(end);
        if self.keyspace != next.keyspace || !self.end.as_ref().is_none_or(meets) {
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
