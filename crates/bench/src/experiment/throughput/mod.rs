//! `lsmx bench`: measures throughput and latency of named workloads on lsmx and other engines.
//!
//! Each engine has one database, on which the workloads run in the order of the command line. A fill workload starts
//! with a new database. Each workload runs on all engines before the next workload starts, so that other load on the
//! machine affects all engines alike. All answers of the engines are checked.

pub mod columns;
pub(super) mod database;
pub(super) mod page;
mod present_records;
pub mod result;
pub mod workload;

use std::path::{Path, PathBuf};

use crate::clock;
use crate::error::{Error, Result};
use crate::numbers;
use crate::peers::{EngineKind, EngineSettings};
use crate::report::provenance::Provenance;
use crate::temporary;
use crate::workload::records::GeneratedRecords;

use super::Progress;
use super::explore::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use database::{BenchDatabase, BenchPlan, WorkloadStep};
use result::{ThroughputCell, ThroughputResult, ThroughputSettings};
use workload::{FILLSYNC_THREADS, Workload};

/// Maximum number of threads that run operations.
pub const THREADS_MAX: u64 = 1024;

/// Configuration of `lsmx bench`.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the `--help` text of each flag documents its field")]
pub struct Config {
    pub workloads: Vec<Workload>,
    pub peers: Vec<EngineKind>,
    pub settings: EngineSettings,
    /// Options of lsmx as given on the command line, for the report.
    pub options: Vec<String>,
    pub entries: u64,
    pub key_bytes: u64,
    pub value_bytes: u64,
    /// Number of threads. `None` uses one thread, but runs `fillsync` with each of [`FILLSYNC_THREADS`].
    pub threads: Option<u64>,
    /// Number of operations of workloads other than `fillseq` and `fillrandom`. `None` uses the default of the
    /// workload.
    pub ops: Option<u64>,
    pub seek_entries: u64,
    /// Target rate in operations per second. `None` starts each operation when the preceding one ends.
    pub rate: Option<f64>,
    pub repeat: u64,
    pub seed: u64,
    pub directory: PathBuf,
    /// Path of the database of lsmx. The database is kept after the command. For other engines, the name of the engine
    /// is appended to the path. `None` uses temporary databases.
    pub database: Option<PathBuf>,
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
        let place = self.database.as_deref().unwrap_or(&self.directory);
        let provenance = Provenance::new(self.command.clone(), None, self.seed, place);
        let mut repetitions = Vec::new();
        for _ in 0..self.repeat {
            repetitions.push(self.run_repetition(&steps, &plan, progress)?);
        }
        Ok(ThroughputResult {
            provenance,
            settings: self.reported_settings(),
            cells: median_repetitions(repetitions),
        })
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

    fn run_repetition(
        &self,
        steps: &[WorkloadStep],
        plan: &BenchPlan,
        progress: &mut dyn Progress,
    ) -> Result<Vec<ThroughputCell>> {
        let temporary = match &self.database {
            Some(_) => None,
            None => Some(temporary::create_temporary_directory("lsmx-bench-", &self.directory)?),
        };
        let directory = temporary.as_ref().map_or(&*self.directory, |temporary| temporary.path());
        let mut databases = self
            .engine_kinds()
            .map(|kind| BenchDatabase::new(kind, self.database_path(kind, directory), plan))
            .collect::<Result<Vec<_>>>()?;
        let mut cells = Vec::new();
        for step in steps {
            for database in &mut databases {
                cells.extend(database.run_step(*step, plan, progress)?);
            }
        }
        for database in &mut databases {
            database.close()?;
        }
        Ok(cells)
    }

    fn check(&self) -> Result<()> {
        if self.workloads.is_empty() {
            let known = Workload::ALL.map(Workload::name).join(", ");
            return Err(Error::invalid_argument("WORKLOAD", "missing", format!("of {known}")));
        }
        self.check_numbers()?;
        if self.rate.is_some() && self.workloads.contains(&Workload::Scan) {
            let why = "its entries come as one stream";
            return Err(Error::contradictory_arguments("--rate", "scan", why));
        }
        if self.repeat > 1 && self.database.is_some() {
            let why = "every repetition needs a new database";
            return Err(Error::contradictory_arguments("--repeat", "--db", why));
        }
        Ok(())
    }

    pub(super) fn check_numbers(&self) -> Result<()> {
        if let Some(rate) = self.rate
            && !(rate.is_finite() && rate > 0.0)
        {
            return Err(Error::invalid_argument("--rate", rate, "above 0"));
        }
        Error::check_range("--key-len", self.key_bytes, 1..=KEY_BYTES_MAX)?;
        Error::check_range("--value-len", self.value_bytes, 0..=VALUE_BYTES_MAX)?;
        Error::check_range("--entries", self.entries, 1..=1 << 40)?;
        Error::check_range("--repeat", self.repeat, 1..=1000)?;
        Error::check_range("--ops", self.ops.unwrap_or(1), 1..=1 << 40)?;
        Error::check_range("--seek-entries", self.seek_entries, 1..=1 << 40)?;
        Error::check_range("--threads", self.threads.unwrap_or(1), 1..=THREADS_MAX)
    }

    /// Returns the workloads to run. Each workload is listed once per number of threads.
    fn workload_steps(&self) -> Vec<WorkloadStep> {
        let mut steps = Vec::new();
        for workload in &self.workloads {
            let threads = match (self.threads, workload) {
                (Some(threads), _) => vec![threads],
                (None, Workload::Fillsync) => FILLSYNC_THREADS.to_vec(),
                (None, _) => vec![1],
            };
            for threads in threads {
                let place = numbers::to_u64(steps.len());
                steps.push(WorkloadStep { workload: *workload, place, threads });
            }
        }
        steps
    }

    pub(super) fn bench_plan(&self, steps: &[WorkloadStep]) -> Result<BenchPlan> {
        let inserts: u64 = steps
            .iter()
            .map(|step| {
                step.workload.max_inserts(step.workload.ops(self.entries, self.ops), step.threads)
            })
            .sum();
        let capacity = self.entries + inserts;
        Ok(BenchPlan {
            settings: self.settings.clone(),
            records: GeneratedRecords::with_tagged_values(
                capacity,
                self.key_bytes,
                self.value_bytes,
                self.seed,
            )?,
            entries: self.entries,
            ops: self.ops,
            seek_entries: self.seek_entries,
            rate: self.rate,
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
            clock_ns: clock::measure_clock_cost_ns(),
        }
    }
}

/// Selects the repetition with the median rate for each engine and workload. For an even number of repetitions, the
/// repetition with the lower of the two middle rates is selected. The returned results also contain the rates of all
/// repetitions.
fn median_repetitions(repetitions: Vec<Vec<ThroughputCell>>) -> Vec<ThroughputCell> {
    let cells = repetitions.first().map_or(0, Vec::len);
    (0..cells)
        .filter_map(|place| {
            let mut runs: Vec<(u64, &ThroughputCell)> =
                (1..).zip(repetitions.iter().filter_map(|cells| cells.get(place))).collect();
            let rates: Vec<f64> = runs.iter().map(|(_, cell)| cell.ops_per_s).collect();
            runs.sort_by(|(_, a), (_, b)| a.ops_per_s.total_cmp(&b.ops_per_s));
            let (slowest, fastest) = (runs.first()?.1.ops_per_s, runs.last()?.1.ops_per_s);
            let (repetition, median) = runs[(runs.len() - 1) / 2];
            let mut cell = median.clone();
            cell.repetition = repetition;
            cell.ops_per_s_runs = rates;
            cell.ops_per_s_interval = [slowest, fastest];
            Some(cell)
        })
        .collect()
}
