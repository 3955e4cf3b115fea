//! RocksDB, through the `rocksdb` crate.
//!
//! Leveled compaction with the defaults of its version, but for what `docs/results/peers.md` lists.

use std::error::Error as StdError;
use std::path::Path;

use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, DBRawIterator, Options, ReadOptions,
    WaitForCompactOptions, WriteOptions,
};

use crate::error::{Error, Result};
use crate::numbers;

use super::{BLOCK_BYTES, Engine, FILTER_BITS_PER_KEY, Kind, Settings, Visit, Written};

/// Memtables that may be there at once, so that it has as many as the others.
const MEMTABLES_MAX: i32 = 4;

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
