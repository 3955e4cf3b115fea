//! Iterators over ranges of keys.

pub(crate) mod db_iter;
pub(crate) mod merging_iter;
pub(crate) mod operand_fold;
pub(crate) mod prefetch;
pub(crate) mod range;
pub(crate) mod range_tombstone_filter;
pub(crate) mod run_iter;
pub(crate) mod value_resolver;

use crate::options::read::{ReadOptions, ReadTier};
use crate::table::FillCache;

/// Returns which blocks a range read with these options adds to the block cache.
fn fill_cache(options: &ReadOptions) -> FillCache {
    match (options.tier, options.fill_cache) {
        (ReadTier::Memory, _) => FillCache::Memory,
        (ReadTier::Storage, Some(true)) => FillCache::Yes,
        // A long scan must not evict the blocks that lookups need.
        (ReadTier::Storage, _) => FillCache::No,
    }
}
