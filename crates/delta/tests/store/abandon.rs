//! Tests a collection that starts after a prepared version was abandoned, while a delivery runs.

#![allow(clippy::disallowed_methods, reason = "a test may panic")]

use std::cell::RefCell;
use std::path::PathBuf;

use crate::common::{disk, read_operands, store_context};
use lsmx::operand_store::{
    OperandFileKind, OperandFiles, OperandStore, OperandStoreFactory, StoreContext,
};
use lsmx::vfs::{File, Vfs};
use lsmx::{Result, SeqNo};
use lsmx_base::sync::Arc;
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use lsmx_testkit::delta::StoreDir;

thread_local! {
    /// Hook that runs once, when the store next requests the path of a log.
    static HOOK: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// A store directory that runs the hook before the store reads a log.
#[derive(Debug)]
struct HookedDir(Arc<StoreDir>);

impl OperandFiles for HookedDir {
    fn vfs(&self) -> &Arc<dyn Vfs> {
        self.0.vfs()
    }

    fn path(&self, kind: OperandFileKind, number: u64) -> PathBuf {
        if kind == OperandFileKind::Log
            && let Some(hook) = HOOK.take()
        {
            hook();
        }
        self.0.path(kind, number)
    }

    fn create(&self, kind: OperandFileKind) -> Result<(u64, Arc<dyn File>)> {
        self.0.create(kind)
    }

    fn sync_directory(&self) -> Result<()> {
        self.0.sync_directory()
    }

    fn discard(&self, kind: OperandFileKind, number: u64) {
        // The engine removes logs with a delay, so this test keeps them.
        if kind == OperandFileKind::Bucket {
            self.0.discard(kind, number);
        }
    }
}

fn deliver(store: &dyn OperandStore, key: &[u8], seq: u64, commit: bool) {
    let mut delivery = store.deliver(SeqNo(seq)).unwrap();
    delivery.add_operand(key, SeqNo(seq), format!("{seq},").as_bytes()).unwrap();
    let prepared = delivery.prepare().unwrap();
    if commit {
        store.mark_committed(prepared.token);
    }
}

/// Regression: after an abandon, the start of a collection recovered the store from the log without a lock. This
/// replaced the view of a concurrent delivery, and committed operands were lost.
#[test]
fn collection_started_after_abandon_loses_no_delivery() {
    let files = StoreDir::new(Arc::new(disk()), "db", 1);
    let context = StoreContext {
        files: Arc::new(HookedDir(files.clone())),
        ..store_context(&files, &Arc::default())
    };
    let options = DeltaOptions::default().bucket_bytes(512);
    // The store is leaked, because the hook cannot borrow it.
    let store: &'static _ =
        Box::leak(Box::new(DeltaStoreFactory::new(options).open(context, None).unwrap()));
    let mut seq = 0;
    while !store.is_collection_due() {
        seq += 1;
        deliver(&**store, format!("key{seq}").as_bytes(), seq, true);
    }
    deliver(&**store, b"abandoned", seq + 1, false);
    store.abandon();
    let late = seq + 10;
    HOOK.set(Some(Box::new(move || deliver(&**store, b"late", late, true))));
    drop(store.collect(&[SeqNo(seq)]).unwrap());
    // If the collection has not read a log, the hook has not run. The delivery then runs after the collection.
    if let Some(hook) = HOOK.take() {
        hook();
    }
    deliver(&**store, b"later", late + 1, true);
    for (key, expected) in [("late", late), ("later", late + 1), ("key1", 1)] {
        let found = read_operands(&*store.view(), key.as_bytes(), SeqNo::MAX).unwrap();
        assert_eq!(found, format!("{expected},").into_bytes(), "{key}");
    }
    assert!(store.is_collection_due());
    assert!(store.collect(&[SeqNo(late + 1)]).unwrap().is_some());
}
