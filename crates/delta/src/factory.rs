//! Makes the stores of keyspaces.

use lsmx::operand_store::{OperandMetrics, OperandStore, OperandStoreFactory, Place, Token};
use lsmx::{Error, Malformed, Result};
use lsmx_base::sync::Arc;

use crate::charge::Memory;
use crate::options::DeltaOptions;
use crate::state::{DeltaStore, metrics_of};

/// Keeps merge operands in buckets beside the tree.
#[derive(Clone, Debug, Default)]
pub struct KeyDelta {
    options: DeltaOptions,
}

impl KeyDelta {
    /// Stores with these settings, which are checked when a store is opened.
    #[must_use]
    pub fn new(options: DeltaOptions) -> KeyDelta {
        KeyDelta { options }
    }
}

impl OperandStoreFactory for KeyDelta {
    fn name(&self) -> &str {
        "key-delta"
    }

    fn open(&self, place: Place, token: Option<Token>) -> Result<Arc<dyn OperandStore>> {
        Ok(Arc::new(DeltaStore::open(place, token, self.options)?))
    }

    fn verify(&self, place: Place, token: Token) -> Result<OperandMetrics> {
        let place = Place { read_only: true, ..place };
        let store = DeltaStore::open(place, Some(token), self.options)?;
        let view = store.committed_view();
        let memory = Memory::default();
        for at in 0..view.buckets.len() {
            let bucket = &view.buckets[at];
            let end = view.end_of(at);
            for file in bucket.files() {
                file.verify_header()?;
            }
            bucket.verify(end, &memory)?;
            let inside = |key: &[u8]| end.is_none_or(|end| key < end) && *bucket.smallest <= *key;
            if !bucket.tail.records().all(|record| inside(&record.key)) {
                let path = store.log_path();
                let what = "a key and the range of its bucket";
                return Err(Error::malformed(Malformed::Order { what }, &path, 0));
            }
        }
        Ok(metrics_of(&view))
    }
}
