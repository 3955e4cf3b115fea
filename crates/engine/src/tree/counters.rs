//! Counters of one tree.

use std::collections::BTreeMap;

use lsmx_base::sync::{AtomicU64, Mutex, Ordering, ShardedCounter};

use crate::metrics::LevelFlow;

/// Counters of writes that waited for one cause.
#[derive(Debug, Default)]
pub(crate) struct StallCounter {
    /// Number of writes that waited.
    pub(crate) count: AtomicU64,
    /// Total wait, in microseconds.
    pub(crate) us: AtomicU64,
    /// Longest wait, in microseconds.
    pub(crate) us_max: AtomicU64,
}

impl StallCounter {
    /// Counts one wait.
    pub(crate) fn record_wait(&self, us: u64) {
        add(&self.count, 1);
        add(&self.us, us);
        self.us_max.fetch_max(us, Ordering::Relaxed);
    }
}

/// Counters of one tree. Counters that foreground operations increment are sharded.
#[derive(Debug, Default)]
pub(crate) struct TreeCounters {
    /// Point lookups.
    pub(crate) gets: ShardedCounter,
    /// Key and value bytes of all writes.
    pub(crate) ingested_bytes: ShardedCounter,
    /// Key and value bytes of puts.
    pub(crate) put_bytes: ShardedCounter,
    /// Flushed memtables.
    pub(crate) flushes: AtomicU64,
    /// Bytes of the files that flushes wrote.
    pub(crate) flushed_bytes: AtomicU64,
    /// Compaction jobs that merged or rewrote files.
    pub(crate) jobs: AtomicU64,
    /// Compaction jobs that were split into subcompactions.
    pub(crate) jobs_split: AtomicU64,
    /// Subcompactions of these jobs.
    pub(crate) subcompactions: AtomicU64,
    /// Subcompactions that ran on another thread than their job.
    pub(crate) subcompactions_helped: AtomicU64,
    /// Jobs that only changed the manifest.
    pub(crate) trivial_moves: AtomicU64,
    /// Jobs that deleted files without reading them.
    pub(crate) delete_only_jobs: AtomicU64,
    /// Bytes of the input files of merges.
    pub(crate) compaction_read_bytes: AtomicU64,
    /// Bytes of the output files of merges.
    pub(crate) compaction_written_bytes: AtomicU64,
    /// Duration of merges, in microseconds.
    pub(crate) compaction_us: AtomicU64,
    /// Failed jobs.
    pub(crate) compaction_failures: AtomicU64,
    /// Quarantined files.
    pub(crate) quarantines: AtomicU64,
    /// Bytes of the blob files that flushes and jobs wrote.
    pub(crate) blob_written_bytes: AtomicU64,
    /// Value bytes that garbage collection copied to other blob files.
    pub(crate) blob_moved_bytes: AtomicU64,
    /// Value bytes that jobs copied to store values in key order.
    pub(crate) blob_relocated_bytes: AtomicU64,
    /// Garbage collection jobs of blob files.
    pub(crate) blob_rewrites: AtomicU64,
    /// Tables without a filter because the filter could not be built.
    pub(crate) filters_failed: AtomicU64,
    /// Writes that waited because memtables were full.
    pub(crate) memtable_stalls: StallCounter,
    /// Writes that waited because all memtables together reached their limit.
    pub(crate) memory_stalls: StallCounter,
    /// Writes that waited because the hard stop of the policy was reached.
    pub(crate) run_stalls: StallCounter,
    /// Delay of writes by the throttle, in microseconds.
    pub(crate) throttle_us: AtomicU64,
    /// Data that jobs wrote to each level.
    flows: Mutex<BTreeMap<u8, LevelFlow>>,
}

impl TreeCounters {
    /// Applies `count` to the counters of a level.
    pub(crate) fn record_level_flow(&self, level: u8, count: impl FnOnce(&mut LevelFlow)) {
        count(self.flows.lock().entry(level).or_default());
    }

    /// Returns the data that jobs wrote to each level.
    pub(crate) fn level_flows(&self) -> BTreeMap<u8, LevelFlow> {
        self.flows.lock().clone()
    }
}

/// Adds to a counter of background work and slow paths.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
