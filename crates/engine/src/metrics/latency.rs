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
        }
    }
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
}
