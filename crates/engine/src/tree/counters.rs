//! Counters of a tree.

use lsmx_base::coding::len_u64;
use lsmx_base::key::EntryKind;
use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, AtomicU64, Mutex, Ordering, ShardedCounters};

use crate::env::Env;
use crate::metrics::{
    KeyspaceMetrics, LevelWriteMetrics, OperationLatencies, OperationMetrics, OperationStart,
    TimedOperation,
};

/// A counter of user operations.
#[derive(Clone, Copy, Debug)]
enum OperationCounter {
    Puts,
    PutBytes,
    Deletes,
    RangeDeletes,
    Merges,
    /// Bytes of the keys and values of all writes except puts.
    OtherWriteBytes,
    GetsFound,
    GetsAbsent,
    GetsFailed,
    GetBytes,
    MultiGetKeys,
    Scans,
    ScanEntries,
    ScanBytes,
    ScanRunsSkipped,
}

/// Number of variants of [`OperationCounter`].
const COUNTERS: usize = OperationCounter::ScanRunsSkipped as usize + 1;

/// Counters of a tree since it was opened.
#[derive(Debug)]
pub(crate) struct TreeCounters {
    /// Sharded by thread, because every operation increments some of these counters.
    operations: ShardedCounters<COUNTERS>,
    /// Counters of jobs and of writes that waited. A thread that holds this lock takes no other lock.
    counts: Mutex<KeyspaceMetrics>,
    /// Durations of operations on all keyspaces of the database.
    pub(crate) latencies: Arc<OperationLatencies>,
}

impl TreeCounters {
    pub(crate) fn new(latencies: Arc<OperationLatencies>) -> TreeCounters {
        TreeCounters { operations: ShardedCounters::default(), counts: Mutex::default(), latencies }
    }

    /// Counts a written entry. `bytes` is the size of its key and value.
    #[inline]
    pub(crate) fn count_write(&self, kind: EntryKind, bytes: u64) {
        let (operation, operation_bytes) = match kind.without_expiry() {
            EntryKind::Put => (OperationCounter::Puts, OperationCounter::PutBytes),
            EntryKind::Merge => (OperationCounter::Merges, OperationCounter::OtherWriteBytes),
            _ => (OperationCounter::Deletes, OperationCounter::OtherWriteBytes),
        };
        let shard = self.operations.shard();
        shard.add(operation as usize, 1);
        shard.add(operation_bytes as usize, bytes);
    }

    /// Counts a range delete. `bytes` is the size of its bounds.
    pub(crate) fn count_range_delete(&self, bytes: u64) {
        let shard = self.operations.shard();
        shard.add(OperationCounter::RangeDeletes as usize, 1);
        shard.add(OperationCounter::OtherWriteBytes as usize, bytes);
    }

    /// Counts the bytes of ingested keys and values as bytes of puts.
    pub(crate) fn count_ingested_bytes(&self, bytes: u64) {
        self.operations.shard().add(OperationCounter::PutBytes as usize, bytes);
    }

    /// Counts a successful point lookup. `value_bytes` is the size of the found value.
    #[inline]
    pub(crate) fn count_get(&self, key: &[u8], value_bytes: Option<u64>) {
        let shard = self.operations.shard();
        match value_bytes {
            Some(value_bytes) => {
                shard.add(OperationCounter::GetsFound as usize, 1);
                shard.add(OperationCounter::GetBytes as usize, len_u64(key.len()) + value_bytes);
            }
            None => {
                shard.add(OperationCounter::GetsAbsent as usize, 1);
            }
        }
    }

    /// Counts the lookups of a successful `multi_get`. They are also counted as gets.
    pub(crate) fn count_multi_get<'a>(
        &self,
        found: impl Iterator<Item = (&'a [u8], Option<&'a Slice>)>,
    ) {
        let (mut keys, mut found_keys, mut bytes) = (0, 0, 0);
        for (key, value) in found {
            keys += 1;
            if let Some(value) = value {
                found_keys += 1;
                bytes += len_u64(key.len() + value.len());
            }
        }
        let shard = self.operations.shard();
        shard.add(OperationCounter::MultiGetKeys as usize, keys);
        shard.add(OperationCounter::GetsFound as usize, found_keys);
        shard.add(OperationCounter::GetsAbsent as usize, keys - found_keys);
        shard.add(OperationCounter::GetBytes as usize, bytes);
    }

    /// Counts failed point lookups of `keys` keys.
    #[cold]
    pub(crate) fn count_failed_gets(&self, keys: u64) {
        self.operations.shard().add(OperationCounter::GetsFailed as usize, keys);
    }

    /// Counts a new iterator or cursor.
    pub(crate) fn count_scan(&self) {
        self.operations.shard().add(OperationCounter::Scans as usize, 1);
    }

    /// Counts a sorted run that an iterator or cursor skipped.
    pub(crate) fn count_skipped_run(&self) {
        self.operations.shard().add(OperationCounter::ScanRunsSkipped as usize, 1);
    }

    /// Updates the counters of jobs and of writes that waited.
    pub(crate) fn update(&self, update: impl FnOnce(&mut KeyspaceMetrics)) {
        update(&mut self.counts.lock());
    }

    pub(crate) fn update_level(&self, level: u8, update: impl FnOnce(&mut LevelWriteMetrics)) {
        self.update(|counts| update(&mut counts.level_mut(level).flow));
    }

    /// Returns the metrics that are based on counters. The caller must set the fields that describe the current state.
    pub(crate) fn metrics(&self) -> KeyspaceMetrics {
        let counts = self.counts.lock().clone();
        let sums = self.operations.sums();
        let sum = |counter: OperationCounter| sums[counter as usize];
        let (gets_found, gets_absent) =
            (sum(OperationCounter::GetsFound), sum(OperationCounter::GetsAbsent));
        KeyspaceMetrics {
            gets: gets_found + gets_absent + sum(OperationCounter::GetsFailed),
            ingested_bytes: sum(OperationCounter::PutBytes)
                + sum(OperationCounter::OtherWriteBytes),
            put_bytes: sum(OperationCounter::PutBytes),
            operations: OperationMetrics {
                puts: sum(OperationCounter::Puts),
                deletes: sum(OperationCounter::Deletes),
                range_deletes: sum(OperationCounter::RangeDeletes),
                merges: sum(OperationCounter::Merges),
                gets_found,
                gets_absent,
                get_bytes: sum(OperationCounter::GetBytes),
                multi_get_keys: sum(OperationCounter::MultiGetKeys),
                scans: sum(OperationCounter::Scans),
                scan_entries: sum(OperationCounter::ScanEntries),
                scan_bytes: sum(OperationCounter::ScanBytes),
                scan_runs_skipped: sum(OperationCounter::ScanRunsSkipped),
            },
            ..counts
        }
    }
}

/// Number of entries after which a [`ScanCounter`] updates the counters of the tree.
const ENTRIES_PER_UPDATE: u64 = 1024;

/// Counts the entries that one iterator or cursor returns.
///
/// An atomic addition per entry would slow down scans. The counts are therefore added to the counters of the tree after
/// every [`ENTRIES_PER_UPDATE`] entries, and when the value is dropped.
#[derive(Debug)]
pub(crate) struct ScanCounter {
    counters: Arc<TreeCounters>,
    entries: u64,
    bytes: u64,
    /// True if steps may be measured. Updated together with the counters of the tree.
    is_sampling: bool,
    /// Start of the current step. `None` if the step is not measured.
    step_start: Option<OperationStart>,
}

impl ScanCounter {
    pub(crate) fn new(counters: &Arc<TreeCounters>) -> ScanCounter {
        let (counters, is_sampling) = (Arc::clone(counters), counters.latencies.is_sampling());
        ScanCounter { counters, entries: 0, bytes: 0, is_sampling, step_start: None }
    }

    /// Starts a step. A step that does not end is not recorded.
    #[inline]
    pub(crate) fn begin_step(&mut self, env: &Env) {
        if self.is_sampling {
            self.step_start = Some(self.counters.latencies.start(env));
        }
    }

    /// Ends a step. Records its duration if it is measured.
    #[inline]
    pub(crate) fn end_step(&mut self, env: &Env) {
        if let Some(start) = self.step_start.take() {
            self.counters.latencies.finish(env, TimedOperation::ScanStep, start);
        }
    }

    /// Counts an entry. `bytes` is the size of its key and value.
    #[inline]
    pub(crate) fn count_entry(&mut self, bytes: usize) {
        self.entries += 1;
        self.bytes += len_u64(bytes);
        if self.entries == ENTRIES_PER_UPDATE {
            self.update_tree();
        }
    }

    /// Adds bytes to the size of the last entry.
    #[inline]
    pub(crate) fn add_bytes(&mut self, bytes: usize) {
        self.bytes += len_u64(bytes);
    }

    fn update_tree(&mut self) {
        let shard = self.counters.operations.shard();
        shard.add(OperationCounter::ScanEntries as usize, self.entries);
        shard.add(OperationCounter::ScanBytes as usize, self.bytes);
        (self.entries, self.bytes) = (0, 0);
        self.is_sampling = self.counters.latencies.is_sampling();
    }
}

impl Drop for ScanCounter {
    fn drop(&mut self) {
        if self.entries > 0 || self.bytes > 0 {
            self.update_tree();
        }
    }
}

/// Adds to a counter that is not used for synchronization.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
