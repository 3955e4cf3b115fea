//! R9: distributions, size ratio, cache.

use lsmx_bench::experiment::explore::result::Cell;
use lsmx_bench::experiment::sweep::SweepValue;

use crate::figures::{Figures, divide, each, less, many, moved, quotients};
use crate::results::{Results, ios, lookups};
use crate::strategy::{FULL, LO1, ONE, Strategy, TIER};
use crate::table::Measurements;

pub(super) fn measure(results: &Results) -> Measurements {
    Measurements { tables: vec![], figures: claimed(results) }
}

/// A measure under a distribution ÷ the same under the uniform one.
fn by_uniform(results: &Results, distribution: &str, measure: fn(&Cell) -> Option<f64>) -> Figures {
    let at = |strategy, name: &str| {
        let name = SweepValue::Text(name.to_owned());
        results.at("r9-data", strategy, "distribution", &name).and_then(measure)
    };
    many([LO1, TIER].map(|strategy| {
        (strategy.name, divide(at(strategy, distribution), at(strategy, "uniform")))
    }))
}

fn read_amplification(cell: &Cell) -> Option<f64> {
    lookups(cell, 0.8).and_then(|lookups| lookups.read_amplification)
}

/// As `each`, of size ratio 4; specs name it there.
fn of_ratio_four(results: &Results, strategies: &[Strategy]) -> Figures {
    let cells = results.part("r9-ratio");
    many(strategies.iter().map(|strategy| {
        let cell = cells.iter().find(|cell| cell.policy == strategy.policy);
        (strategy.name, cell.and_then(moved))
    }))
}

fn claimed(results: &Results) -> Vec<Figures> {
    let order = [TIER, ONE, LO1, FULL];
    let with_cache = |part| each(results, part, &[FULL, LO1, TIER], |cell| ios(cell, 0.8));
    vec![
        by_uniform(results, "prefix-zipf", moved),
        by_uniform(results, "normal", moved),
        less(by_uniform(results, "prefix-zipf", read_amplification)),
        of_ratio_four(results, &order),
        each(results, "r1", &order, moved),
        quotients(with_cache("r9-cache"), with_cache("r1")),
        with_cache("r1"),
        with_cache("r9-cache"),
    ]
}
