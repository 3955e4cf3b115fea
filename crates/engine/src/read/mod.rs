//! The read path: one key, or a range in both directions, as of a sequence number.

mod beside;
pub(crate) mod deleted;
pub(crate) mod fold;
pub(crate) mod get;
pub(crate) mod merging;
pub(crate) mod pointed;
pub(crate) mod range;
pub(crate) mod run;
pub(crate) mod together;
pub(crate) mod visible;
mod walk;

pub(crate) use get::Reads;
