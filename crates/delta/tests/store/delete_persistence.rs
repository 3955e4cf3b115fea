//! Removal of operands that old delete markers void, from bucket files and from the log.

use std::collections::BTreeSet;

use lsmx::SeqNo;
use lsmx::operand_store::{OperandStoreFactory, StoredRecord};
use lsmx_base::sync::Arc;
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use lsmx_testkit::{TestRng, case_seeds};

use crate::common::{Driver, Write, draw_writes, store_context};

fn operand(key: &str) -> Write {
    Write::Operand { key: key.into(), bytes: 40 }
}

fn delete(key: &str) -> Write {
    Write::DeleteMarker { key: key.into() }
}

/// Returns the records of a key in all files of the committed state.
fn search(driver: &Driver, key: &str) -> Vec<StoredRecord> {
    let Some(token) = driver.token else { return Vec::new() };
    let context = store_context(&driver.files, &Arc::default());
    let factory = DeltaStoreFactory::new(driver.options);
    factory.search_key(context, token, key.as_bytes()).unwrap().unwrap()
}

/// Requests the removal of all void operands, and runs the collections that are due. Returns their number.
fn remove_all(driver: &mut Driver) -> usize {
    driver.store.remove_void_operands(SeqNo(driver.seq), &driver.snapshots());
    let mut count = 0;
    while driver.store.is_collection_due() {
        assert!(driver.collect(None).unwrap());
        count += 1;
        assert!(count < 100, "collections are due again and again");
    }
    count
}

#[test]
fn void_operands_in_tails_are_removed_from_the_log() {
    let mut driver = Driver::new(DeltaOptions::default());
    driver.flush(&[operand("a"), operand("b"), operand("c")]);
    assert_eq!(driver.store.oldest_void_delete(), None);
    let first_delete = SeqNo(driver.seq + 1);
    driver.flush(&[delete("a"), Write::RangeDeleteMarker { start: "c".into(), end: None }]);
    assert_eq!(driver.store.oldest_void_delete(), Some(first_delete));
    assert!(remove_all(&mut driver) > 0);
    assert_eq!(search(&driver, "a"), []);
    assert_eq!(search(&driver, "c"), []);
    assert_eq!(search(&driver, "b").len(), 1, "only the bucket file contains the operand");
    assert_eq!(driver.store.oldest_void_delete(), None);
    assert_eq!(remove_all(&mut driver), 0);
    driver.check().unwrap();
    driver.reopen().unwrap();
    driver.check().unwrap();
}

#[test]
fn operands_that_a_snapshot_needs_are_removed_after_its_release() {
    let mut driver = Driver::new(DeltaOptions::default());
    driver.flush(&[operand("a"), operand("b")]);
    driver.snapshots.insert(driver.seq);
    driver.flush(&[delete("a")]);
    let deleted = SeqNo(driver.seq);
    driver.snapshots.insert(driver.seq);
    assert!(remove_all(&mut driver) > 0);
    assert!(search(&driver, "a").len() >= 2, "the operand and its marker");
    assert_eq!(driver.store.oldest_void_delete(), Some(deleted));
    assert_eq!(remove_all(&mut driver), 0, "the snapshots have not changed");
    driver.snapshots.remove(&deleted.0);
    assert_eq!(remove_all(&mut driver), 0, "the released snapshot needs no operand");
    driver.check().unwrap();
    driver.snapshots.clear();
    assert!(remove_all(&mut driver) > 0);
    assert_eq!(search(&driver, "a"), []);
    assert_eq!(driver.store.oldest_void_delete(), None);
}

#[test]
fn only_requested_deletes_make_buckets_due() {
    let mut driver = Driver::new(DeltaOptions::default());
    driver.flush(&[operand("a"), operand("b")]);
    remove_all(&mut driver);
    driver.flush(&[delete("a")]);
    let first = driver.seq;
    driver.flush(&[delete("b")]);
    driver.store.remove_void_operands(SeqNo(first - 1), &driver.snapshots());
    let rewrites = driver.store.metrics().rewrites;
    while driver.collect(None).unwrap() {}
    assert_eq!(driver.store.metrics().rewrites, rewrites);
    driver.store.remove_void_operands(SeqNo(first), &driver.snapshots());
    while driver.collect(None).unwrap() {}
    assert!(driver.store.metrics().rewrites > rewrites);
    assert_eq!(search(&driver, "a"), []);
}

/// Regression: the check of the abandoned view stated that no collection is due, and the recovery did not repeat it.
#[test]
fn abandoned_collection_is_due_again_after_recovery() {
    let mut driver = Driver::new(DeltaOptions::default());
    driver.flush(&[operand("a"), operand("b")]);
    driver.flush(&[delete("a")]);
    driver.store.remove_void_operands(SeqNo(driver.seq), &driver.snapshots());
    let store = driver.store.clone();
    let collection = store.collect(&driver.snapshots()).unwrap().unwrap();
    collection.prepare().unwrap();
    store.abandon();
    assert!(!store.is_collection_due());
    store.recover().unwrap();
    assert!(store.is_collection_due());
    assert!(remove_all(&mut driver) > 0);
    assert_eq!(search(&driver, "a"), []);
    driver.check().unwrap();
}

/// After an open, it is not known which buckets contain markers. Buckets without markers are read once, and not
/// written.
#[test]
fn buckets_without_markers_are_not_rewritten_after_open() {
    let mut driver = Driver::new(DeltaOptions::default().bucket_bytes(4096));
    driver.fill_buckets(0..40);
    driver.reopen().unwrap();
    driver.flush(&[operand("key000")]);
    while driver.collect(None).unwrap() {}
    let buckets = driver.store.metrics().buckets;
    assert!(buckets > 20, "{buckets}");
    let (rewrites, splits) = (driver.store.metrics().rewrites, driver.store.metrics().splits);
    let read_bytes = driver.store.metrics().bucket_read_bytes;
    assert!(remove_all(&mut driver) > 1);
    let after = driver.store.metrics();
    assert_eq!((after.rewrites, after.splits), (rewrites, splits));
    assert!(after.bucket_read_bytes > read_bytes);
    assert_eq!(driver.store.oldest_void_delete(), None);
    driver.check().unwrap();
}

#[test]
fn random_histories_leave_no_void_operand() {
    for seed in case_seeds(&[], 60) {
        let mut rng = TestRng::new(seed);
        let options = DeltaOptions::default()
            .bucket_bytes(*rng.choose(&[512, 1024, 64 << 10]))
            .buckets_max(*rng.choose(&[4, 1000]))
            .log_bytes_max(*rng.choose(&[1024, 1 << 20]))
            .cache_bytes(*rng.choose(&[0, 4096]));
        let mut driver = Driver::new(options);
        for _ in 0..rng.between(1, 30) {
            let count = rng.between(1, 40);
            let writes = draw_writes(&mut rng, count, true);
            match rng.below(10) {
                0 => driver.reopen().unwrap(),
                1 => drop(driver.snapshots.insert(driver.model.through)),
                2 => drop(driver.snapshots.pop_first()),
                3..5 => drop(driver.collect(Some(&writes)).unwrap()),
                5 => drop(remove_all(&mut driver)),
                _ => driver.flush(&writes),
            }
        }
        remove_all(&mut driver);
        driver.check().unwrap();
        driver.snapshots.clear();
        remove_all(&mut driver);
        driver.check().unwrap();
        driver.verify().unwrap();
        assert_eq!(driver.store.oldest_void_delete(), None, "seed {seed}");
        let keys: BTreeSet<Vec<u8>> = driver.model.keys.keys().cloned().collect();
        for key in keys {
            let name = String::from_utf8(key.clone()).unwrap();
            let marker = driver.model.newest_marker(&key, u64::MAX);
            let records = search(&driver, &name);
            let void = records.iter().find(|record| record.seq.0 <= marker);
            assert_eq!(void, None, "seed {seed}: {name} is deleted at {marker}");
        }
    }
}
