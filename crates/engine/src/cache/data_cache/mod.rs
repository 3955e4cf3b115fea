//! Caches for data blocks: an interface with two implementations.

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
    #[default]
    Quick,
    /// `moka`: admits a new block only if it is used more often than the block that it replaces.
    ///
    /// Hits, fills and bookkeeping cost several times as much as with `quick_cache`. The data structures of the cache
    /// take the first 192 KiB of the capacity.
    /// `moka` cannot change its capacity. If the memory left for data blocks shrinks or grows by about 1/16, the
    /// calling thread rebuilds the cache. The rebuild time grows with the number of entries. During the rebuild,
    /// entries but not blocks are in memory twice.
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
    /// Unique number of the open table in this cache.
    pub(crate) table: u64,
    /// Offset of the block in the file.
    pub(crate) offset: u64,
}

/// A cache of data blocks with a capacity in bytes.
pub(crate) trait DataBlockCache: fmt::Debug + Send + Sync {
    /// Returns the block, if it is cached. Counts as a use.
    fn get(&self, id: BlockId) -> Option<BlockBytes>;
    /// Returns the block, if it is cached. Does not count as a use, if the implementation supports that.
    fn peek(&self, id: BlockId) -> Option<BlockBytes>;
    /// Inserts a block and evicts others if necessary.
    fn insert(&self, id: BlockId, block: BlockBytes);
    /// Sets the capacity and evicts blocks that exceed it.
    fn set_capacity(&self, bytes: u64);
    /// Returns the bytes of cached blocks, including overhead.
    fn bytes(&self) -> u64;
    /// Returns the bytes of cached blocks, without overhead.
    fn bytes_without_overhead(&self) -> u64;
}

/// Creates a cache for data blocks. `capacity_bytes` is the initial capacity and the maximum for later changes.
pub(crate) fn new_data_cache(kind: BlockCacheKind, capacity_bytes: u64) -> Box<dyn DataBlockCache> {
    match kind {
        BlockCacheKind::Quick => Box::new(QuickDataCache::new(capacity_bytes)),
        BlockCacheKind::Moka => Box::new(MokaDataCache::new(capacity_bytes)),
    }
}

/// Hashes the two fields of a [`BlockId`]. The hash has no seed, so that the contents of a cache are reproducible.
/// Users do not choose the fields, so they cannot force collisions.
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
