//! A database under way from what its files say to one that is open; `open.rs` has the steps.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex, OnceLock, Signal};
use lsmx_compaction::{FileId, ManifestLevel, TableMeta, TreeShape};

use crate::db::check::verify::{check_reach, check_record};
use crate::db::open::fd_limit::check_available;
use crate::db::open::replay::{Replay, Target};
use crate::db::open::replayed;
use crate::db::open::warm_up::WarmUp;
use crate::db::operand_store::{self, StoreOpener};
use crate::db::update::KeyLocks;
use crate::db::{DEFAULT_KEYSPACE, DbInner};
use crate::deferred_drop::DeferredDrop;
use crate::env::Env;
use crate::env::rate_limit::RateLimiter;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::format::batch::BatchOperations;
use crate::format::file_name::{CURRENT, FILE_NUMBER_MAX, FileName, LOCK};
use crate::format::version_edit::{BlobFileRecord, BlobReference, Change, VersionEdit};
use crate::jobs::flush_trigger::{FlushTrigger, FlushTriggerLimits};
use crate::jobs::scheduler::JobScheduler;
use crate::jobs::version_installer::sync_directory;
use crate::jobs::worker_pool::WorkerPool;
use crate::manifest::{CreateError, KeyspaceState, Manifest, ManifestState};
use crate::metrics::WalMetrics;
use crate::operand_store::Token;
use crate::options::db::Options;
use crate::options::kept_log::KeptLog;
use crate::options::keyspace::{Persisted, kept_logs};
use crate::state::keyspaces::Keyspaces;
use crate::state::table_factory::{TableFactory, build_file_record};
use crate::state::{DbParts, DbState};
use crate::table::{FdCache, JobReadOptions};
use crate::tree::guard_history::GuardHistory;
use crate::tree::operands::Lacking;
use crate::tree::snapshots::Sequence;
use crate::tree::version::FileNumbers;
use crate::tree::version::{
    BlobFile, BlobUse, Janitor, SuperVersion, TableFile, Version, blob_changes, changes_between,
    operand_file_name,
};
use crate::tree::{Opening, Origin, Tree};
use crate::vfs::{LockGuard, ReleaseResource, ResourceRetryVfs, Vfs};
use crate::wal::{
    DiskReserve, DurableSegment, RecoveryMode, RecoveryReport, ReplayFrom, ReplayedRecord,
    SegmentRegistry, Wal, WalOptions, WalRecord, replay, replay_segments,
};
use crate::write::commit::Committer;
use crate::write::throttle::Throttle;

/// Sequence numbers left out after an unclean end, so that none that was given and lost returns.
const SEQ_GAP: u64 = 1 << 30;
/// Bytes of commits that are copied with one append.
const COPY_BYTES: usize = 1 << 18;
/// File numbers left out after an unclean end, for files whose names did not reach the disk.
pub(crate) const FILE_NUMBER_GAP: u64 = 1_000;

/// Gives out segment numbers, and has the manifest name a segment.
pub(crate) struct Ledger {
    files: Arc<FileNumbers>,
    manifest: OnceLock<Arc<Manifest>>,
}

impl Ledger {
    fn new(space: &TableFactory) -> Ledger {
        Ledger { files: Arc::clone(&space.files), manifest: OnceLock::new() }
    }

    /// From here on this manifest names segments; the first one it names already.
    fn name_in(&self, manifest: &Arc<Manifest>) {
        // Called once, by the opening that made the ledger.
        let _ = self.manifest.set(Arc::clone(manifest));
    }
}

impl SegmentRegistry for Ledger {
    fn allocate(&self) -> u64 {
        self.files.allocate()
    }

    fn register_segment(&self, id: u64) -> Result<()> {
        match self.manifest.get() {
            Some(manifest) => {
                manifest.append(&VersionEdit { changes: vec![Change::WalSegment { id }] })
            }
            // The manifest that is about to be made names the first segment itself.
            None => Ok(()),
        }
    }
}

/// What a recovered database needs to be one that is open.
pub(crate) struct Parts {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) wal: Arc<Wal>,
    pub(crate) lock: Option<Box<dyn LockGuard>>,
    /// The log as it lies there, if it was opened for reading only.
    pub(crate) read_only: Option<WalMetrics>,
}

/// An opening under way.
pub(crate) struct Recovery {
    tables: TableFactory,
    options: Options,
    state: ManifestState,
    /// Where that comes from.
    manifest: PathBuf,
    trees: Keyspaces,
    opening: Opening,
    /// Shapes as the manifest had them, by tree.
    opened: BTreeMap<u32, TreeShape>,
    seq_next: SeqNo,
    report: RecoveryReport,
    /// Keyspaces that the log holds operations for, but whose operand stores are not open, with the sequence
    /// numbers up to which their tables and stores hold everything.
    behind: BTreeMap<u32, SeqNo>,
    /// The signal of the store to come.
    progress: Signal,
    /// Nothing is written: memtables stay in memory however large they get.
    read_only: bool,
    /// Path and number of the file that reserves file numbers; see [`Recovery::reserve_numbers`].
    reservation: Mutex<Option<(PathBuf, u64)>>,
}

/// What an opening has written, before a manifest names it.
struct Prepared {
    wal: Wal,
    ledger: Arc<Ledger>,
    state: ManifestState,
    number: u64,
}

/// What an opening made.
pub(crate) struct Durable {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) wal: Arc<Wal>,
    pub(crate) state: ManifestState,
}

impl Recovery {
    /// Step 2, after the manifest was loaded or made up for a new database.
    pub(crate) fn new(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        options: Options,
        env: Env,
        (mut state, manifest): (ManifestState, &Path),
        read_only: bool,
    ) -> Result<Recovery> {
        let stored_us = if options.reset_clock { 0 } else { state.clock_us };
        state.clock_us = env.start_database_clock(stored_us, options.clock_jump_us_max);
        // Times that a wrong clock has left in the future would never come.
        state.limit_times(env.creation_time_us());
        let gap = if state.clean_close { 0 } else { FILE_NUMBER_GAP };
        let files = match failpoint::is_on(Failpoint::FileNumberReused) {
            true => state.file_number_next.max(1),
            false => {
                let next = state.file_number_next;
                next.max(largest_number(vfs.as_ref(), dir, Some(next))? + 1) + gap
            }
        };
        if files > FILE_NUMBER_MAX {
            let (what, expected) = ("number of the next file", "at most 2^56 - 1");
            return Err(Error::malformed(
                Malformed::Field { what, found: files, expected },
                dir,
                0,
            ));
        }
        let of_files = state.keyspaces.values().flat_map(KeyspaceState::files);
        let creation = of_files.map(|(.., file)| file.creation.saturating_add(1)).max();
        let progress = Signal::new();
        let keeps_room = options.wal.reserve && !read_only;
        let reserve = Arc::new(DiskReserve::new(Arc::clone(&vfs), dir, keeps_room));
        let shedding = ResourceRetryVfs::new(vfs);
        let space: Arc<dyn ReleaseResource> = reserve.clone();
        shedding.set_space_owner(Arc::downgrade(&space));
        let vfs: Arc<dyn Vfs> = shedding.clone();
        let rate = Arc::new(RateLimiter::new(env.clone(), options.background_io_rate));
        let direct = options.direct_reads;
        if direct {
            check_direct_reads(&*vfs, dir)?;
        }
        let keep_cached = options.keep_cached && !direct;
        let job_reads = JobReadOptions { rate: Arc::clone(&rate), keep_cached };
        let limit = options.open_tables_max(&*vfs);
        let descriptors = FdCache::new(Arc::clone(&vfs), limit, direct, Some(job_reads));
        let shed: Arc<dyn ReleaseResource> = descriptors.clone();
        shedding.set_descriptor_owner(Arc::downgrade(&shed));
        let stores = state.keyspaces.values().filter(|it| it.operand_token.is_some()).count();
        check_available(&*vfs, dir, options.background, stores)?;
        let tables = TableFactory {
            descriptors,
            reserve,
            compaction_vfs: shedding.without_space_owner(),
            cache: options.memory_plan().cache(options.block_cache_kind),
            rate,
            keep_cached,
            keep_flushed_cached: !direct,
            janitor: Arc::new(Janitor::new(progress.clone())),
            deferred_drop: DeferredDrop::new(progress.clone()),
            files: Arc::new(FileNumbers::new(files)),
            creation: AtomicU64::new(creation.unwrap_or(0)),
            beside_bytes: Arc::default(),
            vfs,
            dir: dir.to_owned(),
            env,
        };
        let (trees, opened) = (Keyspaces::default(), BTreeMap::new());
        let report = RecoveryReport::default();
        let mut recovery = Recovery {
            tables,
            options,
            state,
            manifest: manifest.to_owned(),
            trees,
            opening: Opening::new(),
            opened,
            seq_next: SeqNo(1),
            report,
            behind: BTreeMap::new(),
            progress,
            read_only,
            reservation: Mutex::new(None),
        };
        match recovery.open_trees() {
            Ok(()) => Ok(recovery),
            Err(error) => Err(recovery.take_back(error)),
        }
    }

    /// What the replay of the log found.
    pub(crate) fn report(&self) -> &RecoveryReport {
        &self.report
    }

    /// Fails if the default keyspace, which an open database has in use, lacks its custom policy.
    pub(crate) fn check_policy(&self) -> Result<()> {
        self.trees.by_name(DEFAULT_KEYSPACE).map_or(Ok(()), |tree| tree.check_policy())
    }

    /// What the manifest says.
    pub(crate) fn state(&self) -> &ManifestState {
        &self.state
    }

    /// Where its files are.
    pub(crate) fn vfs(&self) -> &dyn Vfs {
        self.tables.vfs.as_ref()
    }

    /// Its directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.tables.dir
    }

    /// What gives segments of its log their numbers.
    pub(crate) fn ledger(&self) -> Arc<Ledger> {
        Arc::new(Ledger::new(&self.tables))
    }

    /// How its log is to be written.
    pub(crate) fn wal_options(&self) -> WalOptions {
        self.options.wal_options()
    }

    /// The parts of a running database around what was recovered. No thread runs yet.
    pub(crate) fn assemble(self, parts: Parts) -> Result<DbInner> {
        let Recovery { tables, options, trees, opening, seq_next, report, progress, .. } = self;
        let Parts { manifest, wal, lock, read_only } = parts;
        let Some(default) = trees.by_name(DEFAULT_KEYSPACE).cloned() else {
            let why = "its manifest names no default keyspace";
            return Err(Error::NotADatabase { path: tables.dir, why });
        };
        let sequence = Arc::new(Sequence::default());
        sequence.publish(SeqNo(seq_next.0 - 1));
        let listener = options.listener.clone();
        let explains = options.explain_decisions && listener.is_some();
        let memory = options.memory_plan();
        let parts = DbParts {
            tables,
            manifest,
            wal,
            sequence,
            guard_history: GuardHistory::new(memory.guard_history()),
            memtable_bytes_max: memory.memtables,
            trees,
            listener,
            explains,
            progress,
        };
        let store = Arc::new(DbState::new(parts));
        store.emit(&Event::Recovery(Arc::new(report)));
        store.report_clock();
        let committer = Arc::new(Committer::new(Arc::clone(&store), seq_next));
        let throttle = Arc::new(Throttle::new(options.write_control));
        let governor = Arc::new(FlushTrigger::new(
            Arc::clone(&store),
            Arc::clone(&committer),
            FlushTriggerLimits {
                wal_bytes: options.wal_bytes_limit(),
                memtable_bytes: memory.flush_from(),
                memtable_idle_us: options.memtable_idle_us,
            },
        ));
        let runner = JobScheduler::new(
            Arc::clone(&store),
            Arc::clone(&committer),
            Arc::clone(&throttle),
            Arc::clone(&governor),
            WorkerPool::new(options.background, options.merge_parts_max),
        );
        Ok(DbInner {
            state: store,
            committer,
            scheduler: Arc::new(runner),
            flush_trigger: governor,
            throttle,
            memory,
            options,
            opening,
            default_tree: default,
            read_only,
            lock: Mutex::new(lock),
            keyspace_changes: Mutex::new(()),
            key_locks: KeyLocks::new(),
            warm_up: WarmUp::default(),
            recording: Arc::default(),
            closed: AtomicBool::new(false),
            lock_released: AtomicBool::new(false),
            admin_locked: AtomicBool::new(false),
            call_threads: AtomicUsize::new(0),
        })
    }

    fn open_trees(&mut self) -> Result<()> {
        for (&id, keyspace) in &self.state.keyspaces {
            let (shape, tables) = self.open_tables(id, keyspace)?;
            self.opened.insert(id, shape.clone());
            let nothing = Version::empty(&self.tables.deferred_drop);
            let version = Arc::new(Version::new(shape, &nothing, &tables)?);
            let persisted = self.persisted(keyspace)?;
            let options = self.options.until_opened(&keyspace.name, &persisted);
            let options = self.options.memory_plan().fit(options);
            let policy = match options.stored_policy() {
                Some(policy) => policy,
                None => persisted.policy.parse()?,
            };
            let (opening, name) = (self.opening, keyspace.name.clone());
            let origin = Origin { opening, env: self.tables.env.clone() };
            let tree = Tree::new(origin, id, name, options, policy, version, SeqNo(1));
            if persisted.value_separation {
                tree.note_separated();
            }
            if let Some(operator) = &persisted.merge_operator {
                tree.merging.remember(operator.clone())?;
            }
            tree.beside.set_kept_log(persisted.kept_log().cloned());
            let store = persisted.store_name().map(str::to_owned);
            self.open_beside(&tree, store, keyspace.operand_token)?;
            self.trees.insert(Arc::new(tree));
        }
        Ok(())
    }

    /// Opens the operand store of a tree. If the store is not given or cannot be opened, calls on the keyspace
    /// fail, and the open succeeds.
    fn open_beside(&self, tree: &Tree, known: Option<String>, token: Option<Token>) -> Result<()> {
        if known.is_none() && token.is_some() {
            let what = "token of an operand store that the options do not name";
            let what = Malformed::Field { what, found: u64::from(tree.id), expected: "no such" };
            return Err(Error::malformed(what, &self.manifest, 0));
        }
        let given = tree.settings().options.operand_store.clone();
        let given = given.or_else(|| {
            let mut stores = self.options.operand_stores.iter();
            stores.find(|store| known.as_deref() == Some(store.name())).cloned()
        });
        let lack = |store: String, cause: Option<Error>| {
            let (keyspace, cause) = (tree.name.clone(), cause.map(Arc::new));
            let lacking = Lacking { keyspace, store, cause };
            let view = lacking.clone().view(token);
            tree.beside.set_lacking(lacking);
            tree.change(|current| current.clone().beside(Some(view.clone())));
        };
        let factory = match (&known, given) {
            (None, Some(given)) if !self.read_only => given,
            // A database that nothing is written to does not take one on.
            (None, _) => return Ok(()),
            (Some(known), Some(given)) => {
                operand_store::check_store_name(&tree.name, known, given.name())?;
                given
            }
            (Some(known), None) => {
                lack(known.clone(), None);
                return Ok(());
            }
        };
        let site = StoreOpener {
            tables: &self.tables,
            memory: self.options.memory_plan(),
            direct_reads: self.options.direct_reads,
            read_only: self.read_only,
        };
        let attached = site.open(&tree.name, &tree.merging, &factory, token);
        match (attached.map_err(|error| named(error, &self.manifest)), known) {
            (Ok(attached), _) => {
                let view = attached.first_view();
                tree.beside.attach(attached);
                tree.change(|current| current.clone().beside(Some(view.clone())));
                Ok(())
            }
            (Err(error), Some(known)) => {
                lack(known, Some(error));
                Ok(())
            }
            // The keyspace has no store yet, and does not get one.
            (Err(error), None) => Err(error),
        }
    }

    /// Files of the operand stores that are open, and whether no other store may have files.
    pub(crate) fn operand_files(&self) -> (BTreeSet<FileName>, bool) {
        let attached = self.trees.iter().filter_map(|tree| tree.beside.attached());
        let live = attached.flat_map(|attached| attached.store.live_files());
        let live = live.map(|(kind, number)| operand_file_name(kind, number)).collect();
        (live, !self.trees.iter().any(|tree| tree.beside.lacks()))
    }

    fn persisted(&self, keyspace: &KeyspaceState) -> Result<Persisted> {
        Persisted::decode(&keyspace.options).ok_or_else(|| {
            let what = "options of a keyspace";
            let what = Malformed::Field { what, found: 0, expected: "options this build knows" };
            Error::malformed(what, &self.manifest, 0)
        })
    }

    /// Opens the blob files of a keyspace.
    fn open_blobs(&self, id: u32, keyspace: &KeyspaceState) -> Result<Blobs> {
        let open = |blob: &BlobFileRecord| {
            let opened = self.tables.open_blob(id, blob);
            opened.map(|file| (blob.id, file)).map_err(|error| named(error, &self.manifest))
        };
        keyspace.value_log.blobs().map(open).collect()
    }

    fn open_tables(
        &self,
        id: u32,
        keyspace: &KeyspaceState,
    ) -> Result<(TreeShape, Vec<Arc<TableFile>>)> {
        let blobs = self.open_blobs(id, keyspace)?;
        let (mut tables, mut levels) = (Vec::new(), Vec::new());
        for (level, runs) in (0u8..=u8::MAX).zip(&keyspace.levels) {
            let cursor = keyspace.cursors.get(&level).cloned();
            let mut parts = ManifestLevel { cursor, runs: Vec::new() };
            for run in runs {
                let mut files = Vec::new();
                for file in &run.files {
                    let uses = uses(&blobs, keyspace.value_log.references_of(file.id));
                    let table = self.tables.open(file, uses);
                    let table = table.map_err(|error| named(error, &self.manifest))?;
                    files.push(Arc::clone(table.shape()));
                    tables.push(table);
                }
                parts.runs.push((run.id, files));
            }
            levels.push(parts);
        }
        Ok((TreeShape::from_levels(levels, keyspace.run_id_next)?, tables))
    }

    /// Removes the tables that an opening wrote before it failed.
    pub(crate) fn take_back(&self, error: Error) -> Error {
        for tree in self.trees.iter() {
            if let Some(attached) = tree.beside.attached() {
                attached.store.abandon();
                attached.life.files.discard_made();
            }
            let version = &tree.pin().version;
            for table in version.runs().iter().flat_map(|run| run.tables().iter()) {
                if self.opened[&tree.id].find_file(table.shape().id).is_none() {
                    self.tables.janitor.discard(table.path().to_owned());
                }
            }
            let log = self.state.keyspaces.get(&tree.id).map(|keyspace| &keyspace.value_log);
            for id in version.blob_ids() {
                if log.is_none_or(|log| log.blob(id).is_none()) {
                    self.tables.janitor.discard(self.tables.blob_path(id));
                }
            }
        }
        let known = kept_logs(&self.state);
        for tree in self.trees.iter().filter(|tree| self.behind.contains_key(&tree.id)) {
            let segments = tree.beside.kept_log().map_or_else(Vec::new, |kept| kept.segments());
            let is_new = |id| known.get(&tree.id).is_none_or(|kept| !kept.holds(id));
            for segment in segments.iter().filter(|segment| is_new(segment.id)) {
                self.discard_segment(segment.id);
            }
        }
        for path in self.tables.janitor.take() {
            // What cannot be removed now, the next opening does.
            let _ = self.tables.vfs.remove(&path);
        }
        self.remove_reservation();
        error
    }

    /// Reserves the next file numbers before files get them, by the synced name of an empty file. If power is
    /// lost before the manifest says which numbers were used, names of files may be lost, and the next
    /// opening would use the numbers again; it skips every number up to the one in this name.
    fn reserve_numbers(&self) -> Result<()> {
        let next = self.tables.files.next();
        let reserved = self.reservation.lock().as_ref().map(|&(_, number)| number);
        // One flush uses far fewer numbers than half of them.
        if reserved.is_some_and(|number| next + FILE_NUMBER_GAP / 2 < number)
            || failpoint::is_on(Failpoint::FileNumbersNotReserved)
        {
            return Ok(());
        }
        let number = (next + FILE_NUMBER_GAP).min(FILE_NUMBER_MAX);
        let path = FileName::Temporary(number).in_dir(&self.tables.dir);
        let created = self.tables.vfs.create(&path);
        created.map_err(|source| Error::io("create", &path, source))?;
        let before = self.reservation.lock().replace((path, number));
        sync_directory(self.tables.vfs.as_ref(), &self.tables.dir)?;
        if let Some((before, _)) = before {
            // It is of no use any more; the sweep at the end of the opening removes it at the latest.
            let _ = self.tables.vfs.remove(&before);
        }
        Ok(())
    }

    fn remove_reservation(&self) {
        let reservation = self.reservation.lock().take();
        if let Some((path, _)) = reservation {
            // If this fails, the removal of orphan files or the next opening removes it.
            let _ = self.tables.vfs.remove(&path);
        }
    }

    /// Step 3. Damage may be found after a table was written; nothing names the table yet, and it is
    /// taken back.
    pub(crate) fn replay(&mut self, manifest: &Path) -> Result<()> {
        let from = self.replay_from(manifest);
        let (uid, mode) = (self.state.db_uid, self.options.recovery);
        let dir = self.tables.dir.clone();
        let vfs = Arc::clone(&self.tables.vfs);
        let known = self.state.keyspace_id_next;
        let env = self.tables.env.clone();
        let damaged = self.replay_kept_logs(mode)?;
        let lacking = self.lacking();
        let mut behind = BTreeMap::new();
        let mut replaying = Replay::new(&env, self.targets());
        let mut take = |record: ReplayedRecord<'_>| {
            check_record(&dir, &record, known)?;
            let touched = lacking.iter().filter(|&(&id, &after)| touches(&record, id, after));
            behind.extend(touched.map(|(&id, &after)| (id, after)));
            let full = replaying.take(&env, record.first_seq, record.payload)?;
            self.flush_full(&full, &record)
        };
        let mut report = replay(vfs.as_ref(), &dir, uid, &from, mode, &mut take)?;
        // Memtables that have become full with the last commits are written with all others.
        replaying.finish()?;
        drop(replaying);
        let short = check_reach(vfs.as_ref(), &dir, &self.state, &report);
        if mode == RecoveryMode::Strict {
            short.clone()?;
        }
        report.damage = report.damage.or(short.err());
        report.complete_through = self.state.complete_through(report.last_seq);
        damaged.into_iter().for_each(|(keyspace, kept)| report.add_kept_log(keyspace, kept));
        self.behind = behind;

        let flushed = self.state.keyspaces.values().map(|keyspace| keyspace.flushed_through);
        let last = flushed.fold(self.state.last_seq.max(report.last_seq), SeqNo::max);
        let reused = failpoint::is_on(Failpoint::SeqReused);
        let gap = if self.state.clean_close || reused { 1 } else { SEQ_GAP };
        self.seq_next = SeqNo(last.0 + gap);
        if self.seq_next > SeqNo::MAX {
            let (what, expected) = ("next sequence number", "at most 2^56 - 1");
            return Err(Error::malformed(
                Malformed::Field { what, found: self.seq_next.0, expected },
                manifest,
                0,
            ));
        }
        self.report = report;
        Ok(())
    }

    /// How far tables hold what was written to a keyspace.
    fn flushed_through(&self, keyspace: &KeyspaceState) -> SeqNo {
        let furthest = match failpoint::is_on(Failpoint::ReplaySkipsUnflushed) {
            true => self.state.keyspaces.values().map(|keyspace| keyspace.flushed_through).max(),
            false => None,
        };
        furthest.unwrap_or(keyspace.flushed_through)
    }

    /// The trees that the log may hold something for.
    fn targets(&self) -> BTreeMap<u32, Target> {
        let lacking = self.lacking();
        let targets = self.state.keyspaces.iter().filter_map(|(&id, keyspace)| {
            let tree = Arc::clone(self.trees.by_id(id).filter(|_| !lacking.contains_key(&id))?);
            Some((id, Target { tree, flushed_through: self.flushed_through(keyspace) }))
        });
        targets.collect()
    }

    /// The keyspaces that nothing is replayed into, because their operand store is not open, with the sequence
    /// numbers up to which tables and store hold everything. A database that is opened for reading keeps all
    /// in memory, and has none.
    fn lacking(&self) -> BTreeMap<u32, SeqNo> {
        let lacking = self.state.keyspaces.iter().filter(|&(&id, _)| {
            !self.read_only && self.trees.by_id(id).is_some_and(|tree| tree.beside.lacks())
        });
        lacking.map(|(&id, keyspace)| (id, self.flushed_through(keyspace))).collect()
    }

    /// Replays logs that earlier openings kept into the trees whose operand stores are open now. Returns what
    /// was found, by keyspace.
    fn replay_kept_logs(&self, mode: RecoveryMode) -> Result<Vec<(String, RecoveryReport)>> {
        let (lacking, mut reports) = (self.lacking(), Vec::new());
        for tree in self.trees.iter().filter(|tree| !lacking.contains_key(&tree.id)) {
            let Some(kept) = tree.beside.kept_log() else { continue };
            let env = &self.tables.env;
            let target = Target { tree: Arc::clone(tree), flushed_through: SeqNo(kept.after) };
            let mut replaying = Replay::new(env, BTreeMap::from([(tree.id, target)]));
            let report = self.read_kept_log(&kept, mode, &mut |record| {
                let full = replaying.take(env, record.first_seq, record.payload)?;
                self.flush_full(&full, &record)
            })?;
            replaying.finish()?;
            reports.push((tree.name.clone(), report));
            if !self.read_only && !failpoint::is_on(Failpoint::KeptLogDeliveredTwice) {
                tree.beside.set_kept_log(None);
            }
        }
        Ok(reports)
    }

    fn read_kept_log(
        &self,
        kept: &KeptLog,
        mode: RecoveryMode,
        visit: &mut dyn FnMut(ReplayedRecord<'_>) -> Result<()>,
    ) -> Result<RecoveryReport> {
        let (vfs, dir) = (self.tables.vfs.as_ref(), &self.tables.dir);
        let home = (dir.as_path(), self.state.db_uid);
        let known = self.state.keyspace_id_next;
        let mut take = |record: ReplayedRecord<'_>| {
            check_record(dir, &record, known)?;
            visit(record)
        };
        replay_segments(vfs, home, &kept.segments(), &self.manifest, mode, &mut take)
    }

    /// Flushes memtables that this commit has made full.
    fn flush_full(&self, full: &[Arc<Tree>], record: &ReplayedRecord<'_>) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let seq_next = SeqNo(record.first_seq.0 + u64::from(record.count));
        full.iter().try_for_each(|tree| self.flush(tree, seq_next))
    }

    /// Copies the commits of the log that a keyspace without its operand store needs to segments of their own,
    /// on stable storage, and notes these. They follow those that are kept already.
    fn keep_log(&self, tree: &Tree, after: SeqNo) -> Result<()> {
        let before = tree.beside.kept_log();
        let first = before.as_ref().map_or(after, |kept| SeqNo(kept.after));
        let number = self.tables.files.next();
        let segments = self.copy_log(tree.id, after, before.as_deref()).inspect_err(|_| {
            // Nothing else takes file numbers during the copy.
            (number..self.tables.files.next()).for_each(|id| self.discard_segment(id));
        })?;
        tree.beside.set_kept_log(Some(KeptLog::new(first, &segments)));
        Ok(())
    }

    /// Writes the commits that a keyspace needs to a new chain of segments: those of the kept log, and those of the
    /// log after a sequence number.
    fn copy_log(
        &self,
        tree: u32,
        after: SeqNo,
        before: Option<&KeptLog>,
    ) -> Result<Vec<DurableSegment>> {
        let wal = Wal::create(
            Arc::clone(&self.tables.vfs),
            &self.tables.dir,
            self.state.db_uid,
            self.ledger(),
            self.options.wal_options(),
            // A repair without a manifest recognizes such a log by this number.
            SeqNo(1),
        )?;
        let mode = self.options.recovery;
        let (mut commits, mut bytes) = (Vec::new(), 0);
        let mut append = |record: ReplayedRecord<'_>| {
            bytes += record.payload.len();
            commits.push((record.first_seq, record.count, record.payload.to_vec()));
            if bytes >= COPY_BYTES {
                self.append_commits(&wal, &mut commits)?;
                bytes = 0;
            }
            Ok(())
        };
        if let Some(before) = before {
            self.read_kept_log(before, mode, &mut append)?;
        }
        let (vfs, dir) = (self.tables.vfs.as_ref(), &self.tables.dir);
        let from = self.replay_from(&self.manifest);
        replay(vfs, dir, self.state.db_uid, &from, mode, &mut |record| {
            if touches(&record, tree, after) { append(record) } else { Ok(()) }
        })?;
        self.append_commits(&wal, &mut commits)?;
        wal.close()?;
        let segments = wal.segments().into_iter();
        Ok(segments.map(|at| DurableSegment { id: at.id, bytes: at.bytes }).collect())
    }

    fn append_commits(&self, wal: &Wal, commits: &mut Vec<(SeqNo, u32, Vec<u8>)>) -> Result<()> {
        self.reserve_numbers()?;
        let records = commits.iter().map(|(first_seq, count, payload)| WalRecord {
            first_seq: *first_seq,
            count: *count,
            payload,
        });
        wal.append(&records.collect::<Vec<_>>())?;
        commits.clear();
        Ok(())
    }

    /// Where the log starts, by the manifest in this file.
    fn replay_from(&self, manifest: &Path) -> ReplayFrom {
        ReplayFrom {
            oldest_segment: self.state.wal_oldest,
            named: self.state.wal_named.clone(),
            mark: self.state.wal_mark,
            named_by: manifest.to_owned(),
        }
    }

    /// Writes a tree's memtable to a table and its operand store; the manifest learns of it with everything else.
    fn flush(&self, tree: &Tree, seq_next: SeqNo) -> Result<()> {
        if tree.view().active.is_empty() {
            let view = tree.pin();
            let operands = view.operands.clone();
            tree.change(|_| SuperVersion::fresh(&view.version, seq_next).beside(operands.clone()));
            return Ok(());
        }
        self.reserve_numbers()?;
        // Nothing is replayed into a tree without its store.
        tree.beside.check()?;
        replayed::flush(&self.tables, tree, seq_next, self.state.clock_us)?.keep_files();
        Ok(())
    }

    /// Step 4: everything that was replayed becomes durable by one new manifest.
    pub(crate) fn make_durable(&self) -> Result<Durable> {
        let prepared = self.prepare().map_err(|error| self.take_back(error))?;
        let Prepared { wal, ledger, state, number } = prepared;
        let vfs = Arc::clone(&self.tables.vfs);
        let manifest = match Manifest::try_create(vfs, &self.tables.dir, number, &state) {
            Ok(manifest) => Arc::new(manifest),
            // `CURRENT` may name the new files: they stay.
            Err(CreateError { error, can_be_current: true }) => return Err(error),
            Err(CreateError { error, .. }) => {
                for name in [FileName::Manifest(number), FileName::Temporary(number)] {
                    self.tables.janitor.discard(name.in_dir(&self.tables.dir));
                }
                self.discard_segment(wal.oldest_segment());
                return Err(self.take_back(error));
            }
        };
        ledger.name_in(&manifest);
        self.remove_reservation();
        for tree in self.trees.iter() {
            let token = state.keyspaces.get(&tree.id).and_then(|keyspace| keyspace.operand_token);
            if let (Some(attached), Some(token)) = (tree.beside.attached(), token) {
                attached.store.committed(token);
            }
        }
        Ok(Durable { manifest, wal: Arc::new(wal), state })
    }

    fn discard_segment(&self, id: u64) {
        self.tables.janitor.discard(FileName::Segment(id).in_dir(&self.tables.dir));
    }

    /// Writes everything that the new manifest will name.
    fn prepare(&self) -> Result<Prepared> {
        for tree in self.trees.iter() {
            self.flush(tree, self.seq_next)?;
        }
        for (&id, &after) in &self.behind {
            self.trees.by_id(id).map_or(Ok(()), |tree| self.keep_log(tree, after))?;
        }
        self.reserve_numbers()?;
        let ledger = self.ledger();
        // The number that the first segment gets.
        let segment = self.tables.files.next();
        let wal = Wal::create(
            Arc::clone(&self.tables.vfs),
            &self.tables.dir,
            self.state.db_uid,
            Arc::clone(&ledger) as Arc<dyn SegmentRegistry>,
            self.options.wal_options(),
            self.seq_next,
        );
        let established = wal.and_then(|wal| Ok((wal.sync_first_segment()?, wal)));
        let (segment, wal) = established.inspect_err(|_| self.discard_segment(segment))?;
        let number = self.tables.files.allocate();
        let last_seq = SeqNo(self.seq_next.0 - 1);
        let mut changes = vec![
            Change::Opened,
            Change::WalOldest { segment },
            Change::WalSegment { id: segment },
            Change::LastSeq(last_seq),
            Change::FileNumberNext(self.tables.files.next()),
            Change::ClockUs(self.tables.env.database_us()),
        ];
        for tree in self.trees.iter() {
            let view = tree.pin();
            let before = &self.opened[&tree.id];
            let record = |file: &Arc<TableMeta>| {
                let unknown = lsmx_compaction::Error::UnknownFile { file: file.id };
                view.version.table(file.id).map(|table| build_file_record(table)).ok_or(unknown)
            };
            changes.extend(changes_between(tree.id, before, view.version.shape(), record)?);
            let log = self.state.keyspaces.get(&tree.id).map(|keyspace| &keyspace.value_log);
            let known: Vec<_> =
                log.into_iter().flat_map(|log| log.blobs()).map(|blob| blob.id).collect();
            changes.extend(blob_changes(tree.id, (before, &known), &view.version));
            changes.push(Change::FlushedThrough { keyspace: tree.id, seq: last_seq });
            let token = view.operands.as_ref().and_then(|beside| beside.token);
            if token != self.state.keyspaces.get(&tree.id).and_then(|at| at.operand_token) {
                changes.push(Change::OperandToken { keyspace: tree.id, token });
            }
            let options = tree.persisted().encode();
            changes.push(Change::SetOptions { keyspace: tree.id, options });
        }
        let path = FileName::Manifest(number).in_dir(&self.tables.dir);
        let mut state = self.state.clone();
        state.apply(&VersionEdit { changes }).map_err(|what| Error::malformed(what, &path, 0))?;
        Ok(Prepared { wal, ledger, state, number })
    }
}

/// The blob files of a keyspace, open.
type Blobs = BTreeMap<FileId, Arc<BlobFile>>;

/// What a table references. The manifest has checked that each of these files is there.
fn uses(blobs: &Blobs, references: &[BlobReference]) -> Vec<BlobUse> {
    let uses = references.iter().filter_map(|reference| {
        let file = Arc::clone(blobs.get(&reference.blob)?);
        Some(BlobUse { file, bytes: reference.bytes, records: reference.records })
    });
    uses.collect()
}

/// Finds out whether files of the directory can be read past the system's cache, by one that is there
/// before any table: better now than at the first table.
fn check_direct_reads(vfs: &dyn Vfs, dir: &Path) -> Result<()> {
    for name in [CURRENT, LOCK] {
        let path = dir.join(name);
        // Some take the flag and refuse the reads.
        match vfs.open_direct(&path).and_then(|file| file.read_at(&mut [0], 0)) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let action = "open for direct reads, as the options ask for,";
                return Err(Error::io(action, &path, error));
            }
        }
    }
    Ok(())
}

/// Largest number in the name of any file of a database, stray files aside; see [`FileName::is_stray`].
pub(crate) fn largest_number(vfs: &dyn Vfs, dir: &Path, next: Option<u64>) -> Result<u64> {
    let names = vfs.list(dir).map_err(|error| Error::io("list", dir, error))?;
    let files = names.iter().filter_map(|name| FileName::parse(name));
    let numbers = files.filter(|file| !file.is_stray(next)).filter_map(FileName::number);
    Ok(numbers.max().unwrap_or(0))
}

/// Whether a commit has an operation for this keyspace, and is newer than `after`.
pub(crate) fn touches(record: &ReplayedRecord<'_>, keyspace: u32, after: SeqNo) -> bool {
    let newer = record.first_seq.0 + u64::from(record.count) > after.0 + 1;
    newer
        && BatchOperations::new(record.payload)
            .flatten()
            .any(|operation| operation.keyspace == keyspace)
}

/// Makes a missing file an error that says who names it.
pub(crate) fn named(error: Error, by: &Path) -> Error {
    match error {
        Error::Io { path, source, .. } if source.kind() == io::ErrorKind::NotFound => {
            Error::Missing { path, named_by: by.to_owned() }
        }
        error => error,
    }
}
