//! A sealed memtable becomes a sorted run in L0.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{InternalKey, SeqNo};
use lsmx_base::sync::Arc;
use lsmx_compaction::TreeShape;

use crate::cursor::Cursor;
use crate::env::{Env, YieldKind};
use crate::error::{Error, Result};
use crate::event::{Event, FlushBegin, FlushEnd};
use crate::format::version_edit::Change;
use crate::jobs::compaction::output::Outputs;
use crate::jobs::compaction::retention::Retention;
use crate::jobs::compaction::version_filter::VersionFilter;
use crate::jobs::operand_store::deliver::Delivering;
use crate::jobs::version_installer::{install_beside, sync_names};
use crate::memtable::Memtable;
use crate::state::DbState;
use crate::trace::{JobBegin, JobSpan};
use crate::tree::Tree;
use crate::tree::counters::add;
use crate::tree::guard_history::FlushedWrites;
use crate::tree::operands::StoreTurn;
use crate::write::commit::Committer;

/// Flushes the oldest sealed memtable of a tree. Returns `false` if there is none, if another thread flushes
/// the tree, or if another thread has reserved its operand store. In the last case the flush is put off: a
/// device that hangs under one operand store must not stop the flushes of other trees.
///
/// # Errors
/// Any error makes the database read-only: the memtable stays in memory and in the log.
pub(crate) fn flush_oldest(
    store: &DbState,
    committer: &Committer,
    tree: &Arc<Tree>,
) -> Result<bool> {
    {
        let mut jobs = tree.jobs.lock();
        let idle = tree.view().sealed.is_empty() || tree.is_dropped();
        if jobs.flushing || idle || store.health.check().is_err() {
            return Ok(false);
        }
        jobs.flushing = true;
    }
    let reserved = match failpoint::is_on(Failpoint::FlushWaitsForStore) {
        true => Ok(tree.beside.turn(&store.env, &store.progress)),
        false => tree.beside.try_turn(&store.progress),
    };
    let Ok(turn) = reserved else {
        tree.jobs.lock().flushing = false;
        store.park_flush(tree);
        return Ok(false);
    };
    let reason = &"its memtable is sealed";
    let job = JobBegin { kind: "flush", keyspace: &tree.name, inputs: 1, reason };
    let span = JobSpan::begin(job);
    let flush = || flush(store, committer, tree, &span, turn.as_ref());
    let flushed =
        catch_unwind(AssertUnwindSafe(flush)).unwrap_or_else(|panic| Err(Error::panicked(&*panic)));
    if let Err(error) = &flushed {
        span.failed(error);
        if let Some(turn) = &turn {
            turn.attached.store.abandon();
        }
    }
    drop(turn);
    tree.jobs.lock().flushing = false;
    store.progress.notify();
    match flushed {
        Ok(()) => Ok(true),
        // It was dropped meanwhile: nobody needs its tables.
        Err(Error::KeyspaceDropped { .. }) => Ok(false),
        Err(error) => {
            store.report("flush", Some(tree), &error);
            Err(store.fail(error))
        }
    }
}

/// Flushes the oldest sealed memtable; `turn` reserves the operand store if there is one.
fn flush(
    store: &DbState,
    committer: &Committer,
    tree: &Tree,
    span: &JobSpan,
    turn: Option<&StoreTurn<'_>>,
) -> Result<()> {
    // Only a thread that has reserved the store brings older entries into the tree.
    let view = tree.pin();
    let Some((memtable, last_seq)) = view.oldest_sealed() else { return Ok(()) };
    // The last insert has ended when the last number is published.
    committer.wait_published(last_seq);
    store.health.check()?;
    let start_ns = store.env.monotonic_ns();
    store.tell(&Event::FlushBegin(FlushBegin {
        keyspace: tree.name.clone(),
        memtable_bytes: memtable.bytes(),
    }));
    let (shape, tombstone_us) = (view.version.shape(), memtable.tombstone_us());
    let mut outputs = Outputs::of_flush(&store.tables, tree, memtable, shape, tombstone_us);
    let retention = Retention::for_flush(store.sequence.snapshots(), view.version.shape())
        .with_store(view.operands.as_ref().map(|beside| &beside.view));
    let keeper = VersionFilter::new(retention, &tree.merging);
    let attached = turn.map(|turn| &*turn.attached);
    let mut delivering = attached.map(|at| Delivering::begin(at, last_seq)).transpose()?;
    let mut writes = store.guard_history.begin(tree.id, memtable, last_seq);
    let guarded = writes.as_mut();
    write_memtable(&store.env, keeper, memtable, &mut outputs, delivering.as_mut(), guarded)?;
    store.env.yield_point(YieldKind::JobStep);
    // Otherwise this keyspace would be durable ahead of others.
    if !failpoint::is_on(Failpoint::FlushWithoutWalSync) {
        store.wal.sync()?;
    }
    store.env.yield_point(YieldKind::JobStep);
    if !outputs.tables().is_empty() {
        sync_names(store.vfs.as_ref(), &store.dir)?;
    }
    let mut extra = vec![Change::FlushedThrough { keyspace: tree.id, seq: last_seq }];
    let mut beside = None;
    if let (Some(attached), Some(delivering)) = (attached, delivering) {
        beside = delivering.prepare()?.map(|prepared| attached.beside(prepared));
        store.env.yield_point(YieldKind::JobStep);
        let token = beside.as_ref().and_then(|beside| beside.token);
        if token.is_some() && !failpoint::is_on(Failpoint::TokenNotCommitted) {
            extra.push(Change::OperandToken { keyspace: tree.id, token });
        }
    }
    let shapes = outputs.tables().iter().map(|table| (**table.shape()).clone()).collect();
    let written_bytes = outputs.finished_bytes();
    let output = outputs.tables().first().map(|table| table.shape().id);
    let next = |shape: &TreeShape| shape.with_flush(shapes).map(|(shape, _)| shape);
    let operands = beside.as_ref().map(Some);
    // Before the memtable leaves the view: a guard finds its writes in one or the other.
    if let Some(writes) = writes {
        store.guard_history.append(writes);
    }
    install_beside(store, tree, &mut outputs, Some(memtable), operands, extra, next)?;
    if let (Some(attached), Some(token)) = (attached, beside.and_then(|beside| beside.token)) {
        attached.store.committed(token);
    }
    add(&tree.counters.flushes, 1);
    add(&tree.counters.flushed_bytes, written_bytes);
    let elapsed_us = store.env.monotonic_ns().saturating_sub(start_ns) / 1_000;
    tree.counters.flowed(0, |flow| {
        flow.jobs += 1;
        flow.came_bytes += written_bytes;
        flow.written_bytes += written_bytes;
        flow.us_total += elapsed_us;
    });
    store.flush_us.record(elapsed_us);
    span.done(memtable.bytes(), written_bytes, elapsed_us);
    store.memtable_bytes_freed(memtable.free());
    store.tell(&Event::Flush(FlushEnd {
        keyspace: tree.name.clone(),
        output,
        entries: outputs.entries,
        written_bytes,
        elapsed_us,
    }));
    Ok(())
}

/// Writes a memtable to one table, on stable storage but for its name, and delivers operands to the
/// operand store. Adds every entry to `writes`.
///
/// # Errors
/// When the table cannot be written.
pub(crate) fn write_memtable(
    env: &Env,
    keeper: VersionFilter<'_>,
    memtable: &Arc<Memtable>,
    outputs: &mut Outputs<'_>,
    delivering: Option<&mut Delivering<'_>>,
    writes: Option<&mut FlushedWrites>,
) -> Result<()> {
    write_range(env, keeper, memtable, (None, None), outputs, delivering, writes)
}

/// [`write_memtable`] of the keys in a range: from a first one on, before another. A part of a
/// memtable may be written only if that has no range deletes and nothing is delivered.
///
/// # Errors
/// When the table cannot be written.
pub(crate) fn write_range(
    env: &Env,
    mut keeper: VersionFilter<'_>,
    memtable: &Arc<Memtable>,
    (from, to): (Option<&[u8]>, Option<&[u8]>),
    outputs: &mut Outputs<'_>,
    mut delivering: Option<&mut Delivering<'_>>,
    mut writes: Option<&mut FlushedWrites>,
) -> Result<()> {
    let keys = memtable.key_range();
    let keys = keys.as_ref().map(|(smallest, largest)| (&smallest[..], &largest[..]));
    outputs.take_spans(keeper.heed(&memtable.range_tombstones(), keys));
    if let Some(delivering) = &mut delivering {
        delivering.range_anchors(keeper.covering())?;
    }
    let mut cursor = memtable.cursor();
    match from {
        Some(from) => cursor.seek(from, SeqNo::MAX)?,
        None => cursor.first()?,
    }
    let mut entries = 0u32;
    let mut write = |key: InternalKey<'_>, value: &[u8], _: bool| {
        let delivered = match &mut delivering {
            Some(delivering) => delivering.take(key, value)?,
            None => false,
        };
        if delivered { Ok(()) } else { outputs.add(key, value) }
    };
    while cursor.valid() && to.is_none_or(|to| cursor.key().user_key < to) {
        if let Some(writes) = &mut writes {
            writes.add(cursor.key().user_key, cursor.key().seq);
        }
        keeper.take(&cursor, &mut write)?;
        entries = entries.wrapping_add(1);
        if entries.is_multiple_of(64) {
            env.yield_point(YieldKind::FlushBlock);
        }
        cursor.next()?;
    }
    keeper.end(&mut write)?;
    outputs.finish()
}
