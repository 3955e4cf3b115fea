//! Compares estimates with sets of real keys, and runs small simulations of all presets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lsmx_compaction::{CompactionPolicy, Debt, Job, PolicySpec, Preset, RunningJobs, TreeShape};

use crate::config::{Config, SUBCOMPACTIONS_DEFAULT};
use crate::entry_counts::EntryCounts;
use crate::error::Error;
use crate::histogram::Histogram;
use crate::math::{len_to_u64, round_to_u64, to_f64};
use crate::merge::{OlderRuns, merge};
use crate::merge_input::MergeInput;
use crate::output_writer::{OutputTimestamps, OutputWriter, WriteBuffers};
use crate::report::{LevelReport, PointLookupReport, Report};
use crate::sampler::Sampler;
use crate::seq_range::SeqRange;
use crate::simulation::{simulate, simulate_policy};
use crate::split_points::SplitPoints;
use crate::table_size::SizeModel;
use crate::workload::{KeyDistribution, LookupGroup, Phase, ZIPF_EXPONENT};
use crate::write_counts::WriteCounts;
use crate::write_model::WriteModel;

/// The newest write of each key: `true` for a put, `false` for a delete.
type KeySet = BTreeMap<u64, bool>;

/// Generates the keys of a workload one by one.
struct KeyGenerator {
    sampler: Sampler,
    is_zipf: bool,
    inserted: u64,
    deleted: BTreeSet<u64>,
}

impl KeyGenerator {
    fn below(&mut self, n: u64) -> u64 {
        round_to_u64((self.sampler.uniform() * to_f64(n)).floor()).min(n - 1)
    }

    /// Returns a present key.
    fn present_key(&mut self) -> u64 {
        loop {
            let key = if self.is_zipf {
                // Inverse of the integral of k^-0.99.
                let power = 1.0 - ZIPF_EXPONENT;
                let most = libm::pow(to_f64(self.inserted) + 0.5, power);
                let least = libm::pow(0.5, power);
                let u = least + self.sampler.uniform() * (most - least);
                let rank = round_to_u64(libm::pow(u, 1.0 / power)).max(1) - 1;
                self.key_of_rank(rank.min(self.inserted - 1))
            } else {
                self.below(self.inserted)
            };
            if !self.deleted.contains(&key) {
                return key;
            }
        }
    }

    /// Maps each popularity rank to a different key. The mapping changes when the number of keys doubles.
    fn key_of_rank(&self, rank: u64) -> u64 {
        let width = self.inserted.next_power_of_two();
        let mut key = rank;
        loop {
            key = (key * 40_503 + 12_345) % width;
            key = ((key ^ (key >> 5)) * 2_789) % width;
            if key < self.inserted {
                return key;
            }
        }
    }

    /// Returns the contents of a memtable after writes in random order.
    fn write_memtable(&mut self, inserts: u64, updates: u64, deletes: u64) -> KeySet {
        let mut keys = KeySet::new();
        let mut left = [inserts, updates, deletes];
        while left.iter().sum::<u64>() > 0 {
            let mut choice = self.below(left.iter().sum());
            let mut kind = 0;
            while choice >= left[kind] {
                choice -= left[kind];
                kind += 1;
            }
            left[kind] -= 1;
            if kind == 0 || self.inserted == 0 {
                keys.insert(self.inserted, true);
                self.inserted += 1;
            } else {
                let key = self.present_key();
                keys.insert(key, kind == 1);
                if kind == 2 {
                    self.deleted.insert(key);
                }
            }
        }
        keys
    }
}

fn merge_sets(newer: &KeySet, older: &KeySet) -> KeySet {
    let mut both = older.clone();
    both.extend(newer);
    both
}

/// Merges histograms, newest first. `has_older` states whether an older run overlaps them.
fn merge_histograms(inputs: &[&Histogram], has_older: bool, classes: usize) -> Histogram {
    let sizes = SizeModel::new(16, 100, 1000);
    let times = OutputTimestamps { now_us: 0, oldest_tombstone_us: None };
    let mut buffers = WriteBuffers::default();
    let writer = OutputWriter::new(&sizes, times, usize::MAX, 1, &mut buffers);
    let inputs = inputs.iter().map(|&input| MergeInput::new(vec![input])).collect();
    let mut older = OlderRuns::default();
    if has_older {
        older.add_run(vec![(0, u64::MAX)]);
    }
    let (splits, mut sampler) = (SplitPoints::without_splits(), Sampler::new(5));
    let outputs = merge(inputs, older, splits, writer, classes, 1e6, &mut sampler);
    outputs.into_iter().next_back().unwrap().contents
}

/// Returns the estimated numbers of puts and tombstones.
fn estimated_counts(contents: &Histogram) -> (f64, f64) {
    let puts = contents.counts.iter().map(EntryCounts::puts).sum();
    (puts, contents.counts.iter().map(EntryCounts::tombstones).sum())
}

/// Returns the real numbers of puts and tombstones.
fn real_counts(keys: &KeySet) -> (f64, f64) {
    let puts = len_to_u64(keys.values().filter(|put| **put).count());
    (to_f64(puts), to_f64(len_to_u64(keys.len()) - puts))
}

fn assert_close(what: &str, found: (f64, f64), expected: (f64, f64), tolerance: f64) {
    let is_close = |a: f64, b: f64| (a - b).abs() <= tolerance * b + 12.0;
    assert!(
        is_close(found.0, expected.0) && is_close(found.1, expected.1),
        "{what}: estimated {found:?}, real {expected:?}"
    );
}

/// Writes equal memtables and merges them step by step. Compares estimated counts with real counts after each step.
fn compare(
    distribution: KeyDistribution,
    inserts: u64,
    updates: u64,
    deletes: u64,
    tolerance: f64,
) {
    const MEMTABLES: u64 = 24;
    let mut phase = Phase::new("load", distribution);
    phase.inserts = inserts * MEMTABLES;
    phase.updates = updates * MEMTABLES;
    phase.deletes = deletes * MEMTABLES;
    let is_zipf = distribution == KeyDistribution::Zipf;
    let mut generator =
        KeyGenerator { sampler: Sampler::new(3), is_zipf, inserted: 0, deleted: BTreeSet::new() };
    let mut model = WriteModel::new(std::slice::from_ref(&phase));
    let writes = WriteCounts::from_phase(&phase).scaled(1.0 / to_f64(MEMTABLES));
    let classes = model.popularity_class_count();
    let assert_equal = |what: &str, contents: &Histogram, keys: &KeySet| {
        let what = format!("{distribution} {what}");
        assert_close(&what, estimated_counts(contents), real_counts(keys), tolerance);
    };
    // As in a tree, four memtables are merged at a time. Later writes change the popularity of keys.
    let (mut sets, mut memtables) = (Vec::new(), Vec::new());
    let (mut merged, mut merged_sets): (Vec<Histogram>, Vec<KeySet>) = (Vec::new(), Vec::new());
    for memtable in 0..MEMTABLES {
        let keys = generator.write_memtable(inserts, updates, deletes);
        let seqs = SeqRange { smallest: memtable, largest: memtable };
        let contents = model.write(&phase, &writes, 0.0, seqs);
        if model.needs_new_popularity() {
            let files = merged.iter_mut().chain(&mut memtables);
            files.for_each(|file| model.reassign_popularity(file));
        }
        assert_equal(&format!("memtable {memtable}"), &contents, &keys);
        sets.push(keys);
        memtables.push(contents);
        if memtables.len() < 4 {
            continue;
        }
        let newest_first: Vec<&Histogram> = memtables.iter().rev().collect();
        let keys = sets.iter().fold(KeySet::new(), |all, keys| merge_sets(keys, &all));
        let contents = merge_histograms(&newest_first, true, classes);
        assert_equal(&format!("four memtables up to {memtable}"), &contents, &keys);
        merged.push(contents);
        merged_sets.push(keys);
        sets.clear();
        memtables.clear();
    }
    let merge_three = |newest: usize| {
        let older = merge_sets(&merged_sets[newest - 1], &merged_sets[newest - 2]);
        merge_sets(&merged_sets[newest], &older)
    };
    let upper = merge_histograms(&[&merged[5], &merged[4], &merged[3]], true, classes);
    let upper_keys = merge_three(5);
    assert_equal("upper run", &upper, &upper_keys);
    let lower = merge_histograms(&[&merged[2], &merged[1], &merged[0]], false, classes);
    let mut lower_keys = merge_three(2);
    lower_keys.retain(|_, put| *put);
    assert_equal("last run", &lower, &lower_keys);
    let mut all_keys = merge_sets(&upper_keys, &lower_keys);
    let all = merge_histograms(&[&upper, &lower], true, classes);
    assert_equal("all, not in the last run", &all, &all_keys);
    all_keys.retain(|_, put| *put);
    let all = merge_histograms(&[&upper, &lower], false, classes);
    assert_equal("all", &all, &all_keys);
    assert_close("live keys", (model.live_keys(), 0.0), real_counts(&all_keys), tolerance);
}

#[test]
fn estimates_of_unique_inserts_agree_with_keys() {
    compare(KeyDistribution::Uniform, 2000, 0, 0, 0.001);
}

#[test]
fn estimates_of_uniform_updates_agree_with_keys() {
    compare(KeyDistribution::Uniform, 2000, 2000, 0, 0.015);
    compare(KeyDistribution::Uniform, 200, 3000, 0, 0.02);
}

#[test]
fn estimates_of_deletes_agree_with_keys() {
    compare(KeyDistribution::Uniform, 3000, 0, 400, 0.015);
    compare(KeyDistribution::Uniform, 2000, 1000, 1000, 0.03);
}

#[test]
fn estimates_of_zipf_updates_agree_with_keys() {
    compare(KeyDistribution::Zipf, 2000, 2000, 0, 0.04);
}

/// Returns a small workload with enough flushes to fill every level.
fn small_config(updates: u64, deletes: u64, seed: u64) -> Config {
    let mut load = Phase::new("load", KeyDistribution::Uniform);
    load.inserts = 30_000 - updates - deletes;
    load.updates = updates;
    load.deletes = deletes;
    load.settle = true;
    Config {
        phases: vec![load],
        key_bytes: 16,
        value_bytes: 112,
        memtable_bytes: 45_000,
        table_bytes: 45_000,
        block_cache_bytes: 1 << 20,
        subcompactions_max: SUBCOMPACTIONS_DEFAULT,
        seed,
    }
}

#[test]
fn simulate_presets_with_any_seed_keeps_every_key() {
    for preset in Preset::ALL.into_iter().filter(|preset| *preset != Preset::Fifo) {
        let spec: PolicySpec = preset.name().parse().unwrap();
        for (updates, deletes) in [(0, 0), (15_000, 0), (0, 3_000), (9_000, 9_000)] {
            for seed in 0..4 {
                let config = small_config(updates, deletes, seed);
                let report = simulate(&config, &spec, &mut |_| true).unwrap();
                let what = format!("{spec} {updates} {deletes} seed {seed}");
                let sum =
                    |part: fn(&LevelReport) -> u64| -> u64 { report.levels.iter().map(part).sum() };
                let puts = sum(|level| level.entries) - sum(|level| level.tombstones);
                let live = 30_000 - updates - 2 * deletes;
                // The numbers of entries of a file are rounded to integers.
                assert!(puts + 300 + live / 50 >= live, "{what}: {puts} puts, {live} keys");
                assert!(updates + deletes > 0 || puts.abs_diff(live) < 300, "{what}: {puts} puts");
                assert!(report.flushes >= 100, "{what}: {} flushes", report.flushes);
                let again = simulate(&config, &spec, &mut |_| true).unwrap();
                assert_eq!(report, again, "{what}");
            }
        }
    }
}

#[test]
fn simulate_cancelled_by_caller_stops_after_flush() {
    let spec: PolicySpec = "tiering".parse().unwrap();
    let mut flushes = 0;
    let result = simulate(&small_config(0, 0, 1), &spec, &mut |_| {
        flushes += 1;
        flushes < 5
    });
    assert!(matches!(result, Err(Error::Cancelled)) && flushes == 5);
}

/// Bug: the memtable was full when it was empty, and the simulation flushed it without end.
#[test]
fn simulate_too_small_memtable_is_error() {
    let spec: PolicySpec = "lo+1".parse().unwrap();
    let config = |memtable_bytes| Config { memtable_bytes, ..small_config(0, 0, 1) };
    for memtable_bytes in [0, 64, 500, 1023] {
        // Without the error, the caller cancels the simulation after its first flush.
        let result = simulate(&config(memtable_bytes), &spec, &mut |_| false);
        let is_refused =
            matches!(result, Err(Error::SmallMemtable { bytes }) if bytes == memtable_bytes);
        assert!(is_refused, "{memtable_bytes}: {result:?}");
    }
    let result = simulate(&config(1024), &spec, &mut |_| false);
    assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
}

/// Bug: the writes up to the first tombstone of a memtable and all writes after it were one step, which ended only when
/// the memtable was full.
#[test]
fn simulate_memtable_with_tombstone_is_flushed_at_its_maximum_age() {
    let flushes = |spec: &str| {
        let spec: PolicySpec = spec.parse().unwrap();
        simulate(&small_config(0, 3_000, 1), &spec, &mut |_| true).unwrap().flushes
    };
    // A tenth of the bound of 2 % is 1/500 of the run, which is less than a full memtable.
    let by_age = flushes("tsa(0.02)");
    assert!((400..=520).contains(&by_age), "{by_age}");
    assert!(flushes("tsa(0.5)") < 200);
}

/// Regression: in a simulation of 2⁶⁴ writes, sums overflowed and the simulation never ended.
#[test]
fn simulate_past_a_bound_fails_with_the_estimated_size() {
    let spec: PolicySpec = "leveled".parse().unwrap();
    let config = |entries, memtable_bytes| Config {
        phases: vec![Phase { inserts: entries, ..Phase::new("load", KeyDistribution::Uniform) }],
        memtable_bytes,
        table_bytes: memtable_bytes,
        ..small_config(0, 0, 1)
    };
    for (entries, memtable_bytes) in [(u64::MAX, 1 << 56), (1 << 45, 1 << 20)] {
        let config = config(entries, memtable_bytes);
        let mut flushes = 0;
        let result = simulate(&config, &spec, &mut |_| {
            flushes += 1;
            false
        });
        let expected = config.estimate_size();
        assert!(matches!(result, Err(Error::TooLarge(size)) if size == expected));
        assert_eq!(flushes, 0);
    }
    // A large tree with few flushes is within the bounds.
    assert!(simulate(&config(1 << 40, 1 << 40), &spec, &mut |_| true).is_ok());
}

/// A policy that states that it picks single files, which prevents the grouping of files.
#[derive(Debug)]
struct UngroupedPolicy(Arc<dyn CompactionPolicy>);

impl CompactionPolicy for UngroupedPolicy {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn pick(&self, shape: &TreeShape, busy: &RunningJobs) -> Option<Job> {
        self.0.pick(shape, busy)
    }

    fn debt(&self, shape: &TreeShape, busy: &RunningJobs) -> Debt {
        self.0.debt(shape, busy)
    }

    fn must_stop_writes(&self, shape: &TreeShape) -> bool {
        self.0.must_stop_writes(shape)
    }
}

fn build_policy(preset: Preset) -> Arc<dyn CompactionPolicy> {
    PolicySpec::new(preset).build()
}

#[test]
fn simulate_with_grouped_files_agrees_with_single_tables() {
    let mut writes = Phase::new("write", KeyDistribution::Uniform);
    (writes.inserts, writes.updates) = (230_000_000, 20_000_000);
    let mut reads = Phase::new("read", KeyDistribution::Uniform);
    reads.lookups = vec![LookupGroup { alpha: 0.5, ops: 1_000_000 }];
    let config = Config {
        phases: vec![writes, reads],
        key_bytes: 32,
        value_bytes: 110,
        memtable_bytes: 16 << 20,
        table_bytes: 16 << 20,
        block_cache_bytes: 1 << 30,
        subcompactions_max: 2,
        seed: 1,
    };
    for preset in [Preset::Tiering, Preset::LazyLeveling] {
        let policy = build_policy(preset);
        assert!(!policy.can_pick_single_files(), "{preset:?}");
        let grouped = simulate_policy(&config, &*policy, &mut |_| true).unwrap();
        let single = simulate_policy(&config, &UngroupedPolicy(policy), &mut |_| true).unwrap();
        assert_eq!(grouped.compaction.jobs, single.compaction.jobs, "{preset:?}");
        let assert_close = |value: fn(&Report) -> f64, tolerance: f64| {
            let (found, expected) = (value(&grouped), value(&single));
            let is_close = (found - expected).abs() <= tolerance * expected;
            assert!(is_close, "{preset:?}: {found}, not {expected}");
        };
        assert_close(|report| report.data_moved_ratio, 0.002);
        assert_close(|report| report.space_amplification, 0.002);
        assert_close(|report| to_f64(report.files()), 0.01);
        assert_eq!(grouped.point_lookups.len(), single.point_lookups.len());
        assert_close(|report| report.point_lookups[0].ios_per_get, 0.01);
    }
}

/// Regression test: each phase had a report of its own. Reports with equal shares of absent keys had the same names in a
/// flat table, so that only one of them remained.
#[test]
fn lookups_of_phases_with_the_same_share_of_absent_keys_are_added() {
    let mut writes = Phase::new("write", KeyDistribution::Uniform);
    writes.inserts = 50_000;
    let reads = |ops: u64, alphas: &[f64]| {
        let mut reads = Phase::new("read", KeyDistribution::Uniform);
        reads.lookups = alphas.iter().map(|&alpha| LookupGroup { alpha, ops }).collect();
        reads
    };
    let config = |phases: Vec<Phase>| Config {
        phases,
        key_bytes: 16,
        value_bytes: 112,
        memtable_bytes: 64 << 10,
        table_bytes: 64 << 10,
        block_cache_bytes: 0,
        subcompactions_max: SUBCOMPACTIONS_DEFAULT,
        seed: 1,
    };
    let spec = PolicySpec::new(Preset::Tiering);
    let lookups = |phases| simulate(&config(phases), &spec, &mut |_| true).unwrap().point_lookups;
    let first = lookups(vec![writes.clone(), reads(1000, &[0.5, 0.0])]);
    let more = reads(3000, &[0.5]);
    let both = lookups(vec![writes.clone(), reads(1000, &[0.5, 0.0]), writes.clone(), more]);
    let ops = |lookups: &[PointLookupReport]| {
        lookups.iter().map(|it| (it.alpha, it.ops)).collect::<Vec<_>>()
    };
    assert_eq!(ops(&both), [(0.5, 4000), (0.0, 1000)]);
    // The second phase of lookups reads a larger tree.
    let mean = first[0].ios_per_get;
    assert!(both[0].ios_per_get > mean, "{} and {mean}", both[0].ios_per_get);
    let blocks = to_f64(both[0].blocks_read.values().sum()) / 4000.0;
    assert!((both[0].ios_per_get - blocks).abs() < 0.01, "{} and {blocks}", both[0].ios_per_get);
}

#[test]
fn is_file_based_is_true_for_presets_that_choose_files() {
    let by_run = [Preset::Full, Preset::FullPreemptive, Preset::Universal, Preset::Fluid];
    for preset in by_run {
        assert!(!build_policy(preset).can_pick_single_files(), "{preset:?}");
    }
    let by_file =
        [Preset::LeastOverlap, Preset::OneLeveling, Preset::Leveled, Preset::Spooky, Preset::Fifo];
    for preset in by_file {
        assert!(build_policy(preset).can_pick_single_files(), "{preset:?}");
    }
}
