//! Manifest: the log of changes to the set of files of a database.
//!
//! 1. The file `MANIFEST-n` contains version edits, one per record. The first edit contains the whole state at the time
//!    of creation. The file `CURRENT` contains the number of the manifest in use and is always replaced atomically.
//! 2. An edit is part of the state as soon as its record is synced. After each edit, a mark-only record is appended.
//!    The sync mark of that record distinguishes a corrupt edit from an edit that was never acknowledged.
//! 3. After a failed write, it is unknown whether the last edit is on disk. The manifest is then **in doubt**, and all
//!    later appends fail. Files that the state before or after this edit contains must not be deleted until
//!    [`Manifest::rewrite`] has written a new manifest and `CURRENT` points to this manifest.

mod observable;
mod reader;
mod state;
mod value_log;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub(crate) use observable::is_observable;
pub(crate) use reader::EarlierKeyspace;
pub use reader::{LoadedManifest, SalvagedManifest};
pub use state::{KeyspaceState, ManifestState};
pub use value_log::ValueLogState;

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::FileName;
use lsmx_base::sync::{Arc, AtomicU64, Mutex, Ordering, RwLock};

use crate::error::{Error, Result};
use crate::format::log_record::{LogChecksumSeed, RecordHeader, SEQ_END, SyncMark};
use crate::format::manifest_header::{CurrentFile, ManifestHeader};
use crate::format::version_edit::{Change, VersionEdit};
use crate::vfs::{File, Vfs};
use lsmx_base::key::SeqNo;

/// Minimum size in bytes at which a manifest is rewritten. Small manifests are not rewritten, because a rewrite costs
/// four syncs of files and of the directory.
pub const REWRITE_BYTES_MIN: u64 = 16 << 10;

/// The manifest of a database, open for writing.
#[derive(Debug)]
pub struct Manifest {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    db_uid: u64,
    /// Held while an edit is written, so that edits are serialized. Acquired before `state`.
    writer: Mutex<ManifestWriter>,
    /// State after all durable edits. The lock is never held during I/O.
    state: RwLock<ManifestState>,
    /// Copies of the fields of [`ManifestSize`], so that `size` takes no lock.
    bytes: AtomicU64,
    keyspaces: AtomicU64,
}

/// Size of a manifest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManifestSize {
    /// Size of the manifest file in bytes.
    pub bytes: u64,
    /// Number of keyspaces.
    pub keyspaces: u64,
}

/// State that the lock `writer` guards.
#[derive(Debug)]
struct ManifestWriter {
    log: ManifestFile,
    /// Error of the first failed write. While an error is stored, the manifest is in doubt.
    failure: Option<Arc<Error>>,
    /// Number of a newer manifest that `CURRENT` may point to. Set if a rewrite failed while it replaced `CURRENT`.
    may_be_named_by_current: Option<u64>,
}

/// Failure to create a manifest.
pub(crate) struct CreateError {
    pub(crate) error: Error,
    /// Whether `CURRENT` may already point to the new manifest. The new manifest must then not be removed.
    pub(crate) may_be_named_by_current: bool,
}

impl From<Error> for CreateError {
    fn from(error: Error) -> CreateError {
        CreateError { error, may_be_named_by_current: false }
    }
}

/// The file of one manifest, open for appending.
#[derive(Debug)]
struct ManifestFile {
    number: u64,
    path: PathBuf,
    file: Arc<dyn File>,
    seed: LogChecksumSeed,
    bytes: u64,
    synced: u64,
    /// Size of the file in bytes after the first edit, which contains the whole state.
    snapshot_bytes: u64,
    /// Number of the next edit, starting at 1.
    edit_next: u64,
}

impl ManifestFile {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let appended = self.file.append(bytes);
        appended.map_err(|source| Error::io("append to", &self.path, source))?;
        self.bytes += len_u64(bytes.len());
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.file.sync().map_err(|source| Error::io("sync", &self.path, source))?;
        self.synced = self.bytes;
        Ok(())
    }

    fn write(&mut self, count: u32, payload: &[u8]) -> Result<()> {
        let mut record = Vec::with_capacity(payload.len());
        let mark = SyncMark { position: self.synced, older_synced: self.synced > 0 };
        let (location, number) = ((self.seed, self.bytes), self.edit_next.min(SEQ_END - 1));
        RecordHeader::encode_record(&mut record, location, (number, count), mark, payload)
            .map_err(|what| Error::malformed(what, &self.path, self.bytes))?;
        self.append(&record)
    }

    /// Appends an edit and syncs the file. Then appends a mark-only record, which states that the edit was synced.
    fn write_edit(&mut self, edit: &VersionEdit) -> Result<()> {
        self.write(1, &edit.encode())?;
        self.sync()?;
        self.edit_next += 1;
        self.write(0, &[])
    }
}

impl Manifest {
    /// Writes `state` to a new manifest with an unused number and points `CURRENT` to this manifest. The file and the
    /// directory are synced before `CURRENT` is replaced. The directory is synced again afterwards.
    ///
    /// # Errors
    /// Fails when I/O fails. `CURRENT` may then point to the old or to the new manifest.
    pub fn create(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        number: u64,
        state: &ManifestState,
    ) -> Result<Manifest> {
        Manifest::try_create(vfs, dir, number, state).map_err(|error| error.error)
    }

    /// Like [`Manifest::create`]. The error also states whether `CURRENT` may point to the new manifest.
    pub(crate) fn try_create(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        number: u64,
        state: &ManifestState,
    ) -> std::result::Result<Manifest, CreateError> {
        let factory = ManifestFactory { vfs: &*vfs, dir, db_uid: state.db_uid };
        let log = factory.create_manifest_file(number, state)?;
        Ok(Manifest {
            bytes: AtomicU64::new(log.bytes),
            keyspaces: AtomicU64::new(len_u64(state.keyspaces.len())),
            dir: dir.to_owned(),
            db_uid: state.db_uid,
            writer: Mutex::new(ManifestWriter {
                log,
                failure: None,
                may_be_named_by_current: None,
            }),
            state: RwLock::new(state.clone()),
            vfs,
        })
    }

    /// Reads the manifest that `CURRENT` points to. Writes nothing.
    ///
    /// # Errors
    /// Returns [`Error::NotADatabase`] if the directory contains no database. Fails when a read fails, when the format
    /// version is newer than supported, or when the manifest or `CURRENT` is corrupt.
    pub fn load(vfs: &dyn Vfs, dir: &Path) -> Result<LoadedManifest> {
        reader::load(vfs, dir)
    }

    /// Reads the manifest that `current` points to. Writes nothing.
    ///
    /// # Errors
    /// Fails as [`Manifest::load`] does.
    pub(crate) fn load_named(
        vfs: &dyn Vfs,
        dir: &Path,
        current: CurrentFile,
    ) -> Result<LoadedManifest> {
        reader::load_named(vfs, dir, current)
    }

    /// Writes `state` to a new manifest. Returns the content of `CURRENT` that would point to it. Syncs the file and
    /// the directory, but does not change `CURRENT`.
    ///
    /// # Errors
    /// Fails when I/O fails.
    pub(crate) fn create_unnamed(
        vfs: &dyn Vfs,
        dir: &Path,
        number: u64,
        state: &ManifestState,
    ) -> Result<CurrentFile> {
        let factory = ManifestFactory { vfs, dir, db_uid: state.db_uid };
        factory.create_unnamed_file(number, state).map(|log| factory.current_file(&log))
    }

    /// Reads `CURRENT`.
    ///
    /// # Errors
    /// Fails when `CURRENT` is missing, corrupt or cannot be read.
    pub(crate) fn read_current(vfs: &dyn Vfs, dir: &Path) -> Result<CurrentFile> {
        reader::read_current_file(vfs, dir)
    }

    /// Like [`Manifest::load`], but ignores edits that are not known to be on stable storage. The owner of the database
    /// may append edits during this call. Calls `observe` for each edit, with the number of the edit and the state
    /// before the edit.
    ///
    /// # Errors
    /// Fails as [`Manifest::load`] does. An error about a corrupt manifest may be wrong if the owner has appended edits
    /// during the call. The caller must then repeat the call.
    pub(crate) fn load_synced(
        vfs: &dyn Vfs,
        dir: &Path,
        observe: &mut reader::EditObserver<'_>,
    ) -> Result<LoadedManifest> {
        reader::load_synced(vfs, dir, observe)
    }

    /// Like [`Manifest::load_synced`], but reads only the edits that are not in `before`, and calls `observe` for them.
    /// Returns `before` if there are none. If `CURRENT` names another manifest, reads that manifest from its start.
    ///
    /// # Errors
    /// Fails as [`Manifest::load_synced`] does.
    pub(crate) fn load_synced_after(
        vfs: &dyn Vfs,
        dir: &Path,
        before: &Arc<LoadedManifest>,
        observe: &mut reader::EditObserver<'_>,
    ) -> Result<Arc<LoadedManifest>> {
        reader::load_synced_after(vfs, dir, before, observe)
    }

    /// Reads the manifest. Finds the first edit of each keyspace that flushes or ingests writes after `seq`. Returns
    /// the state of the keyspace before this edit, by keyspace id.
    ///
    /// Keyspaces without such an edit are omitted. The state is `None` if the first edit of the manifest already
    /// includes the flush or ingest. Writes nothing.
    ///
    /// # Errors
    /// Fails as [`Manifest::load`] does.
    pub(crate) fn load_keyspace_states_before_flush(
        vfs: &dyn Vfs,
        dir: &Path,
        seq: SeqNo,
    ) -> Result<BTreeMap<u32, Option<EarlierKeyspace>>> {
        reader::load_keyspace_states_before_flush(vfs, dir, seq)
    }

    /// Reads as many edits as possible of manifest `number`, which may be corrupt or not the current one. Returns
    /// `None` if no edit is readable. Writes nothing.
    ///
    /// # Errors
    /// Fails when a read fails, or when the format version is newer than supported.
    pub fn salvage(vfs: &dyn Vfs, dir: &Path, number: u64) -> Result<Option<SalvagedManifest>> {
        reader::salvage(vfs, dir, number)
    }

    /// Appends an edit. After a successful return the edit is durable and part of the state. If the edit records a
    /// clean close of the database, this method also writes the size of the manifest to `CURRENT`.
    ///
    /// Also syncs the mark of an observable edit. If only this sync fails, the edit takes effect, because a follower may
    /// already show it, and [`Manifest::failure`] returns the error.
    ///
    /// # Errors
    /// Fails without any effect when the edit is inconsistent with the state. Also fails when this write or an earlier
    /// write failed. The manifest is then in doubt, see the module documentation.
    pub fn append(&self, edit: &VersionEdit) -> Result<()> {
        let mut writer = self.writer.lock();
        if let Some(cause) = &writer.failure {
            return Err(Error::ReadOnly { cause: cause.clone() });
        }
        // Only the holder of the lock `writer` changes the state, so the draft is still valid after the write.
        let draft = self.state.read().prepare_draft(edit);
        let draft =
            draft.map_err(|what| Error::malformed(what, &writer.log.path, writer.log.bytes))?;
        if let Err(error) = self.write_edit(&mut writer.log, edit) {
            writer.failure = Some(Arc::new(error.clone()));
            return Err(error);
        }
        // If the failed sync of a later edit could lose the mark of an observable edit, a follower would show the commits
        // between the two edits, but not the observable edit.
        if self.with_state(|state| is_observable(state, edit))
            && let Err(error) = writer.log.sync()
        {
            writer.failure = Some(Arc::new(error));
        }
        self.state.write().install_draft(draft);
        self.update_size(&writer.log);
        Ok(())
    }

    fn update_size(&self, log: &ManifestFile) {
        self.bytes.store(log.bytes, Ordering::Relaxed);
        let keyspaces = self.with_state(|state| len_u64(state.keyspaces.len()));
        self.keyspaces.store(keyspaces, Ordering::Relaxed);
    }

    /// Returns the size. Takes no lock, so the call does not wait for a concurrent write of an edit.
    pub fn size(&self) -> ManifestSize {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ManifestSize { bytes: load(&self.bytes), keyspaces: load(&self.keyspaces) }
    }

    fn write_edit(&self, log: &mut ManifestFile, edit: &VersionEdit) -> Result<()> {
        log.write_edit(edit)?;
        if edit.changes.iter().any(|change| matches!(change, Change::CleanClose { .. })) {
            log.sync()?;
            self.factory().replace_current(log).map_err(|error| error.error)?;
        }
        Ok(())
    }

    /// Applies `edits` to the state, writes the result to a new manifest, and points `CURRENT` to this manifest. After
    /// a successful return the manifest is not in doubt. Returns the number of the old manifest, which the caller
    /// deletes.
    ///
    /// # Errors
    /// Fails without any effect when an edit is inconsistent with the state. After a failed write, `CURRENT` may point
    /// to the old or to the new manifest, and the caller can retry with another number.
    pub fn rewrite(&self, number: u64, edits: &[VersionEdit]) -> Result<u64> {
        let mut writer = self.writer.lock();
        let mut next = self.state();
        for edit in edits {
            next.apply_edit(edit)
                .map_err(|what| Error::malformed(what, &writer.log.path, writer.log.bytes))?;
        }
        match self.factory().create_manifest_file(number, &next) {
            Ok(log) => {
                let fresh = ManifestWriter { log, failure: None, may_be_named_by_current: None };
                let old = std::mem::replace(&mut *writer, fresh);
                *self.state.write() = next;
                self.update_size(&writer.log);
                Ok(old.log.number)
            }
            Err(CreateError { error, may_be_named_by_current }) => {
                writer.failure.get_or_insert_with(|| Arc::new(error.clone()));
                if may_be_named_by_current {
                    writer.may_be_named_by_current = Some(number);
                }
                Err(error)
            }
        }
    }

    /// Returns whether `CURRENT` may point to manifest `number`, whose creation failed. If `CURRENT` cannot point to
    /// the manifest, files that only this manifest lists can be deleted.
    pub fn may_be_named_by_current(&self, number: u64) -> bool {
        self.writer.lock().may_be_named_by_current == Some(number)
    }

    /// Returns true if the manifest is larger than [`REWRITE_BYTES_MIN`] and larger than twice its first edit.
    pub fn needs_rewrite(&self) -> bool {
        let writer = self.writer.lock();
        writer.log.bytes > REWRITE_BYTES_MIN.max(2 * writer.log.snapshot_bytes)
    }

    /// Returns the error of a failed write. Until [`Manifest::rewrite`] succeeds, no file may then be deleted.
    pub fn failure(&self) -> Option<Arc<Error>> {
        self.writer.lock().failure.clone()
    }

    /// Returns a copy of the state after all durable edits. The copy shares the metadata of tables with the original.
    pub fn state(&self) -> ManifestState {
        self.state.read().clone()
    }

    /// Calls `read` with the state, without copying the state. `read` must not call the manifest, because the lock of
    /// the state is held.
    pub fn with_state<T>(&self, read: impl FnOnce(&ManifestState) -> T) -> T {
        read(&self.state.read())
    }

    /// Returns the uid of the database.
    pub(crate) fn db_uid(&self) -> u64 {
        self.db_uid
    }

    /// Returns the number of the manifest in use.
    pub fn manifest_number(&self) -> u64 {
        self.writer.lock().log.number
    }

    /// Returns the path of the manifest in use.
    pub fn path(&self) -> PathBuf {
        self.writer.lock().log.path.clone()
    }

    fn factory(&self) -> ManifestFactory<'_> {
        ManifestFactory { vfs: &*self.vfs, dir: &self.dir, db_uid: self.db_uid }
    }
}

/// Creates manifest files and replaces `CURRENT`.
struct ManifestFactory<'a> {
    vfs: &'a dyn Vfs,
    dir: &'a Path,
    db_uid: u64,
}

impl ManifestFactory<'_> {
    fn create_manifest_file(
        &self,
        number: u64,
        state: &ManifestState,
    ) -> std::result::Result<ManifestFile, CreateError> {
        let log = self.create_unnamed_file(number, state)?;
        self.replace_current(&log)?;
        Ok(log)
    }

    /// Creates a manifest to which `CURRENT` does not point.
    fn create_unnamed_file(&self, number: u64, state: &ManifestState) -> Result<ManifestFile> {
        let path = FileName::Manifest(number).in_dir(self.dir);
        let file = self.vfs.create(&path).map_err(|source| Error::io("create", &path, source))?;
        let seed = LogChecksumSeed::new(self.db_uid, number);
        let (bytes, synced, snapshot_bytes, edit_next) = (0, 0, 0, 1);
        let mut log =
            ManifestFile { number, path, file, seed, bytes, synced, snapshot_bytes, edit_next };
        log.append(&ManifestHeader { db_uid: self.db_uid, number }.encode())?;
        log.write_edit(&state.to_edit())?;
        log.snapshot_bytes = log.bytes;
        self.sync_dir()?;
        Ok(log)
    }

    /// Returns the content of `CURRENT` that points to a manifest.
    fn current_file(&self, log: &ManifestFile) -> CurrentFile {
        CurrentFile { manifest: log.number, db_uid: self.db_uid, bytes: log.synced }
    }

    /// Replaces `CURRENT` atomically: writes and syncs a temporary file, renames the file, and syncs the directory.
    fn replace_current(&self, log: &ManifestFile) -> std::result::Result<(), CreateError> {
        let current = self.current_file(log);
        let path = FileName::Temporary(log.number).in_dir(self.dir);
        let file = self.vfs.create(&path).map_err(|source| Error::io("create", &path, source))?;
        let written = file.append(current.encode().as_bytes());
        written.map_err(|source| Error::io("append to", &path, source))?;
        file.sync().map_err(|source| Error::io("sync", &path, source))?;
        let renamed = self.vfs.rename(&path, &FileName::Current.in_dir(self.dir));
        let renamed = renamed.map_err(|source| Error::io("rename", &path, source));
        let done = renamed.and_then(|()| self.sync_dir());
        done.map_err(|error| CreateError { error, may_be_named_by_current: true })
    }

    fn sync_dir(&self) -> Result<()> {
        if failpoint::is_on(Failpoint::DirectoryNotSynced) {
            return Ok(());
        }
        self.vfs.sync_dir(self.dir).map_err(|source| Error::io("sync", self.dir, source))
    }
}
