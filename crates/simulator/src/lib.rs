//! Simulates compaction policies on log-structured merge trees without data.
//!
//! A simulation runs a workload under a policy of [`lsmx_compaction`] and reports write amplification,
//! space amplification, and the expected I/Os of lookups. Since the tree holds no data, trees that fit on
//! no single machine take seconds. A second, faster way is the [cost model](cost_model): closed forms from
//! the literature for a full tree in a steady state.
//!
//! ```
//! use lsmx_compaction::PolicySpec;
//! use lsmx_simulator::workload::{KeyDistribution, Phase, LookupGroup};
//! use lsmx_simulator::{Config, SUBCOMPACTIONS_DEFAULT, simulate};
//!
//! let load = Phase { inserts: 1_000_000, settle: true, ..Phase::new("load", KeyDistribution::Uniform) };
//! let mut read = Phase::new("read", KeyDistribution::Uniform);
//! read.lookups = vec![LookupGroup { alpha: 0.5, ops: 10_000 }];
//! let config = Config {
//!     phases: vec![load, read],
//!     key_bytes: 16,
//!     value_bytes: 112,
//!     memtable_bytes: 4 << 20,
//!     table_bytes: 4 << 20,
//!     block_cache_bytes: 8 << 20,
//!     subcompactions_max: SUBCOMPACTIONS_DEFAULT,
//!     seed: 1,
//! };
//! let policy: PolicySpec = "tiering(T=4)".parse()?;
//! let report = simulate(&config, &policy, &mut |_writes_so_far| true)?;
//! assert!(report.write_amplification > 1.0);
//! assert_eq!(report.point_lookups.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`simulate_policy`] takes any [`CompactionPolicy`](lsmx_compaction::CompactionPolicy), such as one that
//! is not yet part of a database.
//!
//! # How it works
//!
//! Policy, `TreeShape::apply_job` and `OutputSplitter` are those of the engine. Only the contents of files are
//! estimates:
//!
//! 1. The write model turns the writes of a phase into the contents of a memtable.
//! 2. A file is a histogram of its key range. Each bin has a number of entries by kind, and a range of
//!    sequence numbers.
//! 3. A merge visits the bins of its inputs in key order. The number of entries in a part of a bin, and the
//!    number of keys that two inputs have in common, follow from probabilities; a seeded sampler adds the
//!    variance of a real tree.
//! 4. The size model turns numbers of entries into the bytes of tables and memtables.
//! 5. The lookup model computes the blocks that lookups read, and the share of them in the cache.
//!
//! `docs/design/compaction.md` lists what the simulation leaves out, and `docs/results/design-space.md` compares
//! it with the engine.

mod block_cache;
mod config;
pub mod cost_model;
mod entry_counts;
mod error;
mod file_grouping;
mod histogram;
mod lookups;
mod math;
mod merge;
mod merge_input;
mod output_writer;
mod position;
mod report;
mod sampler;
mod seq_range;
mod simulation;
mod split_points;
mod subcompactions;
mod table_size;
#[cfg(test)]
mod tests;
pub mod workload;
mod write_counts;
mod write_model;

pub use config::{BYTES_MAX, Config, EstimatedSize, FLUSHES_MAX, SUBCOMPACTIONS_DEFAULT};
pub use error::Error;
pub use report::{CompactionReport, LevelReport, PointLookupReport, RangeLookupReport, Report};
pub use simulation::{simulate, simulate_policy};
