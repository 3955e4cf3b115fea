//! Deaths of the process at every call of the object store.

use std::collections::BTreeMap;

use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::fault_store::{Crash, FaultStore};
use super::point_in_time::{ArchivedDb, restored_to, writer_a};
use super::*;
use crate::catalog::Catalog;
use crate::log_chunk::{archived_log, chunk_path};
use crate::manifest::BackupManifest;
use crate::{Error, RestorePoint, VerifyDepth};

async fn catalog(inner: &Arc<InMemory>) -> Catalog {
    repository(FaultStore::new(inner)).catalog.load().await.unwrap()
}

/// Creates three backups and prunes. Stops at the first error. `expected` receives the contents of each backup that may exist.
async fn history(
    inner: &Arc<InMemory>,
    store: FaultStore,
    db: &TestDb,
    expected: &mut BTreeMap<u64, Contents>,
) -> Result<(), Error> {
    let repository = repository(store);
    for round in 0..3 {
        db.write(round);
        expected.insert(catalog(inner).await.last_id + 1, db.contents());
        repository.create(&db.db, &db.backup_options()).await?;
    }
    repository.prune(keep_last(2)).await?;
    repository.verify(Selection::Newest, VerifyDepth::Contents).await?;
    Ok(())
}

/// Checks that all objects except versions of the catalog belong to a backup.
async fn check_no_unused_objects(inner: &Arc<InMemory>, text: &str) {
    let store = FaultStore::new(inner);
    let mut used = Vec::new();
    for backup in catalog(inner).await.backups {
        used.push(BackupManifest::path(backup.id).to_string());
        let manifest = BackupManifest::read(&store, backup.id).await.unwrap();
        used.extend(manifest.files.into_iter().map(|file| file.object));
        let log = archived_log(&store, backup.id).await.unwrap();
        let chunks = 1..=log.map_or(0, |log| log.chunks);
        used.extend(chunks.map(|number| chunk_path(backup.id, number).to_string()));
    }
    let mut objects = store.paths().await;
    objects.retain(|path| !path.starts_with("catalog/"));
    used.sort();
    used.dedup();
    assert_eq!(objects, used, "{text}");
}

/// Checks that the contents of each file of a database are those that the path of its object names.
async fn check_contents(inner: &Arc<InMemory>, text: &str) {
    for path in FaultStore::new(inner).paths().await {
        let Some(name) = path.strip_prefix("data/").and_then(|path| path.split_once('/')) else {
            continue;
        };
        let found = inner.get(&path.as_str().into()).await.unwrap().bytes().await.unwrap();
        let expected = match name.1.split_at(1) {
            ("f", identity) => identity.ends_with(&format!("{:016x}", xxh3_64(&found))),
            (_, checksum) => checksum == format!("{:032x}", xxh3_128(&found)),
        };
        assert!(expected, "{text}: {path}");
    }
}

/// Returns crashes at the call, with and without its effect.
fn crashes_at(call: u64) -> [Crash; 2] {
    [true, false].map(|has_effect| Crash { call, has_effect })
}

#[test]
fn backups_survive_the_death_of_the_process_at_every_call() {
    run(async {
        let inner = Arc::new(InMemory::new());
        let store = FaultStore::new(&inner);
        history(&inner, store.clone(), &TestDb::new("a"), &mut BTreeMap::new()).await.unwrap();
        let calls = store.calls();
        assert!(calls > 30, "{calls}");
        assert!(store.uploads() > 3, "{}", store.uploads());
        for crash in (0..calls).flat_map(crashes_at) {
            let text = format!("{crash:?}");
            let (inner, db) = (Arc::new(InMemory::new()), TestDb::new("a"));
            let mut expected = BTreeMap::new();
            let store = FaultStore::new(&inner).with_crash(crash);
            history(&inner, store, &db, &mut expected).await.unwrap_err();
            check_contents(&inner, &text).await;
            let repository = repository(FaultStore::new(&inner));
            for backup in repository.backups().await.unwrap() {
                assert_eq!(restored(&repository, backup.id).await, expected[&backup.id], "{text}");
            }
            let info = repository.create(&db.db, &db.backup_options()).await.unwrap();
            assert_eq!(restored(&repository, info.id).await, db.contents(), "{text}");
            repository.prune(keep_last(1)).await.unwrap();
            assert_eq!(restored(&repository, info.id).await, db.contents(), "{text}");
            check_no_unused_objects(&inner, &text).await;
        }
    });
}

/// If one of several uploads failed, the others were dropped, and their parts remained in the store.
#[test]
fn backup_with_a_failed_call_leaves_no_open_upload_and_is_repeated() {
    for concurrency in [1, 4] {
        run(async {
            let transfer = TransferOptions { concurrency, ..TransferOptions::default() };
            for crash in (0..).flat_map(crashes_at) {
                let text = format!("{crash:?}, {concurrency} files at once");
                let (inner, db) = (Arc::new(InMemory::new()), TestDb::new("a"));
                for round in 0..4 {
                    db.write(round);
                }
                let store = FaultStore::new(&inner).with_failed_call(crash);
                let repository = repository(store.clone());
                let options = db.backup_options().transfer(transfer.clone());
                let _ = repository.create(&db.db, &options).await;
                assert_eq!(store.open_uploads(), 0, "{text}");
                check_contents(&inner, &text).await;
                if store.calls() <= crash.call {
                    assert!(store.uploads() > 1, "{text}");
                    break;
                }
                let info = repository.create(&db.db, &options).await.unwrap();
                assert_eq!(restored(&repository, info.id).await, db.contents(), "{text}");
                repository.prune(keep_last(1)).await.unwrap();
                check_no_unused_objects(&inner, &text).await;
            }
        });
    }
}

#[test]
fn upload_of_a_damaged_table_is_aborted_and_creates_no_object_at_every_call() {
    run(async {
        for crash in (0..).flat_map(crashes_at) {
            let text = format!("{crash:?}");
            let (inner, db) = (Arc::new(InMemory::new()), TestDb::new("a"));
            let table =
                db.vfs.paths().into_iter().find(|path| path.extension() == Some("sst".as_ref()));
            db.vfs.flip_bits(&table.unwrap(), 100, 1).unwrap();
            let store = FaultStore::new(&inner).with_crash(crash);
            let failed = repository(store.clone()).create(&db.db, &db.backup_options()).await;
            check_contents(&inner, &text).await;
            if store.calls() <= crash.call {
                assert!(matches!(failed, Err(Error::DamagedFile { .. })), "{failed:?}");
                assert_eq!((store.uploads(), store.open_uploads()), (1, 0));
                break;
            }
            assert!(failed.is_err(), "{text}");
            let backups = repository(FaultStore::new(&inner)).backups().await.unwrap();
            assert_eq!(backups, [], "{text}");
        }
    });
}

/// A run that is still in the catalog may use the objects of its base until it ends.
#[test]
fn prune_keeps_objects_of_a_removed_backup_that_is_the_base_of_a_run() {
    run(async {
        let inner = Arc::new(InMemory::new());
        let repository = repository(FaultStore::new(&inner));
        let (first, second) = (TestDb::new("a"), TestDb::new("a"));
        repository.create(&first.db, &first.backup_options()).await.unwrap();
        let base = BackupManifest::read(&FaultStore::new(&inner), 1).await.unwrap();
        // The run reads the catalog, writes it, and dies while it reads the manifest of its base.
        let crash = Crash { call: 4, has_effect: false };
        let interrupted = super::repository(FaultStore::new(&inner).with_crash(crash));
        let copy = first.copy("b");
        interrupted.create(&copy.db, &copy.backup_options()).await.unwrap_err();
        assert_eq!(catalog(&inner).await.runs[0].base, Some(1));

        repository.create(&second.db, &second.backup_options()).await.unwrap();
        assert_eq!(repository.prune(keep_last(1)).await.unwrap().removed, [1]);
        let paths = FaultStore::new(&inner).paths().await;
        assert!(base.files.iter().all(|file| paths.contains(&file.object)), "{paths:?}");

        repository.create(&copy.db, &copy.backup_options()).await.unwrap();
        repository.prune(keep_last(1)).await.unwrap();
        check_no_unused_objects(&inner, "after the run").await;
    });
}

#[test]
fn interrupted_run_is_resumed_without_uploading_its_files_again() {
    run(async {
        let (inner, db) = (Arc::new(InMemory::new()), TestDb::new("a"));
        for round in 0..4 {
            db.write(round * 2);
        }
        // The last calls of a run: the manifest, the search for the newest catalog, its new version.
        let counted = FaultStore::new(&Arc::new(InMemory::new()));
        repository(counted.clone()).create(&db.db, &db.backup_options()).await.unwrap();
        let crash = Crash { call: counted.calls() - 3, has_effect: false };
        let store = FaultStore::new(&inner).with_crash(crash);
        repository(store).create(&db.db, &db.backup_options()).await.unwrap_err();
        let info =
            repository(FaultStore::new(&inner)).create(&db.db, &db.backup_options()).await.unwrap();
        assert_eq!(info.id, 2);
        // Each checkpoint encodes the log and the manifest again.
        assert!(info.uploaded_bytes * 2 < info.bytes, "{info:?}");
    });
}

/// Archives commits, changes the structure, prunes and restores. Stops at the first error. Returns the last sequence number that the
/// archiver reported.
async fn archived_history(
    store: FaultStore,
    db: &mut ArchivedDb,
    archived: &mut u64,
) -> Result<(), Error> {
    let repository = repository(store);
    for round in 0..5_u64 {
        db.put("key", &round.to_string());
        db.put(&format!("key {round}"), "value");
        if round == 3 {
            drop(db.db.keyspace("users", KeyspaceOptions::default()).unwrap());
            db.put("key", "after the change");
        }
        db.db.sync().unwrap();
        *archived = db.archiver.run_once(&repository).await?.last_seq;
    }
    repository.prune(keep_last(1)).await?;
    restored_to(&repository, RestorePoint::Newest).await?;
    db.put("key", "last");
    db.db.sync().unwrap();
    *archived = db.archiver.run_once(&repository).await?.last_seq;
    Ok(())
}

#[test]
fn archive_survives_the_death_of_the_process_and_failed_calls_at_every_call() {
    run(async {
        let inner = Arc::new(InMemory::new());
        let store = FaultStore::new(&inner);
        archived_history(store.clone(), &mut ArchivedDb::new(), &mut 0).await.unwrap();
        let calls = store.calls();
        assert!(calls > 60, "{calls}");
        for crash in (0..calls).flat_map(crashes_at) {
            let text = format!("{crash:?}");
            let (inner, mut db) = (Arc::new(InMemory::new()), ArchivedDb::new());
            let (mut archived, store) = (0, FaultStore::new(&inner).with_crash(crash));
            archived_history(store, &mut db, &mut archived).await.unwrap_err();
            let repository = repository(FaultStore::new(&inner));
            if archived > 0 {
                let found = restored_to(&repository, RestorePoint::Commit(archived)).await;
                assert_eq!(found.unwrap(), db.states[&archived], "{text}");
                let found = restored_to(&repository, RestorePoint::Newest).await.unwrap();
                let mut later = db.states.range(archived..).map(|(_, state)| state);
                assert!(later.any(|state| *state == found), "{text}");
            }
            // The same process continues, and then another one.
            for _ in 0..2 {
                db.put("key", "continued");
                let summary = db.archive(&repository).await;
                let newest = db.record_state();
                assert_eq!(summary.last_seq, newest, "{text}");
                let found = restored_to(&repository, RestorePoint::Newest).await.unwrap();
                assert_eq!(found, db.states[&newest], "{text}");
                db.restart_archiver();
            }
            repository.verify(writer_a(), VerifyDepth::Contents).await.unwrap();
            repository.prune(keep_last(1)).await.unwrap();
            check_no_unused_objects(&inner, &text).await;
        }
    });
}
