//! The cells of `lsmx bench` as a table for people, and as flat rows.

use crate::experiment::throughput::result::{Cell, Throughput};
use crate::peers::Kind;

use super::text::{bytes, grid};

/// What stands where there is nothing to say.
const NOTHING: &str = "–";

/// One table: a line per workload, and with peers a line per engine with ratios.
#[must_use]
pub fn table(result: &Throughput) -> String {
    let cells = &result.cells;
    let mut engines: Vec<&str> = Vec::new();
    for cell in cells {
        if !engines.contains(&cell.engine.as_str()) {
            engines.push(&cell.engine);
        }
    }
    let settings = &result.settings;
    let mut text = format!(
        "{} records of {} + {} B, memtable {}, cache {}, {} compaction threads, seed {}, \
         clock {:.0} ns per operation\n",
        settings.entries,
        settings.key_len,
        settings.value_len,
        bytes(settings.memtable_bytes),
        bytes(settings.block_cache_bytes),
        settings.workers,
        result.provenance.seed,
        settings.clock_ns,
    );
    if cells.iter().any(|cell| cell.loaded_first) {
        text.push_str(&format!(
            "the database was empty: {} records were put in random order first\n",
            settings.entries
        ));
    }
    text.push_str(&if engines.len() > 1 { side_by_side(cells, &engines) } else { alone(cells) });
    text.push('\n');
    text
}

fn alone(cells: &[Cell]) -> String {
    let header = [
        "workload",
        "threads",
        "ops",
        "ops/s",
        "unsettled",
        "mean µs",
        "p50",
        "p99",
        "p99.9",
        "max ms",
        "write amp",
        "space amp",
        "cpu s",
    ];
    let rows = cells.iter().map(|cell| {
        let latency = &cell.latency_us;
        vec![
            cell.workload.clone(),
            cell.threads.to_string(),
            cell.ops.to_string(),
            rate(cell.ops_per_s),
            rate(cell.ops_per_s_unsettled),
            format!("{:.1}", latency.mean),
            format!("{:.1}", latency.p50),
            format!("{:.1}", latency.p99),
            format!("{:.1}", latency.p999),
            format!("{:.1}", latency.max / 1e3),
            optional(cell.device_write_amplification),
            optional(cell.space_amplification),
            optional(cell.cpu_s),
        ]
    });
    grid(header.map(str::to_owned).into(), rows)
}

/// A line per workload and engine. The ratio is our rate ÷ that of the line's engine, and on our own
/// line ÷ that of the better peer.
fn side_by_side(cells: &[Cell], engines: &[&str]) -> String {
    let header = [
        "workload",
        "engine",
        "threads",
        "ops/s",
        "lsmx ÷",
        "mean µs",
        "p99",
        "p99.9",
        "max ms",
        "write amp",
        "space amp",
        "cpu s",
    ];
    let ours: Vec<&Cell> = cells.iter().filter(|cell| cell.engine == Kind::Lsmx.name()).collect();
    let rows = ours.iter().enumerate().flat_map(|(place, ours)| {
        // Every engine played the same workloads in the same order.
        let all: Vec<&Cell> = engines
            .iter()
            .filter_map(|engine| cells.iter().filter(|cell| cell.engine == *engine).nth(place))
            .collect();
        let ratio = |cell: &Cell| {
            let theirs =
                if cell.engine == ours.engine { better(&all, ours)? } else { cell.ops_per_s };
            (theirs > 0.0).then(|| ours.ops_per_s / theirs)
        };
        let row = |cell: &&Cell| {
            let latency = &cell.latency_us;
            vec![
                cell.workload.clone(),
                cell.engine.clone(),
                cell.threads.to_string(),
                rate(cell.ops_per_s),
                optional(ratio(cell)),
                format!("{:.1}", latency.mean),
                format!("{:.1}", latency.p99),
                format!("{:.1}", latency.p999),
                format!("{:.1}", latency.max / 1e3),
                optional(cell.device_write_amplification),
                optional(cell.space_amplification),
                optional(cell.cpu_s),
            ]
        };
        all.iter().map(row).collect::<Vec<_>>()
    });
    grid(header.map(str::to_owned).into(), rows.collect::<Vec<_>>())
}

/// The rate of the better peer.
fn better(all: &[&Cell], ours: &Cell) -> Option<f64> {
    let peers = all.iter().filter(|cell| cell.engine != ours.engine);
    peers.map(|cell| cell.ops_per_s).max_by(f64::total_cmp)
}

fn rate(ops_per_s: f64) -> String {
    if ops_per_s < 10_000.0 {
        format!("{ops_per_s:.0}")
    } else if ops_per_s < 1e6 {
        format!("{:.1} k", ops_per_s / 1e3)
    } else {
        format!("{:.2} M", ops_per_s / 1e6)
    }
}

fn optional(x: Option<f64>) -> String {
    x.map_or_else(|| NOTHING.to_owned(), |x| format!("{x:.2}"))
}

/// Header of the flat rows.
pub const COLUMNS: [&str; 25] = [
    "workload",
    "engine",
    "threads",
    "ops",
    "ops_per_s",
    "ops_per_s_unsettled",
    "ops_per_s_min",
    "ops_per_s_max",
    "elapsed_s",
    "settle_s",
    "cpu_s",
    "mean_us",
    "p50_us",
    "p90_us",
    "p99_us",
    "p999_us",
    "max_us",
    "entries_read",
    "absent",
    "put_bytes",
    "device_write_amplification",
    "space_amplification",
    "table_bytes",
    "disk_bytes",
    "logical_bytes",
];

/// A flat row per cell, in the order of [`COLUMNS`]; empty where a figure is absent.
pub fn rows(cells: &[Cell]) -> impl Iterator<Item = Vec<String>> + '_ {
    let real = |x: f64| format!("{x}");
    let optional = |x: Option<f64>| x.map(|x| format!("{x}")).unwrap_or_default();
    cells.iter().map(move |cell| {
        let latency = &cell.latency_us;
        vec![
            cell.workload.clone(),
            cell.engine.clone(),
            cell.threads.to_string(),
            cell.ops.to_string(),
            real(cell.ops_per_s),
            real(cell.ops_per_s_unsettled),
            real(cell.ops_per_s_interval[0]),
            real(cell.ops_per_s_interval[1]),
            real(cell.elapsed_s),
            real(cell.settle_s),
            optional(cell.cpu_s),
            real(latency.mean),
            real(latency.p50),
            real(latency.p90),
            real(latency.p99),
            real(latency.p999),
            real(latency.max),
            cell.entries_read.to_string(),
            cell.absent.to_string(),
            cell.put_bytes.to_string(),
            optional(cell.device_write_amplification),
            optional(cell.space_amplification),
            cell.table_bytes.to_string(),
            cell.disk_bytes.to_string(),
            cell.logical_bytes.to_string(),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_three_digits_or_more() {
        for (ops_per_s, text) in
            [(0.4, "0"), (9_999.0, "9999"), (88_040.0, "88.0 k"), (3_300_000.0, "3.30 M")]
        {
            assert_eq!(rate(ops_per_s), text);
        }
    }
}
