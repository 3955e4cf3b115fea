//! Experiment R1 of Sarkar et al.: a load of unique inserts.

use lsmx_bench::numbers::to_f64;
use lsmx_bench::report::html::figure::FigureBar;

use super::times::stall_times;
use super::{Measurements, format_figure, format_share, format_time, format_with_published};
use crate::figures::*;
use crate::published_full::simulate_load;
use crate::results::Results;
use crate::strategy::*;
use crate::table::MarkdownTable;

/// Gigabytes that compactions read in the study, for 1.28 GB of ingested data. The strategies are in the order of
/// [`EIGHT`].
const READ_GB: [f64; 8] = [43.7, 22.2, 20.1, 25.3, 24.6, 29.4, 7.7, 22.2];
const WRITTEN_GB: [f64; 8] = [43.1, 21.8, 19.8, 24.9, 24.3, 29.0, 7.6, 22.2];
const INGESTED_GB: f64 = 1.28;
const WRITE_AMPLIFICATION: [f64; 8] = [36.1, 18.3, 16.6, 20.9, 20.4, 24.3, 6.4, 18.3];
const JOBS: [f64; 8] = [108.0, 354.0, 384.0, 371.0, 412.0, 375.0, 155.0, 354.0];
/// Mean duration of a compaction in the study, in seconds.
const MERGE_MEAN_S: [f64; 8] = [0.86, 0.55, 0.45, 0.58, 0.51, 0.67, 0.43, 0.50];
/// Longest duration of a compaction in the study, in seconds.
const MERGE_MAX_S: [f64; 8] = [1.80, 1.31, 1.60, 1.33, 1.40, 1.73, 7.05, 0.89];
/// Longest latency of a write in the study, in milliseconds.
const WRITE_MAX_MS: [f64; 8] = [9.8, 1.62, 4.77, 1.78, 1.28, 4.17, 23.8, 9.4];

/// Returns two bars per strategy: the ratio of bytes written by compactions to ingested bytes, in the study and in
/// lsmx.
pub(crate) fn written_bars(results: &Results) -> Vec<FigureBar> {
    let r1 = results.find_part("r1");
    let bars = EIGHT.iter().zip(WRITTEN_GB).flat_map(|(strategy, gb)| {
        let bar = |place: &str, series, value: Option<f64>| {
            Some(FigureBar { name: format!("{}, {place}", strategy.name), series, value: value? })
        };
        let ours = r1.strategy_figure(*strategy, written_ratio);
        [bar("study", 5, Some(gb / INGESTED_GB)), bar("lsmx", 0, ours)]
    });
    bars.flatten().collect()
}

/// Claims of this project about write stalls.
pub(super) fn measure_stalls(results: &Results) -> Measurements {
    // The result file `ours` contains all presets of lsmx, measured with the default write control.
    let presets = results.find_part("ours").cells;
    let each_preset = |measure: Measure| {
        (!presets.is_empty()).then_some(())?;
        labeled_figures(
            presets.iter().map(|cell| (cell.text("policy").unwrap_or_default(), measure(cell))),
        )
    };
    let (t1, tight) = (results.find_part("t1"), results.find_part("t1-stop"));
    let tight_tier = tight.strategy_figure(TIGHT_TIER, put_max_ms);
    let by_each =
        LEVELED_ONES.map(|at| (at.name, divide(tight_tier, t1.strategy_figure(at, put_max_ms))));
    let figures = vec![
        each_preset(put_max_ms),
        each_preset(|cell| cell.number("stalls.max_us").map(|us| us / 1e3)),
        labeled_figures(by_each),
    ];
    (stall_times(results), figures)
}

pub(super) fn measure(results: &Results) -> Measurements {
    let r1 = results.find_part("r1");
    let header = [
        "",
        "read × (study)",
        "written × (study)",
        "compaction WA (study)",
        "merges (study)",
        "moves",
        "runs",
        "peak space",
    ];
    let mut table = MarkdownTable::new(
        "Bytes are multiples of the ingested bytes. Merges do not include trivial moves.",
        header,
    );
    let others = [TIERING, LEVELED, FULL_LARGE_L1, PREEMPTIVE, LO1_SMALL_L1];
    for (at, strategy) in EIGHT.iter().chain(&others).enumerate() {
        let of = |measure: Measure| r1.strategy_figure(*strategy, measure);
        let ingested = |gb: [f64; 8]| gb.get(at).map(|gb| gb / INGESTED_GB);
        let row = [
            format_with_published(of(read_ratio), ingested(READ_GB)),
            format_with_published(of(written_ratio), ingested(WRITTEN_GB)),
            format_with_published(of(write_amplification), WRITE_AMPLIFICATION.get(at).copied()),
            format_with_published(of(jobs), JOBS.get(at).copied()),
            format_figure(of(|cell| cell.number("compaction.trivial_moves"))),
            format_figure(of(runs)),
            format_figure(of(|cell| cell.number("space_amplification_peak"))),
        ];
        table.add_row(strategy.name, row);
    }
    if let Some(report) = r1.find_cell(FULL).and_then(|_| simulate_load()) {
        let ratio = |bytes| divide(Some(to_f64(bytes)), Some(to_f64(report.ingested_bytes)));
        let compaction = &report.compaction;
        let row = [
            ratio(compaction.read_bytes),
            ratio(compaction.written_bytes),
            Some(report.compaction_write_amplification),
            Some(to_f64(compaction.jobs)),
            Some(to_f64(compaction.trivial_moves)),
            Some(to_f64(report.runs())),
            None,
        ];
        table.add_row("Full, published code (simulated)", row.map(format_figure));
    }
    let written = |strategy| r1.figures_by_strategy(&[strategy], written_ratio);
    let figures = vec![
        single_figure("", r1.strategy_figure(LO1, flushes)),
        written(LO1),
        written(LO2),
        written(RR),
        written(COLD),
        written(OLD),
        written(TIER),
        written(ONE),
        written(FULL),
        written(FULL_LARGE_L1),
        r1.figures_by_strategy(&EIGHT, |cell| divide(read_ratio(cell), written_ratio(cell))),
        reductions(r1.ratios_to_base(&PARTIAL, FULL, data_moved_ratio)),
        reductions(r1.ratios_of_base(LO1, &[RR, COLD, OLD], data_moved_ratio)),
        reductions(r1.ratios_of_base(LO2, &[RR, COLD, OLD], data_moved_ratio)),
        r1.ratios_to_base(&[LO2], LO1, data_moved_ratio),
        r1.figures_by_strategy(&[LO2, LO1, COLD, RR, OLD, FULL], data_moved_ratio),
        r1.ratios_to_base(&[ONE], LO1, data_moved_ratio),
        r1.ratios_to_base(&PARTIAL, FULL, jobs),
        r1.ratios_to_base(&[ONE], FULL, jobs),
        r1.ratios_of_base(FULL, &PARTIAL, bytes_per_job),
        r1.ratios_to_base(&[TIER], LO1, data_moved_ratio),
        r1.ratios_to_base(&[TIER], LO1, jobs),
        r1.ratios_to_base(&[TIER], FULL, jobs),
        r1.ratios_to_base(&[TSD], LO1, data_moved_ratio),
    ];
    (vec![table], figures)
}

/// Compares the durations of compactions and the longest write latencies with the figures of the study.
pub(super) fn measure_times(results: &Results) -> Measurements {
    let t1 = results.find_part("t1");
    let header = [
        "",
        "mean merge, ms",
        "÷ LO+1 (study)",
        "longest merge, ms",
        "÷ LO+1 (study)",
        "longest write, ms",
        "study",
        "mean write, µs",
        "writes stopped, s",
    ];
    let caption = "Times: the median of the repetitions, with the lowest and the highest value in parentheses. Writes \
                   stop at the hard limit. One thread compacts.";
    let mut table = MarkdownTable::new(caption, header);
    let header = ["", "processor", "reads", "writes", "syncs", "rest: locks and scheduling"];
    let caption = "Shares of the time of compactions, medians.";
    let mut shares = MarkdownTable::new(caption, header);
    for (at, strategy) in EIGHT.iter().enumerate() {
        let cell = t1.find_cell(*strategy);
        let by_lo1 = |measure: Measure, published: [f64; 8]| {
            let ours = divide(cell.and_then(measure), t1.strategy_figure(LO1, measure));
            format_with_published(ours, Some(published[at] / published[1]))
        };
        let row = [
            format_time(cell, "compaction.latency_us.mean", 1e3),
            by_lo1(job_mean_ms, MERGE_MEAN_S),
            format_time(cell, "compaction.latency_us.max", 1e3),
            by_lo1(job_max_ms, MERGE_MAX_S),
            format_time(cell, "put_latency_us.max", 1e3),
            format_figure(Some(WRITE_MAX_MS[at])),
            format_time(cell, "put_latency_us.mean", 1.0),
            format_time(cell, "stalls.total_us", 1e6),
        ];
        table.add_row(strategy.name, row);
        let parts = ["cpu", "read_wait", "write_wait", "sync_wait"].map(|part| {
            cell.filter(|cell| cpu_share(cell).is_some())
                .and_then(|cell| cell.number(&format!("compaction.{part}_fraction")))
        });
        let rest = parts.iter().try_fold(1.0, |rest, part| Some(rest - (*part)?));
        shares.add_row(strategy.name, parts.into_iter().chain([rest]).map(format_share));
    }
    let figures = vec![
        t1.ratios_of_base(FULL, &PARTIAL, job_mean_ms),
        t1.ratios_of_base(FULL, &[TIER], job_mean_ms),
        t1.ratios_of_base(TIER, &LEVELED_ONES, job_max_ms),
        t1.ratios_to_base(&[ONE], LO1, job_max_ms),
        t1.figures_by_strategy(&EIGHT, cpu_share),
        t1.ratios_to_base(&[TIER], FULL, put_max_ms),
        t1.ratios_of_base(TIER, &PARTIAL, put_max_ms),
        t1.ratios_of_base(FULL, &PARTIAL, put_max_ms),
        t1.ratios_to_base(&[COLD, OLD], LO1, put_max_ms),
        single_figure("", relative_spread(t1.figures_by_strategy(&EIGHT, put_mean_us))),
    ];
    (vec![table, shares], figures)
}
