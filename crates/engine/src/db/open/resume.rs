//! Taking writes again after an error made the database read-only.
//!
//! Nothing that was written since the last good sync of a failed file counts as stored, so nothing
//! of the old log or manifest is used any more: all memtables go to new tables, a new chain of log
//! segments begins, and one new manifest makes both real. It says that every number ever given is
//! flushed, so nothing of a failed commit can come back.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;
use lsmx_compaction::TableMeta;

use crate::db::admission::find_write_obstacle;
use crate::db::deadline::run_with_deadline;
use crate::db::{DbInner, WaitOptions};
use crate::env::WaitCause;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::format::file_name::FileName;
use crate::format::version_edit::{Change, VersionEdit};
use crate::job_tracing::{JobSpan, JobSpanFields};
use crate::jobs::compaction::output::JobOutputs;
use crate::jobs::compaction::retention::Retention;
use crate::jobs::compaction::version_filter::VersionFilter;
use crate::jobs::flush::write_memtable;
use crate::jobs::operand_store::deliver::OperandDelivery;
use crate::jobs::quarantine;
use crate::jobs::version_installer::sync_directory;
use crate::operand_store::Token;
use crate::state::DbState;
use crate::state::table_factory::build_file_record;
use crate::state::work_queue::WorkKind;
use crate::tree::Tree;
use crate::tree::operands::StoreTurn;
use crate::tree::version::{BesideView, SuperVersion, Version, blob_changes, changes_between};

/// A tree with all its memtables in tables that are not part of the database yet.
struct Rewritten<'a> {
    tree: &'a Arc<Tree>,
    before: Arc<SuperVersion>,
    version: Arc<Version>,
    outputs: Vec<JobOutputs<'a>>,
    /// What its operand store has prepared last, and the turn to do so.
    operands: Option<BesideView>,
    turn: Option<StoreTurn<'a>>,
}

impl Rewritten<'_> {
    /// What the store has prepared that the manifest does not know.
    fn token(&self) -> Option<Token> {
        let token = |operands: &Option<BesideView>| operands.as_ref().and_then(|it| it.token);
        token(&self.operands).filter(|new| token(&self.before.operands) != Some(*new))
    }
}

/// Without a commit what was prepared is of no use.
impl Drop for Rewritten<'_> {
    fn drop(&mut self) {
        if let Some(turn) = &self.turn {
            turn.attached.store.abandon();
        }
    }
}

impl DbInner {
    /// Makes the database writable again.
    pub(crate) fn resume(self: &Arc<DbInner>, options: &WaitOptions) -> Result<()> {
        let deadline_us = self.committer.deadline_us(options.deadline);
        run_with_deadline(self, WaitCause::BackgroundWork, deadline_us, move |core| {
            core.resume_by(deadline_us)
        })
    }

    fn resume_by(&self, deadline_us: Option<u64>) -> Result<()> {
        self.check_writable()?;
        let _turn = self.lock_admin(deadline_us)?;
        if self.state.error_state.check_writable().is_err() {
            self.resume_alone(deadline_us)?;
        } else {
            // The caller knows of what failed before.
            self.state.error_state.clear_deferred_error();
        }
        self.retry_background_work()
    }

    /// Reads quarantined files again, and has failed background work tried without a pause.
    ///
    /// # Errors
    /// If a file is still unreadable, and writes of its keyspace have to wait because of it.
    fn retry_background_work(&self) -> Result<()> {
        let trees = self.state.failing_trees();
        for tree in &trees {
            let readable = quarantine::recheck_all_files(&self.state, tree);
            let mut jobs = tree.jobs.lock();
            (jobs.failures, jobs.retry_at_us) = (0, 0);
            (jobs.collection.failures, jobs.collection.retry_at_us) = (0, 0);
            if readable {
                jobs.blocked = None;
            }
            drop(jobs);
            self.state.work.push(WorkKind::Compaction, tree.id);
        }
        self.scheduler.run_inline();
        let quarantined = |tree: &&Arc<Tree>| !tree.jobs.lock().quarantine.is_empty();
        trees
            .iter()
            .filter(quarantined)
            .find_map(|tree| find_write_obstacle(tree))
            .map_or(Ok(()), Err)
    }

    fn resume_alone(&self, deadline_us: Option<u64>) -> Result<()> {
        let store = &self.state;
        let reason = &"the user asked for it";
        let job = JobSpanFields { kind: "resume", keyspace: "", inputs: 0, reason };
        let span = JobSpan::start(job);
        // Writes and jobs fail fast while the database is read-only; these wait for those that
        // began before.
        let rewrite =
            || match self.scheduler.pause(deadline_us) && self.committer.drain(deadline_us) {
                true => self.rewrite(),
                false => Err(Error::Deadline { cause: WaitCause::BackgroundWork.as_str() }),
            };
        // Background work goes on even if this panics, or every later call would wait for it.
        let rewritten = catch_unwind(AssertUnwindSafe(rewrite))
            .unwrap_or_else(|panic| Err(Error::from_panic(&*panic)));
        match &rewritten {
            Ok(()) => {
                store.error_state.clear();
                store.emit(&Event::Resumed);
            }
            Err(error) => span.record_error(error),
        }
        // Removes the files of a failed attempt. Background work continues even if this panics.
        let cleaned = catch_unwind(AssertUnwindSafe(|| {
            store.remove_discarded();
            store.tables.reserve.reset(self.options.wal.reserve);
            store.resize_reserve();
        }));
        self.scheduler.unpause();
        if let Err(panic) = cleaned {
            return Err(store.fail(Error::from_panic(&*panic)));
        }
        self.scheduler.run_inline();
        rewritten
    }

    /// Makes the state in memory the durable one.
    fn rewrite(&self) -> Result<()> {
        let store = &self.state;
        let last_seq = self.committer.publish_all()?;
        let next_seq = SeqNo(last_seq.0 + 1);
        let trees = store.all_trees();
        let mut rewritten = Vec::with_capacity(trees.len());
        for tree in &trees {
            rewritten.push(rewrite_tree(store, tree, last_seq)?);
        }
        sync_directory(store.vfs.as_ref(), &store.dir)?;
        let segment = store.wal.restart(next_seq)?;
        let number = store.files.allocate();
        let mut changes = vec![
            Change::WalOldest { segment },
            Change::WalSegment { id: segment },
            Change::LastSeq(last_seq),
            Change::FileNumberNext(store.files.next()),
            Change::ClockUs(store.env.database_us()),
        ];
        for rewritten in &rewritten {
            let Rewritten { tree, before, version, .. } = rewritten;
            let record = |file: &Arc<TableMeta>| {
                let unknown = lsmx_compaction::Error::UnknownFile { file: file.id };
                version.table(file.id).map(|table| build_file_record(table)).ok_or(unknown)
            };
            let shape = before.version.shape();
            changes.extend(changes_between(tree.id, shape, version.shape(), record)?);
            let known = before.version.blob_ids();
            changes.extend(blob_changes(tree.id, (shape, &known), version));
            changes.push(Change::FlushedThrough { keyspace: tree.id, seq: last_seq });
            if let Some(token) = rewritten.token() {
                changes.push(Change::OperandToken { keyspace: tree.id, token: Some(token) });
            }
        }
        let written = store.manifest.rewrite(number, Some(&VersionEdit { changes }));
        if written.is_err() && !store.manifest.can_be_current(number) {
            // Nothing names the new files, and the next try writes others: on a full disk they would
            // take what is left.
            for name in [FileName::Manifest(number), FileName::Temporary(number)] {
                store.janitor.discard(name.in_dir(&store.dir));
            }
            store.janitor.discard(FileName::Segment(segment).in_dir(&store.dir));
        } else {
            for output in rewritten.iter_mut().flat_map(|tree| &mut tree.outputs) {
                // Written or in doubt: either way a manifest may name them.
                output.keep_files();
            }
        }
        written?;
        for mut rewritten in rewritten {
            let token = rewritten.token();
            let Rewritten { tree, before, version, operands, .. } = &rewritten;
            store
                .memtables
                .subtract(before.memtables().map(|memtable| memtable.release_bytes()).sum());
            tree.change(|_| SuperVersion::fresh(version, next_seq).beside(operands.clone()));
            if let (Some(turn), Some(token)) = (rewritten.turn.take(), token) {
                turn.attached.store.committed(token);
                turn.attached.charge();
            }
        }
        // Operand stores themselves let go of what was prepared in vain.
        store.remove_orphans(&store.manifest.state(), None);
        Ok(())
    }
}

/// Writes all memtables of a tree to tables, oldest first.
fn rewrite_tree<'a>(
    store: &'a DbState,
    tree: &'a Arc<Tree>,
    last_seq: SeqNo,
) -> Result<Rewritten<'a>> {
    let turn = tree.beside.turn(&store.env, &store.progress);
    let before = tree.pin();
    let version = Arc::clone(&before.version);
    let operands = before.operands.clone();
    // Oldest first, each with the last number that it may hold.
    let mut through = last_seq;
    let mut memtables: Vec<_> = Vec::new();
    for memtable in before.memtables() {
        memtables.push((memtable, through));
        through = SeqNo(memtable.first_seq().0.saturating_sub(1));
    }
    memtables.reverse();
    let mut rewritten = Rewritten {
        tree,
        before: Arc::clone(&before),
        version,
        outputs: Vec::new(),
        operands,
        turn,
    };
    for (memtable, through) in memtables {
        if memtable.is_empty() {
            continue;
        }
        let Rewritten { version, operands, turn, .. } = &rewritten;
        let (shape, tombstone_us) = (version.shape(), memtable.first_tombstone_us());
        let mut outputs = JobOutputs::for_flush(&store.tables, tree, memtable, shape, tombstone_us);
        let retention = Retention::for_flush(store.sequence.snapshots(), version.shape())
            .with_operand_view(operands.as_ref().map(|beside| &beside.view));
        let keeper = VersionFilter::new(retention, &tree.merging);
        let attached = turn.as_ref().map(|turn| Arc::clone(&turn.attached));
        let mut delivering =
            attached.as_ref().map(|at| OperandDelivery::new(at, through)).transpose()?;
        let delivered = delivering.as_mut();
        write_memtable(&store.env, keeper, memtable, &mut outputs, delivered, None)?;
        let shapes = outputs.tables().iter().map(|table| (**table.shape()).clone());
        let (shape, _) = version.shape().with_flush(shapes.collect())?;
        rewritten.version = Arc::new(Version::new(shape, version, outputs.tables())?);
        rewritten.outputs.push(outputs);
        let prepared = delivering.map(OperandDelivery::prepare).transpose()?.flatten();
        if let (Some(attached), Some(prepared)) = (&attached, prepared) {
            rewritten.operands = Some(attached.beside(prepared));
        }
    }
    Ok(rewritten)
}
