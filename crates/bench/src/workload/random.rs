//! Seeded random numbers and distributions. Equal seeds give equal results on every machine.
//!
//! The numbers come from ChaCha8, whose output is specified. The distributions use integers, correctly rounded IEEE 754
//! operations and the `libm` crate, whose results do not depend on the platform.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::numbers;

/// Random number generator. Generators with the same seed and purpose return the same sequence of numbers.
#[derive(Clone, Debug)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// Creates a generator. Generators with different purposes are independent of each other.
    pub fn new(seed: u64, purpose: u64) -> Random {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(purpose);
        Random(rng)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `n`, or 0 if `n` is 0. The bias is below n ÷ 2⁶⁴.
    pub fn next_below(&mut self, n: u64) -> u64 {
        // The high half of the 128-bit product always fits into 64 bits.
        u64::try_from((u128::from(self.next_u64()) * u128::from(n)) >> 64).unwrap_or(0)
    }

    /// Returns a number in [0, 1), a multiple of 2⁻⁵³.
    pub fn next_unit(&mut self) -> f64 {
        numbers::to_f64(self.next_u64() >> 11) / numbers::to_f64(1 << 53)
    }
}

/// Hashes a number with the finalizer of SplitMix64, which is a bijection.
///
/// Source: Steele, Lea, Flood, OOPSLA 2014.
pub fn hash_u64(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns `len` pseudorandom bytes, which do not compress.
pub fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    append_random_bytes(seed, len, &mut bytes);
    bytes
}

/// Appends `len` pseudorandom bytes, which do not compress.
pub fn append_random_bytes(seed: u64, len: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + len, 0);
    let mut state = seed;
    for chunk in out[start..].chunks_mut(size_of::<u64>()) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        chunk.copy_from_slice(&hash_u64(state).to_le_bytes()[..chunk.len()]);
    }
}

/// Zipf distribution of ranks 0, 1, 2, …: rank `r` has the weight (r + 1)⁻ˢ. The number of ranks may grow between
/// draws, because the method needs no table of ranks.
///
/// Source: Hörmann, Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions", ACM
/// TOMACS 6(3), 1996.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    exponent: f64,
    integral_at_first: f64,
    squeeze: f64,
}

impl Zipf {
    /// Creates the distribution with exponent `s` > 0.
    pub fn new(s: f64) -> Zipf {
        let mut zipf = Zipf { exponent: s, integral_at_first: 0.0, squeeze: 0.0 };
        zipf.integral_at_first = zipf.integral(1.5) - 1.0;
        zipf.squeeze = 2.0 - zipf.inverse_integral(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    /// Draws a rank below `n`. Returns 0 if `n` is 0 or 1.
    pub fn draw(&self, random: &mut Random, n: u64) -> u64 {
        if n <= 1 {
            return 0;
        }
        let last = numbers::to_f64(n);
        let integral_at_last = self.integral(last + 0.5);
        loop {
            let u =
                integral_at_last + random.next_unit() * (self.integral_at_first - integral_at_last);
            let x = self.inverse_integral(u);
            let k = libm::floor(x + 0.5).clamp(1.0, last);
            if k - x <= self.squeeze || u >= self.integral(k + 0.5) - self.weight(k) {
                return numbers::floor_to_u64(k) - 1;
            }
        }
    }

    /// Returns the weight k⁻ˢ of rank `k`, counted from 1.
    pub fn weight(&self, k: f64) -> f64 {
        libm::exp(-self.exponent * libm::log(k))
    }

    /// Returns ∫ t⁻ˢ dt from 1 to x.
    fn integral(&self, x: f64) -> f64 {
        let log = libm::log(x);
        let t = (1.0 - self.exponent) * log;
        if t.abs() > 1e-8 { libm::expm1(t) / (1.0 - self.exponent) } else { log * (1.0 + t / 2.0) }
    }

    /// Returns the x for which [`Zipf::integral`] is `y`.
    fn inverse_integral(&self, y: f64) -> f64 {
        let t = (y * (1.0 - self.exponent)).max(-1.0);
        let log = if t.abs() > 1e-8 {
            libm::log1p(t) / (1.0 - self.exponent)
        } else {
            y * (1.0 - t / 2.0)
        };
        libm::exp(log)
    }
}

/// Piecewise constant probability density over [0, 1). All intervals have the same width.
#[derive(Clone, Debug)]
pub struct StepDensity {
    /// Cumulative probability at the end of each interval. The last element is 1.
    cumulative: Vec<f64>,
}

impl StepDensity {
    /// Creates a density from the weights of its intervals. No weight may be negative, and at least one must be
    /// positive.
    pub fn new(weights: impl IntoIterator<Item = f64>) -> StepDensity {
        let mut sum = 0.0;
        let mut cumulative: Vec<f64> = weights
            .into_iter()
            .map(|weight| {
                sum += weight;
                sum
            })
            .collect();
        for share in &mut cumulative {
            *share /= sum;
        }
        if let Some(last) = cumulative.last_mut() {
            *last = 1.0;
        }
        StepDensity { cumulative }
    }

    /// Distributes `n` items by the density. Returns the cumulative number of items at the end of each interval.
    pub fn cumulative_counts(&self, n: u64) -> Vec<u64> {
        self.cumulative
            .iter()
            .map(|share| numbers::floor_to_u64(share * numbers::to_f64(n)).min(n))
            .collect()
    }

    /// Draws a number in [0, 1) with this density.
    pub fn draw(&self, random: &mut Random) -> f64 {
        let u = random.next_unit();
        let step = self.cumulative.partition_point(|share| *share <= u);
        let step = step.min(self.cumulative.len().saturating_sub(1));
        (numbers::to_f64(numbers::to_u64(step)) + random.next_unit())
            / numbers::to_f64(numbers::to_u64(self.cumulative.len().max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_of_a_seed_never_changes() {
        let mut random = Random::new(7, 1);
        for expected in
            [18_301_176_669_829_311_175, 166_969_048_821_288_533, 13_311_386_896_195_443_538]
        {
            assert_eq!(random.next_u64(), expected);
        }
        let zipf = Zipf::new(0.99);
        for expected in [641, 455_293, 240, 710, 60, 0, 33, 88_640] {
            assert_eq!(zipf.draw(&mut random, 1_000_000), expected);
        }
    }

    #[test]
    fn purposes_and_seeds_give_different_streams() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..4 {
            for purpose in 0..4 {
                assert!(seen.insert(Random::new(seed, purpose).next_u64()));
            }
        }
    }

    #[test]
    fn zipf_draws_ranks_by_their_weights() {
        for s in [0.6, 0.99, 1.0, 1.4] {
            let zipf = Zipf::new(s);
            let mut random = Random::new(1, 0);
            const DRAWS: u32 = 200_000;
            let mut counts = [0u32; 20];
            for _ in 0..DRAWS {
                counts[numbers::to_usize(zipf.draw(&mut random, 20))] += 1;
            }
            let total: f64 = (1..=20).map(|k: u32| zipf.weight(k.into())).sum();
            for (k, count) in (1_u32..).zip(counts) {
                let expected = f64::from(DRAWS) * zipf.weight(k.into()) / total;
                let error = (f64::from(count) - expected).abs();
                assert!(error < 6.0 * expected.sqrt(), "s={s} k={k}: {count}, {expected}");
            }
        }
    }

    #[test]
    fn zipf_draw_is_below_the_number_of_ranks() {
        let zipf = Zipf::new(0.99);
        let mut random = Random::new(3, 0);
        for n in [0, 1, 2, 3, 1000, u64::from(u32::MAX)] {
            for _ in 0..1000 {
                assert!(zipf.draw(&mut random, n) < n.max(1));
            }
        }
    }

    #[test]
    fn steps_draw_places_by_their_weights() {
        let steps = StepDensity::new([1.0, 0.0, 3.0, 4.0]);
        assert_eq!(steps.cumulative_counts(80), [10, 10, 40, 80]);
        let mut random = Random::new(5, 0);
        let mut counts = [0u32; 4];
        for _ in 0..80_000 {
            counts[numbers::to_usize(numbers::floor_to_u64(steps.draw(&mut random) * 4.0))] += 1;
        }
        assert_eq!(counts[1], 0);
        for (step, expected) in [(0, 10_000.0), (2, 30_000.0), (3, 40_000.0_f64)] {
            assert!((f64::from(counts[step]) - expected).abs() < 6.0 * expected.sqrt());
        }
    }

    #[test]
    fn random_bytes_have_the_length_and_differ_by_seed() {
        for len in [0, 1, 7, 8, 9, 112] {
            assert_eq!(random_bytes(1, len).len(), len);
        }
        assert_ne!(random_bytes(1, 16), random_bytes(2, 16));
    }
}
