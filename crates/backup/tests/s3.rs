//! Backups on an S3-compatible server. `scripts/backup_s3` starts a server and runs this test.

use std::num::NonZeroUsize;

use lsmx::{Db, Options};
use lsmx_backup::{
    BackupOptions, BackupRepository, RestoreOptions, Retention, Selection, VerifyDepth,
};

#[tokio::test]
#[ignore = "needs a server: scripts/backup_s3"]
async fn backups_on_a_server_are_verified_restored_read_and_removed() {
    let bucket = std::env::var("LSMX_TEST_S3").expect("LSMX_TEST_S3 is the URL of a bucket");
    let home = tempfile::tempdir().unwrap();
    let db = Db::open(home.path().join("data"), Options::default()).unwrap();
    let repository = BackupRepository::at(&format!("{bucket}/repository")).unwrap();
    let options = BackupOptions::new(home.path().join("staging"));
    // Random values are not compressed, so that a table needs a multipart upload.
    for key in 0..20_000_u32 {
        let value: Vec<u8> = (0..64)
            .flat_map(|part| lsmx_testkit::mix_seeds(key.into(), part).to_le_bytes())
            .collect();
        db.put(key.to_be_bytes(), value).unwrap();
    }
    db.flush().unwrap();
    let first = repository.create(&db, &options).await.unwrap();
    assert!(first.bytes > 9 << 20, "{first:?}");
    db.put("k", "v").unwrap();
    let second = repository.create(&db, &options).await.unwrap();
    assert_eq!(repository.backups().await.unwrap(), [first.clone(), second.clone()]);
    repository.verify(Selection::Id(first.id), VerifyDepth::Contents).await.unwrap();

    let copy = repository.open_read_only(Selection::Newest, 1 << 20, Options::default()).await;
    assert_eq!(copy.unwrap().get("k").unwrap().as_deref(), Some(&b"v"[..]));

    let keep_last = NonZeroUsize::MIN;
    let retention = Retention { keep_last, keep_since_ms: None, writer: None };
    assert_eq!(repository.prune(retention).await.unwrap().removed, [first.id]);
    let target = home.path().join("restored");
    // Another process, which does not know the version of the catalog.
    let repository = BackupRepository::at(&format!("{bucket}/repository")).unwrap();
    repository.restore(Selection::Newest, &target, &RestoreOptions::default()).await.unwrap();
    let restored = Db::open(&target, Options::default()).unwrap();
    assert_eq!(restored.get("k").unwrap().as_deref(), Some(&b"v"[..]));
    let count = |db: &Db| db.default_keyspace().iter().count();
    assert_eq!(count(&restored), count(&db));
}
