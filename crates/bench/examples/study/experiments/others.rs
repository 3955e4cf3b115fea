//! Experiment R9: key distributions, size ratio and cache. This module also checks where the text and the figures of
//! Sarkar et al. contradict each other.

use lsmx_bench::experiment::sweep::SweepValue;

use super::Measurements;
use crate::figures::*;
use crate::results::Results;
use crate::strategy::*;

pub(super) fn measure(results: &Results) -> Measurements {
    let (r1, data) = (results.part("r1"), results.part("r9-data"));
    let by_uniform = |distribution: &str, measure: Measure| {
        let at = |strategy, name: &str| {
            data.at(strategy, "distribution", &SweepValue::Text(name.to_owned())).and_then(measure)
        };
        let by = |strategy| divide(at(strategy, distribution), at(strategy, "uniform"));
        many([LO1, TIER].map(|strategy| (strategy.name, by(strategy))))
    };
    let order = [TIER, ONE, LO1, FULL];
    // The size ratio changes the policy spec, so the policy name identifies the strategy.
    let ratio_four = results.part("r9-ratio").0;
    let at_ratio_four = order.map(|strategy| {
        let cell = ratio_four.iter().find(|cell| cell.policy == strategy.policy);
        (strategy.name, cell.and_then(moved))
    });
    let with_cache = |part| results.part(part).each(&[FULL, LO1, TIER], |cell| ios(cell, 0.8));
    let figures = vec![
        by_uniform("prefix-zipf", moved),
        by_uniform("normal", moved),
        less(by_uniform("prefix-zipf", |cell| read_amplification(cell, 0.8))),
        many(at_ratio_four),
        r1.each(&order, moved),
        quotients(with_cache("r9-cache"), with_cache("r1")),
        with_cache("r1"),
        with_cache("r9-cache"),
    ];
    (vec![], figures)
}

pub(super) fn measure_discrepancies(results: &Results) -> Measurements {
    let r1 = results.part("r1");
    let lookups = |alpha| {
        let of = |strategy| r1.of(strategy, |cell| ios(cell, alpha));
        (format!("α {alpha}"), divide(of(ONE), of(LO2)))
    };
    let figures = vec![
        r1.each(&[TIER], moved),
        results.part("t1").each(&EIGHT, put_max_ms),
        many([0.0, 0.4, 1.0].map(lookups)),
        r1.each(&[FULL], write_amplification),
        one("", r1.of(TEXTBOOK_FULL, write_amplification)),
        one("", r1.of(PREEMPTIVE, write_amplification)),
    ];
    (vec![], figures)
}
