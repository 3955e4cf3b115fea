//! The manifest: the log of what files a database consists of.
//!
//! 1. `MANIFEST-n` holds edits, one record each; the first one is a snapshot of the state before.
//!    `CURRENT` points to the manifest in use and is only ever replaced whole.
//! 2. An edit is real once its record is synced. A mark-only record follows, so that damage to the
//!    edit is told from an edit that was never acknowledged.
//! 3. After a failure nobody knows whether the last edit is on the disk: the manifest is **in
//!    doubt**. Every append fails, and no file may be deleted that either state names, until
//!    [`Manifest::start_afresh`] has a new manifest on stable storage and pointed to.

mod load;
mod state;
mod value_log;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use load::{LoadedManifest, SalvagedManifest};
pub use state::{KeyspaceState, ManifestState, RunRecord};
pub use value_log::ValueLogState;

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::{Arc, AtomicU64, Mutex, Ordering, RwLock};

use crate::format::file_name::FileName;
use crate::format::log_record::{LogSeed, RecordHeader, SEQ_END, SyncMark};
use crate::format::manifest_header::{CurrentFile, ManifestHeader};
use crate::format::version_edit::{Change, VersionEdit};
use crate::vfs::{File, Vfs};
use crate::{Error, Result, SeqNo};

/// A manifest smaller than this does not start afresh: four syncs would buy nothing.
pub const FRESH_BYTES_MIN: u64 = 16 << 10;

/// The manifest of a database, open for writing.
#[derive(Debug)]
pub struct Manifest {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    db_uid: u64,
    /// Held over the writing of an edit: edits have one order. Taken before `state`.
    writer: Mutex<Writer>,
    /// The state after all durable edits; never held over I/O.
    state: RwLock<ManifestState>,
    /// [`ManifestSize`], to be asked without a lock.
    bytes: AtomicU64,
    keyspaces: AtomicU64,
}

/// How large a manifest is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManifestSize {
    /// Bytes of its file.
    pub bytes: u64,
    /// Keyspaces that it knows.
    pub keyspaces: u64,
}

#[derive(Debug)]
struct Writer {
    log: LogWriter,
    failure: Option<Arc<Error>>,
    /// A newer manifest that `CURRENT` may point to, for all that is known.
    maybe_current: Option<u64>,
}

/// A manifest that could not be made to the end.
pub(crate) struct Unfinished {
    pub(crate) error: Error,
    /// Whether `CURRENT` may point to it all the same.
    pub(crate) maybe_current: bool,
}

impl From<Error> for Unfinished {
    fn from(error: Error) -> Unfinished {
        Unfinished { error, maybe_current: false }
    }
}

/// The file of one manifest.
#[derive(Debug)]
struct LogWriter {
    number: u64,
    path: PathBuf,
    file: Arc<dyn File>,
    seed: LogSeed,
    bytes: u64,
    synced: u64,
    /// Bytes when there was nothing but the snapshot.
    snapshot_bytes: u64,
    /// Number of the next edit, from 1.
    edit_next: u64,
}

impl LogWriter {
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
        let (place, number) = ((self.seed, self.bytes), self.edit_next.min(SEQ_END - 1));
        RecordHeader::encode_record(&mut record, place, (number, count), mark, payload)
            .map_err(|what| Error::malformed(what, &self.path, self.bytes))?;
        self.append(&record)
    }

    /// An edit, a sync, and the mark that says so.
    fn write_edit(&mut self, edit: &VersionEdit) -> Result<()> {
        self.write(1, &edit.encode())?;
        self.sync()?;
        self.edit_next += 1;
        self.write(0, &[])
    }
}

impl Manifest {
    /// Writes a new manifest that holds `state`, and points `CURRENT` to it: file and directory
    /// synced before, directory synced after. Neither `number` nor a file of its name may be in use.
    ///
    /// # Errors
    /// Something could not be written. What was pointed to before may be, or not.
    pub fn create(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        number: u64,
        state: &ManifestState,
    ) -> Result<Manifest> {
        Manifest::try_create(vfs, dir, number, state).map_err(|unfinished| unfinished.error)
    }

    /// [`Manifest::create`], with an error that says whether the new manifest may be in use.
    pub(crate) fn try_create(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        number: u64,
        state: &ManifestState,
    ) -> std::result::Result<Manifest, Unfinished> {
        let place = Place { vfs: &*vfs, dir, db_uid: state.db_uid };
        let log = place.write_fresh(number, state)?;
        Ok(Manifest {
            bytes: AtomicU64::new(log.bytes),
            keyspaces: AtomicU64::new(len_u64(state.keyspaces.len())),
            dir: dir.to_owned(),
            db_uid: state.db_uid,
            writer: Mutex::new(Writer { log, failure: None, maybe_current: None }),
            state: RwLock::new(state.clone()),
            vfs,
        })
    }

    /// Reads the manifest that `CURRENT` points to. Changes no byte.
    ///
    /// # Errors
    /// [`Error::NotADatabase`] if there is none; a read fails; a newer version; damage, named by
    /// file and offset.
    pub fn load(vfs: &dyn Vfs, dir: &Path) -> Result<LoadedManifest> {
        load::load(vfs, dir)
    }

    /// Returns the state of each keyspace that was flushed past a sequence number, as it was before the first such
    /// flush. `None` for a keyspace whose flushes the manifest does not tell apart. Changes no byte.
    ///
    /// # Errors
    /// As [`Manifest::load`].
    pub(crate) fn states_before_flushes_past(
        vfs: &dyn Vfs,
        dir: &Path,
        seq: SeqNo,
    ) -> Result<BTreeMap<u32, Option<KeyspaceState>>> {
        load::states_before_flushes_past(vfs, dir, seq)
    }

    /// Reads the manifest of this number past what is damaged, whatever `CURRENT` says. `None` if nothing of
    /// it can be read. Changes no byte.
    ///
    /// # Errors
    /// A read fails; a newer version.
    pub fn salvage(vfs: &dyn Vfs, dir: &Path, number: u64) -> Result<Option<SalvagedManifest>> {
        load::salvage(vfs, dir, number)
    }

    /// Appends an edit. When it returns, the edit is on stable storage and in the state. An edit
    /// that closes the database cleanly also has `CURRENT` say how long the manifest is.
    ///
    /// # Errors
    /// The edit does not fit the state: nothing was done. Or a write failed now or before: the
    /// manifest is in doubt, see the module.
    pub fn append(&self, edit: &VersionEdit) -> Result<()> {
        let mut writer = self.writer.lock();
        if let Some(cause) = &writer.failure {
            return Err(Error::ReadOnly { cause: cause.clone() });
        }
        // Only who holds the writer changes the state, so the draft fits it until the end.
        let draft = self.state.read().draft(edit);
        let draft =
            draft.map_err(|what| Error::malformed(what, &writer.log.path, writer.log.bytes))?;
        if let Err(error) = self.write_edit(&mut writer.log, edit) {
            writer.failure = Some(Arc::new(error.clone()));
            return Err(error);
        }
        self.state.write().adopt(draft);
        self.note_size(&writer.log);
        Ok(())
    }

    fn note_size(&self, log: &LogWriter) {
        self.bytes.store(log.bytes, Ordering::Relaxed);
        let keyspaces = self.with(|state| len_u64(state.keyspaces.len()));
        self.keyspaces.store(keyspaces, Ordering::Relaxed);
    }

    /// How large it is. Takes no lock, so that it may be asked while an edit is written.
    pub fn size(&self) -> ManifestSize {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ManifestSize { bytes: read(&self.bytes), keyspaces: read(&self.keyspaces) }
    }

    fn write_edit(&self, log: &mut LogWriter, edit: &VersionEdit) -> Result<()> {
        log.write_edit(edit)?;
        if edit.changes.iter().any(|change| matches!(change, Change::CleanClose { .. })) {
            log.sync()?;
            self.place().point_current(log).map_err(|unfinished| unfinished.error)?;
        }
        Ok(())
    }

    /// Writes the state, with `fold_in` applied, to a new manifest and points `CURRENT` to it; this
    /// ends any doubt. Returns the number of the old manifest, for the caller to delete.
    ///
    /// # Errors
    /// The edit does not fit: nothing was done. Or a write failed: in doubt between the two
    /// manifests; try again with another number.
    pub fn start_afresh(&self, number: u64, fold_in: Option<&VersionEdit>) -> Result<u64> {
        let mut writer = self.writer.lock();
        let mut next = self.state();
        if let Some(edit) = fold_in {
            next.apply(edit)
                .map_err(|what| Error::malformed(what, &writer.log.path, writer.log.bytes))?;
        }
        match self.place().write_fresh(number, &next) {
            Ok(log) => {
                let fresh = Writer { log, failure: None, maybe_current: None };
                let old = std::mem::replace(&mut *writer, fresh);
                *self.state.write() = next;
                self.note_size(&writer.log);
                Ok(old.log.number)
            }
            Err(Unfinished { error, maybe_current }) => {
                writer.failure.get_or_insert_with(|| Arc::new(error.clone()));
                if maybe_current {
                    writer.maybe_current = Some(number);
                }
                Err(error)
            }
        }
    }

    /// Whether a manifest that could not be made to the end may be the one that `CURRENT` points to.
    /// If not, what it alone names can be deleted.
    pub fn may_be_current(&self, number: u64) -> bool {
        self.writer.lock().maybe_current == Some(number)
    }

    /// Whether the manifest is larger than twice its own snapshot.
    pub fn wants_fresh(&self) -> bool {
        let writer = self.writer.lock();
        writer.log.bytes > FRESH_BYTES_MIN.max(2 * writer.log.snapshot_bytes)
    }

    /// Whether a write failed, so that nothing may be deleted before [`Manifest::start_afresh`].
    pub fn in_doubt(&self) -> bool {
        self.writer.lock().failure.is_some()
    }

    /// A copy of the state after all durable edits; files are shared.
    pub fn state(&self) -> ManifestState {
        self.state.read().clone()
    }

    /// Asks something of the state without copying it. `ask` must not call the manifest.
    pub fn with<T>(&self, ask: impl FnOnce(&ManifestState) -> T) -> T {
        ask(&self.state.read())
    }

    /// Uid of the database.
    pub(crate) fn db_uid(&self) -> u64 {
        self.db_uid
    }

    /// Number of the manifest in use.
    pub fn number(&self) -> u64 {
        self.writer.lock().log.number
    }

    /// Path of the manifest in use.
    pub fn path(&self) -> PathBuf {
        self.writer.lock().log.path.clone()
    }

    fn place(&self) -> Place<'_> {
        Place { vfs: &*self.vfs, dir: &self.dir, db_uid: self.db_uid }
    }
}

/// Where manifests come into being.
struct Place<'a> {
    vfs: &'a dyn Vfs,
    dir: &'a Path,
    db_uid: u64,
}

impl Place<'_> {
    fn write_fresh(
        &self,
        number: u64,
        state: &ManifestState,
    ) -> std::result::Result<LogWriter, Unfinished> {
        let path = FileName::Manifest(number).in_dir(self.dir);
        let file = self.vfs.create(&path).map_err(|source| Error::io("create", &path, source))?;
        let seed = LogSeed::new(self.db_uid, number);
        let (bytes, synced, snapshot_bytes, edit_next) = (0, 0, 0, 1);
        let mut log =
            LogWriter { number, path, file, seed, bytes, synced, snapshot_bytes, edit_next };
        log.append(&ManifestHeader { db_uid: self.db_uid, number }.encode())?;
        log.write_edit(&state.snapshot())?;
        log.snapshot_bytes = log.bytes;
        self.sync_dir()?;
        self.point_current(&log)?;
        Ok(log)
    }

    /// Replaces `CURRENT`: at any moment it is the old line or the new one, whole.
    fn point_current(&self, log: &LogWriter) -> std::result::Result<(), Unfinished> {
        let current = CurrentFile { manifest: log.number, db_uid: self.db_uid, bytes: log.synced };
        let path = FileName::Temporary(log.number).in_dir(self.dir);
        let file = self.vfs.create(&path).map_err(|source| Error::io("create", &path, source))?;
        let written = file.append(current.encode().as_bytes());
        written.map_err(|source| Error::io("append to", &path, source))?;
        file.sync().map_err(|source| Error::io("sync", &path, source))?;
        let renamed = self.vfs.rename(&path, &FileName::Current.in_dir(self.dir));
        let renamed = renamed.map_err(|source| Error::io("rename", &path, source));
        let done = renamed.and_then(|()| self.sync_dir());
        done.map_err(|error| Unfinished { error, maybe_current: true })
    }

    fn sync_dir(&self) -> Result<()> {
        if failpoint::is_on(Failpoint::DirectoryNotSynced) {
            return Ok(());
        }
        self.vfs.sync_dir(self.dir).map_err(|source| Error::io("sync", self.dir, source))
    }
}
