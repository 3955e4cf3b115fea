//! Compaction policies for log-structured merge trees, as values.
//!
//! A policy looks at the shape of a tree (levels, sorted runs, files: numbers and key ranges, never
//! data) and returns the next [`Job`], or nothing. There is no I/O, no thread and no clock in this
//! crate, so the same code drives a storage engine and a simulator.

pub mod apply;
pub mod busy;
pub mod composed;
pub mod cutter;
pub mod error;
pub mod granularity;
pub mod job;
pub mod key_range;
pub mod layout;
pub mod movement;
pub mod policy;
pub mod presets;
mod run_list;
pub mod shape;
pub mod spec;
pub mod trigger;

pub use apply::{Applied, PlacedFile};
pub use busy::BusyFiles;
pub use composed::{Composed, Primitives};
pub use cutter::OutputCutter;
pub use error::Error;
pub use job::{CutRule, Job, JobInput, JobKind, Placement, Reason, Target};
pub use key_range::{Key, KeyRange};
pub use policy::{CompactionPolicy, Debt};
pub use presets::{Parameter, Preset};
pub use shape::{FileId, FileShape, Level, LevelParts, LevelShape, RunId, RunShape, TreeShape};
pub use spec::PolicySpec;
