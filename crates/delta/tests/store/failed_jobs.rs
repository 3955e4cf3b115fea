//! Tests which files remain after failed deliveries and collections.

use crate::common::{Driver, Write, disk};
use lsmx::SeqNo;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx_base::sync::Arc;
use lsmx_delta::DeltaOptions;

fn round() -> Vec<Write> {
    let write = |number| Write::Operand { key: format!("key{number:02}").into_bytes(), bytes: 40 };
    (0..12).map(write).collect()
}

/// Returns a store of which a collection is due, and the file system of its next open. The store has no log writer, so
/// the next append starts a new log.
fn reopened_due_store() -> (Driver, FaultVfs) {
    let mem = disk();
    let vfs = FaultVfs::new(Arc::new(mem.clone()), 1);
    let options = DeltaOptions::default().bucket_bytes(1024).log_bytes_max(1024);
    let mut driver = Driver::on(mem, Arc::new(vfs.clone()), options);
    for _ in 0..100 {
        driver.flush(&round());
        if driver.store.is_collection_due() {
            // After an open, the operands in the log are in the tails of their buckets.
            driver.reopen().unwrap();
            if driver.store.is_collection_due() {
                return (driver, vfs);
            }
        }
    }
    panic!("no collection is due after an open");
}

/// Regression: a failed delivery or collection left its new log behind. On a full disk, the log took the space that the
/// next attempt needed.
#[test]
fn failed_delivery_or_collection_leaves_no_files() {
    for (call, nth) in [(VfsCall::Append, 0), (VfsCall::Append, 1), (VfsCall::Sync, 0)] {
        for is_collection in [false, true] {
            let when = format!("{call:?} {nth}, collection: {is_collection}");
            let (mut driver, vfs) = reopened_due_store();
            let before = driver.files.existing_files();
            for _ in 0..3 {
                let rule = FaultRule::new(Fault::Error(Errno::NoSpace)).for_calls(&[call]);
                vfs.add_rule(rule.path_contains(".operands").nth(nth).once());
                let failed = match is_collection {
                    true => driver.collect(None).map(drop),
                    false => driver.deliver(&round()).map(drop),
                };
                assert!(failed.unwrap_err().to_string().contains(".operands"), "{when}");
                assert_eq!(driver.files.existing_files(), before, "{when}");
                driver.store.recover().unwrap();
            }
            driver.flush(&round());
            driver.collect(None).unwrap();
            driver.check().unwrap();
            driver.reopen().unwrap();
            driver.check().unwrap();
        }
    }
}

#[test]
fn discarded_deliveries_leave_no_files() {
    let (mut driver, _) = reopened_due_store();
    let before = driver.files.existing_files();
    for _ in 0..3 {
        let mut model = driver.model.clone();
        for _ in 0..5 {
            driver.deliver_on(&mut model, &round()).unwrap();
        }
        assert_ne!(driver.files.existing_files(), before);
        driver.store.discard_prepared();
        assert_eq!(driver.files.existing_files(), before);
        driver.check().unwrap();
    }
    driver.flush(&round());
    driver.check().unwrap();
    driver.reopen().unwrap();
    driver.check().unwrap();
}

/// Regression: after a delivery had started a new log and was then discarded or abandoned, the store reported the size of
/// the new log. The store recovers from the committed log.
#[test]
fn log_bytes_after_discarded_or_abandoned_delivery_are_those_of_the_committed_log() {
    for is_abandoned in [false, true] {
        let mut driver = Driver::new(DeltaOptions::default().log_bytes_max(4096));
        let store = driver.store.clone();
        let log_bytes = || (store.metrics().log_bytes, store.rewrite_bytes_max());
        let committed = loop {
            let committed = log_bytes();
            let (prepared, model) = driver.deliver(&round()).unwrap();
            // The new log contains only this delivery and the tails.
            if log_bytes().0 < committed.0 {
                break committed;
            }
            driver.commit(&prepared, model);
        };
        assert_eq!(store.rewrite_bytes_max(), committed.1);
        match is_abandoned {
            true => store.abandon(),
            false => store.discard_prepared(),
        }
        assert_eq!(log_bytes(), committed);
    }
}

/// The manifest may contain the token of an abandoned delivery, so its files are kept if a later one is discarded.
#[test]
fn discarded_delivery_keeps_files_of_abandoned_delivery() {
    let (mut driver, _) = reopened_due_store();
    let (abandoned, abandoned_model) = driver.deliver(&round()).unwrap();
    driver.store.abandon();
    driver.deliver(&round()).unwrap();
    driver.store.discard_prepared();
    let (token, model) = (driver.token, driver.model.clone());
    for (token, model) in [(token, model), (Some(abandoned.token), abandoned_model)] {
        (driver.token, driver.model) = (token, model);
        let vfs = driver.files.vfs.clone();
        driver.open_on(vfs).unwrap();
        driver.check().unwrap();
        driver.verify().unwrap();
    }
}

#[test]
fn discarded_collection_leaves_no_files() {
    let (mut driver, _) = reopened_due_store();
    let before = driver.files.existing_files();
    let store = driver.store.clone();
    let collection = store.collect(&[SeqNo(driver.model.through)]).unwrap().unwrap();
    let prepared = collection.prepare().unwrap();
    store.discard_prepared();
    drop(prepared);
    assert_eq!(driver.files.existing_files(), before);
    driver.flush(&round());
    driver.collect(None).unwrap();
    driver.check().unwrap();
    driver.reopen().unwrap();
    driver.check().unwrap();
}
