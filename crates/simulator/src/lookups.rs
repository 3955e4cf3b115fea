//! Costs of lookups in a simulated tree: expected number of blocks per lookup that are not in the block cache.
//!
//! A lookup searches the runs from newest to oldest. In each run, the key range of at most one file contains the key.
//! The lookup reads the filter of this file, except in the last run, which has no filter. If the filter returns true,
//! the lookup reads the top index, one index block and one data block.
//!
//! As in the engine, the cache prefers metadata: first top indexes, then filters, then index blocks, then data blocks. If
//! the blocks of one kind do not all fit, the share that fits is cached. Filters of a run with fewer files are requested
//! more often, so they are cached before the filters of larger runs. Data blocks are evicted in LRU order.
//! [`block_cache`](crate::block_cache) computes their misses from the popularity of keys and from the runs in which
//! lookups end.

use std::collections::BTreeMap;

use lsmx_compaction::{SortedRun, TreeShape};

use crate::block_cache::{EquallyPopularBlocks, expected_misses, group_by_popularity};
use crate::file_grouping::FileGrouping;
use crate::math::{ratio, round_to_u64, to_f64};
use crate::position::{POSITION_COUNT, positions_of_range, range_width};
use crate::report::{PointLookupReport, RangeLookupReport};
use crate::table_size::{BLOCK_BYTES, EntryTotals, SizeModel};
use crate::workload::{KeyDistribution, LookupGroup, Phase};

/// Share of absent keys for which a filter with eight bits per key returns true.
const FALSE_POSITIVE_RATE: f64 = 1.0 / 256.0;

/// Mean costs of lookups in a phase that also writes, over several states of the tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct MeanLookupCosts {
    samples: f64,
    pub(crate) points: Vec<PointLookupReport>,
    pub(crate) ranges: RangeLookupReport,
}

impl MeanLookupCosts {
    /// Adds the costs of all lookups of the phase in one state of the tree.
    pub(crate) fn add(&mut self, points: Vec<PointLookupReport>, ranges: &RangeLookupReport) {
        self.samples += 1.0;
        let share = 1.0 / self.samples;
        let update = |mean: &mut f64, sample: f64| *mean += (sample - *mean) * share;
        let update_count = |mean: &mut u64, sample: u64| {
            let mut exact = to_f64(*mean);
            update(&mut exact, to_f64(sample));
            *mean = round_to_u64(exact);
        };
        let update_blocks = |means: &mut BTreeMap<String, u64>, samples: &BTreeMap<String, u64>| {
            for kind in samples.keys() {
                means.entry(kind.clone()).or_default();
            }
            for (kind, mean) in means {
                update_count(mean, samples.get(kind).copied().unwrap_or(0));
            }
        };
        if self.points.is_empty() {
            self.points = points;
            self.ranges = ranges.clone();
            return;
        }
        for (mean, sample) in self.points.iter_mut().zip(&points) {
            update(&mut mean.ios_per_get, sample.ios_per_get);
            update(&mut mean.runs_probed, sample.runs_probed);
            update_blocks(&mut mean.blocks_read, &sample.blocks_read);
        }
        update(&mut self.ranges.runs_touched, ranges.runs_touched);
        update_count(&mut self.ranges.entries, ranges.entries);
        update_blocks(&mut self.ranges.blocks_read, &ranges.blocks_read);
    }
}

/// Properties of a group of point lookups that affect their costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LookupContext {
    /// Distribution of the requested keys.
    pub(crate) distribution: KeyDistribution,
    /// Zipf exponent, used by [`KeyDistribution::Zipf`].
    pub(crate) zipf: f64,
    /// Number of lookups since the last write to the tree.
    pub(crate) lookups_before: f64,
}

/// Sizes of one run that determine the cost of lookups.
#[derive(Clone, Copy, Debug, Default)]
struct RunLookupSizes {
    /// Share of the key domain that the files of the run cover.
    domain_share: f64,
    puts: f64,
    entries: f64,
    /// Number of data blocks.
    data_blocks: f64,
    data_bytes: f64,
    index_bytes: f64,
    top_index_bytes: f64,
    filter_bytes: f64,
    filter_miss_rate: f64,
    is_last: bool,
}

impl RunLookupSizes {
    fn new(run: &SortedRun, grouping: &FileGrouping, sizes: &SizeModel) -> RunLookupSizes {
        let mut profile = RunLookupSizes::default();
        let tables: u64 = run.files.iter().map(|file| grouping.table_count(file)).sum();
        for file in &run.files {
            let (start, end) = positions_of_range(&file.range);
            profile.domain_share += range_width(start, end) / POSITION_COUNT;
            profile.entries += to_f64(file.entries);
            profile.puts += to_f64(file.entries.saturating_sub(file.tombstones));
        }
        // The tables of a run are similar, so a table of mean size represents all of them.
        let puts = profile.puts / to_f64(tables.max(1));
        let totals = EntryTotals { puts, ..EntryTotals::default() };
        let table = sizes.table_size(&totals, ratio(profile.entries, profile.domain_share));
        let tables = to_f64(tables);
        profile.domain_share = profile.domain_share.min(1.0);
        profile.data_blocks = table.data_blocks * tables;
        profile.data_bytes = table.data_bytes * tables;
        profile.index_bytes = table.index_bytes * tables;
        profile.top_index_bytes = table.top_index_bytes * tables;
        profile.filter_bytes = table.filter_bytes * tables;
        profile
    }
}

/// The runs of a tree, and the miss rates of the block cache.
#[derive(Clone, Debug)]
pub(crate) struct LookupModel {
    /// Ordered from newest to oldest.
    runs: Vec<RunLookupSizes>,
    live_keys: f64,
    top_index_miss_rate: f64,
    index_miss_rate: f64,
    /// Miss rate of data blocks, under the assumption that all blocks are equally popular.
    data_miss_rate: f64,
    /// Bytes of the cache that are left for data blocks after the metadata.
    data_cache_bytes: f64,
}

impl LookupModel {
    pub(crate) fn new(
        shape: &TreeShape,
        grouping: &FileGrouping,
        sizes: &SizeModel,
        live_keys: f64,
        cache_bytes: u64,
    ) -> LookupModel {
        let mut runs: Vec<RunLookupSizes> =
            shape.runs().map(|(_, run)| RunLookupSizes::new(run, grouping, sizes)).collect();
        if let Some(last) = runs.last_mut() {
            last.is_last = true;
        }
        let sum = |part: fn(&RunLookupSizes) -> f64| runs.iter().map(part).sum::<f64>();
        let top_index = sum(|run| run.top_index_bytes);
        let (index, data) = (sum(|run| run.index_bytes), sum(|run| run.data_bytes));
        let cache = to_f64(cache_bytes);
        let miss_rate = |before: f64, bytes: f64| {
            1.0 - if bytes > 0.0 { ((cache - before) / bytes).clamp(0.0, 1.0) } else { 1.0 }
        };
        let mut with_filter: Vec<_> = runs.iter_mut().filter(|run| !run.is_last).collect();
        with_filter.sort_by(|a, b| a.filter_bytes.total_cmp(&b.filter_bytes));
        let mut metadata = top_index;
        for run in with_filter {
            run.filter_miss_rate = miss_rate(metadata, run.filter_bytes);
            metadata += run.filter_bytes;
        }
        LookupModel {
            live_keys,
            top_index_miss_rate: miss_rate(0.0, top_index),
            index_miss_rate: miss_rate(metadata, index),
            data_miss_rate: miss_rate(metadata + index, data),
            data_cache_bytes: (cache - metadata - index).max(0.0),
            runs,
        }
    }

    pub(crate) fn point_lookups(
        &self,
        lookups: &LookupGroup,
        context: &LookupContext,
    ) -> PointLookupReport {
        let absent = self.block_reads(None);
        let all_puts: f64 = self.runs.iter().map(|run| run.puts).sum();
        // Each put of a run is assumed to be the newest entry of its key, until the puts of the newer runs add up to
        // the number of live keys.
        let (mut left, mut present) = (self.live_keys.min(all_puts), BlockReads::default());
        let mut found = 0.0;
        for (at, run) in self.runs.iter().enumerate() {
            let here = if run.is_last { left } else { run.puts.min(left) };
            left -= here;
            found += here;
            present.add_scaled(&self.block_reads(Some(at)), here);
        }
        let alpha = lookups.alpha;
        let mut reads = absent.scaled(alpha);
        reads.add_scaled(&present.scaled(ratio(1.0, found)), 1.0 - alpha);
        let ops = to_f64(lookups.ops);
        let mut misses = self.block_misses(&reads);
        misses.insert("data", self.data_block_misses(&reads, context, ops));
        PointLookupReport {
            alpha,
            ops: lookups.ops,
            ios_per_get: misses.values().sum(),
            blocks_read: total_blocks(&misses, ops),
            filter_false_positive_rate: FALSE_POSITIVE_RATE,
            runs_probed: reads.runs,
        }
    }

    /// Returns the number of data blocks per lookup that are not in the cache, computed from the popularity of blocks.
    fn data_block_misses(&self, reads: &BlockReads, context: &LookupContext, ops: f64) -> f64 {
        let mut groups = Vec::new();
        for (run, &requests_per_lookup) in self.runs.iter().zip(&reads.data_by_run) {
            let blocks = run.data_blocks;
            match context.distribution {
                // Successive lookups request neighbouring keys, which are often in the same block.
                KeyDistribution::Sequential => groups.push(EquallyPopularBlocks {
                    blocks,
                    requests_per_lookup: requests_per_lookup * ratio(blocks, run.entries).min(1.0),
                }),
                KeyDistribution::Zipf => {
                    let keys = run.entries.max(1.0);
                    groups.extend(group_by_popularity(
                        context.zipf,
                        blocks,
                        keys,
                        requests_per_lookup,
                    ));
                }
                _ => groups.push(EquallyPopularBlocks { blocks, requests_per_lookup }),
            }
        }
        let block_bytes = ratio(
            self.runs.iter().map(|run| run.data_bytes).sum(),
            self.runs.iter().map(|run| run.data_blocks).sum(),
        );
        let cache_blocks = ratio(self.data_cache_bytes, block_bytes);
        expected_misses(&groups, cache_blocks, context.lookups_before, ops)
    }

    /// Returns the blocks that one lookup reads. `holder` is the index of the run with the newest entry of the key, or
    /// `None` if no run contains the key.
    fn block_reads(&self, holder: Option<usize>) -> BlockReads {
        let mut reads =
            BlockReads { data_by_run: vec![0.0; self.runs.len()], ..BlockReads::default() };
        for (at, run) in self.runs.iter().enumerate() {
            let holds = holder == Some(at);
            let probed = if holds { 1.0 } else { run.domain_share };
            let pass_rate = if holds || run.is_last { 1.0 } else { FALSE_POSITIVE_RATE };
            reads.runs += probed;
            reads.filter_misses += probed * run.filter_miss_rate;
            reads.top_index += probed * pass_rate;
            reads.index += probed * pass_rate;
            reads.data += probed * pass_rate;
            reads.data_by_run[at] = probed * pass_rate;
            if holds {
                break;
            }
        }
        reads
    }

    pub(crate) fn range_lookups(&self, phase: &Phase) -> RangeLookupReport {
        let entries = (self.live_keys * phase.selectivity).max(1.0);
        let share = ratio(entries, self.live_keys).min(1.0);
        let mut reads = BlockReads::default();
        for run in &self.runs {
            // The seek reads one block of each kind. The entries of the range need further blocks.
            let data = run.data_blocks * share;
            let index_blocks = (run.index_bytes / to_f64(BLOCK_BYTES)).max(1.0);
            let blocks_per_index = ratio(run.data_blocks, index_blocks).max(1.0);
            reads.runs += run.domain_share;
            reads.top_index += run.domain_share;
            reads.index += run.domain_share + data / blocks_per_index;
            reads.data += run.domain_share + data;
        }
        let misses = self.block_misses(&reads);
        RangeLookupReport {
            ops: phase.ranges,
            entries: round_to_u64(entries) * phase.ranges,
            runs_touched: reads.runs,
            blocks_read: total_blocks(&misses, to_f64(phase.ranges)),
        }
    }

    /// Returns the number of blocks per lookup that are not in the cache, by kind. Assumes that all data blocks are
    /// equally popular.
    fn block_misses(&self, reads: &BlockReads) -> BTreeMap<&'static str, f64> {
        BTreeMap::from([
            ("filter", reads.filter_misses),
            ("top_index", reads.top_index * self.top_index_miss_rate),
            ("index", reads.index * self.index_miss_rate),
            ("data", reads.data * self.data_miss_rate),
        ])
    }
}

/// Returns the number of blocks for all lookups, by kind. Omits kinds without reads.
fn total_blocks(misses: &BTreeMap<&'static str, f64>, ops: f64) -> BTreeMap<String, u64> {
    let blocks =
        misses.iter().map(|(kind, misses)| ((*kind).to_owned(), round_to_u64(misses * ops)));
    blocks.filter(|(_, blocks)| *blocks > 0).collect()
}

/// Number of blocks that a lookup reads from the cache or from storage, by kind.
#[derive(Clone, Debug, Default)]
struct BlockReads {
    runs: f64,
    /// Number of filters that are not in the cache.
    filter_misses: f64,
    top_index: f64,
    index: f64,
    data: f64,
    /// Number of data blocks by run.
    data_by_run: Vec<f64>,
}

impl BlockReads {
    fn scaled(&self, share: f64) -> BlockReads {
        let mut scaled = BlockReads::default();
        scaled.add_scaled(self, share);
        scaled
    }

    fn add_scaled(&mut self, other: &BlockReads, share: f64) {
        self.runs += other.runs * share;
        self.filter_misses += other.filter_misses * share;
        self.top_index += other.top_index * share;
        self.index += other.index * share;
        self.data += other.data * share;
        self.data_by_run.resize(self.data_by_run.len().max(other.data_by_run.len()), 0.0);
        for (data, more) in self.data_by_run.iter_mut().zip(&other.data_by_run) {
            *data += more * share;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lsmx_compaction::{FileId, KeyRange, Level, LevelShape, RunId, SortedRun, TableMeta};

    use super::*;
    use crate::workload::ZIPF_EXPONENT;

    /// Returns a tree with runs of these numbers of entries, newest run first. Each run is one file over all keys.
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
            Arc::new(SortedRun { id: RunId(id), files: vec![Arc::new(file)].into() })
        };
        let runs = (0..).zip(entries).map(run).collect();
        let levels = vec![Arc::new(LevelShape { runs, cursor: None })];
        TreeShape { levels, run_id_next: 100, ..TreeShape::default() }
    }

    fn model(entries: &[u64], cache_bytes: u64) -> LookupModel {
        let shape = tree(entries);
        assert_eq!(shape.runs_of(Level(0)).len(), entries.len());
        let live = entries.iter().sum::<u64>();
        let (grouping, sizes) = (FileGrouping::ungrouped(), SizeModel::new(16, 100, 1 << 20));
        LookupModel::new(&shape, &grouping, &sizes, to_f64(live), cache_bytes)
    }

    fn uniform_context() -> LookupContext {
        let distribution = KeyDistribution::Uniform;
        LookupContext { distribution, zipf: ZIPF_EXPONENT, lookups_before: 1e12 }
    }

    fn ios(model: &LookupModel, alpha: f64) -> f64 {
        let context = uniform_context();
        model.point_lookups(&LookupGroup { alpha, ops: 100 }, &context).ios_per_get
    }

    #[test]
    fn point_lookups_without_cache_read_every_block() {
        let model = model(&[1000, 1000, 8000], 0);
        // Two filters; in the last run a top index, an index block and a data block.
        let absent = 2.0 * (1.0 + 3.0 * FALSE_POSITIVE_RATE) + 3.0;
        assert!((ios(&model, 1.0) - absent).abs() < 1e-9);
        // Each of the upper runs holds a tenth of the keys.
        let f = FALSE_POSITIVE_RATE * 3.0;
        let present = 0.1 * 4.0 + 0.1 * (1.0 + f + 4.0) + 0.8 * (2.0 * (1.0 + f) + 3.0);
        assert!((ios(&model, 0.0) - present).abs() < 1e-9);
        let half = ios(&model, 0.5);
        assert!((half - (absent + present) / 2.0).abs() < 1e-9);
    }

    #[test]
    fn cache_holds_metadata_before_data() {
        let runs = [1000, 1000, 80_000];
        let all = model(&runs, 1 << 30);
        assert!(ios(&all, 0.0) < 1e-9 && ios(&all, 1.0) < 1e-9);
        let none = model(&runs, 0);
        let metadata: f64 = none
            .runs
            .iter()
            .map(|run| run.top_index_bytes + if run.is_last { 0.0 } else { run.filter_bytes })
            .sum();
        let index: f64 = none.runs.iter().map(|run| run.index_bytes).sum();
        let first = model(&runs, round_to_u64(metadata) + 1);
        assert!((1.9..2.1).contains(&ios(&first, 1.0)), "{}", ios(&first, 1.0));
        let second = model(&runs, round_to_u64(metadata + index) + 1);
        assert!((0.9..1.1).contains(&ios(&second, 1.0)), "{}", ios(&second, 1.0));
    }

    #[test]
    fn cache_holds_top_indexes_and_filters_of_small_runs_first() {
        let runs = [1000, 10_000, 80_000];
        let none = model(&runs, 0);
        let top: f64 = none.runs.iter().map(|run| run.top_index_bytes).sum();
        let small = none.runs[0].filter_bytes;
        let filters = |cache: f64| {
            let context = uniform_context();
            let lookups = LookupGroup { alpha: 1.0, ops: 1000 };
            let blocks =
                model(&runs, round_to_u64(cache)).point_lookups(&lookups, &context).blocks_read;
            ["top_index", "filter"].map(|kind| blocks.get(kind).copied().unwrap_or(0))
        };
        assert_eq!(filters(0.0), [1008, 2000]);
        assert_eq!(filters(top + 1.0)[0], 0);
        assert_eq!(filters(top + small + 1.0), [0, 1000]);
        assert_eq!(filters(top + small + none.runs[1].filter_bytes + 1.0), [0, 0]);
    }

    #[test]
    fn mean_lookup_costs_average_all_samples() {
        let lookups = LookupGroup { alpha: 0.0, ops: 100 };
        let trees = [&[9000][..], &[1000, 9000][..], &[1000, 1000, 9000][..]];
        let context = uniform_context();
        let points = trees.map(|entries| model(entries, 0).point_lookups(&lookups, &context));
        let mut costs = MeanLookupCosts::default();
        for point in &points {
            costs.add(vec![point.clone()], &RangeLookupReport::default());
        }
        let mean = points.iter().map(|point| point.ios_per_get).sum::<f64>() / 3.0;
        let found = &costs.points[0];
        assert!((found.ios_per_get - mean).abs() < 1e-9, "{found:?}");
        assert_eq!(found.ops, 100);
        // The first of the three samples reads no filters.
        let filters: u64 = points.iter().filter_map(|it| it.blocks_read.get("filter")).sum();
        assert!(found.blocks_read["filter"].abs_diff(filters / 3) <= 2, "{found:?}");
    }

    #[test]
    fn range_lookups_read_their_share_of_each_run() {
        let mut phase = Phase::new("ranges", KeyDistribution::Uniform);
        phase.ranges = 10;
        phase.selectivity = 0.1;
        let report = model(&[1000, 9000], 0).range_lookups(&phase);
        assert_eq!((report.ops, report.entries), (10, 10_000));
        assert!((report.runs_touched - 2.0).abs() < 1e-9);
        // Ten lookups. Each has two seeks and reads a tenth of 10,000 entries of about 120 bytes, in blocks of 4 KiB.
        let data = report.blocks_read["data"];
        assert!((300..370).contains(&data), "{data}");
    }
}
