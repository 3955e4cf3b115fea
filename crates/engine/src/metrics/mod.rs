//! Counters as a user reads them: plain data that serialises, and prints as tables.

mod held;
mod latency;
mod print;

use std::collections::BTreeMap;

use serde::Serialize;

pub use crate::cache::{FilterCounts, HitCounts, PerBlockKind};
pub use crate::format::BlockKind;
use crate::operand_store::OperandMetrics;
pub use held::{BackgroundIoMetrics, DescriptorMetrics, HeldMetrics, LaneMetrics, MemoryMetrics};
pub(crate) use latency::Latencies;
pub use latency::LatencyMetrics;

/// What flushes and compactions brought into one level since the database was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LevelFlow {
    /// Flushes or merges that wrote here.
    pub jobs: u64,
    /// Bytes that came from above: memtables written to L0, input files of other levels. Moved
    /// files are not among them.
    pub came_bytes: u64,
    /// Bytes of files that came by a change of the manifest alone.
    pub moved_bytes: u64,
    /// Bytes of all input files of merges into this level, those of the level itself included.
    pub read_bytes: u64,
    /// Bytes of the files written here.
    pub written_bytes: u64,
    /// Microseconds that the jobs took.
    pub us_total: u64,
}

impl LevelFlow {
    /// Bytes written here for each byte that came from above; none if nothing came.
    #[must_use]
    pub fn write_amplification(&self) -> Option<f64> {
        (self.came_bytes > 0).then(|| self.written_bytes as f64 / self.came_bytes as f64)
    }

    fn add(&mut self, other: &LevelFlow) {
        self.jobs += other.jobs;
        self.came_bytes += other.came_bytes;
        self.moved_bytes += other.moved_bytes;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.us_total += other.us_total;
    }
}

/// One level of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LevelMetrics {
    /// Number of the level.
    pub level: u8,
    /// Sorted runs in it.
    pub runs: u64,
    /// Files in it.
    pub files: u64,
    /// Bytes of those files.
    pub bytes: u64,
    /// Entries in them, of all kinds.
    pub entries: u64,
    /// Tombstones among the entries.
    pub tombstones: u64,
    /// Range tombstones, as they lie fragmented in the files; no entries.
    pub range_tombstones: u64,
    /// What was brought here.
    pub flow: LevelFlow,
}

/// What compactions of one tree did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CompactionMetrics {
    /// Merges.
    pub jobs: u64,
    /// Of those, the ones that were divided by key range.
    pub jobs_divided: u64,
    /// Parts that these were divided into.
    pub parts: u64,
    /// Of the parts, those that another thread took than the one with the job.
    pub parts_helped: u64,
    /// Jobs that only changed the manifest.
    pub trivial_moves: u64,
    /// Jobs that let files go unread.
    pub drops: u64,
    /// Bytes of whole input files of merges.
    pub read_bytes: u64,
    /// Bytes of output files of merges.
    pub written_bytes: u64,
    /// Microseconds that merges took, from pick to manifest edit.
    pub us_total: u64,
    /// Jobs that failed and are tried again.
    pub failures: u64,
    /// Files quarantined now because background work cannot read them; see
    /// [`Db::health`](crate::Db::health).
    pub quarantined_files: u64,
    /// Times that a file was quarantined since the database was opened.
    pub quarantines: u64,
}

/// Writes that waited for one cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StallCause {
    /// How many waited.
    pub count: u64,
    /// Microseconds they waited in all.
    pub us_total: u64,
    /// The longest of them.
    pub us_max: u64,
}

/// How writes were held up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StallMetrics {
    /// Writes that waited, for any cause.
    pub count: u64,
    /// Microseconds they waited in all.
    pub us_total: u64,
    /// The longest of them.
    pub us_max: u64,
    /// All memtables were full and waited for their flush.
    pub memtables_full: StallCause,
    /// All memtables of all keyspaces together were at their bound. Counted for the first keyspace
    /// of the batch that waited.
    pub memory_full: StallCause,
    /// The policy's hard stop was reached.
    pub too_many_runs: StallCause,
    /// Microseconds that writes were slowed down by debt; not part of the others.
    pub throttle_us_total: u64,
}

/// How merge operands were folded in one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FoldMetrics {
    /// How often operands were folded.
    pub folds: u64,
    /// Operands folded in all.
    pub operands: u64,
    /// The most operands folded at once.
    pub operands_max: u64,
}

/// What became of the merge operands of one keyspace since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MergeMetrics {
    /// Chains that reads had to fold, those of writers that fold in a memtable included.
    pub reads: FoldMetrics,
    /// What flushes and compactions folded; a partial merge folds two.
    pub jobs: FoldMetrics,
    /// Times that operands could not be folded, by whomever.
    pub failures: u64,
}

/// Whether lookups ask the filter of the last sorted run, and with
/// [`FilterLastRun::Auto`](crate::FilterLastRun::Auto) why. All but `asked` is zero otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LastRunFilterMetrics {
    /// Whether it is asked.
    pub asked: bool,
    /// Lookups that came to the last run.
    pub lookups: u64,
    /// Of those, the ones that found nothing there.
    pub absent: u64,
    /// Reads that it saves or would save, per lookup that comes to the last run.
    pub reads_saved: f64,
    /// Reads that data blocks would save or do save in its place, per lookup.
    pub reads_lost: f64,
    /// Its bytes.
    pub filter_bytes: u64,
}

/// The blob files of one keyspace, which hold the values that are kept apart from the tree. Levels, flushes
/// and compactions count tables alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ValueLogMetrics {
    /// Blob files that tables of the current version reference.
    pub blob_files: u64,
    /// Their bytes.
    pub blob_bytes: u64,
    /// Bytes of the records in them that tables reference; the rest is garbage.
    pub blob_referenced_bytes: u64,
    /// Bytes of the blob files that flushes and compactions wrote since the database was opened.
    pub written_bytes: u64,
    /// Compactions whose purpose was to empty blob files.
    pub rewrites: u64,
    /// Bytes of values that those read from blob files to write them elsewhere.
    pub rewritten_bytes: u64,
    /// Bytes of values that other compactions copied to have them beside their neighbours: what scans
    /// cost, see [`ValueSeparation::scan_read_bytes`](crate::ValueSeparation::scan_read_bytes).
    pub gathered_bytes: u64,
}

impl ValueLogMetrics {
    /// Bytes of the blob files for each byte that is referenced; none if nothing is.
    #[must_use]
    pub fn space_amplification(&self) -> Option<f64> {
        let referenced = self.blob_referenced_bytes;
        (referenced > 0).then(|| self.blob_bytes as f64 / referenced as f64)
    }
}

/// One keyspace.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KeyspaceMetrics {
    /// Its compaction policy.
    pub policy: String,
    /// Point lookups.
    pub gets: u64,
    /// Key and value bytes of all writes since it was opened.
    pub ingested_bytes: u64,
    /// Key and value bytes of puts since it was opened.
    pub put_bytes: u64,
    /// Memtables flushed.
    pub flushes: u64,
    /// Bytes of the files that flushes wrote.
    pub flushed_bytes: u64,
    /// Bytes of its memtables.
    pub memtable_bytes: u64,
    /// Memtables that wait for their flush.
    pub memtables_sealed: u64,
    /// Tables that went without a filter because none could be built.
    pub filters_failed: u64,
    /// Whether the filter of the last sorted run is asked.
    pub filter_last_run: LastRunFilterMetrics,
    /// What compactions did.
    pub compaction: CompactionMetrics,
    /// What became of merge operands.
    pub merges: MergeMetrics,
    /// What its operand store holds and has done, if it has one.
    pub operand_store: Option<OperandMetrics>,
    /// Its blob files.
    pub value_log: ValueLogMetrics,
    /// How writes were held up.
    pub stalls: StallMetrics,
    /// Age of the oldest tombstone in a file, in microseconds; none if there is no tombstone.
    pub oldest_tombstone_age_us: Option<u64>,
    /// Levels that hold something or were written to, from L0.
    pub levels: Vec<LevelMetrics>,
}

impl KeyspaceMetrics {
    /// The sum over all levels. What came is what was flushed, so its write amplification is that
    /// of the whole tree: (flushed + compaction written) ÷ flushed.
    #[must_use]
    pub fn total(&self) -> LevelMetrics {
        let mut total = LevelMetrics::default();
        for level in &self.levels {
            total.runs += level.runs;
            total.files += level.files;
            total.bytes += level.bytes;
            total.entries += level.entries;
            total.tombstones += level.tombstones;
            total.flow.add(&level.flow);
        }
        total.flow.came_bytes = self.flushed_bytes;
        total
    }
}

/// Hits and misses of the block cache for one kind of block; point lookups and scans, without what
/// compactions read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheMetrics {
    /// Blocks that memory had.
    pub hits: u64,
    /// Blocks that storage had to give.
    pub misses: u64,
    /// Bytes resident now. Values of blob files share the room of data blocks, and count there.
    pub resident_bytes: u64,
}

/// The commit pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CommitMetrics {
    /// Commits, syncs and other requests that were taken in.
    pub requests: u64,
    /// Groups they were written in: one append each, one sync where any member asked for it.
    pub groups: u64,
    /// `Buffered` commits that came while a group was being synced and waited for that.
    pub behind_sync: u64,
    /// Work done to check guards against commits that were not visible yet: one per guard and earlier
    /// commit, and one per operation of a commit whose keys had to be collected for that.
    pub guard_checks: u64,
}

/// The write-ahead log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WalMetrics {
    /// Live segments.
    pub segments: u64,
    /// Bytes of them.
    pub live_bytes: u64,
    /// Bytes appended since the database was opened.
    pub written_bytes: u64,
    /// Syncs since the database was opened.
    pub syncs: u64,
    /// Bytes of the file `RESERVE`, which a full disk gives back; 0 where it cannot be made.
    pub reserved_bytes: u64,
    /// Segments that are kept for keyspaces whose operand store was missing when the log was replayed. They are
    /// not in `segments` and do not count against
    /// [`Options::wal_bytes_max`](crate::Options::wal_bytes_max).
    pub kept_segments: u64,
    /// Bytes of these segments; they are not in `live_bytes`.
    pub kept_bytes: u64,
}

/// Disk use of a database, in bytes. Manifest, operand stores and obsolete files are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DiskMetrics {
    /// Tables of all keyspaces.
    pub table_bytes: u64,
    /// Blob files of all keyspaces.
    pub blob_bytes: u64,
    /// Live and kept segments of the log.
    pub log_bytes: u64,
    /// The file `RESERVE`.
    pub reserve_bytes: u64,
}

/// The part of [`Metrics`] that reads change, for a fraction of the cost; counts since the database was
/// opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadMetrics {
    /// The block cache by kind of block; kinds never touched are left out.
    pub cache: BTreeMap<BlockKind, CacheMetrics>,
    /// What filters answered to point lookups.
    pub filter: FilterCounts,
    /// The same by level of the filters' tables, over all keyspaces: levels that were asked for keys
    /// which they do not have.
    pub filter_by_level: BTreeMap<u8, FilterCounts>,
}

/// A whole database.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Metrics {
    /// Keyspaces by name.
    pub keyspaces: BTreeMap<String, KeyspaceMetrics>,
    /// The block cache by kind of block; kinds never touched are left out.
    pub cache: BTreeMap<BlockKind, CacheMetrics>,
    /// What filters answered to point lookups.
    pub filter: FilterCounts,
    /// The same by level of the filters' tables, over all keyspaces: levels that were asked for keys
    /// which they do not have.
    pub filter_by_level: BTreeMap<u8, FilterCounts>,
    /// The commit pipeline.
    pub commits: CommitMetrics,
    /// The write-ahead log.
    pub wal: WalMetrics,
    /// Disk use.
    pub disk: DiskMetrics,
    /// Where memory goes.
    pub memory: MemoryMetrics,
    /// What snapshots and iterators keep.
    pub held: HeldMetrics,
    /// Descriptors of tables.
    pub descriptors: DescriptorMetrics,
    /// What background work reads and writes, and its limit.
    pub background_io: BackgroundIoMetrics,
    /// How long flushes took, over all keyspaces.
    pub flush_us: LatencyMetrics,
    /// How long merges took, from pick to manifest edit, over all keyspaces.
    pub compaction_us: LatencyMetrics,
    /// Snapshots registered now.
    pub snapshots: u64,
    /// Last visible sequence number.
    pub published_seq: u64,
    /// Why the database is read-only, if it is.
    pub read_only: Option<String>,
}
