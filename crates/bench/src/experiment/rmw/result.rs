//! Results of `lsmx rmw`. The field names are those of the JSON output.

#![expect(missing_docs, reason = "the metrics in `columns` document the fields")]

use lsmx::operand_store::OperandMetrics;
use serde::{Deserialize, Serialize};

use crate::experiment::repeat::Repeats;
use crate::experiment::sweep::SweepPoint;
use crate::latency::LatencyUs;
use crate::numbers::to_f64;
use crate::process::{CpuTimes, DeviceIo};
use crate::report::provenance::Provenance;

use super::design::{UpdateMode, ValuePlacement};

/// Result of `lsmx rmw`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RmwResult {
    pub provenance: Provenance,
    /// Name of the experiment. `None` if no experiment was selected.
    pub experiment: Option<String>,
    pub cells: Vec<RmwCell>,
}

/// Workload and memory budget of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RmwWorkload {
    pub mix: String,
    pub records: u64,
    pub loaded_bytes: u64,
    pub key_len: u64,
    pub value_len: u64,
    pub field_len: u64,
    pub delta_len: u64,
    pub zipf: f64,
    pub threads: u64,
    pub memory_budget: u64,
    pub direct_io: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scan_read_bytes: Option<u64>,
}

/// Measurements of an engine with one update mode and one storage location for values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RmwCell {
    pub engine: String,
    pub mode: UpdateMode,
    pub base: ValuePlacement,
    pub read_ratio: f64,
    pub workload: RmwWorkload,
    #[serde(default, skip_serializing_if = "SweepPoint::is_empty")]
    pub sweep: SweepPoint,
    pub seed: u64,
    pub ops: u64,
    pub ops_per_s: f64,
    pub elapsed_s: f64,
    pub settle_s: f64,
    pub reads: u64,
    pub read_latency_us: LatencyUs,
    pub rmws: u64,
    pub rmw_latency_us: LatencyUs,
    pub put_latency_us: LatencyUs,
    #[serde(default)]
    pub scans: u64,
    /// Latency of scans, all zeros if the mix has no scans.
    pub scan_latency_us: LatencyUs,
    #[serde(default)]
    pub scanned_entries: u64,
    #[serde(default)]
    pub cpu: Option<CpuTimes>,
    #[serde(default)]
    pub process_cpu: Option<CpuTimes>,
    pub ios_per_read: Option<f64>,
    /// Number of bytes that read calls returned from files, until compaction was idle. For engines other than lsmx, all
    /// read calls of the process are counted.
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub device: Option<DeviceIo>,
    #[serde(default)]
    pub operand_store: Option<OperandMetrics>,
    pub storage_bytes: u64,
    #[serde(default)]
    pub blob_bytes: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub memory_bytes_before: Option<u64>,
    pub checked_records: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryTime>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<Repeats>,
}

/// Time to open a copy of the database files after a simulated kill, and the size of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecoveryTime {
    pub open_s: f64,
    pub storage_bytes: u64,
}

impl RmwCell {
    pub fn scanned_per_s(&self) -> Option<f64> {
        let seconds = self.scan_latency_us.mean * to_f64(self.scans) / 1e6;
        (seconds > 0.0).then(|| to_f64(self.scanned_entries) / seconds)
    }

    pub fn name(&self) -> String {
        let base = if self.base == ValuePlacement::Tree {
            String::new()
        } else {
            format!(" · {}", self.base)
        };
        let engine =
            if self.engine == "lsmx" { String::new() } else { format!("{} · ", self.engine) };
        format!("{engine}{}{base}", self.mode)
    }
}
