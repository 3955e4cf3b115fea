//! R4: updates.

use lsmx_bench::experiment::explore::result::Cell;

use crate::figures::{
    Figures, Measure, along, growth, job_max_ms, job_mean_ms, less, moved, numbers, one, quotients,
    spread, write_amplification,
};
use crate::results::Results;
use crate::strategy::{FULL, LO1, LO2, RR, Strategy, TIER};
use crate::table::{Measurements, Table};

/// Updates per insert.
const RATIOS: [&str; 4] = ["0", "1", "4", "8"];
/// Bytes that compaction wrote ÷ unique data.
const WRITE_AMPLIFICATION: [(Strategy, [f64; 4]); 4] = [
    (FULL, [35.0, 28.0, 58.0, 91.0]),
    (LO1, [18.0, 28.0, 58.0, 91.0]),
    (LO2, [16.0, 19.0, 38.0, 60.0]),
    (TIER, [6.4, 6.5, 8.2, 7.7]),
];

pub(super) fn measure(results: &Results) -> Measurements {
    let mut header = vec![String::new()];
    header.extend(RATIOS.map(|ratio| format!("{ratio} (study)")));
    let mut table =
        Table::new("Bytes that compaction wrote ÷ unique data, by updates per insert.", header);
    let published = |strategy| WRITE_AMPLIFICATION.iter().find(|(at, _)| *at == strategy);
    for strategy in [FULL, LO1, LO2, RR, TIER] {
        let ours = numbers(figures(results, strategy, write_amplification));
        let row = (0..RATIOS.len()).map(|at| {
            let ours = super::ours(ours.as_ref().and_then(|ours| ours.get(at).copied()));
            let published = published(strategy).map(|(_, figures)| &figures[at]);
            format!("{ours} ({})", super::published(published))
        });
        table.row(strategy.name, row);
    }
    Measurements { tables: vec![table], figures: claimed(results) }
}

fn figures(results: &Results, strategy: Strategy, measure: Measure) -> Figures {
    along(results, "r4", strategy, "updates", measure)
}

fn by_clock(results: &Results, strategy: Strategy, measure: fn(&Cell) -> Option<f64>) -> Figures {
    along(results, "t4", strategy, "updates", measure)
}

fn claimed(results: &Results) -> Vec<Figures> {
    let amplification = |strategy| figures(results, strategy, write_amplification);
    let moved = |strategy| figures(results, strategy, moved);
    vec![
        amplification(LO1),
        one("LO+1", growth(amplification(LO1))),
        one("Full", growth(amplification(FULL))),
        tail(quotients(amplification(FULL), amplification(LO1))),
        one("", spread(amplification(TIER))),
        less(quotients(moved(LO2), moved(LO1))),
        less(quotients(moved(LO2), moved(RR))),
        by_clock(results, TIER, job_mean_ms),
        one("", spread(by_clock(results, LO1, job_mean_ms))),
        one(
            "",
            first(quotients(
                by_clock(results, TIER, job_max_ms),
                by_clock(results, FULL, job_max_ms),
            )),
        ),
        one(
            "",
            last(quotients(
                by_clock(results, TIER, job_max_ms),
                by_clock(results, FULL, job_max_ms),
            )),
        ),
        less(quotients(moved(LO1), moved(FULL))),
    ]
}

/// Without the first.
fn tail(figures: Figures) -> Figures {
    Some(figures?.into_iter().skip(1).collect())
}

fn first(figures: Figures) -> Option<f64> {
    numbers(figures)?.first().copied()
}

fn last(figures: Figures) -> Option<f64> {
    numbers(figures)?.last().copied()
}
