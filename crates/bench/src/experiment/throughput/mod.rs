//! `lsmx bench`: measures throughput and latency of named workloads on lsmx and other engines.
//!
//! Each engine has one database, on which the workloads run in the order of the command line. A fill workload starts
//! with a new database. Each workload runs on all engines before the next workload starts, so that other load on the
//! machine affects all engines alike. All answers of the engines are checked.
//!
//! With a memory limit, each engine runs in a child process in a memory control group of its own.

pub mod columns;
pub(super) mod database;
mod device_limit;
pub mod engine_child;
pub mod engine_process;
pub mod memory_limit;
pub(super) mod page;
mod present_records;
mod repetitions;
pub mod result;
pub mod workload;
pub mod workload_argument;

use std::path::{Path, PathBuf};

use crate::clock;
use crate::error::{Error, Result};
use crate::numbers;
use crate::peers::{EngineKind, EngineSettings};
use crate::report::provenance::Provenance;
use crate::temporary;
use crate::workload::records::GeneratedRecords;

use super::Progress;
use super::cells::CellStudy;
use super::explore::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use database::{BenchDatabase, BenchPlan, WorkloadStep, has_entries};
use device_limit::{QUEUE_DEPTHS, measure_device};
use engine_process::EngineProcess;
use memory_limit::MemoryLimit;
use repetitions::median_repetitions;
use result::{ThroughputCell, ThroughputResult, ThroughputSettings};
use workload::{FILLSYNC_THREADS, Workload};
use workload_argument::WorkloadArgument;

/// Maximum number of threads that run operations.
pub const THREADS_MAX: u64 = 1024;
/// Maximum number of records, of operations, and of entries per seek.
const COUNT_MAX: u64 = 1 << 40;

/// Configuration of `lsmx bench`.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the `--help` text of each flag documents its field")]
pub struct Config {
    pub workloads: Vec<WorkloadArgument>,
    pub peers: Vec<EngineKind>,
    pub settings: EngineSettings,
    /// Options of lsmx as given on the command line, for the report.
    pub options: Vec<String>,
    pub entries: u64,
    pub key_bytes: u64,
    pub value_bytes: u64,
    /// Number of threads. If `None`, workloads run with one thread, and `fillsync` runs with each number in
    /// [`FILLSYNC_THREADS`].
    pub threads: Option<u64>,
    /// Number of operations of workloads other than `fillseq` and `fillrandom`. If `None`, each workload has its
    /// default number.
    pub ops: Option<u64>,
    pub seek_entries: u64,
    /// Target rate in operations per second. If `None`, each operation starts when the preceding operation ends.
    pub rate: Option<f64>,
    pub repeat: u64,
    pub seed: u64,
    pub directory: PathBuf,
    /// Path of the database of lsmx, which is kept after the command. For another engine, the name of the engine is
    /// appended to the path. If `None`, temporary databases are used.
    pub database: Option<PathBuf>,
    pub memory_limit: Option<MemoryLimit>,
    pub command: String,
}

impl Config {
    /// Runs all workloads on all engines.
    ///
    /// # Errors
    /// A parameter is out of range, an engine operation fails, or an engine returns a wrong answer.
    pub fn run(self, progress: &mut dyn Progress) -> Result<ThroughputResult> {
        self.check()?;
        let steps = self.workload_steps();
        let plan = self.bench_plan(&steps)?;
        let provenance = self.provenance();
        let (mut repetitions, mut device) = (Vec::new(), Vec::new());
        for _ in 0..self.repeat {
            repetitions.push(self.run_repetition(&steps, &plan, &mut device, progress)?);
        }
        Ok(ThroughputResult {
            provenance,
            settings: self.reported_settings(),
            cells: median_repetitions(&repetitions),
            device: median_repetitions(&device),
        })
    }

    fn provenance(&self) -> Provenance {
        let place = self.database.as_deref().unwrap_or(&self.directory);
        Provenance::new(self.command.clone(), None, self.seed, place)
    }

    /// Returns lsmx followed by the other engines to compare.
    pub(super) fn engine_kinds(&self) -> impl Iterator<Item = EngineKind> {
        std::iter::once(EngineKind::Lsmx).chain(self.peers.iter().copied())
    }

    /// Returns the database path of an engine: the configured path, or a path in the directory `temporary`.
    pub(super) fn database_path(&self, kind: EngineKind, temporary: &Path) -> PathBuf {
        match &self.database {
            Some(path) if kind == EngineKind::Lsmx => path.clone(),
            Some(path) => {
                let mut path = path.clone().into_os_string();
                path.push(format!(".{kind}"));
                path.into()
            }
            None => temporary.join(kind.name()),
        }
    }

    /// Runs all workloads on all engines once. With a memory limit, also appends two measurements of the device to
    /// `device`: one as soon as a database exists, and one after the last workload.
    fn run_repetition(
        &self,
        steps: &[WorkloadStep],
        plan: &BenchPlan,
        device: &mut Vec<Vec<ThroughputCell>>,
        progress: &mut dyn Progress,
    ) -> Result<Vec<ThroughputCell>> {
        let temporary = match &self.database {
            Some(_) => None,
            None => Some(temporary::create_temporary_directory("lsmx-bench-", &self.directory)?),
        };
        let directory = temporary.as_ref().map_or(&*self.directory, |temporary| temporary.path());
        let tables = self.database_path(EngineKind::Lsmx, directory);
        let mut is_device_measured = self.memory_limit.is_none();
        let mut engines = self
            .engine_kinds()
            .map(|kind| self.start_engine(kind, self.database_path(kind, directory), plan))
            .collect::<Result<Vec<_>>>()?;
        let mut cells = Vec::new();
        for step in steps {
            if !is_device_measured && has_entries(&tables) {
                device.extend(measure_device(&tables, self.seed, progress)?);
                is_device_measured = true;
            }
            for engine in &mut engines {
                cells.extend(match engine {
                    RunningEngine::Here(database) => database.run_step(*step, plan, progress)?,
                    RunningEngine::Child(process) => process.run_step(step, progress)?,
                });
            }
        }
        if self.memory_limit.is_some() && has_entries(&tables) {
            device.extend(measure_device(&tables, self.seed, progress)?);
        }
        for engine in engines {
            match engine {
                RunningEngine::Here(mut database) => database.close()?,
                RunningEngine::Child(process) => process.close()?,
            }
        }
        Ok(cells)
    }

    fn start_engine(
        &self,
        kind: EngineKind,
        database: PathBuf,
        plan: &BenchPlan,
    ) -> Result<RunningEngine> {
        Ok(match &self.memory_limit {
            Some(limit) if limit.has_processes() => {
                RunningEngine::Child(EngineProcess::start(kind, &database, limit)?)
            }
            _ => RunningEngine::Here(BenchDatabase::new(kind, database, plan)?),
        })
    }

    fn check(&self) -> Result<()> {
        if self.workloads.is_empty() {
            let known = Workload::ALL.map(Workload::name).join(", ");
            return Err(Error::invalid_argument("WORKLOAD", "missing", format!("of {known}")));
        }
        self.check_numbers()?;
        if self.rate.is_some()
            && self.workloads.iter().any(|argument| argument.workload == Workload::Scan)
        {
            let why = "its entries come as one stream";
            return Err(Error::contradictory_arguments("--rate", "scan", why));
        }
        if self.repeat > 1 && self.database.is_some() {
            let why = "every repetition needs a new database";
            return Err(Error::contradictory_arguments("--repeat", "--db", why));
        }
        self.check_memory_limit()
    }

    /// Checks the memory limit.
    ///
    /// # Errors
    /// The limit is too low, or an engine cannot be limited.
    pub fn check_memory_limit(&self) -> Result<()> {
        self.memory_limit.as_ref().map_or(Ok(()), |limit| limit.check(&self.settings, &self.peers))
    }

    pub(super) fn check_numbers(&self) -> Result<()> {
        if let Some(rate) = self.rate
            && !(rate.is_finite() && rate > 0.0)
        {
            return Err(Error::invalid_argument("--rate", rate, "above 0"));
        }
        Error::check_range("--key-len", self.key_bytes, 1..=KEY_BYTES_MAX)?;
        Error::check_range("--value-len", self.value_bytes, 0..=VALUE_BYTES_MAX)?;
        Error::check_range("--entries", self.entries, 1..=COUNT_MAX)?;
        Error::check_range("--repeat", self.repeat, 1..=1000)?;
        Error::check_range("--ops", self.ops.unwrap_or(1), 1..=COUNT_MAX)?;
        Error::check_range("--seek-entries", self.seek_entries, 1..=COUNT_MAX)?;
        Error::check_range("--threads", self.threads.unwrap_or(1), 1..=THREADS_MAX)
    }

    /// Returns the workloads to run. Each workload is listed once per number of threads.
    fn workload_steps(&self) -> Vec<WorkloadStep> {
        let mut steps = Vec::new();
        for argument in &self.workloads {
            let threads = match (argument.threads.or(self.threads), argument.workload) {
                (Some(threads), _) => vec![threads],
                (None, Workload::Fillsync) => FILLSYNC_THREADS.to_vec(),
                (None, _) => vec![1],
            };
            for threads in threads {
                steps.push(WorkloadStep {
                    argument: *argument,
                    place: numbers::to_u64(steps.len()),
                    threads,
                    ops: argument.workload.ops(self.entries, argument.ops.or(self.ops)),
                    seek_entries: argument.seek_entries.unwrap_or(self.seek_entries),
                    rate: argument.rate.or(self.rate),
                });
            }
        }
        steps
    }

    pub(super) fn bench_plan(&self, steps: &[WorkloadStep]) -> Result<BenchPlan> {
        let inserts: u64 = steps
            .iter()
            .map(|step| step.argument.workload.max_inserts(step.ops, step.threads))
            .sum();
        let capacity = self.entries + inserts;
        let has_direct_io = self.memory_limit.as_ref().is_some_and(|limit| !limit.has_processes());
        let direct_io = self.settings.direct_io || has_direct_io;
        Ok(BenchPlan {
            settings: EngineSettings { direct_io, ..self.settings.clone() },
            records: GeneratedRecords::with_tagged_values(
                capacity,
                self.key_bytes,
                self.value_bytes,
                self.seed,
            )?,
            entries: self.entries,
            seed: self.seed,
        })
    }

    pub(super) fn reported_settings(&self) -> ThroughputSettings {
        ThroughputSettings {
            entries: self.entries,
            key_len: self.key_bytes,
            value_len: self.value_bytes,
            memtable_bytes: self.settings.memtable_bytes.unwrap_or(0),
            block_cache_bytes: self.settings.block_cache_bytes.unwrap_or(0),
            workers: numbers::to_u64(self.settings.workers),
            options: self.options.clone(),
            rate: self.rate,
            seek_entries: self.seek_entries,
            memory_limit_bytes: self.memory_limit.as_ref().map(|limit| limit.bytes),
            memory_limit_method: self.memory_limit.as_ref().map(|limit| limit.method.to_string()),
            clock_ns: clock::measure_clock_cost_ns(),
        }
    }
}

/// A cell is a repetition of all workloads on all engines, because engines are compared within a repetition.
impl CellStudy for Config {
    type Output = ThroughputResult;

    fn labels(&self) -> Result<Vec<String>> {
        self.check()?;
        Ok((1..=self.repeat).map(|repetition| format!("repetition {repetition}")).collect())
    }

    fn directory_mut(&mut self) -> &mut PathBuf {
        &mut self.directory
    }

    /// Runs one repetition. The result contains all measurements of the device, from which [`CellStudy::combine`]
    /// selects the median.
    fn run_cell(&self, _: u64, progress: &mut dyn Progress) -> Result<ThroughputResult> {
        let steps = self.workload_steps();
        let plan = self.bench_plan(&steps)?;
        let provenance = self.provenance();
        let mut device = Vec::new();
        let cells = self.run_repetition(&steps, &plan, &mut device, progress)?;
        Ok(ThroughputResult {
            provenance,
            settings: self.reported_settings(),
            cells: median_repetitions(&[cells]),
            device: device.into_iter().flat_map(|cells| median_repetitions(&[cells])).collect(),
        })
    }

    fn combine(&self, parts: Vec<ThroughputResult>) -> Result<ThroughputResult> {
        let provenance = self.provenance().with_machines_of(&parts);
        let settings = parts.first().map(|part| part.settings.clone()).unwrap_or_default();
        let device = parts.iter().flat_map(|part| part.device.chunks(QUEUE_DEPTHS.len()));
        let device: Vec<Vec<ThroughputCell>> = device.map(<[_]>::to_vec).collect();
        let repetitions: Vec<Vec<ThroughputCell>> =
            parts.into_iter().map(|part| part.cells).collect();
        Ok(ThroughputResult {
            provenance,
            settings,
            cells: median_repetitions(&repetitions),
            device: median_repetitions(&device),
        })
    }
}

/// Where the workloads of an engine run.
enum RunningEngine {
    /// In this process.
    Here(BenchDatabase),
    Child(EngineProcess),
}
