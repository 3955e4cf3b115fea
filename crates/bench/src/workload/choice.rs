//! Picks present records by a distribution.

use crate::numbers;

use super::keys::{KeySpace, Permutation, density};
use super::random::{Random, Steps, Zipf, mix};
use super::{KeyDistribution, WINDOW_SHARE, WINDOWS, ZIPF_EXPONENT};

/// Maximum number of draws of absent records before the next present record is taken.
const DRAWS_MAX: u32 = 32;

/// The set of present records: the first `inserted` ones without the deleted ones.
#[derive(Clone, Debug, Default)]
pub struct LiveRecords {
    inserted: u64,
    deleted: u64,
    deleted_bits: Vec<u64>,
}

impl LiveRecords {
    /// Returns the number of inserted records, including deleted ones.
    pub fn inserted(&self) -> u64 {
        self.inserted
    }

    /// Returns the number of present records.
    pub fn count(&self) -> u64 {
        self.inserted - self.deleted
    }

    /// Returns whether record `i` is present.
    pub fn contains(&self, i: u64) -> bool {
        let word = self.deleted_bits.get(numbers::length(i / 64)).copied().unwrap_or(0);
        i < self.inserted && word & (1 << (i % 64)) == 0
    }

    /// Inserts the next record. Returns its number.
    pub fn insert(&mut self) -> u64 {
        self.inserted += 1;
        self.inserted - 1
    }

    /// Deletes record `i`, which must be present.
    pub fn delete(&mut self, i: u64) {
        debug_assert!(self.contains(i));
        let word = numbers::length(i / 64);
        if self.deleted_bits.len() <= word {
            self.deleted_bits.resize(word + 1, 0);
        }
        self.deleted_bits[word] |= 1 << (i % 64);
        self.deleted += 1;
    }

    /// Returns the first present record from `i` on. After the last record the search continues at the first.
    fn next_from(&self, i: u64) -> Option<u64> {
        (i..self.inserted).chain(0..i.min(self.inserted)).find(|i| self.contains(*i))
    }
}

/// Selection of present records by a distribution.
#[derive(Clone, Debug)]
pub struct Choice {
    distribution: KeyDistribution,
    zipf: Zipf,
    /// Density of accesses in key order, if it differs from the density of the data.
    density: Option<Steps>,
    /// Scatters popular records over the age of the records. Its width doubles with the number of records.
    scatter: Permutation,
    scatter_width: u64,
    seed: u64,
    /// Next rank of sequential accesses.
    walk: u64,
}

impl Choice {
    /// Creates a selection. Without `keys`, as for records of a file, the number of a record is its rank. `hot` selects
    /// which records are popular.
    pub fn new(
        distribution: KeyDistribution,
        keys: Option<&KeySpace>,
        seed: u64,
        hot: u64,
    ) -> Choice {
        let placed = keys.map(KeySpace::distribution);
        let seed = if hot == 0 { seed } else { mix(seed ^ mix(hot)) };
        let density = match distribution {
            // If the data has this density, a uniform choice of records has it too.
            KeyDistribution::PrefixZipf | KeyDistribution::Normal
                if placed != Some(distribution) || hot > 0 =>
            {
                Some(density(distribution, seed))
            }
            _ => None,
        };
        Choice {
            distribution,
            zipf: Zipf::new(ZIPF_EXPONENT),
            density,
            scatter: Permutation::new(1, seed),
            scatter_width: 1,
            seed,
            walk: 0,
        }
    }

    /// Picks a present record, if there is one. `progress` in [0, 1) is the completed share of the phase.
    pub fn pick(
        &mut self,
        live: &LiveRecords,
        keys: Option<&KeySpace>,
        progress: f64,
        random: &mut Random,
    ) -> Option<u64> {
        if live.count() == 0 {
            return None;
        }
        let mut last = 0;
        for _ in 0..DRAWS_MAX {
            last = self.draw(live.inserted(), keys, progress, random);
            if live.contains(last) {
                return Some(last);
            }
        }
        live.next_from(last)
    }

    fn draw(
        &mut self,
        inserted: u64,
        keys: Option<&KeySpace>,
        progress: f64,
        random: &mut Random,
    ) -> u64 {
        // Ranks include the records that are inserted later.
        let n = keys.map_or(inserted, KeySpace::len);
        let record_at = |rank: u64| keys.map_or(rank, |keys| keys.record_at(rank.min(n - 1)));
        match (self.distribution, &self.density) {
            (_, Some(density)) => {
                record_at(numbers::floor(density.draw(random) * numbers::float(n)))
            }
            (KeyDistribution::Zipf, None) => {
                let rank = self.zipf.draw(random, inserted);
                self.scattered(rank, inserted)
            }
            (KeyDistribution::Sequential, None) => {
                let rank = self.walk % n;
                self.walk = rank + 1;
                record_at(rank)
            }
            (KeyDistribution::Shifting, None) if random.unit() < WINDOW_SHARE => {
                // During the load the window has the newest records, afterwards it moves over the ranks.
                let width = inserted.div_ceil(WINDOWS);
                let start = numbers::floor(progress * numbers::float(inserted - width));
                let place = start + random.below(width);
                if inserted < n { inserted - 1 - random.below(width) } else { record_at(place) }
            }
            _ => random.below(inserted),
        }
    }

    /// Maps popularity ranks to records, one to one among the first `inserted`.
    fn scattered(&mut self, rank: u64, inserted: u64) -> u64 {
        let width = inserted.next_power_of_two();
        if width != self.scatter_width {
            self.scatter = Permutation::new(width, self.seed);
            self.scatter_width = width;
        }
        let mut record = rank;
        loop {
            record = self.scatter.forward(record);
            if record < inserted {
                return record;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(n: u64) -> LiveRecords {
        let mut live = LiveRecords::default();
        for _ in 0..n {
            live.insert();
        }
        live
    }

    fn picks(distribution: KeyDistribution, placed: KeyDistribution, draws: u32) -> Vec<u32> {
        let n = 1000;
        let keys = KeySpace::new(placed, n, 8, 1).unwrap();
        let live = loaded(n);
        let mut choice = Choice::new(distribution, Some(&keys), 1, 0);
        let mut random = Random::new(2, 0);
        let mut by_rank = vec![0; numbers::length(n)];
        for draw in 0..draws {
            let progress = f64::from(draw) / f64::from(draws);
            let record = choice.pick(&live, Some(&keys), progress, &mut random).unwrap();
            by_rank[numbers::length(keys.rank(record))] += 1;
        }
        by_rank
    }

    #[test]
    fn zipf_is_skewed_and_scattered() {
        let by_rank = picks(KeyDistribution::Zipf, KeyDistribution::Uniform, 100_000);
        let mut sorted = by_rank.clone();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        // 1 ÷ Σ k^-0.99 over 1,000 = 13.0 %.
        assert!((12_300..13_700).contains(&sorted[0]), "{}", sorted[0]);
        let hottest: Vec<usize> = (0..1000).filter(|rank| by_rank[*rank] >= sorted[9]).collect();
        let gaps = hottest.windows(2).filter(|pair| pair[1] - pair[0] > 10).count();
        assert!(gaps >= 5, "{hottest:?}");
    }

    #[test]
    fn hot_number_changes_the_popular_records() {
        let hottest = |distribution: KeyDistribution, hot: u64| {
            let keys = KeySpace::new(KeyDistribution::Uniform, 1000, 8, 1).unwrap();
            let live = loaded(1000);
            let mut choice = Choice::new(distribution, Some(&keys), 1, hot);
            let mut random = Random::new(2, 0);
            let mut counts = vec![0u32; 1000];
            for _ in 0..20_000 {
                let record = choice.pick(&live, Some(&keys), 0.5, &mut random).unwrap();
                counts[numbers::length(keys.rank(record))] += 1;
            }
            let most = counts.iter().max().copied().unwrap();
            (counts.iter().position(|count| *count == most), most)
        };
        for distribution in [KeyDistribution::Zipf, KeyDistribution::PrefixZipf] {
            let (first, again) = (hottest(distribution, 0), hottest(distribution, 0));
            let other = hottest(distribution, 1);
            assert_eq!(first, again);
            assert_ne!(first.0, other.0, "{distribution}");
            assert!(first.1 > 1000 && other.1 > 1000, "{distribution}: {first:?} {other:?}");
        }
    }

    #[test]
    fn normal_and_prefix_zipf_accesses_on_uniform_keys() {
        let by_rank = picks(KeyDistribution::Normal, KeyDistribution::Uniform, 100_000);
        let inside: u32 = by_rank[160..840].iter().sum();
        assert!((78_500..80_500).contains(&inside), "{inside}");
        let by_rank = picks(KeyDistribution::PrefixZipf, KeyDistribution::Uniform, 100_000);
        assert!(by_rank.iter().max() > Some(&10_000));
    }

    #[test]
    fn sequential_repeats_and_shifting_follows_its_window() {
        assert!(
            picks(KeyDistribution::Sequential, KeyDistribution::Uniform, 2000)
                .iter()
                .all(|n| *n == 2)
        );
        let keys = KeySpace::new(KeyDistribution::Uniform, 1000, 8, 1).unwrap();
        let live = loaded(1000);
        let mut choice = Choice::new(KeyDistribution::Shifting, Some(&keys), 1, 0);
        let mut random = Random::new(2, 0);
        for (progress, window) in [(0.0, 0..100), (0.5, 450..550), (0.999, 899..1000)] {
            let inside = (0..1000)
                .filter(|_| {
                    let record = choice.pick(&live, Some(&keys), progress, &mut random).unwrap();
                    window.contains(&keys.rank(record))
                })
                .count();
            assert!((880..940).contains(&inside), "{progress}: {inside}");
        }
    }

    #[test]
    fn deleted_records_are_never_picked() {
        let keys = KeySpace::new(KeyDistribution::Uniform, 200, 8, 1).unwrap();
        for distribution in KeyDistribution::ALL {
            let mut live = loaded(200);
            let mut choice = Choice::new(distribution, Some(&keys), 1, 0);
            let mut random = Random::new(2, 0);
            let mut left = 200;
            while let Some(record) = choice.pick(&live, Some(&keys), 0.5, &mut random) {
                assert!(live.contains(record));
                live.delete(record);
                left -= 1;
                assert_eq!(live.count(), left);
            }
            assert_eq!(left, 0);
        }
    }
}
