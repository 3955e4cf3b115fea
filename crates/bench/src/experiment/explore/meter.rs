//! Whose reads are whose: blocks that storage had to give, credited to the operations that asked.

use std::collections::BTreeMap;

use lsmx::Metrics;
use lsmx::cache::FilterAnswers;
use lsmx::format::BlockKind;

use crate::latency::Latencies;
use crate::workload::phases::Lookups;

use super::result::{PointLookups, RangeLookups};

/// Who reads at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// Nobody whose blocks are counted.
    Nobody,
    /// The point lookups of this row.
    Point(usize),
    /// The range lookups.
    Range,
}

/// Rows of point lookups and the range lookups, filled operation by operation.
///
/// The engine counts misses for the whole database. The counters are read only where one kind of
/// operation gives way to another, and the difference goes to the kind that was at work; the driver
/// is one thread, and compactions do not count.
#[derive(Debug)]
pub(super) struct Meter {
    rows: Vec<Row>,
    ranges: Row,
    entries: u64,
    reader: Reader,
    before: Counters,
}

/// What the engine had counted when one kind of operation gave way to another.
#[derive(Debug, Default)]
struct Counters {
    misses: BTreeMap<BlockKind, u64>,
    filter: FilterAnswers,
}

#[derive(Debug, Default)]
struct Row {
    alpha: f64,
    latencies: Latencies,
    blocks_read: BTreeMap<BlockKind, u64>,
    filter: FilterAnswers,
}

impl Meter {
    pub(super) fn new() -> Meter {
        Meter {
            rows: Vec::new(),
            ranges: Row::default(),
            entries: 0,
            reader: Reader::Nobody,
            before: Counters::default(),
        }
    }

    /// The row of lookups with this share of absent keys, over all phases.
    pub(super) fn row(&mut self, lookups: &Lookups) -> usize {
        let same = |row: &Row| row.alpha.total_cmp(&lookups.alpha).is_eq();
        self.rows.iter().position(same).unwrap_or_else(|| {
            self.rows.push(Row { alpha: lookups.alpha, ..Row::default() });
            self.rows.len() - 1
        })
    }

    /// From here on `reader` reads.
    pub(super) fn switch(&mut self, reader: Reader, metrics: impl FnOnce() -> Metrics) {
        if reader == self.reader {
            return;
        }
        let metrics = metrics();
        let now = Counters {
            misses: metrics.cache.iter().map(|(kind, counts)| (*kind, counts.misses)).collect(),
            filter: metrics.filter,
        };
        let row = match self.reader {
            Reader::Nobody => None,
            Reader::Point(row) => Some(&mut self.rows[row]),
            Reader::Range => Some(&mut self.ranges),
        };
        if let Some(row) = row {
            for (kind, after) in &now.misses {
                let more = after - self.before.misses.get(kind).copied().unwrap_or(0);
                if more > 0 {
                    *row.blocks_read.entry(*kind).or_default() += more;
                }
            }
            let before = self.before.filter;
            row.filter.negatives += now.filter.negatives - before.negatives;
            row.filter.false_positives += now.filter.false_positives - before.false_positives;
        }
        self.before = now;
        self.reader = reader;
    }

    /// A point lookup of this row took so long.
    pub(super) fn looked_up(&mut self, row: usize, ns: u64) {
        self.rows[row].latencies.record_ns(ns);
    }

    /// A range lookup took so long and returned so many entries.
    pub(super) fn ranged(&mut self, entries: u64, ns: u64) {
        self.ranges.latencies.record_ns(ns);
        self.entries += entries;
    }

    /// What the report shows.
    pub(super) fn finish(self) -> (Vec<PointLookups>, RangeLookups) {
        let rows = self.rows.into_iter().map(Row::finish).collect();
        let ranges = RangeLookups {
            ops: self.ranges.latencies.count(),
            entries: self.entries,
            latency_us: self.ranges.latencies.summary(),
            blocks_read: self.ranges.blocks_read,
        };
        (rows, ranges)
    }
}

impl Row {
    fn finish(self) -> PointLookups {
        let ops = self.latencies.count();
        PointLookups {
            alpha: self.alpha,
            ops,
            latency_us: self.latencies.summary(),
            ios_per_get: crate::numbers::ratio(self.blocks_read.values().sum(), ops),
            blocks_read: self.blocks_read,
            filter_false_positive_rate: crate::numbers::ratio(
                self.filter.false_positives,
                self.filter.false_positives + self.filter.negatives,
            ),
        }
    }
}
