//! Merge operands of one key on their way to a value.
//!
//! Whoever reads a key meets its versions from the newest on. A put or a delete is a *base*: nothing
//! older counts. Operands are gathered until there is a base or an end, then folded onto it.

use std::collections::VecDeque;

use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::slice::Slice;

use crate::error::Result;
use crate::tree::merge_resolver::Merging;

/// What the versions of one key amount to, as far as they were met.
#[derive(Debug, Default)]
pub(crate) struct Fold {
    base: Option<Slice>,
    /// Number of the base if it is a value pointer, and not yet the value.
    pointer: Option<SeqNo>,
    /// Newest first.
    operands: VecDeque<Slice>,
}

impl Fold {
    /// Takes the next version of the key, from newer to older; returns whether older ones count.
    #[inline]
    pub(crate) fn older(&mut self, seq: SeqNo, kind: EntryKind, value: Slice) -> bool {
        match kind {
            EntryKind::Merge => self.operands.push_back(value),
            EntryKind::Delete => {}
            EntryKind::Put => self.base = Some(value),
            EntryKind::ValuePointer => (self.base, self.pointer) = (Some(value), Some(seq)),
        }
        kind == EntryKind::Merge
    }

    /// Takes the next version of the key, from older to newer: a base makes void what was there.
    pub(crate) fn newer(&mut self, seq: SeqNo, kind: EntryKind, value: impl FnOnce() -> Slice) {
        if kind == EntryKind::Merge {
            self.operands.push_front(value());
        } else {
            self.operands.clear();
            self.pointer = (kind == EntryKind::ValuePointer).then_some(seq);
            self.base = (kind != EntryKind::Delete).then(value);
        }
    }

    /// Takes what is older than all that was met so far.
    pub(crate) fn append(&mut self, mut older: Fold) {
        self.operands.append(&mut older.operands);
        self.base = older.base;
        self.pointer = older.pointer;
    }

    /// As [`Fold::finish`], for a job; none if it does not fold.
    pub(crate) fn finish_for_job(
        &mut self,
        merging: &Merging,
        key: &[u8],
    ) -> Option<Option<Slice>> {
        let base = self.base.take();
        if self.operands.is_empty() {
            return Some(base);
        }
        let mut operands = std::mem::take(&mut self.operands);
        let operator = merging.operator().ok()?;
        let value = merging.job(operator, key, base.as_deref(), operands.make_contiguous())?;
        Some(value.map(Slice::from))
    }

    /// Reads the base if it is a value pointer, of which `read` gets the number and the bytes.
    ///
    /// # Errors
    /// Those of `read`.
    #[inline]
    pub(crate) fn resolve(
        &mut self,
        read: impl FnOnce(SeqNo, &[u8]) -> Result<Slice>,
    ) -> Result<()> {
        if let (Some(seq), Some(base)) = (self.pointer, &mut self.base) {
            *base = read(seq, base)?;
            self.pointer = None;
        }
        Ok(())
    }

    /// Whether operands wait for their base.
    pub(crate) fn has_operands(&self) -> bool {
        !self.operands.is_empty()
    }

    /// Number of the value that was not read yet.
    pub(crate) fn pointer(&self) -> Option<SeqNo> {
        self.pointer
    }

    /// The value, and an empty fold in its place. A pointer that was not resolved stands for itself if
    /// there is no operand.
    ///
    /// # Errors
    /// When there are operands that cannot be folded.
    pub(crate) fn finish(&mut self, merging: &Merging, key: &[u8]) -> Result<Option<Slice>> {
        let base = self.base.take();
        let unread = self.pointer.take();
        debug_assert!(unread.is_none() || self.operands.is_empty(), "resolved before");
        if self.operands.is_empty() {
            return Ok(base);
        }
        let mut operands = std::mem::take(&mut self.operands);
        merging.read(key, base.as_deref(), operands.make_contiguous())
    }
}
