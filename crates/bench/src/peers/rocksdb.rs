//! Runs experiments on RocksDB, through the `rocksdb` crate.
//!
//! RocksDB uses leveled compaction and default settings. `docs/results/peers.md` lists the exceptions.

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

use super::{
    BLOCK_BYTES, Engine, EngineKind, EngineSettings, EntryVisitor, FILTER_BITS_PER_KEY,
    MEMTABLES_MAX,
};

/// Number of memtables if a memory budget is set: one receives writes while the other is flushed.
const MEMTABLES_OF_BUDGET: u64 = 2;
/// Size of L1 divided by the size of a memtable, if a memory budget is set. The default sizes of RocksDB have the same
/// ratio.
const MEMTABLES_PER_LEVEL: u64 = 4;

pub(super) struct Rocksdb {
    db: DB,
    synced: WriteOptions,
}

thread_local! {
    /// RocksDB counters of the current thread. RocksDB starts to count at the first access to this variable.
    static PERF: PerfContext = {
        set_perf_stats(PerfStatsLevel::EnableCount);
        PerfContext::default()
    };
}

impl Rocksdb {
    /// Opens the database in a directory, or creates it. A memory budget is divided as in lsmx: three eighths for
    /// memtables, the rest for cached blocks, indexes and filters.
    pub(super) fn open(path: &Path, settings: &EngineSettings) -> Result<Rocksdb> {
        let budget = settings.memory_budget.map(|budget| (budget / 8 * 3, budget - budget / 8 * 3));
        let memtables = if budget.is_some() { MEMTABLES_OF_BUDGET } else { MEMTABLES_MAX };
        let memtable = budget.map(|(bytes, _)| bytes / memtables).or(settings.memtable_bytes);
        let cache = budget.map(|(_, bytes)| bytes).or(settings.block_cache_bytes);
        let mut tables = BlockBasedOptions::default();
        tables.set_block_size(numbers::to_usize(u64::from(BLOCK_BYTES)));
        // One filter per table, over whole keys.
        tables.set_bloom_filter(FILTER_BITS_PER_KEY, false);
        tables.set_cache_index_and_filter_blocks(budget.is_some());
        if let Some(bytes) = cache {
            tables.set_block_cache(&Cache::new_hyper_clock_cache(numbers::to_usize(bytes), 0));
        }

        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&tables);
        options.set_max_write_buffer_number(i32::try_from(memtables).unwrap_or(i32::MAX));
        if let Some(bytes) = memtable {
            options.set_write_buffer_size(numbers::to_usize(bytes));
            if budget.is_some() {
                options.set_target_file_size_base(bytes);
                options.set_max_bytes_for_level_base(bytes * MEMTABLES_PER_LEVEL);
            }
        }
        options.set_compression_type(DBCompressionType::None);
        // RocksDB reserves a quarter of the jobs, at least one, for flushes.
        let jobs = settings.workers.saturating_add(1);
        options.set_max_background_jobs(i32::try_from(jobs).unwrap_or(i32::MAX));
        options.set_use_direct_reads(settings.direct_io);
        options.set_use_direct_io_for_flush_and_compaction(settings.direct_io);
        if let Some(operator) = settings.merge_operator {
            let full = move |key: &[u8], base: Option<&[u8]>, operands: &MergeOperands| {
                let operands: Vec<&[u8]> = operands.iter().collect();
                operator.full_merge(key, base, &operands).ok().flatten()
            };
            let partial_merges = settings.partial_merges;
            let partial = move |key: &[u8], _: Option<&[u8]>, operands: &MergeOperands| {
                if !partial_merges {
                    return None;
                }
                let mut operands = operands.iter();
                let first = operands.next()?.to_vec();
                operands.try_fold(first, |older, newer| operator.partial_merge(key, &older, newer))
            };
            options.set_merge_operator(operator.name(), full, partial);
        }
        if settings.value_separation.is_some() {
            options.set_enable_blob_files(true);
            options.set_enable_blob_gc(true);
        }
        let db = DB::open(&options, path).map_err(peer_error("open a database"))?;
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        Ok(Rocksdb { db, synced })
    }

    fn visit(
        mut iterator: DBRawIterator<'_>,
        backward: bool,
        entries: u64,
        visit: &mut EntryVisitor<'_>,
    ) -> Result<u64> {
        let mut found = 0;
        while found < entries {
            let Some((key, value)) = iterator.item() else { break };
            visit(key, value);
            found += 1;
            if backward { iterator.prev() } else { iterator.next() }
        }
        iterator.status().map_err(peer_error("read a range"))?;
        Ok(found)
    }

    fn iterator(&self) -> DBRawIterator<'_> {
        self.db.raw_iterator_opt(ReadOptions::default())
    }
}

fn peer_error<E: StdError + Send + Sync + 'static>(
    action: &'static str,
) -> impl FnOnce(E) -> Error {
    move |source| Error::Peer {
        engine: EngineKind::Rocksdb.name(),
        action,
        source: Box::new(source),
    }
}

/// Parses the text of the property `rocksdb.dbstats`. Returns the cumulative time of write stalls in microseconds. An
/// example of the parsed line is `Cumulative stall: 00:01:02.500 H:M:S, 3.0 percent`.
fn parse_stall_us(statistics: &str) -> Option<u64> {
    let line = statistics.lines().find_map(|line| line.strip_prefix("Cumulative stall: "))?;
    let mut fields = line.split(" H:M:S").next()?.split(':');
    let (hours, minutes) =
        (fields.next()?.parse::<f64>().ok()?, fields.next()?.parse::<f64>().ok()?);
    let seconds = fields.next()?.parse::<f64>().ok()?;
    Some(numbers::round_to_u64((hours * 3600.0 + minutes * 60.0 + seconds) * 1e6))
}

impl Engine for Rocksdb {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.db.put(key, value).map_err(peer_error("put a value"))
    }

    fn put_sync(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.db.put_opt(key, value, &self.synced).map_err(peer_error("put a value"))
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.db.delete(key).map_err(peer_error("delete a key"))
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.db.get_pinned(key).map_err(peer_error("look a key up"))?;
        if let Some(value) = &value {
            see(value);
        }
        Ok(value.is_some())
    }

    fn seek(&self, from: &[u8], entries: u64, visit: &mut EntryVisitor<'_>) -> Result<u64> {
        let mut iterator = self.iterator();
        iterator.seek(from);
        Rocksdb::visit(iterator, false, entries, visit)
    }

    fn scan(&self, backward: bool, entries: u64, visit: &mut EntryVisitor<'_>) -> Result<u64> {
        let mut iterator = self.iterator();
        if backward {
            iterator.seek_to_last();
        } else {
            iterator.seek_to_first();
        }
        Rocksdb::visit(iterator, backward, entries, visit)
    }

    fn flush_and_wait_idle(&self) -> Result<u64> {
        let mut options = WaitForCompactOptions::default();
        options.set_flush(true);
        self.db.wait_for_compact(&options).map_err(peer_error("wait for compactions"))?;
        Ok(0)
    }

    fn wait_until_idle(&self) -> Result<()> {
        let options = WaitForCompactOptions::default();
        self.db.wait_for_compact(&options).map_err(peer_error("wait for background work"))
    }

    // `written_bytes` is not implemented, because the tickers of RocksDB slow down every operation.

    fn write_stall_us(&self) -> Option<u64> {
        parse_stall_us(&self.db.property_value("rocksdb.dbstats").ok()??)
    }

    fn pending_compaction_bytes(&self) -> Option<u64> {
        self.db.property_int_value("rocksdb.estimate-pending-compaction-bytes").ok()?
    }

    fn table_bytes(&self) -> Result<u64> {
        let bytes = self.db.property_int_value("rocksdb.live-sst-files-size");
        Ok(bytes.map_err(peer_error("read the length of the tables"))?.unwrap_or(0))
    }

    fn close(self: Box<Self>) -> Result<()> {
        // The destructor closes the database. RocksDB does not report errors of the close.
        Ok(())
    }

    fn merge(&self, key: &[u8], offset: u32, bytes: &[u8]) -> Result<()> {
        let operand = FieldUpdate::operand(offset, bytes);
        self.db.merge(key, operand).map_err(peer_error("merge into a value"))
    }

    fn thread_block_reads(&self) -> u64 {
        PERF.with(|perf| perf.metric(PerfMetric::BlockReadCount))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stall_of_the_statistics_is_parsed() {
        let text = "Uptime(secs): 70.0 total\nCumulative stall: 01:01:02.500 H:M:S, 3.0 percent\n";
        assert_eq!(parse_stall_us(text), Some(3_662_500_000));
        assert_eq!(parse_stall_us("Interval stall: 00:00:0.000 H:M:S, 0.0 percent"), None);
        let directory = tempfile::tempdir().unwrap();
        let engine = Rocksdb::open(directory.path(), &EngineSettings::default()).unwrap();
        assert_eq!(engine.write_stall_us(), Some(0));
        assert_eq!(engine.pending_compaction_bytes(), Some(0));
    }
}
