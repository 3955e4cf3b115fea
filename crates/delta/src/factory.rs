//! Factory for the stores of keyspaces.

use lsmx::operand_store::{
    OperandMetrics, OperandStore, OperandStoreFactory, StoreContext, StoreToken, StoredRecord,
};
use lsmx::{Error, Result};
use lsmx_base::sync::Arc;

use crate::bucket::verify::BucketVerifier;
use crate::key_search::search_key;
use crate::memory::MemoryUsage;
use crate::options::DeltaOptions;
use crate::store::DeltaStore;

/// Creates operand stores with key-delta separation. The manifest stores the name `key-delta`.
///
/// A store with an invalid option cannot be opened.
///
/// ```
/// use lsmx::KeyspaceOptions;
/// use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
///
/// let factory = DeltaStoreFactory::new(DeltaOptions::default().cache_bytes(64 << 20));
/// let options = KeyspaceOptions::default().operand_store(factory);
/// ```
///
/// Source: Li et al., key-delta separation (KDSep), ICDE 2024.
#[derive(Clone, Debug, Default)]
pub struct DeltaStoreFactory {
    options: DeltaOptions,
}

impl DeltaStoreFactory {
    /// Returns a factory for stores with these options.
    #[must_use]
    pub fn new(options: DeltaOptions) -> DeltaStoreFactory {
        DeltaStoreFactory { options }
    }
}

impl OperandStoreFactory for DeltaStoreFactory {
    fn name(&self) -> &str {
        "key-delta"
    }

    fn open(
        &self,
        context: StoreContext,
        token: Option<StoreToken>,
    ) -> Result<Arc<dyn OperandStore>> {
        Ok(Arc::new(DeltaStore::open(context, token, self.options)?))
    }

    fn verify(&self, context: StoreContext, token: StoreToken) -> Result<OperandMetrics> {
        let context = StoreContext { read_only: true, ..context };
        let store = DeltaStore::open(context, Some(token), self.options)?;
        let view = store.state.committed_view();
        let memory = MemoryUsage::default();
        for (index, bucket) in view.buckets.iter().enumerate() {
            let verifier =
                BucketVerifier { bucket, end: view.bucket_end_key(index), memory: &memory };
            verifier.verify_files()?;
            // The next buckets do not use these files. Otherwise, the verification would need as many descriptors as
            // the store has files.
            bucket.files().for_each(|file| file.close_reader());
            let mut tail = bucket.tail.records();
            tail.try_for_each(|record| verifier.check_key_range(&record.key)).map_err(
                |malformed| Error::malformed(malformed, &store.state.committed_log_path(), 0),
            )?;
        }
        Ok(view.metrics())
    }

    fn supports_delete_persistence(&self) -> bool {
        true
    }

    fn search_key(
        &self,
        context: StoreContext,
        token: StoreToken,
        key: &[u8],
    ) -> Result<Option<Vec<StoredRecord>>> {
        let context = StoreContext { read_only: true, ..context };
        let store = DeltaStore::open(context, Some(token), self.options)?;
        search_key(&store, token, key).map(Some)
    }
}
