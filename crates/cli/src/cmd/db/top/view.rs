//! Text of the view of `lsmx db PATH top`.

use std::fmt::{self, Write as _};

use lsmx::metrics::{
    FollowerFileMetrics, KeyspaceMetrics, LatencyMetrics, LevelMetrics, Metrics, TransactionMetrics,
};
use lsmx::{MetricsReading, Observation};
use lsmx_bench::report::text::format_bytes;

use crate::cmd::db::observed_state::{ObservedState, outdated_line};

/// Returns the view as text. Rates are averages since `previous`. Without a comparable previous reading, they are
/// averages since the open.
pub(super) fn view_text(state: &ObservedState, previous: Option<&MetricsReading>) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = match state {
        ObservedState::Metrics(reading) => {
            // The counters restart at zero when the database is reopened, so a reading from before the reopen is
            // ignored.
            let previous = previous.filter(|it| it.open_us == reading.open_us);
            write_reading(&mut text, reading, previous)
        }
        ObservedState::Files(observation) => write_observation(&mut text, observation),
    };
    text
}

fn write_observation(text: &mut String, observation: &Observation) -> fmt::Result {
    if !observation.clean_close {
        writeln!(
            text,
            "No metrics file: the option metrics_file is off, or the process was killed. Only the manifest and file sizes are known:"
        )?;
    }
    write!(text, "{observation}")
}

/// Computes rates from two readings of a counter.
struct Rates {
    seconds: f64,
}

impl Rates {
    fn per_second(&self, now: u64, before: u64) -> f64 {
        now.saturating_sub(before) as f64 / self.seconds
    }

    fn count(&self, now: u64, before: u64) -> String {
        let rate = self.per_second(now, before);
        if rate > 0.0 && rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
    }

    fn bytes(&self, now: u64, before: u64) -> String {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate is positive and far below 2^64 bytes per second"
        )]
        let rate = self.per_second(now, before) as u64;
        format!("{}/s", format_bytes(rate))
    }
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

fn write_reading(
    text: &mut String,
    reading: &MetricsReading,
    previous: Option<&MetricsReading>,
) -> fmt::Result {
    let MetricsReading { process_id, open_us, time_us, metrics, .. } = reading;
    let open = seconds(time_us.saturating_sub(*open_us));
    writeln!(text, "process {process_id}, open for {open:.0} s")?;
    if let Some(line) = outdated_line(reading) {
        writeln!(text, "{line}")?;
    }
    match &metrics.read_only {
        Some(cause) => writeln!(text, "read-only: {cause}")?,
        None => writeln!(text, "writable, last sequence number {}", metrics.published_seq)?,
    }
    let (before, since_us, since) = match previous {
        Some(previous) => (Some(&previous.metrics), previous.time_us, "last reading"),
        None => (None, *open_us, "open"),
    };
    let elapsed = seconds(time_us.saturating_sub(since_us));
    let rates = Rates { seconds: elapsed.max(1e-6) };
    let nothing = Metrics::default();
    let before = before.unwrap_or(&nothing);
    writeln!(text, "rates since the {since}, {elapsed:.1} s:")?;
    write_operations(text, metrics, before, &rates)?;
    // The lines of the database come before those of its keyspaces, which may need several screens.
    write_database(text, metrics, before, &rates)?;
    for (name, keyspace) in &metrics.keyspaces {
        let nothing = KeyspaceMetrics::default();
        let before = before.keyspaces.get(name).unwrap_or(&nothing);
        write_keyspace(text, name, (keyspace, before), &rates)?;
    }
    Ok(())
}

fn write_operations(
    text: &mut String,
    metrics: &Metrics,
    before: &Metrics,
    rates: &Rates,
) -> fmt::Result {
    writeln!(
        text,
        "{:<16} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>13} {:>13}",
        "keyspace", "puts", "deletes", "merges", "gets", "found", "scanned", "written", "got"
    )?;
    let nothing = KeyspaceMetrics::default();
    for (name, keyspace) in &metrics.keyspaces {
        let before = before.keyspaces.get(name).unwrap_or(&nothing);
        let (now, then) = (&keyspace.operations, &before.operations);
        let [puts, deletes, merges, gets, found, scanned] = [
            (now.puts, then.puts),
            (now.deletes + now.range_deletes, then.deletes + then.range_deletes),
            (now.merges, then.merges),
            (keyspace.gets, before.gets),
            (now.gets_found, then.gets_found),
            (now.scan_entries, then.scan_entries),
        ]
        .map(|(now, before)| rates.count(now, before));
        let written = rates.bytes(keyspace.ingested_bytes, before.ingested_bytes);
        let read = rates.bytes(now.get_bytes + now.scan_bytes, then.get_bytes + then.scan_bytes);
        writeln!(
            text,
            "{name:<16} {puts:>9} {deletes:>9} {merges:>9} {gets:>9} {found:>9} {scanned:>9} {written:>13} {read:>13}"
        )?;
    }
    Ok(())
}

fn write_keyspace(
    text: &mut String,
    name: &str,
    (keyspace, before): (&KeyspaceMetrics, &KeyspaceMetrics),
    rates: &Rates,
) -> fmt::Result {
    writeln!(text, "keyspace {name} ({})", keyspace.policy)?;
    writeln!(text, " level  runs  files       bytes    entries       written")?;
    let mut write_level = |name: &str, level: &LevelMetrics, written_before: u64| {
        let LevelMetrics { runs, files, entries, .. } = level;
        let bytes = format_bytes(level.bytes);
        let written = rates.bytes(level.flow.written_bytes, written_before);
        writeln!(text, "{name:>6} {runs:>5} {files:>6} {bytes:>11} {entries:>10} {written:>13}")
    };
    for level in &keyspace.levels {
        let same = before.levels.iter().find(|it| it.level == level.level);
        let written_before = same.map_or(0, |it| it.flow.written_bytes);
        write_level(&format!("L{}", level.level), level, written_before)?;
    }
    write_level("total", &keyspace.total(), before.total().flow.written_bytes)?;
    let (jobs, stalls) = (&keyspace.running_jobs, &keyspace.stalls);
    writeln!(
        text,
        "  memtables {} ({} sealed); running: {} flushes, {} compactions with {} left",
        format_bytes(keyspace.memtable_bytes),
        keyspace.memtables_sealed,
        jobs.flushes,
        jobs.compactions,
        format_bytes(jobs.compaction_bytes_left)
    )?;
    let waited = seconds(stalls.us_total.saturating_sub(before.stalls.us_total));
    let throttled =
        seconds(stalls.throttle_us_total.saturating_sub(before.stalls.throttle_us_total));
    writeln!(
        text,
        "  stalls: {} writes waited {waited:.1} s, throttled for {throttled:.1} s; {} since the open",
        stalls.count.saturating_sub(before.stalls.count),
        stalls.count
    )?;
    let compaction = &keyspace.compaction;
    if compaction.failures + compaction.quarantined_files > 0 {
        let (failures, files) = (compaction.failures, compaction.quarantined_files);
        writeln!(text, "  {failures} failed jobs, {files} files in quarantine")?;
    }
    Ok(())
}

fn write_database(
    text: &mut String,
    metrics: &Metrics,
    before: &Metrics,
    rates: &Rates,
) -> fmt::Result {
    let sums = |metrics: &Metrics| {
        let caches = metrics.cache.values();
        caches.fold((0, 0), |(hits, misses), it| (hits + it.hits, misses + it.misses))
    };
    let ((hits, misses), (hits_before, misses_before)) = (sums(metrics), sums(before));
    let (hits, misses) = (hits.saturating_sub(hits_before), misses.saturating_sub(misses_before));
    let rate = 100.0 * hits as f64 / (hits + misses).max(1) as f64;
    let memory = &metrics.memory;
    let [data, metadata, cache_max, memtables, memtables_max, total] = [
        memory.data_blocks,
        memory.metadata_blocks,
        memory.block_cache_bytes_max,
        memory.memtables_active + memory.memtables_sealed,
        memory.memtable_bytes_max,
        memory.total(),
    ]
    .map(format_bytes);
    writeln!(
        text,
        "cache: {rate:.1} % hits of {}/s, data {data}, metadata {metadata}, of {cache_max}",
        rates.count(hits + misses, 0)
    )?;
    writeln!(text, "memory: {total}, memtables {memtables} of {memtables_max}")?;
    let wal = &metrics.wal;
    writeln!(
        text,
        "log: {} segments, {}, {} written, {} syncs/s, {} commits/s",
        wal.segments,
        format_bytes(wal.live_bytes),
        rates.bytes(wal.written_bytes, before.wal.written_bytes),
        rates.count(wal.syncs, before.wal.syncs),
        rates.count(metrics.commits.requests, before.commits.requests)
    )?;
    write_transactions(text, &metrics.transactions, &before.transactions, rates)?;
    let disk = &metrics.disk;
    let [tables, blobs, reserve] =
        [disk.table_bytes, disk.blob_bytes, disk.reserve_bytes].map(format_bytes);
    writeln!(text, "disk: tables {tables}, blob files {blobs}, reserve {reserve}")?;
    let (io, io_before) = (&metrics.background_io, &before.background_io);
    let flushes = rates.bytes(io.flush.bytes, io_before.flush.bytes);
    let compactions = rates.bytes(io.compaction.bytes, io_before.compaction.bytes);
    let limit = io.rate.map_or("none".to_owned(), |rate| format!("{}/s", format_bytes(rate)));
    writeln!(text, "background I/O: flushes {flushes}, compactions {compactions}, limit {limit}")?;
    let held = &metrics.held;
    let age = seconds(held.oldest_snapshot_age_us);
    writeln!(
        text,
        "snapshots: {}, oldest {age:.0} s; {} obsolete files of {} held; {} of {} descriptors",
        held.snapshots,
        held.files,
        format_bytes(held.file_bytes),
        metrics.descriptors.open,
        metrics.descriptors.max
    )?;
    let FollowerFileMetrics { followers, files, file_bytes, .. } = metrics.followers;
    if followers > 0 {
        let bytes = format_bytes(file_bytes);
        writeln!(text, "followers: {followers}; {files} obsolete files of {bytes} kept")?;
    }
    let latency = &metrics.operation_latency;
    for (operation, latency) in [
        ("get", &latency.get_ns),
        ("multi_get", &latency.multi_get_ns),
        ("commit", &latency.commit_ns),
        ("scan step", &latency.scan_step_ns),
        ("update", &latency.update_ns),
    ] {
        write_latency(text, operation, latency)?;
    }
    Ok(())
}

/// Writes one line, if the database has had transactions.
fn write_transactions(
    text: &mut String,
    now: &TransactionMetrics,
    before: &TransactionMetrics,
    rates: &Rates,
) -> fmt::Result {
    if now.begun == 0 {
        return Ok(());
    }
    let [committed, conflicts, waits, timeouts, deadlocks] = [
        (now.committed, before.committed),
        (now.conflicts, before.conflicts),
        (now.lock_waits, before.lock_waits),
        (now.lock_timeouts, before.lock_timeouts),
        (now.lock_deadlocks, before.lock_deadlocks),
    ]
    .map(|(now, before)| rates.count(now, before));
    let waited = seconds(now.lock_wait_us_total.saturating_sub(before.lock_wait_us_total));
    writeln!(
        text,
        "transactions: {committed} commits/s, {conflicts} conflicts/s; {} locked keys, {waits} lock waits/s of {waited:.1} s, {timeouts} timeouts/s, {deadlocks} deadlocks/s",
        now.locks_held
    )
}

fn write_latency(text: &mut String, operation: &str, latency: &LatencyMetrics) -> fmt::Result {
    if latency.count == 0 {
        return Ok(());
    }
    let [p50, p99, max] = [latency.p50, latency.p99, latency.max].map(|ns| ns as f64 / 1e3);
    let count = latency.count;
    writeln!(text, "{operation}: p50 {p50:.1} us, p99 {p99:.1} us, max {max:.1} us of {count}")
}
