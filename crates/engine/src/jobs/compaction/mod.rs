//! Compaction jobs.

pub(crate) mod delete_only;
pub(crate) mod manual;
pub(crate) mod output;
pub(crate) mod quarantine_bypass;
pub(crate) mod range_tombstones;
pub(crate) mod retention;
pub(crate) mod run;
pub(crate) mod split_ranges;
pub(crate) mod subcompactions;
pub(crate) mod version_filter;
