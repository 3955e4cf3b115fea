//! R7: entry sizes.

use crate::claim::{Claim, Expected, claim};
use crate::figures::{Figures, Measure, divide, float, many, of, quotients, write_amplification};
use crate::results::Results;
use crate::strategy::{LO1, Strategy, TIER};
use crate::table::{Section, Table};

/// Bytes of an entry, a part of the results each.
const SIZES: [(&str, &str); 4] =
    [("8 B", "r7-8"), ("32 B", "r7-32"), ("128 B", "r1"), ("512 B", "r7-512")];
const LO1_PUBLISHED: [f64; 4] = [38.0, 21.0, 18.0, 20.0];
const TIER_PUBLISHED: [f64; 4] = [6.9, 5.0, 6.4, 12.9];

pub(super) fn section(results: &Results) -> Section {
    Section { title: "R7: entry sizes", tables: vec![table(results)], claims: claims(results) }
}

fn table(results: &Results) -> Table {
    let mut header = vec![""];
    header.extend(SIZES.map(|(size, _)| size));
    let mut table = Table::new(
        "Bytes that compaction wrote ÷ unique data (study), as many entries each \
                 time.",
        header,
    );
    for (strategy, published) in [(LO1, LO1_PUBLISHED), (TIER, TIER_PUBLISHED)] {
        let row = SIZES.iter().zip(published).map(|((_, part), published)| {
            let ours = super::ours(of(results, part, strategy, write_amplification));
            format!("{ours} ({})", super::published(Some(&published)))
        });
        table.row(strategy.name, row);
    }
    let plain =
        |measure: Measure| SIZES.map(|(_, part)| super::ours(of(results, part, LO1, measure)));
    table.row("flushes", plain(|cell| Some(float(cell.flushes))));
    table.row(
        "flushed ÷ ingested bytes",
        plain(|cell| divide(Some(float(cell.flushed_bytes)), Some(float(cell.ingested_bytes)))),
    );
    table
}

fn by_size(results: &Results, strategy: Strategy, measure: Measure) -> Figures {
    many(SIZES.map(|(size, part)| (size, of(results, part, strategy, measure))))
}

fn claims(results: &Results) -> Vec<Claim> {
    let lo1 = by_size(results, LO1, write_amplification);
    let tier = by_size(results, TIER, write_amplification);
    let between = |figures: Figures, from: usize, to: usize| -> Figures {
        Some(figures?.into_iter().skip(from).take(to - from).collect())
    };
    vec![
        claim(
            "LO+1 is U-shaped: dearest for the smallest entries (38 at 8 B, 18 at 128 \
                 B)",
            between(lo1.clone(), 0, 3),
            Expected::Falling,
        )
        .note(
            "By `lsmx simulate`, which keeps within 5 % of the engine, all eight sizes: \
                 9.8, 8.2, 9.3, 10.5, 12.8, 14.0, 16.0, 18.2.",
        )
        .why_not(
            "As many entries of 8 B are a few flushes of a tree of two levels, with \
                 hardly anything to compact. In the study the overhead of small entries, \
                 eight bytes of sequence number and kind and more, is most of the file; \
                 here it is compressed into a byte or two.",
        ),
        claim(
            "and dearer again for the largest (20 at 512 B)",
            between(lo1.clone(), 2, 4),
            Expected::Rising,
        ),
        claim(
            "Tier grows with entries (5.0, 6.4, 12.9 from 32 to 512 B), as there is \
                 more data",
            between(tier.clone(), 1, 4),
            Expected::Rising,
        )
        .note(
            "By `lsmx simulate`, 8 B to 1 KiB: 1.8, 2.4, 2.9, 4.1, 5.7, 8.1, 12.7, \
                 21.4; the study has 21.9 at 1 KB.",
        ),
        claim(
            "Tier's advantage over LO+1 shrinks with entries: Tier ÷ LO+1 (0.24, 0.36, \
                 0.65 from 32 to 512 B)",
            between(quotients(tier.clone(), lo1.clone()), 1, 4),
            Expected::Rising,
        ),
        claim(
            "At 512 B Tier costs 0.65 of LO+1 (12.9 and 20)",
            between(quotients(tier, lo1), 3, 4),
            Expected::Within(0.5, 0.8),
        )
        .note(
            "By `lsmx simulate` 1.2 at 1 KiB (figure: 1.0): as in R6, our LO+1 is \
                 cheaper, so Tier meets it sooner.",
        )
        .why_not(WHY_TIER),
    ]
}

const WHY_TIER: &str = "As in R6: Universal is as dear as the study's, LO+1 cheaper.";
