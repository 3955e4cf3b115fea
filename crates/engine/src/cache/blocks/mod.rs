//! Data blocks in memory: what the cache asks of a general-purpose cache, and two of them as that.

mod moka;
mod quick;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::Hasher;

use lsmx_base::slice::BlockBytes;
use moka::MokaStore;
use quick::QuickStore;

/// Which general-purpose cache holds the data blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BlockCacheKind {
    /// `quick_cache`: a clock with a small queue for what is new. A hit takes no exclusive lock.
    #[default]
    Quick,
    /// `moka`: what is new must be asked for more often than what it would displace. A hit and a fill
    /// cost several times as much, as does its bookkeeping: it keeps nothing in the first 192 KiB. Where its
    /// capacity moves by a sixteenth, because metadata grows or shrinks, it is made anew by the thread whose
    /// read did that, and entries are in memory twice, if not their blocks, until that is done: the larger
    /// the cache, the longer.
    Moka,
}

impl BlockCacheKind {
    /// All of them.
    pub const ALL: [BlockCacheKind; 2] = [BlockCacheKind::Quick, BlockCacheKind::Moka];

    /// Its name, as options and results have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            BlockCacheKind::Quick => "quick",
            BlockCacheKind::Moka => "moka",
        }
    }
}

impl fmt::Display for BlockCacheKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for BlockCacheKind {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<BlockCacheKind, &'static str> {
        let found = BlockCacheKind::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or("quick or moka")
    }
}

/// Names a data block: which open table, at which offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockId {
    /// Number of the opened table in this cache, never given twice.
    pub(crate) table: u64,
    /// Offset of the block in its file.
    pub(crate) offset: u64,
}

/// A cache of data blocks with a capacity in bytes.
pub(crate) trait BlockStore: fmt::Debug + Send + Sync {
    /// The block, if it is there; counts as a use.
    fn get(&self, id: BlockId) -> Option<BlockBytes>;
    /// The block, if it is there; does not count as a use where the cache can tell.
    fn peek(&self, id: BlockId) -> Option<BlockBytes>;
    /// Puts a block in, and others out to make room.
    fn insert(&self, id: BlockId, block: BlockBytes);
    /// Sets the capacity; puts blocks out until it is kept.
    fn set_capacity(&self, bytes: u64);
    /// Bytes of the blocks that are there, overhead included.
    fn bytes(&self) -> u64;
    /// Bytes of the blocks that are there, alone.
    fn content_bytes(&self) -> u64;
}

/// An empty cache of data blocks, whose capacity will never be more than this.
pub(crate) fn store(kind: BlockCacheKind, capacity_bytes: u64) -> Box<dyn BlockStore> {
    match kind {
        BlockCacheKind::Quick => Box::new(QuickStore::new(capacity_bytes)),
        BlockCacheKind::Moka => Box::new(MokaStore::new(capacity_bytes)),
    }
}

/// Hashes the two numbers of a [`BlockId`], the same in every run, so that what a cache holds can
/// be repeated. Nobody outside chooses these numbers, so no one can make them collide.
#[derive(Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number ^ 0x243f_6a88_85a3_08d3)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        // The upper half depends on all bits; folding keeps what the lower one knows.
        let [low, high] = [product, product >> 64].map(|half| half & u128::from(u64::MAX));
        self.0 = u64::try_from(low ^ high).unwrap_or_default();
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
