//! R8: sizes of the memtable.

use crate::claim::{Claim, Expected, Unit, claim};
use crate::figures::{
    Figures, Measure, divide, job_max_ms, job_mean_ms, many, of, one, write_amplification,
};
use crate::results::Results;
use crate::strategy::{LO1, OLD, Strategy, TIER};
use crate::table::{Section, Table};

const SIZES: [&str; 4] = ["1", "2", "4", "8"];
const LO1_PUBLISHED: [f64; 4] = [18.3, 15.7, 13.0, 10.0];
const TIER_PUBLISHED: [f64; 4] = [6.4, 4.3, 3.1, 1.8];

pub(super) fn section(results: &Results) -> Section {
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
    Section { title: "R8: memtable sizes", tables: vec![table], claims: claims(results) }
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

fn claims(results: &Results) -> Vec<Claim> {
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
        claim(
            "A larger memtable lowers write amplification: LO+1 (18.3, 15.7, 13.0, \
                 10.0)",
            amplification(LO1),
            Expected::Falling,
        )
        .note("By `lsmx simulate` 12.8, 10.5, 8.5, 6.5."),
        claim("Tier (6.4, 4.3, 3.1, 1.8)", amplification(TIER), Expected::Falling)
            .note("By `lsmx simulate` 5.7, 3.9, 2.6, 1.8."),
        claim(
            "LO+1 at 8 times the memtable ÷ at once (figure: 0.55)",
            one("", crate::figures::growth(amplification(LO1))),
            Expected::Within(0.4, 0.7),
        ),
        claim(
            "Tier (figure: 0.28)",
            one("", crate::figures::growth(amplification(TIER))),
            Expected::Within(0.2, 0.5),
        ),
        claim("Old is the dearest: Old ÷ LO+1", old_by(LO1), Expected::Within(1.0, super::ANY))
            .note(
                "By `lsmx simulate` 1.23 to 1.30; of LO+1, RR, Old the order is the same at \
                 each size.",
            ),
        claim("Mean merges get longer: LO+1 (0.5, 0.9, 3.1, 7.8 s)", mean(LO1), Expected::Rising)
            .unit(Unit::Ms),
        claim("Tier (0.4, 0.7, 1.9, 3.2 s)", mean(TIER), Expected::Rising).unit(Unit::Ms),
        claim(
            "At 8 times the memtable the longest merges are alike: Tier ÷ LO+1 (figure: \
                 0.89)",
            one("", divide(longest(TIER), longest(LO1))),
            Expected::Within(0.6, 1.3),
        )
        .why_not(
            "With twenty flushes Tier's largest merge is all data, LO+1's is a file and \
                 what it overlaps in a level of two.",
        ),
    ]
}
