//! Backups that are opened without a restore.

use lsmx_testkit::{TestRng, mix_seeds};
use object_store::memory::InMemory;

use super::fault_store::FaultStore;
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

#[test]
fn backup_of_a_large_table_opened_read_only_requests_few_bytes_and_none_twice() {
    const KEYS: u32 = 20_000;
    let value = |key: u32| -> Vec<u8> {
        // Random values are not compressed.
        (0..50).flat_map(|part| mix_seeds(key.into(), part).to_le_bytes()).collect()
    };
    run(async {
        let vfs = MemVfs::new();
        let db = Db::open("db", options(&vfs)).unwrap();
        for key in 0..KEYS {
            db.put(key.to_be_bytes(), value(key)).unwrap();
        }
        db.close(None).unwrap();
        // The new log contains none of these entries.
        let db = Db::open("db", options(&vfs)).unwrap();
        let store = FaultStore::new(&Arc::new(InMemory::new()));
        let repository = repository(store.clone());
        let backup = BackupOptions::new("staging").vfs(Arc::new(vfs.clone()));
        let info = repository.create(&db, &backup).await.unwrap();
        assert!(info.bytes > 7 << 20, "{info:?}");

        let before = store.read_bytes();
        // Without a block cache of the engine, all reads reach the cache of parts.
        let options = Options::default().block_cache_bytes(0);
        let copy = repository.open_read_only(Selection::Newest, info.bytes, options).await.unwrap();
        let opened = store.read_bytes() - before;
        assert!(opened < info.bytes / 10, "{opened} of {} bytes", info.bytes);
        let mut rng = TestRng::new(1);
        for _ in 0..20 {
            let key = u32::try_from(rng.below(u64::from(KEYS))).unwrap();
            let get = || copy.get(key.to_be_bytes()).unwrap();
            let before = store.read_bytes();
            assert_eq!(get().as_deref(), Some(&value(key)[..]));
            let read = store.read_bytes() - before;
            // The parts with the data block and with blocks of the index and the filter. Each may reach into a second part.
            assert!(read <= 6 * (64 << 10), "{read} bytes");
            let calls = store.calls();
            assert_eq!(get().as_deref(), Some(&value(key)[..]));
            assert_eq!(store.calls(), calls);
        }
    });
}
