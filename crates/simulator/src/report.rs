//! What a simulation found out.

use serde::{Deserialize, Serialize};

use lsmx_compaction::{Level, TreeShape};

use crate::coarse::Coarse;
use crate::lookups::{PointReport, RangeReport};
use crate::numbers::{count, ratio, real, whole};
use crate::sizes::Sizes;
use crate::traffic::{Traffic, Writes};

/// Counters of a simulation.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    writes: Writes,
    ingested_bytes: f64,
    pub(super) flushes: u64,
    pub(super) flushed_bytes: u64,
    pub(super) jobs: u64,
    pub(super) moves: u64,
    pub(super) drops: u64,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
}

impl Totals {
    pub(super) fn note(&mut self, writes: &Writes, sizes: &Sizes) {
        self.writes.add(writes);
        let (key, value) = (real(sizes.key_bytes), real(sizes.value_bytes));
        self.ingested_bytes += (writes.inserts + writes.updates) * (key + value)
            + writes.deletes * key
            + writes.merges * (key + real(sizes.operand_bytes()))
            + writes.range_deletes * 2.0 * key;
    }

    /// Writes so far that change a key that is there.
    pub(super) fn changes(&self) -> f64 {
        self.writes.updates + self.writes.merges
    }
}

/// One level of a simulated tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelReport {
    /// Its number.
    pub level: u64,
    /// Sorted runs.
    pub runs: u64,
    /// RunFiles.
    pub files: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Entries, shadowed ones and tombstones included.
    pub entries: u64,
    /// Tombstones.
    pub tombstones: u64,
}

/// What compaction did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionReport {
    /// Jobs that merged or rewrote.
    pub jobs: u64,
    /// Jobs that only edited the manifest.
    pub trivial_moves: u64,
    /// Jobs that let files go unread.
    pub drops: u64,
    /// Bytes of the inputs.
    pub read_bytes: u64,
    /// Bytes of the outputs.
    pub written_bytes: u64,
}

/// What a simulation found out, in the words of `lsmx explore`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Key and value bytes of all writes.
    pub ingested_bytes: u64,
    /// Bytes of tables that flushes wrote.
    pub flushed_bytes: u64,
    /// Memtables that became tables.
    pub flushes: u64,
    /// What compaction did.
    pub compaction: CompactionReport,
    /// (Compaction read + written) ÷ ingested.
    pub data_moved_ratio: f64,
    /// (Flushed + compaction written) ÷ ingested.
    pub write_amplification: f64,
    /// Compaction written ÷ bytes of unique live data.
    pub compaction_write_amplification: f64,
    /// Live file bytes ÷ bytes of the newest versions.
    pub space_amplification: f64,
    /// Bytes of invalid entries ÷ bytes of live ones.
    pub space_amplification_invalid: f64,
    /// Point lookups, by phase and share of absent keys.
    pub point_lookups: Vec<PointReport>,
    /// Range lookups.
    pub range_lookups: RangeReport,
    /// The tree at the end.
    pub levels: Vec<LevelReport>,
}

impl Report {
    pub(super) fn new(
        shape: &TreeShape,
        coarse: &Coarse,
        totals: &Totals,
        sizes: &Sizes,
        traffic: &Traffic,
    ) -> Report {
        let live = traffic.live();
        let live_bytes = live * real(sizes.key_bytes + sizes.value_bytes);
        let levels = levels(shape, coarse);
        let bytes: u64 = levels.iter().map(|level| level.bytes).sum();
        let entries: u64 = levels.iter().map(|level| level.entries).sum();
        let tombstones: u64 = levels.iter().map(|level| level.tombstones).sum();
        let shadowed = (real(entries) - real(tombstones) - live).max(0.0);
        let key_share = ratio(real(sizes.key_bytes), real(sizes.key_bytes + sizes.value_bytes));
        let ingested = totals.ingested_bytes;
        Report {
            ingested_bytes: whole(ingested),
            flushed_bytes: totals.flushed_bytes,
            flushes: totals.flushes,
            compaction: CompactionReport {
                jobs: totals.jobs,
                trivial_moves: totals.moves,
                drops: totals.drops,
                read_bytes: totals.read_bytes,
                written_bytes: totals.written_bytes,
            },
            data_moved_ratio: ratio(real(totals.read_bytes + totals.written_bytes), ingested),
            write_amplification: ratio(real(totals.flushed_bytes + totals.written_bytes), ingested),
            compaction_write_amplification: ratio(real(totals.written_bytes), live_bytes),
            space_amplification: ratio(real(bytes), live_bytes),
            space_amplification_invalid: ratio(shadowed, live)
                + ratio(real(tombstones), live) * key_share,
            point_lookups: Vec::new(),
            range_lookups: RangeReport::default(),
            levels,
        }
    }

    /// RunFiles of all levels.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.levels.iter().map(|level| level.files).sum()
    }

    /// Sorted runs of all levels.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.levels.iter().map(|level| level.runs).sum()
    }
}

fn levels(shape: &TreeShape, coarse: &Coarse) -> Vec<LevelReport> {
    (0..shape.levels.len())
        .filter_map(Level::from_index)
        .map(|level| {
            let runs = shape.runs_of(level);
            let files = || runs.iter().flat_map(|run| &run.files);
            LevelReport {
                level: u64::from(level.0),
                runs: count(runs.len()),
                files: files().map(|file| coarse.tables(file)).sum(),
                bytes: files().map(|file| file.bytes).sum(),
                entries: files().map(|file| file.entries).sum(),
                tombstones: files().map(|file| file.tombstones).sum(),
            }
        })
        .filter(|level| level.runs > 0)
        .collect()
}
