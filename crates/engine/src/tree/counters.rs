//! Counters of one tree.

use lsmx_base::sync::{AtomicU64, Mutex, Ordering, ShardedCounter};

use crate::metrics::{KeyspaceMetrics, LevelWriteMetrics};

/// Counters of one tree since it was opened.
#[derive(Debug, Default)]
pub(crate) struct TreeCounters {
    /// Point lookups. Sharded because every lookup adds to it.
    pub(crate) gets: ShardedCounter,
    /// Bytes of keys and values of all writes. Sharded because every write adds to it.
    pub(crate) ingested_bytes: ShardedCounter,
    /// Bytes of keys and values of puts.
    pub(crate) put_bytes: ShardedCounter,
    /// Counts of jobs and of writes that waited. No other lock is taken while this one is held.
    counts: Mutex<KeyspaceMetrics>,
}

impl TreeCounters {
    /// Updates the counts of jobs and of writes that waited.
    pub(crate) fn update(&self, update: impl FnOnce(&mut KeyspaceMetrics)) {
        update(&mut self.counts.lock());
    }

    /// Updates the counts of jobs that wrote into `level`.
    pub(crate) fn update_level(&self, level: u8, update: impl FnOnce(&mut LevelWriteMetrics)) {
        self.update(|counts| update(&mut counts.level_mut(level).flow));
    }

    /// Returns the metrics that are counters. The caller fills in the fields that describe the current state.
    pub(crate) fn metrics(&self) -> KeyspaceMetrics {
        let counts = self.counts.lock().clone();
        KeyspaceMetrics {
            gets: self.gets.sum(),
            ingested_bytes: self.ingested_bytes.sum(),
            put_bytes: self.put_bytes.sum(),
            ..counts
        }
    }
}

/// Adds to a counter that synchronizes nothing.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
