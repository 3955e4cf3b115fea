//! Jobs of operand stores: delivery and collection.

pub(crate) mod collect;
pub(crate) mod deliver;
