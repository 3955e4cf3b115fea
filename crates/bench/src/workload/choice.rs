//! Picks among the records that are there: inserted, and not deleted since.

use crate::numbers;

use super::keys::{KeySpace, Permutation, density};
use super::random::{Random, Steps, Zipf, mix};
use super::{KeyDistribution, WINDOW_SHARE, WINDOWS, ZIPF_EXPONENT};

/// Draws that may hit a record that is not there before the next one in line is taken.
const DRAWS_MAX: u32 = 32;

/// Which of the first `inserted` records are there: one bit each, held only where one is deleted.
#[derive(Clone, Debug, Default)]
pub struct Live {
    inserted: u64,
    deleted: u64,
    deleted_bits: Vec<u64>,
}

impl Live {
    /// Records inserted so far, deleted ones included.
    #[must_use]
    pub fn inserted(&self) -> u64 {
        self.inserted
    }

    /// Records that are there.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.inserted - self.deleted
    }

    /// Whether record `i` is there.
    #[must_use]
    pub fn contains(&self, i: u64) -> bool {
        let word = self.deleted_bits.get(numbers::length(i / 64)).copied().unwrap_or(0);
        i < self.inserted && word & (1 << (i % 64)) == 0
    }

    /// Inserts the next record and returns its number.
    pub fn insert(&mut self) -> u64 {
        self.inserted += 1;
        self.inserted - 1
    }

    /// Deletes record `i`, which must be there.
    pub fn delete(&mut self, i: u64) {
        debug_assert!(self.contains(i));
        let word = numbers::length(i / 64);
        if self.deleted_bits.len() <= word {
            self.deleted_bits.resize(word + 1, 0);
        }
        self.deleted_bits[word] |= 1 << (i % 64);
        self.deleted += 1;
    }

    /// The first record at or after `i`, round and round, that is there.
    fn next_from(&self, i: u64) -> Option<u64> {
        (i..self.inserted).chain(0..i.min(self.inserted)).find(|i| self.contains(*i))
    }
}

/// Picks present records by a distribution.
#[derive(Clone, Debug)]
pub struct Choice {
    distribution: KeyDistribution,
    zipf: Zipf,
    /// Where accesses fall in rank order, if data is not placed that way already.
    density: Option<Steps>,
    /// Scatters popularity over the age of the records; as wide as the records at the last doubling.
    scatter: Permutation,
    scatter_width: u64,
    seed: u64,
    /// Next rank of a sequential walk.
    walk: u64,
}

impl Choice {
    /// A way to pick. `keys` are those of the records; `None` when they come from a file, which has
    /// no order known beforehand: then the number of a record stands for its rank. `hot` says which of
    /// many draws makes records popular.
    #[must_use]
    pub fn new(
        distribution: KeyDistribution,
        keys: Option<&KeySpace>,
        seed: u64,
        hot: u64,
    ) -> Choice {
        let placed = keys.map(KeySpace::distribution);
        let seed = if hot == 0 { seed } else { mix(seed ^ mix(hot)) };
        let density = match distribution {
            // Where data lies that dense, picking every record alike gives the same density.
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

    /// A record that is there, or `None` if none is. `progress` in [0, 1) is how far the phase has
    /// come.
    pub fn pick(
        &mut self,
        live: &Live,
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
        // Ranks run over all records of the workload, those to come included.
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
                // The window moves over what is there: over ranks once all is loaded, with the
                // newest records while it loads, for they are the window that data comes in by.
                let width = inserted.div_ceil(WINDOWS);
                let start = numbers::floor(progress * numbers::float(inserted - width));
                let place = start + random.below(width);
                if inserted < n { inserted - 1 - random.below(width) } else { record_at(place) }
            }
            _ => random.below(inserted),
        }
    }

    /// Takes popularity rank to record, one to one among `inserted`.
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

    fn loaded(n: u64) -> Live {
        let mut live = Live::default();
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
    fn another_draw_makes_other_records_popular() {
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
            // Skewed as ever.
            assert!(first.1 > 1000 && other.1 > 1000, "{distribution}: {first:?} {other:?}");
        }
    }

    #[test]
    fn normal_and_prefix_zipf_hold_on_evenly_placed_keys_too() {
        let by_rank = picks(KeyDistribution::Normal, KeyDistribution::Uniform, 100_000);
        let inside: u32 = by_rank[160..840].iter().sum();
        assert!((78_500..80_500).contains(&inside), "{inside}");
        let by_rank = picks(KeyDistribution::PrefixZipf, KeyDistribution::Uniform, 100_000);
        assert!(by_rank.iter().max() > Some(&10_000));
    }

    #[test]
    fn sequential_goes_round_and_shifting_follows_its_window() {
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
