//! Cost model: formulas from the literature for the I/O costs of an LSM design.
//!
//! | symbol | name | meaning |
//! | --- | --- | --- |
//! | T | [`TreeDesign::size_ratio`] | size ratio between levels |
//! | L | [`TreeDesign::levels`] | number of levels on storage |
//! | K, Z | [`RunsPerLevel::Fluid`] | runs of each level except the last level; runs of the last level |
//! | n₀ | [`RunsPerLevel::FirstTiered`] | runs of the first level of 1-leveling |
//! | B | [`TreeDesign::entries_per_block`] | entries per block |
//! | M ÷ N | `bits_per_entry` | filter bits per entry over all levels |
//! | φ, μ | [`DeviceCosts`] | cost of a write ÷ cost of a read; sequential speed ÷ random speed |
//! | s | `entries` | number of entries that a range lookup returns |
//!
//! A cost is the expected number of I/Os of one operation, for uniform keys and a full tree in a steady state. *W* is
//! the cost of an update, *R* of a lookup of an absent key, *V* of a lookup of a present key, and *Q* of a range
//! lookup.
//!
//! ```
//! use lsmx_simulator::cost_model::{
//!     FilterAllocation, MergeGranularity, RunsPerLevel, TreeDesign, levels,
//! };
//!
//! let leveling = TreeDesign {
//!     size_ratio: 10.0,
//!     levels: levels(1e8, 1e4, 10.0),
//!     runs: RunsPerLevel::Leveling,
//!     granularity: MergeGranularity::Full,
//!     dynamic_capacity: false,
//!     entries_per_block: 32.0,
//! };
//! let tiering = TreeDesign { runs: RunsPerLevel::Tiering, ..leveling };
//! assert!(tiering.write_amplification() < leveling.write_amplification());
//! let absent = |tree: &TreeDesign| tree.absent_lookup_ios(FilterAllocation::Uniform, 10.0);
//! assert!(absent(&tiering) > absent(&leveling));
//! ```
//!
//! Sources: Dayan, Athanassoulis, Idreos, "Monkey", SIGMOD 2017; Dayan, Idreos, "Dostoevsky", SIGMOD
//! 2018; Dayan et al., "Spooky", PVLDB 15, 2022.

use serde::{Deserialize, Serialize};

/// ln² 2. A Bloom filter with b bits per entry has a false positive rate of e^(−b ln² 2).
const LN_2_SQUARED: f64 = std::f64::consts::LN_2 * std::f64::consts::LN_2;

/// Maximum number of sorted runs in each level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RunsPerLevel {
    /// One run in each level.
    Leveling,
    /// T − 1 runs in each level.
    Tiering,
    /// The first level has this number of runs. Each other level has one run.
    FirstTiered(f64),
    /// One run in the last level, T − 1 runs in each other level.
    LazyLeveling,
    /// Separate numbers of runs for the last level and for all other levels.
    Fluid {
        /// K: number of runs of each level except the last level.
        upper: f64,
        /// Z: number of runs of the last level.
        last: f64,
    },
}

/// Amount of data that one merge takes from a level with a single run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeGranularity {
    /// Whole levels. Data is merged directly into the first level that can hold it, so no level is merged twice on the
    /// way down.
    Full,
    /// One file. At each edge of the file's key range, half a file of the next level is rewritten without need.
    Partial,
    /// Spooky with two partitioned levels: the last level and the level above it.
    TwoLevelSpooky,
}

/// Allocation of filter bits to levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterAllocation {
    /// Smaller levels have more bits per entry, which minimizes the sum of all false positive rates.
    Optimal,
    /// All levels have the same number of bits per entry.
    Uniform,
    /// Like `Uniform`, but lookups use no filter in the oldest sorted run.
    UniformExceptLastRun,
}

/// Design of an LSM tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TreeDesign {
    /// T, the size ratio between levels, at least 2.
    pub size_ratio: f64,
    /// L, the number of levels, at least 1.
    pub levels: f64,
    /// Sorted runs of each level.
    pub runs: RunsPerLevel,
    /// Amount of data per merge.
    pub granularity: MergeGranularity,
    /// True if the capacities of levels are computed from the size of the last level. The last level is then always
    /// full.
    pub dynamic_capacity: bool,
    /// B, the number of entries per block.
    pub entries_per_block: f64,
}

/// Relative I/O costs of a storage device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceCosts {
    /// φ: cost of a write ÷ cost of a read.
    pub write_over_read: f64,
    /// μ: speed of sequential access ÷ speed of random access.
    pub sequential_over_random: f64,
}

impl Default for DeviceCosts {
    /// Returns equal costs for writes and reads, and for sequential and random access.
    fn default() -> DeviceCosts {
        DeviceCosts { write_over_read: 1.0, sequential_over_random: 1.0 }
    }
}

/// All costs of a design, in the form that reports use.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// L, the number of levels.
    pub levels: f64,
    /// Sorted runs of a full tree.
    pub runs: f64,
    /// Bytes that compaction writes ÷ bytes ingested.
    pub compaction_write_amplification: f64,
    /// W: I/Os per update.
    pub update_ios: f64,
    /// R: I/Os per lookup of an absent key.
    pub absent_lookup_ios: f64,
    /// V: I/Os per lookup of a present key.
    pub present_lookup_ios: f64,
    /// Q: I/Os per range lookup.
    pub range_ios: f64,
    /// Bytes of invalid entries ÷ bytes of live entries, in the worst case.
    pub space_amplification_invalid: f64,
}

/// Returns L, the number of levels of a tree with `entries` entries. Its write buffer holds `buffer_entries` entries.
///
/// Source: Dostoevsky, equation 1.
#[must_use]
pub fn levels(entries: f64, buffer_entries: f64, size_ratio: f64) -> f64 {
    let share = entries / buffer_entries.max(1.0) * (size_ratio - 1.0) / size_ratio;
    // Subtracting 1e-9 prevents a rounding error from adding a level.
    libm::ceil(libm::log(share.max(1.0)) / libm::log(size_ratio) - 1e-9).max(1.0)
}

/// Returns the false positive rate of a Bloom filter with this number of bits per entry.
#[must_use]
pub fn false_positive_rate(bits_per_entry: f64) -> f64 {
    libm::exp(-bits_per_entry * LN_2_SQUARED)
}

/// Returns the number of bits per entry of a Bloom filter with this false positive rate.
#[must_use]
pub fn filter_bits(false_positive_rate: f64) -> f64 {
    -libm::log(false_positive_rate.min(1.0)) / LN_2_SQUARED
}

impl TreeDesign {
    /// Returns the number of runs of a level. Levels are counted from 1 to L.
    #[must_use]
    pub fn runs_of_level(&self, level: f64) -> f64 {
        let (t, is_last) = (self.size_ratio, level >= self.levels);
        match self.runs {
            RunsPerLevel::FirstTiered(runs) if level <= 1.0 => runs,
            RunsPerLevel::Leveling | RunsPerLevel::FirstTiered(_) => 1.0,
            RunsPerLevel::LazyLeveling if is_last => 1.0,
            RunsPerLevel::Tiering | RunsPerLevel::LazyLeveling => t - 1.0,
            RunsPerLevel::Fluid { last, .. } if is_last => last,
            RunsPerLevel::Fluid { upper, .. } => upper,
        }
    }

    /// Returns the levels from 1 to L.
    fn level_numbers(&self) -> impl Iterator<Item = f64> {
        let levels = self.levels.max(1.0);
        std::iter::successors(Some(1.0), |level| Some(level + 1.0))
            .take_while(move |level| *level <= levels)
    }

    /// Returns the number of sorted runs of a full tree.
    #[must_use]
    pub fn runs(&self) -> f64 {
        self.level_numbers().map(|level| self.runs_of_level(level)).sum()
    }

    /// Returns the bytes that compaction writes ÷ bytes ingested. This is Σ (T − 1) ÷ (nᵢ + 1) over all levels i with
    /// nᵢ runs, corrected for the granularity of merges.
    ///
    /// Source: Dostoevsky, equation 12. The corrections are from Spooky.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        let t = self.size_ratio;
        let full: f64 =
            self.level_numbers().map(|level| (t - 1.0) / (self.runs_of_level(level) + 1.0)).sum();
        match self.granularity {
            MergeGranularity::Full => full,
            MergeGranularity::Partial => {
                // In each leveled level, the term is (T + 1) ÷ 2 instead of (T − 1) ÷ 2.
                let leveled =
                    self.level_numbers().filter(|level| self.runs_of_level(*level) <= 1.0);
                full + leveled.map(|_| 1.0).sum::<f64>()
            }
            MergeGranularity::TwoLevelSpooky => full + 1.0,
        }
    }

    /// Returns W, the I/Os per update. The I/Os of a merge are divided among the entries that it moves.
    #[must_use]
    pub fn update_ios(&self, device: DeviceCosts) -> f64 {
        device.write_over_read / (device.sequential_over_random * self.entries_per_block)
            * self.write_amplification()
    }

    /// Returns the false positive rates pᵢ of the filters in each level, from level 1 to level L.
    ///
    /// Optimal rates minimize Σ nᵢ pᵢ for a fixed number of filter bits, where nᵢ is the number of runs of level i.
    /// They are proportional to the entries of one run of the level. [`FilterAllocation::UniformExceptLastRun`] has the
    /// same rates as `Uniform`.
    #[must_use]
    pub fn false_positive_rates(&self, filters: FilterAllocation, bits_per_entry: f64) -> Vec<f64> {
        let levels: Vec<(f64, f64)> = self
            .level_numbers()
            .map(|level| {
                (libm::pow(self.size_ratio, level - self.levels), self.runs_of_level(level))
            })
            .collect();
        if filters != FilterAllocation::Optimal {
            return vec![false_positive_rate(bits_per_entry); levels.len()];
        }
        // If the formula gives a level a negative number of bits, the last level that has a filter loses it, and the
        // rates are computed again.
        let mut without_filter = 0;
        loop {
            let filtered = &levels[..levels.len() - without_filter];
            let all: f64 = levels.iter().map(|(entries, _)| entries).sum();
            let entries: f64 = filtered.iter().map(|(entries, _)| entries).sum();
            let logs: f64 =
                filtered.iter().map(|(entries, runs)| entries * libm::log(entries / runs)).sum();
            let scale =
                libm::exp((-bits_per_entry * LN_2_SQUARED * all - logs) / entries.max(1e-300));
            let rates = levels.iter().enumerate().map(|(at, (entries, runs))| {
                if at < filtered.len() { scale * entries / runs } else { 1.0 }
            });
            let rates: Vec<f64> = rates.collect();
            if filtered.len() <= 1 || rates[..filtered.len()].iter().all(|rate| *rate <= 1.0) {
                return rates.into_iter().map(|rate| rate.min(1.0)).collect();
            }
            without_filter += 1;
        }
    }

    /// Returns R, the I/Os per lookup of an absent key.
    #[must_use]
    pub fn absent_lookup_ios(&self, filters: FilterAllocation, bits_per_entry: f64) -> f64 {
        let rates = self.false_positive_rates(filters, bits_per_entry);
        let last = rates.last().copied().unwrap_or(0.0);
        let all: f64 = self
            .level_numbers()
            .zip(rates)
            .map(|(level, rate)| self.runs_of_level(level) * rate)
            .sum();
        match filters {
            FilterAllocation::Optimal | FilterAllocation::Uniform => all,
            FilterAllocation::UniformExceptLastRun => all - last + 1.0,
        }
    }

    /// Returns V, the I/Os per lookup of a key that the oldest run contains.
    ///
    /// Source: Dostoevsky, equation 8.
    #[must_use]
    pub fn present_lookup_ios(&self, filters: FilterAllocation, bits_per_entry: f64) -> f64 {
        // The oldest run contains the key, so the lookup reads a data block of this run with or without a filter.
        let filters = match filters {
            FilterAllocation::UniformExceptLastRun => FilterAllocation::Uniform,
            FilterAllocation::Optimal | FilterAllocation::Uniform => filters,
        };
        let rates = self.false_positive_rates(filters, bits_per_entry);
        let last = rates.last().copied().unwrap_or(0.0);
        1.0 + self.absent_lookup_ios(filters, bits_per_entry) - last
    }

    /// Returns Q, the I/Os of a range lookup that returns `entries` entries.
    ///
    /// The lookup seeks in each run with one random read. It then reads sequentially: `entries` entries from each run
    /// of the last level, and `entries` ÷ T entries from all other levels together.
    ///
    /// Source: Dostoevsky, equation 11.
    #[must_use]
    pub fn range_ios(&self, entries: f64, device: DeviceCosts) -> f64 {
        self.runs()
            + entries / (device.sequential_over_random * self.entries_per_block)
                * (self.runs_of_level(self.levels) + 1.0 / self.size_ratio)
    }

    /// Returns the bytes of invalid entries ÷ bytes of live entries, in the worst case.
    #[must_use]
    pub fn space_amplification_invalid(&self) -> f64 {
        let t = self.size_ratio;
        let last = self.runs_of_level(self.levels);
        // In the worst case, only the entries of one run of the last level are live.
        let above = if self.dynamic_capacity { 1.0 / (t - 1.0) } else { 1.0 / t };
        last - 1.0 + above
    }

    /// Returns all costs. A range lookup reads `range_entries` entries.
    #[must_use]
    pub fn costs(
        &self,
        filters: FilterAllocation,
        bits_per_entry: f64,
        range_entries: f64,
    ) -> Costs {
        let device = DeviceCosts::default();
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

    fn design(size_ratio: f64, levels: f64, runs: RunsPerLevel) -> TreeDesign {
        TreeDesign {
            size_ratio,
            levels,
            runs,
            granularity: MergeGranularity::Full,
            dynamic_capacity: false,
            entries_per_block: 32.0,
        }
    }

    /// Returns the limit of R for many levels, with optimal filters. All levels except the last level have the same
    /// number of runs.
    ///
    /// Source: Monkey; Dostoevsky, equation 9.
    fn absent_lookup_ios_limit(tree: &TreeDesign, bits_per_entry: f64) -> f64 {
        let t = tree.size_ratio;
        let (upper, last) =
            (tree.runs_of_level(tree.levels - 1.0), tree.runs_of_level(tree.levels));
        false_positive_rate(bits_per_entry)
            * libm::pow(last, (t - 1.0) / t)
            * libm::pow(upper, 1.0 / t)
            * libm::pow(t, t / (t - 1.0))
            / (t - 1.0)
    }

    fn assert_close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 5e-4 * expected.max(1e-3), "{found}, not {expected}");
    }

    #[test]
    fn false_positive_rate_of_ten_bits_is_one_in_122() {
        assert_close(false_positive_rate(10.0), 0.008_194);
        assert_close(filter_bits(0.008_194), 10.0);
        // In each level further up, the filters have ln T ÷ ln² 2 more bits per entry.
        assert_close(filter_bits(0.001) - filter_bits(0.01), 4.792_5);
    }

    #[test]
    fn absent_lookup_ios_with_optimal_filters_agree_with_limit() {
        for (runs, expected) in [
            (RunsPerLevel::Leveling, 0.011_76),
            (RunsPerLevel::Tiering, 0.105_81),
            (RunsPerLevel::LazyLeveling, 0.014_65),
            (RunsPerLevel::Fluid { upper: 9.0, last: 1.0 }, 0.014_65),
        ] {
            let tree = design(10.0, 12.0, runs);
            assert_close(absent_lookup_ios_limit(&tree, 10.0), expected);
            assert_close(tree.absent_lookup_ios(FilterAllocation::Optimal, 10.0), expected);
            let rates = tree.false_positive_rates(FilterAllocation::Optimal, 10.0);
            let bits: f64 = rates
                .iter()
                .zip(tree.level_numbers())
                .map(|(rate, level)| filter_bits(*rate) * libm::pow(10.0, level - 12.0))
                .sum();
            assert_close(bits / (10.0 / 9.0), 10.0);
        }
        for runs in [RunsPerLevel::Leveling, RunsPerLevel::Tiering, RunsPerLevel::LazyLeveling] {
            assert_close(absent_lookup_ios_limit(&design(2.0, 30.0, runs), 10.0), 0.032_77);
            assert_close(
                design(2.0, 30.0, runs).absent_lookup_ios(FilterAllocation::Optimal, 10.0),
                0.032_77,
            );
        }
    }

    #[test]
    fn optimal_rates_agree_with_closed_form() {
        let tree = design(10.0, 12.0, RunsPerLevel::LazyLeveling);
        let rates = tree.false_positive_rates(FilterAllocation::Optimal, 10.0);
        let lookup = tree.absent_lookup_ios(FilterAllocation::Optimal, 10.0);
        // p_L = (R/Z)(T-1)/T, p_i = (R/K)((T-1)/T)/T^(L-i).
        assert_close(rates[11], lookup * 0.9);
        assert_close(rates[10], lookup / 9.0 * 0.9 / 10.0);
        assert_close(rates[9], lookup / 9.0 * 0.9 / 100.0);
    }

    #[test]
    fn uniform_filters_cost_one_false_positive_per_run() {
        let f = false_positive_rate(10.0);
        for (runs, count) in [
            (RunsPerLevel::Leveling, 4.0),
            (RunsPerLevel::Tiering, 36.0),
            (RunsPerLevel::FirstTiered(4.0), 7.0),
            (RunsPerLevel::LazyLeveling, 28.0),
        ] {
            let tree = design(10.0, 4.0, runs);
            assert_close(tree.runs(), count);
            assert_close(tree.absent_lookup_ios(FilterAllocation::Uniform, 10.0), count * f);
            assert_close(
                tree.present_lookup_ios(FilterAllocation::Uniform, 10.0),
                1.0 + (count - 1.0) * f,
            );
        }
        // Value in the Monkey paper for L = 4, T = 10 and 10 bits per entry: 0.0328.
        assert_close(
            design(10.0, 4.0, RunsPerLevel::Leveling)
                .absent_lookup_ios(FilterAllocation::Uniform, 10.0),
            0.032_77,
        );
    }

    #[test]
    fn optimal_rates_with_few_bits_stay_below_one() {
        for bits in [0.0, 0.1, 1.0, 1.62, 3.0] {
            let tree = design(10.0, 5.0, RunsPerLevel::Leveling);
            let rates = tree.false_positive_rates(FilterAllocation::Optimal, bits);
            assert!(rates.iter().all(|rate| (0.0..=1.0).contains(rate)), "{bits}: {rates:?}");
            assert!(rates.is_sorted());
        }
        let none = design(10.0, 5.0, RunsPerLevel::Leveling)
            .absent_lookup_ios(FilterAllocation::Optimal, 0.0);
        assert_close(none, 5.0);
    }

    #[test]
    fn write_amplification_of_four_levels_agrees_with_literature() {
        let of = |runs, granularity| {
            TreeDesign { granularity, ..design(10.0, 4.0, runs) }.write_amplification()
        };
        assert_close(of(RunsPerLevel::Leveling, MergeGranularity::Full), 18.0);
        assert_close(of(RunsPerLevel::Leveling, MergeGranularity::Partial), 22.0);
        assert_close(of(RunsPerLevel::Leveling, MergeGranularity::TwoLevelSpooky), 19.0);
        assert_close(of(RunsPerLevel::Tiering, MergeGranularity::Full), 3.6);
        assert_close(of(RunsPerLevel::LazyLeveling, MergeGranularity::Full), 7.2);
        assert_close(of(RunsPerLevel::FirstTiered(4.0), MergeGranularity::Full), 9.0 / 5.0 + 13.5);
        let fluid = |upper, last| of(RunsPerLevel::Fluid { upper, last }, MergeGranularity::Full);
        assert_close(fluid(1.0, 1.0), 18.0);
        assert_close(fluid(9.0, 9.0), 3.6);
        assert_close(fluid(9.0, 1.0), 7.2);
        let tree = design(10.0, 4.0, RunsPerLevel::Leveling);
        assert_close(tree.update_ios(DeviceCosts::default()), 18.0 / 32.0);
        let flash = DeviceCosts { write_over_read: 2.0, sequential_over_random: 4.0 };
        assert_close(tree.update_ios(flash), 18.0 / 32.0 / 2.0);
    }

    #[test]
    fn range_and_space_costs_agree_with_literature() {
        let device = DeviceCosts::default();
        let leveling = design(10.0, 4.0, RunsPerLevel::Leveling);
        assert_close(leveling.range_ios(0.0, device), 4.0);
        assert_close(leveling.range_ios(3200.0, device), 4.0 + 100.0 * 1.1);
        let tiering = design(10.0, 4.0, RunsPerLevel::Tiering);
        assert_close(tiering.range_ios(3200.0, device), 36.0 + 100.0 * 9.1);
        assert_close(leveling.space_amplification_invalid(), 0.1);
        assert_close(tiering.space_amplification_invalid(), 8.1); // T − 2 + 1 ÷ T
        let dynamic = TreeDesign { dynamic_capacity: true, ..leveling };
        assert_close(dynamic.space_amplification_invalid(), 1.0 / 9.0);
    }

    #[test]
    fn levels_grow_with_data() {
        // The data of 10⁴ write buffers fills four levels.
        assert_close(levels(1e8, 1e4, 10.0), 4.0);
        assert_close(levels(1e4, 1e4, 10.0), 1.0);
    }
}
