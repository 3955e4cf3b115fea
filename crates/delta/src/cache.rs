//! Operands of keys that are read, folded (the KD cache).
//!
//! An entry says which bucket it is of and up to which number it knows all that came. A reader uses it
//! only for the same bucket, and looks at what came between that number and its view; so whatever is
//! inserted when, an entry is never wrong, only old.
//!
//! Not as in the paper: a delivery makes entries that are there longer, and adds none. Keys that are only
//! written would drive out those that are read.

use bytes::Bytes;
use lsmx::SeqNo;
use lsmx::operand_store::{Operand, OperandFolds};
use lsmx_base::sync::Arc;
use xxhash_rust::xxh3::Xxh3DefaultBuilder;

/// What a bucket has of a key.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) bucket: u64,
    /// All numbers up to here are known.
    pub(crate) covers: SeqNo,
    /// Largest number of an operand or an anchor that has made it what it is: it says nothing about what a
    /// reader below sees.
    pub(crate) latest: SeqNo,
    /// Newest first.
    pub(crate) operands: Arc<[Operand]>,
}

/// Entries by key.
#[derive(Debug)]
pub(crate) struct Cache(moka::sync::Cache<Bytes, Entry, Xxh3DefaultBuilder>);

/// Bytes that an entry takes beside its key and operands, about.
const ENTRY_BYTES: usize = 160;

impl Cache {
    pub(crate) fn new(bytes: u64) -> Option<Cache> {
        let weigh = |key: &Bytes, entry: &Entry| {
            let operands = entry.operands.iter();
            let bytes: usize = operands.map(|it| it.bytes.len() + size_of::<Operand>()).sum();
            u32::try_from(key.len() + bytes + ENTRY_BYTES).unwrap_or(u32::MAX)
        };
        let builder = moka::sync::Cache::builder().max_capacity(bytes).weigher(weigh);
        (bytes > 0).then(|| Cache(builder.build_with_hasher(Xxh3DefaultBuilder::new())))
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Entry> {
        self.0.get(key)
    }

    /// Its work is done at once: so the bound holds, and what is evicted does not depend on the clock.
    pub(crate) fn insert(&self, key: &[u8], entry: Entry) {
        self.0.insert(Bytes::copy_from_slice(key), entry);
        self.0.run_pending_tasks();
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.0.contains_key(key)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.weighted_size()
    }
}

/// Folds neighbours, newest first, where the operator can.
pub(crate) fn fold(operands: &mut Vec<Operand>, key: &[u8], folds: &dyn OperandFolds) {
    let mut folded: Vec<Operand> = Vec::with_capacity(operands.len());
    while let Some(newer) = operands.pop() {
        if let Some(older) = folded.last_mut()
            && let Some(bytes) = folds.partial(key, &older.bytes, &newer.bytes)
        {
            *older = Operand { first: older.first, last: newer.last, bytes: bytes.into() };
        } else {
            folded.push(newer);
        }
    }
    folded.reverse();
    *operands = folded;
}
