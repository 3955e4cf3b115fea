//! Decisions of a collection: which buckets it rewrites and which records it keeps.

pub(crate) mod pick;
pub(crate) mod retention;
