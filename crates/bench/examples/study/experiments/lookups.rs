//! Experiment R2: lookups after the load. Experiment R3: lookups interleaved with writes.

use super::times::interleaved_times;
use super::{Measurements, format_figure, format_time, format_with_published};
use crate::figures::*;
use crate::results::{ResultPart, Results};
use crate::strategy::*;
use crate::table::MarkdownTable;

/// Pages read ÷ lookups of present keys in the study, one row per strategy of [`EIGHT`]. The columns are for workloads
/// with 0, 40 and 80 % absent keys.
const READ_AMPLIFICATION: [[f64; 3]; 8] = [
    [3.5, 5.0, 12.0],
    [3.8, 5.5, 13.8],
    [3.5, 5.0, 12.0],
    [3.9, 5.7, 14.4],
    [3.7, 5.4, 13.9],
    [3.6, 5.2, 12.5],
    [4.4, 7.3, 21.3],
    [3.8, 5.5, 13.9],
];
/// Mean latency of a lookup in the study, in milliseconds, for workloads with 0, 40 and 100 % absent keys.
const LATENCY_MS: [[f64; 3]; 8] = [
    [1.15, 1.22, 0.57],
    [1.19, 1.49, 0.66],
    [0.89, 1.44, 0.60],
    [1.41, 1.48, 0.65],
    [1.35, 1.44, 0.66],
    [1.18, 1.41, 0.58],
    [1.59, 1.86, 1.13],
    [0.89, 1.44, 0.60],
];
/// Longest latency of a write in the study with interleaved lookups, in milliseconds.
const WRITE_MAX_MS: [f64; 8] = [22.6, 17.3, 16.5, 20.6, 19.3, 19.9, 64.4, 14.3];

pub(super) fn measure(results: &Results) -> Measurements {
    let (r1, r2, t1) = (results.find_part("r1"), results.find_part("r2"), results.find_part("t1"));
    let tier_by = |strategy| {
        let of = |at, alpha| r1.strategy_figure(at, |cell| read_amplification(cell, alpha));
        let by = |alpha| (format!("α {alpha}"), divide(of(TIER, alpha), of(strategy, alpha)));
        labeled_figures([0.0, 0.4, 0.8].map(by))
    };
    let tier_ranges_by_lo1 = |s: f64| {
        let of = |at| t1.strategy_figure(at, |cell| range_us(cell, s));
        (format!("{} % of the data:", 100.0 * s), divide(of(TIER), of(LO1)))
    };
    let without_filter = |at| {
        let of = |part: ResultPart<'_>| part.strategy_figure(at, |cell| ios(cell, 1.0));
        Some(of(r2)? - of(r1)?)
    };
    let figures = vec![
        single_figure("", relative_spread(r1.figures_by_strategy(&PARTIAL, |cell| ios(cell, 0.0)))),
        single_figure("", relative_spread(r1.figures_by_strategy(&PARTIAL, |cell| ios(cell, 1.0)))),
        reductions(r1.ratios_of_base(FULL, &PARTIAL, |cell| ios(cell, 0.0))),
        reductions(t1.ratios_of_base(FULL, &PARTIAL, |cell| lookup_us(cell, 0.0))),
        tier_by(LO1),
        tier_by(FULL),
        r1.figures_by_strategy(&EIGHT, |cell| {
            divide(read_amplification(cell, 0.8), read_amplification(cell, 0.0))
        }),
        t1.ratios_of_base(TIER, &LEVELED_ONES, |cell| lookup_us(cell, 0.0)),
        t1.ratios_of_base(TIER, &LEVELED_ONES, |cell| lookup_us(cell, 1.0)),
        t1.figures_by_strategy(&EIGHT, |cell| divide(lookup_us(cell, 0.4), lookup_us(cell, 0.0))),
        t1.figures_by_strategy(&EIGHT, |cell| divide(lookup_us(cell, 1.0), lookup_us(cell, 0.0))),
        increases(labeled_figures([1e-5, 1e-4, 1e-3].map(tier_ranges_by_lo1))),
        labeled_figures([FULL, LO1, TIER, ONE].map(|at| (at.name, without_filter(at)))),
    ];
    let tables = vec![
        blocks_table(r1),
        large_blocks_table(r1, results.find_part("r2-blocks")),
        times_table(t1),
        range_times_table(t1),
        no_filter_table(r2),
    ];
    (tables, figures)
}

fn blocks_table(r1: ResultPart<'_>) -> MarkdownTable {
    let header =
        ["", "α = 0 (study)", "0.4 (study)", "0.8 (study)", "I/Os per lookup, α = 1", "runs"];
    let mut table = MarkdownTable::new(
        "Read amplification: blocks read ÷ lookups that found something. Filters in all runs, as in the study.",
        header,
    );
    for (strategy, published) in EIGHT.iter().zip(READ_AMPLIFICATION) {
        let cell = r1.find_cell(*strategy);
        let by_alpha = [0.0, 0.4, 0.8].into_iter().zip(published).map(|(alpha, published)| {
            let ours = cell.and_then(|cell| read_amplification(cell, alpha));
            format_with_published(ours, Some(published))
        });
        let others = [cell.and_then(|cell| ios(cell, 1.0)), cell.and_then(runs)];
        table.add_row(strategy.name, by_alpha.chain(others.map(format_figure)));
    }
    table
}

/// Returns a table with the blocks per lookup for blocks of 4 and of 16 KiB.
fn large_blocks_table(small: ResultPart<'_>, large: ResultPart<'_>) -> MarkdownTable {
    let header = ["", "4 KiB, α = 0", "0.4", "0.8", "16 KiB, α = 0", "0.4", "0.8"];
    let caption =
        "Read amplification by the length of data blocks. The pages of the study have 16 KiB.";
    let mut table = MarkdownTable::new(caption, header);
    for strategy in [FULL, LO1, TIER, ONE] {
        let figures = [small, large].map(|part| {
            [0.0, 0.4, 0.8]
                .map(|alpha| part.strategy_figure(strategy, |cell| read_amplification(cell, alpha)))
        });
        table.add_row(strategy.name, figures.concat().into_iter().map(format_figure));
    }
    table
}

fn times_table(t1: ResultPart<'_>) -> MarkdownTable {
    let header = [
        "",
        "mean µs, α = 0",
        "0.4",
        "1",
        "p90 µs, α = 0",
        "0.4",
        "1",
        "mean ÷ LO+1's, α = 0 (study)",
        "0.4 (study)",
        "1 (study)",
    ];
    let caption = "Time of a lookup: the median of the repetitions, with the lowest and the highest value in parentheses.";
    let mut table = MarkdownTable::new(caption, header);
    let alphas = [0.0, 0.4, 1.0];
    let time = |strategy, alpha| t1.strategy_figure(strategy, |cell| lookup_us(cell, alpha));
    for (strategy, published) in EIGHT.into_iter().zip(LATENCY_MS) {
        let cell = t1.find_cell(strategy);
        let times = ["mean", "p90"].into_iter().flat_map(|name| {
            let column = move |alpha| lookup_column(alpha, &format!("latency_us.{name}"));
            alphas.map(|alpha| format_time(cell, &column(alpha), 1.0))
        });
        let by_lo1 = alphas.into_iter().enumerate().map(|(place, alpha)| {
            let ours = divide(time(strategy, alpha), time(LO1, alpha));
            format_with_published(ours, Some(published[place] / LATENCY_MS[1][place]))
        });
        table.add_row(strategy.name, times.chain(by_lo1));
    }
    table
}

fn range_times_table(ranges: ResultPart<'_>) -> MarkdownTable {
    let selectivities = [1e-5, 1e-4, 1e-3];
    let header = ["", "0.001 % of the data", "0.01 %", "0.1 %"];
    let caption = "Time of a range lookup in µs, by the share of the data that it reads.";
    let mut table = MarkdownTable::new(caption, header);
    for strategy in EIGHT {
        let cell = ranges.find_cell(strategy);
        let times = selectivities.map(|share| format_time(cell, &range_column(share), 1.0));
        table.add_row(strategy.name, times);
    }
    table
}

fn no_filter_table(r2: ResultPart<'_>) -> MarkdownTable {
    let header = ["", "α = 0", "0.2", "0.4", "0.6", "0.8", "1"];
    let caption = "I/Os per lookup as lsmx does it by default, the last run without a filter.";
    let mut table = MarkdownTable::new(caption, header);
    for strategy in [FULL, LO1, TIER, ONE, LEVELED] {
        let alphas = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];
        table.add_row(
            strategy.name,
            alphas
                .map(|alpha| format_figure(r2.strategy_figure(strategy, |cell| ios(cell, alpha)))),
        );
    }
    table
}

pub(super) fn measure_interleaved(results: &Results) -> Measurements {
    let (r1, r3) = (results.find_part("r1"), results.find_part("r3"));
    let (t1, t3) = (results.find_part("t1"), results.find_part("t3"));
    let caption = "Without lookups between the writes, and with them (mixed). Lookups without writes are those of R2.";
    let header = [
        "",
        "compaction WA",
        "mixed",
        "I/Os per lookup of a present key",
        "mixed",
        "of an absent key",
        "mixed",
    ];
    let mut table = MarkdownTable::new(caption, header);
    for strategy in EIGHT {
        let measures: [Measure; 3] =
            [write_amplification, |cell| ios(cell, 0.0), |cell| ios(cell, 1.0)];
        let row =
            measures.map(|measure| [r1, r3].map(|part| part.strategy_figure(strategy, measure)));
        table.add_row(strategy.name, row.concat().into_iter().map(format_figure));
    }
    let timed = |measure| mixed_to_alone_ratios(t3, t1, measure);
    let cold = r3.strategy_figure(COLD_ACCESS, data_moved_ratio);
    let figures = vec![
        mixed_to_alone_ratios(r3, r1, write_amplification),
        timed(job_mean_ms),
        timed(put_max_ms),
        t3.ratios_of_base(TIER, &LEVELED_ONES, put_max_ms),
        reductions(timed(|cell| lookup_us(cell, 0.0))),
        reductions(timed(|cell| lookup_us(cell, 1.0))),
        reductions(mixed_to_alone_ratios(r3, r1, |cell| ios(cell, 0.0))),
        reductions(mixed_to_alone_ratios(r3, r1, |cell| ios(cell, 1.0))),
        single_figure("", divide(cold, r3.strategy_figure(OLD, data_moved_ratio))),
    ];
    let times = interleaved_times(results, WRITE_MAX_MS);
    (std::iter::once(table).chain(times).collect(), figures)
}

/// Returns, for each measured strategy, the value with interleaved lookups ÷ the value without lookups.
fn mixed_to_alone_ratios(
    mixed: ResultPart<'_>,
    alone: ResultPart<'_>,
    measure: Measure,
) -> Figures {
    let strategies: Vec<Strategy> =
        EIGHT.into_iter().filter(|at| mixed.find_cell(*at).is_some()).collect();
    divide_figures(
        mixed.figures_by_strategy(&strategies, measure),
        alone.figures_by_strategy(&strategies, measure),
    )
}
