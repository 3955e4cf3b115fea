//! Fold of merge operands: collects the versions of a key and combines its merge operands.

use std::collections::VecDeque;

use lsmx_base::coding::len_u64;
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::slice::Slice;

use crate::error::Result;
use crate::format::expiry::{EXPIRY_BYTES, split_expiry};
use crate::tree::merge_resolver::MergeResolver;

/// The base value of a key, and the merge operands that are newer than the base.
///
/// The base is the newest put or delete of the key. It hides all older versions. An expired put counts as a delete.
#[derive(Debug, Default)]
pub(crate) struct OperandFold {
    base: Option<Slice>,
    /// Time at which expiry is determined, in microseconds.
    time_us: u64,
    /// True if the base has an expiry time, even if it has expired.
    has_expiring_base: bool,
    /// Expiry time of the base in microseconds. `None` if the base does not expire or has expired.
    base_expiry_us: Option<u64>,
    /// Sequence number of the base if the base is a value pointer whose value was not read yet.
    pointer_seq: Option<SeqNo>,
    /// Merge operands, newest first.
    operands: VecDeque<Slice>,
}

impl OperandFold {
    /// Creates an empty fold. `time_us` determines which entries have expired.
    pub(crate) fn at_time(time_us: u64) -> OperandFold {
        OperandFold { time_us, ..OperandFold::default() }
    }

    /// Creates an empty fold with the same time as this fold.
    pub(crate) fn new_at_same_time(&self) -> OperandFold {
        OperandFold::at_time(self.time_us)
    }

    /// Adds a version that is older than all versions added before. Returns whether older versions are needed, too.
    #[inline]
    pub(crate) fn push_older(&mut self, seq: SeqNo, kind: EntryKind, value: Slice) -> bool {
        match kind {
            EntryKind::Merge => self.operands.push_back(value),
            EntryKind::Delete => {}
            EntryKind::Put => self.base = Some(value),
            EntryKind::ValuePointer => (self.base, self.pointer_seq) = (Some(value), Some(seq)),
            EntryKind::PutExpiring | EntryKind::ValuePointerExpiring => {
                self.set_expiring_base(seq, kind, value);
            }
        }
        kind == EntryKind::Merge
    }

    /// Sets the base to an entry with an expiry time. If the entry has expired, the base is a delete.
    #[cold]
    fn set_expiring_base(&mut self, seq: SeqNo, kind: EntryKind, stored: Slice) {
        self.has_expiring_base = true;
        let (expiry_us, _) = split_expiry(&stored);
        if expiry_us > self.time_us {
            self.base = Some(stored.without_first(EXPIRY_BYTES));
            self.base_expiry_us = Some(expiry_us);
            self.pointer_seq = (kind == EntryKind::ValuePointerExpiring).then_some(seq);
        }
    }

    /// Adds a version that is newer than all versions added before. A put or a delete replaces all older versions.
    pub(crate) fn push_newer(
        &mut self,
        seq: SeqNo,
        kind: EntryKind,
        value: impl FnOnce() -> Slice,
    ) {
        if kind == EntryKind::Merge {
            self.operands.push_front(value());
        } else {
            self.operands.clear();
            (self.base, self.pointer_seq, self.has_expiring_base) = (None, None, false);
            self.base_expiry_us = None;
            match kind {
                EntryKind::Delete => {}
                kind => drop(self.push_older(seq, kind, value())),
            }
        }
    }

    /// Adds all versions of `older`. They must be older than all versions of `self`, and `self` must not have a base.
    pub(crate) fn append_older_operands(&mut self, mut older: OperandFold) {
        self.operands.append(&mut older.operands);
        self.base = older.base;
        self.pointer_seq = older.pointer_seq;
        self.has_expiring_base = older.has_expiring_base;
        self.base_expiry_us = older.base_expiry_us;
    }

    /// Like [`OperandFold::take_value`], but for background jobs. Returns `None` if the operands cannot be combined.
    pub(crate) fn take_value_for_job(
        &mut self,
        resolver: &MergeResolver,
        key: &[u8],
    ) -> Option<Option<Slice>> {
        let base = self.base.take();
        if self.operands.is_empty() {
            return Some(base);
        }
        let mut operands = std::mem::take(&mut self.operands);
        let operands = operands.make_contiguous();
        let value =
            resolver.merge_for_job(resolver.operator().ok()?, key, base.as_deref(), operands)?;
        Some(value.map(Slice::from))
    }

    /// If the base is a value pointer, replaces it by the value. `read` receives the sequence number of the entry and
    /// the encoded pointer.
    ///
    /// # Errors
    /// Returns the error of `read`.
    #[inline]
    pub(crate) fn resolve_pointer(
        &mut self,
        read: impl FnOnce(SeqNo, &[u8]) -> Result<Slice>,
    ) -> Result<()> {
        if let (Some(seq), Some(base)) = (self.pointer_seq, &mut self.base) {
            *base = read(seq, base)?;
            self.pointer_seq = None;
        }
        Ok(())
    }

    /// Returns whether the base has an expiry time, even if it has expired. The combined value then depends on the time
    /// of the read.
    pub(crate) fn has_expiring_base(&self) -> bool {
        self.has_expiring_base
    }

    /// Returns whether the base has an expiry time and has not expired.
    pub(crate) fn has_base_that_expires_later(&self) -> bool {
        self.has_expiring_base && self.base.is_some()
    }

    /// Returns the expiry time of the base in microseconds. Returns `None` if the base does not expire or has expired.
    pub(crate) fn base_expiry_us(&self) -> Option<u64> {
        self.base_expiry_us
    }

    pub(crate) fn has_operands(&self) -> bool {
        !self.operands.is_empty()
    }

    /// Returns the total size of the operands in bytes.
    pub(crate) fn operand_bytes(&self) -> u64 {
        self.operands.iter().map(|operand| len_u64(operand.len())).sum()
    }

    /// Returns the sequence number of the base if the base is a value pointer whose value was not read yet.
    pub(crate) fn pointer_seq(&self) -> Option<SeqNo> {
        self.pointer_seq
    }

    /// Combines the operands with the base, returns the result, and removes both from the fold. The fold keeps the
    /// expiry time of the base.
    ///
    /// If there are no operands and the base is a value pointer, returns the encoded pointer.
    ///
    /// # Errors
    /// Fails if the operands cannot be combined.
    pub(crate) fn take_value(
        &mut self,
        resolver: &MergeResolver,
        key: &[u8],
    ) -> Result<Option<Slice>> {
        let base = self.base.take();
        let pointer_seq = self.pointer_seq.take();
        debug_assert!(
            pointer_seq.is_none() || self.operands.is_empty(),
            "unresolved value pointer"
        );
        if self.operands.is_empty() {
            return Ok(base);
        }
        let mut operands = std::mem::take(&mut self.operands);
        resolver.merge_for_read(key, base.as_deref(), operands.make_contiguous())
    }
}
