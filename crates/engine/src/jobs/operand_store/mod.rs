//! Jobs for operand stores: deliveries and collections.

pub(crate) mod collect;
pub(crate) mod deliver;
