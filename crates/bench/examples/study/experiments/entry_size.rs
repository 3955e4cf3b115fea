//! R7: entry sizes.

use crate::figures::{Figures, Measure, divide, float, many, of, quotients, write_amplification};
use crate::results::Results;
use crate::strategy::{LO1, Strategy, TIER};
use crate::table::{Measurements, Table};

/// Bytes of an entry, a part of the results each.
const SIZES: [(&str, &str); 4] =
    [("8 B", "r7-8"), ("32 B", "r7-32"), ("128 B", "r1"), ("512 B", "r7-512")];
const LO1_PUBLISHED: [f64; 4] = [38.0, 21.0, 18.0, 20.0];
const TIER_PUBLISHED: [f64; 4] = [6.9, 5.0, 6.4, 12.9];

pub(super) fn measure(results: &Results) -> Measurements {
    Measurements { tables: vec![table(results)], figures: claimed(results) }
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

fn claimed(results: &Results) -> Vec<Figures> {
    let lo1 = by_size(results, LO1, write_amplification);
    let tier = by_size(results, TIER, write_amplification);
    let between = |figures: Figures, from: usize, to: usize| -> Figures {
        Some(figures?.into_iter().skip(from).take(to - from).collect())
    };
    vec![
        between(lo1.clone(), 0, 3),
        between(lo1.clone(), 2, 4),
        between(tier.clone(), 1, 4),
        between(quotients(tier.clone(), lo1.clone()), 1, 4),
        between(quotients(tier, lo1), 3, 4),
    ]
}
