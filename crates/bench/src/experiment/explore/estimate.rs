//! What a run will cost, before it is run: operations, bytes, time and space.
//!
//! Times come from the rates below, which a small machine reached; they are there to tell minutes from
//! hours. Where finished cells are at hand ([`super::super::resume`]) the rate is theirs.

use lsmx_compaction::PolicySpec;

use crate::error::Result;
use crate::experiment::resume::Finished;
use crate::experiment::sweep::SweepPoint;
use crate::numbers;

use super::result::Cell;
use super::{Config, Point, Source};

/// Writes per second, compactions included.
pub const WRITES_PER_S: u64 = 100_000;
/// Point lookups per second.
pub const LOOKUPS_PER_S: u64 = 150_000;
/// Range lookups per second, without what they read.
pub const RANGES_PER_S: u64 = 30_000;
/// Entries per second that ranges, and the scan at the end, read.
pub const ENTRIES_READ_PER_S: u64 = 1_500_000;
/// Most bytes of files for each byte of data: a compaction of everything holds old and new at once,
/// and a log stands beside them.
pub const DISK_BYTES_PER_DATA_BYTE: u64 = 3;

/// What one cell will cost, all its repetitions together.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// What the swept flags are.
    pub sweep: SweepPoint,
    /// The policy.
    pub policy: PolicySpec,
    /// Repetitions that are still to be run.
    pub runs: u64,
    /// Repetitions that have finished.
    pub finished: u64,
    /// Operations of a run.
    pub ops: u64,
    /// Key and value bytes of the puts of a run.
    pub put_bytes: u64,
    /// Seconds that the runs still to come take.
    pub seconds: f64,
    /// Most bytes on disk at a time.
    pub disk_bytes: u64,
}

/// An estimate for every cell, and whether its times come from finished cells.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimates {
    /// One per cell.
    pub cells: Vec<Estimate>,
    /// Seconds taken ÷ seconds estimated, of the cells that have finished; none if none has.
    pub measured: Option<f64>,
}

impl Config {
    /// What the cells will cost.
    ///
    /// # Errors
    /// As [`Config::check`]; when a finished cell cannot be read.
    pub fn estimates(&self, finished: Option<&Finished>) -> Result<Estimates> {
        self.check()?;
        let mut cells: Vec<Estimate> = Vec::new();
        let (mut taken_s, mut expected_s) = (0.0, 0.0);
        for place in self.places() {
            if place.seed == self.seed {
                let sizes = place.point.sizes();
                let disk_bytes = sizes.data_bytes.saturating_mul(DISK_BYTES_PER_DATA_BYTE);
                cells.push(Estimate {
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
            let seconds = seconds(place.point, false);
            match finished.map_or(Ok(None), |finished| finished.cell::<Cell>(place.number))? {
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
        Ok(Estimates { cells, measured })
    }
}

/// Seconds that one run takes by the rates above, or its part to the last write.
pub(super) fn seconds(point: &Point, to_last_write: bool) -> f64 {
    if let Source::Trace(trace) = &point.source {
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
        let entries = numbers::float(live) * phase.selectivity * numbers::float(phase.ranges);
        seconds += numbers::ratio(phase.writes(), WRITES_PER_S)
            + numbers::ratio(lookups, LOOKUPS_PER_S)
            + numbers::ratio(phase.ranges, RANGES_PER_S)
            + entries / numbers::float(ENTRIES_READ_PER_S);
    }
    // The scan at the end.
    if to_last_write { seconds } else { seconds + numbers::ratio(live, ENTRIES_READ_PER_S) }
}
