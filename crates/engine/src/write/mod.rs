//! Write path: write batches, the commit pipeline, and limits on the write rate.

pub(crate) mod backpressure;
pub(crate) mod batch;
pub(crate) mod commit;
pub(crate) mod group;
mod queue;
pub(crate) mod throttle;
pub(crate) mod ticket;
mod write_set;
