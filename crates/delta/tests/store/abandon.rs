//! Reads while a prepared version is abandoned.

#![allow(clippy::disallowed_methods, reason = "a test may panic")]

use std::cell::RefCell;
use std::path::PathBuf;

use crate::common::{Counts, Files, concat_operands, store_context};
use lsmx::operand_store::{
    OperandFileKind, OperandFiles, OperandReadTier, OperandStore, OperandStoreFactory, StoreContext,
};
use lsmx::vfs::{File, MemVfs, Vfs};
use lsmx::{Result, SeqNo};
use lsmx_base::sync::Arc;
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

thread_local! {
    /// Called once, when somebody asks where a log lies.
    static HOOK: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// Files of which a log that is about to be read calls a hook.
#[derive(Debug)]
struct Hooked(Arc<Files>);

impl OperandFiles for Hooked {
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
        // A log goes later on, as the engine's janitor has it.
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

/// A collection has not the turn while it begins. It read again what was abandoned, and when a delivery
/// came meanwhile put what it had read in the place of what that had brought: the next was built on it,
/// and operands that were committed were gone.
#[test]
fn collection_started_after_abandon_loses_no_delivery() {
    let vfs = MemVfs::new();
    vfs.create_dir("db".as_ref()).unwrap();
    let files = Files::new(Arc::new(vfs), "db", 1);
    let place = StoreContext {
        files: Arc::new(Hooked(files.clone())),
        ..store_context(&files, &Arc::<Counts>::default())
    };
    let options = DeltaOptions::default().bucket_bytes(512);
    // A hook cannot borrow it.
    let store: &'static _ =
        Box::leak(Box::new(DeltaStoreFactory::new(options).open(place, None).unwrap()));
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
    // Nothing was read, so that it could come between; it does now.
    if let Some(hook) = HOOK.take() {
        hook();
    }
    deliver(&**store, b"later", late + 1, true);
    for (key, expected) in [("late", late), ("later", late + 1), ("key1", 1)] {
        let mut found = Vec::new();
        let view = store.view();
        view.read_operands(key.as_bytes(), SeqNo::MAX, OperandReadTier::Storage, &mut found)
            .unwrap();
        assert_eq!(concat_operands(&found), format!("{expected},").into_bytes(), "{key}");
    }
    assert!(store.is_collection_due());
    assert!(store.collect(&[SeqNo(late + 1)]).unwrap().is_some());
}
