//! Creation of a backup.
//!
//! 1. Register a run in the catalog. It replaces an interrupted run of the same writer.
//! 2. Create a checkpoint in the staging directory.
//! 3. Upload the files that neither the base backup nor an interrupted run has uploaded.
//! 4. Write the manifest.
//! 5. Replace the run in the catalog by the backup. From here on the backup exists.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use lsmx::inspect::{DatabaseFile, list_files};
use lsmx::vfs::{File, OsVfs, Vfs};
use lsmx::{Db, LogExtender, Options};
use lsmx_base::file_name::CURRENT;
use lsmx_base::sync::Arc;
use object_store::buffered::BufWriter;
use object_store::path::Path as ObjectPath;
use rand::TryRng;
use rand::rngs::SysRng;
use tokio::io::AsyncWriteExt;
use xxhash_rust::xxh3::Xxh3;

use crate::blocking::run_blocking;
use crate::catalog::{BackupInfo, CatalogStore, Run};
use crate::error::Error;
use crate::manifest::{BackupFile, BackupManifest, run_prefix};
use crate::staging::Staging;
use crate::transfer::{TransferMeter, TransferOptions};

/// Size in bytes of the reads of a file, and of the parts of an upload.
const PART_BYTES: usize = 8 << 20;
/// Maximum number of parts of one file that are uploaded at the same time.
const PARTS_IN_FLIGHT: usize = 2;

/// Options of [`BackupRepository::create`](crate::BackupRepository::create).
#[derive(Clone, Debug)]
#[must_use]
pub struct BackupOptions {
    writer: String,
    staging: PathBuf,
    vfs: Arc<dyn Vfs>,
    transfer: TransferOptions,
    clock: WallClock,
}

/// Clock that dates backups and chunks of the log.
#[derive(Clone, Debug, Default)]
pub(crate) enum WallClock {
    #[default]
    System,
    #[cfg(test)]
    Manual(Arc<std::sync::atomic::AtomicU64>),
}

impl WallClock {
    /// Returns the time in milliseconds since 1970-01-01 UTC.
    pub(crate) fn now_ms(&self) -> u64 {
        match self {
            WallClock::System => system_time_ms(),
            #[cfg(test)]
            WallClock::Manual(ms) => ms.load(std::sync::atomic::Ordering::Relaxed),
        }
    }
}

impl BackupOptions {
    /// Sets the staging directory, which the run creates and removes. Its parent must exist.
    ///
    /// The run creates a [checkpoint](Db::checkpoint) in it. If the directory is on the file system of the database, the
    /// checkpoint consists of hard links and needs almost no space. A run that was killed leaves the directory, and the next
    /// run removes it. Two databases need different directories.
    pub fn new(staging: impl Into<PathBuf>) -> BackupOptions {
        BackupOptions {
            writer: "default".to_owned(),
            staging: staging.into(),
            vfs: Arc::new(OsVfs),
            transfer: TransferOptions::default(),
            clock: WallClock::default(),
        }
    }

    #[cfg(test)]
    pub(crate) fn manual_clock(mut self, ms: &Arc<std::sync::atomic::AtomicU64>) -> Self {
        self.clock = WallClock::Manual(Arc::clone(ms));
        self
    }

    #[cfg(test)]
    pub(crate) fn with_staging(mut self, staging: &str) -> Self {
        self.staging = staging.into();
        self
    }

    pub(crate) fn clock(&self) -> WallClock {
        self.clock.clone()
    }

    /// Returns the maximum rate of transfers.
    pub(crate) fn bytes_per_s(&self) -> Option<NonZeroU64> {
        self.transfer.bytes_per_s
    }

    /// Name of the database in the repository. Databases that share a repository need different names. Default: `default`.
    ///
    /// If an earlier run with the same name was interrupted, the new run replaces it and reuses its uploaded files.
    pub fn writer(mut self, writer: impl Into<String>) -> Self {
        self.writer = writer.into();
        self
    }

    /// File system of the database. Default: that of the operating system.
    pub fn vfs(mut self, vfs: Arc<dyn Vfs>) -> Self {
        self.vfs = vfs;
        self
    }

    /// Options of the uploads.
    pub fn transfer(mut self, transfer: TransferOptions) -> Self {
        self.transfer = transfer;
        self
    }
}

/// A file of the checkpoint, with an identifier of its contents.
struct SourceFile {
    name: String,
    bytes: u64,
    /// XXH3-64 of the whole file.
    checksum: u64,
    /// Identifier of the contents, and file name of the object that stores them. Files with equal identifiers have equal
    /// contents.
    content: String,
}

/// Creates a backup.
pub(crate) async fn create(
    catalog: &CatalogStore,
    db: &Db,
    options: &BackupOptions,
) -> Result<BackupInfo, Error> {
    let BackupOptions { vfs, staging, .. } = options;
    let (vfs, dir) = (Arc::clone(vfs), staging.clone());
    let staging = run_blocking(move || Staging::claim(vfs, &dir)).await?;
    let created = create_from(catalog, db, options, staging.checkpoint()).await;
    run_blocking(move || {
        drop(staging);
        Ok(())
    })
    .await?;
    created
}

/// Creates a backup through a checkpoint in the directory `staged`.
async fn create_from(
    catalog: &CatalogStore,
    db: &Db,
    options: &BackupOptions,
    staged: PathBuf,
) -> Result<BackupInfo, Error> {
    let run = begin_run(catalog, options).await?;
    let (db, checkpoint, vfs) = (db.clone(), staged.clone(), Arc::clone(&options.vfs));
    let clock = options.clock();
    let (files, contents) = run_blocking(move || {
        db.checkpoint(&checkpoint)?;
        let checkpoint_ms = clock.now_ms();
        let last_seq = last_commit(&vfs, &checkpoint)?;
        Ok((source_files(&vfs, &checkpoint)?, CheckpointContents { last_seq, checkpoint_ms }))
    })
    .await?;
    let upload = RunUpload { catalog, options, run: &run, checkpoint: staged };
    let (files, uploaded_bytes) = upload.upload_missing(files).await?;
    let manifest = BackupManifest { id: run.id, files };
    manifest.write(&*catalog.store).await?;
    commit_run(catalog, &run, &manifest, uploaded_bytes, contents).await
}

/// Extent of the commits in a checkpoint.
struct CheckpointContents {
    last_seq: u64,
    checkpoint_ms: u64,
}

/// Returns the last sequence number in a checkpoint.
fn last_commit(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<u64, Error> {
    let current = read_current(&**vfs, &dir.join(CURRENT))?;
    let options = Options::default().vfs(Arc::clone(vfs));
    Ok(LogExtender::new(dir, &options, &current)?.last_seq().0)
}

/// Reads the file that names a manifest.
pub(crate) fn read_current(vfs: &dyn Vfs, path: &Path) -> Result<Vec<u8>, Error> {
    let file = vfs.open(path).map_err(Error::io("open", path))?;
    let bytes = file.len().map_err(Error::io("read the size of", path))?;
    read_part(&*file, path, 0, bytes)
}

/// Adds a run to the catalog.
async fn begin_run(catalog: &CatalogStore, options: &BackupOptions) -> Result<Run, Error> {
    let token = SysRng.try_next_u64().map_err(|error| {
        Error::io("draw a random number for", &options.staging)(std::io::Error::other(error))
    })?;
    let writer = &options.writer;
    let created_ms = options.clock.now_ms();
    let begin = catalog.update(|catalog| {
        if let Some(run) = catalog.runs.iter().find(|run| run.token == token) {
            return Ok(run.clone());
        }
        let mut resumed = Vec::new();
        catalog.runs.retain(|run| {
            let is_older_run = run.writer == *writer;
            if is_older_run {
                resumed.extend(run.resumed.iter().chain([&run.id]));
            }
            !is_older_run
        });
        catalog.last_id += 1;
        let base =
            catalog.newest_backup(Some(writer)).or(catalog.newest_backup(None)).map(|base| base.id);
        let (id, writer) = (catalog.last_id, writer.clone());
        let run = Run { id, token, writer, base, resumed, created_ms };
        catalog.runs.push(run.clone());
        Ok(run)
    });
    begin.await
}

/// Removes the run from the catalog and adds the complete backup.
async fn commit_run(
    catalog: &CatalogStore,
    run: &Run,
    manifest: &BackupManifest,
    uploaded_bytes: u64,
    contents: CheckpointContents,
) -> Result<BackupInfo, Error> {
    let info = BackupInfo {
        id: run.id,
        writer: run.writer.clone(),
        created_ms: run.created_ms,
        files: manifest.files.len() as u64,
        bytes: manifest.files.iter().map(|file| file.bytes).sum(),
        uploaded_bytes,
        last_seq: Some(contents.last_seq),
        checkpoint_ms: Some(contents.checkpoint_ms),
        archived: None,
    };
    let commit = catalog.update(|catalog| {
        if catalog.backups.contains(&info) {
            return Ok(());
        }
        let Some(at) = catalog.runs.iter().position(|active| active == run) else {
            return Err(Error::Superseded { run: run.id, writer: run.writer.clone() });
        };
        catalog.runs.remove(at);
        catalog.backups.push(info.clone());
        Ok(())
    });
    commit.await?;
    Ok(info)
}

/// Returns the files of a checkpoint. Reads the contents of the files that have no identity.
fn source_files(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<Vec<SourceFile>, Error> {
    let files = list_files(dir, &Options::default().vfs(Arc::clone(vfs)))?;
    let with_content = |file: DatabaseFile| {
        let DatabaseFile { name, bytes, identity, .. } = file;
        let (content, checksum) = match identity {
            Some(id) => (format!("f{:016x}{:016x}", id.uid, id.checksum), id.checksum),
            None => {
                let path = dir.join(&name);
                let open = vfs.open(&path).map_err(Error::io("open", &path))?;
                let mut hash = Xxh3::new();
                let mut offset = 0;
                while offset < bytes {
                    let part = read_part(&*open, &path, offset, bytes)?;
                    hash.update(&part);
                    offset += part.len() as u64;
                }
                (format!("c{:032x}", hash.digest128()), hash.digest())
            }
        };
        Ok(SourceFile { name, bytes, checksum, content })
    };
    files.into_iter().map(with_content).collect()
}

/// Reads the part of a file at `offset`, which ends at `end` at the latest.
fn read_part(file: &dyn File, path: &Path, offset: u64, end: u64) -> Result<Vec<u8>, Error> {
    let bytes = usize::try_from(end - offset).unwrap_or(PART_BYTES).min(PART_BYTES);
    let mut part = vec![0; bytes];
    let read = file.read_at(&mut part, offset).map_err(Error::io("read", path))?;
    if read < bytes {
        let reason = format!("it ends at byte {} of {end}", offset + read as u64);
        return Err(Error::DamagedFile { path: path.to_owned(), reason });
    }
    Ok(part)
}

/// The uploads of one run.
struct RunUpload<'a> {
    catalog: &'a CatalogStore,
    options: &'a BackupOptions,
    run: &'a Run,
    checkpoint: PathBuf,
}

impl RunUpload<'_> {
    /// Uploads the files whose contents the run does not find in the repository. Returns all files with their objects, and
    /// the number of uploaded bytes.
    async fn upload_missing(
        &self,
        files: Vec<SourceFile>,
    ) -> Result<(Vec<BackupFile>, u64), Error> {
        let existing = self.existing_objects().await?;
        let find = |file: &SourceFile| existing.get(&(file.content.clone(), file.bytes));
        let missing: Vec<_> = files.iter().filter(|file| find(file).is_none()).collect();
        let bytes = missing.iter().map(|file| file.bytes).sum();
        let concurrency = self.options.transfer.files_at_once();
        let meter = TransferMeter::new(&self.options.transfer, missing.len() as u64, bytes);
        // Collected, because a stream with a closure that borrows would make the future of the caller not `Send`.
        let uploads: Vec<_> = missing.iter().map(|file| self.upload(file, &meter)).collect();
        stream::iter(uploads).buffer_unordered(concurrency).try_collect::<Vec<()>>().await?;
        let with_object = |file: &SourceFile| BackupFile {
            name: file.name.clone(),
            bytes: file.bytes,
            checksum: format!("{:016x}", file.checksum),
            object: find(file).cloned().unwrap_or_else(|| self.object_path(file).to_string()),
        };
        Ok((files.iter().map(with_object).collect(), bytes))
    }

    /// Returns the objects of the base backup and of interrupted runs, by content and size.
    async fn existing_objects(&self) -> Result<HashMap<(String, u64), String>, Error> {
        let store = &self.catalog.store;
        let mut existing = HashMap::new();
        let mut add = |object: &ObjectPath, bytes| {
            let content = object.filename().unwrap_or_default().to_owned();
            existing.insert((content, bytes), object.to_string());
        };
        if let Some(base) = self.run.base {
            match BackupManifest::read(&**store, base).await {
                Ok(base) => base.files.iter().for_each(|it| add(&it.object_path(), it.bytes)),
                // A damaged backup must not prevent later ones. They upload all files again.
                Err(Error::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        for &run in &self.run.resumed {
            let prefix = run_prefix(run);
            let listed: Vec<_> = store
                .list(Some(&prefix))
                .try_collect()
                .await
                .map_err(Error::store("list", prefix))?;
            listed.iter().for_each(|meta| add(&meta.location, meta.size));
        }
        Ok(existing)
    }

    fn object_path(&self, file: &SourceFile) -> ObjectPath {
        run_prefix(self.run.id).join(file.content.as_str())
    }

    /// Uploads a file and compares its checksum. The object exists only if both succeed.
    async fn upload(&self, file: &SourceFile, meter: &TransferMeter) -> Result<(), Error> {
        let object = self.object_path(file);
        let store = Arc::clone(&self.catalog.store);
        let mut writer = BufWriter::with_capacity(store, object.clone(), PART_BYTES)
            .with_max_concurrency(PARTS_IN_FLIGHT);
        let copied = self.copy_parts(file, &object, &mut writer, meter).await;
        match copied {
            Ok(()) => {
                let finished = writer.shutdown().await;
                finished.map_err(|error| Error::store("write", &object)(from_io(error)))?;
                meter.add_file();
                Ok(())
            }
            Err(error) => {
                // The upload has already failed. Stores remove unfinished uploads by their own rules.
                let _ = writer.abort().await;
                Err(error)
            }
        }
    }

    async fn copy_parts(
        &self,
        file: &SourceFile,
        object: &ObjectPath,
        writer: &mut BufWriter,
        meter: &TransferMeter,
    ) -> Result<(), Error> {
        let (path, end) = (self.checkpoint.join(&file.name), file.bytes);
        let vfs = Arc::clone(&self.options.vfs);
        let source = {
            let path = path.clone();
            run_blocking(move || vfs.open(&path).map_err(Error::io("open", &path))).await?
        };
        let mut hash = Xxh3::new();
        let mut offset = 0;
        while offset < end {
            let (source, path) = (Arc::clone(&source), path.clone());
            let part = run_blocking(move || read_part(&*source, &path, offset, end)).await?;
            hash.update(&part);
            offset += part.len() as u64;
            let bytes = part.len() as u64;
            writer.put(Bytes::from(part)).await.map_err(Error::store("write", object))?;
            meter.add_bytes(bytes).await;
        }
        if hash.digest() != file.checksum {
            let reason = "its contents do not match its checksum".to_owned();
            return Err(Error::DamagedFile { path, reason });
        }
        Ok(())
    }
}

/// Returns the error of a store that a writer has converted to an I/O error.
fn from_io(error: std::io::Error) -> object_store::Error {
    let source = error.into_inner().unwrap_or_else(|| "the write failed".into());
    match source.downcast::<object_store::Error>() {
        Ok(error) => *error,
        Err(source) => object_store::Error::Generic { store: "backup", source },
    }
}

/// Returns the time of this host in milliseconds since 1970-01-01 UTC.
#[expect(clippy::disallowed_methods, reason = "the time dates backups for their users")]
fn system_time_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
