//! Experiment R6: data size. Experiment R7: entry size. Experiment R8: memtable size.

use super::times::{buffer_times, data_size_times};
use super::{Measurements, compared_table, format_figure, format_with_published};
use crate::figures::*;
use crate::results::Results;
use crate::strategy::*;
use crate::table::MarkdownTable;

/// Number of data sizes in the study: 2^27, 2^29, 2^31, 2^33 and 2^35 bytes. Loading these sizes takes 16 to 4096
/// flushes.
const DATA_SIZES: usize = 5;
const DATA_SIZE_NAMES: [&str; DATA_SIZES] = ["128 MiB", "512 MiB", "2 GiB", "8 GiB", "32 GiB"];
const DATA_SIZE_AMPLIFICATION: [(Strategy, Option<[f64; DATA_SIZES]>); EIGHT.len()] = [
    (FULL, Some([9.3, 15.1, 38.6, 29.3, 45.2])),
    (LO1, Some([9.3, 15.0, 19.7, 24.7, 28.8])),
    (LO2, Some([6.1, 11.1, 18.1, 23.6, 29.5])),
    (RR, Some([9.4, 15.7, 23.5, 30.3, 37.0])),
    (COLD, None),
    (OLD, None),
    (TIER, Some([1.9, 4.1, 8.7, 23.8, 63.6])),
    (ONE, None),
];
/// Entry lengths in bytes.
const ENTRY_SIZES: [u32; 8] = [8, 16, 32, 64, 128, 256, 512, 1024];
const ENTRY_SIZE_NAMES: [&str; ENTRY_SIZES.len()] =
    ["8 B", "16 B", "32 B", "64 B", "128 B", "256 B", "512 B", "1024 B"];
const ENTRY_SIZE_AMPLIFICATION: [(Strategy, Option<[f64; ENTRY_SIZES.len()]>); EIGHT.len()] = [
    (FULL, None),
    (LO1, Some([38.0, 29.0, 21.0, 19.0, 18.0, 19.0, 20.0, 22.0])),
    (LO2, None),
    (RR, None),
    (COLD, None),
    (OLD, None),
    (TIER, Some([6.9, 7.0, 5.0, 5.6, 6.4, 8.5, 12.9, 21.9])),
    (ONE, None),
];
/// Memtable sizes as multiples of the memtable size in experiment R1.
const MEMTABLE_SIZES: [u32; 4] = [1, 2, 4, 8];
const MEMTABLE_SIZE_NAMES: [&str; MEMTABLE_SIZES.len()] = ["× 1", "× 2", "× 4", "× 8"];
const MEMTABLE_AMPLIFICATION: [(Strategy, Option<[f64; MEMTABLE_SIZES.len()]>); EIGHT.len()] = [
    (FULL, None),
    (LO1, Some([18.3, 15.7, 13.0, 10.0])),
    (LO2, None),
    (RR, None),
    (COLD, None),
    (OLD, None),
    (TIER, Some([6.4, 4.3, 3.1, 1.8])),
    (ONE, None),
];

pub(super) fn measure_data(results: &Results) -> Measurements {
    let (r6, t6) = (results.find_part("r6"), results.find_part("t6"));
    let amplification = |strategy| r6.figures_along_sweep(strategy, "entries", write_amplification);
    let table = compared_table(
        "Bytes that compaction wrote ÷ unique data, by the size of the data, simulated.",
        DATA_SIZE_NAMES,
        &DATA_SIZE_AMPLIFICATION,
        |strategy| {
            let figures = amplification(strategy);
            std::array::from_fn(|at| nth_figure(&figures, at))
        },
    );

    let by_lo1 = |strategy| divide_figures(amplification(strategy), amplification(LO1));
    let tier = by_lo1(TIER);
    let longest = |strategy| t6.figures_along_sweep(strategy, "entries", job_max_ms);
    let figures = vec![
        amplification(TIER),
        amplification(LO1),
        amplification(RR),
        amplification(FULL),
        tier.clone().map(|all| all.into_iter().take(4).collect()),
        tier.clone(),
        single_figure("", nth_figure(&tier, 4)),
        by_lo1(LO2),
        by_lo1(RR),
        by_lo1(RR),
        ratios_to_previous(longest(TIER)),
        single_figure("", relative_growth(longest(ONE))),
        longest(TIER),
    ];
    let tables = std::iter::once(table).chain(data_size_times(results));
    (tables.chain([simulator_table(results)]).collect(), figures)
}

/// Returns a table that compares the simulator with the engine. The result file of each measurement on the engine also
/// contains the figures of the simulator.
fn simulator_table(results: &Results) -> MarkdownTable {
    let header = ["", "part", "moved × (simulated)", "merges (simulated)"];
    let caption = "Engine and simulator for the same load.";
    let mut table = MarkdownTable::new(caption, header);
    let parts = ["r1", "check-r4", "check-r6", "check-r7", "check-r8", "check-r9", "check-large"];
    for name in parts {
        let part = results.find_part(name);
        for strategy in EIGHT {
            let Some(cell) = part.find_cell(strategy) else { continue };
            let figures = ["data_moved_ratio", "compaction.jobs"].map(|column| {
                let simulated = cell.number(&format!("simulated.{column}"));
                format_with_published(cell.number(column), simulated)
            });
            table.add_row(strategy.name, std::iter::once(name.to_owned()).chain(figures));
        }
    }
    table
}

fn ratios_to_previous(figures: Figures) -> Figures {
    let figures = figures?;
    let steps = figures.windows(2).map(|pair| (pair[1].0.clone(), pair[1].1 / pair[0].1));
    Some(steps.collect())
}

pub(super) fn measure_entries(results: &Results) -> Measurements {
    let by_size = |strategy, measure: Measure| {
        ENTRY_SIZES.map(|size| {
            // Entries of 128 bytes are those of R1.
            let name = if size == 128 { "r1".to_owned() } else { format!("r7-{size}") };
            (format!("{size} B"), results.find_part(&name).strategy_figure(strategy, measure))
        })
    };
    let mut table = compared_table(
        "Bytes that compaction wrote ÷ unique data, simulated except for 128 B. The number of entries is constant.",
        ENTRY_SIZE_NAMES,
        &ENTRY_SIZE_AMPLIFICATION,
        |strategy| by_size(strategy, write_amplification).map(|(_, figure)| figure),
    );
    let flushed: Measure =
        |cell| divide(cell.number("flushed_bytes"), cell.number("ingested_bytes"));
    for (title, measure) in [("flushes", flushes as Measure), ("flushed ÷ ingested bytes", flushed)]
    {
        table.add_row(title, by_size(LO1, measure).map(|(_, figure)| format_figure(figure)));
    }

    let lo1 = labeled_figures(by_size(LO1, write_amplification));
    let tier = labeled_figures(by_size(TIER, write_amplification));
    let slice = |figures: &Figures, from: usize, to: usize| -> Figures {
        Some(figures.as_ref()?[from..to].to_vec())
    };
    let tier_by_lo1 = divide_figures(tier.clone(), lo1.clone());
    let figures = vec![
        slice(&lo1, 0, 5),
        slice(&lo1, 4, 8),
        slice(&tier, 2, 8),
        slice(&tier_by_lo1, 2, 8),
        slice(&tier_by_lo1, 6, 7),
        slice(&tier_by_lo1, 7, 8),
    ];
    (vec![table], figures)
}

pub(super) fn measure_memtables(results: &Results) -> Measurements {
    // Names of result files start with `r` if the files contain counts, and with `t` if they contain times.
    let part = |prefix: &str, times: u32| match times {
        1 => results.find_part(&format!("{prefix}1")),
        _ => results.find_part(&format!("{prefix}8-{times}")),
    };
    let by_size = |prefix: &str, strategy, measure: Measure| {
        labeled_figures(MEMTABLE_SIZES.map(|times| {
            (format!("× {times}"), part(prefix, times).strategy_figure(strategy, measure))
        }))
    };
    let of = |strategy, times| part("r", times).strategy_figure(strategy, write_amplification);
    let table = compared_table(
        "Bytes that compaction wrote ÷ unique data, simulated except for × 1.",
        MEMTABLE_SIZE_NAMES,
        &MEMTABLE_AMPLIFICATION,
        |strategy| MEMTABLE_SIZES.map(|times| of(strategy, times)),
    );
    let amplification = |strategy| by_size("r", strategy, write_amplification);
    let longest = |strategy| part("t", 8).strategy_figure(strategy, job_max_ms);
    let highest_other = labeled_figures(MEMTABLE_SIZES.map(|times| {
        let others = EIGHT.iter().filter(|at| **at != OLD).map(|at| of(*at, times));
        let all: Option<Vec<f64>> = others.collect();
        ("", all.and_then(|all| all.into_iter().reduce(f64::max)))
    }));
    let figures = vec![
        amplification(LO1),
        amplification(TIER),
        single_figure("", relative_growth(amplification(LO1))),
        single_figure("", relative_growth(amplification(TIER))),
        divide_figures(amplification(OLD), highest_other),
        by_size("t", LO1, job_mean_ms),
        by_size("t", TIER, job_mean_ms),
        single_figure("", divide(longest(TIER), longest(LO1))),
    ];
    (std::iter::once(table).chain(buffer_times(results)).collect(), figures)
}
