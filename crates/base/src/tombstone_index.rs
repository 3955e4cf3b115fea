//! Index of range tombstones: the newest one that covers a key, for a reader at any sequence number.
//!
//! Range tombstones cut the plane of keys and sequence numbers into cells. All readers in one cell see the
//! same newest range tombstone, or none:
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
//! 1. The distinct bounds of the range tombstones, in key order, divide the keys into numbered slots.
//! 2. The range tombstones are added in ascending order of their numbers. Each ends the cells that it
//!    covers and cuts at most two. So n range tombstones make at most 3 n + 1 cells.
//! 3. A balanced binary search tree over the slots is implied by their numbers. Each cell is stored once, at
//!    the highest node whose slot it contains. All cells of one node contain its slot, so they are ordered
//!    by sequence number and do not overlap.
//! 4. A lookup descends to the slot of its key and does one binary search per node.
//!
//! The index takes O(n) memory and O(n log n) time to build; a lookup takes O(log² n). A list of numbers for
//! each fragment of the key space would take O(n²) memory for nested range tombstones, and the newest number
//! alone would be wrong for readers at older sequence numbers.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::key::SeqNo;
use crate::work_counter::{self, Work};

/// A rectangle of slots and sequence numbers in which all readers see the same newest range tombstone.
#[derive(Clone, Copy, Debug)]
struct Cell {
    /// First slot.
    from: u32,
    /// First slot past it.
    to: u32,
    /// First sequence number of a reader.
    born: u64,
    /// First sequence number past it.
    died: u64,
    newest: Option<SeqNo>,
}

/// A cell that no later range tombstone has ended; the key of its map is the first slot.
#[derive(Clone, Copy, Debug)]
struct OpenCell {
    to: u32,
    born: u64,
    newest: Option<SeqNo>,
}

/// Keys around a looked-up key for which the lookup has the same result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window<'a> {
    /// First key; `None` for the beginning of the keyspace.
    pub start: Option<&'a Bytes>,
    /// First key past it; `None` for the end of the keyspace.
    pub end: Option<&'a Bytes>,
    /// Number of the newest range tombstone that covers these keys.
    pub newest: Option<SeqNo>,
}

/// An immutable index of range tombstones.
#[derive(Clone, Debug, Default)]
pub struct TombstoneIndex {
    /// Distinct bounds in key order. Slot `n` begins at bound `n - 1` and ends before bound `n`.
    bounds: Vec<Bytes>,
    /// Grouped by node, then in ascending order of `born`.
    cells: Vec<Cell>,
    /// Where the cells of each node begin, and the end of the last.
    nodes: Vec<u32>,
}

impl TombstoneIndex {
    /// Upper bound of the memory of an index per range tombstone, without the keys.
    pub const BYTES_PER_TOMBSTONE_MAX: usize =
        2 * (size_of::<Bytes>() + size_of::<u32>()) + 3 * size_of::<Cell>();

    /// Indexes range tombstones: start, first key past the end or `None` for the end of the keyspace, and
    /// sequence number. They may overlap, and several may have the same number. Empty ones are ignored.
    pub fn new<'a>(
        tombstones: impl IntoIterator<Item = (&'a Bytes, Option<&'a Bytes>, SeqNo)>,
    ) -> TombstoneIndex {
        let all: Vec<_> = tombstones.into_iter().collect();
        work_counter::add(Work::SpanNumbers, all.len());
        let ends = all.iter().filter_map(|(_, end, _)| *end);
        let mut bounds: Vec<&Bytes> = all.iter().map(|(start, ..)| *start).chain(ends).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let slots = number(bounds.len()) + 1;
        // The slot that begins at a bound.
        let slot_of = |key: &Bytes| number(bounds.partition_point(|bound| *bound <= key));
        let mut spans: Vec<(SeqNo, u32, u32)> = all
            .iter()
            .map(|&(start, end, seq)| (seq, slot_of(start), end.map_or(slots, slot_of)))
            .collect();
        spans.sort_unstable();
        let mut cells = Vec::with_capacity(all.len());
        let mut open = BTreeMap::from([(0, OpenCell { to: slots, born: 0, newest: None })]);
        for (seq, from, to) in spans {
            if from < to {
                cover(&mut open, &mut cells, seq, from..to);
            }
        }
        for (from, OpenCell { to, born, newest }) in open {
            cells.push(Cell { from, to, born, died: u64::MAX, newest });
        }
        work_counter::add(Work::SpanNumbers, cells.len());
        cells.sort_unstable_by_key(|cell| (node_of(slots, cell), cell.born));
        let mut nodes = Vec::with_capacity(bounds.len() + 2);
        let mut begin = 0;
        for node in 0..slots {
            nodes.push(number(begin));
            while cells.get(begin).is_some_and(|cell| node_of(slots, cell) == node) {
                begin += 1;
            }
        }
        nodes.push(number(begin));
        let bounds = bounds.into_iter().cloned().collect();
        TombstoneIndex { bounds, cells, nodes }
    }

    /// Whether it has no range tombstones.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bounds.is_empty()
    }

    /// Bytes in memory, those of the bounds included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let keys: usize = self.bounds.iter().map(Bytes::len).sum();
        keys + self.bounds.len() * size_of::<Bytes>()
            + self.cells.len() * size_of::<Cell>()
            + self.nodes.len() * size_of::<u32>()
    }

    /// Number of the newest range tombstone that covers `user_key` for a reader at `snapshot`.
    #[must_use]
    pub fn newest(&self, user_key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
        self.cell(user_key, snapshot)?.newest
    }

    /// [`TombstoneIndex::newest`] with the neighbouring keys that have the same result.
    #[must_use]
    pub fn window(&self, user_key: &[u8], snapshot: SeqNo) -> Window<'_> {
        let Some(cell) = self.cell(user_key, snapshot) else {
            return Window { start: None, end: None, newest: None };
        };
        // The bound with which a slot begins has the number before the slot's.
        let bound = |slot: u32| self.bounds.get((slot as usize).checked_sub(1)?);
        Window { start: bound(cell.from), end: bound(cell.to), newest: cell.newest }
    }

    /// The cell of a key and a sequence number; `None` if there are no range tombstones.
    fn cell(&self, user_key: &[u8], snapshot: SeqNo) -> Option<&Cell> {
        let slot = number(self.bounds.partition_point(|bound| **bound <= *user_key));
        let (mut low, mut high) = (0, number(self.bounds.len()) + 1);
        while low < high && !self.is_empty() {
            work_counter::add(Work::SpanNumbers, 1);
            let node = middle(low, high);
            let at = |node: u32| self.nodes[node as usize] as usize;
            let cells = &self.cells[at(node)..at(node + 1)];
            let born = cells.partition_point(|cell| cell.born <= snapshot.0);
            let last = born.checked_sub(1).map(|last| &cells[last]);
            let holds =
                |cell: &&Cell| cell.died > snapshot.0 && cell.from <= slot && slot < cell.to;
            if let Some(cell) = last.filter(holds) {
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

/// Adds a range tombstone that is at least as new as all before: ends the cells in its slots, and puts back
/// what of the first and the last lies outside.
fn cover(
    open: &mut BTreeMap<u32, OpenCell>,
    ended: &mut Vec<Cell>,
    seq: SeqNo,
    slots: std::ops::Range<u32>,
) {
    // Open cells follow each other without gaps, and the first begins at slot 0.
    let reaching = open.range(..=slots.start).next_back();
    let mut from = reaching.map_or(slots.start, |(from, _)| *from);
    while from < slots.end
        && let Some(OpenCell { to, born, newest }) = open.remove(&from)
    {
        if born < seq.0 {
            ended.push(Cell { from, to, born, died: seq.0, newest });
        }
        if from < slots.start {
            open.insert(from, OpenCell { to: slots.start, born: seq.0, newest });
        }
        if slots.end < to {
            open.insert(slots.end, OpenCell { to, born: seq.0, newest });
        }
        from = to;
    }
    open.insert(slots.start, OpenCell { to: slots.end, born: seq.0, newest: Some(seq) });
}

/// The node of the implied search tree that stores a cell.
fn node_of(slots: u32, cell: &Cell) -> u32 {
    let (mut low, mut high) = (0, slots);
    loop {
        let node = middle(low, high);
        if cell.to <= node {
            high = node;
        } else if node < cell.from {
            low = node + 1;
        } else {
            return node;
        }
    }
}

fn middle(low: u32, high: u32) -> u32 {
    low + (high - low) / 2
}

/// A count of bounds or cells. 2^32 of them would take more memory than a machine has.
#[expect(clippy::expect_used, reason = "the invariant stands above")]
fn number(count: usize) -> u32 {
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

    fn newest(spans: &[Span], key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
        let covers = |(start, end, seq): &&Span| {
            **start <= *key && end.as_ref().is_none_or(|end| *key < **end) && *seq <= snapshot
        };
        spans.iter().filter(covers).map(|(.., seq)| *seq).max()
    }

    #[test]
    fn empty_index_covers_nothing() {
        for index in [TombstoneIndex::default(), index(&[])] {
            assert!(index.is_empty());
            let nowhere = Window { start: None, end: None, newest: None };
            assert_eq!(index.window(b"key", SeqNo::MAX), nowhere);
        }
    }

    #[test]
    fn nested_range_tombstones_take_memory_for_three_cells_each() {
        let key = |number: u32| Bytes::copy_from_slice(&number.to_be_bytes());
        for growing in [true, false] {
            let end = |n: u32| if growing { n } else { 10_001 - n };
            let spans: Vec<Span> =
                (1..=10_000).map(|n| (key(0), Some(key(end(n))), SeqNo(n.into()))).collect();
            let index = index(&spans);
            assert!(index.cells.len() <= 3 * spans.len() + 1, "{}", index.cells.len());
            for (at, snapshot) in [(1, 10_000), (5_000, 7_000), (9_999, 1), (77, 76), (77, 78)] {
                let expected = newest(&spans, &key(at), SeqNo(snapshot));
                assert_eq!(index.newest(&key(at), SeqNo(snapshot)), expected, "{at} {snapshot}");
            }
        }
    }

    proptest! {
        #[test]
        fn lookup_equals_a_search_of_all_range_tombstones(
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
                let window = index.window(&at, snapshot);
                prop_assert_eq!(window.newest, newest(&spans, &at, snapshot));
                prop_assert!(window.start.is_none_or(|start| *start <= at));
                prop_assert!(window.end.is_none_or(|end| *end > at));
                for other in (0..22).map(key) {
                    let inside = window.start.is_none_or(|start| *start <= other)
                        && window.end.is_none_or(|end| other < *end);
                    if inside {
                        prop_assert_eq!(newest(&spans, &other, snapshot), window.newest);
                    }
                }
            }
        }
    }
}
