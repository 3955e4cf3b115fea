//! Results of `lsmx explore`. The field names are those of the JSON output.
//!
//! Fields with a serde default are missing in the results of older versions.

#![expect(missing_docs, reason = "the metrics in `columns` document the fields")]

use std::collections::BTreeMap;

use lsmx::Compression;
use lsmx::metrics::BlockKind;
use lsmx_simulator::Report;
use lsmx_simulator::cost_model::Costs;
use serde::{Deserialize, Serialize};

use crate::experiment::repeat::Repeats;
use crate::experiment::sweep::SweepPoint;
use crate::latency::LatencyUs;
use crate::report::provenance::Provenance;
use crate::workload::KeyDistribution;
use crate::workload::phases::Phase;
use crate::workload::trace::TraceCounts;

/// Result of `lsmx explore`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Exploration {
    pub provenance: Provenance,
    pub cells: Vec<ExplorationCell>,
}

/// Measurements of one policy under one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplorationCell {
    pub policy: String,
    pub spec: String,
    #[serde(default, skip_serializing_if = "SweepPoint::is_empty")]
    pub sweep: SweepPoint,
    pub workload: WorkloadSummary,
    pub seed: u64,
    pub ingested_bytes: u64,
    pub flushed_bytes: u64,
    pub flushes: u64,
    pub compaction: CompactionTotals,
    pub data_moved_ratio: f64,
    pub write_amplification: f64,
    pub compaction_write_amplification: f64,
    pub device_write_amplification: f64,
    pub space_amplification: f64,
    #[serde(default)]
    pub disk_bytes: u64,
    #[serde(default)]
    pub disk_amplification: f64,
    pub space_amplification_invalid: f64,
    #[serde(default)]
    pub space_amplification_peak: f64,
    #[serde(default)]
    pub space_peak_bytes: u64,
    #[serde(default)]
    pub space_transient_bytes: u64,
    #[serde(default)]
    pub delete_persistence: DeletePersistence,
    pub put_latency_us: LatencyUs,
    pub stalls: StallTotals,
    pub point_lookups: Vec<PointLookups>,
    pub range_lookups: RangeLookups,
    /// Levels of the final tree.
    pub levels: Vec<LevelSummary>,
    /// Levels of the tree after flushes and compactions, in order. At most
    /// [`HISTORY_POINTS_MAX`](super::history::HISTORY_POINTS_MAX) evenly spaced points are kept.
    #[serde(default)]
    pub history: Vec<HistoryPoint>,
    pub elapsed_s: f64,
    /// Hash of all results that must be equal in each run with the same seed. `None` without `--deterministic`.
    pub digest: Option<String>,
    /// Costs that the simulator predicts. `None` if the simulator does not support the workload
    /// or the settings.
    #[serde(default)]
    pub simulated: Option<Report>,
    /// Costs that the closed-form cost model predicts. `None` if the model does not cover the policy.
    #[serde(default)]
    pub model: Option<Costs>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<Repeats>,
}

/// Workload and engine settings of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadSummary {
    pub records: RecordsSummary,
    pub phases: Vec<Phase>,
    pub memtable_bytes: u64,
    pub table_bytes: u64,
    pub block_cache_bytes: u64,
    /// How the engine slows writes down when compaction is behind: `smooth` or `stop`, or `none` with
    /// `--deterministic`.
    pub write_control: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<u64>,
    /// Number of threads that perform the lookups of phases without writes. `None` means one thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u64>,
    /// Maximum number of writes per second. `None` means no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_rate: Option<f64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub filter_last_run: bool,
    /// Target length of a data block in bytes. `None` means the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_bytes: Option<u32>,
    /// Width of filters. `None` means the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter_bits: Option<String>,
    /// Compression of blocks. `None` means the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// Data structure of memtables. `None` means the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memtable_kind: Option<String>,
    /// Whether table reads bypass the page cache. The digest does not depend on this field.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub direct_io: bool,
    pub deterministic: bool,
}

/// Source of the records or operations, as stored in the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "source")]
pub enum RecordsSummary {
    Generated {
        key_len: u64,
        value_len: u64,
        distribution: KeyDistribution,
    },
    File {
        name: String,
        shuffled: bool,
        records: u64,
        bytes: u64,
    },
    Trace {
        name: String,
        #[serde(flatten)]
        counts: TraceCounts,
    },
}

/// Totals over all compaction jobs. With `--deterministic` all times are 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompactionTotals {
    pub jobs: u64,
    pub trivial_moves: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub latency_us: LatencyUs,
    #[serde(default)]
    pub thread_us_total: u64,
    #[serde(default)]
    pub cpu_us_total: u64,
    #[serde(default)]
    pub cpu_fraction: f64,
    /// Time that jobs waited for reads, without the processor time of the reads. The next fields contain the waits for
    /// writes and for syncs. `thread_us_total` also includes the processor time and all other waits.
    #[serde(default)]
    pub read_wait_us_total: u64,
    #[serde(default)]
    pub read_wait_fraction: f64,
    #[serde(default)]
    pub write_wait_us_total: u64,
    #[serde(default)]
    pub write_wait_fraction: f64,
    #[serde(default)]
    pub sync_wait_us_total: u64,
    #[serde(default)]
    pub sync_wait_fraction: f64,
}

/// Totals over all writes that waited for flushes or compactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StallTotals {
    pub count: u64,
    pub total_us: u64,
    pub max_us: u64,
    #[serde(default)]
    pub memtables_full: u64,
    #[serde(default)]
    pub memory_full: u64,
    #[serde(default)]
    pub too_many_runs: u64,
    #[serde(default)]
    pub throttled_us: u64,
}

/// Time from a delete until a compaction drops its tombstone, by the database clock. With `--deterministic` the clock
/// advances by one microsecond per operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeletePersistence {
    pub deletes: u64,
    pub live_tombstones: u64,
    pub oldest_age_us: Option<u64>,
    /// Upper bound of the age of dropped tombstones. The exact age is unknown, because a job only reports the oldest
    /// tombstone among its inputs.
    pub age_us_max: Option<u64>,
    pub run_us: u64,
    pub within: Vec<PersistedShare>,
}

/// Fraction of deletes whose tombstone was dropped within a given fraction of the run time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PersistedShare {
    pub share_of_run: f64,
    pub share: f64,
}

/// Point lookups with the same share of absent keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointLookups {
    pub alpha: f64,
    pub ops: u64,
    pub latency_us: LatencyUs,
    pub ios_per_get: f64,
    #[serde(default)]
    /// Blocks read divided by lookups that found their key. `None` if no lookup found its key.
    pub read_amplification: Option<f64>,
    pub blocks_read: BTreeMap<BlockKind, u64>,
    pub filter_false_positive_rate: f64,
}

/// Range lookups of all selectivities.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RangeLookups {
    pub ops: u64,
    pub entries: u64,
    pub latency_us: LatencyUs,
    pub blocks_read: BTreeMap<BlockKind, u64>,
    #[serde(default)]
    pub by_selectivity: Vec<SelectivityLookups>,
}

/// Range lookups with the same selectivity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SelectivityLookups {
    pub selectivity: f64,
    pub ops: u64,
    pub entries: u64,
    pub latency_us: LatencyUs,
    pub blocks_read: BTreeMap<BlockKind, u64>,
}

/// Size of one level of the final tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelSummary {
    pub level: u64,
    pub runs: u64,
    pub files: u64,
    pub bytes: u64,
    pub entries: u64,
    pub tombstones: u64,
}

/// Levels of the tree at one time, and the bytes read and written up to that time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryPoint {
    pub ingested_bytes: u64,
    pub flushed_bytes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub levels: Vec<LevelPoint>,
}

/// Size of one level at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelPoint {
    pub level: u64,
    pub runs: u64,
    pub files: u64,
    pub bytes: u64,
}
