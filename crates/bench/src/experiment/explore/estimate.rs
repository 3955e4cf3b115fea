//! Estimates the operations, bytes, time and disk space of an exploration in advance.
//!
//! The estimates assume operation rates of a small machine. They are only accurate enough to distinguish minutes from
//! hours. If finished runs are stored ([`super::super::resume`]), all estimates are multiplied by the ratio of measured
//! to estimated time of the finished runs.

use lsmx_compaction::PolicySpec;

use crate::error::Result;
use crate::experiment::resume::RunDirectory;
use crate::experiment::sweep::SweepPoint;
use crate::numbers;

use super::result::ExplorationCell;
use super::{Config, RecordSource, WorkloadPoint};

/// Assumed writes per second, including compactions.
pub const WRITES_PER_S: u64 = 100_000;
/// Assumed point lookups per second.
pub const LOOKUPS_PER_S: u64 = 150_000;
/// Assumed number of range lookups per second, excluding the time to read the entries.
pub const RANGES_PER_S: u64 = 30_000;
/// Assumed number of entries per second that range lookups and the final scan read.
pub const ENTRIES_READ_PER_S: u64 = 1_500_000;
/// Maximum ratio of file bytes to data bytes. A full compaction keeps its inputs until its outputs are complete. The
/// files also include the WAL.
pub const DISK_BYTES_PER_DATA_BYTE: u64 = 3;

/// Estimated cost of running one policy with one workload, including repetitions.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the table of `--dry-run` has columns of the same names")]
pub struct CellEstimate {
    pub sweep: SweepPoint,
    pub policy: PolicySpec,
    /// Number of repetitions that have not run yet.
    pub runs: u64,
    /// Number of finished repetitions.
    pub finished: u64,
    /// Number of operations per repetition.
    pub ops: u64,
    /// Total length of the keys and values that one repetition puts, in bytes.
    pub put_bytes: u64,
    /// Estimated time of the repetitions that have not run yet, in seconds.
    pub seconds: f64,
    pub disk_bytes: u64,
}

/// Estimates of all policies and workloads of an exploration.
#[derive(Clone, Debug, PartialEq)]
pub struct CellEstimates {
    /// Estimates ordered by workload, then by policy.
    pub cells: Vec<CellEstimate>,
    /// Measured time of the finished runs divided by their estimated time. `None` if no run is finished.
    pub measured: Option<f64>,
}

impl Config {
    /// Estimates the operations, bytes, time and disk space of all runs.
    ///
    /// # Errors
    /// [`Config::check`] fails, or the result of a finished run cannot be read.
    pub fn estimate_cells(&self, finished: Option<&RunDirectory>) -> Result<CellEstimates> {
        self.check()?;
        let mut cells: Vec<CellEstimate> = Vec::new();
        let (mut taken_s, mut expected_s) = (0.0, 0.0);
        for place in self.planned_cells() {
            if place.seed == self.seed {
                let sizes = place.point.effective_sizes();
                let disk_bytes = sizes.data_bytes.saturating_mul(DISK_BYTES_PER_DATA_BYTE);
                cells.push(CellEstimate {
                    sweep: place.point.sweep.clone(),
                    policy: place.policy.clone(),
                    runs: 0,
                    finished: 0,
                    ops: place.point.ops(),
                    put_bytes: sizes.data_bytes,
                    seconds: 0.0,
                    disk_bytes: disk_bytes.saturating_add(sizes.memtable_bytes),
                });
            }
            let Some(cell) = cells.last_mut() else { continue };
            let seconds = estimate_seconds(place.point, false);
            match finished
                .map_or(Ok(None), |finished| finished.read_cell::<ExplorationCell>(place.number))?
            {
                Some(done) => {
                    cell.finished += 1;
                    taken_s += done.elapsed_s;
                    expected_s += seconds;
                }
                None => {
                    cell.runs += 1;
                    cell.seconds += seconds;
                }
            }
        }
        let measured = (expected_s > 0.0).then(|| taken_s / expected_s);
        for cell in &mut cells {
            cell.seconds *= measured.unwrap_or(1.0);
        }
        Ok(CellEstimates { cells, measured })
    }
}

/// Returns the estimated time of a run in seconds. If `to_last_write` is set, phases after the last write are not
/// counted.
pub(super) fn estimate_seconds(point: &WorkloadPoint, to_last_write: bool) -> f64 {
    if let RecordSource::Trace(trace) = &point.source {
        let counts = trace.counts();
        let entries = counts.scanned_entries.saturating_add(counts.puts);
        return numbers::ratio(counts.writes(), WRITES_PER_S)
            + numbers::ratio(counts.gets, LOOKUPS_PER_S)
            + numbers::ratio(counts.scans, RANGES_PER_S)
            + numbers::ratio(entries, ENTRIES_READ_PER_S);
    }
    let (mut live, mut seconds) = (0, 0.0);
    let last = point.phases.iter().rposition(|phase| phase.writes() > 0 || !to_last_write);
    for phase in &point.phases[..last.map_or(0, |last| last + 1)] {
        live += phase.inserts;
        live -= live.min(phase.deletes);
        let lookups: u64 = phase.lookups.iter().map(|lookups| lookups.ops).sum();
        let entries = numbers::to_f64(live) * phase.selectivity * numbers::to_f64(phase.ranges);
        let writes_per_s = numbers::to_f64(WRITES_PER_S);
        let writes_per_s = point.write_rate.map_or(writes_per_s, |rate| rate.min(writes_per_s));
        seconds += numbers::to_f64(phase.writes()) / writes_per_s
            + numbers::ratio(lookups, LOOKUPS_PER_S)
            + numbers::ratio(phase.ranges, RANGES_PER_S)
            + entries / numbers::to_f64(ENTRIES_READ_PER_S);
    }
    // The final scan reads all live entries.
    if to_last_write { seconds } else { seconds + numbers::ratio(live, ENTRIES_READ_PER_S) }
}
