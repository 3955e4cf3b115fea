//! Test code that several crates of the workspace share. This crate is not published.
//!
//! [`fuzzing`] defines and runs fuzz targets. The modules [`engine`] and [`delta`] contain the targets for file
//! formats and whole databases, and `bench` the targets for text formats. [`world`] compares whole databases with a
//! model.

#![allow(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    missing_docs,
    missing_debug_implementations,
    reason = "test code fails by panicking and is not published"
)]

mod allocator;
#[cfg(feature = "bench")]
pub mod bench;
mod compaction_filters;
pub mod delta;
pub mod engine;
mod event_log;
mod failing_test;
pub mod fuzzing;
pub mod linear;
mod merge_operators;
mod rng;
pub mod serial;
pub mod simple_store;
mod test_order;
mod test_report;
mod test_run;
pub mod world;

pub use allocator::CountingAllocator;
pub use event_log::EventLog;
pub use failing_test::{panic_text, shrink_list, watchdog, with_silent_panics};
pub use merge_operators::merge_operator;
pub use rng::{TestRng, mix_seeds};
pub use test_order::{run_alone, run_shared};
pub use test_report::{report_skipped, time_test};
pub use test_run::{case_seeds, number_from_env, scale, scaled, seed};
