//! Experiment R9: key distributions, size ratio and cache. This module also checks where the text and the figures of
//! Sarkar et al. contradict each other.

use super::{Measurements, format_figure};
use crate::figures::*;
use crate::results::Results;
use crate::strategy::*;
use crate::table::MarkdownTable;

pub(super) fn measure(results: &Results) -> Measurements {
    let (r1, data) = (results.find_part("r1"), results.find_part("r9-data"));
    let by_uniform = |distribution: &str, measure: Measure| {
        let at = |strategy, name: &str| {
            data.find_swept_cell(strategy, "distribution", name).and_then(measure)
        };
        let by = |strategy| divide(at(strategy, distribution), at(strategy, "uniform"));
        labeled_figures([LO1, TIER].map(|strategy| (strategy.name, by(strategy))))
    };
    // Returns the figures in the result file `name`. The strategies are in ascending order of their figures in R1.
    let ranked = |name: &str, strategies: &[Strategy], measure: Measure| -> Figures {
        let in_r1 = strategies.iter().map(|at| Some((r1.strategy_figure(*at, measure)?, *at)));
        let mut order: Vec<(f64, Strategy)> = in_r1.collect::<Option<_>>()?;
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        let order: Vec<Strategy> = order.into_iter().map(|(_, strategy)| strategy).collect();
        results.find_part(name).figures_by_strategy(&order, measure)
    };
    let by_ratio = |name| ranked(name, &EIGHT, data_moved_ratio);
    let blocks: Measure = |cell| ios(cell, 0.8);
    let reads = [FULL, LO1, TIER];
    let of_lookups =
        |name: &str| results.find_part(name).figures_by_strategy(&EIGHT, |cell| ios(cell, 0.0));
    let with_cache = |name: &str| results.find_part(name).figures_by_strategy(&reads, blocks);
    let normal = results.find_part("r9-normal");
    let figures = vec![
        by_uniform("prefix-zipf", data_moved_ratio),
        by_uniform("normal", data_moved_ratio),
        reductions(by_uniform("prefix-zipf", |cell| read_amplification(cell, 0.8))),
        by_ratio("r9-ratio-4"),
        by_ratio("r9-ratio-6"),
        ranked("r9-cache", &reads, blocks),
        ranked("r9-filters", &reads, blocks),
        single_figure("", relative_spread(of_lookups("r9-zipf"))),
        normal.ratios_of_base(LO1, &[RR, COLD, OLD], |cell| ios(cell, 0.0)),
        normal.ratios_of_base(LO2, &[RR, COLD, OLD], |cell| ios(cell, 0.0)),
        divide_figures(with_cache("r9-cache"), with_cache("r1")),
    ];
    (vec![size_ratio_table(results)], figures)
}

fn size_ratio_table(results: &Results) -> MarkdownTable {
    let header = ["", "T = 4", "T = 6", "T = 10 (R1)"];
    let caption =
        "Bytes that compaction moved ÷ ingested bytes, by the size ratio. 4 and 6 are simulated.";
    let mut table = MarkdownTable::new(caption, header);
    let parts = ["r9-ratio-4", "r9-ratio-6", "r1"].map(|name| results.find_part(name));
    for strategy in EIGHT {
        let figures = parts.map(|part| part.strategy_figure(strategy, data_moved_ratio));
        table.add_row(strategy.name, figures.map(format_figure));
    }
    table
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
        single_figure("", r1.strategy_figure(FULL_LARGE_L1, write_amplification)),
        single_figure("", r1.strategy_figure(PREEMPTIVE, write_amplification)),
    ];
    (vec![], figures)
}
