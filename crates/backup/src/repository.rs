//! A repository of backups.

use std::ffi::OsString;
use std::path::Path;
use std::pin::pin;

use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use lsmx::{Db, Options};
use lsmx_base::sync::Arc;
use object_store::local::LocalFileSystem;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt, ObjectStoreScheme};
use url::Url;

use crate::blocking::run_blocking;
use crate::catalog::{ArchivedLog, BackupInfo, Catalog, CatalogStore};
use crate::create::{self, BackupOptions};
use crate::error::Error;
use crate::log_chunk::{
    archived_log, check_follows, read_chunk, read_existing_header, readable_log,
};
use crate::manifest::BackupManifest;
use crate::prune::{self, PruneSummary, Retention};
use crate::read_only;
use crate::restore::{self, RestoreOptions, download_object, missing_or};
use crate::restore_marker::RestoreMarker;
use crate::restore_point::{RestorePlan, RestorePoint, plan_restore};
use crate::transfer::{TransferMeter, TransferOptions};

/// A backup of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The newest backup of all writers.
    Newest,
    /// The newest backup of this writer, see [`BackupOptions::writer`].
    NewestOf(String),
    /// The backup with this number.
    Id(u64),
}

/// Amount of data that [`BackupRepository::verify`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyDepth {
    /// Requests the size of each object.
    Sizes,
    /// Reads each object and compares its checksum.
    Contents,
}

/// Backups in an object store. Several processes may use a repository at the same time.
///
/// All objects of a repository have the prefixes `catalog`, `backups`, `data` and `log`. To use a part of a store, wrap it in
/// [`object_store::prefix::PrefixStore`].
#[derive(Debug)]
pub struct BackupRepository {
    pub(crate) catalog: CatalogStore,
}

impl BackupRepository {
    /// Uses the repository in a store. The first backup creates it.
    #[must_use]
    pub fn new(store: Arc<dyn ObjectStore>) -> BackupRepository {
        BackupRepository { catalog: CatalogStore::new(store) }
    }

    /// Uses the repository at a location: the path of a directory, which must exist, or a URL such as
    /// `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or `file:///path`.
    ///
    /// Writes to a directory are synced. The URL of a bucket needs the feature `aws`, `gcp` or `azure`. The store reads its credentials
    /// and options from environment variables with the prefixes `AWS_`, `GOOGLE_` and `AZURE_`, such as `AWS_ACCESS_KEY_ID` and
    /// `AWS_ENDPOINT`.
    ///
    /// # Errors
    /// [`Error::Location`] if the directory does not exist, or if the URL or an option is invalid.
    pub fn at(location: &str) -> Result<BackupRepository, Error> {
        let invalid = |source: Box<dyn std::error::Error + Send + Sync>| Error::Location {
            location: location.to_owned(),
            source,
        };
        let directory = |path: &Path| {
            let store = LocalFileSystem::new_with_prefix(path);
            let store = store.map_err(|error| invalid(error.into()))?;
            Ok(BackupRepository::new(Arc::new(store.with_fsync(true))))
        };
        if !location.contains("://") {
            return directory(Path::new(location));
        }
        let url = Url::parse(location).map_err(|error| invalid(error.into()))?;
        if url.scheme() == "file" {
            let path = url.to_file_path();
            return directory(&path.map_err(|()| invalid("it is not a path of this host".into()))?);
        }
        let scheme = ObjectStoreScheme::parse(&url).map_err(|error| invalid(error.into()))?.0;
        match scheme {
            ObjectStoreScheme::AmazonS3
            | ObjectStoreScheme::GoogleCloudStorage
            | ObjectStoreScheme::MicrosoftAzure => {
                let options = store_options(std::env::vars_os());
                let opened = object_store::parse_url_opts(&url, options);
                let (store, prefix) = opened.map_err(|error| invalid(error.into()))?;
                Ok(BackupRepository::new(Arc::new(PrefixStore::new(store, prefix))))
            }
            _ => Err(invalid("this kind of URL is not supported".into())),
        }
    }

    /// Creates a backup of an open database. Reads and writes of the database continue.
    ///
    /// The backup contains every commit before the call, and possibly later ones. It uploads the tables and blob files that the
    /// previous backup of the same writer does not contain, the log and the manifest. It also uploads a file if the object of the
    /// previous backup is missing or has another size. If the manifest of the previous backup is damaged, it uploads all files. The
    /// backup exists when the call returns. After an error it may exist, if the store failed in the last step. Uploads of a failed or
    /// killed run are used by the next run of the same writer.
    ///
    /// # Errors
    /// [`Error::Engine`], [`Error::Store`], [`Error::Io`]; [`Error::DamagedFile`] if a file does not match its checksum;
    /// [`Error::Damaged`] if the catalog is damaged; [`Error::Superseded`] if another run of the same writer has started;
    /// [`Error::StagingInUse`]; [`Error::TargetNotEmpty`] if the staging directory contains a checkpoint that no backup has created;
    /// [`lsmx::Error::Locked`] if the checkpoint of an interrupted backup is open.
    pub async fn create(&self, db: &Db, options: &BackupOptions) -> Result<BackupInfo, Error> {
        create::create(&self.catalog, db, options).await
    }

    /// Returns the backups in ascending order of their numbers, each with the extent of its archived log. If the last chunk of a log is
    /// damaged, [`BackupInfo::log_damage`] describes the damage.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::UnsupportedFormat`]; [`Error::Damaged`] if the catalog is damaged.
    pub async fn backups(&self) -> Result<Vec<BackupInfo>, Error> {
        let mut catalog = self.catalog.load().await?;
        loop {
            let backups = self.with_archived_logs(&catalog).await?;
            if backups.iter().all(|backup| backup.log_damage.is_none()) {
                return Ok(backups);
            }
            // A prune may have deleted the chunks of a removed backup.
            let newer = self.catalog.load().await?;
            if newer.backups == catalog.backups {
                return Ok(backups);
            }
            catalog = newer;
        }
    }

    async fn with_archived_logs(&self, catalog: &Catalog) -> Result<Vec<BackupInfo>, Error> {
        let mut backups = catalog.backups.clone();
        backups.sort_by_key(|backup| backup.id);
        for backup in &mut backups {
            let (archived, damage) = readable_log(&*self.catalog.store, backup.id).await?;
            backup.archived = archived;
            backup.log_damage = damage.map(|damage| damage.to_string());
        }
        Ok(backups)
    }

    /// Returns a newer catalog after an error of a read of the objects of backups in `catalog`. Returns the error if it is not
    /// damage, or if the backups are the same. A prune may have deleted the objects of a removed backup.
    async fn newer_catalog(&self, catalog: &Catalog, error: Error) -> Result<Catalog, Error> {
        if !matches!(error, Error::Damaged { .. }) {
            return Err(error);
        }
        let newer = self.catalog.load().await?;
        match newer.backups == catalog.backups {
            true => Err(error),
            false => Ok(newer),
        }
    }

    /// Restores a backup to a directory that does not exist or is empty. Its parent must exist.
    ///
    /// With a [`RestorePoint`], the commits of the archived log are added to the backup, and the next open replays them. Each file is
    /// verified by its checksum and made durable. The directory opens as a database when the call returns, and not before. A call
    /// with the directory of an interrupted restore of the same backup and the same point continues that restore, with the state that
    /// was chosen before. The directory is locked during the call. The result has the backup and the part of its archived log that was
    /// restored.
    ///
    /// # Errors
    /// [`lsmx::Error::Locked`] if another restore into the directory is running; [`Error::UnknownBackup`], [`Error::NoBackups`], [`Error::NoBackupsOf`], [`Error::TargetNotEmpty`], [`Error::Store`], [`Error::Io`];
    /// [`Error::Damaged`] for an object that is missing or damaged; [`Error::CommitNotArchived`], [`Error::NoBackupBefore`] and
    /// [`Error::NotExtensible`] if the point cannot be restored; [`Error::Engine`] if the commits do not fit the backup.
    pub async fn restore(
        &self,
        backup: Selection,
        target: impl AsRef<Path>,
        options: &RestoreOptions,
    ) -> Result<BackupInfo, Error> {
        let (target, point) = (options.target(target.as_ref()), options.point());
        let interrupted = {
            let target = target.clone();
            run_blocking(move || target.interrupted_restore()).await?
        };
        let mut catalog = self.catalog.load().await?;
        let plan = loop {
            match self.plan_restore(&catalog, &backup, point, interrupted).await {
                Ok(plan) => break plan,
                Err(error) => catalog = self.newer_catalog(&catalog, error).await?,
            }
        };
        restore::restore(&*self.catalog.store, plan, target, options).await
    }

    /// Chooses the backup and the commits of a restore, which may continue an interrupted one.
    async fn plan_restore(
        &self,
        catalog: &Catalog,
        backup: &Selection,
        point: RestorePoint,
        interrupted: Option<RestoreMarker>,
    ) -> Result<RestorePlan, Error> {
        let store = &*self.catalog.store;
        let candidates = candidates(catalog, backup, point)?;
        match interrupted {
            Some(RestoreMarker { backup, point: chosen_for, through: Some(through) })
                if chosen_for == point && candidates.iter().any(|info| info.id == backup) =>
            {
                let info = catalog.backup(backup)?.clone();
                let (archived, damage) = readable_log(store, backup).await?;
                let plan = RestorePlan::through(store, BackupInfo { archived, ..info }, through);
                plan.await.map_err(|error| damage.unwrap_or(error))
            }
            _ => plan_restore(store, candidates, point).await,
        }
    }

    /// Opens a backup read-only, without a restore.
    ///
    /// Reads request parts of objects: 64 KiB of tables and blob files, 1 MiB of other files. The parts are kept in memory up to
    /// `cache_bytes`, in addition to the block cache of the database. A read also holds the part that it uses. The log is replayed
    /// into memory. The handle does not show newer backups. Reads fail if the backup is removed meanwhile. `options` must not contain a file system; the backup is opened with [`Options::read_only`].
    ///
    /// # Errors
    /// [`Error::UnknownBackup`], [`Error::NoBackups`], [`Error::NoBackupsOf`], [`Error::Store`], [`Error::Damaged`]; [`Error::Engine`] for the errors of
    /// [`Db::open`].
    pub async fn open_read_only(
        &self,
        backup: Selection,
        cache_bytes: u64,
        options: Options,
    ) -> Result<Db, Error> {
        let info = select(&self.catalog.load().await?, &backup)?;
        read_only::open(Arc::clone(&self.catalog.store), info.id, cache_bytes, options).await
    }

    /// Checks that the objects of a backup and its archived log exist and are undamaged.
    ///
    /// # Errors
    /// [`Error::UnknownBackup`], [`Error::NoBackups`], [`Error::NoBackupsOf`], [`Error::Store`]; [`Error::Damaged`] for the first object that is
    /// missing or damaged.
    pub async fn verify(&self, backup: Selection, depth: VerifyDepth) -> Result<BackupInfo, Error> {
        let info = select(&self.catalog.load().await?, &backup)?;
        let manifest = BackupManifest::read(&*self.catalog.store, info.id).await?;
        let options = TransferOptions::default();
        let meter = TransferMeter::new(&options, info.files, info.bytes);
        let check = async |file| match depth {
            VerifyDepth::Contents => {
                let discard = |_| async { Ok(()) }.boxed();
                download_object(&*self.catalog.store, file, &meter, discard).await
            }
            VerifyDepth::Sizes => {
                let object = file.object_path();
                let found = self.catalog.store.head(&object).await;
                let found = found.map_err(|error| missing_or(&object, error))?;
                match found.size == file.bytes {
                    true => Ok(()),
                    false => {
                        let reason = format!("it has {} of {} bytes", found.size, file.bytes);
                        Err(Error::damaged(&object, reason))
                    }
                }
            }
        };
        let checks: Vec<_> = manifest.files.iter().map(check).collect();
        let checks = stream::iter(checks);
        checks.buffer_unordered(options.files_at_once()).try_collect::<Vec<()>>().await?;
        let archived = self.verify_log(&info, depth).await?;
        Ok(BackupInfo { archived, ..info })
    }

    /// Checks the chunks of the archived log of a backup.
    async fn verify_log(
        &self,
        info: &BackupInfo,
        depth: VerifyDepth,
    ) -> Result<Option<ArchivedLog>, Error> {
        let store = &*self.catalog.store;
        let Some(archived) = archived_log(store, info.id).await? else { return Ok(None) };
        let numbers = stream::iter(1..=archived.chunks);
        let headers = numbers.map(|number| async move {
            match depth {
                VerifyDepth::Contents => Ok(read_chunk(store, info.id, number).await?.0),
                VerifyDepth::Sizes => read_existing_header(store, info.id, number).await,
            }
        });
        let mut headers = pin!(headers.buffered(TransferOptions::default().files_at_once()));
        let mut last_seq = None;
        while let Some(header) = headers.next().await {
            let header = header?;
            check_follows(&header, info, last_seq)?;
            last_seq = Some(header.last_seq);
        }
        Ok(Some(archived))
    }

    /// Removes old backups, and deletes the objects that no backup needs. Other processes may create backups meanwhile.
    ///
    /// The objects of an interrupted run are kept until the next run of the same writer completes.
    ///
    /// # Errors
    /// [`Error::Store`]; [`Error::Damaged`] if the manifest of a kept backup is damaged. After an error, old backups may already
    /// be removed from the list while their objects still exist. The next successful call deletes these objects.
    pub async fn prune(&self, retention: Retention) -> Result<PruneSummary, Error> {
        prune::prune(&self.catalog, retention).await
    }
}

/// Returns the environment variables that configure stores. Names without the prefix of a service belong to other programs.
fn store_options(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (String, String)> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let has_prefix = |(name, _): &(String, String)| {
        ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|prefix| name.starts_with(prefix))
    };
    variables.filter_map(text).filter(has_prefix)
}

/// Returns the backups from which a restore may start, in ascending order.
fn candidates(
    catalog: &Catalog,
    backup: &Selection,
    point: RestorePoint,
) -> Result<Vec<BackupInfo>, Error> {
    let is_fixed = point == RestorePoint::Backup || matches!(backup, Selection::Id(_));
    let newest = select(catalog, backup)?;
    if is_fixed {
        return Ok(vec![newest]);
    }
    let of_writer = catalog.backups.iter().filter(|backup| backup.writer == newest.writer);
    let mut candidates: Vec<_> = of_writer.cloned().collect();
    candidates.sort_by_key(|backup| backup.id);
    Ok(candidates)
}

pub(crate) fn select(catalog: &Catalog, backup: &Selection) -> Result<BackupInfo, Error> {
    match backup {
        Selection::Newest => catalog.newest_backup(None).cloned().ok_or(Error::NoBackups),
        Selection::NewestOf(writer) => {
            let newest = catalog.newest_backup(Some(writer)).cloned();
            newest.ok_or_else(|| Error::NoBackupsOf { writer: writer.clone() })
        }
        Selection::Id(id) => catalog.backup(*id).cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_of_a_directory_is_a_path_or_a_file_url_and_writes_are_synced() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("a b");
        std::fs::create_dir(&dir).unwrap();
        let url = Url::from_file_path(&dir).unwrap();
        for location in [dir.to_str().unwrap(), url.as_str()] {
            let repository = BackupRepository::at(location).unwrap();
            let store = format!("{:?}", repository.catalog.store);
            assert!(store.contains("fsync: true"), "{store}");
            assert!(store.contains("a%20b"), "{store}");
        }
    }

    #[test]
    fn location_that_is_no_directory_and_no_bucket_is_refused() {
        let locations = [
            "/does/not/exist",
            "file:///does/not/exist",
            "memory:///",
            "http://host/path",
            "ftp://host/",
        ];
        for location in locations {
            let error = BackupRepository::at(location).unwrap_err();
            assert!(matches!(error, Error::Location { .. }), "{location}: {error}");
            assert!(error.to_string().contains(location), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn options_of_stores_are_unicode_variables_with_the_prefix_of_a_service() {
        use std::os::unix::ffi::OsStringExt;
        let variables = ["AWS_REGION", "ENDPOINT", "TOKEN", "GOOGLE_BUCKET", "AZURE_X", "MY_AWS_X"];
        let pairs = variables.map(|name| (OsString::from(name), OsString::from("value")));
        let not_unicode = OsString::from_vec(b"AWS_\xff".to_vec());
        let malformed = [(not_unicode.clone(), "value".into()), ("AWS_TOKEN".into(), not_unicode)];
        let options = store_options(pairs.into_iter().chain(malformed));
        let names: Vec<_> = options.map(|(name, _)| name).collect();
        assert_eq!(names, ["AWS_REGION", "GOOGLE_BUCKET", "AZURE_X"]);
    }
}
