//! Results of `lsmx rmw`. The field names are those of the JSON output.

#![expect(missing_docs, reason = "the metrics in `columns` document the fields")]

use lsmx::operand_store::OperandMetrics;
use serde::{Deserialize, Serialize};

use crate::experiment::repeat::Repeats;
use crate::experiment::sweep::SweepPoint;
use crate::latency::LatencyUs;
use crate::numbers::{ratio, to_f64};
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memtable_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket_bytes: Option<u64>,
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
    #[serde(default)]
    pub wal_bytes: Option<u64>,
    pub device: Option<DeviceIo>,
    #[serde(default)]
    pub operand_store: Option<OperandMetrics>,
    /// Reads from one source. Only the experiment `read-sources` measures it, with one result per source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<ReadSource>,
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

/// Reads from one source of data, such as a level, and the contents of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadSource {
    pub searches_per_read: f64,
    pub block_reads_per_read: f64,
    pub operands_per_read: f64,
    pub bytes: Option<u64>,
    pub operand_share: Option<f64>,
}

/// Time to open a copy of the database files after a simulated kill, and the size of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecoveryTime {
    pub open_s: f64,
    pub storage_bytes: u64,
}

impl RmwCell {
    /// Returns the number of buckets that collections rewrote, split, merged or moved to the tree.
    pub fn collections(&self) -> Option<u64> {
        self.operand_store.map(|store| store.rewrites + store.splits + store.merges + store.to_tree)
    }

    /// Returns the bytes that collections read from buckets, and those that they wrote to buckets, per byte of the
    /// operands that flushes passed to the operand store. Returns `None` if there are no such operands.
    pub fn collection_ratios(&self) -> Option<[f64; 2]> {
        let store = self.operand_store.filter(|store| store.delivered_bytes > 0)?;
        let bytes = [store.bucket_read_bytes, store.collection_written_bytes];
        Some(bytes.map(|bytes| ratio(bytes, store.delivered_bytes)))
    }

    /// Returns the share of the write-ahead log and of the log of the operand store among all written bytes.
    pub fn log_share(&self) -> Option<f64> {
        let store = self.operand_store.map_or(0, |store| store.log_written_bytes);
        let logs = self.wal_bytes? + store;
        (self.written_bytes > 0).then(|| ratio(logs, self.written_bytes))
    }

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
