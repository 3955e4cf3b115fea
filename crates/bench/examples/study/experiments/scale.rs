//! R6: data sizes.

use lsmx_bench::experiment::explore::result::Cell;

use crate::claim::{Claim, Expected, Unit, claim};
use crate::figures::{
    Figures, along, float, growth, job_max_ms, numbers, one, quotients, write_amplification,
};
use crate::results::Results;
use crate::strategy::{FULL, LO1, LO2, ONE, RR, Strategy, TIER};
use crate::table::{Section, Table};

/// 2^27, 2^29, 2^31, 2^33, 2^35 bytes: 16 to 4096 flushes.
const SIZES: usize = 5;
const WRITE_AMPLIFICATION: [(Strategy, [f64; SIZES]); 5] = [
    (TIER, [1.9, 4.1, 8.7, 23.8, 63.6]),
    (LO1, [9.3, 15.0, 19.7, 24.7, 28.8]),
    (RR, [9.4, 15.7, 23.5, 30.3, 37.0]),
    (LO2, [6.1, 11.1, 18.1, 23.6, 29.5]),
    (FULL, [9.3, 15.1, 38.6, 29.3, 45.2]),
];

pub(super) fn section(results: &Results) -> Section {
    Section { title: "R6: data sizes", tables: vec![table(results)], claims: claims(results) }
}

fn table(results: &Results) -> Table {
    let cells = results.swept("r6", LO1);
    let mut header = vec![String::new()];
    header.extend((0..SIZES).map(|at| {
        let flushes = cells.get(at).map(|cell| crate::claim::digits(float(cell.flushes)));
        format!("{} flushes (study)", flushes.unwrap_or_else(super::dash))
    }));
    let mut table = Table::new(
        "Bytes that compaction wrote ÷ unique data. The study has 16, 64, 256, \
                 1024, 4096 flushes of 8 MiB; ours are of 64 KiB.",
        header,
    );
    for (strategy, published) in WRITE_AMPLIFICATION {
        let ours = numbers(amplification(results, strategy));
        let row = published.iter().enumerate().map(|(at, published)| {
            let ours = super::ours(ours.as_ref().and_then(|ours| ours.get(at).copied()));
            format!("{ours} ({})", super::published(Some(published)))
        });
        table.row(strategy.name, row);
    }
    let one = numbers(amplification(results, ONE));
    table.row(
        ONE.name,
        (0..SIZES).map(|at| super::ours(one.as_ref().and_then(|ours| ours.get(at).copied()))),
    );
    table
}

fn amplification(results: &Results, strategy: Strategy) -> Figures {
    along(results, "r6", strategy, "entries", write_amplification)
}

fn claims(results: &Results) -> Vec<Claim> {
    let by_lo1 =
        |strategy| quotients(amplification(results, strategy), amplification(results, LO1));
    let tier = by_lo1(TIER);
    let upto = |count: usize| tier.clone().map(|all| all.into_iter().take(count).collect());
    let longest = |strategy| along(results, "t6", strategy, "entries", job_max_ms);
    vec![
        claim(
            "Write amplification grows with data: Tier",
            amplification(results, TIER),
            Expected::Rising,
        ),
        claim("LO+1", amplification(results, LO1), Expected::Rising),
        claim("RR", amplification(results, RR), Expected::Rising),
        claim(
            "Full, but for the fourth size (38.6, then 29.3)",
            amplification(results, FULL),
            Expected::Anything,
        ),
        claim(
            "Tier writes less than LO+1 up to 8 GB (1024 flushes): Tier ÷ LO+1 (figure: \
                 0.20, 0.27, 0.44, 0.96)",
            upto(4),
            Expected::Within(0.0, 1.0),
        )
        .why_not(WHY_TIER),
        claim("Its advantage shrinks with data", tier.clone(), Expected::Rising).why_not(WHY_TIER),
        claim(
            "Beyond that it writes more (figure at 4096 flushes: 2.2)",
            one("", tier.clone().and_then(|all| all.get(4).map(|at| at.1))),
            Expected::Within(1.0, 3.0),
        )
        .why_not(WHY_TIER),
        claim(
            "LO+2 writes less than LO+1 in small trees (0.66), the same in large ones \
                 (1.02)",
            by_lo1(LO2),
            Expected::Within(0.6, 1.05),
        )
        .why_not("As in R1: LO+2 has no advantage here."),
        claim(
            "RR writes more than LO+1, the more the larger (1.01 to 1.28)",
            by_lo1(RR),
            Expected::Within(0.97, 1.35),
        ),
        claim("That grows with data", by_lo1(RR), Expected::Rising)
            .why_not("It does up to 256 flushes; from there on it stays within 3 %."),
        claim(
            "Tier's longest merge grows with the data, 4–5 times as each size is 4 \
                 times the one before",
            step(longest(TIER)),
            Expected::Within(3.0, 5.5),
        )
        .why_not(
            "Once runs are large the largest merge is of all data; in small trees it is \
                 of a few tables, and costs what a merge costs at all.",
        ),
        claim(
            "1-Leveling's hardly (0.68 to 1.3 s: 1.9 times from the first to the last)",
            one("", growth(longest(ONE))),
            Expected::Within(0.8, 4.0),
        )
        .why_not(
            "The smallest tree is a few files, which says little. From 64 flushes to 1024 \
                 it doubles, where Tier's grows fifteenfold.",
        ),
        claim("Longest merges of Tier", longest(TIER), Expected::Anything).unit(Unit::Ms),
        claim("Flushes", along(results, "r6", LO1, "entries", flushes), Expected::Anything)
            .unit(Unit::Plain),
    ]
}

fn flushes(cell: &Cell) -> Option<f64> {
    Some(float(cell.flushes))
}

/// Each ÷ the one before.
fn step(figures: Figures) -> Figures {
    let figures = figures?;
    let steps = figures.windows(2).map(|pair| (pair[1].0.clone(), pair[1].1 / pair[0].1));
    Some(steps.collect())
}

const WHY_TIER: &str = "Universal is the study's to 10 % up to 1024 flushes (23.9 against 23.8), and a \
                 third dearer at 4096. LO+1 is a fifth to a third cheaper than the study's, \
                 so Universal meets it sooner.";
