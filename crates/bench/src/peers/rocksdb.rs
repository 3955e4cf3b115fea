//! RocksDB, through the `rocksdb` crate.
//!
//! Leveled compaction with the defaults of its version, but for what `docs/results/peers.md` lists.

use std::error::Error as StdError;
use std::path::Path;

use lsmx::merge_operator::{FieldUpdate, MergeOperator};
use rocksdb::perf::{PerfContext, PerfMetric, PerfStatsLevel, set_perf_stats};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, DBRawIterator, MergeOperands, Options,
    ReadOptions, WaitForCompactOptions, WriteOptions,
};

use crate::error::{Error, Result};
use crate::numbers;
use crate::process;

use super::{
    BLOCK_BYTES, Engine, FILTER_BITS_PER_KEY, FieldSettings, Fields, IoBytes, Kind, Settings,
    Visit, Written, write_field,
};

/// Memtables that may be there at once, so that it has as many as the others.
const MEMTABLES_MAX: i32 = 4;

/// Memtables of a database under a memory budget: one that is flushed and one that takes writes.
const MEMTABLES_OF_BUDGET: u64 = 2;
/// Memtables that the first level holds, as by default.
const MEMTABLES_PER_LEVEL: u64 = 4;

/// An open RocksDB.
pub(super) struct Rocksdb {
    db: DB,
    synced: WriteOptions,
}

impl Rocksdb {
    pub(super) fn open(path: &Path, settings: &Settings) -> Result<Rocksdb> {
        let mut tables = BlockBasedOptions::default();
        tables.set_block_size(numbers::length(u64::from(BLOCK_BYTES)));
        // A full filter over whole keys.
        tables.set_bloom_filter(FILTER_BITS_PER_KEY, false);
        let cache = Cache::new_hyper_clock_cache(numbers::length(settings.block_cache_bytes), 0);
        tables.set_block_cache(&cache);

        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&tables);
        options.set_write_buffer_size(numbers::length(settings.memtable_bytes));
        options.set_max_write_buffer_number(MEMTABLES_MAX);
        options.set_compression_type(DBCompressionType::None);
        // A quarter of the jobs, at least one, is for flushes; the others are for compaction.
        let jobs = settings.lsmx.workers().saturating_add(1);
        options.set_max_background_jobs(i32::try_from(jobs).unwrap_or(i32::MAX));

        let db = DB::open(&options, path).map_err(failed("open a database"))?;
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        Ok(Rocksdb { db, synced })
    }

    fn visit(
        mut iterator: DBRawIterator<'_>,
        backward: bool,
        entries: u64,
        visit: &mut Visit<'_>,
    ) -> Result<u64> {
        let mut found = 0;
        while found < entries {
            let Some((key, value)) = iterator.item() else { break };
            visit(key, value);
            found += 1;
            if backward { iterator.prev() } else { iterator.next() }
        }
        iterator.status().map_err(failed("read a range"))?;
        Ok(found)
    }

    fn iterator(&self) -> DBRawIterator<'_> {
        self.db.raw_iterator_opt(ReadOptions::default())
    }
}

/// One whose values have fields.
pub(super) struct RocksdbFields(Rocksdb);

thread_local! {
    /// What this thread has read; counting begins with the first look.
    static PERF: PerfContext = {
        set_perf_stats(PerfStatsLevel::EnableCount);
        PerfContext::default()
    };
}

impl RocksdbFields {
    /// Memory is divided as ours is: three eighths for memtables, the rest for cached blocks, index and filters
    /// among them. Levels are as large as usual in memtables.
    pub(super) fn open(path: &Path, settings: &FieldSettings) -> Result<RocksdbFields> {
        let memtables = settings.memory_budget / 8 * 3;
        let memtable = memtables / MEMTABLES_OF_BUDGET;
        let mut tables = BlockBasedOptions::default();
        tables.set_block_size(numbers::length(u64::from(BLOCK_BYTES)));
        tables.set_bloom_filter(FILTER_BITS_PER_KEY, false);
        tables.set_cache_index_and_filter_blocks(true);
        let cache = numbers::length(settings.memory_budget - memtables);
        tables.set_block_cache(&Cache::new_hyper_clock_cache(cache, 0));

        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&tables);
        options.set_write_buffer_size(numbers::length(memtable));
        options.set_max_write_buffer_number(i32::try_from(MEMTABLES_OF_BUDGET).unwrap_or(2));
        options.set_target_file_size_base(memtable);
        options.set_max_bytes_for_level_base(memtable * MEMTABLES_PER_LEVEL);
        options.set_compression_type(DBCompressionType::None);
        let jobs = lsmx::env::WORKERS_DEFAULT.saturating_add(1);
        options.set_max_background_jobs(i32::try_from(jobs).unwrap_or(i32::MAX));
        options.set_use_direct_reads(settings.direct_io);
        options.set_use_direct_io_for_flush_and_compaction(settings.direct_io);
        if settings.merges {
            let operator = FieldUpdate { value_bytes_max: settings.value_bytes_max };
            let full = move |key: &[u8], base: Option<&[u8]>, operands: &MergeOperands| {
                let operands: Vec<&[u8]> = operands.iter().collect();
                operator.full_merge(key, base, &operands).ok().flatten()
            };
            let partial = move |key: &[u8], _: Option<&[u8]>, operands: &MergeOperands| {
                let mut operands = operands.iter();
                let first = operands.next()?.to_vec();
                operands.try_fold(first, |older, newer| operator.partial_merge(key, &older, newer))
            };
            options.set_merge_operator(operator.name(), full, partial);
        }
        if settings.value_log {
            options.set_enable_blob_files(true);
            options.set_enable_blob_gc(true);
        }
        let db = DB::open(&options, path).map_err(failed("open a database"))?;
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        Ok(RocksdbFields(Rocksdb { db, synced }))
    }
}

impl Fields for RocksdbFields {
    fn rewrite(&self, key: &[u8], offset: u32, bytes: &[u8]) -> Result<()> {
        let old = self.0.db.get_pinned(key).map_err(failed("look a key up"))?;
        let mut value = old.map(|old| old.to_vec()).unwrap_or_default();
        write_field(&mut value, offset, bytes);
        self.0.put(key, &value)
    }

    fn merge(&self, key: &[u8], offset: u32, bytes: &[u8]) -> Result<()> {
        let operand = FieldUpdate::operand(offset, bytes);
        self.0.db.merge(key, operand).map_err(failed("merge into a value"))
    }

    fn rest(&self) -> Result<()> {
        let options = WaitForCompactOptions::default();
        self.0.db.wait_for_compact(&options).map_err(failed("wait for background work"))
    }

    fn reads_of_this_thread(&self) -> u64 {
        PERF.with(|perf| perf.metric(PerfMetric::BlockReadCount))
    }

    fn io_bytes(&self) -> IoBytes {
        // It has no count of its own that costs nothing; this is the whole process's.
        IoBytes {
            read: process::read_bytes().unwrap_or(0),
            written: process::written_bytes().unwrap_or(0),
        }
    }
}

impl Engine for RocksdbFields {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.put(key, value)
    }

    fn put_sync(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.put_sync(key, value)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.0.delete(key)
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.0.get(key, see)
    }

    fn seek(&self, from: &[u8], entries: u64, visit: &mut Visit<'_>) -> Result<u64> {
        self.0.seek(from, entries, visit)
    }

    fn scan(&self, backward: bool, entries: u64, visit: &mut Visit<'_>) -> Result<u64> {
        self.0.scan(backward, entries, visit)
    }

    fn settle(&self) -> Result<u64> {
        self.0.settle()
    }

    fn written(&self) -> Option<Written> {
        self.0.written()
    }

    fn table_bytes(&self) -> Result<u64> {
        self.0.table_bytes()
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

fn failed<E: StdError + Send + Sync + 'static>(action: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::Peer { engine: Kind::Rocksdb.name(), action, source: Box::new(source) }
}

impl Engine for Rocksdb {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.db.put(key, value).map_err(failed("put a value"))
    }

    fn put_sync(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.db.put_opt(key, value, &self.synced).map_err(failed("put a value"))
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.db.delete(key).map_err(failed("delete a key"))
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.db.get_pinned(key).map_err(failed("look a key up"))?;
        if let Some(value) = &value {
            see(value);
        }
        Ok(value.is_some())
    }

    fn seek(&self, from: &[u8], entries: u64, visit: &mut Visit<'_>) -> Result<u64> {
        let mut iterator = self.iterator();
        iterator.seek(from);
        Rocksdb::visit(iterator, false, entries, visit)
    }

    fn scan(&self, backward: bool, entries: u64, visit: &mut Visit<'_>) -> Result<u64> {
        let mut iterator = self.iterator();
        if backward {
            iterator.seek_to_last();
        } else {
            iterator.seek_to_first();
        }
        Rocksdb::visit(iterator, backward, entries, visit)
    }

    fn settle(&self) -> Result<u64> {
        let mut options = WaitForCompactOptions::default();
        options.set_flush(true);
        self.db.wait_for_compact(&options).map_err(failed("wait for compactions"))?;
        Ok(0)
    }

    fn written(&self) -> Option<Written> {
        // Its tickers would count, but statistics slow every operation down a little.
        None
    }

    fn table_bytes(&self) -> Result<u64> {
        let bytes = self.db.property_int_value("rocksdb.live-sst-files-size");
        Ok(bytes.map_err(failed("ask for the size"))?.unwrap_or(0))
    }

    fn close(self: Box<Self>) -> Result<()> {
        // Dropping the handle closes it; there is no call that could say what went wrong.
        Ok(())
    }
}
