//! Metrics as families of samples with labels, for Prometheus and for recorders of the crate `metrics`.
//!
//! The tables below name each metric once: its name, its help text, and a function that reads it from a struct of
//! [`Metrics`]. Names follow the rules of Prometheus: base units, and the suffix `_total` for counters.
//! `metrics/prometheus.rs` and `metrics/publish.rs` use the families.

use std::borrow::Cow;
use std::fmt;

use crate::cache::FilterCounts;
use crate::metrics::{
    CacheMetrics, FoldMetrics, JobIoMetrics, KeyspaceMetrics, LatencyMetrics, LevelMetrics,
    Metrics, StallCauseMetrics,
};
use crate::operand_store::OperandMetrics;

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    /// A number that only grows until the database is closed.
    Counter,
    /// A number that grows and shrinks.
    Gauge,
    /// Cumulative buckets, number and sum of durations.
    Histogram,
}

/// Labels of one sample.
pub(crate) type MetricLabels<'a> = Vec<(&'static str, Cow<'a, str>)>;

/// A value with labels.
#[derive(Debug)]
pub(crate) struct MetricSample<'a> {
    /// Appended to the name of the family.
    pub(crate) suffix: &'static str,
    pub(crate) labels: MetricLabels<'a>,
    pub(crate) value: MetricValue,
}

/// All samples of one name.
#[derive(Debug)]
pub(crate) struct MetricFamily<'a> {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) kind: MetricKind,
    pub(crate) samples: Vec<MetricSample<'a>>,
}

/// Value of a sample.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MetricValue {
    Integer(u64),
    Float(f64),
}

impl MetricValue {
    fn seconds_from_us(us: u64) -> MetricValue {
        MetricValue::Float(us as f64 / 1e6)
    }

    /// Returns the value as a float. Integers above 2^53 are rounded.
    #[cfg(feature = "metrics")]
    pub(crate) fn as_f64(self) -> f64 {
        match self {
            MetricValue::Integer(value) => value as f64,
            MetricValue::Float(value) => value,
        }
    }
}

impl fmt::Display for MetricValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricValue::Integer(value) => write!(f, "{value}"),
            MetricValue::Float(value) => write!(f, "{value}"),
        }
    }
}

/// A metric of a struct `T`.
struct MetricDefinition<T> {
    name: &'static str,
    help: &'static str,
    kind: MetricKind,
    read: MetricReader<T>,
}

/// Reads a value from a struct.
enum MetricReader<T> {
    Integer(fn(&T) -> u64),
    /// `None` if there is no value.
    Optional(fn(&T) -> Option<u64>),
    /// A number of microseconds, which is returned in seconds.
    Micros(fn(&T) -> u64),
    OptionalMicros(fn(&T) -> Option<u64>),
    Float(fn(&T) -> f64),
}

impl<T> MetricReader<T> {
    fn value(&self, from: &T) -> Option<MetricValue> {
        match self {
            MetricReader::Integer(read) => Some(MetricValue::Integer(read(from))),
            MetricReader::Optional(read) => read(from).map(MetricValue::Integer),
            MetricReader::Micros(read) => Some(MetricValue::seconds_from_us(read(from))),
            MetricReader::OptionalMicros(read) => read(from).map(MetricValue::seconds_from_us),
            MetricReader::Float(read) => Some(MetricValue::Float(read(from))),
        }
    }
}

const fn counter<T>(
    name: &'static str,
    help: &'static str,
    read: fn(&T) -> u64,
) -> MetricDefinition<T> {
    MetricDefinition { name, help, kind: MetricKind::Counter, read: MetricReader::Integer(read) }
}

const fn seconds<T>(
    name: &'static str,
    help: &'static str,
    read: fn(&T) -> u64,
) -> MetricDefinition<T> {
    MetricDefinition { name, help, kind: MetricKind::Counter, read: MetricReader::Micros(read) }
}

const fn gauge<T>(
    name: &'static str,
    help: &'static str,
    read: fn(&T) -> u64,
) -> MetricDefinition<T> {
    MetricDefinition { name, help, kind: MetricKind::Gauge, read: MetricReader::Integer(read) }
}

const fn gauge_of<T>(
    name: &'static str,
    help: &'static str,
    read: MetricReader<T>,
) -> MetricDefinition<T> {
    MetricDefinition { name, help, kind: MetricKind::Gauge, read }
}

/// Metrics of the database.
const DATABASE: &[MetricDefinition<Metrics>] = &[
    gauge("lsmx_read_only", "1 if an error made the database read-only, otherwise 0.", |m| {
        u64::from(m.read_only.is_some())
    }),
    gauge("lsmx_published_sequence_number", "Sequence number of the last visible write.", |m| {
        m.published_seq
    }),
    counter(
        "lsmx_commit_requests_total",
        "Commits, syncs and other requests of the commit pipeline.",
        |m| m.commits.requests,
    ),
    counter("lsmx_commit_groups_total", "Commit groups.", |m| m.commits.groups),
    counter(
        "lsmx_commits_behind_sync_total",
        "Buffered commits that waited for the sync of another commit.",
        |m| m.commits.behind_sync,
    ),
    counter(
        "lsmx_commit_guard_checks_total",
        "Checks of guards against commits that are not visible yet.",
        |m| m.commits.guard_checks,
    ),
    counter("lsmx_transactions_begun_total", "Started transactions.", |m| m.transactions.begun),
    counter("lsmx_transactions_committed_total", "Committed transactions with writes.", |m| {
        m.transactions.committed
    }),
    counter("lsmx_transactions_read_only_total", "Committed transactions without writes.", |m| {
        m.transactions.read_only
    }),
    counter("lsmx_transaction_conflicts_total", "Commits that failed with a conflict.", |m| {
        m.transactions.conflicts
    }),
    counter(
        "lsmx_transaction_conflicts_unknown_total",
        "Commits that failed because a conflict could not be excluded.",
        |m| m.transactions.unknown,
    ),
    counter("lsmx_transaction_retries_total", "Repeated attempts of transact.", |m| {
        m.transactions.retries
    }),
    gauge("lsmx_transaction_locks_held", "Keys that transactions have locked.", |m| {
        m.transactions.locks_held
    }),
    counter(
        "lsmx_transaction_lock_waits_total",
        "Waits for a key that another transaction had locked.",
        |m| m.transactions.lock_waits,
    ),
    seconds("lsmx_transaction_lock_wait_seconds_total", "Time of the ended waits.", |m| {
        m.transactions.lock_wait_us_total
    }),
    counter("lsmx_transaction_lock_timeouts_total", "Locks of keys that timed out.", |m| {
        m.transactions.lock_timeouts
    }),
    counter(
        "lsmx_transaction_deadlocks_total",
        "Locks of keys that failed because of a deadlock.",
        |m| m.transactions.lock_deadlocks,
    ),
    gauge("lsmx_wal_segments", "Live segments of the write-ahead log.", |m| m.wal.segments),
    gauge("lsmx_wal_bytes", "Bytes of live segments of the write-ahead log.", |m| m.wal.live_bytes),
    counter("lsmx_wal_written_bytes_total", "Bytes appended to the write-ahead log.", |m| {
        m.wal.written_bytes
    }),
    counter("lsmx_wal_syncs_total", "Syncs of the write-ahead log.", |m| m.wal.syncs),
    gauge("lsmx_wal_kept_segments", "Log segments kept for missing operand stores.", |m| {
        m.wal.kept_segments
    }),
    gauge("lsmx_wal_kept_bytes", "Bytes of log segments kept for missing operand stores.", |m| {
        m.wal.kept_bytes
    }),
    gauge("lsmx_reserved_bytes", "Bytes of disk space reserved for a full disk.", |m| {
        m.wal.reserved_bytes
    }),
    gauge("lsmx_block_cache_capacity_bytes", "Capacity of the block cache.", |m| {
        m.memory.block_cache_bytes_max
    }),
    gauge("lsmx_memtable_capacity_bytes", "Size of all memtables at which writes wait.", |m| {
        m.memory.memtable_bytes_max
    }),
    gauge_of(
        "lsmx_memory_budget_bytes",
        "Memory budget, if one is set.",
        MetricReader::Optional(|m| m.memory.budget_bytes),
    ),
    gauge("lsmx_snapshots", "Open snapshots.", |m| m.held.snapshots),
    gauge_of(
        "lsmx_oldest_snapshot_age_seconds",
        "Age of the oldest snapshot.",
        MetricReader::Micros(|m| m.held.oldest_snapshot_age_us),
    ),
    gauge("lsmx_oldest_snapshot_behind", "Writes since the oldest snapshot.", |m| {
        m.held.oldest_snapshot_behind
    }),
    gauge("lsmx_old_super_versions", "Super versions in use that are not current.", |m| {
        m.held.old_views
    }),
    gauge("lsmx_super_version_pins", "Iterators and jobs that hold a super version.", |m| {
        m.held.view_pins
    }),
    gauge("lsmx_held_files", "Obsolete files that are still in use.", |m| m.held.files),
    gauge("lsmx_held_file_bytes", "Bytes of obsolete files that are still in use.", |m| {
        m.held.file_bytes
    }),
    gauge(
        "lsmx_held_block_bytes",
        "Bytes of evicted data blocks that iterators and values hold.",
        |m| m.held.block_bytes,
    ),
    gauge("lsmx_followers", "Followers at the last deletion of files.", |m| m.followers.followers),
    gauge("lsmx_follower_files", "Obsolete files that are kept for followers.", |m| {
        m.followers.files
    }),
    gauge(
        "lsmx_follower_file_bytes",
        "Bytes of obsolete files that are kept for followers.",
        |m| m.followers.file_bytes,
    ),
    gauge("lsmx_open_files", "Open file descriptors of tables and blob files.", |m| {
        m.descriptors.open
    }),
    gauge("lsmx_open_files_limit", "Limit of open file descriptors.", |m| m.descriptors.max),
    counter("lsmx_file_reopens_total", "Reads that had to open a closed file again.", |m| {
        m.descriptors.reopened
    }),
    gauge_of(
        "lsmx_background_io_limit_bytes_per_second",
        "I/O rate limit of background jobs, if one is set.",
        MetricReader::Optional(|m| m.background_io.rate),
    ),
    counter("lsmx_metrics_file_failures_total", "Failed writes of the metrics file.", |m| {
        m.metrics_file_failures
    }),
    counter(
        "lsmx_background_reads_repeated_total",
        "Reads of compactions that found corrupt data and then succeeded.",
        |m| m.background_io.reads_repeated,
    ),
];

/// Metrics of a keyspace. Label: `keyspace`.
const KEYSPACE: &[MetricDefinition<KeyspaceMetrics>] = &[
    counter("lsmx_puts_total", "Puts, without ingested entries.", |m| m.operations.puts),
    counter("lsmx_deletes_total", "Deletes of single keys.", |m| m.operations.deletes),
    counter("lsmx_range_deletes_total", "Range deletes.", |m| m.operations.range_deletes),
    counter("lsmx_merges_total", "Written merge operands.", |m| m.operations.merges),
    counter("lsmx_written_bytes_total", "Bytes of keys and values of all writes.", |m| {
        m.ingested_bytes
    }),
    counter("lsmx_put_bytes_total", "Bytes of keys and values of puts.", |m| m.put_bytes),
    counter("lsmx_gets_total", "Point lookups, including failed ones.", |m| m.gets),
    counter("lsmx_gets_found_total", "Point lookups that found a value.", |m| {
        m.operations.gets_found
    }),
    counter("lsmx_gets_absent_total", "Point lookups that found no value.", |m| {
        m.operations.gets_absent
    }),
    counter("lsmx_get_bytes_total", "Bytes of keys and values that point lookups found.", |m| {
        m.operations.get_bytes
    }),
    counter("lsmx_multi_get_keys_total", "Keys that multi_get looked up.", |m| {
        m.operations.multi_get_keys
    }),
    counter("lsmx_scans_total", "Iterators and cursors.", |m| m.operations.scans),
    counter("lsmx_scan_entries_total", "Entries that iterators and cursors returned.", |m| {
        m.operations.scan_entries
    }),
    counter(
        "lsmx_scan_bytes_total",
        "Bytes of keys and values that iterators and cursors returned.",
        |m| m.operations.scan_bytes,
    ),
    counter(
        "lsmx_scan_runs_skipped_total",
        "Sorted runs with prefix filters that scans skipped.",
        |m| m.operations.scan_runs_skipped,
    ),
    counter("lsmx_flushes_total", "Flushed memtables.", |m| m.flushes),
    counter("lsmx_flushed_bytes_total", "Bytes of tables that flushes wrote.", |m| m.flushed_bytes),
    gauge("lsmx_flushes_running", "Running flushes.", |m| m.running_jobs.flushes),
    gauge("lsmx_compactions_running", "Running compactions.", |m| m.running_jobs.compactions),
    gauge(
        "lsmx_compactions_running_left_bytes",
        "Bytes that running compactions still have to write.",
        |m| m.running_jobs.compaction_bytes_left,
    ),
    counter("lsmx_ingests_total", "Ingests, bulk loads and clones.", |m| m.ingest.ingests),
    counter("lsmx_ingested_files_total", "Ingested tables.", |m| m.ingest.files),
    counter("lsmx_ingested_l0_files_total", "Ingested tables that were added to L0.", |m| {
        m.ingest.l0_files
    }),
    counter("lsmx_ingested_table_bytes_total", "Bytes of ingested tables.", |m| m.ingest.bytes),
    counter(
        "lsmx_ingest_written_bytes_total",
        "Bytes of ingested tables that the engine wrote.",
        |m| m.ingest.written_bytes,
    ),
    gauge("lsmx_memtable_bytes", "Bytes of memtables.", |m| m.memtable_bytes),
    gauge("lsmx_memtables_sealed", "Memtables that wait for their flush.", |m| m.memtables_sealed),
    counter("lsmx_filters_failed_total", "Tables written without a filter after an error.", |m| {
        m.filters_failed
    }),
    gauge(
        "lsmx_last_run_filter_used",
        "1 if lookups use the filter of the last sorted run, otherwise 0.",
        |m| u64::from(m.filter_last_run.is_used),
    ),
    counter("lsmx_last_run_lookups_total", "Lookups that reached the last sorted run.", |m| {
        m.filter_last_run.lookups
    }),
    counter(
        "lsmx_last_run_lookups_absent_total",
        "Lookups that reached the last sorted run and found nothing there.",
        |m| m.filter_last_run.absent,
    ),
    gauge_of(
        "lsmx_last_run_filter_reads_saved",
        "Block reads per lookup that the filter of the last sorted run saves.",
        MetricReader::Float(|m| m.filter_last_run.reads_saved),
    ),
    gauge_of(
        "lsmx_last_run_filter_reads_lost",
        "Block reads per lookup that data blocks in the memory of this filter would save.",
        MetricReader::Float(|m| m.filter_last_run.reads_lost),
    ),
    gauge("lsmx_last_run_filter_bytes", "Size of the filter of the last sorted run.", |m| {
        m.filter_last_run.filter_bytes
    }),
    counter("lsmx_compactions_total", "Merges.", |m| m.compaction.jobs),
    counter("lsmx_compactions_divided_total", "Merges that were divided by key range.", |m| {
        m.compaction.divided_jobs
    }),
    counter("lsmx_subcompactions_total", "Subcompactions of divided merges.", |m| {
        m.compaction.subcompactions
    }),
    counter("lsmx_helper_subcompactions_total", "Subcompactions that helper threads ran.", |m| {
        m.compaction.helper_subcompactions
    }),
    counter("lsmx_trivial_moves_total", "Jobs that only edited the manifest.", |m| {
        m.compaction.trivial_moves
    }),
    counter("lsmx_file_drops_total", "Jobs that removed files without reading them.", |m| {
        m.compaction.drops
    }),
    counter("lsmx_compaction_read_bytes_total", "Bytes of input files of merges.", |m| {
        m.compaction.read_bytes
    }),
    counter("lsmx_compaction_written_bytes_total", "Bytes of output files of merges.", |m| {
        m.compaction.written_bytes
    }),
    seconds("lsmx_compaction_seconds_total", "Total duration of merges.", |m| {
        m.compaction.us_total
    }),
    counter("lsmx_compaction_failures_total", "Failed jobs, which the engine repeats.", |m| {
        m.compaction.failures
    }),
    gauge("lsmx_quarantined_files", "Files in quarantine.", |m| m.compaction.quarantined_files),
    counter("lsmx_quarantines_total", "Files that were put into quarantine.", |m| {
        m.compaction.quarantines
    }),
    counter("lsmx_merge_operator_failures_total", "Failed calls of the merge operator.", |m| {
        m.merges.failures
    }),
    counter(
        "lsmx_merge_write_backs_total",
        "Combined values that point lookups added to memtables.",
        |m| m.merges.write_backs,
    ),
    counter(
        "lsmx_compaction_filter_passed_total",
        "Values that compactions passed to the filter.",
        |m| m.compaction_filter.passed,
    ),
    counter("lsmx_compaction_filter_removed_total", "Values that the filter removed.", |m| {
        m.compaction_filter.removed
    }),
    counter("lsmx_compaction_filter_changed_total", "Values that the filter changed.", |m| {
        m.compaction_filter.changed
    }),
    counter("lsmx_compaction_filter_errors_total", "Failed calls of the filter.", |m| {
        m.compaction_filter.errors
    }),
    counter(
        "lsmx_compaction_filter_repeated_merges_total",
        "Merges that were repeated without the filter.",
        |m| m.compaction_filter.repeated_merges,
    ),
    counter("lsmx_expired_entries_total", "Expired entries that jobs dropped.", |m| {
        m.expired.entries
    }),
    counter(
        "lsmx_expired_bytes_total",
        "Bytes of the keys and stored values of these entries.",
        |m| m.expired.bytes,
    ),
    gauge_of(
        "lsmx_delete_persistence_bound_seconds",
        "Time within which deleted values must be removed, or 0.",
        MetricReader::Micros(|m| m.delete_persistence.bound_us),
    ),
    gauge_of(
        "lsmx_delete_persistence_overdue_seconds",
        "Time by which deleted data exceeds its bound because jobs have not kept up.",
        MetricReader::Micros(|m| m.delete_persistence.overdue_us),
    ),
    gauge_of(
        "lsmx_delete_persistence_snapshot_overdue_seconds",
        "Time by which deleted data exceeds its bound because of a snapshot.",
        MetricReader::Micros(|m| m.delete_persistence.snapshot_overdue_us),
    ),
    gauge_of(
        "lsmx_delete_persistence_iterator_overdue_seconds",
        "Time by which deleted data may exceed its bound because of an iterator.",
        MetricReader::Micros(|m| m.delete_persistence.iterator_overdue_us),
    ),
    gauge("lsmx_blob_files", "Blob files.", |m| m.value_log.blob_files),
    gauge("lsmx_blob_bytes", "Bytes of blob files.", |m| m.value_log.blob_bytes),
    gauge("lsmx_blob_referenced_bytes", "Bytes of blob records that tables reference.", |m| {
        m.value_log.blob_referenced_bytes
    }),
    counter(
        "lsmx_blob_written_bytes_total",
        "Bytes of blob files written by flushes and compactions.",
        |m| m.value_log.written_bytes,
    ),
    counter("lsmx_blob_collections_total", "Garbage collections of blob files.", |m| {
        m.value_log.rewrites
    }),
    counter("lsmx_blob_collected_bytes_total", "Bytes that these collections copied.", |m| {
        m.value_log.rewritten_bytes
    }),
    counter("lsmx_blob_relocated_bytes_total", "Bytes of relocated values.", |m| {
        m.value_log.relocated_bytes
    }),
    gauge("lsmx_compaction_debt_bytes", "Bytes that compactions have to write.", |m| {
        m.compaction_debt.pending_bytes
    }),
    gauge_of(
        "lsmx_compaction_headroom_bytes",
        "Bytes of writes until the policy stops writes, if there is debt.",
        MetricReader::Optional(|m| m.compaction_debt.headroom_bytes),
    ),
    gauge_of(
        "lsmx_write_rate_max_bytes",
        "Maximum rate of writes in bytes per second, if it is limited.",
        MetricReader::Optional(|m| m.compaction_debt.write_rate_max),
    ),
    counter("lsmx_write_stalls_total", "Writes that waited for any cause.", |m| m.stalls.count),
    seconds("lsmx_write_stall_seconds_total", "Total wait of these writes.", |m| m.stalls.us_total),
    gauge_of(
        "lsmx_write_stall_seconds_max",
        "Longest wait of a write.",
        MetricReader::Micros(|m| m.stalls.us_max),
    ),
    seconds("lsmx_write_throttle_seconds_total", "Total delay by the write throttle.", |m| {
        m.stalls.throttle_us_total
    }),
    gauge_of(
        "lsmx_oldest_tombstone_age_seconds",
        "Age of the oldest tombstone in a table, if there is one.",
        MetricReader::OptionalMicros(|m| m.oldest_tombstone_age_us),
    ),
];

/// Writes that waited for one cause. Labels: `keyspace`, `cause`.
const STALL_CAUSE: &[MetricDefinition<StallCauseMetrics>] = &[
    counter("lsmx_write_stalls_by_cause_total", "Writes that waited, by cause.", |m| m.count),
    seconds("lsmx_write_stall_by_cause_seconds_total", "Waits of writes, by cause.", |m| {
        m.us_total
    }),
    gauge_of(
        "lsmx_write_stall_by_cause_seconds_max",
        "Longest wait of a write, by cause.",
        MetricReader::Micros(|m| m.us_max),
    ),
];

/// Calls of the merge operator. Labels: `keyspace`, `by`.
const FOLD: &[MetricDefinition<FoldMetrics>] = &[
    counter("lsmx_merge_folds_total", "Calls of the merge operator.", |m| m.folds),
    counter("lsmx_merge_folded_operands_total", "Combined merge operands.", |m| m.operands),
    gauge("lsmx_merge_fold_operands_max", "Largest number of operands in one call.", |m| {
        m.operands_max
    }),
];

/// Metrics of an operand store. Label: `keyspace`.
const OPERAND_STORE: &[MetricDefinition<OperandMetrics>] = &[
    gauge("lsmx_operand_buckets", "Buckets of the operand store.", |m| m.buckets),
    gauge("lsmx_operand_bucket_bytes", "Bytes of bucket files.", |m| m.bucket_bytes),
    gauge("lsmx_operand_log_bytes", "Bytes of logs of the operand store.", |m| m.log_bytes),
    gauge("lsmx_operand_buffered_bytes", "Bytes of buckets that are not in files yet.", |m| {
        m.buffered_bytes
    }),
    gauge("lsmx_operand_memory_bytes", "Memory of the operand store.", |m| m.memory_bytes),
    counter("lsmx_operand_bucket_written_bytes_total", "Bytes written to bucket files.", |m| {
        m.bucket_written_bytes
    }),
    counter(
        "lsmx_operand_bucket_read_bytes_total",
        "Bytes that collections read from bucket files.",
        |m| m.bucket_read_bytes,
    ),
    counter(
        "lsmx_operand_collection_written_bytes_total",
        "Bytes that collections wrote to bucket files.",
        |m| m.collection_written_bytes,
    ),
    counter("lsmx_operand_log_written_bytes_total", "Bytes written to operand logs.", |m| {
        m.log_written_bytes
    }),
    counter("lsmx_operands_total", "Operands that flushes passed to the operand store.", |m| {
        m.operands
    }),
    counter(
        "lsmx_operand_delete_markers_total",
        "Delete markers that flushes passed to the operand store.",
        |m| m.delete_markers,
    ),
    counter(
        "lsmx_operand_delivered_bytes_total",
        "Bytes of operands and delete markers that flushes passed to the operand store.",
        |m| m.delivered_bytes,
    ),
    counter("lsmx_operand_bucket_rewrites_total", "Rewritten buckets.", |m| m.rewrites),
    counter("lsmx_operand_bucket_splits_total", "Bucket splits.", |m| m.splits),
    counter("lsmx_operand_bucket_merges_total", "Merged pairs of buckets.", |m| m.merges),
    counter(
        "lsmx_operand_buckets_moved_total",
        "Buckets whose operands were moved to the tree.",
        |m| m.to_tree,
    ),
    counter("lsmx_operand_cache_hits_total", "Hits of the cache of combined operands.", |m| {
        m.cache_hits
    }),
    counter("lsmx_operand_cache_misses_total", "Misses of the cache of combined operands.", |m| {
        m.cache_misses
    }),
];

/// Metrics of a level. Labels: `keyspace`, `level`.
const LEVEL: &[MetricDefinition<LevelMetrics>] = &[
    gauge("lsmx_level_runs", "Sorted runs of the level.", |m| m.runs),
    gauge("lsmx_level_files", "Tables of the level.", |m| m.files),
    gauge("lsmx_level_bytes", "Bytes of the tables of the level.", |m| m.bytes),
    gauge("lsmx_level_entries", "Entries of the level.", |m| m.entries),
    gauge("lsmx_level_tombstones", "Point tombstones of the level.", |m| m.tombstones),
    gauge("lsmx_level_range_tombstones", "Fragments of range tombstones of the level.", |m| {
        m.range_tombstones
    }),
    counter("lsmx_level_jobs_total", "Flushes and merges that wrote to the level.", |m| {
        m.flow.jobs
    }),
    counter("lsmx_level_incoming_bytes_total", "Bytes that jobs brought into the level.", |m| {
        m.flow.incoming_bytes
    }),
    counter(
        "lsmx_level_moved_bytes_total",
        "Bytes of files that were moved into the level.",
        |m| m.flow.moved_bytes,
    ),
    counter(
        "lsmx_level_read_bytes_total",
        "Bytes of all input files of merges into the level.",
        |m| m.flow.read_bytes,
    ),
    counter("lsmx_level_written_bytes_total", "Bytes that jobs wrote to the level.", |m| {
        m.flow.written_bytes
    }),
    seconds("lsmx_level_job_seconds_total", "Duration of jobs that wrote to the level.", |m| {
        m.flow.us_total
    }),
];

/// Block cache. Label: `kind`.
const CACHE: &[MetricDefinition<CacheMetrics>] = &[
    counter("lsmx_cache_hits_total", "Blocks found in memory.", |m| m.hits),
    counter("lsmx_cache_misses_total", "Blocks read from storage.", |m| m.misses),
    gauge("lsmx_cache_resident_bytes", "Bytes of blocks in memory.", |m| m.resident_bytes),
];

/// Filter results. Label: `level`.
const FILTER: &[MetricDefinition<FilterCounts>] = &[
    counter("lsmx_filter_negatives_total", "Lookups for which a filter excluded a table.", |m| {
        m.negatives
    }),
    counter(
        "lsmx_filter_false_positives_total",
        "Lookups for which a filter did not exclude a table without the key.",
        |m| m.false_positives,
    ),
];

/// I/O of jobs. Label: `job`.
const JOB_IO: &[MetricDefinition<JobIoMetrics>] = &[
    counter("lsmx_background_io_bytes_total", "Bytes read and written by jobs.", |m| m.bytes),
    seconds(
        "lsmx_background_io_wait_seconds_total",
        "Time that jobs waited because of the I/O rate limit.",
        |m| m.waited_us,
    ),
];

/// Bytes of one kind. Label: `kind`.
const MEMORY: &[MetricDefinition<u64>] =
    &[gauge("lsmx_memory_bytes", "Memory in use.", |bytes| *bytes)];
const DISK: &[MetricDefinition<u64>] =
    &[gauge("lsmx_disk_bytes", "Disk space in use.", |bytes| *bytes)];

/// A keyspace. Labels: `keyspace`, `policy`.
const KEYSPACE_INFO: &[MetricDefinition<KeyspaceMetrics>] =
    &[gauge("lsmx_keyspace_info", "1; the label has the compaction policy.", |_| 1)];

/// Families under construction.
struct FamilyBuilder<'a>(Vec<MetricFamily<'a>>);

impl<'a> FamilyBuilder<'a> {
    /// Adds a family for each metric of `table`, with a sample for each row that has a value.
    fn add<T: 'a>(
        &mut self,
        table: &[MetricDefinition<T>],
        rows: impl IntoIterator<Item = (MetricLabels<'a>, &'a T)>,
    ) {
        let rows: Vec<(MetricLabels<'a>, &'a T)> = rows.into_iter().collect();
        for metric in table {
            let samples = rows.iter().filter_map(|(labels, row)| {
                let value = metric.read.value(row)?;
                Some(MetricSample { suffix: "", labels: labels.clone(), value })
            });
            let MetricDefinition { name, help, kind, .. } = *metric;
            self.push(name, help, kind, samples.collect());
        }
    }

    /// Adds a histogram of durations, and gauges with their quantiles since the open. `names` are the names of both
    /// families, and `unit` is the number of units per second.
    fn add_latencies(
        &mut self,
        names: [&'static str; 2],
        help: [&'static str; 2],
        unit: f64,
        rows: impl IntoIterator<Item = (MetricLabels<'a>, &'a LatencyMetrics)>,
    ) {
        let (mut samples, mut quantiles) = (Vec::new(), Vec::new());
        for (labels, latency) in rows {
            let LatencyMetrics { count, mean, p50, p90, p99, max, buckets: _ } = *latency;
            for (quantile, duration) in [("0.5", p50), ("0.9", p90), ("0.99", p99), ("1", max)] {
                let labels = with_label(&labels, "quantile", quantile);
                let value = MetricValue::Float(duration as f64 / unit);
                quantiles.push(MetricSample { suffix: "", labels, value });
            }
            let bounded = latency.bounded_buckets();
            let bounded = bounded.map(|(bound, it)| ((bound as f64 / unit).to_string(), it));
            for (bound, durations) in bounded.chain([("+Inf".to_owned(), count)]) {
                let labels = with_label(&labels, "le", bound);
                let value = MetricValue::Integer(durations);
                samples.push(MetricSample { suffix: "_bucket", labels, value });
            }
            let sum = MetricValue::Float(mean * count as f64 / unit);
            samples.push(MetricSample { suffix: "_sum", labels: labels.clone(), value: sum });
            samples.push(MetricSample {
                suffix: "_count",
                labels,
                value: MetricValue::Integer(count),
            });
        }
        self.push(names[0], help[0], MetricKind::Histogram, samples);
        self.push(names[1], help[1], MetricKind::Gauge, quantiles);
    }

    fn push(
        &mut self,
        name: &'static str,
        help: &'static str,
        kind: MetricKind,
        samples: Vec<MetricSample<'a>>,
    ) {
        if !samples.is_empty() {
            self.0.push(MetricFamily { name, help, kind, samples });
        }
    }
}

fn with_label<'a>(
    labels: &MetricLabels<'a>,
    name: &'static str,
    value: impl Into<Cow<'a, str>>,
) -> MetricLabels<'a> {
    labels.iter().cloned().chain([(name, value.into())]).collect()
}

/// Returns all metrics as families. Families without samples are omitted.
pub(crate) fn metric_families(metrics: &Metrics) -> Vec<MetricFamily<'_>> {
    let none = MetricLabels::new();
    let keyspaces: Vec<(MetricLabels<'_>, &KeyspaceMetrics)> = metrics
        .keyspaces
        .iter()
        .map(|(name, keyspace)| (with_label(&none, "keyspace", name), keyspace))
        .collect();
    let mut families = FamilyBuilder(Vec::new());
    families.add(DATABASE, [(none.clone(), metrics)]);
    families.add(
        KEYSPACE_INFO,
        keyspaces.iter().map(|(labels, it)| (with_label(labels, "policy", &it.policy), *it)),
    );
    families.add(KEYSPACE, keyspaces.iter().cloned());
    families.add(
        STALL_CAUSE,
        keyspaces.iter().flat_map(|(labels, it)| {
            let causes = [
                ("memtables_full", &it.stalls.memtables_full),
                ("memory_full", &it.stalls.memory_full),
                ("too_many_runs", &it.stalls.too_many_runs),
                ("ingest", &it.stalls.ingest),
            ];
            causes.map(|(cause, stalls)| (with_label(labels, "cause", cause), stalls))
        }),
    );
    families.add(
        FOLD,
        keyspaces.iter().flat_map(|(labels, it)| {
            let folds = [("reads", &it.merges.reads), ("jobs", &it.merges.jobs)];
            folds.map(|(by, folds)| (with_label(labels, "by", by), folds))
        }),
    );
    families.add(
        OPERAND_STORE,
        keyspaces
            .iter()
            .filter_map(|(labels, it)| Some((labels.clone(), it.operand_store.as_ref()?))),
    );
    families.add(
        LEVEL,
        keyspaces.iter().flat_map(|(labels, it)| {
            let levels = it.levels.iter();
            levels.map(|level| (with_label(labels, "level", level.level.to_string()), level))
        }),
    );
    families.add(
        CACHE,
        metrics.cache.iter().map(|(kind, cache)| (with_label(&none, "kind", kind.name()), cache)),
    );
    families.add(
        FILTER,
        metrics
            .filter_by_level
            .iter()
            .map(|(level, counts)| (with_label(&none, "level", level.to_string()), counts)),
    );
    let io = &metrics.background_io;
    families.add(
        JOB_IO,
        [("flush", &io.flush), ("compaction", &io.compaction)]
            .map(|(job, io)| (with_label(&none, "job", job), io)),
    );
    let (memory, disk) = (&metrics.memory, &metrics.disk);
    let by_kind = |(kind, bytes)| (with_label(&none, "kind", kind), bytes);
    let memory: [(&str, &u64); 11] = [
        ("memtables_active", &memory.memtables_active),
        ("memtables_sealed", &memory.memtables_sealed),
        ("memtables_pinned", &memory.memtables_pinned),
        ("data_blocks", &memory.data_blocks),
        ("metadata_blocks", &memory.metadata_blocks),
        ("open_tables", &memory.open_tables),
        ("operand_stores", &memory.operand_stores),
        ("transactions", &memory.transactions),
        ("wal_buffer", &memory.wal_buffer),
        ("read_ahead", &memory.read_ahead),
        ("guard_history", &memory.guard_history),
    ];
    families.add(MEMORY, memory.map(by_kind));
    let disk: [(&str, &u64); 4] = [
        ("tables", &disk.table_bytes),
        ("blob_files", &disk.blob_bytes),
        ("log", &disk.log_bytes),
        ("reserve", &disk.reserve_bytes),
    ];
    families.add(DISK, disk.map(by_kind));
    families.add_latencies(
        ["lsmx_job_duration_seconds", "lsmx_job_duration_quantile_seconds"],
        ["Durations of flushes and merges.", "Quantiles of these durations since the open."],
        1e6,
        [("flush", &metrics.flush_us), ("compaction", &metrics.compaction_us)]
            .map(|(job, latency)| (with_label(&none, "job", job), latency)),
    );
    let latency = &metrics.operation_latency;
    families.add_latencies(
        ["lsmx_operation_duration_seconds", "lsmx_operation_duration_quantile_seconds"],
        [
            "Durations of sampled operations. Does not change while latency sampling is off.",
            "Quantiles of the durations of sampled operations since the open.",
        ],
        1e9,
        [
            ("get", &latency.get_ns),
            ("multi_get", &latency.multi_get_ns),
            ("commit", &latency.commit_ns),
            ("scan_step", &latency.scan_step_ns),
            ("update", &latency.update_ns),
        ]
        .map(|(operation, latency)| (with_label(&none, "operation", operation), latency)),
    );
    families.0
}
