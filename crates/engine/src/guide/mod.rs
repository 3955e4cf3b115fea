//! Guides, a page long each.

#[doc = include_str!("memory.md")]
pub mod memory {}
