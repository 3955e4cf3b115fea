//! Table factory: creates and opens table files and blob files.

use std::path::PathBuf;

use lsmx_base::file_name::FileName;
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, AtomicU64, Ordering};
use lsmx_compaction::{FileId, KeyRange, TableMeta};

use crate::cache::BlockCache;
use crate::deferred_drop::DeferredDrop;
use crate::env::Env;
use crate::env::rate_limit::{IoPriority, RateLimiter};
use crate::env::thread_time::{IoKind, measure_wait};
use crate::error::Result;
use crate::format::version_edit::BlobFileRecord;
use crate::table::{FdCache, FdCacheVfs, Table, TableIdentity, TableSummary};
use crate::tree::blob_set::{BlobFile, BlobUsage};
use crate::tree::file_numbers::FileNumbers;
use crate::tree::obsolete_files::ObsoleteFiles;
use crate::tree::table_file::TableFile;
use crate::value_log::BlobReader;
use crate::vfs::Vfs;
use crate::vfs::cache_bypass::CacheBypass;
use crate::vfs::paced::PacedVfs;
use crate::wal::DiskReserve;

/// Directory, caches and limits that all table and blob files of a database share.
#[derive(Debug)]
pub(crate) struct TableFactory {
    pub(crate) vfs: Arc<dyn Vfs>,
    /// Like `vfs`, but cannot use the disk reserve. If the disk is full, a compaction would use up the reserve and
    /// still fail.
    pub(crate) compaction_vfs: Arc<dyn Vfs>,
    pub(crate) reserve: Arc<DiskReserve>,
    pub(crate) dir: PathBuf,
    pub(crate) env: Env,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) descriptors: Arc<FdCache>,
    pub(crate) files: Arc<FileNumbers>,
    pub(crate) obsolete_files: Arc<ObsoleteFiles>,
    /// Frees memory that readers release.
    pub(crate) deferred_drop: DeferredDrop,
    /// Rate limit of background I/O.
    pub(crate) rate: Arc<RateLimiter>,
    /// Decides whether compactions bypass the page cache.
    pub(crate) bypass: Arc<CacheBypass>,
    /// Whether data that flushes write stays in the page cache.
    pub(crate) keep_flushed_cached: bool,
    /// Number of created tables. It determines the order in which tables were created.
    pub(crate) creation: AtomicU64,
    /// Upper bound of the bytes that all operand stores may have to rewrite.
    pub(crate) store_rewrite_bytes: Arc<AtomicU64>,
}

impl TableFactory {
    /// Returns a factory with the same directory, caches and limits.
    pub(crate) fn share(&self) -> TableFactory {
        TableFactory {
            vfs: Arc::clone(&self.vfs),
            compaction_vfs: Arc::clone(&self.compaction_vfs),
            reserve: Arc::clone(&self.reserve),
            dir: self.dir.clone(),
            env: self.env.clone(),
            cache: Arc::clone(&self.cache),
            descriptors: Arc::clone(&self.descriptors),
            files: Arc::clone(&self.files),
            obsolete_files: Arc::clone(&self.obsolete_files),
            deferred_drop: self.deferred_drop.clone(),
            rate: Arc::clone(&self.rate),
            bypass: Arc::clone(&self.bypass),
            keep_flushed_cached: self.keep_flushed_cached,
            creation: AtomicU64::new(self.creation.load(Ordering::Relaxed)),
            store_rewrite_bytes: Arc::clone(&self.store_rewrite_bytes),
        }
    }

    /// Returns the path of a table file.
    pub(crate) fn path(&self, id: FileId) -> PathBuf {
        FileName::Table(id.0).in_dir(&self.dir)
    }

    /// Returns the path of a blob file.
    pub(crate) fn blob_path(&self, id: FileId) -> PathBuf {
        FileName::Blob(id.0).in_dir(&self.dir)
    }

    /// Returns the file system for output files of jobs with this I/O priority.
    pub(crate) fn with_rate_limit(&self, priority: IoPriority) -> PacedVfs {
        let (vfs, forget) = match priority {
            IoPriority::Flush => (&self.vfs, !self.keep_flushed_cached),
            IoPriority::Compaction => (&self.compaction_vfs, self.bypass.is_on()),
        };
        PacedVfs::new(Arc::clone(vfs), Arc::clone(&self.rate), priority, forget)
    }

    /// Returns the file system for an operand store. It has the rate limit of flushes, and counts towards the limit of
    /// open file descriptors.
    pub(crate) fn rate_limited_store_vfs(&self, pooled: &Arc<FdCacheVfs>) -> PacedVfs {
        let (rate, forget) = (Arc::clone(&self.rate), !self.keep_flushed_cached);
        PacedVfs::new(Arc::clone(pooled) as Arc<_>, rate, IoPriority::Flush, forget)
    }

    /// Opens a table that was written and synced. `blobs` are the blob files that the table references.
    pub(crate) fn open_written_table(
        &self,
        id: FileId,
        summary: &TableSummary,
        blobs: Vec<BlobUsage>,
    ) -> Result<Arc<TableFile>> {
        let creation = self.next_creation();
        let meta = build_table_meta(id, summary, self.env.creation_time_us(), creation);
        self.open(&Arc::new(meta), blobs)
    }

    /// Opens a table that the manifest contains.
    pub(crate) fn open(
        &self,
        meta: &Arc<TableMeta>,
        blobs: Vec<BlobUsage>,
    ) -> Result<Arc<TableFile>> {
        let path = self.path(meta.id);
        let identity = table_identity(meta);
        let open = || Table::open_cached(&self.descriptors, &path, &identity, &self.cache);
        let table = measure_wait(&self.env, IoKind::Read, open)?;
        Ok(self.add_table_file(table, Arc::clone(meta), blobs))
    }

    /// Registers an open table. The file is deleted when it is obsolete and no version contains it any more.
    pub(crate) fn add_table_file(
        &self,
        table: Table,
        meta: Arc<TableMeta>,
        blobs: Vec<BlobUsage>,
    ) -> Arc<TableFile> {
        let (path, obsolete_files) = (self.path(meta.id), Arc::clone(&self.obsolete_files));
        Arc::new(TableFile::new(Arc::new(table), meta, blobs, path, obsolete_files))
    }

    /// Returns the number of the next table in the order of creation.
    pub(crate) fn next_creation(&self) -> u64 {
        self.creation.fetch_add(1, Ordering::Relaxed)
    }

    /// Opens a blob file that was written and synced, or that the manifest contains.
    pub(crate) fn open_blob(&self, keyspace: u32, blob: &BlobFileRecord) -> Result<Arc<BlobFile>> {
        let path = self.blob_path(blob.id);
        let open =
            || BlobReader::open_cached(&self.descriptors, &path, keyspace, blob, &self.cache);
        let blob = measure_wait(&self.env, IoKind::Read, open)?;
        Ok(Arc::new(BlobFile::new(blob, Arc::clone(&self.obsolete_files))))
    }
}

/// Returns the metadata of a table that was just written.
pub(crate) fn build_table_meta(
    id: FileId,
    summary: &TableSummary,
    now_us: u64,
    creation: u64,
) -> TableMeta {
    TableMeta {
        id,
        range: KeyRange {
            smallest: summary.properties.smallest.clone(),
            largest: summary.properties.largest.clone(),
        },
        bytes: summary.bytes,
        entries: summary.properties.entries,
        tombstones: summary.properties.tombstones + summary.properties.range_tombstone_count,
        tombstone_seq_smallest: summary.tombstone_seq_smallest.map(|seq| seq.0),
        value_bytes: summary.properties.value_bytes,
        oldest_tombstone_us: summary.properties.oldest_tombstone_us,
        expiry: summary.properties.expiry,
        seq_smallest: summary.properties.seq_smallest.0,
        seq_largest: summary.properties.seq_largest.0,
        last_read_us: now_us,
        created_us: now_us,
        creation,
        uid: summary.uid,
        checksum: summary.checksum,
    }
}

/// Returns the fields that identify the contents of a table file.
pub(crate) fn table_identity(meta: &TableMeta) -> TableIdentity {
    TableIdentity {
        id: meta.id,
        bytes: meta.bytes,
        uid: meta.uid,
        checksum: meta.checksum,
        seq_largest: SeqNo(meta.seq_largest),
    }
}
