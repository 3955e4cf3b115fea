//! Metrics, text table and CSV rows of `lsmx rmw`.

use serde_json::Value;

use super::RmwEstimate;
use super::page;
use super::result::{RmwCell, RmwResult};
use crate::error::Result;
use crate::metric::table::format_grid;
use crate::metric::{Metric, MetricRegistry, ResultRow, Unit, latency, metric};
use crate::numbers::to_f64;
use crate::report::Report;
use crate::report::provenance::Provenance;
use crate::report::text::format_bytes;

#[rustfmt::skip]
const SUBJECT: &[Metric] = &[
    metric("experiment", "experiment", Unit::Text, "name of the experiment").csv("experiment"),
    metric("varied", "varied", Unit::Text, "what the experiment varies").csv("varied"),
    metric("value", "value", Unit::Text, "value of what the experiment varies").csv("value"),
    metric("sweep.*", "{}", Unit::Text, "value of what the experiment varies"),
    metric("engine", "engine", Unit::Text, "storage engine").csv("engine"),
    metric("mode", "mode", Unit::Text, "get-put: read, change, write; merge: write an operand; kd (key-delta separation): operands outside the tree").csv("mode"),
    metric("base", "base", Unit::Text, "where values are stored: in the tree or in a value log").csv("base"),
    metric("workload.mix", "mix", Unit::Text, "mix of operations").csv("mix"),
    metric("read_ratio", "reads", Unit::Share, "share of the operations that only read").csv("read_ratio"),
    metric("seed", "seed", Unit::Count, "seed of the workload").csv("seed"),
    metric("workload.records", "records", Unit::Count, "records that were loaded").csv("records"),
    metric("workload.loaded_bytes", "loaded", Unit::Bytes, "key and value bytes of the loaded records").csv("loaded_bytes"),
    metric("workload.key_len", "key", Unit::Bytes, "size of a key; the largest if sizes differ").csv("key_len"),
    metric("workload.value_len", "value size", Unit::Bytes, "size of a value; the largest if sizes differ").csv("value_len"),
    metric("workload.field_len", "field", Unit::Bytes, "size of a field").csv("field_len"),
    metric("workload.delta_len", "update", Unit::Bytes, "bytes that an update writes").csv("delta_len"),
    metric("workload.zipf", "zipf", Unit::Mean, "Zipf exponent of the access frequencies").csv("zipf"),
    metric("workload.threads", "threads", Unit::Count, "threads that run operations").csv("threads"),
    metric("workload.memory_budget", "budget", Unit::Bytes, "memory budget of the engine").csv("memory_budget"),
    metric("workload.direct_io", "direct I/O", Unit::Text, "whether tables are read without the page cache").csv("direct_io"),
    metric("workload.memtable_bytes", "memtable", Unit::Bytes, "size of a memtable, if it was given"),
    metric("workload.bucket_bytes", "bucket", Unit::Bytes, "size at which a bucket of the operand store is full, if it was given"),
    metric("workload.scan_read_bytes", "scan read", Unit::Bytes, "bytes of values that a scan reads from a blob file at once"),
    metric("ops", "ops", Unit::Count, "measured operations").csv("ops"),
    metric("ops_per_s", "rate", Unit::Rate, "operations per second until the last one ended").rate().csv("ops_per_s"),
    metric("elapsed_s", "took", Unit::Seconds, "time until the last operation ended").cost().csv("elapsed_s"),
    metric("settle_s", "settle", Unit::Seconds, "time from then until flushes and compaction were idle").cost().csv("settle_s"),
    metric("reads", "read ops", Unit::Count, "plain reads").csv("reads"),
    metric("rmws", "RMW ops", Unit::Count, "updates of a field").csv("rmws"),
    metric("scans", "scan ops", Unit::Count, "number of scans").csv("scans"),
    metric("scanned_entries", "scanned", Unit::Count, "entries that scans returned").csv("scanned_entries"),
    metric("scanned_per_s", "scan rate", Unit::Rate, "entries that scans returned per second of scanning").rate(),
];

#[rustfmt::skip]
const RESOURCES: &[Metric] = &[
    metric("cpu_us_per_op", "CPU", Unit::MicrosPerOperation, "processor time of the operating threads per operation; the system counts it in steps of 10 ms per thread").cost(),
    metric("cpu.user_s", "CPU user", Unit::Seconds, "user time of the operating threads; in steps of 10 ms").cost().csv("cpu_user_s"),
    metric("cpu.system_s", "CPU system", Unit::Seconds, "system time of the operating threads; in steps of 10 ms").cost().csv("cpu_system_s"),
    metric("process_cpu.user_s", "process user", Unit::Seconds, "user time of the process, until compaction was idle; in steps of 10 ms").cost().csv("process_cpu_user_s"),
    metric("process_cpu.system_s", "process system", Unit::Seconds, "system time of the process, until compaction was idle; in steps of 10 ms").cost().csv("process_cpu_system_s"),
    metric("ios_per_read", "I/Os", Unit::Blocks, "blocks of any kind per plain read that the block cache did not have").cost().csv("ios_per_read"),
    metric("read_bytes", "file reads", Unit::Bytes, "bytes that read calls returned, from the first operation until compaction was idle; files in the page cache count too").cost().csv("read_bytes"),
    metric("written_bytes", "file writes", Unit::Bytes, "bytes that write calls wrote, from the first operation until compaction was idle, with the log").cost().csv("written_bytes"),
    metric("wal_bytes", "log writes", Unit::Bytes, "bytes written to the write-ahead log").cost().csv("wal_bytes"),
    metric("log_share", "logs", Unit::Share, "share of the write-ahead log and of the log of the operand store among the written bytes").csv("log_share"),
    metric("file_bytes", "file I/O", Unit::Bytes, "bytes of read and write calls, until compaction was idle").cost(),
    metric("device_bytes", "device", Unit::Bytes, "bytes that the block device read and wrote meanwhile, for all processes"),
    metric("device.read_bytes", "device read", Unit::Bytes, "bytes that the block device read meanwhile, for all processes").cost().ungated().csv("device_read_bytes"),
    metric("device.written_bytes", "device wrote", Unit::Bytes, "bytes that the block device wrote meanwhile, for all processes").cost().ungated().csv("device_written_bytes"),
    metric("device.*", "device {}", Unit::Count, "count of the block device, for all processes"),
    metric("storage_bytes", "storage", Unit::Bytes, "bytes of all files of the idle database, with the log and the file reserved for full disks").cost().csv("storage_bytes"),
    metric("blob_bytes", "blobs", Unit::Bytes, "bytes of the blob files").csv("blob_bytes"),
    metric("memory_bytes", "memory", Unit::Bytes, "largest resident memory of the process during the operations").cost().csv("memory_bytes"),
    metric("memory_bytes_before", "memory before", Unit::Bytes, "resident memory before the database was created").csv("memory_bytes_before"),
    metric("checked_records", "checked", Unit::Count, "records whose final value was compared with the expected one").csv("checked_records"),
    metric("recovery.open_s", "open", Unit::Seconds, "time to open the database after a kill").cost().csv("recovery_open_s"),
    metric("recovery.storage_bytes", "recovered", Unit::Bytes, "bytes of the files before the open").cost(),
    metric("operand_store.delivered_bytes", "delivered", Unit::Bytes, "bytes of operands and delete markers that flushes passed to the operand store, with their keys").csv("delivered_bytes"),
    metric("operand_store.bucket_read_bytes", "collection reads", Unit::Bytes, "bytes that collections of the operand store read from buckets").cost().csv("collection_read_bytes"),
    metric("operand_store.collection_written_bytes", "collection writes", Unit::Bytes, "bytes that collections of the operand store wrote to buckets").cost().csv("collection_written_bytes"),
    metric("operand_store.log_written_bytes", "store log writes", Unit::Bytes, "bytes written to the logs of the operand store").cost().csv("store_log_bytes"),
    metric("collection_read_ratio", "collected", Unit::Times, "bytes that collections read from buckets ÷ delivered bytes").cost().csv("collection_read_ratio"),
    metric("collection_write_ratio", "rewritten", Unit::Times, "bytes that collections wrote to buckets ÷ delivered bytes").cost().csv("collection_write_ratio"),
    metric("collections", "collections", Unit::Count, "buckets that collections rewrote, split, merged or moved to the tree").cost().csv("collections"),
    metric("operand_store.rewrites", "bucket rewrites", Unit::Count, "buckets that collections only rewrote").csv("bucket_rewrites"),
    metric("operand_store.splits", "bucket splits", Unit::Count, "buckets that collections split").csv("bucket_splits"),
    metric("operand_store.merges", "bucket merges", Unit::Count, "pairs of buckets that collections merged").csv("bucket_merges"),
    metric("operand_store.to_tree", "moved buckets", Unit::Count, "buckets whose operands collections moved to the tree").csv("moved_buckets"),
    metric("source.searches_per_read", "searches", Unit::Mean, "tables of the source that a lookup searches after their filters; the operand store counts once").cost().csv("searches_per_read"),
    metric("source.block_reads_per_read", "block reads", Unit::Blocks, "blocks of any kind per lookup that were read from the files of the source").cost().csv("block_reads_per_read"),
    metric("source.operands_per_read", "operands", Unit::Mean, "operands that a lookup found in the source: per table the newest one, in the operand store all").csv("operands_per_read"),
    metric("source.bytes", "contents", Unit::Bytes, "bytes of the keys and values of all entries of the tables").csv("content_bytes"),
    metric("source.operand_share", "operand share", Unit::Share, "share of the bytes of operands, with their keys, among these bytes").csv("operand_share"),
    metric("operand_store.*", "operands {}", Unit::Count, "counter of the operand store"),
    metric("operand_store.*.*", "operands {} {}", Unit::Count, "counter of the operand store"),
];

/// Metrics of `lsmx rmw`.
pub const REGISTRY: MetricRegistry = MetricRegistry {
    command: "rmw",
    metrics: &[
        SUBJECT,
        &latency!("read_latency_us", "read", "time of a plain read", "read_"),
        &latency!(
            "rmw_latency_us",
            "RMW",
            "time of a read-modify-write, which updates one field of a value",
            "rmw_"
        ),
        &latency!("put_latency_us", "put", "time of a put of a whole value", "put_"),
        &latency!("scan_latency_us", "scan", "time of a scan", "scan_"),
        RESOURCES,
    ],
    identity: &["sweep.*", "engine", "mode", "base", "read_ratio"],
    shown: &[
        "ops_per_s",
        "read_latency_us.mean",
        "read_latency_us.p99",
        "read_latency_us.max",
        "rmw_latency_us.mean",
        "rmw_latency_us.p99",
        "rmw_latency_us.max",
        "put_latency_us.mean",
        "put_latency_us.p99",
        "put_latency_us.max",
        "scan_latency_us.mean",
        "scan_latency_us.p99",
        "scan_latency_us.max",
        "scanned_per_s",
        "cpu_us_per_op",
        "ios_per_read",
        "read_bytes",
        "written_bytes",
        "device_bytes",
        "collection_read_ratio",
        "collection_write_ratio",
        "source.searches_per_read",
        "source.block_reads_per_read",
        "source.operands_per_read",
        "source.bytes",
        "source.operand_share",
        "storage_bytes",
        "memory_bytes",
        "recovery.open_s",
    ],
};

fn build_row(experiment: Option<&str>, cell: &RmwCell) -> Result<ResultRow> {
    let (varied, value) = match cell.sweep.0.first() {
        Some((key, value)) => (key.as_str().into(), value.to_string().into()),
        None => (Value::Null, Value::Null),
    };
    let cpu = cell.cpu.map(|cpu| (cpu.user_s + cpu.system_s) * 1e6 / to_f64(cell.ops.max(1)));
    Ok(ResultRow::new(cell)?
        .with_repeats(cell.repeats.as_ref())
        .with_value("experiment", experiment)
        .with_value("varied", varied)
        .with_value("value", value)
        .with_value("scanned_per_s", cell.scanned_per_s())
        .with_value("cpu_us_per_op", cpu)
        .with_value("log_share", cell.log_share())
        .with_value("collections", cell.collections())
        .with_value("collection_read_ratio", cell.collection_ratios().map(|ratios| ratios[0]))
        .with_value("collection_write_ratio", cell.collection_ratios().map(|ratios| ratios[1]))
        .with_value("file_bytes", cell.read_bytes + cell.written_bytes)
        .with_value("device_bytes", cell.device.map(|io| io.read_bytes + io.written_bytes)))
}

impl Report for RmwResult {
    fn registry(&self) -> &'static MetricRegistry {
        &REGISTRY
    }

    fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    fn head(&self) -> String {
        let Some(first) = self.cells.first() else { return String::new() };
        let workload = &first.workload;
        let is_varied = |key: &str| first.sweep.value(key).is_some();
        let unless_varied =
            |key: &str, text: String| if is_varied(key) { String::new() } else { text };
        // In these experiments, `ops` counts only lookups or scans.
        let has_ops =
            !matches!(self.experiment.as_deref(), Some("operands" | "scans" | "read-sources"));
        let ops = if has_ops {
            unless_varied("ops", format!(", {} operations", first.ops))
        } else {
            String::new()
        };
        let checked = self.cells.iter().map(|cell| cell.checked_records).min().unwrap_or(0);
        format!(
            "{} of {} + {} B (key + value){}, operation mix {}{}{ops}, {} thread{}, memory budget {}{}, seed {}\n\
             each run ended with a check: at least {checked} sampled records had their expected values",
            unless_varied("value_len", format!("{} records", workload.records)),
            workload.key_len,
            workload.value_len,
            unless_varied("delta_len", format!(", updates of {} B", workload.delta_len)),
            workload.mix,
            unless_varied("zipf", format!(", zipf {}", workload.zipf)),
            workload.threads,
            if workload.threads == 1 { "" } else { "s" },
            format_bytes(workload.memory_budget),
            if workload.direct_io { ", without the page cache" } else { "" },
            self.provenance.seed,
        )
    }

    fn rows(&self) -> Result<Vec<ResultRow>> {
        self.cells.iter().map(|cell| build_row(self.experiment.as_deref(), cell)).collect()
    }

    fn html(&self) -> Result<String> {
        page::rmw_page(self)
    }
}

/// Returns the table that `--dry-run` prints, with one line per measurement.
pub fn format_estimates(estimates: &[RmwEstimate]) -> String {
    let header = ["cell", "varied", "reads %", "records", "to load", "memory", "operations", ""];
    let rows = estimates.iter().map(|it| {
        vec![
            it.design.clone(),
            it.sweep.to_string(),
            format!("{:.1}", it.read_ratio * 100.0),
            it.records.to_string(),
            format_bytes(it.loaded_bytes),
            format_bytes(it.memory_budget),
            it.ops.to_string(),
            if it.finished { "finished".to_owned() } else { String::new() },
        ]
    });
    format_grid(header.map(str::to_owned).into(), rows)
}
