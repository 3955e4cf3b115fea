//! Implements the command `lsmx db PATH stats`. The command opens the database read-only and prints its metrics,
//! without the counters of writes and background jobs.
//!
//! If another process has the database open, the command prints the metrics file of the other process. With
//! `--follower`, the command prints the metrics of a follower instead. With `--watch`, it opens nothing: it prints the
//! metrics file, or the manifest and the file sizes.

use std::fmt::{Display, Write as _};
use std::time::Duration;

use lsmx::metrics::{KeyspaceMetrics, LevelMetrics, Metrics};
use lsmx_bench::report::text::format_bytes;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::args::{DbArgs, StatsArgs};
use crate::cmd::db::observed_state::{ObservedState, outdated_line};
use crate::failure::Failure;
use crate::output;

/// Prints the metrics of the whole database, or of the given keyspace.
pub(super) fn run(arguments: &DbArgs, stats: &StatsArgs) -> Result<(), Failure> {
    if let Some(seconds) = stats.watch {
        return watch(arguments, stats, seconds);
    }
    let mut metrics = match super::open_read_only(arguments) {
        Ok((db, _keyspace)) => db.metrics(),
        Err(locked @ Failure::DatabaseLocked(_)) => {
            return print_metrics_file(arguments, stats, locked);
        }
        Err(failure) => return Err(failure),
    };
    retain_keyspace(arguments, &mut metrics)?;
    if stats.json {
        let metrics =
            serde_json::to_value(&metrics).map_err(|error| Failure::stdout(error.into()))?;
        return super::print_json(&select_known(metrics));
    }
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_metrics(&mut text, &metrics);
    output::stdout(text.as_bytes())
}

/// Removes all keyspaces except the given one.
fn retain_keyspace(arguments: &DbArgs, metrics: &mut Metrics) -> Result<(), Failure> {
    let Some(name) = &arguments.keyspace else { return Ok(()) };
    metrics.keyspaces.retain(|known, _| known == name);
    match metrics.keyspaces.is_empty() {
        true => Err(lsmx::Error::UnknownKeyspace { name: name.to_owned() }.into()),
        false => Ok(()),
    }
}

/// Prints all metrics in the metrics file of the process that has the database open. Returns the error `locked` if
/// there is no metrics file.
fn print_metrics_file(
    arguments: &DbArgs,
    stats: &StatsArgs,
    locked: Failure,
) -> Result<(), Failure> {
    let reading = lsmx::read_metrics_file(&arguments.path, &lsmx::Options::default())?;
    let Some(mut reading) = reading else { return Err(locked) };
    retain_keyspace(arguments, &mut reading.metrics)?;
    if let Some(line) = outdated_line(&reading) {
        output::note(&line);
    }
    match stats.json {
        true => super::print_json(&reading.metrics),
        false => output::stdout(reading.metrics.to_string().as_bytes()),
    }
}

/// Removes the metrics of writes and background jobs, because a read-only database runs neither.
fn select_known(mut metrics: Value) -> Value {
    let keep = |value: &mut Value, names: &[&str]| {
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|name, _| names.contains(&name.as_str()));
        }
    };
    keep(&mut metrics, &["keyspaces", "wal", "disk", "memory", "published_seq"]);
    keep(
        &mut metrics["wal"],
        &["segments", "live_bytes", "reserved_bytes", "kept_segments", "kept_bytes"],
    );
    for keyspace in metrics["keyspaces"].as_object_mut().into_iter().flat_map(Map::values_mut) {
        keep(
            keyspace,
            &[
                "policy",
                "memtable_bytes",
                "memtables_sealed",
                "operand_store",
                "value_log",
                "oldest_tombstone_age_us",
                "levels",
            ],
        );
        keep(
            &mut keyspace["operand_store"],
            &["buckets", "bucket_bytes", "log_bytes", "buffered_bytes", "memory_bytes"],
        );
        keep(&mut keyspace["value_log"], &["blob_files", "blob_bytes", "blob_referenced_bytes"]);
        for level in keyspace["levels"].as_array_mut().into_iter().flatten() {
            if let Some(fields) = level.as_object_mut() {
                fields.remove("flow");
            }
        }
    }
    metrics
}

fn write_metrics(text: &mut String, metrics: &Metrics) -> std::fmt::Result {
    for (name, keyspace) in &metrics.keyspaces {
        write_keyspace(text, name, keyspace)?;
    }
    let (wal, disk, memory) = (&metrics.wal, &metrics.disk, &metrics.memory);
    writeln!(text, "log: {} segments, {}", wal.segments, format_bytes(wal.live_bytes))?;
    if wal.kept_segments > 0 {
        let kept = format_bytes(wal.kept_bytes);
        writeln!(
            text,
            "log: {} segments, {kept} kept for missing operand stores",
            wal.kept_segments
        )?;
    }
    let [tables, blobs, log, reserve] =
        [disk.table_bytes, disk.blob_bytes, disk.log_bytes, disk.reserve_bytes].map(format_bytes);
    writeln!(text, "disk: tables {tables}, blob files {blobs}, log {log}, reserve {reserve}")?;
    let memtables = memory.memtables_active + memory.memtables_sealed;
    let [memtables, metadata, tables] =
        [memtables, memory.metadata_blocks, memory.open_tables].map(format_bytes);
    writeln!(
        text,
        "memory: memtables {memtables}, filters and indexes {metadata}, open tables {tables}"
    )?;
    writeln!(text, "last sequence number: {}", metrics.published_seq)
}

fn write_keyspace(text: &mut String, name: &str, keyspace: &KeyspaceMetrics) -> std::fmt::Result {
    writeln!(text, "keyspace {name} ({})", keyspace.policy)?;
    writeln!(text, " level  runs  files       bytes    entries tombstones")?;
    let mut write_level = |name: String, level: &LevelMetrics| {
        let LevelMetrics { runs, files, entries, tombstones, .. } = level;
        let bytes = format_bytes(level.bytes);
        writeln!(text, "{name:>6} {runs:>5} {files:>6} {bytes:>11} {entries:>10} {tombstones:>10}")
    };
    for level in &keyspace.levels {
        write_level(format!("L{}", level.level), level)?;
    }
    let total = keyspace.total();
    write_level("total".to_owned(), &total)?;
    writeln!(text, "  memtables {}", format_bytes(keyspace.memtable_bytes))?;
    if total.range_tombstones > 0 {
        writeln!(text, "  range tombstones {}", total.range_tombstones)?;
    }
    let log = &keyspace.value_log;
    if log.blob_files > 0 {
        let [all, referenced] = [log.blob_bytes, log.blob_referenced_bytes].map(format_bytes);
        writeln!(
            text,
            "  value log: {} blob files, {all}, {referenced} referenced",
            log.blob_files
        )?;
    }
    if let Some(store) = &keyspace.operand_store {
        let [all, log, memory] =
            [store.bucket_bytes, store.log_bytes, store.memory_bytes].map(format_bytes);
        let buckets = store.buckets;
        writeln!(text, "  operand store: {buckets} buckets, {all}, log {log}, memory {memory}")?;
    }
    Ok(())
}

/// Prints the state of the database at intervals. The database may be open in another process.
fn watch(arguments: &DbArgs, stats: &StatsArgs, seconds: f64) -> Result<(), Failure> {
    let pause = Duration::try_from_secs_f64(seconds).map_err(|_| {
        Failure::Usage(format!(
            "invalid value '{seconds}' for '--watch': must be a number of seconds from 0"
        ))
    })?;
    let mut left = stats.count;
    while left != Some(0) {
        match read_current_state(arguments)? {
            ObservedState::Metrics(reading) => print_state(stats, &reading.metrics)?,
            ObservedState::Files(observation) => print_state(stats, &*observation)?,
        }
        left = left.map(|left| left - 1);
        if left != Some(0) {
            #[expect(clippy::disallowed_methods, reason = "the command sleeps, not the engine")]
            std::thread::sleep(pause);
        }
    }
    Ok(())
}

/// Reads the metrics file. If it is missing or out of date, reads the manifest and the file sizes.
fn read_current_state(arguments: &DbArgs) -> Result<ObservedState, Failure> {
    let state = ObservedState::read(arguments)?;
    if let ObservedState::Metrics(reading) = &state
        && let Some(line) = outdated_line(reading)
    {
        output::note(&line);
        return ObservedState::read_files(arguments);
    }
    Ok(state)
}

/// Prints one state, as one line with `--json`.
fn print_state(stats: &StatsArgs, state: &(impl Serialize + Display)) -> Result<(), Failure> {
    let text = match stats.json {
        true => serde_json::to_string(state).map_err(|error| Failure::stdout(error.into()))? + "\n",
        false => state.to_string(),
    };
    output::stream(text.as_bytes())
}
