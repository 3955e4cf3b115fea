//! Collections rewrite buckets and move operands to the tree ("garbage collection" in the paper).
//!
//! Source: Li et al., key-delta separation (KDSep), ICDE 2024, garbage collection.

pub(crate) mod due_buckets;
mod rewrite;
pub(crate) mod whole_store;
