//! Writes, reads and reopens with every preset compaction policy, and sequence numbers after failed commits.

use std::sync::Arc;

use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::MemVfs;
use lsmx::{Error, PolicySpec};

use crate::harness::database::{
    Entries, assert_clean, assert_entries, compact, files, inline, open, small,
};

fn key(number: u64) -> Vec<u8> {
    format!("key-{:06}", number.wrapping_mul(7919) % 3000).into_bytes()
}

#[test]
fn sequence_number_of_a_failed_commit_is_not_reused() {
    let disk = MemVfs::new();
    let faulty = FaultVfs::new(Arc::new(disk.clone()), 1);
    let db = open(&faulty, inline());
    db.put("a", "1").unwrap();
    let before = db.snapshot().seq();
    let rule = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Append]);
    faulty.add_rule(rule.path_contains(".wal"));
    assert!(db.put("b", "2").is_err());
    faulty.clear_rules();
    db.resume().unwrap();
    db.close(None).unwrap();
    let db = open(&disk, inline());
    assert!(db.get("b").unwrap().is_none());
    db.put("c", "3").unwrap();
    assert!(db.snapshot().seq().0 > before.0 + 1, "{:?} after {before:?}", db.snapshot().seq());
}

#[test]
fn every_preset_keeps_all_entries_over_reopens() {
    lsmx_testkit::time_test();
    for policy in PolicySpec::all_presets() {
        let disk = MemVfs::new();
        let mut model = Entries::new();
        let keyspace = small().policy(policy).memtable_bytes(8 << 10).table_bytes(8 << 10);
        for round in 0..4u64 {
            let db = open(&disk, inline().keyspace_defaults(keyspace.clone()));
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
            assert_entries(&db.default_keyspace(), &model);
            assert_eq!(db.get("absent").unwrap(), None);
            if round % 2 == 0 {
                db.close(None).unwrap();
                assert!(matches!(db.get("a"), Err(Error::Closed)));
            }
            drop(db);
            assert_clean(&disk);
        }
    }
}

/// A seek announces its blocks if an earlier seek has waited for the device. The announcement of a backward seek read
/// metadata of the table after the bound, and returned its error.
#[test]
fn backward_range_before_an_unreadable_table_returns_its_last_entry() {
    const KEYS: u8 = 60;
    let disk = MemVfs::new();
    let faulty = FaultVfs::new(Arc::new(disk.clone()), 1);
    let db = open(&faulty, inline().block_cache_bytes(0).keyspace_defaults(small()));
    for number in 0..KEYS {
        db.put([number], [7; 1000]).unwrap();
    }
    compact(&db).unwrap();
    // With the simulated clock of `inline`, each seek counts as one that has waited.
    assert!(db.default_keyspace().iter().next().unwrap().is_ok());
    let tables = files(&disk, ".sst");
    assert!(tables.len() > 5, "{tables:?}");
    let mut first_keys = 0;
    for table in tables {
        let name = table.file_name().unwrap().to_str().unwrap();
        let failing = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Read]);
        faulty.add_rule(failing.path_contains(name).chance(1.0));
        let is_readable = |number: u8| db.get([number]).is_ok();
        for number in (1..KEYS).filter(|&number| is_readable(number - 1) && !is_readable(number)) {
            let last = db.default_keyspace().range(vec![0]..vec![number - 1, 0]).next_back();
            assert_eq!(&*last.unwrap().unwrap().0, [number - 1]);
            first_keys += 1;
        }
        faulty.clear_rules();
    }
    assert!(first_keys > 4, "{first_keys}");
}
