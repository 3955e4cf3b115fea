//! [`Metrics`] as a table for people.

use std::fmt;

use crate::metrics::{
    KeyspaceMetrics, LevelMetrics, MergeMetrics, Metrics, StallCause, ValueLogMetrics,
};

/// Bytes with a unit, in at most eight characters.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1_000 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut scaled = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while scaled >= 999.5 && unit + 1 < UNITS.len() {
            scaled /= 1024.0;
            unit += 1;
        }
        let digits = usize::from(scaled < 99.95);
        f.pad(&format!("{scaled:.digits$} {}", UNITS[unit]))
    }
}

/// A count with a unit of a thousand, in at most six characters.
struct Count(u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
        if self.0 < 10_000 {
            return f.pad(&self.0.to_string());
        }
        let mut scaled = self.0 as f64 / 1e3;
        let mut unit = 0;
        while scaled >= 999.5 && unit + 1 < UNITS.len() {
            scaled /= 1e3;
            unit += 1;
        }
        let digits = usize::from(scaled < 99.95);
        f.pad(&format!("{scaled:.digits$}{}", UNITS[unit]))
    }
}

/// A duration with a unit.
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

/// A ratio, or a dash where there is none.
struct Ratio(Option<f64>);

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ratio) => f.pad(&format!("{ratio:.2}")),
            None => f.pad("-"),
        }
    }
}

fn level_row(f: &mut fmt::Formatter<'_>, name: &str, level: &LevelMetrics) -> fmt::Result {
    let flow = &level.flow;
    writeln!(
        f,
        "{name:>6} {:>5} {:>6} {:>9} {:>8} {:>7} | {:>6} {:>9} {:>9} {:>9} {:>9} {:>6}",
        Count(level.runs),
        Count(level.files),
        Bytes(level.bytes),
        Count(level.entries),
        Count(level.tombstones),
        Count(flow.jobs),
        Bytes(flow.came_bytes),
        Bytes(flow.moved_bytes),
        Bytes(flow.read_bytes),
        Bytes(flow.written_bytes),
        Ratio(flow.write_amplification()),
    )
}

fn keyspace(f: &mut fmt::Formatter<'_>, name: &str, keyspace: &KeyspaceMetrics) -> fmt::Result {
    writeln!(f, "keyspace {name} ({})", keyspace.policy)?;
    writeln!(
        f,
        " level  runs  files     bytes  entries tombst. |   jobs      came     moved      read   \
         written  w-amp"
    )?;
    for level in &keyspace.levels {
        level_row(f, &format!("L{}", level.level), level)?;
    }
    level_row(f, "total", &keyspace.total())?;
    writeln!(
        f,
        "  memtables {} ({} sealed)  ingested {}  gets {}  flushes {}  merges {} ({} in parts)  moves {}  \
         drops {}  failures {}",
        Bytes(keyspace.memtable_bytes),
        keyspace.memtables_sealed,
        Bytes(keyspace.ingested_bytes),
        Count(keyspace.gets),
        Count(keyspace.flushes),
        Count(keyspace.compaction.jobs),
        Count(keyspace.compaction.jobs_divided),
        Count(keyspace.compaction.trivial_moves),
        Count(keyspace.compaction.drops),
        keyspace.compaction.failures,
    )?;
    let last_run = &keyspace.filter_last_run;
    if last_run.lookups > 0 {
        writeln!(
            f,
            "  {} of {} lookups at the last run found nothing: its filter of {} {} asked, {:.3} reads \
             saved per lookup for {:.3}",
            Count(last_run.absent),
            Count(last_run.lookups),
            Bytes(last_run.filter_bytes),
            if last_run.asked { "is" } else { "is not" },
            last_run.reads_saved,
            last_run.reads_lost,
        )?;
    }
    let stalls = &keyspace.stalls;
    let causes = [
        ("a free memtable", stalls.memtables_full),
        ("memory for memtables", stalls.memory_full),
        ("a compaction to release runs", stalls.too_many_runs),
    ];
    for (cause, stall) in causes {
        if stall != StallCause::default() {
            writeln!(
                f,
                "  {} writes waited {} for {cause}, the longest {}",
                Count(stall.count),
                Micros(stall.us_total),
                Micros(stall.us_max)
            )?;
        }
    }
    let spans = keyspace.levels.iter().map(|level| level.range_tombstones).sum();
    if spans > 0 {
        writeln!(f, "  range tombstones {}", Count(spans))?;
    }
    if let Some(store) = &keyspace.operand_store {
        writeln!(
            f,
            "  operand store: {} buckets of {}, log {}, memory {}; {} operands and {} anchors came, {} to the \
             tree; buckets {} written, {} read",
            Count(store.buckets),
            Bytes(store.bucket_bytes),
            Bytes(store.log_bytes),
            Bytes(store.memory_bytes),
            Count(store.operands),
            Count(store.anchors),
            Count(store.to_tree),
            Bytes(store.bucket_written_bytes),
            Bytes(store.bucket_read_bytes),
        )?;
    }
    let merges = &keyspace.merges;
    if *merges != MergeMetrics::default() {
        writeln!(
            f,
            "  operands  {} folded by reads (at most {} at once), {} by jobs, {} failures",
            Count(merges.reads.operands),
            merges.reads.operands_max,
            Count(merges.jobs.operands),
            merges.failures
        )?;
    }
    let log = &keyspace.value_log;
    if *log != ValueLogMetrics::default() {
        writeln!(
            f,
            "  value log {} blob files, {} for {} referenced (space amp. {}), {} written, {} rewrites \
             moved {}, {} gathered",
            Count(log.blob_files),
            Bytes(log.blob_bytes),
            Bytes(log.blob_referenced_bytes),
            Ratio(log.space_amplification()),
            Bytes(log.written_bytes),
            Count(log.rewrites),
            Bytes(log.rewritten_bytes),
            Bytes(log.gathered_bytes),
        )?;
    }
    if stalls.throttle_us_total > 0 {
        writeln!(f, "  writes were slowed down by {}", Micros(stalls.throttle_us_total))?;
    }
    Ok(())
}

impl Metrics {
    /// Shares of wrong answers, level by level.
    fn false_positive_rates(&self) -> String {
        let levels = self.filter_by_level.iter().map(|(level, answers)| {
            format!("L{level} {:.4} %", answers.false_positive_rate() * 100.0)
        });
        let levels: Vec<_> = levels.collect();
        if levels.is_empty() { String::new() } else { format!(": {}", levels.join(", ")) }
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, metrics) in &self.keyspaces {
            keyspace(f, name, metrics)?;
        }
        writeln!(f, "cache             resident      hits    misses   hit rate")?;
        for (kind, cache) in &self.cache {
            let asked = cache.hits + cache.misses;
            let rate = (asked > 0).then(|| cache.hits as f64 / asked as f64);
            writeln!(
                f,
                "  {:<14} {:>9} {:>9} {:>9} {:>10}",
                format!("{kind:?}"),
                Bytes(cache.resident_bytes),
                Count(cache.hits),
                Count(cache.misses),
                Ratio(rate)
            )?;
        }
        writeln!(
            f,
            "filters {} tables ruled out, {} let pass wrongly{}",
            Count(self.filter.negatives),
            Count(self.filter.false_positives),
            self.false_positive_rates(),
        )?;
        let memory = &self.memory;
        writeln!(
            f,
            "memory  {} of {}: memtables {} + {} sealed + {} pinned, data {}, metadata {}, \
             open tables {}, log {}, read-ahead {}, guards {}; data in {}",
            Bytes(memory.total()),
            memory.budget_bytes.map_or("no budget".to_owned(), |budget| Bytes(budget).to_string()),
            Bytes(memory.memtables_active),
            Bytes(memory.memtables_sealed),
            Bytes(memory.memtables_pinned),
            Bytes(memory.data_blocks),
            Bytes(memory.metadata_blocks),
            Bytes(memory.open_tables),
            Bytes(memory.wal_buffer),
            Bytes(memory.read_ahead),
            Bytes(memory.guard_history),
            memory.block_cache_kind,
        )?;
        writeln!(
            f,
            "wal     {} segments, {} live, {} written, {} syncs, {} kept for a full disk",
            self.wal.segments,
            Bytes(self.wal.live_bytes),
            Bytes(self.wal.written_bytes),
            Count(self.wal.syncs),
            Bytes(self.wal.reserved_bytes)
        )?;
        if self.wal.kept_segments > 0 {
            writeln!(
                f,
                "        {} segments, {} kept for operand stores that are not open",
                self.wal.kept_segments,
                Bytes(self.wal.kept_bytes)
            )?;
        }
        writeln!(
            f,
            "disk    {} tables, {} blob files, {} log, {} reserve",
            Bytes(self.disk.table_bytes),
            Bytes(self.disk.blob_bytes),
            Bytes(self.disk.log_bytes),
            Bytes(self.disk.reserve_bytes)
        )?;
        writeln!(
            f,
            "commits {} in {} groups, {} behind a sync",
            Count(self.commits.requests),
            Count(self.commits.groups),
            Count(self.commits.behind_sync)
        )?;
        for (name, latency) in [("flushes", &self.flush_us), ("merges", &self.compaction_us)] {
            if latency.count > 0 {
                writeln!(
                    f,
                    "{name:<7} {}: half within {}, 99 of 100 within {}, the longest {}",
                    Count(latency.count),
                    Micros(latency.p50),
                    Micros(latency.p99),
                    Micros(latency.max)
                )?;
            }
        }
        let io = &self.background_io;
        writeln!(
            f,
            "jobs    flushes {}, compactions {} read and written; limit {}, waited {} and {}",
            Bytes(io.flush.bytes),
            Bytes(io.compaction.bytes),
            io.rate.map_or("none".to_owned(), |rate| format!("{}/s", Bytes(rate))),
            Micros(io.flush.waited_us),
            Micros(io.compaction.waited_us)
        )?;
        writeln!(
            f,
            "files   {} of {} descriptors, {} opened again",
            self.descriptors.open, self.descriptors.max, self.descriptors.reopened
        )?;
        let held = &self.held;
        writeln!(
            f,
            "held    {} snapshots, the oldest for {}; {} old views, {} pins; {} files with {}; {} of blocks",
            held.snapshots,
            Micros(held.oldest_snapshot_age_us),
            held.old_views,
            held.view_pins,
            held.files,
            Bytes(held.file_bytes),
            Bytes(held.block_bytes)
        )?;
        if let Some(cause) = &self.read_only {
            writeln!(f, "read-only: {cause}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::LevelFlow;

    #[test]
    fn numbers_stay_within_their_columns() {
        for at in 0..64 {
            for number in [(1u64 << at) - 1, 1 << at, u64::MAX >> at] {
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
    fn a_table_has_a_row_for_each_level_and_their_sum() {
        let level = |level, bytes| LevelMetrics {
            level,
            runs: 1,
            files: 2,
            bytes,
            flow: LevelFlow {
                came_bytes: 1_000,
                written_bytes: 3_000,
                jobs: 1,
                ..LevelFlow::default()
            },
            ..LevelMetrics::default()
        };
        let metrics = KeyspaceMetrics {
            policy: "leveled".to_owned(),
            levels: vec![level(0, 100), level(2, 300)],
            stalls: crate::metrics::StallMetrics {
                memory_full: StallCause { count: 2, us_total: 3_000, us_max: 2_000 },
                ..Default::default()
            },
            ..KeyspaceMetrics::default()
        };
        let all =
            Metrics { keyspaces: [("users".to_owned(), metrics)].into(), ..Metrics::default() };
        let text = all.to_string();
        let row = |name: &str| text.lines().find(|line| line.trim_start().starts_with(name));
        assert!(row("L2").is_some_and(|row| row.contains("300 B") && row.ends_with("3.00")));
        assert!(row("total").is_some_and(|row| row.contains("400 B")), "{text}");
        assert!(text.contains("2 writes waited 3.0 ms for memory for memtables"), "{text}");
        assert!(!text.contains("a free memtable"));
    }
}
