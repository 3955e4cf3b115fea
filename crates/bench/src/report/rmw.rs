//! Read-modify-writes as a table for people, and as flat rows.

use crate::experiment::rmw::Estimate;
use crate::experiment::rmw::result::{Cell, Rmw};
use crate::experiment::sweep::SweepPoint;
use crate::numbers::float;
use crate::process::Cpu;

use super::text::{bytes, grid};

/// What stands where there is nothing to say.
const NOTHING: &str = "–";

/// One table: a line per cell.
#[must_use]
pub fn table(result: &Rmw) -> String {
    let Some(first) = result.cells.first() else { return String::new() };
    let workload = &first.workload;
    let swept: Vec<&str> = first.sweep.0.iter().map(|(key, _)| key.as_str()).collect();
    let fixed = |key: &str, text: String| if swept.contains(&key) { String::new() } else { text };
    let ops = fixed("ops", format!(", {} operations", first.ops));
    // Of these a cell's operations are its lookups or scans, not what went before.
    let counts_others = matches!(result.experiment.as_deref(), Some("operands" | "scans"));
    let ops = if counts_others { String::new() } else { ops };
    let mut text = format!(
        "{} of {} + {} B{}, mix {}{}{ops}, {} thread{}, memory {}{}, seed {}\n",
        fixed("value_len", format!("{} records", workload.records)),
        workload.key_len,
        workload.value_len,
        fixed("delta_len", format!(", updates of {} B", workload.delta_len)),
        workload.mix,
        fixed("zipf", format!(", zipf {}", workload.zipf)),
        workload.threads,
        if workload.threads == 1 { "" } else { "s" },
        bytes(workload.memory_budget),
        if workload.direct_io { ", past the page cache" } else { "" },
        result.provenance.seed,
    );
    let puts = result.cells.iter().any(|cell| cell.put_latency_us.max > 0.0);
    let scans = result.cells.iter().any(|cell| cell.scan_latency_us.max > 0.0);
    let recoveries = result.cells.iter().any(|cell| cell.recovery.is_some());
    let mut header: Vec<&str> = vec!["engine", "mode", "base", "reads %"];
    header.splice(0..0, swept.iter().copied());
    header.extend(["ops/s", "read µs", "p99", "RMW µs", "p99"]);
    if puts {
        header.extend(["put µs", "p99"]);
    }
    if scans {
        header.extend(["scan µs", "p99", "entries/s"]);
    }
    header.extend(["CPU µs", "I/Os per read", "read", "written", "device", "storage", "memory"]);
    if recoveries {
        header.push("open s");
    }
    let rows = result.cells.iter().map(|cell| {
        let mut row = swept_values(&cell.sweep);
        row.extend([
            cell.engine.clone(),
            cell.mode.to_string(),
            cell.base.to_string(),
            format!("{:.1}", cell.read_ratio * 100.0),
            if cell.ops_per_s > 0.0 {
                format!("{:.0}", cell.ops_per_s)
            } else {
                NOTHING.to_owned()
            },
        ]);
        let mut latencies = vec![&cell.read_latency_us, &cell.rmw_latency_us];
        latencies.extend(puts.then_some(&cell.put_latency_us));
        latencies.extend(scans.then_some(&cell.scan_latency_us));
        for latency in latencies {
            let shown =
                |us: f64| if latency.max > 0.0 { format!("{us:.1}") } else { NOTHING.to_owned() };
            row.extend([shown(latency.mean), shown(latency.p99)]);
        }
        if scans {
            let rate = cell.scanned_per_s();
            row.push(rate.map_or_else(|| NOTHING.to_owned(), |rate| format!("{rate:.0}")));
        }
        let per_op = |cpu: Cpu| (cpu.user_s + cpu.system_s) * 1e6 / float(cell.ops.max(1));
        row.push(cell.cpu.map_or_else(|| NOTHING.to_owned(), |cpu| format!("{:.1}", per_op(cpu))));
        let told = |n: Option<u64>| n.map_or_else(|| NOTHING.to_owned(), bytes);
        row.extend([
            cell.ios_per_read.map_or_else(|| NOTHING.to_owned(), |ios| format!("{ios:.3}")),
            bytes(cell.read_bytes),
            bytes(cell.written_bytes),
            told(cell.device.map(|io| io.read_bytes + io.written_bytes)),
            bytes(cell.storage_bytes),
            told(cell.memory_bytes),
        ]);
        if recoveries {
            row.push(
                cell.recovery.map_or_else(|| NOTHING.to_owned(), |it| format!("{:.3}", it.open_s)),
            );
        }
        row
    });
    text.push_str(&grid(header.into_iter().map(str::to_owned).collect(), rows.collect::<Vec<_>>()));
    let checked = result.cells.iter().map(|cell| cell.checked_records).min().unwrap_or(0);
    text.push_str(&format!(
        "\nin each cell {checked} records or more have the value that the operations amount to\n"
    ));
    text
}

fn swept_values(sweep: &SweepPoint) -> Vec<String> {
    sweep.0.iter().map(|(_, value)| value.to_string()).collect()
}

/// What a run would do, a line per cell.
#[must_use]
pub fn estimates(estimates: &[Estimate]) -> String {
    let header = ["cell", "varied", "reads %", "records", "to load", "memory", "operations", ""];
    let rows = estimates.iter().map(|it| {
        vec![
            it.design.clone(),
            it.sweep.to_string(),
            format!("{:.1}", it.read_ratio * 100.0),
            it.records.to_string(),
            bytes(it.loaded_bytes),
            bytes(it.memory_budget),
            it.ops.to_string(),
            if it.finished { "finished".to_owned() } else { String::new() },
        ]
    });
    let mut text = grid(header.map(str::to_owned).into(), rows.collect::<Vec<_>>());
    text.push('\n');
    text
}

/// Header of the flat rows.
pub const COLUMNS: [&str; 54] = [
    "experiment",
    "varied",
    "value",
    "engine",
    "mode",
    "base",
    "mix",
    "read_ratio",
    "seed",
    "records",
    "loaded_bytes",
    "key_len",
    "value_len",
    "field_len",
    "delta_len",
    "zipf",
    "threads",
    "memory_budget",
    "direct_io",
    "ops",
    "ops_per_s",
    "elapsed_s",
    "settle_s",
    "reads",
    "read_mean_us",
    "read_p50_us",
    "read_p99_us",
    "read_p999_us",
    "rmws",
    "rmw_mean_us",
    "rmw_p50_us",
    "rmw_p99_us",
    "rmw_p999_us",
    "put_mean_us",
    "put_p99_us",
    "scans",
    "scan_mean_us",
    "scan_p99_us",
    "scanned_entries",
    "cpu_user_s",
    "cpu_system_s",
    "process_cpu_user_s",
    "process_cpu_system_s",
    "ios_per_read",
    "read_bytes",
    "written_bytes",
    "device_read_bytes",
    "device_written_bytes",
    "storage_bytes",
    "blob_bytes",
    "memory_bytes",
    "memory_bytes_before",
    "checked_records",
    "recovery_open_s",
];

/// A flat row per cell, in the order of [`COLUMNS`]; empty where a figure is absent.
pub fn rows(result: &Rmw) -> impl Iterator<Item = Vec<String>> + '_ {
    result.cells.iter().map(|cell| row(result.experiment.as_deref().unwrap_or_default(), cell))
}

fn row(experiment: &str, cell: &Cell) -> Vec<String> {
    let told = |n: Option<u64>| n.map(|n| n.to_string()).unwrap_or_default();
    let real = |x: Option<f64>| x.map(|x| x.to_string()).unwrap_or_default();
    let (varied, value) = match cell.sweep.0.first() {
        Some((key, value)) => (key.clone(), value.to_string()),
        None => (String::new(), String::new()),
    };
    let (it, read, rmw) = (&cell.workload, &cell.read_latency_us, &cell.rmw_latency_us);
    let (put, scan) = (&cell.put_latency_us, &cell.scan_latency_us);
    vec![
        experiment.to_owned(),
        varied,
        value,
        cell.engine.clone(),
        cell.mode.to_string(),
        cell.base.to_string(),
        it.mix.clone(),
        cell.read_ratio.to_string(),
        cell.seed.to_string(),
        it.records.to_string(),
        it.loaded_bytes.to_string(),
        it.key_len.to_string(),
        it.value_len.to_string(),
        it.field_len.to_string(),
        it.delta_len.to_string(),
        it.zipf.to_string(),
        it.threads.to_string(),
        it.memory_budget.to_string(),
        it.direct_io.to_string(),
        cell.ops.to_string(),
        cell.ops_per_s.to_string(),
        cell.elapsed_s.to_string(),
        cell.settle_s.to_string(),
        cell.reads.to_string(),
        read.mean.to_string(),
        read.p50.to_string(),
        read.p99.to_string(),
        read.p999.to_string(),
        cell.rmws.to_string(),
        rmw.mean.to_string(),
        rmw.p50.to_string(),
        rmw.p99.to_string(),
        rmw.p999.to_string(),
        put.mean.to_string(),
        put.p99.to_string(),
        cell.scans.to_string(),
        scan.mean.to_string(),
        scan.p99.to_string(),
        cell.scanned_entries.to_string(),
        real(cell.cpu.map(|cpu| cpu.user_s)),
        real(cell.cpu.map(|cpu| cpu.system_s)),
        real(cell.process_cpu.map(|cpu| cpu.user_s)),
        real(cell.process_cpu.map(|cpu| cpu.system_s)),
        real(cell.ios_per_read),
        cell.read_bytes.to_string(),
        cell.written_bytes.to_string(),
        told(cell.device.map(|io| io.read_bytes)),
        told(cell.device.map(|io| io.written_bytes)),
        cell.storage_bytes.to_string(),
        told(cell.blob_bytes),
        told(cell.memory_bytes),
        told(cell.memory_bytes_before),
        cell.checked_records.to_string(),
        real(cell.recovery.map(|it| it.open_s)),
    ]
}
