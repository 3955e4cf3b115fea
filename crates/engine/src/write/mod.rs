//! The write path: batches, the commit pipeline, and what slows writers down.

pub(crate) mod backpressure;
pub mod batch;
pub(crate) mod commit;
pub(crate) mod group;
pub(crate) mod throttle;
mod write_set;
