//! Iterators over ranges of keys.

pub(crate) mod db_iter;
pub(crate) mod merging_iter;
pub(crate) mod operand_fold;
pub(crate) mod prefetch;
pub(crate) mod range;
pub(crate) mod range_tombstone_filter;
pub(crate) mod run_iter;
pub(crate) mod value_resolver;
