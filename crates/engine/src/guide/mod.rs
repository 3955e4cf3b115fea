//! One page per topic that users decide on before they store important data in a database.

#[doc = include_str!("durability.md")]
pub mod durability {}

#[doc = include_str!("keyspaces.md")]
pub mod keyspaces {}

#[doc = include_str!("compaction.md")]
pub mod compaction {}

pub mod merges;

#[doc = include_str!("memory.md")]
pub mod memory {}

#[doc = include_str!("traces.md")]
pub mod traces {}
