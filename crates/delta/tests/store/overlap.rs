//! Tests a collection that starts during a delivery.

#![allow(clippy::disallowed_methods, reason = "a test may panic")]

use std::cell::RefCell;

use crate::common::{Driver, Write};
use lsmx::internals::vfs::MemOperationKind;
use lsmx::operand_store::{OperandCollection, OperandStore};
use lsmx_base::sync::{Arc, AtomicBool, Ordering};
use lsmx_delta::DeltaOptions;

const KEYS: u64 = 12;

thread_local! {
    /// The collection that the observer has started.
    static STARTED: RefCell<Option<Box<dyn OperandCollection>>> = const { RefCell::new(None) };
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:02}").into_bytes()
}

fn round(with_markers: bool) -> Vec<Write> {
    let write = |number| match with_markers && number % 3 == 0 {
        true => Write::DeleteMarker { key: key(number) },
        false => Write::Operand { key: key(number), bytes: 40 },
    };
    (0..KEYS).map(write).collect()
}

/// Regression: a collection started after a delivery had selected buckets. The delivery then wrote pages to these
/// buckets. The collection did not read the pages, and their operands were lost.
#[test]
fn collection_keeps_pages_of_concurrent_delivery() {
    for (most, to_tree) in [(40, false), (4, true)] {
        let options = DeltaOptions::default().bucket_bytes(1024).buckets_max(most);
        let mut driver = Driver::new(options);
        while !driver.store.is_collection_due() {
            driver.flush(&round(false));
        }
        // The store is leaked, because the observer keeps a collection that borrows it.
        let store: &'static Arc<dyn OperandStore> = Box::leak(Box::new(driver.store.clone()));
        let armed = Arc::new(AtomicBool::new(true));
        let snapshots = driver.snapshots();
        driver.mem.set_observer(Some(Arc::new(move |_, operation| {
            let bucket = operation.path.extension().is_some_and(|it| it == "bucket");
            if bucket
                && operation.kind == MemOperationKind::Append
                && armed.swap(false, Ordering::AcqRel)
            {
                let collection = store.collect(&snapshots).unwrap().unwrap();
                STARTED.set(Some(collection));
            }
        })));
        driver.flush(&round(to_tree));
        driver.mem.set_observer(None);
        let collection = STARTED.take().expect("the delivery wrote a page");
        driver.finish_collection(collection).unwrap();
        driver.check().unwrap();
        driver.reopen().unwrap();
        driver.check().unwrap();
    }
}
