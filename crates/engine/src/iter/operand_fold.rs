//! Collects the versions of one key and merges its operands.

use std::collections::VecDeque;

use lsmx_base::coding::len_u64;
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::slice::Slice;

use crate::error::Result;
use crate::tree::merge_resolver::MergeResolver;

/// The base value of a key and the operands that are newer than it.
///
/// A put or a delete is a base: it hides all older versions.
#[derive(Debug, Default)]
pub(crate) struct OperandFold {
    base: Option<Slice>,
    /// Sequence number of the base while it is an unresolved value pointer.
    pointer_seq: Option<SeqNo>,
    /// Operands, newest first.
    operands: VecDeque<Slice>,
}

impl OperandFold {
    /// Adds a version that is older than all others. Returns whether older versions are needed.
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

    /// Adds a version that is newer than all others. A base replaces the older versions.
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

    /// Adds versions that are all older than those of `self`, which has no base.
    pub(crate) fn append_older_operands(&mut self, mut older: OperandFold) {
        self.operands.append(&mut older.operands);
        self.base = older.base;
        self.pointer_seq = older.pointer_seq;
    }

    /// As [`OperandFold::take_value`], for a job. Returns `None` if the operands cannot be merged.
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

    /// Replaces a value pointer by the value. `read` receives the sequence number of the entry and the encoded
    /// pointer.
    ///
    /// # Errors
    /// Returns the errors of `read`.
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

    /// Returns whether there are operands.
    pub(crate) fn has_operands(&self) -> bool {
        !self.operands.is_empty()
    }

    /// Returns the total length of the operands, in bytes.
    pub(crate) fn operand_bytes(&self) -> u64 {
        self.operands.iter().map(|operand| len_u64(operand.len())).sum()
    }

    /// Returns the sequence number of an unresolved value pointer.
    pub(crate) fn pointer_seq(&self) -> Option<SeqNo> {
        self.pointer_seq
    }

    /// Merges the operands with the base and clears the fold.
    ///
    /// Without operands, an unresolved value pointer is returned in its encoded form.
    ///
    /// # Errors
    /// If the operands cannot be merged.
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
