//! Experiments with other settings, which show why claims of the study do not hold.

use lsmx_bench::numbers::to_f64;

use super::writes::UPDATE_AMPLIFICATION;
use super::{Measurements, format_figure};
use crate::figures::*;
use crate::published_picks::{PublishedPick, simulate_picks};
use crate::results::{ResultCell, ResultPart, Results};
use crate::strategy::*;
use crate::table::MarkdownTable;

/// A variation of an experiment.
struct Variation {
    part: &'static str,
    /// Title of each row. Each `{}` stands for the value of the next column of `columns`.
    title: &'static str,
    columns: &'static [&'static str],
    /// Explanation in the first row of the variation.
    reading: &'static str,
}

const VARIATIONS: [Variation; 7] = [
    Variation {
        part: "why-full",
        title: "R1: Full, runs of L0 per merge: {}, memtables of L1: {}",
        columns: &["policy.trigger", "policy.l1"],
        reading: "The study has 36.1 and 108 merges. An L1 for most of the data comes closest, if each merge \
                  takes two runs of L0.",
    },
    Variation {
        part: "why-full-sizes",
        title: "R6: Full, 2 runs of L0 per merge, 84 memtables of L1, {} entries",
        columns: &["entries"],
        reading: "The study has 9.3, 15.1, 38.6 and 29.3.",
    },
    Variation {
        part: "why-one",
        title: "R1: 1-Leveling that merges L0 at one run",
        columns: &[],
        reading: "It moves as much as LO+1.",
    },
    Variation {
        part: "why-tier",
        title: "R4: 8 updates per insert, Tier with a trigger of {} runs",
        columns: &["policy.trigger"],
        reading: "The study has 7.7, and 6.4 without updates.",
    },
    Variation {
        part: "why-tsa",
        title: "R5: 10 % deletes, TSA with a limit of {} of the run",
        columns: &["policy.D"],
        reading: "LO+1 moves 35.0. The study has 18 and 35 % more than LO+1 with limits of 0.5 and 0.33.",
    },
    Variation {
        part: "why-tsd",
        title: "R5: share of deletes {}, TSD with a threshold of {}",
        columns: &["deletes", "policy.F"],
        reading: "The study has the same threshold, which it does not state, for each share of deletes.",
    },
    Variation {
        part: "why-tombstones",
        title: "R5: share of deletes {}, the file with the most tombstones first",
        columns: &["deletes"],
        reading: "Almost no tombstones are left, but much more data is moved.",
    },
];

/// Entries of R1 and of R6 with 2^31 and 2^33 bytes.
const ROUND_ROBIN_ENTRIES: [u64; 3] = [10_000_000, 1 << 24, 1 << 26];
const OPERATIONS: u64 = 10_000_000;

pub(super) fn measure(results: &Results) -> Measurements {
    let tables = [
        movement_table(results),
        popular_updates_table(results),
        cache_table(results),
        prefix_table(results),
    ];
    (tables.into_iter().flatten().collect(), vec![])
}

fn movement_table(results: &Results) -> Option<MarkdownTable> {
    let header = ["", "moved ×", "compaction WA", "merges", "tombstones left", "reading"];
    let caption = "Loads with other settings. R5 runs on the engine, the others are simulated.";
    let mut table = MarkdownTable::new(caption, header);
    for variation in VARIATIONS {
        let mut reading = variation.reading;
        for cell in results.find_part(variation.part).cells {
            let deletes =
                cell.number("delete_persistence.deletes").filter(|deletes| *deletes > 0.0);
            let figures = [
                data_moved_ratio(cell),
                write_amplification(cell),
                jobs(cell),
                deletes.and_then(|_| tombstones(cell)),
            ];
            let values = variation.columns.iter().map(|name| cell.text(name).unwrap_or_default());
            let title = values
                .fold(variation.title.to_owned(), |title, value| title.replacen("{}", value, 1));
            let texts = figures.map(format_figure).into_iter().chain([reading.to_owned()]);
            table.add_row(&title, texts);
            reading = "";
        }
    }
    if !results.find_part("why-one").cells.is_empty() {
        add_published_picks(&mut table);
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Adds simulations with the file picks of the published code.
fn add_published_picks(table: &mut MarkdownTable) {
    let round_robin = ROUND_ROBIN_ENTRIES.map(|entries| {
        let title = format!("R6: RR of the published code, {entries} entries (simulated)");
        (title, "rr(l1=7)", PublishedPick::RoundRobin, entries, 0)
    });
    let deletes = OPERATIONS / 10;
    let aged = [("tsa(0.5,l1=7)", "50"), ("tsa(0.33,l1=7)", "33")].map(|(preset, limit)| {
        let title = format!("R5: 10 % deletes, TSA{limit} of the published code (simulated)");
        (title, preset, PublishedPick::FewestTombstones, OPERATIONS - deletes, deletes)
    });
    for (title, preset, pick, inserts, deletes) in round_robin.into_iter().chain(aged) {
        let Some(report) = simulate_picks(preset, pick, inserts, deletes) else { continue };
        let figures = [
            report.data_moved_ratio,
            report.compaction_write_amplification,
            to_f64(report.compaction.jobs),
        ];
        let figures = figures.map(|figure| format_figure(Some(figure)));
        table.add_row(&title, figures.into_iter().chain(["–", ""].map(str::to_owned)));
    }
}

/// Returns the write amplification of R4 by the distribution of updates.
fn popular_updates_table(results: &Results) -> Option<MarkdownTable> {
    let header = ["", "0 updates per insert", "1", "4", "8"];
    let caption =
        "R4: bytes that compaction wrote ÷ unique data, by the distribution of updates, simulated.";
    let mut table = MarkdownTable::new(caption, header);
    for strategy in [LO1, TIER] {
        for (title, part) in [
            ("uniform (R4)", "r4"),
            ("Zipf 0.99", "why-zipf-0.99"),
            ("Zipf 1.2", "why-zipf-1.2"),
            ("Zipf 1.5", "why-zipf-1.5"),
        ] {
            let part = results.find_part(part);
            let figures = part.figures_along_sweep(strategy, "updates", write_amplification);
            let row = (0..header.len() - 1).map(|at| format_figure(nth_figure(&figures, at)));
            table.add_row(&format!("{}, {title}", strategy.name), row);
        }
        let (_, published) = UPDATE_AMPLIFICATION.into_iter().find(|(at, _)| *at == strategy)?;
        let row = published?.map(|figure| format_figure(Some(figure)));
        table.add_row(&format!("{}, study", strategy.name), row);
    }
    (!results.find_part("why-zipf-1.5").cells.is_empty()).then_some(table)
}

fn cache_table(results: &Results) -> Option<MarkdownTable> {
    let cached = results.find_part("why-cache");
    let header =
        ["", "uniform, 0.05 % of the data", "Zipf", "normal", "uniform, 8 MB", "Zipf", "normal"];
    let caption = "R9: blocks per lookup of a present key, by the distribution of lookups and the size of the cache.";
    let mut table = MarkdownTable::new(caption, header);
    for strategy in EIGHT {
        let small = ["r1", "r9-zipf", "r9-normal"]
            .map(|name| results.find_part(name).strategy_figure(strategy, |cell| ios(cell, 0.0)));
        // The phases of the part have different shares of absent keys.
        let large = [0.0, 0.0001, 0.0002]
            .map(|alpha| cached.strategy_figure(strategy, |cell| ios(cell, alpha)));
        table.add_row(strategy.name, small.into_iter().chain(large).map(format_figure));
    }
    (!cached.cells.is_empty()).then_some(table)
}

fn prefix_table(results: &Results) -> Option<MarkdownTable> {
    let [data, cached, lookups] =
        ["r9-data", "why-prefix-cache", "why-prefix"].map(|name| results.find_part(name));
    let header = [
        "",
        "uniform keys",
        "popular prefixes",
        "popular prefixes, uniform lookups",
        "uniform keys, 8 MB",
        "popular prefixes, 8 MB",
    ];
    let caption = "R9: read amplification with 80 % absent keys, by the distribution of keys and the size of the cache.";
    let mut table = MarkdownTable::new(caption, header);
    let read = |cell: &ResultCell| read_amplification(cell, 0.8);
    for strategy in [LO1, TIER] {
        let by_keys = |part: ResultPart<'_>| {
            ["uniform", "prefix-zipf"]
                .map(|keys| part.find_swept_cell(strategy, "distribution", keys).and_then(read))
        };
        let [uniform, popular] = by_keys(data);
        let [uniform_cached, popular_cached] = by_keys(cached);
        let lookups = lookups.strategy_figure(strategy, read);
        let row = [uniform, popular, lookups, uniform_cached, popular_cached];
        table.add_row(strategy.name, row.map(format_figure));
    }
    (!cached.cells.is_empty()).then_some(table)
}
