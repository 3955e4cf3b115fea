//! Collections ("garbage collection" in the paper). A collection rewrites buckets and moves operands from the store to
//! the tree.
//!
//! Source: Li et al., key-delta separation (KDSep), ICDE 2024, garbage collection.

pub(crate) mod due_buckets;
mod rewrite;
pub(crate) mod whole_store;
