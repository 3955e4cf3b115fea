//! Checks of the numbers of measured operations, and of the metrics file.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lsmx::env::Background;
use lsmx::metrics::LatencySampling;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{DEFAULT_KEYSPACE, Metrics, MetricsReading, Options, read_metrics_file};
use lsmx_base::file_name::METRICS;

use super::super::operations::Operation;
use super::ModelledDb;

/// Of all operations, one in this many is checked. Each check reads all metrics.
const OPERATIONS_PER_CHECK: u64 = 8;

/// Numbers of measured lookups, multi-gets, commits and updates.
pub(super) type MeasuredCounts = [u64; 4];

/// How the open database is observed.
#[derive(Debug, Default)]
pub(super) struct ObservationState {
    pub(super) sampling: LatencySampling,
    /// Interval of the metrics file. `None` if no thread writes the file.
    interval: Option<Duration>,
    /// Time of the last metrics file that was read, in microseconds.
    read_us: u64,
}

impl ObservationState {
    pub(super) fn new(
        sampling: LatencySampling,
        interval: Option<Duration>,
        background: Background,
    ) -> ObservationState {
        let interval = interval.filter(|_| background != Background::Inline);
        ObservationState { sampling, interval, read_us: 0 }
    }
}

/// Returns the numbers of operations of the database that an operation of the history executes. Returns `None` if they
/// depend on the contents.
fn executed_counts(operation: &Operation) -> Option<MeasuredCounts> {
    match operation {
        Operation::Get(..) | Operation::ContainsKey(..) => Some([1, 0, 0, 0]),
        Operation::MultiGet(_, _, keys) if !keys.is_empty() => Some([0, 1, 0, 0]),
        Operation::Write(writes, _) => Some([0, 0, writes.len() as u64, 0]),
        Operation::Batch(..) => Some([0, 0, 1, 0]),
        Operation::Update(..) => Some([0, 0, 1, 1]),
        Operation::Sync | Operation::SetPolicy(..) => Some([0; 4]),
        _ => None,
    }
}

/// Reads the metrics file of the database in a directory. A file that exists must be complete.
pub(super) fn read_metrics(disk: &MemVfs, dir: &str) -> Option<MetricsReading> {
    let is_present = disk.exists(&Path::new(dir).join(METRICS)).unwrap();
    let reading = read_metrics_file(dir, &Options::default().vfs(Arc::new(disk.clone()))).unwrap();
    assert!(!is_present || reading.is_some(), "the metrics file is incomplete");
    reading
}

impl ModelledDb {
    fn read_measured_counts(&self) -> MeasuredCounts {
        let latency = self.db().metrics().operation_latency;
        [latency.get_ns, latency.multi_get_ns, latency.commit_ns, latency.update_ns]
            .map(|histogram| histogram.count)
    }

    /// Returns the numbers of measured operations before an operation. Returns `None` if the operation is not checked.
    pub(super) fn measured_counts(&self, operation: &Operation) -> Option<MeasuredCounts> {
        let is_checked = self.clock.is_multiple_of(OPERATIONS_PER_CHECK);
        (is_checked && executed_counts(operation).is_some()).then(|| self.read_measured_counts())
    }

    /// Checks that the operation was measured as the sampling says: always, never or at most once.
    pub(super) fn check_measured_counts(
        &mut self,
        operation: &Operation,
        before: Option<MeasuredCounts>,
    ) {
        let (Some(before), Some(executed)) = (before, executed_counts(operation)) else { return };
        let after = self.read_measured_counts();
        for ((before, after), executed) in before.into_iter().zip(after).zip(executed) {
            let allowed = match self.observation.sampling {
                LatencySampling::Off | LatencySampling::OneIn(0) => 0..=0,
                LatencySampling::OneIn(1) => executed..=executed,
                LatencySampling::OneIn(_) => 0..=executed,
            };
            let measured = after - before;
            assert!(allowed.contains(&measured), "{measured} measured operations, not {allowed:?}");
            self.counts.measured_operations += measured;
        }
    }

    /// Checks that the metrics file, if it exists, is complete and contains metrics of the open database that are not
    /// older than those of the last file.
    pub(super) fn check_metrics_file(&mut self) {
        let Some(reading) = read_metrics(&self.disk, "db") else { return };
        let interval = self.observation.interval.expect("only the option creates a metrics file");
        assert_eq!(u128::from(reading.interval_us), interval.as_micros());
        assert_eq!(reading.process_id, std::process::id());
        let times = [self.observation.read_us, reading.time_us, self.db().env().now_us()];
        assert!(times.is_sorted(), "times of the last file, of this file and now: {times:?}");
        assert!(reading.open_us <= reading.time_us);
        self.observation.read_us = reading.time_us;
        // The default keyspace is never dropped or renamed, so its counts never decrease.
        let puts = |metrics: &Metrics| metrics.keyspaces[DEFAULT_KEYSPACE].operations.puts;
        assert!(puts(&reading.metrics) <= puts(&self.db().metrics()), "{reading:?}");
        self.counts.metrics_files += 1;
    }
}
