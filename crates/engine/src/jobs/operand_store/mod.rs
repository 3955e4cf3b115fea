//! Jobs that write to and collect operand stores.

pub(crate) mod collect;
pub(crate) mod deliver;
