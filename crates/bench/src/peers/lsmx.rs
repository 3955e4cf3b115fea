//! Runs experiments on lsmx.

use std::path::Path;
use std::sync::Arc;

use lsmx::internals::vfs::{CountingVfs, VfsCall};
use lsmx::merge_operator::FieldUpdate;
use lsmx::metrics::BlockKind;
use lsmx::operand_store::OperandMetrics;
use lsmx::vfs::OsVfs;
use lsmx::{Db, Durability, Explanation, Keyspace, MetadataSizes, Options, Slice};

use crate::error::{Error, Result};

use super::{Engine, EngineSettings, EntryVisitor, IoBytes, WrittenBytes, write_field};

pub(crate) struct Lsmx {
    pub(crate) db: Db,
    pub(crate) keyspace: Keyspace,
    /// File system that counts calls. `None` if calls are not counted.
    vfs: Option<CountingVfs>,
}

impl Lsmx {
    /// Opens the database in a directory, or creates it. Operations use the default keyspace.
    pub(super) fn open(path: &Path, settings: &EngineSettings) -> Result<Lsmx> {
        let vfs = settings.counts_io.then(|| CountingVfs::new(Arc::new(OsVfs)));
        Lsmx::open_with(path, settings.database_options(), lsmx::DEFAULT_KEYSPACE, vfs)
    }

    /// Opens an existing database for reading, and counts its file system calls.
    pub(crate) fn open_read_only(
        path: &Path,
        settings: &EngineSettings,
        keyspace: &str,
    ) -> Result<Lsmx> {
        let options = settings.database_options().create_if_missing(false).read_only(true);
        Lsmx::open_with(path, options, keyspace, Some(CountingVfs::new(Arc::new(OsVfs))))
    }

    fn open_with(
        path: &Path,
        mut options: Options,
        keyspace: &str,
        vfs: Option<CountingVfs>,
    ) -> Result<Lsmx> {
        if let Some(vfs) = &vfs {
            options = options.vfs(Arc::new(vfs.clone()));
        }
        let db = Db::open(path, options).map_err(engine_error("open a database"))?;
        let keyspace = db.open_keyspace(keyspace, None).map_err(engine_error("open a keyspace"))?;
        Ok(Lsmx { db, keyspace, vfs })
    }

    pub(crate) fn metadata_sizes(&self) -> Result<MetadataSizes> {
        self.keyspace.metadata().map_err(engine_error("read the metadata"))
    }

    /// Returns the number of file reads and the number of bytes read. Both numbers are 0 if file system calls are not
    /// counted.
    pub(crate) fn file_reads(&self) -> (u64, u64) {
        let Some(vfs) = &self.vfs else { return (0, 0) };
        let counts = vfs.counts();
        (counts.calls.count_of(VfsCall::Read), counts.bytes.count_of(VfsCall::Read))
    }
}

/// Returns a closure for `map_err` that adds the failed action to an error of lsmx.
pub fn engine_error(action: &'static str) -> impl FnOnce(lsmx::Error) -> Error {
    move |source| Error::Engine { action, source }
}

fn visit_entries(
    entries: impl Iterator<Item = lsmx::Result<(Slice, Slice)>>,
    visit: &mut EntryVisitor<'_>,
) -> Result<u64> {
    let mut found = 0;
    for entry in entries {
        let (key, value) = entry.map_err(engine_error("read a range"))?;
        visit(&key, &value);
        found += 1;
    }
    Ok(found)
}

impl Engine for Lsmx {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keyspace.put(key, value).map_err(engine_error("put a value"))
    }

    fn put_sync(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let keyspace = self.keyspace.with_write_options(Durability::Sync);
        keyspace.put(key, value).map_err(engine_error("put a value"))
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.keyspace.delete(key).map_err(engine_error("delete a key"))
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.keyspace.get(key).map_err(engine_error("look a key up"))?;
        if let Some(value) = &value {
            see(value);
        }
        Ok(value.is_some())
    }

    fn seek(&self, from: &[u8], entries: u64, visit: &mut EntryVisitor<'_>) -> Result<u64> {
        visit_entries(self.keyspace.range(from..).limit(entries), visit)
    }

    fn scan(&self, backward: bool, entries: u64, visit: &mut EntryVisitor<'_>) -> Result<u64> {
        let range = self.keyspace.iter().limit(entries);
        if backward { visit_entries(range.rev(), visit) } else { visit_entries(range, visit) }
    }

    fn flush_and_wait_idle(&self) -> Result<u64> {
        self.db.flush().map_err(engine_error("flush"))?;
        self.wait_until_idle()?;
        Ok(0)
    }

    fn wait_until_idle(&self) -> Result<()> {
        self.db.wait_idle().map_err(engine_error("wait for compactions"))
    }

    fn written_bytes(&self) -> Option<WrittenBytes> {
        let metrics = self.db.metrics();
        let tree = metrics.keyspaces.get(&self.keyspace.name())?;
        Some(WrittenBytes {
            wal_bytes: metrics.wal.written_bytes,
            flushed_bytes: tree.flushed_bytes,
            compaction_bytes: tree.compaction.written_bytes,
        })
    }

    fn write_stall_us(&self) -> Option<u64> {
        let metrics = self.db.metrics();
        let stalls = &metrics.keyspaces.get(&self.keyspace.name())?.stalls;
        Some(stalls.us_total + stalls.throttle_us_total)
    }

    fn table_bytes(&self) -> Result<u64> {
        let metrics = self.db.metrics();
        let tree = metrics.keyspaces.get(&self.keyspace.name());
        Ok(tree.map_or(0, |tree| tree.levels.iter().map(|level| level.bytes).sum()))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.close(None).map_err(engine_error("close the database"))
    }

    fn read_and_put_field(&self, key: &[u8], offset: u32, bytes: &[u8]) -> Result<()> {
        let changed = |old: Option<&[u8]>| {
            let mut value = old.unwrap_or_default().to_vec();
            write_field(&mut value, offset, bytes);
            value
        };
        self.keyspace.fetch_update(key, changed).map(drop).map_err(engine_error("update a value"))
    }

    fn merge(&self, key: &[u8], offset: u32, bytes: &[u8]) -> Result<()> {
        let operand = FieldUpdate::operand(offset, bytes);
        self.keyspace.merge(key, operand).map_err(engine_error("merge into a value"))
    }

    fn thread_block_reads(&self) -> u64 {
        CountingVfs::reads_of_this_thread()
    }

    fn io_bytes(&self) -> IoBytes {
        let Some(vfs) = &self.vfs else { return IoBytes::default() };
        let bytes = vfs.counts().bytes;
        IoBytes { read: bytes.count_of(VfsCall::Read), written: bytes.count_of(VfsCall::Append) }
    }

    fn explain(&self, key: &[u8]) -> Result<Option<(Explanation, u64)>> {
        let bucket_reads = || {
            self.db.read_metrics().cache.get(&BlockKind::Bucket).map_or(0, |bucket| bucket.misses)
        };
        let before = bucket_reads();
        let steps = self.keyspace.explain(key).map_err(engine_error("explain a lookup"))?;
        Ok(Some((steps, bucket_reads() - before)))
    }

    fn operand_store_metrics(&self) -> Option<OperandMetrics> {
        let metrics = self.db.metrics();
        metrics.keyspaces.values().find_map(|keyspace| keyspace.operand_store)
    }

    fn blob_bytes(&self) -> Option<u64> {
        let metrics = self.db.metrics();
        Some(metrics.keyspaces.values().map(|keyspace| keyspace.value_log.blob_bytes).sum())
    }
}
