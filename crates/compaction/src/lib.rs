//! Compaction policies for log-structured merge trees.
//!
//! A policy examines the shape of a tree (levels, sorted runs and files, with their sizes and key ranges) and
//! returns the next [`Job`]. This crate has no I/O, threads or clock, so a storage engine and a simulator can
//! use the same policies. A job is processed in three steps:
//!
//! 1. [`CompactionPolicy::pick`] examines the [`TreeShape`] and the [`RunningJobs`], and returns the job.
//! 2. The engine merges the inputs. An [`OutputSplitter`] decides where each output file ends.
//! 3. [`TreeShape::apply_job`] returns the tree after the job. It checks the job and its outputs. A mistake in a policy
//!    therefore causes an [`Error`] and no loss of data.
//!
//! # Primitives
//!
//! Most policies are a combination of four [primitives](PolicyPrimitives):
//!
//! - The *trigger* decides when a job is due.
//! - The *layout* decides how many runs a level may hold.
//! - The *granularity* decides how much data a job takes.
//! - The *data movement* decides which files a job takes.
//!
//! ```
//! use lsmx_compaction::file_picker::FilePicker;
//! use lsmx_compaction::granularity::JobGranularity;
//! use lsmx_compaction::layout::TreeLayout;
//! use lsmx_compaction::trigger::{LevelCapacity, Trigger};
//! use lsmx_compaction::{ComposedPolicy, PolicyPrimitives, CompactionRule};
//!
//! let by_runs = CompactionRule {
//!     trigger: Trigger::RunCount { runs: 4, wait: 4 },
//!     granularity: JobGranularity::Runs,
//!     movement: FilePicker::All,
//! };
//! let by_size = CompactionRule {
//!     trigger: Trigger::LevelFull(LevelCapacity::FromTop { l1_memtables: 4, size_ratio: 10 }),
//!     granularity: JobGranularity::File,
//!     movement: FilePicker::LeastOverlap,
//! };
//! let policy = ComposedPolicy::new(
//!     "four-primitives",
//!     PolicyPrimitives {
//!         rules: vec![by_runs, by_size],
//!         layout: TreeLayout::Leveling { tiered: Vec::new() },
//!         stop_runs: 20,
//!         file_tables: 1,
//!         grandparent_files: 25,
//!     },
//! )?;
//! # Ok::<(), lsmx_compaction::Error>(())
//! ```
//!
//! # Presets and spec files
//!
//! Named policies are [`Preset`]s. A [`PolicySpec`] names a preset and its parameters, or describes a composition
//! in TOML. The module [`spec`] describes the syntax.
//!
//! ```
//! use lsmx_compaction::{PolicySpec, RunningJobs, TreeShape};
//!
//! let policy = "tiering(T=4)".parse::<PolicySpec>()?.build();
//! assert_eq!(policy.pick(&TreeShape::default(), &RunningJobs::default()), None);
//!
//! let file = "
//!     layout = 'fluid'
//!     runs = [3]
//!     [[rule]]
//!     trigger = 'too-many-runs'
//! ";
//! let policy = PolicySpec::from_toml(file)?.build();
//! # Ok::<(), lsmx_compaction::Error>(())
//! ```
//!
//! # Custom policies
//!
//! A type that implements [`CompactionPolicy`] can make any decision. Its jobs must obey these rules:
//!
//! - The policy accepts any valid tree, including a tree that another policy has shaped. Without writes, the policy
//!   stops picking jobs after a finite number of jobs.
//! - A job can run at the same time as the running jobs ([`RunningJobs::can_run_job`]).
//! - If a job takes overlapping files of two runs, it also takes the overlapping files of all runs whose age is between
//!   them. A job takes whole runs from L0, the oldest runs first.
//!
//! [`check_policy`](check_policy()) tests these rules with random trees. This policy merges the whole tree into
//! one run whenever L0 has four runs:
//!
//! ```
//! use lsmx_compaction::{
//!     CompactionPolicy, Debt, Job, JobInput, JobKind, Level, JobReason, RunningJobs, OutputTarget, TreeShape,
//!     check_policy,
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
//!     fn pick(&self, shape: &TreeShape, running: &RunningJobs) -> Option<Job> {
//!         if shape.runs_of(Level(0)).len() < TRIGGER_RUNS {
//!             return None;
//!         }
//!         let inputs = shape.runs().map(|(level, run)| JobInput::from_run(level, run)).collect();
//!         let target = OutputTarget::oldest_run(shape.deepest_level()?.max(Level(1)));
//!         let reason = JobReason::custom("L0 has four runs");
//!         running.admit_job(Job::new(shape, JobKind::Merge, inputs, target, reason), shape)
//!     }
//!
//!     fn debt(&self, shape: &TreeShape, running: &RunningJobs) -> Debt {
//!         let due = self.pick(shape, running).and_then(|job| job.input_bytes(shape).ok());
//!         let bytes_left: u64 = running.jobs.iter().map(|(_, left)| left).sum();
//!         let free = STOP_RUNS.saturating_sub(shape.runs_of(Level(0)).len());
//!         Debt {
//!             pending_bytes: due.unwrap_or(0) + bytes_left,
//!             headroom_bytes: free as u64 * shape.memtable_bytes,
//!         }
//!     }
//!
//!     fn must_stop_writes(&self, shape: &TreeShape) -> bool {
//!         shape.runs_of(Level(0)).len() >= STOP_RUNS
//!     }
//! }
//!
//! check_policy(&OneRun, 1, 2000)?;
//! # Ok::<(), lsmx_compaction::PolicyViolation>(())
//! ```
//!
//! # Explanations
//!
//! [`CompactionPolicy::explain`] returns the scores of all levels, the candidates and the picked job:
//!
//! ```
//! use lsmx_compaction::{FileId, KeyRange, PolicySpec, RunningJobs, TableMeta, TreeShape};
//!
//! let mut shape = TreeShape::default();
//! for id in 0..2 {
//!     let file = TableMeta { bytes: 100, ..TableMeta::new(FileId(id), KeyRange::new("a", "z")) };
//!     shape = shape.with_flushed_run(vec![file.into()])?.shape;
//! }
//! let policy = "tiering(T=2)".parse::<PolicySpec>()?.build();
//! let explanation = policy.explain(&shape, &RunningJobs::default());
//! assert_eq!(
//!     explanation.to_string(),
//!     "scores L0 too-many-runs 1.000\n  picked merge L0{1 / 0} -> new run in L1   why: L0 holds 2 runs",
//! );
//! # Ok::<(), lsmx_compaction::Error>(())
//! ```

pub mod apply;
#[cfg(feature = "testing")]
pub mod check_policy;
#[cfg(not(feature = "testing"))]
#[expect(unreachable_pub, reason = "tests use it with the feature `testing`")]
mod check_policy;
pub mod composed;
mod delete_persistence;
pub mod error;
pub mod explain;
pub mod file_picker;
pub mod granularity;
pub mod ids;
pub mod ingest;
pub mod job;
pub mod key_range;
pub mod layout;
#[cfg(feature = "testing")]
pub mod model_tree;
#[cfg(not(feature = "testing"))]
#[expect(unreachable_pub, dead_code, reason = "tests use it with the feature `testing`")]
mod model_tree;
pub mod output_splitter;
pub mod parameter;
pub mod policy;
pub mod presets;
#[cfg(feature = "testing")]
pub mod rng;
#[cfg(not(feature = "testing"))]
#[expect(unreachable_pub, reason = "tests use it with the feature `testing`")]
mod rng;
pub mod run;
pub mod running_jobs;
pub mod shape;
pub mod spec;
pub mod table_meta;
pub mod tree_edit;
pub mod trigger;
mod ttl;

pub use check_policy::{PolicyProperty, PolicyViolation, check_policy};
pub use composed::{CompactionRule, ComposedPolicy, PolicyPrimitives};
pub use delete_persistence::DeletePersistence;
pub use error::Error;
pub use explain::{Explanation, LevelScore};
pub use ids::{FileId, Level, RunId};
pub use job::{Job, JobInput, JobKind, JobReason, OutputPlacement, OutputTarget, SplitRule};
pub use key_range::{Key, KeyRange};
pub use output_splitter::OutputSplitter;
pub use parameter::PolicyParameter;
pub use policy::{CompactionPolicy, Debt};
pub use presets::Preset;
pub use run::{RunFiles, SortedRun};
pub use running_jobs::RunningJobs;
pub use shape::{LevelShape, TreeShape};
pub use spec::PolicySpec;
pub use table_meta::{ExpiringBytes, ExpirySummary, TableMeta};
pub use tree_edit::{AddedFile, EditError, TreeEdit, TreeUpdate};
