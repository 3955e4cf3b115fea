//! Restore of a backup to a directory.
//!
//! A marker file states which backup is being restored. `CURRENT` makes the directory a database, so it is written last, under
//! another name, and renamed. A directory with `CURRENT` is complete, and a restore changes nothing in it except that it removes the marker.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use lsmx::vfs::{OsVfs, Vfs};
use lsmx_base::checksum::StreamingChecksum;
use lsmx_base::file_name::{CURRENT, LOCK};
use lsmx_base::sync::Arc;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::blocking::run_blocking;
use crate::catalog::BackupInfo;
use crate::error::Error;
use crate::manifest::{BackupFile, BackupManifest};
use crate::transfer::{TransferMeter, TransferOptions};

/// Name of the file that marks an incomplete restore. It contains the number of the backup.
const MARKER: &str = "RESTORE";
/// Name of `CURRENT` before it is complete.
const NEW_CURRENT: &str = "RESTORE-CURRENT";
/// Size in bytes of the reads that compare an existing file.
const READ_BYTES: usize = 1 << 20;

/// Options of [`BackupRepository::restore`](crate::BackupRepository::restore).
#[derive(Clone, Debug)]
#[must_use]
pub struct RestoreOptions {
    vfs: Arc<dyn Vfs>,
    transfer: TransferOptions,
}

impl Default for RestoreOptions {
    fn default() -> RestoreOptions {
        RestoreOptions { vfs: Arc::new(OsVfs), transfer: TransferOptions::default() }
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
}

/// Restores a backup. See [`BackupRepository::restore`](crate::BackupRepository::restore).
pub(crate) async fn restore(
    store: &dyn ObjectStore,
    info: BackupInfo,
    target: &Path,
    options: &RestoreOptions,
) -> Result<BackupInfo, Error> {
    let manifest = BackupManifest::read(store, info.id).await?;
    let restored = RestoreTarget { vfs: Arc::clone(&options.vfs), dir: target.to_owned() };
    let missing = {
        let (restored, files) = (restored.clone(), manifest.files.clone());
        run_blocking(move || restored.begin(info.id, files)).await?
    };
    let bytes = missing.iter().map(|file| file.bytes).sum();
    let meter = TransferMeter::new(&options.transfer, missing.len() as u64, bytes);
    let downloads = missing.iter().map(|file| {
        let name = if file.name == CURRENT { NEW_CURRENT } else { &file.name };
        restored.download(store, file, name, &meter)
    });
    let downloads = stream::iter(downloads).buffer_unordered(options.transfer.files_at_once());
    downloads.try_collect::<Vec<()>>().await?;
    run_blocking(move || restored.finish()).await?;
    Ok(info)
}

/// The directory of a restore.
#[derive(Clone)]
struct RestoreTarget {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
}

impl RestoreTarget {
    /// Creates the directory and the marker. Returns the files that an interrupted restore has not completed.
    fn begin(&self, id: u64, files: Vec<BackupFile>) -> Result<Vec<BackupFile>, Error> {
        let (vfs, dir, marker) = (&self.vfs, &self.dir, self.dir.join(MARKER));
        if !vfs.exists(dir).map_err(Error::io("look for", dir))? {
            vfs.create_dir(dir).map_err(Error::io("create", dir))?;
            let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            vfs.sync_dir(parent).map_err(Error::io("sync", parent))?;
        }
        let mut names = vfs.list(dir).map_err(Error::io("list", dir))?;
        let is_resumed =
            names.iter().any(|name| name == MARKER) && self.marked_backup()? == Some(id);
        let is_expected = |name: &String| {
            let is_known = |name: &String| files.iter().any(|file| file.name == *name);
            is_resumed && ([MARKER, NEW_CURRENT].contains(&name.as_str()) || is_known(name))
        };
        if let Some(found) = names.iter().find(|name| *name != LOCK && !is_expected(name)) {
            // A marker without a number, after a power loss. No other file was created.
            if *found != MARKER || names.len() > 1 {
                let (path, found) = (dir.clone(), found.clone());
                return Err(Error::TargetNotEmpty { path, found });
            }
            vfs.remove(&marker).map_err(Error::io("remove", &marker))?;
        }
        if !is_resumed {
            let file = vfs.create(&marker).map_err(Error::io("create", &marker))?;
            file.append(id.to_string().as_bytes()).map_err(Error::io("write", &marker))?;
            file.sync().map_err(Error::io("sync", &marker))?;
            self.sync_dir()?;
            return Ok(files);
        }
        if names.iter().any(|name| name == CURRENT) {
            return Ok(Vec::new());
        }
        if let Some(at) = names.iter().position(|name| name == NEW_CURRENT) {
            let path = dir.join(names.swap_remove(at));
            vfs.remove(&path).map_err(Error::io("remove", &path))?;
        }
        let mut missing = Vec::new();
        for file in files {
            if !names.contains(&file.name) {
                missing.push(file);
            } else if !self.is_complete(&file)? {
                let path = dir.join(&file.name);
                vfs.remove(&path).map_err(Error::io("remove", &path))?;
                missing.push(file);
            }
        }
        Ok(missing)
    }

    /// Returns the number of the backup in the marker file. Returns `None` if the file is empty or malformed, as after a power loss.
    fn marked_backup(&self) -> Result<Option<u64>, Error> {
        let path = self.dir.join(MARKER);
        let file = self.vfs.open(&path).map_err(Error::io("open", &path))?;
        let mut text = [0; 20];
        let read = file.read_at(&mut text, 0).map_err(Error::io("read", &path))?;
        Ok(std::str::from_utf8(&text[..read]).ok().and_then(|text| text.parse().ok()))
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
        let (vfs, created) = (Arc::clone(&self.vfs), path.clone());
        let target =
            run_blocking(move || vfs.create(&created).map_err(Error::io("create", &created)))
                .await?;
        download_object(store, file, meter, async |part: Bytes| {
            let (target, path) = (Arc::clone(&target), path.clone());
            run_blocking(move || target.append(&part).map_err(Error::io("write", &path))).await
        })
        .await?;
        run_blocking(move || target.sync().map_err(Error::io("sync", &path))).await
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
        let marker = self.dir.join(MARKER);
        self.vfs.remove(&marker).map_err(Error::io("remove", &marker))?;
        self.sync_dir()
    }
}

/// Downloads the object of a file, passes its parts to `consume`, and compares its size and checksum.
pub(crate) async fn download_object(
    store: &dyn ObjectStore,
    file: &BackupFile,
    meter: &TransferMeter,
    consume: impl AsyncFn(Bytes) -> Result<(), Error>,
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
