//! Distribution of durations.

use hdrhistogram::Histogram;
use lsmx_base::sync::Mutex;
use serde::{Deserialize, Serialize};

/// Distribution of durations, with two significant digits. The suffix of the field name states the unit, such as `_us`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyMetrics {
    /// Number of durations.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Maximum.
    pub max: u64,
    /// Element *n* is the number of durations below 2^(8 + *n*).
    pub buckets: [u64; LATENCY_BUCKETS],
}

/// Number of buckets of [`LatencyMetrics`].
const LATENCY_BUCKETS: usize = 25;
/// Binary logarithm of the upper bound of the first bucket.
const FIRST_BUCKET_BITS: u32 = 8;

impl LatencyMetrics {
    /// Returns the upper bounds and the values of the buckets.
    pub(super) fn bounded_buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let bounds = (FIRST_BUCKET_BITS..).map(|bits| 1u64 << bits);
        bounds.zip(self.buckets)
    }
}

/// Histogram of durations. Allocated when the first duration is recorded.
#[derive(Debug, Default)]
pub(crate) struct LatencyHistogram(Mutex<Option<Histogram<u64>>>);

impl LatencyHistogram {
    /// Records a duration.
    pub(crate) fn record(&self, duration: u64) {
        let mut histogram = self.0.lock();
        if histogram.is_none() {
            // Two significant digits are within the supported range.
            *histogram = Histogram::new(2).ok();
        }
        if let Some(histogram) = &mut *histogram {
            // The histogram resizes itself, so every value is in range.
            let _ = histogram.record(duration);
        }
    }

    pub(crate) fn metrics(&self) -> LatencyMetrics {
        let histogram = self.0.lock();
        let Some(histogram) = &*histogram else { return LatencyMetrics::default() };
        LatencyMetrics {
            count: histogram.len(),
            mean: histogram.mean(),
            p50: histogram.value_at_quantile(0.5),
            p90: histogram.value_at_quantile(0.9),
            p99: histogram.value_at_quantile(0.99),
            max: histogram.max(),
            buckets: cumulative_buckets(histogram),
        }
    }
}

/// A cell of the histogram never contains a bound, because the bounds are powers of two.
fn cumulative_buckets(histogram: &Histogram<u64>) -> [u64; LATENCY_BUCKETS] {
    let mut buckets = [0; LATENCY_BUCKETS];
    for cell in histogram.iter_recorded() {
        let bits = u64::BITS - cell.value_iterated_to().leading_zeros();
        let index = usize::try_from(bits.saturating_sub(FIRST_BUCKET_BITS)).unwrap_or(usize::MAX);
        if let Some(bucket) = buckets.get_mut(index) {
            *bucket += cell.count_at_value();
        }
    }
    for index in 1..LATENCY_BUCKETS {
        buckets[index] += buckets[index - 1];
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_histogram_returns_recorded_quantiles() {
        let histogram = LatencyHistogram::default();
        assert_eq!(histogram.metrics(), LatencyMetrics::default());
        (1..=100).for_each(|us| histogram.record(us));
        let metrics = histogram.metrics();
        assert_eq!((metrics.count, metrics.p50, metrics.p90, metrics.max), (100, 50, 90, 100));
        histogram.record(u64::MAX);
        assert!(histogram.metrics().max > 1 << 62);
    }

    #[test]
    fn latency_buckets_are_cumulative_and_exact() {
        let histogram = LatencyHistogram::default();
        let mut durations = vec![0, 1, u64::MAX];
        for bits in 7..35 {
            durations.extend([(1 << bits) - 1, 1 << bits, 3 << (bits - 1)]);
        }
        durations.iter().for_each(|duration| histogram.record(*duration));
        let metrics = histogram.metrics();
        assert_eq!(metrics.bounded_buckets().count(), LATENCY_BUCKETS);
        for (bound, found) in metrics.bounded_buckets() {
            let expected = durations.iter().filter(|duration| **duration < bound).count();
            assert_eq!(found, expected as u64, "below {bound}");
        }
    }
}
