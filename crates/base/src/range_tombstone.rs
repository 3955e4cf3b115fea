//! Range tombstones and their fragmentation.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;

use bytes::Bytes;

use crate::failpoint::{self, Failpoint};
use crate::key::SeqNo;
use crate::tombstone_index::TombstoneIndex;
use crate::work_counter::{self, WorkKind};

/// A range tombstone: deletes the keys from `start` (inclusive) to `end` (exclusive), at one or more sequence numbers.
///
/// For each sequence number, the range tombstone deletes all older entries of these keys, for readers at that number or
/// later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeTombstone {
    /// First deleted key.
    pub start: Bytes,
    /// First key after the range, or `None` for the end of the keyspace.
    pub end: Option<Bytes>,
    /// Sequence numbers of the range deletes, newest first.
    pub seqs: Vec<SeqNo>,
}

impl RangeTombstone {
    /// Returns whether the range tombstone deletes no key.
    pub fn is_empty(&self) -> bool {
        self.seqs.is_empty() || self.end.as_ref().is_some_and(|end| *end <= self.start)
    }

    /// Returns whether the range contains `user_key`.
    #[must_use]
    pub fn covers(&self, user_key: &[u8]) -> bool {
        *self.start <= *user_key && self.end.as_ref().is_none_or(|end| *user_key < **end)
    }

    /// Returns an upper bound of the deleted keys, or `None` if the range has no end.
    ///
    /// If the end is the [`successor`] of a key, that key is the largest deleted key, and is returned. Otherwise the
    /// end is returned, although it is not deleted.
    pub fn largest_key(&self) -> Option<&[u8]> {
        let end = self.end.as_deref()?;
        Some(end.strip_suffix(&[0]).unwrap_or(end))
    }

    /// Returns the size in memory, in bytes. The size on disk is similar.
    pub fn bytes(&self) -> usize {
        let end = self.end.as_ref().map_or(0, Bytes::len);
        size_of::<RangeTombstone>() + self.start.len() + end + self.seqs.len() * size_of::<SeqNo>()
    }
}

/// Returns the smallest key that is greater than `key`.
pub fn successor(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    Bytes::from(next)
}

/// Converts the bounds of a range to its first key and the first key after it. `None` is the end of the keyspace.
///
/// If no key is between the bounds, the second key may be less than the first.
#[must_use]
pub fn half_open_range(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> (Bytes, Option<Bytes>) {
    let start = match lower {
        Bound::Unbounded => Bytes::new(),
        Bound::Included(key) => Bytes::copy_from_slice(key),
        Bound::Excluded(key) => successor(key),
    };
    let end = match upper {
        Bound::Unbounded => None,
        Bound::Excluded(key) => Some(Bytes::copy_from_slice(key)),
        Bound::Included(key) => Some(successor(key)),
    };
    (start, end)
}

/// Returns the largest sequence number that is visible at `snapshot`. `seqs` is sorted from newest to oldest.
pub fn newest_visible_seq(seqs: &[SeqNo], snapshot: SeqNo) -> Option<SeqNo> {
    seqs.get(seqs.partition_point(|&seq| seq > snapshot)).copied()
}

/// For each sequence number, the number of range tombstones that contain the current key and have this sequence number.
type ActiveSeqCounts = BTreeMap<SeqNo, usize>;

/// Splits overlapping range tombstones into disjoint fragments, sorted by key.
///
/// Each fragment has the sequence numbers of all range tombstones that contain it. Adjacent fragments with the same
/// sequence numbers are joined. Empty range tombstones are dropped.
///
/// The result for n nested range tombstones has n² sequence numbers. [`fragment_for_snapshots`] returns fewer.
#[must_use]
pub fn fragment(spans: &[RangeTombstone]) -> Vec<RangeTombstone> {
    fragment_and_select(spans, |open| open.keys().rev().copied().collect())
}

/// Splits range tombstones like [`fragment`], but keeps only the sequence numbers that some reader can see.
///
/// A reader uses one of `snapshots`, which are in ascending order, or a newer sequence number. Of all sequence numbers
/// between two adjacent snapshots, only the largest is kept. For n range tombstones and a fixed number of snapshots,
/// the function takes O(n log n) time and O(n) memory.
///
/// The result may contain adjacent fragments with equal sequence numbers, where the result of [`fragment`] has
/// different sequence numbers. [`join_adjacent`] joins such fragments.
#[must_use]
pub fn fragment_for_snapshots(
    spans: &[RangeTombstone],
    snapshots: &[SeqNo],
) -> Vec<RangeTombstone> {
    if failpoint::is_on(Failpoint::HiddenSpanNumbersKept) {
        return fragment(spans);
    }
    fragment_and_select(spans, |open| {
        let mut seqs = Vec::new();
        let mut limit = Some(SeqNo::MAX);
        while let Some((&seq, _)) = limit.and_then(|limit| open.range(..=limit).next_back()) {
            seqs.push(seq);
            let snapshot = snapshots.partition_point(|snapshot| *snapshot < seq).checked_sub(1);
            limit = snapshot.map(|at| snapshots[at]);
        }
        seqs
    })
}

/// Joins fragments that are adjacent in key order and have the same sequence numbers.
pub fn join_adjacent(fragments: Vec<RangeTombstone>) -> Vec<RangeTombstone> {
    let mut joined: Vec<RangeTombstone> = Vec::new();
    for fragment in fragments {
        match joined.last_mut() {
            Some(last)
                if last.end.as_ref() == Some(&fragment.start) && last.seqs == fragment.seqs =>
            {
                last.end = fragment.end;
            }
            _ => joined.push(fragment),
        }
    }
    joined
}

/// Splits range tombstones into disjoint fragments in key order, in one pass over the sorted bounds.
///
/// `select_seqs` selects the sequence numbers of a fragment. Its argument contains the sequence numbers of all range
/// tombstones that contain the fragment.
fn fragment_and_select(
    spans: &[RangeTombstone],
    select_seqs: impl Fn(&ActiveSeqCounts) -> Vec<SeqNo>,
) -> Vec<RangeTombstone> {
    let mut starts: Vec<&RangeTombstone> = spans.iter().filter(|span| !span.is_empty()).collect();
    let mut ends: Vec<(&Bytes, &RangeTombstone)> =
        starts.iter().filter_map(|span| Some((span.end.as_ref()?, *span))).collect();
    starts.sort_unstable_by(|a, b| a.start.cmp(&b.start));
    ends.sort_unstable_by(|a, b| a.0.cmp(b.0));
    let (mut starts, mut ends) = (starts.into_iter().peekable(), ends.into_iter().peekable());
    let mut fragments = Vec::new();
    let mut current: Option<RangeTombstone> = None;
    let mut open = ActiveSeqCounts::new();
    loop {
        let bound = match (starts.peek(), ends.peek()) {
            (Some(span), Some((end, _))) => (&span.start).min(*end),
            (Some(span), None) => &span.start,
            (None, Some((end, _))) => *end,
            (None, None) => break,
        };
        // Sequence numbers of the range tombstones that start or end at this bound. The value is true if a range
        // tombstone with this number contains the keys directly before the bound.
        let mut touched: BTreeMap<SeqNo, bool> = BTreeMap::new();
        while let Some((_, span)) = ends.next_if(|(end, _)| *end == bound) {
            for &seq in &span.seqs {
                touched.entry(seq).or_insert(true);
                if let Entry::Occupied(mut count) = open.entry(seq) {
                    *count.get_mut() -= 1;
                    if *count.get() == 0 {
                        count.remove();
                    }
                }
            }
        }
        while let Some(span) = starts.next_if(|span| span.start == *bound) {
            for &seq in &span.seqs {
                let count = open.entry(seq).or_insert(0);
                touched.entry(seq).or_insert(*count > 0);
                *count += 1;
            }
        }
        if touched.iter().all(|(seq, was_open)| open.contains_key(seq) == *was_open) {
            continue;
        }
        if let Some(ended) = current.take() {
            fragments.push(RangeTombstone { end: Some(bound.clone()), ..ended });
        }
        if !open.is_empty() {
            let seqs = select_seqs(&open);
            work_counter::add(WorkKind::SpanNumbers, seqs.len());
            current = Some(RangeTombstone { start: bound.clone(), end: None, seqs });
        }
    }
    fragments.extend(current);
    fragments
}

/// Builds a search index of range tombstones, for lookups at any sequence number.
pub fn build_index<'a>(spans: impl IntoIterator<Item = &'a RangeTombstone>) -> TombstoneIndex {
    TombstoneIndex::new(spans.into_iter().flat_map(|RangeTombstone { start, end, seqs }| {
        seqs.iter().map(move |seq| (start, end.as_ref(), *seq))
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(start: &'static str, end: Option<&'static str>, seqs: &[u64]) -> RangeTombstone {
        let seqs = seqs.iter().copied().map(SeqNo).collect();
        RangeTombstone { start: start.into(), end: end.map(Bytes::from), seqs }
    }

    #[test]
    fn fragment_splits_overlaps_and_joins_equal_neighbors() {
        let fragments = fragment(&[
            span("b", Some("f"), &[5]),
            span("a", Some("c"), &[9]),
            span("d", None, &[7]),
            span("x", Some("x"), &[8]),
            span("c", Some("d"), &[5]),
        ]);
        let expected = [
            span("a", Some("b"), &[9]),
            span("b", Some("c"), &[9, 5]),
            span("c", Some("d"), &[5]),
            span("d", Some("f"), &[7, 5]),
            span("f", None, &[7]),
        ];
        assert_eq!(fragments, expected);
    }

    fn any_span() -> impl Strategy<Value = RangeTombstone> {
        let key = || proptest::collection::vec(0u8..4, 0..3).prop_map(Bytes::from);
        (key(), proptest::option::weighted(0.9, key()), proptest::collection::vec(0u64..20, 1..3))
            .prop_map(|(start, end, mut seqs)| {
                seqs.sort_unstable_by(|a, b| b.cmp(a));
                seqs.dedup();
                RangeTombstone { start, end, seqs: seqs.into_iter().map(SeqNo).collect() }
            })
    }

    proptest! {
        #[test]
        fn fragment_visible_keeps_newest_number_between_snapshots(
            spans in proptest::collection::vec(any_span(), 0..8),
            snapshots in proptest::collection::btree_set(0u64..22, 0..4),
        ) {
            let snapshots: Vec<SeqNo> = snapshots.into_iter().map(SeqNo).collect();
            let mut expected = fragment(&spans);
            for span in &mut expected {
                span.seqs.dedup_by_key(|seq| snapshots.partition_point(|snapshot| *snapshot < *seq));
            }
            let visible = fragment_for_snapshots(&spans, &snapshots);
            prop_assert_eq!(&visible, &expected);
            prop_assert_eq!(fragment(&visible), join_adjacent(visible));
        }
    }
}
