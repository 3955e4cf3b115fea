//! Results of a simulation.

use std::collections::BTreeMap;

use lsmx_compaction::{Level, TreeShape};
use serde::{Deserialize, Serialize};

use crate::file_grouping::FileGrouping;
use crate::math::{len_to_u64, ratio, round_to_u64, to_f64};
use crate::table_size::SizeModel;
use crate::write_counts::WriteCounts;
use crate::write_model::WriteModel;

/// Counters of a running simulation.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimulationCounters {
    writes: WriteCounts,
    ingested_bytes: f64,
    pub(crate) flushes: u64,
    pub(crate) flushed_bytes: u64,
    pub(crate) jobs: u64,
    pub(crate) moves: u64,
    pub(crate) drops: u64,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
}

impl SimulationCounters {
    pub(crate) fn add_writes(&mut self, writes: &WriteCounts, sizes: &SizeModel) {
        self.writes.add(writes);
        let (key, value) = (to_f64(sizes.key_bytes), to_f64(sizes.value_bytes));
        self.ingested_bytes += (writes.inserts + writes.updates) * (key + value)
            + writes.deletes * key
            + writes.merges * (key + to_f64(sizes.operand_bytes()))
            + writes.range_deletes * 2.0 * key;
    }

    /// Returns whether any write so far changed the value of a present key.
    pub(crate) fn has_updates(&self) -> bool {
        self.writes.updates + self.writes.merges > 0.0
    }
}

/// One level of a simulated tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelReport {
    /// Number of the level.
    pub level: u64,
    /// Number of sorted runs.
    pub runs: u64,
    /// Number of tables.
    pub files: u64,
    /// Bytes of all tables.
    pub bytes: u64,
    /// Number of entries, including shadowed entries and tombstones.
    pub entries: u64,
    /// Number of tombstones.
    pub tombstones: u64,
}

/// Work done by compaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionReport {
    /// Number of jobs that merged or rewrote files.
    pub jobs: u64,
    /// Number of jobs that only edited the manifest.
    pub trivial_moves: u64,
    /// Number of jobs that dropped files without reading them.
    pub drops: u64,
    /// Bytes of all inputs.
    pub read_bytes: u64,
    /// Bytes of all outputs.
    pub written_bytes: u64,
}

/// Estimated costs of a group of point lookups with the same share of absent keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointLookupReport {
    /// Share of lookups of absent keys.
    pub alpha: f64,
    /// Number of lookups.
    pub ops: u64,
    /// Mean number of blocks that a lookup reads from storage because they are not in the cache. Includes all kinds of
    /// blocks.
    pub ios_per_get: f64,
    /// Number of blocks that are not in the cache, for all lookups together, by kind.
    pub blocks_read: BTreeMap<String, u64>,
    /// Share of absent keys for which the filter of a table returns true.
    pub filter_false_positive_rate: f64,
    /// Mean number of runs whose key range contains the looked-up key. Includes runs that a filter excludes.
    #[serde(rename = "runs_asked")]
    pub runs_probed: f64,
}

/// Adds the lookups of a phase. Groups with the same share of absent keys become one report, as in `lsmx explore`.
pub(crate) fn add_point_lookups(
    reports: &mut Vec<PointLookupReport>,
    phase: Vec<PointLookupReport>,
) {
    for other in phase {
        match reports.iter_mut().find(|it| it.alpha.total_cmp(&other.alpha).is_eq()) {
            Some(report) => report.add(&other),
            None => reports.push(other),
        }
    }
}

impl PointLookupReport {
    /// Adds lookups with the same share of absent keys.
    fn add(&mut self, other: &PointLookupReport) {
        let (ops, other_ops) = (to_f64(self.ops), to_f64(other.ops));
        let mean = |mean: f64, other: f64| ratio(mean * ops + other * other_ops, ops + other_ops);
        self.ios_per_get = mean(self.ios_per_get, other.ios_per_get);
        self.filter_false_positive_rate =
            mean(self.filter_false_positive_rate, other.filter_false_positive_rate);
        self.runs_probed = mean(self.runs_probed, other.runs_probed);
        self.ops += other.ops;
        for (kind, blocks) in &other.blocks_read {
            *self.blocks_read.entry(kind.clone()).or_default() += blocks;
        }
    }
}

/// Estimated costs of range lookups.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RangeLookupReport {
    /// Number of lookups.
    pub ops: u64,
    /// Number of entries returned by all lookups.
    pub entries: u64,
    /// Mean number of runs that a lookup reads.
    pub runs_touched: f64,
    /// Number of blocks that are not in the cache, for all lookups together, by kind.
    pub blocks_read: BTreeMap<String, u64>,
}

impl RangeLookupReport {
    /// Adds the lookups of another phase.
    pub(crate) fn add(&mut self, other: &RangeLookupReport) {
        let ops = to_f64(self.ops + other.ops);
        let touched = self.runs_touched * to_f64(self.ops) + other.runs_touched * to_f64(other.ops);
        self.runs_touched = ratio(touched, ops);
        self.ops += other.ops;
        self.entries += other.entries;
        for (kind, blocks) in &other.blocks_read {
            *self.blocks_read.entry(kind.clone()).or_default() += blocks;
        }
    }
}

/// Results of a simulation. The fields have the same names as in the results of `lsmx explore`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Key and value bytes of all writes.
    pub ingested_bytes: u64,
    /// Bytes of the tables that flushes wrote.
    pub flushed_bytes: u64,
    /// Number of flushes.
    pub flushes: u64,
    /// Work done by compaction.
    pub compaction: CompactionReport,
    /// (Bytes that compaction reads + bytes that it writes) ÷ bytes ingested.
    pub data_moved_ratio: f64,
    /// (Bytes flushed + bytes that compaction writes) ÷ bytes ingested.
    pub write_amplification: f64,
    /// Bytes that compaction writes ÷ key and value bytes of the live records.
    pub compaction_write_amplification: f64,
    /// Bytes of all tables ÷ key and value bytes of the live records.
    pub space_amplification: f64,
    /// Bytes of invalid entries ÷ bytes of valid entries.
    pub space_amplification_invalid: f64,
    /// Point lookups of all phases, by share of absent keys.
    pub point_lookups: Vec<PointLookupReport>,
    /// Range lookups of all phases.
    pub range_lookups: RangeLookupReport,
    /// The final tree, without empty levels.
    pub levels: Vec<LevelReport>,
}

impl Report {
    /// Returns the report of a tree. The reports of lookups are empty.
    pub(crate) fn new(
        shape: &TreeShape,
        grouping: &FileGrouping,
        counters: &SimulationCounters,
        sizes: &SizeModel,
        writes: &WriteModel,
    ) -> Report {
        let live = writes.live_keys();
        let live_bytes = live * to_f64(sizes.key_bytes + sizes.value_bytes);
        let levels = level_reports(shape, grouping);
        let sum = |part: fn(&LevelReport) -> u64| levels.iter().map(part).sum::<u64>();
        let entries = to_f64(sum(|level| level.entries));
        let tombstones = to_f64(sum(|level| level.tombstones));
        let bytes = to_f64(sum(|level| level.bytes));
        let shadowed = (entries - tombstones - live).max(0.0);
        let key_share = ratio(to_f64(sizes.key_bytes), to_f64(sizes.key_bytes + sizes.value_bytes));
        let ingested = counters.ingested_bytes;
        let written = counters.written_bytes;
        Report {
            ingested_bytes: round_to_u64(ingested),
            flushed_bytes: counters.flushed_bytes,
            flushes: counters.flushes,
            compaction: CompactionReport {
                jobs: counters.jobs,
                trivial_moves: counters.moves,
                drops: counters.drops,
                read_bytes: counters.read_bytes,
                written_bytes: written,
            },
            data_moved_ratio: ratio(to_f64(counters.read_bytes + written), ingested),
            write_amplification: ratio(to_f64(counters.flushed_bytes + written), ingested),
            compaction_write_amplification: ratio(to_f64(written), live_bytes),
            space_amplification: ratio(bytes, live_bytes),
            space_amplification_invalid: ratio(shadowed, live)
                + ratio(tombstones, live) * key_share,
            point_lookups: Vec::new(),
            range_lookups: RangeLookupReport::default(),
            levels,
        }
    }

    /// Returns the number of tables in all levels.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.levels.iter().map(|level| level.files).sum()
    }

    /// Returns the number of sorted runs in all levels.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.levels.iter().map(|level| level.runs).sum()
    }
}

fn level_reports(shape: &TreeShape, grouping: &FileGrouping) -> Vec<LevelReport> {
    (0..shape.levels.len())
        .filter_map(Level::from_index)
        .map(|level| {
            let runs = shape.runs_of(level);
            let files = || runs.iter().flat_map(|run| &run.files);
            LevelReport {
                level: u64::from(level.0),
                runs: len_to_u64(runs.len()),
                files: files().map(|file| grouping.table_count(file)).sum(),
                bytes: files().map(|file| file.bytes).sum(),
                entries: files().map(|file| file.entries).sum(),
                tombstones: files().map(|file| file.tombstones).sum(),
            }
        })
        .filter(|level| level.runs > 0)
        .collect()
}
