//! Restores with damaged chunks of the archived log: each is exact, or fails with an error that names the damage.

use std::sync::atomic::Ordering;

use object_store::ObjectStoreExt;
use object_store::memory::InMemory;

use super::point_in_time::{
    ArchivedDb, database_before_second_backup, planned_seq, restored_to, writer_a,
};
use super::*;
use crate::log_chunk::read_header;
use crate::{Error, RestorePoint, VerifyDepth};

#[test]
fn changed_truncated_or_missing_chunk_is_an_error_that_names_it() {
    run(async {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let repository = BackupRepository::new(Arc::clone(&store));
        let mut db = ArchivedDb::new();
        for round in 0..5 {
            db.put("key", &format!("{round:0300}"));
            db.archive(&repository).await;
        }
        let newest = *db.states.keys().next_back().unwrap();
        let chunks: Vec<_> =
            (1..=4).map(|number| crate::log_chunk::chunk_path(1, number)).collect();
        for object in &chunks {
            let bytes = store.get(object).await.unwrap().bytes().await.unwrap();
            let mut versions =
                vec![None, Some(bytes.slice(..bytes.len() - 1)), Some(bytes.slice(..0))];
            for at in (0..bytes.len()).step_by(7) {
                let mut damaged = bytes.to_vec();
                damaged[at] ^= 0x10;
                versions.push(Some(damaged.into()));
            }
            for (number, version) in versions.into_iter().enumerate() {
                match version {
                    None => store.delete(object).await.unwrap(),
                    Some(damaged) => drop(store.put(object, damaged.into()).await.unwrap()),
                }
                let text = format!("{object}, version {number}");
                let is_last = object == &chunks[3];
                for point in [RestorePoint::Newest, RestorePoint::Commit(newest)] {
                    match restored_to(&repository, point).await {
                        Err(Error::Damaged { object: named, .. }) => {
                            assert_eq!(named, object.to_string(), "{text}");
                        }
                        // Without the last chunk, the archive ends earlier.
                        Ok(found) if number == 0 && is_last && point == RestorePoint::Newest => {
                            let earlier = db.states.values().rev().nth(1).unwrap();
                            assert_eq!(found, *earlier, "{text}");
                        }
                        Err(Error::CommitNotArchived { .. }) if number == 0 && is_last => {}
                        other => panic!("{text}: {other:?}"),
                    }
                }
                let verified = repository.verify(writer_a(), VerifyDepth::Contents).await;
                assert!(verified.is_err() || (number == 0 && is_last), "{text}");
                if number < 3 {
                    let verified = repository.verify(writer_a(), VerifyDepth::Sizes).await;
                    assert!(verified.is_err() || (number == 0 && is_last), "{text}");
                }
            }
            store.put(object, bytes.into()).await.unwrap();
        }
        // A chunk of another position.
        let third = store.get(&chunks[2]).await.unwrap().bytes().await.unwrap();
        store.put(&chunks[1], third.into()).await.unwrap();
        let error = restored_to(&repository, RestorePoint::Newest).await.unwrap_err();
        assert!(error.to_string().ends_with("it is chunk 3 of the backup 1"), "{error}");
    });
}

/// A damaged last chunk of an old backup prevented the list of all backups and restores of newer ones.
#[test]
fn damaged_last_chunk_prevents_only_restores_that_need_it() {
    run(async {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let repository = BackupRepository::new(Arc::clone(&store));
        let mut db = ArchivedDb::new();
        let mut seqs = Vec::new();
        for round in 0..6 {
            if round == 3 {
                db.restart_archiver();
            }
            seqs.push(db.put("key", &round.to_string()));
            db.archive(&repository).await;
        }
        // The archive of backup 1 has the commits 1 and 2, that of backup 2 has the commits 4 and 5.
        let intact = repository.backups().await.unwrap();
        let damage = |backup| {
            let object = crate::log_chunk::chunk_path(backup, 2);
            let store = &store;
            async move {
                store.put(&object, "damaged".into()).await.unwrap();
                object.to_string()
            }
        };
        let expected = |round: usize| &db.states[&seqs[round]];
        let first = damage(1).await;
        let listed = repository.backups().await.unwrap();
        assert!(listed[0].log_damage.as_ref().unwrap().contains(&first), "{listed:?}");
        assert_eq!(listed[0].archived.unwrap().last_seq, seqs[1]);
        assert_eq!(listed[1], intact[1]);
        for (point, round) in [
            (RestorePoint::Newest, 5),
            (RestorePoint::Time(1_060), 5),
            (RestorePoint::Time(1_040), 3),
            (RestorePoint::Time(1_010), 0),
            (RestorePoint::Commit(seqs[5]), 5),
            (RestorePoint::Commit(seqs[1]), 1),
            (RestorePoint::Commit(seqs[0]), 0),
        ] {
            let found = restored_to(&repository, point).await.unwrap();
            assert_eq!(found, *expected(round), "{point:?}");
        }
        let refused = |point, named: String| {
            let repository = &repository;
            async move {
                match restored_to(repository, point).await {
                    Err(Error::Damaged { object, .. }) => assert_eq!(object, named, "{point:?}"),
                    other => panic!("{point:?}: {other:?}"),
                }
            }
        };
        refused(RestorePoint::Commit(seqs[2]), first.clone()).await;
        refused(RestorePoint::Time(1_030), first).await;
        let second = damage(2).await;
        refused(RestorePoint::Newest, second.clone()).await;
        refused(RestorePoint::Commit(seqs[5]), second).await;
        let found = restored_to(&repository, RestorePoint::Commit(seqs[4])).await.unwrap();
        assert_eq!(found, *expected(4));
        // The backup itself does not need its log.
        assert_eq!(restored_to(&repository, RestorePoint::Backup).await.unwrap(), *expected(3));
    });
}

/// If the last two chunks of a log were damaged, the log counted as empty, and no commit of it could be restored.
#[test]
fn damaged_last_chunks_prevent_only_restores_that_need_them() {
    run(async {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let repository = BackupRepository::new(Arc::clone(&store));
        let mut db = ArchivedDb::new();
        db.archive(&repository).await;
        let mut seqs = Vec::new();
        for round in 1..=5 {
            seqs.push(db.put("key", &round.to_string()));
            db.archive(&repository).await;
        }
        let damaged = [3, 4, 5].map(|number| crate::log_chunk::chunk_path(1, number));
        for object in &damaged {
            store.put(object, "damaged".into()).await.unwrap();
        }
        let listed = repository.backups().await.unwrap();
        assert_eq!(listed[0].archived.unwrap().chunks, 2);
        assert!(listed[0].log_damage.is_some(), "{listed:?}");
        // The chunk with the commit of round `n` has the time 1,010 + 10 n. The damaged chunks may have the time of the chunk before them.
        for (point, round) in [
            (RestorePoint::Commit(seqs[0]), Some(1)),
            (RestorePoint::Commit(seqs[1]), Some(2)),
            (RestorePoint::Commit(seqs[2]), None),
            (RestorePoint::Commit(seqs[4]), None),
            (RestorePoint::Time(1_029), Some(1)),
            (RestorePoint::Time(1_030), None),
            (RestorePoint::Newest, None),
        ] {
            match (restored_to(&repository, point).await, round) {
                (Ok(found), Some(round)) => {
                    assert_eq!(found, db.states[&seqs[round - 1]], "{point:?}");
                }
                (Err(Error::Damaged { object, .. }), None) => {
                    assert!(damaged.iter().any(|path| path.to_string() == object), "{object}");
                }
                (other, _) => panic!("{point:?}: {other:?}"),
            }
        }
    });
}

/// A damaged chunk in the middle of a log prevented restores to earlier commits and times.
#[test]
fn damaged_chunk_in_the_middle_prevents_only_restores_that_need_it() {
    const DAMAGED: u64 = 4;
    run(async {
        for is_missing in [false, true] {
            let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
            let repository = BackupRepository::new(Arc::clone(&store));
            let mut db = ArchivedDb::new();
            db.archive(&repository).await;
            let mut seqs = Vec::new();
            for round in 1..=8 {
                seqs.push(db.put("key", &round.to_string()));
                db.archive(&repository).await;
            }
            // The first chunk that a search reads.
            let object = crate::log_chunk::chunk_path(1, DAMAGED);
            match is_missing {
                true => store.delete(&object).await.unwrap(),
                false => drop(store.put(&object, "damaged".into()).await.unwrap()),
            }
            let check = async |point, expected: Option<u64>| match (
                restored_to(&repository, point).await,
                expected,
            ) {
                (Ok(found), Some(seq)) => assert_eq!(found, db.states[&seq], "{point:?}"),
                (Err(Error::Damaged { object: named, .. }), None) => {
                    assert_eq!(named, object.to_string(), "{point:?}");
                }
                (other, _) => panic!("{point:?}: {other:?}"),
            };
            for (chunk, &seq) in (1..).zip(&seqs) {
                check(RestorePoint::Commit(seq), (chunk < DAMAGED).then_some(seq)).await;
                // The damaged chunk may have the time of the chunk before it.
                let is_certain = chunk + 1 < DAMAGED;
                let time_ms = 1_010 + 10 * chunk;
                check(RestorePoint::Time(time_ms), is_certain.then_some(seq)).await;
            }
            // A newer backup has a newer state than the readable part of the log.
            repository.create(&db.db, &db.second_backup_options()).await.unwrap();
            let newest = seqs[7];
            check(RestorePoint::Newest, Some(newest)).await;
            db.put("key", "later");
            db.archive(&repository).await;
            let time_ms = db.clock_ms.load(Ordering::Relaxed) - 1;
            let found = restored_to(&repository, RestorePoint::Time(time_ms)).await.unwrap();
            assert_eq!(found, db.states[&newest]);
        }
    });
}

/// After a search had found a damaged chunk, a restore to a time selected another backup, although intact headers of later chunks proved
/// that its state is older.
#[test]
fn restore_to_a_time_with_a_damaged_chunk_is_exact_or_an_error() {
    run(async {
        // The second backup is created between the chunks 8 and 9, or between two commits of chunk 9.
        for is_inside_chunk in [false, true] {
            let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
            let repository = BackupRepository::new(Arc::clone(&store));
            let mut db = ArchivedDb::with_limits(|options| options.chunk_bytes = 10_000);
            db.archive(&repository).await;
            let mut chunk_times_ms = vec![db.clock_ms.load(Ordering::Relaxed)];
            for chunk in 1..=17 {
                if chunk == 9 {
                    if is_inside_chunk {
                        db.put("key", "in both");
                    }
                    // The backup starts after the time of chunk 8.
                    db.clock_ms.fetch_add(3, Ordering::Relaxed);
                    repository.create(&db.db, &db.second_backup_options()).await.unwrap();
                }
                db.put("key", &chunk.to_string());
                assert_eq!(db.archive(&repository).await.chunks, 1);
                chunk_times_ms.push(db.clock_ms.load(Ordering::Relaxed));
            }
            let times_ms = (1_000..=chunk_times_ms[17] + 1).chain([u64::MAX]);
            let mut expected = Vec::new();
            for time_ms in times_ms {
                expected.push((time_ms, planned_seq(&repository, time_ms).await.unwrap()));
            }
            for damaged in 1..=17 {
                let object = crate::log_chunk::chunk_path(1, damaged as u64);
                let intact = store.get(&object).await.unwrap().bytes().await.unwrap();
                store.put(&object, "damaged".into()).await.unwrap();
                for &(time_ms, expected) in &expected {
                    let text = format!("damaged chunk {damaged}, time {time_ms}");
                    match planned_seq(&repository, time_ms).await {
                        Ok(found) => assert_eq!(found, expected, "{text}"),
                        Err(Error::Damaged { object: named, .. }) => {
                            assert_eq!(named, object.to_string(), "{text}");
                            // The damaged chunk may have the time of the chunk before it.
                            assert!(time_ms >= chunk_times_ms[damaged - 1], "{text}");
                        }
                        Err(error) => panic!("{text}: {error}"),
                    }
                }
                store.put(&object, intact.into()).await.unwrap();
            }
        }
    });
}

/// A restore to a commit failed if the newest archive with the commit had a damaged chunk, although an older archive contains the commit.
#[test]
fn commit_of_two_archives_can_be_restored_if_one_is_damaged() {
    run(async {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let repository = BackupRepository::new(Arc::clone(&store));
        let (mut db, written, _) = database_before_second_backup(&repository).await;
        assert!(written.set(db.db.clone()).is_ok());
        db.archive(&repository).await;
        let backups = repository.backups().await.unwrap();
        let last_seqs = backups.iter().map(|info| info.archived.unwrap().last_seq);
        let overlap = backups[1].last_seq.unwrap() + 1..=last_seqs.min().unwrap();
        let mut expected = Vec::new();
        for seq in overlap {
            let found = restored_to(&repository, RestorePoint::Commit(seq)).await.unwrap();
            expected.push((seq, found));
        }
        let chunk = |backup, number| crate::log_chunk::chunk_path(backup, number);
        let second = read_header(&*store, 2, 2).await.unwrap().unwrap();
        assert!(second.last_seq <= expected.last().unwrap().0, "{second:?}");
        for number in 1..=2 {
            let object = chunk(2, number);
            let intact = store.get(&object).await.unwrap().bytes().await.unwrap();
            let mut other_contents = intact.to_vec();
            *other_contents.last_mut().unwrap() ^= 1;
            for damaged in [b"damaged".to_vec(), other_contents] {
                store.put(&object, damaged.into()).await.unwrap();
                for (seq, expected) in &expected {
                    let found = restored_to(&repository, RestorePoint::Commit(*seq)).await.unwrap();
                    assert_eq!(found, *expected, "{object}, commit {seq}");
                }
            }
            store.put(&object, intact.into()).await.unwrap();
        }
        for backup in [1, 2] {
            store.put(&chunk(backup, 1), "damaged".into()).await.unwrap();
        }
        for (seq, _) in expected {
            let refused = restored_to(&repository, RestorePoint::Commit(seq)).await.unwrap_err();
            assert!(matches!(refused, Error::Damaged { .. }), "commit {seq}: {refused}");
        }
    });
}

/// A restored database continues under the name of the original and repeats its sequence numbers.
#[test]
fn commit_in_a_damaged_chunk_is_not_replaced_by_a_commit_before_the_restore() {
    run(async {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let repository = BackupRepository::new(Arc::clone(&store));
        let mut seqs = Vec::new();
        for (name, start_ms) in [("original", 1_000), ("restored", 10_000)] {
            let mut db = ArchivedDb::new();
            db.clock_ms.store(start_ms, Ordering::Relaxed);
            db.archive(&repository).await;
            for _ in 0..4 {
                seqs.push(db.put("key", name));
                db.archive(&repository).await;
            }
        }
        assert_eq!(seqs[..4], seqs[4..]);
        for number in [2, 4] {
            let object = crate::log_chunk::chunk_path(2, number);
            let intact = store.get(&object).await.unwrap().bytes().await.unwrap();
            store.put(&object, "damaged".into()).await.unwrap();
            let point = RestorePoint::Commit(seqs[3]);
            match restored_to(&repository, point).await {
                Err(Error::Damaged { object: named, .. }) => assert_eq!(named, object.to_string()),
                other => panic!("{object}: {other:?}"),
            }
            store.put(&object, intact.into()).await.unwrap();
        }
    });
}
