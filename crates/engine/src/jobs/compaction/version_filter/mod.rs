//! Filters the entries of a job: drops invisible versions, folds merge operands and calls the compaction filter.
//!
//! Entries arrive in internal-key order, so the newest version of a key comes first. Operands of a key are collected
//! until one of these conditions holds:
//!
//! - A put or a delete of the same stripe follows, or a range tombstone of the stripe covers the next entry. Operands
//!   and base become one put with the sequence number of the newest operand.
//! - The key ends, and no older version exists anywhere. The operands are folded without a base.
//! - The stripe ends, or the key ends and older versions may exist. Operands that support partial merges are combined
//!   pairwise, and each result has the sequence number of the newer operand. Other operands are written unchanged.
//!
//! Operands are never combined across a snapshot. Otherwise, the snapshot would see operands that are newer than the
//! snapshot. Operands that cannot be folded are written unchanged, which is always correct. This applies if there is no
//! merge operator, if the operator fails, or if the result is too large.
//!
//! Operands may be folded onto a delete. If the keyspace has a delete persistence bound, the delete is then also
//! written below the put, as long as an older run may contain the key. The age of the delete therefore remains known.
//!
//! An entry that has expired for all readers is treated as a delete. Operands are not folded onto a base that expires
//! later. The base may expire between two reads, but the operands remain. Base and operands are therefore written
//! separately.
//!
//! The newest version of a key is passed to the compaction filter if it is a value that no snapshot sees. The value may
//! be the result of a fold. If the filter removes the value, and an older version may exist, a tombstone is written.

#[cfg(test)]
mod tests;

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

/// Maximum number of pending operands. When this number is reached, the operands are combined and written.
const PENDING_OPERANDS_MAX: usize = 4096;
/// Maximum size of pending operands, in bytes.
const PENDING_BYTES_MAX: usize = 16 << 20;

/// Receives all entries of a job in order, and writes the entries that must be kept.
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
    /// True if an entry of the current key was written.
    wrote_key: bool,
    /// Blob files to which the entries may point.
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
    /// Total size in bytes of the keys and of the values as stored in tables.
    pub(crate) bytes: u64,
}

impl ExpiredEntries {
    pub(crate) fn add(&mut self, other: ExpiredEntries) {
        self.entries += other.entries;
        self.bytes += other.bytes;
    }

    /// Adds the counts to the metrics of a keyspace.
    pub(crate) fn add_to(self, metrics: &mut ExpiryMetrics) {
        metrics.entries += self.entries;
        metrics.bytes += self.bytes;
    }
}

/// Base of the pending operands.
enum FoldBase<'a> {
    /// The base is a put with this value, or a delete.
    Value(Option<&'a [u8]>),
    /// The job has no further version of the key.
    EndOfKey,
    /// Further versions of the key may exist, but the operands cannot be folded onto them, or not yet.
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

    /// Sets the time in microseconds up to which entries have expired for all readers. These entries are treated as
    /// deletes.
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

    /// Sets the blob files to which the entries may point.
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

    /// Adds the entry at `cursor`. Calls `write` for each kept entry in order, with the key, the value, and true if it
    /// is the first written entry of its user key.
    ///
    /// # Errors
    /// Returns errors of `write`, and fails if the value of a base cannot be read.
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
            // The range tombstone is the base of the pending operands, which are newer.
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
            // The operands are not folded, because the base expires later or cannot be read.
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
            // The pending operands are newer than this entry, which cannot be their base.
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

    /// Writes the current entry, which the retention rules keep. The compaction filter may change or remove the entry.
    /// `key` has the kind delete if the entry has expired.
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

    /// Returns true if the compaction filter may see a value: it is the newest version of its key, and no snapshot sees
    /// it.
    fn may_filter(&self, stripe: usize) -> bool {
        self.entry_filter.is_some() && !self.wrote_key && self.retention.is_newest_stripe(stripe)
    }

    fn filter_value(&mut self, key: InternalKey<'_>, value: &[u8]) -> FilterDecision {
        let filter = self.entry_filter.as_mut();
        filter.map_or(FilterDecision::Keep, |filter| filter.decide(key, value, &self.values))
    }

    /// Returns true if a tombstone must be written in place of a removed value.
    fn needs_removal_tombstone(&self, stripe: usize, user_key: &[u8]) -> bool {
        self.retention.needs_tombstone(stripe, user_key)
            && !failpoint::is_on(Failpoint::FilterUncoversOlderVersion)
    }

    /// Folds the pending operands onto `base`, the combined value of all older versions. The operands and `base` may be
    /// in different snapshot stripes.
    ///
    /// # Errors
    /// Returns errors of `write`.
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
    /// Returns errors of `write`.
    pub(crate) fn finish(
        &mut self,
        write: &mut impl FnMut(InternalKey<'_>, &[u8], bool) -> Result<()>,
    ) -> Result<()> {
        self.write_pending_operands(&FoldBase::EndOfKey, write).map(drop)
    }

    /// Returns true if the current entry points to a quarantined blob file.
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

    /// Writes the pending operands, folded as far as possible. Returns true if all of them were folded into one value
    /// or delete.
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

/// Returns true if newer operands must not be folded onto this base, because the base expires later.
fn is_kept_apart(base: InternalKey<'_>) -> bool {
    base.kind.is_expiring() && !failpoint::is_on(Failpoint::OperandsFoldedOntoExpiringBase)
}
