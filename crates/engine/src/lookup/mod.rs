//! Point lookups.

pub(crate) mod batch;
pub(crate) mod point;
