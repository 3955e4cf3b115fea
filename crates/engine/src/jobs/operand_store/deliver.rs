//! Delivery: passes the merge operands of a flushed memtable to the operand store instead of writing them to a table.
//!
//! Operands are written to the store. Puts and deletes are written to a table. For a put or delete, the store also
//! receives a delete marker if the store or the same delivery contains older operands of the key. Without the delete
//! marker, these operands would become visible again after a compaction has dropped the tombstone.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::range_tombstone::RangeTombstone;

use crate::error::Result;
use crate::operand_store::{OperandDelivery, PreparedVersion};
use crate::tree::operand_store_slot::AttachedStore;

/// Writes the delivery of one memtable.
pub(crate) struct OperandDeliveryWriter<'a> {
    delivery: Box<dyn OperandDelivery + 'a>,
    /// Current key.
    key: Vec<u8>,
    /// Sequence number of the oldest put or delete of the current key for which no delete marker was written.
    skipped_marker: Option<SeqNo>,
    /// Whether the delivery contains operands or delete markers.
    has_data: bool,
}

impl std::fmt::Debug for OperandDeliveryWriter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OperandDeliveryWriter").field("key", &self.key).finish_non_exhaustive()
    }
}

impl<'a> OperandDeliveryWriter<'a> {
    /// Starts the delivery of a memtable. `last_seq` is the largest sequence number in the memtable.
    pub(crate) fn new(
        attached: &'a AttachedStore,
        last_seq: SeqNo,
    ) -> Result<OperandDeliveryWriter<'a>> {
        let delivery = attached.store.deliver(last_seq)?;
        Ok(OperandDeliveryWriter {
            delivery,
            key: Vec::new(),
            skipped_marker: None,
            has_data: false,
        })
    }

    /// Adds the range tombstones of the memtable. A fragment has at most one sequence number per snapshot stripe.
    pub(crate) fn add_range_tombstones(&mut self, fragments: &[RangeTombstone]) -> Result<()> {
        for tombstone in fragments {
            for &seq in &tombstone.seqs {
                self.has_data = true;
                self.delivery.add_range_delete_marker(
                    &tombstone.start,
                    tombstone.end.as_deref(),
                    seq,
                )?;
            }
        }
        Ok(())
    }

    /// Adds an entry. Entries must be added in internal-key order. Returns true if the entry was written to the store.
    /// The caller must then not write it to a table.
    pub(crate) fn add_entry(&mut self, key: InternalKey<'_>, value: &[u8]) -> Result<bool> {
        if self.key != key.user_key {
            self.key.clear();
            self.key.extend_from_slice(key.user_key);
            self.skipped_marker = None;
        }
        if key.kind == EntryKind::Merge {
            if let Some(seq) = self.skipped_marker.take() {
                self.add_delete_marker(seq)?;
            }
            self.has_data = true;
            self.delivery.add_operand(key.user_key, key.seq, value)?;
            return Ok(true);
        }
        if self.delivery.may_contain(key.user_key) {
            self.add_delete_marker(key.seq)?;
        } else {
            self.skipped_marker = Some(key.seq);
        }
        Ok(false)
    }

    fn add_delete_marker(&mut self, seq: SeqNo) -> Result<()> {
        if failpoint::is_on(Failpoint::DeleteMarkerSkipped) {
            return Ok(());
        }
        self.has_data = true;
        self.delivery.add_delete_marker(&self.key, seq)
    }

    /// Makes the delivery durable. Returns `None` if the delivery is empty.
    pub(crate) fn prepare_version(self) -> Result<Option<PreparedVersion>> {
        self.has_data.then(|| self.delivery.prepare()).transpose()
    }
}
