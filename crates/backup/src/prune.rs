//! Deletion of old backups and of unused objects.
//!
//! Prune first removes backups from the catalog, then lists the objects, and then reads the catalog again. An object is unused
//! if, in this catalog, no needed backup names it and the run that uploaded it has ended. It stays unused: a later backup names
//! only objects of its own run, of interrupted runs that it resumes, and of its base, which is a needed backup when the run starts. A crash
//! leaves unused objects, which the next prune deletes. A chunk of the log is unused if its backup is not in this catalog: chunks are
//! written after their backup was added, and a number is never added again. A stale listing has the same effect.
//!
//! A backup whose archived log has later commits than all newer kept backups of its writer is kept. Usually an archiver continues this
//! log, and no other object contains these commits. If the last chunks of the log are damaged, the commits before them count.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::num::NonZeroUsize;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;

use crate::catalog::{BackupInfo, Catalog, CatalogStore};
use crate::error::Error;
use crate::log_chunk::{LOG, backup_of_chunk, readable_log};
use crate::manifest::{BackupManifest, DATA, MANIFESTS, run_of_object};

/// Number of objects that are deleted, or of manifests that are read, at the same time.
const CONCURRENCY: usize = 8;

/// The backups that [`BackupRepository::prune`](crate::BackupRepository::prune) keeps.
#[derive(Clone, Debug)]
pub struct Retention {
    /// Number of newest backups of each writer that are kept. An older one is kept, too, while its archived log has later commits than
    /// all newer kept backups of the writer.
    pub keep_last: NonZeroUsize,
    /// Backups that were created at this time or later are kept, too, in milliseconds since 1970-01-01 UTC.
    pub keep_since_ms: Option<u64>,
    /// The writer whose backups are removed. `None`: all writers.
    pub writer: Option<String>,
}

/// Result of [`BackupRepository::prune`](crate::BackupRepository::prune).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PruneSummary {
    /// Numbers of the removed backups.
    pub removed: Vec<u64>,
    /// Number of deleted objects.
    pub deleted_objects: u64,
    /// Total size of the deleted objects in bytes.
    pub deleted_bytes: u64,
}

/// Removes backups and deletes unused objects. See [`BackupRepository::prune`](crate::BackupRepository::prune).
pub(crate) async fn prune(
    catalog: &CatalogStore,
    retention: Retention,
) -> Result<PruneSummary, Error> {
    let removed = remove_backups(catalog, retention).await?;
    let listed = list_objects(catalog).await?;
    let newest = catalog.load().await?;
    let (needed, active) = (newest.needed_backups(), newest.active_runs());
    let used = used_objects(catalog, &needed).await?;
    let is_unused = |object: &Path| {
        if let Some(id) = backup_of_chunk(object) {
            return newest.backup(id).is_err();
        }
        match run_of_object(object) {
            Some(run) => !active.contains(&run) && !used.contains(object),
            None => manifest_number(object)
                .is_some_and(|id| !needed.contains(&id) && !active.contains(&id)),
        }
    };
    let mut summary = PruneSummary { removed, ..PruneSummary::default() };
    let mut unused = Vec::new();
    for (object, bytes) in listed.into_iter().filter(|(object, _)| is_unused(object)) {
        summary.deleted_objects += 1;
        summary.deleted_bytes += bytes;
        unused.push(Ok(object));
    }
    let mut deletions = catalog.store.delete_stream(stream::iter(unused).boxed());
    while let Some(deleted) = deletions.next().await {
        match deleted {
            // A stale listing contains objects that are deleted already.
            Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(Error::store("delete", "an unused object")(error)),
        }
    }
    Ok(summary)
}

/// Removes backups from the catalog.
async fn remove_backups(catalog: &CatalogStore, retention: Retention) -> Result<Vec<u64>, Error> {
    let before = catalog.load().await?;
    let mut expired = retention.expired_backups(&before);
    for live in backups_with_newest_log(catalog, before, &expired).await? {
        expired.remove(&live);
    }
    let mut removed = BTreeSet::new();
    let update = catalog.update(|catalog| {
        let of_catalog = catalog.backups.extract_if(.., |backup| expired.contains(&backup.id));
        removed.extend(of_catalog.map(|backup| backup.id));
        Ok(())
    });
    update.await?;
    Ok(removed.into_iter().collect())
}

impl Retention {
    /// Returns the numbers of the backups that are too old.
    fn expired_backups(&self, catalog: &Catalog) -> BTreeSet<u64> {
        let mut newer = BTreeMap::<&str, usize>::new();
        let mut expired = BTreeSet::new();
        let mut backups: Vec<_> = catalog.backups.iter().collect();
        backups.sort_by_key(|backup| std::cmp::Reverse(backup.id));
        for backup in backups {
            let newer = newer.entry(&backup.writer).or_default();
            *newer += 1;
            let is_recent =
                self.keep_since_ms.is_some_and(|since_ms| backup.created_ms >= since_ms);
            let is_other = self.writer.as_ref().is_some_and(|only| *only != backup.writer);
            if *newer > self.keep_last.get() && !is_recent && !is_other {
                expired.insert(backup.id);
            }
        }
        expired
    }
}

/// Returns the expired backups whose archived logs have later commits than all newer kept backups of their writers.
async fn backups_with_newest_log(
    catalog: &CatalogStore,
    before: Catalog,
    expired: &BTreeSet<u64>,
) -> Result<BTreeSet<u64>, Error> {
    let mut with_newest_log = BTreeSet::new();
    if expired.is_empty() {
        return Ok(with_newest_log);
    }
    let mut backups = before.backups;
    backups.sort_by_key(|backup| std::cmp::Reverse(backup.id));
    let with_log = async |info: BackupInfo| {
        // Damaged chunks must not prevent the removal of their backup. The commits before them can be restored.
        let (archived, _damage) = readable_log(&*catalog.store, info.id).await?;
        Ok::<_, Error>(BackupInfo { archived, ..info })
    };
    // Collected, because a stream with a closure that borrows would make the future of the caller not `Send`.
    let backups: Vec<_> = backups.into_iter().map(with_log).collect();
    let backups = stream::iter(backups).buffered(CONCURRENCY).try_collect::<Vec<_>>().await?;
    let mut newest_seqs = BTreeMap::<&str, Option<u64>>::new();
    for info in &backups {
        let newest_seq = newest_seqs.entry(&info.writer).or_default();
        let has_newest_log = info.archived.is_some_and(|log| Some(log.last_seq) > *newest_seq);
        if expired.contains(&info.id) && !has_newest_log {
            continue;
        }
        *newest_seq = info.last_restorable_seq().max(*newest_seq);
        if expired.contains(&info.id) {
            with_newest_log.insert(info.id);
        }
    }
    Ok(with_newest_log)
}

/// Returns the path and size of all objects below `data`, `backups` and `log`.
async fn list_objects(catalog: &CatalogStore) -> Result<Vec<(Path, u64)>, Error> {
    let mut objects = Vec::new();
    for prefix in [DATA, MANIFESTS, LOG].map(Path::from) {
        let listed = catalog.store.list(Some(&prefix));
        let listed = listed.map_ok(|meta| (meta.location, meta.size)).try_collect::<Vec<_>>().await;
        objects.extend(listed.map_err(Error::store("list", prefix))?);
    }
    Ok(objects)
}

/// Returns the objects that the manifests of these backups name.
async fn used_objects(
    catalog: &CatalogStore,
    backups: &BTreeSet<u64>,
) -> Result<HashSet<Path>, Error> {
    let store = &*catalog.store;
    // Collected, because a stream with a closure that borrows would make the future of the caller not `Send`.
    let manifests: Vec<_> = backups.iter().map(|&id| BackupManifest::read(store, id)).collect();
    let objects = stream::iter(manifests).buffer_unordered(CONCURRENCY).map_ok(|manifest| {
        stream::iter(manifest.files.into_iter().map(|file| Ok(file.object_path())))
    });
    objects.try_flatten().try_collect().await
}

fn manifest_number(object: &Path) -> Option<u64> {
    let mut parts = object.as_ref().split('/');
    (parts.next() == Some(MANIFESTS)).then(|| parts.next()?.parse().ok())?
}
