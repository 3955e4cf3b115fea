//! What a design costs, in closed form and in the symbols of the literature.
//!
//! | symbol | here | meaning |
//! | --- | --- | --- |
//! | T | [`Design::size_ratio`] | size ratio between levels |
//! | L | [`Design::levels`] | levels on disk |
//! | K, Z | [`Runs::Fluid`] | runs in each level but the last, and in the last |
//! | n₀ | [`Runs::FirstTiered`] | runs of the first level of 1-leveling |
//! | B | [`Design::entries_per_block`] | entries of a block |
//! | M ÷ N | `bits_per_entry` | filter bits per entry, over all levels |
//! | φ, μ | [`Device`] | cost of a write ÷ of a read; sequential ÷ random speed |
//! | s | `entries` of a range | entries that a range holds |
//!
//! Costs are I/Os of one operation in the worst case of uniform keys: *W* of an update, *R* of a
//! lookup of an absent key, *V* of a present one, *Q* of a range. They are what the closed forms say;
//! the simulator and the engine say what a tree does that is neither full nor in a steady state.
//!
//! Sources: Dayan, Athanassoulis, Idreos, "Monkey", SIGMOD 2017; Dayan, Idreos, "Dostoevsky", SIGMOD
//! 2018; Dayan et al., "Spooky", PVLDB 15, 2022; Huynh et al., "Endure", PVLDB 15, 2022.

use serde::{Deserialize, Serialize};

/// ln² 2, by which bits of a Bloom filter lower its false positive rate.
const LN_2_SQUARED: f64 = std::f64::consts::LN_2 * std::f64::consts::LN_2;

/// How many runs each level may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Runs {
    /// One run in each level.
    Leveling,
    /// T − 1 runs in each level.
    Tiering,
    /// The first level holds so many runs, each other level one.
    FirstTiered(f64),
    /// The last level holds one run, each other level T − 1.
    LazyLeveling,
    /// So many runs in each level but the last, and in the last.
    Fluid {
        /// K.
        upper: f64,
        /// Z.
        last: f64,
    },
}

/// How much of a level one merge takes, where a level holds one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// Whole levels, without merging one level twice on the way down.
    Full,
    /// A file at a time: at both edges of its overlap half a file is rewritten for nothing.
    Partial,
    /// Spooky with two levels: the last level is divided like the one above it.
    TwoLevelSpooky,
}

/// How filter bits are shared out among levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filters {
    /// Smaller levels have more of them, so that the sum of all false positive rates is least.
    Optimal,
    /// Every entry has as many.
    Uniform,
}

/// A design of a tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Design {
    /// T, at least 2.
    pub size_ratio: f64,
    /// L, at least 1.
    pub levels: f64,
    /// Runs per level.
    pub runs: Runs,
    /// How much one merge takes.
    pub granularity: Granularity,
    /// Whether capacities follow the last level, so that it is always full.
    pub dynamic_capacity: bool,
    /// B.
    pub entries_per_block: f64,
}

/// What I/O costs on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// φ: the cost of a write over that of a read.
    pub write_over_read: f64,
    /// μ: the speed of sequential over that of random access.
    pub sequential_over_random: f64,
}

impl Default for Device {
    /// Writes cost what reads cost, and order does not matter.
    fn default() -> Device {
        Device { write_over_read: 1.0, sequential_over_random: 1.0 }
    }
}

/// The costs of a design, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// L.
    pub levels: f64,
    /// Sorted runs of a full tree.
    pub runs: f64,
    /// Compaction written ÷ ingested.
    pub compaction_write_amplification: f64,
    /// W: I/Os of an update.
    pub update_ios: f64,
    /// R: I/Os of a lookup of an absent key.
    pub absent_lookup_ios: f64,
    /// V: I/Os of a lookup of a present key.
    pub present_lookup_ios: f64,
    /// Q: I/Os of a range.
    pub range_ios: f64,
    /// Bytes of invalid entries ÷ bytes of live ones at worst.
    pub space_amplification_invalid: f64,
}

/// L for `entries` in all, of which a buffer holds `buffer_entries`.
///
/// Source: Dostoevsky, equation 1.
#[must_use]
pub fn levels(entries: f64, buffer_entries: f64, size_ratio: f64) -> f64 {
    let share = entries / buffer_entries.max(1.0) * (size_ratio - 1.0) / size_ratio;
    // A sum that is a whole number must not become a level more by the last bit.
    libm::ceil(libm::log(share.max(1.0)) / libm::log(size_ratio) - 1e-9).max(1.0)
}

/// L as Endure counts it, with the buffer as a level of its own kind: `bytes` of data in all.
#[must_use]
pub fn levels_of_endure(bytes: f64, buffer_bytes: f64, size_ratio: f64) -> f64 {
    let sum = bytes / buffer_bytes.max(1.0) + 1.0;
    libm::ceil(libm::log(sum) / libm::log(size_ratio) - 1e-9).max(1.0)
}

/// f: the false positive rate of a Bloom filter.
#[must_use]
pub fn false_positive_rate(bits_per_entry: f64) -> f64 {
    libm::exp(-bits_per_entry * LN_2_SQUARED)
}

/// Filter bits per entry for a false positive rate.
#[must_use]
pub fn filter_bits(false_positive_rate: f64) -> f64 {
    -libm::log(false_positive_rate.min(1.0)) / LN_2_SQUARED
}

impl Design {
    /// Runs of level `level`, counted from 1 to L.
    #[must_use]
    pub fn runs_of(&self, level: f64) -> f64 {
        let (t, last) = (self.size_ratio, level >= self.levels);
        match self.runs {
            Runs::Leveling => 1.0,
            Runs::Tiering => t - 1.0,
            Runs::FirstTiered(runs) => {
                if level <= 1.0 {
                    runs
                } else {
                    1.0
                }
            }
            Runs::LazyLeveling => {
                if last {
                    1.0
                } else {
                    t - 1.0
                }
            }
            Runs::Fluid { upper, last: of_last } => {
                if last {
                    of_last
                } else {
                    upper
                }
            }
        }
    }

    /// The levels from 1 to L.
    fn each_level(&self) -> impl Iterator<Item = f64> {
        let levels = self.levels.max(1.0);
        std::iter::successors(Some(1.0), |level| Some(level + 1.0))
            .take_while(move |level| *level <= levels)
    }

    /// Sorted runs of a full tree.
    #[must_use]
    pub fn runs(&self) -> f64 {
        self.each_level().map(|level| self.runs_of(level)).sum()
    }

    /// Compaction bytes written for each ingested one: Σ (T − 1) ÷ (nᵢ + 1), corrected for what a
    /// merge takes at once.
    ///
    /// Source: Dostoevsky, equation 12; Spooky for the corrections.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        let t = self.size_ratio;
        let leveled = |level: f64| self.runs_of(level) <= 1.0;
        let whole: f64 =
            self.each_level().map(|level| (t - 1.0) / (self.runs_of(level) + 1.0)).sum();
        match self.granularity {
            Granularity::Full => whole,
            // (T + 1) ÷ 2 in place of (T − 1) ÷ 2.
            Granularity::Partial => {
                whole + self.each_level().filter(|level| leveled(*level)).map(|_| 1.0).sum::<f64>()
            }
            Granularity::TwoLevelSpooky => whole + 1.0,
        }
    }

    /// W: I/Os of an update, those of its later merges shared out.
    #[must_use]
    pub fn update_ios(&self, device: Device) -> f64 {
        device.write_over_read / (device.sequential_over_random * self.entries_per_block)
            * self.write_amplification()
    }

    /// pᵢ: the false positive rates of the filters of each level, from 1 to L.
    ///
    /// Optimal ones make Σ nᵢ pᵢ least for the same bits in all: in proportion to the entries of one
    /// run of the level.
    #[must_use]
    pub fn false_positive_rates(&self, filters: Filters, bits_per_entry: f64) -> Vec<f64> {
        let levels: Vec<(f64, f64)> = self
            .each_level()
            .map(|level| (libm::pow(self.size_ratio, level - self.levels), self.runs_of(level)))
            .collect();
        if filters == Filters::Uniform {
            return vec![false_positive_rate(bits_per_entry); levels.len()];
        }
        // Where a level would get less than no bits it gets none, and the others share them.
        let mut without = 0;
        loop {
            let with = &levels[..levels.len() - without];
            let all: f64 = levels.iter().map(|(entries, _)| entries).sum();
            let entries: f64 = with.iter().map(|(entries, _)| entries).sum();
            let logs: f64 =
                with.iter().map(|(entries, runs)| entries * libm::log(entries / runs)).sum();
            let scale =
                libm::exp((-bits_per_entry * LN_2_SQUARED * all - logs) / entries.max(1e-300));
            let rates = levels.iter().enumerate().map(|(at, (entries, runs))| {
                if at < with.len() { scale * entries / runs } else { 1.0 }
            });
            let rates: Vec<f64> = rates.collect();
            if with.len() <= 1 || rates[..with.len()].iter().all(|rate| *rate <= 1.0) {
                return rates.into_iter().map(|rate| rate.min(1.0)).collect();
            }
            without += 1;
        }
    }

    /// R: I/Os of a lookup of an absent key.
    #[must_use]
    pub fn absent_lookup_ios(&self, filters: Filters, bits_per_entry: f64) -> f64 {
        let rates = self.false_positive_rates(filters, bits_per_entry);
        self.each_level().zip(rates).map(|(level, rate)| self.runs_of(level) * rate).sum()
    }

    /// R with optimal filters in closed form, for a tree of very many levels whose first has no other
    /// number of runs than those below it.
    ///
    /// Source: Monkey; Dostoevsky, equation 9.
    #[must_use]
    pub fn absent_lookup_ios_in_the_limit(&self, bits_per_entry: f64) -> f64 {
        let t = self.size_ratio;
        let (upper, last) = (self.runs_of(self.levels - 1.0), self.runs_of(self.levels));
        false_positive_rate(bits_per_entry)
            * libm::pow(last, (t - 1.0) / t)
            * libm::pow(upper, 1.0 / t)
            * libm::pow(t, t / (t - 1.0))
            / (t - 1.0)
    }

    /// V: I/Os of a lookup of a key that the oldest run holds.
    ///
    /// Source: Dostoevsky, equation 8.
    #[must_use]
    pub fn present_lookup_ios(&self, filters: Filters, bits_per_entry: f64) -> f64 {
        let rates = self.false_positive_rates(filters, bits_per_entry);
        let last = rates.last().copied().unwrap_or(0.0);
        1.0 + self.absent_lookup_ios(filters, bits_per_entry) - last
    }

    /// V where the key is where most keys are: by level, with the false positives of the runs above
    /// and of half the other runs of its own level.
    ///
    /// Source: Endure.
    #[must_use]
    pub fn present_lookup_ios_by_level(&self, filters: Filters, bits_per_entry: f64) -> f64 {
        let rates = self.false_positive_rates(filters, bits_per_entry);
        let weights: Vec<f64> = self
            .each_level()
            .map(|level| libm::pow(self.size_ratio, level - self.levels))
            .collect();
        let all: f64 = weights.iter().sum();
        let (mut above, mut ios) = (0.0, 0.0);
        for ((level, rate), weight) in self.each_level().zip(&rates).zip(&weights) {
            let runs = self.runs_of(level);
            ios += weight / all * (1.0 + above + (runs - 1.0) / 2.0 * rate);
            above += runs * rate;
        }
        ios
    }

    /// Q: I/Os of a range of so many entries: a seek in each run, and the blocks of the last level
    /// with their share of the others.
    ///
    /// Source: Dostoevsky, equation 11.
    #[must_use]
    pub fn range_ios(&self, entries: f64, device: Device) -> f64 {
        self.runs()
            + entries / (device.sequential_over_random * self.entries_per_block)
                * (self.runs_of(self.levels) + 1.0 / self.size_ratio)
    }

    /// Bytes of invalid entries ÷ bytes of live ones at worst.
    #[must_use]
    pub fn space_amplification_invalid(&self) -> f64 {
        let t = self.size_ratio;
        let last = self.runs_of(self.levels);
        // All runs of the last level but one may say the same again, and all levels above.
        let above = if self.dynamic_capacity { 1.0 / (t - 1.0) } else { 1.0 / t };
        last - 1.0 + above
    }

    /// Most bytes that a tree takes while it merges, over its live bytes.
    ///
    /// Source: Spooky.
    #[must_use]
    pub fn peak_space(&self) -> f64 {
        let t = self.size_ratio;
        let tiered = self.runs_of(self.levels) > 1.0;
        match self.granularity {
            _ if tiered => 2.0 + self.space_amplification_invalid(),
            Granularity::Full => 2.0 + 1.0 / (t - 1.0),
            Granularity::Partial => 1.0 + 1.0 / (t - 1.0),
            Granularity::TwoLevelSpooky => 1.0 + 1.0 / t + 1.0 / (t - 1.0),
        }
    }

    /// All costs at once, for ranges of `range_entries`.
    #[must_use]
    pub fn costs(&self, filters: Filters, bits_per_entry: f64, range_entries: f64) -> Costs {
        let device = Device::default();
        Costs {
            levels: self.levels,
            runs: self.runs(),
            compaction_write_amplification: self.write_amplification(),
            update_ios: self.update_ios(device),
            absent_lookup_ios: self.absent_lookup_ios(filters, bits_per_entry),
            present_lookup_ios: self.present_lookup_ios(filters, bits_per_entry),
            range_ios: self.range_ios(range_entries, device),
            space_amplification_invalid: self.space_amplification_invalid(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn design(size_ratio: f64, levels: f64, runs: Runs) -> Design {
        Design {
            size_ratio,
            levels,
            runs,
            granularity: Granularity::Full,
            dynamic_capacity: false,
            entries_per_block: 32.0,
        }
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 5e-4 * expected.max(1e-3), "{found}, not {expected}");
    }

    #[test]
    fn ten_bits_leave_one_in_a_hundred_and_twenty_two() {
        close(false_positive_rate(10.0), 0.008_194);
        close(filter_bits(0.008_194), 10.0);
        // ln T ÷ ln² 2 more for each level up.
        close(filter_bits(0.001) - filter_bits(0.01), 4.792_5);
    }

    #[test]
    fn lookups_of_absent_keys_with_optimal_filters() {
        for (runs, expected) in [
            (Runs::Leveling, 0.011_76),
            (Runs::Tiering, 0.105_81),
            (Runs::LazyLeveling, 0.014_65),
            (Runs::Fluid { upper: 9.0, last: 1.0 }, 0.014_65),
        ] {
            let tree = design(10.0, 12.0, runs);
            close(tree.absent_lookup_ios_in_the_limit(10.0), expected);
            // Shared out level by level, the sum comes to the same.
            close(tree.absent_lookup_ios(Filters::Optimal, 10.0), expected);
            let rates = tree.false_positive_rates(Filters::Optimal, 10.0);
            let bits: f64 = rates
                .iter()
                .zip(tree.each_level())
                .map(|(rate, level)| filter_bits(*rate) * libm::pow(10.0, level - 12.0))
                .sum();
            close(bits / (10.0 / 9.0), 10.0);
        }
        for runs in [Runs::Leveling, Runs::Tiering, Runs::LazyLeveling] {
            close(design(2.0, 30.0, runs).absent_lookup_ios_in_the_limit(10.0), 0.032_77);
            close(design(2.0, 30.0, runs).absent_lookup_ios(Filters::Optimal, 10.0), 0.032_77);
        }
    }

    #[test]
    fn rates_are_those_of_the_closed_form() {
        let tree = design(10.0, 12.0, Runs::LazyLeveling);
        let rates = tree.false_positive_rates(Filters::Optimal, 10.0);
        let lookup = tree.absent_lookup_ios(Filters::Optimal, 10.0);
        // p_L = (R/Z)(T-1)/T, p_i = (R/K)((T-1)/T)/T^(L-i).
        close(rates[11], lookup * 0.9);
        close(rates[10], lookup / 9.0 * 0.9 / 10.0);
        close(rates[9], lookup / 9.0 * 0.9 / 100.0);
    }

    #[test]
    fn uniform_filters_cost_a_false_positive_for_each_run() {
        let f = false_positive_rate(10.0);
        for (runs, count) in [
            (Runs::Leveling, 4.0),
            (Runs::Tiering, 36.0),
            (Runs::FirstTiered(4.0), 7.0),
            (Runs::LazyLeveling, 28.0),
        ] {
            let tree = design(10.0, 4.0, runs);
            close(tree.runs(), count);
            close(tree.absent_lookup_ios(Filters::Uniform, 10.0), count * f);
            close(tree.present_lookup_ios(Filters::Uniform, 10.0), 1.0 + (count - 1.0) * f);
            assert!(tree.present_lookup_ios_by_level(Filters::Uniform, 10.0) <= 1.0 + count * f);
        }
        // Monkey at L = 4, T = 10, 10 bits: .0328 uniform.
        close(
            design(10.0, 4.0, Runs::Leveling).absent_lookup_ios(Filters::Uniform, 10.0),
            0.032_77,
        );
    }

    #[test]
    fn no_level_gets_less_than_no_bits() {
        for bits in [0.0, 0.1, 1.0, 1.62, 3.0] {
            let tree = design(10.0, 5.0, Runs::Leveling);
            let rates = tree.false_positive_rates(Filters::Optimal, bits);
            assert!(rates.iter().all(|rate| (0.0..=1.0).contains(rate)), "{bits}: {rates:?}");
            assert!(rates.is_sorted());
        }
        let none = design(10.0, 5.0, Runs::Leveling).absent_lookup_ios(Filters::Optimal, 0.0);
        close(none, 5.0);
    }

    #[test]
    fn write_amplification_of_four_levels() {
        let of = |runs, granularity| {
            Design { granularity, ..design(10.0, 4.0, runs) }.write_amplification()
        };
        close(of(Runs::Leveling, Granularity::Full), 18.0);
        close(of(Runs::Leveling, Granularity::Partial), 22.0);
        close(of(Runs::Leveling, Granularity::TwoLevelSpooky), 19.0);
        close(of(Runs::Tiering, Granularity::Full), 3.6);
        close(of(Runs::LazyLeveling, Granularity::Full), 7.2);
        close(of(Runs::FirstTiered(4.0), Granularity::Full), 9.0 / 5.0 + 13.5);
        let fluid = |upper, last| of(Runs::Fluid { upper, last }, Granularity::Full);
        close(fluid(1.0, 1.0), 18.0);
        close(fluid(9.0, 9.0), 3.6);
        close(fluid(9.0, 1.0), 7.2);
        let tree = design(10.0, 4.0, Runs::Leveling);
        close(tree.update_ios(Device::default()), 18.0 / 32.0);
        let flash = Device { write_over_read: 2.0, sequential_over_random: 4.0 };
        close(tree.update_ios(flash), 18.0 / 32.0 / 2.0);
    }

    #[test]
    fn ranges_and_space() {
        let device = Device::default();
        let leveling = design(10.0, 4.0, Runs::Leveling);
        close(leveling.range_ios(0.0, device), 4.0);
        close(leveling.range_ios(3200.0, device), 4.0 + 100.0 * 1.1);
        let tiering = design(10.0, 4.0, Runs::Tiering);
        close(tiering.range_ios(3200.0, device), 36.0 + 100.0 * 9.1);
        close(leveling.space_amplification_invalid(), 0.1);
        close(tiering.space_amplification_invalid(), 8.1); // T - 2 + 1/T
        let dynamic = Design { dynamic_capacity: true, ..leveling };
        close(dynamic.space_amplification_invalid(), 1.0 / 9.0);
        close(leveling.peak_space(), 2.0 + 1.0 / 9.0);
        let partial = Design { granularity: Granularity::Partial, ..leveling };
        close(partial.peak_space(), 1.0 + 1.0 / 9.0);
    }

    #[test]
    fn levels_follow_the_data() {
        // Four levels: 9 × 10³ buffers and a little more than 9 × 10² make 4.
        close(levels(1e8, 1e4, 10.0), 4.0);
        close(levels(1e4, 1e4, 10.0), 1.0);
        close(levels_of_endure(999.0, 1.0, 10.0), 3.0);
        close(levels_of_endure(1000.0, 1.0, 10.0), 4.0);
    }
}
