//! Range anchors of a view.

use std::ops::{Deref, Range};

use lsmx::SeqNo;
use lsmx_base::range_tombstone::{RangeTombstone, fragment_visible};
use lsmx_base::sync::{Arc, OnceLock};
use lsmx_base::tombstone_index::TombstoneIndex;

use crate::format::log::RangeAnchor;

/// Range anchors in the order in which they were delivered, with an index that the first lookup makes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    all: Arc<[RangeAnchor]>,
    index: Arc<OnceLock<TombstoneIndex>>,
}

impl From<Vec<RangeAnchor>> for Ranges {
    fn from(all: Vec<RangeAnchor>) -> Ranges {
        Ranges { all: all.into(), index: Arc::default() }
    }
}

impl Deref for Ranges {
    type Target = [RangeAnchor];

    fn deref(&self) -> &[RangeAnchor] {
        &self.all
    }
}

impl Ranges {
    /// Number of the newest one up to `at` that covers the key.
    pub(crate) fn newest(&self, key: &[u8], at: SeqNo) -> Option<SeqNo> {
        if self.all.is_empty() {
            return None;
        }
        let index = self.index.get_or_init(|| {
            let spans = self.all.iter().map(|range| (&range.start, range.end.as_ref(), range.seq));
            TombstoneIndex::new(spans)
        });
        index.newest_covering(key, at)
    }
}

/// Range anchors as fragments in key order, each with the numbers that a collection has to tell apart.
#[derive(Debug)]
pub(crate) struct Fragments(Vec<RangeTombstone>);

impl Fragments {
    /// `snapshots` are in ascending order; the last is the last number that was visible when they were
    /// listed. Each number past it may be told from the others by a snapshot that came later.
    pub(crate) fn new(ranges: &[RangeAnchor], snapshots: &[SeqNo]) -> Fragments {
        let visible = snapshots.last().copied().unwrap_or_default();
        let mut apart: Vec<SeqNo> =
            ranges.iter().map(|range| range.seq).filter(|seq| *seq > visible).collect();
        apart.sort_unstable();
        let apart = [snapshots, &apart].concat();
        let span = |RangeAnchor { start, end, seq }: &RangeAnchor| RangeTombstone {
            start: start.clone(),
            end: end.clone(),
            seqs: vec![*seq],
        };
        let spans: Vec<RangeTombstone> = ranges.iter().map(span).collect();
        Fragments(fragment_visible(&spans, &apart))
    }

    /// Numbers of those that cover a key, newest first.
    pub(crate) fn covering(&self, key: &[u8]) -> &[SeqNo] {
        let after = self.0.partition_point(|span| *span.start <= *key);
        let span = after.checked_sub(1).map(|at| &self.0[at]);
        let covering = span.filter(|span| span.end.as_ref().is_none_or(|end| *key < **end));
        covering.map_or(&[], |span| &span.seqs)
    }
}

/// Answers for the smallest of neighbouring numbers in O(log n), in a tree of minima.
#[derive(Debug)]
pub(crate) struct Minima(Vec<SeqNo>);

impl Minima {
    pub(crate) fn new(numbers: impl ExactSizeIterator<Item = SeqNo>) -> Minima {
        let count = numbers.len();
        let mut tree = vec![SeqNo::MAX; count];
        tree.extend(numbers);
        for node in (1..count).rev() {
            tree[node] = tree[2 * node].min(tree[2 * node + 1]);
        }
        Minima(tree)
    }

    /// The smallest of the numbers at these places; [`SeqNo::MAX`] of none.
    pub(crate) fn smallest(&self, places: Range<usize>) -> SeqNo {
        let count = self.0.len() / 2;
        let (mut low, mut high) = (places.start + count, places.end + count);
        let mut smallest = SeqNo::MAX;
        while low < high {
            if low % 2 == 1 {
                smallest = smallest.min(self.0[low]);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                smallest = smallest.min(self.0[high]);
            }
            (low, high) = (low / 2, high / 2);
        }
        smallest
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn smallest_equals_a_search_of_the_places(
            numbers in prop::collection::vec(0u64..9, 0..20),
            from in 0usize..20,
            count in 0usize..20,
        ) {
            let from = from.min(numbers.len());
            let to = (from + count).min(numbers.len());
            let minima = Minima::new(numbers.iter().map(|number| SeqNo(*number)));
            let expected = numbers[from..to].iter().min().map_or(SeqNo::MAX, |number| SeqNo(*number));
            prop_assert_eq!(minima.smallest(from..to), expected);
        }
    }
}
