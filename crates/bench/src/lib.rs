//! Workloads, experiments and reports for lsmx.
//!
//! A workload is a seeded stream of operations ([`workload`]), an experiment plays it against a
//! database and measures ([`experiment`]), a report says what came out ([`report`]). The command
//! line is the one user; nothing here reads arguments or prints.

pub mod clock;
pub mod error;
pub mod experiment;
pub mod latency;
pub mod metric;
mod named;
pub mod numbers;
pub mod peers;
pub mod process;
pub mod quantity;
pub mod report;
pub mod temporary;
pub mod workload;

pub use error::{Error, Result};
