//! What a collection keeps of the records of a bucket.
//!
//! Of each key, newest first:
//! 1. An operand is void for readers at or past the first anchor above it. It is kept if there is none, or
//!    if a snapshot lies below that anchor and not below the operand.
//! 2. Of anchors those are kept that void something kept.
//! 3. Neighbours that no snapshot lies between fold where the operator can.

use bytes::Bytes;
use lsmx::SeqNo;
use lsmx::operand_store::OperandFolds;

use crate::format::log::RangeAnchor;
use crate::format::record::Record;
use crate::ranges::Fragments;

/// An operand that is kept.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) record: Record,
    /// The anchor that voids it for readers that are not snapshots.
    pub(crate) void_by: Option<SeqNo>,
}

/// What is kept of a key.
#[derive(Clone, Debug)]
pub(crate) struct KeptKey {
    pub(crate) key: Bytes,
    /// Newest first.
    pub(crate) operands: Vec<Kept>,
    /// Largest number of any record or range anchor of the key.
    pub(crate) latest: SeqNo,
}

/// Decides what a collection keeps.
#[derive(Debug)]
pub(crate) struct Keeping<'a> {
    snapshots: &'a [SeqNo],
    ranges: Fragments,
    folds: &'a dyn OperandFolds,
}

impl<'a> Keeping<'a> {
    /// `snapshots` are in ascending order, behind them the last number that was visible when they were
    /// listed.
    pub(crate) fn new(
        snapshots: &'a [SeqNo],
        ranges: &[RangeAnchor],
        folds: &'a dyn OperandFolds,
    ) -> Keeping<'a> {
        Keeping { snapshots, ranges: Fragments::new(ranges, snapshots), folds }
    }

    /// How many snapshots lie below a number: none between two of the same stripe.
    fn stripe(&self, seq: SeqNo) -> usize {
        self.snapshots.partition_point(|snapshot| *snapshot < seq)
    }

    /// Whether no snapshot can lie between two numbers. Of numbers that became visible after the snapshots
    /// were listed nobody knows: one may have come between them.
    fn are_seen_alike(&self, older: SeqNo, newer: SeqNo) -> bool {
        let visible = self.snapshots.last().copied().unwrap_or_default();
        newer <= visible && self.stripe(older) == self.stripe(newer)
    }

    /// What is kept of records in order. Keys of which nothing is kept are there too, without operands.
    pub(crate) fn keep(&self, records: &[Record]) -> Vec<KeptKey> {
        records.chunk_by(|a, b| a.key == b.key).map(|group| self.keep_key(group)).collect()
    }

    fn keep_key(&self, group: &[Record]) -> KeptKey {
        let key = group[0].key.clone();
        let ranges = self.ranges.covering(&key).iter().copied();
        let own = group.iter().filter(|it| it.operand.is_none()).map(|it| it.last);
        let mut anchors: Vec<SeqNo> = ranges.chain(own).collect();
        anchors.sort_unstable();
        let latest = anchors.last().copied().unwrap_or_default().max(group[0].last);
        let mut operands: Vec<Kept> = Vec::new();
        // From the oldest on, so that what folds grows at its new end.
        for record in group.iter().rev().filter(|record| record.operand.is_some()) {
            let above = anchors.partition_point(|anchor| *anchor <= record.last);
            let void_by = anchors.get(above).copied();
            if void_by.is_some_and(|by| self.are_seen_alike(record.last, by)) {
                continue;
            }
            if let Some(older) = operands.last_mut()
                && self.are_seen_alike(older.record.last, record.last)
                && older.void_by == void_by
                && let Some(folded) = self.fold(&older.record, record)
            {
                older.record = folded;
            } else {
                operands.push(Kept { record: record.clone(), void_by });
            }
        }
        operands.reverse();
        KeptKey { key, operands, latest }
    }

    fn fold(&self, older: &Record, newer: &Record) -> Option<Record> {
        let (old, new) = (older.operand.as_ref()?, newer.operand.as_ref()?);
        let folded = self.folds.partial(&newer.key, old, new)?;
        let (first, last) = (older.first, newer.last);
        Some(Record { key: newer.key.clone(), first, last, operand: Some(folded.into()) })
    }
}

/// Records of kept operands, with the anchors they need, in order.
pub(crate) fn records(operands: &[Kept]) -> Vec<Record> {
    let mut records = Vec::with_capacity(operands.len());
    for kept in operands {
        if let Some(by) = kept.void_by {
            records.push(Record::anchor(kept.record.key.clone(), by));
        }
        records.push(kept.record.clone());
    }
    // Several operands may need one anchor.
    records.sort_by(Record::order);
    records.dedup_by(|a, b| a.operand.is_none() && a == b);
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Append;

    impl OperandFolds for Append {
        fn partial(&self, _: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
            Some([older, newer].concat())
        }
    }

    const VISIBLE: u64 = 20;

    /// `+5` is an operand, `|5` an anchor; what is kept is shown alike, folds as `+first-last`.
    fn kept(records: &str, ranges: &[u64], snapshots: &[u64]) -> String {
        let key = Bytes::from_static(b"key");
        let mut group: Vec<Record> = records
            .split(' ')
            .map(|text| {
                let (kind, seq) = text.split_at(1);
                let seq = SeqNo(seq.parse().unwrap());
                let operand = (kind == "+").then(|| Bytes::from_static(b"x"));
                Record { key: key.clone(), first: seq, last: seq, operand }
            })
            .collect();
        group.sort_by(Record::order);
        let range = |seq: &u64| RangeAnchor { start: Bytes::new(), end: None, seq: SeqNo(*seq) };
        let snapshots: Vec<SeqNo> =
            snapshots.iter().chain(&[VISIBLE]).map(|seq| SeqNo(*seq)).collect();
        let ranges: Vec<RangeAnchor> = ranges.iter().map(range).collect();
        let keeping = Keeping::new(&snapshots, &ranges, &Append);
        let shown = |record: &Record| match &record.operand {
            None => format!("|{}", record.last),
            Some(_) if record.first == record.last => format!("+{}", record.last),
            Some(_) => format!("+{}-{}", record.first, record.last),
        };
        let kept = keeping.keep(&group);
        let kept: Vec<String> = super::records(&kept[0].operands).iter().map(shown).collect();
        kept.join(" ")
    }

    #[test]
    fn what_no_snapshot_sees_goes_and_what_one_sees_stays() {
        assert_eq!(kept("+1 +2 +3", &[], &[]), "+1-3");
        assert_eq!(kept("+1 +2 +3", &[], &[2]), "+3 +1-2");
        assert_eq!(kept("+1 |2 +3", &[], &[]), "+3");
        assert_eq!(kept("+1 |2 +3", &[], &[1]), "+3 |2 +1");
        assert_eq!(kept("+1 |2 +3", &[], &[2]), "+3");
        assert_eq!(kept("+1 +3 |4 |6", &[], &[2, 5]), "|4 +1");
        assert_eq!(kept("+1 +2 +4", &[3], &[2]), "+4 |3 +1-2");
        assert_eq!(kept("+1 +2", &[9], &[]), "");
    }

    /// A flush had come between the listing of the snapshots and the collection: what it brought was
    /// folded and dropped across snapshots that had come with it.
    #[test]
    fn what_was_not_visible_when_snapshots_were_listed_stays_apart() {
        assert_eq!(kept("+19 +20 +21 +22", &[], &[]), "+22 +21 +19-20");
        assert_eq!(kept("+19 |20 +21 |22", &[], &[]), "|22 +21");
        assert_eq!(kept("+19 +21 +22", &[23], &[]), "|23 +22 +21 +19");
    }
}
