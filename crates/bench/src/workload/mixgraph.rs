//! The workload MixGraph: a model of the operations on ZippyDB, a distributed key-value store at Facebook.
//!
//! 1. The keys are divided into 30 ranges of equal size, in key order. The weights of the ranges are
//!    a × eᵇⁱ + c × eᵈⁱ for i = 1, 2, …, in a random order.
//! 2. Within a range, the keys with the popularity ranks 1 to x receive the share a × xᵇ of the operations. A hash
//!    function maps popularity ranks to keys.
//! 3. The lengths of scans follow a generalized Pareto distribution.
//!
//! Source: Cao, Dong, Vemuri, Du, "Characterizing, Modeling, and Benchmarking RocksDB Key-Value Workloads at Facebook",
//! FAST 2020. The parameters are those of `db_bench --benchmarks=mixgraph` in the RocksDB wiki, page "RocksDB Trace,
//! Replay, Analyzer, and Workload Generation".

use crate::numbers::{self, to_f64};

use super::keys::Permutation;
use super::operation_mix::MixedOperation;
use super::random::{Random, StepDensity, hash_u64};

const GET_SHARE: f64 = 0.83;
const PUT_SHARE: f64 = 0.14;

const KEY_RANGES: u64 = 30;
const RANGE_A: f64 = 14.18;
const RANGE_B: f64 = -2.917;
const RANGE_C: f64 = 0.0164;
const RANGE_D: f64 = -0.08082;

const KEY_A: f64 = 0.002_312;
const KEY_B: f64 = 0.3467;

/// Shape of the distribution of scan lengths.
const SCAN_K: f64 = 2.517;
/// Scale of the distribution of scan lengths, in entries.
const SCAN_SIGMA: f64 = 14.236;
/// Scan lengths are reduced modulo this number, as in `db_bench`. 5 % of the drawn lengths exceed this number.
const SCAN_ENTRIES_MAX: f64 = 10_000.0;

/// Generator of operations and keys for a database of a given size.
#[derive(Clone, Debug)]
pub struct MixGraph {
    keys: u64,
    ranges: u64,
    /// Share of the operations that each key range receives, in key order.
    range_shares: StepDensity,
}

impl MixGraph {
    /// Creates the generator for `keys` keys, at least 1. Different seeds give different orders of the key ranges.
    pub fn new(keys: u64, seed: u64) -> MixGraph {
        let ranges = KEY_RANGES.min(keys);
        let order = Permutation::new(ranges, seed);
        let weights = (0..ranges).map(|range| range_weight(order.permute(range) + 1));
        MixGraph { keys, ranges, range_shares: StepDensity::new(weights) }
    }

    /// Draws a get, a put or a scan.
    pub fn draw_operation(&self, random: &mut Random) -> MixedOperation {
        let u = random.next_unit();
        if u < GET_SHARE {
            MixedOperation::Read
        } else if u < GET_SHARE + PUT_SHARE {
            MixedOperation::Put
        } else {
            MixedOperation::Scan(draw_scan_entries(random))
        }
    }

    /// Draws the key of an operation. Returns its position in key order, below the number of keys.
    pub fn draw_key_rank(&self, random: &mut Random) -> u64 {
        let range = numbers::floor_to_u64(self.range_shares.draw(random) * to_f64(self.ranges));
        let range = range.min(self.ranges - 1);
        let start = self.keys * range / self.ranges;
        let end = self.keys * (range + 1) / self.ranges;
        start + hash_u64(draw_popularity_rank(random)) % (end - start)
    }
}

/// Returns the weight of a key range. `number` counts the ranges from 1.
fn range_weight(number: u64) -> f64 {
    let number = to_f64(number);
    RANGE_A * libm::exp(RANGE_B * number) + RANGE_C * libm::exp(RANGE_D * number)
}

/// Draws a popularity rank from 1.
fn draw_popularity_rank(random: &mut Random) -> u64 {
    let rank = libm::pow(random.next_unit() / KEY_A, 1.0 / KEY_B);
    numbers::floor_to_u64(libm::ceil(rank)).max(1)
}

/// Draws the length of a scan, from 1 to [`SCAN_ENTRIES_MAX`] entries.
fn draw_scan_entries(random: &mut Random) -> u64 {
    // A number in (0, 1].
    let u = 1.0 - random.next_unit();
    let entries = libm::ceil(SCAN_SIGMA * (libm::pow(u, -SCAN_K) - 1.0) / SCAN_K);
    numbers::floor_to_u64(libm::fmod(entries, SCAN_ENTRIES_MAX)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u32 = 200_000;

    /// Returns the share of draws that are counted by `counts`.
    fn share(mut counts: impl FnMut(&mut Random) -> bool) -> f64 {
        let mut random = Random::new(1, 0);
        let count = (0..DRAWS).filter(|_| counts(&mut random)).count();
        to_f64(numbers::to_u64(count)) / f64::from(DRAWS)
    }

    /// Fails if a share of [`DRAWS`] draws is more than six standard deviations from its expected value.
    #[track_caller]
    fn assert_share(found: f64, expected: f64) {
        let deviation = (expected * (1.0 - expected) / f64::from(DRAWS)).sqrt();
        assert!((found - expected).abs() < 6.0 * deviation, "{found}, expected {expected}");
    }

    #[test]
    fn operations_have_the_shares_of_the_mix() {
        let mix = MixGraph::new(1000, 1);
        for (expected, is_kind) in [
            (0.83, (|it| it == MixedOperation::Read) as fn(MixedOperation) -> bool),
            (0.14, |it| it == MixedOperation::Put),
            (0.03, |it| matches!(it, MixedOperation::Scan(_))),
        ] {
            assert_share(share(|random| is_kind(mix.draw_operation(random))), expected);
        }
    }

    #[test]
    fn key_ranges_have_the_weights_of_two_exponentials() {
        let mix = MixGraph::new(30_000, 1);
        let sum: f64 = (1..=30).map(range_weight).sum();
        let mut counts = vec![0.0; 30];
        let mut random = Random::new(1, 0);
        for _ in 0..DRAWS {
            counts[numbers::to_usize(mix.draw_key_rank(&mut random) / 1000)] += 1.0;
        }
        counts.sort_by(|a: &f64, b| b.total_cmp(a));
        // The weights decrease with the number of the range: the first range has 0.78, the second 0.05.
        assert!(
            (range_weight(1) - 0.782).abs() < 0.001 && (range_weight(2) - 0.0555).abs() < 0.001
        );
        for (count, number) in counts.into_iter().zip(1..) {
            assert_share(count / f64::from(DRAWS), range_weight(number) / sum);
        }
    }

    #[test]
    fn popular_keys_follow_the_power_law() {
        for rank in [1, 10, 1000, 100_000, 10_000_000] {
            let expected = KEY_A * libm::pow(to_f64(rank), KEY_B);
            assert_share(share(|random| draw_popularity_rank(random) <= rank), expected);
        }
    }

    #[test]
    fn scan_lengths_follow_the_pareto_distribution() {
        let cumulative = |x: f64| 1.0 - libm::pow(1.0 + SCAN_K * x / SCAN_SIGMA, -1.0 / SCAN_K);
        for entries in [1, 5, 20, 100, 1000, 9000] {
            let x = to_f64(entries);
            // Lengths of at least `SCAN_ENTRIES_MAX` are reduced modulo that number.
            let wrapped = |turn: u32| {
                let start = SCAN_ENTRIES_MAX * f64::from(turn);
                cumulative(start + x) - cumulative(start)
            };
            let turns: f64 = (0..100_000).map(wrapped).sum();
            let beyond = 1.0 - cumulative(SCAN_ENTRIES_MAX * 100_000.0);
            let expected = turns + beyond * x / SCAN_ENTRIES_MAX;
            assert_share(share(|random| draw_scan_entries(random) <= entries), expected);
        }
        assert_eq!(share(|random| !(1..10_000).contains(&draw_scan_entries(random))), 0.0);
    }

    #[test]
    fn key_ranks_are_below_the_number_of_keys() {
        let mut random = Random::new(2, 0);
        for keys in [1, 2, 29, 31, 1 << 40] {
            let mix = MixGraph::new(keys, 3);
            assert!((0..1000).all(|_| mix.draw_key_rank(&mut random) < keys));
        }
        let order = |seed| MixGraph::new(30, seed).draw_key_rank(&mut Random::new(0, 0));
        assert!((1..20).any(|seed| order(seed) != order(0)));
    }
}
