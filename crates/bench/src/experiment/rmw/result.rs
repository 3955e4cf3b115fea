//! What `lsmx rmw` measures, with the field names of its JSON.

use lsmx::operand_store::OperandMetrics;
use serde::{Deserialize, Serialize};

use crate::experiment::repeat::{Repeatable, Repeats};
use crate::experiment::sweep::SweepPoint;
use crate::latency::LatencyUs;
use crate::numbers::float;
use crate::process::{Cpu, DeviceIo};
use crate::report::provenance::Provenance;

use super::design::{Base, Mode};

/// Everything that a run found out.
#[derive(Clone, Debug, Serialize)]
pub struct Rmw {
    /// Where the figures come from.
    pub provenance: Provenance,
    /// The experiment by name; null for a comparison by flags.
    pub experiment: Option<String>,
    /// A cell per point, engine, mode and base.
    pub cells: Vec<Cell>,
}

/// What a cell was run with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// The mix by name.
    pub mix: String,
    /// Records that were loaded.
    pub records: u64,
    /// Key and value bytes of these.
    pub loaded_bytes: u64,
    /// Bytes of a key; of the most where they differ.
    pub key_len: u64,
    /// Bytes of a value; of the most where they differ.
    pub value_len: u64,
    /// Bytes of a field.
    pub field_len: u64,
    /// Bytes that an update writes.
    pub delta_len: u64,
    /// Exponent of the popularity of records.
    pub zipf: f64,
    /// Threads.
    pub threads: u64,
    /// Bytes of memory that were allowed.
    pub memory_budget: u64,
    /// Whether tables were read past the page cache.
    pub direct_io: bool,
    /// Bytes of values that a scan was to get by one read of a blob file, where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scan_read_bytes: Option<u64>,
}

/// One engine in one mode over one base.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The engine.
    pub engine: String,
    /// How a field is updated.
    pub mode: Mode,
    /// Where values lie.
    pub base: Base,
    /// Reads, scans among them, ÷ operations.
    pub read_ratio: f64,
    /// What it was run with.
    pub workload: Workload,
    /// What the experiment varies.
    #[serde(default, skip_serializing_if = "SweepPoint::is_empty")]
    pub sweep: SweepPoint,
    /// The seed.
    pub seed: u64,
    /// Operations that were measured.
    pub ops: u64,
    /// Operations per second until the last operation ended.
    pub ops_per_s: f64,
    /// Time until the last operation ended, in seconds.
    pub elapsed_s: f64,
    /// Seconds that flushes and compactions took after that.
    pub settle_s: f64,
    /// Plain reads.
    pub reads: u64,
    /// How long plain reads took.
    pub read_latency_us: LatencyUs,
    /// Updates of a field.
    pub rmws: u64,
    /// How long updates of a field took.
    pub rmw_latency_us: LatencyUs,
    /// How long puts of whole values and inserts took; all 0 where the mix has none.
    pub put_latency_us: LatencyUs,
    /// Scans.
    #[serde(default)]
    pub scans: u64,
    /// How long scans took; all 0 where the mix has none.
    pub scan_latency_us: LatencyUs,
    /// Entries that scans saw; 0 where the mix has none.
    #[serde(default)]
    pub scanned_entries: u64,
    /// Processor time of the threads that operated, until the last of them was done; null where the system does
    /// not tell.
    #[serde(default)]
    pub cpu: Option<Cpu>,
    /// Processor time of the whole process, settling included; of what ran before it nothing.
    #[serde(default)]
    pub process_cpu: Option<Cpu>,
    /// Blocks that a plain read took from files; null without plain reads.
    pub ios_per_read: Option<f64>,
    /// Bytes of calls that read files, settling included; of a peer those of the whole process.
    pub read_bytes: u64,
    /// Bytes of calls that write files, settling included; of a peer those of the whole process.
    pub written_bytes: u64,
    /// What the block device did meanwhile, settling included, for everybody on the machine; null where the
    /// system does not tell.
    pub device: Option<DeviceIo>,
    /// What operands that are kept apart hold and have cost since the database was opened, settling
    /// included; null where they are not.
    #[serde(default)]
    pub operand_store: Option<OperandMetrics>,
    /// Bytes that all files of the settled database occupy.
    pub storage_bytes: u64,
    /// Bytes of its files that hold values beside the tree; null of engines that do not tell.
    #[serde(default)]
    pub blob_bytes: Option<u64>,
    /// The most memory that the process was seen to occupy while operations ran; null where the system does not
    /// tell.
    pub memory_bytes: Option<u64>,
    /// The same before the database was made, which is what the program itself takes and what the allocator kept
    /// of cells before.
    pub memory_bytes_before: Option<u64>,
    /// Records whose last value was compared with the model's.
    pub checked_records: u64,
    /// What opening after a kill took; only in the experiment `recovery`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// Values of all repetitions; absent with one repetition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<Repeats>,
}

/// Opening what a killed process would have left.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    /// Seconds until the database was open.
    pub open_s: f64,
    /// Bytes of its files before.
    pub storage_bytes: u64,
}

impl Repeatable for Cell {
    fn seed(&self) -> u64 {
        self.seed
    }

    fn digest(&self) -> Option<&str> {
        None
    }

    fn set_repeats(&mut self, repeats: Repeats) {
        self.repeats = Some(repeats);
    }
}

impl Cell {
    /// Entries that scans saw in a second of scanning; nothing without scans.
    #[must_use]
    pub fn scanned_per_s(&self) -> Option<f64> {
        let seconds = self.scan_latency_us.mean * float(self.scans) / 1e6;
        (seconds > 0.0).then(|| float(self.scanned_entries) / seconds)
    }

    /// What tells its engine, mode and base from others.
    #[must_use]
    pub fn name(&self) -> String {
        let base =
            if self.base == Base::Tree { String::new() } else { format!(" · {}", self.base) };
        let engine =
            if self.engine == "lsmx" { String::new() } else { format!("{} · ", self.engine) };
        format!("{engine}{}{base}", self.mode)
    }
}
