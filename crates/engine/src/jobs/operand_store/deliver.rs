//! What a flush has for the operand store beside its tree.
//!
//! Operands go to the store in place of a table. A put or a delete that is written goes to both: to the
//! store as an anchor, if that may have something of the key, or gets something older of it with this
//! very delivery. So a tombstone may leave the tree later on, and nothing it deleted comes back.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::range_tombstone::RangeTombstone;

use crate::error::Result;
use crate::operand_store::{Delivery, Prepared};
use crate::tree::operands::Attached;

/// A delivery under way.
pub(crate) struct Delivering<'a> {
    delivery: Box<dyn Delivery + 'a>,
    /// The key at hand.
    key: Vec<u8>,
    /// Its oldest put or delete so far, of which the store has not been told.
    untold: Option<SeqNo>,
    /// Whether the store has got something.
    any: bool,
}

impl std::fmt::Debug for Delivering<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delivering").field("key", &self.key).finish_non_exhaustive()
    }
}

impl<'a> Delivering<'a> {
    /// Begins to deliver a memtable with numbers up to `through`.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(crate) fn begin(attached: &'a Attached, through: SeqNo) -> Result<Delivering<'a>> {
        let delivery = attached.store.deliver(through)?;
        Ok(Delivering { delivery, key: Vec::new(), untold: None, any: false })
    }

    /// Delivers the range deletes of the memtable as fragments. Numbers that no snapshot can tell from a
    /// newer one are left out.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(crate) fn range_anchors(&mut self, fragments: &[RangeTombstone]) -> Result<()> {
        for span in fragments {
            for &seq in &span.seqs {
                self.any = true;
                self.delivery.range_anchor(&span.start, span.end.as_deref(), seq)?;
            }
        }
        Ok(())
    }

    /// Takes an entry that is to be written; returns whether it lives in the store, and no table gets it.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(crate) fn take(&mut self, key: InternalKey<'_>, value: &[u8]) -> Result<bool> {
        if self.key != key.user_key {
            self.key.clear();
            self.key.extend_from_slice(key.user_key);
            self.untold = None;
        }
        if key.kind == EntryKind::Merge {
            if let Some(seq) = self.untold.take() {
                self.anchor(seq)?;
            }
            self.any = true;
            self.delivery.operand(key.user_key, key.seq, value)?;
            return Ok(true);
        }
        if self.delivery.may_hold(key.user_key) {
            self.anchor(key.seq)?;
        } else {
            self.untold = Some(key.seq);
        }
        Ok(false)
    }

    fn anchor(&mut self, seq: SeqNo) -> Result<()> {
        if failpoint::is_on(Failpoint::DeleteMarkerSkipped) {
            return Ok(());
        }
        self.any = true;
        self.delivery.anchor(&self.key, seq)
    }

    /// Makes it last; none if there was nothing to deliver.
    ///
    /// # Errors
    /// When a file cannot be written or synced.
    pub(crate) fn prepare(self) -> Result<Option<Prepared>> {
        self.any.then(|| self.delivery.prepare()).transpose()
    }
}
