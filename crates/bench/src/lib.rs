//! Workloads, experiments and reports of the `lsmx` command-line tool.
//!
//! A [`workload`] is a seeded stream of operations. An [`experiment`] runs workloads on databases and measures them.
//! A [`report`] shows a result as text, JSON, CSV or HTML. This crate neither reads arguments nor prints.

#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "not published: items with clear names have no comments"
)]

pub mod clock;
mod enum_names;
pub mod error;
pub mod experiment;
pub mod latency;
pub mod memory_group;
pub mod metric;
pub mod numbers;
pub mod peers;
pub mod process;
pub mod quantity;
pub mod report;
pub mod temporary;
pub mod workload;

pub use error::{Error, Result};
