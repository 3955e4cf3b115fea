//! What children got to: a test that reaches nothing of what it is for has to say so.

use lsmx::Metrics;
use serde::Serialize;

use crate::told::{self, Told};

/// Counts of one life or of many.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Reached {
    /// Operands that came to stores.
    pub operands: u64,
    /// Anchors that came to stores.
    pub anchors: u64,
    /// Buckets that were written anew.
    pub rewrites: u64,
    /// Buckets that were split.
    pub splits: u64,
    /// Pairs of buckets that were merged.
    pub merges: u64,
    /// Buckets whose operands went to the tree.
    pub overflows: u64,
    /// Compactions that emptied blob files.
    pub blob_rewrites: u64,
    /// Keyspaces that took a store on while commits went on.
    pub to_store: u64,
    /// Keyspaces that left their store while commits went on.
    pub back_to_tree: u64,
    /// Snapshots that were compared with what they saw.
    pub snapshots: u64,
    /// Checkpoints that were opened and compared.
    pub copies: u64,
    /// Times that a database took writes again after its disk had failed.
    pub resumed: u64,
}

impl Reached {
    fn counts(&mut self) -> [&mut u64; 12] {
        [
            &mut self.operands,
            &mut self.anchors,
            &mut self.rewrites,
            &mut self.splits,
            &mut self.merges,
            &mut self.overflows,
            &mut self.blob_rewrites,
            &mut self.to_store,
            &mut self.back_to_tree,
            &mut self.snapshots,
            &mut self.copies,
            &mut self.resumed,
        ]
    }

    /// Takes over what the counters of a database say. They begin anew with a store, so they are no less
    /// than what is known already.
    pub(crate) fn note(&mut self, metrics: &Metrics) {
        let mut now = Reached::default();
        for keyspace in metrics.keyspaces.values() {
            let store = keyspace.operand_store.unwrap_or_default();
            now.operands += store.operands;
            now.anchors += store.anchors;
            now.rewrites += store.rewrites;
            now.splits += store.splits;
            now.merges += store.merges;
            now.overflows += store.to_tree;
            now.blob_rewrites += keyspace.value_log.rewrites;
        }
        for (count, now) in self.counts().into_iter().zip(now.counts()) {
            *count = (*count).max(*now);
        }
    }

    /// Tells whoever started this process.
    pub(crate) fn tell(mut self) {
        for (what, count) in (0..).zip(self.counts()) {
            told::tell(Told::Reached { what, count: *count });
        }
    }

    /// Takes over what a child told of itself.
    ///
    /// # Errors
    /// When there is no such count.
    pub(crate) fn hear(&mut self, what: u64, count: u64) -> Result<(), String> {
        let at = usize::try_from(what).map_err(|error| error.to_string())?;
        *self.counts().get_mut(at).map(|at| &mut **at).ok_or(format!("no count {what}"))? = count;
        Ok(())
    }

    /// Nothing where every count is above zero.
    ///
    /// # Errors
    /// The place of one that is not.
    pub fn all(mut self) -> Result<(), String> {
        match self.counts().iter().position(|count| **count == 0) {
            Some(at) => Err(format!("count {at}")),
            None => Ok(()),
        }
    }

    pub(crate) fn add(&mut self, mut other: Reached) {
        for (count, other) in self.counts().into_iter().zip(other.counts()) {
            *count += *other;
        }
    }
}
