//! `lsmx explore`: measures compaction policies on the engine, with one workload or a sweep of workloads.
//!
//! Each policy runs the phases of each workload on a new database. After the last write, and after each phase that
//! requires an idle database, the run flushes and waits until compaction is idle. Finally the run scans all entries.
//! All answers of the database are checked. [`super::repeat`] combines runs that differ only in the seed.
//! [`super::resume`] stores finished runs, so that an interrupted command can continue.

mod cell;
pub mod columns;
pub mod decisions;
mod digest;
pub mod estimate;
pub mod estimates_table;
pub mod history;
mod job_totals;
mod lookup_meter;
mod lookup_threads;
pub(crate) mod page;
mod point;
mod replay;
pub mod result;

use std::path::PathBuf;

use lsmx_compaction::PolicySpec;

use crate::error::{Error, Result};
use crate::numbers;
use crate::report::provenance::Provenance;

use super::cells::CellStudy;
use super::resume::RunDirectory;
use super::{Progress, repeat};
use decisions::DecisionWriter;
pub use point::DATA_PER_MEMTABLE;
pub use point::{KEY_BYTES_MAX, MEMTABLE_BYTES_MIN, RecordSource, VALUE_BYTES_MAX, WorkloadPoint};
use result::{Exploration, ExplorationCell};

/// Maximum number of runs, including repetitions.
pub const CELLS_MAX: u64 = 1_000_000;

/// Configuration of an exploration.
#[derive(Debug)]
#[expect(missing_docs, reason = "the `--help` text of each flag documents its field")]
pub struct Config {
    pub points: Vec<WorkloadPoint>,
    /// Number of repetitions of each combination of policy and workload. The seed increases by 1 with each repetition.
    pub repeat: u64,
    pub seed: u64,
    pub directory: PathBuf,
    pub command: String,
    pub spec: Option<String>,
    /// Output for the reasons of compactions.
    pub decisions: Option<DecisionWriter>,
}

/// One run of a policy with one workload and one seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedCell<'a> {
    pub(super) point: &'a WorkloadPoint,
    pub(super) policy: &'a PolicySpec,
    pub(super) seed: u64,
    /// Index of the run among all runs of the exploration, counted from 0.
    number: u64,
}

impl Config {
    /// Returns the number of runs, including repetitions.
    pub fn cell_count(&self) -> u64 {
        let policies: usize = self.points.iter().map(|point| point.policies.len()).sum();
        numbers::to_u64(policies).saturating_mul(self.repeat)
    }

    /// Checks the parameters of all runs.
    ///
    /// # Errors
    /// A parameter is out of range.
    pub fn check(&self) -> Result<()> {
        self.check_count()?;
        self.points.iter().try_for_each(|point| point.check(self.seed))
    }

    /// Checks that the number of runs is in range and that the seeds do not overflow.
    pub(super) fn check_count(&self) -> Result<()> {
        let count = self.cell_count();
        if !(1..=CELLS_MAX).contains(&count) {
            let must = format!("such that there are from 1 to {CELLS_MAX} cells");
            return Err(Error::invalid_argument("--repeat", self.repeat, must));
        }
        if self.seed.checked_add(self.repeat).is_none() {
            let must = format!("at most {}", u64::MAX - self.repeat);
            return Err(Error::invalid_argument("--seed", self.seed, must));
        }
        Ok(())
    }

    /// Returns all runs, ordered by workload, then by policy, then by seed.
    pub(super) fn planned_cells(&self) -> impl Iterator<Item = PlannedCell<'_>> {
        let cells = self.points.iter().flat_map(move |point| {
            point.policies.iter().flat_map(move |policy| {
                (0..self.repeat).map(move |at| (point, policy, self.seed + at))
            })
        });
        let place = |(number, (point, policy, seed))| PlannedCell { point, policy, seed, number };
        (0..).zip(cells).map(place)
    }

    /// Executes all runs whose results `finished` does not contain yet, and stores each new result in `finished`.
    ///
    /// # Errors
    /// [`Config::check`] fails, a database operation fails, or a database returns a wrong answer.
    pub fn run(
        &self,
        finished: Option<&RunDirectory>,
        progress: &mut dyn Progress,
    ) -> Result<Exploration> {
        self.check()?;
        let provenance = self.provenance();
        let planned: Vec<_> = self.planned_cells().collect();
        let mut cells: Vec<Option<ExplorationCell>> = vec![None; planned.len()];
        for (at, index) in (0..).zip(repeat::interleave_repetitions(planned.len(), self.repeat)) {
            let place = &planned[index];
            let known = finished.map(|finished| finished.read_cell(place.number)).transpose()?;
            let cell = match known.flatten() {
                Some(cell) => cell,
                None => {
                    let cell = self.run_planned(place, at, progress)?;
                    if let Some(finished) = finished {
                        finished.store_cell(place.number, &cell)?;
                    }
                    cell
                }
            };
            cells[index] = Some(cell);
        }
        Ok(Exploration { provenance, cells: self.summarize(cells.into_iter().flatten().map(Ok))? })
    }

    pub(super) fn provenance(&self) -> Provenance {
        Provenance::new(self.command.clone(), self.spec.clone(), self.seed, &self.directory)
    }

    /// Executes one run. `at` is its index in the order of execution, counted from 0.
    fn run_planned(
        &self,
        place: &PlannedCell<'_>,
        at: u64,
        progress: &mut dyn Progress,
    ) -> Result<ExplorationCell> {
        let title = cell_title(place, at, self.cell_count());
        let mut cell = cell::run_cell(self, place, &title, progress)?;
        cell.simulated = place.point.simulate(place.policy, place.seed)?;
        cell.model = place.point.model_costs(place.policy);
        Ok(cell)
    }

    /// Replaces the repetitions of each combination of policy and workload by one result.
    fn summarize(
        &self,
        cells: impl Iterator<Item = Result<ExplorationCell>>,
    ) -> Result<Vec<ExplorationCell>> {
        let (mut summarized, mut repeated) = (Vec::new(), Vec::new());
        for cell in cells {
            repeated.push(cell?);
            if numbers::to_u64(repeated.len()) == self.repeat {
                summarized.extend(repeat::summarize_repetitions(std::mem::take(&mut repeated))?);
            }
        }
        Ok(summarized)
    }

    /// Returns a label for each run, in the order of [`Config::planned_cells`].
    pub(super) fn planned_labels(&self) -> Vec<String> {
        let label =
            |place: PlannedCell<'_>| format!("{} seed={}", planned_name(&place), place.seed);
        self.planned_cells().map(label).collect()
    }
}

impl CellStudy for Config {
    type Output = Exploration;

    fn labels(&self) -> Result<Vec<String>> {
        self.check()?;
        Ok(self.planned_labels())
    }

    fn directory_mut(&mut self) -> &mut PathBuf {
        &mut self.directory
    }

    fn run_cell(&self, index: u64, progress: &mut dyn Progress) -> Result<Exploration> {
        let provenance = self.provenance();
        let planned = self.planned_cells().skip(numbers::to_usize(index)).take(1);
        let cells = planned.map(|place| self.run_planned(&place, place.number, progress));
        Ok(Exploration { provenance, cells: cells.collect::<Result<_>>()? })
    }

    fn combine(&self, parts: Vec<Exploration>) -> Result<Exploration> {
        let provenance = self.provenance().with_machines_of(&parts);
        let cells = parts.into_iter().flat_map(|part| part.cells).map(Ok);
        Ok(Exploration { provenance, cells: self.summarize(cells)? })
    }
}

fn cell_title(place: &PlannedCell<'_>, at: u64, count: u64) -> String {
    let name = planned_name(place);
    if count > 1 { format!("{}/{count} {name}", at + 1) } else { name }
}

fn planned_name(place: &PlannedCell<'_>) -> String {
    let PlannedCell { point, policy, .. } = place;
    if point.sweep.is_empty() { policy.to_string() } else { format!("{policy} {}", point.sweep) }
}
