//! Merge operands of one key on their way to a value.
//!
//! Whoever reads a key meets its versions from the newest on. A put or a delete is a *base*: nothing
//! older counts. Operands are gathered until there is a base or an end, then folded onto it.

use std::collections::VecDeque;

use crate::error::Result;
use crate::key::Kind;
use crate::keyspace::merging::Merging;
use crate::slice::Slice;

/// What the versions of one key amount to, as far as they were met.
#[derive(Debug, Default)]
pub(crate) struct Fold {
    base: Option<Slice>,
    /// Newest first.
    operands: VecDeque<Slice>,
}

impl Fold {
    /// Takes the next version of the key, from newer to older; returns whether older ones count.
    pub(crate) fn older(&mut self, kind: Kind, value: Slice) -> bool {
        match kind {
            Kind::Merge => self.operands.push_back(value),
            Kind::Delete => {}
            Kind::Put | Kind::ValuePointer => self.base = Some(value),
        }
        kind == Kind::Merge
    }

    /// Takes the next version of the key, from older to newer: a base makes void what was there.
    pub(crate) fn newer(&mut self, kind: Kind, value: impl FnOnce() -> Slice) {
        if kind == Kind::Merge {
            self.operands.push_front(value());
        } else {
            self.operands.clear();
            self.base = (kind != Kind::Delete).then(value);
        }
    }

    /// Takes what is older than all that was met so far.
    pub(crate) fn append(&mut self, mut older: Fold) {
        self.operands.append(&mut older.operands);
        self.base = older.base;
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

    /// The value, and an empty fold in its place.
    ///
    /// # Errors
    /// When there are operands that cannot be folded.
    pub(crate) fn finish(&mut self, merging: &Merging, key: &[u8]) -> Result<Option<Slice>> {
        let base = self.base.take();
        if self.operands.is_empty() {
            return Ok(base);
        }
        let mut operands = std::mem::take(&mut self.operands);
        merging.read(key, base.as_deref(), operands.make_contiguous())
    }
}
