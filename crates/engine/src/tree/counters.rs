//! What happened in one tree, counted where it happens.

use std::collections::BTreeMap;

use lsmx_base::sync::{AtomicU64, Mutex, Ordering, ShardedCounter};

use crate::metrics::LevelFlow;

/// Waits of writes for one cause.
#[derive(Debug, Default)]
pub(crate) struct StallCounter {
    /// How many waited.
    pub(crate) count: AtomicU64,
    /// Microseconds they waited.
    pub(crate) us: AtomicU64,
    /// The longest of them.
    pub(crate) us_max: AtomicU64,
}

impl StallCounter {
    /// Counts one wait.
    pub(crate) fn waited(&self, us: u64) {
        add(&self.count, 1);
        add(&self.us, us);
        self.us_max.fetch_max(us, Ordering::Relaxed);
    }
}

/// Counters of one tree. Those that every operation touches are sharded.
#[derive(Debug, Default)]
pub(crate) struct TreeCounters {
    /// Point lookups.
    pub(crate) gets: ShardedCounter,
    /// Key and value bytes of all writes.
    pub(crate) ingested_bytes: ShardedCounter,
    /// Key and value bytes of puts.
    pub(crate) put_bytes: ShardedCounter,
    /// Memtables that were flushed.
    pub(crate) flushes: AtomicU64,
    /// Bytes of the files that flushes wrote.
    pub(crate) flushed_bytes: AtomicU64,
    /// Compaction jobs that merged or rewrote.
    pub(crate) jobs: AtomicU64,
    /// Of those, the ones that were divided.
    pub(crate) jobs_divided: AtomicU64,
    /// Parts of these.
    pub(crate) parts: AtomicU64,
    /// Of the parts, those that another thread ran than the job's.
    pub(crate) parts_helped: AtomicU64,
    /// Jobs that only changed the manifest.
    pub(crate) trivial_moves: AtomicU64,
    /// Jobs that let files go unread.
    pub(crate) drops: AtomicU64,
    /// Bytes of whole input files of merges.
    pub(crate) compaction_read_bytes: AtomicU64,
    /// Bytes of output files of merges.
    pub(crate) compaction_written_bytes: AtomicU64,
    /// Microseconds that merges took.
    pub(crate) compaction_us: AtomicU64,
    /// Jobs that failed.
    pub(crate) compaction_failures: AtomicU64,
    /// Files that were quarantined.
    pub(crate) quarantines: AtomicU64,
    /// Bytes of the blob files that flushes and jobs wrote.
    pub(crate) blob_written_bytes: AtomicU64,
    /// Bytes of values that jobs read from one blob file to write them elsewhere, for its garbage.
    pub(crate) blob_moved_bytes: AtomicU64,
    /// Bytes of values that jobs copied to have them beside their neighbours.
    pub(crate) blob_gathered_bytes: AtomicU64,
    /// Jobs whose purpose was to empty blob files.
    pub(crate) blob_rewrites: AtomicU64,
    /// Tables that went without a filter because none could be built.
    pub(crate) filters_failed: AtomicU64,
    /// Writes that waited because memtables were full.
    pub(crate) memtable_stalls: StallCounter,
    /// Writes that waited because all memtables together were at their bound.
    pub(crate) memory_stalls: StallCounter,
    /// Writes that waited because the policy's hard stop was reached.
    pub(crate) run_stalls: StallCounter,
    /// Microseconds that writes were slowed down by the throttle.
    pub(crate) throttle_us: AtomicU64,
    /// What jobs brought into each level.
    flows: Mutex<BTreeMap<u8, LevelFlow>>,
}

impl TreeCounters {
    /// Counts what a job brought into a level.
    pub(crate) fn flowed(&self, level: u8, count: impl FnOnce(&mut LevelFlow)) {
        count(self.flows.lock().entry(level).or_default());
    }

    /// What jobs brought into each level.
    pub(crate) fn flows(&self) -> BTreeMap<u8, LevelFlow> {
        self.flows.lock().clone()
    }
}

/// Adds to a counter that only background work and slow paths touch.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
