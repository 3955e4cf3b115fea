//! Assigns block reads and latencies to the kind of operation that caused them.

use std::collections::BTreeMap;

use lsmx::ReadMetrics;
use lsmx::metrics::{BlockKind, FilterCounts};

use crate::latency::Latencies;
use crate::numbers::ratio;
use crate::workload::phases::LookupGroup;

use super::result::{PointLookups, RangeLookups, SelectivityLookups};

/// Kind of operation to which block reads are assigned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReadingOperation {
    /// Block reads are not assigned.
    #[default]
    None,
    /// Point lookups. The number is the index of their row in [`LookupMeter`].
    Point(usize),
    /// Range lookups. The number is the index of their row in [`LookupMeter`].
    Range(usize),
}

/// Measurements of point and range lookups. Each group of lookups has a row.
///
/// The engine counts cache misses for the whole database. When the kind of operation changes, the meter assigns the
/// misses since the last change to the previous kind. This assignment is exact, because all threads run operations of
/// the same kind at any time, and compactions do not increment the miss counters.
#[derive(Debug, Default)]
pub(super) struct LookupMeter {
    rows: Vec<PointRow>,
    ranges: Vec<RangeRow>,
    reader: ReadingOperation,
    before: ReadCounters,
}

/// Counters of the engine when the kind of operation last changed.
#[derive(Debug, Default)]
struct ReadCounters {
    misses: BTreeMap<BlockKind, u64>,
    filter: FilterCounts,
}

/// Range lookups with the same selectivity. Scans of a trace have no selectivity.
#[derive(Debug, Default)]
struct RangeRow {
    selectivity: Option<f64>,
    row: PointRow,
    entries: u64,
}

#[derive(Debug, Default)]
struct PointRow {
    alpha: f64,
    absent: u64,
    latencies: Latencies,
    blocks_read: BTreeMap<BlockKind, u64>,
    filter: FilterCounts,
}

/// Results of the lookups that one thread has performed for one row of the meter.
#[derive(Debug, Default)]
pub(super) struct ThreadLookups {
    pub(super) latencies: Latencies,
    /// Number of point lookups that found no entry.
    pub(super) absent: u64,
    /// Number of entries that range lookups returned.
    pub(super) entries: u64,
}

impl LookupMeter {
    /// Returns the index of the row for point lookups with this share of absent keys. Phases with equal shares use the
    /// same row.
    pub(super) fn point_row(&mut self, lookups: &LookupGroup) -> usize {
        let same = |row: &PointRow| row.alpha.total_cmp(&lookups.alpha).is_eq();
        self.rows.iter().position(same).unwrap_or_else(|| {
            self.rows.push(PointRow { alpha: lookups.alpha, ..PointRow::default() });
            self.rows.len() - 1
        })
    }

    /// Returns the index of the row for range lookups with this selectivity. Phases with equal selectivity use the same
    /// row.
    pub(super) fn range_row(&mut self, selectivity: Option<f64>) -> usize {
        let bits = |selectivity: Option<f64>| selectivity.map(f64::to_bits);
        let same = |row: &RangeRow| bits(row.selectivity) == bits(selectivity);
        self.ranges.iter().position(same).unwrap_or_else(|| {
            self.ranges.push(RangeRow { selectivity, ..RangeRow::default() });
            self.ranges.len() - 1
        })
    }

    /// Sets the share of absent keys of a row. For a trace, the share is known only after all lookups have run.
    pub(super) fn set_alpha(&mut self, row: usize, alpha: f64) {
        self.rows[row].alpha = alpha;
    }

    /// Assigns all following block reads to the operation `reader`. The block reads since the last call are assigned to
    /// the previous operation.
    pub(super) fn switch_operation(
        &mut self,
        reader: ReadingOperation,
        metrics: impl FnOnce() -> ReadMetrics,
    ) {
        if reader == self.reader {
            return;
        }
        let metrics = metrics();
        let now = ReadCounters {
            misses: metrics.cache.iter().map(|(kind, counts)| (*kind, counts.misses)).collect(),
            filter: metrics.filter,
        };
        let row = match self.reader {
            ReadingOperation::None => None,
            ReadingOperation::Point(row) => Some(&mut self.rows[row]),
            ReadingOperation::Range(row) => Some(&mut self.ranges[row].row),
        };
        if let Some(row) = row {
            for (kind, after) in &now.misses {
                let more = after - self.before.misses.get(kind).copied().unwrap_or(0);
                if more > 0 {
                    *row.blocks_read.entry(*kind).or_default() += more;
                }
            }
            row.filter = [row.filter, now.filter - self.before.filter].into_iter().sum();
        }
        self.before = now;
        self.reader = reader;
    }

    pub(super) fn add_point_lookup(&mut self, row: usize, found: bool, ns: u64) {
        self.rows[row].latencies.record_ns(ns);
        self.rows[row].absent += u64::from(!found);
    }

    pub(super) fn add_range_lookup(&mut self, row: usize, entries: u64, ns: u64) {
        self.ranges[row].row.latencies.record_ns(ns);
        self.ranges[row].entries += entries;
    }

    /// Adds the lookups of a thread to a row.
    pub(super) fn add_thread_lookups(&mut self, row: ReadingOperation, lookups: &ThreadLookups) {
        match row {
            ReadingOperation::None => {}
            ReadingOperation::Point(row) => {
                self.rows[row].latencies.merge(&lookups.latencies);
                self.rows[row].absent += lookups.absent;
            }
            ReadingOperation::Range(row) => {
                self.ranges[row].row.latencies.merge(&lookups.latencies);
                self.ranges[row].entries += lookups.entries;
            }
        }
    }

    pub(super) fn into_results(self) -> (Vec<PointLookups>, RangeLookups) {
        let rows = self.rows.into_iter().map(PointRow::into_result).collect();
        let mut all = RangeRow::default();
        for ranges in &self.ranges {
            all.row.latencies.merge(&ranges.row.latencies);
            all.entries += ranges.entries;
            for (kind, blocks) in &ranges.row.blocks_read {
                *all.row.blocks_read.entry(*kind).or_default() += blocks;
            }
        }
        let by_selectivity = self.ranges.into_iter().filter_map(RangeRow::into_result).collect();
        let ranges = RangeLookups {
            ops: all.row.latencies.count(),
            entries: all.entries,
            latency_us: all.row.latencies.summary(),
            blocks_read: all.row.blocks_read,
            by_selectivity,
        };
        (rows, ranges)
    }
}

impl RangeRow {
    fn into_result(self) -> Option<SelectivityLookups> {
        Some(SelectivityLookups {
            selectivity: self.selectivity?,
            ops: self.row.latencies.count(),
            entries: self.entries,
            latency_us: self.row.latencies.summary(),
            blocks_read: self.row.blocks_read,
        })
    }
}

impl PointRow {
    fn into_result(self) -> PointLookups {
        let (ops, blocks) = (self.latencies.count(), self.blocks_read.values().sum());
        PointLookups {
            alpha: self.alpha,
            ops,
            latency_us: self.latencies.summary(),
            ios_per_get: ratio(blocks, ops),
            read_amplification: (ops > self.absent).then(|| ratio(blocks, ops - self.absent)),
            blocks_read: self.blocks_read,
            filter_false_positive_rate: self.filter.false_positive_rate(),
        }
    }
}
