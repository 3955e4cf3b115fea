//! Collections of operand stores: buckets made anew, and operands that leave for the tree.
//!
//! 1. The store does what it can while deliveries go on.
//! 2. In turn with these, it says what leaves. Of each key that is all that no anchor voids, and newer than
//!    all that tables have of it; so it forms one run, the newest in L0. What lies in the oldest stripe of
//!    snapshots is folded onto the value that tables have, at the number of the newest operand: snapshots
//!    before it go on seeing the older entries, which stay where they are.
//! 3. One manifest edit says both what the store holds now and which run has come, and readers see
//!    both change in one step.

use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;
use lsmx_compaction::{OutputSplitter, SplitRule};

use crate::cursor::Cursor;
use crate::env::YieldKind;
use crate::env::rate_limit::IoPriority;
use crate::error::{Error, Result};
use crate::event::{Event, OperandsCollected};
use crate::format::version_edit::Change;
use crate::iter::merging_iter::MergingCursor;
use crate::iter::operand_fold::Fold;
use crate::iter::range_tombstone_filter::Deleted;
use crate::iter::run_iter::RunCursor;
use crate::jobs::compaction::output::Outputs;
use crate::jobs::compaction::retention::Retention;
use crate::jobs::compaction::run::{caught, pause_us, tell_next_write, was_given_up};
use crate::jobs::compaction::version_filter::VersionFilter;
use crate::jobs::quarantine;
use crate::jobs::version_installer::{install_beside, sync_names};
use crate::operand_store::{Collection, Prepared};
use crate::options::filter_bits::Coming;
use crate::state::DbState;
use crate::table::{Access, FillCache};
use crate::trace::{JobBegin, JobSpan};
use crate::tree::counters::add;
use crate::tree::merge_resolver::Merging;
use crate::tree::operands::{Attached, StoreTurn};
use crate::tree::version::{SuperVersion, Version};
use crate::tree::{Retry, Tree};

/// Runs a collection if one is due and nobody is at it; returns whether it did something.
pub(crate) fn collect_if_due(store: &DbState, tree: &Tree) -> bool {
    let Some(attached) = tree.beside.attached() else { return false };
    let blocked = || {
        let paused = store.env.now_us() < tree.jobs.lock().collection.retry_at_us;
        paused || store.health.check().is_err() || store.is_closing() || tree.is_dropped()
    };
    if blocked() {
        return false;
    }
    if !attached.store.collection_is_due() {
        // The collection that failed is no longer needed.
        end_failures(store, tree);
        return false;
    }
    let Some(_collecting) = attached.begin_collecting() else { return false };
    let reason = &"its operand store asks for it";
    let job = JobBegin { kind: "collection", keyspace: &tree.name, inputs: 1, reason };
    let span = JobSpan::begin(job);
    let mut collected = caught(store, || collect(store, tree, &attached, &span));
    let mut quarantined = false;
    if let Err(error @ Error::Corrupt { .. }) = &collected {
        match quarantine::recheck_operands(&attached, error) {
            // The bad read was transient.
            Some(Ok(_)) => {
                store.tell(&Event::ReadRepeated(Arc::new(error.clone())));
                collected = caught(store, || collect(store, tree, &attached, &span));
            }
            Some(Err(again)) => quarantined = quarantine::admit_operands(store, tree, &again),
            None => {}
        }
    }
    match &collected {
        Ok(_) => end_failures(store, tree),
        Err(error) => {
            span.failed(error);
            if !was_given_up(error) && !matches!(error, Error::ReadOnly { .. }) {
                add(&tree.counters.compaction_failures, 1);
                // A collection without the quarantined file need not wait.
                if !quarantined {
                    pause(store, tree, error);
                }
            }
            if !was_given_up(error) {
                store.report("collection", Some(tree), error);
            }
            tell_next_write(store, "collection", tree, error);
        }
    }
    store.progress.notify();
    matches!(collected, Ok(true))
}

/// A collection has ended well: the next failure is the first.
fn end_failures(store: &DbState, tree: &Tree) {
    let mut jobs = tree.jobs.lock();
    if jobs.collection.error.is_none() {
        return;
    }
    jobs.collection = Retry::default();
    if jobs.next_try_us().is_none() {
        store.set_failing(tree.id, false);
    }
}

/// Has collections pause after one that failed. Compactions of the tree do not. A table that could not be
/// read is quarantined.
fn pause(store: &DbState, tree: &Tree, error: &Error) {
    quarantine::admit(store, tree, error);
    let mut jobs = tree.jobs.lock();
    let retry = &mut jobs.collection;
    retry.retry_at_us = store.env.now_us().saturating_add(pause_us(retry.failures));
    retry.failures = retry.failures.saturating_add(1);
    retry.error = Some(error.clone());
    store.set_failing(tree.id, true);
}

/// Returns whether there was something to be done after all.
fn collect(store: &DbState, tree: &Tree, attached: &Attached, span: &JobSpan) -> Result<bool> {
    let start_ns = store.env.monotonic_ns();
    // First the number, then the snapshots: those that come later see at least as much.
    let visible = store.sequence.published();
    let mut snapshots = store.sequence.snapshots();
    snapshots.retain(|snapshot| *snapshot < visible);
    snapshots.push(visible);
    let Some(collection) = attached.store.collect(&snapshots)? else { return Ok(false) };
    store.env.yield_point(YieldKind::JobStep);
    // A keyspace that keeps its operands in the tree meanwhile has no use for it.
    let Some(turn) = tree.beside.turn(&store.env, &store.progress) else { return Ok(false) };
    if !std::ptr::eq(&*turn.attached, attached) {
        return Ok(false);
    }
    store.health.check()?;
    if store.is_closing() {
        return Err(Error::Closed);
    }
    tree.check_live()?;
    let moved = bring(store, tree, &turn, collection, Leave::Folded, Vec::new());
    let Moved { entries, written_bytes } = moved.inspect_err(|_| attached.store.abandon())?;
    let elapsed_us = store.env.monotonic_ns().saturating_sub(start_ns) / 1_000;
    span.done(0, written_bytes, elapsed_us);
    store.tell(&Event::OperandsCollected(OperandsCollected {
        keyspace: tree.name.clone(),
        entries,
        written_bytes,
        elapsed_us,
    }));
    Ok(true)
}

/// Brings everything that the store of a tree has into the tree, and lets the store go: `changes` say so
/// to the manifest. No snapshot is registered, and none comes.
///
/// # Errors
/// When something cannot be read or written: all is as before. When the manifest cannot be written: the
/// database is read-only.
pub(crate) fn bring_all(
    store: &DbState,
    tree: &Tree,
    turn: &StoreTurn<'_>,
    changes: Vec<Change>,
) -> Result<()> {
    let attached = &turn.attached;
    let collection = attached.store.collect_all()?;
    let moved = bring(store, tree, turn, collection, Leave::All, changes);
    moved.map(drop).inspect_err(|_| attached.store.abandon())
}

/// How operands leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    /// Folded, and the store stays.
    Folded,
    /// As they are, and the store goes.
    All,
}

/// What has come to the tree.
struct Moved {
    entries: u64,
    written_bytes: u64,
}

/// Makes the end of a collection durable and visible. An error leaves it to the caller to tell the store.
fn bring(
    store: &DbState,
    tree: &Tree,
    turn: &StoreTurn<'_>,
    mut collection: Box<dyn Collection + '_>,
    leave: Leave,
    mut changes: Vec<Change>,
) -> Result<Moved> {
    let attached = &turn.attached;
    // What is older than the operands comes to the tree in turn alone. Snapshots that come from here on
    // see all that leaves.
    let view = tree.pin();
    let shape = view.version.shape();
    let coming = Coming::Flush { entries: 0 };
    let place = (0, tree.filter_width(shape, &coming));
    // What operands amount to may be a delete, as old as this.
    let now_us = Some(store.env.database_us());
    let mut outputs = Outputs::in_lane(IoPriority::Compaction, &store.tables, tree, place, now_us);
    let file_bytes = tree.settings().options.table_bytes;
    let cut = SplitRule { file_bytes, grandparent: None, boundaries: Vec::new() };
    outputs.cut_by(OutputSplitter::new(&cut, shape));
    if let Some(leaving) = collection.leaving()? {
        match leave {
            Leave::Folded => fold(store, tree, attached, &view, leaving, &mut outputs)?,
            Leave::All => copy(store, leaving, &mut outputs)?,
        }
    }
    outputs.finish()?;
    store.env.yield_point(YieldKind::JobStep);
    let prepared = match leave {
        Leave::Folded => Some(collection.prepare()?),
        // Nothing is left to be prepared.
        Leave::All => {
            drop(collection);
            None
        }
    };
    store.env.yield_point(YieldKind::JobStep);
    if !outputs.tables().is_empty() {
        sync_names(store.vfs.as_ref(), &store.dir)?;
    }
    let shapes: Vec<_> = outputs.tables().iter().map(|table| (**table.shape()).clone()).collect();
    let written_bytes = outputs.finished_bytes();
    let token = prepared.as_ref().map(|prepared| prepared.token);
    changes.push(Change::OperandToken { keyspace: tree.id, token });
    let operands = prepared.map(|prepared: Prepared| attached.beside(prepared));
    install_beside(store, tree, &mut outputs, None, Some(operands.as_ref()), changes, |shape| {
        shape.with_flush(shapes).map(|(shape, _)| shape)
    })?;
    if let Some(token) = token {
        attached.store.committed(token);
    }
    tree.counters.flowed(0, |flow| {
        flow.jobs += 1;
        flow.came_bytes += written_bytes;
        flow.written_bytes += written_bytes;
    });
    Ok(Moved { entries: outputs.entries, written_bytes })
}

/// Writes what leaves as it is.
fn copy(store: &DbState, mut leaving: Box<dyn Cursor>, outputs: &mut Outputs<'_>) -> Result<()> {
    leaving.first()?;
    let mut before: Option<Vec<u8>> = None;
    while leaving.valid() {
        let key = leaving.key();
        if before.as_deref() != Some(key.user_key) {
            outputs.begin_key(key.user_key)?;
            before = Some(key.user_key.to_vec());
            store.env.yield_point(YieldKind::CompactionBlock);
        }
        outputs.add(key, leaving.value())?;
        leaving.next()?;
    }
    Ok(())
}

/// Writes what leaves, folded with what tables hold.
fn fold(
    store: &DbState,
    tree: &Tree,
    attached: &Attached,
    view: &SuperVersion,
    mut leaving: Box<dyn Cursor>,
    outputs: &mut Outputs<'_>,
) -> Result<()> {
    let snapshots = store.sequence.snapshots();
    let mut tables = Tables::new(&view.version, &tree.merging)?;
    let retention = Retention::for_flush(snapshots.clone(), view.version.shape());
    let mut keeper = VersionFilter::new(retention, &tree.merging);
    let mut write = |key: InternalKey<'_>, value: &[u8], first: bool| {
        if first {
            outputs.begin_key(key.user_key)?;
        }
        outputs.add(key, value)
    };
    let mistake = |wrong| Error::OperandStoreMistake {
        keyspace: tree.name.clone(),
        store: attached.factory.name().to_owned(),
        wrong,
    };
    leaving.first()?;
    while leaving.valid() {
        store.env.yield_point(YieldKind::CompactionBlock);
        let user_key = leaving.key().user_key.to_vec();
        let (newest, older) = tables.find(&user_key)?;
        while leaving.valid() && leaving.key().user_key == user_key {
            let key = leaving.key();
            if key.kind != EntryKind::Merge {
                return Err(mistake("gave the tree something else than operands"));
            }
            match newest {
                Some(newest) if key.seq <= newest => {
                    // Void for everybody but a snapshot that cannot see what voids it.
                    if snapshots.iter().any(|&snapshot| key.seq <= snapshot && snapshot < newest) {
                        return Err(mistake("gave up an operand that a snapshot needs"));
                    }
                }
                _ => keeper.take(&leaving, &mut write)?,
            }
            leaving.next()?;
        }
        // What tables hold of operands may not fold, for which there are many reasons and one answer.
        if let Some(base) = older {
            keeper.stand_on(base.as_deref(), &mut write)?;
        }
    }
    keeper.end(&mut write)
}

/// What tables hold of keys that are asked for in their order.
struct Tables<'a> {
    merging: &'a Merging,
    version: &'a Version,
    cursor: MergingCursor<RunCursor>,
    /// Whether the cursor stands where the key before was sought.
    begun: bool,
    deleted: Option<Deleted>,
}

impl<'a> Tables<'a> {
    fn new(version: &'a Version, merging: &'a Merging) -> Result<Tables<'a>> {
        let spans: Option<Arc<[_]>> = version.spans()?.map(|spans| Arc::from([spans]));
        let deleted = spans.and_then(|spans| Deleted::for_reader(spans, SeqNo::MAX));
        let runs = version.runs().iter();
        let runs = runs
            .map(|run| RunCursor::new(Arc::clone(run.tables()), FillCache::Job, deleted.clone()));
        let cursor = MergingCursor::new(runs.collect());
        Ok(Tables { merging, version, cursor, begun: false, deleted })
    }

    /// The newest number of the key, that of a range delete over it included, and its value; none if
    /// that does not fold.
    fn find(&mut self, user_key: &[u8]) -> Result<(Option<SeqNo>, Option<Option<Slice>>)> {
        let covering = self.deleted.as_mut().and_then(|deleted| deleted.newest_over(user_key));
        let mut newest = covering;
        let mut fold = Fold::default();
        // A run without keys around this one would read two blocks for each key that is asked for.
        match std::mem::replace(&mut self.begun, true) {
            true => self.cursor.seek_on(user_key, SeqNo::MAX)?,
            false => self.cursor.seek(user_key, SeqNo::MAX)?,
        }
        while self.cursor.valid() && self.cursor.key().user_key == user_key {
            let key = self.cursor.key();
            newest = newest.max(Some(key.seq));
            if covering > Some(key.seq) || !fold.older(key.seq, key.kind, self.cursor.value_slice())
            {
                break;
            }
            self.cursor.next()?;
        }
        fold.resolve(|seq, pointer| {
            let mut access = Access::of(FillCache::Job);
            self.version.blobs().value((user_key, seq), pointer, &mut access)
        })?;
        Ok((newest, fold.finish_for_job(self.merging, user_key)))
    }
}
