//! Kept logs: the unflushed commits of keyspaces whose operand store was missing when the database was opened.
//!
//! Without its operand store, a keyspace cannot be recovered. The open copies its commits from the WAL to separate
//! segments, so that the WAL segments can be deleted. The commits are replayed when the operand store is available
//! again: at a later open, or when the keyspace is opened with its store. In the second case, the replay has three
//! steps:
//!
//! 1. The commits are replayed into a staging tree, which is invisible to readers. As in recovery, flushes write tables
//!    and pass operands to the store. The manifest does not change in this step.
//! 2. One manifest edit adds the tables and the token of the store state, and removes the kept log from the stored
//!    options.
//! 3. Tables and store become visible to readers, the keyspace accepts writes, and the segments are deleted.
//!
//! After a crash or an error before the manifest edit, the database is unchanged, and the next attempt replays the kept
//! log from its start.

use std::collections::BTreeMap;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::FileName;
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;
use lsmx_compaction::{TableMeta, TreeShape};

use crate::db::inner::{DbInner, check_reentry};
use crate::db::open::file_numbers::FileNumberReservation;
use crate::db::open::log_source::LogSource;
use crate::db::open::memtable_flush::flush_active;
use crate::db::open::new_manifest::ManifestSegments;
use crate::db::open::replay::{LogReplay, ReplayTarget};
use crate::db::operand_store;
use crate::env::YieldKind;
use crate::error::Result;
use crate::format::batch::BatchOperationIter;
use crate::format::version_edit::Change;
use crate::jobs::compaction::output::JobOutputs;
use crate::jobs::version_installer::{install_version, sync_directory};
use crate::options::keyspace::KeyspaceOptions;
use crate::options::stored::{KeptLog, StoredOperandStore, StoredOptions};
use crate::state::table_factory::TableFactory;
use crate::tree::operand_store_slot::AttachedStore;
use crate::tree::{Tree, TreeContext};
use crate::wal::{DurableSegment, ReplayedRecord, Wal, WalOptions, WalRecord};

/// Bytes of buffered commits after which they are appended to the kept log.
const APPEND_BYTES: usize = 1 << 18;

/// An owned copy of a commit: first sequence number, number of operations, encoded batch.
type OwnedCommit = (SeqNo, u32, Vec<u8>);

/// Copies commits from the WAL to kept logs.
pub(crate) struct KeptLogWriter<'a> {
    pub(crate) tables: &'a TableFactory,
    pub(crate) log: LogSource<'a>,
    pub(crate) wal_options: WalOptions,
    pub(crate) reservation: &'a FileNumberReservation,
}

impl KeptLogWriter<'_> {
    /// Copies the commits that a tree needs, and sets the copy as the kept log of the tree. The copy holds the commits
    /// of an older kept log, followed by those of the WAL after sequence number `after`. The segments are synced on
    /// return.
    ///
    /// # Errors
    /// If a log cannot be read or the copy cannot be written. The new segments are then deleted.
    pub(crate) fn keep_log(&self, tree: &Tree, after: SeqNo) -> Result<()> {
        let older = tree.operand_store.kept_log();
        let first = older.as_ref().map_or(after, |kept| SeqNo(kept.after));
        let number = self.tables.files.next();
        let segments = self.copy_commits(tree.id, after, older.as_deref()).inspect_err(|_| {
            // No other thread allocates file numbers during the copy.
            for id in number..self.tables.files.next() {
                self.tables.obsolete_files.discard(FileName::Segment(id).in_dir(&self.tables.dir));
            }
        })?;
        tree.operand_store.set_kept_log(Some(KeptLog::new(first, &segments)));
        Ok(())
    }

    fn copy_commits(
        &self,
        tree: u32,
        after: SeqNo,
        older: Option<&KeptLog>,
    ) -> Result<Vec<DurableSegment>> {
        let wal = Wal::create(
            Arc::clone(&self.tables.vfs),
            &self.tables.dir,
            self.log.state.db_uid,
            Arc::new(ManifestSegments::new(&self.tables.files)),
            self.wal_options.clone(),
            // Kept logs start at sequence number 1. A repair without a manifest recognizes them by this number.
            SeqNo(1),
        )?;
        let (mut commits, mut buffered_bytes) = (Vec::new(), 0);
        let mut add_commit = |record: ReplayedRecord<'_>| {
            buffered_bytes += record.payload.len();
            commits.push((record.first_seq, record.count, record.payload.to_vec()));
            if buffered_bytes >= APPEND_BYTES {
                self.append_commits(&wal, &mut commits)?;
                buffered_bytes = 0;
            }
            Ok(())
        };
        if let Some(older) = older {
            self.log.replay_kept_log(older, &mut add_commit)?;
        }
        self.log.replay(&mut |record| {
            if has_operation_after(&record, tree, after) { add_commit(record) } else { Ok(()) }
        })?;
        self.append_commits(&wal, &mut commits)?;
        wal.close()?;
        let segments = wal.segments().into_iter();
        Ok(segments.map(|info| DurableSegment { id: info.id, bytes: info.bytes }).collect())
    }

    fn append_commits(&self, wal: &Wal, commits: &mut Vec<OwnedCommit>) -> Result<()> {
        self.reservation.extend(self.tables)?;
        let records = commits.iter().map(|(first_seq, count, payload)| WalRecord {
            first_seq: *first_seq,
            count: *count,
            payload,
        });
        wal.append(records)?;
        commits.clear();
        Ok(())
    }
}

/// Returns whether a commit is newer than `after` and has an operation for the keyspace.
pub(crate) fn has_operation_after(
    record: &ReplayedRecord<'_>,
    keyspace: u32,
    after: SeqNo,
) -> bool {
    let is_newer = record.first_seq.0 + u64::from(record.count) > after.0 + 1;
    is_newer
        && BatchOperationIter::new(record.payload)
            .flatten()
            .any(|operation| operation.keyspace == keyspace)
}

/// Replays a kept log into a staging tree and flushes the tree.
struct KeptLogReplay<'a> {
    db: &'a DbInner,
    staging: &'a Arc<Tree>,
    outputs: JobOutputs<'a>,
    /// The written tables. Each element is one run, oldest first.
    runs: Vec<Vec<Arc<TableMeta>>>,
}

impl KeptLogReplay<'_> {
    fn run(&mut self, kept: &KeptLog) -> Result<()> {
        let db = self.db;
        let (store, env) = (&db.state, &db.state.env);
        let flushed_through = SeqNo(kept.after);
        let target = ReplayTarget { tree: Arc::clone(self.staging), flushed_through };
        let mut replay = LogReplay::new(env, BTreeMap::from([(self.staging.id, target)]));
        let (state, manifest) = (store.manifest.state(), store.manifest.path());
        let log = LogSource {
            vfs: store.vfs.as_ref(),
            dir: &store.dir,
            state: &state,
            manifest: &manifest,
            mode: db.options.recovery,
        };
        let mut seq_next = SeqNo(kept.after + 1);
        log.replay_kept_log(kept, &mut |record: ReplayedRecord<'_>| {
            db.check_open()?;
            seq_next = SeqNo(record.first_seq.0 + u64::from(record.count));
            match replay.add_commit(record.first_seq, record.payload)?.is_empty() {
                true => Ok(()),
                false => self.flush(seq_next),
            }
        })?;
        replay.finish()?;
        self.flush(seq_next)?;
        if !self.outputs.tables().is_empty() {
            sync_directory(store.vfs.as_ref(), &store.dir)?;
        }
        Ok(())
    }

    /// Flushes the memtable of the staging tree.
    fn flush(&mut self, seq_next: SeqNo) -> Result<()> {
        if self.staging.super_version().active.is_empty() {
            return Ok(());
        }
        let tables = &self.db.state.tables;
        // The commits may be much older than the last manifest edit.
        let (written, _) = flush_active(tables, self.staging, seq_next, None)?;
        self.runs.push(written.table_metas());
        self.outputs.append(written.into_subcompaction_output(0));
        Ok(())
    }
}

/// Replays the kept log of a keyspace into its tree and its operand store, and then attaches the store. Without a kept
/// log, the function does nothing.
///
/// # Errors
/// If the options have another merge operator, or if the log or the store cannot be read or written. An error before
/// the manifest edit leaves the database unchanged, and the new files are deleted.
pub(crate) fn deliver(
    db: &DbInner,
    tree: &Arc<Tree>,
    attached: &Arc<AttachedStore>,
    options: &KeyspaceOptions,
) -> Result<()> {
    if db.read_only.is_some() || tree.operand_store.kept_log().is_none() {
        return Ok(());
    }
    check_reentry("keyspace")?;
    // Serializes with drops, checkpoints, and other deliveries.
    let _turn = db.lock_admin(None)?;
    db.state.error_state.check_writable()?;
    tree.check_live()?;
    let Some(kept) = tree.operand_store.kept_log() else { return Ok(()) };
    tree.merge_resolver.check_operator(options.merge_operator.as_ref())?;
    let delivered = deliver_kept_log_locked(db, tree, attached, &kept);
    db.state.emit_pending_events();
    delivered
}

fn deliver_kept_log_locked(
    db: &DbInner,
    tree: &Arc<Tree>,
    attached: &Arc<AttachedStore>,
    kept: &KeptLog,
) -> Result<()> {
    let store = &db.state;
    let staging = Arc::new(create_staging_tree(db, tree, attached, kept));
    let outputs = {
        let view = staging.super_version();
        JobOutputs::for_flush(&store.tables, &staging, &view.active, view.version.shape(), None)
    };
    let mut replay = KeptLogReplay { db, staging: &staging, outputs, runs: Vec::new() };
    replay.run(kept).inspect_err(|_| attached.discard_changes())?;
    let KeptLogReplay { mut outputs, runs, .. } = replay;
    let operands = staging.pin_super_version().operand_view.clone();
    let token = operands.as_ref().and_then(|operands| operands.token);
    let remaining = failpoint::is_on(Failpoint::KeptLogDeliveredTwice).then(|| kept.clone());
    let name = attached.factory.name().to_owned();
    let persisted = StoredOptions {
        operand_store: Some(StoredOperandStore::new(name, remaining)),
        ..tree.stored_options()
    };
    let changes = vec![
        Change::OperandToken { keyspace: tree.id, token },
        Change::SetOptions { keyspace: tree.id, options: persisted.encode() },
    ];
    if staging.may_expire() {
        tree.set_may_expire();
    }
    // Jobs may have changed the tree during the replay, so the new runs are added to its current shape.
    let next = |shape: &TreeShape, _| shape.with_flushed_runs(runs);
    install_version(store, tree, &mut outputs, None, Some(operands.as_ref()), changes, next)
        .inspect_err(|_| attached.abandon())?;
    if let Some(token) = token.filter(|_| token != attached.opened) {
        attached.store.mark_committed(token);
    }
    store.env.yield_point(YieldKind::JobStep);
    {
        // A concurrent open of the keyspace sees both changes or none. Otherwise, it could attach a store that it opened
        // before the delivery.
        let _changes = db.keyspace_changes.lock();
        tree.operand_store.set_kept_log(None);
        tree.operand_store.attach(Arc::clone(attached));
    }
    attached.update_memory_charge();
    for segment in kept.segments() {
        store.obsolete_files.discard(FileName::Segment(segment.id).in_dir(&store.dir));
    }
    Ok(())
}

/// Creates a tree with the id, settings and files of `tree`, the attached operand store, and an empty memtable.
fn create_staging_tree(
    db: &DbInner,
    tree: &Tree,
    attached: &Arc<AttachedStore>,
    kept: &KeptLog,
) -> Tree {
    let settings = tree.settings();
    let (options, policy) = (settings.options.clone(), settings.stored_policy.clone());
    let (env, latencies) = (db.state.env.clone(), Arc::clone(&db.state.latencies));
    let origin = TreeContext { open_id: db.open_id, env, latencies };
    let version = Arc::clone(&tree.pin_super_version().version);
    let (name, first_seq) = (Arc::clone(tree.shared_name()), SeqNo(kept.after + 1));
    let mut staging = Tree::new(origin, tree.id, name, options, policy, version, first_seq);
    staging.merge_resolver = Arc::clone(&tree.merge_resolver);
    operand_store::attach(&staging, Arc::clone(attached));
    staging
}
