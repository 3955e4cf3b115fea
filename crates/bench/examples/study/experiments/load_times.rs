//! R1 by the clock: how long merges and the longest writes take.

use crate::figures::{
    Figures, Measure, base_by_each, each, each_by, job_max_ms, job_mean_ms, of, one, put_max_ms,
    put_mean_us, spread,
};
use crate::results::Results;
use crate::strategy::{COLD, EIGHT, FULL, LEVELED_ONES, LO1, OLD, ONE, PARTIAL, TIER};
use crate::table::{Measurements, Table};

/// Merges: seconds, mean and longest.
const MERGE_MEAN_S: [f64; 8] = [0.86, 0.55, 0.45, 0.58, 0.51, 0.67, 0.43, 0.50];
const MERGE_MAX_S: [f64; 8] = [1.80, 1.31, 1.60, 1.33, 1.40, 1.73, 7.05, 0.89];
/// Longest write, milliseconds.
const WRITE_MAX_MS: [f64; 8] = [9.8, 1.62, 4.77, 1.78, 1.28, 4.17, 23.8, 9.4];

pub(super) fn measure(results: &Results) -> Measurements {
    Measurements { tables: vec![table(results)], figures: claimed(results) }
}

fn table(results: &Results) -> Table {
    let header = [
        "",
        "merge mean ÷ LO+1's (study)",
        "merge longest ÷ LO+1's (study)",
        "longest write ms (study)",
        "mean write µs",
        "stalls",
        "stalled s",
        "processor share",
    ];
    let mut table = Table::new("Writes run into the hard stop, one thread compacts.", header);
    for (at, strategy) in EIGHT.iter().enumerate() {
        let get = |measure: Measure| of(results, "t1", *strategy, measure);
        let by_lo1 = |measure: Measure, published: &[f64; 8]| {
            let ours = crate::figures::divide(get(measure), of(results, "t1", LO1, measure));
            format!(
                "{} ({})",
                super::ours(ours),
                super::published(Some(&(published[at] / published[1])))
            )
        };
        table.row(
            strategy.name,
            [
                by_lo1(job_mean_ms, &MERGE_MEAN_S),
                by_lo1(job_max_ms, &MERGE_MAX_S),
                format!(
                    "{} ({})",
                    super::ours(get(put_max_ms)),
                    super::published(WRITE_MAX_MS.get(at))
                ),
                super::ours(get(put_mean_us)),
                super::ours(get(|cell| Some(crate::figures::float(cell.stalls.count)))),
                super::ours(get(|cell| Some(crate::figures::float(cell.stalls.total_us) / 1e6))),
                super::ours(get(|cell| Some(cell.compaction.cpu_fraction))),
            ],
        );
    }
    table
}

fn claimed(results: &Results) -> Vec<Figures> {
    let full_by =
        |strategies: &[_], measure| base_by_each(results, "t1", FULL, strategies, measure);
    vec![
        full_by(&PARTIAL, job_mean_ms),
        full_by(&[TIER], job_mean_ms),
        base_by_each(results, "t1", TIER, &LEVELED_ONES, job_max_ms),
        each_by(results, "t1", &[ONE], LO1, job_max_ms),
        each(results, "t1", &EIGHT, |cell| Some(cell.compaction.cpu_fraction)),
        each_by(results, "t1", &[TIER], FULL, put_max_ms),
        base_by_each(results, "t1", TIER, &PARTIAL, put_max_ms),
        full_by(&PARTIAL, put_max_ms),
        each_by(results, "t1", &[COLD, OLD], LO1, put_max_ms),
        one("", spread(each(results, "t1", &EIGHT, put_mean_us))),
    ]
}
