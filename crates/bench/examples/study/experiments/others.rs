//! R9: distributions, size ratio, cache.

use lsmx_bench::experiment::explore::result::Cell;
use lsmx_bench::experiment::sweep::SweepValue;

use crate::claim::{Claim, Expected, Unit, claim};
use crate::figures::{Figures, divide, each, less, many, moved, quotients};
use crate::results::{Results, ios, lookups};
use crate::strategy::{FULL, LO1, ONE, Strategy, TIER};
use crate::table::Section;

pub(super) fn section(results: &Results) -> Section {
    Section {
        title: "R9: what does not change the ranking",
        tables: vec![],
        claims: claims(results),
    }
}

/// A measure under a distribution ÷ the same under the uniform one.
fn by_uniform(results: &Results, distribution: &str, measure: fn(&Cell) -> Option<f64>) -> Figures {
    let at = |strategy, name: &str| {
        let name = SweepValue::Text(name.to_owned());
        results.at("r9-data", strategy, "distribution", &name).and_then(measure)
    };
    many([LO1, TIER].map(|strategy| {
        (strategy.name, divide(at(strategy, distribution), at(strategy, "uniform")))
    }))
}

fn read_amplification(cell: &Cell) -> Option<f64> {
    lookups(cell, 0.8).and_then(|lookups| lookups.read_amplification)
}

/// As `each`, of size ratio 4; specs name it there.
fn of_ratio_four(results: &Results, strategies: &[Strategy]) -> Figures {
    let cells = results.part("r9-ratio");
    many(strategies.iter().map(|strategy| {
        let cell = cells.iter().find(|cell| cell.policy == strategy.policy);
        (strategy.name, cell.and_then(moved))
    }))
}

fn claims(results: &Results) -> Vec<Claim> {
    let order = [TIER, ONE, LO1, FULL];
    let with_cache = |part| each(results, part, &[FULL, LO1, TIER], |cell| ios(cell, 0.8));
    vec![
        claim(
            "Where keys fall does not change data movement: prefix-Zipf ÷ uniform",
            by_uniform(results, "prefix-zipf", moved),
            Expected::Within(0.95, 1.05),
        )
        .note(
            "By `lsmx simulate` 1.00: to a policy keys are places in the order, \
                 whatever their density.",
        )
        .why_not(WHY_PREFIX),
        claim(
            "Normal ÷ uniform",
            by_uniform(results, "normal", moved),
            Expected::Within(0.95, 1.05),
        ),
        claim(
            "Prefix-Zipf data cuts read amplification at α = 0.8 by 65–75 %",
            less(by_uniform(results, "prefix-zipf", read_amplification)),
            Expected::Within(0.65, 0.75),
        )
        .unit(Unit::Percent)
        .why_not(
            "Read amplification is 1 to 2 here where the study's is 12 to 21 (R2): \
                 beside the one data block of a lookup that finds something there is \
                 nothing to cut.",
        ),
        claim(
            "The size ratio does not change the ranking by data moved (Tier, \
                 1-Leveling, LO+1, Full): T = 4",
            of_ratio_four(results, &order),
            Expected::Rising,
        )
        .note(
            "By `lsmx simulate` 11.5, 14.1, 21.3, 51.5 at T = 4 and 11.5, 15.2, 21.9, \
                 51.5 at T = 6.",
        )
        .why_not(WHY_RATIO),
        claim("T = 10", each(results, "r1", &order, moved), Expected::Rising),
        claim(
            "Nor does the cache change that by blocks per lookup, α = 0.8: four times \
                 the cache ÷ once",
            quotients(with_cache("r9-cache"), with_cache("r1")),
            Expected::Within(0.0, 1.0),
        )
        .note("No claim of the study, but what a larger cache is for."),
        claim(
            "Ranking with the cache of R1 (Full, LO+1, Tier)",
            with_cache("r1"),
            Expected::Rising,
        )
        .unit(Unit::Plain)
        .why_not(WHY_CACHE),
        claim("With four times that", with_cache("r9-cache"), Expected::Rising)
            .unit(Unit::Plain)
            .why_not(WHY_CACHE),
    ]
}

const WHY_PREFIX: &str = "To a policy keys are places in the order, whatever their density: \
                 something else changed.";
const WHY_RATIO: &str = "By the simulator it does not.";
const WHY_CACHE: &str = "The three are within a few hundredths of a block of each other: see R2.";
