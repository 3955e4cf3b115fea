//! Assigns range tombstones to output tables and cuts those that span two tables.
//!
//! Table bounds are inclusive and ends of range tombstones are exclusive. A tombstone is cut at a key `k` that
//! ends with a zero byte. The first table takes `k` without that byte as its largest key; the next possible key is
//! `k`, where the second table begins. If the second table begins with another key `n`, then `k` is the successor
//! of the last key before `n`.
//!
//! If an end does not have this form, it becomes the largest key of the table, although the range excludes it. An
//! overlap check may then find one table too many. It never misses a table that begins with this key.

use std::collections::VecDeque;

use bytes::Bytes;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::range_tombstone::{RangeTombstone, successor};

/// Fragments that wait for their output table, in key order.
#[derive(Debug, Default)]
pub(crate) struct RangeTombstoneQueue {
    pending: VecDeque<RangeTombstone>,
    /// Fragments of the current table.
    current: Vec<RangeTombstone>,
    current_bytes: usize,
}

impl RangeTombstoneQueue {
    /// Creates a queue of fragments, none of which extends to the end of the keyspace.
    pub(crate) fn new(tombstones: Vec<RangeTombstone>) -> RangeTombstoneQueue {
        RangeTombstoneQueue { pending: tombstones.into(), ..RangeTombstoneQueue::default() }
    }

    /// Returns the start of the next fragment. Returns `None` if the start is not less than `before`.
    pub(crate) fn next_start(&self, before: Option<&[u8]>) -> Option<Bytes> {
        let start = &self.pending.front()?.start;
        before.is_none_or(|key| **start < *key).then(|| start.clone())
    }

    /// Moves the next fragment to the current table.
    pub(crate) fn take_next(&mut self) {
        if let Some(tombstone) = self.pending.pop_front() {
            self.current_bytes += tombstone.bytes();
            self.current.push(tombstone);
        }
    }

    /// Bytes of the fragments of the current table.
    pub(crate) fn current_table_bytes(&self) -> usize {
        self.current_bytes
    }

    /// Returns the fragments of the current table, which ends before the key `next` or is the last one.
    ///
    /// `last` is the key of the table's last entry. A fragment that crosses `next` is split there, and its second part
    /// moves to the next table.
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

/// Returns the key at which a fragment from `start` on that spans `next` is cut.
///
/// The key is greater than the last entry `last` of the first table, at most the first key `next` of the second
/// one, and ends with a zero byte. It is at most one byte longer than the longest key allowed.
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
        // Many keys end with a zero byte or are adjacent.
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
