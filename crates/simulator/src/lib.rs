//! Simulates compaction policies on log-structured merge trees without data.
//!
//! A simulation runs a workload under a policy of [`lsmx_compaction`]. It reports write amplification, space
//! amplification, and the expected I/Os of lookups. The tree holds no data, so the simulation of a tree that fits on no
//! single machine takes seconds.
//!
//! The [cost model](cost_model) is a faster alternative: formulas from the literature for a full tree in a steady
//! state.
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
//! Policies, `TreeShape::apply_job` and `OutputSplitter` are the same as in the engine. Only the contents of files are
//! estimated:
//!
//! 1. The write model computes the contents of each memtable from the writes of a phase.
//! 2. A file is a histogram over its key range. Each bin has the number of entries of each kind, and a range of
//!    sequence numbers.
//! 3. A merge visits the bins of its inputs in key order. Probabilities determine the number of entries in a part of a
//!    bin, and the number of keys that two inputs have in common. A seeded sampler adds the variance of a real tree.
//! 4. The size model computes the bytes of tables and memtables from the numbers of entries.
//! 5. The lookup model computes the blocks that lookups read, and the share of these blocks that are in the cache.
//!
//! `docs/design/compaction.md` lists what the simulation does not model. `docs/results/design-space.md` compares it
//! with the engine.

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

pub use config::{
    BYTES_MAX, Config, EstimatedSize, FLUSHES_MAX, MEMTABLE_BYTES_MIN, SUBCOMPACTIONS_DEFAULT,
};
pub use error::Error;
pub use report::{CompactionReport, LevelReport, PointLookupReport, RangeLookupReport, Report};
pub use simulation::{simulate, simulate_policy};
