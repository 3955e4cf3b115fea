//! R6: data sizes.

use lsmx_bench::experiment::explore::result::Cell;

use crate::figures::{
    Figures, along, float, growth, job_max_ms, numbers, one, quotients, write_amplification,
};
use crate::results::Results;
use crate::strategy::{FULL, LO1, LO2, ONE, RR, Strategy, TIER};
use crate::table::{Measurements, Table};

/// 2^27, 2^29, 2^31, 2^33, 2^35 bytes: 16 to 4096 flushes.
const SIZES: usize = 5;
const WRITE_AMPLIFICATION: [(Strategy, [f64; SIZES]); 5] = [
    (TIER, [1.9, 4.1, 8.7, 23.8, 63.6]),
    (LO1, [9.3, 15.0, 19.7, 24.7, 28.8]),
    (RR, [9.4, 15.7, 23.5, 30.3, 37.0]),
    (LO2, [6.1, 11.1, 18.1, 23.6, 29.5]),
    (FULL, [9.3, 15.1, 38.6, 29.3, 45.2]),
];

pub(super) fn measure(results: &Results) -> Measurements {
    Measurements { tables: vec![table(results)], figures: claimed(results) }
}

fn table(results: &Results) -> Table {
    let cells = results.swept("r6", LO1);
    let mut header = vec![String::new()];
    header.extend((0..SIZES).map(|at| {
        let flushes = cells.get(at).map(|cell| crate::claim::digits(float(cell.flushes)));
        format!("{} flushes (study)", flushes.unwrap_or_else(super::dash))
    }));
    let mut table = Table::new(
        "Bytes that compaction wrote ÷ unique data. The study has 16, 64, 256, \
                 1024, 4096 flushes of 8 MiB; ours are of 64 KiB.",
        header,
    );
    for (strategy, published) in WRITE_AMPLIFICATION {
        let ours = numbers(amplification(results, strategy));
        let row = published.iter().enumerate().map(|(at, published)| {
            let ours = super::ours(ours.as_ref().and_then(|ours| ours.get(at).copied()));
            format!("{ours} ({})", super::published(Some(published)))
        });
        table.row(strategy.name, row);
    }
    let one = numbers(amplification(results, ONE));
    table.row(
        ONE.name,
        (0..SIZES).map(|at| super::ours(one.as_ref().and_then(|ours| ours.get(at).copied()))),
    );
    table
}

fn amplification(results: &Results, strategy: Strategy) -> Figures {
    along(results, "r6", strategy, "entries", write_amplification)
}

fn claimed(results: &Results) -> Vec<Figures> {
    let by_lo1 =
        |strategy| quotients(amplification(results, strategy), amplification(results, LO1));
    let tier = by_lo1(TIER);
    let upto = |count: usize| tier.clone().map(|all| all.into_iter().take(count).collect());
    let longest = |strategy| along(results, "t6", strategy, "entries", job_max_ms);
    vec![
        amplification(results, TIER),
        amplification(results, LO1),
        amplification(results, RR),
        amplification(results, FULL),
        upto(4),
        tier.clone(),
        one("", tier.clone().and_then(|all| all.get(4).map(|at| at.1))),
        by_lo1(LO2),
        by_lo1(RR),
        by_lo1(RR),
        step(longest(TIER)),
        one("", growth(longest(ONE))),
        longest(TIER),
        along(results, "r6", LO1, "entries", flushes),
    ]
}

fn flushes(cell: &Cell) -> Option<f64> {
    Some(float(cell.flushes))
}

/// Each ÷ the one before.
fn step(figures: Figures) -> Figures {
    let figures = figures?;
    let steps = figures.windows(2).map(|pair| (pair[1].0.clone(), pair[1].1 / pair[0].1));
    Some(steps.collect())
}
