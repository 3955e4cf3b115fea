//! Writes and reads through all layers, on the in-memory and the real file system.

use std::collections::BTreeMap;
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::MemVfs;
use lsmx::{Db, Durability, Error, KeyspaceOptions, Options, PolicySpec, WriteBatch};

fn small(policy: &PolicySpec) -> KeyspaceOptions {
    KeyspaceOptions::default()
        .policy(policy.clone())
        .memtable_bytes(8 << 10)
        .table_bytes(8 << 10)
        .block_bytes(256)
}

fn options(policy: &PolicySpec) -> Options {
    Options::default().background(Background::Inline).seed(1).keyspace_defaults(small(policy))
}

fn key(number: u64) -> Vec<u8> {
    format!("key-{:06}", number.wrapping_mul(7919) % 3000).into_bytes()
}

/// An append fails, the database is resumed and closed well: what the lost commit had for a number
/// is not what the next one gets.
#[test]
fn numbers_of_commits_that_failed_are_never_given_again() {
    let disk = MemVfs::new();
    let faulty = FaultVfs::new(Arc::new(disk.clone()), 1);
    let options = || Options::default().background(Background::Inline).seed(1);
    let db = Db::open("db", options().vfs(Arc::new(faulty.clone()))).unwrap();
    db.put("a", "1").unwrap();
    let before = db.snapshot().seq();
    let rule = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Append]);
    faulty.add_rule(rule.path_contains(".wal"));
    assert!(db.put("b", "2").is_err());
    faulty.clear_rules();
    db.resume().unwrap();
    db.close(None).unwrap();
    drop(db);
    let db = Db::open("db", options().vfs(Arc::new(disk))).unwrap();
    assert!(db.get("b").unwrap().is_none());
    db.put("c", "3").unwrap();
    assert!(db.snapshot().seq().0 > before.0 + 1, "{:?} after {before:?}", db.snapshot().seq());
}

#[test]
fn every_preset_keeps_everything_over_reopenings() {
    lsmx_testkit::time_test();
    for policy in PolicySpec::all_presets() {
        let disk = MemVfs::new();
        let mut model = BTreeMap::new();
        for round in 0..4u64 {
            let db = Db::open("db", options(&policy).vfs(Arc::new(disk.clone()))).unwrap();
            for number in 0..2_000u64 {
                let (key, value) = (key(number + round * 700), format!("{round}-{number}"));
                if number % 7 == 3 {
                    db.delete(&key).unwrap();
                    model.remove(&key);
                } else {
                    db.put(&key, &value).unwrap();
                    model.insert(key, value.into_bytes());
                }
            }
            let forward: Vec<_> = db.default_keyspace().iter().map(Result::unwrap).collect();
            assert_eq!(forward.len(), model.len(), "{policy}");
            for ((key, value), (model_key, model_value)) in forward.iter().zip(&model) {
                assert_eq!((&**key, &**value), (&**model_key, &**model_value));
                assert_eq!(db.get(key).unwrap().as_deref(), Some(&**model_value));
            }
            let mut backward: Vec<_> =
                db.default_keyspace().iter().rev().map(Result::unwrap).collect();
            backward.reverse();
            assert_eq!(forward, backward);
            assert_eq!(db.get("absent").unwrap(), None);
            if round % 2 == 0 {
                db.close(None).unwrap();
                assert!(matches!(db.get("a"), Err(Error::Closed)));
            }
            drop(db);
            lsmx::verify("db", &Options::default().vfs(Arc::new(disk.clone()))).unwrap();
        }
    }
}

#[test]
fn threads_write_and_read_a_real_directory() {
    lsmx_testkit::time_test();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nested/db");
    let policy: PolicySpec = "leveled".parse().unwrap();
    let options = || Options::default().keyspace_defaults(small(&policy));
    let db = Db::open(&path, options()).unwrap();
    let other = db.keyspace("other", small(&policy)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (db, other) = (db.clone(), other.clone());
            scope.spawn(move || {
                let main = db.default_keyspace();
                for number in 0..2_000u64 {
                    let key = format!("{thread}-{number:05}");
                    let mut batch = WriteBatch::new();
                    batch.put(&main, &key, number.to_le_bytes());
                    batch.put(&other, &key, thread.to_le_bytes());
                    let sync = number % 500 == 0;
                    let durability = if sync { Durability::Sync } else { Durability::Buffered };
                    db.write(batch, durability).unwrap();
                    assert_eq!(main.get(&key).unwrap().unwrap(), number.to_le_bytes());
                }
            });
        }
    });
    db.wait_idle().unwrap();
    assert!(matches!(Db::open(&path, options()), Err(Error::Locked { .. })));
    drop((db, other));
    let report = lsmx::verify(&path, &Options::default()).unwrap();
    assert_eq!((report.keyspaces, report.orphans.len()), (2, 0));
    let db = Db::open(&path, options().create_if_missing(false)).unwrap();
    assert_eq!(db.keyspaces(), ["default", "other"]);
    for name in db.keyspaces() {
        assert_eq!(db.open_keyspace(&name, None).unwrap().iter().count(), 8_000);
    }
}
