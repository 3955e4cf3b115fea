//! Runs one policy with one workload and one seed on the engine.

use std::ops::Bound;

use lsmx::env::Background;
use lsmx::event::{Event, EventListener};
use lsmx::metrics::KeyspaceMetrics;
use lsmx::{Db, Keyspace, Metrics};
use lsmx_base::sync::{Arc, Mutex};
use lsmx_compaction::JobKind;

use crate::clock::{self, Stopwatch};
use crate::error::{Error, Result};
use crate::experiment::Progress;
use crate::latency::Latencies;
use crate::numbers::{self, ratio};
use crate::peers::lsmx::engine_error as engine;
use crate::process;
use crate::temporary;
use crate::workload::phases::Phase;
use crate::workload::records::Records;
use crate::workload::stream::{Operation, WorkloadStream};

use super::decisions::DecisionWriter;
use super::digest::{DigestedJob, ScanDigest, TextDigest};
use super::history::HistoryRecorder;
use super::job_totals::JobTotals;
use super::lookup_meter::{LookupMeter, ReadingOperation};
use super::lookup_threads::{CheckedReader, LookupKind, PreparedLookup};
use super::replay;
use super::result::{
    CompactionTotals, ExplorationCell, LevelSummary, RecordsSummary, StallTotals, WorkloadSummary,
};
use super::{Config, PlannedCell, RecordSource};

pub(super) const PROGRESS_OPS: u64 = 4096;
/// Approximate memory, in bytes, of the lookups that are prepared before several threads perform them.
const PREPARED_BYTES: usize = 32 << 20;

/// Event listener that records flushes and compactions in the order in which they change the tree.
struct JobListener {
    measured: Mutex<JobMeasurements>,
    decisions: Option<DecisionWriter>,
    history: HistoryRecorder,
}

#[derive(Clone, Default)]
struct JobMeasurements {
    latencies: Latencies,
    totals: JobTotals,
    digest: TextDigest,
}

impl EventListener for JobListener {
    fn on_event(&self, event: &Event) {
        if let (Event::Decision(decision), Some(decisions)) = (event, &self.decisions) {
            decisions.write_decision(decision);
        }
        self.history.add_event(event);
        let mut measured = self.measured.lock();
        measured.totals.add_event(event);
        match event {
            Event::Flush(end) => measured.digest.add_line(format_args!(
                "flush out {:?} entries {} written {}",
                end.output.map(|file| file.0),
                end.entries,
                end.written_bytes
            )),
            Event::Compaction(end) => {
                // With a deterministic clock, time does not advance during jobs, so the latency of jobs is unknown.
                if end.job.kind != JobKind::Move && end.elapsed_us > 0 {
                    measured.latencies.record_ns(end.elapsed_us.saturating_mul(1000));
                }
                measured.digest.add_line(format_args!(
                    "job {} out {:?} read {} written {}",
                    DigestedJob(&end.job),
                    end.outputs.iter().map(|file| file.0).collect::<Vec<_>>(),
                    end.read_bytes,
                    end.written_bytes
                ));
            }
            _ => {}
        }
    }
}

/// Runs the policy in a new database and removes the database afterwards.
pub(super) fn run_cell(
    config: &Config,
    place: &PlannedCell<'_>,
    title: &str,
    progress: &mut dyn Progress,
) -> Result<ExplorationCell> {
    let stopwatch = Stopwatch::start();
    let PlannedCell { point, policy, seed, .. } = *place;
    let (mut records, summary) = point.open_records(seed)?;
    // The first key of a range lookup cannot be predicted if a record file contains a key twice, or if a FIFO policy
    // drops records.
    let exact = !matches!(summary, RecordsSummary::File { .. }) && !policy.can_drop_data();
    let workload = point.workload_summary(summary, false);
    let mut digest = TextDigest::default();
    digest.add_line(format_args!("spec {policy}"));
    // The digest excludes direct I/O, which changes only where blocks are cached.
    let digested = WorkloadSummary { direct_io: false, ..workload.clone() };
    digest.add_line(format_args!("workload {}", serde_json::to_string(&digested)?));
    digest.add_line(format_args!("seed {seed}"));
    let jobs = Arc::new(JobListener {
        measured: Mutex::new(JobMeasurements { digest, ..JobMeasurements::default() }),
        decisions: config.decisions.clone(),
        history: HistoryRecorder::default(),
    });

    let directory = temporary::create_temporary_directory("lsmx-explore-", &config.directory)?;
    let keyspace = point.keyspace_options(policy);
    let listener: Arc<dyn EventListener> = Arc::<JobListener>::clone(&jobs);
    let mut options = point
        .effective_settings()
        .database_options()
        .listener(listener)
        .explain_decisions(config.decisions.is_some())
        .keyspace_defaults(keyspace.clone());
    if point.deterministic {
        options = options.background(Background::Inline).seed(seed);
    }
    let db = Db::open(directory.path().join("db"), options).map_err(engine("open a database"))?;
    let watch = jobs.history.start_recording(&db);
    let begun_us = db.env().now_us();
    let mut run = CellRun {
        keyspaces: vec![db.default_keyspace()],
        keyspace: db.default_keyspace(),
        reader: CheckedReader {
            keyspace: db.default_keyspace(),
            exact,
            loses: policy.can_drop_data(),
        },
        threads: numbers::to_usize(point.threads),
        pacer: point.write_rate.map(WritePacer::new),
        db,
        records: &mut records,
        put_latencies: Latencies::new(),
        meter: LookupMeter::default(),
        unsettled: false,
        key: Vec::new(),
        value: Vec::new(),
    };
    let traced = match &point.source {
        RecordSource::Trace(trace) => {
            Some(replay::replay_trace(&mut run, trace, keyspace, seed, title, progress)?)
        }
        _ => None,
    };
    let mut stream = WorkloadStream::new(run.records.keys().cloned(), seed);
    for phase in &point.phases {
        progress.begin_phase(&format!("{title}: {}", phase.name), phase.operation_count());
        run.run_phase(phase, &mut stream, progress)?;
        progress.end_phase();
        if phase.settle {
            run.flush_and_wait_idle(title, progress)?;
        }
    }
    if run.unsettled {
        run.flush_and_wait_idle(title, progress)?;
    }
    drop(watch);
    let metrics = run.db.metrics();
    let run_us = run.db.env().now_us().saturating_sub(begun_us);
    let scan = run.digest_entries(title, progress)?;
    if traced.is_some_and(|entries| entries != scan.entries) && !policy.can_drop_data() {
        let (found, must) = ("not where the trace ends", "what the trace leaves");
        return Err(Error::WrongAnswer { key: "of all keyspaces".to_owned(), found, must });
    }
    let (point_lookups, range_lookups) = run.meter.into_results();
    let put_latency_us = run.put_latencies.summary();
    let disk_bytes = process::directory_file_bytes(&directory.path().join("db"));
    run.db.close(None).map_err(engine("close the database"))?;

    let JobMeasurements { latencies, totals, digest } = jobs.measured.lock().clone();
    let tree = sum_keyspace_metrics(metrics.keyspaces.values());
    let levels = level_summaries(&tree);
    let digest = point.deterministic.then(|| finish_cell(digest, &tree, &metrics, &levels, &scan));
    let compacted = &tree.compaction;
    let written = tree.flushed_bytes + compacted.written_bytes;
    Ok(ExplorationCell {
        policy: policy.name().to_owned(),
        spec: policy.to_string(),
        sweep: point.sweep.clone(),
        workload,
        seed,
        ingested_bytes: tree.ingested_bytes,
        flushed_bytes: tree.flushed_bytes,
        flushes: tree.flushes,
        compaction: CompactionTotals {
            jobs: compacted.jobs,
            trivial_moves: compacted.trivial_moves,
            read_bytes: compacted.read_bytes,
            written_bytes: compacted.written_bytes,
            latency_us: latencies.summary(),
            thread_us_total: totals.thread_us,
            cpu_us_total: totals.cpu_us,
            cpu_fraction: ratio(totals.cpu_us, totals.thread_us),
            read_wait_us_total: totals.read_wait_us,
            read_wait_fraction: ratio(totals.read_wait_us, totals.thread_us),
            write_wait_us_total: totals.write_wait_us,
            write_wait_fraction: ratio(totals.write_wait_us, totals.thread_us),
            sync_wait_us_total: totals.sync_wait_us,
            sync_wait_fraction: ratio(totals.sync_wait_us, totals.thread_us),
        },
        data_moved_ratio: ratio(
            compacted.read_bytes + compacted.written_bytes,
            tree.ingested_bytes,
        ),
        write_amplification: ratio(written, tree.ingested_bytes),
        compaction_write_amplification: ratio(compacted.written_bytes, scan.entry_bytes()),
        device_write_amplification: ratio(metrics.wal.written_bytes + written, tree.put_bytes),
        space_amplification: ratio(
            levels.iter().map(|level| level.bytes).sum(),
            scan.entry_bytes(),
        ),
        disk_bytes,
        disk_amplification: ratio(disk_bytes, scan.entry_bytes()),
        space_amplification_invalid: compute_invalid_share(&levels, &scan),
        space_amplification_peak: ratio(totals.peak_bytes, scan.entry_bytes()),
        space_peak_bytes: totals.peak_bytes,
        space_transient_bytes: totals.transient_bytes,
        delete_persistence: totals.delete_persistence(
            point.point_delete_count(),
            run_us,
            levels.iter().map(|level| level.tombstones).sum(),
            tree.oldest_tombstone_age_us,
        ),
        put_latency_us,
        stalls: StallTotals {
            count: tree.stalls.count,
            total_us: tree.stalls.us_total,
            max_us: tree.stalls.us_max,
            memtables_full: tree.stalls.memtables_full.count,
            memory_full: tree.stalls.memory_full.count,
            too_many_runs: tree.stalls.too_many_runs.count,
            throttled_us: tree.stalls.throttle_us_total,
        },
        point_lookups,
        range_lookups,
        levels,
        history: jobs.history.history_points(&metrics),
        elapsed_s: stopwatch.elapsed_s(),
        digest,
        // The caller sets the following fields.
        simulated: None,
        model: None,
        repeats: None,
    })
}

fn level_summaries(tree: &KeyspaceMetrics) -> Vec<LevelSummary> {
    tree.levels
        .iter()
        .filter(|level| level.runs > 0)
        .map(|level| LevelSummary {
            level: u64::from(level.level),
            runs: level.runs,
            files: level.files,
            bytes: level.bytes,
            entries: level.entries,
            tombstones: level.tombstones,
        })
        .collect()
}

/// Returns the sum of the metrics of all keyspaces. A trace may write to several keyspaces.
pub(super) fn sum_keyspace_metrics<'a>(
    mut trees: impl Iterator<Item = &'a KeyspaceMetrics>,
) -> KeyspaceMetrics {
    let mut whole = trees.next().cloned().unwrap_or_default();
    for tree in trees {
        whole.gets += tree.gets;
        whole.ingested_bytes += tree.ingested_bytes;
        whole.put_bytes += tree.put_bytes;
        whole.flushes += tree.flushes;
        whole.flushed_bytes += tree.flushed_bytes;
        whole.compaction.jobs += tree.compaction.jobs;
        whole.compaction.trivial_moves += tree.compaction.trivial_moves;
        whole.compaction.drops += tree.compaction.drops;
        whole.compaction.read_bytes += tree.compaction.read_bytes;
        whole.compaction.written_bytes += tree.compaction.written_bytes;
        whole.stalls.count += tree.stalls.count;
        whole.stalls.us_total += tree.stalls.us_total;
        whole.stalls.us_max = whole.stalls.us_max.max(tree.stalls.us_max);
        whole.stalls.memtables_full.count += tree.stalls.memtables_full.count;
        whole.stalls.memory_full.count += tree.stalls.memory_full.count;
        whole.stalls.too_many_runs.count += tree.stalls.too_many_runs.count;
        whole.stalls.throttle_us_total += tree.stalls.throttle_us_total;
        whole.oldest_tombstone_age_us =
            whole.oldest_tombstone_age_us.max(tree.oldest_tombstone_age_us);
        for level in &tree.levels {
            match whole.levels.iter_mut().find(|at| at.level == level.level) {
                Some(at) => {
                    at.runs += level.runs;
                    at.files += level.files;
                    at.bytes += level.bytes;
                    at.entries += level.entries;
                    at.tombstones += level.tombstones;
                    at.range_tombstones += level.range_tombstones;
                }
                None => whole.levels.push(level.clone()),
            }
        }
    }
    whole.levels.sort_by_key(|level| level.level);
    whole
}

/// Estimates the ratio of invalid to live bytes. Invalid bytes are the bytes of shadowed entries and tombstones. The
/// estimate assumes that a tombstone is as long as the mean live key, and a shadowed entry as long as the mean live
/// entry.
fn compute_invalid_share(levels: &[LevelSummary], scan: &ScanDigest) -> f64 {
    if scan.entries == 0 {
        return 0.0;
    }
    let entries: u64 = levels.iter().map(|level| level.entries).sum();
    let tombstones: u64 = levels.iter().map(|level| level.tombstones).sum();
    let shadowed = entries.saturating_sub(tombstones).saturating_sub(scan.entries);
    numbers::to_f64(shadowed) / numbers::to_f64(scan.entries)
        + numbers::to_f64(tombstones) / numbers::to_f64(scan.entries)
            * ratio(scan.key_bytes, scan.entry_bytes())
}

fn finish_cell(
    mut digest: TextDigest,
    tree: &KeyspaceMetrics,
    metrics: &Metrics,
    levels: &[LevelSummary],
    scan: &ScanDigest,
) -> String {
    let compacted = &tree.compaction;
    digest.add_line(format_args!(
        "counters ingested_bytes={} put_bytes={} flushes={} flushed_bytes={} jobs={} \
         trivial_moves={} drops={} read_bytes={} written_bytes={} wal_bytes={} gets={}",
        tree.ingested_bytes,
        tree.put_bytes,
        tree.flushes,
        tree.flushed_bytes,
        compacted.jobs,
        compacted.trivial_moves,
        compacted.drops,
        compacted.read_bytes,
        compacted.written_bytes,
        metrics.wal.written_bytes,
        tree.gets
    ));
    digest.add_levels(levels);
    digest.add_line(format_args!("scan {} {}", scan.entries, scan.to_hex()));
    digest.to_hex()
}

/// Limits the rate of writes. A write that ends late delays all later ones, so that no writes follow it at a higher
/// rate.
#[derive(Debug)]
struct WritePacer {
    watch: Stopwatch,
    interval_ns: f64,
    /// Time at which the next write may begin, in nanoseconds since the start of `watch`.
    due_ns: f64,
}

impl WritePacer {
    /// Maximum time in nanoseconds by which a write begins too early. A sleep between two writes would end too late.
    const EARLY_NS_MAX: f64 = 1e6;

    fn new(rate: f64) -> WritePacer {
        WritePacer { watch: Stopwatch::start(), interval_ns: 1e9 / rate, due_ns: 0.0 }
    }

    fn wait(&mut self) {
        let now_ns = numbers::to_f64(self.watch.elapsed_ns());
        if self.due_ns > now_ns + Self::EARLY_NS_MAX {
            clock::sleep_ns(numbers::round_to_u64(self.due_ns - now_ns));
        }
        self.due_ns = self.due_ns.max(now_ns) + self.interval_ns;
    }
}

/// An open database with the measurements of the run.
#[derive(Debug)]
pub(super) struct CellRun<'a> {
    pub(super) db: Db,
    /// All keyspaces. The default keyspace is the first.
    pub(super) keyspaces: Vec<Keyspace>,
    keyspace: Keyspace,
    pub(super) reader: CheckedReader,
    threads: usize,
    pacer: Option<WritePacer>,
    records: &'a mut Records,
    pub(super) put_latencies: Latencies,
    pub(super) meter: LookupMeter,
    pub(super) unsettled: bool,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl CellRun<'_> {
    fn run_phase(
        &mut self,
        phase: &Phase,
        stream: &mut WorkloadStream,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let rows: Vec<usize> =
            phase.lookups.iter().map(|lookups| self.meter.point_row(lookups)).collect();
        let range_row = match phase.ranges {
            0 => None,
            _ => Some(self.meter.range_row(Some(phase.selectivity))),
        };
        let operations = stream.phase_operations(phase);
        if self.threads > 1 && phase.writes() == 0 {
            return self.run_lookups(operations, &rows, range_row, progress);
        }
        let mut ops = 0;
        for operation in operations {
            self.run_operation(operation, &rows, range_row)?;
            ops += 1;
            if u64::is_multiple_of(ops, PROGRESS_OPS) {
                progress.advance(PROGRESS_OPS);
            }
        }
        self.set_reading_operation(ReadingOperation::None);
        Ok(())
    }

    /// Performs the lookups of a phase without writes on several threads.
    ///
    /// The lookup meter can assign block reads to only one group of lookups at a time. Therefore all threads perform
    /// the prepared lookups of one group before those of the next group. Each group is a row of the result.
    fn run_lookups(
        &mut self,
        mut operations: impl Iterator<Item = Operation>,
        rows: &[usize],
        range_row: Option<usize>,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        loop {
            let mut lookups = self.prepare_lookups(&mut operations, rows, range_row)?;
            if lookups.is_empty() {
                self.set_reading_operation(ReadingOperation::None);
                return Ok(());
            }
            lookups.sort_by_key(|lookup| lookup.row);
            for of_row in lookups.chunk_by(|a, b| a.row == b.row) {
                let row = of_row[0].row;
                self.set_reading_operation(row);
                for thread in self.reader.run_lookups(of_row, self.threads, progress)? {
                    self.meter.add_thread_lookups(row, &thread);
                }
            }
        }
    }

    /// Prepares the next lookups, up to about [`PREPARED_BYTES`] of memory. Returns an empty list if no lookups are
    /// left.
    fn prepare_lookups(
        &mut self,
        operations: &mut impl Iterator<Item = Operation>,
        rows: &[usize],
        range_row: Option<usize>,
    ) -> Result<Vec<PreparedLookup>> {
        let (mut prepared, mut bytes) = (Vec::new(), 0);
        for operation in operations {
            let (row, kind) = match operation {
                Operation::GetPresent { record, lookups } => {
                    self.records.write_key(record, &mut self.key)?;
                    (ReadingOperation::Point(rows[lookups]), LookupKind::Point { present: true })
                }
                Operation::GetAbsent { record, salt, lookups } => {
                    self.records.write_absent_key(record, salt, &mut self.key)?;
                    (ReadingOperation::Point(rows[lookups]), LookupKind::Point { present: false })
                }
                Operation::Range { record, entries } => {
                    self.records.write_key(record, &mut self.key)?;
                    let row = range_row.unwrap_or_else(|| self.meter.range_row(None));
                    (ReadingOperation::Range(row), LookupKind::Range { entries })
                }
                // Callers pass only phases without writes. A write would run before the lookups that are already
                // prepared.
                write => {
                    self.run_operation(write, rows, range_row)?;
                    continue;
                }
            };
            prepared.push(PreparedLookup { key: self.key.clone(), row, kind });
            bytes += size_of::<PreparedLookup>() + self.key.len();
            if bytes >= PREPARED_BYTES {
                break;
            }
        }
        Ok(prepared)
    }

    fn run_operation(
        &mut self,
        operation: Operation,
        rows: &[usize],
        range_row: Option<usize>,
    ) -> Result<()> {
        let is_read = matches!(
            operation,
            Operation::GetPresent { .. } | Operation::GetAbsent { .. } | Operation::Range { .. }
        );
        if let Some(pacer) = self.pacer.as_mut().filter(|_| !is_read) {
            pacer.wait();
        }
        match operation {
            Operation::Insert { record } => self.put(record, 0),
            Operation::Update { record, version } => self.put(record, version),
            Operation::Merge { record, version } => self.merge(record, version),
            Operation::Delete { record } => {
                self.records.write_key(record, &mut self.key)?;
                self.set_reading_operation(ReadingOperation::None);
                self.unsettled = true;
                self.keyspace.delete(&self.key).map_err(engine("delete a key"))
            }
            Operation::DeleteRange { record, until } => self.delete_range(record, until),
            Operation::GetPresent { record, lookups } => {
                self.records.write_key(record, &mut self.key)?;
                self.get(rows[lookups], true)
            }
            Operation::GetAbsent { record, salt, lookups } => {
                self.records.write_absent_key(record, salt, &mut self.key)?;
                self.get(rows[lookups], false)
            }
            Operation::Range { record, entries } => {
                self.records.write_key(record, &mut self.key)?;
                let row = range_row.unwrap_or_else(|| self.meter.range_row(None));
                self.read_range(row, entries)
            }
        }
    }

    fn delete_range(&mut self, record: u64, until: Option<u64>) -> Result<()> {
        self.records.write_key(record, &mut self.key)?;
        let mut end = Vec::new();
        if let Some(until) = until {
            self.records.write_key(until, &mut end)?;
        }
        self.set_reading_operation(ReadingOperation::None);
        self.unsettled = true;
        let end = if until.is_some() { Bound::Excluded(&end) } else { Bound::Unbounded };
        let range = (Bound::Included(&self.key), end);
        self.keyspace.delete_range::<Vec<u8>>(range).map_err(engine("delete a range"))
    }

    /// Assigns all following block reads to the operation `reader`.
    pub(super) fn set_reading_operation(&mut self, reader: ReadingOperation) {
        self.meter.switch_operation(reader, || self.db.read_metrics());
    }

    fn put(&mut self, record: u64, version: u64) -> Result<()> {
        self.records.write_key(record, &mut self.key)?;
        self.records.write_value(record, version, &mut self.value)?;
        self.set_reading_operation(ReadingOperation::None);
        self.unsettled = true;
        let stopwatch = Stopwatch::start();
        self.keyspace.put(&self.key, &self.value).map_err(engine("put a value"))?;
        self.put_latencies.record_ns(stopwatch.elapsed_ns());
        Ok(())
    }

    fn merge(&mut self, record: u64, version: u64) -> Result<()> {
        self.records.write_key(record, &mut self.key)?;
        self.records.write_operand(record, version, &mut self.value);
        self.set_reading_operation(ReadingOperation::None);
        self.unsettled = true;
        self.keyspace.merge(&self.key, &self.value).map_err(engine("merge an operand"))
    }

    fn get(&mut self, row: usize, present: bool) -> Result<()> {
        self.set_reading_operation(ReadingOperation::Point(row));
        let (is_found, ns) = self.reader.get(&self.key, present)?;
        self.meter.add_point_lookup(row, is_found, ns);
        Ok(())
    }

    fn read_range(&mut self, row: usize, entries: u64) -> Result<()> {
        self.set_reading_operation(ReadingOperation::Range(row));
        let (found, ns) = self.reader.read_range(&self.key, entries)?;
        self.meter.add_range_lookup(row, found, ns);
        Ok(())
    }

    fn flush_and_wait_idle(&mut self, title: &str, progress: &mut dyn Progress) -> Result<()> {
        progress.begin_phase(&format!("{title}: settle"), 0);
        self.db.flush().map_err(engine("flush"))?;
        self.db.wait_idle().map_err(engine("wait for compactions"))?;
        self.unsettled = false;
        progress.end_phase();
        Ok(())
    }

    fn digest_entries(&mut self, title: &str, progress: &mut dyn Progress) -> Result<ScanDigest> {
        progress.begin_phase(&format!("{title}: scan"), 0);
        let mut scan = ScanDigest::default();
        for entry in self.keyspaces.iter().flat_map(Keyspace::iter) {
            let (key, value) = entry.map_err(engine("scan"))?;
            scan.add_entry(&key, &value);
            if scan.entries.is_multiple_of(PROGRESS_OPS) {
                progress.advance(PROGRESS_OPS);
            }
        }
        progress.end_phase();
        Ok(scan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paced_writes_do_not_begin_before_their_time() {
        let (watch, mut pacer) = (Stopwatch::start(), WritePacer::new(10_000.0));
        for number in 0..100 {
            pacer.wait();
            let earliest_ns = f64::from(number) * 100_000.0 - WritePacer::EARLY_NS_MAX;
            assert!(numbers::to_f64(watch.elapsed_ns()) >= earliest_ns, "{number}");
        }
        // A late write delays the writes that follow: the next one is due an interval after it.
        clock::sleep_ns(20_000_000);
        let before_ns = numbers::to_f64(pacer.watch.elapsed_ns());
        pacer.wait();
        assert!(pacer.due_ns >= before_ns + 100_000.0, "{pacer:?}");
    }
}
