//! In-memory contents of a simple operand store, and their file format.
//!
//! A file consists of items:
//!
//! ```text
//! item    kind u8, first sequence number u64, last sequence number u64, length u32, bytes
//! kinds   0 operand, 1 delete marker, 2 range delete marker with an end key, 3 range delete marker without an end,
//!         4 key of the items that follow
//! ```

use std::collections::BTreeMap;

use lsmx::operand_store::{Operand, OperandMerger};
use lsmx::{SeqNo, Slice};

#[derive(Clone, Debug, Default)]
pub(super) struct Contents {
    /// Items of each key, newest first.
    pub(super) keys: BTreeMap<Vec<u8>, Vec<Item>>,
    pub(super) ranges: Vec<RangeMarker>,
    /// Upper bound of the sequence numbers of all deliveries so far.
    pub(super) through: SeqNo,
}

#[derive(Clone, Debug)]
pub(super) enum Item {
    Operand(Operand),
    DeleteMarker(SeqNo),
}

impl Item {
    fn last(&self) -> SeqNo {
        match self {
            Item::Operand(operand) => operand.last,
            Item::DeleteMarker(seq) => *seq,
        }
    }

    pub(super) fn operand(&self) -> Option<&Operand> {
        match self {
            Item::Operand(operand) => Some(operand),
            Item::DeleteMarker(_) => None,
        }
    }
}

/// Range delete marker: deletes all operands in a key range that have sequence numbers below `seq`.
#[derive(Clone, Debug)]
pub(super) struct RangeMarker {
    pub(super) start: Vec<u8>,
    /// Exclusive end key. `None` if the range has no end.
    pub(super) end: Option<Vec<u8>>,
    pub(super) seq: SeqNo,
}

impl RangeMarker {
    fn covers(&self, key: &[u8]) -> bool {
        self.start.as_slice() <= key && self.end.as_ref().is_none_or(|end| key < end.as_slice())
    }
}

impl Contents {
    /// Returns the sequence numbers of all delete markers that cover a key.
    fn markers(&self, key: &[u8]) -> impl Iterator<Item = SeqNo> {
        let ranges = self.ranges.iter().filter(move |range| range.covers(key));
        let items = self.keys.get(key).into_iter().flatten();
        let of_key = items.filter(|item| item.operand().is_none());
        ranges.map(|range| range.seq).chain(of_key.map(Item::last))
    }

    /// Returns the operands of a key that are visible at sequence number `at`, newest first.
    pub(super) fn visible_operands(&self, key: &[u8], at: SeqNo) -> Vec<Operand> {
        let marker = self.markers(key).filter(|seq| *seq <= at).max();
        let operands = self.keys.get(key).into_iter().flatten().filter_map(Item::operand);
        let is_visible = |operand: &&Operand| operand.last <= at && marker < Some(operand.last);
        operands.filter(is_visible).cloned().collect()
    }

    /// Inserts an item for a key, in descending order of sequence numbers.
    pub(super) fn insert(&mut self, key: &[u8], item: Item) {
        let items = self.keys.entry(key.to_vec()).or_default();
        let at = items.iter().take_while(|other| other.last() > item.last()).count();
        items.insert(at, item);
    }

    /// Removes deleted operands and merges adjacent operands. Preserves the results of reads at `snapshots`. Does not
    /// change operands with sequence numbers above `through`.
    pub(super) fn compact(
        &mut self,
        snapshots: &[SeqNo],
        through: SeqNo,
        merger: &dyn OperandMerger,
    ) {
        let stripe = |seq: SeqNo| snapshots.partition_point(|snapshot| *snapshot < seq);
        let keys: Vec<_> = self.keys.keys().cloned().collect();
        for key in keys {
            let markers: Vec<SeqNo> = self.markers(&key).filter(|seq| *seq <= through).collect();
            let is_deleted = |operand: &Operand| {
                let mut newer = markers.iter().filter(|marker| **marker > operand.last);
                newer.any(|marker| stripe(*marker) == stripe(operand.last))
            };
            let mut kept: Vec<Item> = Vec::new();
            for item in self.keys.remove(&key).unwrap_or_default() {
                match (item, kept.last_mut()) {
                    (Item::Operand(operand), _) if is_deleted(&operand) => {}
                    (Item::Operand(older), Some(Item::Operand(newer)))
                        if newer.last <= through && stripe(older.last) == stripe(newer.last) =>
                    {
                        let has_marker_between =
                            markers.iter().any(|seq| older.last < *seq && *seq < newer.first);
                        match merger.partial_merge(&key, &older.bytes, &newer.bytes) {
                            Some(merged) if !has_marker_between => {
                                newer.first = older.first;
                                newer.bytes = Slice::from(merged);
                            }
                            _ => kept.push(Item::Operand(older)),
                        }
                    }
                    (item, _) => kept.push(item),
                }
            }
            // Delete markers that are older than all operands of the key have no effect.
            while matches!(kept.last(), Some(Item::DeleteMarker(_))) {
                kept.pop();
            }
            if !kept.is_empty() {
                self.keys.insert(key, kept);
            }
        }
        let keys = &self.keys;
        self.ranges.retain(|range| {
            let mut covered = keys.iter().filter(|(key, _)| range.covers(key));
            covered.any(|(_, items)| items.iter().any(|item| item.last() < range.seq))
        });
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut item = |kind: u8, first: SeqNo, last: SeqNo, bytes: &[u8]| {
            out.push(kind);
            out.extend_from_slice(&first.0.to_le_bytes());
            out.extend_from_slice(&last.0.to_le_bytes());
            out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(0).to_le_bytes());
            out.extend_from_slice(bytes);
        };
        for (key, items) in &self.keys {
            item(4, SeqNo(0), SeqNo(0), key);
            for one in items {
                match one {
                    Item::Operand(it) => item(0, it.first, it.last, &it.bytes),
                    Item::DeleteMarker(seq) => item(1, *seq, *seq, &[]),
                }
            }
        }
        for RangeMarker { start, end, seq } in &self.ranges {
            item(4, SeqNo(0), SeqNo(0), start);
            match end {
                Some(end) => item(2, *seq, *seq, end),
                None => item(3, *seq, *seq, &[]),
            }
        }
        out
    }

    pub(super) fn decode(bytes: &[u8], through: SeqNo) -> Option<Contents> {
        let mut contents = Contents { through, ..Contents::default() };
        let mut rest = bytes;
        let mut take = |count: usize| {
            let (head, tail) = rest.split_at_checked(count)?;
            rest = tail;
            Some(head)
        };
        let mut key: &[u8] = &[];
        while let Some(kind) = take(1) {
            let mut number = || Some(SeqNo(u64::from_le_bytes(take(8)?.try_into().ok()?)));
            let (first, last) = (number()?, number()?);
            let length = u32::from_le_bytes(take(4)?.try_into().ok()?);
            let bytes = take(usize::try_from(length).ok()?)?;
            let mut add_range = |end| {
                contents.ranges.push(RangeMarker { start: key.to_vec(), end, seq: last });
            };
            match kind[0] {
                0 => {
                    let operand = Operand { first, last, bytes: Slice::from(bytes) };
                    contents.insert(key, Item::Operand(operand));
                }
                1 => contents.insert(key, Item::DeleteMarker(last)),
                2 => add_range(Some(bytes.to_vec())),
                3 => add_range(None),
                4 => key = bytes,
                _ => return None,
            }
        }
        Some(contents)
    }
}
