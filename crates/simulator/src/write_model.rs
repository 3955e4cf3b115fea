//! Model of the writes of a workload. It computes the contents of each memtable at its flush.
//!
//! The position of a key is its rank in key order, so keys are evenly distributed over positions. The key distribution
//! of the workload determines where new keys are inserted: at the end (`sequential`), in a moving window (`shifting`),
//! or anywhere (all other distributions).
//!
//! Updates, deletes and merges access existing keys. Keys are grouped into popularity classes. All keys of a class are
//! equally popular.
//!
//! The number of accesses to one key while a memtable is filled has a Poisson distribution. If its mean is l, the share
//! e⁻ˡ of the keys that existed before is not accessed. Each accessed key has one entry in the memtable, however often
//! it is accessed. An access to a key that the same memtable inserted adds no entry.

use crate::entry_counts::EntryCounts;
use crate::histogram::{Histogram, HistogramBin};
use crate::math::{len_to_u64, ratio, round_to_u64, to_f64, zipf_weight};
use crate::position::position_at_share;
use crate::seq_range::SeqRange;
use crate::workload::{
    KeyDistribution, NORMAL_DEVIATION, Phase, RANGE_DELETE_RECORDS, WINDOW_SHARE, WINDOWS,
};
use crate::write_counts::WriteCounts;

/// Number of popularity ranks of a class ÷ number of ranks of the previous class.
const CLASS_GROWTH: f64 = 4.0;
/// Number of popularity classes of a zipf distribution.
const ZIPF_CLASSES: usize = 14;
/// Number of zones into which the key domain is divided, for distributions that depend on the position.
const ZONES: usize = 200;

/// A part of the key domain into which inserts fall. Its bounds are shares of the domain.
#[derive(Clone, Copy, Debug)]
struct InsertRange {
    from: f64,
    to: f64,
    /// Share of the inserts that fall into this range.
    share: f64,
}

/// Shares of all keys and of all accesses that belong to one popularity class.
#[derive(Clone, Copy, Debug)]
struct PopularityClassShare {
    keys: f64,
    accesses: f64,
}

/// State of the key domain after the writes so far.
#[derive(Clone, Debug)]
pub(crate) struct WriteModel {
    /// Distribution of inserted keys. It is the distribution of the first phase.
    insert_distribution: KeyDistribution,
    /// Number of records of the whole workload.
    records: f64,
    /// Number of records inserted so far.
    inserted: f64,
    /// Share of the key domain that the current round of sequential accesses has passed.
    sequential_share: f64,
    /// Number of present keys in each zone of the key domain.
    live_by_zone: Vec<f64>,
    popularity_class_count: usize,
    /// For each class, the number of more popular ranks.
    class_starts: Vec<f64>,
    /// True if the last writes increased the number of keys beyond a power of two.
    needs_new_popularity: bool,
}

impl WriteModel {
    pub(crate) fn new(phases: &[Phase]) -> WriteModel {
        let insert_distribution =
            phases.first().map_or(KeyDistribution::Uniform, |phase| phase.distribution);
        let records: u64 = phases.iter().map(|phase| phase.inserts).sum();
        let has_zipf_writes = phases.iter().any(|phase| {
            phase.zipf_exponent().is_some() && phase.updates + phase.deletes + phase.merges > 0
        });
        let popularity_class_count = if has_zipf_writes { ZIPF_CLASSES } else { 1 };
        let depends_on_position = phases.iter().any(|phase| {
            matches!(phase.distribution, KeyDistribution::Sequential | KeyDistribution::Shifting)
                || phase.distribution != insert_distribution
        });
        let zones = if depends_on_position { ZONES } else { 1 };
        let class_starts = (0..popularity_class_count)
            .scan(0.0, |next, class| {
                let start = *next;
                *next = if class == 0 { 1.0 } else { *next * CLASS_GROWTH };
                Some(start)
            })
            .collect();
        WriteModel {
            insert_distribution,
            records: to_f64(records).max(1.0),
            inserted: 0.0,
            sequential_share: 0.0,
            live_by_zone: vec![0.0; zones],
            popularity_class_count,
            class_starts,
            needs_new_popularity: false,
        }
    }

    pub(crate) fn popularity_class_count(&self) -> usize {
        self.popularity_class_count
    }

    pub(crate) fn live_keys(&self) -> f64 {
        self.live_by_zone.iter().sum()
    }

    /// Returns the number of records of the whole workload. Includes records that are not inserted yet.
    pub(crate) fn total_records(&self) -> f64 {
        self.records
    }

    /// Returns the shares of each popularity class in a set of `keys` inserted keys.
    fn popularity_class_shares(&self, zipf: Option<f64>, keys: f64) -> Vec<PopularityClassShare> {
        let keys = keys.max(1.0);
        let mut shares: Vec<PopularityClassShare> = Vec::with_capacity(self.popularity_class_count);
        for class in 0..self.popularity_class_count {
            let from = self.class_starts[class].min(keys);
            let to = self.class_starts.get(class + 1).map_or(keys, |next| next.min(keys));
            let accesses = zipf.map_or(to - from, |exponent| zipf_weight(exponent, from, to));
            shares.push(PopularityClassShare { keys: (to - from) / keys, accesses });
        }
        let sum: f64 = shares.iter().map(|share| share.accesses).sum();
        for share in &mut shares {
            share.accesses = ratio(share.accesses, sum);
        }
        shares
    }

    /// Returns the parts of the key domain into which the next `count` inserts fall.
    fn insert_ranges(&self, count: f64) -> Vec<InsertRange> {
        let n = self.records;
        match self.insert_distribution {
            KeyDistribution::Sequential => {
                let (from, to) = (self.inserted / n, (self.inserted + count) / n);
                vec![InsertRange { from, to, share: 1.0 }]
            }
            KeyDistribution::Shifting => {
                let window = (n / to_f64(WINDOWS)).ceil();
                let (mut at, end) = (self.inserted, self.inserted + count);
                let mut ranges = Vec::new();
                while at < end - 1e-9 {
                    let start = libm::floor(at / window) * window;
                    let until = (start + window).min(end);
                    let window_end = (start + window).min(n);
                    let share = ratio(until - at, count);
                    ranges.push(InsertRange { from: start / n, to: window_end / n, share });
                    at = until;
                }
                ranges
            }
            _ => vec![InsertRange { from: 0.0, to: 1.0, share: 1.0 }],
        }
    }

    /// Returns the weight of each zone for the next `count` accesses to present keys.
    ///
    /// `progress` is the share of the phase that is done.
    fn access_weights_of_zones(&mut self, phase: &Phase, count: f64, progress: f64) -> Vec<f64> {
        let zones = self.live_by_zone.len();
        if zones == 1 {
            return vec![1.0];
        }
        let live = self.live_by_zone.clone();
        let width = 1.0 / to_f64(len_to_u64(zones));
        // Returns weights proportional to the overlap of each zone with `from..to`. Zones without keys have weight 0.
        let overlap = |from: f64, to: f64| -> Vec<f64> {
            (0..zones)
                .map(|zone| {
                    let start = to_f64(len_to_u64(zone)) * width;
                    let common = (to.min(start + width) - from.max(start)).max(0.0);
                    if live[zone] > 0.0 { common } else { 0.0 }
                })
                .collect()
        };
        // A share of the accesses follow `weights`. The others follow the number of present keys.
        let mix = |weights: Vec<f64>, share: f64| -> Vec<f64> {
            let (sum, live_sum) = (weights.iter().sum::<f64>(), live.iter().sum::<f64>());
            if sum <= 0.0 {
                return live.clone();
            }
            weights
                .iter()
                .zip(&live)
                .map(|(weight, live)| share * weight / sum + (1.0 - share) * ratio(*live, live_sum))
                .collect()
        };
        match phase.distribution {
            KeyDistribution::Sequential => {
                let present = (self.inserted / self.records).max(width);
                let from = self.sequential_share % present;
                self.sequential_share = from + count / self.records;
                let mut weights = overlap(from, from + count / self.records);
                let next_round = overlap(0.0, self.sequential_share - present);
                for (weight, more) in weights.iter_mut().zip(next_round) {
                    *weight += more;
                }
                mix(weights, 1.0)
            }
            KeyDistribution::Shifting => {
                let is_loading = self.inserted < self.records;
                let window = 1.0 / to_f64(WINDOWS) * (self.inserted / self.records);
                let weights = if is_loading && self.insert_distribution == KeyDistribution::Shifting
                {
                    let to = self.inserted / self.records;
                    overlap(to - window, to)
                } else if is_loading {
                    live.clone()
                } else {
                    let from = progress * (1.0 - window);
                    overlap(from, from + window)
                };
                mix(weights, WINDOW_SHARE)
            }
            KeyDistribution::Normal | KeyDistribution::PrefixZipf
                if phase.distribution != self.insert_distribution =>
            {
                let density = |zone: usize| {
                    let at = (to_f64(len_to_u64(zone)) + 0.5) * width;
                    if live[zone] > 0.0 { access_density(phase.distribution, at) } else { 0.0 }
                };
                mix((0..zones).map(density).collect(), 1.0)
            }
            _ => live,
        }
    }

    /// Distributes the entries of a file over the popularity classes again.
    ///
    /// This happens each time the number of keys has doubled, because the popularity of each key is then drawn again.
    pub(crate) fn reassign_popularity(&self, file: &mut Histogram) {
        let shares = self.popularity_class_shares(None, self.inserted);
        for classes in file.counts.chunks_mut(self.popularity_class_count) {
            let mut all = EntryCounts::default();
            classes.iter().for_each(|counts| all.add(counts));
            for (counts, share) in classes.iter_mut().zip(&shares) {
                *counts = all.scaled(share.keys);
            }
        }
    }

    /// Returns whether the last writes changed the popularity of keys.
    pub(crate) fn needs_new_popularity(&self) -> bool {
        self.popularity_class_count > 1 && self.needs_new_popularity
    }

    /// Applies writes of a phase. Returns the contents that a memtable with these writes has at its flush.
    ///
    /// `progress` is the share of the phase that is done. `seqs` are the sequence numbers of the writes.
    pub(crate) fn write(
        &mut self,
        phase: &Phase,
        writes: &WriteCounts,
        progress: f64,
        seqs: SeqRange,
    ) -> Histogram {
        let keys = self.inserted + writes.inserts / 2.0;
        let popularity_class_shares = self.popularity_class_shares(phase.zipf_exponent(), keys);
        let inserts = self.insert_ranges(writes.inserts);
        let accesses = writes.updates + writes.deletes + writes.merges;
        let access_weights_of_zones = self.access_weights_of_zones(phase, accesses, progress);
        let weight_sum: f64 = access_weights_of_zones.iter().sum();
        let mut memtable = Histogram::with_start(0);
        let mut counts = vec![EntryCounts::default(); self.popularity_class_count];
        let mut live_changes = Vec::new();
        for (from, to) in self.ranges_of_constant_density(&inserts) {
            let zone = self.zone_index_at((from + to) / 2.0);
            let zone_width = 1.0 / to_f64(len_to_u64(self.live_by_zone.len()));
            let zone_share = ((to - from) / zone_width).min(1.0);
            let access_share = ratio(access_weights_of_zones[zone], weight_sum) * zone_share;
            let inserted: f64 = inserts
                .iter()
                .map(|range| {
                    let common = (to.min(range.to) - from.max(range.from)).max(0.0);
                    writes.inserts * range.share * ratio(common, range.to - range.from)
                })
                .sum();
            for (counts, share) in counts.iter_mut().zip(&popularity_class_shares) {
                let present = self.live_by_zone[zone] * zone_share * share.keys;
                let accesses = writes.scaled(access_share * share.accesses);
                *counts = memtable_counts(present, inserted * share.keys, &accesses);
            }
            live_changes.push((zone, inserted - writes.deletes * access_share));
            let range_tombstones = writes.range_deletes * access_share;
            if range_tombstones > 0.0 {
                // Range deletes also cover records that are not inserted yet. These records are not deleted.
                let covered =
                    range_tombstones * to_f64(RANGE_DELETE_RECORDS) / ((to - from) * self.records);
                let left = libm::exp(-covered);
                let deleted = self.live_by_zone[zone] * zone_share * (1.0 - left);
                live_changes.push((zone, -deleted));
            }
            let end = position_at_share(to).saturating_sub(1).max(memtable.end_position());
            if memtable.bins.is_empty() {
                memtable.start = position_at_share(from);
            }
            memtable.push(HistogramBin { end, range_tombstones, seqs }, &counts);
        }
        for (zone, keys) in live_changes {
            self.live_by_zone[zone] = (self.live_by_zone[zone] + keys).max(0.0);
        }
        let doublings = |inserted: f64| libm::ceil(libm::log2(inserted.max(1.0)));
        self.needs_new_popularity =
            doublings(self.inserted + writes.inserts) > doublings(self.inserted);
        self.inserted += writes.inserts;
        memtable
    }

    /// Returns the parts of the key domain in which inserts and accesses have a constant density.
    fn ranges_of_constant_density(&self, inserts: &[InsertRange]) -> Vec<(f64, f64)> {
        let zones = self.live_by_zone.len();
        let mut ends: Vec<f64> =
            (0..=zones).map(|zone| to_f64(len_to_u64(zone)) / to_f64(len_to_u64(zones))).collect();
        ends.extend(inserts.iter().flat_map(|range| [range.from.min(1.0), range.to.min(1.0)]));
        ends.sort_by(f64::total_cmp);
        ends.dedup();
        ends.windows(2).map(|pair| (pair[0], pair[1])).collect()
    }

    /// Returns the zone at a share of the key domain.
    fn zone_index_at(&self, share: f64) -> usize {
        let zones = len_to_u64(self.live_by_zone.len());
        let zone = (share * to_f64(zones)).clamp(0.0, to_f64(zones - 1));
        usize::try_from(round_to_u64(libm::floor(zone))).unwrap_or(0)
    }
}

/// Returns the entries that a memtable has for one popularity class.
///
/// `present` is the number of keys before the writes. `inserts` is the number of new keys.
fn memtable_counts(present: f64, inserts: f64, accesses: &WriteCounts) -> EntryCounts {
    let after = (present + inserts - accesses.deletes).max(1.0);
    // Mean number of accesses to a key that was present before the writes. The number of keys changes linearly during
    // the writes.
    let accesses_per_key = |count: f64| {
        if present <= 0.0 {
            return 0.0;
        }
        let growth = after / present;
        if (growth - 1.0).abs() < 1e-6 {
            count / present
        } else {
            count * libm::log(growth) / (after - present)
        }
    };
    let untouched = |count: f64| libm::exp(-accesses_per_key(count));
    let pending_tombstones = present * (1.0 - untouched(accesses.deletes));
    let population = present - pending_tombstones;
    let updated = population * (1.0 - untouched(accesses.updates));
    let operands = (population - updated) * (1.0 - untouched(accesses.merges));
    let matched_tombstones = (accesses.deletes - pending_tombstones).clamp(0.0, inserts);
    EntryCounts {
        inserted: inserts - matched_tombstones,
        updated,
        operands,
        pending_tombstones,
        matched_tombstones,
        population,
    }
}

/// Returns the density of accesses at a position, relative to the maximum density. `at` is a share of the key domain.
fn access_density(distribution: KeyDistribution, at: f64) -> f64 {
    match distribution {
        KeyDistribution::Normal => {
            let x = (at - 0.5) / NORMAL_DEVIATION;
            libm::exp(-x * x / 2.0)
        }
        // Popular prefixes are scattered over the key domain, so all zones have about the same density.
        _ => 1.0,
    }
}
