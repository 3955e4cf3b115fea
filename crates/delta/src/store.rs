//! Operand store with key-delta separation.

use lsmx::Result;
use lsmx::operand_store::{
    OperandCollection, OperandDelivery, OperandFileKind, OperandMetrics, OperandStore, OperandView,
    StoreContext, StoreToken,
};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use crate::collection::due_buckets::BucketCollection;
use crate::collection::whole_store::WholeStoreCollection;
use crate::delivery::DeltaDelivery;
use crate::options::DeltaOptions;
use crate::state::StoreState;

#[derive(Debug)]
pub struct DeltaStore {
    pub state: StoreState,
}

impl DeltaStore {
    /// Opens a store in the state that `token` names. Without a token, returns an empty store.
    pub fn open(
        context: StoreContext,
        token: Option<StoreToken>,
        options: DeltaOptions,
    ) -> Result<DeltaStore> {
        Ok(DeltaStore { state: StoreState::open(context, token, options)? })
    }
}

impl OperandStore for DeltaStore {
    fn view(&self) -> Arc<dyn OperandView> {
        self.state.committed_view()
    }

    fn deliver(&self, through: SeqNo) -> Result<Box<dyn OperandDelivery + '_>> {
        let base = self.state.load_base_view()?;
        Ok(Box::new(DeltaDelivery::new(&self.state, base, through)))
    }

    fn mark_committed(&self, token: StoreToken) {
        self.state.commit(token);
    }

    fn abandon(&self) {
        self.state.abandon_prepared_views();
    }

    fn discard_prepared(&self) {
        self.state.discard_prepared_views();
    }

    fn recover(&self) -> Result<()> {
        self.state.load_base_view().map(drop)
    }

    fn is_collection_due(&self) -> bool {
        self.state.is_collection_due()
    }

    fn collect(&self, snapshots: &[SeqNo]) -> Result<Option<Box<dyn OperandCollection + '_>>> {
        let collection = BucketCollection::start_if_due(&self.state, snapshots)?;
        Ok(collection.map(|collection| Box::new(collection) as Box<dyn OperandCollection + '_>))
    }

    fn collect_all(&self) -> Result<Box<dyn OperandCollection + '_>> {
        Ok(Box::new(WholeStoreCollection::start_collection(&self.state)?))
    }

    fn check_file(&self, kind: OperandFileKind, number: u64) -> Option<Result<u64>> {
        match kind {
            OperandFileKind::Bucket => Some(self.state.check_bucket_file(number)),
            OperandFileKind::Log => None,
        }
    }

    fn exclude_files(&self, files: &[(OperandFileKind, u64)]) {
        let buckets = files.iter().filter(|(kind, _)| *kind == OperandFileKind::Bucket);
        self.state.set_excluded_file_numbers(buckets.map(|(_, number)| *number).collect());
    }

    fn remove_void_operands(&self, through: SeqNo, snapshots: &[SeqNo]) {
        self.state.request_removal(through, snapshots);
    }

    fn oldest_void_delete(&self) -> Option<SeqNo> {
        self.state.oldest_void_delete()
    }

    fn live_files(&self) -> Vec<(OperandFileKind, u64)> {
        self.state.committed_files()
    }

    fn memory_bytes(&self) -> u64 {
        self.state.memory_bytes()
    }

    fn rewrite_bytes_max(&self) -> u64 {
        // After a recovery, the operands in the log are in memory. The next deliveries write them to bucket files.
        self.state.recovery_log_bytes_max()
    }

    fn metrics(&self) -> OperandMetrics {
        let memory_bytes = self.memory_bytes();
        OperandMetrics { memory_bytes, ..self.state.committed_view().metrics() }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use lsmx::operand_store::OperandReadTier;
    use lsmx::vfs::{MemVfs, Vfs};
    use lsmx_testkit::delta::{StoreDir, store_context};

    use super::*;

    /// Regression: a cache entry kept the whole tail of the bucket in memory, if the merge operator had no partial
    /// merge. The size of the entry did not include the tail.
    #[test]
    fn cache_entry_does_not_share_memory_with_tail() {
        let vfs = MemVfs::new();
        vfs.create_dir(Path::new("db")).unwrap();
        let files = StoreDir::new(Arc::new(vfs), "db", 1);
        let context = store_context(&files, &Arc::default(), 0);
        let options = DeltaOptions::default().bucket_bytes(1024).cache_bytes(1 << 20);
        let store = DeltaStore::open(context, None, options).unwrap();
        let deliver = |seq: u64| {
            let mut delivery = store.deliver(SeqNo(seq)).unwrap();
            delivery.add_operand(b"key", SeqNo(seq), &[7; 40]).unwrap();
            let prepared = delivery.prepare().unwrap();
            store.mark_committed(prepared.token);
        };
        let has_files = || store.state.committed_view().buckets[0].file_bytes() > 0;
        let mut seq = 0;
        while seq == 0 || !has_files() {
            seq += 1;
            deliver(seq);
        }
        deliver(seq + 1);
        let (view, mut found) = (store.state.committed_view(), Vec::new());
        view.read_operands(b"key", SeqNo::MAX, OperandReadTier::Storage, &mut found).unwrap();
        let tail = view.buckets[0].tail.bytes().as_ptr_range();
        let cache = store.state.resources.cache.as_ref().unwrap();
        let entry = cache.get(b"key").expect("the read inserts an entry");
        assert_eq!(entry.operands.len(), found.len());
        assert!(!tail.is_empty() && !entry.operands.is_empty());
        for operand in &*entry.operands {
            assert!(!tail.contains(&operand.bytes.as_ptr()), "{}", operand.last.0);
        }
    }

    /// Bug: the first log after an open began with the recovered tails. The next open added all later deliveries to these
    /// tails, although deliveries had written most of the records to bucket files. The tails grew with each open.
    #[test]
    fn recovered_tails_do_not_grow_with_each_open() {
        const KEYS: u64 = 60;
        let vfs = MemVfs::new();
        vfs.create_dir(Path::new("db")).unwrap();
        let files = StoreDir::new(Arc::new(vfs), "db", 1);
        let (memory_bytes, log_bytes_max) = (64 << 10, 16 << 10);
        let context = StoreContext {
            memory_bytes: Some(memory_bytes),
            ..store_context(&files, &Arc::default(), 0)
        };
        let options = DeltaOptions::default().bucket_bytes(64 << 10).log_bytes_max(log_bytes_max);
        let open = |token| DeltaStore::open(context.clone(), token, options).unwrap();
        let (mut token, mut seq, mut recovered_bytes) = (None, 0, Vec::new());
        for _ in 0..30 {
            let store = open(token);
            recovered_bytes.push(store.metrics().buffered_bytes);
            for _ in 0..3 {
                let mut delivery = store.deliver(SeqNo(seq + KEYS)).unwrap();
                for key in 0..KEYS {
                    seq += 1;
                    delivery.add_operand(&key.to_be_bytes(), SeqNo(seq), &[7; 50]).unwrap();
                }
                let prepared = delivery.prepare().unwrap();
                store.mark_committed(prepared.token);
                token = Some(prepared.token);
            }
        }
        // Half of the memory is for tails. A log exceeds its maximum size by at most one delivery, which has less than 8 KiB.
        let limit = memory_bytes / 2 + log_bytes_max + (8 << 10);
        assert!(recovered_bytes.iter().all(|bytes| *bytes <= limit), "{recovered_bytes:?}");
        let (store, mut found) = (open(token), Vec::new());
        let view = store.state.committed_view();
        let key = (KEYS - 1).to_be_bytes();
        view.read_operands(&key, SeqNo::MAX, OperandReadTier::Storage, &mut found).unwrap();
        assert_eq!(found.len(), 90);
    }
}
