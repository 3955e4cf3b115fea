//! Metrics, text tables and CSV rows of `lsmx bench --experiment`.

use serde_json::Value;

use super::page;
use super::result::{PutSlice, TuningCell, TuningResult};
use crate::error::Result;
use crate::experiment::throughput::columns::{COMMON, summarize_settings};
use crate::metric::{Metric, MetricRegistry, ResultRow, Unit, latency, metric};
use crate::numbers::to_f64;
use crate::report::Report;
use crate::report::provenance::Provenance;

/// Maximum number of time slices per engine in a table.
const SLICE_LINES_MAX: usize = 20;

#[rustfmt::skip]
const EXPERIMENT: &[Metric] =
    &[
    metric("experiment", "experiment", Unit::Text, "name of the experiment").csv("experiment"),
];
#[rustfmt::skip]
const SETTING: &[Metric] =
    &[
    metric("setting", "setting", Unit::Text, "the setting that the experiment varies").csv("setting"),
];
const LATENCY: &[Metric] = &latency!("latency_us", "op", "time of an operation", "");

#[rustfmt::skip]
const DATA: &[Metric] = &[
    metric("data.entries", "records", Unit::Count, "records in the database; the value of record i has i bytes").csv("entries"),
    metric("data.bytes", "data", Unit::Bytes, "key and value bytes of the records").csv("data_bytes"),
];

#[rustfmt::skip]
const READ: &[Metric] = &[
    metric("reads.cache_bytes", "cache", Unit::Bytes, "size of the block cache").csv("cache_bytes"),
    metric("reads.cache_fraction", "cache share", Unit::SmallShare, "block cache ÷ bytes of tables").csv("cache_fraction"),
    metric("reads.index_cached", "index cached", Unit::Text, "whether all index blocks fit into the cache").csv("index_cached"),
    metric("reads.filters_cached", "filters cached", Unit::Text, "whether the filters that lookups use fit into the cache").csv("filters_cached"),
    metric("reads.filter_last_run", "last filter", Unit::Text, "whether lookups use the filter of the last sorted run").csv("filter_last_run"),
    metric("reads.filter_bits", "filter bits", Unit::Text, "bits per key of the filters").csv("filter_bits"),
    metric("reads.filter_bytes", "filters", Unit::Bytes, "bytes of all filters").csv("filter_bytes"),
    metric("reads.table_bytes", "tables", Unit::Bytes, "bytes of the tables").cost().csv("table_bytes"),
    metric("reads.ios_per_get", "I/Os", Unit::Blocks, "blocks per lookup that the block cache did not have").cost().csv("ios_per_get"),
    metric("reads.physical_reads_per_get", "reads", Unit::Mean, "read calls to the file system per lookup").csv("physical_reads_per_get"),
    metric("reads.filter_false_positive_rate", "false positives", Unit::SmallShare, "share of the filter checks for absent keys that passed").cost().ungated().csv("filter_false_positive_rate"),
    metric("reads.filter_answers", "filter checks", Unit::Count, "filter checks for keys that the table does not have").csv("filter_answers"),
];

#[rustfmt::skip]
const SLICE: &[Metric] = &[
    metric("slice.end_s", "until", Unit::Seconds, "end of the slice of time, from the first put").csv("slice_end_s"),
    metric("slice.ops_per_s", "rate in slice", Unit::Rate, "puts per second in the slice").csv("slice_ops_per_s"),
    metric("slice.slowest", "slowest", Unit::Rate, "puts per second in the slowest part of the slice"),
    metric("slice.mean_us", "put mean", Unit::Micros, "mean time of a put in the slice"),
    metric("slice.max_us", "put max", Unit::Micros, "longest put in the slice").csv("slice_max_us"),
    metric("slice.compaction_bytes", "compacted", Unit::Bytes, "bytes that compaction wrote in the slice").csv("slice_compaction_bytes"),
];

/// Metrics of the experiments that measure lookups.
pub const READS: MetricRegistry = MetricRegistry {
    command: "bench --experiment (reads)",
    metrics: &[EXPERIMENT, SETTING, COMMON, LATENCY, READ, SLICE],
    identity: &["setting", "workload"],
    shown: &[
        "reads.cache_bytes",
        "reads.cache_fraction",
        "reads.filter_bytes",
        "ops_per_s",
        "latency_us.mean",
        "latency_us.p99",
        "reads.ios_per_get",
        "reads.physical_reads_per_get",
        "reads.filter_false_positive_rate",
    ],
};

/// Metrics of the experiment `put-over-time`.
pub const SLICES: MetricRegistry = MetricRegistry {
    command: "bench --experiment put-over-time",
    identity: &["engine", "workload"],
    shown: &[
        "slice.end_s",
        "slice.ops_per_s",
        "slice.slowest",
        "slice.mean_us",
        "slice.max_us",
        "slice.compaction_bytes",
    ],
    ..READS
};

/// Metrics of the experiment `data-size`.
pub const SIZES: MetricRegistry = MetricRegistry {
    command: "bench --experiment data-size",
    metrics: &[EXPERIMENT, COMMON, DATA, LATENCY],
    identity: &["workload", "data.entries"],
    shown: &["data.bytes", "ops_per_s", "latency_us.mean", "latency_us.p50", "latency_us.p99"],
};

impl TuningResult {
    /// Describes the records and the settings of the engine.
    pub(super) fn summarize(&self) -> String {
        let settings = summarize_settings(&self.settings);
        if self.has_data_sizes() {
            return format!("up to {settings}; the value of record i has i B");
        }
        settings
    }

    /// Returns whether the results contain one measurement per number of records.
    pub(super) fn has_data_sizes(&self) -> bool {
        self.cells.iter().any(|cell| cell.data.is_some())
    }

    /// Returns whether the results have time slices.
    pub(super) fn has_slices(&self) -> bool {
        self.cells.iter().any(|cell| !cell.slices.is_empty())
    }
}

impl Report for TuningResult {
    fn registry(&self) -> &'static MetricRegistry {
        if self.has_slices() {
            &SLICES
        } else if self.has_data_sizes() {
            &SIZES
        } else {
            &READS
        }
    }

    fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    fn head(&self) -> String {
        format!("{}: {}, seed {}", self.experiment, self.summarize(), self.provenance.seed)
    }

    fn rows(&self) -> Result<Vec<ResultRow>> {
        if self.has_slices() {
            let rows: Result<Vec<_>> = self.cells.iter().map(join_slices).collect();
            return Ok(rows?.concat());
        }
        self.cells.iter().map(|cell| build_row(self.experiment, cell)).collect()
    }

    /// Returns one row per time slice, or one row per measurement if there are no time slices.
    fn csv(&self) -> Result<(Vec<String>, Vec<Vec<String>>)> {
        let mut rows = Vec::new();
        for cell in &self.cells {
            let row = build_row(self.experiment, cell)?;
            let of_slice = |slice: &PutSlice| {
                row.clone()
                    .with_value("slice.end_s", slice.end_s)
                    .with_value("slice.ops_per_s", slice.ops_per_s)
                    .with_value("slice.max_us", slice.max_us)
                    .with_value("slice.compaction_bytes", slice.compaction_bytes)
            };
            rows.extend(cell.slices.iter().map(of_slice));
            if cell.slices.is_empty() {
                rows.push(row);
            }
        }
        Ok(self.registry().csv(&rows))
    }

    fn html(&self) -> Result<String> {
        page::tuning_page(self)
    }
}

/// Returns the table rows of a measurement. Adjacent time slices are combined so that there are at most
/// [`SLICE_LINES_MAX`] rows.
fn join_slices(cell: &TuningCell) -> Result<Vec<ResultRow>> {
    let row = ResultRow::new(cell)?;
    let mut start_s = 0.0;
    let chunk = cell.slices.len().div_ceil(SLICE_LINES_MAX).max(1);
    let join = |slices: &[PutSlice]| {
        let end_s = slices.last().map_or(start_s, |slice| slice.end_s);
        let ops = to_f64(slices.iter().map(|slice| slice.ops).sum());
        let total_us: f64 = slices.iter().map(|slice| slice.mean_us * to_f64(slice.ops)).sum();
        let slowest = slices.iter().map(|slice| slice.ops_per_s).fold(f64::INFINITY, f64::min);
        let longest = slices.iter().map(|slice| slice.max_us).fold(0.0, f64::max);
        let compacted: Option<u64> = slices.iter().map(|slice| slice.compaction_bytes).sum();
        let per = |x: f64, n: f64| if n > 0.0 { x / n } else { 0.0 };
        let row = row
            .clone()
            .with_value("slice.end_s", end_s)
            .with_value("slice.ops_per_s", per(ops, end_s - start_s))
            .with_value("slice.slowest", slowest)
            .with_value("slice.mean_us", per(total_us, ops))
            .with_value("slice.max_us", longest)
            .with_value("slice.compaction_bytes", compacted);
        start_s = end_s;
        row
    };
    Ok(cell.slices.chunks(chunk).map(join).collect())
}

pub(super) fn build_row(experiment: &str, cell: &TuningCell) -> Result<ResultRow> {
    Ok(ResultRow::new(cell)?.with_value("experiment", Value::from(experiment)))
}
