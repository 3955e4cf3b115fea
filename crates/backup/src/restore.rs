//! Restore of a backup to a directory, with or without the archived log.
//!
//! A marker file states which state is being restored. `CURRENT` makes the directory a database, so it is written last, under
//! another name, and renamed. A directory with `CURRENT` is complete, and a restore changes nothing in it except that it removes the marker.
//! The directory is locked during the restore, like an open database.
//!
//! The archived log is added after all files of the backup are complete: a new log segment, and a new manifest that lists it. An
//! interrupted restore removes both files and adds the log again.

use std::path::{Path, PathBuf};
use std::pin::pin;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use lsmx::vfs::{LockGuard, OsVfs, Vfs};
use lsmx::{LogExtender, SeqNo};
use lsmx_base::checksum::StreamingChecksum;
use lsmx_base::file_name::{CURRENT, FileName, LOCK};
use lsmx_base::sync::Arc;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::blocking::run_blocking;
use crate::catalog::{ArchivedLog, BackupInfo};
use crate::error::Error;
use crate::log_chunk::{ChunkHeader, check_follows, chunk_path, read_chunk};
use crate::manifest::{BackupFile, BackupManifest};
use crate::restore_marker::RestoreMarker;
use crate::restore_point::{RestorePlan, RestorePoint};
use crate::source_file::read_current;
use crate::transfer::{TransferMeter, TransferOptions};

/// Name of the file that marks an incomplete restore. It contains a [`RestoreMarker`].
const MARKER: &str = "RESTORE";
/// Name of `CURRENT` before it is complete.
const NEW_CURRENT: &str = "RESTORE-CURRENT";
/// Upper bound of the size of the marker in bytes.
const MARKER_BYTES_MAX: usize = 128;
/// Size in bytes of the reads that compare an existing file.
const READ_BYTES: usize = 1 << 20;

/// Options of [`BackupRepository::restore`](crate::BackupRepository::restore).
#[derive(Clone, Debug)]
#[must_use]
pub struct RestoreOptions {
    vfs: Arc<dyn Vfs>,
    transfer: TransferOptions,
    point: RestorePoint,
}

impl Default for RestoreOptions {
    fn default() -> RestoreOptions {
        RestoreOptions {
            vfs: Arc::new(OsVfs),
            transfer: TransferOptions::default(),
            point: RestorePoint::Backup,
        }
    }
}

impl RestoreOptions {
    /// File system of the target. Default: that of the operating system.
    pub fn vfs(mut self, vfs: Arc<dyn Vfs>) -> Self {
        self.vfs = vfs;
        self
    }

    /// Options of the downloads.
    pub fn transfer(mut self, transfer: TransferOptions) -> Self {
        self.transfer = transfer;
        self
    }

    /// The state to restore. Default: [`RestorePoint::Backup`].
    pub fn to(mut self, point: RestorePoint) -> Self {
        self.point = point;
        self
    }

    pub(crate) fn point(&self) -> RestorePoint {
        self.point
    }

    pub(crate) fn target(&self, dir: &Path) -> RestoreTarget {
        RestoreTarget { vfs: Arc::clone(&self.vfs), dir: dir.to_owned(), lock: None }
    }
}

/// Returns the error for a chunk that the engine refuses.
fn damaged_chunk(header: &ChunkHeader, error: lsmx::Error) -> Error {
    match error {
        lsmx::Error::MalformedLogChunk { .. } | lsmx::Error::LogChunkGap { .. } => {
            Error::damaged(chunk_path(header.backup, header.number), error)
        }
        error => error.into(),
    }
}

/// Restores a planned state. See [`BackupRepository::restore`](crate::BackupRepository::restore).
pub(crate) async fn restore(
    store: &dyn ObjectStore,
    plan: RestorePlan,
    target: RestoreTarget,
    options: &RestoreOptions,
) -> Result<BackupInfo, Error> {
    let info = plan.info.clone();
    let files = BackupManifest::read(store, info.id).await?.files;
    let marker = RestoreMarker { backup: info.id, point: options.point, through: plan.through };
    let (target, missing) = run_blocking(move || target.begin(marker, files)).await?;
    if let Some(missing) = missing {
        let bytes = missing.iter().map(|file| file.bytes).sum();
        let meter = TransferMeter::new(&options.transfer, missing.len() as u64, bytes);
        let downloads = missing.iter().map(|file| {
            let name = if file.name == CURRENT { NEW_CURRENT } else { &file.name };
            target.download(store, file, name, &meter)
        });
        // Collected, because a stream with a closure that borrows would make the future of the caller not `Send`.
        let downloads: Vec<_> = downloads.collect();
        let downloads = stream::iter(downloads).buffer_unordered(options.transfer.files_at_once());
        downloads.try_collect::<Vec<()>>().await?;
        if let Some(log) = plan.info.archived {
            target.add_log(store, &info, log, &options.transfer).await?;
        }
    }
    target.run_blocking(RestoreTarget::finish).await?;
    Ok(info)
}

/// The directory of a restore.
#[derive(Clone)]
pub(crate) struct RestoreTarget {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    /// Lock of the directory, or `None` before [`RestoreTarget::begin`].
    lock: Option<Arc<dyn LockGuard>>,
}

/// Files in the directory of a restore.
struct FoundFiles {
    /// All names except that of the lock file.
    names: Vec<String>,
    /// Whether an interrupted restore of the wanted state has created the files.
    is_resumed: bool,
}

/// Returns whether a file belongs to the backup.
fn is_known(files: &[BackupFile], name: &str) -> bool {
    files.iter().any(|file| file.name == name)
}

/// Returns whether a file is the segment or the manifest that adds the archived log.
fn is_of_log(wanted: RestoreMarker, name: &str) -> bool {
    wanted.through.is_some()
        && matches!(
            FileName::parse(name),
            Some(FileName::Segment(_) | FileName::Manifest(_) | FileName::Temporary(_))
        )
}

impl RestoreTarget {
    /// Returns the marker of an interrupted restore in the directory.
    pub(crate) fn interrupted_restore(&self) -> Result<Option<RestoreMarker>, Error> {
        let marker = self.dir.join(MARKER);
        match self.vfs.exists(&marker).map_err(Error::io("look for", &marker))? {
            true => self.read_marker(),
            false => Ok(None),
        }
    }

    /// Runs `work` on a thread for blocking calls. The directory remains locked until it ends, also if the future is dropped.
    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&RestoreTarget) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let target = self.clone();
        run_blocking(move || work(&target)).await
    }

    /// Creates and locks the directory, and creates the marker. Returns the locked directory and the files that an interrupted restore
    /// has not completed, or `None` if the directory is already a database.
    fn begin(
        mut self,
        wanted: RestoreMarker,
        files: Vec<BackupFile>,
    ) -> Result<(RestoreTarget, Option<Vec<BackupFile>>), Error> {
        let (vfs, dir) = (&self.vfs, &self.dir);
        if !vfs.exists(dir).map_err(Error::io("look for", dir))? {
            vfs.create_dir(dir).map_err(Error::io("create", dir))?;
            let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            vfs.sync_dir(parent).map_err(Error::io("sync", parent))?;
        }
        // No lock file is created in a directory that is refused.
        self.find_files(wanted, &files)?;
        let path = dir.join(LOCK);
        let lock = vfs.lock(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => lsmx::Error::Locked { path: path.clone() }.into(),
            _ => Error::io("lock", &path)(error),
        })?;
        self.lock = Some(Arc::from(lock));
        // Another process may have changed the directory before it was locked.
        let found = self.find_files(wanted, &files)?;
        let missing = self.missing_files(wanted, files, found)?;
        Ok((self, missing))
    }

    /// Lists the directory. Fails if it contains a file that no restore of the wanted state has created.
    fn find_files(&self, wanted: RestoreMarker, files: &[BackupFile]) -> Result<FoundFiles, Error> {
        let mut names = self.vfs.list(&self.dir).map_err(Error::io("list", &self.dir))?;
        names.retain(|name| name != LOCK);
        let marker = match names.iter().any(|name| name == MARKER) {
            true => self.read_marker()?,
            false => None,
        };
        let is_resumed = marker == Some(wanted);
        let is_expected = |name: &String| {
            is_resumed
                && ([MARKER, NEW_CURRENT].contains(&name.as_str())
                    || is_known(files, name)
                    || is_of_log(wanted, name))
        };
        // After a power loss, a marker without a number is the only file.
        let is_empty = names.is_empty() || names == [MARKER] && marker.is_none();
        match names.iter().find(|name| !is_expected(name)).filter(|_| !is_empty) {
            Some(found) => {
                Err(Error::TargetNotEmpty { path: self.dir.clone(), found: found.clone() })
            }
            None => Ok(FoundFiles { names, is_resumed }),
        }
    }

    /// Creates the marker, or removes the incomplete files of the interrupted restore.
    fn missing_files(
        &self,
        wanted: RestoreMarker,
        files: Vec<BackupFile>,
        FoundFiles { mut names, is_resumed }: FoundFiles,
    ) -> Result<Option<Vec<BackupFile>>, Error> {
        let (vfs, marker) = (&self.vfs, self.dir.join(MARKER));
        if !is_resumed {
            if !names.is_empty() {
                self.remove(MARKER)?;
            }
            let file = vfs.create(&marker).map_err(Error::io("create", &marker))?;
            file.append(wanted.encode().as_bytes()).map_err(Error::io("write", &marker))?;
            file.sync().map_err(Error::io("sync", &marker))?;
            self.sync_dir()?;
            return Ok(Some(files));
        }
        if names.iter().any(|name| name == CURRENT) {
            return Ok(None);
        }
        let is_rewritten = |name: &mut String| {
            name == NEW_CURRENT || !is_known(&files, name) && is_of_log(wanted, name)
        };
        for name in names.extract_if(.., is_rewritten) {
            self.remove(&name)?;
        }
        let mut missing = Vec::new();
        for file in files {
            if !names.contains(&file.name) {
                missing.push(file);
            } else if !self.is_complete(&file)? {
                self.remove(&file.name)?;
                missing.push(file);
            }
        }
        Ok(Some(missing))
    }

    fn remove(&self, name: &str) -> Result<(), Error> {
        let path = self.dir.join(name);
        self.vfs.remove(&path).map_err(Error::io("remove", &path))
    }

    /// Reads the marker file. Returns `None` if it is empty or malformed, as after a power loss.
    fn read_marker(&self) -> Result<Option<RestoreMarker>, Error> {
        let path = self.dir.join(MARKER);
        let file = self.vfs.open(&path).map_err(Error::io("open", &path))?;
        let mut text = [0; MARKER_BYTES_MAX];
        let read = file.read_at(&mut text, 0).map_err(Error::io("read", &path))?;
        Ok(std::str::from_utf8(&text[..read]).ok().and_then(RestoreMarker::decode))
    }

    /// Adds the commits of the archived log to the downloaded backup.
    async fn add_log(
        &self,
        store: &dyn ObjectStore,
        info: &BackupInfo,
        log: ArchivedLog,
        transfer: &TransferOptions,
    ) -> Result<(), Error> {
        let rate =
            TransferOptions { bytes_per_s: transfer.bytes_per_s, ..TransferOptions::default() };
        let meter = TransferMeter::new(&rate, 0, 0);
        let mut extender = {
            let extender = self.run_blocking(|target| {
                let current = read_current(&*target.vfs, &target.dir.join(NEW_CURRENT))?;
                let options = lsmx::Options::default().vfs(Arc::clone(&target.vfs));
                Ok(LogExtender::new(&target.dir, &options, &current)?)
            });
            extender.await?
        };
        let numbers = stream::iter(1..=log.chunks);
        let chunks = numbers.map(|number| read_chunk(store, info.id, number));
        let mut chunks = pin!(chunks.buffered(transfer.files_at_once()));
        let mut last_seq = None;
        while let Some(read) = chunks.next().await {
            let (header, chunk) = read?;
            check_follows(&header, info, last_seq)?;
            last_seq = Some(header.last_seq);
            let (bytes, through) = (header.bytes, SeqNo(log.last_seq));
            let added = self.run_blocking(move |_| {
                let added = extender.add_chunk(&chunk, through);
                added.map_err(|error| damaged_chunk(&header, error))?;
                Ok(extender)
            });
            extender = added.await?;
            meter.add_bytes(bytes).await;
        }
        let (found, expected) = (extender.last_seq().0, log.last_seq);
        if found != expected {
            let object = chunk_path(info.id, log.chunks);
            let reason = format!("the log ends at {found}, expected {expected}");
            return Err(Error::damaged(object, reason));
        }
        let finished = self.run_blocking(|target| {
            let current = extender.finish()?;
            target.remove(NEW_CURRENT)?;
            let path = target.dir.join(NEW_CURRENT);
            let file = target.vfs.create(&path).map_err(Error::io("create", &path))?;
            file.append(&current).map_err(Error::io("write", &path))?;
            file.sync().map_err(Error::io("sync", &path))
        });
        finished.await
    }

    /// Returns whether a file has the right size and checksum, and makes it durable in this case.
    fn is_complete(&self, file: &BackupFile) -> Result<bool, Error> {
        let path = self.dir.join(&file.name);
        let open = self.vfs.open(&path).map_err(Error::io("open", &path))?;
        if open.len().map_err(Error::io("read the size of", &path))? != file.bytes {
            return Ok(false);
        }
        let mut checksum = StreamingChecksum::new(0);
        let mut buffer = vec![0; READ_BYTES];
        let mut offset = 0;
        while offset < file.bytes {
            let read = open.read_at(&mut buffer, offset).map_err(Error::io("read", &path))?;
            if read == 0 {
                return Ok(false);
            }
            checksum.update(&buffer[..read]);
            offset += read as u64;
        }
        open.sync().map_err(Error::io("sync", &path))?;
        Ok(format!("{:016x}", checksum.digest()) == file.checksum)
    }

    /// Downloads a file, compares its size and checksum, and makes it durable.
    async fn download(
        &self,
        store: &dyn ObjectStore,
        file: &BackupFile,
        name: &str,
        meter: &TransferMeter,
    ) -> Result<(), Error> {
        let path = self.dir.join(name);
        let created = {
            let path = path.clone();
            self.run_blocking(move |target| {
                target.vfs.create(&path).map_err(Error::io("create", &path))
            })
        };
        let created = created.await?;
        let append = |part: Bytes| {
            let (target, created, path) = (self.clone(), Arc::clone(&created), path.clone());
            let append = async move {
                let append = move |_: &RestoreTarget| {
                    created.append(&part).map_err(Error::io("write", &path))
                };
                target.run_blocking(append).await
            };
            append.boxed()
        };
        download_object(store, file, meter, append).await?;
        self.run_blocking(move |_| created.sync().map_err(Error::io("sync", &path))).await
    }

    fn sync_dir(&self) -> Result<(), Error> {
        self.vfs.sync_dir(&self.dir).map_err(Error::io("sync", &self.dir))
    }

    /// Makes the directory a database and removes the marker.
    fn finish(&self) -> Result<(), Error> {
        self.sync_dir()?;
        let (new, current) = (self.dir.join(NEW_CURRENT), self.dir.join(CURRENT));
        if self.vfs.exists(&new).map_err(Error::io("look for", &new))? {
            self.vfs.rename(&new, &current).map_err(Error::io("rename", &new))?;
            self.sync_dir()?;
        }
        self.remove(MARKER)?;
        self.sync_dir()
    }
}

/// Downloads the object of a file, passes its parts to `consume`, and compares its size and checksum.
pub(crate) async fn download_object(
    store: &dyn ObjectStore,
    file: &BackupFile,
    meter: &TransferMeter,
    consume: impl Fn(Bytes) -> BoxFuture<'static, Result<(), Error>>,
) -> Result<(), Error> {
    let object = file.object_path();
    let found = store.get(&object).await.map_err(|error| missing_or(&object, error))?;
    let mut parts = found.into_stream();
    let mut checksum = StreamingChecksum::new(0);
    let mut bytes = 0;
    while let Some(part) = parts.next().await {
        let part = part.map_err(Error::store("read", &object))?;
        checksum.update(&part);
        let part_bytes = part.len() as u64;
        bytes += part_bytes;
        if bytes > file.bytes {
            break;
        }
        consume(part).await?;
        meter.add_bytes(part_bytes).await;
    }
    if bytes != file.bytes {
        return Err(Error::damaged(&object, format!("it has not {} bytes", file.bytes)));
    }
    if format!("{:016x}", checksum.digest()) != file.checksum {
        return Err(Error::damaged(&object, "the checksum differs"));
    }
    meter.add_file();
    Ok(())
}

/// Converts the error of a missing object to [`Error::Damaged`], because a backup names the object.
pub(crate) fn missing_or(object: &object_store::path::Path, error: object_store::Error) -> Error {
    match error {
        object_store::Error::NotFound { .. } => Error::damaged(object, "it does not exist"),
        error => Error::store("read", object)(error),
    }
}
