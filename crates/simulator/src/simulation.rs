//! Runs a workload under a policy on a tree without data.
//!
//! The simulation models an engine that runs all jobs on the thread of the writer. If the memtable is full, a write
//! flushes it and then runs jobs until the policy picks no more.

use std::collections::HashMap;
use std::sync::Arc;

use lsmx_compaction::{
    CompactionPolicy, FileId, Job, JobKind, Level, PolicySpec, RunningJobs, SortedRun, TableMeta,
    TreeShape,
};

use crate::config::{BYTES_MAX, Config, FLUSHES_MAX, MEMTABLE_BYTES_MIN};
use crate::error::Error;
use crate::file_grouping::FileGrouping;
use crate::histogram::Histogram;
use crate::lookups::{LookupContext, LookupModel, MeanLookupCosts};
use crate::math::{round_to_u64, to_f64};
use crate::merge::{OlderRuns, merge};
use crate::merge_input::MergeInput;
use crate::output_writer::{MergeOutput, OutputTimestamps, OutputWriter, WriteBuffers};
use crate::position::positions_of_range;
use crate::report::{
    PointLookupReport, RangeLookupReport, Report, SimulationCounters, add_point_lookups,
};
use crate::sampler::Sampler;
use crate::seq_range::SeqRange;
use crate::split_points::SplitPoints;
use crate::subcompactions::subcompaction_ends;
use crate::table_size::{MEMTABLE_BYTES_EMPTY, SizeModel};
use crate::workload::{KeyDistribution, Phase};
use crate::write_counts::WriteCounts;
use crate::write_model::WriteModel;

/// Maximum number of bins in the histogram of a file.
const BINS_MAX: usize = 32;
/// Minimum number of flushes of a simulation in which a file may represent several tables.
const GROUPED_FLUSHES_MIN: f64 = 2000.0;
/// Number of tree states for which the lookups of a phase with writes are estimated.
const LOOKUP_SAMPLES: u32 = 32;
/// Number of jobs without a write after which the simulation fails with [`Error::EndlessJobs`].
const CONSECUTIVE_JOBS_MAX: u64 = 10_000_000;

/// Simulates a workload under the policy that a spec describes.
///
/// `keep_running` is called after each flush with the number of writes so far. If it returns `false`, the simulation is
/// cancelled.
///
/// # Errors
/// - [`Error::SmallMemtable`] or [`Error::TooLarge`] before the first write, if the simulation exceeds its limits.
/// - [`Error::Job`] or [`Error::EndlessJobs`] if the policy has a mistake.
/// - [`Error::Cancelled`] if `keep_running` returned `false`.
pub fn simulate(
    config: &Config,
    spec: &PolicySpec,
    keep_running: &mut dyn FnMut(u64) -> bool,
) -> Result<Report, Error> {
    check_config(config)?;
    // Each operation takes one microsecond of the tree's clock, as in the deterministic mode of the engine. Policy
    // parameters that are shares of a duration refer to the time until the last write.
    let last = config.phases.iter().rposition(|phase| phase.writes() > 0);
    let written = &config.phases[..last.map_or(0, |last| last + 1)];
    let run_us = written.iter().map(Phase::operation_count).sum();
    simulate_policy(config, &*spec.clone().with_experiment_duration(run_us).build(), keep_running)
}

/// Simulates a workload under any policy. See [`simulate`].
///
/// # Errors
/// Fails in the same cases as [`simulate`].
pub fn simulate_policy(
    config: &Config,
    policy: &dyn CompactionPolicy,
    keep_running: &mut dyn FnMut(u64) -> bool,
) -> Result<Report, Error> {
    check_config(config)?;
    let mut simulation = Simulation::new(config, policy);
    let mut is_settled = true;
    for phase in &config.phases {
        simulation.run_writes(phase, keep_running)?;
        if phase.writes() > 0 {
            is_settled = false;
        } else {
            simulation.run_lookups(phase);
        }
        if phase.settle {
            simulation.flush(true)?;
            is_settled = true;
        }
    }
    if !is_settled {
        simulation.flush(true)?;
    }
    Ok(simulation.into_report())
}

fn check_config(config: &Config) -> Result<(), Error> {
    // A memtable that is full when it is empty would be flushed without end.
    if config.memtable_bytes < MEMTABLE_BYTES_MIN {
        return Err(Error::SmallMemtable { bytes: config.memtable_bytes });
    }
    let size = config.estimate_size();
    let fits = size.bytes <= to_f64(BYTES_MAX) && size.flushes <= to_f64(FLUSHES_MAX);
    if fits { Ok(()) } else { Err(Error::TooLarge(size)) }
}

/// State of a running simulation.
struct Simulation<'a> {
    config: &'a Config,
    policy: &'a dyn CompactionPolicy,
    sizes: SizeModel,
    shape: TreeShape,
    /// Contents of all files of the tree.
    files: HashMap<FileId, Histogram>,
    buffers: WriteBuffers,
    next_file: u64,
    write_model: WriteModel,
    sampler: Sampler,
    grouping: FileGrouping,
    /// Contents of the memtable. The histogram of the oldest writes is first. Each histogram covers the whole key
    /// domain.
    memtable: Vec<Histogram>,
    memtable_bytes: f64,
    /// Time of the first tombstone in the memtable.
    memtable_tombstone_us: Option<u64>,
    /// Maximum age of a tombstone in the memtable, set by the policy.
    memtable_tombstone_age_us: Option<u64>,
    /// Time at which the policy picks a job even if no flush happens.
    next_compaction_us: Option<u64>,
    /// Number of writes so far.
    seq: u64,
    /// Number of operations so far. This is the time of the tree's clock, in microseconds.
    now_us: u64,
    counters: SimulationCounters,
    lookups_since_write: f64,
    point_lookups: Vec<PointLookupReport>,
    range_lookups: RangeLookupReport,
}

impl<'a> Simulation<'a> {
    fn new(config: &'a Config, policy: &'a dyn CompactionPolicy) -> Simulation<'a> {
        let writes: u64 = config.phases.iter().map(Phase::writes).sum();
        let sizes = SizeModel::new(config.key_bytes, config.value_bytes, writes);
        let memtable_bytes = to_f64(config.memtable_bytes.max(1));
        let flushes = to_f64(writes) * sizes.memtable_put_bytes(false) / memtable_bytes;
        let data_bytes = writes.saturating_mul(config.key_bytes.saturating_add(config.value_bytes));
        let flush_bytes = round_to_u64(to_f64(data_bytes) / flushes.max(1.0));
        let table_bytes = config.table_bytes;
        let grouping = if flushes > GROUPED_FLUSHES_MIN {
            FileGrouping::for_policy(policy, data_bytes, table_bytes, flush_bytes)
        } else {
            FileGrouping::ungrouped()
        };
        Simulation {
            config,
            policy,
            sizes,
            shape: TreeShape {
                memtable_bytes: config.memtable_bytes,
                table_bytes: table_bytes.saturating_mul(grouping.tables_per_file),
                ..TreeShape::default()
            },
            files: HashMap::new(),
            buffers: WriteBuffers::default(),
            next_file: 0,
            write_model: WriteModel::new(&config.phases),
            sampler: Sampler::new(config.seed),
            grouping,
            memtable: Vec::new(),
            memtable_bytes: MEMTABLE_BYTES_EMPTY,
            memtable_tombstone_us: None,
            memtable_tombstone_age_us: policy.memtable_tombstone_age_max_us(&TreeShape::default()),
            next_compaction_us: None,
            seq: 0,
            now_us: 0,
            counters: SimulationCounters::default(),
            lookups_since_write: 0.0,
            point_lookups: Vec::new(),
            range_lookups: RangeLookupReport::default(),
        }
    }

    /// Executes the writes of a phase, and estimates the lookups between them.
    fn run_writes(
        &mut self,
        phase: &Phase,
        keep_running: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), Error> {
        let all = WriteCounts::from_phase(phase);
        let total = all.total();
        if total <= 0.0 {
            self.now_us += phase.operation_count();
            return Ok(());
        }
        self.lookups_since_write = 0.0;
        let ascending =
            phase.distribution == KeyDistribution::Sequential && phase.inserts > phase.updates;
        let bytes_per_write = self.sizes.memtable_bytes_of_writes(&all, ascending) / total.max(1.0);
        let ops_per_write = to_f64(phase.operation_count()) / total.max(1.0);
        let has_lookups = !phase.lookups.is_empty() || phase.ranges > 0;
        let (mut samples, mut mean_costs) = (0, MeanLookupCosts::default());
        let mut done = 0.0;
        while done < total {
            let due_us = self.next_due_us();
            if due_us <= self.now_us {
                // A tombstone in the memtable or in the tree has reached its maximum age.
                if self.memtable_flush_due_us() <= self.now_us {
                    self.flush(false)?;
                } else {
                    self.compact()?;
                }
                continue;
            }
            let room = to_f64(self.config.memtable_bytes) - self.memtable_bytes;
            if room <= 0.0 {
                self.flush(false)?;
                if !keep_running(self.seq) {
                    return Err(Error::Cancelled);
                }
                continue;
            }
            // The first tombstone of a memtable is assumed to be the next write.
            let has_deletes = all.deletes + all.range_deletes > 0.0;
            let first_due_us = self
                .memtable_tombstone_age_us
                .filter(|_| has_deletes && self.memtable_tombstone_us.is_none());
            let until_due_us = (due_us - self.now_us).min(first_due_us.unwrap_or(u64::MAX));
            // A memtable accepts writes as long as it is not full, so the last write may exceed its target size.
            let writes_until_due = to_f64(until_due_us) / ops_per_write;
            let fitting = libm::ceil((room / bytes_per_write).min(writes_until_due)).max(1.0);
            let taken = fitting.min(total - done);
            let writes = all.scaled(taken / total);
            let largest = self.seq + round_to_u64(taken).max(1);
            let seqs = SeqRange { smallest: self.seq + 1, largest };
            let contents = self.write_model.write(phase, &writes, done / total, seqs);
            if self.write_model.needs_new_popularity() {
                let files = self.files.values_mut().chain(&mut self.memtable);
                files.for_each(|file| self.write_model.reassign_popularity(file));
            }
            self.seq = largest;
            if writes.deletes + writes.range_deletes > 0.0 {
                self.memtable_tombstone_us.get_or_insert(self.now_us);
            }
            self.now_us += round_to_u64(taken * ops_per_write);
            self.memtable_bytes += self.sizes.memtable_bytes_of_writes(&writes, ascending);
            self.counters.add_writes(&writes, &self.sizes);
            self.memtable.push(contents);
            done += taken;
            // Lookups between writes see different states of the tree, so their costs are averaged.
            let next_sample = |samples: u32| (f64::from(samples) + 0.5) / f64::from(LOOKUP_SAMPLES);
            while has_lookups && samples < LOOKUP_SAMPLES && done / total >= next_sample(samples) {
                samples += 1;
                let (points, ranges) = self.estimate_lookups(phase);
                mean_costs.add(points, &ranges);
            }
        }
        add_point_lookups(&mut self.point_lookups, mean_costs.points);
        self.range_lookups.add(&mean_costs.ranges);
        Ok(())
    }

    fn run_lookups(&mut self, phase: &Phase) {
        let (points, ranges) = self.estimate_lookups(phase);
        self.lookups_since_write += points.iter().map(|it| to_f64(it.ops)).sum::<f64>();
        add_point_lookups(&mut self.point_lookups, points);
        self.range_lookups.add(&ranges);
    }

    /// Estimates the costs of the lookups of a phase in the current tree.
    fn estimate_lookups(&self, phase: &Phase) -> (Vec<PointLookupReport>, RangeLookupReport) {
        if phase.lookups.is_empty() && phase.ranges == 0 {
            return Default::default();
        }
        let model = LookupModel::new(
            &self.shape,
            &self.grouping,
            &self.sizes,
            self.write_model.live_keys(),
            self.config.block_cache_bytes,
        );
        // For lookups between writes, the cache is warm.
        let warm_lookups = if phase.writes() > 0 { to_f64(u64::MAX) } else { 0.0 };
        let mut lookups_before = self.lookups_since_write.max(warm_lookups);
        let mut points = Vec::new();
        for lookups in phase.lookups.iter().filter(|lookups| lookups.ops > 0) {
            let Phase { distribution, zipf, .. } = *phase;
            let context = LookupContext { distribution, zipf, lookups_before };
            points.push(model.point_lookups(lookups, &context));
            lookups_before += to_f64(lookups.ops);
        }
        let has_ranges = phase.ranges > 0;
        let ranges = if has_ranges { model.range_lookups(phase) } else { Default::default() };
        (points, ranges)
    }

    /// Returns the time at which a flush or a job becomes due without further writes.
    fn next_due_us(&self) -> u64 {
        self.memtable_flush_due_us().min(self.next_compaction_us.unwrap_or(u64::MAX))
    }

    /// Returns the time at which the memtable must be flushed, because its oldest tombstone reaches the maximum age.
    fn memtable_flush_due_us(&self) -> u64 {
        let tombstone = self.memtable_tombstone_us.zip(self.memtable_tombstone_age_us);
        tombstone.map_or(u64::MAX, |(written_us, age_us)| written_us.saturating_add(age_us))
    }

    /// Flushes the memtable to a run of L0, and then runs jobs until the policy picks no more.
    ///
    /// If `is_resting` is true, no writes follow for now, and the policy sees empty memtables.
    fn flush(&mut self, is_resting: bool) -> Result<(), Error> {
        let memtable = std::mem::take(&mut self.memtable);
        self.memtable_bytes = MEMTABLE_BYTES_EMPTY;
        let inputs = memtable.iter().rev().map(MergeInput::from_memtable).collect();
        let mut older = OlderRuns::default();
        for (_, run) in self.shape.runs() {
            // The range of the whole run is precise enough, because few keys are in the gaps between files.
            let range = run.range();
            older.add_run(range.iter().map(positions_of_range).collect());
        }
        let times = OutputTimestamps {
            now_us: self.now_us,
            oldest_tombstone_us: self.memtable_tombstone_us.take(),
        };
        let writer = OutputWriter::new(&self.sizes, times, usize::MAX, 1, &mut self.buffers);
        let (classes, records) =
            (self.write_model.popularity_class_count(), self.write_model.total_records());
        let splits = SplitPoints::without_splits();
        let outputs = merge(inputs, older, splits, writer, classes, records, &mut self.sampler);
        if !outputs.is_empty() {
            self.counters.flushes += 1;
            self.counters.flushed_bytes += outputs.iter().map(|it| it.shape.bytes).sum::<u64>();
            let files = self.add_files(outputs);
            // The outputs of a merge are disjoint and in key order, so this call cannot fail.
            if let Ok(flushed) = self.shape.with_flushed_run(files) {
                self.shape = flushed.shape;
            }
        }
        self.shape.memtables_empty = is_resting;
        self.compact()
    }

    /// Assigns file ids to outputs, stores their contents, and returns their table metadata.
    fn add_files(&mut self, outputs: Vec<MergeOutput>) -> Vec<Arc<TableMeta>> {
        outputs
            .into_iter()
            .map(|MergeOutput { mut shape, contents }| {
                shape.id = FileId(self.next_file);
                shape.creation = self.next_file;
                self.next_file += 1;
                self.files.insert(shape.id, contents);
                Arc::new(shape)
            })
            .collect()
    }

    fn compact(&mut self) -> Result<(), Error> {
        let busy = RunningJobs::default();
        for _ in 0..CONSECUTIVE_JOBS_MAX {
            self.shape.now_us = self.now_us;
            let Some(job) = self.policy.pick(&self.shape, &busy) else {
                self.next_compaction_us = self.policy.next_pick_due_us(&self.shape);
                self.memtable_tombstone_age_us =
                    self.policy.memtable_tombstone_age_max_us(&self.shape);
                return Ok(());
            };
            self.run_job(&job).map_err(|source| Error::Job {
                policy: self.policy.name().to_owned(),
                job: job.to_string(),
                source: Box::new(source),
            })?;
        }
        Err(Error::EndlessJobs { policy: self.policy.name().to_owned() })
    }

    fn run_job(&mut self, job: &Job) -> Result<(), lsmx_compaction::Error> {
        let mut outputs = Vec::new();
        match job.kind {
            JobKind::Merge | JobKind::Rewrite => {
                outputs = self.merge_job(job)?;
                self.counters.jobs += 1;
                self.counters.read_bytes += job.input_bytes(&self.shape)?;
                self.counters.written_bytes += outputs.iter().map(|it| it.shape.bytes).sum::<u64>();
            }
            JobKind::Move => self.counters.moves += 1,
            JobKind::Drop => self.counters.drops += 1,
        }
        let files = self.add_files(outputs);
        let applied = std::mem::take(&mut self.shape).apply_job_in_place(job, files)?;
        self.shape = applied.shape;
        let left = job.input_files().filter(|_| job.kind != JobKind::Move);
        self.buffers.recycle(left.filter_map(|file| self.files.remove(&file)));
        Ok(())
    }

    /// Returns the outputs of a job that merges or rewrites files.
    fn merge_job(&mut self, job: &Job) -> Result<Vec<MergeOutput>, lsmx_compaction::Error> {
        let mut inputs: Vec<Vec<&Arc<TableMeta>>> = Vec::with_capacity(job.inputs.len());
        for input in &job.inputs {
            inputs.push(input.resolve_files(&self.shape)?);
        }
        let input_files = || inputs.iter().flatten();
        let times = OutputTimestamps {
            now_us: self.now_us,
            oldest_tombstone_us: input_files().filter_map(|file| file.oldest_tombstone_us).min(),
        };
        let tombstones: u64 = input_files().map(|file| file.tombstones).sum();
        // Without tombstones and updates, older runs do not affect the outputs.
        let older = if tombstones > 0 || self.counters.has_updates() {
            self.older_runs(job, &inputs)?
        } else {
            OlderRuns::default()
        };
        let contents = |file: &Arc<TableMeta>| self.files.get(&file.id);
        let sources = inputs
            .iter()
            .map(|files| MergeInput::new(files.iter().filter_map(|file| contents(file)).collect()))
            .collect();
        let runs = inputs.iter().map(|files| {
            let files = files.iter().filter_map(|file| Some((file, contents(file)?)));
            files.map(|(file, contents)| (contents, self.sizes.subcompaction_bytes(file)))
        });
        let total_bytes = input_files().map(|file| self.sizes.subcompaction_bytes(file)).sum();
        let table_bytes = self.grouping.set_file_bytes(job.split.file_bytes);
        let subcompactions_max = self.config.subcompactions_max;
        let ends = subcompaction_ends(runs, total_bytes, subcompactions_max, table_bytes);
        let output_count = input_files().count() + 2;
        let splits = SplitPoints::new(&job.split, &self.shape, ends);
        let buffers = &mut self.buffers;
        let writer = OutputWriter::new(&self.sizes, times, BINS_MAX, output_count, buffers);
        let (classes, records) =
            (self.write_model.popularity_class_count(), self.write_model.total_records());
        Ok(merge(sources, older, splits, writer, classes, records, &mut self.sampler))
    }

    /// Returns the files that are not inputs of the job and belong to the newest input run or to an older run.
    fn older_runs(
        &self,
        job: &Job,
        inputs: &[Vec<&Arc<TableMeta>>],
    ) -> Result<OlderRuns, lsmx_compaction::Error> {
        let range = job.input_key_range(&self.shape)?;
        let input_of = |level: Level, run: &SortedRun| {
            job.inputs.iter().position(|input| input.level == level && input.run == run.id)
        };
        let mut older = OlderRuns::default();
        let runs = self.shape.runs().skip_while(|(level, run)| input_of(*level, run).is_none());
        for (level, run) in runs {
            let taken = input_of(level, run).map_or(&[][..], |at| &inputs[at]);
            let mut taken = taken.iter().peekable();
            let staying = run
                .overlapping_files(&range)
                .iter()
                .filter(|file| taken.next_if(|input| input.id == file.id).is_none())
                .map(|file| positions_of_range(&file.range));
            older.add_run(staying.collect());
        }
        Ok(older)
    }

    fn into_report(self) -> Report {
        Report {
            point_lookups: self.point_lookups,
            range_lookups: self.range_lookups,
            ..Report::new(
                &self.shape,
                &self.grouping,
                &self.counters,
                &self.sizes,
                &self.write_model,
            )
        }
    }
}
