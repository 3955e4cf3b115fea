//! Configuration of a simulation, and estimates of its size.

use crate::math::{round_to_u64, to_f64};
use crate::table_size::SizeModel;
use crate::workload::Phase;
use crate::write_counts::WriteCounts;

/// Default of [`Config::subcompactions_max`]. The engine uses the same number with its default number of workers.
pub const SUBCOMPACTIONS_DEFAULT: usize = 2;

/// Maximum number of bytes that all writes of a simulation may take in memtables: 64 PiB.
///
/// With this limit, the sums of bytes that jobs read and write fit into 64 bits.
pub const BYTES_MAX: u64 = 1 << 56;
/// Minimum of [`Config::memtable_bytes`], as in the engine.
pub const MEMTABLE_BYTES_MIN: u64 = 1 << 10;
/// Maximum number of flushes of a simulation.
pub const FLUSHES_MAX: u64 = 100_000_000;

/// Size of a simulation, estimated before the simulation runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EstimatedSize {
    /// Bytes that all writes take in memtables.
    pub bytes: f64,
    /// Number of flushes. Each flush is followed by the jobs that the policy picks.
    pub flushes: f64,
}

/// Workload and tree of a simulation. The policy is a separate argument.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Phases of the workload, in order.
    pub phases: Vec<Phase>,
    /// Length of each key, in bytes.
    pub key_bytes: u64,
    /// Length of each value, in bytes.
    pub value_bytes: u64,
    /// Size at which a memtable is sealed, in bytes of memory. At least [`MEMTABLE_BYTES_MIN`].
    pub memtable_bytes: u64,
    /// Target size of a table, in bytes.
    pub table_bytes: u64,
    /// Size of the block cache, in bytes.
    pub block_cache_bytes: u64,
    /// Maximum number of subcompactions of a merge. Default: [`SUBCOMPACTIONS_DEFAULT`].
    pub subcompactions_max: usize,
    /// Seed of all random samples. Equal seeds give equal reports.
    pub seed: u64,
}

impl Config {
    /// Estimates the size of the simulation.
    #[must_use]
    pub fn estimate_size(&self) -> EstimatedSize {
        let counts = self.phases.iter().map(|phase| WriteCounts::from_phase(phase).total());
        let writes: f64 = counts.sum();
        let sizes = SizeModel::new(self.key_bytes, self.value_bytes, round_to_u64(writes));
        let bytes = writes * sizes.memtable_put_bytes(false);
        EstimatedSize { bytes, flushes: bytes / to_f64(self.memtable_bytes.max(1)) }
    }
}
