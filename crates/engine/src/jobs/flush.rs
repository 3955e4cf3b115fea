//! Flushes: write a sealed memtable to a new sorted run in L0.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{InternalKey, SeqNo};
use lsmx_base::sync::Arc;
use lsmx_compaction::TreeShape;

use crate::cursor::Cursor;
use crate::env::YieldKind;
use crate::error::{Error, Result};
use crate::event::{Event, FlushBegin, FlushEnd};
use crate::format::version_edit::Change;
use crate::job_tracing::{JobSpan, JobSpanFields};
use crate::jobs::compaction::output::{JobOutputs, TombstoneTime};
use crate::jobs::compaction::retention::Retention;
use crate::jobs::compaction::version_filter::VersionFilter;
use crate::jobs::operand_store::deliver::OperandDeliveryWriter;
use crate::jobs::version_installer::{install_version, sync_directory};
use crate::memtable::Memtable;
use crate::state::DbState;
use crate::tree::Tree;
use crate::tree::guard_history::FlushedWrites;
use crate::tree::operand_store_slot::StoreInstallGuard;
use crate::write::commit::Committer;

/// Number of memtable entries between two calls of the callback of [`write_memtable`].
const BLOCK_ENTRIES: u32 = 64;
/// Minimum pause between two background syncs of the WAL by a flush, as a multiple of the duration of the first sync. The
/// flush thus spends at most a quarter of its time in these syncs.
const SYNC_PAUSE_FACTOR: u64 = 3;
/// Lower bound of the pause between two background syncs of the WAL by a flush, in microseconds.
const SYNC_PAUSE_US_MIN: u64 = 1_000;

/// Flushes the oldest sealed memtable of a tree.
///
/// Returns `false` if there is no sealed memtable, if another thread is flushing the tree, or if another thread has
/// reserved the operand store of the tree. If the store is reserved, the flush is postponed. A thread that waits for
/// the device of one operand store therefore does not block the flushes of other trees.
///
/// # Errors
/// After any error, the database becomes read-only. The memtable then stays in memory, and its commits stay in the WAL.
pub(crate) fn flush_oldest_memtable(
    state: &DbState,
    committer: &Committer,
    tree: &Arc<Tree>,
) -> Result<bool> {
    {
        let mut jobs = tree.jobs.lock();
        let idle = tree.super_version().sealed.is_empty() || tree.is_dropped();
        if jobs.flushing || idle || state.error_state.check_writable().is_err() {
            return Ok(false);
        }
        jobs.flushing = true;
    }
    let reserved = match failpoint::is_on(Failpoint::FlushWaitsForStore) {
        true => Ok(tree.operand_store.reserve(&state.env, &state.progress)),
        false => tree.operand_store.try_reserve(&state.progress),
    };
    let Ok(guard) = reserved else {
        tree.jobs.lock().flushing = false;
        state.work.postpone_flush(tree);
        return Ok(false);
    };
    let store_flush = guard.as_ref().map(|_| state.work.begin_store_flush());
    let reason = &"its memtable is sealed";
    let job = JobSpanFields { kind: "flush", keyspace: &tree.name(), inputs: 1, reason };
    let span = JobSpan::start(job);
    let flush = || flush_memtable(state, committer, tree, &span, guard.as_ref());
    let flushed = catch_unwind(AssertUnwindSafe(flush))
        .unwrap_or_else(|panic| Err(Error::from_panic(&*panic)));
    if let Err(error) = &flushed {
        span.record_error(error);
        if let Some(guard) = &guard {
            guard.attached.abandon();
        }
    }
    drop((store_flush, guard));
    tree.jobs.lock().flushing = false;
    state.progress.notify();
    match flushed {
        Ok(()) => Ok(true),
        // The keyspace was dropped during the flush. Its tables are not needed. The flush may have added its writes to
        // the history after the drop removed the history of the keyspace.
        Err(Error::KeyspaceDropped { .. }) => {
            state.guard_history.remove_tree(tree.id);
            Ok(false)
        }
        Err(error) => {
            state.report_background_error("flush", Some(tree), &error);
            Err(state.make_read_only(error))
        }
    }
}

/// Flushes the oldest sealed memtable. `guard` is the reservation of the operand store, if the tree has one.
fn flush_memtable(
    state: &DbState,
    committer: &Committer,
    tree: &Tree,
    span: &JobSpan,
    guard: Option<&StoreInstallGuard<'_>>,
) -> Result<()> {
    // While this thread has reserved the operand store, no collection can move older operands to the tree.
    let view = tree.pin_super_version();
    let Some((memtable, last_seq)) = view.oldest_sealed() else { return Ok(()) };
    // When the last sequence number of the memtable is published, all insertions into the memtable have ended.
    committer.wait_published(last_seq);
    state.error_state.check_writable()?;
    let start_ns = state.env.monotonic_ns();
    state.emit(&Event::FlushBegin(FlushBegin {
        keyspace: tree.name(),
        memtable_bytes: memtable.bytes(),
    }));
    let expiry_limit_us = if tree.may_expire() { state.expiry_limit_us() } else { 0 };
    let now_us = state.env.database_time_us();
    // Tables with expiring values contain a time even if they contain no tombstones, as in earlier builds.
    let default_us = (expiry_limit_us > 0).then_some(now_us);
    let first_us = memtable.first_tombstone_us().or(default_us);
    let tombstone_time = TombstoneTime::of_flush(first_us, now_us);
    let shape = view.version.shape();
    let mut outputs = JobOutputs::for_flush(&state.tables, tree, memtable, shape, tombstone_time);
    let retention = Retention::for_flush(state.sequence.snapshot_seqs(), view.version.shape())
        .with_operand_view(view.operand_view.as_ref().map(|beside| &beside.view))
        .keep_covered_tombstones(tree.keeps_covered_tombstones());
    let filter =
        VersionFilter::new(retention, &tree.merge_resolver).with_expiry_limit(expiry_limit_us);
    let attached = guard.map(|guard| &*guard.attached);
    let mut delivery = attached.map(|at| OperandDeliveryWriter::new(at, last_seq)).transpose()?;
    let mut flushed_writes = state.guard_history.new_flush_record(tree.id, memtable, last_seq);
    let recorder = flushed_writes.as_mut();
    // This thread may be the only flush thread, so it also performs the background syncs of the WAL. Commits during a
    // sync may make the next sync due at once. The pauses prevent a sync per block of entries.
    let mut next_sync_us = 0;
    let mut on_block = || {
        state.env.yield_point(YieldKind::FlushBlock);
        let begin_us = state.env.now_us();
        if begin_us >= next_sync_us && state.wal.is_sync_due(begin_us) {
            state.wal.sync()?;
            let end_us = state.env.now_us();
            let pause_us = end_us.saturating_sub(begin_us).saturating_mul(SYNC_PAUSE_FACTOR);
            next_sync_us = end_us.saturating_add(pause_us.max(SYNC_PAUSE_US_MIN));
        }
        Ok(())
    };
    write_memtable(&mut on_block, filter, memtable, &mut outputs, delivery.as_mut(), recorder)?;
    state.env.yield_point(YieldKind::JobStep);
    // The WAL is synced before the manifest records the flush. Otherwise, a crash could keep a commit in this keyspace
    // and lose it in others. The WAL does not contain the sequence number of an ingest and may therefore end before
    // `last_seq`. Recovery requires that the WAL contains the sequence number that the manifest records.
    let flushed_through = match failpoint::is_on(Failpoint::FlushWithoutWalSync) {
        true => last_seq,
        false => last_seq.min(state.wal.sync()?),
    };
    state.env.yield_point(YieldKind::JobStep);
    if !outputs.tables().is_empty() {
        sync_directory(state.vfs.as_ref(), &state.dir)?;
    }
    let mut changes = vec![Change::FlushedThrough { keyspace: tree.id, seq: flushed_through }];
    let mut beside = None;
    if let (Some(attached), Some(delivery)) = (attached, delivery) {
        beside = delivery.prepare_version()?.map(|prepared| attached.prepared_view(prepared));
        state.env.yield_point(YieldKind::JobStep);
        let token = beside.as_ref().and_then(|beside| beside.token);
        if token.is_some() && !failpoint::is_on(Failpoint::TokenNotCommitted) {
            changes.push(Change::OperandToken { keyspace: tree.id, token });
        }
    }
    let written_bytes = outputs.finished_bytes();
    let output = outputs.tables().first().map(|table| table.shape().id);
    let operands = beside.as_ref().map(Some);
    // The flushed writes are added to the history before the memtable is removed from the super version. A commit with
    // a guard therefore finds a write either in the history or in the memtable.
    if let Some(flushed_writes) = flushed_writes {
        state.guard_history.append(flushed_writes);
    }
    install_version(
        state,
        tree,
        &mut outputs,
        Some(memtable),
        operands,
        changes,
        TreeShape::with_flushed_run,
    )?;
    if let (Some(attached), Some(token)) = (attached, beside.and_then(|beside| beside.token)) {
        attached.store.mark_committed(token);
    }
    let elapsed_us = state.env.monotonic_ns().saturating_sub(start_ns) / 1_000;
    tree.counters.update(|counts| {
        counts.flushes += 1;
        counts.flushed_bytes += written_bytes;
        outputs.expired.add_to(&mut counts.expired);
        let writes = &mut counts.level_mut(0).flow;
        writes.jobs += 1;
        writes.incoming_bytes += written_bytes;
        writes.written_bytes += written_bytes;
        writes.us_total += elapsed_us;
    });
    state.flush_us.record(elapsed_us);
    span.record_success(memtable.bytes(), written_bytes, elapsed_us);
    state.memtables.subtract(memtable.release_bytes());
    state.emit(&Event::Flush(FlushEnd {
        keyspace: tree.name(),
        output,
        entries: outputs.entries,
        written_bytes,
        elapsed_us,
    }));
    Ok(())
}

/// Writes the entries of a memtable to tables, except for operands that are delivered to the operand store. Adds all
/// entries to `flushed_writes`. Calls `on_block` after each [`BLOCK_ENTRIES`] entries.
///
/// The tables are synced. Their directory entries are not synced.
pub(crate) fn write_memtable(
    on_block: &mut dyn FnMut() -> Result<()>,
    filter: VersionFilter<'_>,
    memtable: &Arc<Memtable>,
    outputs: &mut JobOutputs<'_>,
    delivery: Option<&mut OperandDeliveryWriter<'_>>,
    flushed_writes: Option<&mut FlushedWrites>,
) -> Result<()> {
    write_memtable_range(
        on_block,
        filter,
        memtable,
        (None, None),
        outputs,
        delivery,
        flushed_writes,
    )
}

/// Like [`write_memtable`], but only for the keys in `from..to`. If the range does not contain all keys, the memtable
/// must have no range tombstones, and `delivery` must be `None`.
pub(crate) fn write_memtable_range(
    on_block: &mut dyn FnMut() -> Result<()>,
    mut filter: VersionFilter<'_>,
    memtable: &Arc<Memtable>,
    (from, to): (Option<&[u8]>, Option<&[u8]>),
    outputs: &mut JobOutputs<'_>,
    mut delivery: Option<&mut OperandDeliveryWriter<'_>>,
    mut flushed_writes: Option<&mut FlushedWrites>,
) -> Result<()> {
    let keys = memtable.key_range();
    let keys = keys.as_ref().map(|(smallest, largest)| (&smallest[..], &largest[..]));
    outputs.set_range_tombstones(filter.add_range_tombstones(&memtable.range_tombstones(), keys));
    if let Some(delivery) = &mut delivery {
        delivery.add_range_tombstones(filter.range_tombstones())?;
    }
    let mut cursor = memtable.cursor();
    match from {
        Some(from) => cursor.seek(from, SeqNo::MAX)?,
        None => cursor.first()?,
    }
    let mut entries = 0u32;
    let mut write = |key: InternalKey<'_>, value: &[u8], _: bool| {
        let delivered = match &mut delivery {
            Some(delivery) => delivery.add_entry(key, value)?,
            None => false,
        };
        if delivered { Ok(()) } else { outputs.add(key, value) }
    };
    while cursor.valid() && to.is_none_or(|to| cursor.key().user_key < to) {
        if let Some(flushed_writes) = &mut flushed_writes {
            flushed_writes.add(cursor.key().user_key, cursor.key().seq);
        }
        filter.add_entry(&cursor, &mut write)?;
        entries = entries.wrapping_add(1);
        if entries.is_multiple_of(BLOCK_ENTRIES) {
            on_block()?;
        }
        cursor.next()?;
    }
    filter.finish(&mut write)?;
    outputs.expired.add(filter.expired());
    outputs.finish()
}
