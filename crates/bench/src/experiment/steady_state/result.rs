//! Results of the experiment `steady-state`. The field names are those of the JSON output.

#![expect(missing_docs, reason = "the metrics in `columns` document the fields")]

use serde::{Deserialize, Serialize};

use crate::experiment::throughput::result::ThroughputSettings;
use crate::latency::LatencyUs;
use crate::report::provenance::Provenance;

/// Result of `lsmx bench --experiment steady-state`.
#[derive(Clone, Debug, Serialize)]
pub struct SteadyStateResult {
    pub provenance: Provenance,
    pub experiment: &'static str,
    pub settings: ThroughputSettings,
    /// Length of the testing phase in minutes. `None` if there was no testing phase.
    pub testing_minutes: Option<f64>,
    /// Length of the running phase in minutes.
    pub minutes: f64,
    /// Errors of engines that needed more memory than the limit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    pub cells: Vec<SteadyStateCell>,
}

/// Measurements of one engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SteadyStateCell {
    pub workload: String,
    pub engine: String,
    pub threads: u64,
    pub read_ratio: f64,
    /// Rate in the second half of the testing phase. `None` if there was no testing phase.
    pub sustained_ops_per_s: Option<f64>,
    pub scheduled_ops_per_s: f64,
    /// Measurements of the whole running phase.
    #[serde(flatten)]
    pub total: SteadyStatePeriod,
    /// Measurements of each minute of the running phase. The last minute may be shorter.
    pub by_minute: Vec<SteadyStatePeriod>,
}

/// Measurements of a part of the running phase.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SteadyStatePeriod {
    pub elapsed_s: f64,
    pub ops: u64,
    pub ops_per_s: f64,
    pub gets: u64,
    pub puts: u64,
    /// Latency of puts, measured from their scheduled start.
    pub put_latency_us: LatencyUs,
    /// Latency of gets, measured from their scheduled start.
    pub get_latency_us: LatencyUs,
    pub device_read_bytes_per_get: Option<f64>,
    pub device_written_bytes_per_put: Option<f64>,
    pub stall_s: Option<f64>,
    /// Bytes that pending compactions have to rewrite, as estimated by the engine at the end of the period.
    pub pending_compaction_bytes: Option<u64>,
    pub space_amplification: f64,
    pub table_bytes: u64,
    pub disk_bytes: u64,
}
