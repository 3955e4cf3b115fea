//! Tests of which versions a job keeps, and of folded operands.

use std::collections::HashSet;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::compaction_filter::{CompactionFilter, FilterContext, FilterError, FilterValue};
use crate::iter::merging_iter::VecCursor;
use crate::iter::operand_fold::OperandFold;
use crate::merge_operator::{Append, MergeResult};
use crate::tree::keyspace_name::KeyspaceName;
use lsmx_base::sync::{Arc, Mutex};

/// Appends operands; has no partial merge.
#[derive(Debug)]
struct FullMergeAppend;

impl MergeOperator for FullMergeAppend {
    fn name(&self) -> &'static str {
        "full-merge-append"
    }
    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        Append::default().full_merge(key, base, operands)
    }
}

/// Appends operands, panics at those that contain a 7, and deletes values that end with a 9.
#[derive(Debug)]
struct PartiallyFailing;

impl MergeOperator for PartiallyFailing {
    fn name(&self) -> &'static str {
        "partially-failing"
    }
    fn full_merge(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        let mut value = base.map(<[u8]>::to_vec);
        for operand in operands {
            assert!(!operand.contains(&b'7'), "a seven");
            let mut longer = value.unwrap_or_default();
            longer.extend_from_slice(operand);
            value = (longer.last() != Some(&b'9')).then_some(longer);
        }
        Ok(value)
    }
}

type Entry = (Vec<u8>, SeqNo, EntryKind, Vec<u8>);

/// Removes values that contain an `r`, appends an `x` to values that contain a `c`, and records all values.
#[derive(Debug, Default)]
struct LetterFilter(Mutex<Vec<Vec<u8>>>);

impl CompactionFilter for LetterFilter {
    fn name(&self) -> &'static str {
        "letters"
    }
    fn filter(
        &self,
        _: &[u8],
        value: &FilterValue<'_>,
        _: &FilterContext,
    ) -> Result<FilterDecision, FilterError> {
        let value = value.bytes()?;
        self.0.lock().push(value.to_vec());
        Ok(match value {
            value if value.contains(&b'r') => FilterDecision::Remove,
            value if value.contains(&b'c') => FilterDecision::Change([value, b"x"].concat()),
            _ => FilterDecision::Keep,
        })
    }
}

/// Time up to which entries have expired.
const EXPIRY_LIMIT_US: u64 = 100;

fn kept(entries: &[Entry], snapshots: &[u64], merging: &MergeResolver, bottom: bool) -> Vec<Entry> {
    kept_with_filter(entries, snapshots, merging, bottom, None)
}

fn kept_with_filter(
    entries: &[Entry],
    snapshots: &[u64],
    merging: &MergeResolver,
    bottom: bool,
    filter: Option<&LetterFilter>,
) -> Vec<Entry> {
    filter_entries(entries, retention(snapshots, bottom), merging, bottom, filter)
}

fn retention(snapshots: &[u64], bottom: bool) -> Retention {
    let snapshots = snapshots.iter().map(|&seq| SeqNo(seq)).collect();
    let older = if bottom { Vec::new() } else { vec![full_range_run()] };
    Retention::new(snapshots, older, HashSet::new())
}

fn filter_entries(
    entries: &[Entry],
    retention: Retention,
    merging: &MergeResolver,
    bottom: bool,
    filter: Option<&LetterFilter>,
) -> Vec<Entry> {
    let entry_filter = filter.map(|filter| EntryFilter::new(filter, 1, bottom, None));
    let mut filter = VersionFilter::new(retention, merging)
        .with_entry_filter(entry_filter)
        .with_expiry_limit(EXPIRY_LIMIT_US);
    let mut cursor = VecCursor::new(entries.to_vec());
    let mut written: Vec<Entry> = Vec::new();
    let mut write = |key: InternalKey<'_>, value: &[u8], first: bool| {
        let new = written.last().is_none_or(|last| last.0 != key.user_key);
        assert_eq!(first, new, "first entry of a key");
        written.push((key.user_key.to_vec(), key.seq, key.kind, value.to_vec()));
        Ok(())
    };
    cursor.first().unwrap();
    while cursor.valid() {
        filter.add_entry(&cursor, &mut write).unwrap();
        cursor.next().unwrap();
    }
    filter.finish(&mut write).unwrap();
    let keys = |entry: &Entry| (entry.0.clone(), std::cmp::Reverse(entry.1));
    assert!(written.is_sorted_by_key(keys), "out of order: {written:?}");
    written
}

#[test]
fn filter_expired_entry_is_delete_and_later_expiry_is_kept_apart() {
    use EntryKind::{Delete, Merge, Put, PutExpiring};
    let merging = MergeResolver::new(KeyspaceName::new("test"), Some(Arc::new(Append::default())));
    let entry = |seq, kind, value: &[u8]| (b"k".to_vec(), SeqNo(seq), kind, value.to_vec());
    let expiring = |expiry_us| {
        let mut stored = Vec::new();
        put_expiring_value(&mut stored, expiry_us, b"base");
        entry(2, PutExpiring, &stored)
    };
    let (later, expired) = (expiring(EXPIRY_LIMIT_US + 1), expiring(EXPIRY_LIMIT_US));
    let operand = entry(3, Merge, b"2");
    let old = entry(1, Put, b"old");
    let kept = |entries: &[Entry], bottom| kept(entries, &[], &merging, bottom);
    assert_eq!(
        kept(&[operand.clone(), later.clone(), old.clone()], true),
        [operand.clone(), later.clone()]
    );
    assert_eq!(kept(&[operand.clone(), expired.clone(), old.clone()], true), [entry(3, Put, b"2")]);
    assert_eq!(kept(&[later.clone(), old.clone()], true), [later]);
    assert!(kept(&[expired.clone(), old.clone()], true).is_empty());
    assert_eq!(kept(&[expired, old], false), [entry(2, Delete, b"")]);
}

#[test]
fn filter_covered_tombstones_are_kept_below_puts_and_folded_operands() {
    use EntryKind::{Delete, Merge, Put};
    let merging = MergeResolver::new(KeyspaceName::new("test"), Some(Arc::new(Append::default())));
    let kept = |entries: &[(u64, EntryKind, &str)], bottom| {
        let retention = retention(&[], bottom).keep_covered_tombstones(true);
        summary(&filter_entries(&versions(entries), retention, &merging, bottom, None))
    };
    let tombstone = (4, Delete, String::new());
    let below_put = [(5, Put, "new"), (4, Delete, ""), (3, Delete, ""), (2, Put, "old")];
    assert_eq!(kept(&below_put, false), [(5, Put, "new".to_owned()), tombstone.clone()]);
    assert_eq!(kept(&below_put, true), [(5, Put, "new".to_owned())]);
    let below_operands = [(6, Merge, "b"), (5, Merge, "a"), (4, Delete, ""), (2, Put, "old")];
    assert_eq!(kept(&below_operands, false), [(6, Put, "ab".to_owned()), tombstone]);
    assert_eq!(kept(&below_operands, true), [(6, Put, "ab".to_owned())]);
}

fn full_range_run() -> Arc<lsmx_compaction::SortedRun> {
    use lsmx_compaction::{FileId, KeyRange, TableMeta, TreeShape};
    let range = KeyRange { smallest: Bytes::new(), largest: Bytes::from_static(&[255]) };
    let file = TableMeta { bytes: 1, entries: 1, ..TableMeta::new(FileId(1), range) };
    let shape = TreeShape::default().with_flushed_run(vec![Arc::new(file)]).unwrap().shape;
    Arc::clone(shape.runs().next().unwrap().1)
}

/// Returns the value of a key at `seq`, with `base` below all entries.
fn read_at(
    entries: &[Entry],
    key: u8,
    seq: u64,
    merging: &MergeResolver,
    base: Option<&[u8]>,
) -> Result<Option<Slice>, String> {
    let mut fold = OperandFold::default();
    let mut more = true;
    for entry in entries.iter().filter(|entry| entry.0 == [key] && entry.1.0 <= seq) {
        more = more && fold.push_older(entry.1, entry.2, Slice::from(entry.3.as_slice()));
    }
    if let (true, Some(base)) = (more, base) {
        fold.push_older(SeqNo::ZERO, EntryKind::Put, Slice::from(base));
    }
    fold.take_value(merging, &[key]).map_err(|error| error.to_string())
}

proptest! {
    /// Every reader that may exist after a job sees the same values as before.
    #[test]
    fn filter_any_entries_leave_readers_unchanged(
        versions in prop::collection::vec((0u8..3, 0u8..10, b'0'..b':'), 0..40),
        mut snapshots in prop::collection::vec(0u64..42, 0..4),
        operator in 0u8..4,
        bottom: bool,
        keeps_covered: bool,
    ) {
        let operator: Option<Arc<dyn MergeOperator>> = match operator {
            0 => Some(Arc::new(Append::default())),
            1 => Some(Arc::new(FullMergeAppend)),
            2 => Some(Arc::new(PartiallyFailing)),
            _ => None,
        };
        let merging = MergeResolver::new(KeyspaceName::new("test"), operator.clone());
        let entries = versions.iter().enumerate().map(|(at, &(key, kind, value))| {
            let kind = match kind {
                0 => EntryKind::Delete,
                1 => EntryKind::Put,
                _ => EntryKind::Merge,
            };
            let value = if kind == EntryKind::Delete { vec![] } else { vec![value] };
            (vec![key], SeqNo(at as u64 + 1), kind, value)
        });
        let entries = VecCursor::new(entries.collect()).entries;
        snapshots.sort_unstable();
        snapshots.dedup();
        let retention = retention(&snapshots, bottom).keep_covered_tombstones(keeps_covered);
        let after = filter_entries(&entries, retention, &merging, bottom, None);
        prop_assert!(after.len() <= entries.len());
        // Entries written without an operator are read with one.
        let reader = MergeResolver::new(KeyspaceName::new("test"), operator.or(Some(Arc::new(Append::default()))));
        for &seq in snapshots.iter().chain([&1_000]) {
            for key in 0..3 {
                let base = (!bottom).then_some(&b"base"[..]);
                prop_assert_eq!(
                    read_at(&after, key, seq, &reader, base),
                    read_at(&entries, key, seq, &reader, base),
                    "key {} at {} of {:?}, kept {:?}", key, seq, entries, after
                );
            }
        }
    }
}

fn operands(seqs: impl IntoIterator<Item = u64>) -> Vec<Entry> {
    let entry =
        |seq: u64| (b"k".to_vec(), SeqNo(seq), EntryKind::Merge, seq.to_string().into_bytes());
    let mut entries: Vec<Entry> = seqs.into_iter().map(entry).collect();
    entries.reverse();
    entries
}

fn summary(entries: &[Entry]) -> Vec<(u64, EntryKind, String)> {
    let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
    entries.iter().map(|(_, seq, kind, value)| (seq.0, *kind, text(value))).collect()
}

#[test]
fn filter_operands_fold_onto_base_or_at_last_run() {
    let merging = MergeResolver::new(KeyspaceName::new("test"), Some(Arc::new(FullMergeAppend)));
    let mut entries = operands(2..=4);
    let folded = [(4, EntryKind::Put, "234".to_owned())];
    assert_eq!(summary(&kept(&entries, &[], &merging, true)), folded);
    assert_eq!(kept(&entries, &[], &merging, false), entries, "an older run may hold a base");
    assert!(merging.has_unmergeable_operands());
    entries.push((b"k".to_vec(), SeqNo(1), EntryKind::Put, b"b".to_vec()));
    let folded = [(4, EntryKind::Put, "b234".to_owned())];
    assert_eq!(summary(&kept(&entries, &[], &merging, false)), folded);
    let at_two = kept(&entries, &[2], &merging, false);
    assert_eq!(summary(&at_two)[2..], [(2, EntryKind::Put, "b2".to_owned())]);
    assert_eq!(
        summary(&at_two)[..2],
        summary(&entries)[..2],
        "a snapshot separates operands and base"
    );
}

#[test]
fn filter_partial_merge_leaves_one_operand_per_stripe() {
    let merging = MergeResolver::new(KeyspaceName::new("test"), Some(Arc::new(Append::default())));
    let entries = operands(1..=9);
    let one = [(9, EntryKind::Merge, "123456789".to_owned())];
    assert_eq!(summary(&kept(&entries, &[], &merging, false)), one);
    let two = [(9, EntryKind::Merge, "56789".to_owned()), (4, EntryKind::Merge, "1234".to_owned())];
    assert_eq!(summary(&kept(&entries, &[4], &merging, false)), two);
    assert!(!merging.has_unmergeable_operands());
}

#[test]
fn filter_long_operand_chain_is_written_early() {
    let merging = MergeResolver::new(KeyspaceName::new("test"), Some(Arc::new(FullMergeAppend)));
    let entries = operands(1..=10_000);
    let after = kept(&entries, &[], &merging, true);
    let last_pending = 10_000 % PENDING_OPERANDS_MAX;
    assert_eq!(after.len(), 10_000 - last_pending + 1);
    let reader = |entries: &[Entry]| read_at(entries, b'k', 20_000, &merging, None);
    assert_eq!(reader(&after), reader(&entries));
}

fn versions(versions: &[(u64, EntryKind, &str)]) -> Vec<Entry> {
    let entry = |&(seq, kind, value): &(u64, EntryKind, &str)| {
        (b"k".to_vec(), SeqNo(seq), kind, value.as_bytes().to_vec())
    };
    versions.iter().map(entry).collect()
}

/// Returns what is kept of the versions, and the values that the filter has seen.
fn filtered(
    entries: &[(u64, EntryKind, &str)],
    snapshots: &[u64],
    bottom: bool,
) -> (Vec<(u64, EntryKind, String)>, Vec<String>) {
    let merging = MergeResolver::new(KeyspaceName::new("test"), Some(Arc::new(FullMergeAppend)));
    let filter = LetterFilter::default();
    let entries = versions(entries);
    let kept = kept_with_filter(&entries, snapshots, &merging, bottom, Some(&filter));
    let seen = filter.0.into_inner();
    let seen = seen.into_iter().map(|value| String::from_utf8(value).unwrap());
    (summary(&kept), seen.collect())
}

#[test]
fn filter_removed_value_leaves_tombstone_if_older_versions_may_exist() {
    use EntryKind::{Delete, Put};
    let entries = [(3, Put, "r"), (1, Put, "old")];
    let seen = vec!["r".to_owned()];
    assert_eq!(filtered(&entries, &[], true), (vec![], seen.clone()));
    let tombstone = (3, Delete, String::new());
    assert_eq!(filtered(&entries, &[], false), (vec![tombstone.clone()], seen.clone()));
    let older = (1, Put, "old".to_owned());
    assert_eq!(filtered(&entries, &[2], true), (vec![tombstone, older], seen));
    let kept = versions(&entries);
    assert_eq!(filtered(&entries, &[2, 3], true), (summary(&kept), vec![]));
}

#[test]
fn filter_sees_newest_version_with_folded_operands() {
    use EntryKind::{Delete, Merge, Put};
    let changed = |seq, value: &str| vec![(seq, Put, value.to_owned())];
    let seen = |value: &str| vec![value.to_owned()];
    let entries = [(5, Merge, "2"), (4, Merge, "1"), (3, Put, "c"), (2, Put, "r")];
    assert_eq!(filtered(&entries, &[], false), (changed(5, "c12x"), seen("c12")));
    // A snapshot separates the operands from the base, so neither is a complete value.
    assert_eq!(filtered(&entries, &[3], false).1, Vec::<String>::new());
    let operands = [(5, Merge, "r"), (4, Merge, "1")];
    assert_eq!(filtered(&operands, &[], false).1, Vec::<String>::new());
    assert_eq!(filtered(&operands, &[], true), (vec![], seen("1r")));
    let over_delete = [(5, Merge, "r"), (4, Delete, "")];
    let tombstone = vec![(5, Delete, String::new())];
    assert_eq!(filtered(&over_delete, &[], false), (tombstone, seen("r")));
    assert_eq!(filtered(&[(5, Delete, ""), (4, Put, "r")], &[], true), (vec![], vec![]));
}
