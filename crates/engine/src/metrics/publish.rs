//! Metrics for recorders of the crate `metrics`.

use metrics::{Label, counter, describe_counter, describe_gauge, gauge};

use crate::metrics::Metrics;
use crate::metrics::families::{MetricKind, MetricSample, MetricValue, metric_families};

/// Sets all metrics in the recorder of the current thread or process.
///
/// A histogram becomes counters with the label `le`, a gauge for the sum and a counter for the number of durations. A
/// counter of seconds becomes a gauge.
pub(crate) fn publish(metrics: &Metrics, labels: &[(&str, &str)]) {
    let common: Vec<Label> = labels.iter().map(|(name, value)| label(name, value)).collect();
    for family in metric_families(metrics) {
        let is_integer =
            |sample: &MetricSample<'_>| matches!(sample.value, MetricValue::Integer(_));
        match family.kind {
            MetricKind::Counter if family.samples.iter().all(is_integer) => {
                describe_counter!(family.name, family.help)
            }
            _ => describe_gauge!(family.name, family.help),
        }
        for MetricSample { suffix, labels, value } in family.samples {
            let mut all = common.clone();
            all.extend(labels.iter().map(|(name, value)| label(name, value)));
            let name = format!("{}{suffix}", family.name);
            match (family.kind, value) {
                (MetricKind::Counter | MetricKind::Histogram, MetricValue::Integer(value)) => {
                    counter!(name, all).absolute(value);
                }
                // Counters of a recorder are integers, so a counter of seconds is a gauge.
                _ => gauge!(name, all).set(value.as_f64()),
            }
        }
    }
}

fn label(name: &str, value: &str) -> Label {
    Label::new(name.to_owned(), value.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU64, Ordering};

    use lsmx_base::sync::{Arc, Mutex};
    use metrics::{
        Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    };

    use super::*;
    use crate::metrics::KeyspaceMetrics;

    /// Recorder that keeps all values. Values of gauges are the bits of floats.
    #[derive(Default)]
    struct MapRecorder(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

    impl MapRecorder {
        fn register(&self, key: &Key) -> Arc<AtomicU64> {
            let labels = key.labels().map(|label| format!(" {}={}", label.key(), label.value()));
            let name = key.name().to_owned() + &labels.collect::<String>();
            Arc::clone(self.0.lock().entry(name).or_default())
        }

        fn value(&self, name: &str) -> u64 {
            self.0.lock()[name].load(Ordering::Relaxed)
        }
    }

    impl Recorder for MapRecorder {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.register(key))
        }
        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.register(key))
        }
        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    #[test]
    fn published_metrics_have_labels_and_values() {
        let mut users = KeyspaceMetrics { memtable_bytes: 7, ..KeyspaceMetrics::default() };
        users.operations.puts = 5;
        users.stalls.us_total = 2_500_000;
        let metrics =
            Metrics { keyspaces: [("users".to_owned(), users)].into(), ..Metrics::default() };
        let recorder = MapRecorder::default();
        metrics::with_local_recorder(&recorder, || publish(&metrics, &[("database", "main")]));
        let keyspace = "database=main keyspace=users";
        assert_eq!(recorder.value(&format!("lsmx_puts_total {keyspace}")), 5);
        let bytes = recorder.value(&format!("lsmx_memtable_bytes {keyspace}"));
        assert_eq!(f64::from_bits(bytes), 7.0);
        let seconds = recorder.value(&format!("lsmx_write_stall_seconds_total {keyspace}"));
        assert_eq!(f64::from_bits(seconds), 2.5);
        assert_eq!(recorder.value("lsmx_job_duration_seconds_count database=main job=flush"), 0);
    }
}
