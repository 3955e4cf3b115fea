//! Computes the keys of records. The key of record `i` of `n` depends only on `i`, `n` and the seed.
//!
//! 1. A [`Permutation`] maps the record number to its **rank**: the position of its key in key order.
//! 2. The key domain is divided into `n` intervals, one per rank in ascending order. The key distribution determines
//!    the widths of the intervals. Keys are dense where intervals are narrow.
//! 3. The key of a record is a number from the first half of its interval. Absent keys are numbers from the second
//!    half, so absent keys lie between present keys.
//! 4. This number, in big-endian order, gives the first eight bytes of the key. The other bytes are pseudorandom and
//!    depend only on the first eight.

use crate::error::{Error, Result};
use crate::numbers;

use super::random::{Random, StepDensity, Zipf, append_random_bytes, hash_u64};
use super::{KeyDistribution, NORMAL_DEVIATION, PREFIXES, WINDOWS};

/// Number of intervals in the piecewise constant approximation of the normal distribution.
const NORMAL_STEPS: u32 = 1024;
/// Minimum width of the interval of numbers that is reserved for a record. The lower half encodes the key of the
/// record, the upper half encodes absent keys.
const CELL_WIDTH_MIN: u64 = 4;
/// Length in bytes of the number that a key encodes. Shorter keys contain only the last bytes of the number.
const PLACE_BYTES: usize = size_of::<u64>();

const PURPOSE_PERMUTATION: u64 = 0x7065_726d;
const PURPOSE_PREFIXES: u64 = 0x7072_6566;

/// A pseudorandom permutation of 0..n.
///
/// Multiplications and shifts permute the numbers below the next power of two. This permutation is repeated until the
/// result is below n, on average at most twice.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    n: u64,
    mask: u64,
    shift: u32,
    add: [u64; ROUNDS],
    multiply: [u64; ROUNDS],
    divide: [u64; ROUNDS],
}

const ROUNDS: usize = 4;

impl Permutation {
    pub fn new(n: u64, seed: u64) -> Permutation {
        let mut random = Random::new(seed, PURPOSE_PERMUTATION);
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        let mask = if bits == 0 { 0 } else { u64::MAX >> (u64::BITS - bits) };
        let add = std::array::from_fn(|_| random.next_u64());
        let multiply: [u64; ROUNDS] = std::array::from_fn(|_| random.next_u64() | 1);
        Permutation {
            n,
            mask,
            // `x ^= x >> shift` is its own inverse if `shift` is at least half of the number of bits.
            shift: bits.div_ceil(2).max(1),
            add,
            multiply,
            divide: multiply.map(inverse_of_odd),
        }
    }

    /// Returns the image of `i`, which must be below n.
    pub fn permute(&self, i: u64) -> u64 {
        debug_assert!(i < self.n);
        repeat_until(i, self.n, |mut x| {
            for round in 0..ROUNDS {
                x = x.wrapping_add(self.add[round]).wrapping_mul(self.multiply[round]) & self.mask;
                x ^= x >> self.shift;
            }
            x
        })
    }

    /// Returns the preimage of `rank`, which must be below n.
    pub fn invert(&self, rank: u64) -> u64 {
        debug_assert!(rank < self.n);
        repeat_until(rank, self.n, |mut x| {
            for round in (0..ROUNDS).rev() {
                x ^= x >> self.shift;
                x = x.wrapping_mul(self.divide[round]).wrapping_sub(self.add[round]) & self.mask;
            }
            x
        })
    }
}

/// Applies a permutation one or more times, until the result is below `n`. This restricts the permutation to 0..n.
pub(super) fn repeat_until(mut x: u64, n: u64, permute: impl Fn(u64) -> u64) -> u64 {
    loop {
        x = permute(x);
        if x < n {
            return x;
        }
    }
}

/// Returns the multiplicative inverse of an odd number modulo 2⁶⁴. Newton's iteration starts with three correct bits
/// and doubles the number of correct bits in each iteration.
fn inverse_of_odd(odd: u64) -> u64 {
    let mut inverse = odd;
    for _ in 0..5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
    }
    inverse
}

/// The keys of `n` records.
#[derive(Clone, Debug)]
pub struct KeySpace {
    distribution: KeyDistribution,
    n: u64,
    key_bytes: usize,
    seed: u64,
    /// Number of values that the first eight key bytes can have.
    domain: u64,
    /// Cumulative numbers of keys. The key domain is divided into steps of equal width. Each element is the number of
    /// keys up to the end of a step.
    ranks: Vec<u64>,
    permutation: Permutation,
    window: Permutation,
}

impl KeySpace {
    /// Creates the keys of `n` records. Fails if `key_bytes` bytes are too short for `n` distinct keys.
    pub fn new(
        distribution: KeyDistribution,
        n: u64,
        key_bytes: usize,
        seed: u64,
    ) -> Result<KeySpace> {
        let domain = match u32::try_from(key_bytes) {
            Ok(bytes @ 1..8) => 1u64 << (8 * bytes),
            Ok(0) => 0,
            _ => u64::MAX,
        };
        let ranks = key_density(distribution, seed).cumulative_counts(n);
        let space = KeySpace {
            distribution,
            n,
            key_bytes,
            seed,
            domain,
            ranks,
            permutation: Permutation::new(n, seed),
            window: Permutation::new(n.div_ceil(WINDOWS), seed),
        };
        if space.min_cell_width() < CELL_WIDTH_MIN {
            let must = format!("longer, to tell {n} keys apart ({distribution})");
            return Err(Error::invalid_argument("--key-len", key_bytes, must));
        }
        Ok(space)
    }

    fn min_cell_width(&self) -> u64 {
        let step = self.domain / numbers::to_u64(self.ranks.len());
        let mut before = 0;
        let mut most = 1;
        for end in &self.ranks {
            most = most.max(end - before);
            before = *end;
        }
        step / most
    }

    pub fn distribution(&self) -> KeyDistribution {
        self.distribution
    }

    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    #[expect(clippy::len_without_is_empty, reason = "no caller needs `is_empty`")]
    pub fn len(&self) -> u64 {
        self.n
    }

    /// Returns the rank of record `i`: the position of its key in key order.
    pub fn rank(&self, i: u64) -> u64 {
        match self.distribution {
            KeyDistribution::Sequential => i,
            KeyDistribution::Shifting => self.permute_window(i, Permutation::permute),
            _ => self.permutation.permute(i),
        }
    }

    /// Returns the record whose key has this position in key order.
    pub fn record_at(&self, rank: u64) -> u64 {
        match self.distribution {
            KeyDistribution::Sequential => rank,
            KeyDistribution::Shifting => self.permute_window(rank, Permutation::invert),
            _ => self.permutation.invert(rank),
        }
    }

    /// Permutes `i` within its window. The shifting distribution divides 0..n into [`WINDOWS`] windows.
    fn permute_window(&self, i: u64, permute: fn(&Permutation, u64) -> u64) -> u64 {
        let width = self.n.div_ceil(WINDOWS);
        let start = i - i % width;
        // The last window may be narrower than the others, so the permutation is repeated until the result is in the
        // window.
        start + repeat_until(i % width, self.n - start, |within| permute(&self.window, within))
    }

    pub fn key(&self, i: u64) -> Vec<u8> {
        let mut key = Vec::new();
        self.write_present(i, &mut key);
        key
    }

    pub fn write_present(&self, i: u64, out: &mut Vec<u8>) {
        let rank = self.rank(i);
        let (start, width) = self.rank_interval(rank);
        self.write_key_at(start + hash_u64(rank ^ self.seed) % (width / 2), out);
    }

    /// Appends an absent key that lies between the key of record `i` and the next key. `salt` selects one of these
    /// absent keys.
    pub fn write_absent(&self, i: u64, salt: u64, out: &mut Vec<u8>) {
        let (start, width) = self.rank_interval(self.rank(i));
        let half = width / 2;
        self.write_key_at(start + half + hash_u64(salt ^ self.seed) % (width - half), out);
    }

    /// Returns the start and the width of the key interval of the record with this position in key order.
    fn rank_interval(&self, rank: u64) -> (u64, u64) {
        let step = self.ranks.partition_point(|end| *end <= rank);
        let first = if step == 0 { 0 } else { self.ranks[step - 1] };
        let step_width = self.domain / numbers::to_u64(self.ranks.len());
        let width = step_width / (self.ranks[step] - first);
        (numbers::to_u64(step) * step_width + (rank - first) * width, width)
    }

    /// Appends the key that encodes the number `place`.
    fn write_key_at(&self, place: u64, out: &mut Vec<u8>) {
        let bytes = place.to_be_bytes();
        if self.key_bytes < PLACE_BYTES {
            out.extend_from_slice(&bytes[PLACE_BYTES - self.key_bytes..]);
        } else {
            out.extend_from_slice(&bytes);
            append_random_bytes(place ^ self.seed, self.key_bytes - PLACE_BYTES, out);
        }
    }
}

/// Returns the density of a distribution over the key domain.
pub fn key_density(distribution: KeyDistribution, seed: u64) -> StepDensity {
    match distribution {
        KeyDistribution::PrefixZipf => {
            let zipf = Zipf::new(1.0);
            // A random permutation scatters the popular prefixes over the key domain.
            let scatter = Permutation::new(u64::from(PREFIXES), seed ^ PURPOSE_PREFIXES);
            StepDensity::new((0..PREFIXES).map(move |prefix| {
                zipf.weight(numbers::to_f64(scatter.permute(u64::from(prefix)) + 1))
            }))
        }
        KeyDistribution::Normal => {
            let below = |step: u32| {
                let x = f64::from(step) / f64::from(NORMAL_STEPS) - 0.5;
                libm::erf(x / (NORMAL_DEVIATION * std::f64::consts::SQRT_2))
            };
            StepDensity::new((0..NORMAL_STEPS).map(move |step| below(step + 1) - below(step)))
        }
        _ => StepDensity::new([1.0]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn permutation_is_a_bijection_and_backward_is_its_inverse() {
        for n in [1, 2, 3, 4, 5, 63, 64, 65, 1000, 4097] {
            for seed in 0..3 {
                let permutation = Permutation::new(n, seed);
                let images: BTreeSet<u64> = (0..n).map(|i| permutation.permute(i)).collect();
                assert_eq!(images.len(), numbers::to_usize(n), "n={n} seed={seed}");
                for i in 0..n {
                    assert_eq!(permutation.invert(permutation.permute(i)), i);
                }
            }
        }
    }

    #[test]
    fn permutation_spreads_consecutive_numbers_over_the_range() {
        // The keys of one memtable must cover the whole key domain. Otherwise compactions would find too little
        // overlap. Each of 16 equal ranges should get about 100 of 1,600 consecutive numbers.
        let n = 160_000;
        for seed in 0..5 {
            let permutation = Permutation::new(n, seed);
            for stretch in 0..100 {
                let mut groups = [0u32; 16];
                for i in stretch * 1600..(stretch + 1) * 1600 {
                    groups[numbers::to_usize(permutation.permute(i) / (n / 16))] += 1;
                }
                let chi_square: f64 =
                    groups.iter().map(|count| (f64::from(*count) - 100.0).powi(2) / 100.0).sum();
                // With 15 degrees of freedom, χ² is above 60 with a probability of 2 in ten million.
                assert!(chi_square < 60.0, "seed={seed} stretch={stretch}: {groups:?}");
            }
        }
    }

    fn keys(space: &KeySpace) -> Vec<Vec<u8>> {
        (0..space.len()).map(|i| space.key(i)).collect()
    }

    #[test]
    fn keys_are_distinct_in_rank_order_and_differ_from_absent_keys() {
        for distribution in KeyDistribution::ALL {
            for (n, key_bytes) in [(1, 4), (7, 4), (3000, 4), (3000, 8), (3001, 24)] {
                let space = KeySpace::new(distribution, n, key_bytes, 7).unwrap();
                let present = keys(&space);
                assert!(present.iter().all(|key| key.len() == key_bytes));
                let sorted: BTreeSet<&Vec<u8>> = present.iter().collect();
                assert_eq!(sorted.len(), present.len(), "{distribution} {n} {key_bytes}");
                for (rank, key) in sorted.iter().enumerate() {
                    let record = space.record_at(numbers::to_u64(rank));
                    assert_eq!(space.rank(record), numbers::to_u64(rank));
                    assert_eq!(&&present[numbers::to_usize(record)], key);
                }
                for i in 0..n {
                    for salt in 0..3 {
                        let mut absent = Vec::new();
                        space.write_absent(i, salt, &mut absent);
                        assert_eq!(absent.len(), key_bytes);
                        assert!(!sorted.contains(&absent), "{distribution} {n} {key_bytes}");
                    }
                }
            }
        }
    }

    #[test]
    fn absent_key_follows_its_present_key() {
        let space = KeySpace::new(KeyDistribution::Uniform, 1000, 16, 1).unwrap();
        let present: BTreeSet<Vec<u8>> = keys(&space).into_iter().collect();
        for i in 0..1000 {
            let (key, mut absent) = (space.key(i), Vec::new());
            space.write_absent(i, 9, &mut absent);
            assert!(key < absent);
            let next = present.range(key..).nth(1);
            assert!(next.is_none_or(|next| absent < *next));
        }
    }

    #[test]
    fn too_short_keys_are_a_usage_error() {
        assert!(KeySpace::new(KeyDistribution::Uniform, 100_000, 2, 1).unwrap_err().is_usage());
        assert!(KeySpace::new(KeyDistribution::Uniform, 10, 0, 1).is_err());
        assert!(KeySpace::new(KeyDistribution::Uniform, 16_000, 2, 1).is_ok());
    }

    #[test]
    fn densities_match_their_names() {
        let share = |distribution, from: f64, to: f64| {
            let space = KeySpace::new(distribution, 100_000, 8, 3).unwrap();
            let place = |key: Vec<u8>| u64::from_be_bytes(key.try_into().unwrap());
            let places = keys(&space).into_iter().map(place);
            let inside = places.filter(|at| (from..to).contains(&numbers::ratio(*at, u64::MAX)));
            numbers::ratio(numbers::to_u64(inside.count()), space.len())
        };
        assert!((share(KeyDistribution::Uniform, 0.2, 0.3) - 0.1).abs() < 0.005);
        // 68.27 % of a normal distribution lie within one standard deviation of the mean, 85.86 % in the key domain.
        assert!((share(KeyDistribution::Normal, 0.16, 0.84) - 0.795).abs() < 0.005);
        // The most popular of 1,024 prefixes has 1 ÷ Σ 1/k = 13.3 % of the keys.
        let counts = key_density(KeyDistribution::PrefixZipf, 3).cumulative_counts(100_000);
        let largest = counts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!((12_900..13_700).contains(&largest), "{largest}");
    }

    #[test]
    fn sequential_ascends_and_shifting_fills_window_by_window() {
        let sequential = KeySpace::new(KeyDistribution::Sequential, 500, 8, 3).unwrap();
        assert!(keys(&sequential).is_sorted());
        let shifting = KeySpace::new(KeyDistribution::Shifting, 1005, 8, 3).unwrap();
        let width = 1005_u64.div_ceil(WINDOWS);
        for i in 0..1005 {
            assert_eq!(shifting.rank(i) / width, i / width);
        }
        assert!(!keys(&shifting).is_sorted());
    }
}
