//! Test code that several crates of the workspace share. Not published.
//!
//! [`fuzzing`] defines and runs fuzz targets. [`engine`] and [`delta`] have the targets for file formats and whole
//! databases, `bench` those for text formats.

#![allow(clippy::missing_panics_doc, reason = "a test fails by panicking")]

mod allocator;
#[cfg(feature = "bench")]
pub mod bench;
pub mod delta;
pub mod engine;
mod event_log;
pub mod fuzzing;
mod merge_operators;
mod rng;
pub mod simple_store;
mod test_order;
mod test_report;
mod test_run;

pub use allocator::CountingAllocator;
pub use event_log::EventLog;
pub use merge_operators::merge_operator;
pub use rng::{TestRng, mix_seeds};
pub use test_order::{run_alone, run_shared};
pub use test_report::{report_skipped, time_test};
pub use test_run::{case_seeds, number_from_env, scale, scaled, seed};
