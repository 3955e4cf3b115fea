//! Results of `lsmx bench`. The field names are those of the JSON output.

#![expect(missing_docs, reason = "the metrics in `columns` document the fields")]

use serde::Serialize;

use crate::latency::LatencyUs;
use crate::peers::WrittenBytes;
use crate::report::provenance::Provenance;

/// Result of `lsmx bench`.
#[derive(Clone, Debug, Serialize)]
pub struct ThroughputResult {
    pub provenance: Provenance,
    pub settings: ThroughputSettings,
    pub cells: Vec<ThroughputCell>,
}

/// Settings that are the same for all engines and workloads.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ThroughputSettings {
    pub entries: u64,
    pub key_len: u64,
    pub value_len: u64,
    pub memtable_bytes: u64,
    pub block_cache_bytes: u64,
    pub workers: u64,
    pub options: Vec<String>,
    pub rate: Option<f64>,
    pub seek_entries: u64,
    /// Time that reading the clock adds to each measured operation, in nanoseconds.
    pub clock_ns: f64,
}

/// Measurements of one workload on one engine.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ThroughputCell {
    /// Name of the workload. The backward part of `scan` is named `scan-backward`.
    pub workload: String,
    pub engine: String,
    pub threads: u64,
    pub ops: u64,
    pub ops_per_s: f64,
    pub ops_per_s_unsettled: f64,
    pub elapsed_s: f64,
    pub settle_s: f64,
    pub cpu_s: Option<f64>,
    /// Latency of an operation. With a target rate, latency is measured from the due time. Scans measure the time of
    /// the step to every 64th entry.
    pub latency_us: LatencyUs,
    pub entries_read: u64,
    pub absent: u64,
    pub put_bytes: u64,
    /// Written bytes divided by the bytes of puts. `None` if the workload has no puts. For engines that do not count
    /// their written bytes, the bytes written by the process are used.
    pub device_write_amplification: Option<f64>,
    pub written: Option<WrittenBytes>,
    pub process_written_bytes: Option<u64>,
    pub space_amplification: Option<f64>,
    pub table_bytes: u64,
    pub disk_bytes: u64,
    pub logical_bytes: u64,
    pub writer: Option<WriterRates>,
    pub loaded_first: bool,
    /// Number of the repetition with the median rate, counted from 1.
    pub repetition: u64,
    pub ops_per_s_runs: Vec<f64>,
    pub ops_per_s_interval: [f64; 2],
}

/// Measurements of the concurrent writer of `readwhilewriting`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WriterRates {
    pub ops: u64,
    pub ops_per_s: f64,
    pub latency_us: LatencyUs,
}
