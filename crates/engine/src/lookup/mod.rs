//! Point lookups.

pub(crate) mod batch;
pub(crate) mod operands;
pub(crate) mod point;
