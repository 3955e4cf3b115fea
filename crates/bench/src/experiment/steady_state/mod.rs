//! `lsmx bench --experiment steady-state`: latencies of puts and gets at a rate that an engine sustains.
//!
//! 1. All records are put into a new database, and the engine becomes idle. An existing database is used as it is.
//! 2. The **testing phase** runs puts and gets of random records as fast as the engine completes them. The sustained
//!    rate is the rate in the second half of this phase. The first half is not counted, because a new backlog of
//!    compactions lets an engine accept more writes than it sustains.
//! 3. The **running phase** schedules operations at [`SCHEDULED_SHARE`] of the sustained rate, or at a given rate.
//!    Latencies count from the scheduled start, so that they include the time that an operation waits for delayed
//!    operations before it.
//!
//! Source of the two phases: Luo, Carey, "On Performance Stability in LSM-based Storage Systems", PVLDB 13 (2019).

pub mod columns;
mod page;
pub mod result;

use std::path::Path;

use crate::error::{Error, Result};
use crate::numbers::{self, ratio, to_f64, to_usize};
use crate::peers::{Engine, EngineKind};
use crate::process;
use crate::report::provenance::Provenance;
use crate::temporary;

use super::player::{
    LatenciesByKind, OperationKind, Player, ResourceCounters, SliceSettings, ThreadGroup,
    TimeSlice, flush_and_wait_idle, remove_directory,
};
use super::throughput::Config;
use super::throughput::database::{BenchPlan, check_records, has_entries};
use super::throughput::engine_child::{EngineAssignment, serve_requests};
use super::throughput::engine_process::{EngineProcess, Request};
use super::{NoProgress, Progress};
use result::{SteadyStateCell, SteadyStatePeriod, SteadyStateResult};

/// Name of the experiment on the command line.
pub const NAME: &str = "steady-state";
/// Ratio of the scheduled rate in the running phase to the sustained rate.
pub const SCHEDULED_SHARE: f64 = 0.95;
/// Default length of the testing phase, in minutes.
pub const TESTING_MINUTES_DEFAULT: f64 = 10.0;
/// Default length of the running phase, in minutes.
pub const MINUTES_DEFAULT: f64 = 20.0;
/// Default share of gets among the operations.
pub const READ_RATIO_DEFAULT: f64 = 0.5;

/// Maximum length of a phase in minutes: a week.
const MINUTES_MAX: f64 = 10_080.0;
const NS_PER_MINUTE: u64 = 60_000_000_000;
const PURPOSE_TESTING: u64 = 0x7465_7374;
const PURPOSE_RUNNING: u64 = 0x7275_6e6e;

/// Arguments of the experiment. An argument that is `None` has its default value.
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "the `--help` text of each flag documents its field")]
pub struct SteadyStateArguments {
    pub testing_minutes: Option<f64>,
    pub minutes: Option<f64>,
    pub read_ratio: Option<f64>,
}

/// Arguments after range checks, with defaults filled in.
#[derive(Clone, Copy, Debug)]
struct Phases {
    /// Length of the testing phase. If `None`, there is no testing phase, and `rate` is set.
    testing_ns: Option<u64>,
    /// Scheduled operations per second. If `None`, the rate is [`SCHEDULED_SHARE`] of the sustained rate.
    rate: Option<f64>,
    running_ns: u64,
    read_ratio: f64,
}

impl SteadyStateArguments {
    /// Checks that no argument is given.
    ///
    /// # Errors
    /// An argument is given. The error states that the argument contradicts `with`, which names the workloads or the
    /// experiment.
    pub fn check_unused(&self, with: &str) -> Result<()> {
        for (flag, value) in [
            ("--testing-minutes", self.testing_minutes),
            ("--minutes", self.minutes),
            ("--read-ratio", self.read_ratio),
        ] {
            if value.is_some() {
                let why = "only --experiment steady-state uses it";
                return Err(Error::contradictory_arguments(flag, with, why));
            }
        }
        Ok(())
    }

    fn check(&self, config: &Config) -> Result<Phases> {
        config.check_numbers()?;
        config.check_memory_limit()?;
        for (flag, is_given, other, why) in [
            ("--repeat", config.repeat > 1, "--experiment steady-state", "it runs once"),
            ("--ops", config.ops.is_some(), "--experiment steady-state", "it runs for a time"),
        ] {
            if is_given {
                return Err(Error::contradictory_arguments(flag, other, why));
            }
        }
        let default = config.rate.is_none().then_some(TESTING_MINUTES_DEFAULT);
        let testing = self.testing_minutes.or(default);
        let testing_ns =
            testing.map(|minutes| check_minutes("--testing-minutes", minutes)).transpose()?;
        let read_ratio = self.read_ratio.unwrap_or(READ_RATIO_DEFAULT);
        if !(0.0..=1.0).contains(&read_ratio) {
            return Err(Error::invalid_argument("--read-ratio", read_ratio, "from 0 to 1"));
        }
        Ok(Phases {
            testing_ns,
            rate: config.rate,
            running_ns: check_minutes("--minutes", self.minutes.unwrap_or(MINUTES_DEFAULT))?,
            read_ratio,
        })
    }
}

/// Converts a flag value in minutes to nanoseconds. Fails if the value is out of range.
fn check_minutes(flag: &'static str, minutes: f64) -> Result<u64> {
    if minutes > 0.0 && minutes <= MINUTES_MAX {
        return Ok(numbers::round_to_u64(minutes * to_f64(NS_PER_MINUTE)).max(1));
    }
    Err(Error::invalid_argument(flag, minutes, format!("above 0, at most {MINUTES_MAX}")))
}

/// Runs the experiment on each engine. `config` is the configuration of `lsmx bench`. If `config` sets a rate, the
/// testing phase runs only if `arguments` sets its length.
///
/// # Errors
/// A parameter is out of range or contradicts the experiment, an engine operation fails, or an engine returns a wrong
/// answer. If an engine exceeds its memory limit, its error is stored in the result. This error is returned only if no
/// engine was measured.
pub fn run_steady_state(
    config: &Config,
    arguments: &SteadyStateArguments,
    progress: &mut dyn Progress,
) -> Result<SteadyStateResult> {
    let phases = arguments.check(config)?;
    let plan = config.bench_plan(&[])?;
    let place = config.database.as_deref().unwrap_or(&config.directory);
    let provenance = Provenance::new(config.command.clone(), None, config.seed, place);
    let temporary = temporary::create_temporary_directory("lsmx-bench-", &config.directory)?;
    let (mut cells, mut failures) = (Vec::new(), Vec::new());
    for kind in config.engine_kinds() {
        let path = config.database_path(kind, temporary.path());
        let measured = match &config.memory_limit {
            Some(limit) if limit.has_processes() => EngineProcess::start(kind, &path, limit)
                .and_then(|mut process| {
                    let cell = process.measure(NAME, progress)?;
                    process.close().map(|()| cell)
                }),
            _ => {
                let database = SteadyDatabase { kind, path: &path, plan: &plan, phases };
                database.measure(config.threads.unwrap_or(1), progress)
            }
        };
        match measured {
            Ok(cell) => cells.push(cell),
            // The error is kept for the result, so that the long measurements of the other engines are not lost.
            Err(error) if error.is_out_of_memory() => failures.push(error),
            Err(error) => return Err(error),
        }
        // An engine that exceeds its memory limit may end before it creates the directory.
        if config.database.is_none() && path.exists() {
            // The next engine needs the disk space and the page cache.
            remove_directory(&path)?;
        }
    }
    if cells.is_empty()
        && let Some(error) = failures.pop()
    {
        return Err(error);
    }
    let minutes = |ns| to_f64(ns) / to_f64(NS_PER_MINUTE);
    Ok(SteadyStateResult {
        provenance,
        experiment: NAME,
        settings: config.reported_settings(),
        testing_minutes: phases.testing_ns.map(minutes),
        minutes: minutes(phases.running_ns),
        failures: failures.iter().map(ToString::to_string).collect(),
        cells,
    })
}

/// Serves requests of the parent process `lsmx bench` in its child process. A request runs the experiment on one
/// engine. `config` and `arguments` are those of the parent.
///
/// # Errors
/// A request is malformed, or an answer cannot be written.
pub fn serve_steady_state(
    assignment: &EngineAssignment,
    config: &Config,
    arguments: &SteadyStateArguments,
) -> Result<()> {
    serve_requests(|request| match request {
        Request::Measure => {
            assignment.drop_cached_files()?;
            let (plan, phases) = (config.bench_plan(&[])?, arguments.check(config)?);
            let (kind, path) = (assignment.engine(), assignment.database());
            let database = SteadyDatabase { kind, path, plan: &plan, phases };
            let cell = database.measure(config.threads.unwrap_or(1), &mut NoProgress)?;
            Ok(serde_json::to_value(cell)?)
        }
        Request::Close => Ok(serde_json::Value::Null),
        Request::Run(_) => Err(Error::invalid_argument("the request", "run", "measure")),
    })
}

/// The database of one engine, and the phases that run on it.
struct SteadyDatabase<'a> {
    kind: EngineKind,
    path: &'a Path,
    plan: &'a BenchPlan,
    phases: Phases,
}

impl SteadyDatabase<'_> {
    fn measure(&self, threads: u64, progress: &mut dyn Progress) -> Result<SteadyStateCell> {
        let (kind, plan) = (self.kind, self.plan);
        let existed = has_entries(self.path);
        let engine = kind.open(self.path, &plan.settings)?;
        let group = ThreadGroup {
            threads,
            seed: plan.seed,
            ..ThreadGroup::single_thread(engine.as_ref(), &plan.records)
        };
        if existed {
            check_records(engine.as_ref(), self.path, plan)?;
        } else {
            ThreadGroup { threads: 1, ..group }
                .load_records((&format!("{kind}: load"), plan.entries), progress)?;
        }
        let sustained = match self.phases.testing_ns {
            Some(ns) => Some(self.find_sustained_rate(group, ns, progress)?),
            None => None,
        };
        let share = sustained.map(|sustained| SCHEDULED_SHARE * sustained);
        // `SteadyStateArguments::check` sets the testing phase, the rate or both.
        let scheduled = self.phases.rate.or(share).unwrap_or_default();
        let (total, by_minute) = self.run_at_rate(group, scheduled, progress)?;
        engine.close()?;
        Ok(SteadyStateCell {
            workload: NAME.to_owned(),
            engine: kind.name().to_owned(),
            threads,
            read_ratio: self.phases.read_ratio,
            sustained_ops_per_s: sustained,
            scheduled_ops_per_s: scheduled,
            total,
            by_minute,
        })
    }

    /// Runs the testing phase. Returns the operations per second in its second half.
    fn find_sustained_rate(
        &self,
        group: ThreadGroup<'_>,
        testing_ns: u64,
        progress: &mut dyn Progress,
    ) -> Result<f64> {
        let half_ns = (testing_ns / 2).max(1);
        let slices = Some(SliceSettings { ns: half_ns, latencies: false });
        let title = format!("{}: testing phase", self.kind);
        let played = ThreadGroup { slices, purpose: PURPOSE_TESTING, ..group }.run_work(
            (&title, 0),
            progress,
            &|player| self.run_operations(player, 2 * half_ns),
        )?;
        flush_and_wait_idle(group.engine, &format!("{}: settle", self.kind), progress)?;
        match played.slices.get(1) {
            Some(half) if half.ops > 0 => Ok(to_f64(half.ops) * 1e9 / to_f64(half_ns)),
            _ => {
                let minutes = to_f64(testing_ns) / to_f64(NS_PER_MINUTE);
                let must = "longer, because no operation ended in the second half of this time";
                Err(Error::invalid_argument("--testing-minutes", minutes, must))
            }
        }
    }

    /// Runs the running phase. Returns the measurements of the whole phase and of each minute.
    fn run_at_rate(
        &self,
        group: ThreadGroup<'_>,
        rate: f64,
        progress: &mut dyn Progress,
    ) -> Result<(SteadyStatePeriod, Vec<SteadyStatePeriod>)> {
        let running_ns = self.phases.running_ns;
        let count = to_usize(running_ns.div_ceil(NS_PER_MINUTE));
        let slices = Some(SliceSettings { ns: NS_PER_MINUTE, latencies: true });
        let group = ThreadGroup { rate: Some(rate), slices, purpose: PURPOSE_RUNNING, ..group };
        let ops = numbers::round_to_u64(rate * to_f64(running_ns) / 1e9);
        let read_sample = || Sample::read(group.engine, self.path);
        let mut samples = vec![read_sample()];
        let (played, _) = group.run_work_with_writer(
            (&format!("{}: running phase", self.kind), ops),
            progress,
            &|player| self.run_operations(player, running_ns),
            None,
            &mut |elapsed_ns| {
                let ended = to_usize(elapsed_ns / NS_PER_MINUTE).min(count - 1);
                while samples.len() <= ended {
                    samples.push(read_sample());
                }
            },
        )?;
        samples.resize_with(count + 1, read_sample);
        let samples = samples.into_iter().collect::<Result<Vec<Sample>>>()?;
        let slices = fit_slices(played.slices, count);
        let by_minute = (0..).zip(slices).zip(samples.windows(2)).map(|((minute, slice), ends)| {
            let ns = (running_ns - minute * NS_PER_MINUTE).min(NS_PER_MINUTE);
            let latencies = slice.latencies.unwrap_or_default();
            self.summarize_period(slice.ops, ns, &latencies, [&ends[0], &ends[1]])
        });
        let ends = [&samples[0], &samples[count]];
        let ns = played.elapsed_ns.max(1);
        let total = self.summarize_period(played.ops, ns, &played.latencies, ends);
        Ok((total, by_minute.collect()))
    }

    /// Runs puts and gets on one thread until `end_ns` nanoseconds after the start of the group.
    fn run_operations(&self, player: &mut Player<'_>, end_ns: u64) -> Result<()> {
        player.run_until(end_ns, |player| {
            let record = player.random.next_below(self.plan.entries);
            if player.random.next_unit() < self.phases.read_ratio {
                return player.get_present(record);
            }
            let version = player.random.next_u64();
            player.put(record, version)
        })
    }

    fn summarize_period(
        &self,
        ops: u64,
        ns: u64,
        latencies: &LatenciesByKind,
        [before, after]: [&Sample; 2],
    ) -> SteadyStatePeriod {
        let [gets, puts] = [OperationKind::Get, OperationKind::Put].map(|it| latencies.count(it));
        let used = after.counters.since(&before.counters);
        let per = |bytes: u64, ops: u64| (ops > 0).then(|| ratio(bytes, ops));
        let stall_us = after.stall_us.zip(before.stall_us);
        SteadyStatePeriod {
            elapsed_s: to_f64(ns) / 1e9,
            ops,
            ops_per_s: to_f64(ops) * 1e9 / to_f64(ns),
            gets,
            puts,
            put_latency_us: latencies.summary(OperationKind::Put),
            get_latency_us: latencies.summary(OperationKind::Get),
            device_read_bytes_per_get: used.storage_read_bytes.and_then(|bytes| per(bytes, gets)),
            device_written_bytes_per_put: used
                .device
                .and_then(|device| per(device.written_bytes, puts)),
            stall_s: stall_us.map(|(after, before)| to_f64(after.saturating_sub(before)) / 1e6),
            pending_compaction_bytes: after.pending_compaction_bytes,
            space_amplification: ratio(
                after.table_bytes,
                self.plan.records.total_bytes(self.plan.entries),
            ),
            table_bytes: after.table_bytes,
            disk_bytes: after.disk_bytes,
        }
    }
}

/// Counters and sizes at one time.
struct Sample {
    counters: ResourceCounters,
    stall_us: Option<u64>,
    pending_compaction_bytes: Option<u64>,
    table_bytes: u64,
    disk_bytes: u64,
}

impl Sample {
    fn read(engine: &dyn Engine, path: &Path) -> Result<Sample> {
        Ok(Sample {
            counters: ResourceCounters::read(engine, path),
            stall_us: engine.write_stall_us(),
            pending_compaction_bytes: engine.pending_compaction_bytes(),
            table_bytes: engine.table_bytes()?,
            disk_bytes: process::directory_disk_bytes(path),
        })
    }
}

/// Returns exactly `count` time slices. `count` must be at least 1. Slices beyond `count` are added to the last slice,
/// and missing slices are empty.
fn fit_slices(mut slices: Vec<TimeSlice>, count: usize) -> Vec<TimeSlice> {
    slices.resize_with(slices.len().max(count), TimeSlice::default);
    let later = slices.split_off(count);
    later.iter().for_each(|slice| slices[count - 1].add(slice));
    slices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fitted_slices_keep_late_operations() {
        let of = |ops| TimeSlice { ops, total_ns: ops, max_ns: ops, latencies: None };
        for (ops, expected) in [
            (vec![], vec![0, 0]),
            (vec![5], vec![5, 0]),
            (vec![5, 6], vec![5, 6]),
            (vec![5, 6, 0, 2], vec![5, 8]),
        ] {
            let slices = fit_slices(ops.into_iter().map(of).collect(), 2);
            assert_eq!(slices.iter().map(|slice| slice.ops).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn minutes_are_positive_and_bounded() {
        assert_eq!(check_minutes("--minutes", 0.5).unwrap(), 30_000_000_000);
        for minutes in [0.0, -1.0, f64::NAN, f64::INFINITY, 10_081.0] {
            let error = check_minutes("--minutes", minutes).unwrap_err();
            assert!(error.is_usage() && error.to_string().starts_with("--minutes is"), "{error}");
        }
    }
}
