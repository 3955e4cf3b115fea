//! `lsmx bench`: throughput and latency of named workloads, on lsmx and on other engines.
//!
//! The workloads of a command run one after the other on one database per engine; a fill begins with
//! a new one. Each workload runs on all engines before the next, so that whatever else the machine
//! does in the meantime falls on all of them alike. Everything read is checked.

pub(super) mod database;
mod player;
pub(super) mod records;
pub mod result;
pub mod workload;

use std::path::PathBuf;

use crate::clock;
use crate::error::{Error, Result};
use crate::numbers;
use crate::peers::{self, Kind};
use crate::report::provenance::Provenance;
use crate::temporary;

use super::Progress;
use super::explore::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use database::{Database, Plan, Step};
use records::Records;
use result::{Cell, Settings, Throughput};
use workload::{FILLSYNC_THREADS, Workload};

/// Most threads that can be asked for.
pub const THREADS_MAX: usize = 1024;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Config {
    /// The workloads, in the order in which they run.
    pub workloads: Vec<Workload>,
    /// Engines to run next to lsmx.
    pub peers: Vec<Kind>,
    /// Memory and options of the engines.
    pub settings: peers::Settings,
    /// The options of lsmx as typed, for the report.
    pub options: Vec<String>,
    /// Records of a fill.
    pub entries: u64,
    /// Bytes of a key.
    pub key_bytes: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Threads; by default 1, and for `fillsync` [`FILLSYNC_THREADS`] one after the other.
    pub threads: Option<usize>,
    /// Operations of a workload that is not a fill of all records; by default as its kind says.
    pub ops: Option<u64>,
    /// Entries that `seekrandom` reads.
    pub seek_entries: u64,
    /// Operations per second that are due; by default each waits only for the one before.
    pub rate: Option<f64>,
    /// How often all of it runs.
    pub repeat: u64,
    /// The seed.
    pub seed: u64,
    /// Where temporary databases are made.
    pub directory: PathBuf,
    /// Where the database of lsmx stays; those of peers lie beside it, with their name behind a dot.
    pub database: Option<PathBuf>,
    /// The command line, for the provenance.
    pub command: String,
}

impl Config {
    /// Runs all workloads on all engines.
    ///
    /// # Errors
    /// When a parameter is out of range, an engine fails or gives a wrong answer.
    pub fn run(self, progress: &mut dyn Progress) -> Result<Throughput> {
        self.check()?;
        let steps = self.steps();
        let plan = self.plan(&steps)?;
        let place = self.database.as_deref().unwrap_or(&self.directory);
        let provenance = Provenance::new(self.command.clone(), None, self.seed, place);
        let mut repetitions = Vec::new();
        for _ in 0..self.repeat {
            repetitions.push(self.repetition(&steps, &plan, progress)?);
        }
        Ok(Throughput { provenance, settings: self.reported(), cells: medians(repetitions) })
    }

    fn repetition(
        &self,
        steps: &[Step],
        plan: &Plan,
        progress: &mut dyn Progress,
    ) -> Result<Vec<Cell>> {
        let temporary = match &self.database {
            Some(_) => None,
            None => Some(temporary::directory("lsmx-bench-", &self.directory)?),
        };
        let path = |kind: Kind| match (&self.database, &temporary) {
            (Some(path), _) if kind == Kind::Lsmx => path.clone(),
            (Some(path), _) => {
                let mut path = path.clone().into_os_string();
                path.push(format!(".{kind}"));
                path.into()
            }
            (None, Some(directory)) => directory.path().join(kind.name()),
            (None, None) => self.directory.join(kind.name()),
        };
        let mut databases = std::iter::once(Kind::Lsmx)
            .chain(self.peers.iter().copied())
            .map(|kind| Database::new(kind, path(kind), plan))
            .collect::<Result<Vec<_>>>()?;
        let mut cells = Vec::new();
        for step in steps {
            for database in &mut databases {
                cells.extend(database.step(*step, plan, progress)?);
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
            return Err(invalid("WORKLOAD", "missing".to_owned(), format!("of {known}")));
        }
        self.check_numbers()?;
        if let Some(rate) = self.rate {
            if !(rate.is_finite() && rate > 0.0) {
                return Err(invalid("--rate", rate.to_string(), "above 0".to_owned()));
            }
            if self.workloads.contains(&Workload::Scan) {
                return Err(contradiction("--rate", "scan", "its entries come as one stream"));
            }
        }
        if self.repeat > 1 && self.database.is_some() {
            return Err(contradiction("--repeat", "--db", "every repetition needs a new database"));
        }
        Ok(())
    }

    /// Checks what every run needs, with workloads or without.
    pub(super) fn check_numbers(&self) -> Result<()> {
        between("--key-len", self.key_bytes, 1, KEY_BYTES_MAX)?;
        between("--value-len", self.value_bytes, 0, VALUE_BYTES_MAX)?;
        between("--entries", self.entries, 1, 1 << 40)?;
        between("--repeat", self.repeat, 1, 1000)?;
        between("--ops", self.ops.unwrap_or(1), 1, 1 << 40)?;
        between("--seek-entries", self.seek_entries, 1, 1 << 40)?;
        let threads = numbers::count(self.threads.unwrap_or(1));
        between("--threads", threads, 1, numbers::count(THREADS_MAX))
    }

    /// The workloads with their threads.
    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for workload in &self.workloads {
            let threads = match (self.threads, workload) {
                (Some(threads), _) => vec![threads],
                (None, Workload::Fillsync) => FILLSYNC_THREADS.to_vec(),
                (None, _) => vec![1],
            };
            for threads in threads {
                let place = numbers::count(steps.len());
                steps.push(Step { workload: *workload, place, threads });
            }
        }
        steps
    }

    fn plan(&self, steps: &[Step]) -> Result<Plan> {
        let inserts: u64 = steps
            .iter()
            .map(|step| {
                step.workload.inserts(step.workload.ops(self.entries, self.ops), step.threads)
            })
            .sum();
        let capacity = self.entries + inserts;
        Ok(Plan {
            settings: self.settings.clone(),
            records: Records::new(capacity, self.key_bytes, self.value_bytes, self.seed)?,
            entries: self.entries,
            ops: self.ops,
            seek_entries: self.seek_entries,
            rate: self.rate,
            seed: self.seed,
        })
    }

    pub(super) fn reported(&self) -> Settings {
        Settings {
            entries: self.entries,
            key_len: self.key_bytes,
            value_len: self.value_bytes,
            memtable_bytes: self.settings.memtable_bytes,
            block_cache_bytes: self.settings.block_cache_bytes,
            workers: numbers::count(self.settings.lsmx.workers()),
            options: self.options.clone(),
            rate: self.rate,
            seek_entries: self.seek_entries,
            clock_ns: clock::cost_ns(),
        }
    }
}

/// For each cell the repetition with the median rate (of two the slower), and the rates of all.
fn medians(repetitions: Vec<Vec<Cell>>) -> Vec<Cell> {
    let cells = repetitions.first().map_or(0, Vec::len);
    (0..cells)
        .filter_map(|place| {
            let mut runs: Vec<(u64, &Cell)> =
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

fn between(name: &'static str, n: u64, min: u64, max: u64) -> Result<()> {
    if (min..=max).contains(&n) {
        return Ok(());
    }
    Err(invalid(name, n.to_string(), format!("from {min} to {max}")))
}

fn invalid(name: &'static str, value: String, must: String) -> Error {
    Error::Invalid { name, value, must }
}

pub(super) fn contradiction(first: &str, second: &str, why: &'static str) -> Error {
    Error::Contradiction { first: first.to_owned(), second: second.to_owned(), why }
}
