//! Concurrent backups and prunes, on a store with delays and stale listings.

use std::collections::BTreeMap;
use std::sync::Mutex;

use lsmx_testkit::case_seeds;
use object_store::memory::InMemory;

use super::fault_store::FaultStore;
use super::*;
use crate::Error;

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
