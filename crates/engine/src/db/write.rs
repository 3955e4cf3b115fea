//! Writes of batches: checks, admission, commit, and the work that follows a commit.

use lsmx_base::key::EntryKind;
use lsmx_base::sync::Arc;

use crate::db::admission::admit;
use crate::db::inner::DbInner;
use crate::error::Result;
use crate::job_tracing::CommitSpan;
use crate::lookup::point::ReadScope;
use crate::metrics::TimedOperation;
use crate::options::write::{Durability, WriteOptions};
use crate::state::memtable_budget::MemtableReservation;
use crate::tree::Tree;
use crate::write::batch::WriteBatch;
use crate::write::group::check_ranges;

/// Commits one entry. Waits until the write is admitted.
pub(super) fn write_entry(
    inner: &DbInner,
    tree: &Arc<Tree>,
    kind: EntryKind,
    key: &[u8],
    value: &[u8],
    options: WriteOptions,
) -> Result<()> {
    let mut batch = WriteBatch::with_one_put(tree.id, key, value);
    match kind {
        EntryKind::Put => batch.add_put(tree, key, value),
        kind => batch.add(tree, kind, key, value),
    }
    write(inner, batch, options)
}

/// Commits a batch. Waits until the batch is admitted. Measures the latency of sampled commits.
pub(crate) fn write(inner: &DbInner, batch: WriteBatch, options: WriteOptions) -> Result<()> {
    let (env, latencies) = (&inner.state.env, &inner.state.latencies);
    let start = latencies.start(env);
    let sync = options.durability == Durability::Sync;
    let span = CommitSpan::new(batch.count, batch.payload.len(), sync);
    let written = span.in_scope(|| commit(inner, batch, options));
    match &written {
        Ok(()) => latencies.finish(env, TimedOperation::Commit, start),
        Err(error) => span.record_error(error),
    }
    written
}

#[inline]
fn commit(inner: &DbInner, mut batch: WriteBatch, options: WriteOptions) -> Result<()> {
    if !inner.validate_write_batch(&batch, options)? {
        return Ok(());
    }
    let (deadline_us, reservation) = admit(inner, &batch, options)?;
    if !batch.guards.is_empty() {
        check_ranges(&inner.state, &mut batch.guards)?;
    }
    let sync = options.durability == Durability::Sync;
    let trace = inner.start_commit_trace(&batch);
    let reserved_bytes = reservation.map_or(0, MemtableReservation::into_bytes);
    let long_chains = inner.committer.commit(batch, sync, reserved_bytes, deadline_us)?;
    if let Some(trace) = trace {
        trace.committed(sync);
    }
    if !long_chains.is_empty() {
        // The commit is complete, so a caller with a deadline must not wait for a device now.
        let reads = if deadline_us.is_some() { ReadScope::Memory } else { ReadScope::Storage };
        inner.fold_operand_chains(long_chains, reads);
    }
    inner.after_commit(deadline_us);
    Ok(())
}
