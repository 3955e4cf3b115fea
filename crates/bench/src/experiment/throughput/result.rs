//! What `lsmx bench` measures, with the field names of its JSON.

use serde::Serialize;

use crate::latency::LatencyUs;
use crate::peers::Written;
use crate::report::provenance::Provenance;

/// Everything that a benchmark found out.
#[derive(Clone, Debug, Serialize)]
pub struct Throughput {
    /// Where the figures come from.
    pub provenance: Provenance,
    /// What all cells have in common.
    pub settings: Settings,
    /// A cell per workload, engine and number of threads.
    pub cells: Vec<Cell>,
}

/// What all cells have in common.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Records of a fill.
    pub entries: u64,
    /// Bytes of a key.
    pub key_len: u64,
    /// Bytes of a value.
    pub value_len: u64,
    /// Bytes of a memtable.
    pub memtable_bytes: u64,
    /// Bytes of the block cache.
    pub block_cache_bytes: u64,
    /// Threads for compaction; one more is for flushes.
    pub workers: u64,
    /// Options of lsmx, as typed.
    pub options: Vec<String>,
    /// Operations per second that were asked for; null where each waits only for the one before.
    pub rate: Option<f64>,
    /// Entries that `seekrandom` reads.
    pub seek_entries: u64,
    /// Nanoseconds that measuring one operation adds to it.
    pub clock_ns: f64,
}

/// One workload on one engine.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The workload; the backward half of `scan` is `scan-backward`.
    pub workload: String,
    /// The engine.
    pub engine: String,
    /// Threads that worked, the writer of `readwhilewriting` not counted.
    pub threads: u64,
    /// Operations of all threads; a scan counts entries.
    pub ops: u64,
    /// Operations per second; of a load, until the tree had settled.
    pub ops_per_s: f64,
    /// Operations per second until the last of them was done.
    pub ops_per_s_unsettled: f64,
    /// Seconds until the last operation was done.
    pub elapsed_s: f64,
    /// Seconds of settling after that; 0 for what does not write.
    pub settle_s: f64,
    /// Seconds of processor time that the whole process took, settling included; null where the
    /// system does not tell.
    pub cpu_s: Option<f64>,
    /// How long operations took. Under a rate from the moment when each was due. Of a scan, the step
    /// to the next entry, every 64th of them measured.
    pub latency_us: LatencyUs,
    /// Entries that seeks and scans read.
    pub entries_read: u64,
    /// Lookups that found nothing.
    pub absent: u64,
    /// Key and value bytes of the puts.
    pub put_bytes: u64,
    /// Bytes written ÷ put bytes, settling included; null without puts. The bytes are the engine's
    /// own count (log, flushes, compaction) or else those of `process_written_bytes`.
    pub device_write_amplification: Option<f64>,
    /// The engine's own count of bytes written; null where it has none that is free of cost.
    pub written: Option<Written>,
    /// Bytes that this process handed to the system to write, of any file; null where the system
    /// does not tell.
    pub process_written_bytes: Option<u64>,
    /// Table bytes ÷ key and value bytes of the records in the database; null for an empty one.
    pub space_amplification: Option<f64>,
    /// Bytes of the live tables.
    pub table_bytes: u64,
    /// Bytes that all files of the database occupy, logs included.
    pub disk_bytes: u64,
    /// Key and value bytes of the records in the database.
    pub logical_bytes: u64,
    /// The writer of `readwhilewriting`.
    pub writer: Option<Writer>,
    /// Whether the records were put first, because there were none.
    pub loaded_first: bool,
    /// Which repetition these figures are of: the one with the median rate, counted from 1.
    pub repetition: u64,
    /// `ops_per_s` of all repetitions.
    pub ops_per_s_runs: Vec<f64>,
    /// The slowest and the fastest of them.
    pub ops_per_s_interval: [f64; 2],
}

/// A thread that overwrites while others read.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Writer {
    /// Its puts.
    pub ops: u64,
    /// Puts per second.
    pub ops_per_s: f64,
    /// How long they took.
    pub latency_us: LatencyUs,
}
