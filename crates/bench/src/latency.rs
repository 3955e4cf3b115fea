//! Latencies: recorded in nanoseconds, reported in microseconds.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::numbers;

/// One hour; whatever takes longer is counted as this long.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;
/// Three digits: every percentile is right to a thousandth.
const DIGITS: u8 = 3;

/// A histogram of latencies.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

/// Mean, percentiles and maximum, in microseconds. All 0 where nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyUs {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

impl Default for Latencies {
    fn default() -> Self {
        Latencies::new()
    }
}

impl Latencies {
    /// An empty histogram.
    #[must_use]
    pub fn new() -> Latencies {
        // The bounds are constants that the histogram accepts: low ≥ 1, high ≥ 2 × low, digits ≤ 5.
        #[expect(clippy::expect_used, reason = "constant bounds, covered by a test")]
        Latencies(
            Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS).expect("the bounds are legal"),
        )
    }

    /// Counts one operation that took `ns` nanoseconds.
    pub fn record_ns(&mut self, ns: u64) {
        self.0.saturating_record(ns.max(1));
    }

    /// Takes in what `other` counted.
    pub fn merge(&mut self, other: &Latencies) {
        // Both have the same bounds, so everything in one fits into the other.
        self.0 += &other.0;
    }

    /// Operations counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// What the report shows.
    #[must_use]
    pub fn summary(&self) -> LatencyUs {
        if self.0.is_empty() {
            return LatencyUs::default();
        }
        let at = |quantile| numbers::float(self.0.value_at_quantile(quantile)) / 1e3;
        LatencyUs {
            mean: self.0.mean() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: numbers::float(self.0.max()) / 1e3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_thousand_latencies() {
        let mut latencies = Latencies::new();
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
            assert!((got - want).abs() <= want / 500.0, "{got} is not {want}");
        }
    }

    #[test]
    fn merged_histograms_count_together() {
        let (mut a, mut b) = (Latencies::new(), Latencies::new());
        a.record_ns(1000);
        b.record_ns(u64::MAX);
        a.merge(&b);
        assert_eq!(a.count(), 2);
        assert!(a.summary().max >= 3.6e9 && a.summary().p50 <= 1.1);
    }

    #[test]
    fn nothing_measured_is_all_zero_and_an_age_saturates() {
        assert_eq!(Latencies::new().summary(), LatencyUs::default());
        let mut latencies = Latencies::new();
        latencies.record_ns(u64::MAX);
        assert!(latencies.summary().max >= 3.6e9);
    }
}
