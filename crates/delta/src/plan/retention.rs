//! Selects the records that a collection retains.
//!
//! A delete marker covers the older operands of its key. Snapshots that are older than the marker still see these
//! operands.
//!
//! 1. An operand is retained if no marker covers it, or if a snapshot lies between the operand and the oldest marker
//!    that covers it.
//! 2. A delete marker is retained if it is the oldest marker that covers a retained operand.
//! 3. Adjacent operands are folded if no snapshot lies between them and the merge operator can fold them.

use bytes::Bytes;
use lsmx::operand_store::OperandMerger;
use lsmx_base::key::SeqNo;

use crate::bucket::markers::StoredMarkers;
use crate::format::log::RangeMarker;
use crate::format::record::Record;
use crate::range_markers::MarkerFragments;

/// An operand that a collection retains.
#[derive(Clone, Debug)]
pub(crate) struct RetainedOperand {
    pub(crate) record: Record,
    /// Sequence number of the oldest delete marker that covers the operand.
    pub(crate) void_by: Option<SeqNo>,
    /// Newest snapshot that needs the operand although a marker covers it. `None` without a marker, or if the marker is
    /// newer than the listed snapshots.
    pub(crate) kept_by: Option<SeqNo>,
}

/// Operands of one key that a collection retains.
#[derive(Clone, Debug)]
pub(crate) struct RetainedKey {
    pub(crate) key: Bytes,
    /// Newest first. May be empty.
    pub(crate) operands: Vec<RetainedOperand>,
    /// Largest sequence number of the key's records and of the range delete markers that cover the key.
    pub(crate) newest: SeqNo,
}

/// Selects the records that a collection retains.
#[derive(Debug)]
pub(crate) struct RetentionRule<'a> {
    snapshots: &'a [SeqNo],
    range_markers: MarkerFragments,
    merger: &'a dyn OperandMerger,
}

impl<'a> RetentionRule<'a> {
    /// `snapshots` lists the sequence numbers of all snapshots in ascending order. Its last element is the newest
    /// sequence number that was visible when the list was made.
    pub(crate) fn new(
        snapshots: &'a [SeqNo],
        range_markers: &[RangeMarker],
        merger: &'a dyn OperandMerger,
    ) -> RetentionRule<'a> {
        RetentionRule {
            snapshots,
            range_markers: MarkerFragments::new(range_markers, snapshots),
            merger,
        }
    }

    /// Returns the number of snapshots below `seq`. If two sequence numbers have equal counts, no snapshot lies between
    /// them.
    fn snapshots_below(&self, seq: SeqNo) -> usize {
        self.snapshots.partition_point(|snapshot| *snapshot < seq)
    }

    /// Returns whether no snapshot can lie between two sequence numbers.
    ///
    /// Returns false if `newer` was not yet visible when the snapshots were listed, because a later snapshot may lie
    /// between the numbers.
    fn has_no_snapshot_between(&self, older: SeqNo, newer: SeqNo) -> bool {
        let visible = self.snapshots.last().copied().unwrap_or_default();
        newer <= visible && self.snapshots_below(older) == self.snapshots_below(newer)
    }

    /// Returns the newest listed snapshot below `marker`. Returns `None` if the marker was not yet visible when the
    /// snapshots were listed.
    fn newest_snapshot_below(&self, marker: SeqNo) -> Option<SeqNo> {
        let visible = self.snapshots.last().copied().unwrap_or_default();
        let count = if marker <= visible { self.snapshots_below(marker) } else { 0 };
        self.snapshots[..count].last().copied()
    }

    /// Selects the retained operands of each key. `records` is sorted. The result includes keys without retained
    /// operands.
    pub(crate) fn select_retained(&self, records: &[Record]) -> Vec<RetainedKey> {
        records.chunk_by(|a, b| a.key == b.key).map(|group| self.retain_key(group)).collect()
    }

    fn retain_key(&self, group: &[Record]) -> RetainedKey {
        let key = group[0].key.clone();
        let in_ranges = self.range_markers.seqs_covering(&key).iter().copied();
        let own = group.iter().filter(|it| it.operand.is_none()).map(|it| it.last);
        let mut markers: Vec<SeqNo> = in_ranges.chain(own).collect();
        markers.sort_unstable();
        let newest = markers.last().copied().unwrap_or_default().max(group[0].last);
        let mut operands: Vec<RetainedOperand> = Vec::new();
        // Visits the oldest operand first, because `partial_merge` appends a newer operand to an older one.
        for record in group.iter().rev().filter(|record| record.operand.is_some()) {
            let next_marker = markers.partition_point(|marker| *marker <= record.last);
            let void_by = markers.get(next_marker).copied();
            if void_by.is_some_and(|marker| self.has_no_snapshot_between(record.last, marker)) {
                continue;
            }
            if let Some(older) = operands.last_mut()
                && self.has_no_snapshot_between(older.record.last, record.last)
                && older.void_by == void_by
                && let Some(folded) = self.fold_records(&older.record, record)
            {
                older.record = folded;
            } else {
                let kept_by = void_by.and_then(|marker| self.newest_snapshot_below(marker));
                operands.push(RetainedOperand { record: record.clone(), void_by, kept_by });
            }
        }
        operands.reverse();
        RetainedKey { key, operands, newest }
    }

    fn fold_records(&self, older: &Record, newer: &Record) -> Option<Record> {
        let (old, new) = (older.operand.as_ref()?, newer.operand.as_ref()?);
        let folded = self.merger.partial_merge(&newer.key, old, new)?;
        let (first, last) = (older.first, newer.last);
        Some(Record { key: newer.key.clone(), first, last, operand: Some(folded.into()) })
    }
}

/// Returns the records of the retained operands and of the delete markers that cover them, sorted.
pub(crate) fn retained_records(operands: &[RetainedOperand]) -> Vec<Record> {
    let mut records = Vec::with_capacity(operands.len());
    for retained in operands {
        if let Some(seq) = retained.void_by {
            records.push(Record::new_delete_marker(retained.record.key.clone(), seq));
        }
        records.push(retained.record.clone());
    }
    // A marker that covers several operands was added several times.
    records.sort_by(Record::cmp_by_key_and_seq);
    records.dedup_by(|a, b| a.operand.is_none() && a == b);
    records
}

/// Returns the delete markers of retained operands, with the snapshots that keep them.
pub(crate) fn retained_markers(keys: &[RetainedKey]) -> StoredMarkers {
    let mut markers = StoredMarkers::default();
    for operand in keys.iter().flat_map(|key| &key.operands) {
        if let Some(marker) = operand.void_by {
            markers.add(marker, operand.kept_by);
        }
    }
    markers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Append;

    impl OperandMerger for Append {
        fn partial_merge(&self, _: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
            Some([older, newer].concat())
        }
    }

    const VISIBLE: u64 = 20;

    /// Applies the retention rule to records given as text, and returns the retained records in the same format.
    ///
    /// `+5` is an operand with sequence number 5, `+3-5` a folded operand, and `|5` a delete marker.
    fn retain(records: &str, range_markers: &[u64], snapshots: &[u64]) -> String {
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
        group.sort_by(Record::cmp_by_key_and_seq);
        let marker = |seq: &u64| RangeMarker { start: Bytes::new(), end: None, seq: SeqNo(*seq) };
        let snapshots: Vec<SeqNo> =
            snapshots.iter().chain(&[VISIBLE]).map(|seq| SeqNo(*seq)).collect();
        let range_markers: Vec<RangeMarker> = range_markers.iter().map(marker).collect();
        let retention = RetentionRule::new(&snapshots, &range_markers, &Append);
        let format = |record: &Record| match &record.operand {
            None => format!("|{}", record.last),
            Some(_) if record.first == record.last => format!("+{}", record.last),
            Some(_) => format!("+{}-{}", record.first, record.last),
        };
        let keys = retention.select_retained(&group);
        let kept: Vec<String> = retained_records(&keys[0].operands).iter().map(format).collect();
        kept.join(" ")
    }

    #[test]
    fn retention_keeps_only_records_that_a_reader_can_see() {
        assert_eq!(retain("+1 +2 +3", &[], &[]), "+1-3");
        assert_eq!(retain("+1 +2 +3", &[], &[2]), "+3 +1-2");
        assert_eq!(retain("+1 |2 +3", &[], &[]), "+3");
        assert_eq!(retain("+1 |2 +3", &[], &[1]), "+3 |2 +1");
        assert_eq!(retain("+1 |2 +3", &[], &[2]), "+3");
        assert_eq!(retain("+1 +3 |4 |6", &[], &[2, 5]), "|4 +1");
        assert_eq!(retain("+1 +2 +4", &[3], &[2]), "+4 |3 +1-2");
        assert_eq!(retain("+1 +2", &[9], &[]), "");
    }

    /// Regression: a flush ran between the listing of the snapshots and the collection. Its records were folded and
    /// dropped, although newer snapshots saw them.
    #[test]
    fn retention_records_newer_than_the_listed_snapshots_stay_separate() {
        assert_eq!(retain("+19 +20 +21 +22", &[], &[]), "+22 +21 +19-20");
        assert_eq!(retain("+19 |20 +21 |22", &[], &[]), "|22 +21");
        assert_eq!(retain("+19 +21 +22", &[23], &[]), "|23 +22 +21 +19");
    }
}
