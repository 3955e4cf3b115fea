//! What the experiments of `lsmx bench` find out, with the field names of their JSON.

use lsmx::FilterBits;
use serde::Serialize;

use crate::experiment::throughput::result::Settings;
use crate::latency::LatencyUs;
use crate::report::provenance::Provenance;

/// Everything that an experiment found out.
#[derive(Clone, Debug, Serialize)]
pub struct Tuning {
    /// Where the figures come from.
    pub provenance: Provenance,
    /// The experiment by name.
    pub experiment: &'static str,
    /// What all cells have in common.
    pub settings: Settings,
    /// A cell per setting and workload.
    pub cells: Vec<Cell>,
}

/// One workload under one setting.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// `readrandom`, `readmissing`, `fillrandom` or `overwrite`.
    pub workload: &'static str,
    /// The engine.
    pub engine: String,
    /// The setting as people call it.
    pub setting: String,
    /// Threads.
    pub threads: u64,
    /// Operations of all threads.
    pub ops: u64,
    /// Operations per second until the last operation ended.
    pub ops_per_s: f64,
    /// How long operations took.
    pub latency_us: LatencyUs,
    /// Of reads, what they found; null for writes.
    pub reads: Option<Reads>,
    /// Of puts over time, slice by slice; empty for reads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<Slice>,
}

/// Memory and reads of a cell that reads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reads {
    /// Bytes of the block cache.
    pub cache_bytes: u64,
    /// These ÷ the bytes of the tables.
    pub cache_fraction: f64,
    /// Whether all index blocks fit into it.
    pub index_cached: bool,
    /// Whether the filters that lookups ask fit into it.
    pub filters_cached: bool,
    /// Whether the filter of the last sorted run is asked.
    pub filter_last_run: bool,
    /// Width of the filters, where it is varied; null where the database has those that it was made with.
    pub filter_bits: Option<FilterBits>,
    /// Bytes of all filters.
    pub filter_bytes: u64,
    /// Bytes of the tables.
    pub table_bytes: u64,
    /// Blocks that memory did not have ÷ lookups.
    pub ios_per_get: f64,
    /// Calls for reading that reached the file system ÷ lookups.
    pub physical_reads_per_get: f64,
    /// Of the filters that were asked for keys which their table does not have, those that let the key pass.
    pub filter_false_positive_rate: f64,
    /// How many those were.
    pub filter_answers: u64,
}

/// A slice of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Slice {
    /// Where it ends, in seconds from the first put.
    pub end_s: f64,
    /// Puts that ended in it.
    pub ops: u64,
    /// These per second.
    pub ops_per_s: f64,
    /// Mean of what they took, in microseconds.
    pub mean_us: f64,
    /// The longest of them, in microseconds.
    pub max_us: f64,
    /// Bytes that compactions wrote in it; null where the engine does not count them.
    pub compaction_bytes: Option<u64>,
}
