//! Cache of folded operands by key ("KD cache" in the paper).
//!
//! An entry belongs to one bucket. It contains the effect of all records of the key up to a sequence number. A reader
//! of the same bucket uses the entry and reads only records with larger numbers from the bucket. An outdated entry is
//! therefore still valid, and threads may insert entries in any order.
//!
//! In the paper, a delivery adds entries for all its keys. Here, a delivery only extends existing entries. Otherwise
//! keys that are only written would evict keys that are read.
//!
//! Source: Li et al., key-delta separation (KDSep), ICDE 2024, key-delta cache.

use bytes::Bytes;
use lsmx::operand_store::{Operand, OperandMerger};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;
use xxhash_rust::xxh3::Xxh3DefaultBuilder;

/// Folded operands of one key in one bucket.
#[derive(Clone, Debug)]
pub struct CacheEntry {
    pub bucket_id: u64,
    /// All records of the key up to this sequence number are included.
    pub complete_through: SeqNo,
    /// Largest sequence number of the included operands and delete markers. Readers at smaller sequence numbers cannot
    /// use the entry.
    pub newest: SeqNo,
    /// Ordered from newest to oldest. Empty if the bucket has no operand of the key.
    pub operands: Arc<[Operand]>,
}

/// Cache of folded operands, by key, with a limit in bytes.
#[derive(Debug)]
pub struct OperandCache(moka::sync::Cache<Bytes, CacheEntry, Xxh3DefaultBuilder>);

/// Approximate memory of an entry without its key and operands, in bytes.
const ENTRY_OVERHEAD_BYTES: usize = 160;

impl OperandCache {
    /// Returns a cache of at most `bytes`. Returns `None` if `bytes` is 0.
    pub fn new(bytes: u64) -> Option<OperandCache> {
        let weigh = |key: &Bytes, entry: &CacheEntry| {
            let operands = entry.operands.iter();
            let bytes: usize = operands.map(|it| it.bytes.len() + size_of::<Operand>()).sum();
            u32::try_from(key.len() + bytes + ENTRY_OVERHEAD_BYTES).unwrap_or(u32::MAX)
        };
        let builder = moka::sync::Cache::builder().max_capacity(bytes).weigher(weigh);
        let build = || OperandCache(builder.build_with_hasher(Xxh3DefaultBuilder::new()));
        (bytes > 0).then(build)
    }

    pub fn get(&self, key: &[u8]) -> Option<CacheEntry> {
        self.0.get(key)
    }

    /// Inserts an entry and runs pending evictions. Otherwise `moka` would run the evictions at a time that depends on
    /// the clock.
    pub fn insert(&self, key: &[u8], entry: CacheEntry) {
        self.0.insert(Bytes::copy_from_slice(key), entry);
        self.0.run_pending_tasks();
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        self.0.contains_key(key)
    }

    pub fn bytes(&self) -> u64 {
        self.0.weighted_size()
    }
}

/// Folds adjacent operands that the merge operator can combine. Operands are ordered from newest to oldest.
pub(crate) fn fold_operands(operands: &mut Vec<Operand>, key: &[u8], merger: &dyn OperandMerger) {
    let mut folded: Vec<Operand> = Vec::with_capacity(operands.len());
    while let Some(newer) = operands.pop() {
        if let Some(older) = folded.last_mut()
            && let Some(bytes) = merger.partial_merge(key, &older.bytes, &newer.bytes)
        {
            *older = Operand { first: older.first, last: newer.last, bytes: bytes.into() };
        } else {
            folded.push(newer);
        }
    }
    folded.reverse();
    *operands = folded;
}
