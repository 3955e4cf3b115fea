//! R2: lookups and ranges on the loaded tree.

use lsmx_bench::experiment::explore::result::Cell;

use crate::figures::{Figures, base_by_each, divide, each, less, many, more, of, one, spread};
use crate::results::{Results, ios, lookups};
use crate::strategy::{EIGHT, FULL, LEVELED, LEVELED_ONES, LO1, ONE, PARTIAL, Strategy, TIER};
use crate::table::{Measurements, Table};

/// Pages read ÷ pages that had to be, α 0, 0.4, 0.8.
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
/// Milliseconds, α 0, 0.4, 1.
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
pub(super) fn measure(results: &Results) -> Measurements {
    Measurements {
        tables: vec![blocks(results), times(results), without_filters(results)],
        figures: claimed(results),
    }
}

fn read_amplification(alpha: f64) -> impl Fn(&Cell) -> Option<f64> {
    move |cell| lookups(cell, alpha).and_then(|lookups| lookups.read_amplification)
}

fn blocks(results: &Results) -> Table {
    let header =
        ["", "α = 0 (study)", "0.4 (study)", "0.8 (study)", "I/Os per lookup, α = 1", "runs"];
    let mut table = Table::new(
        "Read amplification: blocks read ÷ lookups that found something. Filters in \
                 all runs, as in the study.",
        header,
    );
    for (at, strategy) in EIGHT.iter().enumerate() {
        let cell = results.cell("r1", *strategy);
        let mut row: Vec<String> = [0.0, 0.4, 0.8]
            .into_iter()
            .zip(READ_AMPLIFICATION[at])
            .map(|(alpha, published)| {
                let ours = super::ours(cell.and_then(read_amplification(alpha)));
                format!("{ours} ({})", super::published(Some(&published)))
            })
            .collect();
        row.push(super::ours(cell.and_then(|cell| ios(cell, 1.0))));
        row.push(super::ours(
            cell.map(|cell| {
                crate::figures::float(cell.levels.iter().map(|level| level.runs).sum())
            }),
        ));
        table.row(strategy.name, row);
    }
    table
}

fn times(results: &Results) -> Table {
    let header =
        ["", "µs, α = 0", "0.4", "1", "÷ LO+1's, α = 0 (study)", "0.4 (study)", "1 (study)"];
    let mut table = Table::new("Mean time of a lookup.", header);
    for (at, strategy) in EIGHT.iter().enumerate() {
        let alphas = [0.0, 0.4, 1.0];
        let time =
            |strategy, alpha| results.cell("t1", strategy).and_then(|cell| mean(cell, alpha));
        let mut row: Vec<String> =
            alphas.iter().map(|alpha| super::ours(time(*strategy, *alpha))).collect();
        for (place, alpha) in alphas.into_iter().enumerate() {
            let ours = divide(time(*strategy, alpha), time(LO1, alpha));
            let published = LATENCY_MS[at][place] / LATENCY_MS[1][place];
            row.push(format!("{} ({})", super::ours(ours), super::published(Some(&published))));
        }
        table.row(strategy.name, row);
    }
    table
}

fn without_filters(results: &Results) -> Table {
    let header = ["", "α = 0", "0.2", "0.4", "0.6", "0.8", "1"];
    let mut table = Table::new(
        "I/Os per lookup as lsmx does it by default, the last run without a filter.",
        header,
    );
    for strategy in [FULL, LO1, TIER, ONE, LEVELED] {
        let cell = results.cell("r2", strategy);
        let alphas = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];
        let row = alphas.map(|alpha| super::ours(cell.and_then(|cell| ios(cell, alpha))));
        table.row(strategy.name, row);
    }
    table
}

fn mean(cell: &Cell, alpha: f64) -> Option<f64> {
    lookups(cell, alpha).map(|lookups| lookups.latency_us.mean).filter(|mean| *mean > 0.0)
}

fn mean_present(cell: &Cell) -> Option<f64> {
    mean(cell, 0.0)
}

fn mean_mixed(cell: &Cell) -> Option<f64> {
    mean(cell, 0.4)
}

fn mean_absent(cell: &Cell) -> Option<f64> {
    mean(cell, 1.0)
}

fn ios_present(cell: &Cell) -> Option<f64> {
    ios(cell, 0.0)
}

fn ios_absent(cell: &Cell) -> Option<f64> {
    ios(cell, 1.0)
}

/// Mean time of ranges of this selectivity.
fn range_mean(cell: &Cell, selectivity: f64) -> Option<f64> {
    let of_it = cell
        .range_lookups
        .by_selectivity
        .iter()
        .find(|ranges| (ranges.selectivity - selectivity).abs() < 1e-12);
    of_it.map(|ranges| ranges.latency_us.mean).filter(|mean| *mean > 0.0)
}

/// Tier's read amplification ÷ that of a strategy, by α.
fn tier_by(results: &Results, strategy: Strategy) -> Figures {
    let at = |strategy, alpha| results.cell("r1", strategy).and_then(read_amplification(alpha));
    many(
        [0.0, 0.4, 0.8]
            .map(|alpha| (format!("α {alpha}"), divide(at(TIER, alpha), at(strategy, alpha)))),
    )
}

fn growth_with_alpha(results: &Results) -> Figures {
    many(EIGHT.map(|strategy| {
        let at = |alpha| results.cell("r1", strategy).and_then(read_amplification(alpha));
        (strategy.name, divide(at(0.8), at(0.0)))
    }))
}

fn claimed(results: &Results) -> Vec<Figures> {
    vec![
        one("", spread(each(results, "r1", &PARTIAL, ios_present))),
        one("", spread(each(results, "r1", &PARTIAL, ios_absent))),
        less(each_inverse(results, ios_present)),
        less(base_by_each(results, "t1", FULL, &PARTIAL, mean_present)),
        tier_by(results, LO1),
        tier_by(results, FULL),
        growth_with_alpha(results),
        base_by_each(results, "t1", TIER, &LEVELED_ONES, mean_present),
        base_by_each(results, "t1", TIER, &LEVELED_ONES, mean_absent),
        each_ratio(results, mean_mixed, mean_present),
        each_ratio(results, mean_absent, mean_present),
        ranges(results),
        many([FULL, LO1, TIER, ONE].map(|at| (at.name, difference(results, at)))),
    ]
}

/// Full's blocks ÷ those of each partial one.
fn each_inverse(results: &Results, measure: fn(&Cell) -> Option<f64>) -> Figures {
    base_by_each(results, "r1", FULL, &PARTIAL, measure)
}

/// One measure ÷ another of the same cell, by the clock.
fn each_ratio(
    results: &Results,
    above: fn(&Cell) -> Option<f64>,
    below: fn(&Cell) -> Option<f64>,
) -> Figures {
    many(
        EIGHT.map(|at| {
            (at.name, divide(of(results, "t1", at, above), of(results, "t1", at, below)))
        }),
    )
}

/// By how much Tier's ranges are slower than LO+1's.
fn ranges(results: &Results) -> Figures {
    let mean = |strategy, selectivity| {
        results.cell("t1", strategy).and_then(|cell| range_mean(cell, selectivity))
    };
    more(many(
        [1e-5, 1e-4, 1e-3].map(|s| (format!("s {s:e}"), divide(mean(TIER, s), mean(LO1, s)))),
    ))
}

fn difference(results: &Results, strategy: Strategy) -> Option<f64> {
    Some(of(results, "r2", strategy, ios_absent)? - of(results, "r1", strategy, ios_absent)?)
}
