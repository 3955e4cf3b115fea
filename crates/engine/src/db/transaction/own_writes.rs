//! Uncommitted writes of a transaction, in memtables for reads.
//!
//! The write batch of the transaction contains the operations. Before a read, the operations that were added since the
//! previous read are inserted into memtables. A transaction that only writes therefore has no memtables.

use std::collections::BTreeMap;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::error::Result;
use crate::format::batch::{BatchOperationIter, OperationEffect};
use crate::iter::db_iter::FIRST_OWN_SEQ;
use crate::iter::operand_fold::OperandFold;
use crate::memtable::Memtable;
use crate::tree::Tree;
use crate::write::batch::{BatchPosition, WriteBatch};

/// The operations of a write batch by keyspace.
#[derive(Debug, Default)]
pub(super) struct OwnWrites {
    /// Memtables by keyspace id. The operation with index `n` in the batch has the number `FIRST_OWN_SEQ + n`.
    memtables: BTreeMap<u32, Arc<Memtable>>,
    /// Position in the batch up to which operations were inserted.
    inserted: BatchPosition,
}

impl OwnWrites {
    /// Returns the memtable with the writes to a tree, and the sequence number of the last operation of the batch.
    /// Returns `None` without writes.
    pub(super) fn of_tree(
        &mut self,
        batch: &WriteBatch,
        tree: &Tree,
    ) -> Option<(&Arc<Memtable>, SeqNo)> {
        if failpoint::is_on(Failpoint::OwnWritesUnseen) {
            return None;
        }
        self.insert_new_operations(batch);
        let memtable = self.memtables.get(&tree.id)?;
        let last = u64::from(self.inserted.operations.saturating_sub(1));
        Some((memtable, SeqNo(FIRST_OWN_SEQ.0 + last)))
    }

    /// Returns the versions of a key. `time_us` decides which values have expired.
    pub(super) fn versions_of_key(
        &mut self,
        batch: &WriteBatch,
        tree: &Tree,
        key: &[u8],
        time_us: u64,
    ) -> OwnVersions {
        let mut own = OwnVersions { fold: OperandFold::at_time(time_us), is_complete: false };
        if let Some((memtable, _)) = self.of_tree(batch, tree) {
            let covering = memtable.newest_covering_seq(key, SeqNo::MAX);
            let found_base = memtable.visit_versions(key, SeqNo::MAX, |seq, kind, value| {
                covering < Some(seq) && own.fold.push_older(seq, kind, value)
            });
            own.is_complete = found_base || covering.is_some();
        }
        own
    }

    /// Discards the memtables if they contain operations after `position`. The caller then removes these operations
    /// from the batch.
    ///
    /// Existing iterators keep the discarded memtables.
    pub(super) fn truncate(&mut self, position: BatchPosition) {
        if self.inserted.operations > position.operations {
            self.clear();
        }
    }

    /// Removes all operations.
    pub(super) fn clear(&mut self) {
        *self = OwnWrites::default();
    }

    /// Inserts all operations that the batch received since the last call.
    fn insert_new_operations(&mut self, batch: &WriteBatch) {
        let inserted = std::mem::replace(&mut self.inserted, batch.position());
        let payload = batch.payload.get(inserted.bytes..).unwrap_or_default();
        let first = FIRST_OWN_SEQ.0 + u64::from(inserted.operations);
        // The payload was encoded by this process, so every operation decodes.
        for (seq, operation) in (first..).zip(BatchOperationIter::new(payload).flatten()) {
            let memtable = match self.memtables.get(&operation.keyspace) {
                Some(memtable) => memtable,
                None => {
                    // A batch lists the trees in the order of their first operations. The earlier ones have memtables.
                    let mut trees = batch.trees.iter().skip(self.memtables.len());
                    let tree = trees.find(|tree| tree.id == operation.keyspace);
                    let Some(tree) = tree else { continue };
                    let view = tree.super_version();
                    let deferred_drop = view.version.deferred_drop();
                    let memtable =
                        Arc::new(Memtable::new(view.active.kind(), FIRST_OWN_SEQ, deferred_drop));
                    self.memtables.entry(tree.id).or_insert(memtable)
                }
            };
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

/// The versions of a key that the transaction has written.
#[derive(Debug)]
pub(crate) struct OwnVersions {
    fold: OperandFold,
    /// True if older versions cannot affect the value.
    pub(crate) is_complete: bool,
}

impl OwnVersions {
    /// Adds the value of the key in the snapshot with sequence number `seq`.
    pub(crate) fn add_base(&mut self, seq: SeqNo, value: Option<Slice>) {
        let kind = if value.is_some() { EntryKind::Put } else { EntryKind::Delete };
        self.fold.push_older(seq, kind, value.unwrap_or_default());
    }

    /// Returns the value of the key.
    ///
    /// # Errors
    /// If the operands cannot be merged.
    pub(crate) fn take_value(mut self, tree: &Tree, key: &[u8]) -> Result<Option<Slice>> {
        self.fold.take_value(&tree.merge_resolver, key)
    }
}
