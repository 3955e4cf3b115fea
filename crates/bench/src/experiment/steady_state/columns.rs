//! Metrics, text table and CSV rows of the experiment `steady-state`.

use super::page;
use super::result::{SteadyStateCell, SteadyStateResult};
use crate::error::Result;
use crate::experiment::explore::columns::SPACE_AMPLIFICATION;
use crate::experiment::throughput::columns::{describe_memory_limit, summarize_settings};
use crate::metric::{Metric, MetricRegistry, ResultRow, Unit, latency, metric};
use crate::report::Report;
use crate::report::provenance::Provenance;
use crate::report::text::format_bytes;

#[rustfmt::skip]
const RUN: &[Metric] = &[
    metric("engine", "engine", Unit::Text, "storage engine").csv("engine"),
    metric("minute", "minute", Unit::Count, "minute of the running phase; `all` is the whole phase").csv("minute"),
    metric("threads", "threads", Unit::Count, "threads that run puts and gets").csv("threads"),
    metric("read_ratio", "gets", Unit::Share, "share of gets among the operations; the others are puts").csv("read_ratio"),
    metric("sustained_ops_per_s", "sustained", Unit::Rate, "operations per second in the second half of the testing phase").rate().csv("sustained_ops_per_s"),
    metric("scheduled_ops_per_s", "scheduled", Unit::Rate, "operations per second that the running phase schedules").csv("scheduled_ops_per_s"),
    metric("elapsed_s", "took", Unit::Seconds, "length of the minute or of the phase").csv("elapsed_s"),
    metric("ops", "ops", Unit::Count, "operations that ended in this time").csv("ops"),
    metric("ops_per_s", "rate", Unit::Rate, "operations per second that ended; lower than scheduled if the engine was too slow").rate().csv("ops_per_s"),
    metric("gets", "get ops", Unit::Count, "gets that ended in this time").csv("gets"),
    metric("puts", "put ops", Unit::Count, "puts that ended in this time").csv("puts"),
];

const PUT_LATENCY: &[Metric] = &latency!(
    "put_latency_us",
    "put",
    "time of a put since its scheduled start; within 1 % for a single minute",
    "put_"
);
const GET_LATENCY: &[Metric] = &latency!(
    "get_latency_us",
    "get",
    "time of a get since its scheduled start; within 1 % for a single minute",
    "get_"
);

#[rustfmt::skip]
const COSTS: &[Metric] = &[
    metric("device_read_bytes_per_get", "read per get", Unit::Bytes, "bytes that the process read from the device ÷ gets, with the reads of compactions").cost().csv("device_read_bytes_per_get"),
    metric("device_written_bytes_per_put", "written per put", Unit::Bytes, "bytes that the block device wrote ÷ puts; for all processes, with the writes of compactions").cost().csv("device_written_bytes_per_put"),
    metric("stall_s", "stalls", Unit::Seconds, "time by which the engine delayed writes because of flushes and compactions, summed over the threads").cost().csv("stall_s"),
    metric("pending_compaction_bytes", "pending", Unit::Bytes, "bytes that pending compactions rewrite, by the estimate of the engine at the end of this time").cost().ungated().csv("pending_compaction_bytes"),
    metric("space_amplification", "space amp", Unit::Times, SPACE_AMPLIFICATION).cost().csv("space_amplification"),
    metric("table_bytes", "tables", Unit::Bytes, "bytes of live tables").cost().csv("table_bytes"),
    metric("disk_bytes", "disk", Unit::Bytes, "bytes of all files of the database, with the log").cost().csv("disk_bytes"),
];

/// Metrics of the experiment `steady-state`.
pub const REGISTRY: MetricRegistry = MetricRegistry {
    command: "bench --experiment steady-state",
    metrics: &[RUN, PUT_LATENCY, GET_LATENCY, COSTS],
    identity: &["engine", "minute"],
    shown: &[
        "scheduled_ops_per_s",
        "ops_per_s",
        "put_latency_us.p50",
        "put_latency_us.p99",
        "put_latency_us.p999",
        "put_latency_us.max",
        "get_latency_us.p50",
        "get_latency_us.p99",
        "get_latency_us.p999",
        "get_latency_us.max",
        "device_read_bytes_per_get",
        "device_written_bytes_per_put",
        "stall_s",
        "pending_compaction_bytes",
        "space_amplification",
    ],
};

/// Returns a row for each minute and a row for the whole running phase.
fn build_rows(cell: &SteadyStateCell) -> Result<Vec<ResultRow>> {
    let summary = build_summary(cell)?;
    let mut rows = Vec::new();
    for (minute, period) in (1u64..).zip(&cell.by_minute) {
        let mut row = ResultRow::new(period)?.with_value("minute", minute);
        for name in
            ["engine", "threads", "read_ratio", "sustained_ops_per_s", "scheduled_ops_per_s"]
        {
            if let Some(value) = summary.get(name) {
                row = row.with_value(name, value.clone());
            }
        }
        rows.push(row);
    }
    rows.push(summary);
    Ok(rows)
}

pub(super) fn build_summary(cell: &SteadyStateCell) -> Result<ResultRow> {
    Ok(ResultRow::new(cell)?.with_value("minute", "all"))
}

impl Report for SteadyStateResult {
    fn registry(&self) -> &'static MetricRegistry {
        &REGISTRY
    }

    fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    fn head(&self) -> String {
        let settings = &self.settings;
        let mut head = format!(
            "{}: {}, block cache {}, seed {}\n",
            self.experiment,
            summarize_settings(settings),
            format_bytes(settings.block_cache_bytes),
            self.provenance.seed,
        );
        head.push_str(&describe_memory_limit(settings));
        if let Some(minutes) = self.testing_minutes {
            head.push_str(&format!("testing phase of {minutes} min, "));
        }
        head.push_str(&format!("running phase of {} min\n", self.minutes));
        for failure in &self.failures {
            head.push_str(&format!("not measured: {failure}\n"));
        }
        for cell in &self.cells {
            if let Some(rate) = cell.sustained_ops_per_s {
                let scheduled = cell.scheduled_ops_per_s;
                head.push_str(&format!(
                    "{}: {rate:.0} operations per s sustained, {scheduled:.0} scheduled\n",
                    cell.engine
                ));
            }
        }
        head
    }

    fn rows(&self) -> Result<Vec<ResultRow>> {
        let rows: Result<Vec<_>> = self.cells.iter().map(build_rows).collect();
        Ok(rows?.concat())
    }

    fn html(&self) -> Result<String> {
        page::steady_state_page(self)
    }
}
