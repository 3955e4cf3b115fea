//! R3: lookups mixed into the writes.

use lsmx_bench::experiment::explore::result::Cell;

use crate::claim::{Claim, Expected, Unit, claim};
use crate::figures::{
    Figures, base_by_each, divide, each, job_mean_ms, less, of, one, put_max_ms, quotients,
    write_amplification,
};
use crate::results::{Results, ios, lookups};
use crate::strategy::{COLD_ACCESS, EIGHT, LEVELED_ONES, OLD, Strategy, TIER};
use crate::table::{Section, Table};

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

pub(super) fn section(results: &Results) -> Section {
    Section {
        title: "R3: lookups mixed into the writes",
        tables: vec![table(results)],
        claims: claims(results),
    }
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

fn claims(results: &Results) -> Vec<Claim> {
    let by_clock = |measure| mixed_by_alone(results, "t3", "t1", measure);
    vec![
        claim(
            "Write amplification is unchanged",
            mixed_by_alone(results, "r3", "r1", write_amplification),
            Expected::Within(0.97, 1.03),
        ),
        claim(
            "The mean time of a merge is unchanged",
            by_clock(job_mean_ms),
            Expected::Within(0.85, 1.15),
        )
        .why_not(WHY_TIMES),
        claim(
            "The longest write is 2–15 times longer",
            by_clock(put_max_ms),
            Expected::Within(2.0, 15.0),
        )
        .why_not(
            "Lookups do not stand in the way of compaction here, they give it time: \
                 data is in memory, so they do not compete for a disk, and the writer waits \
                 as long as the merge out of L0 takes, as without them.",
        ),
        claim(
            "Tier's longest write is the longest",
            base_by_each(results, "t3", TIER, &LEVELED_ONES, put_max_ms),
            Expected::Within(1.0, super::ANY),
        )
        .why_not(super::load_times::WHY_TAIL),
        claim(
            "Lookups of present keys are 26–63 % faster than on the loaded tree: by \
                 time",
            less(by_clock(mean_present)),
            Expected::Within(0.26, 0.63),
        )
        .unit(Unit::Percent)
        .why_not(WHY_SLOWER),
        claim(
            "Lookups of absent keys are 69–81 % faster: by time",
            less(by_clock(mean_absent)),
            Expected::Within(0.69, 0.81),
        )
        .unit(Unit::Percent)
        .why_not(WHY_SLOWER),
        claim(
            "The same by blocks read, present keys",
            less(mixed_by_alone(results, "r3", "r1", |cell| ios(cell, 0.0))),
            Expected::Within(0.26, 0.63),
        )
        .unit(Unit::Percent)
        .note(
            "The tree is smaller meanwhile, and the newest entries are in memtables: a \
                 lookup reads 2.0 to 2.1 blocks in place of 3.4.",
        ),
        claim(
            "The same by blocks read, absent keys",
            less(mixed_by_alone(results, "r3", "r1", |cell| ios(cell, 1.0))),
            Expected::Within(0.55, 0.81),
        )
        .unit(Unit::Percent),
        claim(
            "Cold by reads moves as much as Old, to which it is equal where nothing is \
                 read",
            one(
                "",
                divide(
                    of(results, "r3", COLD_ACCESS, write_amplification),
                    of(results, "r3", OLD, write_amplification),
                ),
            ),
            Expected::Within(0.9, 1.1),
        )
        .why_not(
            "With lookups mixed in, the file that was read least recently is another one \
                 than the oldest.",
        )
        .note("No claim of the study: Cold by reads needs reads."),
    ]
}

const WHY_TIMES: &str = "Unchanged with five of them, a fifth to a quarter shorter with Cold, Old \
                 and 1-Leveling, presumably because a writer that also reads flushes less \
                 often beside them.";
const WHY_SLOWER: &str = "By blocks they are cheaper (next lines). By time a lookup has a merge beside \
                 it that shares two cores and their caches; the loaded tree had its merges \
                 behind it.";
