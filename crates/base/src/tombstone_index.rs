//! Index that finds the newest range tombstone that covers a key, for a reader at any sequence number.
//!
//! Range tombstones divide the plane of keys and sequence numbers into rectangular cells. All readers in one cell see
//! the same newest range tombstone, or none:
//!
//! ```text
//!  seq
//!   ^   |  none  |       7       | none |
//!  7|   +----+---+------------+--+      |
//!   |   |none|       5        |  none   |
//!  5|   +----+----------------+---------+
//!   |   |              none             |
//!  0+   +-------------------------------+--> keys
//! ```
//!
//! 1. The distinct bounds of the range tombstones, in key order, divide the key space into slots, numbered from 0.
//! 2. The range tombstones are added in ascending order of their sequence numbers. Each of them closes the cells that
//!    it covers and splits at most two cells. Thus n range tombstones create at most 3 n + 1 cells.
//! 3. The slot numbers are the nodes of an implicit balanced binary search tree. Each cell is stored once, at the
//!    highest node whose slot the cell contains. All cells of a node contain the same slot, so their sequence ranges
//!    are disjoint and can be sorted.
//! 4. A lookup descends to the slot of its key and does one binary search per node.
//!
//! The index takes O(n) memory and O(n log n) time to build. A lookup takes O(log² n) time. Two simpler designs were
//! rejected. A list of sequence numbers per fragment takes O(n²) memory for nested range tombstones. The newest
//! sequence number alone is wrong for readers at older sequence numbers.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::key::SeqNo;
use crate::work_counter::{self, WorkKind};

/// A rectangle of slots and sequence numbers in which all readers see the same newest range tombstone.
#[derive(Clone, Copy, Debug)]
struct IndexCell {
    first_slot: u32,
    /// First slot after the cell.
    end_slot: u32,
    /// Smallest sequence number of a reader in the cell.
    first_seq: u64,
    /// First sequence number after the cell.
    end_seq: u64,
    newest: Option<SeqNo>,
}

/// A cell whose upper sequence number is not known yet. Maps of such cells use the first slot as the key.
#[derive(Clone, Copy, Debug)]
struct UnboundedIndexCell {
    end_slot: u32,
    first_seq: u64,
    newest: Option<SeqNo>,
}

/// Result of a lookup, and the range of keys around the looked-up key that have the same result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoverageRange<'a> {
    /// First key of the range, or `None` for the start of the keyspace.
    pub start: Option<&'a Bytes>,
    /// First key after the range, or `None` for the end of the keyspace.
    pub end: Option<&'a Bytes>,
    /// Sequence number of the newest range tombstone that covers these keys.
    pub newest: Option<SeqNo>,
}

/// An immutable index of range tombstones.
#[derive(Clone, Debug, Default)]
pub struct TombstoneIndex {
    /// Distinct bounds in key order. Slot `n` starts at bound `n - 1` and ends before bound `n`.
    bounds: Vec<Bytes>,
    /// Sorted by search tree node, then by `first_seq`.
    cells: Vec<IndexCell>,
    /// For each node of the search tree, the index of its first cell. The last element is the number of cells.
    node_starts: Vec<u32>,
}

impl TombstoneIndex {
    /// Upper bound of the memory per range tombstone, in bytes. The bytes of the keys are not included.
    pub const BYTES_PER_TOMBSTONE_MAX: usize =
        2 * (size_of::<Bytes>() + size_of::<u32>()) + 3 * size_of::<IndexCell>();

    /// Builds an index. Each range tombstone is given as inclusive start, exclusive end, and sequence number.
    ///
    /// The end is `None` for the end of the keyspace. Range tombstones may overlap and may have equal sequence numbers.
    /// Empty range tombstones are ignored.
    pub fn new<'a>(
        tombstones: impl IntoIterator<Item = (&'a Bytes, Option<&'a Bytes>, SeqNo)>,
    ) -> TombstoneIndex {
        let all: Vec<_> = tombstones.into_iter().collect();
        work_counter::add(WorkKind::SpanNumbers, all.len());
        let ends = all.iter().filter_map(|(_, end, _)| *end);
        let mut bounds: Vec<&Bytes> = all.iter().map(|(start, ..)| *start).chain(ends).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let slots = to_u32(bounds.len()) + 1;
        // Returns the slot that starts at a bound.
        let slot_of = |key: &Bytes| to_u32(bounds.partition_point(|bound| *bound <= key));
        let mut spans: Vec<(SeqNo, u32, u32)> = all
            .iter()
            .map(|&(start, end, seq)| (seq, slot_of(start), end.map_or(slots, slot_of)))
            .collect();
        spans.sort_unstable();
        let mut cells = Vec::with_capacity(all.len());
        let mut open = BTreeMap::from([(
            0,
            UnboundedIndexCell { end_slot: slots, first_seq: 0, newest: None },
        )]);
        for (seq, first_slot, end_slot) in spans {
            if first_slot < end_slot {
                add_tombstone(&mut open, &mut cells, seq, first_slot..end_slot);
            }
        }
        for (first_slot, UnboundedIndexCell { end_slot, first_seq, newest }) in open {
            cells.push(IndexCell { first_slot, end_slot, first_seq, end_seq: u64::MAX, newest });
        }
        work_counter::add(WorkKind::SpanNumbers, cells.len());
        cells.sort_unstable_by_key(|cell| (search_node_of_cell(slots, cell), cell.first_seq));
        let mut node_starts = Vec::with_capacity(bounds.len() + 2);
        let mut start = 0;
        for node in 0..slots {
            node_starts.push(to_u32(start));
            while cells.get(start).is_some_and(|cell| search_node_of_cell(slots, cell) == node) {
                start += 1;
            }
        }
        node_starts.push(to_u32(start));
        let bounds = bounds.into_iter().cloned().collect();
        TombstoneIndex { bounds, cells, node_starts }
    }

    /// Returns whether the index has no range tombstones.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bounds.is_empty()
    }

    /// Returns the memory usage in bytes, including the keys.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let keys: usize = self.bounds.iter().map(Bytes::len).sum();
        keys + self.bounds.len() * size_of::<Bytes>()
            + self.cells.len() * size_of::<IndexCell>()
            + self.node_starts.len() * size_of::<u32>()
    }

    /// Returns the sequence number of the newest range tombstone that covers `user_key` at `snapshot`.
    #[must_use]
    pub fn newest_covering(&self, user_key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
        self.find_cell(user_key, snapshot)?.newest
    }

    /// Returns the result of [`TombstoneIndex::newest_covering`], and the range of keys with this result.
    #[must_use]
    pub fn coverage_range(&self, user_key: &[u8], snapshot: SeqNo) -> CoverageRange<'_> {
        let Some(cell) = self.find_cell(user_key, snapshot) else {
            return CoverageRange { start: None, end: None, newest: None };
        };
        // Slot n starts at bound n - 1.
        let bound = |slot: u32| self.bounds.get((slot as usize).checked_sub(1)?);
        let (start, end) = (bound(cell.first_slot), bound(cell.end_slot));
        CoverageRange { start, end, newest: cell.newest }
    }

    /// Returns whether a range tombstone newer than `seq` covers a key from `start` up to, but not including, `end`.
    ///
    /// `None` is the end of the keyspace. The range must not be empty.
    #[must_use]
    pub fn has_newer_overlap(&self, start: &[u8], end: Option<&[u8]>, seq: SeqNo) -> bool {
        let mut key = start;
        loop {
            let range = self.coverage_range(key, SeqNo::MAX);
            if range.newest > Some(seq) {
                return true;
            }
            match range.end {
                // The end of a range is after the key, so the loop ends.
                Some(next) if end.is_none_or(|end| **next < *end) => key = next,
                _ => return false,
            }
        }
    }

    /// Returns the cell that contains a key and a sequence number, or `None` if the index is empty.
    fn find_cell(&self, user_key: &[u8], snapshot: SeqNo) -> Option<&IndexCell> {
        let slot = to_u32(self.bounds.partition_point(|bound| **bound <= *user_key));
        let (mut low, mut high) = (0, to_u32(self.bounds.len()) + 1);
        while low < high && !self.is_empty() {
            work_counter::add(WorkKind::SpanNumbers, 1);
            let node = low.midpoint(high);
            let start = |node: u32| self.node_starts[node as usize] as usize;
            let cells = &self.cells[start(node)..start(node + 1)];
            let count = cells.partition_point(|cell| cell.first_seq <= snapshot.0);
            let last = count.checked_sub(1).map(|last| &cells[last]);
            let contains = |cell: &&IndexCell| {
                snapshot.0 < cell.end_seq && (cell.first_slot..cell.end_slot).contains(&slot)
            };
            if let Some(cell) = last.filter(contains) {
                return Some(cell);
            }
            if slot < node {
                high = node;
            } else {
                low = node + 1;
            }
        }
        None
    }
}

/// Adds a range tombstone that is at least as new as all range tombstones added before.
///
/// Closes the open cells in its slots. If the first or the last of these cells extends beyond the slots, the rest of
/// the cell stays open.
fn add_tombstone(
    open: &mut BTreeMap<u32, UnboundedIndexCell>,
    closed: &mut Vec<IndexCell>,
    seq: SeqNo,
    slots: std::ops::Range<u32>,
) {
    // Open cells are contiguous, and the first one starts at slot 0.
    let containing = open.range(..=slots.start).next_back();
    let mut first_slot = containing.map_or(slots.start, |(first_slot, _)| *first_slot);
    while first_slot < slots.end
        && let Some(UnboundedIndexCell { end_slot, first_seq, newest }) = open.remove(&first_slot)
    {
        if first_seq < seq.0 {
            closed.push(IndexCell { first_slot, end_slot, first_seq, end_seq: seq.0, newest });
        }
        if first_slot < slots.start {
            let rest = UnboundedIndexCell { end_slot: slots.start, first_seq: seq.0, newest };
            open.insert(first_slot, rest);
        }
        if slots.end < end_slot {
            open.insert(slots.end, UnboundedIndexCell { end_slot, first_seq: seq.0, newest });
        }
        first_slot = end_slot;
    }
    let added = UnboundedIndexCell { end_slot: slots.end, first_seq: seq.0, newest: Some(seq) };
    open.insert(slots.start, added);
}

/// Returns the node of the implicit search tree that stores a cell.
fn search_node_of_cell(slots: u32, cell: &IndexCell) -> u32 {
    let (mut low, mut high) = (0_u32, slots);
    loop {
        let node = low.midpoint(high);
        if cell.end_slot <= node {
            high = node;
        } else if node < cell.first_slot {
            low = node + 1;
        } else {
            return node;
        }
    }
}

/// Converts a number of bounds or cells, which is below 2^32. More would exceed the memory of any machine.
#[expect(clippy::expect_used, reason = "the doc comment states the invariant")]
fn to_u32(count: usize) -> u32 {
    u32::try_from(count).expect("fewer than 2^32 bounds and cells")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Span = (Bytes, Option<Bytes>, SeqNo);

    fn index(spans: &[Span]) -> TombstoneIndex {
        TombstoneIndex::new(spans.iter().map(|(start, end, seq)| (start, end.as_ref(), *seq)))
    }

    fn newest_by_scan(spans: &[Span], key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
        let covers = |(start, end, seq): &&Span| {
            **start <= *key && end.as_ref().is_none_or(|end| *key < **end) && *seq <= snapshot
        };
        spans.iter().filter(covers).map(|(.., seq)| *seq).max()
    }

    #[test]
    fn empty_index_covers_no_key() {
        for index in [TombstoneIndex::default(), index(&[])] {
            assert!(index.is_empty());
            let everywhere = CoverageRange { start: None, end: None, newest: None };
            assert_eq!(index.coverage_range(b"key", SeqNo::MAX), everywhere);
        }
    }

    #[test]
    fn nested_range_tombstones_create_at_most_three_cells_each() {
        let key = |number: u32| Bytes::copy_from_slice(&number.to_be_bytes());
        for growing in [true, false] {
            let end = |n: u32| if growing { n } else { 10_001 - n };
            let spans: Vec<Span> =
                (1..=10_000).map(|n| (key(0), Some(key(end(n))), SeqNo(n.into()))).collect();
            let index = index(&spans);
            assert!(index.cells.len() <= 3 * spans.len() + 1, "{}", index.cells.len());
            for (at, snapshot) in [(1, 10_000), (5_000, 7_000), (9_999, 1), (77, 76), (77, 78)] {
                let expected = newest_by_scan(&spans, &key(at), SeqNo(snapshot));
                assert_eq!(
                    index.newest_covering(&key(at), SeqNo(snapshot)),
                    expected,
                    "{at} {snapshot}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn lookup_equals_scan_of_all_range_tombstones(
            spans in prop::collection::vec((0u8..20, 0u8..20, 0u64..40), 0..40),
            lookups in prop::collection::vec((0u8..22, 0u64..42), 40),
        ) {
            let key = |key: u8| Bytes::copy_from_slice(&[key]);
            let spans: Vec<Span> = spans
                .into_iter()
                .map(|(start, end, seq)| (key(start), (end != 7).then(|| key(end)), SeqNo(seq)))
                .collect();
            let index = index(&spans);
            for (at, snapshot) in lookups {
                let (at, snapshot) = (key(at), SeqNo(snapshot));
                let range = index.coverage_range(&at, snapshot);
                prop_assert_eq!(range.newest, newest_by_scan(&spans, &at, snapshot));
                prop_assert!(range.start.is_none_or(|start| *start <= at));
                prop_assert!(range.end.is_none_or(|end| *end > at));
                for other in (0..22).map(key) {
                    let inside = range.start.is_none_or(|start| *start <= other)
                        && range.end.is_none_or(|end| other < *end);
                    if inside {
                        prop_assert_eq!(newest_by_scan(&spans, &other, snapshot), range.newest);
                    }
                }
            }
        }

        #[test]
        fn has_newer_overlap_equals_scan_of_all_range_tombstones(
            spans in prop::collection::vec((0u8..20, 0u8..20, 0u64..40), 0..20),
            ranges in prop::collection::vec((0u8..20, 1u8..22, 0u64..42), 40),
        ) {
            let key = |key: u8| Bytes::copy_from_slice(&[key]);
            let spans: Vec<Span> = spans
                .into_iter()
                .map(|(start, end, seq)| (key(start), (end != 7).then(|| key(end)), SeqNo(seq)))
                .collect();
            let index = index(&spans);
            for (start, count, seq) in ranges {
                // A range of 21 keys has no end.
                let end = (count != 21).then(|| start + count);
                let keys = start..end.unwrap_or(u8::MAX);
                let newest = keys.filter_map(|at| newest_by_scan(&spans, &key(at), SeqNo::MAX)).max();
                let end = end.map(key);
                let found = index.has_newer_overlap(&key(start), end.as_deref(), SeqNo(seq));
                prop_assert_eq!(found, newest > Some(SeqNo(seq)));
            }
        }
    }
}
