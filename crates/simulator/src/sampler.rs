//! Seeded random samples: the number of keys in a part of a range, and the position of the n-th key.
//!
//! Logarithms are computed by this module or by `libm`, so a seed gives the same tree on every platform.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::math::to_f64;

/// Minimum variance for which [`Sampler::binomial`] uses the normal approximation.
const NORMAL_VARIANCE_MIN: f64 = 9.0;
/// [`Sampler::binomial`] samples each key separately if there are fewer keys than this number.
const KEYS_FEW: f64 = 64.0;

/// A seeded source of random samples.
#[derive(Clone, Debug)]
pub(crate) struct Sampler(ChaCha8Rng);

impl Sampler {
    pub(crate) fn new(seed: u64) -> Sampler {
        Sampler(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Returns a uniform sample from (0, 1].
    pub(crate) fn uniform(&mut self) -> f64 {
        to_f64((self.0.next_u64() >> 11) + 1) / to_f64(1 << 53)
    }

    /// Returns an approximate sample of the standard normal distribution.
    ///
    /// The sample is a scaled sum of eight uniform 16-bit numbers.
    pub(crate) fn normal(&mut self) -> f64 {
        const SHIFTS: [u32; 4] = [0, 16, 32, 48];
        let mut sum = 0.0;
        for _ in 0..2 {
            let word = self.0.next_u64();
            sum += SHIFTS.iter().map(|shift| to_f64((word >> shift) & 0xffff)).sum::<f64>();
        }
        // The variance of each of the eight numbers is 2³² ÷ 12.
        (sum / 65_536.0 + 4.0 * (1.0 / 65_536.0) - 4.0) * 1.224_744_871_391_589
    }

    /// Returns a sample of the exponential distribution with mean 1.
    ///
    /// The distance between neighbours of many uniformly scattered points has this distribution.
    pub(crate) fn exponential(&mut self) -> f64 {
        -ln(self.uniform())
    }

    /// Returns a sample of the number of successes in `n` trials. Each trial succeeds with probability `share`.
    pub(crate) fn binomial(&mut self, n: f64, share: f64) -> f64 {
        if share >= 1.0 || n <= 0.0 {
            return n.max(0.0);
        }
        if share <= 0.0 {
            return 0.0;
        }
        if share > 0.5 {
            return n - self.binomial(n, 1.0 - share);
        }
        let mean = n * share;
        let variance = mean * (1.0 - share);
        if variance >= NORMAL_VARIANCE_MIN {
            return (mean + self.normal() * variance.sqrt()).clamp(0.0, n);
        }
        let mut successes: f64 = 0.0;
        if n < KEYS_FEW {
            let mut left = n;
            while left > 0.0 {
                successes += if self.uniform() <= share { left.min(1.0) } else { 0.0 };
                left -= 1.0;
            }
            return successes;
        }
        // Poisson approximation: counts the exponentially distributed gaps that fit into the mean.
        let mut at = self.exponential();
        while at < mean {
            successes += 1.0;
            at += self.exponential();
        }
        successes.min(n)
    }

    /// Returns a sample of the `k`-th smallest of `n` uniform numbers from (0, 1). Uses the normal approximation.
    pub(crate) fn order_statistic(&mut self, k: f64, n: f64) -> f64 {
        let mean = k / (n + 1.0);
        let deviation = (mean * (1.0 - mean) / (n + 2.0)).max(0.0).sqrt();
        (mean + self.normal() * deviation).clamp(0.0, 1.0)
    }
}

/// Returns the natural logarithm of a positive number, with an absolute error below 10⁻⁷.
///
/// Random samples need no higher precision, and this function is a hot path of the simulator.
fn ln(x: f64) -> f64 {
    const MANTISSA_BITS: u32 = 52;
    let (bits, one) = (x.to_bits(), 1.0_f64.to_bits());
    // x = m · 2ᵉ with √½ < m <= √2, and ln m = 2 artanh((m − 1) ÷ (m + 1)).
    let mut exponent = to_f64(bits >> MANTISSA_BITS) - to_f64(one >> MANTISSA_BITS);
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

    /// Returns the mean and the variance of many samples.
    fn moments(mut sample: impl FnMut() -> f64) -> (f64, f64) {
        const SAMPLES: u32 = 40_000;
        let samples: Vec<f64> = (0..SAMPLES).map(|_| sample()).collect();
        mean_and_variance(&samples)
    }

    fn mean_and_variance(samples: &[f64]) -> (f64, f64) {
        let n = to_f64(u64::try_from(samples.len()).unwrap());
        let mean = samples.iter().sum::<f64>() / n;
        (mean, samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n)
    }

    fn is_close(found: f64, expected: f64, tolerance: f64) -> bool {
        (found - expected).abs() <= tolerance * expected.abs().max(0.1)
    }

    #[test]
    fn ln_is_exact_to_seven_digits() {
        for x in [1e-16, 0.001, 0.3, 0.7, 0.71, 0.999, 1.0, 1.5, 12_345.0] {
            assert!((ln(x) - libm::log(x)).abs() < 1e-7, "{x}");
        }
    }

    #[test]
    fn binomial_has_mean_and_variance_of_the_distribution() {
        let mut sampler = Sampler::new(1);
        for (n, share) in [(5.0, 0.3), (20.0, 0.1), (100.0, 0.5), (100.0, 0.9), (1e6, 0.25)] {
            let (mean, variance) = moments(|| sampler.binomial(n, share));
            assert!(is_close(mean, n * share, 0.03), "{n} {share}: {mean}");
            let expected = n * share * (1.0 - share);
            assert!(is_close(variance, expected, 0.12), "{n} {share}: {variance} {expected}");
        }
        assert!((sampler.binomial(7.0, 1.0) - 7.0).abs() < f64::EPSILON);
        assert!(sampler.binomial(7.0, 0.0).abs() < f64::EPSILON);
    }

    #[test]
    fn order_statistic_agrees_with_sorted_samples() {
        let mut sampler = Sampler::new(2);
        for (k, n) in [(1_u32, 50_u32), (25, 50), (300, 1000)] {
            let mut keys = Sampler::new(3);
            let (mean, variance) = moments(|| sampler.order_statistic(k.into(), n.into()));
            let expected = f64::from(k) / f64::from(n + 1);
            assert!(is_close(mean, expected, 0.03), "{mean} {expected}");
            let sorted: Vec<f64> = (0..2000)
                .map(|_| {
                    let mut all: Vec<f64> = (0..n).map(|_| keys.uniform()).collect();
                    all.sort_by(f64::total_cmp);
                    all[usize::try_from(k).unwrap() - 1]
                })
                .collect();
            let (sorted_mean, sorted_variance) = mean_and_variance(&sorted);
            assert!(is_close(mean, sorted_mean, 0.06), "{k} of {n}: {mean} {sorted_mean}");
            // Near the edge, clamping removes a part of the distribution.
            let tolerance = if k == 1 { 0.7 } else { 0.15 };
            assert!((variance / sorted_variance - 1.0).abs() < tolerance, "{k} of {n}");
        }
    }
}
