//! Operand store with key-delta separation.

use lsmx::Result;
use lsmx::operand_store::{
    OperandCollection, OperandDelivery, OperandFileKind, OperandMetrics, OperandStore, OperandView,
    StoreContext, StoreToken,
};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, Ordering};

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
        self.state.resources.counters.log_bytes.load(Ordering::Relaxed)
    }

    fn metrics(&self) -> OperandMetrics {
        let memory_bytes = self.memory_bytes();
        OperandMetrics { memory_bytes, ..self.state.committed_view().metrics() }
    }
}
