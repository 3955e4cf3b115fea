//! Metrics of memory, file descriptors, background I/O, and resources held by snapshots and iterators.

use serde::{Deserialize, Serialize};

use crate::cache::BlockCacheKind;

/// Memory use in bytes. Most values are estimates that include the overhead of the allocator.
///
/// Not counted are code and stacks, blocks that only users hold, batches that are being filled, and buffers of
/// running jobs. A job that writes a table needs about 1 MiB and 9 bytes per key, and up to 20 bytes per key
/// more while it builds the filter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryMetrics {
    /// Memory budget, if one is set.
    pub budget_bytes: Option<u64>,
    /// Maximum size of all active and sealed memtables. Writes wait above it.
    pub memtable_bytes_max: u64,
    /// Capacity of the block cache.
    pub block_cache_bytes_max: u64,
    /// Implementation of the cache of data blocks.
    pub block_cache_kind: BlockCacheKind,
    /// Active memtables.
    pub memtables_active: u64,
    /// Sealed memtables, which wait for their flush.
    pub memtables_sealed: u64,
    /// Flushed memtables that open iterators still use. The memory budget does not limit them.
    pub memtables_pinned: u64,
    /// Data blocks in the cache.
    pub data_blocks: u64,
    /// Filters, indexes and range tombstones.
    pub metadata_blocks: u64,
    /// Open tables without their blocks: handles and key ranges.
    pub open_tables: u64,
    /// Indexes, filters, buffers and caches of operand stores.
    pub operand_stores: u64,
    /// Writes and read sets of open transactions. Up to 16 KiB of each transaction are not counted. If a memory budget
    /// is set, the limit is a quarter of [`MemoryMetrics::block_cache_bytes_max`].
    pub transactions: u64,
    /// Encode buffer of the WAL.
    pub wal_buffer: u64,
    /// Read-ahead buffers of iterators and compactions.
    pub read_ahead: u64,
    /// Key hashes of flushed writes, and key prefixes for transactions. A commit compares its guards
    /// ([`WriteBatch::guard`](crate::WriteBatch::guard)) with them. The limit is 16 MiB or 1/16 of the memory budget,
    /// whichever is smaller.
    pub guard_history: u64,
}

impl MemoryMetrics {
    /// Returns the sum over all kinds of memory.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.memtables_active
            + self.memtables_sealed
            + self.memtables_pinned
            + self.data_blocks
            + self.metadata_blocks
            + self.open_tables
            + self.operand_stores
            + self.transactions
            + self.wal_buffer
            + self.read_ahead
            + self.guard_history
    }
}

/// Resources held by snapshots and iterators.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldMetrics {
    /// Number of open snapshots. An iterator over a snapshot keeps it open.
    pub snapshots: u64,
    /// Age of the oldest snapshot, in microseconds.
    pub oldest_snapshot_age_us: u64,
    /// Number of writes since the oldest snapshot.
    pub oldest_snapshot_behind: u64,
    /// Number of super versions that are in use but not current, over all keyspaces.
    pub old_views: u64,
    /// Number of iterators, jobs and scans that hold a super version, current or not.
    pub view_pins: u64,
    /// Number of obsolete files that are still in use.
    pub files: u64,
    /// Bytes of these files.
    pub file_bytes: u64,
    /// Estimated bytes of data blocks that iterators and values hold and the cache has evicted. No budget limits
    /// them. A value of more than 38 bytes holds the block that it was read from.
    pub block_bytes: u64,
}

/// File descriptors of tables. Descriptors of other files are not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DescriptorMetrics {
    /// Number of open descriptors.
    pub open: u64,
    /// Maximum number of descriptors that stay open.
    pub max: u64,
    /// Number of times that a file was reopened because its descriptor had been closed.
    pub reopened: u64,
}

/// I/O of flushes, or of compactions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobIoMetrics {
    /// Bytes written by flushes, or read and written by compactions.
    pub bytes: u64,
    /// Time that jobs waited for the rate limiter, in microseconds.
    pub waited_us: u64,
}

/// I/O of background jobs. Writes of `open` and `resume` count as flushes.
///
/// The WAL and the manifest are neither limited nor counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackgroundIoMetrics {
    /// Rate limit in bytes per second, if one is set.
    pub rate: Option<u64>,
    /// I/O of flushes.
    pub flush: JobIoMetrics,
    /// I/O of compactions.
    pub compaction: JobIoMetrics,
    /// Number of compaction reads that found corrupt data and then succeeded when all caches were bypassed.
    pub reads_repeated: u64,
}
