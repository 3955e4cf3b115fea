//! The store as the engine has it.

use lsmx::operand_store::{
    Collection, Delivery, OperandFileKind, OperandMetrics, OperandStore, OperandView, Token,
};
use lsmx::{Result, SeqNo};
use lsmx_base::sync::Arc;

use crate::collect;
use crate::deliver::DeltaDelivery;
use crate::state::{DeltaStore, metrics_of};

impl OperandStore for DeltaStore {
    fn view(&self) -> Arc<dyn OperandView> {
        self.committed_view()
    }

    fn deliver(&self, through: SeqNo) -> Result<Box<dyn Delivery + '_>> {
        Ok(Box::new(DeltaDelivery::new(self, self.base()?, through)))
    }

    fn committed(&self, token: Token) {
        self.commit(token);
    }

    fn abandon(&self) {
        self.doubt();
    }

    fn collection_is_due(&self) -> bool {
        self.is_due()
    }

    fn collect(&self, snapshots: &[SeqNo]) -> Result<Option<Box<dyn Collection + '_>>> {
        let collection = collect::begin(self, snapshots)?;
        Ok(collection.map(|collection| Box::new(collection) as Box<dyn Collection + '_>))
    }

    fn collect_all(&self) -> Result<Box<dyn Collection + '_>> {
        Ok(Box::new(collect::everything(self)?))
    }

    fn check_file(&self, kind: OperandFileKind, number: u64) -> Option<Result<u64>> {
        match kind {
            OperandFileKind::Bucket => Some(self.check_bucket_file(number)),
            OperandFileKind::Log => None,
        }
    }

    fn leave_out(&self, files: &[(OperandFileKind, u64)]) {
        let buckets = files.iter().filter(|(kind, _)| *kind == OperandFileKind::Bucket);
        self.set_left_out(buckets.map(|(_, number)| *number).collect());
    }

    fn live_files(&self) -> Vec<(OperandFileKind, u64)> {
        self.committed_files()
    }

    fn memory_bytes(&self) -> u64 {
        self.memory()
    }

    fn rewritten_bytes(&self) -> u64 {
        // What came since the log began is read from it, and goes to a new one or to buckets.
        self.shared.counters.log_bytes.load(lsmx_base::sync::Ordering::Relaxed)
    }

    fn metrics(&self) -> OperandMetrics {
        let view = self.committed_view();
        let memory_bytes = self.memory_bytes();
        OperandMetrics { memory_bytes, ..metrics_of(&view) }
    }
}
