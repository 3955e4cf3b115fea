//! Where the study's text and its figures disagree: what we see.

use crate::figures::{divide, each, many, moved, of, one, put_max_ms, write_amplification};
use crate::results::{Results, ios};
use crate::strategy::{EIGHT, FULL, LO2, ONE, PREEMPTIVE, TEXTBOOK_FULL, TIER};
use crate::table::Measurements;

pub(super) fn measure(results: &Results) -> Measurements {
    let lookups = |alpha| {
        let at = |strategy| results.cell("r1", strategy).and_then(|cell| ios(cell, alpha));
        divide(at(ONE), at(LO2))
    };
    Measurements {
        tables: vec![],
        figures: vec![
            each(results, "r1", &[TIER], moved),
            each(results, "t1", &EIGHT, put_max_ms),
            many([("α 0", lookups(0.0)), ("α 0.4", lookups(0.4)), ("α 1", lookups(1.0))]),
            each(results, "r1", &[FULL], write_amplification),
            one("", of(results, "r1", TEXTBOOK_FULL, write_amplification)),
            one("", of(results, "r1", PREEMPTIVE, write_amplification)),
        ],
    }
}
