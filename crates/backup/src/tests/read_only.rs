//! Backups that are opened without a restore.

use object_store::memory::InMemory;

use super::*;

#[test]
fn backup_opened_read_only_shows_its_state_and_refuses_writes() {
    run(async {
        let db = TestDb::new("a");
        let repository = repository(InMemory::new());
        for round in 0..3 {
            db.write(round);
        }
        repository.create(&db.db, &db.backup_options()).await.unwrap();
        let expected = db.contents();
        db.write(3);
        repository.create(&db.db, &db.backup_options()).await.unwrap();
        // A cache of one byte keeps no part, so that all parts are requested again.
        for cache_bytes in [1, 1 << 20] {
            let open = repository.open_read_only(Selection::Id(1), cache_bytes, Options::default());
            let copy = open.await.unwrap();
            assert_eq!(contents(&copy), expected);
            assert_eq!(copy.get("0.1").unwrap().as_deref(), Some(&b"a.0"[..]));
            assert!(matches!(copy.put("k", "v"), Err(lsmx::Error::OpenedReadOnly)));
        }
        repository.prune(keep_last(1)).await.unwrap();
        let removed = repository.open_read_only(Selection::Id(1), 1, Options::default()).await;
        assert_eq!(removed.unwrap_err().to_string(), "the repository has no backup 1");
    });
}
