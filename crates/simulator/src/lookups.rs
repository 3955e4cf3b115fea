//! What lookups cost in a simulated tree: expected blocks that the cache does not have, per lookup.
//!
//! A lookup asks the runs from new to old. In each of them the one file that may hold the key is
//! asked: its filter, but not in the last run; where that lets the key pass, its top index, an index
//! block and a data block. Keys are taken to be asked for alike.
//!
//! The cache keeps metadata before data, as the engine's does: filters of all runs but the last and
//! all top indexes first, then index blocks, then data. Of metadata that does not fit as a whole the
//! share is there that fits; of data blocks those that were asked for last (`caching.rs`): of the runs
//! that lookups end in, which for absent keys is the last one alone, and of popular keys.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::workload::{Distribution, Lookups, Phase};
use lsmx_compaction::{SortedRun, TreeShape};

use crate::body::{place_of, width};
use crate::caching::{self, Asked};
use crate::coarse::Coarse;
use crate::numbers::{DOMAIN, ratio, real, whole};
use crate::sizes::{Load, Sizes};

/// Share of absent keys that a filter lets pass: one in 256, with eight bits for a key.
const FALSE_POSITIVES: f64 = 1.0 / 256.0;

/// Point lookups of one kind, as estimated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointReport {
    /// Share that asks for absent keys.
    pub alpha: f64,
    /// How many.
    pub ops: u64,
    /// Blocks of all kinds that the cache does not have, per lookup.
    pub ios_per_get: f64,
    /// The same by kind, in all.
    pub blocks_read: BTreeMap<String, u64>,
    /// Share of the keys a table does not have that its filter lets pass.
    pub filter_false_positive_rate: f64,
    /// Runs whose range holds the key, filters asked or not.
    pub runs_asked: f64,
}

/// Range lookups, as estimated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RangeReport {
    /// How many.
    pub ops: u64,
    /// Entries they return.
    pub entries: u64,
    /// Runs that one of them reads from.
    pub runs_touched: f64,
    /// Blocks that the cache does not have, by kind, in all.
    pub blocks_read: BTreeMap<String, u64>,
}

impl RangeReport {
    /// Adds the lookups of another phase.
    pub(super) fn add(&mut self, other: &RangeReport) {
        let ops = real(self.ops + other.ops);
        let touched = self.runs_touched * real(self.ops) + other.runs_touched * real(other.ops);
        self.runs_touched = ratio(touched, ops);
        self.ops += other.ops;
        self.entries += other.entries;
        for (kind, blocks) in &other.blocks_read {
            *self.blocks_read.entry(kind.clone()).or_default() += blocks;
        }
    }
}

/// Lookups of a phase that writes too: the mean of several looks at the tree.
#[derive(Clone, Debug, Default)]
pub(super) struct Mixed {
    looks: f64,
    pub(super) points: Vec<PointReport>,
    pub(super) ranges: RangeReport,
}

impl Mixed {
    /// Adds what all lookups of the phase would cost at one moment.
    pub(super) fn add(&mut self, points: Vec<PointReport>, ranges: &RangeReport) {
        self.looks += 1.0;
        let share = 1.0 / self.looks;
        let mean = |own: &mut f64, new: f64| *own += (new - *own) * share;
        let means = |own: &mut BTreeMap<String, u64>, new: &BTreeMap<String, u64>| {
            for kind in new.keys() {
                own.entry(kind.clone()).or_default();
            }
            for (kind, blocks) in own {
                let mut exact = real(*blocks);
                mean(&mut exact, real(new.get(kind).copied().unwrap_or(0)));
                *blocks = whole(exact);
            }
        };
        if self.points.is_empty() {
            self.points = points;
            self.ranges = ranges.clone();
            return;
        }
        for (own, new) in self.points.iter_mut().zip(&points) {
            mean(&mut own.ios_per_get, new.ios_per_get);
            mean(&mut own.runs_asked, new.runs_asked);
            means(&mut own.blocks_read, &new.blocks_read);
        }
        mean(&mut self.ranges.runs_touched, ranges.runs_touched);
        let mut entries = real(self.ranges.entries);
        mean(&mut entries, real(ranges.entries));
        self.ranges.entries = whole(entries);
        means(&mut self.ranges.blocks_read, &ranges.blocks_read);
    }
}

/// How lookups ask, besides for what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Asking {
    /// Which keys are popular.
    pub(super) distribution: Distribution,
    /// Lookups since the tree was last written.
    pub(super) before: f64,
}

/// One run, as lookups meet it.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// Share of the key domain that its files cover.
    covered: f64,
    puts: f64,
    entries: f64,
    data_blocks: f64,
    data: f64,
    index: f64,
    top_index: f64,
    filter: f64,
    is_last: bool,
}

/// A tree as lookups meet it.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    runs: Vec<Run>,
    live: f64,
    /// Chance that a block of each kind is not in the cache.
    metadata_missed: f64,
    index_missed: f64,
    data_missed: f64,
    /// Bytes that the cache has for data blocks.
    data_cache: f64,
}

impl Reading {
    pub(super) fn of(
        shape: &TreeShape,
        coarse: &Coarse,
        sizes: &Sizes,
        live: f64,
        cache_bytes: u64,
    ) -> Reading {
        let mut runs: Vec<Run> =
            shape.runs().map(|(_, run)| measured(run, coarse, sizes)).collect();
        if let Some(last) = runs.last_mut() {
            last.is_last = true;
        }
        let sum = |part: fn(&Run) -> f64| runs.iter().map(part).sum::<f64>();
        let first =
            sum(|run| run.top_index) + sum(|run| if run.is_last { 0.0 } else { run.filter });
        let (index, data) = (sum(|run| run.index), sum(|run| run.data));
        let cache = real(cache_bytes);
        let missed = |before: f64, bytes: f64| {
            1.0 - if bytes > 0.0 { ((cache - before) / bytes).clamp(0.0, 1.0) } else { 1.0 }
        };
        Reading {
            live,
            metadata_missed: missed(0.0, first),
            index_missed: missed(first, index),
            data_missed: missed(first + index, data),
            data_cache: (cache - first - index).max(0.0),
            runs,
        }
    }

    /// Point lookups of a phase.
    pub(super) fn point(&self, lookups: &Lookups, asking: &Asking) -> PointReport {
        let absent = self.touched(None);
        let newest: f64 = self.runs.iter().map(|run| run.puts).sum();
        // The newest entry of a key is in this run as often as it holds entries of all that there are:
        // older ones of the same key stand below, so newer runs count in full first.
        let (mut left, mut present) = (self.live.min(newest), Touched::default());
        let mut found = 0.0;
        for (at, run) in self.runs.iter().enumerate() {
            let here = if run.is_last { left } else { run.puts.min(left) };
            left -= here;
            found += here;
            present.add(&self.touched(Some(at)), here);
        }
        let present = present.scaled(ratio(1.0, found));
        let alpha = lookups.alpha;
        let mut all = absent.scaled(alpha);
        all.add(&present, 1.0 - alpha);
        let ops = real(lookups.ops);
        let mut ios = self.missed(&all);
        ios.insert("data", self.data_missed_of(&all, asking, ops));
        PointReport {
            alpha,
            ops: lookups.ops,
            ios_per_get: ios.values().sum(),
            blocks_read: whole_blocks(&ios, ops),
            filter_false_positive_rate: FALSE_POSITIVES,
            runs_asked: all.runs,
        }
    }

    /// Data blocks per lookup that the cache lacks.
    fn data_missed_of(&self, touched: &Touched, asking: &Asking, ops: f64) -> f64 {
        let mut groups = Vec::new();
        for (run, &per_lookup) in self.runs.iter().zip(&touched.data_of) {
            match asking.distribution {
                // Neighbours in key order are asked for one after the other.
                Distribution::Sequential => groups.push(Asked {
                    blocks: run.data_blocks,
                    per_lookup: per_lookup * ratio(run.data_blocks, run.entries).min(1.0),
                }),
                Distribution::Zipf => groups.extend(caching::by_popularity(
                    run.data_blocks,
                    run.entries.max(1.0),
                    per_lookup,
                )),
                _ => groups.push(Asked { blocks: run.data_blocks, per_lookup }),
            }
        }
        let block_bytes = ratio(
            self.runs.iter().map(|run| run.data).sum(),
            self.runs.iter().map(|run| run.data_blocks).sum(),
        );
        let fitting = ratio(self.data_cache, block_bytes);
        caching::missed(&groups, fitting, asking.before, ops)
    }

    /// Blocks that a lookup touches whose key is in the `holder`-th run, or in none.
    fn touched(&self, holder: Option<usize>) -> Touched {
        let mut touched = Touched { data_of: vec![0.0; self.runs.len()], ..Touched::default() };
        for (at, run) in self.runs.iter().enumerate() {
            let holds = holder == Some(at);
            let asked = if holds { 1.0 } else { run.covered };
            let passes = if holds || run.is_last { 1.0 } else { FALSE_POSITIVES };
            touched.runs += asked;
            touched.filter += if run.is_last { 0.0 } else { asked };
            touched.top_index += asked * passes;
            touched.index += asked * passes;
            touched.data += asked * passes;
            touched.data_of[at] = asked * passes;
            if holds {
                break;
            }
        }
        touched
    }

    /// Range lookups of a phase.
    pub(super) fn range(&self, phase: &Phase) -> RangeReport {
        let entries = (self.live * phase.selectivity).max(1.0);
        let share = ratio(entries, self.live).min(1.0);
        let mut touched = Touched::default();
        for run in &self.runs {
            // A seek reads where the range begins; the blocks after that are those of its entries.
            let blocks = run.covered + run.data_blocks * share;
            let blocks_per_index = ratio(run.data_blocks, (run.index / 4096.0).max(1.0)).max(1.0);
            touched.runs += run.covered;
            touched.top_index += run.covered;
            touched.index += run.covered + run.data_blocks * share / blocks_per_index;
            touched.data += blocks;
        }
        let ops = real(phase.ranges);
        let blocks = self.missed(&touched);
        RangeReport {
            ops: phase.ranges,
            entries: whole(entries) * phase.ranges,
            runs_touched: touched.runs,
            blocks_read: whole_blocks(&blocks, ops),
        }
    }

    fn missed(&self, touched: &Touched) -> BTreeMap<&'static str, f64> {
        BTreeMap::from([
            ("filter", touched.filter * self.metadata_missed),
            ("top_index", touched.top_index * self.metadata_missed),
            ("index", touched.index * self.index_missed),
            ("data", touched.data * self.data_missed),
        ])
    }
}

/// Blocks of all lookups; kinds that are never read are left out.
fn whole_blocks(ios: &BTreeMap<&'static str, f64>, ops: f64) -> BTreeMap<String, u64> {
    let blocks = ios.iter().map(|(kind, ios)| ((*kind).to_owned(), whole(ios * ops)));
    blocks.filter(|(_, blocks)| *blocks > 0).collect()
}

/// Blocks that a lookup needs, by kind.
#[derive(Clone, Debug, Default)]
struct Touched {
    runs: f64,
    filter: f64,
    top_index: f64,
    index: f64,
    data: f64,
    /// The same, run by run.
    data_of: Vec<f64>,
}

impl Touched {
    fn scaled(&self, share: f64) -> Touched {
        let mut scaled = Touched::default();
        scaled.add(self, share);
        scaled
    }

    fn add(&mut self, other: &Touched, share: f64) {
        self.runs += other.runs * share;
        self.filter += other.filter * share;
        self.top_index += other.top_index * share;
        self.index += other.index * share;
        self.data += other.data * share;
        self.data_of.resize(self.data_of.len().max(other.data_of.len()), 0.0);
        for (data, more) in self.data_of.iter_mut().zip(&other.data_of) {
            *data += more * share;
        }
    }
}

fn measured(run: &SortedRun, coarse: &Coarse, sizes: &Sizes) -> Run {
    let mut all = Run::default();
    let files: u64 = run.files.iter().map(|file| coarse.tables(file)).sum();
    for file in &run.files {
        let (from, to) = (place_of(&file.range.smallest), place_of(&file.range.largest));
        all.covered += width(from, to) / DOMAIN;
        all.entries += real(file.entries);
        all.puts += real(file.entries.saturating_sub(file.tombstones));
    }
    // RunFiles of a run are alike, so one of mean size stands for all of them.
    let load = Load { puts: all.puts / real(files.max(1)), ..Load::default() };
    let table = sizes.table(&load, ratio(all.entries, all.covered));
    let files = real(files);
    all.covered = all.covered.min(1.0);
    all.data_blocks = table.data_blocks * files;
    all.data = table.data * files;
    all.index = table.index * files;
    all.top_index = table.top_index * files;
    all.filter = table.filter * files;
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Distribution;
    use lsmx_compaction::{FileId, KeyRange, Level, ManifestLevel, RunId, TableMeta};
    use std::sync::Arc;

    /// Runs of so many entries, newest first, each one file over the whole domain.
    fn tree(entries: &[u64]) -> TreeShape {
        let run = |(id, &entries): (u64, &u64)| {
            let range = KeyRange::new([0; 8].to_vec(), [255; 8].to_vec());
            let file = TableMeta {
                entries,
                bytes: entries * 128,
                seq_smallest: 100 - id,
                seq_largest: 100 - id,
                ..TableMeta::new(FileId(id), range)
            };
            (RunId(id), vec![Arc::new(file)])
        };
        let runs = (0..).zip(entries).map(run).collect();
        TreeShape::from_levels(vec![ManifestLevel { runs, cursor: None }], 100).unwrap()
    }

    fn reading(entries: &[u64], cache_bytes: u64) -> Reading {
        let shape = tree(entries);
        assert_eq!(shape.runs_of(Level(0)).len(), entries.len());
        let live = entries.iter().sum::<u64>();
        let (coarse, sizes) = (Coarse::none(), Sizes::new(16, 100, 1 << 20));
        Reading::of(&shape, &coarse, &sizes, real(live), cache_bytes)
    }

    fn ios(reading: &Reading, alpha: f64) -> f64 {
        let asking = Asking { distribution: Distribution::Uniform, before: 1e12 };
        reading.point(&Lookups { alpha, ops: 100 }, &asking).ios_per_get
    }

    #[test]
    fn without_a_cache_every_block_touched_is_read() {
        let reading = reading(&[1000, 1000, 8000], 0);
        // Two filters; the last run has none: top index, index block, data block.
        let absent = 2.0 * (1.0 + 3.0 * FALSE_POSITIVES) + 3.0;
        assert!((ios(&reading, 1.0) - absent).abs() < 1e-9);
        // A tenth is found in each of the upper runs.
        let f = FALSE_POSITIVES * 3.0;
        let present = 0.1 * 4.0 + 0.1 * (1.0 + f + 4.0) + 0.8 * (2.0 * (1.0 + f) + 3.0);
        assert!((ios(&reading, 0.0) - present).abs() < 1e-9);
        let half = ios(&reading, 0.5);
        assert!((half - (absent + present) / 2.0).abs() < 1e-9);
    }

    #[test]
    fn metadata_comes_before_data_in_the_cache() {
        let runs = [1000, 1000, 80_000];
        let all = reading(&runs, 1 << 30);
        assert!(ios(&all, 0.0) < 1e-9 && ios(&all, 1.0) < 1e-9);
        let none = reading(&runs, 0);
        let metadata: f64 =
            none.runs.iter().map(|r| r.top_index + if r.is_last { 0.0 } else { r.filter }).sum();
        let index: f64 = none.runs.iter().map(|run| run.index).sum();
        let first = reading(&runs, whole(metadata) + 1);
        assert!((1.9..2.1).contains(&ios(&first, 1.0)), "{}", ios(&first, 1.0));
        let second = reading(&runs, whole(metadata + index) + 1);
        assert!((0.9..1.1).contains(&ios(&second, 1.0)), "{}", ios(&second, 1.0));
    }

    #[test]
    fn mixed_lookups_cost_the_mean_of_the_looks() {
        let lookups = Lookups { alpha: 0.0, ops: 100 };
        let looks = [&[9000][..], &[1000, 9000][..], &[1000, 1000, 9000][..]];
        let asking = Asking { distribution: Distribution::Uniform, before: 1e12 };
        let points = looks.map(|entries| reading(entries, 0).point(&lookups, &asking));
        let mut mixed = Mixed::default();
        for point in &points {
            mixed.add(vec![point.clone()], &RangeReport::default());
        }
        let mean = points.iter().map(|point| point.ios_per_get).sum::<f64>() / 3.0;
        let found = &mixed.points[0];
        assert!((found.ios_per_get - mean).abs() < 1e-9, "{found:?}");
        assert_eq!(found.ops, 100);
        // Filters only from the second look on.
        let filters: u64 = points.iter().filter_map(|it| it.blocks_read.get("filter")).sum();
        assert!(found.blocks_read["filter"].abs_diff(filters / 3) <= 2, "{found:?}");
    }

    #[test]
    fn a_range_reads_from_every_run_what_it_returns() {
        let mut phase = Phase::new("ranges", Distribution::Uniform);
        phase.ranges = 10;
        phase.selectivity = 0.1;
        let report = reading(&[1000, 9000], 0).range(&phase);
        assert_eq!((report.ops, report.entries), (10, 10_000));
        assert!((report.runs_touched - 2.0).abs() < 1e-9);
        // 10,000 entries of about 120 bytes in 4 KiB blocks, a tenth of them, and two seeks, ten times.
        let data = report.blocks_read["data"];
        assert!((300..370).contains(&data), "{data}");
    }
}
