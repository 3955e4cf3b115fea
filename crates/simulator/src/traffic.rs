//! Which keys a workload writes: what one memtable holds when it is flushed.
//!
//! Places are ranks: the share of the workload's keys that sort before a key. Wherever a
//! distribution puts its keys, by rank they lie evenly, and what is inserted when is all that is
//! left of it: anywhere (most), at the end (`sequential`), in a window that moves (`shifting`).
//!
//! Updates, deletes and merges ask for keys that are there. They do so by popularity class: keys of
//! one class are asked for alike. Over a memtable of many writes a key that was there before is left
//! alone with chance e⁻ˡ, where l is how often it is asked for on average, and what is asked for of
//! the keys that the memtable inserts itself makes no further entry.

use crate::workload::{Distribution, Phase, RANGE_DELETE_PLACES, WINDOWS, ZIPF_EXPONENT};

use crate::body::{Body, Stretch};
use crate::content::Content;
use crate::numbers::{DOMAIN, ratio, real, whole};
use crate::seqs::Seqs;

/// Popularity ranks of each class but the last are this many times those of the one before.
const CLASS_GROWTH: f64 = 4.0;
/// Popularity classes of a zipf distribution.
const CLASSES_OF_ZIPF: usize = 14;
/// Parts of the key domain that populations are kept for where inserts do not go anywhere.
const ZONES: usize = 200;
/// Share of the accesses of a moving window that go to the window.
const WINDOW_SHARE: f64 = crate::workload::WINDOW_SHARE;

/// Writes of one memtable, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Writes {
    pub(super) inserts: f64,
    pub(super) updates: f64,
    pub(super) deletes: f64,
    pub(super) merges: f64,
    pub(super) range_deletes: f64,
}

impl Writes {
    pub(super) fn of(phase: &Phase) -> Writes {
        Writes {
            inserts: real(phase.inserts),
            updates: real(phase.updates),
            deletes: real(phase.deletes),
            merges: real(phase.merges),
            range_deletes: real(phase.range_deletes),
        }
    }

    pub(super) fn all(&self) -> f64 {
        self.inserts + self.updates + self.deletes + self.merges + self.range_deletes
    }

    pub(super) fn scaled(&self, share: f64) -> Writes {
        Writes {
            inserts: self.inserts * share,
            updates: self.updates * share,
            deletes: self.deletes * share,
            merges: self.merges * share,
            range_deletes: self.range_deletes * share,
        }
    }

    pub(super) fn add(&mut self, other: &Writes) {
        self.inserts += other.inserts;
        self.updates += other.updates;
        self.deletes += other.deletes;
        self.merges += other.merges;
        self.range_deletes += other.range_deletes;
    }
}

/// What was written so far.
#[derive(Clone, Debug)]
pub(super) struct Traffic {
    /// Where keys are inserted.
    placed: Distribution,
    /// Records of the whole workload.
    records: f64,
    /// Records inserted so far.
    inserted: f64,
    /// How much of the workload's key domain sequential accesses have gone through.
    walked: f64,
    /// Keys that are there, by zone of the key domain.
    live: Vec<f64>,
    zones: usize,
    classes: usize,
    /// Popularity ranks before each class.
    class_from: Vec<f64>,
    /// Whether the number of keys went past a power of two with the last writes.
    doubled: bool,
}

impl Traffic {
    /// For a workload of these phases.
    pub(super) fn new(phases: &[Phase]) -> Traffic {
        let placed = phases.first().map_or(Distribution::Uniform, |phase| phase.distribution);
        let records: u64 = phases.iter().map(|phase| phase.inserts).sum();
        let zipf = phases.iter().any(|phase| {
            phase.distribution == Distribution::Zipf
                && phase.updates + phase.deletes + phase.merges > 0
        });
        let classes = if zipf { CLASSES_OF_ZIPF } else { 1 };
        let uneven = phases.iter().any(|phase| {
            matches!(phase.distribution, Distribution::Sequential | Distribution::Shifting)
                || phase.distribution != placed
        });
        let zones = if uneven { ZONES } else { 1 };
        let class_from = (0..classes)
            .scan(0.0, |from, class| {
                let here = *from;
                *from = if class == 0 { 1.0 } else { *from * CLASS_GROWTH };
                Some(here)
            })
            .collect();
        Traffic {
            placed,
            records: real(records).max(1.0),
            inserted: 0.0,
            walked: 0.0,
            live: vec![0.0; zones],
            zones,
            classes,
            class_from,
            doubled: false,
        }
    }

    /// Popularity classes of the contents that it makes.
    pub(super) fn classes(&self) -> usize {
        self.classes
    }

    /// Keys that are there.
    pub(super) fn live(&self) -> f64 {
        self.live.iter().sum()
    }

    /// Records of the whole workload, those to come included.
    pub(super) fn records(&self) -> f64 {
        self.records
    }

    /// Share of the keys that are in each class, and share of the accesses that go there, where so
    /// many keys were inserted.
    fn class_shares(&self, zipf: bool, total: f64) -> Vec<(f64, f64)> {
        let total = total.max(1.0);
        let mut shares: Vec<(f64, f64)> = Vec::with_capacity(self.classes);
        for class in 0..self.classes {
            let from = self.class_from[class].min(total);
            let to = match self.class_from.get(class + 1) {
                Some(next) => next.min(total),
                None => total,
            };
            let weight = if zipf { zipf_weight(from, to) } else { to - from };
            shares.push(((to - from) / total, weight));
        }
        let weights: f64 = shares.iter().map(|(_, weight)| weight).sum();
        for share in &mut shares {
            share.1 = ratio(share.1, weights);
        }
        shares
    }

    /// Where `count` inserts go: parts of the domain with the share of the inserts in each.
    fn insert_shares(&self, count: f64) -> Vec<(f64, f64, f64)> {
        let n = self.records;
        match self.placed {
            Distribution::Sequential => vec![(self.inserted / n, (self.inserted + count) / n, 1.0)],
            Distribution::Shifting => {
                let window = (n / real(WINDOWS)).ceil();
                let (mut at, end) = (self.inserted, self.inserted + count);
                let mut shares = Vec::new();
                while at < end - 1e-9 {
                    let start = libm::floor(at / window) * window;
                    let until = (start + window).min(end);
                    let last = (start + window).min(n);
                    shares.push((start / n, last / n, ratio(until - at, count)));
                    at = until;
                }
                shares
            }
            _ => vec![(0.0, 1.0, 1.0)],
        }
    }

    /// Where accesses to present keys go: weight per zone, before the keys there are counted in.
    fn access_weights(&mut self, phase: &Phase, count: f64, progress: f64) -> Vec<f64> {
        let zones = self.zones;
        let even: Vec<f64> = (0..zones).map(|zone| self.live[zone]).collect();
        if zones == 1 {
            return vec![1.0];
        }
        let width = 1.0 / real(crate::numbers::count(zones));
        let part = |from: f64, to: f64| -> Vec<f64> {
            // Zones with nothing in them are passed over.
            (0..zones)
                .map(|zone| {
                    let start = real(crate::numbers::count(zone)) * width;
                    let common = (to.min(start + width) - from.max(start)).max(0.0);
                    if even[zone] > 0.0 { common } else { 0.0 }
                })
                .collect()
        };
        let mix = |a: Vec<f64>, share: f64, b: &[f64]| -> Vec<f64> {
            let (of_a, of_b) = (a.iter().sum::<f64>(), b.iter().sum::<f64>());
            if of_a <= 0.0 {
                return b.to_vec();
            }
            a.iter()
                .zip(b)
                .map(|(a, b)| share * a / of_a + (1.0 - share) * ratio(*b, of_b))
                .collect()
        };
        match phase.distribution {
            Distribution::Sequential => {
                let reached = (self.inserted / self.records).max(width);
                let from = self.walked % reached;
                self.walked = from + count / self.records;
                let mut weights = part(from, from + count / self.records);
                for (weight, more) in weights.iter_mut().zip(part(0.0, self.walked - reached)) {
                    *weight += more;
                }
                mix(weights, 1.0, &even)
            }
            Distribution::Shifting => {
                let loading = self.inserted < self.records;
                let wide = 1.0 / real(WINDOWS) * (self.inserted / self.records);
                let window = if loading && self.placed == Distribution::Shifting {
                    let to = self.inserted / self.records;
                    part(to - wide, to)
                } else if loading {
                    even.clone()
                } else {
                    let from = progress * (1.0 - wide);
                    part(from, from + wide)
                };
                mix(window, WINDOW_SHARE, &even)
            }
            Distribution::Normal | Distribution::PrefixZipf
                if phase.distribution != self.placed =>
            {
                let density: Vec<f64> = (0..zones)
                    .map(|zone| {
                        let at = (real(crate::numbers::count(zone)) + 0.5) * width;
                        if even[zone] > 0.0 { access_density(phase.distribution, at) } else { 0.0 }
                    })
                    .collect();
                mix(density, 1.0, &even)
            }
            _ => even,
        }
    }

    /// Spreads the entries of a file over the classes again, as keys change their popularity when
    /// their number has doubled.
    pub(super) fn mix(&self, body: &mut Body) {
        let shares = self.class_shares(true, self.inserted);
        for contents in body.contents.chunks_mut(self.classes) {
            let mut all = Content::default();
            contents.iter().for_each(|content| all.add(content));
            for (content, (of_keys, _)) in contents.iter_mut().zip(&shares) {
                *content = all.scaled(*of_keys);
            }
        }
    }

    /// Whether keys have changed their popularity with the last writes.
    pub(super) fn mixes(&self) -> bool {
        self.classes > 1 && self.doubled
    }

    /// Plays these writes of a phase; returns what a memtable that took them holds at its flush.
    /// `progress` is how far the phase has come, `seqs` the numbers of the writes.
    pub(super) fn write(
        &mut self,
        phase: &Phase,
        writes: &Writes,
        progress: f64,
        seqs: Seqs,
    ) -> Body {
        let total = self.inserted + writes.inserts / 2.0;
        let shares = self.class_shares(phase.distribution == Distribution::Zipf, total);
        let inserts = self.insert_shares(writes.inserts);
        let asked = writes.updates + writes.deletes + writes.merges;
        let accesses = self.access_weights(phase, asked, progress);
        let access_sum: f64 = accesses.iter().sum();
        let mut body = Body::starting_at(0);
        let mut contents = vec![Content::default(); self.classes];
        let mut gained = Vec::new();
        for (from, to) in self.stretches(&inserts) {
            let zone = self.zone_at((from + to) / 2.0);
            // Of the zone's accesses, the part that this stretch of it gets.
            let zone_width = 1.0 / real(crate::numbers::count(self.zones));
            let of_zone = ((to - from) / zone_width).min(1.0);
            let reached = ratio(accesses[zone], access_sum) * of_zone;
            let born: f64 = inserts
                .iter()
                .map(|&(start, end, share)| {
                    let common = (to.min(end) - from.max(start)).max(0.0);
                    writes.inserts * share * ratio(common, end - start)
                })
                .sum();
            for (class, content) in contents.iter_mut().enumerate() {
                let (of_keys, of_accesses) = shares[class];
                let before = self.live[zone] * of_zone * of_keys;
                let asked = writes.scaled(reached * of_accesses);
                *content = flushed(before, born * of_keys, &asked);
            }
            gained.push((zone, born - writes.deletes * reached));
            let spans = writes.range_deletes * reached;
            if spans > 0.0 {
                // Keys that come later are covered as well, but not deleted.
                let covered = spans * real(RANGE_DELETE_PLACES) / ((to - from) * self.records);
                let left = libm::exp(-covered);
                gained.push((zone, -self.live[zone] * of_zone * (1.0 - left)));
            }
            let stretch = Stretch { to: place(to).saturating_sub(1).max(body.to()), spans, seqs };
            if body.stretches.is_empty() {
                body.from = place(from);
            }
            body.push(stretch, &contents);
        }
        for (zone, keys) in gained {
            self.live[zone] = (self.live[zone] + keys).max(0.0);
        }
        let power = |inserted: f64| libm::ceil(libm::log2(inserted.max(1.0)));
        self.doubled = power(self.inserted + writes.inserts) > power(self.inserted);
        self.inserted += writes.inserts;
        body
    }

    /// The parts of the domain inside each of which everything is even.
    fn stretches(&self, inserts: &[(f64, f64, f64)]) -> Vec<(f64, f64)> {
        let mut ends: Vec<f64> = (0..=self.zones)
            .map(|zone| real(crate::numbers::count(zone)) / real(crate::numbers::count(self.zones)))
            .collect();
        ends.extend(inserts.iter().flat_map(|&(from, to, _)| [from.min(1.0), to.min(1.0)]));
        ends.sort_by(f64::total_cmp);
        ends.dedup();
        ends.windows(2).map(|pair| (pair[0], pair[1])).collect()
    }

    fn zone_at(&self, x: f64) -> usize {
        let zones = crate::numbers::count(self.zones);
        let zone = (x * real(zones)).clamp(0.0, real(zones - 1));
        usize::try_from(whole(libm::floor(zone))).unwrap_or(0)
    }
}

/// What a memtable holds of one class: of `before` keys that were there and `inserts` more.
fn flushed(before: f64, inserts: f64, asked: &Writes) -> Content {
    let after = (before + inserts - asked.deletes).max(1.0);
    // How often a key that was there before is asked for, as the number of keys changes.
    let rate = |count: f64| {
        if before <= 0.0 {
            return 0.0;
        }
        let grown = after / before;
        if (grown - 1.0).abs() < 1e-6 {
            count / before
        } else {
            count * libm::log(grown) / (after - before)
        }
    };
    let left_alone = |count: f64| libm::exp(-rate(count));
    let tombs = before * (1.0 - left_alone(asked.deletes));
    let living = before - tombs;
    let changed = living * (1.0 - left_alone(asked.updates));
    let operands = (living - changed) * (1.0 - left_alone(asked.merges));
    let spent = (asked.deletes - tombs).clamp(0.0, inserts);
    Content { born: inserts - spent, changed, operands, tombs, spent, reach: living }
}

/// Σ k⁻ˢ for popularity ranks past `from` up to `to`.
pub(super) fn zipf_weight(from: f64, to: f64) -> f64 {
    if to <= from {
        return 0.0;
    }
    // The first rank by itself, the others by the integral from half a rank before to half a one after.
    let first = if from < 1.0 { 1.0 } else { 0.0 };
    let from = from.max(1.0);
    if to <= from {
        return first;
    }
    let power = 1.0 - ZIPF_EXPONENT;
    first + (libm::pow(to + 0.5, power) - libm::pow(from + 0.5, power)) / power
}

/// How dense accesses lie at a place of the domain, where data does not lie that way already.
fn access_density(distribution: Distribution, at: f64) -> f64 {
    match distribution {
        Distribution::Normal => {
            let x = (at - 0.5) / crate::workload::NORMAL_DEVIATION;
            libm::exp(-x * x / 2.0)
        }
        // Popular prefixes are scattered: over a zone of several it comes out even.
        _ => 1.0,
    }
}

/// A share of the domain as a place.
fn place(x: f64) -> u64 {
    if x >= 1.0 { u64::MAX } else { whole(x * DOMAIN) }
}
