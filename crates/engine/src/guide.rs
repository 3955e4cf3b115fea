//! A page on each topic that one has to decide on before trusting a database with data.

#[doc = include_str!("guide/durability.md")]
pub mod durability {}

#[doc = include_str!("guide/keyspaces.md")]
pub mod keyspaces {}

#[doc = include_str!("guide/compaction.md")]
pub mod compaction {}

pub mod merges;

#[doc = include_str!("guide/memory.md")]
pub mod memory {}

#[doc = include_str!("guide/traces.md")]
pub mod traces {}
