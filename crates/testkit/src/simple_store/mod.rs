//! A simple operand store for tests. Each delivery and each collection writes all contents to a new file.
//!
//! The store checks that the engine delivers operands in order and within bounds, and that it commits only prepared
//! versions.

mod contents;
mod cursor;
mod store;
mod view;

use std::cell::Cell;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lsmx::operand_store::{
    OperandMetrics, OperandStore, OperandStoreFactory, StoreContext, StoreToken, StoredRecord,
};
use lsmx::{Error, Result};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

use crate::rng::TestRng;

/// Options of a simple operand store. This type is also the factory of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimpleStore {
    /// Number of deliveries after which a collection is due.
    pub collect_after: u64,
    /// A collection moves operands to the tree with a probability of 1 in this number.
    pub to_tree_one_in: u64,
    /// True if a view loads its contents from the file at the first read. False if a view always has its contents in
    /// memory.
    pub lazy: bool,
}

impl Default for SimpleStore {
    fn default() -> SimpleStore {
        SimpleStore { collect_after: 3, to_tree_one_in: 2, lazy: true }
    }
}

impl OperandStoreFactory for SimpleStore {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn open(
        &self,
        context: StoreContext,
        token: Option<StoreToken>,
    ) -> Result<Arc<dyn OperandStore>> {
        store::open(*self, context, token)
    }

    fn verify(&self, context: StoreContext, token: StoreToken) -> Result<OperandMetrics> {
        Ok(self.open(context, Some(token))?.metrics())
    }
}

thread_local! {
    static USES_DELTA: Cell<bool> = const { Cell::new(false) };
}

/// Selects the kind of store that [`SimpleStore::or_delta`] returns on this thread: a `lsmx-delta` store if
/// `uses_delta` is true, or a simple store if it is false.
///
/// A database can be opened only with the kind of operand store that created it.
pub fn use_delta_stores(uses_delta: bool) {
    USES_DELTA.set(uses_delta);
}

/// Factory of simple operand stores or of `lsmx-delta` stores.
#[derive(Debug)]
pub struct AnyStore(Box<dyn OperandStoreFactory>);

impl SimpleStore {
    /// Draws options of a store that collects often.
    pub fn random(rng: &mut TestRng) -> SimpleStore {
        SimpleStore {
            collect_after: 1 + rng.below(6_u64),
            to_tree_one_in: 1 + rng.below(3_u64),
            lazy: rng.is_one_in(2),
        }
    }

    /// Returns this store, or a `lsmx-delta` store if [`use_delta_stores`] has selected this kind.
    ///
    /// The buckets of the `lsmx-delta` store are so small that a few hundred operands fill several buckets.
    #[must_use]
    pub fn or_delta(self) -> AnyStore {
        if !USES_DELTA.get() {
            return AnyStore(Box::new(self));
        }
        let options = DeltaOptions::default()
            .bucket_bytes(512 << (self.collect_after % 3))
            .buckets_max(4 * self.to_tree_one_in)
            .split_threshold(if self.lazy { 0.8 } else { 0.3 })
            .log_bytes_max(1024 << (self.collect_after % 5))
            .cache_bytes(if self.lazy { 4096 } else { 0 });
        AnyStore(Box::new(DeltaStoreFactory::new(options)))
    }
}

impl OperandStoreFactory for AnyStore {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn open(
        &self,
        context: StoreContext,
        token: Option<StoreToken>,
    ) -> Result<Arc<dyn OperandStore>> {
        self.0.open(context, token)
    }

    fn verify(&self, context: StoreContext, token: StoreToken) -> Result<OperandMetrics> {
        self.0.verify(context, token)
    }

    fn supports_delete_persistence(&self) -> bool {
        self.0.supports_delete_persistence()
    }

    fn search_key(
        &self,
        context: StoreContext,
        token: StoreToken,
        key: &[u8],
    ) -> Result<Option<Vec<StoredRecord>>> {
        self.0.search_key(context, token, key)
    }
}

/// Returns true if a closed database may contain this file without a reference to it.
///
/// A `lsmx-delta` store may leave bucket files whose records are still in its log. The next open writes these records
/// to new files.
pub fn may_be_orphan(path: &Path) -> bool {
    USES_DELTA.get() && path.extension().is_some_and(|extension| extension == "bucket")
}

/// Returns a factory for each kind of operand store. With both factories, a database can be opened with either kind of
/// store.
#[must_use]
pub fn all_stores() -> [Arc<dyn OperandStoreFactory>; 2] {
    let delta = DeltaStoreFactory::new(DeltaOptions::default());
    [Arc::new(SimpleStore::default()), Arc::new(delta)]
}

fn checksum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Io { action, path: path.to_owned(), source: Arc::new(source) }
}
