//! Compaction policies for log-structured merge trees, as values.
//!
//! A policy looks at the shape of a tree (levels, sorted runs, files: numbers and key ranges, never
//! data) and returns the next [`Job`], or nothing. There is no I/O, no thread and no clock in this
//! crate, so the same code drives a storage engine and a simulator.

pub mod busy;
pub mod error;
pub mod job;
pub mod key_range;
pub mod policy;
pub mod shape;

pub use busy::BusyFiles;
pub use error::Error;
pub use job::{CutRule, Job, JobInput, JobKind, Placement, Reason, Target};
pub use key_range::{Key, KeyRange};
pub use policy::{CompactionPolicy, Debt};
pub use shape::{FileId, FileShape, Level, LevelShape, RunId, RunShape, TreeShape};
