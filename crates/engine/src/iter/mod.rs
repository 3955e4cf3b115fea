//! Iterators over ranges of keys.

pub(crate) mod db_iter;
pub(crate) mod iter_view;
pub(crate) mod key_bounds;
pub(crate) mod keyspace_cursor;
pub(crate) mod merging_iter;
pub(crate) mod operand_fold;
pub(crate) mod prefetch;
pub(crate) mod range;
pub(crate) mod range_tombstone_filter;
pub(crate) mod run_iter;

use crate::options::read::{ReadOptions, ReadTier};
use crate::table::ReadPurpose;

/// Returns the purpose of block reads with these read options.
fn read_purpose(options: &ReadOptions) -> ReadPurpose {
    match (options.tier, options.fill_cache) {
        (ReadTier::Memory, _) => ReadPurpose::MemoryOnly,
        (ReadTier::Storage, Some(true)) => ReadPurpose::Lookup,
        // A long scan must not evict the blocks that lookups need.
        (ReadTier::Storage, _) => ReadPurpose::Scan,
    }
}
