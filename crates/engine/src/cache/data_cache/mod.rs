//! Data cache: interface of the cache for data blocks, with two implementations.

mod moka;
mod quick;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::Hasher;

use lsmx_base::slice::BlockBytes;
use moka::MokaDataCache;
use quick::QuickDataCache;

/// Implementation of the cache for data blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BlockCacheKind {
    /// `quick_cache`: the CLOCK algorithm with a small queue for new blocks. A hit takes no exclusive lock.
    ///
    /// If the memory that remains for data blocks shrinks, the capacity decreases by up to 1/32 more than necessary. If
    /// this memory grows by about 1/16, the calling thread rebuilds the cache. This takes time in proportion to the
    /// number of entries. During a rebuild, the entries are in memory twice, but the blocks are not.
    #[default]
    Quick,
    /// `moka`: admits a new block only if it was used more often than the block that it would replace.
    ///
    /// Hits, insertions and internal bookkeeping take several times as long as with `quick_cache`. The data structures
    /// of the cache use the first 192 KiB of the capacity. `moka` cannot change its capacity. If the memory that
    /// remains for data blocks shrinks or grows by about 1/16, the calling thread rebuilds the cache. This takes time
    /// in proportion to the number of entries. During a rebuild, the entries are in memory twice, but the blocks are
    /// not.
    Moka,
}

impl BlockCacheKind {
    /// All kinds.
    #[cfg(feature = "internals")]
    pub const ALL: [BlockCacheKind; 2] = [BlockCacheKind::Quick, BlockCacheKind::Moka];
}

impl fmt::Display for BlockCacheKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BlockCacheKind::Quick => "quick",
            BlockCacheKind::Moka => "moka",
        })
    }
}

impl std::str::FromStr for BlockCacheKind {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<BlockCacheKind, &'static str> {
        match text {
            "quick" => Ok(BlockCacheKind::Quick),
            "moka" => Ok(BlockCacheKind::Moka),
            _ => Err("quick or moka"),
        }
    }
}

/// Identifies a data block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockId {
    /// Id of the open table, which is unique in this cache.
    pub(crate) table: u64,
    /// Offset of the block in the file.
    pub(crate) offset: u64,
}

/// A cache of data blocks with a capacity in bytes.
pub(crate) trait DataBlockCache: fmt::Debug + Send + Sync {
    /// Returns the block if it is cached, and marks the block as used.
    fn get(&self, id: BlockId) -> Option<BlockBytes>;
    /// Like `get`, but does not mark the block as used if the implementation supports this.
    fn peek(&self, id: BlockId) -> Option<BlockBytes>;
    /// Inserts a block. Evicts other blocks if necessary.
    fn insert(&self, id: BlockId, block: BlockBytes);
    /// Sets the maximum capacity in bytes. The capacity may be smaller. Evicts blocks if they exceed the capacity. Must
    /// not be called concurrently.
    fn set_capacity(&self, bytes: u64);
    /// Returns the memory of cached blocks in bytes, including overhead.
    fn bytes(&self) -> u64;
    /// Returns the total size of cached blocks in bytes, without overhead.
    fn bytes_without_overhead(&self) -> u64;
}

/// Creates a data cache. `capacity_bytes` is the initial capacity, and the maximum of later capacities.
pub(crate) fn new_data_cache(kind: BlockCacheKind, capacity_bytes: u64) -> Box<dyn DataBlockCache> {
    match kind {
        BlockCacheKind::Quick => Box::new(QuickDataCache::new(capacity_bytes)),
        BlockCacheKind::Moka => Box::new(MokaDataCache::new(capacity_bytes)),
    }
}

/// Hasher for [`BlockId`]. It has no seed, so that the contents of a cache are reproducible. Users cannot cause
/// collisions, because they do not choose the fields.
#[derive(Debug, Default)]
struct BlockIdHasher(u64);

impl Hasher for BlockIdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number ^ 0x243f_6a88_85a3_08d3)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        // The upper half of the product depends on all input bits. XOR with the lower half keeps the bits of both
        // halves.
        let [low, high] = [product, product >> 64].map(|half| half & u128::from(u64::MAX));
        self.0 = u64::try_from(low ^ high).unwrap_or_default();
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
