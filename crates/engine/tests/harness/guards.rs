//! Checks of guarded commits.

use lsmx::env::Background;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Durability, Error, KeyspaceOptions, Options, WriteBatch};
use lsmx_testkit::TestRng;

use super::Outcome;
use super::small_database::open_with;

fn open(background: Background) -> Db {
    let keyspace = KeyspaceOptions::default().memtable_bytes(32 << 10).table_bytes(32 << 10);
    let options = Options::default().background(background).keyspace_defaults(keyspace);
    open_with(&MemVfs::new(), options).unwrap()
}

/// The commit queue contains commits with many guards and commits with many operations. The engine checks each guard at
/// most once against each earlier commit, and examines each operation once.
pub(crate) fn guards_during_large_batches(seed: u64) -> Outcome {
    const THREADS: u64 = 3;
    const GUARDS: u64 = 50;
    const OPERATIONS: u64 = 1_000;
    let db = open(Background::Stepped { seed, workers: 1 });
    let env = db.env().clone();
    let before = db.metrics().commits.guard_checks;
    let mut threads = Vec::new();
    for number in 0..THREADS {
        let db = db.clone();
        let write_large = move || {
            let keyspace = db.default_keyspace();
            let mut batch = WriteBatch::new();
            for key in 0..OPERATIONS {
                let key = (key * THREADS + number).to_be_bytes();
                if key[7].is_multiple_of(16) {
                    batch.delete_range(&keyspace, &key[..]..&[&key[..], b"+"].concat());
                } else {
                    batch.put(&keyspace, key, "v");
                }
            }
            db.write(batch, Durability::Buffered).unwrap();
        };
        threads.push(env.spawn("large", write_large).unwrap());
    }
    for _ in 0..THREADS {
        let db = db.clone();
        let write_guarded = move || {
            let keyspace = db.default_keyspace();
            let read = db.snapshot().seq();
            let mut batch = WriteBatch::new();
            for key in 0..GUARDS {
                batch.guard(&keyspace, format!("absent-{key}"), read);
            }
            batch.put(&keyspace, "guarded", "v");
            db.write(batch, Durability::Buffered).unwrap();
        };
        threads.push(env.spawn("guarded", write_guarded).unwrap());
    }
    for thread in threads {
        env.join(thread).unwrap();
    }
    let checks = db.metrics().commits.guard_checks - before;
    let bound = THREADS * (OPERATIONS + 1) + THREADS * GUARDS * 2 * THREADS;
    assert!(checks <= bound, "{checks} checks of guards, the bound is {bound}");
    Ok(())
}

/// The memtables are flushed between the read of a key and the commit that guards the key. If a put or a range delete
/// changed the key after the read, the commit is refused. Otherwise the commit succeeds.
pub(crate) fn guards_older_than_the_memtables(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let db = open(Background::Inline);
    let keyspace = db.default_keyspace();
    let guarded = |key: &str, read| {
        let mut batch = WriteBatch::new();
        batch.guard(&keyspace, key, read);
        db.write(batch, Durability::Buffered)
    };
    keyspace.put("written", "v").unwrap();
    for round in 0..10 {
        let read = db.snapshot().seq();
        let range_delete = rng.is_one_in(2);
        let flushes = db.metrics().keyspaces["default"].flushes;
        for number in 0..1_000u64 {
            keyspace.put(rng.below(1_u64 << 40).to_be_bytes(), [7; 60]).unwrap();
            if number == 300 && range_delete {
                keyspace.delete_range("write".."written+").unwrap();
            } else if number == 300 {
                keyspace.put("written", "again").unwrap();
            }
        }
        assert!(db.metrics().keyspaces["default"].flushes >= flushes + 2, "too few flushes");
        guarded("never written", read).unwrap();
        match guarded("written", read) {
            Err(Error::Conflict { keyspace, key, read: named })
                if keyspace == "default" && key == b"written" && named == read.0 => {}
            other => panic!("round {round}: a guard of a written key returns {other:?}"),
        }
        guarded("written", db.snapshot().seq()).unwrap();
    }
    Ok(())
}
