//! Concurrent backups and prunes, on a store with delays and stale listings.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::task::Poll;

use futures_util::FutureExt;
use lsmx_testkit::{TestRng, case_seeds};
use object_store::memory::InMemory;

use super::fault_store::FaultStore;
use super::point_in_time::{ArchivedDb, open, restored_to, state, writer_a};
use super::*;
use crate::catalog::Catalog;
use crate::{Error, RestorePoint};

/// Contents of the backups by number.
type Expected = Mutex<BTreeMap<u64, Contents>>;

async fn create_backups(repository: &BackupRepository, db: &TestDb, expected: &Expected) {
    for round in 0..4 {
        db.write(round);
        match repository.create(&db.db, &db.backup_options()).await {
            Ok(info) => {
                expected.lock().unwrap().insert(info.id, db.contents());
            }
            Err(Error::Superseded { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn concurrent_backups_and_prunes_lose_no_backup() {
    for seed in case_seeds(&[], 60) {
        run(async {
            let store = FaultStore::new(&Arc::new(InMemory::new())).with_delays(seed);
            // The second database has tables of the first one, so its backups use objects of the first writer.
            let first = TestDb::new("a");
            let dbs = [first.copy("b"), TestDb::new("a"), first];
            let expected = Expected::default();
            // Each process has its own view of the catalog.
            let process = || repository(store.clone());
            let prune = async |repository: BackupRepository| {
                for _ in 0..4 {
                    repository.prune(keep_last(1)).await.unwrap();
                }
            };
            let (first, second, third) = (process(), process(), process());
            tokio::join!(
                create_backups(&first, &dbs[0], &expected),
                create_backups(&second, &dbs[1], &expected),
                create_backups(&third, &dbs[2], &expected),
                prune(process()),
                prune(process()),
            );
            let repository = process();
            let backups = repository.backups().await.unwrap();
            assert!(backups.len() >= 2, "seed {seed}: {backups:?}");
            let expected = expected.into_inner().unwrap();
            for backup in &backups {
                let found = restored(&repository, backup.id).await;
                assert_eq!(found, expected[&backup.id], "seed {seed}, backup {}", backup.id);
            }
            let newest = expected.last_key_value().map(|(id, _)| *id);
            assert_eq!(backups.last().map(|backup| backup.id), newest, "seed {seed}");
        });
    }
}

/// Polls a future a number of times. Returns `None` if it has not completed, and drops it.
pub(super) async fn poll_at_most<T>(future: impl Future<Output = T>, polls: usize) -> Option<T> {
    let mut future = Box::pin(future);
    let mut count = 0;
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => {
            count += 1;
            if count > polls { Poll::Ready(None) } else { Poll::Pending }
        }
    })
    .await
}

/// Archives commits and checks the number that each call returns.
async fn archive_commits(repository: &BackupRepository, db: &mut ArchivedDb, rng: &mut TestRng) {
    for _ in 0..5 {
        for _ in 0..3 {
            db.commit(rng);
        }
        let run = async {
            db.db.sync().unwrap();
            db.archiver.run_once(repository).await
        };
        // The caller may drop the future at any time.
        let polls = if rng.is_one_in(3) { rng.below(40) } else { usize::MAX };
        let result = poll_at_most(run, polls).await;
        match result {
            None | Some(Err(Error::Superseded { .. } | Error::UnknownBackup { .. })) => {}
            Some(Err(error)) => panic!("{error}"),
            Some(Ok(summary)) => assert_eq!(summary.last_seq, db.db.snapshot().seq().0),
        }
    }
}

/// Commits during the creation of a backup are in the backup or in the chunks after it.
#[test]
fn commits_during_the_first_run_of_an_archiver_can_be_restored() {
    for seed in case_seeds(&[], 30) {
        run(async {
            let store = FaultStore::new(&Arc::new(InMemory::new())).with_delays(seed);
            let repository = repository(store);
            let mut db = ArchivedDb::new();
            let mut archiver = db.new_archiver();
            let commits = async {
                for number in 0..40_u32 {
                    db.put("key", &number.to_string());
                    db.db.sync().unwrap();
                    tokio::task::yield_now().await;
                }
            };
            tokio::join!(commits, async { archiver.run_once(&repository).await.unwrap() });
            archiver.run_once(&repository).await.unwrap();
            let first = repository.backups().await.unwrap()[0].last_seq.unwrap();
            let newest = *db.states.keys().next_back().unwrap();
            assert!(first < newest, "seed {seed}");
            for (&seq, expected) in db.states.range(first..) {
                let found = restored_to(&repository, RestorePoint::Commit(seq)).await.unwrap();
                assert_eq!(found, *expected, "seed {seed}, commit {seq}");
            }
        });
    }
}

#[test]
fn concurrent_archivers_backups_and_prunes_lose_no_commit() {
    for seed in case_seeds(&[], 40) {
        run(async {
            let store = FaultStore::new(&Arc::new(InMemory::new())).with_delays(seed);
            let process = || repository(store.clone());
            let mut db = ArchivedDb::new();
            let second_archiver = db.new_archiver();
            let rng = &mut TestRng::new(seed);
            let prune = async |repository: BackupRepository| {
                for _ in 0..3 {
                    repository.prune(keep_last(2)).await.unwrap();
                }
            };
            let second = async |repository: BackupRepository, mut archiver: crate::Archiver| {
                for _ in 0..3 {
                    match archiver.run_once(&repository).await {
                        Ok(_) | Err(Error::Superseded { .. } | Error::StagingInUse { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            };
            let (first, other) = (process(), process());
            let expected = Expected::default();
            let other_db = TestDb::new("b");
            tokio::join!(
                archive_commits(&first, &mut db, rng),
                second(process(), second_archiver),
                create_backups(&other, &other_db, &expected),
                prune(process()),
            );
            let repository = process();
            let summary = loop {
                db.db.sync().unwrap();
                match db.archiver.run_once(&repository).await {
                    Ok(summary) => break summary,
                    Err(Error::Superseded { .. }) => {}
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            };
            let newest = db.record_state();
            assert_eq!(summary.last_seq, newest, "seed {seed}");
            let mut restored = 0;
            for (&seq, expected) in &db.states {
                match restored_to(&repository, RestorePoint::Commit(seq)).await {
                    Ok(found) => {
                        assert_eq!(found, *expected, "seed {seed}, commit {seq}");
                        restored += 1;
                    }
                    // The backups that contain it were removed, or it lies between two archives.
                    Err(Error::CommitNotArchived { .. }) => assert_ne!(seq, newest, "seed {seed}"),
                    Err(error) => panic!("seed {seed}, commit {seq}: {error}"),
                }
            }
            assert!(restored > 0, "seed {seed}");
        });
    }
}

/// `run_once` returned numbers of commits that could not be restored, because a backup that was removed twice during one call was
/// not noticed.
#[test]
fn number_that_run_once_returns_can_be_restored_while_backups_are_removed() {
    let mut removed_twice = 0;
    for seed in case_seeds(&[], 60) {
        run(async {
            let inner = Arc::new(InMemory::new());
            let store = FaultStore::new(&inner).with_delays(seed);
            let process = || repository(store.clone());
            let mut db = ArchivedDb::new();
            let rng = &mut TestRng::new(seed);
            let (first, second) = (process(), process());
            let (database, options) = (db.db.clone(), db.second_backup_options());
            let others_rng = &mut TestRng::new(!seed);
            let others = async {
                for _ in 0..40 {
                    if others_rng.is_one_in(8) {
                        match second.create(&database, &options).await {
                            Ok(_) | Err(Error::Superseded { .. }) => {}
                            Err(error) => panic!("seed {seed}: {error}"),
                        }
                        second.prune(keep_last(1)).await.unwrap();
                    } else {
                        let remove = |catalog: &mut Catalog| {
                            catalog.backups.clear();
                            Ok(())
                        };
                        second.catalog.update(remove).await.unwrap();
                    }
                }
            };
            let archive = async {
                for _ in 0..8 {
                    db.commit(rng);
                    db.db.sync().unwrap();
                    match db.archiver.run_once(&first).await {
                        Ok(summary) => {
                            let direct = repository(FaultStore::new(&inner));
                            let point = RestorePoint::Commit(summary.last_seq);
                            // Without delays, no other process continues before the end of the restore.
                            let found = restored_to(&direct, point).now_or_never().unwrap();
                            let expected = &db.states[&summary.last_seq];
                            assert_eq!(found.unwrap(), *expected, "seed {seed}");
                        }
                        Err(Error::UnknownBackup { .. }) => removed_twice += 1,
                        Err(Error::Superseded { .. }) => {}
                        Err(error) => panic!("seed {seed}: {error}"),
                    }
                }
            };
            tokio::join!(archive, others);
        });
    }
    assert!(removed_twice > 0, "the case does not occur");
}

/// A list of backups and a restore failed if a prune deleted chunks after the catalog was read.
#[test]
fn backups_are_listed_and_restored_during_prunes() {
    for seed in case_seeds(&[], 20) {
        run(async {
            let inner = Arc::new(InMemory::new());
            let reader = repository(FaultStore::new(&inner).with_delays(seed));
            let mut db = ArchivedDb::with_limits(|options| options.backup_after_bytes = 1_500);
            let rng = &mut TestRng::new(seed);
            // Its calls take no time.
            let writer = repository(FaultStore::new(&inner));
            db.archive(&writer).await;
            let is_running = std::cell::Cell::new(true);
            let list = async {
                while is_running.get() {
                    assert!(!reader.backups().await.unwrap().is_empty(), "seed {seed}");
                }
            };
            let restore = async {
                while is_running.get() {
                    match restored_to(&reader, RestorePoint::Newest).await {
                        // The backup was removed after it was chosen.
                        Ok(_) | Err(Error::Damaged { .. }) => {}
                        Err(error) => panic!("seed {seed}: {error}"),
                    }
                }
            };
            let archive = async {
                for _ in 0..40 {
                    for _ in 0..rng.below(20) {
                        tokio::task::yield_now().await;
                    }
                    for _ in 0..3 {
                        db.commit(rng);
                    }
                    db.archive(&writer).await;
                    writer.prune(keep_last(1)).await.unwrap();
                }
                is_running.set(false);
            };
            tokio::join!(list, restore, archive);
        });
    }
}

/// A restore completed an incomplete directory, because another restore had begun to replace its files.
#[test]
fn second_restore_into_a_directory_is_refused_while_the_first_one_is_running() {
    run(async {
        let inner = Arc::new(InMemory::new());
        let mut db = ArchivedDb::new();
        let writer = repository(FaultStore::new(&inner));
        db.archive(&writer).await;
        let newest = db.put("key", "value");
        db.archive(&writer).await;
        let mut refused = 0;
        for (first_polls, second_polls) in
            (1..50).flat_map(|polls| [(polls, 25), (polls, usize::MAX)])
        {
            let text = format!("{first_polls} and {second_polls} polls");
            let reader = repository(FaultStore::new(&inner).with_delays(first_polls as u64));
            let vfs = MemVfs::new();
            let options =
                RestoreOptions::default().vfs(Arc::new(vfs.clone())).to(RestorePoint::Newest);
            let options = options.transfer(one_at_a_time());
            let restore = || reader.restore(writer_a(), "copy", &options);
            let mut first = Box::pin(restore());
            let completed = poll_at_most(first.as_mut(), first_polls).await;
            let second = poll_at_most(restore(), second_polls).await;
            let is_refused = matches!(second, Some(Err(Error::Engine(lsmx::Error::Locked { .. }))));
            refused += u32::from(is_refused);
            let first = match completed {
                Some(completed) => completed,
                None => first.await,
            };
            match first {
                Ok(_) => {}
                Err(Error::Engine(lsmx::Error::Locked { .. }) | Error::TargetNotEmpty { .. }) => {
                    continue;
                }
                Err(error) => panic!("{text}: {error}"),
            }
            lsmx::verify("copy", &super::options(&vfs)).unwrap();
            let copy = open("copy", super::options(&vfs));
            assert_eq!(state(&copy), db.states[&newest], "{text}");
        }
        assert!(refused > 10, "{refused}");
    });
}
