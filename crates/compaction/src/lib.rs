//! Compaction policies for log-structured merge trees, as values.
//!
//! A policy looks at the shape of a tree (levels, sorted runs, files: numbers and key ranges, never
//! data) and returns the next [`Job`], or nothing. There is no I/O, no thread and no clock in this
//! crate, so the same code drives a storage engine and a simulator.
//!
//! The way of a job:
//!
//! 1. [`CompactionPolicy::pick`] names it, given the [`TreeShape`] and what runs already
//!    ([`BusyFiles`]).
//! 2. Whoever drives the tree merges the inputs; an [`OutputCutter`] says where each output ends.
//! 3. [`TreeShape::apply`] makes the next shape of the old one, the job and its outputs. It verifies
//!    every step, so a policy with a mistake gets an [`Error`] and harms no data.
//!
//! Most policies are a value of four primitives ([`Primitives`]): *trigger* says when a job is due,
//! *layout* how many runs a level may hold, *granularity* how much a job takes, *movement* which
//! files. The named ones are [`Preset`]s, written as a [`PolicySpec`] such as `tiering(T=4)`:
//!
//! ```
//! use lsmx_compaction::{BusyFiles, PolicySpec, TreeShape};
//!
//! let policy = "tiering(T=4)".parse::<PolicySpec>()?.build();
//! assert_eq!(policy.pick(&TreeShape::default(), &BusyFiles::default()), None);
//! # Ok::<(), lsmx_compaction::Error>(())
//! ```
//!
//! # A policy of your own
//!
//! Fill in [`Primitives`] and hand them to [`Composed::new`], or implement [`CompactionPolicy`].
//! What to keep to:
//!
//! - Accept any legal shape, such as one that another policy has left, and come to rest: each job
//!   brings the tree closer to the shape wanted.
//! - Pick only what [`BusyFiles::admits`] lets run.
//! - Merge only runs that are neighbours in age, as far as their files overlap. Out of L0 go whole
//!   runs, the oldest first.
//!
//! This one merges the whole tree into a single run whenever L0 holds four:
//!
//! ```
//! use lsmx_compaction::{
//!     BusyFiles, CompactionPolicy, CutRule, Debt, Job, JobInput, JobKind, Level, Placement,
//!     Reason, Target, TreeShape,
//! };
//!
//! #[derive(Debug)]
//! struct OneRun;
//!
//! const TRIGGER_RUNS: usize = 4;
//! const STOP_RUNS: usize = 12;
//!
//! impl CompactionPolicy for OneRun {
//!     fn name(&self) -> &str {
//!         "one-run"
//!     }
//!
//!     fn pick(&self, shape: &TreeShape, busy: &BusyFiles) -> Option<Job> {
//!         let runs = shape.runs_of(Level(0)).len();
//!         if runs < TRIGGER_RUNS {
//!             return None;
//!         }
//!         let deepest = shape.deepest()?.max(Level(1));
//!         let job = Job {
//!             kind: JobKind::Merge,
//!             inputs: shape.runs().map(|(level, run)| JobInput::whole(level, run)).collect(),
//!             target: Target { level: deepest, placement: Placement::NewRun { before: None } },
//!             cut: CutRule {
//!                 file_bytes: shape.table_bytes,
//!                 grandparent: None,
//!                 boundaries: Vec::new(),
//!             },
//!             reason: Reason::RunCount { level: Level(0), runs },
//!         };
//!         busy.admitted(job, shape)
//!     }
//!
//!     fn debt(&self, shape: &TreeShape, busy: &BusyFiles) -> Debt {
//!         let due = self.pick(shape, busy).and_then(|job| job.input_bytes(shape).ok());
//!         let running: u64 = busy.jobs.iter().map(|(_, left)| left).sum();
//!         let free = STOP_RUNS.saturating_sub(shape.runs_of(Level(0)).len());
//!         Debt {
//!             pending_bytes: due.unwrap_or(0) + running,
//!             headroom_bytes: free as u64 * shape.memtable_bytes,
//!         }
//!     }
//!
//!     fn must_stop(&self, shape: &TreeShape) -> bool {
//!         shape.runs_of(Level(0)).len() >= STOP_RUNS
//!     }
//! }
//!
//! assert_eq!(OneRun.pick(&TreeShape::default(), &BusyFiles::default()), None);
//! ```

pub mod apply;
pub mod busy;
pub mod composed;
pub mod cutter;
pub mod error;
pub mod explain;
pub mod files;
pub mod granularity;
pub mod job;
pub mod key_range;
pub mod layout;
pub mod movement;
pub mod parameter;
pub mod policy;
pub mod presets;
pub mod shape;
pub mod spec;
pub mod trigger;
mod ttl;

pub use apply::{Applied, PlacedFile};
pub use busy::BusyFiles;
pub use composed::{Composed, Primitives, Rule};
pub use cutter::OutputCutter;
pub use error::Error;
pub use explain::{Explanation, Score};
pub use files::Files;
pub use job::{CutRule, Job, JobInput, JobKind, Placement, Reason, Target};
pub use key_range::{Key, KeyRange};
pub use parameter::Parameter;
pub use policy::{CompactionPolicy, Debt};
pub use presets::Preset;
pub use shape::{FileId, FileShape, Level, LevelParts, LevelShape, RunId, RunShape, TreeShape};
pub use spec::PolicySpec;
