//! Creation of a backup.
//!
//! 1. Register a run in the catalog. It replaces an interrupted run of the same writer.
//! 2. Create a checkpoint in the staging directory.
//! 3. Upload the files that neither the base backup nor an interrupted run has uploaded.
//! 4. Write the manifest.
//! 5. Replace the run in the catalog by the backup. From here on the backup exists.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use lsmx::vfs::{OsVfs, Vfs};
use lsmx::{Db, LogExtender, Options};
use lsmx_base::file_name::CURRENT;
use lsmx_base::sync::Arc;
use rand::TryRng;
use rand::rngs::SysRng;

use crate::blocking::run_blocking;
use crate::catalog::{BackupInfo, CatalogStore, Run};
use crate::error::Error;
use crate::manifest::BackupManifest;
use crate::source_file::{PART_BYTES, read_current, source_files};
use crate::staging::Staging;
use crate::transfer::TransferOptions;
use crate::upload::RunUpload;

/// Options of [`BackupRepository::create`](crate::BackupRepository::create).
#[derive(Clone, Debug)]
#[must_use]
pub struct BackupOptions {
    writer: String,
    staging: PathBuf,
    vfs: Arc<dyn Vfs>,
    transfer: TransferOptions,
    clock: WallClock,
    /// Size in bytes of the parts of an upload. Only tests change it.
    part_bytes: usize,
}

/// Clock that dates backups and chunks of the log.
#[derive(Clone, Debug, Default)]
pub(crate) enum WallClock {
    #[default]
    System,
    #[cfg(test)]
    Test(TestClock),
}

/// Clock of a test: a function that returns the time in milliseconds.
#[cfg(test)]
#[derive(Clone)]
pub(crate) struct TestClock(Arc<dyn Fn() -> u64 + Send + Sync>);

#[cfg(test)]
impl std::fmt::Debug for TestClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TestClock")
    }
}

impl WallClock {
    /// Returns the time in milliseconds since 1970-01-01 UTC.
    pub(crate) fn now_ms(&self) -> u64 {
        match self {
            WallClock::System => system_time_ms(),
            #[cfg(test)]
            WallClock::Test(TestClock(now_ms)) => now_ms(),
        }
    }
}

impl BackupOptions {
    /// Sets the staging directory, which the run creates and removes. Its parent must exist.
    ///
    /// The run creates a [checkpoint](Db::checkpoint) in it. If the directory is on the file system of the database, the
    /// checkpoint consists of hard links and needs almost no space. A run that was killed leaves the directory, and the next
    /// run removes it. A run refuses a directory that contains a checkpoint of a user. Two databases need
    /// different directories.
    pub fn new(staging: impl Into<PathBuf>) -> BackupOptions {
        BackupOptions {
            writer: "default".to_owned(),
            staging: staging.into(),
            vfs: Arc::new(OsVfs),
            transfer: TransferOptions::default(),
            clock: WallClock::default(),
            part_bytes: PART_BYTES,
        }
    }

    #[cfg(test)]
    pub(crate) fn test_clock(mut self, now_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.clock = WallClock::Test(TestClock(Arc::new(now_ms)));
        self
    }

    #[cfg(test)]
    pub(crate) fn with_staging(mut self, staging: &str) -> Self {
        self.staging = staging.into();
        self
    }

    #[cfg(test)]
    pub(crate) fn with_part_bytes(mut self, bytes: usize) -> Self {
        self.part_bytes = bytes;
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

/// Creates a backup.
pub(crate) async fn create(
    catalog: &CatalogStore,
    db: &Db,
    options: &BackupOptions,
) -> Result<BackupInfo, Error> {
    let BackupOptions { vfs, staging, .. } = options;
    let (vfs, dir) = (Arc::clone(vfs), staging.clone());
    let staging = Arc::new(run_blocking(move || Staging::claim(vfs, &dir)).await?);
    let created = create_from(catalog, db, options, &staging).await;
    run_blocking(move || {
        drop(staging);
        Ok(())
    })
    .await?;
    created
}

/// Creates a backup through a checkpoint in the staging directory.
async fn create_from(
    catalog: &CatalogStore,
    db: &Db,
    options: &BackupOptions,
    staging: &Arc<Staging>,
) -> Result<BackupInfo, Error> {
    let run = begin_run(catalog, options).await?;
    let (db, vfs, clock) = (db.clone(), Arc::clone(&options.vfs), options.clock());
    let staged = staging.checkpoint();
    // If the future is dropped, the directory remains locked until the checkpoint ends, and is removed then.
    let staging = Arc::clone(staging);
    let (files, contents) = run_blocking(move || {
        let checkpoint = staging.checkpoint();
        db.checkpoint(&checkpoint)?;
        let checkpoint_ms = clock.now_ms();
        let last_seq = last_commit(&vfs, &checkpoint)?;
        Ok((source_files(&vfs, &checkpoint)?, CheckpointContents { last_seq, checkpoint_ms }))
    })
    .await?;
    let BackupOptions { vfs, transfer, part_bytes, .. } = options;
    let upload = RunUpload::new(catalog, &run, Arc::clone(vfs), staged, transfer, *part_bytes);
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
        log_damage: None,
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

/// Returns the time of this host in milliseconds since 1970-01-01 UTC.
#[expect(clippy::disallowed_methods, reason = "the time dates backups for their users")]
fn system_time_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
