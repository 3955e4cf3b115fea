//! How long something took, as a distribution of bounded size.

use hdrhistogram::Histogram;
use lsmx_base::sync::Mutex;
use serde::Serialize;

/// Durations in microseconds, to two significant figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencyMetrics {
    /// How many were measured.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Half of them took no longer.
    pub p50: u64,
    /// Nine of ten took no longer.
    pub p90: u64,
    /// 99 of 100 took no longer.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

/// Collects durations of background work.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Mutex<Option<Histogram<u64>>>);

impl Latencies {
    /// Takes in one duration.
    pub(crate) fn record(&self, us: u64) {
        let mut histogram = self.0.lock();
        if histogram.is_none() {
            // Two figures are within the bounds that the call names, so it gives one.
            *histogram = Histogram::new(2).ok();
        }
        if let Some(histogram) = &mut *histogram {
            // It grows to the value, so nothing is out of range.
            let _ = histogram.record(us);
        }
    }

    /// What was taken in so far.
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
    fn quantiles_are_those_of_what_was_recorded() {
        let latencies = Latencies::default();
        assert_eq!(latencies.metrics(), LatencyMetrics::default());
        (1..=100).for_each(|us| latencies.record(us));
        let metrics = latencies.metrics();
        assert_eq!((metrics.count, metrics.p50, metrics.p90, metrics.max), (100, 50, 90, 100));
        latencies.record(u64::MAX);
        assert!(latencies.metrics().max > 1 << 62);
    }
}
