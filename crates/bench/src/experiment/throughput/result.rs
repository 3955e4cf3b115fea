//! Results of `lsmx bench`. The field names are those of the JSON output.

#![expect(missing_docs, reason = "the metrics in `columns` document the fields")]

use serde::{Deserialize, Serialize};

use crate::latency::LatencyUs;
use crate::peers::WrittenBytes;
use crate::report::provenance::Provenance;

/// Result of `lsmx bench`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ThroughputResult {
    pub provenance: Provenance,
    pub settings: ThroughputSettings,
    pub cells: Vec<ThroughputCell>,
    /// Rates at which the device reads single pages. No engine can exceed these rates. Empty without a memory limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device: Vec<ThroughputCell>,
}

/// Settings that are the same for all engines and workloads.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
    /// Memory limit of each engine. The page cache of the files of an engine counts toward the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// How the memory is limited: `cgroup v1`, `cgroup v2` or `direct I/O`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_method: Option<String>,
    /// Time that reading the clock adds to each measured operation, in nanoseconds.
    pub clock_ns: f64,
}

/// Measurements of one workload on one engine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ThroughputCell {
    /// Name of the workload, followed by the settings that have no field in this struct. The backward part of `scan` is
    /// named `scan-backward`.
    pub workload: String,
    pub engine: String,
    pub threads: u64,
    pub ops: u64,
    pub ops_per_s: f64,
    pub ops_per_s_unsettled: f64,
    pub elapsed_s: f64,
    pub settle_s: f64,
    pub cpu_s: Option<f64>,
    /// Latency of an operation. With a target rate, latency is measured from the due time. For scans, the latency of
    /// every 64th step to the next entry is measured.
    pub latency_us: LatencyUs,
    pub entries_read: u64,
    pub absent: u64,
    /// Bytes that the process read from storage until the last operation ended, divided by the operations. `None` if
    /// the system does not count these bytes.
    pub device_read_bytes_per_op: Option<f64>,
    /// Number of reads of the block device by all processes until the last operation ended, divided by the operations.
    pub device_reads_per_op: Option<f64>,
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
    /// Rate of lsmx divided by the rate of the fastest other engine in the same repetition. `None` for other engines
    /// and for a single repetition.
    pub best_peer_ratio: Option<RatioInterval>,
}

/// Median, lowest and highest ratio of the repetitions. For an even number of repetitions, the median is the lower of
/// the two middle ratios.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RatioInterval {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// Measurements of the concurrent writer of `readwhilewriting`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct WriterRates {
    pub ops: u64,
    pub ops_per_s: f64,
    pub latency_us: LatencyUs,
}
