//! What happened in one tree, counted where it happens.

use crate::sync::{AtomicU64, Ordering, ShardedCounter};

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
    /// Tables that went without a filter because none could be built.
    pub(crate) filters_failed: AtomicU64,
    /// Writes that waited for a hard stop or a free memtable.
    pub(crate) stalls: AtomicU64,
    /// Microseconds they waited.
    pub(crate) stall_us: AtomicU64,
    /// The longest of them.
    pub(crate) stall_us_max: AtomicU64,
    /// Microseconds that writes were slowed down by the throttle.
    pub(crate) throttle_us: AtomicU64,
}

/// Adds to a counter that only background work and slow paths touch.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl TreeCounters {
    /// Counts one wait of a write.
    pub(crate) fn stalled(&self, us: u64) {
        add(&self.stalls, 1);
        add(&self.stall_us, us);
        self.stall_us_max.fetch_max(us, Ordering::Relaxed);
    }
}
