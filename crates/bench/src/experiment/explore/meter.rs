//! Assigns block reads and latencies to the kind of operation that caused them.

use std::collections::BTreeMap;

use lsmx::ReadMetrics;
use lsmx::metrics::{BlockKind, FilterCounts};

use crate::latency::Latencies;
use crate::numbers::ratio;
use crate::workload::phases::LookupGroup;

use super::result::{PointLookups, RangeLookups, RangesOfSelectivity};

/// Kind of operation to which block reads are assigned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reader {
    /// Block reads are not assigned.
    #[default]
    None,
    /// Point lookups that are counted in the row with this index.
    Point(usize),
    /// Range lookups that are counted in the row with this index.
    Range(usize),
}

/// Measurements of point and range lookups. Each group of lookups has a row.
///
/// The engine counts cache misses for the whole database. When the kind of operation changes, the meter assigns the
/// misses since the last change to the previous kind. A single thread runs all operations, and compactions do not
/// increment the miss counters.
#[derive(Debug, Default)]
pub(super) struct Meter {
    rows: Vec<Row>,
    ranges: Vec<RangeRow>,
    reader: Reader,
    before: Counters,
}

/// Counters of the engine when the kind of operation last changed.
#[derive(Debug, Default)]
struct Counters {
    misses: BTreeMap<BlockKind, u64>,
    filter: FilterCounts,
}

/// Range lookups with the same selectivity. Scans of a trace have no selectivity.
#[derive(Debug, Default)]
struct RangeRow {
    selectivity: Option<f64>,
    row: Row,
    entries: u64,
}

#[derive(Debug, Default)]
struct Row {
    alpha: f64,
    absent: u64,
    latencies: Latencies,
    blocks_read: BTreeMap<BlockKind, u64>,
    filter: FilterCounts,
}

impl Meter {
    /// Returns the row of point lookups with this share of absent keys. Phases with equal shares use the same row.
    pub(super) fn row(&mut self, lookups: &LookupGroup) -> usize {
        let same = |row: &Row| row.alpha.total_cmp(&lookups.alpha).is_eq();
        self.rows.iter().position(same).unwrap_or_else(|| {
            self.rows.push(Row { alpha: lookups.alpha, ..Row::default() });
            self.rows.len() - 1
        })
    }

    /// Returns the row of range lookups with this selectivity. Phases with equal selectivity use the same row.
    pub(super) fn range_row(&mut self, selectivity: Option<f64>) -> usize {
        let bits = |selectivity: Option<f64>| selectivity.map(f64::to_bits);
        let same = |row: &RangeRow| bits(row.selectivity) == bits(selectivity);
        self.ranges.iter().position(same).unwrap_or_else(|| {
            self.ranges.push(RangeRow { selectivity, ..RangeRow::default() });
            self.ranges.len() - 1
        })
    }

    /// Sets the share of absent keys of a row. For a trace, the share is known only after all lookups.
    pub(super) fn set_alpha(&mut self, row: usize, alpha: f64) {
        self.rows[row].alpha = alpha;
    }

    /// Starts to assign block reads to `reader`. The block reads since the last call are assigned to the previous kind
    /// of operation.
    pub(super) fn switch(&mut self, reader: Reader, metrics: impl FnOnce() -> ReadMetrics) {
        if reader == self.reader {
            return;
        }
        let metrics = metrics();
        let now = Counters {
            misses: metrics.cache.iter().map(|(kind, counts)| (*kind, counts.misses)).collect(),
            filter: metrics.filter,
        };
        let row = match self.reader {
            Reader::None => None,
            Reader::Point(row) => Some(&mut self.rows[row]),
            Reader::Range(row) => Some(&mut self.ranges[row].row),
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

    pub(super) fn looked_up(&mut self, row: usize, found: bool, ns: u64) {
        self.rows[row].latencies.record_ns(ns);
        self.rows[row].absent += u64::from(!found);
    }

    pub(super) fn ranged(&mut self, row: usize, entries: u64, ns: u64) {
        self.ranges[row].row.latencies.record_ns(ns);
        self.ranges[row].entries += entries;
    }

    pub(super) fn finish(self) -> (Vec<PointLookups>, RangeLookups) {
        let rows = self.rows.into_iter().map(Row::finish).collect();
        let mut all = RangeRow::default();
        for ranges in &self.ranges {
            all.row.latencies.merge(&ranges.row.latencies);
            all.entries += ranges.entries;
            for (kind, blocks) in &ranges.row.blocks_read {
                *all.row.blocks_read.entry(*kind).or_default() += blocks;
            }
        }
        let by_selectivity = self.ranges.into_iter().filter_map(RangeRow::finish).collect();
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
    fn finish(self) -> Option<RangesOfSelectivity> {
        Some(RangesOfSelectivity {
            selectivity: self.selectivity?,
            ops: self.row.latencies.count(),
            entries: self.entries,
            latency_us: self.row.latencies.summary(),
            blocks_read: self.row.blocks_read,
        })
    }
}

impl Row {
    fn finish(self) -> PointLookups {
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
