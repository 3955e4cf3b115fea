//! Range delete markers of a view.

use std::ops::{Deref, Range};

use lsmx_base::key::SeqNo;
use lsmx_base::range_tombstone::{RangeTombstone, fragment_for_snapshots};
use lsmx_base::sync::{Arc, OnceLock};
use lsmx_base::tombstone_index::TombstoneIndex;

use crate::format::log::RangeMarker;

/// Range delete markers in the order of their deliveries. The first lookup builds a search index.
#[derive(Clone, Debug, Default)]
pub struct RangeMarkers {
    markers: Arc<[RangeMarker]>,
    index: Arc<OnceLock<TombstoneIndex>>,
}

impl From<Vec<RangeMarker>> for RangeMarkers {
    fn from(markers: Vec<RangeMarker>) -> RangeMarkers {
        RangeMarkers { markers: markers.into(), index: Arc::default() }
    }
}

impl Deref for RangeMarkers {
    type Target = [RangeMarker];

    fn deref(&self) -> &[RangeMarker] {
        &self.markers
    }
}

impl RangeMarkers {
    /// Returns the sequence number of the newest marker at or below `at` that covers the key.
    pub fn newest_covering(&self, key: &[u8], at: SeqNo) -> Option<SeqNo> {
        if self.markers.is_empty() {
            return None;
        }
        let index = self.index.get_or_init(|| {
            let spans = self.markers.iter();
            TombstoneIndex::new(spans.map(|it| (&it.start, it.end.as_ref(), it.seq)))
        });
        index.newest_covering(key, at)
    }
}

/// Range delete markers as disjoint fragments, in key order.
///
/// Each fragment has the sequence numbers of the markers that cover it. If no snapshot lies between several of these
/// numbers, the fragment has only the largest of them.
#[derive(Debug)]
pub struct MarkerFragments(Vec<RangeTombstone>);

impl MarkerFragments {
    /// Builds the fragments. `snapshots` lists the sequence numbers of all snapshots in ascending order. Its last
    /// element is the newest sequence number that was visible when the list was made.
    ///
    /// Markers above that number are all kept, because a later snapshot may lie between any two of them.
    pub fn new(markers: &[RangeMarker], snapshots: &[SeqNo]) -> MarkerFragments {
        let visible = snapshots.last().copied().unwrap_or_default();
        let mut distinct: Vec<SeqNo> =
            markers.iter().map(|marker| marker.seq).filter(|seq| *seq > visible).collect();
        distinct.sort_unstable();
        let distinct = [snapshots, &distinct].concat();
        let span = |RangeMarker { start, end, seq }: &RangeMarker| RangeTombstone {
            start: start.clone(),
            end: end.clone(),
            seqs: vec![*seq],
        };
        let spans: Vec<RangeTombstone> = markers.iter().map(span).collect();
        MarkerFragments(fragment_for_snapshots(&spans, &distinct))
    }

    /// Returns the sequence numbers of the markers that cover a key, newest first.
    pub fn seqs_covering(&self, key: &[u8]) -> &[SeqNo] {
        let index = self.0.partition_point(|span| *span.start <= *key).checked_sub(1);
        let covering = index.map(|index| &self.0[index]).filter(|span| span.covers(key));
        covering.map_or(&[], |span| &span.seqs)
    }
}

/// Segment tree over sequence numbers. Finds the minimum of a range of indexes in O(log n).
#[derive(Debug)]
pub struct MinSeqTree(Vec<SeqNo>);

impl MinSeqTree {
    pub fn new(numbers: impl ExactSizeIterator<Item = SeqNo>) -> MinSeqTree {
        let count = numbers.len();
        let mut tree = vec![SeqNo::MAX; count];
        tree.extend(numbers);
        for node in (1..count).rev() {
            tree[node] = tree[2 * node].min(tree[2 * node + 1]);
        }
        MinSeqTree(tree)
    }

    /// Returns the minimum of the sequence numbers at the given indexes, or [`SeqNo::MAX`] for an empty range.
    pub fn min_in(&self, indexes: Range<usize>) -> SeqNo {
        let count = self.0.len() / 2;
        let (mut low, mut high) = (indexes.start + count, indexes.end + count);
        let mut min = SeqNo::MAX;
        while low < high {
            if low % 2 == 1 {
                min = min.min(self.0[low]);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                min = min.min(self.0[high]);
            }
            (low, high) = (low / 2, high / 2);
        }
        min
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn min_tree_equals_linear_search(
            numbers in prop::collection::vec(0u64..9, 0..20),
            start in 0usize..20,
            count in 0usize..20,
        ) {
            let start = start.min(numbers.len());
            let end = (start + count).min(numbers.len());
            let tree = MinSeqTree::new(numbers.iter().map(|number| SeqNo(*number)));
            let expected = numbers[start..end].iter().min().map_or(SeqNo::MAX, |number| SeqNo(*number));
            prop_assert_eq!(tree.min_in(start..end), expected);
        }
    }
}
