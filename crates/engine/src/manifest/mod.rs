//! Manifest: the log of changes to the set of files of a database.
//!
//! 1. `MANIFEST-n` contains version edits, one per record. The first edit is a snapshot of the initial state.
//!    `CURRENT` points to the manifest in use and is always replaced as a whole.
//! 2. An edit takes effect once its record is synced. A mark-only record follows, so that corruption of the
//!    edit can be distinguished from an edit that was never acknowledged.
//! 3. After a failed write it is unknown whether the last edit is on disk: the manifest is **in doubt**. Every
//!    append then fails, and no file that the state before or after the edit lists may be deleted, until
//!    [`Manifest::rewrite`] has written a new manifest and `CURRENT` points to it.

mod reader;
mod state;
mod value_log;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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

/// Minimum size of a manifest that is rewritten, in bytes. A rewrite costs four syncs, of files and directory.
pub const REWRITE_BYTES_MIN: u64 = 16 << 10;

/// The manifest of a database, open for writing.
#[derive(Debug)]
pub struct Manifest {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    db_uid: u64,
    /// Held while an edit is written, which orders the edits. Acquired before `state`.
    writer: Mutex<ManifestWriter>,
    /// State after all durable edits. Never held during I/O.
    state: RwLock<ManifestState>,
    /// Fields of [`ManifestSize`], read without a lock.
    bytes: AtomicU64,
    keyspaces: AtomicU64,
}

/// Size of a manifest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManifestSize {
    /// Size of its file, in bytes.
    pub bytes: u64,
    /// Number of keyspaces in it.
    pub keyspaces: u64,
}

#[derive(Debug)]
struct ManifestWriter {
    log: ManifestFile,
    failure: Option<Arc<Error>>,
    /// Number of a newer manifest that `CURRENT` may name, because a rewrite failed after it replaced `CURRENT`.
    may_be_named_by_current: Option<u64>,
}

/// Failure to create a manifest.
pub(crate) struct CreateError {
    pub(crate) error: Error,
    /// Whether `CURRENT` may already name the new manifest. Then the manifest must not be removed.
    pub(crate) may_be_named_by_current: bool,
}

impl From<Error> for CreateError {
    fn from(error: Error) -> CreateError {
        CreateError { error, may_be_named_by_current: false }
    }
}

/// The file of one manifest.
#[derive(Debug)]
struct ManifestFile {
    number: u64,
    path: PathBuf,
    file: Arc<dyn File>,
    seed: LogChecksumSeed,
    bytes: u64,
    synced: u64,
    /// Size after the initial snapshot, in bytes.
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

    /// Writes an edit, syncs it, and writes a record without payload, whose mark states that the edit is synced.
    fn write_edit(&mut self, edit: &VersionEdit) -> Result<()> {
        self.write(1, &edit.encode())?;
        self.sync()?;
        self.edit_next += 1;
        self.write(0, &[])
    }
}

impl Manifest {
    /// Writes `state` to a new manifest and points `CURRENT` to it. The number must be unused. File and directory are
    /// synced before `CURRENT` is replaced. The directory is synced again afterwards.
    ///
    /// # Errors
    /// Fails when a write fails. `CURRENT` may then point to either manifest.
    pub fn create(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        number: u64,
        state: &ManifestState,
    ) -> Result<Manifest> {
        Manifest::try_create(vfs, dir, number, state).map_err(|error| error.error)
    }

    /// Like [`Manifest::create`], with an error that states whether `CURRENT` may point to the new manifest.
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
    /// Returns [`Error::NotADatabase`] if there is none. Fails when a read fails, when a version is
    /// newer, or when the manifest is corrupt.
    pub fn load(vfs: &dyn Vfs, dir: &Path) -> Result<LoadedManifest> {
        reader::load(vfs, dir)
    }

    /// Reads the manifest, and returns the states of keyspaces before their first flush or ingest beyond `seq`, by keyspace
    /// id.
    ///
    /// Omits keyspaces without such an edit. The state is `None` if the manifest starts after that edit. Writes nothing.
    ///
    /// # Errors
    /// Fails as [`Manifest::load`] does.
    pub(crate) fn load_keyspace_states_before_flush(
        vfs: &dyn Vfs,
        dir: &Path,
        seq: SeqNo,
    ) -> Result<BTreeMap<u32, Option<KeyspaceState>>> {
        reader::load_keyspace_states_before_flush(vfs, dir, seq)
    }

    /// Reads as much as possible of a damaged manifest, independently of `CURRENT`. Returns `None` if
    /// nothing is readable. Writes nothing.
    ///
    /// # Errors
    /// Fails when a read fails, or a version is newer.
    pub fn salvage(vfs: &dyn Vfs, dir: &Path, number: u64) -> Result<Option<SalvagedManifest>> {
        reader::salvage(vfs, dir, number)
    }

    /// Appends an edit. When it returns, the edit is durable and part of the state. An edit that closes
    /// the database cleanly also records the size of the manifest in `CURRENT`.
    ///
    /// # Errors
    /// Fails when the edit does not fit the state, without any effect. Also fails when this or an
    /// earlier write failed; the manifest is then in doubt, see the module.
    pub fn append(&self, edit: &VersionEdit) -> Result<()> {
        let mut writer = self.writer.lock();
        if let Some(cause) = &writer.failure {
            return Err(Error::ReadOnly { cause: cause.clone() });
        }
        // Only the holder of `writer` changes the state, so the draft remains valid.
        let draft = self.state.read().prepare_draft(edit);
        let draft =
            draft.map_err(|what| Error::malformed(what, &writer.log.path, writer.log.bytes))?;
        if let Err(error) = self.write_edit(&mut writer.log, edit) {
            writer.failure = Some(Arc::new(error.clone()));
            return Err(error);
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

    /// Returns the size. Takes no lock, so it can be called while an edit is written.
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

    /// Writes the state, with `edits` applied, to a new manifest and points `CURRENT` to it. The
    /// manifest is no longer in doubt then. Returns the number of the old manifest, which the caller
    /// deletes.
    ///
    /// # Errors
    /// Fails when an edit does not fit, without any effect. After a failed write, either manifest may
    /// be current; the caller can try again with another number.
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

    /// Returns whether `CURRENT` may point to manifest `number`, whose creation failed. If not, files
    /// that only this manifest lists can be deleted.
    pub fn may_be_named_by_current(&self, number: u64) -> bool {
        self.writer.lock().may_be_named_by_current == Some(number)
    }

    /// Returns whether the manifest is larger than twice its initial snapshot.
    pub fn needs_rewrite(&self) -> bool {
        let writer = self.writer.lock();
        writer.log.bytes > REWRITE_BYTES_MIN.max(2 * writer.log.snapshot_bytes)
    }

    /// Returns whether a write failed, so that no file may be deleted before [`Manifest::rewrite`].
    #[cfg(any(test, feature = "internals"))]
    pub fn has_failed_write(&self) -> bool {
        self.writer.lock().failure.is_some()
    }

    /// Returns a copy of the state after all durable edits. File records are shared.
    pub fn state(&self) -> ManifestState {
        self.state.read().clone()
    }

    /// Calls `read` with the state, without copying it. `read` must not call the manifest.
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

/// Creates manifests.
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
        self.replace_current(&log)?;
        Ok(log)
    }

    /// Replaces `CURRENT` atomically.
    fn replace_current(&self, log: &ManifestFile) -> std::result::Result<(), CreateError> {
        let current = CurrentFile { manifest: log.number, db_uid: self.db_uid, bytes: log.synced };
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
