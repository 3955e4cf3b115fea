//! R1: a load of unique inserts, what is counted.

use crate::figures::{
    Figures, Measure, bytes_per_job, divide, each, each_by, float, jobs, less, many, moved, of,
    one, write_amplification,
};
use crate::results::Results;
use crate::strategy::{
    COLD, EIGHT, FULL, LEVELED, LO1, LO2, OLD, ONE, PARTIAL, PREEMPTIVE, RR, TEXTBOOK_FULL, TIER,
    TIERING, TSD,
};
use crate::table::{Measurements, Table};

/// Read and written by merges, GB of 1.28 GB ingested.
const READ_GB: [f64; 8] = [43.7, 22.2, 20.1, 25.3, 24.6, 29.4, 7.7, 22.2];
const WRITTEN_GB: [f64; 8] = [43.1, 21.8, 19.8, 24.9, 24.3, 29.0, 7.6, 22.2];
const WRITE_AMPLIFICATION: [f64; 8] = [36.1, 18.3, 16.6, 20.9, 20.4, 24.3, 6.4, 18.3];
const JOBS: [f64; 8] = [108.0, 354.0, 384.0, 371.0, 412.0, 375.0, 155.0, 354.0];
const INGESTED_GB: f64 = 1.28;

pub(super) fn measure(results: &Results) -> Measurements {
    Measurements { tables: vec![table(results)], figures: claimed(results) }
}

fn table(results: &Results) -> Table {
    let header = [
        "",
        "read × (study)",
        "written × (study)",
        "compaction WA (study)",
        "merges (study)",
        "moves",
        "runs",
        "peak space",
    ];
    let mut table =
        Table::new("Bytes as multiples of those ingested; merges leave out trivial moves.", header);
    let strategies = [TIERING, LEVELED, TEXTBOOK_FULL, PREEMPTIVE];
    for (at, strategy) in EIGHT.iter().chain(&strategies).enumerate() {
        let measured = |measure| super::ours(of(results, "r1", *strategy, measure));
        let of_ingested = |gb: &[f64; 8]| gb.get(at).map(|gb| gb / INGESTED_GB);
        let pair = |measure: Measure, published: Option<f64>| {
            format!("{} ({})", measured(measure), super::published(published.as_ref()))
        };
        table.row(
            strategy.name,
            [
                pair(
                    |cell| ratio(cell.compaction.read_bytes, cell.ingested_bytes),
                    of_ingested(&READ_GB),
                ),
                pair(
                    |cell| ratio(cell.compaction.written_bytes, cell.ingested_bytes),
                    of_ingested(&WRITTEN_GB),
                ),
                pair(write_amplification, WRITE_AMPLIFICATION.get(at).copied()),
                pair(jobs, JOBS.get(at).copied()),
                measured(|cell| Some(float(cell.compaction.trivial_moves))),
                measured(|cell| Some(float(cell.levels.iter().map(|level| level.runs).sum()))),
                measured(|cell| Some(cell.space_amplification_peak)),
            ],
        );
    }
    table
}

fn ratio(above: u64, below: u64) -> Option<f64> {
    divide(Some(float(above)), Some(float(below)))
}

fn claimed(results: &Results) -> Vec<Figures> {
    let by = |base, strategies: &[_], measure| each_by(results, "r1", strategies, base, measure);
    vec![
        one("", of(results, "r1", FULL, |cell| Some(float(cell.flushes)))),
        each(results, "r1", &[FULL], moved),
        many(EIGHT.map(|at| {
            (
                at.name,
                of(results, "r1", at, |cell| {
                    ratio(cell.compaction.read_bytes, cell.compaction.written_bytes)
                }),
            )
        })),
        less(by(FULL, &PARTIAL, moved)),
        less(many([RR, COLD, OLD].map(|at| {
            (at.name, divide(of(results, "r1", LO1, moved), of(results, "r1", at, moved)))
        }))),
        less(many([RR, COLD, OLD].map(|at| {
            (at.name, divide(of(results, "r1", LO2, moved), of(results, "r1", at, moved)))
        }))),
        by(LO1, &[LO2], moved),
        each(results, "r1", &[LO2, LO1, COLD, RR, OLD, FULL], moved),
        by(LO1, &[ONE], moved),
        by(FULL, &PARTIAL, jobs),
        by(FULL, &[ONE], jobs),
        many(PARTIAL.map(|at| {
            (
                at.name,
                divide(
                    of(results, "r1", FULL, bytes_per_job),
                    of(results, "r1", at, bytes_per_job),
                ),
            )
        })),
        by(LO1, &[TIER], moved),
        by(LO1, &[TIER], jobs),
        by(FULL, &[TIER], jobs),
        by(LO1, &[TSD], moved),
    ]
}
