//! Makes a database writable again after an error made it read-only.
//!
//! Data that was written after the last successful sync of a failed file may be missing. Therefore the old log and
//! manifest are not used any more: all memtables are written to new tables, a new log is started, and one new
//! manifest lists both. It states that every sequence number used so far is flushed, so that no part of a failed
//! commit can reappear.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, Ordering};

use crate::db::admission::find_write_obstacle;
use crate::db::inner::DbInner;
use crate::db::open::memtable_flush::{MemtableFlush, next_version_with_flushed_run};
use crate::db::open::new_manifest::{discard_manifest, new_log_changes};
use crate::env::WaitCause;
use crate::error::{Error, LogArchiveEnd, Result};
use crate::event::Event;
use crate::format::version_edit::{Change, VersionEdit};
use crate::job_tracing::{JobSpan, JobSpanFields};
use crate::jobs::compaction::output::{JobOutputs, TombstoneTime};
use crate::jobs::quarantine;
use crate::jobs::version_installer::sync_directory;
use crate::operand_store::StoreToken;
use crate::state::DbState;
use crate::state::work_queue::WorkKind;
use crate::tree::operand_files::PinnedOperandView;
use crate::tree::operand_store_slot::StoreInstallGuard;
use crate::tree::super_version::SuperVersion;
use crate::tree::version::Version;
use crate::tree::{Tree, TreeJobState};

/// A tree whose memtables are written to tables that no manifest lists yet.
struct RewrittenTree<'a> {
    tree: &'a Arc<Tree>,
    before: Arc<SuperVersion>,
    version: Arc<Version>,
    outputs: Vec<JobOutputs<'a>>,
    /// One edit for each flushed memtable.
    edits: Vec<VersionEdit>,
    /// Newest view of the operand store.
    operands: Option<PinnedOperandView>,
    turn: Option<StoreInstallGuard<'a>>,
    /// Whether the manifest may contain the token of the operand store.
    may_be_stored: bool,
}

impl RewrittenTree<'_> {
    /// Returns the token of the operand store, if it is not in the manifest.
    fn new_store_token(&self) -> Option<StoreToken> {
        let token =
            |operands: &Option<PinnedOperandView>| operands.as_ref().and_then(|at| at.token);
        token(&self.operands).filter(|new| token(&self.before.operand_view) != Some(*new))
    }

    /// Removes and returns the edits that add the flushed tables to the manifest.
    fn take_edits(&mut self, last_seq: SeqNo) -> Vec<VersionEdit> {
        let (keyspace, mut edits) = (self.tree.id, std::mem::take(&mut self.edits));
        let mut changes = vec![Change::FlushedThrough { keyspace, seq: last_seq }];
        if let Some(token) = self.new_store_token() {
            changes.push(Change::OperandToken { keyspace, token: Some(token) });
        }
        edits.push(VersionEdit { changes });
        edits
    }
}

/// Abandons deliveries to the operand store that no manifest edit has committed.
impl Drop for RewrittenTree<'_> {
    fn drop(&mut self) {
        match &self.turn {
            Some(turn) if self.may_be_stored => turn.attached.abandon(),
            Some(turn) => turn.attached.discard_prepared(),
            None => {}
        }
    }
}

/// Makes the database writable again, and retries failed background work.
///
/// # Errors
/// [`Error::Deadline`] at the deadline, and the error of a file that cannot be written. After an error the database stays
/// read-only.
pub(crate) fn resume(db: &DbInner, deadline_us: Option<u64>) -> Result<()> {
    db.check_writable()?;
    let _turn = db.lock_admin(deadline_us)?;
    if db.state.error_state.check_writable().is_err() {
        resume_writes(db, deadline_us)?;
    } else {
        // By this call, the user acknowledges earlier failures of background work.
        db.state.error_state.clear_deferred_error();
    }
    retry_background_work(db)
}

/// Reads quarantined files again, and retries failed background work without a pause.
fn retry_background_work(db: &DbInner) -> Result<()> {
    let trees = db.state.failing_trees();
    for tree in &trees {
        let is_readable = quarantine::recheck_all_files(&db.state, tree);
        let mut jobs = tree.jobs.lock();
        (jobs.failures, jobs.retry_at_us) = (0, 0);
        let TreeJobState { blob_gc_retry, collection_retry, .. } = &mut *jobs;
        for retry in [blob_gc_retry, collection_retry] {
            (retry.failures, retry.retry_at_us) = (0, 0);
        }
        if is_readable {
            jobs.blocked = None;
        }
        drop(jobs);
        db.state.work.push(WorkKind::Compaction, tree.id);
    }
    db.scheduler.run_inline();
    let has_quarantine = |tree: &&Arc<Tree>| !tree.jobs.lock().quarantine.is_empty();
    trees
        .iter()
        .filter(has_quarantine)
        .find_map(|tree| find_write_obstacle(tree))
        .map_or(Ok(()), Err)
}

/// Rewrites the database while commits and background work are paused.
fn resume_writes(db: &DbInner, deadline_us: Option<u64>) -> Result<()> {
    let store = &db.state;
    let reason = &"the user resumed the database";
    let span = JobSpan::start(JobSpanFields { kind: "resume", keyspace: "", inputs: 0, reason });
    // Waits for writes and jobs that started before the database became read-only. New ones fail.
    let rewrite = || match db.scheduler.pause(deadline_us)
        && db.committer.wait_until_idle(deadline_us)
        && db.wait_for_file_writes(WaitCause::BackgroundWork, deadline_us)
    {
        true => rewrite_database(db),
        false => Err(Error::Deadline { cause: WaitCause::BackgroundWork.as_str() }),
    };
    // Catches a panic, so that background work is unpaused below. Otherwise later calls would wait forever.
    let rewritten = catch_unwind(AssertUnwindSafe(rewrite))
        .unwrap_or_else(|panic| Err(Error::from_panic(&*panic)));
    match &rewritten {
        Ok(()) => {
            store.error_state.clear();
            store.emit(&Event::Resumed);
        }
        Err(error) => span.record_error(error),
    }
    // Removes the files of a failed attempt.
    let cleaned = catch_unwind(AssertUnwindSafe(|| {
        store.remove_discarded();
        store.tables.reserve.set_enabled(db.options.wal.reserve);
        store.resize_reserve();
    }));
    db.scheduler.unpause();
    if let Err(panic) = cleaned {
        return Err(store.make_read_only(Error::from_panic(&*panic)));
    }
    db.scheduler.run_inline();
    rewritten
}

/// Writes the state in memory to new tables, a new log and a new manifest.
fn rewrite_database(db: &DbInner) -> Result<()> {
    let store = &db.state;
    let last_seq = db.committer.publish_all_inserted_groups()?;
    let next_seq = SeqNo(last_seq.0 + 1);
    let trees = store.all_trees();
    let mut rewritten = Vec::with_capacity(trees.len());
    for tree in &trees {
        rewritten.push(rewrite_tree(store, tree, last_seq)?);
    }
    sync_directory(store.vfs.as_ref(), &store.dir)?;
    store.discard_segments(store.log_holds.end_all(&LogArchiveEnd::Resumed));
    let segment = store.wal.restart_in_new_segment(next_seq)?;
    let number = store.files.allocate();
    let mut edits =
        vec![VersionEdit { changes: new_log_changes(&store.tables, segment, last_seq) }];
    edits.extend(rewritten.iter_mut().flat_map(|tree| tree.take_edits(last_seq)));
    // Set before the call, which may panic.
    rewritten.iter_mut().for_each(|tree| tree.may_be_stored = true);
    let written = store.manifest.rewrite(number, &edits);
    if written.is_err() && !store.manifest.may_be_named_by_current(number) {
        // The next attempt writes new files. On a full disk, the files of this attempt would take the space that it
        // needs.
        discard_manifest(&store.obsolete_files, &store.dir, number, segment);
        rewritten.iter_mut().for_each(|tree| tree.may_be_stored = false);
    } else {
        // The manifest lists the tables, or may list them if the call failed.
        for output in rewritten.iter_mut().flat_map(|tree| &mut tree.outputs) {
            output.keep_files();
        }
    }
    written?;
    for mut rewritten in rewritten {
        let token = rewritten.new_store_token();
        let RewrittenTree { tree, before, version, operands, .. } = &rewritten;
        let released = before.memtables().map(|memtable| memtable.release_bytes()).sum();
        store.memtables.subtract(released);
        let is_reserved = rewritten.turn.is_some();
        let kind = tree.settings().options.memtable_kind;
        tree.update_super_version(|view| {
            // Without a reservation, the store did not change here, but another thread may have attached it.
            let operands = if is_reserved { operands } else { &view.operand_view };
            SuperVersion::new(kind, version, next_seq).with_operand_view(operands.clone())
        });
        if let (Some(turn), Some(token)) = (rewritten.turn.take(), token) {
            turn.attached.store.mark_committed(token);
            turn.attached.update_memory_charge();
        }
    }
    db.rewrites.fetch_add(1, Ordering::AcqRel);
    // Operand stores remove their own obsolete files.
    store.remove_orphans(&store.manifest.state(), None);
    Ok(())
}

/// Writes all memtables of a tree to tables, oldest first.
fn rewrite_tree<'a>(
    store: &'a DbState,
    tree: &'a Arc<Tree>,
    last_seq: SeqNo,
) -> Result<RewrittenTree<'a>> {
    let turn = tree.operand_store.reserve(&store.env, &store.progress);
    let before = tree.pin_super_version();
    // Each memtable, with the last sequence number that it may hold.
    let mut memtable_last_seq = last_seq;
    let mut memtables = Vec::new();
    for memtable in before.memtables() {
        memtables.push((memtable, memtable_last_seq));
        memtable_last_seq = SeqNo(memtable.first_seq().0.saturating_sub(1));
    }
    let mut rewritten = RewrittenTree {
        tree,
        before: Arc::clone(&before),
        version: Arc::clone(&before.version),
        outputs: Vec::new(),
        edits: Vec::new(),
        operands: before.operand_view.clone(),
        turn,
        may_be_stored: false,
    };
    let now_us = store.env.database_time_us();
    for (memtable, last_seq) in memtables.into_iter().rev() {
        if memtable.is_empty() {
            continue;
        }
        let flush = MemtableFlush {
            tables: &store.tables,
            tree,
            memtable,
            version: &rewritten.version,
            operands: rewritten.operands.as_ref(),
            snapshots: store.sequence.snapshot_seqs(),
            tombstone_time: TombstoneTime::of_flush(memtable.first_tombstone_us(), now_us),
        };
        let attached = rewritten.turn.as_ref().map(|turn| &turn.attached);
        let (outputs, operands) = flush.write(attached, last_seq)?;
        let next = next_version_with_flushed_run(tree.id, &rewritten.version, &outputs)?;
        rewritten.version = next.version;
        rewritten.edits.push(VersionEdit { changes: next.changes });
        rewritten.outputs.push(outputs);
        if operands.is_some() {
            rewritten.operands = operands;
        }
    }
    Ok(rewritten)
}
