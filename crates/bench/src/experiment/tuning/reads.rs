//! Lookups on a database that is opened for reading with one cache.

use std::path::Path;
use std::sync::Arc;

use lsmx::internals::vfs::{CountingVfs, VfsCall};
use lsmx::metrics::FilterCounts;
use lsmx::vfs::OsVfs;
use lsmx::{Db, FilterLastRun, Keyspace, MetadataSizes};

use crate::clock::Stopwatch;
use crate::error::{Error, Result};
use crate::experiment::throughput::records::wrong;
use crate::latency::Latencies;
use crate::numbers::{self, ratio};
use crate::workload::random::{Random, mix};

use super::Bench;
use super::result::{Cell, Reads};

const PURPOSE_WARM_UP: u64 = 0x7761_726d;
const PURPOSE_READS: u64 = 0x7265_6164;

/// An open database whose calls on files are counted.
pub(super) struct Opened {
    db: Db,
    keyspace: Keyspace,
    vfs: CountingVfs,
}

/// Opens a database for reading, with a cache of so many bytes and the last run's filter or without.
pub(super) fn open(
    bench: &Bench<'_>,
    path: &Path,
    cache_bytes: u64,
    filter: FilterLastRun,
) -> Result<Opened> {
    let failed = |source| Error::Engine { action: "open the database", source };
    let vfs = CountingVfs::new(Arc::new(OsVfs));
    let (options, keyspace) = bench.config.settings.lsmx.parts();
    let options = options
        .create_if_missing(false)
        .block_cache_bytes(cache_bytes)
        .keyspace_defaults(keyspace.filter_last_run(filter));
    let db = Db::open(path, options.read_only(true).vfs(Arc::new(vfs.clone()))).map_err(failed)?;
    Ok(Opened { keyspace: db.default_keyspace(), db, vfs })
}

impl Opened {
    /// What its metadata takes in memory.
    pub(super) fn sizes(&self) -> Result<MetadataSizes> {
        let failed = |source| Error::Engine { action: "read the metadata", source };
        self.keyspace.metadata().map_err(failed)
    }
}

/// What all lookups of a cell count.
struct Counts {
    misses: u64,
    filters: FilterCounts,
    reads: u64,
}

impl Counts {
    fn now(opened: &Opened) -> Counts {
        let metrics = opened.db.read_metrics();
        Counts {
            misses: metrics.cache.values().map(|cache| cache.misses).sum(),
            filters: metrics.filter,
            reads: opened.vfs.counts().calls.count_of(VfsCall::Read),
        }
    }
}

/// Looks up present keys, or absent ones, after as many that are not counted. `reads` has what is known
/// beforehand.
pub(super) fn cell(
    bench: &Bench<'_>,
    opened: &Opened,
    absent: bool,
    setting: &str,
    reads: Reads,
) -> Result<Cell> {
    look_up(bench, opened, absent, PURPOSE_WARM_UP)?;
    let before = Counts::now(opened);
    let watch = Stopwatch::start();
    let latencies = look_up(bench, opened, absent, PURPOSE_READS)?;
    let elapsed_s = watch.elapsed_s();
    let after = Counts::now(opened);
    let ops = latencies.count();
    let filters = after.filters - before.filters;
    Ok(Cell {
        workload: if absent { "readmissing" } else { "readrandom" },
        engine: "lsmx".to_owned(),
        setting: setting.to_owned(),
        threads: numbers::count(bench.threads()),
        ops,
        ops_per_s: if elapsed_s > 0.0 { numbers::float(ops) / elapsed_s } else { 0.0 },
        latency_us: latencies.summary(),
        reads: Some(Reads {
            ios_per_get: ratio(after.misses - before.misses, ops),
            physical_reads_per_get: ratio(after.reads - before.reads, ops),
            filter_false_positive_rate: filters.false_positive_rate(),
            filter_answers: filters.negatives + filters.false_positives,
            ..reads
        }),
        slices: Vec::new(),
    })
}

/// All lookups, shared among threads; each answer is checked.
fn look_up(bench: &Bench<'_>, opened: &Opened, absent: bool, purpose: u64) -> Result<Latencies> {
    let threads = bench.threads();
    std::thread::scope(|scope| {
        let spawn = |thread: u64| {
            scope.spawn(move || {
                let purpose = mix(purpose).wrapping_add(thread);
                let mut random = Random::new(bench.config.seed, purpose);
                let (mut latencies, mut key) = (Latencies::new(), Vec::new());
                for _ in (thread..bench.ops()).step_by(threads) {
                    let record = random.below(bench.config.entries);
                    if absent {
                        bench.records.absent_key(record, random.next_u64(), &mut key);
                    } else {
                        bench.records.key(record, &mut key);
                    }
                    let watch = Stopwatch::start();
                    let found = opened.keyspace.get(&key);
                    latencies.record_ns(watch.elapsed_ns());
                    let found = found
                        .map_err(|source| Error::Engine { action: "look a key up", source })?;
                    match found {
                        Some(_) if absent => return Err(wrong(&key, "present", "absent")),
                        Some(value) if !bench.records.is_value(record, &value) => {
                            return Err(wrong(&key, "another record's value", "its own"));
                        }
                        None if !absent => return Err(wrong(&key, "absent", "present")),
                        _ => {}
                    }
                }
                Ok(latencies)
            })
        };
        let workers: Vec<_> = (0..numbers::count(threads)).map(spawn).collect();
        let mut all = Latencies::new();
        for worker in workers {
            let result = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            all.merge(&result?);
        }
        Ok(all)
    })
}
