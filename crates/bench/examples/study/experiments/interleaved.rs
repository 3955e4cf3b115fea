//! R3: lookups mixed into the writes.

use lsmx_bench::experiment::explore::result::Cell;

use crate::figures::{
    Figures, base_by_each, divide, each, job_mean_ms, less, of, one, put_max_ms, quotients,
    write_amplification,
};
use crate::results::{Results, ios, lookups};
use crate::strategy::{COLD_ACCESS, EIGHT, LEVELED_ONES, OLD, Strategy, TIER};
use crate::table::{Measurements, Table};

/// Longest write, milliseconds: alone, then with lookups mixed in.
const WRITE_MAX_MS: [[f64; 2]; 8] = [
    [9.8, 22.6],
    [1.62, 17.3],
    [4.77, 16.5],
    [1.78, 20.6],
    [1.28, 19.3],
    [4.17, 19.9],
    [23.8, 64.4],
    [9.4, 14.3],
];

pub(super) fn measure(results: &Results) -> Measurements {
    Measurements { tables: vec![table(results)], figures: claimed(results) }
}

fn table(results: &Results) -> Table {
    let header = [
        "",
        "compaction WA alone",
        "mixed",
        "longest write ms alone (study)",
        "mixed (study)",
        "I/Os per present lookup alone",
        "mixed",
    ];
    let mut table = Table::new("", header);
    for (at, strategy) in EIGHT.iter().enumerate() {
        let get = |part, measure| super::ours(of(results, part, *strategy, measure));
        let tail = |part, place: usize| {
            format!("{} ({})", get(part, put_max_ms), super::published(WRITE_MAX_MS[at].get(place)))
        };
        table.row(
            strategy.name,
            [
                get("r1", write_amplification),
                get("r3", write_amplification),
                tail("t1", 0),
                tail("t3", 1),
                get("r1", |cell| ios(cell, 0.0)),
                get("r3", |cell| ios(cell, 0.0)),
            ],
        );
    }
    table
}

/// The strategies that were run with lookups mixed in.
fn run(results: &Results, part: &str) -> Vec<Strategy> {
    EIGHT.into_iter().filter(|at| results.cell(part, *at).is_some()).collect()
}

/// A measure with lookups mixed in ÷ the same without.
fn mixed_by_alone(
    results: &Results,
    mixed: &str,
    alone: &str,
    measure: fn(&Cell) -> Option<f64>,
) -> Figures {
    let run = run(results, mixed);
    quotients(each(results, mixed, &run, measure), each(results, alone, &run, measure))
}

fn mean_present(cell: &Cell) -> Option<f64> {
    lookups(cell, 0.0).map(|lookups| lookups.latency_us.mean)
}

fn mean_absent(cell: &Cell) -> Option<f64> {
    lookups(cell, 1.0).map(|lookups| lookups.latency_us.mean)
}

fn claimed(results: &Results) -> Vec<Figures> {
    let by_clock = |measure| mixed_by_alone(results, "t3", "t1", measure);
    vec![
        mixed_by_alone(results, "r3", "r1", write_amplification),
        by_clock(job_mean_ms),
        by_clock(put_max_ms),
        base_by_each(results, "t3", TIER, &LEVELED_ONES, put_max_ms),
        less(by_clock(mean_present)),
        less(by_clock(mean_absent)),
        less(mixed_by_alone(results, "r3", "r1", |cell| ios(cell, 0.0))),
        less(mixed_by_alone(results, "r3", "r1", |cell| ios(cell, 1.0))),
        one(
            "",
            divide(
                of(results, "r3", COLD_ACCESS, write_amplification),
                of(results, "r3", OLD, write_amplification),
            ),
        ),
    ]
}
