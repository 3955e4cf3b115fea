//! `contains_key` finds separated values without reading them from their blob files.

use std::sync::Arc;
use std::time::Duration;

use lsmx::internals::vfs::CountingVfs;
use lsmx::merge_operator::Append;
use lsmx::metrics::BlockKind;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Error, KeyspaceOptions, ValueSeparation};

use crate::harness::database::{inline, memory_only, open, without_jobs};

const VALUE: [u8; 500] = [7; 500];

fn keyspace_options() -> KeyspaceOptions {
    let separation = ValueSeparation { threshold_bytes: 100, ..ValueSeparation::default() };
    without_jobs().value_separation(separation)
}

/// Returns the number of blocks of blob files that lookups have searched in the cache or read.
fn blob_lookups(db: &Db) -> u64 {
    let metrics = db.metrics();
    metrics.cache.get(&BlockKind::Blob).map_or(0, |counts| counts.hits + counts.misses)
}

#[test]
fn contains_key_of_separated_values_reads_no_blob_file() {
    let disk = CountingVfs::new(Arc::new(MemVfs::new()));
    let options = inline().block_cache_bytes(1 << 20).keyspace_defaults(keyspace_options());
    let db = open(&disk, options);
    let keyspace = db.default_keyspace();
    keyspace.put("deleted", VALUE).unwrap();
    keyspace.put("expired", VALUE).unwrap();
    keyspace.put("put", VALUE).unwrap();
    db.flush().unwrap();
    keyspace.put_with_ttl("expired", VALUE, Duration::from_secs(1)).unwrap();
    keyspace.put_with_ttl("expiring", VALUE, Duration::from_secs(60)).unwrap();
    keyspace.put("small", "v").unwrap();
    let snapshot = db.snapshot();
    keyspace.delete("deleted").unwrap();
    db.flush().unwrap();
    db.env().advance_us(2_000_000);
    assert!(db.metrics().keyspaces["default"].value_log.blob_files > 1);

    let found = [("put", true), ("expiring", true), ("small", true), ("expired", false)];
    let check = || {
        for (key, is_found) in found.into_iter().chain([("deleted", false), ("missing", false)]) {
            assert_eq!(keyspace.contains_key(key).unwrap(), is_found, "{key}");
        }
        for key in ["put", "expiring", "expired", "deleted", "small"] {
            assert!(snapshot.contains_key(&keyspace, key).unwrap(), "{key}");
        }
    };
    check();
    assert_eq!(blob_lookups(&db), 0);
    // The blocks of the tables are cached now, so the calls read no file.
    let reads = CountingVfs::reads_of_this_thread();
    check();
    assert_eq!(CountingVfs::reads_of_this_thread(), reads);
    assert!(matches!(keyspace.get_with("put", &memory_only()), Err(Error::WouldBlock)));
    assert_eq!(keyspace.get("put").unwrap().unwrap(), VALUE);
    assert!(CountingVfs::reads_of_this_thread() > reads);
}

#[test]
fn contains_key_of_separated_value_with_operands_combines_them() {
    let keyspace_options = keyspace_options().merge_operator(Append::default());
    let db = open(&MemVfs::new(), inline().keyspace_defaults(keyspace_options));
    let keyspace = db.default_keyspace();
    keyspace.put("k", VALUE).unwrap();
    db.flush().unwrap();
    keyspace.merge("k", "+").unwrap();
    keyspace.merge("operand only", "+").unwrap();
    for is_flushed in [false, true] {
        let before = blob_lookups(&db);
        assert!(keyspace.contains_key("operand only").unwrap());
        assert_eq!(blob_lookups(&db), before);
        assert!(keyspace.contains_key("k").unwrap());
        assert_eq!(blob_lookups(&db), before + 1, "flushed: {is_flushed}");
        db.flush().unwrap();
    }
    assert_eq!(keyspace.get("k").unwrap().unwrap(), [&VALUE[..], b"+"].concat());
}

/// A lookup by `contains_key` counts as a get, and its bytes include the value that was not read.
#[test]
fn contains_key_counts_as_get() {
    let db = open(&MemVfs::new(), inline().keyspace_defaults(keyspace_options()));
    let keyspace = db.default_keyspace();
    keyspace.put("k", VALUE).unwrap();
    db.flush().unwrap();
    let counts = || {
        let metrics = db.metrics().keyspaces["default"].clone();
        (metrics.gets, metrics.operations.get_bytes)
    };
    let before = counts();
    keyspace.get("k").unwrap();
    let between = counts();
    keyspace.contains_key("k").unwrap();
    keyspace.contains_key("missing").unwrap();
    let after = counts();
    assert_eq!((between.0 - before.0, after.0 - between.0), (1, 2));
    assert_eq!(after.1 - between.1, between.1 - before.1);
}
