//! Seeded draws of what a real tree owes to chance: how many of a file's keys lie in a part of its
//! range, and where the n-th of them is.
//!
//! Logarithms are our own or `libm`'s, so that a seed gives the same tree on every machine.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::numbers::real;

/// Above this variance a count is drawn from the bell curve.
const VARIANCE_SMALL: f64 = 9.0;
/// Of fewer keys than this each is drawn by itself.
const KEYS_FEW: f64 = 64.0;

/// A source of chance.
#[derive(Clone, Debug)]
pub(super) struct Dice(ChaCha8Rng);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number in (0, 1].
    pub(super) fn unit(&mut self) -> f64 {
        real((self.0.next_u64() >> 11) + 1) / real(1 << 53)
    }

    /// A number from the standard normal distribution, about: a sum of eight that are evenly spread.
    pub(super) fn normal(&mut self) -> f64 {
        const HALVES: [u32; 4] = [0, 16, 32, 48];
        let mut sum = 0.0;
        for _ in 0..2 {
            let word = self.0.next_u64();
            sum += HALVES.iter().map(|half| real((word >> half) & 0xffff)).sum::<f64>();
        }
        // Each of the eight has the variance 2^32 ÷ 12.
        (sum / 65_536.0 + 4.0 * (1.0 / 65_536.0) - 4.0) * 1.224_744_871_391_589
    }

    /// The gap from one of many points scattered evenly to the next, where the mean gap is 1.
    pub(super) fn gap(&mut self) -> f64 {
        -ln(self.unit())
    }

    /// How many of `n` keys lie in a part that each is in with chance `share`.
    pub(super) fn part_of(&mut self, n: f64, share: f64) -> f64 {
        if share >= 1.0 || n <= 0.0 {
            return n.max(0.0);
        }
        if share <= 0.0 {
            return 0.0;
        }
        if share > 0.5 {
            return n - self.part_of(n, 1.0 - share);
        }
        let mean = n * share;
        let variance = mean * (1.0 - share);
        if variance >= VARIANCE_SMALL {
            return (mean + self.normal() * variance.sqrt()).clamp(0.0, n);
        }
        let mut found: f64 = 0.0;
        if n < KEYS_FEW {
            let mut left = n;
            while left > 0.0 {
                found += if self.unit() <= share { left.min(1.0) } else { 0.0 };
                left -= 1.0;
            }
            return found;
        }
        // From one key that is in the part to the next: the law of rare events.
        let mut at = self.gap();
        while at < mean {
            found += 1.0;
            at += self.gap();
        }
        found.min(n)
    }

    /// Where the `k`-th of `n` keys lies that are scattered evenly over (0, 1).
    pub(super) fn place_of(&mut self, k: f64, n: f64) -> f64 {
        let mean = k / (n + 1.0);
        let deviation = (mean * (1.0 - mean) / (n + 2.0)).max(0.0).sqrt();
        (mean + self.normal() * deviation).clamp(0.0, 1.0)
    }
}

/// The natural logarithm of a number above 0, to seven digits: enough for chance, and much of a
/// simulation's time is spent on it.
fn ln(x: f64) -> f64 {
    const MANTISSA_BITS: u32 = 52;
    let (bits, one) = (x.to_bits(), 1.0_f64.to_bits());
    // x = m · 2ᵉ with m from √½ to √2, and ln m = 2 artanh ((m − 1) ÷ (m + 1)).
    let mut exponent = real(bits >> MANTISSA_BITS) - real(one >> MANTISSA_BITS);
    let mut m = f64::from_bits((bits & ((1 << MANTISSA_BITS) - 1)) | one);
    if m > std::f64::consts::SQRT_2 {
        m /= 2.0;
        exponent += 1.0;
    }
    let s = (m - 1.0) / (m + 1.0);
    let q = s * s;
    let artanh = s * (1.0 + q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * (1.0 / 7.0 + q / 9.0))));
    exponent * std::f64::consts::LN_2 + 2.0 * artanh
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and variance of many draws.
    fn moments(mut draw: impl FnMut() -> f64) -> (f64, f64) {
        const DRAWS: u32 = 40_000;
        let draws: Vec<f64> = (0..DRAWS).map(|_| draw()).collect();
        let mean = draws.iter().sum::<f64>() / f64::from(DRAWS);
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(DRAWS);
        (mean, variance)
    }

    fn close(found: f64, expected: f64, tolerance: f64) -> bool {
        (found - expected).abs() <= tolerance * expected.abs().max(0.1)
    }

    #[test]
    fn logarithms_are_right_to_seven_digits() {
        for x in [1e-16, 0.001, 0.3, 0.7, 0.71, 0.999, 1.0, 1.5, 12_345.0] {
            assert!((ln(x) - libm::log(x)).abs() < 1e-7, "{x}");
        }
    }

    #[test]
    fn a_part_is_binomial() {
        let mut dice = Dice::new(1);
        for (n, share) in [(5.0, 0.3), (20.0, 0.1), (100.0, 0.5), (100.0, 0.9), (1e6, 0.25)] {
            let (mean, variance) = moments(|| dice.part_of(n, share));
            assert!(close(mean, n * share, 0.03), "{n} {share}: {mean}");
            let expected = n * share * (1.0 - share);
            assert!(close(variance, expected, 0.12), "{n} {share}: {variance} {expected}");
        }
        assert!((dice.part_of(7.0, 1.0) - 7.0).abs() < f64::EPSILON);
        assert!(dice.part_of(7.0, 0.0).abs() < f64::EPSILON);
    }

    #[test]
    fn places_are_those_of_the_kth_of_sorted_keys() {
        let mut dice = Dice::new(2);
        for (k, n) in [(1_u32, 50_u32), (25, 50), (300, 1000)] {
            let mut keys = Dice::new(3);
            let (mean, variance) = moments(|| dice.place_of(k.into(), n.into()));
            let expected = f64::from(k) / f64::from(n + 1);
            assert!(close(mean, expected, 0.03), "{mean} {expected}");
            let brute: Vec<f64> = (0..2000)
                .map(|_| {
                    let mut all: Vec<f64> = (0..n).map(|_| keys.unit()).collect();
                    all.sort_by(f64::total_cmp);
                    all[usize::try_from(k).unwrap() - 1]
                })
                .collect();
            let brute_mean = brute.iter().sum::<f64>() / 2000.0;
            let brute_variance =
                brute.iter().map(|x| (x - brute_mean).powi(2)).sum::<f64>() / 2000.0;
            assert!(close(mean, brute_mean, 0.06), "{k} of {n}: {mean} {brute_mean}");
            // Next to the edge the bell is cut off.
            let tolerance = if k == 1 { 0.7 } else { 0.15 };
            assert!((variance / brute_variance - 1.0).abs() < tolerance, "{k} of {n}");
        }
    }
}
