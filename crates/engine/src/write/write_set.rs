//! Keys and ranges that one commit writes, for the guards of later commits.

use std::ops::Range;

use lsmx_base::key::SeqNo;

use crate::format::batch::{BatchOperationIter, OperationEffect};
use crate::tree::key_hashes::{KeyHashes, key_hash};
use crate::write::batch::KeyGuard;

/// Write set of one commit. Building it takes O(n log n) time for n range deletes, and linear time for other operations.
#[derive(Debug)]
pub(super) struct WriteSet {
    keys: KeyHashes,
    /// Disjoint ranges, sorted by keyspace and start.
    ranges: Vec<DeletedRange>,
}

/// A range of keys. Both bounds are byte ranges of the commit's payload.
#[derive(Debug)]
struct DeletedRange {
    keyspace: u32,
    start: Range<usize>,
    /// `None` for the end of the keyspace.
    end: Option<Range<usize>>,
}

impl WriteSet {
    /// Builds the set from a payload of `count` operations that this process encoded.
    pub(super) fn new(payload: &[u8], count: u32) -> WriteSet {
        // A guard never has a sequence number inside of a commit, so the order of its operations is irrelevant.
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
        ranges.sort_unstable_by(|a, b| a.sort_key(payload).cmp(&b.sort_key(payload)));
        ranges.dedup_by(|next, last| last.extend(next, payload));
        WriteSet { keys, ranges }
    }

    /// Returns whether an operation writes or deletes the key of the guard.
    pub(super) fn writes_guarded_key(&self, payload: &[u8], guard: &KeyGuard) -> bool {
        if self.keys.newest_seq(guard.key_hash).is_some() {
            return true;
        }
        let key = (guard.tree.id, &guard.key[..]);
        let after = self.ranges.partition_point(|range| range.sort_key(payload) <= key);
        after.checked_sub(1).is_some_and(|last| {
            let DeletedRange { keyspace, end, .. } = &self.ranges[last];
            let is_before = |end: &Range<usize>| guard.key < payload[end.clone()];
            *keyspace == guard.tree.id && end.as_ref().is_none_or(is_before)
        })
    }
}

impl DeletedRange {
    fn sort_key<'a>(&self, payload: &'a [u8]) -> (u32, &'a [u8]) {
        (self.keyspace, &payload[self.start.clone()])
    }

    /// Extends this range by one that does not start before it, unless there is a gap between them. Returns whether the
    /// range was extended.
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
