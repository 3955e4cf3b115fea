//! Metrics as text tables.

use std::fmt;

use crate::metrics::{
    BackgroundIoMetrics, CompactionFilterMetrics, DeletePersistenceMetrics, DescriptorMetrics,
    DiskMetrics, ExpiryMetrics, FollowerFileMetrics, HeldMetrics, KeyspaceMetrics,
    LastRunFilterMetrics, LevelMetrics, MemoryMetrics, MergeMetrics, Metrics, OperationMetrics,
    StallCauseMetrics, TransactionMetrics, ValueLogMetrics, WalMetrics,
};

/// Number of bytes with a unit, in at most nine characters.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = [" KiB", " MiB", " GiB", " TiB", " PiB", " EiB"];
        if self.0 < 1_000 {
            return f.pad(&format!("{} B", self.0));
        }
        f.pad(&format_scaled(self.0, 1024.0, UNITS))
    }
}

/// Number with a decimal prefix, in at most six characters.
struct Count(u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 10_000 {
            return f.pad(&self.0.to_string());
        }
        f.pad(&format_scaled(self.0, 1e3, ["k", "M", "G", "T", "P", "E"]))
    }
}

/// Returns `number` in the smallest unit in which it has at most three digits.
fn format_scaled(number: u64, base: f64, units: [&str; 6]) -> String {
    let mut scaled = number as f64 / base;
    let mut unit = 0;
    while scaled >= 999.5 && unit + 1 < units.len() {
        scaled /= base;
        unit += 1;
    }
    let decimals = usize::from(scaled < 99.95);
    format!("{scaled:.decimals$}{}", units[unit])
}

/// Duration in microseconds, with a unit.
struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0;
        f.pad(&match us {
            0..1_000 => format!("{us} us"),
            1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
            1_000_000..120_000_000 => format!("{:.1} s", us as f64 / 1e6),
            _ => format!("{:.1} min", us as f64 / 6e7),
        })
    }
}

/// Ratio with two decimals; `-` if there is none.
struct Ratio(Option<f64>);

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ratio) => f.pad(&format!("{ratio:.2}")),
            None => f.pad("-"),
        }
    }
}

fn write_level(f: &mut fmt::Formatter<'_>, name: &str, level: &LevelMetrics) -> fmt::Result {
    let writes = &level.flow;
    let [runs, files, entries, tombstones, jobs] =
        [level.runs, level.files, level.entries, level.tombstones, writes.jobs].map(Count);
    let [bytes, incoming, moved] =
        [level.bytes, writes.incoming_bytes, writes.moved_bytes].map(Bytes);
    let [read, written] = [writes.read_bytes, writes.written_bytes].map(Bytes);
    let amplification = Ratio(writes.write_amplification());
    write!(f, "{name:>6} {runs:>5} {files:>6} {bytes:>9} {entries:>8} {tombstones:>7} | ")?;
    writeln!(f, "{jobs:>6} {incoming:>9} {moved:>9} {read:>9} {written:>9} {amplification:>6}")
}

fn write_keyspace(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    keyspace: &KeyspaceMetrics,
) -> fmt::Result {
    writeln!(f, "keyspace {name} ({})", keyspace.policy)?;
    write!(f, " level  runs  files     bytes  entries tombst. | ")?;
    writeln!(f, "  jobs  incoming     moved      read   written  w-amp")?;
    for level in &keyspace.levels {
        write_level(f, &format!("L{}", level.level), level)?;
    }
    write_level(f, "total", &keyspace.total())?;
    let KeyspaceMetrics { memtables_sealed, compaction, stalls, .. } = keyspace;
    let [memtables, ingested] = [keyspace.memtable_bytes, keyspace.ingested_bytes].map(Bytes);
    let [gets, flushes, drops] = [keyspace.gets, keyspace.flushes, compaction.drops].map(Count);
    let [merges, split, moves] =
        [compaction.jobs, compaction.divided_jobs, compaction.trivial_moves].map(Count);
    write!(
        f,
        "  memtables {memtables} ({memtables_sealed} sealed)  ingested {ingested}  gets {gets}  "
    )?;
    write!(
        f,
        "flushes {flushes}  merges {merges} ({split} split)  moves {moves}  drops {drops}  "
    )?;
    writeln!(f, "failures {}", compaction.failures)?;
    let operations = &keyspace.operations;
    if *operations != OperationMetrics::default() {
        let [puts, deletes, ranges, merges] =
            [operations.puts, operations.deletes, operations.range_deletes, operations.merges]
                .map(Count);
        let [found, absent, scans, entries] = [
            operations.gets_found,
            operations.gets_absent,
            operations.scans,
            operations.scan_entries,
        ]
        .map(Count);
        write!(f, "  puts {puts}  deletes {deletes}  range deletes {ranges}  merges {merges}  ")?;
        writeln!(f, "gets found {found}, absent {absent}  scans {scans} of {entries} entries")?;
    }
    let ingest = &keyspace.ingest;
    if ingest.ingests > 0 {
        let [ingests, files, l0_files] = [ingest.ingests, ingest.files, ingest.l0_files].map(Count);
        let [bytes, written] = [ingest.bytes, ingest.written_bytes].map(Bytes);
        write!(f, "  ingests {ingests} of {files} files ({l0_files} to L0), {bytes}, ")?;
        writeln!(f, "{written} written")?;
    }
    let filter = &keyspace.filter_last_run;
    if filter.lookups > 0 {
        let [absent, lookups] = [filter.absent, filter.lookups].map(Count);
        let (bytes, is_used) =
            (Bytes(filter.filter_bytes), if filter.is_used { "" } else { "not " });
        let LastRunFilterMetrics { reads_saved, reads_lost, .. } = filter;
        write!(f, "  {absent} of {lookups} lookups in the last run found no key: ")?;
        write!(f, "filter of {bytes} is {is_used}used, saves {reads_saved:.3} reads per lookup, ")?;
        writeln!(f, "costs {reads_lost:.3}")?;
    }
    let causes = [
        ("a free memtable", stalls.memtables_full),
        ("memory for memtables", stalls.memory_full),
        ("an ingest of files", stalls.ingest),
        ("a compaction to release runs", stalls.too_many_runs),
    ];
    for (cause, stall) in causes {
        if stall != StallCauseMetrics::default() {
            let (count, [total, max]) =
                (Count(stall.count), [stall.us_total, stall.us_max].map(Micros));
            writeln!(f, "  {count} writes waited {total} for {cause}, at most {max}")?;
        }
    }
    let range_tombstones = keyspace.levels.iter().map(|level| level.range_tombstones).sum();
    if range_tombstones > 0 {
        writeln!(f, "  range tombstones {}", Count(range_tombstones))?;
    }
    if let Some(store) = &keyspace.operand_store {
        let [buckets, operands] = [store.buckets, store.operands].map(Count);
        let [markers, moved] = [store.delete_markers, store.to_tree].map(Count);
        let [bytes, log, memory] =
            [store.bucket_bytes, store.log_bytes, store.memory_bytes].map(Bytes);
        let [written, read] = [store.bucket_written_bytes, store.bucket_read_bytes].map(Bytes);
        write!(f, "  operand store: {buckets} buckets of {bytes}, log {log}, memory {memory}; ")?;
        write!(
            f,
            "{operands} operands and {markers} delete markers stored, {moved} moved to the tree; "
        )?;
        writeln!(f, "buckets {written} written, {read} read")?;
    }
    let MergeMetrics { reads, jobs, failures, write_backs } = &keyspace.merges;
    if keyspace.merges != MergeMetrics::default() {
        let [by_reads, by_jobs] = [reads.operands, jobs.operands].map(Count);
        let max = reads.operands_max;
        write!(f, "  operands: {by_reads} folded by reads (at most {max} at once), ")?;
        writeln!(
            f,
            "{by_jobs} by jobs, {failures} failures; {} values stored by gets",
            Count(*write_backs)
        )?;
    }
    if keyspace.compaction_filter != CompactionFilterMetrics::default() {
        let CompactionFilterMetrics { passed, removed, changed, errors, repeated_merges } =
            keyspace.compaction_filter;
        let [passed, removed, changed, errors] = [passed, removed, changed, errors].map(Count);
        write!(f, "  compaction filter: {passed} values passed, {removed} removed, ")?;
        writeln!(f, "{changed} changed, {errors} errors; {repeated_merges} merges repeated")?;
    }
    if keyspace.expired != ExpiryMetrics::default() {
        let ExpiryMetrics { entries, bytes } = keyspace.expired;
        writeln!(f, "  expired: {} entries of {} dropped", Count(entries), Bytes(bytes))?;
    }
    let DeletePersistenceMetrics { bound_us, overdue_us, snapshot_overdue_us, iterator_overdue_us } =
        keyspace.delete_persistence;
    if bound_us > 0 {
        let [bound, jobs, snapshots, iterators] =
            [bound_us, overdue_us, snapshot_overdue_us, iterator_overdue_us].map(Micros);
        write!(f, "  deletion within {bound}: overdue {jobs} by jobs, ")?;
        writeln!(f, "{snapshots} by snapshots, {iterators} by iterators")?;
    }
    let log = &keyspace.value_log;
    if *log != ValueLogMetrics::default() {
        let [files, collections] = [log.blob_files, log.rewrites].map(Count);
        let [bytes, referenced] = [log.blob_bytes, log.blob_referenced_bytes].map(Bytes);
        let [written, moved, relocated] =
            [log.written_bytes, log.rewritten_bytes, log.relocated_bytes].map(Bytes);
        let amplification = Ratio(log.space_amplification());
        write!(f, "  value log: {files} blob files of {bytes}, {referenced} referenced ")?;
        write!(f, "(space amp. {amplification}); {written} written, {collections} garbage ")?;
        writeln!(f, "collections moved {moved}, {relocated} relocated")?;
    }
    if let Some(headroom) = keyspace.compaction_debt.headroom_bytes {
        let [pending, headroom] = [keyspace.compaction_debt.pending_bytes, headroom].map(Bytes);
        writeln!(f, "  compaction debt {pending}, {headroom} until writes stop")?;
    }
    if stalls.throttle_us_total > 0 {
        writeln!(f, "  writes throttled for {}", Micros(stalls.throttle_us_total))?;
    }
    Ok(())
}

fn write_read_metrics(f: &mut fmt::Formatter<'_>, metrics: &Metrics) -> fmt::Result {
    writeln!(f, "cache             resident      hits    misses   hit rate")?;
    for (kind, cache) in &metrics.cache {
        let lookups = cache.hits + cache.misses;
        let rate = Ratio((lookups > 0).then(|| cache.hits as f64 / lookups as f64));
        let (kind, resident) = (format!("{kind:?}"), Bytes(cache.resident_bytes));
        let [hits, misses] = [cache.hits, cache.misses].map(Count);
        writeln!(f, "  {kind:<14} {resident:>9} {hits:>9} {misses:>9} {rate:>10}")?;
    }
    let levels = metrics
        .filter_by_level
        .iter()
        .map(|(level, counts)| format!("L{level} {:.4} %", counts.false_positive_rate() * 100.0));
    let levels: Vec<_> = levels.collect();
    let rates = if levels.is_empty() { "" } else { ": " };
    let [negatives, false_positives] =
        [metrics.filter.negatives, metrics.filter.false_positives].map(Count);
    write!(f, "filters {negatives} negatives, {false_positives} false positives")?;
    writeln!(f, "{rates}{}", levels.join(", "))
}

fn write_memory(f: &mut fmt::Formatter<'_>, memory: &MemoryMetrics) -> fmt::Result {
    let [active, sealed, pinned] =
        [memory.memtables_active, memory.memtables_sealed, memory.memtables_pinned].map(Bytes);
    let [total, data, metadata, tables] =
        [memory.total(), memory.data_blocks, memory.metadata_blocks, memory.open_tables].map(Bytes);
    let [transactions, log, read_ahead, guards] =
        [memory.transactions, memory.wal_buffer, memory.read_ahead, memory.guard_history]
            .map(Bytes);
    let budget = memory.budget_bytes.map_or("no budget".to_owned(), |it| Bytes(it).to_string());
    write!(
        f,
        "memory  {total} of {budget}: memtables {active} + {sealed} sealed + {pinned} pinned, "
    )?;
    write!(f, "data {data}, metadata {metadata}, open tables {tables}, ")?;
    write!(f, "transactions {transactions}, log {log}, ")?;
    writeln!(f, "read-ahead {read_ahead}, guards {guards}; data in {}", memory.block_cache_kind)
}

fn write_transactions(f: &mut fmt::Formatter<'_>, metrics: &TransactionMetrics) -> fmt::Result {
    if metrics.begun == 0 {
        return Ok(());
    }
    let [begun, committed, read_only] =
        [metrics.begun, metrics.committed, metrics.read_only].map(Count);
    let [conflicts, unknown, retries] =
        [metrics.conflicts, metrics.unknown, metrics.retries].map(Count);
    write!(f, "transactions {begun} begun, {committed} committed, {read_only} read-only, ")?;
    writeln!(f, "{conflicts} conflicts, {unknown} unknown, {retries} retries")?;
    if metrics.locks_held + metrics.lock_waits + metrics.lock_deadlocks == 0 {
        return Ok(());
    }
    let [held, waits] = [metrics.locks_held, metrics.lock_waits].map(Count);
    let [timeouts, deadlocks] = [metrics.lock_timeouts, metrics.lock_deadlocks].map(Count);
    let waited = Micros(metrics.lock_wait_us_total);
    writeln!(
        f,
        "        {held} keys locked, {waits} waits of {waited}, {timeouts} timeouts, {deadlocks} deadlocks"
    )
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, metrics) in &self.keyspaces {
            write_keyspace(f, name, metrics)?;
        }
        write_read_metrics(f, self)?;
        write_memory(f, &self.memory)?;
        let WalMetrics { segments, kept_segments, .. } = self.wal;
        let [live, written, reserved, kept] = [
            self.wal.live_bytes,
            self.wal.written_bytes,
            self.wal.reserved_bytes,
            self.wal.kept_bytes,
        ]
        .map(Bytes);
        let syncs = Count(self.wal.syncs);
        write!(f, "wal     {segments} segments, {live} live, {written} written, {syncs} syncs, ")?;
        writeln!(f, "{reserved} reserved for a full disk")?;
        if kept_segments > 0 {
            writeln!(
                f,
                "        {kept_segments} segments, {kept} kept for missing operand stores"
            )?;
        }
        let DiskMetrics { table_bytes, blob_bytes, log_bytes, reserve_bytes } = self.disk;
        let [tables, blobs, log, reserve] =
            [table_bytes, blob_bytes, log_bytes, reserve_bytes].map(Bytes);
        writeln!(f, "disk    {tables} tables, {blobs} blob files, {log} log, {reserve} reserve")?;
        let commits = &self.commits;
        let [requests, groups, waited] =
            [commits.requests, commits.groups, commits.behind_sync].map(Count);
        writeln!(f, "commits {requests} in {groups} groups, {waited} waited for another sync")?;
        write_transactions(f, &self.transactions)?;
        for (name, latency) in [("flushes", &self.flush_us), ("merges", &self.compaction_us)] {
            if latency.count > 0 {
                let count = Count(latency.count);
                let [p50, p99, max] = [latency.p50, latency.p99, latency.max].map(Micros);
                writeln!(f, "{name:<7} {count}: p50 {p50}, p99 {p99}, max {max}")?;
            }
        }
        let latency = &self.operation_latency;
        let operations = [
            ("get", &latency.get_ns),
            ("multi_get", &latency.multi_get_ns),
            ("commit", &latency.commit_ns),
            ("scan step", &latency.scan_step_ns),
            ("update", &latency.update_ns),
        ];
        for (name, latency) in operations.into_iter().filter(|(_, latency)| latency.count > 0) {
            let count = Count(latency.count);
            let [p50, p99, max] = [latency.p50, latency.p99, latency.max].map(|ns| ns as f64 / 1e3);
            write!(f, "{name:<9} {count} sampled: ")?;
            writeln!(f, "p50 {p50:.1} us, p99 {p99:.1} us, max {max:.1} us")?;
        }
        let BackgroundIoMetrics { rate, flush, compaction, .. } = &self.background_io;
        let [flushes, compactions] = [flush.bytes, compaction.bytes].map(Bytes);
        let [flush_wait, compaction_wait] = [flush.waited_us, compaction.waited_us].map(Micros);
        let limit = rate.map_or("none".to_owned(), |rate| format!("{}/s", Bytes(rate)));
        write!(
            f,
            "jobs    I/O of flushes {flushes}, of compactions {compactions}; limit {limit}, "
        )?;
        writeln!(f, "waited {flush_wait} and {compaction_wait}")?;
        let DescriptorMetrics { open, max, reopened } = self.descriptors;
        writeln!(f, "files   {open} of {max} descriptors, {reopened} reopened")?;
        let HeldMetrics { snapshots, old_views, view_pins, files, .. } = self.held;
        let [file_bytes, blocks] = [self.held.file_bytes, self.held.block_bytes].map(Bytes);
        let oldest = Micros(self.held.oldest_snapshot_age_us);
        write!(
            f,
            "held    {snapshots} snapshots, oldest {oldest}; {old_views} old super versions, "
        )?;
        writeln!(f, "{view_pins} pins; {files} obsolete files of {file_bytes}; blocks {blocks}")?;
        let FollowerFileMetrics { followers, files, file_bytes } = self.followers;
        if followers > 0 {
            let bytes = Bytes(file_bytes);
            writeln!(f, "followers {followers}; {files} obsolete files of {bytes} kept")?;
        }
        if let Some(cause) = &self.read_only {
            writeln!(f, "read-only: {cause}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{LevelWriteMetrics, StallMetrics};

    #[test]
    fn printed_numbers_fit_their_columns() {
        for shift in 0..64 {
            for number in [(1u64 << shift) - 1, 1 << shift, u64::MAX >> shift] {
                assert!(Bytes(number).to_string().len() <= 9, "{}", Bytes(number));
                assert!(Count(number).to_string().len() <= 6, "{}", Count(number));
            }
        }
        assert_eq!(Bytes(999).to_string(), "999 B");
        assert_eq!(Bytes(80 << 20).to_string(), "80.0 MiB");
        assert_eq!(Count(12_345).to_string(), "12.3k");
        assert_eq!(Micros(1_500_000).to_string(), "1.5 s");
    }

    #[test]
    fn printed_keyspace_has_rows_for_levels_and_total() {
        let level = |level, bytes| LevelMetrics {
            level,
            runs: 1,
            files: 2,
            bytes,
            flow: LevelWriteMetrics {
                incoming_bytes: 1_000,
                written_bytes: 3_000,
                jobs: 1,
                ..LevelWriteMetrics::default()
            },
            ..LevelMetrics::default()
        };
        let metrics = KeyspaceMetrics {
            policy: "leveled".to_owned(),
            levels: vec![level(0, 100), level(2, 300)],
            stalls: StallMetrics {
                memory_full: StallCauseMetrics { count: 2, us_total: 3_000, us_max: 2_000 },
                ..StallMetrics::default()
            },
            ..KeyspaceMetrics::default()
        };
        let metrics =
            Metrics { keyspaces: [("users".to_owned(), metrics)].into(), ..Metrics::default() };
        let text = metrics.to_string();
        let row = |name: &str| text.lines().find(|line| line.trim_start().starts_with(name));
        assert!(row("L2").is_some_and(|row| row.contains("300 B") && row.ends_with("3.00")));
        assert!(row("total").is_some_and(|row| row.contains("400 B")), "{text}");
        assert!(text.contains("2 writes waited 3.0 ms for memory for memtables"), "{text}");
        assert!(!text.contains("a free memtable"));
    }
}
