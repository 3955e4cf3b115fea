//! Compaction jobs.

pub(crate) mod delete_only;
pub(crate) mod entry_filter;
pub(crate) mod l0_bypass;
pub(crate) mod manual;
pub(crate) mod output;
pub(crate) mod pick;
pub(crate) mod range_tombstone_queue;
pub(crate) mod retention;
pub(crate) mod retry;
pub(crate) mod run;
pub(crate) mod split_ranges;
pub(crate) mod subcompactions;
pub(crate) mod version_filter;
