//! Tables for people.

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{Cell as TableCell, CellAlignment, ContentArrangement, Table};

use lsmx_simulator::cost_model::Costs;

use crate::experiment::explore::result::{Cell, RecordsSummary, Workload};
use crate::experiment::simulate;
use crate::numbers;

/// The cells of an exploration as one table, a line per policy.
///
/// Lookups have a column for each share of absent keys that any cell asked for.
#[must_use]
pub fn exploration(cells: &[Cell]) -> String {
    let Some(first) = cells.first() else { return String::new() };
    let swept: Vec<&String> = first.sweep.0.iter().map(|(key, _)| key).collect();
    let mut header = vec!["policy".to_owned()];
    header.extend(swept.iter().map(|key| (*key).clone()));
    let measured = [
        "jobs",
        "moves",
        "moved ×",
        "write amp",
        "space amp",
        "put µs",
        "p99.9",
        "max ms",
        "stalled s",
    ];
    header.extend(measured.map(str::to_owned));
    for lookups in &first.point_lookups {
        // A trace has whatever share it has.
        header.push(format!("get µs α={}", (lookups.alpha * 1e3).round() / 1e3));
        header.push("I/Os".to_owned());
    }
    if first.range_lookups.ops > 0 {
        header.push("range µs".to_owned());
    }
    header.push("runs".to_owned());
    header.extend(["simulated ×", "jobs", "model ×"].map(str::to_owned));
    let rows = cells.iter().map(|cell| {
        // A sweep of a policy's own parameter makes specs of one policy.
        let policy = if swept.is_empty() { &cell.policy } else { &cell.spec };
        let mut row = vec![policy.clone()];
        let value = |key: &&String| cell.sweep.value(key).map(ToString::to_string);
        row.extend(swept.iter().map(|key| value(key).unwrap_or_default()));
        row.extend([
            cell.compaction.jobs.to_string(),
            cell.compaction.trivial_moves.to_string(),
            spread(cell, "data_moved_ratio", cell.data_moved_ratio),
            spread(cell, "write_amplification", cell.write_amplification),
            spread(cell, "space_amplification", cell.space_amplification),
            format!("{:.1}", cell.put_latency_us.mean),
            format!("{:.1}", cell.put_latency_us.p999),
            format!("{:.1}", cell.put_latency_us.max / 1e3),
            format!("{:.2}", numbers::float(cell.stalls.total_us) / 1e6),
        ]);
        for lookups in &cell.point_lookups {
            row.push(format!("{:.1}", lookups.latency_us.mean));
            row.push(format!("{:.2}", lookups.ios_per_get));
        }
        if cell.range_lookups.ops > 0 {
            row.push(format!("{:.1}", cell.range_lookups.latency_us.mean));
        }
        row.push(cell.levels.iter().map(|level| level.runs).sum::<u64>().to_string());
        let simulated = cell.simulated.as_ref();
        row.push(simulated.map_or("–".to_owned(), |s| format!("{:.2}", s.data_moved_ratio)));
        row.push(simulated.map_or("–".to_owned(), |s| s.compaction.jobs.to_string()));
        row.push(moved_by(cell.model));
        row
    });
    let mut head = workload(&first.workload, first.seed);
    if !swept.is_empty() {
        head.push_str("; so at the first point of the sweep");
    }
    if let Some(repeats) = &first.repeats {
        let count = repeats.seeds.len();
        head.push_str(&format!("\nmedians of {count} runs (lowest to highest)"));
    }
    format!("{head}\n{}\n", grid(header, rows))
}

/// The cells of a simulation as one table, a line per policy.
#[must_use]
pub fn simulation(cells: &[simulate::Cell]) -> String {
    let Some(first) = cells.first() else { return String::new() };
    let swept: Vec<&String> = first.sweep.0.iter().map(|(key, _)| key).collect();
    let mut header = vec!["policy".to_owned()];
    header.extend(swept.iter().map(|key| (*key).clone()));
    header.extend(
        ["flushes", "jobs", "moves", "moved ×", "model ×", "write amp", "space amp"]
            .map(str::to_owned),
    );
    for lookups in &first.report.point_lookups {
        header.push(format!("I/Os α={}", (lookups.alpha * 1e3).round() / 1e3));
    }
    if first.report.range_lookups.ops > 0 {
        header.push("I/Os range".to_owned());
    }
    header.extend(["levels", "runs", "files", "s"].map(str::to_owned));
    let rows = cells.iter().map(|cell| {
        let report = &cell.report;
        let mut row = vec![if swept.is_empty() { cell.policy.clone() } else { cell.spec.clone() }];
        let value = |key: &&String| cell.sweep.value(key).map(ToString::to_string);
        row.extend(swept.iter().map(|key| value(key).unwrap_or_default()));
        row.extend([
            report.flushes.to_string(),
            report.compaction.jobs.to_string(),
            report.compaction.trivial_moves.to_string(),
            format!("{:.2}", report.data_moved_ratio),
            moved_by(cell.model),
            format!("{:.2}", report.write_amplification),
            format!("{:.3}", report.space_amplification),
        ]);
        row.extend(report.point_lookups.iter().map(|l| format!("{:.2}", l.ios_per_get)));
        if report.range_lookups.ops > 0 {
            let blocks = report.range_lookups.blocks_read.values().sum::<u64>();
            row.push(format!("{:.1}", numbers::ratio(blocks, report.range_lookups.ops)));
        }
        row.extend([
            report.levels.len().to_string(),
            report.runs().to_string(),
            report.files().to_string(),
            format!("{:.1}", cell.elapsed_s),
        ]);
        row
    });
    let head = workload(&first.workload, first.seed);
    format!("simulated: {head}\n{}\n", grid(header, rows))
}

/// What merges read and write by the closed form, over what is ingested: as much in as out.
fn moved_by(model: Option<Costs>) -> String {
    model.map_or("–".to_owned(), |m| format!("{:.2}", 2.0 * m.compaction_write_amplification))
}

/// A number, and between which values it is the median.
fn spread(cell: &Cell, name: &str, median: f64) -> String {
    let repeated = cell.repeats.as_ref().and_then(|repeats| repeats.metrics.get(name));
    match repeated.and_then(|repeated| Some((repeated.low.as_f64()?, repeated.high.as_f64()?))) {
        Some((low, high)) => format!("{median:.2} ({low:.2}–{high:.2})"),
        None => format!("{median:.2}"),
    }
}

/// A table whose first column is text and whose others are numbers.
#[must_use]
pub fn grid(header: Vec<String>, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY);
    // The same whether a terminal reads it or a pipe.
    table.set_content_arrangement(ContentArrangement::Disabled);
    let aligned = |row: Vec<String>| {
        row.into_iter().enumerate().map(|(column, text)| {
            let alignment = if column == 0 { CellAlignment::Left } else { CellAlignment::Right };
            TableCell::new(text).set_alignment(alignment)
        })
    };
    table.set_header(aligned(header).collect::<Vec<_>>());
    for row in rows {
        table.add_row(aligned(row).collect::<Vec<_>>());
    }
    table.to_string()
}

/// What was played, in a line.
pub(super) fn workload(workload: &Workload, seed: u64) -> String {
    if let RecordsSummary::Trace { name, counts } = &workload.records {
        return format!(
            "{} operations of {name} ({} puts, {} deletes, {} merges, {} range deletes, {} gets, {} \
             scans), memtable {}, cache {}, seed {seed}",
            counts.ops(),
            counts.puts,
            counts.deletes,
            counts.merges,
            counts.range_deletes,
            counts.gets,
            counts.scans,
            bytes(workload.memtable_bytes),
            bytes(workload.block_cache_bytes),
        );
    }
    let writes: u64 = workload.phases.iter().map(|phase| phase.writes()).sum();
    let updates: u64 = workload.phases.iter().map(|phase| phase.updates).sum();
    let deletes: u64 = workload.phases.iter().map(|phase| phase.deletes).sum();
    let merges = match workload.phases.iter().map(|phase| phase.merges).sum::<u64>() {
        0 => String::new(),
        merges => format!(", {merges} merges"),
    };
    let range_deletes = match workload.phases.iter().map(|phase| phase.range_deletes).sum::<u64>() {
        0 => String::new(),
        count => format!(", {count} range deletes"),
    };
    let records = match &workload.records {
        RecordsSummary::Generated { key_len, value_len, distribution } => {
            format!("{key_len} + {value_len} B, {distribution}")
        }
        RecordsSummary::File { name, shuffled, .. } => {
            format!("of {name}, {}", if *shuffled { "shuffled" } else { "in file order" })
        }
        RecordsSummary::Trace { name, .. } => format!("of {name}"),
    };
    format!(
        "{writes} writes ({updates} updates, {deletes} deletes{merges}{range_deletes}), {records}, memtable {}, \
         cache {}, seed {seed}",
        bytes(workload.memtable_bytes),
        bytes(workload.block_cache_bytes),
    )
}

/// Bytes in the largest binary unit that leaves at least one of it.
#[must_use]
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1 << 10 {
        return format!("{n} B");
    }
    let mut amount = numbers::float(n) / 1024.0;
    let mut unit = 0;
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    format!("{amount:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        for (n, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1 << 20, "1.0 MiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(bytes(n), text);
        }
    }

    #[test]
    fn a_grid_has_a_line_per_row_with_numbers_to_the_right() {
        let text = grid(
            vec!["policy".to_owned(), "jobs".to_owned()],
            [
                vec!["full".to_owned(), "7".to_owned()],
                vec!["tiering".to_owned(), "12345".to_owned()],
            ],
        );
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().any(|line| line.trim_end().ends_with("    7")), "{text}");
        assert!(lines.iter().any(|line| line.contains("tiering")), "{text}");
    }
}
