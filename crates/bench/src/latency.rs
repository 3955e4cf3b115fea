//! Latency histograms. Latencies are recorded in nanoseconds and reported in microseconds.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::numbers;

/// Maximum recorded latency: one hour. Longer latencies are recorded as one hour.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;
/// Significant decimal digits of a recorded latency.
const DIGITS: u8 = 3;
/// Significant decimal digits of a latency in a coarse histogram.
const COARSE_DIGITS: u8 = 2;

#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

/// Mean, percentiles and maximum of latencies, in microseconds. All values are 0 if no latency was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyUs {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    pub max: f64,
}

impl Default for Latencies {
    fn default() -> Self {
        Latencies::new()
    }
}

impl Latencies {
    pub fn new() -> Latencies {
        Latencies::with_digits(DIGITS)
    }

    /// Creates a histogram with a relative error of up to 1 %. The histogram takes 36 KiB of memory, an eighth of the
    /// memory of a histogram with full precision.
    pub fn coarse() -> Latencies {
        Latencies::with_digits(COARSE_DIGITS)
    }

    fn with_digits(digits: u8) -> Latencies {
        // The histogram crate requires low ≥ 1, high ≥ 2 × low and digits ≤ 5.
        #[expect(clippy::expect_used, reason = "the bounds are constants, and a test covers them")]
        Latencies(
            Histogram::new_with_bounds(1, LATENCY_NS_MAX, digits).expect("the bounds are valid"),
        )
    }

    pub fn record_ns(&mut self, ns: u64) {
        self.0.saturating_record(ns.max(1));
    }

    pub fn merge(&mut self, other: &Latencies) {
        // All histograms have the same upper bound, so the addition cannot fail.
        self.0 += &other.0;
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    pub fn summary(&self) -> LatencyUs {
        if self.0.is_empty() {
            return LatencyUs::default();
        }
        let at = |quantile| numbers::to_f64(self.0.value_at_quantile(quantile)) / 1e3;
        LatencyUs {
            mean: self.0.mean() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: numbers::to_f64(self.0.max()) / 1e3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_a_thousand_latencies_has_exact_percentiles() {
        let mut latencies = Latencies::new();
        assert_eq!(latencies.summary(), LatencyUs::default());
        for us in 1..=1000 {
            latencies.record_ns(us * 1000);
        }
        let summary = latencies.summary();
        assert_eq!(latencies.count(), 1000);
        for (got, want) in [
            (summary.mean, 500.5),
            (summary.p50, 500.0),
            (summary.p90, 900.0),
            (summary.p99, 990.0),
            (summary.p999, 999.0),
            (summary.max, 1000.0),
        ] {
            assert!((got - want).abs() <= want / 500.0, "{got}, expected {want}");
        }
    }

    #[test]
    fn coarse_histogram_is_within_one_percent() {
        let (mut exact, mut coarse) = (Latencies::new(), Latencies::coarse());
        for us in [1, 30, 500, 7000, 90_000] {
            exact.record_ns(us * 1001);
            coarse.record_ns(us * 1001);
        }
        let (exact, coarse) = (exact.summary(), coarse.summary());
        for (exact, coarse) in [(exact.p50, coarse.p50), (exact.max, coarse.max)] {
            assert!((coarse / exact - 1.0).abs() < 0.01, "{coarse}, expected {exact}");
        }
    }

    #[test]
    fn merged_histogram_has_the_latencies_of_both() {
        let (mut a, mut b) = (Latencies::new(), Latencies::new());
        a.record_ns(1000);
        b.record_ns(u64::MAX);
        a.merge(&b);
        assert_eq!(a.count(), 2);
        assert!(a.summary().max >= 3.6e9 && a.summary().p50 <= 1.1);
    }
}
