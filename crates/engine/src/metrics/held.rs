//! Where memory goes, and what long-held handles keep.

use serde::Serialize;

use crate::cache::BlockCacheKind;

/// What takes memory, in bytes; most are estimates that include the allocator's overhead.
///
/// Left out: code and stacks; values and keys that callers hold of blocks the cache has let go;
/// the buffers of running jobs (about 9 bytes per key of the table a job is writing, twice that and
/// for a wide filter two bytes more while its filter is built, and 1 MiB), and batches that callers are filling.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryMetrics {
    /// The budget, if one was given.
    pub budget_bytes: Option<u64>,
    /// At which writes wait: all memtables that take writes or wait for their flush.
    pub memtable_bytes_max: u64,
    /// At which blocks are let go.
    pub block_cache_bytes_max: u64,
    /// What holds the data blocks among them.
    pub block_cache_kind: BlockCacheKind,
    /// Memtables that take writes.
    pub memtables_active: u64,
    /// Memtables that wait for their flush.
    pub memtables_sealed: u64,
    /// Memtables that are flushed and kept by iterators alone. Not bounded by the budget.
    pub memtables_pinned: u64,
    /// Data blocks in the cache.
    pub data_blocks: u64,
    /// Filters, indexes and range tombstones in memory.
    pub metadata_blocks: u64,
    /// Open tables besides their blocks: handles, key ranges, slots.
    pub open_tables: u64,
    /// Operand stores: indexes, filters, buffers, caches.
    pub operand_stores: u64,
    /// The encode buffer of the log.
    pub wal_buffer: u64,
    /// What iterators and compactions have read ahead.
    pub read_ahead: u64,
    /// Key hashes of flushed writes, for guards. At most 16 MiB, and at most 1/16 of the budget.
    pub guard_history: u64,
}

impl MemoryMetrics {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.memtables_active
            + self.memtables_sealed
            + self.memtables_pinned
            + self.data_blocks
            + self.metadata_blocks
            + self.open_tables
            + self.operand_stores
            + self.wal_buffer
            + self.read_ahead
            + self.guard_history
    }
}

/// What snapshots and iterators keep that could go without them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeldMetrics {
    /// Snapshots registered now; iterators of a snapshot hold it too.
    pub snapshots: u64,
    /// How long ago the oldest of them was registered, in microseconds.
    pub oldest_snapshot_age_us: u64,
    /// How many writes came after the oldest of them.
    pub oldest_snapshot_behind: u64,
    /// Super versions that are not current and still in use, over all keyspaces.
    pub old_views: u64,
    /// Iterators, jobs and scans that hold any super version, current ones included.
    pub view_pins: u64,
    /// Files that no current version names, kept by those that hold an old one.
    pub files: u64,
    /// Bytes of those files.
    pub file_bytes: u64,
    /// Bytes of data blocks that iterators and values hold and the cache does not, in no budget; about.
    /// A value longer than 38 bytes keeps the block it was read from.
    pub block_bytes: u64,
}

/// Descriptors of table files. Log, manifest, lock and files being written are not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DescriptorMetrics {
    /// Open now.
    pub open: u64,
    /// Most that stay open.
    pub max: u64,
    /// Files that were opened again because their descriptor had been closed.
    pub reopened: u64,
}

/// What one lane of background work reads and writes at the limited rate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LaneMetrics {
    /// Bytes; of a flush those written, of compactions those read from files and written.
    pub bytes: u64,
    /// Microseconds that jobs waited for the limit.
    pub waited_us: u64,
}

/// Background reads and writes. What opening and `resume` write counts as flushes; log and manifest
/// are not among them and not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BackgroundIoMetrics {
    /// The limit in bytes per second, if there is one.
    pub rate: Option<u64>,
    /// Flushes.
    pub flush: LaneMetrics,
    /// Compactions.
    pub compaction: LaneMetrics,
    /// Corrupt reads of compactions after which a second read past all caches succeeded, since the database
    /// was opened.
    pub reads_repeated: u64,
}
