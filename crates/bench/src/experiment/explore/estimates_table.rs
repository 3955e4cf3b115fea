//! The table that `--dry-run` prints.

use super::estimate::{
    CellEstimate, CellEstimates, ENTRIES_READ_PER_S, LOOKUPS_PER_S, RANGES_PER_S, WRITES_PER_S,
};

use crate::metric::table::format_grid;
use crate::report::text::format_bytes;

/// Returns a table with one line per policy and workload, followed by the totals and the assumed rates.
pub fn format_estimates(estimates: &CellEstimates) -> String {
    let cells = &estimates.cells;
    let mut header = vec!["cell".to_owned()];
    let keys: Vec<String> = cells
        .first()
        .map(|cell| cell.sweep.0.iter().map(|(key, _)| key.clone()).collect())
        .unwrap_or_default();
    header.extend(keys.iter().cloned());
    header.extend(["runs", "finished", "operations", "puts", "seconds", "disk"].map(str::to_owned));
    let rows = cells.iter().map(|cell| {
        let mut row = vec![cell.policy.to_string()];
        row.extend(
            keys.iter()
                .map(|key| cell.sweep.value(key).map(ToString::to_string).unwrap_or_default()),
        );
        row.extend([
            cell.runs.to_string(),
            cell.finished.to_string(),
            cell.ops.to_string(),
            format_bytes(cell.put_bytes),
            format!("{:.1}", cell.seconds),
            format_bytes(cell.disk_bytes),
        ]);
        row
    });
    let runs: u64 = cells.iter().map(|cell| cell.runs).sum();
    let finished: u64 = cells.iter().map(|cell| cell.finished).sum();
    let seconds: f64 = cells.iter().map(|cell| cell.seconds).sum();
    let disk = cells.iter().map(|cell| cell.disk_bytes).max().unwrap_or(0);
    let ops: u64 = cells.iter().map(|cell: &CellEstimate| cell.ops.saturating_mul(cell.runs)).sum();
    let table = format_grid(header, rows);
    let rates = match estimates.measured {
        Some(factor) => format!("{factor:.2} × the assumed times, as the finished ones took"),
        None => format!(
            "assumed: {WRITES_PER_S} writes, {LOOKUPS_PER_S} point lookups, {RANGES_PER_S} ranges, \
             {ENTRIES_READ_PER_S} entries read per second"
        ),
    };
    format!(
        "{table}\n{runs} runs to come, {finished} finished; {ops} operations, about {}; at most {} on \
         disk at a time\n{rates}\n",
        format_duration(seconds),
        format_bytes(disk),
    )
}

fn format_duration(seconds: f64) -> String {
    if seconds < 120.0 {
        format!("{seconds:.0} s")
    } else if seconds < 7200.0 {
        format!("{:.0} min", seconds / 60.0)
    } else {
        format!("{:.1} h", seconds / 3600.0)
    }
}
