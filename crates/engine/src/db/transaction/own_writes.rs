//! Uncommitted writes of a transaction, in memtables for reads.
//!
//! The write batch of the transaction contains the operations. A read first inserts the operations that were added since the last
//! read. A transaction that only writes therefore has no memtables.

use std::collections::BTreeMap;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use crate::format::batch::{BatchOperationIter, OperationEffect};
use crate::iter::db_iter::FIRST_OWN_SEQ;
use crate::memtable::Memtable;
use crate::tree::Tree;
use crate::write::batch::{BatchPosition, WriteBatch};

/// The operations of a write batch by keyspace.
#[derive(Debug, Default)]
pub(super) struct OwnWrites {
    /// Memtables by keyspace id. The operation with index `n` in the batch has the number `FIRST_OWN_SEQ + n`.
    memtables: BTreeMap<u32, Arc<Memtable>>,
    /// End of the inserted operations in the batch.
    inserted: BatchPosition,
}

impl OwnWrites {
    /// Returns the writes to a tree and the number of the last operation of the batch. Returns `None` without writes.
    pub(super) fn of_tree(
        &mut self,
        batch: &WriteBatch,
        tree: &Tree,
    ) -> Option<(Arc<Memtable>, SeqNo)> {
        if failpoint::is_on(Failpoint::OwnWritesUnseen) {
            return None;
        }
        self.insert_new_operations(batch);
        let memtable = self.memtables.get(&tree.id)?;
        let last = u64::from(self.inserted.operations.saturating_sub(1));
        Some((Arc::clone(memtable), SeqNo(FIRST_OWN_SEQ.0 + last)))
    }

    /// Prepares for the removal of all operations after a position from the batch.
    ///
    /// Iterators keep the memtables with the removed operations.
    pub(super) fn truncate(&mut self, position: BatchPosition) {
        if self.inserted.operations > position.operations {
            *self = OwnWrites::default();
        }
    }

    fn insert_new_operations(&mut self, batch: &WriteBatch) {
        let inserted = std::mem::replace(&mut self.inserted, batch.position());
        let payload = batch.payload.get(inserted.bytes..).unwrap_or_default();
        let first = FIRST_OWN_SEQ.0 + u64::from(inserted.operations);
        // The payload was encoded by this process, so every operation decodes.
        for (seq, operation) in (first..).zip(BatchOperationIter::new(payload).flatten()) {
            // A batch lists every tree that it writes.
            let tree = batch.trees.iter().find(|tree| tree.id == operation.keyspace);
            let Some(tree) = tree else { continue };
            let memtable = self.memtables.entry(tree.id).or_insert_with(|| {
                let view = tree.super_version();
                let deferred_drop = view.version.deferred_drop();
                Arc::new(Memtable::new(view.active.kind(), FIRST_OWN_SEQ, deferred_drop))
            });
            let (key, seq) = (&payload[operation.key], SeqNo(seq));
            let _bytes = match operation.action {
                OperationEffect::Entry { kind, value } => {
                    memtable.insert(key, seq, kind, &payload[value])
                }
                OperationEffect::DeleteRange { end } => {
                    memtable.insert_range_tombstone(key, end.map(|end| &payload[end]), seq)
                }
            };
        }
    }
}
