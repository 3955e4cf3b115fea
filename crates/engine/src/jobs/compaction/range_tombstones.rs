//! Range deletes on their way through a flush or a compaction: which of them are kept, and how they
//! are cut where an output table ends.
//!
//! Of the numbers of one fragment that lie in one stripe of snapshots only the newest counts. In the
//! oldest stripe every reader sees it, so what it hides in the job is gone; it is kept only for older
//! runs outside the job. A fragment is narrowed to what it can still delete, so tables never hold one
//! that reaches to the end of the keyspace.
//!
//! Bounds of tables are inclusive, ends of range deletes are not. A cut lies at a key k that ends
//! with a zero byte: what comes before has the key without that byte, after which k is the next, as
//! its largest, and what comes after begins with k. Where the next table begins with some other key
//! `n`, that is the successor of the last key before. An end z that is no such key stands for the
//! table's largest key as it is, one key too far: whoever looks for tables that overlap finds one
//! more, never one less, and a neighbour that begins with z is never left out of a job.

use std::collections::VecDeque;

use bytes::Bytes;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::range_tombstone::{RangeTombstone, fragment_visible, join_adjacent, successor};
use lsmx_base::sync::Arc;
use lsmx_compaction::{SortedRun, TableMeta};

use crate::format::range_tombstones::FragmentedTombstones;
use crate::iter::range_tombstone_filter::Deleted;
use crate::jobs::compaction::retention::Retention;

impl Retention {
    /// Adds the range deletes of the memtable or of the inputs: entries that they hide are not kept.
    /// Returns the range deletes that are kept; `keys` are the smallest and the largest key that the
    /// job may keep an entry of.
    pub(crate) fn heed(
        &mut self,
        spans: &[RangeTombstone],
        keys: Option<(&[u8], &[u8])>,
    ) -> Vec<RangeTombstone> {
        let fragments = fragment_visible(spans, &self.snapshots);
        // Each fragment by itself: its neighbour may hide nothing that is left.
        let kept = fragments.iter().filter_map(|span| self.kept_of(span, keys)).collect();
        let spans = Arc::new(FragmentedTombstones::new(join_adjacent(fragments)));
        self.deleted = Deleted::for_job(spans, Arc::clone(&self.snapshots));
        kept
    }

    fn stripe(&self, seq: SeqNo) -> usize {
        self.snapshots.partition_point(|snapshot| *snapshot < seq)
    }

    /// Returns the part of one fragment that is kept. The fragment has at most one number per stripe.
    fn kept_of(
        &self,
        span: &RangeTombstone,
        keys: Option<(&[u8], &[u8])>,
    ) -> Option<RangeTombstone> {
        let older = self.older_hull(span);
        let mut seqs = span.seqs.clone();
        if older.is_none() && seqs.last().is_some_and(|&oldest| self.stripe(oldest) == 0) {
            seqs.pop();
        }
        let newest = *seqs.first()?;
        // Entries of the job that a snapshot still sees are hidden from others by it.
        let own = keys.filter(|_| self.stripe(newest) > 0);
        let hull = match (older, own) {
            (Some(one), Some(other)) => (one.0.min(other.0), one.1.max(other.1)),
            (one, other) => one.or(other)?,
        };
        let start =
            if *hull.0 > *span.start { Bytes::copy_from_slice(hull.0) } else { span.start.clone() };
        let past = successor(hull.1);
        let end = span.end.clone().map_or(past.clone(), |end| end.min(past));
        let kept = RangeTombstone { start, end: Some(end), seqs };
        (!kept.is_empty()).then_some(kept)
    }

    /// Smallest and largest key of the files of older runs that the job leaves alone and that may
    /// hold what a range delete deletes.
    fn older_hull(&self, span: &RangeTombstone) -> Option<(&[u8], &[u8])> {
        if failpoint::is_on(Failpoint::SpanDroppedEarly) {
            return None;
        }
        let mut hull: Option<(&[u8], &[u8])> = None;
        for run in &self.older {
            let outside = |file: &&Arc<TableMeta>| !self.inputs.contains(&file.id);
            let mut files = overlapped(run, span).iter().filter(outside);
            if let Some(first) = files.next() {
                let last = files.next_back().unwrap_or(first);
                let (smallest, largest) = (&*first.range.smallest, &*last.range.largest);
                hull = Some(hull.map_or((smallest, largest), |(from, to)| {
                    (from.min(smallest), to.max(largest))
                }));
            }
        }
        hull
    }
}

/// Files of a run that may hold keys that a range delete covers.
fn overlapped<'a>(run: &'a SortedRun, span: &RangeTombstone) -> &'a [Arc<TableMeta>] {
    let from = run.files.partition_point(|file| file.range.largest < span.start);
    let before_end =
        |file: &Arc<TableMeta>| span.end.as_ref().is_none_or(|end| file.range.smallest < *end);
    let count = run.files[from..].partition_point(before_end);
    &run.files[from..from + count]
}

/// Fragments that wait for the table they go to, in key order.
#[derive(Debug, Default)]
pub(crate) struct SpanQueue {
    coming: VecDeque<RangeTombstone>,
    /// Those of the table at hand.
    current: Vec<RangeTombstone>,
    current_bytes: usize,
}

impl SpanQueue {
    /// Fragments, none of them with the end of the keyspace.
    pub(crate) fn new(spans: Vec<RangeTombstone>) -> SpanQueue {
        SpanQueue { coming: spans.into(), ..SpanQueue::default() }
    }

    /// Where the next fragment begins, if that is before this key, or anywhere without one.
    pub(crate) fn next_start(&self, before: Option<&[u8]>) -> Option<Bytes> {
        let start = &self.coming.front()?.start;
        before.is_none_or(|key| **start < *key).then(|| start.clone())
    }

    /// Gives the next fragment to the table at hand.
    pub(crate) fn advance(&mut self) {
        if let Some(span) = self.coming.pop_front() {
            self.current_bytes += span.bytes();
            self.current.push(span);
        }
    }

    /// Bytes of the fragments of the table at hand.
    pub(crate) fn current_bytes(&self) -> usize {
        self.current_bytes
    }

    /// Hands out the fragments of the table at hand, which ends before the key `next`; or before the
    /// end of the keyspace. `last` is its last entry's key. What of the last fragment lies beyond goes
    /// to the next table.
    pub(crate) fn cut(&mut self, last: Option<&[u8]>, next: Option<&[u8]>) -> Vec<RangeTombstone> {
        let mut cut = std::mem::take(&mut self.current);
        self.current_bytes = 0;
        if let Some(next) = next
            && let Some(reaching) =
                cut.pop_if(|span| span.end.as_deref().is_none_or(|end| end >= next))
        {
            let at = cut_key(&reaching.start, last, next);
            let mut rest = reaching.clone();
            let before = RangeTombstone { end: Some(at.clone()), ..reaching };
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

/// Where a fragment that begins at `start`, before `next`, and reaches `next` is cut: past the last
/// entry `last` of the one table, not past the first key `next` of the other, and at a key that ends
/// with a zero byte. No key gets longer than one byte past the limit of keys.
fn cut_key(start: &Bytes, last: Option<&[u8]>, next: &[u8]) -> Bytes {
    match last {
        _ if next.ends_with(&[0]) => Bytes::copy_from_slice(next),
        Some(last) if *last >= **start => successor(last),
        _ if start.ends_with(&[0]) => start.clone(),
        _ => successor(start),
    }
}

#[cfg(test)]
mod tests {
    use lsmx_compaction::{FileId, KeyRange, TreeShape};
    use proptest::prelude::*;

    use super::*;
    use lsmx_base::range_tombstone::fragment;

    fn span(start: &str, end: Option<&str>, seqs: &[u64]) -> RangeTombstone {
        let bytes = |key: &str| Bytes::copy_from_slice(key.as_bytes());
        let seqs = seqs.iter().copied().map(SeqNo).collect();
        RangeTombstone { start: bytes(start), end: end.map(bytes), seqs }
    }

    /// A tree with one run of files over these ranges.
    fn tree(ranges: &[(&'static str, &'static str)]) -> TreeShape {
        let file = |(id, &(smallest, largest)): (u64, &(&'static str, &'static str))| TableMeta {
            id: FileId(id),
            range: KeyRange::new(smallest, largest),
            bytes: 10,
            entries: 1,
            tombstones: 0,
            tombstone_seq_smallest: None,
            value_bytes: 0,
            oldest_tombstone_us: None,
            seq_smallest: 1,
            seq_largest: 1,
            last_read_us: 0,
            created_us: 0,
            creation: id,
        };
        let files = (0..).zip(ranges).map(file).collect();
        TreeShape::default().with_flush(files).unwrap().0
    }

    fn kept(
        spans: &[RangeTombstone],
        snapshots: &[u64],
        older: &[(&'static str, &'static str)],
        keys: Option<(&str, &str)>,
    ) -> Vec<RangeTombstone> {
        let snapshots = snapshots.iter().copied().map(SeqNo).collect();
        let mut retention = Retention::for_flush(snapshots, &tree(older));
        let keys = keys.map(|(smallest, largest)| (smallest.as_bytes(), largest.as_bytes()));
        retention.heed(spans, keys)
    }

    #[test]
    fn a_range_delete_is_narrowed_to_what_is_older_and_goes_with_it() {
        let all = [span("", None, &[9])];
        assert_eq!(
            kept(&all, &[], &[("c", "f"), ("k", "p")], Some(("a", "z"))),
            [span("c", Some("p\0"), &[9])]
        );
        assert_eq!(kept(&all, &[], &[], Some(("a", "z"))), []);
        let beside = [span("d", Some("k"), &[9]), span("q", Some("z"), &[9])];
        assert_eq!(kept(&beside, &[], &[("a", "c"), ("k", "p")], None), []);
        // An exclusive end that stands for a largest key is one key too far, and that is all.
        assert_eq!(kept(&beside, &[], &[("j", "p")], None), [span("j", Some("k"), &[9])]);
    }

    #[test]
    fn what_a_snapshot_looks_past_stays_for_the_keys_of_the_job() {
        let all = [span("", None, &[9, 7, 4, 2])];
        let keys = Some(("b", "y"));
        assert_eq!(kept(&all, &[], &[("c", "d")], keys), [span("c", Some("d\0"), &[9])]);
        // Stripes: up to 3, 4 to 8, from 9 on.
        let newest = [span("b", Some("y\0"), &[9, 7])];
        assert_eq!(kept(&all, &[3, 8], &[], keys), newest);
        let with_oldest = [span("b", Some("y\0"), &[9, 7, 2])];
        assert_eq!(kept(&all, &[3, 8], &[("c", "d")], keys), with_oldest);
        assert_eq!(kept(&all, &[3, 8], &[], None), []);
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        // Many end with a zero byte, and many are next to each other.
        prop::collection::vec(0u8..2, 0..4)
    }

    proptest! {
        /// Wherever tables end, no two share a key, and the same is deleted.
        #[test]
        fn cut_spans_delete_the_same_in_tables_that_share_no_key(
            spans in prop::collection::vec((key(), key(), 1u64..30), 0..8),
            entries in prop::collection::btree_set(key(), 0..12),
            cuts in prop::collection::vec(prop::bool::weighted(0.4), 40),
        ) {
            let spans: Vec<_> = spans.into_iter().map(|(start, end, seq)| RangeTombstone {
                start: start.into(), end: Some(end.into()), seqs: vec![SeqNo(seq)],
            }).collect();
            let fragments = fragment(&spans);
            let mut queue = SpanQueue::new(fragments.clone());
            let mut cuts = cuts.into_iter();
            let mut tables: Vec<(Vec<Vec<u8>>, Vec<RangeTombstone>)> = Vec::new();
            let mut written: Vec<Vec<u8>> = Vec::new();
            let mut cut = |queue: &mut SpanQueue, written: &mut Vec<Vec<u8>>, next: Option<&[u8]>| {
                if next.is_none() || cuts.next() == Some(true) {
                    let of_table = queue.cut(written.last().map(Vec::as_slice), next);
                    tables.push((std::mem::take(written), of_table));
                }
            };
            for entry in &entries {
                while let Some(start) = queue.next_start(Some(entry)) {
                    cut(&mut queue, &mut written, Some(&start));
                    queue.advance();
                }
                cut(&mut queue, &mut written, Some(entry));
                if queue.next_start(None).is_some_and(|start| *start == **entry) {
                    queue.advance();
                }
                written.push(entry.clone());
            }
            while let Some(start) = queue.next_start(None) {
                cut(&mut queue, &mut written, Some(&start));
                queue.advance();
            }
            cut(&mut queue, &mut written, None);
            let mut before: Option<Vec<u8>> = None;
            let mut all = Vec::new();
            for (entries, spans) in tables {
                let starts = entries.iter().map(Vec::as_slice).chain(spans.iter().map(|span| &span.start[..]));
                let ends = entries.iter().map(Vec::as_slice).chain(spans.iter().filter_map(RangeTombstone::largest_key));
                let (Some(smallest), Some(largest)) = (starts.min(), ends.max()) else { continue };
                prop_assert!(before.is_none_or(|before| *before < *smallest) && smallest <= largest);
                prop_assert!(spans.iter().all(|span| span.start.len() <= 4 && span.end.as_ref().is_some_and(|end| end.len() <= 4)));
                before = Some(largest.to_vec());
                all.extend(spans);
            }
            prop_assert_eq!(fragment(&all), fragments);
        }
    }
}
