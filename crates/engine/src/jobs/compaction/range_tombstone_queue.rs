//! Range tombstone queue: assigns fragments of range tombstones to output tables. If a fragment extends over two
//! tables, it is split.
//!
//! The bounds of tables are inclusive, but the end of a range tombstone is exclusive. A fragment is therefore split at
//! a key `k` that ends with a zero byte. The largest key of the first table is then `k` without the zero byte. `k` is
//! the next possible key after it, and the start of the fragment in the second table. If the first entry `n` of the
//! second table does not end with a zero byte, `k` is the successor of the last key before `n`.
//!
//! A fragment may end with a key that does not end with a zero byte. This key becomes the largest key of the table,
//! although the fragment does not contain it. An overlap check may therefore report one table too many, but it never
//! misses a table that starts with this key.

use std::collections::VecDeque;

use bytes::Bytes;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::range_tombstone::{RangeTombstone, successor};

/// Fragments that are not written yet, in key order.
#[derive(Debug, Default)]
pub(crate) struct RangeTombstoneQueue {
    pending: VecDeque<RangeTombstone>,
    /// Fragments of the current output table.
    current: Vec<RangeTombstone>,
    current_bytes: usize,
}

impl RangeTombstoneQueue {
    /// Creates a queue. No fragment may extend to the end of the keyspace.
    pub(crate) fn new(tombstones: Vec<RangeTombstone>) -> RangeTombstoneQueue {
        RangeTombstoneQueue { pending: tombstones.into(), ..RangeTombstoneQueue::default() }
    }

    /// Returns the start of the next fragment, if it is less than `before`.
    pub(crate) fn next_start(&self, before: Option<&[u8]>) -> Option<Bytes> {
        let start = &self.pending.front()?.start;
        before.is_none_or(|key| **start < *key).then(|| start.clone())
    }

    /// Moves the next fragment to the current output table.
    pub(crate) fn take_next(&mut self) {
        if let Some(tombstone) = self.pending.pop_front() {
            self.current_bytes += tombstone.bytes();
            self.current.push(tombstone);
        }
    }

    /// Returns the total size of the fragments of the current output table in bytes.
    pub(crate) fn current_table_bytes(&self) -> usize {
        self.current_bytes
    }

    /// Finishes the current output table and returns its fragments.
    ///
    /// `last` is the last key of this table. `next` is the first key of the next table, or `None` if there is none. If
    /// a fragment extends beyond `next`, it is split, and the second part moves to the next table.
    pub(crate) fn finish_table(
        &mut self,
        last: Option<&[u8]>,
        next: Option<&[u8]>,
    ) -> Vec<RangeTombstone> {
        let mut cut = std::mem::take(&mut self.current);
        self.current_bytes = 0;
        if let Some(next) = next
            && let Some(spanning) =
                cut.pop_if(|tombstone| tombstone.end.as_deref().is_none_or(|end| end >= next))
        {
            let at = choose_cut_key(&spanning.start, last, next);
            let mut rest = spanning.clone();
            let before = RangeTombstone { end: Some(at.clone()), ..spanning };
            rest.start = at;
            if !before.is_empty() {
                cut.push(before);
            }
            if !rest.is_empty() && !failpoint::is_on(Failpoint::SpanLostAtCut) {
                self.current_bytes = rest.bytes();
                self.current.push(rest);
            }
        }
        cut
    }
}

/// Returns the key at which to split a fragment that starts at `start` and extends beyond `next`.
///
/// The key is greater than `last`, the last key of the first table, and at most `next`, the first key of the second
/// table. It ends with a zero byte. It may be one byte longer than the longest allowed key.
fn choose_cut_key(start: &Bytes, last: Option<&[u8]>, next: &[u8]) -> Bytes {
    match last {
        _ if next.ends_with(&[0]) => Bytes::copy_from_slice(next),
        Some(last) if *last >= **start => successor(last),
        _ if start.ends_with(&[0]) => start.clone(),
        _ => successor(start),
    }
}

#[cfg(test)]
mod tests {
    use lsmx_base::key::SeqNo;
    use lsmx_base::range_tombstone::fragment;
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        // Many of these keys end with a zero byte or are adjacent.
        prop::collection::vec(0u8..2, 0..4)
    }

    proptest! {
        #[test]
        fn queue_cut_tombstones_delete_the_same_keys_in_disjoint_tables(
            tombstones in prop::collection::vec((key(), key(), 1u64..30), 0..8),
            entries in prop::collection::btree_set(key(), 0..12),
            cuts in prop::collection::vec(prop::bool::weighted(0.4), 40),
        ) {
            let tombstones: Vec<_> = tombstones.into_iter().map(|(start, end, seq)| RangeTombstone {
                start: start.into(), end: Some(end.into()), seqs: vec![SeqNo(seq)],
            }).collect();
            let fragments = fragment(&tombstones);
            let mut queue = RangeTombstoneQueue::new(fragments.clone());
            let mut cuts = cuts.into_iter();
            let mut tables: Vec<(Vec<Vec<u8>>, Vec<RangeTombstone>)> = Vec::new();
            let mut written: Vec<Vec<u8>> = Vec::new();
            let mut cut = |queue: &mut RangeTombstoneQueue, written: &mut Vec<Vec<u8>>, next: Option<&[u8]>| {
                if next.is_none() || cuts.next() == Some(true) {
                    let tombstones = queue.finish_table(written.last().map(Vec::as_slice), next);
                    tables.push((std::mem::take(written), tombstones));
                }
            };
            for entry in &entries {
                while let Some(start) = queue.next_start(Some(entry)) {
                    cut(&mut queue, &mut written, Some(&start));
                    queue.take_next();
                }
                cut(&mut queue, &mut written, Some(entry));
                if queue.next_start(None).is_some_and(|start| *start == **entry) {
                    queue.take_next();
                }
                written.push(entry.clone());
            }
            while let Some(start) = queue.next_start(None) {
                cut(&mut queue, &mut written, Some(&start));
                queue.take_next();
            }
            cut(&mut queue, &mut written, None);
            let mut before: Option<Vec<u8>> = None;
            let mut all = Vec::new();
            for (entries, tombstones) in tables {
                let starts = entries.iter().map(Vec::as_slice).chain(tombstones.iter().map(|tombstone| &tombstone.start[..]));
                let ends = entries.iter().map(Vec::as_slice).chain(tombstones.iter().filter_map(RangeTombstone::largest_key));
                let (Some(smallest), Some(largest)) = (starts.min(), ends.max()) else { continue };
                prop_assert!(before.is_none_or(|before| *before < *smallest) && smallest <= largest);
                prop_assert!(tombstones.iter().all(|tombstone| tombstone.start.len() <= 4 && tombstone.end.as_ref().is_some_and(|end| end.len() <= 4)));
                before = Some(largest.to_vec());
                all.extend(tombstones);
            }
            prop_assert_eq!(fragment(&all), fragments);
        }
    }
}
