//! Counts of the operations that child processes executed. A test fails if no child executed the operation under test.

use lsmx::Metrics;
use serde::Serialize;

use crate::messages::{self, Message};

/// Operation counts of one child, or their sums over several children.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ChildCounts {
    /// Number of operands delivered to operand stores.
    pub operands: u64,
    /// Number of delete markers delivered to operand stores.
    pub delete_markers: u64,
    /// Number of rewritten buckets.
    pub rewrites: u64,
    /// Number of buckets that were split.
    pub splits: u64,
    /// Number of pairs of buckets that were merged.
    pub merges: u64,
    /// Number of buckets whose operands were moved to the tree.
    pub overflows: u64,
    /// Number of rewritten blob files.
    pub blob_rewrites: u64,
    /// Number of committed transactions.
    pub transactions: u64,
    /// Number of expired entries that jobs dropped.
    pub expired: u64,
    /// Number of open keyspaces to which an operand store was added.
    pub to_store: u64,
    /// Number of open keyspaces whose operands were moved from the operand store to the tree.
    pub back_to_tree: u64,
    /// Number of snapshots that were compared with the model after later commits.
    pub snapshots: u64,
    /// Number of checkpoints that were compared with the model.
    pub copies: u64,
    /// Number of completed ingests and bulk loads.
    pub loads: u64,
    /// Number of keyspaces that were renamed.
    pub renamed: u64,
    /// Number of keyspaces that were cloned.
    pub cloned: u64,
    /// Number of complete metrics files that were read.
    pub metrics_files: u64,
    /// Number of calls of `resume` after an injected write error.
    pub resumed: u64,
}

impl ChildCounts {
    fn counts(&mut self) -> [&mut u64; 18] {
        [
            &mut self.operands,
            &mut self.delete_markers,
            &mut self.rewrites,
            &mut self.splits,
            &mut self.merges,
            &mut self.overflows,
            &mut self.blob_rewrites,
            &mut self.transactions,
            &mut self.expired,
            &mut self.to_store,
            &mut self.back_to_tree,
            &mut self.snapshots,
            &mut self.copies,
            &mut self.loads,
            &mut self.renamed,
            &mut self.cloned,
            &mut self.metrics_files,
            &mut self.resumed,
        ]
    }

    /// Raises each count to its value in the database metrics. A count never decreases, although the counters of a new
    /// operand store start at 0.
    pub(crate) fn update_from(&mut self, metrics: &Metrics) {
        let transactions = metrics.transactions.committed;
        let mut now = ChildCounts { transactions, ..ChildCounts::default() };
        for keyspace in metrics.keyspaces.values() {
            let store = keyspace.operand_store.unwrap_or_default();
            now.operands += store.operands;
            now.delete_markers += store.delete_markers;
            now.rewrites += store.rewrites;
            now.splits += store.splits;
            now.merges += store.merges;
            now.overflows += store.to_tree;
            now.blob_rewrites += keyspace.value_log.rewrites;
            now.expired += keyspace.expired.entries;
        }
        for (count, now) in self.counts().into_iter().zip(now.counts()) {
            *count = (*count).max(*now);
        }
    }

    pub(crate) fn send(mut self) {
        for (index, count) in (0..).zip(self.counts()) {
            messages::send(Message::Count { index, count: *count });
        }
    }

    /// Sets the count with this index. Returns `None` if the index is out of bounds.
    pub(crate) fn set(&mut self, index: u64, count: u64) -> Option<()> {
        let index = usize::try_from(index).ok()?;
        **self.counts().get_mut(index)? = count;
        Some(())
    }

    pub(crate) fn add(&mut self, mut other: ChildCounts) {
        for (count, other) in self.counts().into_iter().zip(other.counts()) {
            *count += *other;
        }
    }
}
