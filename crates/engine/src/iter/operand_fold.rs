//! Collects the versions of one key and combines its merge operands.

use std::collections::VecDeque;

use lsmx_base::coding::len_u64;
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::slice::Slice;

use crate::error::Result;
use crate::tree::merge_resolver::MergeResolver;

/// The base value of a key and the merge operands that are newer than the base.
///
/// The base is the newest put or delete, which hides all older versions.
#[derive(Debug, Default)]
pub(crate) struct OperandFold {
    base: Option<Slice>,
    /// Sequence number of the base if the base is a value pointer that is not resolved yet.
    pointer_seq: Option<SeqNo>,
    /// Operands, newest first.
    operands: VecDeque<Slice>,
}

impl OperandFold {
    /// Adds a version that is older than all versions added before. Returns whether older versions are still needed.
    #[inline]
    pub(crate) fn push_older(&mut self, seq: SeqNo, kind: EntryKind, value: Slice) -> bool {
        match kind {
            EntryKind::Merge => self.operands.push_back(value),
            EntryKind::Delete => {}
            EntryKind::Put => self.base = Some(value),
            EntryKind::ValuePointer => (self.base, self.pointer_seq) = (Some(value), Some(seq)),
        }
        kind == EntryKind::Merge
    }

    /// Adds a version that is newer than all versions added before. A put or a delete replaces the older versions.
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
            self.pointer_seq = (kind == EntryKind::ValuePointer).then_some(seq);
            self.base = (kind != EntryKind::Delete).then(value);
        }
    }

    /// Adds the versions of `older`. They must all be older than the versions of `self`, which must not have a base.
    pub(crate) fn append_older_operands(&mut self, mut older: OperandFold) {
        self.operands.append(&mut older.operands);
        self.base = older.base;
        self.pointer_seq = older.pointer_seq;
    }

    /// Same as [`OperandFold::take_value`], for background jobs. Returns `None` if the operands cannot be combined.
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

    /// Replaces an unresolved value pointer with its value. `read` receives the sequence number of the entry and the
    /// encoded pointer.
    ///
    /// # Errors
    /// Errors of `read`.
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

    pub(crate) fn has_operands(&self) -> bool {
        !self.operands.is_empty()
    }

    /// Returns the total length of the operands, in bytes.
    pub(crate) fn operand_bytes(&self) -> u64 {
        self.operands.iter().map(|operand| len_u64(operand.len())).sum()
    }

    /// Returns the sequence number of the base if the base is an unresolved value pointer.
    pub(crate) fn pointer_seq(&self) -> Option<SeqNo> {
        self.pointer_seq
    }

    /// Combines the operands with the base, returns the result, and clears the fold.
    ///
    /// Without operands, an unresolved value pointer is returned in its encoded form.
    ///
    /// # Errors
    /// If the operands cannot be combined.
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
