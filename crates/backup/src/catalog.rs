//! The catalog: the list of the backups of a repository, and of the runs that create backups.
//!
//! Each change writes a new version of the catalog as the object `catalog/N`. The object is created only if it does not exist
//! (`PutMode::Create`), so concurrent changes are serialized. Versions are never deleted. Therefore the newest version is found
//! by reads of `N + 1` until an object does not exist, even if a listing is stale. A store needs two properties: a read of an
//! object finds a completed write, and a conditional write is atomic.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::TryStreamExt;
use lsmx_base::sync::Arc;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::record;

/// A complete backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BackupInfo {
    /// Number of the backup. Later runs have larger numbers.
    pub id: u64,
    /// Name of the writer, see [`BackupOptions::writer`](crate::BackupOptions::writer).
    pub writer: String,
    /// Time at which the run started, in milliseconds since 1970-01-01 UTC, by the clock of its machine.
    pub created_ms: u64,
    /// Number of files.
    pub files: u64,
    /// Total size of the files in bytes.
    pub bytes: u64,
    /// Size in bytes of the files that this run uploaded. The other files were already in the repository.
    pub uploaded_bytes: u64,
    /// Last sequence number that the backup contains. `None` if an earlier version of this crate created the backup. Such a backup
    /// cannot be extended by the archived log.
    #[serde(default)]
    pub last_seq: Option<u64>,
    /// Time after the checkpoint, in milliseconds since 1970-01-01 UTC. All commits of the backup are older.
    #[serde(default)]
    pub checkpoint_ms: Option<u64>,
    /// The archived log that extends the backup. In the result of a restore: the part of it that was restored.
    /// [`BackupRepository::backups`](crate::BackupRepository::backups) and restores set this field.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub archived: Option<ArchivedLog>,
    /// The damage of the archived log, if its last chunk is damaged. `archived` is then the part before the damage. Only
    /// [`BackupRepository::backups`](crate::BackupRepository::backups) sets this field.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub log_damage: Option<String>,
}

/// The commits after a backup that an [`Archiver`](crate::Archiver) has uploaded. They follow the commits of the backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ArchivedLog {
    /// Number of chunks.
    pub chunks: u64,
    /// Last sequence number.
    pub last_seq: u64,
    /// Time of the last chunk in milliseconds since 1970-01-01 UTC, by the clock of the archiver. All its commits are older.
    pub time_ms: u64,
}

impl BackupInfo {
    /// Returns the last sequence number of the backup and its archived log.
    pub(crate) fn last_restorable_seq(&self) -> Option<u64> {
        let archived = self.archived.map(|archived| archived.last_seq);
        self.last_seq.map(|last_seq| archived.map_or(last_seq, |archived| last_seq.max(archived)))
    }
}

/// A run that has not completed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) id: u64,
    /// Random number that distinguishes this run from others with the same id after an ambiguous error of the store.
    pub(crate) token: u64,
    pub(crate) writer: String,
    /// The backup whose objects the run may use. They are not deleted while the run exists.
    pub(crate) base: Option<u64>,
    /// Earlier, interrupted runs of the writer. Their objects are not deleted while the run exists.
    pub(crate) resumed: Vec<u64>,
    pub(crate) created_ms: u64,
}

/// A version of the catalog.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Catalog {
    pub(crate) last_id: u64,
    pub(crate) backups: Vec<BackupInfo>,
    pub(crate) runs: Vec<Run>,
}

impl Catalog {
    pub(crate) fn backup(&self, id: u64) -> Result<&BackupInfo, Error> {
        let found = self.backups.iter().find(|backup| backup.id == id);
        found.ok_or(Error::UnknownBackup { id })
    }

    /// Returns the newest backup, of this writer if one is given.
    pub(crate) fn newest_backup(&self, writer: Option<&str>) -> Option<&BackupInfo> {
        let is_wanted = |backup: &&BackupInfo| writer.is_none_or(|writer| backup.writer == writer);
        self.backups.iter().filter(is_wanted).max_by_key(|backup| backup.id)
    }

    /// Returns the backups whose files must be kept.
    pub(crate) fn needed_backups(&self) -> BTreeSet<u64> {
        let bases = self.runs.iter().filter_map(|run| run.base);
        self.backups.iter().map(|backup| backup.id).chain(bases).collect()
    }

    /// Returns the runs whose objects must be kept, because a manifest may name them later.
    pub(crate) fn active_runs(&self) -> BTreeSet<u64> {
        let runs = self.runs.iter();
        runs.flat_map(|run| run.resumed.iter().chain([&run.id])).copied().collect()
    }
}

/// The object store of a repository, with access to its catalog.
#[derive(Debug)]
pub(crate) struct CatalogStore {
    pub(crate) store: Arc<dyn ObjectStore>,
    /// Newest known version. 0 if none is known.
    known_version: AtomicU64,
}

impl CatalogStore {
    pub(crate) fn new(store: Arc<dyn ObjectStore>) -> CatalogStore {
        CatalogStore { store, known_version: AtomicU64::new(0) }
    }

    /// Returns the newest version. A repository without a catalog is empty.
    pub(crate) async fn load(&self) -> Result<Catalog, Error> {
        self.load_version().await.map(|(_, catalog)| catalog)
    }

    /// Applies a change to the newest version and writes the result. Repeats the change if another process has written a
    /// version. `change` must recognize its own effect, because a write may succeed although the store reports an error.
    pub(crate) async fn update<T>(
        &self,
        mut change: impl FnMut(&mut Catalog) -> Result<T, Error>,
    ) -> Result<T, Error> {
        loop {
            let (version, mut catalog) = self.load_version().await?;
            let changed = change(&mut catalog)?;
            let object = version_path(version + 1);
            let payload = PutPayload::from(record::encode(&object, &catalog)?);
            match self.store.put_opts(&object, payload, PutMode::Create.into()).await {
                Ok(_) => {
                    self.known_version.fetch_max(version + 1, Ordering::Relaxed);
                    return Ok(changed);
                }
                Err(object_store::Error::AlreadyExists { .. }) => {}
                Err(error) => return Err(Error::store("write", object)(error)),
            }
        }
    }

    async fn load_version(&self) -> Result<(u64, Catalog), Error> {
        let mut version = self.known_version.load(Ordering::Relaxed);
        if version == 0 {
            version = self.newest_listed_version().await?;
        }
        let mut newest = match version {
            0 => Bytes::new(),
            known => self.read_version(known).await?.ok_or_else(|| {
                Error::damaged(version_path(known), "the object is listed and does not exist")
            })?,
        };
        while let Some(next) = self.read_version(version + 1).await? {
            (version, newest) = (version + 1, next);
        }
        self.known_version.fetch_max(version, Ordering::Relaxed);
        match version {
            0 => Ok((0, Catalog::default())),
            _ => Ok((version, record::decode(&version_path(version), &newest)?)),
        }
    }

    async fn newest_listed_version(&self) -> Result<u64, Error> {
        let prefix = Path::from("catalog");
        let listed = self.store.list(Some(&prefix)).try_fold(0, |newest, meta| async move {
            let version = meta.location.filename().and_then(|name| name.parse().ok());
            Ok(version.unwrap_or(0).max(newest))
        });
        listed.await.map_err(Error::store("list", prefix))
    }

    async fn read_version(&self, version: u64) -> Result<Option<Bytes>, Error> {
        read_if_exists(&*self.store, &version_path(version)).await
    }
}

fn version_path(version: u64) -> Path {
    Path::from(format!("catalog/{version:010}"))
}

/// Reads a whole object. Returns `None` if it does not exist.
pub(crate) async fn read_if_exists(
    store: &dyn ObjectStore,
    object: &Path,
) -> Result<Option<Bytes>, Error> {
    let read = match store.get(object).await {
        Ok(found) => found.bytes().await,
        Err(error) => Err(error),
    };
    match read {
        Ok(bytes) => Ok(Some(bytes)),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(Error::store("read", object)(error)),
    }
}
