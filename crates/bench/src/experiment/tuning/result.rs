//! Results of `lsmx bench --experiment`. The field names are those of the JSON output.

#![expect(missing_docs, reason = "the metrics in `columns` document the fields")]

use lsmx::FilterBits;
use serde::Serialize;

use crate::experiment::player::OperationMeasurements;
use crate::experiment::throughput::result::ThroughputSettings;
use crate::latency::LatencyUs;
use crate::peers::EngineKind;
use crate::report::provenance::Provenance;

/// Result of `lsmx bench --experiment`.
#[derive(Clone, Debug, Serialize)]
pub struct TuningResult {
    pub provenance: Provenance,
    pub experiment: &'static str,
    pub settings: ThroughputSettings,
    pub cells: Vec<TuningCell>,
}

/// Measurements of one workload with one setting.
#[derive(Clone, Debug, Serialize)]
pub struct TuningCell {
    pub workload: &'static str,
    pub engine: String,
    pub setting: String,
    pub threads: u64,
    pub ops: u64,
    pub ops_per_s: f64,
    pub latency_us: LatencyUs,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<DataSize>,
    pub reads: Option<LookupReads>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<PutSlice>,
}

impl TuningCell {
    /// Creates the result of a workload on lsmx. The rate is computed from the elapsed time plus `settle_s` seconds.
    pub(super) fn new(
        workload: &'static str,
        setting: &str,
        threads: u64,
        played: &OperationMeasurements,
        settle_s: f64,
    ) -> TuningCell {
        TuningCell {
            workload,
            engine: EngineKind::Lsmx.name().to_owned(),
            setting: setting.to_owned(),
            threads,
            ops: played.ops,
            ops_per_s: played.ops_per_s(settle_s),
            latency_us: played.total_latency(),
            data: None,
            reads: None,
            slices: Vec::new(),
        }
    }
}

/// Number of records in a database, and the total length of their keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DataSize {
    pub entries: u64,
    pub bytes: u64,
}

/// Cache size, filter settings, and number of I/Os per lookup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LookupReads {
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

/// Measurements of the puts that ended within a time slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PutSlice {
    pub end_s: f64,
    pub ops: u64,
    pub ops_per_s: f64,
    pub mean_us: f64,
    pub max_us: f64,
    pub compaction_bytes: Option<u64>,
}
