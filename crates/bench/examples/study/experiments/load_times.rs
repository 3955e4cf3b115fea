//! R1 by the clock: how long merges and the longest writes take.

use crate::claim::{Claim, Expected, Unit, claim};
use crate::figures::{
    Measure, base_by_each, each, each_by, job_max_ms, job_mean_ms, of, one, put_max_ms,
    put_mean_us, spread,
};
use crate::results::Results;
use crate::strategy::{COLD, EIGHT, FULL, LEVELED_ONES, LO1, OLD, ONE, PARTIAL, TIER};
use crate::table::{Section, Table};

/// Merges: seconds, mean and longest.
const MERGE_MEAN_S: [f64; 8] = [0.86, 0.55, 0.45, 0.58, 0.51, 0.67, 0.43, 0.50];
const MERGE_MAX_S: [f64; 8] = [1.80, 1.31, 1.60, 1.33, 1.40, 1.73, 7.05, 0.89];
/// Longest write, milliseconds.
const WRITE_MAX_MS: [f64; 8] = [9.8, 1.62, 4.77, 1.78, 1.28, 4.17, 23.8, 9.4];

/// Why the longest writes do not stand in the study's proportions.
pub(super) const WHY_TAIL: &str = "A write waits only at the stop, for the merge that empties L0. Full and \
                 the file-wise ones stop at two runs: they wait again and again, and at the \
                 longest for their longest merge out of L0. Universal and 1-Leveling stop \
                 at 20 runs, which one writer never piles up, so no write of theirs waited \
                 at all; their longest is a thread that was not given a core. In the study \
                 the longest write is hundreds of times shorter than the longest merge (24 \
                 ms against 7 s), so what it shows is no wait for a merge either.";

pub(super) fn section(results: &Results) -> Section {
    Section { title: "R1 by the clock", tables: vec![table(results)], claims: claims(results) }
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

fn claims(results: &Results) -> Vec<Claim> {
    let full_by =
        |strategies: &[_], measure| base_by_each(results, "t1", FULL, strategies, measure);
    vec![
        claim(
            "Full's merges take 1.2–1.9 times as long in the mean as those of partial \
                 leveling",
            full_by(&PARTIAL, job_mean_ms),
            Expected::Within(1.2, 1.9),
        )
        .why_not(
            "They take longer: a job of Full moves 5 to 6.5 times as much as one of \
                 them, in the study too (6.5), and here time goes by bytes. In the study a \
                 job must cost much time whatever it moves.",
        ),
        claim(
            "Full's merges take 2.1 times as long in the mean as Tier's",
            full_by(&[TIER], job_mean_ms),
            Expected::Within(1.7, 2.6),
        )
        .why_not(
            "As above: time goes by bytes, and a mean job of Full moves 3.3 times what \
                 one of Tier moves (5.1 times in the study).",
        ),
        claim(
            "Tier's longest merge is the longest of all (figure: 3.9–7.9 times)",
            base_by_each(results, "t1", TIER, &LEVELED_ONES, job_max_ms),
            Expected::Within(1.0, super::ANY),
        )
        .why_not(
            "It is longer than all but Full's. Full's largest merge, all of L1 (50 \
                 flushes) and all of L2, is as large as Tier's, which is everything.",
        ),
        claim(
            "1-Leveling has the shortest of the longest merges (figure: 0.68 of LO+1's)",
            each_by(results, "t1", &[ONE], LO1, job_max_ms),
            Expected::Within(0.0, 1.0),
        )
        .why_not("Its merge out of L0 takes four flushes at once and all of L1."),
        claim(
            "About half of the time of compaction is processor time, in every strategy",
            each(results, "t1", &EIGHT, |cell| Some(cell.compaction.cpu_fraction)),
            Expected::Within(0.4, 0.6),
        )
        .unit(Unit::Percent)
        .why_not(
            "The databases were held in memory, so merges never wait for a disk. What is \
                 not processor time is when the writer, a flush and the merge wanted three \
                 of the two cores.",
        ),
        claim(
            "Tier's longest write is 2.5 times Full's",
            each_by(results, "t1", &[TIER], FULL, put_max_ms),
            Expected::Within(2.0, 3.0),
        )
        .why_not(WHY_TAIL),
        claim(
            "Tier's longest write is 5–12 times those of partial leveling",
            base_by_each(results, "t1", TIER, &PARTIAL, put_max_ms),
            Expected::Within(5.0, 12.0),
        )
        .why_not(WHY_TAIL)
        .note("By the figure it is 5 to 19 times."),
        claim(
            "Full's longest write is 2–5 times those of partial leveling",
            full_by(&PARTIAL, put_max_ms),
            Expected::Within(2.0, 5.0),
        )
        .why_not(WHY_TAIL),
        claim(
            "The best tail is Cold's by the figure, Old's by the text: theirs ÷ LO+1's",
            each_by(results, "t1", &[COLD, OLD], LO1, put_max_ms),
            Expected::Within(0.0, 1.0),
        )
        .why_not("Longest of a million writes, once: this is chance within a factor of two."),
        claim(
            "The mean write costs the same everywhere (18.8–19.2 µs): most ÷ least",
            one("", spread(each(results, "t1", &EIGHT, put_mean_us))),
            Expected::Within(0.0, 1.05),
        )
        .why_not(
            "In the study a write cost more than the compaction behind it. Here a write \
                 costs a few microseconds, so the stalls behind it are most of the mean.",
        ),
    ]
}
