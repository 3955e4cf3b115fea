//! Backups and restores without faults.

use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};

use futures_util::TryStreamExt;
use lsmx::internals::vfs::{MemOperation, MemOperationKind};
use lsmx::vfs::{CrashImage, MemVfs, Vfs};
use lsmx::{Db, Options};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::point_in_time::{ArchivedDb, writer_a};
use super::*;
use crate::manifest::BackupManifest;
use crate::{Error, Progress, RestorePoint, VerifyDepth};

#[test]
fn each_backup_restores_its_state_and_uploads_only_new_files() {
    run(async {
        let db = TestDb::new("a");
        let repository = repository(InMemory::new());
        let mut expected = Vec::new();
        for round in 0..6 {
            db.write(round);
            let info = repository.create(&db.db, &db.backup_options()).await.unwrap();
            assert_eq!(info.id, u64::from(round) + 1);
            expected.push((info, db.contents()));
        }
        assert!(expected[5].0.uploaded_bytes < expected[5].0.bytes / 2, "{:?}", expected[5].0);
        for (info, contents) in &expected {
            assert_eq!(restored(&repository, info.id).await, *contents, "backup {}", info.id);
        }
        let listed = repository.backups().await.unwrap();
        assert!(listed.iter().eq(expected.iter().map(|(info, _)| info)));
        assert!(!db.vfs.exists(std::path::Path::new("staging")).unwrap());
    });
}

#[test]
fn prune_keeps_the_newest_backups_of_each_writer_and_recent_ones() {
    run(async {
        let store = Arc::new(InMemory::new());
        let repository = BackupRepository::new(Arc::clone(&store) as Arc<dyn ObjectStore>);
        let (a, b) = (TestDb::new("a"), TestDb::new("b"));
        for round in 0..3 {
            for db in [&a, &b] {
                db.write(round);
                repository.create(&db.db, &db.backup_options()).await.unwrap();
            }
        }
        let oldest = repository.backups().await.unwrap()[0].created_ms;
        let recent = Retention { keep_since_ms: Some(oldest), ..keep_last(1) };
        assert_eq!(repository.prune(recent).await.unwrap(), crate::PruneSummary::default());
        let of_a = Retention { writer: Some("a".to_owned()), ..keep_last(2) };
        assert_eq!(repository.prune(of_a).await.unwrap().removed, [1]);
        let pruned = repository.prune(keep_last(1)).await.unwrap();
        assert_eq!(pruned.removed, [2, 3, 4]);
        assert!(pruned.deleted_objects > 3 && pruned.deleted_bytes > 0, "{pruned:?}");
        assert_eq!(restored(&repository, 5).await, a.contents());
        assert_eq!(restored(&repository, 6).await, b.contents());
        let newest = |writer: &str| Selection::NewestOf(writer.to_owned());
        assert_eq!(repository.verify(newest("a"), VerifyDepth::Sizes).await.unwrap().id, 5);
        let unknown = repository.verify(newest("c"), VerifyDepth::Sizes).await.unwrap_err();
        assert_eq!(unknown.to_string(), "the repository has no backups of the writer \"c\"");
        let missing = repository.verify(Selection::Id(4), VerifyDepth::Sizes).await.unwrap_err();
        assert_eq!(missing.to_string(), "the repository has no backup 4");
        assert_eq!(repository.prune(keep_last(1)).await.unwrap().deleted_objects, 0);
    });
}

#[test]
fn empty_repository_has_no_backups() {
    run(async {
        let repository = repository(InMemory::new());
        assert_eq!(repository.backups().await.unwrap(), []);
        let restored = repository
            .restore(Selection::Newest, "copy", &RestoreOptions::default())
            .await
            .unwrap_err();
        assert!(matches!(restored, Error::NoBackups), "{restored}");
    });
}

#[test]
fn directory_restores_after_a_change_of_each_object_or_names_the_damaged_object() {
    run(async {
        let home = tempfile::tempdir().unwrap();
        let store = LocalFileSystem::new_with_prefix(home.path()).unwrap().with_fsync(true);
        let store: Arc<dyn ObjectStore> = Arc::new(store);
        let db = TestDb::new("a");
        db.write(0);
        db.write(1);
        let repository = BackupRepository::new(Arc::clone(&store));
        repository.create(&db.db, &db.backup_options()).await.unwrap();
        let objects: Vec<Path> =
            store.list(None).map_ok(|meta| meta.location).try_collect().await.unwrap();
        assert!(objects.len() > 5, "{objects:?}");
        for object in objects {
            let bytes = store.get(&object).await.unwrap().bytes().await.unwrap();
            let mut damaged = bytes.to_vec();
            let middle = damaged.len() / 2;
            damaged[middle] ^= 0x10;
            for damaged in [damaged, bytes[..middle].to_vec()] {
                store.put(&object, damaged.into()).await.unwrap();
                // A repository reads the catalog once.
                let repository = BackupRepository::new(Arc::clone(&store));
                let vfs = MemVfs::new();
                let restore = RestoreOptions::default().vfs(Arc::new(vfs.clone()));
                let restored = repository.restore(Selection::Newest, "copy", &restore).await;
                match restored {
                    Err(Error::Damaged { object: found, .. }) => {
                        assert_eq!(found, object.to_string());
                    }
                    // An older version of the catalog.
                    Ok(_) => assert_eq!(object.filename(), Some("0000000001"), "{object}"),
                    Err(error) => panic!("{object}: {error}"),
                }
                let is_manifest = !object.as_ref().starts_with("data");
                let verified = repository.verify(Selection::Newest, VerifyDepth::Contents).await;
                assert!(verified.is_err() || is_manifest, "{object}");
            }
            store.put(&object, bytes.into()).await.unwrap();
        }
        assert_eq!(restored(&repository, 1).await, db.contents());
    });
}

#[test]
fn restore_reports_progress_and_refuses_a_directory_with_files() {
    run(async {
        let db = TestDb::new("a");
        db.write(0);
        let repository = repository(InMemory::new());
        let seen = Arc::new(Mutex::new(Progress::default()));
        let callback = {
            let seen = Arc::clone(&seen);
            Arc::new(move |progress| *seen.lock().unwrap() = progress)
        };
        let transfer = TransferOptions {
            bytes_per_s: NonZeroU64::new(1 << 30),
            progress: Some(callback),
            ..TransferOptions::default()
        };
        let options = db.backup_options().transfer(transfer);
        let info = repository.create(&db.db, &options).await.unwrap();
        let last = *seen.lock().unwrap();
        assert_eq!((last.bytes, last.bytes_total), (info.bytes, info.bytes));
        assert_eq!((last.files, last.files_total), (info.files, info.files));
        let vfs = MemVfs::new();
        vfs.create_dir("copy".as_ref()).unwrap();
        vfs.create("copy/other".as_ref()).unwrap();
        let restore = RestoreOptions::default().vfs(Arc::new(vfs.clone()));
        let refused = repository.restore(Selection::Newest, "copy", &restore).await.unwrap_err();
        assert_eq!(refused.to_string(), r#"the target copy is not empty: it contains "other""#);
        assert_eq!(vfs.list("copy".as_ref()).unwrap(), ["other"]);
    });
}

#[test]
fn backup_after_a_damaged_one_uploads_all_files() {
    run(async {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let repository = BackupRepository::new(Arc::clone(&store));
        let db = TestDb::new("a");
        repository.create(&db.db, &db.backup_options()).await.unwrap();
        let manifest = crate::manifest::BackupManifest::path(1);
        store.put(&manifest, "damaged".into()).await.unwrap();
        let info = repository.create(&db.db, &db.backup_options()).await.unwrap();
        assert_eq!(info.uploaded_bytes, info.bytes);
        assert_eq!(restored(&repository, 2).await, db.contents());
    });
}

/// All later backups named the object, so that none of them could be restored.
#[test]
fn missing_or_truncated_object_of_the_previous_backup_is_uploaded_again() {
    run(async {
        let home = tempfile::tempdir().unwrap();
        let stores: [Arc<dyn ObjectStore>; 2] = [
            Arc::new(InMemory::new()),
            Arc::new(LocalFileSystem::new_with_prefix(home.path()).unwrap()),
        ];
        for store in stores {
            let repository = BackupRepository::new(Arc::clone(&store));
            let db = TestDb::new("a");
            let mut info = repository.create(&db.db, &db.backup_options()).await.unwrap();
            for is_missing in [true, false] {
                let manifest = BackupManifest::read(&*store, info.id).await.unwrap();
                let table = manifest.files.iter().find(|file| file.name.ends_with(".sst")).unwrap();
                let object = table.object_path();
                match is_missing {
                    true => store.delete(&object).await.unwrap(),
                    false => {
                        let bytes = store.get(&object).await.unwrap().bytes().await.unwrap();
                        let truncated = bytes.slice(..bytes.len() / 2);
                        store.put(&object, truncated.into()).await.unwrap();
                    }
                }
                info = repository.create(&db.db, &db.backup_options()).await.unwrap();
                assert!(info.uploaded_bytes >= table.bytes, "{info:?}");
                assert_eq!(restored(&repository, info.id).await, db.contents());
                // The next backup uses the new object.
                info = repository.create(&db.db, &db.backup_options()).await.unwrap();
                assert!(info.uploaded_bytes < table.bytes, "{info:?}");
                assert_eq!(restored(&repository, info.id).await, db.contents());
            }
        }
    });
}

#[test]
fn damaged_table_of_the_database_is_not_backed_up() {
    run(async {
        let db = TestDb::new("a");
        db.write(0);
        let repository = repository(InMemory::new());
        let table =
            db.vfs.paths().into_iter().find(|path| path.extension() == Some("sst".as_ref()));
        db.vfs.flip_bits(&table.unwrap(), 100, 1).unwrap();
        let failed = repository.create(&db.db, &db.backup_options()).await.unwrap_err();
        assert!(matches!(failed, Error::DamagedFile { .. }), "{failed}");
        assert_eq!(repository.backups().await.unwrap(), []);
    });
}

#[test]
fn second_run_with_the_same_staging_directory_is_refused() {
    run(async {
        let db = TestDb::new("a");
        let vfs: Arc<dyn Vfs> = Arc::new(db.vfs.clone());
        let _running = crate::staging::Staging::claim(vfs, "staging".as_ref()).unwrap();
        let refused =
            repository(InMemory::new()).create(&db.db, &db.backup_options()).await.unwrap_err();
        assert!(matches!(refused, Error::StagingInUse { .. }), "{refused}");
    });
}

/// A backup deleted a checkpoint of a user, because its directory had the name of the staging directory.
#[test]
fn checkpoint_of_a_user_in_the_staging_directory_is_refused_and_kept() {
    run(async {
        let db = TestDb::new("a");
        db.write(1);
        db.vfs.create_dir("staging".as_ref()).unwrap();
        db.db.checkpoint("staging/checkpoint").unwrap();
        let repository = repository(InMemory::new());
        for _ in 0..2 {
            let refused = repository.create(&db.db, &db.backup_options()).await.unwrap_err();
            let text = "the target staging is not empty: it contains \"checkpoint\"";
            assert_eq!(refused.to_string(), text);
        }
        let copy = Db::open("staging/checkpoint", options(&db.vfs)).unwrap();
        assert_eq!(contents(&copy), db.contents());
    });
}

#[test]
fn checkpoint_of_an_interrupted_run_is_removed_unless_it_is_open() {
    run(async {
        let db = TestDb::new("a");
        let vfs: Arc<dyn Vfs> = Arc::new(db.vfs.clone());
        let interrupted = crate::staging::Staging::claim(vfs, "staging".as_ref()).unwrap();
        db.db.checkpoint(interrupted.checkpoint()).unwrap();
        db.vfs.sync_dir(".".as_ref()).unwrap();
        // A power loss ends the run.
        let vfs = db.vfs.crash(CrashImage::Drop, 0);
        let db = TestDb { db: Db::open("db", options(&vfs)).unwrap(), vfs, writer: "a" };
        let repository = repository(InMemory::new());
        let open = Db::open("staging/checkpoint", options(&db.vfs)).unwrap();
        let refused = repository.create(&db.db, &db.backup_options()).await.unwrap_err();
        assert!(matches!(refused, Error::Engine(lsmx::Error::Locked { .. })), "{refused}");
        assert_eq!(contents(&open), db.contents());
        open.close(None).unwrap();
        repository.create(&db.db, &db.backup_options()).await.unwrap();
        assert!(!db.vfs.exists("staging".as_ref()).unwrap());
    });
}

/// A power loss at each operation of a restore leaves no database or the whole one, and the next call completes the restore.
#[test]
fn restore_continues_after_power_loss_at_each_operation() {
    run(async {
        let db = TestDb::new("a");
        db.write(0);
        db.write(1);
        let repository = repository(InMemory::new());
        // A part of this number is another number.
        set_last_id(&repository, 11).await;
        repository.create(&db.db, &db.backup_options()).await.unwrap();
        let vfs = MemVfs::new();
        let crashes = Arc::new(Mutex::new(Vec::new()));
        let observer = {
            let crashes = Arc::clone(&crashes);
            move |vfs: &MemVfs, operation: MemOperation<'_>| {
                for image in CrashImage::ALL {
                    let text = format!("{image:?} before {operation:?}");
                    crashes.lock().unwrap().push((text, vfs.crash(image, operation.index)));
                }
            }
        };
        vfs.set_observer(Some(Arc::new(observer)));
        let restore = |vfs: &MemVfs| RestoreOptions::default().vfs(Arc::new(vfs.clone()));
        repository.restore(Selection::Newest, "copy", &restore(&vfs)).await.unwrap();
        vfs.set_observer(None);
        let crashes = std::mem::take(&mut *crashes.lock().unwrap());
        assert!(crashes.len() > 100, "{}", crashes.len());
        for (text, vfs) in crashes {
            let must_exist = options(&vfs).create_if_missing(false).read_only(true);
            if let Ok(db_copy) = Db::open("copy", must_exist) {
                assert_eq!(contents(&db_copy), db.contents(), "{text}");
            }
            let restored = repository.restore(Selection::Newest, "copy", &restore(&vfs)).await;
            match restored {
                Ok(_) => {}
                // The restore was complete.
                Err(Error::TargetNotEmpty { .. }) => {
                    assert!(!vfs.exists("copy/RESTORE".as_ref()).unwrap(), "{text}");
                }
                Err(error) => panic!("{text}: {error}"),
            }
            lsmx::verify("copy", &Options::default().vfs(Arc::new(vfs.clone()))).unwrap();
            assert_eq!(
                contents(&Db::open("copy", options(&vfs)).unwrap()),
                db.contents(),
                "{text}"
            );
        }
    });
}

/// After a power loss, "1" remained of the marker of the backup 12. The next restore of the backup 12 was refused.
#[test]
fn restore_continues_after_power_loss_with_a_torn_marker() {
    run(async {
        let repository = repository(InMemory::new());
        set_last_id(&repository, 11).await;
        let mut db = ArchivedDb::new();
        db.archive(&repository).await;
        let commit = db.put("key", "value");
        db.archive(&repository).await;
        for point in [RestorePoint::Backup, RestorePoint::Commit(commit), RestorePoint::Newest] {
            let restore = |vfs: &MemVfs| {
                let restore = RestoreOptions::default().vfs(Arc::new(vfs.clone())).to(point);
                restore.transfer(one_at_a_time())
            };
            let vfs = MemVfs::new();
            let crashes = Arc::new(Mutex::new(Vec::new()));
            let observer = {
                let crashes = Arc::clone(&crashes);
                move |vfs: &MemVfs, operation: MemOperation<'_>| {
                    if operation.path.ends_with("RESTORE") {
                        match operation.kind {
                            // A file system may make a name durable before the contents.
                            MemOperationKind::Append => vfs.sync_dir("copy".as_ref()).unwrap(),
                            MemOperationKind::Sync => {
                                let crash = |seed| vfs.crash(CrashImage::Torn, seed);
                                crashes.lock().unwrap().extend((0..64).map(crash));
                            }
                            _ => {}
                        }
                    }
                }
            };
            vfs.set_observer(Some(Arc::new(observer)));
            repository.restore(writer_a(), "copy", &restore(&vfs)).await.unwrap();
            vfs.set_observer(None);
            let crashes = std::mem::take(&mut *crashes.lock().unwrap());
            let mut sizes = std::collections::BTreeSet::new();
            for vfs in crashes {
                sizes.insert(vfs.open("copy/RESTORE".as_ref()).unwrap().len().unwrap());
                repository.restore(writer_a(), "copy", &restore(&vfs)).await.unwrap();
                lsmx::verify("copy", &options(&vfs)).unwrap();
            }
            assert!(sizes.len() > 5, "{sizes:?}");
        }
    });
}
