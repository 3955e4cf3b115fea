//! Tests of guards with a sequence number that is older than the commit history in memory.

use lsmx::env::Background;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Durability, Error, KeyspaceOptions, Options, SeqNo, WriteBatch};

use crate::harness::small_database::open_with;

fn write_guarded(db: &Db, key: &str, read: SeqNo) -> lsmx::Result<()> {
    let mut batch = WriteBatch::new();
    batch.guard(&db.default_keyspace(), key, read);
    db.write(batch, Durability::Buffered)
}

/// The engine keeps no commit history across opens. A guard with a sequence number from before the open therefore
/// cannot be checked.
#[test]
fn guard_older_than_history_is_unknown() {
    let disk = MemVfs::new();
    let open = || open_with(&disk, Options::default().background(Background::Inline)).unwrap();
    let db = open();
    db.put("k", "v").unwrap();
    let read = db.snapshot().seq();
    db.put("other", "v").unwrap();
    db.close(None).unwrap();
    drop(db);
    let db = open();
    let error = write_guarded(&db, "k", read).unwrap_err();
    assert!(
        matches!(&error, Error::ConflictUnknown { keyspace, key, read: named }
            if keyspace == "default" && key == b"k" && *named == read.0),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(text.contains("key \"k\" of keyspace \"default\"") && text.contains("retry"), "{text}");
    write_guarded(&db, "k", db.snapshot().seq()).unwrap();
}

/// During the update, so many other writes happen that the commit history no longer covers the read. The engine cannot
/// check the guard and must retry the update.
#[test]
fn fetch_update_unknown_guard_is_retried() {
    let keyspace = KeyspaceOptions::default().memtable_bytes(64 << 10);
    let options = Options::default().background(Background::Inline).memory_budget(4 << 20);
    let db = open_with(&MemVfs::new(), options.keyspace_defaults(keyspace)).unwrap();
    let keyspace = db.default_keyspace();
    let mut calls = 0;
    let after = keyspace
        .update_fetch("k", |_| {
            calls += 1;
            if calls == 1 {
                let read = db.snapshot().seq();
                for number in 0..40_000u64 {
                    keyspace.put(number.to_be_bytes(), "v").unwrap();
                }
                let old = write_guarded(&db, "k", read);
                assert!(matches!(old, Err(Error::ConflictUnknown { .. })), "{old:?}");
            }
            b"v".to_vec()
        })
        .unwrap();
    assert_eq!((calls, after.as_deref()), (2, Some(&b"v"[..])));
    let memory = db.metrics().memory;
    assert!(memory.guard_history <= (4 << 20) / 16, "{} bytes of history", memory.guard_history);
}
