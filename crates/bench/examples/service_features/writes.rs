//! Rows about writes and compactions. Each measurement fills a new database.

use std::fs;
use std::path::Path;
use std::time::Duration;

use lsmx::compaction_filter::{FilterContext, FilterDecision, FilterError, FilterValue};
use lsmx::ingest::{BulkLoadOptions, IngestOptions};
use lsmx::{CompactionFilter, Db, Keyspace, KeyspaceOptions, Options};
use lsmx_bench::clock::{Stopwatch, sleep_ns};
use lsmx_bench::numbers;
use lsmx_compaction::PolicySpec;

use crate::records::{key, scattered, value};
use crate::{Outcome, Row};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Delete persistence bound, shorter than a measurement, so that its jobs run during the measurement.
const BOUND: Duration = Duration::from_secs(1);
const BOUND_NS: u64 = 1_000_000_000;
/// In the rows with deletes, each key with such a number is deleted.
const DELETED_ONE_IN: u64 = 10;
/// Minimum number of overlapping runs that a measured compaction merges.
const RUNS: u64 = 4;

const COST: &[&str] = &["ns per record", "bytes per byte"];

const PUTS: &str = "puts, scattered keys";
const SEQUENTIAL_PUTS: &str = "puts, ascending keys";
const PUTS_AND_DELETES: &str = "puts, ascending keys, one of ten deleted";
const COMPACTION: &str = "compaction of overlapping runs";
const INGEST: &str = "ingest of an external table, by link";

/// Writes this number of records.
type Write = fn(&Keyspace, u64) -> Outcome<()>;

/// Filter that keeps all values.
#[derive(Debug)]
struct KeepAll;

impl CompactionFilter for KeepAll {
    fn name(&self) -> &'static str {
        "bench.keep-all"
    }

    fn filter(
        &self,
        _: &[u8],
        _: &FilterValue<'_>,
        _: &FilterContext,
    ) -> Result<FilterDecision, FilterError> {
        Ok(FilterDecision::Keep)
    }
}

pub(crate) fn rows<'a>(directory: &Path, count: u64) -> Vec<Row<'a>> {
    let path = directory.join("writes");
    let load = |name, base, options: KeyspaceOptions, write: Write| {
        let path = path.clone();
        Row::new(name, base, COST, move |_| measure_load(&path, &options, 0, count, write))
    };
    let deletes = |name, options: KeyspaceOptions| {
        let path = path.clone();
        Row::new(name, PUTS_AND_DELETES, COST, move |_| {
            measure_load(&path, &options, BOUND_NS, count, put_and_delete)
        })
    };
    let compaction = |name, options: KeyspaceOptions| {
        let path = path.clone();
        Row::new(name, COMPACTION, &["MB/s"], move |_| measure_compaction(&path, &options, count))
    };
    let ingest = |name, copy_files| {
        let path = path.clone();
        let measure = move |_| measure_ingest(&path, count, copy_files);
        Row::new(name, INGEST, &["ms", "MB written"], measure)
    };
    let plain = KeyspaceOptions::default;
    vec![
        load(PUTS, PUTS, plain(), |keyspace, count| put_all(keyspace, scattered(count))),
        load("  with a TTL", PUTS, plain(), |keyspace, count| {
            put_all_with_ttl(keyspace, scattered(count))
        }),
        load(SEQUENTIAL_PUTS, SEQUENTIAL_PUTS, plain(), |keyspace, count| {
            put_all(keyspace, 0..count)
        }),
        load("  with a TTL", SEQUENTIAL_PUTS, plain(), |keyspace, count| {
            put_all_with_ttl(keyspace, 0..count)
        }),
        load(
            "  with delete_persistence of 1 s",
            SEQUENTIAL_PUTS,
            plain().delete_persistence(BOUND),
            |keyspace, count| put_all(keyspace, 0..count),
        ),
        load("  as a bulk load", SEQUENTIAL_PUTS, plain(), |keyspace, count| {
            let entries = (0..count).map(|number| (key(number), value(number)));
            keyspace.bulk_load(entries, BulkLoadOptions::default())?;
            Ok(())
        }),
        deletes(PUTS_AND_DELETES, plain()),
        deletes("  with delete_persistence of 1 s", plain().delete_persistence(BOUND)),
        compaction(COMPACTION, plain()),
        compaction("  with a filter that keeps all", plain().compaction_filter(KeepAll)),
        ingest(INGEST, false),
        ingest("  by copy", true),
    ]
}

fn put_all(keyspace: &Keyspace, numbers: impl Iterator<Item = u64>) -> Outcome<()> {
    for number in numbers {
        keyspace.put(key(number), value(number))?;
    }
    Ok(())
}

fn put_all_with_ttl(keyspace: &Keyspace, numbers: impl Iterator<Item = u64>) -> Outcome<()> {
    for number in numbers {
        keyspace.put_with_ttl(key(number), value(number), DAY)?;
    }
    Ok(())
}

/// Deletes some keys a thousand puts after their put.
fn put_and_delete(keyspace: &Keyspace, count: u64) -> Outcome<()> {
    for number in 0..count {
        keyspace.put(key(number), value(number))?;
        if let Some(old) = number.checked_sub(1_000).filter(|old| old % DELETED_ONE_IN == 0) {
            keyspace.delete(key(old))?;
        }
    }
    Ok(())
}

/// Fills a new database, and waits until all entries are on stable storage and no job is due.
///
/// Returns the time in nanoseconds per record, and the bytes written per byte of keys and values. The bytes include those of the
/// jobs that are due within `later_ns` after this time.
fn measure_load(
    path: &Path,
    options: &KeyspaceOptions,
    later_ns: u64,
    count: u64,
    write: Write,
) -> Outcome<Vec<f64>> {
    let db = Db::open(path, Options::default().keyspace_defaults(options.clone()))?;
    let keyspace = db.default_keyspace();
    let watch = Stopwatch::start();
    write(&keyspace, count)?;
    db.flush()?;
    db.wait_idle()?;
    let elapsed_ns = watch.elapsed_ns();
    sleep_ns(later_ns);
    db.wait_idle()?;
    let metrics = db.metrics();
    let keyspace_metrics = &metrics.keyspaces["default"];
    // Table bytes. Puts also write the log.
    let written = keyspace_metrics.total().flow.written_bytes + metrics.wal.written_bytes;
    let amplification = numbers::ratio(written, keyspace_metrics.ingested_bytes);
    drop(keyspace);
    db.close(None)?;
    fs::remove_dir_all(path)?;
    Ok(vec![numbers::ratio(elapsed_ns, count), amplification])
}

/// Merges overlapping runs into one. Returns megabytes of inputs per second.
fn measure_compaction(path: &Path, options: &KeyspaceOptions, count: u64) -> Outcome<Vec<f64>> {
    // The policy does not merge so few runs itself.
    let policy: PolicySpec = "tiering(T=64)".parse()?;
    let options = options.clone().policy(policy);
    let db = Db::open(path, Options::default().keyspace_defaults(options))?;
    let keyspace = db.default_keyspace();
    for run in 0..RUNS {
        put_all(&keyspace, scattered(count).filter(|number| number % RUNS == run))?;
        db.flush()?;
    }
    db.wait_idle()?;
    let bytes = db.metrics().keyspaces["default"].total().bytes;
    let watch = Stopwatch::start();
    keyspace.compact_range::<&[u8]>(..)?;
    let seconds = watch.elapsed_s();
    drop(keyspace);
    db.close(None)?;
    fs::remove_dir_all(path)?;
    Ok(vec![numbers::to_f64(bytes) / 1e6 / seconds])
}

/// Ingests one external table with all records. The time to write this table is not measured. Returns the milliseconds
/// of the ingest, and the megabytes of tables that it wrote.
#[expect(clippy::disallowed_methods, reason = "the table is outside of the database")]
fn measure_ingest(path: &Path, count: u64, copy_files: bool) -> Outcome<Vec<f64>> {
    let db = Db::open(path, Options::default())?;
    let keyspace = db.default_keyspace();
    let file = path.with_extension("sst");
    let mut table = keyspace.external_table_writer(&file)?;
    for number in 0..count {
        table.put(key(number), value(number))?;
    }
    table.finish()?;
    let options = IngestOptions::default().copy_files(copy_files);
    let watch = Stopwatch::start();
    db.ingest(&[(keyspace.clone(), vec![&file])], options)?;
    let seconds = watch.elapsed_s();
    let written = db.metrics().keyspaces["default"].ingest.written_bytes;
    drop(keyspace);
    db.close(None)?;
    fs::remove_dir_all(path)?;
    fs::remove_file(file)?;
    Ok(vec![seconds * 1e3, numbers::to_f64(written) / 1e6])
}
