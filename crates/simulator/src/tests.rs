//! Estimates against sets of keys that are really there.

use std::collections::{BTreeMap, BTreeSet};

use crate::workload::{Distribution, Phase};

use crate::body::Body;
use crate::content::Content;
use crate::cut::Cut;
use crate::merge::merge;
use crate::older::Older;
use crate::random::Dice;
use crate::seqs::Seqs;
use crate::sizes::Sizes;
use crate::source::Source;
use crate::traffic::{Traffic, Writes};
use crate::writer::{Room, Stamp, Writer};

/// What a real set of writes holds: keys with the newest write of each, a put or a delete.
type Set = BTreeMap<u64, bool>;

/// A workload of puts of new keys, puts of present keys and deletes, key by key.
struct Brute {
    dice: Dice,
    zipf: bool,
    inserted: u64,
    dead: BTreeSet<u64>,
}

impl Brute {
    fn below(&mut self, n: u64) -> u64 {
        let unit = self.dice.unit();
        crate::numbers::whole((unit * crate::numbers::real(n)).floor()).min(n - 1)
    }

    /// A key that is there. Of a zipf distribution that is popular by its number.
    fn present(&mut self) -> u64 {
        loop {
            let key = if self.zipf {
                // The inverse of the integral of k^-0.99.
                let power = 1.0 - crate::workload::ZIPF_EXPONENT;
                let most = libm::pow(crate::numbers::real(self.inserted) + 0.5, power);
                let least = libm::pow(0.5, power);
                let u = least + self.dice.unit() * (most - least);
                let rank = crate::numbers::whole(libm::pow(u, 1.0 / power)).max(1) - 1;
                self.scattered(rank.min(self.inserted - 1))
            } else {
                self.below(self.inserted)
            };
            if !self.dead.contains(&key) {
                return key;
            }
        }
    }

    /// Popularity scattered over the age of keys, one to one; a key keeps its own until their number
    /// has doubled.
    fn scattered(&self, rank: u64) -> u64 {
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

    /// The writes of one memtable in even mixture.
    fn write(&mut self, inserts: u64, updates: u64, deletes: u64) -> Set {
        let mut set = Set::new();
        let mut left = [inserts, updates, deletes];
        while left.iter().sum::<u64>() > 0 {
            let mut ticket = self.below(left.iter().sum());
            let mut kind = 0;
            while ticket >= left[kind] {
                ticket -= left[kind];
                kind += 1;
            }
            left[kind] -= 1;
            if kind == 0 || self.inserted == 0 {
                set.insert(self.inserted, true);
                self.inserted += 1;
            } else {
                let key = self.present();
                set.insert(key, kind == 1);
                if kind == 2 {
                    self.dead.insert(key);
                }
            }
        }
        set
    }
}

/// The older set under the newer one.
fn merge_sets(newer: &Set, older: &Set) -> Set {
    let mut both = older.clone();
    both.extend(newer);
    both
}

/// Entries by kind of estimates, merged newest first with something older below or not.
fn merge_bodies(bodies: &[&Body], covered: bool, classes: usize) -> Body {
    let sizes = Sizes::new(16, 100, 1000);
    let stamp = Stamp { now_us: 0, oldest_tombstone_us: None };
    let mut room = Room::default();
    let mut writer = Writer::new(&sizes, stamp, usize::MAX, &mut room);
    let mut sources: Vec<Source<'_>> = bodies.iter().map(|&body| Source::new(vec![body])).collect();
    let mut older = Older::default();
    if covered {
        older.add(vec![(0, u64::MAX)]);
    }
    let mut dice = Dice::new(5);
    merge(&mut sources, &mut older, &mut Cut::never(), &mut writer, classes, 1e6, &mut dice);
    writer.finish(&mut dice).pop().map(|output| output.body).unwrap()
}

fn counts(body: &Body) -> (f64, f64) {
    let puts = body.contents.iter().map(Content::puts).sum();
    (puts, body.contents.iter().map(Content::tombstones).sum())
}

fn counts_of(set: &Set) -> (f64, f64) {
    let puts = crate::numbers::count(set.values().filter(|put| **put).count());
    let all = crate::numbers::count(set.len());
    (crate::numbers::real(puts), crate::numbers::real(all - puts))
}

fn assert_close(what: &str, found: (f64, f64), expected: (f64, f64), tolerance: f64) {
    let close = |a: f64, b: f64| (a - b).abs() <= tolerance * b + 12.0;
    assert!(
        close(found.0, expected.0) && close(found.1, expected.1),
        "{what}: estimated {found:?}, in truth {expected:?}"
    );
}

/// Plays memtables of equal writes; compares each, and what merges of neighbours come to.
fn compare(distribution: Distribution, inserts: u64, updates: u64, deletes: u64, tolerance: f64) {
    const MEMTABLES: u64 = 24;
    let mut phase = Phase::new("load", distribution);
    phase.inserts = inserts * MEMTABLES;
    phase.updates = updates * MEMTABLES;
    phase.deletes = deletes * MEMTABLES;
    let zipf = distribution == Distribution::Zipf;
    let mut brute = Brute { dice: Dice::new(3), zipf, inserted: 0, dead: BTreeSet::new() };
    let mut traffic = Traffic::new(std::slice::from_ref(&phase));
    let writes = Writes::of(&phase).scaled(1.0 / crate::numbers::real(MEMTABLES));
    // As in a tree: four memtables become one when they are there, and later ones change what keys
    // are popular.
    let (mut sets, mut bodies) = (Vec::new(), Vec::new());
    let (mut fours, mut fours_of_keys): (Vec<Body>, Vec<Set>) = (Vec::new(), Vec::new());
    let classes = traffic.classes();
    for memtable in 0..MEMTABLES {
        let set = brute.write(inserts, updates, deletes);
        let body =
            traffic.write(&phase, &writes, 0.0, Seqs { smallest: memtable, largest: memtable });
        if traffic.mixes() {
            fours.iter_mut().chain(&mut bodies).for_each(|body| traffic.mix(body));
        }
        let what = format!("{distribution} memtable {memtable}");
        assert_close(&what, counts(&body), counts_of(&set), tolerance);
        sets.push(set);
        bodies.push(body);
        if bodies.len() < 4 {
            continue;
        }
        let newest_first: Vec<&Body> = bodies.iter().rev().collect();
        let set = sets.iter().fold(Set::new(), |all, set| merge_sets(set, &all));
        let body = merge_bodies(&newest_first, true, classes);
        let what = format!("{distribution} four up to {memtable}");
        assert_close(&what, counts(&body), counts_of(&set), tolerance);
        fours.push(body);
        fours_of_keys.push(set);
        sets.clear();
        bodies.clear();
    }
    let upper = merge_bodies(&[&fours[5], &fours[4], &fours[3]], true, classes);
    let upper_keys =
        merge_sets(&fours_of_keys[5], &merge_sets(&fours_of_keys[4], &fours_of_keys[3]));
    assert_close(
        &format!("{distribution} upper"),
        counts(&upper),
        counts_of(&upper_keys),
        tolerance,
    );
    let lower = merge_bodies(&[&fours[2], &fours[1], &fours[0]], false, classes);
    let mut lower_keys =
        merge_sets(&fours_of_keys[2], &merge_sets(&fours_of_keys[1], &fours_of_keys[0]));
    lower_keys.retain(|_, put| *put);
    assert_close(
        &format!("{distribution} lower"),
        counts(&lower),
        counts_of(&lower_keys),
        tolerance,
    );
    let mut all_keys = merge_sets(&upper_keys, &lower_keys);
    let all = merge_bodies(&[&upper, &lower], true, classes);
    assert_close(
        &format!("{distribution} all but last"),
        counts(&all),
        counts_of(&all_keys),
        tolerance,
    );
    all_keys.retain(|_, put| *put);
    let all = merge_bodies(&[&upper, &lower], false, classes);
    assert_close(&format!("{distribution} all"), counts(&all), counts_of(&all_keys), tolerance);
    assert_close("live", (traffic.live(), 0.0), counts_of(&all_keys), tolerance);
}

#[test]
fn unique_inserts_add_up() {
    compare(Distribution::Uniform, 2000, 0, 0, 0.001);
}

#[test]
fn uniform_updates_meet_as_many_keys_as_they_do() {
    compare(Distribution::Uniform, 2000, 2000, 0, 0.015);
    compare(Distribution::Uniform, 200, 3000, 0, 0.02);
}

#[test]
fn deletes_hide_as_many_keys_as_they_do() {
    compare(Distribution::Uniform, 3000, 0, 400, 0.015);
    compare(Distribution::Uniform, 2000, 1000, 1000, 0.03);
}

#[test]
fn popular_keys_meet_more_often() {
    compare(Distribution::Zipf, 2000, 2000, 0, 0.04);
}

/// A small workload with so many flushes that every level has something.
fn small(updates: u64, deletes: u64, seed: u64) -> crate::Config {
    let mut load = Phase::new("load", Distribution::Uniform);
    load.inserts = 30_000 - updates - deletes;
    load.updates = updates;
    load.deletes = deletes;
    load.settle = true;
    crate::Config {
        phases: vec![load],
        key_bytes: 16,
        value_bytes: 112,
        memtable_bytes: 45_000,
        table_bytes: 45_000,
        block_cache_bytes: 1 << 20,
        merge_parts: crate::MERGE_PARTS_DEFAULT,
        seed,
    }
}

#[test]
fn every_preset_keeps_every_key_whatever_the_seed() {
    for preset in lsmx_compaction::Preset::ALL
        .into_iter()
        .filter(|preset| *preset != lsmx_compaction::Preset::Fifo)
    {
        let spec: lsmx_compaction::PolicySpec = preset.name().parse().unwrap();
        for (updates, deletes) in [(0, 0), (15_000, 0), (0, 3_000), (9_000, 9_000)] {
            for seed in 0..4 {
                let config = small(updates, deletes, seed);
                let report = config.run(&spec, &mut |_| true).unwrap();
                let what = format!("{spec} {updates} {deletes} seed {seed}");
                let sum = |part: fn(&crate::LevelReport) -> u64| -> u64 {
                    report.levels.iter().map(part).sum()
                };
                let puts = sum(|level| level.entries) - sum(|level| level.tombstones);
                let live = 30_000 - updates - 2 * deletes;
                // RunFiles are counted in whole entries.
                assert!(puts + 300 + live / 50 >= live, "{what}: {puts} puts, {live} keys");
                assert!(updates + deletes > 0 || puts.abs_diff(live) < 300, "{what}: {puts} puts");
                assert!(report.flushes >= 100, "{what}: {} flushes", report.flushes);
                let again = config.run(&spec, &mut |_| true).unwrap();
                assert_eq!(report, again, "{what}");
            }
        }
    }
}

#[test]
fn whoever_wants_it_no_more_is_heard() {
    let spec: lsmx_compaction::PolicySpec = "tiering".parse().unwrap();
    let mut flushes = 0;
    let given_up = small(0, 0, 1).run(&spec, &mut |_| {
        flushes += 1;
        flushes < 5
    });
    assert!(matches!(given_up, Err(crate::Failure::GivenUp)) && flushes == 5);
}

/// The sums of a simulation of 2^64 writes overflowed, and it never ended.
#[test]
fn simulation_past_a_bound_is_refused_with_an_estimate() {
    let spec: lsmx_compaction::PolicySpec = "leveled".parse().unwrap();
    let config = |entries, memtable_bytes| crate::Config {
        phases: vec![Phase { inserts: entries, ..Phase::new("load", Distribution::Uniform) }],
        memtable_bytes,
        table_bytes: memtable_bytes,
        ..small(0, 0, 1)
    };
    for (entries, memtable_bytes) in [(u64::MAX, 1 << 56), (1 << 45, 1 << 20)] {
        let config = config(entries, memtable_bytes);
        let mut flushes = 0;
        let refused = config.run(&spec, &mut |_| {
            flushes += 1;
            false
        });
        let expected = config.extent();
        assert!(matches!(refused, Err(crate::Failure::TooLarge(extent)) if extent == expected));
        assert_eq!(flushes, 0);
    }
    // A large tree in few flushes is played.
    assert!(config(1 << 40, 1 << 40).run(&spec, &mut |_| true).is_ok());
}
