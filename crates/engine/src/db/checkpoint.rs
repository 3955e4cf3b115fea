//! A copy of the database at one moment that costs little more than its log: tables are linked.
//!
//! 1. Everything committed so far is synced. From here on no file is removed.
//! 2. The state of the manifest is taken, then how far the log is on stable storage. Before an edit
//!    says that a memtable was flushed, the log is synced through it, so the log reaches at least as
//!    far as the tables: together they are what a crash at this moment would leave, a prefix.
//! 3. Operand stores write copies of what readers had of them at that moment. Tables are linked, or copied where the file system cannot link; segments are copied up to
//!    there and synced; a new manifest names both. What was copied is read again and checked: a
//!    read that went wrong must not become the copy. `CURRENT` comes last: before it there is no
//!    database in the target.
//!
//! Memtables are not flushed first: a checkpoint does not change the tree that it copies, works
//! while flushes wait, and what it copies instead is bounded by the limit of the log.
//!
//! A checkpoint is a database with a uid of its own. The uid seeds the checksums of the manifest and of
//! the log, so the segments are encoded again and not copied byte by byte. A manifest or a segment that
//! is moved between a checkpoint and its original is therefore an error that names the file.

use std::io;
use std::path::{Path, PathBuf};

use lsmx_base::checksum::xxh3;
use lsmx_base::coding::{len_u64, to_usize};
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;

use crate::cache::BlockCache;
use crate::db::check::{verify, verify_values};
use crate::db::open::lock::Claim;
use crate::db::{DbInner, WaitOptions, operand_store, outputs};
use crate::env::{WaitCause, YieldKind};
use crate::error::{Error, Result};
use crate::format::file_name::{FileName, LOCK};
use crate::manifest::{Manifest, ManifestState};
use crate::options::kept_log::KeptLog;
use crate::options::keyspace::kept_logs;
use crate::state::DbState;
use crate::tree::Tree;
use crate::tree::operands::Attached;
use crate::tree::version::BesideView;
use crate::vfs::Vfs;
use crate::wal::{DurableSegment, LogLocation, copy_segment};

/// Bytes of one read while a file is copied.
const CHUNK_BYTES: u64 = 1 << 20;

impl DbInner {
    /// Makes a checkpoint in `target`.
    pub(crate) fn checkpoint(
        self: &Arc<DbInner>,
        target: &Path,
        options: &WaitOptions,
    ) -> Result<()> {
        let deadline_us = self.committer.deadline_us(options.deadline);
        let target = target.to_owned();
        let work = move |core: &DbInner| core.checkpoint_by(&target, deadline_us);
        self.run_with_deadline(WaitCause::BackgroundWork, deadline_us, work)
    }

    fn checkpoint_by(&self, target: &Path, deadline_us: Option<u64>) -> Result<()> {
        self.check_writable()?;
        outputs::check_output(&*self.state.vfs, target)?;
        self.begin_operation();
        let made = {
            let _turn = self.lock_admin(deadline_us)?;
            self.committer.sync(deadline_us)?;
            let _all_files_stay = self.state.janitor.hold();
            Checkpoint::new(self, deadline_us).and_then(|mut checkpoint| checkpoint.make(target))
        };
        self.scheduler.run_inline();
        made
    }
}

/// What is to be copied.
struct Checkpoint<'a> {
    core: &'a DbInner,
    store: &'a DbState,
    /// When the copy is given up.
    deadline_us: Option<u64>,
    number: u64,
    copied: ManifestState,
    segments: Vec<DurableSegment>,
    /// Keyspaces with operand stores, as that state has them.
    stores: Vec<StoreToCopy>,
}

/// The operand store of a keyspace at one moment.
struct StoreToCopy {
    tree: Arc<Tree>,
    attached: Option<Arc<Attached>>,
    operands: BesideView,
}

impl<'a> Checkpoint<'a> {
    /// Takes the state of this moment.
    fn new(core: &'a DbInner, deadline_us: Option<u64>) -> Result<Checkpoint<'a>> {
        let store = &core.state;
        let trees = store.all_trees();
        let with_store: Vec<_> = trees.iter().filter(|tree| tree.beside.is_there()).collect();
        let (mut state, segments, stores) = {
            // So that what readers have of a store is what the manifest says of it.
            let _installing: Vec<_> = with_store.iter().map(|tree| tree.install.lock()).collect();
            // So that the manifest and the log agree on the oldest segment.
            let _retiring = store.retiring.lock();
            let state = store.manifest.state();
            let named = |tree: &&&Arc<Tree>| {
                state.keyspaces.get(&tree.id).is_some_and(|at| at.operand_token.is_some())
            };
            let stores = with_store.iter().filter(named).filter_map(|tree| {
                let (tree, attached) = (Arc::clone(tree), tree.beside.attached());
                let operands = tree.pin().operands.clone()?;
                Some(StoreToCopy { tree, attached, operands })
            });
            let stores = stores.collect();
            (state, store.wal.durable_segments()?, stores)
        };
        let number = store.files.allocate();
        if !failpoint::is_on(Failpoint::CheckpointKeepsUid) {
            state.db_uid = new_uid(state.db_uid, number, store.env.random_u64());
        }
        state.wal_oldest = segments.first().map_or(state.wal_oldest, |first| first.id);
        state.wal_named = segments.iter().map(|segment| segment.id).collect();
        state.wal_mark = segments.last().map(|last| (last.id, last.bytes));
        state.file_number_next = store.files.next();
        state.clean_close = false;
        Ok(Checkpoint { core, store, deadline_us, number, copied: state, segments, stores })
    }

    fn make(&mut self, target: &Path) -> Result<()> {
        let vfs = self.store.vfs.as_ref();
        check_empty(vfs, target)?;
        let claim = Claim::create(&self.store.vfs, target)?;
        // Another process may have written to the target before it was locked.
        check_empty(vfs, target)?;
        let mut made = Vec::new();
        self.fill(target, &mut made).inspect_err(|_| take_back(vfs, target, &made))?;
        drop(claim.keep());
        Ok(())
    }

    /// Fills the target, and notes what it makes before it does.
    fn fill(&mut self, target: &Path, made: &mut Vec<PathBuf>) -> Result<()> {
        let (vfs, source) = (self.store.vfs.as_ref(), &self.store.dir);
        for beside in std::mem::take(&mut self.stores) {
            self.copy_store(&beside, target, made)?;
            self.go_on()?;
        }
        let tables = self.copied.keyspaces.iter();
        for (id, file) in tables.flat_map(|(id, keyspace)| keyspace.files().map(|at| (*id, at.2))) {
            let name = FileName::Table(file.id.0);
            made.push(name.in_dir(target));
            if !self.link(&name.in_dir(source), &name.in_dir(target))? {
                self.copy(&name.in_dir(source), &name.in_dir(target), file.bytes)?;
                verify::open_verified_table(vfs, target, (id, file), &BlockCache::new(0))?;
            }
            self.go_on()?;
        }
        for (&id, keyspace) in &self.copied.keyspaces {
            for blob in keyspace.value_log.blobs() {
                let name = FileName::Blob(blob.id.0);
                made.push(name.in_dir(target));
                if !self.link(&name.in_dir(source), &name.in_dir(target))? {
                    self.copy(&name.in_dir(source), &name.in_dir(target), blob.bytes)?;
                    verify_values::verify_blob(vfs, target, id, blob, &BlockCache::new(0))?;
                }
                self.go_on()?;
            }
        }
        let from = LogLocation { dir: source, db_uid: self.store.manifest.db_uid() };
        let to = LogLocation { dir: target, db_uid: self.copied.db_uid };
        let kept: Vec<_> = kept_logs(&self.copied).values().flat_map(KeptLog::segments).collect();
        for &segment in kept.iter().chain(&self.segments) {
            let path = FileName::Segment(segment.id).in_dir(target);
            made.push(path.clone());
            let copied = copy_segment(vfs, from, to, segment, &|| self.go_on())?;
            if !failpoint::is_on(Failpoint::CheckpointUnsynced) {
                copied.sync().map_err(|error| Error::io("sync", &path, error))?;
            }
        }
        let manifest = FileName::Manifest(self.number).in_dir(target);
        verify::verify_log(vfs, target, &self.copied, &manifest)?;
        made.push(manifest);
        made.push(FileName::Temporary(self.number).in_dir(target));
        let vfs = Arc::clone(&self.store.vfs);
        Manifest::create(vfs, target, self.number, &self.copied)?;
        // Its caller does not wait any more, and may try again.
        self.check_deadline()
    }

    /// Has an operand store copy itself; the copy's manifest names the copy.
    fn copy_store(
        &mut self,
        beside: &StoreToCopy,
        target: &Path,
        made: &mut Vec<PathBuf>,
    ) -> Result<()> {
        let StoreToCopy { tree, attached, operands } = beside;
        let space = &self.store.tables;
        let files = operand_store::files_in_dir(space, target);
        let copied = operands.view.copy_to(&*files);
        made.extend(files.made());
        let token = copied?;
        if let Some(attached) = attached {
            let site = self.core.store_opener();
            attached.factory.verify(site.place(&tree.name, &tree.merging, &files), token)?;
        }
        if let Some(keyspace) = self.copied.keyspaces.get_mut(&tree.id) {
            keyspace.operand_token = Some(token);
        }
        self.copied.file_number_next = space.files.next();
        Ok(())
    }

    /// Gives a table a second name; false where the two places have no files in common.
    fn link(&self, from: &Path, to: &Path) -> Result<bool> {
        match self.store.vfs.hard_link(from, to) {
            Ok(()) => Ok(true),
            Err(error) if cannot_link(&error) => Ok(false),
            Err(error) => Err(Error::io("link", to, error)),
        }
    }

    /// Copies the first `bytes` of a file and syncs the copy.
    fn copy(&self, from: &Path, to: &Path, bytes: u64) -> Result<()> {
        let vfs = self.store.vfs.as_ref();
        let source = vfs.open(from).map_err(|error| Error::io("open", from, error))?;
        let target = vfs.create(to).map_err(|error| Error::io("create", to, error))?;
        let mut buffer = vec![0; to_usize("chunk", CHUNK_BYTES.min(bytes)).unwrap_or(0)];
        let mut offset = 0;
        while offset < bytes {
            let wanted = (bytes - offset).min(CHUNK_BYTES);
            let chunk = &mut buffer
                [..to_usize("chunk", wanted).map_err(|what| Error::malformed(what, from, 0))?];
            let read = source.read_at(chunk, offset);
            let read = len_u64(read.map_err(|error| Error::io("read", from, error))?);
            if read < wanted {
                let (what, needed, found) = ("file", bytes, offset + read);
                return Err(Error::malformed(
                    Malformed::Truncated { what, needed, found },
                    from,
                    found,
                ));
            }
            target.append(chunk).map_err(|error| Error::io("append to", to, error))?;
            offset += wanted;
            self.go_on()?;
        }
        target.sync().map_err(|error| Error::io("sync", to, error))
    }

    /// A yield point. Fails if the database is being closed, which waits for this, or if the deadline has passed.
    fn go_on(&self) -> Result<()> {
        self.store.env.yield_point(YieldKind::JobStep);
        self.core.check_open()?;
        self.check_deadline()
    }

    fn check_deadline(&self) -> Result<()> {
        match self.deadline_us {
            Some(deadline_us) if self.store.env.now_us() >= deadline_us => {
                Err(Error::Deadline { cause: WaitCause::BackgroundWork.as_str() })
            }
            _ => Ok(()),
        }
    }
}

/// The uid of a checkpoint. It differs from the uid of the original and of every other checkpoint of it,
/// also where a fixed seed repeats the random numbers: the number of the manifest is never used twice.
fn new_uid(original: u64, manifest: u64, random: u64) -> u64 {
    let mut identity = [0; 24];
    for (field, number) in identity.chunks_exact_mut(8).zip([original, manifest, random]) {
        field.copy_from_slice(&number.to_le_bytes());
    }
    let uid = xxh3(&identity);
    if uid == original { !uid } else { uid }
}

/// Whether an error of a link means that these two names cannot stand for one file here.
fn cannot_link(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::CrossesDevices
            | io::ErrorKind::Unsupported
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::TooManyLinks
    )
}

/// Refuses a target that holds something; the lock file of a checkpoint that failed is nothing.
fn check_empty(vfs: &dyn Vfs, target: &Path) -> Result<()> {
    let refused = || Err(Error::TargetNotEmpty { path: target.to_owned() });
    match vfs.list(target) {
        Ok(names) if names.iter().all(|name| name == LOCK) => Ok(()),
        Ok(_) => refused(),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            io::ErrorKind::NotADirectory => refused(),
            _ => Err(Error::io("list", target, error)),
        },
    }
}

/// Removes what a checkpoint has made before it failed, so that it can be tried again. `CURRENT` goes
/// first, for good, so that nothing ever opens what is left.
fn take_back(vfs: &dyn Vfs, target: &Path, made: &[PathBuf]) {
    // What does not work now, on a disk that fails, is left: without `CURRENT` it is no database, and
    // with it all that it names is there.
    let _ = vfs.remove(&FileName::Current.in_dir(target));
    let _ = vfs.sync_dir(target);
    for path in made {
        let _ = vfs.remove(path);
    }
}
