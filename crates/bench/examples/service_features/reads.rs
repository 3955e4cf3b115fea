//! Rows about reads and clones. All measurements use one database, whose blocks are in the cache.

use std::path::Path;
use std::time::Duration;

use lsmx::ingest::BulkLoadOptions;
use lsmx::metrics::{BlockKind, LatencySampling};
use lsmx::{Db, FilterLastRun, Keyspace, KeyspaceOptions, Options, PrefixExtractor, ReadOptions};
use lsmx_bench::clock::Stopwatch;
use lsmx_bench::numbers;
use lsmx_bench::workload::random::hash_u64;

use crate::records::{PREFIX_BYTES, absent_prefix, key, scattered, value};
use crate::{Outcome, Row};

const DAY: Duration = Duration::from_secs(24 * 3600);
const CACHE_BYTES: u64 = 1 << 30;
/// Maximum number of reads of one measurement.
const READS_MAX: u64 = 200_000;

const PLAIN: &str = "plain";
const COPY: &str = "copy";
const NS: &[&str] = &["ns per read"];

const GET: &str = "get";
const PREFIX_SCAN: &str = "scan of an absent prefix";
const NEW_RANGE: &str = "first entry from a key, new iterator";
const COPY_BY_PUTS: &str = "copy of a keyspace by an iterator and puts";

/// A database of keyspaces with the same records.
pub(crate) struct ReadDatabase {
    db: Db,
    count: u64,
    plain: Keyspace,
    expiring: Keyspace,
    with_prefix_filter: Keyspace,
    without_prefix_filter: Keyspace,
}

impl ReadDatabase {
    pub(crate) fn open(path: &Path, count: u64) -> Outcome<ReadDatabase> {
        let db = Db::open(path, Options::default().block_cache_bytes(CACHE_BYTES))?;
        let fill = |name, options, ttl: Option<Duration>| -> lsmx::Result<Keyspace> {
            let keyspace = db.keyspace(name, options)?;
            for number in scattered(count) {
                match ttl {
                    None => keyspace.put(key(number), value(number))?,
                    Some(ttl) => keyspace.put_with_ttl(key(number), value(number), ttl)?,
                }
            }
            db.flush()?;
            db.wait_idle()?;
            // Loads all blocks into the cache.
            for number in 0..count {
                keyspace.get(key(number))?;
            }
            Ok(keyspace)
        };
        // The filter of the last run is always used, so that only the prefixes differ.
        let filtered = || KeyspaceOptions::default().filter_last_run(FilterLastRun::On);
        let prefixes = PrefixExtractor::Length(u32::try_from(PREFIX_BYTES)?);
        Ok(ReadDatabase {
            plain: fill(PLAIN, KeyspaceOptions::default(), None)?,
            expiring: fill("expiring", KeyspaceOptions::default(), Some(DAY))?,
            with_prefix_filter: fill("filtered", filtered().prefix_filter(prefixes), None)?,
            without_prefix_filter: fill("unfiltered", filtered(), None)?,
            db,
            count,
        })
    }

    pub(crate) fn rows(&self) -> Vec<Row<'_>> {
        let mut rows = self.get_rows();
        rows.extend(self.scan_rows());
        rows.extend(self.copy_rows());
        rows
    }

    fn get_rows(&self) -> Vec<Row<'_>> {
        let get = |name, keyspace, sampling| {
            Row::new(name, GET, NS, move |round| {
                self.db.set_latency_sampling(sampling);
                let ns = self.measure_gets(keyspace, round);
                self.db.set_latency_sampling(LatencySampling::Off);
                ns
            })
        };
        vec![
            get(GET, &self.plain, LatencySampling::Off),
            get("  of entries with an expiry time", &self.expiring, LatencySampling::Off),
            get("  one of 100 sampled", &self.plain, LatencySampling::OneIn(100)),
            get("  all sampled", &self.plain, LatencySampling::OneIn(1)),
        ]
    }

    fn scan_rows(&self) -> Vec<Row<'_>> {
        let prefix_scan = |name, keyspace| {
            Row::new(name, PREFIX_SCAN, &["ns per scan", "data blocks"], move |round| {
                self.measure_prefix_scans(keyspace, round)
            })
        };
        vec![
            prefix_scan(PREFIX_SCAN, &self.without_prefix_filter),
            prefix_scan("  with a prefix filter", &self.with_prefix_filter),
            Row::new(NEW_RANGE, NEW_RANGE, NS, |round| {
                self.measure_reads(round, |key| {
                    let entry = self.plain.range(key..).next();
                    entry.ok_or("no entry")??;
                    Ok(())
                })
            }),
            Row::new("  new cursor", NEW_RANGE, NS, |round| {
                self.measure_reads(round, |key| {
                    let mut cursor = self.plain.cursor(&ReadOptions::default())?;
                    cursor.seek(key)?;
                    cursor.value()?.ok_or("no entry")?;
                    Ok(())
                })
            }),
            Row::new("  seek of one cursor", NEW_RANGE, NS, |round| {
                let mut cursor = self.plain.cursor(&ReadOptions::default())?;
                self.measure_reads(round, |key| {
                    cursor.seek(key)?;
                    cursor.value()?.ok_or("no entry")?;
                    Ok(())
                })
            }),
        ]
    }

    fn copy_rows(&self) -> Vec<Row<'_>> {
        let copy = |name, copy: fn(&ReadDatabase) -> Outcome<()>| {
            Row::new(name, COPY_BY_PUTS, &["ms", "MB written"], move |_| self.measure_copy(copy))
        };
        vec![
            copy(COPY_BY_PUTS, |reads| {
                let target = reads.db.keyspace(COPY, KeyspaceOptions::default())?;
                for entry in reads.plain.iter() {
                    let (key, value) = entry?;
                    target.put(key, value)?;
                }
                reads.db.flush()?;
                Ok(reads.db.wait_idle()?)
            }),
            copy("  by an iterator and a bulk load", |reads| {
                let target = reads.db.keyspace(COPY, KeyspaceOptions::default())?;
                let mut loader = target.bulk_loader(BulkLoadOptions::default())?;
                for entry in reads.plain.iter() {
                    let (key, value) = entry?;
                    loader.put(key, value)?;
                }
                loader.finish()?;
                Ok(())
            }),
            copy("  by clone_keyspace", |reads| {
                reads.db.clone_keyspace(PLAIN, COPY, KeyspaceOptions::default())?;
                Ok(())
            }),
        ]
    }

    /// Returns the time of a read in nanoseconds. The reads of equal rounds have equal keys, all of which exist.
    fn measure_reads(
        &self,
        round: u64,
        mut read: impl FnMut([u8; 16]) -> Outcome<()>,
    ) -> Outcome<Vec<f64>> {
        let reads = self.count.min(READS_MAX);
        let watch = Stopwatch::start();
        for number in 0..reads {
            read(key(hash_u64(round * READS_MAX + number) % self.count))?;
        }
        Ok(vec![numbers::ratio(watch.elapsed_ns(), reads)])
    }

    fn measure_gets(&self, keyspace: &Keyspace, round: u64) -> Outcome<Vec<f64>> {
        self.measure_reads(round, |key| {
            keyspace.get(key)?.ok_or("no value")?;
            Ok(())
        })
    }

    /// Returns the time of a scan of an absent prefix in nanoseconds, and the number of its data blocks.
    fn measure_prefix_scans(&self, keyspace: &Keyspace, round: u64) -> Outcome<Vec<f64>> {
        let data_blocks = || {
            let metrics = self.db.read_metrics();
            metrics.cache.get(&BlockKind::Data).map_or(0, |cache| cache.hits + cache.misses)
        };
        let scans = self.count.min(READS_MAX);
        let blocks = data_blocks();
        let watch = Stopwatch::start();
        for number in 0..scans {
            let prefix = absent_prefix(hash_u64(round * READS_MAX + number) % self.count);
            if keyspace.prefix(prefix).next().is_some() {
                return Err("the prefix is not absent".into());
            }
        }
        let elapsed_ns = watch.elapsed_ns();
        Ok(vec![numbers::ratio(elapsed_ns, scans), numbers::ratio(data_blocks() - blocks, scans)])
    }

    /// Copies a keyspace and drops the copy. Returns the time of the copy in milliseconds, and the megabytes written to
    /// tables and the log.
    fn measure_copy(&self, copy: fn(&ReadDatabase) -> Outcome<()>) -> Outcome<Vec<f64>> {
        let log_bytes = self.db.metrics().wal.written_bytes;
        let watch = Stopwatch::start();
        copy(self)?;
        let elapsed_ms = watch.elapsed_s() * 1e3;
        let metrics = self.db.metrics();
        let copied = metrics.keyspaces[COPY].total();
        if copied.entries != self.count {
            return Err(format!("the copy has {} entries", copied.entries).into());
        }
        let written = copied.flow.written_bytes + (metrics.wal.written_bytes - log_bytes);
        self.db.drop_keyspace(COPY)?;
        self.db.wait_idle()?;
        Ok(vec![elapsed_ms, numbers::to_f64(written) / 1e6])
    }
}
