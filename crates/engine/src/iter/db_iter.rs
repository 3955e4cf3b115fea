//! Iterator over the entries that are visible at a snapshot.
//!
//! The iterator returns the newest visible version of each key and combines merge operands. It skips tombstones, and
//! entries that range tombstones hide.

use std::fmt;
use std::ops::Bound;

use bytes::Bytes;
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::cursor::Cursor;
use crate::error::{Error, Result};
use crate::iter::key_bounds::{is_above, is_below};
use crate::iter::operand_fold::OperandFold;
use crate::iter::range_tombstone_filter::RangeTombstoneFilter;
use crate::table::{ReadContext, ReadDeadline};
use crate::tree::blob_set::BlobSet;
use crate::tree::merge_resolver::MergeResolver;
use crate::tree::snapshots::ReadPoint;
use crate::value_log::BlobScan;

/// Number of versions of a key that are skipped one by one before the iterator seeks to the next key.
const STEPS_BEFORE_SEEK: usize = 8;

/// Maximum number of versions that one move visits if the iterator has a step limit. Also the number of versions
/// between two checks of a deadline.
const STEPS_PER_MOVE_MAX: u64 = 1024;

/// First sequence number of uncommitted writes. Uncommitted writes are newer than all commits and are sorted before
/// them.
pub(crate) const FIRST_OWN_SEQ: SeqNo = SeqNo(SeqNo::MAX.0 - u32::MAX as u64);

/// Location of the current entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IterPosition {
    /// There is no current entry.
    Invalid,
    /// The current entry is that of `inner`.
    Forward,
    /// The current entry is in `key` and `value`. `inner` is at a version of this key or at the first version of the
    /// next key.
    Merged,
    /// The current entry is in `key` and `value`. `inner` is before all versions of this key.
    Backward,
}

/// Reads values from the value log for an iterator.
#[derive(Debug)]
pub(crate) struct ValueResolver {
    blobs: Arc<BlobSet>,
    scan: BlobScan,
    context: ReadContext,
}

impl ValueResolver {
    /// Creates a resolver for the blob files of a super version.
    pub(crate) fn new(blobs: &Arc<BlobSet>, context: ReadContext) -> ValueResolver {
        ValueResolver { blobs: Arc::clone(blobs), scan: BlobScan::default(), context }
    }

    /// Reads the value of an entry. `pointer` is the encoded value pointer of the entry.
    pub(crate) fn read(&mut self, entry: (&[u8], SeqNo), pointer: &[u8]) -> Result<Slice> {
        self.blobs.read_value_in_scan(&mut self.scan, entry, pointer, &mut self.context)
    }
}

/// Bidirectional iterator over the visible entries of a cursor over all versions.
///
/// A forward move copies only the keys of skipped versions.
pub(crate) struct DbIter<C> {
    inner: C,
    snapshot: SeqNo,
    /// Largest visible sequence number of the uncommitted writes in `inner`. `SeqNo::ZERO` if there are none.
    last_own_seq: SeqNo,
    /// Time that determines which entries have expired, in microseconds. It is the same for all moves.
    time_us: u64,
    /// Range tombstones that are visible at the snapshot.
    deleted: Option<RangeTombstoneFilter>,
    position: IterPosition,
    key: Vec<u8>,
    value: Slice,
    /// Sequence number of the current entry if its value is in the value log.
    pointer_seq: Option<SeqNo>,
    /// Expiry time of the base of the current entry, in microseconds, if the entry is in `value`.
    expiry_us: Option<u64>,
    /// Error of combining the operands of the current entry.
    merge_error: Option<Box<Error>>,
    resolver: Arc<MergeResolver>,
    values: ValueResolver,
    /// Maximum number of versions that one move visits.
    steps_max: u64,
    /// Number of versions that the current move may still visit.
    remaining_steps: u64,
    /// Deadline of each move. It is checked after every `steps_max` versions.
    deadline: Option<Arc<ReadDeadline>>,
    /// Range of keys that the caller needs. Outside of this range, a move does not skip invisible entries and does not
    /// combine operands.
    limits: (Bound<Bytes>, Bound<Bytes>),
}

impl<C: Cursor> DbIter<C> {
    /// Creates an iterator over the entries of `inner` that are visible at `read_point` and not hidden by `deleted`.
    ///
    /// The iterator is not valid until it is positioned.
    pub(crate) fn new(
        inner: C,
        read_point: ReadPoint,
        deleted: Option<RangeTombstoneFilter>,
        resolver: Arc<MergeResolver>,
        values: ValueResolver,
    ) -> DbIter<C> {
        let (key, value) = (Vec::new(), Slice::default());
        DbIter {
            inner,
            snapshot: read_point.seq,
            last_own_seq: SeqNo::ZERO,
            time_us: read_point.time_us,
            deleted,
            position: IterPosition::Invalid,
            key,
            value,
            pointer_seq: None,
            expiry_us: None,
            merge_error: None,
            resolver,
            values,
            steps_max: u64::MAX,
            remaining_steps: u64::MAX,
            deadline: None,
            limits: (Bound::Unbounded, Bound::Unbounded),
        }
    }

    /// Makes a move end at the first invisible entry or operand outside of `limits`. The iterator is then not valid.
    pub(crate) fn with_limits(self, limits: (Bound<Bytes>, Bound<Bytes>)) -> DbIter<C> {
        DbIter { limits, ..self }
    }

    /// Makes moves that visit too many versions fail with [`Error::WouldBlock`]. After an error, the iterator must be
    /// positioned again.
    pub(crate) fn with_step_limit(self) -> DbIter<C> {
        DbIter { steps_max: STEPS_PER_MOVE_MAX, ..self }
    }

    /// Makes moves fail with [`Error::Deadline`] after the deadline.
    pub(crate) fn with_deadline(self, deadline: Arc<ReadDeadline>) -> DbIter<C> {
        DbIter { steps_max: STEPS_PER_MOVE_MAX, deadline: Some(deadline), ..self }
    }

    /// Makes the iterator also return uncommitted writes up to the sequence number `last_own_seq`. Their sequence
    /// numbers start at [`FIRST_OWN_SEQ`].
    pub(crate) fn with_own_writes(self, last_own_seq: SeqNo) -> DbIter<C> {
        DbIter { last_own_seq, ..self }
    }

    /// Returns whether a version is visible: whether it is in the snapshot, or is a visible uncommitted write.
    #[inline]
    fn is_visible(&self, seq: SeqNo) -> bool {
        seq <= self.snapshot || (FIRST_OWN_SEQ <= seq && seq <= self.last_own_seq)
    }

    /// Returns the largest sequence number that may be visible among the versions older than an invisible version.
    fn next_visible_limit(&self, invisible: SeqNo) -> SeqNo {
        if invisible < FIRST_OWN_SEQ { self.snapshot } else { self.last_own_seq.max(self.snapshot) }
    }

    /// Starts a move. Returns the previous position.
    #[inline]
    fn begin_move(&mut self) -> IterPosition {
        self.remaining_steps = self.steps_max;
        self.merge_error = None;
        std::mem::replace(&mut self.position, IterPosition::Invalid)
    }

    /// Counts a visited version. Fails if the move must not visit further versions.
    #[inline]
    fn count_step(&mut self) -> Result<()> {
        match self.remaining_steps.checked_sub(1) {
            Some(remaining) => self.remaining_steps = remaining,
            None => self.renew_steps()?,
        }
        Ok(())
    }

    /// Allows further steps of a move if its deadline has not passed.
    #[cold]
    fn renew_steps(&mut self) -> Result<()> {
        self.deadline.as_ref().ok_or(Error::WouldBlock)?.check()?;
        self.remaining_steps = self.steps_max;
        Ok(())
    }

    /// Returns whether the iterator is at an entry.
    pub(crate) fn valid(&self) -> bool {
        self.position != IterPosition::Invalid
    }

    /// Returns the key of the current entry. The iterator must be valid.
    pub(crate) fn key(&self) -> &[u8] {
        match self.position {
            IterPosition::Backward | IterPosition::Merged => &self.key,
            _ => self.inner.key().user_key,
        }
    }

    /// Returns the value of the current entry, or its encoded value pointer if the value is in the value log. The
    /// iterator must be valid.
    ///
    /// # Errors
    /// [`Error::MergeFailed`] if the operands of this key cannot be combined. The iterator can still be moved.
    pub(crate) fn stored_value(&self) -> Result<&[u8]> {
        match (self.position, &self.merge_error) {
            (IterPosition::Backward | IterPosition::Merged, Some(why)) => Err((**why).clone()),
            (IterPosition::Backward | IterPosition::Merged, None) => Ok(&self.value),
            _ => Ok(self.inner.value()),
        }
    }

    /// Returns the value of the current entry. Reads it from the value log if necessary. The iterator must be valid.
    ///
    /// # Errors
    /// - The error of a read, if the value cannot be read.
    /// - [`Error::WouldBlock`] if files must not be read. The call may be repeated.
    /// - [`Error::MergeFailed`] if the operands of this key cannot be combined. The iterator can still be moved.
    #[inline]
    pub(crate) fn value_slice(&mut self) -> Result<Slice> {
        match self.position {
            IterPosition::Backward | IterPosition::Merged => {
                match (&self.merge_error, self.pointer_seq) {
                    (Some(why), _) => Err((**why).clone()),
                    (None, None) => Ok(self.value.clone()),
                    (None, Some(seq)) => self.values.read((&self.key, seq), &self.value),
                }
            }
            _ => match self.pointer_seq {
                None => Ok(self.inner.value_slice()),
                Some(seq) => self.values.read((self.inner.key().user_key, seq), self.inner.value()),
            },
        }
    }

    /// Returns the expiry time of the current entry, in microseconds. For a merged value it is that of the base. The iterator
    /// must be valid.
    pub(crate) fn expiry_us(&self) -> Option<u64> {
        match self.position {
            IterPosition::Backward | IterPosition::Merged => self.expiry_us,
            // An entry with an expiry time is copied, so its position is `Merged` or `Backward`.
            IterPosition::Forward | IterPosition::Invalid => None,
        }
    }

    /// Returns the sequence number and the encoded value pointer of the current entry if its value is in the value log.
    ///
    /// The iterator must be valid.
    #[inline]
    pub(crate) fn value_pointer(&self) -> Option<(SeqNo, &[u8])> {
        self.pointer_seq.map(|seq| match self.position {
            IterPosition::Backward | IterPosition::Merged => (seq, &*self.value),
            _ => (seq, self.inner.value()),
        })
    }

    /// Stores the combined value. Returns whether the key has a value or an error.
    fn set_value(&mut self, value: Result<Option<Slice>>) -> Result<bool> {
        match value {
            Ok(value) => {
                let found = value.is_some();
                self.value = value.unwrap_or_default();
                Ok(found)
            }
            // The error affects only this key. The iterator can continue.
            Err(why @ Error::MergeFailed { .. }) => {
                self.merge_error = Some(Box::new(why));
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// Moves to the first visible entry at or after `lower`.
    pub(crate) fn seek_first_from(&mut self, lower: Bound<&[u8]>) -> Result<()> {
        self.begin_move();
        match lower {
            Bound::Unbounded => self.inner.first()?,
            Bound::Included(key) => self.inner.seek(key, SeqNo::MAX)?,
            // This position is after all versions of the key.
            Bound::Excluded(key) => self.inner.seek(key, SeqNo::ZERO)?,
        }
        self.find_next_visible_entry()
    }

    /// Moves to the last visible entry at or before `upper`.
    pub(crate) fn seek_last_up_to(&mut self, upper: Bound<&[u8]>) -> Result<()> {
        self.begin_move();
        match upper {
            Bound::Unbounded => self.inner.last()?,
            Bound::Included(key) => self.inner.seek_before(key, SeqNo::ZERO)?,
            Bound::Excluded(key) => self.inner.seek_before(key, SeqNo::MAX)?,
        }
        self.find_previous_visible_entry()
    }

    /// Moves to the next visible entry. The iterator must be valid.
    pub(crate) fn next(&mut self) -> Result<()> {
        let position = self.begin_move();
        match position {
            IterPosition::Backward => self.inner.seek(&self.key, SeqNo::ZERO)?,
            IterPosition::Merged => self.skip_merged_versions()?,
            IterPosition::Forward | IterPosition::Invalid => self.skip_versions()?,
        }
        self.find_next_visible_entry()
    }

    /// Moves to the previous visible entry. The iterator must be valid.
    pub(crate) fn prev(&mut self) -> Result<()> {
        let position = self.begin_move();
        if position == IterPosition::Forward {
            self.copy_key();
        }
        if matches!(position, IterPosition::Forward | IterPosition::Merged) {
            self.inner.seek_before(&self.key, SeqNo::MAX)?;
        }
        self.find_previous_visible_entry()
    }

    /// Copies the current key of `inner` to `key`.
    fn copy_key(&mut self) {
        self.key.clear();
        self.key.extend_from_slice(self.inner.key().user_key);
    }

    /// Moves `inner` from a version of a key to the first version of the next key.
    fn skip_versions(&mut self) -> Result<()> {
        self.copy_key();
        for _ in 0..STEPS_BEFORE_SEEK {
            self.inner.next()?;
            if !self.inner.valid() || self.inner.key().user_key != self.key {
                return Ok(());
            }
        }
        self.inner.seek(&self.key, SeqNo::ZERO)
    }

    /// Moves forward to the first visible entry. `inner` must be at the first version of a key, and this key is
    /// included.
    fn find_next_visible_entry(&mut self) -> Result<()> {
        let mut newer = 0;
        while self.inner.valid() {
            self.count_step()?;
            let key = self.inner.key();
            let is_above = || is_above(key.user_key, &self.limits.1);
            if !self.is_visible(key.seq) {
                if is_above() {
                    break;
                }
                newer += 1;
                if newer <= STEPS_BEFORE_SEEK {
                    self.inner.next()?;
                } else {
                    newer = 0;
                    let limit = self.next_visible_limit(key.seq);
                    self.copy_key();
                    self.inner.seek(&self.key, limit)?;
                }
            } else {
                match effective_kind(&mut self.deleted, key) {
                    EntryKind::Delete
                    | EntryKind::Merge
                    | EntryKind::PutExpiring
                    | EntryKind::ValuePointerExpiring
                        if is_above() =>
                    {
                        break;
                    }
                    EntryKind::Delete => self.skip_versions()?,
                    // The value of an entry with an expiry time is copied, like a combined value.
                    EntryKind::Merge | EntryKind::PutExpiring | EntryKind::ValuePointerExpiring => {
                        if self.merge_forward()? {
                            self.position = IterPosition::Merged;
                            break;
                        }
                        self.skip_merged_versions()?;
                    }
                    kind @ (EntryKind::Put | EntryKind::ValuePointer) => {
                        self.pointer_seq = (kind == EntryKind::ValuePointer).then_some(key.seq);
                        self.position = IterPosition::Forward;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Combines the versions of a key whose newest visible version is an operand or has an expiry time. Returns whether
    /// the key has a value.
    #[cold]
    fn merge_forward(&mut self) -> Result<bool> {
        self.copy_key();
        let mut fold = OperandFold::at_time(self.time_us);
        while self.inner.valid() && self.inner.key().user_key == self.key {
            self.count_step()?;
            let key = self.inner.key();
            if !self.is_visible(key.seq) {
                // All versions before this one are uncommitted writes. Skip the versions between them and the snapshot.
                self.inner.seek(&self.key, self.snapshot)?;
                continue;
            }
            let (seq, kind) = (key.seq, effective_kind(&mut self.deleted, key));
            if !fold.push_older(seq, kind, self.inner.value_slice()) {
                break;
            }
            self.inner.next()?;
        }
        self.set_folded_value(fold)
    }

    /// Sets the current value to the result of merging the operands of the current key. Returns whether the key has a value.
    ///
    /// A value in the value log is read only if operands must be combined with it.
    fn set_folded_value(&mut self, mut fold: OperandFold) -> Result<bool> {
        if fold.has_operands() {
            fold.resolve_pointer(|seq, pointer| self.values.read((&self.key, seq), pointer))?;
        }
        self.pointer_seq = fold.pointer_seq();
        self.expiry_us = fold.base_expiry_us();
        let value = fold.take_value(&self.resolver, &self.key);
        self.set_value(value)
    }

    /// Moves `inner` to the first version after the key that was combined.
    fn skip_merged_versions(&mut self) -> Result<()> {
        if self.inner.valid() && self.inner.key().user_key == self.key {
            self.skip_versions()?;
        }
        Ok(())
    }

    /// Moves backward to the last visible entry. `inner` must be at the oldest version of a key, and this key is
    /// included.
    fn find_previous_visible_entry(&mut self) -> Result<()> {
        while self.inner.valid() {
            self.copy_key();
            let mut fold = OperandFold::at_time(self.time_us);
            while self.inner.valid() {
                self.count_step()?;
                let key = self.inner.key();
                if key.user_key != self.key {
                    break;
                }
                if !self.is_visible(key.seq) {
                    if key.seq < FIRST_OWN_SEQ && self.last_own_seq >= FIRST_OWN_SEQ {
                        // Among the remaining versions, only uncommitted writes may be visible.
                        self.inner.seek_before(&self.key, SeqNo(FIRST_OWN_SEQ.0 - 1))?;
                        continue;
                    }
                    // The remaining versions of the key are even newer and therefore invisible.
                    self.inner.seek_before(&self.key, SeqNo::MAX)?;
                    break;
                }
                let (seq, kind) = (key.seq, effective_kind(&mut self.deleted, key));
                fold.push_newer(seq, kind, || self.inner.value_slice());
                self.inner.prev()?;
            }
            if fold.has_operands() && is_below(&self.key, &self.limits.0) {
                return Ok(());
            }
            if self.set_folded_value(fold)? {
                self.position = IterPosition::Backward;
                return Ok(());
            }
            if is_below(&self.key, &self.limits.0) {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Returns the kind of an entry. If a range tombstone hides the entry, this is a delete.
#[inline]
fn effective_kind(deleted: &mut Option<RangeTombstoneFilter>, key: InternalKey<'_>) -> EntryKind {
    let hidden = deleted.as_mut().is_some_and(|deleted| deleted.is_deleted(key.user_key, key.seq));
    if hidden { EntryKind::Delete } else { key.kind }
}

impl<C> fmt::Debug for DbIter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DbIter")
            .field("snapshot", &self.snapshot)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::iter::merging_iter::VecCursor;
    use crate::merge_operator::{MergeError, MergeOperator, MergeResult};
    use crate::table::ReadPurpose;
    use crate::tree::keyspace_name::KeyspaceName;
    use lsmx_base::range_tombstone::{RangeTombstone, build_index};
    use lsmx_base::sync::Arc;

    /// Value that represents a key in the model whose operands cannot be combined.
    const MERGE_ERROR: &[u8] = b"merge error";

    /// Returns whether the merge operator rejects this operand.
    fn is_rejected(operand: &[u8]) -> bool {
        operand.ends_with(b"7")
    }

    /// Operator that appends operands and removes the value if it is longer than 6 bytes. The result depends on the
    /// order of the operands.
    #[derive(Debug)]
    struct AppendUntilLong;

    impl MergeOperator for AppendUntilLong {
        fn name(&self) -> &'static str {
            "append_until_long"
        }
        fn full_merge(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
            operands.iter().try_fold(base.map(<[u8]>::to_vec), |old, operand| {
                if is_rejected(operand) {
                    return Err(MergeError::new("rejected operand"));
                }
                Ok(match old.unwrap_or_default() {
                    old if old.len() > 6 => None,
                    old => Some([&old, *operand].concat()),
                })
            })
        }
    }

    fn kind_from_number(number: u8) -> EntryKind {
        match number {
            0..3 => EntryKind::Delete,
            3..6 => EntryKind::Put,
            _ => EntryKind::Merge,
        }
    }

    fn any_bound() -> impl Strategy<Value = Bound<Bytes>> {
        let key = || (0u8..11).prop_map(|key| Bytes::copy_from_slice(&[key]));
        prop_oneof![
            2 => Just(Bound::Unbounded),
            1 => key().prop_map(Bound::Included),
            1 => key().prop_map(Bound::Excluded),
        ]
    }

    proptest! {
        /// Within its limits, the iterator returns the same entries as the model. Outside of them, a move may end
        /// early.
        #[test]
        fn db_iter_random_moves_match_model(
            versions in prop::collection::vec((0u8..10, 0u8..10, prop::option::weighted(0.1, 0u8..12)), 0..80),
            snapshot in 0u64..90,
            limits in (any_bound(), any_bound()),
            own in prop::option::of((0usize..40, 0usize..40)),
            steps in prop::collection::vec((0u8..8, 0u8..11), 1..80),
        ) {
            // The last writes are uncommitted. `own` contains the numbers of visible and of invisible ones.
            let (own_visible, own_invisible) = own.unwrap_or_default();
            let committed = versions.len().saturating_sub(own_visible + own_invisible);
            let own_end = versions.len().saturating_sub(own_invisible);
            let seq_of = |at: usize| match at.checked_sub(committed) {
                Some(own_at) if own.is_some() => SeqNo(FIRST_OWN_SEQ.0 + own_at as u64),
                _ => SeqNo(at as u64 + 1),
            };
            let is_seen = |at: usize| match own {
                Some(_) if at >= committed => at < own_end,
                _ => (at as u64) < snapshot,
            };
            let last_own_seq = (own.is_some() && committed < own_end).then(|| seq_of(own_end - 1));
            let entries: Vec<_> = versions
                .iter()
                .enumerate()
                .filter(|(_, (.., range))| range.is_none())
                .map(|(at, &(key, kind, _))| {
                    let kind = kind_from_number(kind);
                    let value = at.to_string().into_bytes();
                    (vec![key], seq_of(at), kind, value)
                })
                .collect();
            let mut model = BTreeMap::<Vec<u8>, Vec<u8>>::new();
            let (mut spans, mut own_spans) = (Vec::new(), Vec::new());
            for (at, &(key, kind, range)) in versions.iter().enumerate() {
                if let Some(end) = range {
                    let bytes = |key: u8| Bytes::copy_from_slice(&[key]);
                    // If the end of a range is not after its start, the range extends to the end of the keyspace.
                    let until = (end > key).then(|| bytes(end));
                    let span = RangeTombstone { start: bytes(key), end: until, seqs: vec![seq_of(at)] };
                    let is_own = own.is_some() && at >= committed;
                    let list = if is_own { &mut own_spans } else { &mut spans };
                    list.push(span);
                    if is_seen(at) {
                        model.retain(|at: &Vec<u8>, _| at[0] < key || (end > key && at[0] >= end));
                    }
                    continue;
                }
                if !is_seen(at) {
                    continue;
                }
                let (key, value) = (vec![key], at.to_string().into_bytes());
                match kind_from_number(kind) {
                    EntryKind::Delete => drop(model.remove(&key)),
                    // After a rejected operand, every later merge of this key fails as well.
                    EntryKind::Merge if is_rejected(&value) || model.get(&key).is_some_and(|at| at == MERGE_ERROR) => {
                        drop(model.insert(key, MERGE_ERROR.to_vec()));
                    }
                    EntryKind::Merge => match model.remove(&key).unwrap_or_default() {
                        old if old.len() > 6 => {}
                        old => drop(model.insert(key, [old, value].concat())),
                    },
                    _ => drop(model.insert(key, value)),
                }
            }
            let second_half = spans.split_off(spans.len() / 2);
            let last_seqs = [SeqNo(snapshot), SeqNo(snapshot), last_own_seq.unwrap_or_default()];
            let parts = [spans, second_half, own_spans];
            let sources = parts.iter().map(|part| Arc::new(build_index(part))).zip(last_seqs);
            let deleted = RangeTombstoneFilter::for_reader(sources.collect());
            let resolver = Arc::new(MergeResolver::new(KeyspaceName::new("test"), Some(Arc::new(AppendUntilLong))));
            let inner = VecCursor::new(entries);
            let mut cursor = DbIter::new(
                inner,
                ReadPoint::without_time(SeqNo(snapshot)),
                deleted,
                resolver,
                ValueResolver::new(&Arc::default(), ReadContext::new(ReadPurpose::Scan)),
            )
            .with_limits(limits.clone())
            .with_own_writes(last_own_seq.unwrap_or_default());
            let is_within = |key: &[u8]| !is_below(key, &limits.0) && !is_above(key, &limits.1);
            let mut position: Option<Vec<u8>> = None;
            for (step, key) in steps {
                let first_from = |from: &[u8]| {
                    model.range::<[u8], _>((Bound::Included(from), Bound::Unbounded)).next().map(|(key, _)| key.clone())
                };
                let last_before = |to: &[u8]| {
                    model.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(to))).next_back().map(|(key, _)| key.clone())
                };
                let after = |key: &[u8]| [key, &[0]].concat();
                match (step, position.clone()) {
                    (0, _) => { cursor.seek_first_from(Bound::Unbounded).unwrap(); position = first_from(&[]); }
                    (1, _) => { cursor.seek_last_up_to(Bound::Unbounded).unwrap(); position = last_before(&[255]); }
                    (2, _) => { cursor.seek_first_from(Bound::Included(&[key])).unwrap(); position = first_from(&[key]); }
                    (3, _) => { cursor.seek_last_up_to(Bound::Excluded(&[key])).unwrap(); position = last_before(&[key]); }
                    (6, _) => { cursor.seek_first_from(Bound::Excluded(&[key])).unwrap(); position = first_from(&after(&[key])); }
                    (7, _) => { cursor.seek_last_up_to(Bound::Included(&[key])).unwrap(); position = last_before(&after(&[key])); }
                    (4, Some(at)) => { cursor.next().unwrap(); position = first_from(&after(&at)); }
                    (5, Some(at)) => { cursor.prev().unwrap(); position = last_before(&at); }
                    _ => {}
                }
                position = position.filter(|at| is_within(at));
                prop_assert_eq!(cursor.valid() && is_within(cursor.key()), position.is_some());
                if let Some(at) = &position {
                    prop_assert_eq!(cursor.key(), at.as_slice());
                    match cursor.value_slice() {
                        Ok(value) => prop_assert_eq!(&*value, model[at].as_slice()),
                        Err(error) => {
                            let is_merge_error = matches!(error, Error::MergeFailed { .. });
                            prop_assert!(is_merge_error);
                            prop_assert_eq!(model[at].as_slice(), MERGE_ERROR);
                        }
                    }
                }
            }
        }
    }
}
