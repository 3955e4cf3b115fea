//! Random choice of present records by a key distribution.

use crate::numbers;

use super::keys::{KeySpace, Permutation, key_density, repeat_until};
use super::phases::Phase;
use super::random::{Random, StepDensity, Zipf, hash_u64};
use super::{KeyDistribution, WINDOW_SHARE, WINDOWS};

/// Maximum number of random draws per choice. If all draws hit deleted records, the next present record is chosen.
const DRAWS_MAX: u32 = 32;

/// The set of present records: inserted and not deleted. Records are inserted in ascending order of record numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct LiveRecords {
    inserted: u64,
    deleted: u64,
    deleted_bits: Vec<u64>,
}

impl LiveRecords {
    /// Returns the number of inserted records, including records that were deleted later.
    pub(super) fn inserted_count(&self) -> u64 {
        self.inserted
    }

    pub(super) fn count(&self) -> u64 {
        self.inserted - self.deleted
    }

    pub(super) fn contains(&self, i: u64) -> bool {
        let word = self.deleted_bits.get(numbers::to_usize(i / 64)).copied().unwrap_or(0);
        i < self.inserted && word & (1 << (i % 64)) == 0
    }

    /// Inserts the next record. Returns the number of the record.
    pub(super) fn insert(&mut self) -> u64 {
        self.inserted += 1;
        self.inserted - 1
    }

    /// Deletes record `i`, which must be present.
    pub(super) fn delete(&mut self, i: u64) {
        debug_assert!(self.contains(i));
        let word = numbers::to_usize(i / 64);
        if self.deleted_bits.len() <= word {
            self.deleted_bits.resize(word + 1, 0);
        }
        self.deleted_bits[word] |= 1 << (i % 64);
        self.deleted += 1;
    }

    /// Returns the first present record at or after `i`. After the last record the search continues at record 0.
    fn next_present_from(&self, i: u64) -> Option<u64> {
        (i..self.inserted).chain(0..i.min(self.inserted)).find(|i| self.contains(*i))
    }
}

#[derive(Clone, Debug)]
pub(super) struct RecordPicker {
    distribution: KeyDistribution,
    zipf: Zipf,
    /// Probability density of the accessed positions in key order. `None` if records are drawn without a density.
    density: Option<StepDensity>,
    /// Random permutation that maps popularity ranks to records. Without this permutation, the oldest records would be
    /// the most popular.
    scatter: Permutation,
    /// Length of `scatter`: a power of two, at least the number of records.
    scatter_width: u64,
    seed: u64,
    /// Position of the next sequential access in key order.
    walk: u64,
}

impl RecordPicker {
    /// Creates a picker for the accesses of a phase. `keys` is `None` for records of a file. Their key order is
    /// unknown, so the record number is used as the position in key order.
    pub(super) fn new(phase: &Phase, keys: Option<&KeySpace>, seed: u64) -> RecordPicker {
        let Phase { distribution, zipf, hot, .. } = *phase;
        let placed = keys.map(KeySpace::distribution);
        let seed = if hot == 0 { seed } else { hash_u64(seed ^ hash_u64(hot)) };
        let density = match distribution {
            // If the keys themselves follow this distribution, a uniform choice of records also follows it.
            KeyDistribution::PrefixZipf | KeyDistribution::Normal
                if placed != Some(distribution) || hot > 0 =>
            {
                Some(key_density(distribution, seed))
            }
            _ => None,
        };
        RecordPicker {
            distribution,
            zipf: Zipf::new(zipf),
            density,
            scatter: Permutation::new(1, seed),
            scatter_width: 1,
            seed,
            walk: 0,
        }
    }

    /// Chooses a present record. Returns `None` if no record is present. `progress` is the completed fraction of the
    /// phase, in [0, 1).
    pub(super) fn pick_record(
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
            last = self.draw_record(live.inserted_count(), keys, progress, random);
            if live.contains(last) {
                return Some(last);
            }
        }
        live.next_present_from(last)
    }

    fn draw_record(
        &mut self,
        inserted: u64,
        keys: Option<&KeySpace>,
        progress: f64,
        random: &mut Random,
    ) -> u64 {
        // `n` is the number of positions in key order. Records that are not inserted yet also have a position.
        let n = keys.map_or(inserted, KeySpace::len);
        let record_at = |rank: u64| keys.map_or(rank, |keys| keys.record_at(rank.min(n - 1)));
        match (self.distribution, &self.density) {
            (_, Some(density)) => {
                record_at(numbers::floor_to_u64(density.draw(random) * numbers::to_f64(n)))
            }
            (KeyDistribution::Zipf, None) => {
                let rank = self.zipf.draw(random, inserted);
                self.scatter_rank(rank, inserted)
            }
            (KeyDistribution::Sequential, None) => {
                let rank = self.walk % n;
                self.walk = rank + 1;
                record_at(rank)
            }
            (KeyDistribution::Shifting, None) if random.next_unit() < WINDOW_SHARE => {
                // The window contains the newest records until all records are inserted. Afterwards the window moves
                // through the key order.
                let width = inserted.div_ceil(WINDOWS);
                let start = numbers::floor_to_u64(progress * numbers::to_f64(inserted - width));
                let place = start + random.next_below(width);
                if inserted < n {
                    inserted - 1 - random.next_below(width)
                } else {
                    record_at(place)
                }
            }
            _ => random.next_below(inserted),
        }
    }

    /// Maps a popularity rank to one of the first `inserted` records.
    fn scatter_rank(&mut self, rank: u64, inserted: u64) -> u64 {
        let width = inserted.next_power_of_two();
        if width != self.scatter_width {
            self.scatter = Permutation::new(width, self.seed);
            self.scatter_width = width;
        }
        repeat_until(rank, inserted, |record| self.scatter.permute(record))
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

    fn uniform_keys(n: u64) -> KeySpace {
        KeySpace::new(KeyDistribution::Uniform, n, 8, 1).unwrap()
    }

    fn new_picker(distribution: KeyDistribution, hot: u64, keys: &KeySpace) -> RecordPicker {
        let phase = Phase { hot, ..Phase::new("", distribution) };
        RecordPicker::new(&phase, Some(keys), 1)
    }

    /// Returns how often each of 1,000 records is chosen, in key order.
    fn picks(distribution: KeyDistribution, hot: u64, draws: u32) -> Vec<u32> {
        let (keys, live) = (uniform_keys(1000), loaded(1000));
        let mut choice = new_picker(distribution, hot, &keys);
        let mut random = Random::new(2, 0);
        let mut by_rank = vec![0; 1000];
        for draw in 0..draws {
            let progress = f64::from(draw) / f64::from(draws);
            let record = choice.pick_record(&live, Some(&keys), progress, &mut random).unwrap();
            by_rank[numbers::to_usize(keys.rank(record))] += 1;
        }
        by_rank
    }

    #[test]
    fn zipf_is_skewed_and_scattered() {
        let by_rank = picks(KeyDistribution::Zipf, 0, 100_000);
        let mut sorted = by_rank.clone();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        // The most popular of 1,000 records gets 1 ÷ Σ k^-0.99 = 13.0 % of the accesses.
        assert!((12_300..13_700).contains(&sorted[0]), "{}", sorted[0]);
        let hottest: Vec<usize> = (0..1000).filter(|rank| by_rank[*rank] >= sorted[9]).collect();
        let gaps = hottest.windows(2).filter(|pair| pair[1] - pair[0] > 10).count();
        assert!(gaps >= 5, "{hottest:?}");
    }

    #[test]
    fn hot_number_changes_the_popular_records() {
        let hottest = |distribution: KeyDistribution, hot: u64| {
            let counts = picks(distribution, hot, 20_000);
            let most = counts.iter().max().copied().unwrap();
            assert!(most > 1000, "{distribution}, {hot}: {most}");
            counts.iter().position(|count| *count == most)
        };
        for distribution in [KeyDistribution::Zipf, KeyDistribution::PrefixZipf] {
            assert_eq!(hottest(distribution, 0), hottest(distribution, 0));
            assert_ne!(hottest(distribution, 0), hottest(distribution, 1), "{distribution}");
        }
    }

    #[test]
    fn normal_and_prefix_zipf_accesses_to_uniform_keys_are_skewed() {
        let by_rank = picks(KeyDistribution::Normal, 0, 100_000);
        let inside: u32 = by_rank[160..840].iter().sum();
        assert!((78_500..80_500).contains(&inside), "{inside}");
        let by_rank = picks(KeyDistribution::PrefixZipf, 0, 100_000);
        assert!(by_rank.iter().max() > Some(&10_000));
    }

    #[test]
    fn sequential_repeats_and_shifting_stays_in_its_window() {
        assert!(picks(KeyDistribution::Sequential, 0, 2000).iter().all(|n| *n == 2));
        let (keys, live) = (uniform_keys(1000), loaded(1000));
        let mut choice = new_picker(KeyDistribution::Shifting, 0, &keys);
        let mut random = Random::new(2, 0);
        for (progress, window) in [(0.0, 0..100), (0.5, 450..550), (0.999, 899..1000)] {
            let inside = (0..1000)
                .filter(|_| {
                    let record =
                        choice.pick_record(&live, Some(&keys), progress, &mut random).unwrap();
                    window.contains(&keys.rank(record))
                })
                .count();
            assert!((880..940).contains(&inside), "{progress}: {inside}");
        }
    }

    #[test]
    fn deleted_records_are_never_picked() {
        let keys = uniform_keys(200);
        for distribution in KeyDistribution::ALL {
            let mut live = loaded(200);
            let mut choice = new_picker(distribution, 0, &keys);
            let mut random = Random::new(2, 0);
            let mut left = 200;
            while let Some(record) = choice.pick_record(&live, Some(&keys), 0.5, &mut random) {
                assert!(live.contains(record));
                live.delete(record);
                left -= 1;
                assert_eq!(live.count(), left);
            }
            assert_eq!(left, 0);
        }
    }
}
