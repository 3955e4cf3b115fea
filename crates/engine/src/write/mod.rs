//! The write path: batches, the commit pipeline, and what slows writers down.

pub mod batch;
pub(crate) mod commit;
pub mod options;
pub(crate) mod throttle;
