//! Experiment R9: key distributions, size ratio and cache. This module also checks where the text and the figures of
//! Sarkar et al. contradict each other.

use lsmx_bench::experiment::sweep::SweepValue;

use super::Measurements;
use crate::figures::*;
use crate::results::Results;
use crate::strategy::*;

pub(super) fn measure(results: &Results) -> Measurements {
    let (r1, data) = (results.find_part("r1"), results.find_part("r9-data"));
    let by_uniform = |distribution: &str, measure: Measure| {
        let at = |strategy, name: &str| {
            data.find_swept_cell(strategy, "distribution", &SweepValue::Text(name.to_owned()))
                .and_then(measure)
        };
        let by = |strategy| divide(at(strategy, distribution), at(strategy, "uniform"));
        labeled_figures([LO1, TIER].map(|strategy| (strategy.name, by(strategy))))
    };
    let order = [TIER, ONE, LO1, FULL];
    // The size ratio changes the policy spec, so the policy name identifies the strategy.
    let ratio_four = results.find_part("r9-ratio").0;
    let at_ratio_four = order.map(|strategy| {
        let cell = ratio_four.iter().find(|cell| cell.policy == strategy.policy);
        (strategy.name, cell.and_then(data_moved_ratio))
    });
    let with_cache = |part| {
        results.find_part(part).figures_by_strategy(&[FULL, LO1, TIER], |cell| ios(cell, 0.8))
    };
    let figures = vec![
        by_uniform("prefix-zipf", data_moved_ratio),
        by_uniform("normal", data_moved_ratio),
        reductions(by_uniform("prefix-zipf", |cell| read_amplification(cell, 0.8))),
        labeled_figures(at_ratio_four),
        r1.figures_by_strategy(&order, data_moved_ratio),
        divide_figures(with_cache("r9-cache"), with_cache("r1")),
        with_cache("r1"),
        with_cache("r9-cache"),
    ];
    (vec![], figures)
}

pub(super) fn measure_discrepancies(results: &Results) -> Measurements {
    let r1 = results.find_part("r1");
    let lookups = |alpha| {
        let of = |strategy| r1.strategy_figure(strategy, |cell| ios(cell, alpha));
        (format!("α {alpha}"), divide(of(ONE), of(LO2)))
    };
    let figures = vec![
        r1.figures_by_strategy(&[TIER], data_moved_ratio),
        results.find_part("t1").figures_by_strategy(&EIGHT, put_max_ms),
        labeled_figures([0.0, 0.4, 1.0].map(lookups)),
        r1.figures_by_strategy(&[FULL], write_amplification),
        single_figure("", r1.strategy_figure(TEXTBOOK_FULL, write_amplification)),
        single_figure("", r1.strategy_figure(PREEMPTIVE, write_amplification)),
    ];
    (vec![], figures)
}
