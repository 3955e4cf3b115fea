//! Experiment R4: updates. Experiment R5: deletes.

use super::times::update_times;
use super::{Measurements, compared_table, format_figure, format_with_published};
use crate::figures::*;
use crate::results::{ResultCell, ResultPart, Results};
use crate::strategy::*;
use crate::table::MarkdownTable;

/// Numbers of updates per insert in the study.
const RATIOS: [&str; 4] = ["0", "1", "4", "8"];
/// Bytes written by compactions ÷ bytes of unique data in the study, for each of [`RATIOS`].
pub(super) const UPDATE_AMPLIFICATION: [(Strategy, Option<[f64; 4]>); 8] = [
    (FULL, Some([35.0, 28.0, 58.0, 91.0])),
    (LO1, Some([18.0, 28.0, 58.0, 91.0])),
    (LO2, Some([16.0, 19.0, 38.0, 60.0])),
    (RR, None),
    (COLD, None),
    (OLD, None),
    (TIER, Some([6.4, 6.5, 8.2, 7.7])),
    (ONE, None),
];

/// Shares of deletes among the operations of the workloads in the study.
const SHARES: [f64; 5] = [0.02, 0.04, 0.06, 0.08, 0.1];
/// Number of operations in the study, in thousands.
const OPERATIONS: f64 = 10_000.0;
const LO1_MOVED_GB: f64 = 44.0;

/// Figures of the study for a strategy. `None` stands for figures that the study does not state.
struct PublishedDeletes {
    strategy: Strategy,
    /// Thousands of remaining tombstones for each of [`SHARES`].
    tombstones: Option<[f64; SHARES.len()]>,
    /// Bytes of invalid entries ÷ bytes of live entries, for the last of [`SHARES`].
    invalid: Option<f64>,
    /// Gigabytes that compactions read and wrote, for the last of [`SHARES`].
    moved_gb: Option<f64>,
}

const fn published(
    strategy: Strategy,
    tombstones: [f64; SHARES.len()],
    invalid: f64,
    moved_gb: f64,
) -> PublishedDeletes {
    let (tombstones, invalid, moved_gb) = (Some(tombstones), Some(invalid), Some(moved_gb));
    PublishedDeletes { strategy, tombstones, invalid, moved_gb }
}

const fn unpublished(strategy: Strategy, moved_gb: Option<f64>) -> PublishedDeletes {
    PublishedDeletes { strategy, tombstones: None, invalid: None, moved_gb }
}

const DELETES: [PublishedDeletes; 6] = [
    published(TIER, [43.0, 89.0, 141.0, 187.0, 240.0], 0.25, 15.5),
    published(LO1, [33.0, 60.0, 82.0, 103.0, 128.0], 0.18, LO1_MOVED_GB),
    published(FULL, [25.0, 49.0, 73.0, 84.0, 97.0], 0.14, 80.0),
    published(TSD, [20.0, 39.0, 50.0, 84.0, 94.0], 0.13, 52.0),
    published(TSA50, [22.0, 27.0, 41.0, 56.0, 86.0], 0.10, 53.3),
    published(TSA33, [15.0, 19.0, 24.0, 41.0, 66.0], 0.08, 60.8),
];
/// Strategies in the result file `r5-others`.
const OTHER_DELETES: [PublishedDeletes; 5] = [
    unpublished(LO2, None),
    unpublished(RR, None),
    unpublished(COLD, None),
    unpublished(OLD, None),
    unpublished(ONE, Some(44.0)),
];

pub(super) fn measure_updates(results: &Results) -> Measurements {
    let (r4, t4) = (results.find_part("r4"), results.find_part("t4"));
    let amplification = |strategy| r4.figures_along_sweep(strategy, "updates", write_amplification);
    let moved = |strategy| r4.figures_along_sweep(strategy, "updates", data_moved_ratio);
    let timed = |strategy, measure: Measure| t4.figures_along_sweep(strategy, "updates", measure);
    let table = compared_table(
        "Bytes that compaction wrote ÷ unique data, by updates per insert, simulated.",
        RATIOS,
        &UPDATE_AMPLIFICATION,
        |strategy| {
            let figures = amplification(strategy);
            std::array::from_fn(|at| nth_figure(&figures, at))
        },
    );
    let longest = divide_figures(timed(TIER, job_max_ms), timed(FULL, job_max_ms));
    let full_by_lo1 = divide_figures(amplification(FULL), amplification(LO1));
    let figures = vec![
        amplification(LO1),
        single_figure("LO+1", relative_growth(amplification(LO1))),
        single_figure("Full", relative_growth(amplification(FULL))),
        full_by_lo1.map(|all| all.into_iter().skip(1).collect()),
        single_figure("", relative_spread(amplification(TIER))),
        reductions(divide_figures(moved(LO2), moved(LO1))),
        reductions(divide_figures(moved(LO2), moved(RR))),
        timed(TIER, job_mean_ms),
        single_figure("", relative_spread(timed(LO1, job_mean_ms))),
        single_figure("", nth_figure(&longest, 0)),
        single_figure("", longest.and_then(|all| all.last().map(|(_, value)| *value))),
        reductions(divide_figures(moved(LO1), moved(FULL))),
    ];
    (std::iter::once(table).chain(update_times(results)).collect(), figures)
}

pub(super) fn measure_deletes(results: &Results) -> Measurements {
    let (r5, others_part) = (results.find_part("r5"), results.find_part("r5-others"));
    let all = |strategy, measure: Measure| r5.figures_along_sweep(strategy, "deletes", measure);
    let at_tenth = |strategy, measure: Measure| {
        r5.find_swept_cell(strategy, "deletes", "0.1").and_then(measure)
    };
    let order = |measure: Measure| {
        let figure = |it: &PublishedDeletes| (it.strategy.name, at_tenth(it.strategy, measure));
        labeled_figures(DELETES.iter().map(figure))
    };
    let more_moved = |strategy| {
        increases(divide_figures(all(strategy, data_moved_ratio), all(LO1, data_moved_ratio)))
    };
    let fewer = |strategy, than| {
        reductions(divide_figures(all(strategy, tombstones), all(than, tombstones)))
    };
    let figures = vec![
        all(TIER, tombstones),
        all(LO1, tombstones),
        all(TSD, tombstones),
        all(TSA33, tombstones),
        order(tombstones),
        fewer(TSD, LO1),
        fewer(TSA50, LO1),
        fewer(TSA33, LO1),
        fewer(TSA33, TSA50),
        fewer(TSA50, TSD),
        order(invalid_share),
        order(invalid_share),
        more_moved(TSD),
        more_moved(TSA50),
        more_moved(TSA33),
        divide_figures(all(TIER, data_moved_ratio), all(LO1, data_moved_ratio)),
        single_figure("", oldest_tombstone(r5, TSA50)),
        single_figure("", oldest_tombstone(r5, TSA33)),
    ];
    let tombstones_left =
        SHARES.map(|share| format!("tombstones left, {:.0} % (study)", share * 100.0));
    let others = [
        "invalid ÷ live bytes, 10 % (study)",
        "moved ÷ LO+1's, 10 % (study)",
        "oldest tombstone ÷ run, 10 %",
    ];
    let header = std::iter::once(String::new()).chain(tombstones_left);
    let mut table = MarkdownTable::new(
        "Tombstones as a share of the deletes.",
        header.chain(others.map(str::to_owned)),
    );
    let rows = DELETES.iter().map(|row| (r5, row));
    let other_rows = OTHER_DELETES.iter().map(|row| (others_part, row));
    let lo1_moved = at_tenth(LO1, data_moved_ratio);
    for (part, PublishedDeletes { strategy, tombstones, invalid, moved_gb }) in
        rows.chain(other_rows.filter(|(part, row)| part.find_cell(row.strategy).is_some()))
    {
        let left = part.figures_along_sweep(*strategy, "deletes", |cell| {
            let deletes = cell.number("delete_persistence.deletes");
            divide(cell.number("delete_persistence.live_tombstones"), deletes)
        });
        let left = SHARES.iter().enumerate().map(|(at, share)| {
            let published = tombstones.map(|all| all[at] / (OPERATIONS * share));
            format_with_published(nth_figure(&left, at), published)
        });
        let tenth = part.find_swept_cell(*strategy, "deletes", "0.1");
        let moved_by_lo1 = divide(tenth.and_then(data_moved_ratio), lo1_moved);
        let others = [
            format_with_published(tenth.and_then(invalid_share), *invalid),
            format_with_published(moved_by_lo1, moved_gb.map(|gb| gb / LO1_MOVED_GB)),
            format_figure(tenth.and_then(oldest_tombstone_share)),
        ];
        table.add_row(strategy.name, left.chain(others));
    }
    (vec![table, thresholds_table(results.find_part("r5-tsd"))], figures)
}

/// Returns a table with the costs of TSD by its threshold, for the last of [`SHARES`].
fn thresholds_table(thresholds: ResultPart<'_>) -> MarkdownTable {
    let header = ["tombstones ÷ entries", "moved ×", "tombstones left", "jobs"];
    let caption = "TSD by its threshold: the share of tombstones that makes a file due. The study does not state its \
                   threshold. Ten per cent of the operations are deletes.";
    let mut table = MarkdownTable::new(caption, header);
    // All rows are measurements of TSD. The rows are not selected by spec, because the spec with the default threshold
    // does not contain the threshold.
    for cell in thresholds.cells {
        let figures = [data_moved_ratio(cell), tombstones(cell), jobs(cell)];
        table.add_row(cell.text("policy.F").unwrap_or_default(), figures.map(format_figure));
    }
    table
}

/// Returns the age of the oldest tombstone ÷ the duration of the run, or 0 if no tombstone is left.
fn oldest_tombstone_share(cell: &ResultCell) -> Option<f64> {
    let age = cell.number("delete_persistence.oldest_age_us").unwrap_or(0.0);
    divide(Some(age), cell.number("delete_persistence.run_us"))
}

/// Returns the maximum of [`oldest_tombstone_share`] over all results of a strategy.
fn oldest_tombstone(r5: ResultPart<'_>, strategy: Strategy) -> Option<f64> {
    r5.cells(strategy).into_iter().filter_map(oldest_tombstone_share).reduce(f64::max)
}
