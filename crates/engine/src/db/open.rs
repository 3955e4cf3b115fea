//! Opening: make a database, or bring one back to the state after its last durable commits.
//!
//! 1. Look for `CURRENT`. Only "not found" means that there is no database.
//! 2. Take the lock; load the manifest; open every table it names.
//! 3. Replay the log into memtables; one that gets full becomes a table on the way.
//! 4. Write all memtables to tables, begin a new chain of log segments, and make both real by one
//!    new manifest. Until `CURRENT` points to it, the old state stands untouched, so a crash in
//!    here changes nothing; after it, what recovery has shown is durable.
//! 5. Remove every file that nothing names.

use std::io;
use std::path::Path;

use bytes::Bytes;
use lsmx_compaction::{FileId, LevelParts, PolicySpec, TreeShape};

use crate::cache::Cache;
use crate::db::options::Options;
use crate::db::{Core, DEFAULT_KEYSPACE};
use crate::env::Env;
use crate::error::{Error, Malformed, Result};
use crate::event::Event;
use crate::format::batch::Operations;
use crate::format::edit::{Change, Edit};
use crate::format::filename::{CURRENT, FileName, LOCK};
use crate::job::install::sync_names;
use crate::job::output::Outputs;
use crate::job::queue::Runner;
use crate::keyspace::Tree;
use crate::keyspace::options::Persisted;
use crate::keyspace::snapshot::Sequence;
use crate::manifest::{KeyspaceState, Manifest, ManifestState};
use crate::sabotage::{self, Bug};
use crate::store::{FileNumbers, Store, StoreParts, Trees, record_of, table_path, tell};
use crate::sync::{Arc, AtomicBool, Mutex, OnceLock};
use crate::table::{Table, TableIdentity};
use crate::version::{Janitor, TableFile, Version, changes_between};
use crate::vfs::{LockGuard, Vfs};
use crate::wal::{RecoveryReport, ReplayFrom, ReplayedRecord, SegmentLedger, Wal, replay};
use crate::write::commit::Committer;
use crate::write::throttle::Throttle;
use crate::{Result as EngineResult, SeqNo};

/// Sequence numbers left out after an unclean end, so that none that was given and lost returns.
const SEQ_GAP: u64 = 1 << 30;
/// File numbers left out after an unclean end, for files whose names did not reach the disk.
const FILE_NUMBER_GAP: u64 = 1_000;

/// Gives out segment numbers, and has the manifest name a segment.
pub(super) struct Ledger {
    files: Arc<FileNumbers>,
    manifest: OnceLock<Arc<Manifest>>,
}

impl SegmentLedger for Ledger {
    fn allocate(&self) -> u64 {
        self.files.allocate()
    }

    fn name_segment(&self, id: u64) -> EngineResult<()> {
        match self.manifest.get() {
            Some(manifest) => {
                manifest.append(&Edit { changes: vec![Change::WalSegment { id }] })
            }
            // The manifest that is about to be made names the first segment itself.
            None => Ok(()),
        }
    }
}

/// Opens the database in `dir`, or makes one.
pub(super) fn open(vfs: Arc<dyn Vfs>, dir: &Path, options: Options) -> Result<Core> {
    options.check()?;
    let current = dir.join(CURRENT);
    let exists = match vfs.exists(&current) {
        Err(_) if sabotage::on(Bug::OpenErrorIsNew) => false,
        exists => exists.map_err(|error| Error::io("look for", &current, error))?,
    };
    if !exists && !options.create_if_missing {
        return Err(missing(vfs.as_ref(), dir));
    }
    if !exists {
        check_free(vfs.as_ref(), dir)?;
        make_dir(vfs.as_ref(), dir)?;
    }
    let lock = take_lock(vfs.as_ref(), dir)?;
    let env = Env::new(options.background, options.seed);
    if exists {
        Recovery::begin(vfs, dir, options, env, lock)?.finish()
    } else {
        create(vfs, dir, options, env, lock)
    }
}

/// What to say of a directory without `CURRENT`.
fn missing(vfs: &dyn Vfs, dir: &Path) -> Error {
    let why = match vfs.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => "there is no such directory",
        Err(error) => return Error::io("list", dir, error),
        Ok(names) if names.iter().any(|name| FileName::parse(name).is_some()) => {
            "CURRENT is missing; its creation was cut short, or files were removed"
        }
        Ok(_) => "CURRENT is missing",
    };
    Error::NotADatabase { path: dir.to_owned(), why }
}

/// Refuses to make a database where something else is, or where one has lost its `CURRENT`.
fn check_free(vfs: &dyn Vfs, dir: &Path) -> Result<()> {
    let names = match vfs.list(dir) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("list", dir, error)),
    };
    let refuse = |why| Err(Error::NotADatabase { path: dir.to_owned(), why });
    for name in names {
        let path = dir.join(&name);
        match FileName::parse(&name) {
            None => return refuse("CURRENT is missing, and the directory holds other files"),
            Some(FileName::Table(_)) => {
                return refuse("CURRENT is missing, but there are tables: it was removed");
            }
            Some(FileName::Segment(_)) => {
                let file = vfs.open(&path).map_err(|error| Error::io("open", &path, error))?;
                let bytes =
                    file.len().map_err(|error| Error::io("read the size of", &path, error))?;
                if bytes > crate::format::wal_header::SEGMENT_HEADER_BYTES as u64 {
                    return refuse("CURRENT is missing, but the log holds writes: it was removed");
                }
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn make_dir(vfs: &dyn Vfs, dir: &Path) -> Result<()> {
    let there = vfs.exists(dir).map_err(|error| Error::io("look for", dir, error))?;
    if there {
        return Ok(());
    }
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        make_dir(vfs, parent)?;
    }
    match vfs.create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Error::io("create", dir, error));
        }
        _ => {}
    }
    let parent = parent.unwrap_or(Path::new("."));
    if sabotage::on(Bug::DirectoryNotSynced) {
        return Ok(());
    }
    vfs.sync_dir(parent).map_err(|error| Error::io("sync", parent, error))
}

pub(super) fn take_lock(vfs: &dyn Vfs, dir: &Path) -> Result<Box<dyn LockGuard>> {
    let path = dir.join(LOCK);
    vfs.lock(&path).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Error::Locked { path: path.clone() },
        _ => Error::io("lock", &path, error),
    })
}

/// Largest number in the name of any file of a database.
fn largest_number(vfs: &dyn Vfs, dir: &Path) -> Result<u64> {
    let names = vfs.list(dir).map_err(|error| Error::io("list", dir, error))?;
    let numbers = names.iter().filter_map(|name| FileName::parse(name)?.number());
    Ok(numbers.max().unwrap_or(0))
}

fn create(
    vfs: Arc<dyn Vfs>,
    dir: &Path,
    options: Options,
    env: Env,
    lock: Box<dyn LockGuard>,
) -> Result<Core> {
    let defaults = options.of_keyspace(DEFAULT_KEYSPACE);
    let policy = defaults.policy.clone().unwrap_or_default();
    let keyspace = KeyspaceState {
        name: DEFAULT_KEYSPACE.to_owned(),
        options: Persisted { policy: policy.to_string() }.encode(),
        ..KeyspaceState::default()
    };
    let state = ManifestState {
        db_uid: env.random_u64(),
        keyspaces: [(0, keyspace)].into(),
        keyspace_id_next: 1,
        ..ManifestState::default()
    };
    // Files of an attempt that was cut short may lie there; their numbers are not used again.
    let files = Arc::new(FileNumbers::new(largest_number(vfs.as_ref(), dir)? + 1));
    let recovery = Recovery {
        cache: Cache::new(options.block_cache_bytes),
        janitor: Arc::new(Janitor::default()),
        seq_next: SeqNo(1),
        report: RecoveryReport::default(),
        trees: Trees::default(),
        creation_next: 0,
        vfs,
        dir: dir.to_owned(),
        options,
        env,
        lock,
        state,
        files,
        replayed: Vec::new(),
    };
    recovery.finish()
}

/// A commit of the log, kept until the store that takes it stands.
struct Replayed {
    first_seq: SeqNo,
    payload: Bytes,
}

/// An opening under way.
struct Recovery {
    vfs: Arc<dyn Vfs>,
    dir: std::path::PathBuf,
    options: Options,
    env: Env,
    lock: Box<dyn LockGuard>,
    state: ManifestState,
    files: Arc<FileNumbers>,
    cache: Arc<Cache>,
    janitor: Arc<Janitor>,
    trees: Trees,
    creation_next: u64,
    seq_next: SeqNo,
    report: RecoveryReport,
    replayed: Vec<Replayed>,
}

impl Recovery {
    /// Steps 2 and 3, as far as they only read.
    fn begin(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        options: Options,
        env: Env,
        lock: Box<dyn LockGuard>,
    ) -> Result<Recovery> {
        let loaded = Manifest::load(vfs.as_ref(), dir)?;
        let state = loaded.state;
        env.advance_us(state.clock_us.saturating_sub(env.now_us()));
        let gap = if state.clean_close { 0 } else { FILE_NUMBER_GAP };
        let file_next = state.file_number_next.max(largest_number(vfs.as_ref(), dir)? + 1) + gap;
        let mut recovery = Recovery {
            cache: Cache::new(options.block_cache_bytes),
            janitor: Arc::new(Janitor::default()),
            trees: Trees::default(),
            creation_next: 0,
            seq_next: SeqNo(1),
            report: RecoveryReport::default(),
            vfs,
            dir: dir.to_owned(),
            options,
            env,
            lock,
            state,
            files: Arc::new(FileNumbers::new(file_next)),
            replayed: Vec::new(),
        };
        recovery.replay(&loaded.path)?;
        Ok(recovery)
    }

    fn replay(&mut self, manifest: &Path) -> Result<()> {
        let from = ReplayFrom {
            oldest_segment: self.state.wal_oldest,
            named: self.state.wal_named.clone(),
            mark: self.state.wal_mark,
            named_by: manifest.to_owned(),
        };
        let known = self.state.keyspace_id_next;
        let mut replayed = Vec::new();
        let dir = self.dir.clone();
        let mut visit = |record: ReplayedRecord<'_>| {
            check_record(&dir, &record, known)?;
            let payload = Bytes::copy_from_slice(record.payload);
            replayed.push(Replayed { first_seq: record.first_seq, payload });
            Ok(())
        };
        let (vfs, mode) = (self.vfs.as_ref(), self.options.recovery);
        self.report = replay(vfs, &self.dir, self.state.db_uid, &from, mode, &mut visit)?;
        self.replayed = replayed;
        let flushed = self.state.keyspaces.values().map(|keyspace| keyspace.flushed_through);
        let last = flushed.chain([self.report.last_seq, self.state.last_seq]).max();
        let last = last.unwrap_or(SeqNo::ZERO).0;
        let gap = if self.state.clean_close && self.report.cut_at.is_none() { 1 } else { SEQ_GAP };
        self.seq_next = SeqNo(last + gap);
        Ok(())
    }

    /// Opens the tables of every keyspace.
    fn open_trees(&mut self) -> Result<()> {
        for (&id, keyspace) in &self.state.keyspaces {
            let (shape, tables) = self.open_tables(keyspace)?;
            let newest = tables.iter().map(|table| table.shape().creation + 1).max();
            self.creation_next = self.creation_next.max(newest.unwrap_or(0));
            let version = Version::new(shape, &Version::default(), &tables)?;
            let options = self.options.of_keyspace(&keyspace.name).clone();
            let policy = self.policy_of(keyspace)?;
            let policy = options.policy.clone().unwrap_or(policy);
            let (uid, name) = (self.state.db_uid, keyspace.name.clone());
            let version = Arc::new(version);
            let tree = Tree::new(uid, id, name, options, policy, version, self.seq_next);
            self.trees.insert(Arc::new(tree));
        }
        Ok(())
    }

    fn policy_of(&self, keyspace: &KeyspaceState) -> Result<PolicySpec> {
        let persisted = Persisted::decode(&keyspace.options).ok_or_else(|| {
            let field = "options of a keyspace";
            let what = Malformed::Field { what: field, found: 0, expected: "options as JSON" };
            what.at(&self.dir.join(CURRENT), 0)
        })?;
        Ok(persisted.policy.parse()?)
    }

    fn open_tables(&self, keyspace: &KeyspaceState) -> Result<(TreeShape, Vec<Arc<TableFile>>)> {
        let mut tables = Vec::new();
        let mut levels = Vec::new();
        for (level, runs) in (0u8..).zip(&keyspace.levels) {
            let mut parts =
                LevelParts { cursor: keyspace.cursors.get(&level).cloned(), ..LevelParts::default() };
            for run in runs {
                let mut files = Vec::new();
                for file in &run.files {
                    let shape = Arc::new(file.shape());
                    let identity = TableIdentity {
                        id: file.id,
                        bytes: file.bytes,
                        uid: file.uid,
                        checksum: file.checksum,
                    };
                    let path = table_path(&self.dir, file.id);
                    let opened = Table::open(self.vfs.as_ref(), &path, &identity, &self.cache);
                    let table = opened.map_err(|error| named(error, &self.dir))?;
                    let janitor = Arc::clone(&self.janitor);
                    let table = TableFile::new(Arc::new(table), Arc::clone(&shape), path, janitor);
                    tables.push(Arc::new(table));
                    files.push(shape);
                }
                parts.runs.push((run.id, files));
            }
            levels.push(parts);
        }
        Ok((TreeShape::from_levels(levels, keyspace.run_id_next)?, tables))
    }

    /// Steps 4 and 5, and the handle.
    fn finish(mut self) -> Result<Core> {
        self.open_trees()?;
        let sequence = Arc::new(Sequence::default());
        sequence.publish(SeqNo(self.seq_next.0 - 1));
        let ledger =
            Arc::new(Ledger { files: Arc::clone(&self.files), manifest: OnceLock::new() });
        let wal = Wal::create(
            Arc::clone(&self.vfs),
            &self.dir,
            self.state.db_uid,
            Arc::clone(&ledger) as Arc<dyn SegmentLedger>,
            self.options.wal_options(),
            self.seq_next,
        )?;
        let segment = wal.establish()?;
        // The state before recovery, written down only as part of the new manifest below.
        let before = self.state.clone();
        let db_uid = before.db_uid;
        let manifest_number = self.files.allocate();
        let replayed = std::mem::take(&mut self.replayed);
        let scratch = Scratch { recovery: &self, state: before };
        let state = scratch.recover(&replayed, segment)?;
        let manifest = Manifest::create(Arc::clone(&self.vfs), &self.dir, manifest_number, &state)?;
        let manifest = Arc::new(manifest);
        // Nobody has set it yet: the ledger was made above.
        let _ = ledger.manifest.set(Arc::clone(&manifest));
        let Some(default) = self.trees.name(DEFAULT_KEYSPACE).cloned() else {
            let why = "its manifest names no default keyspace";
            return Err(Error::NotADatabase { path: self.dir, why });
        };
        let listener = self.options.listener.clone();
        remove_orphans(self.vfs.as_ref(), &self.dir, &state, manifest_number, listener.as_deref());
        let store = Arc::new(Store::new(StoreParts {
            vfs: self.vfs,
            dir: self.dir,
            env: self.env,
            cache: self.cache,
            manifest,
            wal: Arc::new(wal),
            sequence,
            files: self.files,
            janitor: self.janitor,
            trees: self.trees,
            creation_next: self.creation_next,
            listener,
        }));
        let committer = Arc::new(Committer::new(Arc::clone(&store), self.seq_next));
        let throttle = Arc::new(Throttle::new(self.options.write_control));
        let runner =
            Runner::new(Arc::clone(&store), Arc::clone(&committer), Arc::clone(&throttle));
        let core = Core {
            store,
            committer,
            runner: Arc::new(runner),
            throttle,
            options: self.options,
            db_uid,
            default,
            lock: Mutex::new(Some(self.lock)),
            creating: Mutex::new(()),
            closed: AtomicBool::new(false),
            governing: AtomicBool::new(false),
        };
        core.store.tell(&Event::Recovery(Arc::new(self.report)));
        core.runner.start().map_err(|error| Error::io("start threads for", &core.store.dir, error))?;
        core.look_at_all();
        core.runner.run_inline();
        Ok(core)
    }
}
