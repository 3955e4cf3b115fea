//! Results of `lsmx bench --experiment`, with the field names of their JSON.

#![expect(missing_docs, reason = "the metrics in `columns` explain the fields")]

use lsmx::FilterBits;
use serde::Serialize;

use crate::experiment::throughput::result::Settings;
use crate::latency::LatencyUs;
use crate::report::provenance::Provenance;

/// Result of the command.
#[derive(Clone, Debug, Serialize)]
pub struct Tuning {
    pub provenance: Provenance,
    pub experiment: &'static str,
    pub settings: Settings,
    pub cells: Vec<Cell>,
}

/// One workload under one setting.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    pub workload: &'static str,
    pub engine: String,
    pub setting: String,
    pub threads: u64,
    pub ops: u64,
    pub ops_per_s: f64,
    pub latency_us: LatencyUs,
    pub reads: Option<Reads>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<Slice>,
}

/// Memory and I/O of lookups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Reads {
    pub cache_bytes: u64,
    pub cache_fraction: f64,
    pub index_cached: bool,
    pub filters_cached: bool,
    pub filter_last_run: bool,
    pub filter_bits: Option<FilterBits>,
    pub filter_bytes: u64,
    pub table_bytes: u64,
    pub ios_per_get: f64,
    pub physical_reads_per_get: f64,
    pub filter_false_positive_rate: f64,
    pub filter_answers: u64,
}

/// Puts that ended in a slice of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Slice {
    pub end_s: f64,
    pub ops: u64,
    pub ops_per_s: f64,
    pub mean_us: f64,
    pub max_us: f64,
    pub compaction_bytes: Option<u64>,
}
