//! Collections of operand stores: rewrite buckets and move operands to the tree.
//!
//! 1. The store performs most of its work while deliveries continue.
//! 2. While deliveries are locked out, the store returns the operands that move to the tree. For each key, these are
//!    all operands that are newer than all table entries and that no delete marker covers. These operands are written
//!    to a new sorted run, which becomes the newest run of L0. In the oldest snapshot stripe, operands are combined
//!    with the value in the tables, unless this value has an expiry time that has not passed, or cannot be read. The
//!    combined value has the sequence number of the newest operand. Older snapshots still see the older entries, which
//!    remain in the tables.
//! 3. One manifest edit records the new state of the store and the new run. Both changes become visible to readers at
//!    the same time.

use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, Ordering};
use lsmx_compaction::{OutputSplitter, SplitRule, TreeShape};

use crate::cursor::Cursor;
use crate::env::YieldKind;
use crate::env::rate_limit::IoPriority;
use crate::error::{Error, Result};
use crate::event::{Event, OperandsCollected};
use crate::format::version_edit::Change;
use crate::iter::merging_iter::MergingCursor;
use crate::iter::operand_fold::OperandFold;
use crate::iter::range_tombstone_filter::RangeTombstoneFilter;
use crate::iter::run_iter::RunCursor;
use crate::job_tracing::{JobSpan, JobSpanFields};
use crate::jobs::compaction::output::JobOutputs;
use crate::jobs::compaction::retention::Retention;
use crate::jobs::compaction::retry::{
    catch_panics, defer_collection_error, is_cancelled, start_pause,
};
use crate::jobs::compaction::version_filter::VersionFilter;
use crate::jobs::quarantine;
use crate::jobs::version_installer::{install_version, sync_directory};
use crate::operand_store::{OperandCollection, PreparedVersion};
use crate::options::filter_bits::IncomingRun;
use crate::state::DbState;
use crate::table::{ReadContext, ReadPurpose};
use crate::tree::Tree;
use crate::tree::merge_resolver::MergeResolver;
use crate::tree::operand_store_slot::{AttachedStore, StoreInstallGuard};
use crate::tree::snapshots::SnapshotTracker;
use crate::tree::super_version::SuperVersion;
use crate::tree::version::Version;

/// Runs a collection if one is due and none is running. Returns whether the collection changed anything.
pub(crate) fn collect_if_due(state: &DbState, tree: &Tree) -> bool {
    let Some(attached) = tree.operand_store.attached() else {
        // The store of the failed collection may have been removed.
        clear_failures(state, tree);
        return false;
    };
    let is_blocked = || {
        let paused = state.env.now_us() < tree.jobs.lock().collection_retry.retry_at_us;
        paused
            || state.error_state.check_writable().is_err()
            || state.is_closing()
            || tree.is_dropped()
    };
    if is_blocked() {
        return false;
    }
    // Only a recovered store can state whether a collection is due.
    if !attached.is_abandoned() && !attached.store.is_collection_due() {
        // The failed collection is no longer due.
        clear_failures(state, tree);
        return false;
    }
    let Some(_collecting) = attached.begin_collection() else { return false };
    let reason = &"its operand store is due";
    let job = JobSpanFields { kind: "collection", keyspace: &tree.name(), inputs: 1, reason };
    let span = JobSpan::start(job);
    let mut collected = catch_panics(state, || run_collection(state, tree, &attached, &span));
    let mut quarantined = false;
    if let Err(error) = &collected
        && quarantine::is_unreadable(error)
    {
        match quarantine::recheck_operand_file(&attached, error) {
            // The read error was transient.
            Some(Ok(_)) => {
                state.emit(&Event::ReadRepeated(Arc::new(error.clone())));
                collected = catch_panics(state, || run_collection(state, tree, &attached, &span));
            }
            Some(Err(again)) => {
                quarantined = quarantine::quarantine_operand_file(state, tree, &again)
            }
            None => {}
        }
    }
    match &collected {
        Ok(_) => clear_failures(state, tree),
        Err(error) => {
            span.record_error(error);
            if !is_cancelled(error) && !matches!(error, Error::ReadOnly { .. }) {
                tree.counters.update(|counts| counts.compaction.failures += 1);
                // The next collection excludes the quarantined file. It can therefore start without a pause.
                if !quarantined {
                    schedule_retry(state, tree, error);
                }
            }
            if !is_cancelled(error) {
                state.report_background_error("collection", Some(tree), error);
            }
            defer_collection_error(state, tree, error);
        }
    }
    state.progress.notify();
    matches!(collected, Ok(true))
}

/// Resets the pause between retries after a successful collection, or if no collection is due.
fn clear_failures(state: &DbState, tree: &Tree) {
    let mut jobs = tree.jobs.lock();
    let has_failed = std::mem::take(&mut jobs.collection_retry).error.is_some();
    if has_failed && jobs.next_retry_us().is_none() {
        state.set_compaction_failing(tree.id, false);
    }
}

/// Schedules a retry after a failed collection, and quarantines a table that could not be read. Compactions continue.
fn schedule_retry(state: &DbState, tree: &Tree, error: &Error) {
    quarantine::quarantine_file(state, tree, error);
    let mut jobs = tree.jobs.lock();
    start_pause(&mut jobs.collection_retry, state.env.now_us(), error);
    state.set_compaction_failing(tree.id, true);
}

/// Returns the sequence numbers of the registered snapshots in ascending order, followed by the published sequence
/// number.
pub(crate) fn list_snapshots(tracker: &SnapshotTracker) -> Vec<SeqNo> {
    // The published sequence number is read before the snapshots. If a snapshot is missing in the list, it was taken
    // later and sees at least this sequence number.
    let visible = tracker.published();
    let mut snapshots = tracker.snapshot_seqs();
    snapshots.retain(|snapshot| *snapshot < visible);
    snapshots.push(visible);
    snapshots
}

/// Runs a collection. Returns false if nothing was collected.
fn run_collection(
    state: &DbState,
    tree: &Tree,
    attached: &AttachedStore,
    span: &JobSpan,
) -> Result<bool> {
    let start_ns = state.env.monotonic_ns();
    if attached.is_abandoned() {
        let Some(guard) = reserve_store(state, tree, attached) else { return Ok(false) };
        guard.attached.recover()?;
        drop(guard);
        if !attached.store.is_collection_due() {
            return Ok(false);
        }
    }
    let snapshots = list_snapshots(&state.sequence);
    let Some(collection) = attached.store.collect(&snapshots)? else { return Ok(false) };
    state.env.yield_point(YieldKind::JobStep);
    let Some(guard) = reserve_store(state, tree, attached) else { return Ok(false) };
    state.error_state.check_writable()?;
    if state.is_closing() {
        return Err(Error::Closed);
    }
    tree.check_live()?;
    let moved = move_to_tree(state, tree, &guard, collection, MoveMode::Fold, Vec::new());
    let MoveResult { entries, written_bytes } = moved?;
    let elapsed_us = state.env.monotonic_ns().saturating_sub(start_ns) / 1_000;
    span.record_success(0, written_bytes, elapsed_us);
    state.emit(&Event::OperandsCollected(OperandsCollected {
        keyspace: tree.name(),
        entries,
        written_bytes,
        elapsed_us,
    }));
    Ok(true)
}

/// Waits until no other thread has reserved the operand store, and reserves it. Returns `None` if the tree no longer has
/// this store: the keyspace now keeps its operands in the tree.
fn reserve_store<'a>(
    state: &'a DbState,
    tree: &'a Tree,
    attached: &AttachedStore,
) -> Option<StoreInstallGuard<'a>> {
    let guard = tree.operand_store.reserve(&state.env, &state.progress)?;
    std::ptr::eq(&*guard.attached, attached).then_some(guard)
}

/// Moves all operands of a store to the tree and removes the store. `changes` records the removal in the manifest.
///
/// No snapshot may be registered before or during the call.
///
/// # Errors
/// - If a file cannot be read or written, nothing changes.
/// - If the manifest cannot be written, the database becomes read-only.
pub(crate) fn move_all_to_tree(
    state: &DbState,
    tree: &Tree,
    guard: &StoreInstallGuard<'_>,
    changes: Vec<Change>,
) -> Result<()> {
    let attached = &guard.attached;
    let collection = attached.store.collect_all()?;
    move_to_tree(state, tree, guard, collection, MoveMode::CopyAll, changes).map(drop)
}

/// Determines how operands are written to the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MoveMode {
    /// Operands are combined with values. The store continues to exist.
    Fold,
    /// Operands are copied. The store is removed.
    CopyAll,
}

/// Size of the new sorted run.
struct MoveResult {
    entries: u64,
    written_bytes: u64,
}

/// Writes the moved operands to a new run, and makes the result of the collection durable and visible. Abandons the
/// collection after an error.
fn move_to_tree(
    state: &DbState,
    tree: &Tree,
    guard: &StoreInstallGuard<'_>,
    collection: Box<dyn OperandCollection + '_>,
    mode: MoveMode,
    mut changes: Vec<Change>,
) -> Result<MoveResult> {
    let attached = &guard.attached;
    // The manifest does not contain the token yet. On a full disk, the files of a failed collection would take the
    // space that the next attempt needs.
    let (mut outputs, prepared) = write_moved_operands(state, tree, attached, collection, mode)
        .inspect_err(|_| attached.discard_prepared())?;
    let written_bytes = outputs.finished_bytes();
    let token = prepared.as_ref().map(|prepared| prepared.token);
    changes.push(Change::OperandToken { keyspace: tree.id, token });
    attached.collection_count.fetch_add(1, Ordering::Relaxed);
    let operands = prepared.map(|prepared: PreparedVersion| attached.prepared_view(prepared));
    install_version(
        state,
        tree,
        &mut outputs,
        None,
        Some(operands.as_ref()),
        changes,
        TreeShape::with_flushed_run,
    )
    .inspect_err(|_| attached.abandon())?;
    if let Some(token) = token {
        attached.store.mark_committed(token);
    }
    tree.counters.update_level(0, |writes| {
        writes.jobs += 1;
        writes.incoming_bytes += written_bytes;
        writes.written_bytes += written_bytes;
    });
    Ok(MoveResult { entries: outputs.entries, written_bytes })
}

/// Writes the moved operands to a new run, and makes the new state of the store durable. Returns the run, and the new
/// state unless the store is removed.
fn write_moved_operands<'a>(
    state: &'a DbState,
    tree: &'a Tree,
    attached: &AttachedStore,
    mut collection: Box<dyn OperandCollection + '_>,
    mode: MoveMode,
) -> Result<(JobOutputs<'a>, Option<PreparedVersion>)> {
    // While this thread has reserved the store, no flush and no other collection adds entries to the tree. The view
    // therefore contains all table entries that are older than the operands. Snapshots that are taken from now on see
    // all operands that move.
    let view = tree.pin_super_version();
    let shape = view.version.shape();
    let coming = IncomingRun::Flush { entries: 0 };
    let target = (0, tree.choose_filter_width(shape, &coming));
    // If the operands of a key combine to a delete, its tombstone gets the current time.
    let now_us = Some(state.env.database_time_us());
    let mut outputs = JobOutputs::new(IoPriority::Compaction, &state.tables, tree, target, now_us);
    let file_bytes = tree.settings().options.table_target_bytes();
    let cut = SplitRule { file_bytes, grandparent: None, boundaries: Vec::new() };
    outputs.set_splitter(OutputSplitter::new(&cut, shape));
    if let Some(operands) = collection.moved_operands()? {
        match mode {
            MoveMode::Fold => fold_operands(state, tree, attached, &view, operands, &mut outputs)?,
            MoveMode::CopyAll => copy_operands(state, operands, &mut outputs)?,
        }
    }
    outputs.finish()?;
    state.env.yield_point(YieldKind::JobStep);
    let prepared = match mode {
        MoveMode::Fold => Some(collection.prepare()?),
        // The store is removed, so it has no new state to prepare.
        MoveMode::CopyAll => {
            drop(collection);
            None
        }
    };
    state.env.yield_point(YieldKind::JobStep);
    if !outputs.tables().is_empty() {
        sync_directory(state.vfs.as_ref(), &state.dir)?;
    }
    Ok((outputs, prepared))
}

/// Writes operands without combining them.
fn copy_operands(
    state: &DbState,
    mut operands: Box<dyn Cursor>,
    outputs: &mut JobOutputs<'_>,
) -> Result<()> {
    operands.first()?;
    let mut last_key: Option<Vec<u8>> = None;
    while operands.valid() {
        let key = operands.key();
        if last_key.as_deref() != Some(key.user_key) {
            outputs.begin_key(key.user_key)?;
            last_key = Some(key.user_key.to_vec());
            state.env.yield_point(YieldKind::CompactionBlock);
        }
        outputs.add(key, operands.value())?;
        operands.next()?;
    }
    Ok(())
}

/// Combines operands with the values in the tables, and writes the results.
fn fold_operands(
    state: &DbState,
    tree: &Tree,
    attached: &AttachedStore,
    view: &SuperVersion,
    mut operands: Box<dyn Cursor>,
    outputs: &mut JobOutputs<'_>,
) -> Result<()> {
    let snapshots = state.sequence.snapshot_seqs();
    let expiry_limit_us = state.expiry_limit_us();
    let tables = TableLookup::new(&view.version, &tree.merge_resolver, expiry_limit_us);
    let mut tables = skip_unreadable_file(state, tree, tables)?;
    let retention = Retention::for_flush(snapshots.clone(), view.version.shape());
    let mut filter = VersionFilter::new(retention, &tree.merge_resolver);
    let mut write = |key: InternalKey<'_>, value: &[u8], first: bool| {
        if first {
            outputs.begin_key(key.user_key)?;
        }
        outputs.add(key, value)
    };
    let misbehaved = |wrong| Error::OperandStoreMistake {
        keyspace: tree.name(),
        store: attached.factory.name().to_owned(),
        wrong,
    };
    operands.first()?;
    while operands.valid() {
        state.env.yield_point(YieldKind::CompactionBlock);
        let user_key = operands.key().user_key.to_vec();
        let found = tables.as_mut().map(|tables| tables.find(&user_key));
        let found = found.map(|found| skip_unreadable_file(state, tree, found)).transpose()?;
        // If a file cannot be read, the operands of the key are written without being combined. All of them are newer
        // than the entries of the key in the tables.
        let (newest, older) = found.flatten().unwrap_or_default();
        while operands.valid() && operands.key().user_key == user_key {
            let key = operands.key();
            if key.kind != EntryKind::Merge {
                return Err(misbehaved("returned an entry that is no operand"));
            }
            match newest {
                Some(newest) if key.seq <= newest => {
                    // The newer entry hides the operand, except from a snapshot that does not see the newer entry.
                    if snapshots.iter().any(|&snapshot| key.seq <= snapshot && snapshot < newest) {
                        return Err(misbehaved("returned an operand that a snapshot needs"));
                    }
                }
                _ => filter.add_entry(&operands, &mut write)?,
            }
            operands.next()?;
        }
        // If the operands cannot be combined with a value, they are written without being combined.
        if let Some(base) = older {
            filter.finish_key_with_base(base.as_deref(), &mut write)?;
        }
    }
    filter.finish(&mut write)
}

/// Returns the result of a lookup in the tables, or `None` if a table or a blob file cannot be read. Quarantines and
/// reports this file.
///
/// Otherwise, a single file that cannot be read would stop all collections of the operand store.
fn skip_unreadable_file<T>(state: &DbState, tree: &Tree, found: Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        // The error was reported when the file was quarantined.
        Err(error) if quarantine::is_quarantined(tree, &error) => Ok(None),
        Err(error) if quarantine::quarantine_file(state, tree, &error) => {
            state.report_background_error("collection", Some(tree), &error);
            defer_collection_error(state, tree, &error);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Looks up keys in the tables. Keys must be looked up in ascending order.
struct TableLookup<'a> {
    merging: &'a MergeResolver,
    version: &'a Version,
    cursor: MergingCursor<RunCursor>,
    /// Whether the previous lookup has positioned the cursor without an error.
    is_positioned: bool,
    deleted: Option<RangeTombstoneFilter>,
    /// Time up to which entries have expired for all readers, in microseconds.
    expiry_limit_us: u64,
}

impl<'a> TableLookup<'a> {
    fn new(
        version: &'a Version,
        merging: &'a MergeResolver,
        expiry_limit_us: u64,
    ) -> Result<TableLookup<'a>> {
        let tombstones = version.range_tombstones()?;
        let deleted = tombstones.and_then(|tombstones| {
            RangeTombstoneFilter::for_reader(Arc::from([(tombstones, SeqNo::MAX)]))
        });
        let runs = version.runs().iter();
        let runs = runs
            .map(|run| RunCursor::new(Arc::clone(run.tables()), ReadPurpose::Job, deleted.clone()));
        let cursor = MergingCursor::new(runs.collect());
        let is_positioned = false;
        Ok(TableLookup { merging, version, cursor, is_positioned, deleted, expiry_limit_us })
    }

    /// Returns the newest sequence number of the key in the tables, including range tombstones that cover the key. Also
    /// returns the value of the key: `Some(None)` if the key has no value, and `None` if operands must not be combined
    /// with the value.
    fn find(&mut self, user_key: &[u8]) -> Result<(Option<SeqNo>, Option<Option<Slice>>)> {
        let covering =
            self.deleted.as_mut().and_then(|deleted| deleted.newest_covering_seq(user_key));
        let mut newest = covering;
        let mut fold = OperandFold::at_time(self.expiry_limit_us);
        // The cursor seeks forward from the previous key. If a run contains no keys in between, the cursor of this run
        // does not move and reads no block.
        match std::mem::replace(&mut self.is_positioned, false) {
            true => self.cursor.seek_forward(user_key, SeqNo::MAX)?,
            false => self.cursor.seek(user_key, SeqNo::MAX)?,
        }
        while self.cursor.valid() && self.cursor.key().user_key == user_key {
            let key = self.cursor.key();
            newest = newest.max(Some(key.seq));
            if covering > Some(key.seq)
                || !fold.push_older(key.seq, key.kind, self.cursor.value_slice())
            {
                break;
            }
            self.cursor.next()?;
        }
        self.is_positioned = true;
        if fold.has_base_that_expires_later() {
            return Ok((newest, None));
        }
        fold.resolve_pointer(|seq, pointer| {
            let mut access = ReadContext::new(ReadPurpose::Job);
            self.version.blobs().read_value((user_key, seq), pointer, &mut access)
        })?;
        Ok((newest, fold.take_value_for_job(self.merging, user_key)))
    }
}
