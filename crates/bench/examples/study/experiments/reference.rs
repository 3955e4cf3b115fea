//! Ratios between strategies, to compare the engine with that of the study.

use lsmx_bench::experiment::explore::result::Cell;

use crate::figures::{
    Figures, base_by_each, divide, each, each_by, jobs, less, many, moved, of, put_max_ms,
};
use crate::results::Results;
use crate::strategy::{
    FULL, FULL_PRESET, LEVELED_ONES, LO1, LO1_PRESET, PREEMPTIVE, PREEMPTIVE_PRESET, TEXTBOOK_FULL,
    TIER, TIGHT_TIER,
};
use crate::table::Measurements;

pub(super) fn measure(results: &Results) -> Measurements {
    let less_than = |base, strategies: &[_]| less(each_by(results, "r1", strategies, base, moved));
    Measurements {
        tables: vec![],
        figures: vec![
            less_than(FULL, &[LO1]),
            less_than(PREEMPTIVE, &[LO1]),
            less_than(TEXTBOOK_FULL, &[LO1]),
            many([
                ("`full`", preset_less(results, FULL_PRESET)),
                ("`full-preemptive`", preset_less(results, PREEMPTIVE_PRESET)),
            ]),
            each_by(results, "r1", &[LO1], FULL, jobs),
            each_by(results, "r1", &[TIER], LO1, moved),
            base_by_each(results, "t1", TIER, &LEVELED_ONES, put_max_ms),
            tight_tail(results),
            longest_writes(results),
            longest_stalls(results),
            each(results, "r1", &[FULL, LO1, TIER], moved),
        ],
    }
}

fn preset_less(results: &Results, preset: crate::strategy::Strategy) -> Option<f64> {
    let preset = of(results, "r1", preset, moved)?;
    Some(1.0 - of(results, "r1", LO1_PRESET, moved)? / preset)
}

fn longest_writes(results: &Results) -> Figures {
    of_all(results, put_max_ms)
}

fn longest_stalls(results: &Results) -> Figures {
    of_all(results, |cell| Some(crate::figures::float(cell.stalls.max_us) / 1e3))
}

fn tight_tail(results: &Results) -> Figures {
    let tight = of(results, "t1-stop", TIGHT_TIER, put_max_ms);
    many(LEVELED_ONES.map(|at| (at.name, divide(tight, of(results, "t1", at, put_max_ms)))))
}

/// Returns a measure of every preset with the write control of lsmx.
fn of_all(results: &Results, measure: fn(&Cell) -> Option<f64>) -> Figures {
    let cells = results.part("ours");
    if cells.is_empty() {
        return None;
    }
    many(cells.iter().map(|cell| (cell.policy.as_str(), measure(cell))))
}
