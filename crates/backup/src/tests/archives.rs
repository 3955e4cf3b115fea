//! Runs of an archiver: the reasons for new backups, and faults of the store, the clock and the log.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lsmx::LogArchiveEnd;
use lsmx_testkit::TestRng;
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};

use super::fault_store::{Crash, FaultStore};
use super::interleavings::poll_at_most;
use super::point_in_time::{ArchivedDb, check_commits, keyspace_options, restored_to};
use super::*;
use crate::{BackupReason, Error, RestorePoint};

/// After an error of the clock, a restore to the newest state chose the old backup with the late time, and a restore to a time
/// excluded all later chunks.
#[test]
fn clock_that_was_ahead_begins_a_new_backup_whose_states_are_newer() {
    run(async {
        let repository = repository(InMemory::new());
        let mut db = ArchivedDb::new();
        db.archive(&repository).await;
        db.clock_ms.store(1_000_000_000, Ordering::Relaxed);
        db.put("key", "dated too late");
        db.archive(&repository).await;
        db.clock_ms.store(2_000, Ordering::Relaxed);
        let first = db.put("key", "correct again");
        let (info, reason) = db.archive(&repository).await.backup.unwrap();
        assert_eq!((info.id, reason), (2, BackupReason::ClockMovedBack));
        let second = db.put("key", "newest");
        assert_eq!(db.archive(&repository).await.backup, None);
        for point in [RestorePoint::Newest, RestorePoint::Time(3_000)] {
            assert_eq!(restored_to(&repository, point).await.unwrap(), db.states[&second]);
        }
        check_commits(&repository, &db, first..=second).await;
        // Another process has the correct time from the start.
        db.restart_archiver();
        let third = db.put("key", "after a restart");
        db.archive(&repository).await;
        assert_eq!(
            restored_to(&repository, RestorePoint::Newest).await.unwrap(),
            db.states[&third]
        );
    });
}

#[test]
fn structural_change_begins_a_new_backup_and_leaves_a_gap() {
    run(async {
        let repository = repository(InMemory::new());
        let mut db = ArchivedDb::new();
        db.archive(&repository).await;
        let before = db.put("key", "before");
        let users = db.db.keyspace("users", keyspace_options("users")).unwrap();
        users.put("ada", "1815").unwrap();
        let gap = db.db.snapshot().seq().0;
        db.put("key", "in the backup");
        let summary = db.archive(&repository).await;
        let (info, reason) = summary.backup.unwrap();
        assert_eq!(reason, BackupReason::LogEnded(LogArchiveEnd::StructureChanged));
        assert_eq!((info.id, summary.chunks), (2, 1));
        let from = db.record_state();
        let after = db.put("key", "after");
        let summary = db.archive(&repository).await;
        assert_eq!((summary.backup, summary.last_seq), (None, after));
        check_commits(&repository, &db, before..=before).await;
        check_commits(&repository, &db, from..=after).await;
        let refused = restored_to(&repository, RestorePoint::Commit(gap)).await.unwrap_err();
        let start = repository.backups().await.unwrap()[0].last_seq.unwrap();
        assert_eq!(
            refused.to_string(),
            format!(
                "the commit {gap} cannot be restored; the nearest restorable commits are {start} to {before} and \
                 {from} to {after}"
            )
        );
        let late = restored_to(&repository, RestorePoint::Commit(after + 1)).await.unwrap_err();
        assert!(late.to_string().ends_with(&format!("are {from} to {after}")), "{late}");
    });
}

#[test]
fn lost_hold_begins_a_new_backup() {
    run(async {
        let repository = repository(InMemory::new());
        let mut db = ArchivedDb::with_limits(|options| options.held_bytes_max = 1_000);
        db.archive(&repository).await;
        for round in 0..40 {
            db.put("key", &format!("{round:0100}"));
        }
        db.db.flush().unwrap();
        db.put("key", "newest");
        let summary = db.archive(&repository).await;
        let (_, reason) = summary.backup.unwrap();
        let lost = LogArchiveEnd::HeldBytesExceeded { bytes: 0, limit: 1_000 };
        match reason {
            BackupReason::LogEnded(LogArchiveEnd::HeldBytesExceeded { bytes, limit: 1_000 }) => {
                assert!(bytes > 1_000);
            }
            other => panic!("expected {lost:?}, found {other:?}"),
        }
        let newest = db.record_state();
        check_commits(&repository, &db, newest..=newest).await;
        assert_eq!(
            restored_to(&repository, RestorePoint::Newest).await.unwrap(),
            db.states[&newest]
        );
    });
}

#[test]
fn large_log_begins_a_new_backup_without_a_gap() {
    run(async {
        let repository = repository(InMemory::new());
        let mut db = ArchivedDb::with_limits(|options| options.backup_after_bytes = 1_500);
        db.put("key", "first");
        db.archive(&repository).await;
        let first = db.record_state();
        let rng = &mut TestRng::new(1);
        for _ in 0..8 {
            for _ in 0..4 {
                db.commit(rng);
            }
            let summary = db.archive(&repository).await;
            let reason = summary.backup.map(|(_, reason)| reason);
            assert!(reason.is_none_or(|reason| reason == BackupReason::LogSize));
        }
        assert!(repository.backups().await.unwrap().len() > 2);
        check_commits(&repository, &db, first..=u64::MAX).await;
        repository.prune(keep_last(2)).await.unwrap();
        let oldest = repository.backups().await.unwrap()[0].last_seq.unwrap();
        check_commits(&repository, &db, oldest..=u64::MAX).await;
        let removed = restored_to(&repository, RestorePoint::Commit(first)).await.unwrap_err();
        assert!(matches!(removed, Error::CommitNotArchived { .. }), "{removed}");
    });
}

/// During the upload of a backup, no commits were archived. If the log grew beyond the limit meanwhile, commits were lost from the
/// archive, although the reason of the backup was the size of the log.
#[test]
fn large_log_begins_a_new_backup_without_a_gap_while_the_log_exceeds_the_limit_during_the_backup() {
    run(async {
        let repository = repository(InMemory::new());
        let mut db = ArchivedDb::with_limits(|options| {
            options.backup_after_bytes = 4_000;
            options.held_bytes_max = 2_500;
            options.chunk_bytes = 1_000;
            options.backup = options.backup.clone().transfer(with_rate(1_200));
        });
        let mut archiver = db.new_archiver();
        archiver.run_once(&repository).await.unwrap();
        let first = db.put("key", "first");
        let is_running = std::cell::Cell::new(true);
        let write = async {
            for round in 0..240 {
                db.put(&format!("key{}", round % 7), &format!("{round:0100}"));
                if round % 5 == 0 {
                    db.db.flush().unwrap();
                }
                db.db.sync().unwrap();
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
            is_running.set(false);
        };
        let archive = async {
            let mut reasons = Vec::new();
            while is_running.get() {
                let summary = archiver.run_once(&repository).await.unwrap();
                reasons.extend(summary.backup.map(|(_, reason)| reason));
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            reasons
        };
        let ((), reasons) = tokio::join!(write, archive);
        assert!(reasons.len() >= 2, "{reasons:?}");
        assert!(reasons.iter().all(|reason| *reason == BackupReason::LogSize), "{reasons:?}");
        let summary = archiver.run_once(&repository).await.unwrap();
        assert_eq!(summary.last_seq, db.record_state());
        check_commits(&repository, &db, first..=u64::MAX).await;
    });
}

/// A run did not end while commits were added in a shorter time than the upload of a chunk takes.
#[test]
fn run_ends_during_a_steady_load() {
    run(async {
        let repository = repository(InMemory::new());
        let mut db = ArchivedDb::with_limits(|options| {
            options.backup = options.backup.clone().transfer(with_rate(1_000));
        });
        let mut archiver = db.new_archiver();
        archiver.run_once(&repository).await.unwrap();
        db.put("key", "first");
        let commits = async {
            for number in 0..500_u32 {
                db.put("key", &number.to_string());
                db.db.sync().unwrap();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let summary = tokio::select! {
            summary = archiver.run_once(&repository) => summary.unwrap(),
            () = commits => panic!("the run has not ended"),
        };
        check_commits(&repository, &db, summary.last_seq..=summary.last_seq).await;
    });
}

#[test]
fn chunk_of_another_archiver_is_refused_and_a_new_backup_begins() {
    run(async {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let repository = BackupRepository::new(Arc::clone(&store));
        let mut db = ArchivedDb::new();
        db.archive(&repository).await;
        let object: ObjectPath = crate::log_chunk::chunk_path(1, 1);
        store.put(&object, "another archiver".into()).await.unwrap();
        db.put("key", "value");
        db.db.sync().unwrap();
        let refused = db.archiver.run_once(&repository).await.unwrap_err();
        assert!(matches!(refused, Error::ChunkExists { .. }), "{refused}");
        let summary = db.archive(&repository).await;
        assert_eq!(summary.backup.unwrap().1, BackupReason::Started);
        let newest = db.record_state();
        check_commits(&repository, &db, newest..=newest).await;
    });
}

/// `run_once` returned the number of a commit whose chunk was deleted with its backup, if the check of the backup had failed before.
#[test]
fn number_that_run_once_returns_can_be_restored_after_a_removal_and_a_fault_at_any_call() {
    run(async {
        for call in 0.. {
            let inner = Arc::new(InMemory::new());
            let healthy = repository(FaultStore::new(&inner));
            let mut db = ArchivedDb::new();
            db.put("key", "before");
            db.archive(&healthy).await;
            healthy.create(&db.db, &db.second_backup_options()).await.unwrap();
            assert_eq!(healthy.prune(keep_last(1)).await.unwrap().removed, [1]);
            db.put("key", "after");
            db.db.sync().unwrap();
            let mut has_failed = false;
            for has_effect in [true, false] {
                let crash = Crash { call, has_effect };
                let faulty = repository(FaultStore::new(&inner).with_crash(crash));
                has_failed |= db.archiver.run_once(&faulty).await.is_err();
            }
            // The future is dropped at this poll.
            let delayed = repository(FaultStore::new(&inner).with_delays(call));
            poll_at_most(db.archiver.run_once(&delayed), usize::try_from(call).unwrap()).await;
            let summary = db.archiver.run_once(&healthy).await.unwrap();
            assert_eq!(summary.last_seq, db.record_state());
            check_commits(&healthy, &db, summary.last_seq..=u64::MAX).await;
            if !has_failed {
                assert!(call > 10, "{call}");
                break;
            }
        }
    });
}

/// A prune deleted the newest archived commits with the backup that they extend, and idle runs returned their numbers.
#[test]
fn prune_keeps_the_backup_with_the_newest_archived_commits() {
    run(async {
        let repository = repository(InMemory::new());
        let mut db = ArchivedDb::new();
        db.archive(&repository).await;
        repository.create(&db.db, &db.second_backup_options()).await.unwrap();
        let archived = db.put("key", "archived");
        db.archive(&repository).await;
        assert_eq!(repository.prune(keep_last(1)).await.unwrap().removed, [0; 0]);
        check_commits(&repository, &db, archived..=archived).await;
        // The catalog changes in another way.
        let remove = |catalog: &mut crate::catalog::Catalog| {
            catalog.backups.retain(|backup| backup.id == 2);
            Ok(())
        };
        repository.catalog.update(remove).await.unwrap();
        let summary = db.archiver.run_once(&repository).await.unwrap();
        assert_eq!(
            summary.backup.map(|(info, reason)| (info.id, reason)),
            Some((3, BackupReason::Removed))
        );
        check_commits(&repository, &db, summary.last_seq..=summary.last_seq).await;
        assert_eq!(repository.prune(keep_last(1)).await.unwrap().removed, [2]);
    });
}

/// A prune deleted a log whose last chunk was damaged, and with it the newest commits that could be restored. A later build did so if the
/// last two chunks were damaged.
#[test]
fn prune_keeps_the_newest_archived_commits_before_damaged_chunks() {
    run(async {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let repository = BackupRepository::new(Arc::clone(&store));
        let mut db = ArchivedDb::new();
        db.archive(&repository).await;
        repository.create(&db.db, &db.second_backup_options()).await.unwrap();
        let archived = db.put("key", "archived");
        db.archive(&repository).await;
        for _ in 0..2 {
            db.put("key", "in a damaged chunk");
            db.archive(&repository).await;
        }
        for (chunk, removed) in [(3, vec![]), (2, vec![]), (1, vec![1])] {
            let object = crate::log_chunk::chunk_path(1, chunk);
            store.put(&object, "damaged".into()).await.unwrap();
            assert_eq!(repository.prune(keep_last(1)).await.unwrap().removed, removed);
            if removed.is_empty() {
                check_commits(&repository, &db, archived..=archived).await;
            }
        }
    });
}

/// A conditional write that the store refused without effect ended the archive.
#[test]
fn chunk_that_the_store_refuses_without_effect_is_uploaded_again() {
    run(async {
        let inner = Arc::new(InMemory::new());
        let healthy = repository(FaultStore::new(&inner));
        let mut db = ArchivedDb::new();
        db.archive(&healthy).await;
        let archived = db.put("key", "value");
        db.db.sync().unwrap();
        let refusing = repository(FaultStore::new(&inner).with_conflict("log/"));
        let refused = db.archiver.run_once(&refusing).await.unwrap_err();
        assert!(matches!(refused, Error::Store { action: "write", .. }), "{refused}");
        let summary = db.archiver.run_once(&refusing).await.unwrap();
        assert_eq!((summary.backup, summary.last_seq), (None, archived));
        check_commits(&healthy, &db, archived..=archived).await;
        // A change of the catalog is repeated.
        let refusing = repository(FaultStore::new(&inner).with_conflict("catalog/"));
        refusing.create(&db.db, &db.second_backup_options()).await.unwrap();
    });
}

/// A chunk that the store never accepts ended the archive.
#[test]
fn chunk_that_the_store_never_accepts_is_replaced_by_a_new_backup() {
    run(async {
        let store = FaultStore::new(&Arc::new(InMemory::new())).with_chunk_bytes_max(10_000);
        let repository = repository(store);
        let mut db = ArchivedDb::with_limits(|options| options.held_bytes_max = 2_000);
        db.archive(&repository).await;
        db.put("large", &"v".repeat(20_000));
        let mut failed = 0;
        let (info, reason) = loop {
            db.db.sync().unwrap();
            match db.archiver.run_once(&repository).await {
                Ok(summary) => break summary.backup.unwrap(),
                Err(Error::Store { object, .. }) => assert_eq!(object, "log/0000000001/0000000001"),
                Err(error) => panic!("{error}"),
            }
            failed += 1;
            assert!(failed < 20);
            // The log of these commits is released when it exceeds the limit.
            db.put("key", &format!("{failed:0200}"));
            db.db.flush().unwrap();
        };
        let is_lost =
            matches!(reason, BackupReason::LogEnded(LogArchiveEnd::HeldBytesExceeded { .. }));
        assert!(failed > 1 && is_lost, "{failed} failures, {reason:?}");
        let first = info.last_seq.unwrap();
        let newest = db.put("key", "newest");
        assert_eq!(db.archive(&repository).await.last_seq, newest);
        check_commits(&repository, &db, first..=newest).await;
    });
}

/// A failed upload after the creation of a backup discarded its archive. The next run created another backup, and the commits between
/// them could not be restored.
#[test]
fn archive_of_a_new_backup_is_continued_after_a_fault_at_any_call() {
    run(async {
        for backups in [1, 2] {
            for call in 0.. {
                let inner = Arc::new(InMemory::new());
                let healthy = repository(FaultStore::new(&inner));
                let mut db = ArchivedDb::with_limits(|options| options.backup_after_bytes = 1_500);
                if backups == 2 {
                    db.archive(&healthy).await;
                    for round in 0..4 {
                        db.put("key", &format!("{round:0500}"));
                    }
                    db.db.sync().unwrap();
                }
                let failed_call = Crash { call, has_effect: false };
                let store = FaultStore::new(&inner).with_failed_call(failed_call);
                let failed = db.archiver.run_once(&repository(store.clone())).await.is_err();
                let listed = healthy.backups().await.unwrap();
                let newest = db.put("key", "newest");
                let text = format!("{backups} backups, call {call}");
                let summary = db.archive(&healthy).await;
                assert_eq!(summary.last_seq, newest, "{text}");
                assert_eq!(summary.backup.is_some(), failed, "{text}");
                assert_eq!(healthy.backups().await.unwrap().len(), backups, "{text}");
                let first = listed.first().map_or(newest, |info| info.last_seq.unwrap());
                check_commits(&healthy, &db, first..=newest).await;
                if store.calls() <= call {
                    assert!(!failed && call > 10, "{text}");
                    break;
                }
            }
        }
    });
}

/// A failed upload of a chunk stopped the creation of the next backup, and its multipart upload was not aborted.
#[test]
fn chunk_that_fails_during_a_backup_does_not_stop_the_backup() {
    run(async {
        let store = FaultStore::new(&Arc::new(InMemory::new()));
        let store = store.with_conflict("log/0000000001/0000000005");
        let repository = repository(store.clone());
        let mut db = ArchivedDb::with_limits(|options| {
            options.backup_after_bytes = 1_500;
            options.backup = options.backup.clone().transfer(with_rate(1_200));
        });
        let mut archiver = db.new_archiver();
        archiver.run_once(&repository).await.unwrap();
        // The archiver uploads these chunks before it begins the backup, and the later ones during the backup.
        for _ in 0..4 {
            db.put("key", &"v".repeat(500));
        }
        db.db.sync().unwrap();
        let write = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                db.put("key", "during the backup");
                db.db.sync().unwrap();
            }
        };
        let summary = tokio::select! {
            summary = archiver.run_once(&repository) => summary.unwrap(),
            () = write => unreachable!("it does not end"),
        };
        let (info, reason) = summary.backup.unwrap();
        assert_eq!((info.id, reason), (2, BackupReason::LogSize));
        assert_eq!(store.open_uploads(), 0);
        check_commits(&repository, &db, 0..=summary.last_seq).await;
    });
}
