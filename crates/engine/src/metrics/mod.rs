//! Metrics of a database: plain structs that serialize, and print as tables.

mod families;
mod follower;
mod latency;
mod operation_latency;
mod print;
mod prometheus;
#[cfg(feature = "metrics")]
pub(crate) mod publish;
mod resources;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use crate::cache::FilterCounts;
use crate::env::WaitCause;
pub use crate::followers::FollowerFileMetrics;
pub use crate::format::BlockKind;
use crate::operand_store::OperandMetrics;
pub use follower::FollowerMetrics;
pub(crate) use latency::LatencyHistogram;
pub use latency::LatencyMetrics;
pub use operation_latency::{LatencySampling, OperationLatencyMetrics};
pub(crate) use operation_latency::{OperationLatencies, OperationStart, TimedOperation};
pub use resources::{
    BackgroundIoMetrics, DescriptorMetrics, HeldMetrics, JobIoMetrics, MemoryMetrics,
};

/// Writes of flushes and compactions into one level since the database was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LevelWriteMetrics {
    /// Number of flushes and merges that wrote into the level.
    pub jobs: u64,
    /// Bytes of flushes into L0, of ingested tables, and of input files from other levels. Moved files are not counted.
    pub incoming_bytes: u64,
    /// Bytes of files that were moved into the level without being rewritten.
    pub moved_bytes: u64,
    /// Bytes of all input files of merges into the level, including files of the level itself.
    pub read_bytes: u64,
    /// Bytes of the files written.
    pub written_bytes: u64,
    /// Total duration of the jobs, in microseconds.
    pub us_total: u64,
}

impl LevelWriteMetrics {
    /// Returns the bytes written per incoming byte, or `None` without incoming bytes.
    pub(crate) fn write_amplification(&self) -> Option<f64> {
        (self.incoming_bytes > 0).then(|| self.written_bytes as f64 / self.incoming_bytes as f64)
    }

    fn add(&mut self, other: &LevelWriteMetrics) {
        self.jobs += other.jobs;
        self.incoming_bytes += other.incoming_bytes;
        self.moved_bytes += other.moved_bytes;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.us_total += other.us_total;
    }
}

/// Contents of one level.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LevelMetrics {
    /// Number of the level.
    pub level: u8,
    /// Number of sorted runs.
    pub runs: u64,
    /// Number of files.
    pub files: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Number of entries of all kinds.
    pub entries: u64,
    /// Number of tombstones among the entries.
    pub tombstones: u64,
    /// Number of fragments of range tombstones. They do not count as entries.
    pub range_tombstones: u64,
    /// Writes into the level.
    pub flow: LevelWriteMetrics,
}

/// Compactions of one keyspace since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CompactionMetrics {
    /// Number of merges.
    pub jobs: u64,
    /// Number of merges that were split by key range.
    pub divided_jobs: u64,
    /// Number of subcompactions of these merges.
    pub subcompactions: u64,
    /// Number of subcompactions that helper threads ran.
    pub helper_subcompactions: u64,
    /// Number of jobs that only edited the manifest.
    pub trivial_moves: u64,
    /// Number of jobs that dropped files without reading them.
    pub drops: u64,
    /// Bytes of the input files of merges.
    pub read_bytes: u64,
    /// Bytes of output files of merges.
    pub written_bytes: u64,
    /// Total duration of merges from pick to manifest edit, in microseconds.
    pub us_total: u64,
    /// Number of failed jobs. The engine retries them.
    pub failures: u64,
    /// Number of files in quarantine, see [`Db::health`](crate::Db::health).
    pub quarantined_files: u64,
    /// Number of times that a file was quarantined.
    pub quarantines: u64,
}

/// Writes that waited for one cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StallCauseMetrics {
    /// Number of writes that waited.
    pub count: u64,
    /// Total time of the waits, in microseconds.
    pub us_total: u64,
    /// Longest wait, in microseconds.
    pub us_max: u64,
}

/// Compaction debt of a tree after the last job, and the limit of the write rate that follows from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CompactionDebtMetrics {
    /// Bytes that compactions have to write before L0 has room for further flushes.
    pub pending_bytes: u64,
    /// Bytes of writes until the policy stops writes. `None` without debt.
    pub headroom_bytes: Option<u64>,
    /// Maximum rate of writes in bytes per second. `None` if the throttle does not limit it.
    pub write_rate_max: Option<u64>,
}

/// Writes that waited, or were delayed by the throttle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StallMetrics {
    /// Number of writes that waited for any cause.
    pub count: u64,
    /// Total time of the waits, in microseconds.
    pub us_total: u64,
    /// Longest wait, in microseconds.
    pub us_max: u64,
    /// Waits for a flush, because all memtables of the keyspace were full.
    pub memtables_full: StallCauseMetrics,
    /// Waits for a flush, because the memtables of all keyspaces were at their limit. Counted in the first
    /// keyspace of the batch.
    pub memory_full: StallCauseMetrics,
    /// Waits for a compaction, because the policy did not allow more runs.
    pub too_many_runs: StallCauseMetrics,
    /// Waits for an ingest of files into the keyspace.
    pub ingest: StallCauseMetrics,
    /// Total delay by the write throttle, in microseconds. The other fields do not include it.
    pub throttle_us_total: u64,
}

impl StallMetrics {
    /// Counts a wait of `us` microseconds.
    pub(crate) fn record(&mut self, cause: WaitCause, us: u64) {
        let metrics = match cause {
            WaitCause::MemtablesFull => &mut self.memtables_full,
            WaitCause::MemoryFull => &mut self.memory_full,
            WaitCause::Ingest => &mut self.ingest,
            _ => &mut self.too_many_runs,
        };
        metrics.count += 1;
        metrics.us_total += us;
        metrics.us_max = metrics.us_max.max(us);
        self.count += 1;
        self.us_total += us;
        self.us_max = self.us_max.max(us);
    }
}

/// Folds of merge operands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FoldMetrics {
    /// Number of folds.
    pub folds: u64,
    /// Number of folded operands.
    pub operands: u64,
    /// Largest number of operands in one fold.
    pub operands_max: u64,
}

/// Merge operands of one keyspace since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MergeMetrics {
    /// Folds by reads, and by writes that fold operands in a memtable.
    pub reads: FoldMetrics,
    /// Folds by flushes and compactions. A partial merge folds two operands.
    pub jobs: FoldMetrics,
    /// Number of failed folds.
    pub failures: u64,
    /// Number of combined values that point lookups stored, see [`RmwMode::Adaptive`](crate::RmwMode::Adaptive).
    pub write_backs: u64,
}

/// Compaction filter of one keyspace since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CompactionFilterMetrics {
    /// Number of values that compactions passed to the filter. This field, `removed` and `changed` do not count values
    /// of merges that failed or were repeated.
    pub passed: u64,
    /// Number of removed values.
    pub removed: u64,
    /// Number of changed values.
    pub changed: u64,
    /// Number of failed calls, including those of merges that were repeated.
    pub errors: u64,
    /// Number of merges that were repeated without the filter, because a snapshot saw a removed or changed value.
    pub repeated_merges: u64,
}

/// Entries that flushes and compactions dropped, or replaced by tombstones, because they had expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExpiryMetrics {
    /// Number of entries.
    pub entries: u64,
    /// Size of their keys and of their values as stored in memtables and tables, in bytes. Values in blob files count with
    /// the size of their pointers.
    pub bytes: u64,
}

/// Deleted and expired data that exists for longer than
/// [`KeyspaceOptions::delete_persistence`](crate::KeyspaceOptions::delete_persistence).
///
/// [`Event::DeletePersistenceOverdue`](crate::Event::DeletePersistenceOverdue) names each holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeletePersistenceMetrics {
    /// The bound `delete_persistence` in microseconds, or 0 if it is not set.
    pub bound_us: u64,
    /// Maximum time by which data in tables, blob files and operand stores exceeds the bound because jobs have not kept
    /// up, in microseconds.
    pub overdue_us: u64,
    /// Maximum time by which data exceeds the bound because a snapshot or a transaction may see it, in microseconds.
    pub snapshot_overdue_us: u64,
    /// Maximum time by which data may exceed the bound because an iterator or a cursor uses obsolete files, in
    /// microseconds.
    pub iterator_overdue_us: u64,
}

/// Use of the filter of the last sorted run.
///
/// Without [`FilterLastRun::Auto`](crate::FilterLastRun::Auto) all other fields are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastRunFilterMetrics {
    /// True if lookups use the filter.
    pub is_used: bool,
    /// Number of lookups that reached the last run.
    pub lookups: u64,
    /// Number of these lookups that did not find the key.
    pub absent: u64,
    /// Block reads that the filter saves per lookup in the last run, or would save if it were used.
    pub reads_saved: f64,
    /// Block reads that cached data blocks would save per lookup if they used the memory of the filter.
    pub reads_lost: f64,
    /// Bytes of the filter.
    pub filter_bytes: u64,
}

/// Blob files of one keyspace. Other metrics of levels, flushes and compactions count tables only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ValueLogMetrics {
    /// Number of blob files that tables of the current version reference.
    pub blob_files: u64,
    /// Bytes of these files.
    pub blob_bytes: u64,
    /// Bytes of the records that tables reference. The rest is garbage.
    pub blob_referenced_bytes: u64,
    /// Bytes of blob files written by flushes and compactions since the database was opened.
    pub written_bytes: u64,
    /// Number of compactions that collected garbage of blob files.
    pub rewrites: u64,
    /// Bytes of values that these compactions moved to new blob files.
    pub rewritten_bytes: u64,
    /// Bytes of values that other compactions moved next to their neighbours, see
    /// [`ValueSeparation::scan_read_bytes`](crate::ValueSeparation::scan_read_bytes).
    pub relocated_bytes: u64,
}

impl ValueLogMetrics {
    /// Returns the bytes of blob files per referenced byte, or `None` if no byte is referenced.
    pub(crate) fn space_amplification(&self) -> Option<f64> {
        let referenced = self.blob_referenced_bytes;
        (referenced > 0).then(|| self.blob_bytes as f64 / referenced as f64)
    }
}

/// Tables that ingests, bulk loads and a clone added to one keyspace since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IngestMetrics {
    /// Number of ingests, bulk loads and clones. A clone counts for the new keyspace.
    pub ingests: u64,
    /// Number of ingested tables.
    pub files: u64,
    /// Number of these tables that were added to L0, because they overlapped older tables or running jobs.
    pub l0_files: u64,
    /// Bytes of the ingested tables.
    pub bytes: u64,
    /// Bytes of these tables that the engine wrote: copies of external tables, and tables of bulk loads and
    /// clones.
    pub written_bytes: u64,
}

/// Operations of users on one keyspace since it was opened.
///
/// Operations that failed are not counted, except in [`KeyspaceMetrics::gets`]. Each operation of a batch is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct OperationMetrics {
    /// Number of puts, without ingested entries.
    pub puts: u64,
    /// Number of deletes of single keys.
    pub deletes: u64,
    /// Number of range deletes.
    pub range_deletes: u64,
    /// Number of merge operands.
    pub merges: u64,
    /// Number of point lookups that found a value.
    pub gets_found: u64,
    /// Number of point lookups that found no value.
    pub gets_absent: u64,
    /// Bytes of keys and values of the lookups that found a value.
    pub get_bytes: u64,
    /// Number of keys that `multi_get` looked up. They also count as gets.
    pub multi_get_keys: u64,
    /// Number of iterators and cursors.
    pub scans: u64,
    /// Number of entries that iterators returned, and of entries to which cursors moved. The last entries of an open
    /// iterator or cursor, up to 1,023, may not be counted yet.
    pub scan_entries: u64,
    /// Bytes of keys and values that iterators and cursors returned. A cursor counts a value when the value is read.
    pub scan_bytes: u64,
    /// Number of sorted runs with a [prefix filter](crate::KeyspaceOptions::prefix_filter) that iterators and cursors
    /// skipped, because no table of the run can contain a key of the range.
    pub scan_runs_skipped: u64,
}

/// Jobs of one keyspace that run now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RunningJobMetrics {
    /// Number of flushes, 0 or 1.
    pub flushes: u64,
    /// Number of compactions.
    pub compactions: u64,
    /// Bytes that these compactions still have to write, as estimated by the policy.
    pub compaction_bytes_left: u64,
}

/// Metrics of one keyspace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyspaceMetrics {
    /// Compaction policy.
    pub policy: String,
    /// Number of point lookups, including failed ones.
    pub gets: u64,
    /// Bytes of keys and values of all writes since the keyspace was opened.
    pub ingested_bytes: u64,
    /// Bytes of keys and values of puts since the keyspace was opened.
    pub put_bytes: u64,
    /// Operations of users.
    pub operations: OperationMetrics,
    /// Number of flushed memtables.
    pub flushes: u64,
    /// Bytes of tables that flushes wrote.
    pub flushed_bytes: u64,
    /// Ingested tables.
    pub ingest: IngestMetrics,
    /// Bytes of memtables.
    pub memtable_bytes: u64,
    /// Number of sealed memtables, which wait for their flush.
    pub memtables_sealed: u64,
    /// Number of tables written without a filter, because its construction failed.
    pub filters_failed: u64,
    /// Use of the filter of the last sorted run.
    pub filter_last_run: LastRunFilterMetrics,
    /// Jobs that run now.
    pub running_jobs: RunningJobMetrics,
    /// Compactions.
    pub compaction: CompactionMetrics,
    /// Merge operands.
    pub merges: MergeMetrics,
    /// Compaction filter.
    pub compaction_filter: CompactionFilterMetrics,
    /// Expired entries.
    pub expired: ExpiryMetrics,
    /// Deleted data that exceeds its bound.
    pub delete_persistence: DeletePersistenceMetrics,
    /// Operand store, if the keyspace has one.
    pub operand_store: Option<OperandMetrics>,
    /// Blob files.
    pub value_log: ValueLogMetrics,
    /// Compaction debt.
    pub compaction_debt: CompactionDebtMetrics,
    /// Writes that waited.
    pub stalls: StallMetrics,
    /// Age of the oldest tombstone in a table, in microseconds.
    pub oldest_tombstone_age_us: Option<u64>,
    /// Levels that have runs or were written to, in order of their numbers.
    pub levels: Vec<LevelMetrics>,
}

impl KeyspaceMetrics {
    /// Returns the sum over all levels. Its incoming bytes are the bytes of flushed and ingested tables.
    ///
    /// Its write amplification is therefore the one of the whole tree: (flushed + ingested + compaction written) ÷
    /// (flushed + ingested). Tables that an ingest links instead of copying do not count as written.
    #[must_use]
    pub fn total(&self) -> LevelMetrics {
        let mut total = LevelMetrics::default();
        for level in &self.levels {
            total.runs += level.runs;
            total.files += level.files;
            total.bytes += level.bytes;
            total.entries += level.entries;
            total.tombstones += level.tombstones;
            total.range_tombstones += level.range_tombstones;
            total.flow.add(&level.flow);
        }
        total.flow.incoming_bytes = self.flushed_bytes + self.ingest.bytes;
        total
    }

    /// Returns the metrics of a level. Adds them if they do not exist.
    pub(crate) fn level_mut(&mut self, level: u8) -> &mut LevelMetrics {
        while self.levels.len() <= usize::from(level) {
            let level = u8::try_from(self.levels.len()).unwrap_or(u8::MAX);
            self.levels.push(LevelMetrics { level, ..LevelMetrics::default() });
        }
        &mut self.levels[usize::from(level)]
    }
}

/// Block cache accesses of point lookups and scans, for one kind of block. Compactions are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheMetrics {
    /// Number of blocks found in memory.
    pub hits: u64,
    /// Number of blocks read from storage.
    pub misses: u64,
    /// Bytes in memory. Cached values of blob files count as data blocks.
    pub resident_bytes: u64,
}

/// Group commit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CommitMetrics {
    /// Number of queued requests: commits, syncs and others.
    pub requests: u64,
    /// Number of groups. A group has one append, and one sync if any member requires it.
    pub groups: u64,
    /// Number of `Buffered` commits that waited for the sync of another group.
    pub behind_sync: u64,
    /// Number of checks of guards against commits that were not visible yet. A check compares one guard with one
    /// earlier commit. Collecting the keys of an earlier commit adds one check per operation of this commit.
    pub guard_checks: u64,
}

/// Transactions since the database was opened.
///
/// A transaction that was discarded, or whose commit failed for another reason than a conflict, is counted in `begun` only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransactionMetrics {
    /// Number of transactions that were started. Each attempt of [`Db::transact`](crate::Db::transact) starts one.
    pub begun: u64,
    /// Number of committed transactions with writes.
    pub committed: u64,
    /// Number of committed transactions without writes.
    pub read_only: u64,
    /// Number of commits that failed with [`Error::Conflict`](crate::Error::Conflict).
    pub conflicts: u64,
    /// Number of commits that failed with [`Error::ConflictUnknown`](crate::Error::ConflictUnknown).
    pub unknown: u64,
    /// Number of attempts of [`Db::transact`](crate::Db::transact) after the first one of a call.
    pub retries: u64,
    /// Number of keys that [locking transactions](crate::Db::locking_transaction) have locked now.
    pub locks_held: u64,
    /// Number of waits for a key that another transaction had locked.
    pub lock_waits: u64,
    /// Total time of the waits that have ended, in microseconds.
    pub lock_wait_us_total: u64,
    /// Number of locks that failed with [`Error::LockTimeout`](crate::Error::LockTimeout).
    pub lock_timeouts: u64,
    /// Number of locks that failed with [`Error::Deadlock`](crate::Error::Deadlock).
    pub lock_deadlocks: u64,
}

/// Write-ahead log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WalMetrics {
    /// Number of live segments.
    pub segments: u64,
    /// Bytes of live segments.
    pub live_bytes: u64,
    /// Bytes of commits appended since the database was opened, including headers. The 36 bytes that each sync appends do
    /// not count.
    pub written_bytes: u64,
    /// Number of syncs since the database was opened.
    pub syncs: u64,
    /// Bytes of the file `RESERVE`, which is freed when the disk is full. 0 if it cannot be created.
    pub reserved_bytes: u64,
    /// Number of segments kept for keyspaces whose operand store was missing at recovery. `segments` does not
    /// include them, and [`Options::wal_bytes_max`](crate::Options::wal_bytes_max) does not limit them.
    pub kept_segments: u64,
    /// Bytes of these segments. `live_bytes` does not include them.
    pub kept_bytes: u64,
}

/// Disk usage in bytes, without manifest, operand stores and obsolete files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct DiskMetrics {
    /// Tables of all keyspaces.
    pub table_bytes: u64,
    /// Blob files of all keyspaces.
    pub blob_bytes: u64,
    /// Live and kept segments of the WAL.
    pub log_bytes: u64,
    /// File `RESERVE`.
    pub reserve_bytes: u64,
}

/// Metrics of reads since the database was opened. Reading them costs much less than reading [`Metrics`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadMetrics {
    /// Block cache by kind of block, without kinds that were never used.
    pub cache: BTreeMap<BlockKind, CacheMetrics>,
    /// Filter results of point lookups.
    pub filter: FilterCounts,
    /// Filter results by the level of the table, over all keyspaces. Only levels where an absent key was looked up
    /// are included.
    pub filter_by_level: BTreeMap<u8, FilterCounts>,
}

/// Metrics of a database.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metrics {
    /// Keyspaces by name.
    pub keyspaces: BTreeMap<String, KeyspaceMetrics>,
    /// Block cache by kind of block, see [`ReadMetrics::cache`].
    pub cache: BTreeMap<BlockKind, CacheMetrics>,
    /// Filter results of point lookups.
    pub filter: FilterCounts,
    /// Filter results by level, see [`ReadMetrics::filter_by_level`].
    pub filter_by_level: BTreeMap<u8, FilterCounts>,
    /// Group commit.
    pub commits: CommitMetrics,
    /// Transactions.
    pub transactions: TransactionMetrics,
    /// Write-ahead log.
    pub wal: WalMetrics,
    /// Disk usage.
    pub disk: DiskMetrics,
    /// Memory use.
    pub memory: MemoryMetrics,
    /// Resources held by snapshots and iterators.
    pub held: HeldMetrics,
    /// Followers, and the obsolete files that are kept for them.
    pub followers: FollowerFileMetrics,
    /// File descriptors of tables.
    pub descriptors: DescriptorMetrics,
    /// I/O of background jobs.
    pub background_io: BackgroundIoMetrics,
    /// Durations of flushes, over all keyspaces.
    pub flush_us: LatencyMetrics,
    /// Durations of merges from pick to manifest edit, over all keyspaces.
    pub compaction_us: LatencyMetrics,
    /// Durations of sampled operations, over all keyspaces.
    pub operation_latency: OperationLatencyMetrics,
    /// Number of failed writes of the metrics file, see [`Options::metrics_file`](crate::Options::metrics_file).
    pub metrics_file_failures: u64,
    /// Number of open snapshots.
    pub snapshots: u64,
    /// Last visible sequence number.
    pub published_seq: u64,
    /// Error that made the database read-only, if any.
    pub read_only: Option<String>,
}

impl Metrics {
    /// Returns all metrics in the text format of Prometheus, version 0.0.4.
    ///
    /// Each sample gets the given labels in addition to its own, such as `keyspace` and `level`. A process with several
    /// databases passes a label for each of them. A label name consists of ASCII letters, digits and `_`, and does not
    /// start with a digit. The metrics that Prometheus receives are listed in `docs/reference/prometheus.md`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// db.put("key", "value")?;
    /// let text = db.metrics().to_prometheus(&[("database", "users")]);
    /// assert!(text.contains("# TYPE lsmx_puts_total counter\n"));
    /// assert!(text.contains("lsmx_puts_total{database=\"users\",keyspace=\"default\"} 1\n"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The names in `labels` must be valid label names, distinct, and different from the labels of the metrics: `by`,
    /// `cause`, `job`, `keyspace`, `kind`, `le`, `level`, `policy` and `quantile`. The method does not check them.
    /// Prometheus rejects the whole text if a sample has two labels of one name.
    #[must_use]
    pub fn to_prometheus(&self, labels: &[(&str, &str)]) -> String {
        prometheus::render_text(self, labels)
    }
}
