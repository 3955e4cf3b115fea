//! R8: sizes of the memtable.

use crate::figures::{
    Figures, Measure, divide, job_max_ms, job_mean_ms, many, of, one, write_amplification,
};
use crate::results::Results;
use crate::strategy::{LO1, OLD, Strategy, TIER};
use crate::table::{Measurements, Table};

const SIZES: [&str; 4] = ["1", "2", "4", "8"];
const LO1_PUBLISHED: [f64; 4] = [18.3, 15.7, 13.0, 10.0];
const TIER_PUBLISHED: [f64; 4] = [6.4, 4.3, 3.1, 1.8];

pub(super) fn measure(results: &Results) -> Measurements {
    let mut header = vec![String::new()];
    header.extend(SIZES.map(|times| format!("× {times} (study)")));
    let mut table = Table::new("Bytes that compaction wrote ÷ unique data.", header);
    let rows = [(LO1, Some(LO1_PUBLISHED)), (OLD, None), (TIER, Some(TIER_PUBLISHED))];
    for (strategy, published) in rows {
        let row = SIZES.iter().enumerate().map(|(at, times)| {
            let ours = super::ours(of(results, &part("r", times), strategy, write_amplification));
            format!("{ours} ({})", super::published(published.as_ref().map(|all| &all[at])))
        });
        table.row(strategy.name, row);
    }
    Measurements { tables: vec![table], figures: claimed(results) }
}

/// The part that was run with so many times the memtable: counted or timed; once is that of R1.
fn part(kind: &str, times: &str) -> String {
    if times == "1" { format!("{kind}1") } else { format!("{kind}8-{times}") }
}

fn by_size(results: &Results, kind: &str, strategy: Strategy, measure: Measure) -> Figures {
    many(
        SIZES.map(|times| {
            (format!("× {times}"), of(results, &part(kind, times), strategy, measure))
        }),
    )
}

fn claimed(results: &Results) -> Vec<Figures> {
    let amplification = |strategy| by_size(results, "r", strategy, write_amplification);
    let mean = |strategy| by_size(results, "t", strategy, job_mean_ms);
    let old_by = |other| {
        many(SIZES.map(|times| {
            let part = part("r", times);
            let of = |strategy| of(results, &part, strategy, write_amplification);
            (format!("× {times}"), divide(of(OLD), of(other)))
        }))
    };
    let longest = |strategy| of(results, "t8-8", strategy, job_max_ms);
    vec![
        amplification(LO1),
        amplification(TIER),
        one("", crate::figures::growth(amplification(LO1))),
        one("", crate::figures::growth(amplification(TIER))),
        old_by(LO1),
        mean(LO1),
        mean(TIER),
        one("", divide(longest(TIER), longest(LO1))),
    ]
}
