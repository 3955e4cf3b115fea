//! Delivery of a kept log to an operand store that is opened after the database.
//!
//! 1. The commits of the kept log are replayed into memtables of a tree that nothing else sees. They become tables
//!    and a delivery to the store, as in recovery. The manifest does not change meanwhile.
//! 2. One manifest edit adds the tables, the token of the store, and options without the kept log.
//! 3. Readers see tables and store, the keyspace takes writes, and the segments are removed.
//!
//! A crash or an error before the edit changes nothing: the next call or the next open starts from the kept log.

use std::collections::BTreeMap;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;
use lsmx_compaction::{TableMeta, TreeShape};

use crate::db::check::verify::check_record;
use crate::db::open::replay::{Replay, Target};
use crate::db::open::replayed;
use crate::db::{DbInner, check_reentry};
use crate::error::Result;
use crate::format::file_name::FileName;
use crate::format::version_edit::Change;
use crate::jobs::compaction::output::JobOutputs;
use crate::jobs::version_installer::{install_version, sync_directory};
use crate::options::kept_log::KeptLog;
use crate::options::keyspace::{KeyspaceOptions, Persisted, StoredOperandStore};
use crate::tree::operands::Attached;
use crate::tree::{Origin, Tree};
use crate::wal::{ReplayedRecord, replay_segments};

/// A replay of a kept log under way.
struct LateReplay<'a> {
    core: &'a DbInner,
    /// Takes the commits. It has the id, the settings and the files of the real tree, and memtables of its own.
    stage: &'a Arc<Tree>,
    /// Tables written so far.
    outputs: JobOutputs<'a>,
    /// Shapes of the tables of each run, oldest run first.
    runs: Vec<Vec<TableMeta>>,
}

impl LateReplay<'_> {
    /// Flushes the memtable of the stage.
    fn flush(&mut self, seq_next: SeqNo) -> Result<()> {
        let store = &self.core.state;
        if self.stage.view().active.is_empty() {
            return Ok(());
        }
        let edited_us = store.env.database_us();
        let written = replayed::flush(&store.tables, self.stage, seq_next, edited_us)?;
        let shapes = written.tables().iter().map(|table| (**table.shape()).clone());
        self.runs.push(shapes.collect());
        self.outputs.append(written.into_subcompaction_output(0));
        Ok(())
    }

    fn run(&mut self, kept: &KeptLog) -> Result<()> {
        let store = &self.core.state;
        let flushed_through = SeqNo(kept.after);
        let target = Target { tree: Arc::clone(self.stage), flushed_through };
        let mut replaying = Replay::new(&store.env, BTreeMap::from([(self.stage.id, target)]));
        let (mode, named_by) = (self.core.options.recovery, store.manifest.path());
        let (uid, known) =
            store.manifest.with_state(|state| (state.db_uid, state.keyspace_id_next));
        let mut seq_next = SeqNo(kept.after + 1);
        let mut take = |record: ReplayedRecord<'_>| {
            self.core.check_open()?;
            check_record(&store.dir, &record, known)?;
            seq_next = SeqNo(record.first_seq.0 + u64::from(record.count));
            match replaying.take(&store.env, record.first_seq, record.payload)?.is_empty() {
                true => Ok(()),
                false => self.flush(seq_next),
            }
        };
        let (vfs, home) = (store.vfs.as_ref(), (store.dir.as_path(), uid));
        replay_segments(vfs, home, &kept.segments(), &named_by, mode, &mut take)?;
        replaying.finish()?;
        self.flush(seq_next)
    }
}

impl DbInner {
    /// Delivers the kept log of a keyspace, if it has one, to its operand store, and opens the keyspace with it.
    ///
    /// # Errors
    /// The options have another merge operator; the log or the store cannot be read or written. Nothing has
    /// changed then, unless the manifest is in doubt.
    pub(crate) fn deliver_kept_log(
        &self,
        tree: &Arc<Tree>,
        attached: &Arc<Attached>,
        options: &KeyspaceOptions,
    ) -> Result<()> {
        if self.read_only.is_some() || tree.beside.kept_log().is_none() {
            return Ok(());
        }
        check_reentry("keyspace")?;
        // No drop, no checkpoint, no other delivery.
        let _turn = self.lock_admin(None)?;
        self.state.error_state.check_writable()?;
        tree.check_live()?;
        let Some(kept) = tree.beside.kept_log() else { return Ok(()) };
        tree.merging.admit(options.merge_operator.as_ref())?;
        let delivered = self.deliver(tree, attached, &kept);
        self.state.emit_pending_events();
        if delivered.is_err() {
            attached.store.abandon();
        }
        delivered
    }

    fn deliver(&self, tree: &Arc<Tree>, attached: &Arc<Attached>, kept: &KeptLog) -> Result<()> {
        let store = &self.state;
        let stage = Arc::new(self.stage(tree, attached, kept));
        let outputs = {
            let view = stage.view();
            JobOutputs::for_flush(&store.tables, &stage, &view.active, view.version.shape(), None)
        };
        let mut late = LateReplay { core: self, stage: &stage, outputs, runs: Vec::new() };
        late.run(kept)?;
        let LateReplay { mut outputs, runs, .. } = late;
        if !outputs.tables().is_empty() {
            sync_directory(store.vfs.as_ref(), &store.dir)?;
        }
        let operands = stage.pin().operands.clone();
        let token = operands.as_ref().and_then(|beside| beside.token);
        let left = failpoint::is_on(Failpoint::KeptLogDeliveredTwice).then(|| kept.clone());
        let name = attached.factory.name().to_owned();
        let persisted = Persisted {
            operand_store: Some(StoredOperandStore::new(name, left)),
            ..tree.persisted()
        };
        let extra = vec![
            Change::OperandToken { keyspace: tree.id, token },
            Change::SetOptions { keyspace: tree.id, options: persisted.encode() },
        ];
        let next = |shape: &TreeShape| {
            let add = |shape: TreeShape, run| shape.with_flush(run).map(|(shape, _)| shape);
            runs.into_iter().try_fold(shape.clone(), add)
        };
        // The stage does not know of compactions that have ended meanwhile; only its new runs count.
        install_version(store, tree, &mut outputs, None, Some(operands.as_ref()), extra, next)?;
        if let Some(token) = token.filter(|_| token != attached.opened) {
            attached.store.committed(token);
        }
        tree.beside.set_kept_log(None);
        tree.beside.attach(Arc::clone(attached));
        attached.charge();
        for segment in kept.segments() {
            store.janitor.discard(FileName::Segment(segment.id).in_dir(&store.dir));
        }
        Ok(())
    }

    /// A tree with the settings and the files of another one, this operand store, and an empty memtable.
    fn stage(&self, tree: &Tree, attached: &Arc<Attached>, kept: &KeptLog) -> Tree {
        let settings = tree.settings();
        let (options, policy) = (settings.options.clone(), settings.stored_policy.clone());
        let origin = Origin { opening: self.opening, env: self.state.env.clone() };
        let version = Arc::clone(&tree.pin().version);
        let (name, first_seq) = (tree.name.clone(), SeqNo(kept.after + 1));
        let mut stage = Tree::new(origin, tree.id, name, options, policy, version, first_seq);
        stage.merging = Arc::clone(&tree.merging);
        let view = attached.first_view();
        stage.beside.attach(Arc::clone(attached));
        stage.change(|current| current.clone().beside(Some(view.clone())));
        stage
    }
}
