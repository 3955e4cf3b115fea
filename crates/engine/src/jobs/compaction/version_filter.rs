//! Filters the entries of a job: drops invisible versions, folds merge operands and calls the compaction filter.
//!
//! Entries arrive newest first. Operands of a key are collected until their base is known:
//!
//! - A put or a delete of the same stripe, or a range tombstone of the stripe: operands and base become one put with
//!   the sequence number of the newest operand.
//! - The end of the key, with no older version anywhere: the same without a base.
//! - The end of the stripe, or the end of the key with possible older versions: operands that support partial
//!   merges are combined pairwise, each with the newer sequence number. Others are written unchanged.
//!
//! Operands are never combined across a snapshot, which would then see the newer ones. Operands that cannot be
//! folded (no operator, a failing operator, an oversized result) are written unchanged, which is always correct.
//!
//! With a bound for deleted values, a delete that is a base is also written below the put if an older run may hold the key,
//! so that its age remains known.
//!
//! An entry whose expiry time has passed for all readers is a delete. Operands are not folded onto a base that expires
//! later, because the base may expire between two reads, and the operands stay. Base and operands are then kept apart.
//!
//! The newest version of a key is passed to the compaction filter if it is a value, folded or not, that no snapshot sees.
//! A removed value leaves a tombstone if an older version may exist.

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_base::slice::Slice;

use crate::compaction_filter::FilterDecision;
use crate::cursor::Cursor;
use crate::error::Result;
use crate::format::expiry::{expiry_of, put_expiring_value, split_expiry, without_expiry};
use crate::format::range_tombstones::FragmentedTombstones;
use crate::iter::range_tombstone_filter::RangeTombstoneFilter;
use crate::jobs::compaction::entry_filter::{EntryFilter, FilterOutcome};
use crate::jobs::compaction::retention::{EntryDecision, Retention};
use crate::jobs::value_log::output_values::ValueSource;
use crate::merge_operator::MergeOperator;
use crate::metrics::ExpiryMetrics;
use crate::table::{ReadContext, ReadPurpose};
use crate::tree::merge_resolver::MergeResolver;

/// Maximum number of pending operands. At this number they are combined and written.
const PENDING_OPERANDS_MAX: usize = 4096;
/// Maximum size of pending operands, in bytes.
const PENDING_BYTES_MAX: usize = 16 << 20;

/// Receives all entries of a job in order and writes the ones to be kept.
#[derive(Debug)]
pub(crate) struct VersionFilter<'a> {
    retention: Retention,
    merging: &'a MergeResolver,
    /// Merge operator of the keyspace. Without it, the job writes operands unchanged.
    operator: Option<&'a dyn MergeOperator>,
    /// Operands of one key and one stripe, newest first.
    pending: Vec<(SeqNo, Slice)>,
    pending_bytes: usize,
    /// Key of the pending operands.
    user_key: Vec<u8>,
    stripe: usize,
    /// Whether an entry of the current key was written.
    wrote_key: bool,
    /// Blob files that bases point into.
    values: ValueSource,
    /// Compaction filter of the keyspace.
    entry_filter: Option<EntryFilter<'a>>,
    /// Time up to which entries have expired for all readers, in microseconds.
    expiry_limit_us: u64,
    expired: ExpiredEntries,
}

/// Entries that a job dropped or replaced by tombstones because they had expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpiredEntries {
    pub(crate) entries: u64,
    /// Size of their keys and of their values as stored in tables, in bytes.
    pub(crate) bytes: u64,
}

impl ExpiredEntries {
    pub(crate) fn add(&mut self, other: ExpiredEntries) {
        self.entries += other.entries;
        self.bytes += other.bytes;
    }

    /// Adds the counts to those of a keyspace.
    pub(crate) fn add_to(self, metrics: &mut ExpiryMetrics) {
        metrics.entries += self.entries;
        metrics.bytes += self.bytes;
    }
}

/// State of the versions below the pending operands.
enum FoldBase<'a> {
    /// A put with this value, or a delete.
    Value(Option<&'a [u8]>),
    /// The job has no further version of the key.
    EndOfKey,
    /// Further versions exist that cannot be folded, or cannot be folded yet.
    Unknown,
}

impl<'a> VersionFilter<'a> {
    /// Creates a filter for one job of one keyspace.
    pub(crate) fn new(retention: Retention, merging: &'a MergeResolver) -> VersionFilter<'a> {
        VersionFilter {
            retention,
            merging,
            operator: merging.operator().ok(),
            pending: Vec::new(),
            pending_bytes: 0,
            user_key: Vec::new(),
            stripe: 0,
            wrote_key: false,
            values: ValueSource::default(),
            entry_filter: None,
            expiry_limit_us: 0,
            expired: ExpiredEntries::default(),
        }
    }

    /// Drops entries that expire at or before this time, in microseconds. All readers must see them as expired.
    pub(crate) fn with_expiry_limit(self, expiry_limit_us: u64) -> VersionFilter<'a> {
        VersionFilter { expiry_limit_us, ..self }
    }

    /// Returns the number and the size of the entries that had expired.
    pub(crate) fn expired(&self) -> ExpiredEntries {
        self.expired
    }

    /// Sets the compaction filter.
    pub(crate) fn with_entry_filter(self, filter: Option<EntryFilter<'a>>) -> VersionFilter<'a> {
        VersionFilter { entry_filter: filter, ..self }
    }

    /// Returns the results of the compaction filter.
    pub(crate) fn into_filter_outcome(self) -> FilterOutcome {
        self.entry_filter.map(EntryFilter::into_outcome).unwrap_or_default()
    }

    /// Sets the blob files that the entries point into.
    pub(crate) fn with_value_source(self, values: ValueSource) -> VersionFilter<'a> {
        VersionFilter { values, ..self }
    }

    /// Adds range tombstones; see [`Retention::add_range_tombstones`].
    pub(crate) fn add_range_tombstones(
        &mut self,
        tombstones: &[RangeTombstone],
        keys: Option<(&[u8], &[u8])>,
    ) -> Vec<RangeTombstone> {
        self.retention.add_range_tombstones(tombstones, keys)
    }

    /// Returns the range tombstones that were added, as fragments with one sequence number per snapshot stripe.
    pub(crate) fn range_tombstones(&self) -> &[RangeTombstone] {
        let deleted = self.retention.deleted.as_ref();
        deleted
            .and_then(RangeTombstoneFilter::job_tombstones)
            .map_or(&[], FragmentedTombstones::as_slice)
    }

    /// Adds the entry at `cursor`. `write` receives each kept entry in order: key, value, and whether it is the first
    /// entry of its user key.
    ///
    /// # Errors
    /// Errors of `write`, or if the value of a base cannot be read.
    pub(crate) fn add_entry(
        &mut self,
        cursor: &impl Cursor,
        write: &mut impl FnMut(InternalKey<'_>, &[u8], bool) -> Result<()>,
    ) -> Result<()> {
        let mut key = cursor.key();
        let is_expired = key.kind.is_expiring() && self.is_expired(cursor.value());
        if is_expired {
            key.kind = EntryKind::Delete;
        }
        let decision = self.retention.decide_entry(key);
        if !self.pending.is_empty() && self.is_end_of_operands(&decision) {
            let base = if decision.first_of_key { FoldBase::EndOfKey } else { FoldBase::Unknown };
            self.write_pending_operands(&base, write)?;
        }
        self.wrote_key &= !decision.first_of_key;
        if decision.range_deleted {
            // Pending operands are newer than the range tombstone, which is their base.
            return self.write_pending_operands(&FoldBase::Value(None), write).map(drop);
        }
        if key.kind == EntryKind::Merge && !decision.shadowed && self.operator.is_some() {
            return self.push_operand(key, decision.stripe, cursor.value_slice(), write);
        }
        if is_expired && !decision.shadowed {
            self.expired.entries += 1;
            self.expired.bytes += len_u64(key.user_key.len() + cursor.value().len());
        }
        if !self.pending.is_empty() && (is_kept_apart(key) || self.is_quarantined(key, cursor)?) {
            // The base expires later or cannot be read, so the operands are not folded.
            self.write_pending_operands(&FoldBase::Unknown, write)?;
        }
        if !self.pending.is_empty() && key.kind != EntryKind::Merge {
            let stored = without_expiry(key.kind, cursor.value());
            let pointed = match key.kind.without_expiry() {
                EntryKind::ValuePointer => Some(self.read_value(key, stored)?),
                _ => None,
            };
            let base = match key.kind {
                EntryKind::Delete => None,
                _ => Some(pointed.as_deref().unwrap_or(stored)),
            };
            if self.write_pending_operands(&FoldBase::Value(base), write)? {
                return match decision.kept_below_fold {
                    true => self.write_kept(key, decision.stripe, cursor, write),
                    false => Ok(()),
                };
            }
        }
        if decision.kept {
            // Pending operands are newer, and this entry is no base for them.
            self.write_pending_operands(&FoldBase::Unknown, write)?;
            if is_expired && failpoint::is_on(Failpoint::ExpiryUncoversOlderVersion) {
                return Ok(());
            }
            return self.write_kept(key, decision.stripe, cursor, write);
        }
        Ok(())
    }

    /// Returns whether an expiring entry with this stored value has expired for all readers.
    #[cold]
    fn is_expired(&self, stored: &[u8]) -> bool {
        split_expiry(stored).0 <= self.expiry_limit_us
    }

    /// Writes the current entry, which the retention rules keep, as the compaction filter decides. `key` has the kind
    /// delete if the entry has expired.
    fn write_kept(
        &mut self,
        key: InternalKey<'_>,
        stripe: usize,
        cursor: &impl Cursor,
        write: &mut impl FnMut(InternalKey<'_>, &[u8], bool) -> Result<()>,
    ) -> Result<()> {
        let (kind, changed) = match key.kind.is_value()
            && self.may_filter(stripe)
            && !self.is_quarantined(key, cursor)?
        {
            true => match self.filter_value(key, cursor.value()) {
                FilterDecision::Keep => (key.kind, None),
                FilterDecision::Change(value) => match expiry_of(key.kind, cursor.value()) {
                    None => (EntryKind::Put, Some(value)),
                    Some(expiry_us) => {
                        let mut stored = Vec::new();
                        put_expiring_value(&mut stored, expiry_us, &value);
                        (EntryKind::PutExpiring, Some(stored))
                    }
                },
                FilterDecision::Remove if self.needs_removal_tombstone(stripe, key.user_key) => {
                    (EntryKind::Delete, Some(Vec::new()))
                }
                FilterDecision::Remove => return Ok(()),
            },
            false => (key.kind, None),
        };
        let first = !std::mem::replace(&mut self.wrote_key, true);
        let value = match kind {
            EntryKind::Delete => &[],
            _ => changed.as_deref().unwrap_or_else(|| cursor.value()),
        };
        write(InternalKey { kind, ..key }, value, first)
    }

    /// Whether the compaction filter may see a value: it is the newest version of its key, and no snapshot sees it.
    fn may_filter(&self, stripe: usize) -> bool {
        self.entry_filter.is_some() && !self.wrote_key && self.retention.is_newest_stripe(stripe)
    }

    fn filter_value(&mut self, key: InternalKey<'_>, value: &[u8]) -> FilterDecision {
        let filter = self.entry_filter.as_mut();
        filter.map_or(FilterDecision::Keep, |filter| filter.decide(key, value, &self.values))
    }

    /// Whether a removed value must leave a tombstone.
    fn needs_removal_tombstone(&self, stripe: usize, user_key: &[u8]) -> bool {
        self.retention.needs_tombstone(stripe, user_key)
            && !failpoint::is_on(Failpoint::FilterUncoversOlderVersion)
    }

    /// Folds the pending operands onto `base`, the value of all older versions, even if the operands and `base` are in
    /// different snapshot stripes.
    ///
    /// # Errors
    /// Errors of `write`.
    pub(crate) fn finish_key_with_base(
        &mut self,
        base: Option<&[u8]>,
        write: &mut impl FnMut(InternalKey<'_>, &[u8], bool) -> Result<()>,
    ) -> Result<()> {
        self.write_pending_operands(&FoldBase::Value(base), write).map(drop)
    }

    /// Writes the pending operands after the last entry.
    ///
    /// # Errors
    /// Errors of `write`.
    pub(crate) fn finish(
        &mut self,
        write: &mut impl FnMut(InternalKey<'_>, &[u8], bool) -> Result<()>,
    ) -> Result<()> {
        self.write_pending_operands(&FoldBase::EndOfKey, write).map(drop)
    }

    /// Whether the current entry points into a quarantined blob file.
    fn is_quarantined(&self, key: InternalKey<'_>, cursor: &impl Cursor) -> Result<bool> {
        if self.values.quarantined.is_empty()
            || key.kind.without_expiry() != EntryKind::ValuePointer
        {
            return Ok(false);
        }
        let (file, _) = self.values.blobs.locate(without_expiry(key.kind, cursor.value()))?;
        Ok(self.values.quarantined.contains(&file.record().id))
    }

    /// Reads the value that an entry points to.
    fn read_value(&self, key: InternalKey<'_>, pointer: &[u8]) -> Result<Slice> {
        let mut access = ReadContext::new(ReadPurpose::Job);
        self.values.blobs.read_value((key.user_key, key.seq), pointer, &mut access)
    }

    fn is_end_of_operands(&self, decision: &EntryDecision) -> bool {
        decision.first_of_key
            || (decision.stripe != self.stripe
                && !failpoint::is_on(Failpoint::OperandsFoldedOverSnapshot))
    }

    fn push_operand(
        &mut self,
        key: InternalKey<'_>,
        stripe: usize,
        operand: Slice,
        write: &mut impl FnMut(InternalKey<'_>, &[u8], bool) -> Result<()>,
    ) -> Result<()> {
        if self.pending.is_empty() {
            self.user_key.clear();
            self.user_key.extend_from_slice(key.user_key);
            self.stripe = stripe;
        }
        self.pending_bytes += operand.len();
        self.pending.push((key.seq, operand));
        if self.pending.len() >= PENDING_OPERANDS_MAX || self.pending_bytes >= PENDING_BYTES_MAX {
            self.write_pending_operands(&FoldBase::Unknown, write)?;
        }
        Ok(())
    }

    /// Writes the pending operands, folded as far as possible. Returns whether they were folded onto a base.
    fn write_pending_operands(
        &mut self,
        fold_base: &FoldBase<'_>,
        write: &mut impl FnMut(InternalKey<'_>, &[u8], bool) -> Result<()>,
    ) -> Result<bool> {
        let (Some(operator), Some(&(newest, _))) = (self.operator, self.pending.first()) else {
            return Ok(false);
        };
        self.pending_bytes = 0;
        let mut operands = std::mem::take(&mut self.pending);
        let base = match fold_base {
            FoldBase::Value(_) if failpoint::is_on(Failpoint::FoldIgnoresBaseValue) => Some(None),
            FoldBase::Value(base) => Some(*base),
            FoldBase::EndOfKey if !self.retention.may_have_older_versions(&self.user_key) => {
                Some(None)
            }
            FoldBase::EndOfKey | FoldBase::Unknown => None,
        };
        let values = || operands.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>();
        let folded = base
            .and_then(|base| self.merging.merge_for_job(operator, &self.user_key, base, &values()));
        if let Some(value) = folded {
            let value = self.filter_folded(newest, value);
            let needed = || match fold_base {
                FoldBase::Value(_) => self.retention.needs_tombstone(self.stripe, &self.user_key),
                // No older version exists that a tombstone could hide.
                FoldBase::EndOfKey | FoldBase::Unknown => false,
            };
            match value {
                Some(value) => self.write(newest, EntryKind::Put, &value, write)?,
                None if needed() => self.write(newest, EntryKind::Delete, &[], write)?,
                None => {}
            }
            return Ok(true);
        }
        if base.is_none() {
            operands = self.fold_partially(operator, operands);
        }
        for (seq, operand) in &operands {
            self.write(*seq, EntryKind::Merge, operand, write)?;
        }
        // Keeps the allocation for the next key.
        operands.clear();
        self.pending = operands;
        Ok(false)
    }

    /// Passes a value that was folded from the pending operands to the compaction filter, if the filter may see it.
    /// Returns `None` if the key has no value.
    fn filter_folded(&mut self, seq: SeqNo, value: Option<Vec<u8>>) -> Option<Vec<u8>> {
        let value = value?;
        if !self.may_filter(self.stripe) {
            return Some(value);
        }
        let user_key = std::mem::take(&mut self.user_key);
        let key = InternalKey { user_key: &user_key, seq, kind: EntryKind::Put };
        let decision = self.filter_value(key, &value);
        self.user_key = user_key;
        match decision {
            FilterDecision::Keep => Some(value),
            FilterDecision::Change(value) => Some(value),
            FilterDecision::Remove => None,
        }
    }

    /// Combines adjacent operands in rounds, so that each byte is copied a logarithmic number of times.
    fn fold_partially(
        &self,
        operator: &dyn MergeOperator,
        mut operands: Vec<(SeqNo, Slice)>,
    ) -> Vec<(SeqNo, Slice)> {
        loop {
            let count = operands.len();
            let mut merged: Vec<(SeqNo, Slice)> = Vec::with_capacity(count.div_ceil(2));
            let mut remaining = operands.into_iter().peekable();
            while let Some((seq, newer)) = remaining.next() {
                let pair = remaining.peek().and_then(|(_, older)| {
                    self.merging.merge_partial_for_job(operator, &self.user_key, older, &newer)
                });
                match pair {
                    Some(combined) => {
                        remaining.next();
                        merged.push((seq, Slice::from(combined)));
                    }
                    None => merged.push((seq, newer)),
                }
            }
            operands = merged;
            if operands.len() == count {
                return operands;
            }
        }
    }

    fn write(
        &mut self,
        seq: SeqNo,
        kind: EntryKind,
        value: &[u8],
        write: &mut impl FnMut(InternalKey<'_>, &[u8], bool) -> Result<()>,
    ) -> Result<()> {
        let first = !std::mem::replace(&mut self.wrote_key, true);
        write(InternalKey { user_key: &self.user_key, seq, kind }, value, first)
    }
}

/// Whether newer operands must not be folded onto this base, because it expires later.
fn is_kept_apart(base: InternalKey<'_>) -> bool {
    base.kind.is_expiring() && !failpoint::is_on(Failpoint::OperandsFoldedOntoExpiringBase)
}

#[cfg(test)]
mod tests {
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

    fn kept(
        entries: &[Entry],
        snapshots: &[u64],
        merging: &MergeResolver,
        bottom: bool,
    ) -> Vec<Entry> {
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
        let merging =
            MergeResolver::new(KeyspaceName::new("test"), Some(Arc::new(Append::default())));
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
        assert_eq!(
            kept(&[operand.clone(), expired.clone(), old.clone()], true),
            [entry(3, Put, b"2")]
        );
        assert_eq!(kept(&[later.clone(), old.clone()], true), [later]);
        assert!(kept(&[expired.clone(), old.clone()], true).is_empty());
        assert_eq!(kept(&[expired, old], false), [entry(2, Delete, b"")]);
    }

    #[test]
    fn filter_covered_tombstones_are_kept_below_puts_and_folded_operands() {
        use EntryKind::{Delete, Merge, Put};
        let merging =
            MergeResolver::new(KeyspaceName::new("test"), Some(Arc::new(Append::default())));
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
        let merging =
            MergeResolver::new(KeyspaceName::new("test"), Some(Arc::new(FullMergeAppend)));
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
        let merging =
            MergeResolver::new(KeyspaceName::new("test"), Some(Arc::new(Append::default())));
        let entries = operands(1..=9);
        let one = [(9, EntryKind::Merge, "123456789".to_owned())];
        assert_eq!(summary(&kept(&entries, &[], &merging, false)), one);
        let two =
            [(9, EntryKind::Merge, "56789".to_owned()), (4, EntryKind::Merge, "1234".to_owned())];
        assert_eq!(summary(&kept(&entries, &[4], &merging, false)), two);
        assert!(!merging.has_unmergeable_operands());
    }

    #[test]
    fn filter_long_operand_chain_is_written_early() {
        let merging =
            MergeResolver::new(KeyspaceName::new("test"), Some(Arc::new(FullMergeAppend)));
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
        let merging =
            MergeResolver::new(KeyspaceName::new("test"), Some(Arc::new(FullMergeAppend)));
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
}
