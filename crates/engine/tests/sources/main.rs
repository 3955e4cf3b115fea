//! Tests that read sources and documents of the repository.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "reads no data of users")]

mod documents;
mod layers;
mod public_items;
