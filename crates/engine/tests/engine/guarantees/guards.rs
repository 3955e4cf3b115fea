//! Guards of commits: what they cost, and what is known about old ones.

use std::sync::Arc;

use lsmx::env::Background;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Durability, Error, KeyspaceOptions, Options, SeqNo, WriteBatch};

use super::support::seeds;
use crate::harness::guards;

#[test]
fn guards_beside_large_batches_cost_one_check_per_commit() {
    for seed in seeds(101, 30) {
        guards::guards_beside_large_batches(seed)
            .unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

#[test]
fn guards_older_than_the_memtables_are_decided() {
    for seed in seeds(102, 5) {
        guards::guards_older_than_the_memtables(seed)
            .unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

fn guarded(db: &Db, key: &str, read: SeqNo) -> lsmx::Result<()> {
    let mut batch = WriteBatch::new();
    batch.guard(&db.default_keyspace(), key, read);
    db.write(batch, Durability::Buffered)
}

#[test]
fn guard_older_than_the_history_is_unknown() {
    let disk = MemVfs::new();
    let open = || {
        let options = Options::default().background(Background::Inline);
        Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap()
    };
    let db = open();
    db.put("k", "v").unwrap();
    let read = db.snapshot().seq();
    db.put("other", "v").unwrap();
    db.close(None).unwrap();
    drop(db);
    // The history begins with the opening.
    let db = open();
    let error = guarded(&db, "k", read).unwrap_err();
    assert!(
        matches!(&error, Error::GuardUnknown { keyspace, key, read: named }
            if keyspace == "default" && key == b"k" && *named == read.0),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(text.contains("key \"k\" of keyspace \"default\"") && text.contains("retry"), "{text}");
    guarded(&db, "k", db.snapshot().seq()).unwrap();
}

/// More is written and flushed between read and write of an update than the history keeps.
#[test]
fn fetch_update_guard_unknown_is_retried() {
    let tuning = KeyspaceOptions::default().memtable_bytes(64 << 10);
    let options = Options::default().background(Background::Inline).memory_budget(4 << 20);
    let options = options.keyspace_defaults(tuning);
    let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
    let keyspace = db.default_keyspace();
    let mut calls = 0;
    let after = keyspace
        .update_fetch("k", |_| {
            calls += 1;
            let read = db.snapshot().seq();
            for number in 0..if calls == 1 { 40_000u64 } else { 0 } {
                keyspace.put(number.to_be_bytes(), "v").unwrap();
            }
            if calls == 1 {
                let old = guarded(&db, "k", read);
                assert!(matches!(old, Err(Error::GuardUnknown { .. })), "{old:?}");
            }
            b"v".to_vec()
        })
        .unwrap();
    assert_eq!((calls, after.as_deref()), (2, Some(&b"v"[..])));
    let memory = db.metrics().memory;
    assert!(memory.guard_history <= (4 << 20) / 16, "{} bytes of history", memory.guard_history);
}
