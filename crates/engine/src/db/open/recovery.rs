//! Recovery: restores the state of a database from its manifest and its log.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::{CURRENT, FileName, LOCK};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::{Arc, AtomicU64, Mutex, Signal};

use crate::db::inner::DbInner;
use crate::db::open::fd_limit::{check_descriptors_available, needed_descriptors};
use crate::db::open::file_numbers::{
    FileNumberReservation, first_free_number, next_creation_number,
};
use crate::db::open::kept_log::{KeptLogWriter, has_operation_after};
use crate::db::open::log_source::{LogSource, last_known_seq};
use crate::db::open::memtable_flush::flush_active;
use crate::db::open::new_manifest::{NewLog, discard_manifest, new_log_changes};
use crate::db::open::open_trees::TreeOpener;
use crate::db::open::replay::{LogReplay, ReplayTarget};
use crate::deferred_drop::DeferredDrop;
use crate::env::Env;
use crate::env::rate_limit::RateLimiter;
use crate::error::{Error, Result};
use crate::followers::FollowerPin;
use crate::format::version_edit::{Change, VersionEdit};
use crate::manifest::{CreateError, KeyspaceState, Manifest, ManifestState};
use crate::metrics::OperationLatencies;
use crate::options::db::{DEFAULT_KEYSPACE, Options};
use crate::options::stored::{StoredOptions, kept_logs};
use crate::state::keyspaces::Keyspaces;
use crate::state::table_factory::TableFactory;
use crate::table::{FdCache, JobReadOptions};
use crate::tree::file_numbers::FileNumbers;
use crate::tree::obsolete_files::ObsoleteFiles;
use crate::tree::operand_files::operand_file_name;
use crate::tree::super_version::SuperVersion;
use crate::tree::{OpenId, Tree};
use crate::vfs::Vfs;
use crate::vfs::cache_bypass::CacheBypass;
use crate::vfs::resource_retry::{ReleaseResource, ResourceRetryVfs};
use crate::wal::{DiskReserve, LogPosition, RecoveryReport, ReplayedRecord, Wal};

/// Number of sequence numbers skipped after an unclean shutdown, so that the numbers of lost commits are not used
/// again.
const SEQ_GAP: u64 = 1 << 30;

/// A database during recovery.
pub(crate) struct Recovery {
    pub(crate) tables: TableFactory,
    pub(crate) options: Options,
    /// State loaded from the manifest.
    pub(crate) state: ManifestState,
    /// Path of the manifest from which `state` was loaded, for error messages.
    manifest: PathBuf,
    pub(super) trees: Keyspaces,
    pub(super) open_id: OpenId,
    pub(super) latencies: Arc<OperationLatencies>,
    /// Manifest edits for the tables flushed during recovery. The new manifest includes them.
    flush_edits: Mutex<Vec<VersionEdit>>,
    pub(super) seq_next: SeqNo,
    /// Result of the replay.
    pub(crate) report: RecoveryReport,
    /// Keyspaces that have unflushed operations in the log, but no open operand store. The value is the last flushed
    /// sequence number.
    unreplayed: BTreeMap<u32, SeqNo>,
    /// Signal that background work of the open database will notify.
    pub(super) progress: Signal,
    /// True if the open is read-only. Memtables are then never flushed.
    read_only: bool,
    reservation: FileNumberReservation,
}

/// The new manifest and log of a database, and the state in the manifest.
pub(crate) struct DurableState {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) wal: Arc<Wal>,
    pub(crate) state: ManifestState,
}

impl Recovery {
    /// Opens all trees of a database. `manifest` is the path of the manifest from which the state was read, or of
    /// `CURRENT` for a new database. Error messages contain it.
    pub(crate) fn new(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        options: Options,
        env: Env,
        (mut state, manifest): (ManifestState, &Path),
        read_only: bool,
    ) -> Result<Recovery> {
        let (tables, progress) =
            start_clock_and_tables(vfs, dir, &options, env, &mut state, read_only)?;
        let mut recovery = Recovery::with_tables(tables, options, (state, manifest), progress);
        recovery.read_only = read_only;
        match recovery.open_trees(&[], false) {
            Ok(()) => Ok(recovery),
            Err(error) => Err(recovery.remove_written_files(error)),
        }
    }

    /// Creates the first view of a follower. The owner may change the database during this call.
    ///
    /// # Errors
    /// A file is missing or damaged.
    pub(crate) fn new_follower(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        options: Options,
        env: Env,
        (mut state, manifest): (ManifestState, &Path),
        pin: FollowerPin,
    ) -> Result<Recovery> {
        let (tables, progress) = start_clock_and_tables(vfs, dir, &options, env, &mut state, true)?;
        tables.obsolete_files.set_follower_pin(pin);
        let mut recovery = Recovery::with_tables(tables, options, (state, manifest), progress);
        recovery.read_only = true;
        recovery.open_trees(&[], false)?;
        Ok(recovery)
    }

    /// Creates the next view of a follower, which shares the caches of the view `before`.
    ///
    /// If `is_extension` is true, the new view also shares the memtables and tables of `before`. The manifests of both
    /// views must then list the same keyspaces and files.
    ///
    /// # Errors
    /// A file is missing or damaged.
    pub(crate) fn following(
        before: &DbInner,
        (mut state, manifest): (ManifestState, &Path),
        is_extension: bool,
    ) -> Result<Recovery> {
        let (tables, progress) = (before.state.tables.share(), before.state.progress.clone());
        state.limit_file_times(tables.env.creation_time_us());
        let options = before.options.clone();
        let mut recovery = Recovery::with_tables(tables, options, (state, manifest), progress);
        recovery.read_only = true;
        recovery.open_trees(&before.state.all_trees(), is_extension)?;
        Ok(recovery)
    }

    fn with_tables(
        tables: TableFactory,
        options: Options,
        (state, manifest): (ManifestState, &Path),
        progress: Signal,
    ) -> Recovery {
        let latencies = Arc::new(OperationLatencies::new(options.latency_sampling));
        Recovery {
            tables,
            options,
            state,
            manifest: manifest.to_owned(),
            trees: Keyspaces::default(),
            open_id: OpenId::new(),
            latencies,
            flush_edits: Mutex::default(),
            seq_next: SeqNo(1),
            report: RecoveryReport::default(),
            unreplayed: BTreeMap::new(),
            progress,
            read_only: false,
            reservation: FileNumberReservation::default(),
        }
    }

    /// Opens all trees. Uses the open tables of `before`, and their memtables if `is_extension` is true.
    fn open_trees(&mut self, before: &[Arc<Tree>], is_extension: bool) -> Result<()> {
        let opener = TreeOpener {
            tables: &self.tables,
            options: &self.options,
            state: &self.state,
            manifest: &self.manifest,
            open_id: self.open_id,
            latencies: &self.latencies,
            read_only: self.read_only,
            before,
            is_extension,
        };
        opener.open_all(&mut self.trees)
    }

    /// Replays the commits up to `last_seq` into the memtables of a follower. Returns the last replayed sequence number.
    ///
    /// If `replayed` is given, the memtables already contain all commits up to its sequence number. All commits before
    /// its log position are among them.
    pub(crate) fn replay_through(
        &mut self,
        last_seq: SeqNo,
        replayed: Option<(SeqNo, LogPosition)>,
    ) -> Result<SeqNo> {
        let mut targets = self.replay_targets();
        targets.retain(|_, target| !target.tree.operand_store.is_unavailable());
        let (mut through, from) = replayed.unzip();
        for target in targets.values_mut() {
            target.flushed_through = target.flushed_through.max(through.unwrap_or_default());
        }
        let mut replay = LogReplay::new(&self.tables.env, targets);
        let report = self.log_source().replay_through(from, last_seq, &mut |record| {
            through = through.max(Some(record.last_seq()));
            replay.add_commit(record.first_seq, record.payload).map(drop)
        })?;
        replay.finish()?;
        drop(replay);
        self.report = report;
        self.seq_next = SeqNo(last_seq.0 + 1);
        Ok(last_seq.max(through.unwrap_or_default()))
    }

    /// Fails if the manifest names a custom policy for the default keyspace and the options do not contain this policy.
    pub(crate) fn check_policy(&self) -> Result<()> {
        self.trees.by_name(DEFAULT_KEYSPACE).map_or(Ok(()), |tree| tree.check_policy())
    }

    /// Returns the files of the open operand stores, and whether all operand stores are open.
    pub(crate) fn operand_files(&self) -> (BTreeSet<FileName>, bool) {
        let attached = self.trees.iter().filter_map(|tree| tree.operand_store.attached());
        let live = attached.flat_map(|attached| attached.store.live_files());
        let live = live.map(|(kind, number)| operand_file_name(kind, number)).collect();
        (live, !self.trees.iter().any(|tree| tree.operand_store.is_unavailable()))
    }

    /// Removes the files that a failed open has written. Returns `error`, the cause of the failure.
    pub(crate) fn remove_written_files(&self, error: Error) -> Error {
        let (obsolete_files, listed) = (&self.tables.obsolete_files, self.state.file_numbers());
        for tree in self.trees.iter() {
            if let Some(attached) = tree.operand_store.attached() {
                attached.discard_changes();
            }
            let version = &tree.pin_super_version().version;
            for table in version.runs().iter().flat_map(|run| run.tables().iter()) {
                if !listed.contains(&table.shape().id.0) {
                    obsolete_files.discard(table.path().to_owned());
                }
            }
            for id in version.blobs().ids().into_iter().filter(|id| !listed.contains(&id.0)) {
                obsolete_files.discard(self.tables.blob_path(id));
            }
        }
        let stored = kept_logs(&self.state);
        for tree in self.trees.iter().filter(|tree| self.unreplayed.contains_key(&tree.id)) {
            let segments =
                tree.operand_store.kept_log().map_or_else(Vec::new, |kept| kept.segments());
            let is_new = |id| stored.get(&tree.id).is_none_or(|kept| !kept.contains(id));
            for segment in segments.iter().filter(|segment| is_new(segment.id)) {
                obsolete_files.discard(FileName::Segment(segment.id).in_dir(&self.tables.dir));
            }
        }
        for (path, _) in obsolete_files.take_deletable_files() {
            // If the removal fails, the next open removes the file.
            let _ = self.tables.vfs.remove(&path);
        }
        self.reservation.remove(self.tables.vfs.as_ref());
        error
    }

    /// Replays the log into memtables. Full memtables are flushed, except in a read-only database.
    ///
    /// # Errors
    /// If the log is damaged or a table cannot be written. The caller must then call
    /// [`Recovery::remove_written_files`].
    pub(crate) fn replay_log(&mut self) -> Result<()> {
        let kept_log_reports = self.replay_kept_logs()?;
        let lacking = self.trees_without_operand_store();
        let mut unreplayed = BTreeMap::new();
        let mut replay = LogReplay::new(&self.tables.env, self.replay_targets());
        let mut report = self.log_source().replay(&mut |record| {
            let needed =
                lacking.iter().filter(|&(&id, &after)| has_operation_after(&record, id, after));
            unreplayed.extend(needed.map(|(&id, &after)| (id, after)));
            let full = replay.add_commit(record.first_seq, record.payload)?;
            self.flush_full_memtables(&full, &record)
        })?;
        // `make_durable` flushes memtables that the last commits have filled.
        replay.finish()?;
        drop(replay);
        for (keyspace, kept) in kept_log_reports {
            report.add_keyspace_log(keyspace, kept);
        }
        self.unreplayed = unreplayed;

        let last_seq = last_known_seq(&self.state).max(report.last_seq);
        let is_reused = failpoint::is_on(Failpoint::SeqReused);
        let gap = if self.state.clean_close || is_reused { 1 } else { SEQ_GAP };
        self.seq_next = SeqNo(last_seq.0 + gap);
        if self.seq_next > SeqNo::MAX {
            let (found, expected) = (self.seq_next.0, "at most 2^56 - 1");
            let what = Malformed::invalid_field("next sequence number", found, expected);
            return Err(Error::malformed(what, &self.manifest, 0));
        }
        self.report = report;
        Ok(())
    }

    /// Replays the kept logs of the keyspaces whose operand store is open again. Returns one report per keyspace.
    fn replay_kept_logs(&self) -> Result<Vec<(String, RecoveryReport)>> {
        let (lacking, mut reports) = (self.trees_without_operand_store(), Vec::new());
        for tree in self.trees.iter().filter(|tree| !lacking.contains_key(&tree.id)) {
            let Some(kept) = tree.operand_store.kept_log() else { continue };
            let env = &self.tables.env;
            let target =
                ReplayTarget { tree: Arc::clone(tree), flushed_through: SeqNo(kept.after) };
            let mut replay = LogReplay::new(env, BTreeMap::from([(tree.id, target)]));
            let report = self.log_source().replay_kept_log(&kept, &mut |record| {
                let full = replay.add_commit(record.first_seq, record.payload)?;
                self.flush_full_memtables(&full, &record)
            })?;
            replay.finish()?;
            reports.push((tree.name(), report));
            if !self.read_only && !failpoint::is_on(Failpoint::KeptLogDeliveredTwice) {
                tree.operand_store.set_kept_log(None);
            }
        }
        Ok(reports)
    }

    fn log_source(&self) -> LogSource<'_> {
        LogSource {
            vfs: self.tables.vfs.as_ref(),
            dir: &self.tables.dir,
            state: &self.state,
            manifest: &self.manifest,
            mode: self.options.recovery,
        }
    }

    /// Returns the trees into which the log is replayed, by keyspace id.
    fn replay_targets(&self) -> BTreeMap<u32, ReplayTarget> {
        let lacking = self.trees_without_operand_store();
        let targets = self.state.keyspaces.iter().filter_map(|(&id, keyspace)| {
            let tree = self.trees.by_id(id).filter(|_| !lacking.contains_key(&id))?;
            let flushed_through = self.flushed_through(keyspace);
            Some((id, ReplayTarget { tree: Arc::clone(tree), flushed_through }))
        });
        targets.collect()
    }

    /// Returns the last flushed sequence numbers of the keyspaces whose operand store is not open. A read-only database
    /// replays these keyspaces into memory, so the result is empty.
    fn trees_without_operand_store(&self) -> BTreeMap<u32, SeqNo> {
        let lacking = self.state.keyspaces.iter().filter(|&(&id, _)| {
            !self.read_only
                && self.trees.by_id(id).is_some_and(|tree| tree.operand_store.is_unavailable())
        });
        lacking.map(|(&id, keyspace)| (id, self.flushed_through(keyspace))).collect()
    }

    fn flushed_through(&self, keyspace: &KeyspaceState) -> SeqNo {
        let newest = match failpoint::is_on(Failpoint::ReplaySkipsUnflushed) {
            true => self.state.keyspaces.values().map(|keyspace| keyspace.flushed_through).max(),
            false => None,
        };
        newest.unwrap_or(keyspace.flushed_through)
    }

    /// Flushes the memtables in `full`, which the commit in `record` has filled.
    fn flush_full_memtables(&self, full: &[Arc<Tree>], record: &ReplayedRecord<'_>) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let seq_next = SeqNo(record.first_seq.0 + u64::from(record.count));
        full.iter().try_for_each(|tree| self.flush(tree, seq_next))
    }

    /// Flushes the memtable of a tree. The tables are added to the new manifest later.
    fn flush(&self, tree: &Tree, seq_next: SeqNo) -> Result<()> {
        if tree.super_version().active.is_empty() {
            let view = tree.pin_super_version();
            let operands = view.operand_view.clone();
            tree.update_super_version(|_| {
                SuperVersion::new(view.active.kind(), &view.version, seq_next)
                    .with_operand_view(operands.clone())
            });
            return Ok(());
        }
        self.reservation.extend(&self.tables)?;
        // This check passes. The log is not replayed into a tree whose operand store is not open, so its memtable is
        // empty.
        tree.operand_store.check()?;
        let (mut outputs, changes) =
            flush_active(&self.tables, tree, seq_next, self.tombstone_time_us(tree))?;
        outputs.keep_files();
        self.flush_edits.lock().push(VersionEdit { changes });
        Ok(())
    }

    /// Returns the time of the tombstones in the log of a tree, in microseconds: that of the last manifest edit. Returns
    /// `None` for a tree with a kept log, whose commits may be much older.
    fn tombstone_time_us(&self, tree: &Tree) -> Option<u64> {
        let stored = self.state.keyspaces.get(&tree.id);
        let stored = stored.and_then(|keyspace| StoredOptions::decode(&keyspace.options));
        let has_kept_log = stored.is_some_and(|stored| stored.kept_log().is_some());
        (!has_kept_log).then_some(self.state.clock_us)
    }

    /// Makes the recovered state durable: flushes all memtables, and creates a new log and a new manifest.
    ///
    /// # Errors
    /// If a file cannot be written. The new files are then removed. They are kept if `CURRENT` may already name the new
    /// manifest.
    pub(crate) fn make_durable(&self) -> Result<DurableState> {
        let (log, number, state) =
            self.prepare_new_manifest().map_err(|error| self.remove_written_files(error))?;
        let (vfs, dir) = (Arc::clone(&self.tables.vfs), &self.tables.dir);
        let manifest = match Manifest::try_create(vfs, dir, number, &state) {
            Ok(manifest) => Arc::new(manifest),
            Err(CreateError { error, may_be_named_by_current: true }) => return Err(error),
            Err(CreateError { error, .. }) => {
                discard_manifest(&self.tables.obsolete_files, dir, number, log.segment);
                return Err(self.remove_written_files(error));
            }
        };
        log.segments.set_manifest(&manifest);
        self.reservation.remove(self.tables.vfs.as_ref());
        for tree in self.trees.iter() {
            let token = state.keyspaces.get(&tree.id).and_then(|keyspace| keyspace.operand_token);
            if let (Some(attached), Some(token)) = (tree.operand_store.attached(), token) {
                attached.store.mark_committed(token);
            }
        }
        Ok(DurableState { manifest, wal: Arc::new(log.wal), state })
    }

    /// Writes the files that the new manifest will list. Returns the new log, and the number and state of the new
    /// manifest.
    fn prepare_new_manifest(&self) -> Result<(NewLog, u64, ManifestState)> {
        for tree in self.trees.iter() {
            self.flush(tree, self.seq_next)?;
        }
        let kept_log_writer = KeptLogWriter {
            tables: &self.tables,
            log: self.log_source(),
            wal_options: self.options.wal_options(),
            reservation: &self.reservation,
        };
        for (&id, &after) in &self.unreplayed {
            self.trees.by_id(id).map_or(Ok(()), |tree| kept_log_writer.keep_log(tree, after))?;
        }
        self.reservation.extend(&self.tables)?;
        let (uid, wal_options) = (self.state.db_uid, self.options.wal_options());
        let log = NewLog::create(&self.tables, uid, wal_options, self.seq_next)?;
        let number = self.tables.files.allocate();
        let last_seq = SeqNo(self.seq_next.0 - 1);
        let mut changes = vec![Change::Opened];
        changes.extend(new_log_changes(&self.tables, log.segment, last_seq));
        for tree in self.trees.iter() {
            changes.extend(self.manifest_changes_after_recovery(tree, last_seq));
        }
        let path = FileName::Manifest(number).in_dir(&self.tables.dir);
        let (mut state, last_edit) = (self.state.clone(), VersionEdit { changes });
        for edit in self.flush_edits.lock().iter().chain([&last_edit]) {
            state.apply_edit(edit).map_err(|what| Error::malformed(what, &path, 0))?;
        }
        Ok((log, number, state))
    }

    /// Returns the manifest changes of a tree, except for the tables flushed during recovery.
    fn manifest_changes_after_recovery(&self, tree: &Tree, last_seq: SeqNo) -> Vec<Change> {
        let (id, view) = (tree.id, tree.pin_super_version());
        let stored = self.state.keyspaces.get(&id);
        let mut changes = vec![Change::FlushedThrough { keyspace: id, seq: last_seq }];
        // A repair may leave blob files that no table references.
        let blobs = stored.into_iter().flat_map(|stored| stored.value_log.blob_files());
        let unused = blobs.filter(|blob| view.version.blobs().file(blob.id).is_none());
        changes.extend(unused.map(|blob| Change::RemoveBlob { keyspace: id, id: blob.id }));
        let token = view.operand_view.as_ref().and_then(|operands| operands.token);
        if token != stored.and_then(|stored| stored.operand_token) {
            changes.push(Change::OperandToken { keyspace: id, token });
        }
        let options = tree.stored_options().encode();
        changes.push(Change::SetOptions { keyspace: id, options });
        changes
    }
}

/// Starts the database clock and creates the table factory. Returns the factory and the signal of background work.
fn start_clock_and_tables(
    vfs: Arc<dyn Vfs>,
    dir: &Path,
    options: &Options,
    env: Env,
    state: &mut ManifestState,
    read_only: bool,
) -> Result<(TableFactory, Signal)> {
    let stored_us = if options.reset_clock { 0 } else { state.clock_us };
    state.clock_us = env.start_database_clock(stored_us, options.clock_rules(read_only));
    // With a wrong clock, the database may have stored creation times in the future. Age rules for such files would
    // never apply.
    state.limit_file_times(env.creation_time_us());
    let progress = Signal::new();
    let keeps_reserve = options.wal.reserve && !read_only;
    let tables = create_table_factory(vfs, dir, options, env, state, &progress, keeps_reserve)?;
    let stores = state.keyspaces.values().filter(|it| it.operand_token.is_some()).count();
    check_descriptors_available(&*tables.vfs, dir, needed_descriptors(options.background, stores))?;
    Ok((tables, progress))
}

/// Creates the table factory of a database, including the block cache and the descriptor cache.
fn create_table_factory(
    vfs: Arc<dyn Vfs>,
    dir: &Path,
    options: &Options,
    env: Env,
    state: &ManifestState,
    progress: &Signal,
    keeps_reserve: bool,
) -> Result<TableFactory> {
    let number = first_free_number(vfs.as_ref(), dir, state)?;
    let reserve = Arc::new(DiskReserve::new(Arc::clone(&vfs), dir, keeps_reserve));
    let retry_vfs = ResourceRetryVfs::new(vfs);
    let space_owner: Arc<dyn ReleaseResource> = reserve.clone();
    retry_vfs.set_space_owner(Arc::downgrade(&space_owner));
    let vfs: Arc<dyn Vfs> = retry_vfs.clone();
    let direct_reads = options.direct_reads;
    if direct_reads {
        check_direct_reads(&*vfs, dir)?;
    }
    let rate = Arc::new(RateLimiter::new(env.clone(), options.background_io_rate));
    let bypass = Arc::new(CacheBypass::new(options.cache_bypass_rule()));
    let job_reads = JobReadOptions { rate: Arc::clone(&rate), bypass: Arc::clone(&bypass) };
    let open_tables_max = options.open_files_limit(&*vfs);
    let descriptors =
        FdCache::new(Arc::clone(&vfs), open_tables_max, direct_reads, Some(job_reads));
    let descriptor_owner: Arc<dyn ReleaseResource> = descriptors.clone();
    retry_vfs.set_descriptor_owner(Arc::downgrade(&descriptor_owner));
    Ok(TableFactory {
        descriptors,
        reserve,
        compaction_vfs: retry_vfs.without_space_owner(),
        cache: options.memory_plan().new_cache(options.block_cache_kind),
        rate,
        bypass,
        keep_flushed_cached: !direct_reads,
        obsolete_files: Arc::new(ObsoleteFiles::new(progress.clone())),
        deferred_drop: DeferredDrop::new(progress.clone()),
        files: Arc::new(FileNumbers::new(number)),
        creation: AtomicU64::new(next_creation_number(state)),
        store_rewrite_bytes: Arc::default(),
        vfs,
        dir: dir.to_owned(),
        env,
    })
}

/// Checks that direct reads work in the directory. The check reads `CURRENT` or the lock file, because one of them
/// exists before the first table.
fn check_direct_reads(vfs: &dyn Vfs, dir: &Path) -> Result<()> {
    for name in [CURRENT, LOCK] {
        let path = dir.join(name);
        // Some file systems accept the direct flag at the open and then fail the read.
        match vfs.open_direct(&path).and_then(|file| file.read_at(&mut [0], 0)) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let action = "open for direct reads, as set in the options,";
                return Err(Error::io(action, &path, error));
            }
        }
    }
    Ok(())
}
