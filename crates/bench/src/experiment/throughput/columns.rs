//! Metrics, text table and CSV rows of `lsmx bench`.

use super::memory_limit::DIRECT_IO;
use super::page;
use super::result::{ThroughputCell, ThroughputResult, ThroughputSettings};
use crate::error::Result;
use crate::experiment::distinct_items;
use crate::experiment::explore::columns::SPACE_AMPLIFICATION;
use crate::metric::{Metric, MetricRegistry, ResultRow, Unit, latency, metric};
use crate::peers::EngineKind;
use crate::report::Report;
use crate::report::provenance::Provenance;
use crate::report::text::format_bytes;

/// Metrics that all workloads and experiments of `lsmx bench` report.
#[rustfmt::skip]
pub(crate) const COMMON: &[Metric] = &[
    metric("workload", "workload", Unit::Text, "fills load records; overwrite puts them again; readrandom gets present keys, readmissing absent ones; seekrandom seeks and reads the next entries; scan reads all entries; readwhilewriting gets while one more thread puts; put, get and delete use each record once in key order").csv("workload"),
    metric("engine", "engine", Unit::Text, "storage engine").csv("engine"),
    metric("threads", "threads", Unit::Count, "threads that run the operations, without the concurrent writer of readwhilewriting").csv("threads"),
    metric("ops", "ops", Unit::Count, "operations of these threads, without the puts of a concurrent writer; a scan counts entries").csv("ops"),
    metric("ops_per_s", "rate", Unit::Rate, "operations per second; for fills, overwrite, deleterandom, put and delete until compaction is idle, except in put-over-time").rate().csv("ops_per_s"),
];

#[rustfmt::skip]
const CELL: &[Metric] = &[
    metric("ops_per_s_unsettled", "unsettled", Unit::Rate, "operations per second until the last operation ended").rate().csv("ops_per_s_unsettled"),
    metric("ops_per_s_min", "slowest", Unit::Rate, "rate of the slowest repetition").csv("ops_per_s_min"),
    metric("ops_per_s_max", "fastest", Unit::Rate, "rate of the fastest repetition").csv("ops_per_s_max"),
    metric("ratio", "lsmx ÷", Unit::Times, "rate of lsmx ÷ rate of this engine; on lines of lsmx ÷ rate of the fastest other engine"),
    metric("best_peer_ratio.median", "÷ best", Unit::Times, "rate of lsmx ÷ rate of the fastest other engine in the same repetition: median of the repetitions"),
    metric("best_peer_ratio.min", "÷ best min", Unit::Times, "the lowest of these ratios"),
    metric("best_peer_ratio.max", "÷ best max", Unit::Times, "the highest of these ratios"),
    metric("elapsed_s", "took", Unit::Seconds, "time until the last operation ended").cost().csv("elapsed_s"),
    metric("settle_s", "settle", Unit::Seconds, "time from then until compaction was idle").cost().csv("settle_s"),
    metric("cpu_s", "CPU", Unit::Seconds, "processor time of the process, until compaction was idle; in steps of 10 ms").cost().csv("cpu_s"),
];

const LATENCY: &[Metric] = &latency!(
    "latency_us",
    "op",
    "time of an operation of these threads; for scans of a step to the next entry; with --rate since the scheduled start",
    ""
);

#[rustfmt::skip]
const SIZES: &[Metric] = &[
    metric("entries_read", "entries read", Unit::Count, "entries that seeks and scans read").csv("entries_read"),
    metric("absent", "absent", Unit::Count, "lookups that found nothing").csv("absent"),
    metric("device_read_bytes_per_op", "device read", Unit::MeanBytes, "bytes that the process read from the device per operation, until the last operation ended").cost().ungated().csv("device_read_bytes_per_op"),
    metric("device_reads_per_op", "device reads", Unit::Mean, "reads of the block device per operation, by all processes, until the last operation ended").cost().ungated().csv("device_reads_per_op"),
    metric("put_bytes", "put", Unit::Bytes, "key and value bytes of the puts").csv("put_bytes"),
    metric("device_write_amplification", "device amp", Unit::Times, "bytes that log, flushes and compaction wrote ÷ key and value bytes of the puts").cost().csv("device_write_amplification"),
    metric("space_amplification", "space amp", Unit::Times, SPACE_AMPLIFICATION).cost().csv("space_amplification"),
    metric("table_bytes", "tables", Unit::Bytes, "bytes of live tables").cost().csv("table_bytes"),
    metric("disk_bytes", "disk", Unit::Bytes, "bytes of all files of the database, with the log").cost().csv("disk_bytes"),
    metric("logical_bytes", "records", Unit::Bytes, "key and value bytes of the records").csv("logical_bytes"),
    metric("written.*", "written {}", Unit::Bytes, "bytes that the engine wrote, by purpose").cost(),
    metric("process_written_bytes", "process wrote", Unit::Bytes, "bytes that the process passed to the system to write").cost(),
    metric("loaded_first", "loaded", Unit::Text, "whether the records were put first, because the database was empty"),
    metric("repetition", "repetition", Unit::Count, "the repetition with the median rate, whose numbers these are"),
    metric("writer.ops", "writer ops", Unit::Count, "puts of the concurrent writer"),
    metric("writer.ops_per_s", "writer rate", Unit::Rate, "puts per second of the concurrent writer").rate(),
    metric("writer.latency_us.*", "writer {}", Unit::Micros, "time of a put of the concurrent writer").cost(),
];

/// Metrics of `lsmx bench`.
pub const REGISTRY: MetricRegistry = MetricRegistry {
    command: "bench",
    metrics: &[COMMON, CELL, LATENCY, SIZES],
    identity: &["workload", "engine", "threads"],
    shown: &[
        "ops",
        "ops_per_s",
        "ratio",
        "best_peer_ratio.median",
        "best_peer_ratio.min",
        "best_peer_ratio.max",
        "latency_us.mean",
        "latency_us.p50",
        "latency_us.p99",
        "latency_us.p999",
        "latency_us.max",
        "device_write_amplification",
        "space_amplification",
        "cpu_s",
    ],
};

/// Metrics of `lsmx bench --memory-limit`.
pub const LIMITED: MetricRegistry = MetricRegistry {
    shown: &[
        "ops",
        "ops_per_s",
        "ratio",
        "best_peer_ratio.median",
        "best_peer_ratio.min",
        "best_peer_ratio.max",
        "latency_us.p50",
        "latency_us.p99",
        "latency_us.p999",
        "latency_us.max",
        "device_read_bytes_per_op",
        "device_reads_per_op",
        "device_write_amplification",
        "space_amplification",
        "writer.ops_per_s",
        "cpu_s",
    ],
    ..REGISTRY
};

/// Returns the table rows. The rows of all engines for the same workload are adjacent.
///
/// # Errors
/// A result cannot be serialized to JSON.
pub fn build_rows(cells: &[ThroughputCell]) -> Result<Vec<ResultRow>> {
    let of_lsmx: Vec<&ThroughputCell> =
        cells.iter().filter(|cell| cell.engine == EngineKind::Lsmx.name()).collect();
    let mut rows = Vec::new();
    for (place, ours) in of_lsmx.iter().enumerate() {
        let same = cells_of_step(cells, place);
        let others = same.iter().filter(|cell| cell.engine != ours.engine);
        let best = others.map(|cell| cell.ops_per_s).max_by(f64::total_cmp);
        for cell in &same {
            let other = if cell.engine == ours.engine { best } else { Some(cell.ops_per_s) };
            let ratio = other.filter(|&rate| rate > 0.0).map(|rate| ours.ops_per_s / rate);
            rows.push(build_row(cell)?.with_value("ratio", ratio));
        }
    }
    Ok(rows)
}

/// Returns the results of all engines for the workload with index `place`. The backward part of `scan` counts as a
/// separate workload.
pub(super) fn cells_of_step(cells: &[ThroughputCell], place: usize) -> Vec<&ThroughputCell> {
    // Each engine runs the same workloads in the same order.
    let engines = distinct_items(cells.iter().map(|cell| cell.engine.as_str()));
    let of_engine = |engine: &&str| cells.iter().filter(|cell| cell.engine == *engine).nth(place);
    engines.iter().filter_map(of_engine).collect()
}

fn build_row(cell: &ThroughputCell) -> Result<ResultRow> {
    let [min, max] = cell.ops_per_s_interval;
    Ok(ResultRow::new(cell)?.with_value("ops_per_s_min", min).with_value("ops_per_s_max", max))
}

impl Report for ThroughputResult {
    fn registry(&self) -> &'static MetricRegistry {
        self.settings.memory_limit_bytes.map_or(&REGISTRY, |_| &LIMITED)
    }

    fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    fn head(&self) -> String {
        let settings = &self.settings;
        let mut head = format!(
            "{}, block cache {}, seed {}; measuring adds {:.0} ns to an operation, which the latencies include\n",
            summarize_settings(settings),
            format_bytes(settings.block_cache_bytes),
            self.provenance.seed,
            settings.clock_ns,
        );
        head.push_str(&describe_memory_limit(settings));
        if self.cells.iter().any(|cell| cell.loaded_first) {
            head.push_str(&format!(
                "the database was empty: {} records were put in random order first\n",
                settings.entries
            ));
        }
        head
    }

    fn rows(&self) -> Result<Vec<ResultRow>> {
        let mut rows = build_rows(&self.cells)?;
        for cell in &self.device {
            rows.push(build_row(cell)?);
        }
        Ok(rows)
    }

    fn notes(&self) -> Vec<&'static str> {
        match self.device.is_empty() {
            true => Vec::new(),
            false => vec![
                "page reads: the device reads random pages of 4 KiB of the tables of lsmx without the page cache, \
                 for two seconds before and after the workloads; threads is the number of reads at the same time",
            ],
        }
    }

    fn html(&self) -> Result<String> {
        page::throughput_page(self)
    }
}

/// Describes the settings that are the same for all engines and workloads.
pub(crate) fn summarize_settings(settings: &ThroughputSettings) -> String {
    format!(
        "{} records of {} + {} B (key + value), memtable {}, {} compaction threads",
        settings.entries,
        settings.key_len,
        settings.value_len,
        format_bytes(settings.memtable_bytes),
        settings.workers,
    )
}

/// Returns a line that describes the memory limit, or an empty text if there is no limit.
pub(crate) fn describe_memory_limit(settings: &ThroughputSettings) -> String {
    let (Some(bytes), Some(method)) = (settings.memory_limit_bytes, &settings.memory_limit_method)
    else {
        return String::new();
    };
    let bytes = format_bytes(bytes);
    match method.as_str() {
        DIRECT_IO => {
            format!(
                "no memory control group for the limit of {bytes}: reads bypass the page cache\n"
            )
        }
        _ => {
            format!("memory of each engine, with its page cache, limited to {bytes} by {method}\n")
        }
    }
}
