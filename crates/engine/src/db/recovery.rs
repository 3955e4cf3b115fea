//! A database under way from what its files say to one that is open; `open.rs` has the steps.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use lsmx_compaction::{FileId, FileShape, LevelParts, TreeShape};

use crate::db::beside::{self, Site};
use crate::db::options::Options;
use crate::db::replay::{Replay, Target};
use crate::db::replayed;
use crate::db::update::Turns;
use crate::db::verify::{check_reach, check_record};
use crate::db::warm_up::WarmUp;
use crate::db::{Core, DEFAULT_KEYSPACE};
use crate::disposal::Disposal;
use crate::env::Env;
use crate::env::rate::RateLimit;
use crate::error::{Error, Malformed, Result};
use crate::event::Event;
use crate::format::edit::{BlobFileRecord, BlobReference, Change, Edit};
use crate::format::filename::{CURRENT, FILE_NUMBER_MAX, FileName, LOCK};
use crate::job::governor::{Governor, GovernorLimits};
use crate::job::install::sync_names;
use crate::job::queue::Runner;
use crate::job::workers::Workers;
use crate::key::SeqNo;
use crate::keyspace::beside::Lacking;
use crate::keyspace::guard_history::GuardHistory;
use crate::keyspace::options::Persisted;
use crate::keyspace::snapshot::Sequence;
use crate::keyspace::{Opening, Origin, Tree};
use crate::manifest::{KeyspaceState, Manifest, ManifestState, Unfinished};
use crate::metrics::WalMetrics;
use crate::operands::Token;
use crate::sabotage::{self, Bug};
use crate::store::{FileNumbers, Store, StoreParts, TableSpace, Trees, record_of};
use crate::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex, OnceLock, Signal};
use crate::table::{DescriptorPool, JobReads};
use crate::version::{
    BlobFile, BlobUse, Janitor, SuperVersion, TableFile, Version, blob_changes, changes_between,
    operand_file_name,
};
use crate::vfs::{LockGuard, Shed, SheddingVfs, Vfs};
use crate::wal::{
    RecoveryMode, RecoveryReport, ReplayFrom, ReplayedRecord, Reserve, SegmentLedger, Wal,
    WalOptions, replay,
};
use crate::write::commit::Committer;
use crate::write::throttle::Throttle;

/// Sequence numbers left out after an unclean end, so that none that was given and lost returns.
const SEQ_GAP: u64 = 1 << 30;
/// File numbers left out after an unclean end, for files whose names did not reach the disk.
pub(super) const FILE_NUMBER_GAP: u64 = 1_000;

/// Gives out segment numbers, and has the manifest name a segment.
pub(super) struct Ledger {
    files: Arc<FileNumbers>,
    manifest: OnceLock<Arc<Manifest>>,
}

impl Ledger {
    fn new(space: &TableSpace) -> Ledger {
        Ledger { files: Arc::clone(&space.files), manifest: OnceLock::new() }
    }

    /// From here on this manifest names segments; the first one it names already.
    fn name_in(&self, manifest: &Arc<Manifest>) {
        // Called once, by the opening that made the ledger.
        let _ = self.manifest.set(Arc::clone(manifest));
    }
}

impl SegmentLedger for Ledger {
    fn allocate(&self) -> u64 {
        self.files.allocate()
    }

    fn name_segment(&self, id: u64) -> Result<()> {
        match self.manifest.get() {
            Some(manifest) => manifest.append(&Edit { changes: vec![Change::WalSegment { id }] }),
            // The manifest that is about to be made names the first segment itself.
            None => Ok(()),
        }
    }
}

/// What a recovered database needs to be one that is open.
pub(super) struct Parts {
    pub(super) manifest: Arc<Manifest>,
    pub(super) wal: Arc<Wal>,
    pub(super) lock: Option<Box<dyn LockGuard>>,
    /// The log as it lies there, if it was opened for reading only.
    pub(super) read_only: Option<WalMetrics>,
}

/// An opening under way.
pub(super) struct Recovery {
    tables: TableSpace,
    options: Options,
    state: ManifestState,
    /// Where that comes from.
    manifest: PathBuf,
    trees: Trees,
    opening: Opening,
    /// Shapes as the manifest had them, by tree.
    opened: BTreeMap<u32, TreeShape>,
    seq_next: SeqNo,
    report: RecoveryReport,
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
pub(super) struct Durable {
    pub(super) manifest: Arc<Manifest>,
    pub(super) wal: Arc<Wal>,
    pub(super) state: ManifestState,
}

impl Recovery {
    /// Step 2, after the manifest was loaded or made up for a new database.
    pub(super) fn new(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        options: Options,
        env: Env,
        (mut state, manifest): (ManifestState, &Path),
        read_only: bool,
    ) -> Result<Recovery> {
        let stored_us = if options.reset_clock { 0 } else { state.clock_us };
        state.clock_us = env.begin_database_clock(stored_us, options.clock_jump_us_max);
        // Times that a wrong clock has left in the future would never come.
        state.limit_times(env.stamp_us());
        let gap = if state.clean_close { 0 } else { FILE_NUMBER_GAP };
        let files = match sabotage::on(Bug::FileNumberReused) {
            true => state.file_number_next.max(1),
            false => {
                let next = state.file_number_next;
                next.max(largest_number(vfs.as_ref(), dir, Some(next))? + 1) + gap
            }
        };
        if files > FILE_NUMBER_MAX {
            let (what, expected) = ("number of the next file", "at most 2^56 - 1");
            return Err(Malformed::Field { what, found: files, expected }.at(dir, 0));
        }
        let of_files = state.keyspaces.values().flat_map(KeyspaceState::files);
        let creation = of_files.map(|(.., file)| file.creation.saturating_add(1)).max();
        let progress = Signal::new();
        let keeps_room = options.wal.reserve && !read_only;
        let reserve = Arc::new(Reserve::new(Arc::clone(&vfs), dir, keeps_room));
        let shedding = SheddingVfs::new(vfs);
        let space: Arc<dyn Shed> = reserve.clone();
        shedding.set_space(Arc::downgrade(&space));
        let vfs: Arc<dyn Vfs> = shedding.clone();
        let rate = Arc::new(RateLimit::new(env.clone(), options.background_io_rate));
        let direct = options.direct_reads;
        if direct {
            check_direct_reads(&*vfs, dir)?;
        }
        let keep_cached = options.keep_cached && !direct;
        let job_reads = JobReads { rate: Arc::clone(&rate), keep_cached };
        let limit = options.open_tables_max(&*vfs);
        let descriptors = DescriptorPool::new(Arc::clone(&vfs), limit, direct, Some(job_reads));
        let shed: Arc<dyn Shed> = descriptors.clone();
        shedding.set_shed(Arc::downgrade(&shed));
        let tables = TableSpace {
            descriptors,
            reserve,
            compaction_vfs: shedding.sparing_space(),
            cache: options.memory_plan().cache(options.block_cache_kind),
            rate,
            keep_cached,
            keep_flushed_cached: !direct,
            janitor: Arc::new(Janitor::new(progress.clone())),
            disposal: Disposal::new(progress.clone()),
            files: Arc::new(FileNumbers::new(files)),
            creation: AtomicU64::new(creation.unwrap_or(0)),
            beside_bytes: Arc::default(),
            vfs,
            dir: dir.to_owned(),
            env,
        };
        let (trees, opened) = (Trees::default(), BTreeMap::new());
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
    pub(super) fn report(&self) -> &RecoveryReport {
        &self.report
    }

    /// Fails if the default keyspace, which an open database has in use, lacks its custom policy.
    pub(super) fn check_policy(&self) -> Result<()> {
        self.trees.name(DEFAULT_KEYSPACE).map_or(Ok(()), |tree| tree.check_policy())
    }

    /// What the manifest says.
    pub(super) fn state(&self) -> &ManifestState {
        &self.state
    }

    /// Where its files are.
    pub(super) fn vfs(&self) -> &dyn Vfs {
        self.tables.vfs.as_ref()
    }

    /// Its directory.
    pub(super) fn dir(&self) -> &Path {
        &self.tables.dir
    }

    /// What gives segments of its log their numbers.
    pub(super) fn ledger(&self) -> Arc<Ledger> {
        Arc::new(Ledger::new(&self.tables))
    }

    /// How its log is to be written.
    pub(super) fn wal_options(&self) -> WalOptions {
        self.options.wal_options()
    }

    /// The parts of a running database around what was recovered. No thread runs yet.
    pub(super) fn assemble(self, parts: Parts) -> Result<Core> {
        let Recovery { tables, options, trees, opening, seq_next, report, progress, .. } = self;
        let Parts { manifest, wal, lock, read_only } = parts;
        let Some(default) = trees.name(DEFAULT_KEYSPACE).cloned() else {
            let why = "its manifest names no default keyspace";
            return Err(Error::NotADatabase { path: tables.dir, why });
        };
        let sequence = Arc::new(Sequence::default());
        sequence.publish(SeqNo(seq_next.0 - 1));
        let listener = options.listener.clone();
        let explains = options.explain_decisions && listener.is_some();
        let memory = options.memory_plan();
        let parts = StoreParts {
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
        let store = Arc::new(Store::new(parts));
        store.tell(&Event::Recovery(Arc::new(report)));
        store.report_clock();
        let committer = Arc::new(Committer::new(Arc::clone(&store), seq_next));
        let throttle = Arc::new(Throttle::new(options.write_control));
        let governor = Arc::new(Governor::new(
            Arc::clone(&store),
            Arc::clone(&committer),
            GovernorLimits {
                wal_bytes: options.wal_bytes_limit(),
                memtable_bytes: memory.flush_from(),
                memtable_idle_us: options.memtable_idle_us,
            },
        ));
        let runner = Runner::new(
            Arc::clone(&store),
            Arc::clone(&committer),
            Arc::clone(&throttle),
            Arc::clone(&governor),
            Workers::new(options.background, options.merge_parts_max),
        );
        Ok(Core {
            store,
            committer,
            runner: Arc::new(runner),
            governor,
            throttle,
            memory,
            options,
            opening,
            default,
            read_only,
            lock: Mutex::new(lock),
            creating: Mutex::new(()),
            turns: Turns::new(),
            warm_up: WarmUp::default(),
            recording: Arc::default(),
            closed: AtomicBool::new(false),
            lock_freed: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            call_threads: AtomicUsize::new(0),
        })
    }

    fn open_trees(&mut self) -> Result<()> {
        for (&id, keyspace) in &self.state.keyspaces {
            let (shape, tables) = self.open_tables(id, keyspace)?;
            self.opened.insert(id, shape.clone());
            let nothing = Version::empty(&self.tables.disposal);
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
            if let Some(operator) = persisted.merge_operator {
                tree.merging.remember(operator)?;
            }
            self.open_beside(&tree, persisted.operand_store, keyspace.operand_token)?;
            self.trees.insert(Arc::new(tree));
        }
        Ok(())
    }

    /// Opens the operand store of a tree. One that is not given closes the keyspace, and only that.
    fn open_beside(&self, tree: &Tree, known: Option<String>, token: Option<Token>) -> Result<()> {
        if known.is_none() && token.is_some() {
            let what = "token of an operand store that the options do not name";
            let what = Malformed::Field { what, found: u64::from(tree.id), expected: "no such" };
            return Err(what.at(&self.manifest, 0));
        }
        let given = tree.settings().options.operand_store.clone();
        let given = given.or_else(|| {
            let mut stores = self.options.known_operand_stores.iter();
            stores.find(|store| known.as_deref() == Some(store.name())).cloned()
        });
        let factory = match (&known, given) {
            (None, Some(given)) if !self.read_only => given,
            // A database that nothing is written to does not take one on.
            (None, _) => return Ok(()),
            (Some(known), Some(given)) => {
                beside::agree(&tree.name, known, given.name())?;
                given
            }
            (Some(known), None) => {
                let view = Lacking::view(&tree.name, known, token);
                tree.beside.set_lacking(known.clone());
                tree.change(|current| current.clone().beside(Some(view.clone())));
                return Ok(());
            }
        };
        let site = Site {
            space: &self.tables,
            memory: self.options.memory_plan(),
            direct_reads: self.options.direct_reads,
            read_only: self.read_only,
        };
        let attached = site.open(&tree.name, &tree.merging, &factory, token);
        let attached = attached.map_err(|error| named(error, &self.manifest))?;
        let view = attached.first_view();
        tree.beside.attach(attached);
        tree.change(|current| current.clone().beside(Some(view.clone())));
        Ok(())
    }

    /// Files of operand stores that the directory may hold; none if nobody knows, for want of a store.
    pub(super) fn operand_files(&self) -> Option<BTreeSet<FileName>> {
        let mut live = BTreeSet::new();
        for tree in self.trees.all() {
            if tree.beside.lacks() {
                return None;
            }
            let files = tree.beside.attached().map(|attached| attached.store.live_files());
            let names = files.into_iter().flatten();
            live.extend(names.map(|(kind, number)| operand_file_name(kind, number)));
        }
        Some(live)
    }

    fn persisted(&self, keyspace: &KeyspaceState) -> Result<Persisted> {
        Persisted::decode(&keyspace.options).ok_or_else(|| {
            let what = "options of a keyspace";
            let what = Malformed::Field { what, found: 0, expected: "options this build knows" };
            what.at(&self.manifest, 0)
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
            let mut parts = LevelParts { cursor, runs: Vec::new() };
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
    pub(super) fn take_back(&self, error: Error) -> Error {
        for tree in self.trees.all() {
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
            || sabotage::on(Bug::FileNumbersNotReserved)
        {
            return Ok(());
        }
        let number = (next + FILE_NUMBER_GAP).min(FILE_NUMBER_MAX);
        let path = FileName::Temporary(number).in_dir(&self.tables.dir);
        let created = self.tables.vfs.create(&path);
        created.map_err(|source| Error::io("create", &path, source))?;
        let before = self.reservation.lock().replace((path, number));
        sync_names(self.tables.vfs.as_ref(), &self.tables.dir)?;
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
    pub(super) fn replay(&mut self, manifest: &Path) -> Result<()> {
        let from = ReplayFrom {
            oldest_segment: self.state.wal_oldest,
            named: self.state.wal_named.clone(),
            mark: self.state.wal_mark,
            named_by: manifest.to_owned(),
        };
        let (uid, mode) = (self.state.db_uid, self.options.recovery);
        let dir = self.tables.dir.clone();
        let vfs = Arc::clone(&self.tables.vfs);
        let known = self.state.keyspace_id_next;
        let env = self.tables.env.clone();
        let mut replaying = Replay::new(&env, self.targets());
        let mut take = |record: ReplayedRecord<'_>| {
            check_record(&dir, &record, known)?;
            let full = replaying.take(&env, record.first_seq, record.payload)?;
            if !self.read_only {
                let seq_next = SeqNo(record.first_seq.0 + u64::from(record.count));
                full.iter().try_for_each(|tree| self.flush(tree, seq_next))?;
            }
            Ok(())
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

        let flushed = self.state.keyspaces.values().map(|keyspace| keyspace.flushed_through);
        let last = flushed.fold(self.state.last_seq.max(report.last_seq), SeqNo::max);
        let reused = sabotage::on(Bug::SeqReused);
        let gap = if self.state.clean_close || reused { 1 } else { SEQ_GAP };
        self.seq_next = SeqNo(last.0 + gap);
        if self.seq_next > SeqNo::MAX {
            let (what, expected) = ("next sequence number", "at most 2^56 - 1");
            return Err(Malformed::Field { what, found: self.seq_next.0, expected }.at(manifest, 0));
        }
        self.report = report;
        Ok(())
    }

    /// How far tables hold what was written to a keyspace.
    fn flushed_through(&self, keyspace: &KeyspaceState) -> SeqNo {
        let furthest = match sabotage::on(Bug::ReplaySkipsUnflushed) {
            true => self.state.keyspaces.values().map(|keyspace| keyspace.flushed_through).max(),
            false => None,
        };
        furthest.unwrap_or(keyspace.flushed_through)
    }

    /// The trees that the log may hold something for.
    fn targets(&self) -> BTreeMap<u32, Target> {
        let targets = self.state.keyspaces.iter().filter_map(|(&id, keyspace)| {
            let tree = Arc::clone(self.trees.id(id)?);
            Some((id, Target { tree, flushed_through: self.flushed_through(keyspace) }))
        });
        targets.collect()
    }

    /// Fails if the log holds operations of a keyspace whose operand store was not given. Writes nothing.
    pub(super) fn check_stores(&self) -> Result<()> {
        let mut replayed = self.trees.all().filter(|tree| !tree.view().active.is_empty());
        replayed.try_for_each(|tree| tree.beside.check(&tree.name))
    }

    /// Writes a tree's memtable to a table and its operand store; the manifest learns of it with everything else.
    fn flush(&self, tree: &Tree, seq_next: SeqNo) -> Result<()> {
        let view = tree.pin();
        let mut version = Arc::clone(&view.version);
        let mut operands = view.operands.clone();
        if !view.active.is_empty() {
            self.reserve_numbers()?;
            // What is to go to its store has nowhere else to go.
            tree.beside.check(&tree.name)?;
            let (through, edited_us) = (SeqNo(seq_next.0 - 1), self.state.clock_us);
            let (mut outputs, prepared) =
                replayed::write(&self.tables, tree, &view, through, edited_us)?;
            operands = prepared.or(operands);
            let shapes = outputs.tables().iter().map(|table| (**table.shape()).clone());
            let (shape, _) = version.shape().with_flush(shapes.collect())?;
            version = Arc::new(Version::new(shape, &version, outputs.tables())?);
            outputs.release();
        }
        tree.change(|_| SuperVersion::fresh(&version, seq_next).beside(operands.clone()));
        Ok(())
    }

    /// Step 4: everything that was replayed becomes durable by one new manifest.
    pub(super) fn make_durable(&self) -> Result<Durable> {
        let prepared = self.prepare().map_err(|error| self.take_back(error))?;
        let Prepared { wal, ledger, state, number } = prepared;
        let vfs = Arc::clone(&self.tables.vfs);
        let manifest = match Manifest::try_create(vfs, &self.tables.dir, number, &state) {
            Ok(manifest) => Arc::new(manifest),
            // `CURRENT` may name the new files: they stay.
            Err(Unfinished { error, maybe_current: true }) => return Err(error),
            Err(Unfinished { error, .. }) => {
                for name in [FileName::Manifest(number), FileName::Temporary(number)] {
                    self.tables.janitor.discard(name.in_dir(&self.tables.dir));
                }
                self.discard_segment(wal.oldest_segment());
                return Err(self.take_back(error));
            }
        };
        ledger.name_in(&manifest);
        self.remove_reservation();
        for tree in self.trees.all() {
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
        for tree in self.trees.all() {
            self.flush(tree, self.seq_next)?;
        }
        self.reserve_numbers()?;
        let ledger = self.ledger();
        // The number that the first segment gets.
        let segment = self.tables.files.next();
        let wal = Wal::create(
            Arc::clone(&self.tables.vfs),
            &self.tables.dir,
            self.state.db_uid,
            Arc::clone(&ledger) as Arc<dyn SegmentLedger>,
            self.options.wal_options(),
            self.seq_next,
        );
        let established = wal.and_then(|wal| Ok((wal.establish()?, wal)));
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
        for tree in self.trees.all() {
            let view = tree.pin();
            let before = &self.opened[&tree.id];
            let record = |file: &Arc<FileShape>| {
                let unknown = lsmx_compaction::Error::UnknownFile { file: file.id };
                view.version.table(file.id).map(|table| record_of(table)).ok_or(unknown)
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
        state.apply(&Edit { changes }).map_err(|what| what.at(&path, 0))?;
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
pub(super) fn largest_number(vfs: &dyn Vfs, dir: &Path, next: Option<u64>) -> Result<u64> {
    let names = vfs.list(dir).map_err(|error| Error::io("list", dir, error))?;
    let files = names.iter().filter_map(|name| FileName::parse(name));
    let numbers = files.filter(|file| !file.is_stray(next)).filter_map(FileName::number);
    Ok(numbers.max().unwrap_or(0))
}

/// Makes a missing file an error that says who names it.
pub(super) fn named(error: Error, by: &Path) -> Error {
    match error {
        Error::Io { path, source, .. } if source.kind() == io::ErrorKind::NotFound => {
            Error::Missing { path, named_by: by.to_owned() }
        }
        error => error,
    }
}
