//! Checkpoints: consistent copies of an open database.
//!
//! 1. Sync the WAL, and pause the removal of files until the copy is complete.
//! 2. Read the manifest state, then the durable length of the WAL. The manifest records a flush only after a sync of
//!    the flushed commits. So the WAL ends at or after the newest flushed commit. The copy has a state that a crash at
//!    this moment could leave.
//! 3. Operand stores copy the view that was current in step 2. Tables and blob files are linked, or copied if the file
//!    system cannot link. Segments are copied up to the durable length and synced. Copied files are read again and
//!    verified, so that a read error does not enter the copy.
//! 4. Write a new manifest and finally `CURRENT`. Without `CURRENT` the target is not a database.
//!
//! A checkpoint does not flush memtables. It therefore does not change the tree, and it works while flushes are
//! stalled. It copies at most the maximum size of the WAL.
//!
//! The copy has its own database uid, which seeds the checksums of manifest and WAL. Segments are therefore encoded
//! again. A manifest or segment that is moved between a checkpoint and its original is detected as an error.

use std::path::{Path, PathBuf};
use std::{io, mem};

use lsmx_base::checksum::xxh3;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::{CURRENT, FileName, LOCK};
use lsmx_base::sync::{Arc, AtomicBool, Ordering};

use crate::cache::BlockCache;
use crate::db::check::verify;
use crate::db::copy_file::{copy_file, is_link_unsupported};
use crate::db::inner::DbInner;
use crate::db::open::lock::DirectoryClaim;
use crate::db::open::log_source::LogSource;
use crate::db::operand_store::{self, store_opener};
use crate::env::{Env, WaitCause, YieldKind};
use crate::error::{Error, Result};
use crate::manifest::{Manifest, ManifestState};
use crate::options::stored::{KeptLog, kept_logs};
use crate::state::DbState;
use crate::tree::Tree;
use crate::tree::operand_files::PinnedOperandView;
use crate::tree::operand_store_slot::AttachedStore;
use crate::vfs::Vfs;
use crate::vfs::call::VfsCall;
use crate::vfs::layer::VfsLayer;
use crate::wal::{DurableSegment, LogLocation, RecoveryMode, copy_segment};

/// Creates a checkpoint in `target`.
pub(crate) fn checkpoint(inner: &DbInner, target: &Path, deadline_us: Option<u64>) -> Result<()> {
    inner.check_writable()?;
    check_output_path(&*inner.state.vfs, target)?;
    inner.begin_operation();
    let created = {
        let _lock = inner.lock_admin(deadline_us)?;
        inner.committer.sync(deadline_us)?;
        let _removal_hold = inner.state.obsolete_files.pause_deletions();
        Checkpoint::new(inner, deadline_us).and_then(|mut checkpoint| checkpoint.create(target))
    };
    inner.scheduler.run_inline();
    created
}

/// The state to copy.
struct Checkpoint<'a> {
    inner: &'a DbInner,
    state: &'a DbState,
    limit: CheckpointLimit,
    /// File number of the new manifest.
    number: u64,
    manifest: ManifestState,
    segments: Vec<DurableSegment>,
    stores: Vec<OperandStoreToCopy>,
}

/// The operand store of a keyspace at the moment of the checkpoint.
struct OperandStoreToCopy {
    tree: Arc<Tree>,
    attached: Option<Arc<AttachedStore>>,
    operands: PinnedOperandView,
}

/// Determines when a checkpoint must end.
#[derive(Clone, Debug)]
struct CheckpointLimit {
    env: Env,
    /// Whether the database is closing. `close` waits for the checkpoint.
    closed: Arc<AtomicBool>,
    deadline_us: Option<u64>,
}

impl CheckpointLimit {
    fn check(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        self.check_deadline()
    }

    fn check_deadline(&self) -> Result<()> {
        match self.deadline_us {
            Some(deadline_us) if self.env.now_us() >= deadline_us => {
                Err(Error::Deadline { cause: WaitCause::BackgroundWork.as_str() })
            }
            _ => Ok(()),
        }
    }
}

/// File system for the copy of an operand store. When the checkpoint must end, the copy cannot open or create files any
/// more.
#[derive(Debug)]
struct StoreCopyVfs {
    inner: Arc<dyn Vfs>,
    limit: CheckpointLimit,
}

impl VfsLayer for StoreCopyVfs {
    fn inner(&self) -> &dyn Vfs {
        &*self.inner
    }

    fn before_call(&self, call: VfsCall, _: &Path) -> io::Result<()> {
        match call {
            VfsCall::Create | VfsCall::Open => self.limit.check().map_err(io::Error::other),
            _ => Ok(()),
        }
    }
}

impl<'a> Checkpoint<'a> {
    /// Reads the current state.
    fn new(inner: &'a DbInner, deadline_us: Option<u64>) -> Result<Checkpoint<'a>> {
        let state = &inner.state;
        // No keyspace is created between the reads of the manifest and of the log. Otherwise, the log could contain commits to
        // a keyspace that is missing in the manifest.
        let changes = inner.keyspace_changes.lock();
        let trees = state.all_trees();
        let with_store: Vec<_> = trees.iter().filter(|tree| tree.operand_store.is_used()).collect();
        let (mut manifest, segments, stores) = {
            // Held so that the view of each store and its token in the manifest belong to the same state.
            let _installs: Vec<_> = with_store.iter().map(|tree| tree.install.lock()).collect();
            // Held so that the oldest segment of the WAL is the one in the manifest.
            let _retiring = state.retiring.lock();
            let manifest = state.manifest.state();
            let has_token = |tree: &&&Arc<Tree>| {
                let keyspace = manifest.keyspaces.get(&tree.id);
                keyspace.is_some_and(|keyspace| keyspace.operand_token.is_some())
            };
            let stores = with_store.iter().filter(has_token).filter_map(|tree| {
                let (tree, attached) = (Arc::clone(tree), tree.operand_store.attached());
                let operands = tree.pin_super_version().operand_view.clone()?;
                Some(OperandStoreToCopy { tree, attached, operands })
            });
            let stores = stores.collect();
            (manifest, state.wal.durable_segments()?, stores)
        };
        drop(changes);
        let number = state.files.allocate();
        if !failpoint::is_on(Failpoint::CheckpointKeepsUid) {
            manifest.db_uid = new_uid(manifest.db_uid, number, state.env.random_u64());
        }
        manifest.wal_oldest = segments.first().map_or(manifest.wal_oldest, |first| first.id);
        manifest.wal_named = segments.iter().map(|segment| segment.id).collect();
        manifest.wal_mark = segments.last().map(|last| (last.id, last.bytes));
        manifest.file_number_next = state.files.next();
        manifest.clean_close = false;
        manifest.reserved_keyspace_ids.clear();
        let (env, closed) = (state.env.clone(), Arc::clone(&inner.closed));
        let limit = CheckpointLimit { env, closed, deadline_us };
        Ok(Checkpoint { inner, state, limit, number, manifest, segments, stores })
    }

    fn create(&mut self, target: &Path) -> Result<()> {
        let vfs = self.state.vfs.as_ref();
        check_target_empty(vfs, target)?;
        let claim = DirectoryClaim::create_and_lock(&self.state.vfs, target)?;
        // Another process may have written to the target before it was locked.
        check_target_empty(vfs, target)?;
        let mut created = Vec::new();
        self.write_files(target, &mut created)
            .inspect_err(|_| remove_created_files(vfs, target, &created))?;
        drop(claim.into_lock());
        Ok(())
    }

    /// Writes all files of the copy. Adds the path of each file to `created` before it exists.
    fn write_files(&mut self, target: &Path, created: &mut Vec<PathBuf>) -> Result<()> {
        let (vfs, source) = (self.state.vfs.as_ref(), &self.state.dir);
        for store in mem::take(&mut self.stores) {
            let copied = self.copy_operand_store(&store, target, created);
            // After the deadline, the copy fails with the error of a file.
            self.yield_and_check_deadline()?;
            copied?;
        }
        for (&id, keyspace) in &self.manifest.keyspaces {
            for file in keyspace.tree.files() {
                if self.link_or_copy(FileName::Table(file.id.0), target, file.bytes, created)? {
                    verify::open_verified_table(vfs, target, (id, file), &BlockCache::new(0))?;
                }
                self.yield_and_check_deadline()?;
            }
        }
        for (&id, keyspace) in &self.manifest.keyspaces {
            for blob in keyspace.value_log.blob_files() {
                if self.link_or_copy(FileName::Blob(blob.id.0), target, blob.bytes, created)? {
                    let fd_cache = verify::check_descriptors(&self.state.vfs);
                    verify::verify_blob(&fd_cache, target, id, blob, &BlockCache::new(0))?;
                }
                self.yield_and_check_deadline()?;
            }
        }
        let from = LogLocation { dir: source, db_uid: self.state.manifest.db_uid() };
        let to = LogLocation { dir: target, db_uid: self.manifest.db_uid };
        let kept: Vec<_> = kept_logs(&self.manifest).values().flat_map(KeptLog::segments).collect();
        for &segment in kept.iter().chain(&self.segments) {
            let path = FileName::Segment(segment.id).in_dir(target);
            created.push(path.clone());
            let copied = copy_segment(vfs, from, to, segment, &|| self.yield_and_check_deadline())?;
            if !failpoint::is_on(Failpoint::CheckpointUnsynced) {
                copied.sync().map_err(|error| Error::io("sync", &path, error))?;
            }
        }
        let manifest = FileName::Manifest(self.number).in_dir(target);
        let (state, mode) = (&self.manifest, RecoveryMode::Strict);
        LogSource { vfs, dir: target, state, manifest: &manifest, mode }.check()?;
        created.push(manifest);
        created.push(FileName::Temporary(self.number).in_dir(target));
        let vfs = Arc::clone(&self.state.vfs);
        Manifest::create(vfs, target, self.number, &self.manifest)?;
        // After the deadline, the caller may retry with the same target. The error makes `create` remove the files.
        self.limit.check_deadline()
    }

    /// Copies an operand store and records the token of the copy.
    fn copy_operand_store(
        &mut self,
        store: &OperandStoreToCopy,
        target: &Path,
        created: &mut Vec<PathBuf>,
    ) -> Result<()> {
        let OperandStoreToCopy { tree, attached, operands } = store;
        let tables = &self.state.tables;
        let (inner, limit) = (Arc::clone(&tables.vfs), self.limit.clone());
        let vfs = Arc::new(StoreCopyVfs { inner, limit });
        let files = operand_store::files_in_dir(tables, vfs, target);
        let copied = operands.view.copy_to(&*files);
        created.extend(files.created_paths());
        let token = copied?;
        if let Some(attached) = attached {
            let context =
                store_opener(self.inner).context(&tree.name(), &tree.merge_resolver, &files);
            attached.factory.verify(context, token)?;
        }
        if let Some(keyspace) = self.manifest.keyspaces.get_mut(&tree.id) {
            keyspace.operand_token = Some(token);
        }
        self.manifest.file_number_next = tables.files.next();
        Ok(())
    }

    /// Links a file into the target, or copies it if it cannot be linked. Returns true if it was copied.
    fn link_or_copy(
        &self,
        name: FileName,
        target: &Path,
        bytes: u64,
        created: &mut Vec<PathBuf>,
    ) -> Result<bool> {
        let (from, to) = (name.in_dir(&self.state.dir), name.in_dir(target));
        created.push(to.clone());
        match self.state.vfs.hard_link(&from, &to) {
            Ok(()) => Ok(false),
            Err(error) if is_link_unsupported(&error) => {
                let vfs = self.state.vfs.as_ref();
                let check = &|| self.yield_and_check_deadline();
                copy_file((vfs, &from), (vfs, &to), bytes, check).map(|()| true)
            }
            Err(error) => Err(Error::io("link", &to, error)),
        }
    }

    /// Yields to other tasks. Fails after the deadline, or if the database is closing.
    fn yield_and_check_deadline(&self) -> Result<()> {
        self.state.env.yield_point(YieldKind::JobStep);
        self.limit.check()
    }
}

/// Returns the uid of a checkpoint, which differs from those of the original and of all its other checkpoints. No
/// manifest number is used twice, so the uids differ even if a fixed seed repeats the random numbers.
fn new_uid(original: u64, manifest: u64, random: u64) -> u64 {
    let mut identity = [0; 24];
    for (field, number) in identity.chunks_exact_mut(8).zip([original, manifest, random]) {
        field.copy_from_slice(&number.to_le_bytes());
    }
    let uid = xxh3(&identity);
    if uid == original { !uid } else { uid }
}

/// Fails if an output path has the name of an engine file in a database directory, or lies below such a path.
///
/// The next open of that database would remove the output as an orphan, or a new engine file would collide with it.
/// Each component is checked in its directory, so relative paths, `..` and symbolic links are recognized.
///
/// # Errors
/// [`Error::OutputInDatabase`]; [`Error::Io`] if a directory cannot be read.
pub fn check_output_path(vfs: &dyn Vfs, path: &Path) -> Result<()> {
    if failpoint::is_on(Failpoint::OutputOverwritesEngineFile) {
        return Ok(());
    }
    for ancestor in path.ancestors() {
        let name = ancestor.file_name().and_then(|name| name.to_str());
        let (Some(_), Some(dir)) = (name.and_then(FileName::parse), ancestor.parent()) else {
            continue;
        };
        for marker in [CURRENT, LOCK] {
            let marker = dir.join(marker);
            match vfs.exists(&marker) {
                Ok(true) => return Err(Error::OutputInDatabase { path: path.to_owned() }),
                Ok(false) => {}
                Err(error) => match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {}
                    _ => return Err(Error::io("look for", &marker, error)),
                },
            }
        }
    }
    Ok(())
}

/// Fails if the target is not empty. The lock file of a failed checkpoint may remain there.
fn check_target_empty(vfs: &dyn Vfs, target: &Path) -> Result<()> {
    let not_empty = || Err(Error::TargetNotEmpty { path: target.to_owned() });
    match vfs.list(target) {
        Ok(names) if names.iter().all(|name| name == LOCK) => Ok(()),
        Ok(_) => not_empty(),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            io::ErrorKind::NotADirectory => not_empty(),
            _ => Err(Error::io("list", target, error)),
        },
    }
}

/// Removes the files of a failed checkpoint, so that it can be retried. `CURRENT` is removed first, and its removal is
/// synced, so that no partial copy can be opened.
fn remove_created_files(vfs: &dyn Vfs, target: &Path, created: &[PathBuf]) {
    // A target with `CURRENT` is a database, which needs all of its files. `CURRENT` must be removed durably first.
    let removed = match vfs.remove(&FileName::Current.in_dir(target)) {
        Ok(()) => vfs.sync_dir(target).is_ok(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    if !removed {
        return;
    }
    for path in created {
        let _ = vfs.remove(path);
    }
}
