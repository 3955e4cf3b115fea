//! The experiments of `lsmx bench` as tables for people, and as flat rows.

use crate::experiment::tuning::result::{Cell, Reads, Slice, Tuning};

use super::text::{bytes, grid};

/// What stands where there is nothing to say.
const NOTHING: &str = "–";
/// Slices that a table shows at most.
const SLICES_SHOWN: usize = 20;

/// A line per cell, or of puts over time a line per stretch of slices.
#[must_use]
pub fn table(result: &Tuning) -> String {
    let settings = &result.settings;
    let mut text = format!(
        "{}: {} records of {} + {} B, memtable {}, {} compaction threads, seed {}\n",
        result.experiment,
        settings.entries,
        settings.key_len,
        settings.value_len,
        bytes(settings.memtable_bytes),
        settings.workers,
        result.provenance.seed,
    );
    let over_time = result.cells.iter().any(|cell| !cell.slices.is_empty());
    text.push_str(&if over_time { over_time_of(&result.cells) } else { reads_of(&result.cells) });
    text.push('\n');
    text
}

fn reads_of(cells: &[Cell]) -> String {
    let header = [
        "setting",
        "workload",
        "cache",
        "% of db",
        "filters",
        "ops/s",
        "mean µs",
        "p99",
        "p99.9",
        "I/Os per get",
        "reads",
        "false positives %",
    ];
    let rows = cells.iter().map(|cell| {
        let told =
            |of: fn(&Reads) -> String| cell.reads.as_ref().map_or_else(|| NOTHING.to_owned(), of);
        vec![
            cell.setting.clone(),
            cell.workload.to_owned(),
            told(|it| bytes(it.cache_bytes)),
            told(|it| format!("{:.3}", it.cache_fraction * 100.0)),
            told(|it| bytes(it.filter_bytes)),
            format!("{:.0}", cell.ops_per_s),
            format!("{:.1}", cell.latency_us.mean),
            format!("{:.1}", cell.latency_us.p99),
            format!("{:.1}", cell.latency_us.p999),
            told(|it| format!("{:.4}", it.ios_per_get)),
            told(|it| format!("{:.4}", it.physical_reads_per_get)),
            told(|it| {
                if it.filter_answers == 0 {
                    return NOTHING.to_owned();
                }
                format!("{:.4}", it.filter_false_positive_rate * 100.0)
            }),
        ]
    });
    grid(header.map(str::to_owned).into(), rows.collect::<Vec<_>>())
}

fn over_time_of(cells: &[Cell]) -> String {
    let header = [
        "engine",
        "workload",
        "until s",
        "ops/s",
        "slowest slice",
        "mean µs",
        "max ms",
        "compacted",
    ];
    let rows = cells.iter().flat_map(|cell| {
        let joined = cell.slices.len().div_ceil(SLICES_SHOWN).max(1);
        let mut begin_s = 0.0;
        let mut rows: Vec<Vec<String>> = Vec::new();
        for slices in cell.slices.chunks(joined) {
            rows.push(stretch(cell, slices, begin_s));
            begin_s = slices.last().map_or(begin_s, |slice| slice.end_s);
        }
        rows
    });
    grid(header.map(str::to_owned).into(), rows.collect::<Vec<_>>())
}

/// Several slices as one line.
fn stretch(cell: &Cell, slices: &[Slice], begin_s: f64) -> Vec<String> {
    let float = crate::numbers::float;
    let ops: u64 = slices.iter().map(|slice| slice.ops).sum();
    let end_s = slices.last().map_or(begin_s, |slice| slice.end_s);
    let slowest = slices.iter().map(|slice| slice.ops_per_s).fold(f64::INFINITY, f64::min);
    let total_us: f64 = slices.iter().map(|slice| slice.mean_us * float(slice.ops)).sum();
    let max_us = slices.iter().map(|slice| slice.max_us).fold(0.0, f64::max);
    let compacted: Option<u64> = slices.iter().map(|slice| slice.compaction_bytes).sum();
    let per = |x: f64, n: f64| if n > 0.0 { x / n } else { 0.0 };
    vec![
        cell.engine.clone(),
        cell.workload.to_owned(),
        format!("{end_s:.2}"),
        format!("{:.0}", per(float(ops), end_s - begin_s)),
        format!("{slowest:.0}"),
        format!("{:.2}", per(total_us, float(ops))),
        format!("{:.2}", max_us / 1e3),
        compacted.map_or_else(|| NOTHING.to_owned(), bytes),
    ]
}

/// Header of the flat rows.
pub const COLUMNS: [&str; 28] = [
    "experiment",
    "workload",
    "engine",
    "setting",
    "threads",
    "ops",
    "ops_per_s",
    "mean_us",
    "p50_us",
    "p99_us",
    "p999_us",
    "max_us",
    "cache_bytes",
    "cache_fraction",
    "index_cached",
    "filters_cached",
    "filter_last_run",
    "filter_bits",
    "filter_bytes",
    "table_bytes",
    "ios_per_get",
    "physical_reads_per_get",
    "filter_false_positive_rate",
    "filter_answers",
    "slice_end_s",
    "slice_ops_per_s",
    "slice_max_us",
    "slice_compaction_bytes",
];

/// A flat row per cell, of puts over time a row per slice, in the order of [`COLUMNS`].
pub fn rows(result: &Tuning) -> impl Iterator<Item = Vec<String>> + '_ {
    result.cells.iter().flat_map(|cell| {
        if cell.slices.is_empty() {
            vec![row(result.experiment, cell, None)]
        } else {
            cell.slices.iter().map(|slice| row(result.experiment, cell, Some(slice))).collect()
        }
    })
}

fn row(experiment: &str, cell: &Cell, slice: Option<&Slice>) -> Vec<String> {
    let latency = &cell.latency_us;
    let mut row = vec![
        experiment.to_owned(),
        cell.workload.to_owned(),
        cell.engine.clone(),
        cell.setting.clone(),
        cell.threads.to_string(),
        cell.ops.to_string(),
        cell.ops_per_s.to_string(),
        latency.mean.to_string(),
        latency.p50.to_string(),
        latency.p99.to_string(),
        latency.p999.to_string(),
        latency.max.to_string(),
    ];
    let of_reads: [fn(&Reads) -> String; 12] = [
        |it| it.cache_bytes.to_string(),
        |it| it.cache_fraction.to_string(),
        |it| it.index_cached.to_string(),
        |it| it.filters_cached.to_string(),
        |it| it.filter_last_run.to_string(),
        |it| it.filter_bits.map(|bits| bits.to_string()).unwrap_or_default(),
        |it| it.filter_bytes.to_string(),
        |it| it.table_bytes.to_string(),
        |it| it.ios_per_get.to_string(),
        |it| it.physical_reads_per_get.to_string(),
        |it| it.filter_false_positive_rate.to_string(),
        |it| it.filter_answers.to_string(),
    ];
    row.extend(of_reads.map(|of| cell.reads.as_ref().map(of).unwrap_or_default()));
    let of_slices: [fn(&Slice) -> String; 4] = [
        |it| it.end_s.to_string(),
        |it| it.ops_per_s.to_string(),
        |it| it.max_us.to_string(),
        |it| it.compaction_bytes.map(|bytes| bytes.to_string()).unwrap_or_default(),
    ];
    row.extend(of_slices.map(|of| slice.map(of).unwrap_or_default()));
    row
}
