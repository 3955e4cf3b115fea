//! What `lsmx explore` measures, with the field names of its JSON.

use std::collections::BTreeMap;

use lsmx::metrics::BlockKind;
use lsmx_simulator::Report;
use lsmx_simulator::cost_model::Costs;
use serde::{Deserialize, Serialize};

use crate::experiment::repeat::{Repeatable, Repeats};
use crate::experiment::sweep::SweepPoint;
use crate::latency::LatencyUs;
use crate::report::provenance::Provenance;
use crate::workload::KeyDistribution;
use crate::workload::phases::Phase;
use crate::workload::trace::TraceCounts;

/// Everything that an exploration found out.
#[derive(Clone, Debug, Serialize)]
pub struct Exploration {
    /// Where the figures come from.
    pub provenance: Provenance,
    /// One cell per policy.
    pub cells: Vec<Cell>,
}

/// One policy under one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Canonical name of the policy.
    pub policy: String,
    /// The policy with all its parameters.
    pub spec: String,
    /// What the swept flags are; left out where nothing is swept.
    #[serde(default, skip_serializing_if = "SweepPoint::is_empty")]
    pub sweep: SweepPoint,
    /// What was played.
    pub workload: Workload,
    /// Seed of the workload and, with `--deterministic`, of the database.
    pub seed: u64,
    /// Key and value bytes of all writes.
    pub ingested_bytes: u64,
    /// Bytes of tables that flushes wrote.
    pub flushed_bytes: u64,
    /// Memtables that became tables.
    pub flushes: u64,
    /// What compaction did.
    pub compaction: Compaction,
    /// (Compaction read + written) ÷ ingested.
    pub data_moved_ratio: f64,
    /// (Flushed + compaction written) ÷ ingested.
    pub write_amplification: f64,
    /// Compaction written ÷ bytes of unique live data.
    pub compaction_write_amplification: f64,
    /// (WAL + flushed + compaction written) ÷ put bytes.
    pub device_write_amplification: f64,
    /// Live file bytes ÷ bytes of the newest versions.
    pub space_amplification: f64,
    /// Lengths of all files in the directory of the database before it is closed, with log and reserve, in bytes.
    #[serde(default)]
    pub disk_bytes: u64,
    /// `disk_bytes` ÷ bytes of the newest versions.
    #[serde(default)]
    pub disk_amplification: f64,
    /// Bytes of invalid entries ÷ bytes of live ones.
    pub space_amplification_invalid: f64,
    /// Most file bytes at a time, outputs of a job beside its inputs included ÷ bytes of the newest
    /// versions at the end.
    #[serde(default)]
    pub space_amplification_peak: f64,
    /// The bytes above the line of that.
    #[serde(default)]
    pub space_peak_bytes: u64,
    /// Most bytes that one job wrote while its inputs were still there.
    #[serde(default)]
    pub space_transient_bytes: u64,
    /// What became of deletes.
    #[serde(default)]
    pub delete_persistence: DeletePersistence,
    /// How long puts took.
    pub put_latency_us: LatencyUs,
    /// Writes that waited.
    pub stalls: Stalls,
    /// Point lookups, by their share of absent keys.
    pub point_lookups: Vec<PointLookups>,
    /// Range lookups.
    pub range_lookups: RangeLookups,
    /// The tree at the end.
    pub levels: Vec<LevelSummary>,
    /// The tree after flushes and jobs, from the first to the last: at most
    /// [`HISTORY_POINTS_MAX`](super::history::HISTORY_POINTS_MAX) points, evenly spaced by their
    /// number.
    #[serde(default)]
    pub history: Vec<HistoryPoint>,
    /// Seconds the cell took, settling and the final scan included.
    pub elapsed_s: f64,
    /// Stands for all that must be equal from run to run; null without `--deterministic`.
    pub digest: Option<String>,
    /// What the simulator says of the same; null where it cannot play the workload.
    #[serde(default)]
    pub simulated: Option<Report>,
    /// What the closed form says; null for a policy that it does not describe.
    #[serde(default)]
    pub model: Option<Costs>,
    /// What the repetitions measured of which the figures above are the medians; left out where
    /// there is one run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<Repeats>,
    /// Whether all of it was simulated: there were no times then, no log, and no history.
    #[serde(skip)]
    pub(crate) is_simulated: bool,
}

impl Repeatable for Cell {
    fn seed(&self) -> u64 {
        self.seed
    }

    fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    fn set_repeats(&mut self, repeats: Repeats) {
        self.repeats = Some(repeats);
    }
}

/// The workload of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// The records, generated or those of a file.
    pub records: RecordsSummary,
    /// What is done with them.
    pub phases: Vec<Phase>,
    /// Bytes of a memtable.
    pub memtable_bytes: u64,
    /// Target bytes of a table.
    pub table_bytes: u64,
    /// Bytes of the block cache.
    pub block_cache_bytes: u64,
    /// `smooth` or `stop`; `none` with `--deterministic`.
    pub write_control: String,
    /// Threads that compacted, beside one that flushed; left out with `--deterministic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<u64>,
    /// Whether the filter of the last sorted run was asked too; left out where it was not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub filter_last_run: bool,
    /// Whether jobs run on the thread of the writer.
    pub deterministic: bool,
}

/// Where the records come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "source")]
pub enum RecordsSummary {
    /// Generated.
    Generated {
        /// Bytes of a key.
        key_len: u64,
        /// Bytes of a value.
        value_len: u64,
        /// Where keys fall.
        distribution: KeyDistribution,
    },
    /// A data file.
    File {
        /// Its name, without the directory.
        name: String,
        /// Whether its records were shuffled.
        shuffled: bool,
        /// Records.
        records: u64,
        /// Key and value bytes.
        bytes: u64,
    },
    /// A trace, which has operations in place of records.
    Trace {
        /// Its name, without the directory.
        name: String,
        /// What it holds.
        #[serde(flatten)]
        counts: TraceCounts,
    },
}

/// What compaction did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compaction {
    /// Jobs that merged or rewrote.
    pub jobs: u64,
    /// Jobs that only edited the manifest.
    pub trivial_moves: u64,
    /// Bytes of whole input blocks, cached or not.
    pub read_bytes: u64,
    /// Bytes of output files.
    pub written_bytes: u64,
    /// How long the jobs took, trivial moves left out.
    pub latency_us: LatencyUs,
    /// Time of all threads in jobs, in microseconds; 0 with `--deterministic`, as the next two.
    #[serde(default)]
    pub thread_us_total: u64,
    /// How much of it was on a processor; the rest was waiting, for files mostly.
    #[serde(default)]
    pub cpu_us_total: u64,
    /// The one ÷ the other.
    #[serde(default)]
    pub cpu_fraction: f64,
}

/// Writes that waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stalls {
    /// How many.
    pub count: u64,
    /// How long in all.
    pub total_us: u64,
    /// The longest.
    pub max_us: u64,
    /// Writes that waited because all memtables were full.
    #[serde(default)]
    pub memtables_full: u64,
    /// Writes that waited because all memtables together were at their bound.
    #[serde(default)]
    pub memory_full: u64,
    /// Writes that waited at the policy's hard stop.
    #[serde(default)]
    pub too_many_runs: u64,
    /// How long writes were slowed by debt in all; none of the others. 0 with `--write-control stop`.
    #[serde(default)]
    pub throttled_us: u64,
}

/// How long a delete takes to take away what it deletes. Times are those of the database's clock, which
/// with `--deterministic` moves by one microsecond with each operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeletePersistence {
    /// Deletes of a key.
    pub deletes: u64,
    /// Point tombstones in the tree at the end.
    pub live_tombstones: u64,
    /// Age of the oldest of them; none if there is none.
    pub oldest_age_us: Option<u64>,
    /// An age that no tombstone had passed when a job let it go; none if no job let one go. A job
    /// knows the oldest tombstone of its inputs, so each of them may have been younger.
    pub age_us_max: Option<u64>,
    /// From the opening of the database to the end of the last settling.
    pub run_us: u64,
    /// How many left in time, surely; empty without deletes.
    pub within: Vec<PersistedWithin>,
}

/// Tombstones that left within a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PersistedWithin {
    /// The time, as a share of the run.
    pub share_of_run: f64,
    /// Share of all deletes whose tombstone left within it: for sure, see
    /// [`DeletePersistence::age_us_max`].
    pub share: f64,
}

/// Point lookups of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointLookups {
    /// Share that asked for absent keys.
    pub alpha: f64,
    /// How many.
    pub ops: u64,
    /// How long they took.
    pub latency_us: LatencyUs,
    /// Blocks of all kinds that the cache did not have, per lookup.
    pub ios_per_get: f64,
    /// Those blocks ÷ the blocks that ideally need reading, one for each lookup that found something:
    /// the study's measure. None where nothing was found.
    #[serde(default)]
    pub read_amplification: Option<f64>,
    /// The same by kind, in all.
    pub blocks_read: BTreeMap<BlockKind, u64>,
    /// Share of the keys a table did not have that its filter let pass; 0 where none was asked.
    pub filter_false_positive_rate: f64,
}

/// Range lookups.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RangeLookups {
    /// How many.
    pub ops: u64,
    /// Entries they returned.
    pub entries: u64,
    /// How long they took.
    pub latency_us: LatencyUs,
    /// Blocks that the cache did not have, by kind.
    pub blocks_read: BTreeMap<BlockKind, u64>,
    /// The same for each selectivity; empty for the scans of a trace, which have none.
    #[serde(default)]
    pub by_selectivity: Vec<RangesOfSelectivity>,
}

/// Range lookups of one selectivity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RangesOfSelectivity {
    /// Entries asked for, as a share of those there.
    pub selectivity: f64,
    /// How many lookups.
    pub ops: u64,
    /// Entries they returned.
    pub entries: u64,
    /// How long they took.
    pub latency_us: LatencyUs,
    /// Blocks that the cache did not have, by kind.
    pub blocks_read: BTreeMap<BlockKind, u64>,
}

/// One level of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelSummary {
    /// Its number.
    pub level: u64,
    /// Sorted runs.
    pub runs: u64,
    /// Files.
    pub files: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Entries, shadowed ones and tombstones included.
    pub entries: u64,
    /// Tombstones.
    pub tombstones: u64,
}

/// The tree at one moment, and what had been written for it by then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryPoint {
    /// Key and value bytes of all writes so far.
    pub ingested_bytes: u64,
    /// Bytes that flushes wrote so far.
    pub flushed_bytes: u64,
    /// Bytes that compaction read so far.
    pub read_bytes: u64,
    /// Bytes that compaction wrote so far.
    pub written_bytes: u64,
    /// Levels that hold something, from L0.
    pub levels: Vec<LevelPoint>,
}

/// A level at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelPoint {
    /// Its number.
    pub level: u64,
    /// Sorted runs.
    pub runs: u64,
    /// Files.
    pub files: u64,
    /// Bytes of the files.
    pub bytes: u64,
}
