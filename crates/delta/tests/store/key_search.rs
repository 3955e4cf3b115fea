//! Search for the entries of a key in the files of a store.

use std::sync::Arc;

use lsmx::env::Background;
use lsmx::internals::vfs::CrashImage;
use lsmx::merge_operator::Append;
use lsmx::vfs::MemVfs;
use lsmx::{Db, KeySearchReport, KeyspaceOptions, Options, RemainingKind, search_key};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

fn store() -> DeltaStoreFactory {
    DeltaStoreFactory::new(DeltaOptions::default().bucket_bytes(512).cache_bytes(0))
}

fn search(disk: &MemVfs, key: &str) -> KeySearchReport {
    let image = disk.crash(CrashImage::Keep, 0);
    let options = Options::default().vfs(Arc::new(image)).operand_store(store());
    search_key("db", &options, None, key.as_bytes()).unwrap()
}

fn count(report: &KeySearchReport, kind: RemainingKind, suffix: &str) -> usize {
    let is_in = |path: &std::path::Path| path.extension().is_some_and(|end| end == suffix);
    report.entries.iter().filter(|entry| entry.kind == kind && is_in(&entry.path)).count()
}

#[test]
fn search_of_key_finds_records_in_log_and_buckets() {
    let disk = MemVfs::new();
    let keyspace =
        KeyspaceOptions::default().merge_operator(Append::default()).operand_store(store());
    let options = Options::default().background(Background::Inline).keyspace_defaults(keyspace);
    let db = Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap();
    let keyspace = db.default_keyspace();
    // A flush stores operands without an older value as values in the tree.
    keyspace.put("key", "value").unwrap();
    for number in 0..200 {
        keyspace.put(format!("key {number:03}"), "value").unwrap();
    }
    db.flush().unwrap();
    keyspace.merge("key", "operand").unwrap();
    db.flush().unwrap();
    assert_eq!(count(&search(&disk, "key"), RemainingKind::Operand, "operands"), 1);
    assert_eq!(search(&disk, "key").operand_stores, 1);
    assert!(search(&disk, "other").entries.is_empty());
    keyspace.delete_range("k".."key ").unwrap();
    keyspace.delete("key").unwrap();
    db.flush().unwrap();
    let report = search(&disk, "key");
    assert_eq!(count(&report, RemainingKind::Tombstone, "operands"), 1, "{report:?}");
    assert!(!report.range_tombstones.is_empty());
    for number in 0..200 {
        keyspace.merge(format!("key {number:03}"), [7; 40]).unwrap();
        db.flush().unwrap();
    }
    let found = (0..200).step_by(10).map(|number| search(&disk, &format!("key {number:03}")));
    let in_buckets: usize =
        found.map(|report| count(&report, RemainingKind::Operand, "bucket")).sum();
    assert!(in_buckets > 5, "{in_buckets}");
}
