//! Checks of guarded commits that several test binaries share.

use std::sync::Arc;

use lsmx::env::Background;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Durability, Error, KeyspaceOptions, Options, WriteBatch};
use lsmx_testkit::TestRng;

use super::Outcome;

fn failed(error: Error) -> String {
    error.to_string()
}

fn open(background: Background) -> Outcome<Db> {
    let tuning = KeyspaceOptions::default().memtable_bytes(32 << 10).table_bytes(32 << 10);
    let options = Options::default().background(background).keyspace_defaults(tuning);
    Db::open("db", options.vfs(Arc::new(MemVfs::new()))).map_err(failed)
}

/// Commits with many guards queue beside commits with many operations. Each guard costs one check per
/// earlier commit, and each operation is looked at once.
pub(crate) fn guards_beside_large_batches(seed: u64) -> Outcome {
    const THREADS: u64 = 3;
    const GUARDS: u64 = 50;
    const OPERATIONS: u64 = 1_000;
    let db = open(Background::Stepped { seed, workers: 1 })?;
    let env = db.env().clone();
    let before = db.metrics().commits.guard_checks;
    let mut threads = Vec::new();
    for number in 0..THREADS {
        let db = db.clone();
        let large = move || {
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
            db.write(batch, Durability::Buffered).expect("a write");
        };
        threads.push(env.spawn("large", large).map_err(|error| error.to_string())?);
    }
    for _ in 0..THREADS {
        let db = db.clone();
        let guarded = move || {
            let keyspace = db.default_keyspace();
            let read = db.snapshot().seq();
            let mut batch = WriteBatch::new();
            for key in 0..GUARDS {
                batch.guard(&keyspace, format!("absent-{key}"), read);
            }
            batch.put(&keyspace, "guarded", "v");
            db.write(batch, Durability::Buffered).expect("a write");
        };
        threads.push(env.spawn("guarded", guarded).map_err(|error| error.to_string())?);
    }
    for thread in threads {
        env.join(thread).map_err(|_| "a writer failed".to_owned())?;
    }
    let checks = db.metrics().commits.guard_checks - before;
    let most = THREADS * (OPERATIONS + 1) + THREADS * GUARDS * 2 * THREADS;
    if checks > most {
        return Err(format!("{checks} checks of guards, {most} are enough"));
    }
    Ok(())
}

/// Memtables are flushed between a read and the commit that guards it. A guard of a key that nobody writes
/// holds; a guard of a key that was written, or covered by a range delete, is refused.
pub(crate) fn guards_older_than_the_memtables(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let db = open(Background::Inline)?;
    let keyspace = db.default_keyspace();
    let guarded = |key: &str, read| {
        let mut batch = WriteBatch::new();
        batch.guard(&keyspace, key, read);
        db.write(batch, Durability::Buffered)
    };
    keyspace.put("written", "v").map_err(failed)?;
    for round in 0..10 {
        let read = db.snapshot().seq();
        let range_delete = rng.is_one_in(2);
        let flushes = db.metrics().keyspaces["default"].flushes;
        for number in 0..1_000u64 {
            keyspace.put(rng.below(1_u64 << 40).to_be_bytes(), [7; 60]).map_err(failed)?;
            if number == 300 && range_delete {
                keyspace.delete_range("write".."written+").map_err(failed)?;
            } else if number == 300 {
                keyspace.put("written", "again").map_err(failed)?;
            }
        }
        if db.metrics().keyspaces["default"].flushes < flushes + 2 {
            return Err("no memtable was flushed".to_owned());
        }
        guarded("never written", read).map_err(|error| format!("round {round}: {error}"))?;
        match guarded("written", read) {
            Err(Error::GuardRefused { keyspace, key, read: named })
                if keyspace == "default" && key == b"written" && named == read.0 => {}
            other => return Err(format!("round {round}: a guard of a written key: {other:?}")),
        }
        guarded("written", db.snapshot().seq()).map_err(failed)?;
    }
    Ok(())
}
