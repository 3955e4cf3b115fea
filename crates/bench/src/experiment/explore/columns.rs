//! Metrics, text table and CSV rows of `lsmx explore`.

use lsmx_simulator::cost_model::Costs;
use serde_json::Value;

use super::page;
use super::result::{Exploration, ExplorationCell, RecordsSummary, WorkloadSummary};
use crate::error::Result;
use crate::metric::{Metric, MetricRegistry, ResultRow, Unit, build_union_table, latency, metric};
use crate::report::Report;
use crate::report::provenance::Provenance;
use crate::report::text::format_bytes;

/// Explanation of space amplification in the legends of all commands.
pub(crate) const SPACE_AMPLIFICATION: &str =
    "bytes of live tables ÷ key and value bytes of the live records";

/// Metrics of trees that both the engine and the simulator report.
#[rustfmt::skip]
pub(crate) const TREE: &[Metric] = &[
    metric("policy", "policy", Unit::Text, "compaction policy"),
    metric("spec", "spec", Unit::Text, "the policy with all its parameters"),
    metric("sweep.*", "{}", Unit::Text, "value of the swept flag"),
    metric("seed", "seed", Unit::Count, "seed of the workload"),
    metric("ingested_bytes", "ingested", Unit::Bytes, "key and value bytes of all writes"),
    metric("flushed_bytes", "flushed", Unit::Bytes, "bytes of the tables that flushes wrote").cost(),
    metric("flushes", "flushes", Unit::Count, "memtables written as tables"),
    metric("compaction.jobs", "jobs", Unit::Count, "compaction jobs that merged or rewrote tables; jobs that only changed the level of tables are not counted"),
    metric("compaction.trivial_moves", "moves", Unit::Count, "compaction jobs that only changed the level of tables"),
    metric("compaction.drops", "drops", Unit::Count, "compaction jobs that only deleted tables"),
    metric("compaction.read_bytes", "merged", Unit::Bytes, "bytes that compaction read, in whole blocks").cost(),
    metric("compaction.written_bytes", "compacted", Unit::Bytes, "bytes that compaction wrote").cost(),
    metric("data_moved_ratio", "moved", Unit::Times, "bytes that compaction read and wrote ÷ key and value bytes of all writes").cost(),
    metric("write_amplification", "write amp", Unit::Times, "bytes that flushes and compaction wrote ÷ key and value bytes of all writes").cost(),
    metric("compaction_write_amplification", "compaction amp", Unit::Times, "bytes that compaction wrote ÷ bytes of live data").cost(),
    metric("space_amplification", "space amp", Unit::Times, SPACE_AMPLIFICATION).cost(),
    metric("space_amplification_invalid", "invalid", Unit::Share, "bytes of invalid entries ÷ bytes of valid entries").cost(),
    metric("point_lookups[*].alpha", "α {}", Unit::Share, "share of the point lookups whose key is absent"),
    metric("point_lookups[*].ops", "gets α={}", Unit::Count, "point lookups with this share α of absent keys"),
    metric("point_lookups[*].ios_per_get", "I/Os α={}", Unit::Blocks, "blocks of any kind per point lookup that the block cache did not have; α is the share of absent keys, for which the filter of the last run is used only with --filter-last-run").cost(),
    metric("point_lookups[*].blocks_read.*", "blocks α={} {}", Unit::Count, "blocks of this kind that point lookups read").cost().ungated(),
    metric("point_lookups[*].filter_false_positive_rate", "false positives α={}", Unit::SmallShare, "share of the filter checks for absent keys that passed").cost().ungated(),
    metric("point_lookups[*].runs_asked", "runs α={}", Unit::Mean, "sorted runs per point lookup whose range contains the key"),
    metric("range_lookups.runs_touched", "range runs", Unit::Mean, "sorted runs per range lookup"),
    metric("range_lookups.ops", "ranges", Unit::Count, "range lookups"),
    metric("range_lookups.entries", "range entries", Unit::Count, "entries that range lookups returned"),
    metric("range_lookups.blocks_read.*", "range blocks {}", Unit::Count, "blocks of this kind that range lookups read").cost().ungated(),
    metric("range_lookups.ios_per_range", "I/Os range", Unit::Blocks, "blocks per range lookup that the block cache did not have"),
    metric("levels[*].level", "level {}", Unit::Count, "number of the level"),
    metric("levels[*].share", "L{}", Unit::Share, "share of the tree's bytes in this level; – for an empty level"),
    metric("levels[*].runs", "runs L{}", Unit::Count, "sorted runs of this level"),
    metric("levels[*].files", "files L{}", Unit::Count, "tables of this level"),
    metric("levels[*].bytes", "bytes L{}", Unit::Bytes, "bytes of this level"),
    metric("levels[*].entries", "entries L{}", Unit::Count, "entries of this level"),
    metric("levels[*].tombstones", "tombstones L{}", Unit::Count, "tombstones of this level"),
    metric("levels", "levels", Unit::Count, "levels that have tables"),
    metric("runs", "runs", Unit::Count, "sorted runs of the final tree"),
    metric("files", "files", Unit::Count, "tables of the final tree"),
    metric("model.moved_ratio", "model moved", Unit::Times, "bytes moved ÷ bytes ingested by the cost model: 2 × its compaction writes"),
    metric("model.*", "model {}", Unit::Times, "cost model of the literature (Dostoevsky)"),
    metric("elapsed_s", "took", Unit::Seconds, "time of the whole run").cost(),
];

/// Metrics that only the engine reports.
#[rustfmt::skip]
const ENGINE: &[Metric] = &[
    metric("compaction.thread_us_total", "job time", Unit::MicrosAsSeconds, "time of all threads in compaction jobs"),
    metric("compaction.cpu_us_total", "job CPU", Unit::MicrosAsSeconds, "processor time of compaction jobs").cost(),
    metric("compaction.cpu_fraction", "job CPU share", Unit::Share, "processor time ÷ time of compaction jobs").cost(),
    metric("compaction.read_wait_us_total", "job read wait", Unit::MicrosAsSeconds, "time that compaction jobs waited for reads, without the processor time of the reads").cost().ungated(),
    metric("compaction.read_wait_fraction", "job read wait share", Unit::Share, "time that compaction jobs waited for reads ÷ time of compaction jobs").cost().ungated().time(),
    metric("compaction.write_wait_us_total", "job write wait", Unit::MicrosAsSeconds, "time that compaction jobs waited for writes, without the processor time of the writes").cost().ungated(),
    metric("compaction.write_wait_fraction", "job write wait share", Unit::Share, "time that compaction jobs waited for writes ÷ time of compaction jobs").cost().ungated().time(),
    metric("compaction.sync_wait_us_total", "job sync wait", Unit::MicrosAsSeconds, "time that compaction jobs waited for syncs, without the processor time of the syncs").cost().ungated(),
    metric("compaction.sync_wait_fraction", "job sync wait share", Unit::Share, "time that compaction jobs waited for syncs ÷ time of compaction jobs").cost().ungated().time(),
    metric("device_write_amplification", "device amp", Unit::Times, "bytes that log, flushes and compaction wrote ÷ bytes of puts").cost(),
    metric("disk_bytes", "disk", Unit::Bytes, "bytes of all files in the directory, with log and reserve").cost(),
    metric("disk_amplification", "disk amp", Unit::Times, "bytes of all files in the directory, with the log and the file reserved for full disks, ÷ key and value bytes of the live records").cost(),
    metric("space_amplification_peak", "peak space amp", Unit::Times, "largest bytes of tables at one time ÷ bytes of live data at the end").cost(),
    metric("space_peak_bytes", "space peak", Unit::Bytes, "largest bytes of tables at one time"),
    metric("space_transient_bytes", "transient", Unit::Bytes, "largest output of a job while its inputs existed"),
    metric("delete_persistence.deletes", "deletes", Unit::Count, "deletes of a key"),
    metric("delete_persistence.live_tombstones", "live tombstones", Unit::Count, "point tombstones in the final tree").cost(),
    metric("delete_persistence.oldest_age_us", "oldest tombstone", Unit::MicrosAsSeconds, "age of the oldest tombstone in the final tree, by the database clock"),
    metric("delete_persistence.age_us_max", "tombstone age", Unit::MicrosAsSeconds, "upper bound of the age at which jobs dropped tombstones, by the database clock"),
    metric("delete_persistence.run_us", "run", Unit::MicrosAsSeconds, "duration of the run, by the database clock"),
    metric("delete_persistence.within[*].share_of_run", "within {}", Unit::Share, "time limit, as a share of the run"),
    metric("delete_persistence.within[*].share", "persisted in {}", Unit::Share, "share of the deletes whose tombstone was dropped within this share of the run"),
    metric("stalls.count", "stalls", Unit::Count, "writes that waited").cost().time(),
    metric("stalls.total_us", "stalled", Unit::MicrosAsSeconds, "total time that writes waited").cost(),
    metric("stalls.max_us", "longest stall", Unit::Micros, "longest wait of a write").cost(),
    metric("stalls.memtables_full", "stalls memtables", Unit::Count, "writes that waited because all memtables were full").cost().time(),
    metric("stalls.memory_full", "stalls memory", Unit::Count, "writes that waited because the memory of all memtables was used").cost().time(),
    metric("stalls.too_many_runs", "stalls runs", Unit::Count, "writes that waited because the policy has too many runs to merge").cost().time(),
    metric("stalls.throttled_us", "throttled", Unit::MicrosAsSeconds, "total time that writes were slowed down because of compaction debt").cost(),
    metric("point_lookups[*].latency_us.*", "get α={} {}", Unit::Micros, "time of a point lookup; α is the share of absent keys").cost(),
    metric("point_lookups[*].read_amplification", "read amp α={}", Unit::Times, "blocks read ÷ point lookups that found their key").cost(),
    metric("range_lookups.latency_us.*", "range {}", Unit::Micros, "time to read all entries of a range; --selectivity is the share of all records in a range").cost(),
    metric("range_lookups.by_selectivity[*].selectivity", "selectivity {}", Unit::SmallShare, "share of all entries that a range lookup reads"),
    metric("range_lookups.by_selectivity[*].ops", "ranges s={}", Unit::Count, "range lookups of this selectivity"),
    metric("range_lookups.by_selectivity[*].entries", "range entries s={}", Unit::Count, "entries that range lookups of this selectivity returned"),
    metric("range_lookups.by_selectivity[*].latency_us.*", "range s={} {}", Unit::Micros, "time of a range lookup of this selectivity").cost(),
    metric("range_lookups.by_selectivity[*].blocks_read.*", "range blocks s={} {}", Unit::Count, "blocks of this kind that range lookups of this selectivity read").cost().ungated(),
    metric("simulated.data_moved_ratio", "simulated", Unit::Times, "prediction of `moved` by the simulator"),
    metric("simulated.compaction.jobs", "simulated jobs", Unit::Count, "compaction jobs, by the simulator"),
    metric("digest", "digest", Unit::Text, "equal digests mean equal runs; only with --deterministic"),
];

/// Metrics of `lsmx explore`.
pub const REGISTRY: MetricRegistry = MetricRegistry {
    command: "explore",
    metrics: &[
        TREE,
        ENGINE,
        &latency!(
            "put_latency_us",
            "put",
            "time of a put, with the waits for flushes and compaction"
        ),
        &latency!("compaction.latency_us", "job", "time of a compaction job, without moves"),
    ],
    identity: &["policy", "spec", "sweep.*"],
    shown: &[
        "compaction.jobs",
        "data_moved_ratio",
        "simulated.data_moved_ratio",
        "write_amplification",
        "space_amplification",
        "disk_amplification",
        "put_latency_us.mean",
        "put_latency_us.p999",
        "put_latency_us.max",
        "point_lookups[*].ios_per_get",
        "point_lookups[*].latency_us.mean",
        "range_lookups.latency_us.mean",
        "runs",
        "levels[*].share",
    ],
};

pub(crate) fn build_row(cell: &ExplorationCell, swept: bool) -> Result<ResultRow> {
    let row = ResultRow::new(cell)?.with_repeats(cell.repeats.as_ref());
    Ok(add_level_sums(row, cell.model.as_ref(), swept))
}

/// Adds columns with the totals over all levels, and with the moved bytes that the cost model predicts.
///
/// Of the columns `policy` and `spec`, only one remains: `spec` if `swept` is set, because a sweep may change the
/// parameters of the policy.
pub(crate) fn add_level_sums(row: ResultRow, model: Option<&Costs>, swept: bool) -> ResultRow {
    let bytes: Vec<(String, f64)> = row
        .names()
        .filter(|name| name.starts_with("levels[") && name.ends_with("].bytes"))
        .filter_map(|name| Some((name.replace("].bytes", "].share"), row.number(name)?)))
        .collect();
    let sum = |end: &str| -> f64 {
        let names = row.names().filter(|name| name.starts_with("levels[") && name.ends_with(end));
        // The sum of an empty iterator is -0.
        names.filter_map(|name| row.number(name)).fold(0.0, |sum, number| sum + number)
    };
    let (runs, files, all) = (sum("].runs"), sum("].files"), sum("].bytes"));
    let moved = model.map(|costs| 2.0 * costs.compaction_write_amplification);
    let row = row
        .with_value(if swept { "policy" } else { "spec" }, Value::Null)
        .with_value("levels", bytes.len())
        .with_value("runs", runs)
        .with_value("files", files)
        .with_value("model.moved_ratio", moved);
    bytes.into_iter().fold(row, |row, (name, bytes)| row.with_value(name, bytes / all.max(1.0)))
}

impl Report for Exploration {
    fn registry(&self) -> &'static MetricRegistry {
        &REGISTRY
    }

    fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    fn head(&self) -> String {
        let Some(first) = self.cells.first() else { return String::new() };
        let mut head = describe_workload(&first.workload, first.seed);
        if !first.sweep.is_empty() {
            head.push_str("; this is the first point of the sweep");
        }
        if let Some(repeats) = &first.repeats {
            head.push_str(&format!("\nmedians of {} runs (lowest–highest)", repeats.seeds.len()));
        }
        head
    }

    fn rows(&self) -> Result<Vec<ResultRow>> {
        let swept = self.cells.iter().any(|cell| !cell.sweep.is_empty());
        self.cells.iter().map(|cell| build_row(cell, swept)).collect()
    }

    fn notes(&self) -> Vec<&'static str> {
        notes(self.cells.iter().map(|cell| cell.spec.as_str()))
    }

    /// Returns a column for each swept flag, followed by a column for each number. If runs are repeated, additional
    /// columns named `.low` and `.high` hold the lowest and the highest value.
    fn csv(&self) -> Result<(Vec<String>, Vec<Vec<String>>)> {
        let row = |cell: &ExplorationCell| {
            Ok(ResultRow::new(cell)?.with_repeats(cell.repeats.as_ref()).into_csv().into())
        };
        Ok(build_union_table(&self.cells.iter().map(row).collect::<Result<Vec<_>>>()?))
    }

    fn html(&self) -> Result<String> {
        page::exploration_page(self)
    }
}

const FULL_NOTE: &str = "`full` has a first level of T²/2 memtables, to reproduce the proportions of its study. \
     Textbook full leveling, `full(l1=10)` for T = 10, writes about 0.4 times as much.";
const UNIVERSAL_NOTE: &str = "`universal` rewrites all data each time the bytes above the oldest run reach `space` per \
     cent of it. On a large tree it writes up to 12 times as much as `tiering`, which has no such bound.";

/// Returns notes for the policies in `specs` that write more data than readers may expect.
pub(crate) fn notes<'a>(specs: impl Iterator<Item = &'a str> + Clone) -> Vec<&'static str> {
    let has = |name: &str| {
        let is_named = |spec: &str| spec.split('(').next() == Some(name) && !spec.contains("l1=");
        specs.clone().any(is_named)
    };
    [("full", FULL_NOTE), ("universal", UNIVERSAL_NOTE)]
        .into_iter()
        .filter_map(|(name, note)| has(name).then_some(note))
        .collect()
}

pub(crate) fn describe_workload(workload: &WorkloadSummary, seed: u64) -> String {
    let sizes = format!(
        "memtable {}, block cache {}, seed {seed}",
        format_bytes(workload.memtable_bytes),
        format_bytes(workload.block_cache_bytes),
    );
    let records = match &workload.records {
        RecordsSummary::Trace { name, counts } => {
            return format!(
                "{} operations of {name} ({} puts, {} deletes, {} merges, {} range deletes, {} gets, {} scans), {sizes}",
                counts.ops(),
                counts.puts,
                counts.deletes,
                counts.merges,
                counts.range_deletes,
                counts.gets,
                counts.scans,
            );
        }
        RecordsSummary::Generated { key_len, value_len, distribution } => {
            format!("records of {key_len} + {value_len} B (key + value), {distribution} keys")
        }
        RecordsSummary::File { name, shuffled, .. } => {
            format!("of {name}, {}", if *shuffled { "shuffled" } else { "in file order" })
        }
    };
    let sum = |of: fn(&crate::workload::phases::Phase) -> u64| {
        workload.phases.iter().map(of).sum::<u64>()
    };
    let optional = |count: u64, what: &str| match count {
        0 => String::new(),
        count => format!(", {count} {what}"),
    };
    format!(
        "{} writes ({} updates, {} deletes{}{}), {records}, {sizes}",
        sum(|phase| phase.writes()),
        sum(|phase| phase.updates),
        sum(|phase| phase.deletes),
        optional(sum(|phase| phase.merges), "merges"),
        optional(sum(|phase| phase.range_deletes), "range deletes"),
    )
}
