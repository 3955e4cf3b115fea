//! `lsmx rmw`: compares ways to update a field of a value, and storage locations for values and merge operands.
//!
//! A record consists of fields. A read-modify-write replaces the bytes of one field. All update modes must produce
//! equal values.
//!
//! Each measurement creates a database, loads all records, waits until compaction is idle, and warms up the caches. It
//! runs the operations and waits until compaction is idle again. Finally it checks the values of a sample of records,
//! and removes the database.

mod cell;
mod cells;
pub mod columns;
mod design;
mod model;
mod operands;
mod page;
mod plans;
mod read_sources;
pub mod result;
mod scans;
mod stream;
mod study;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use crate::error::Result;
use crate::experiment::resume::RunDirectory;
use crate::experiment::sweep::SweepPoint;
use crate::numbers::{self, round_to_u64};
use crate::peers::EngineKind;
use crate::report::provenance::Provenance;
use crate::temporary;
use crate::workload::operation_mix::OperationMix;

use super::{Progress, repeat};
use cell::CellPlan;
use result::{RmwCell, RmwResult};

pub use design::{EngineDesign, UpdateMode, ValuePlacement};
pub use study::RmwStudy;

/// Maximum number of threads that run operations.
pub const THREADS_MAX: u64 = 64;

/// Configuration of `lsmx rmw`.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the `--help` text of each flag documents its field")]
pub struct Config {
    pub modes: Vec<UpdateMode>,
    pub bases: Vec<ValuePlacement>,
    pub peers: Vec<EngineKind>,
    /// Shares of reads among the operations. Each share is measured separately. `None` means 0.1.
    pub read_ratios: Option<Vec<f64>>,
    pub mix: OperationMix,
    pub study: Option<RmwStudy>,
    pub records: u64,
    /// Length of a key in bytes. `None` means 24, or a variable length in the UP2X mix.
    pub key_bytes: Option<u64>,
    /// Length of a value in bytes. `None` means 1000, or a variable length in the UP2X mix.
    pub value_bytes: Option<u64>,
    /// Length of a field in bytes. `None` means 100, or 10 in the UP2X mix.
    pub field_bytes: Option<u64>,
    /// Number of bytes that an update writes. `None` means a complete field.
    pub delta_bytes: Option<u64>,
    pub ops: u64,
    /// Zipf exponent of the access frequencies. `None` means 0.99.
    pub zipf: Option<f64>,
    /// Memory budget in bytes. `None` means 4 % of the loaded bytes, but at least 4 MiB.
    pub memory_budget: Option<u64>,
    pub direct_io: bool,
    /// Size of a memtable in bytes. `None` means the default for the memory budget.
    pub memtable_bytes: Option<u64>,
    /// Size at which a bucket of the operand store is full, in bytes. `None` means the default of the store.
    pub bucket_bytes: Option<u64>,
    /// Target number of value bytes that a scan reads from a blob file with one read call.
    pub scan_read_bytes: Option<u64>,
    pub threads: u64,
    pub repeat: u64,
    pub seed: u64,
    pub directory: PathBuf,
    pub command: String,
}

/// Preview of a measurement, shown by `--dry-run`.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the table of `--dry-run` has columns of the same names")]
pub struct RmwEstimate {
    pub design: String,
    /// Value of the parameter that the experiment varies.
    pub sweep: SweepPoint,
    pub read_ratio: f64,
    pub records: u64,
    pub loaded_bytes: u64,
    pub memory_budget: u64,
    /// Total number of operations of all repetitions.
    pub ops: u64,
    /// Whether an earlier command has finished all repetitions of the measurement.
    pub finished: bool,
}

impl Config {
    /// Checks the configuration.
    ///
    /// # Errors
    /// A parameter is out of range, two parameters contradict each other, or a required engine is not part of this
    /// build.
    pub fn check(&self) -> Result<()> {
        self.cell_plans().map(drop)
    }

    /// Returns the number of measurements, including repetitions.
    ///
    /// # Errors
    /// [`Config::check`] fails.
    pub fn cell_count(&self) -> Result<u64> {
        Ok(numbers::to_u64(self.cell_plans()?.len()) * self.repeat)
    }

    /// Returns a preview of each measurement.
    ///
    /// # Errors
    /// [`Config::check`] fails, or the result of a finished measurement cannot be read.
    pub fn estimate_cells(&self, finished: Option<&RunDirectory>) -> Result<Vec<RmwEstimate>> {
        let plans = (0..).step_by(numbers::to_usize(self.repeat)).zip(self.cell_plans()?);
        let estimates = plans.map(|(place, plan): (u64, CellPlan)| {
            let mut done = finished.is_some();
            for place in place..place + self.repeat {
                done &= match finished {
                    Some(finished) => finished.read_cell::<Vec<RmwCell>>(place)?.is_some(),
                    None => false,
                };
            }
            Ok(RmwEstimate {
                design: plan.design.to_string(),
                sweep: plan.sweep.clone(),
                read_ratio: plan.recipe.mix.read_ratio(plan.recipe.read_ratio),
                records: plan.recipe.records,
                loaded_bytes: plan.generated_records()?.total_bytes(plan.recipe.records),
                memory_budget: plan.settings.memory_budget.unwrap_or(0),
                ops: plan.recipe.ops * self.repeat,
                finished: done,
            })
        });
        estimates.collect()
    }

    /// Executes all measurements whose results `finished` does not contain yet, and stores each new result in
    /// `finished`.
    ///
    /// # Errors
    /// [`Config::check`] fails, an engine operation fails, or an engine returns a wrong answer.
    pub fn run(
        &self,
        finished: Option<&RunDirectory>,
        progress: &mut dyn Progress,
    ) -> Result<RmwResult> {
        let plans = self.cell_plans()?;
        let provenance = self.provenance();
        let repeat = numbers::to_usize(self.repeat);
        let mut done: Vec<Vec<RmwCell>> = vec![Vec::new(); plans.len() * repeat];
        for index in repeat::interleave_repetitions(done.len(), self.repeat) {
            let place = numbers::to_u64(index);
            let known = finished.map(|finished| finished.read_cell(place)).transpose()?.flatten();
            done[index] = match known {
                Some(known) => known,
                None => {
                    let plan = self.repeated_plan(&plans[index / repeat], place % self.repeat);
                    let cells = self.run_plan(&plan, progress)?;
                    if let Some(finished) = finished {
                        finished.store_cell(place, &cells)?;
                    }
                    cells
                }
            };
        }
        let mut cells = Vec::new();
        for repetitions in done.chunks(repeat) {
            cells.extend(median_repetitions(repetitions)?);
        }
        Ok(self.result(provenance, cells))
    }

    fn provenance(&self) -> Provenance {
        Provenance::new(self.command.clone(), None, self.seed, &self.directory)
    }

    fn result(&self, provenance: Provenance, cells: Vec<RmwCell>) -> RmwResult {
        let experiment = self.study.map(|study| study.name().to_owned());
        RmwResult { provenance, experiment, cells }
    }

    fn repeated_plan(&self, plan: &CellPlan, repetition: u64) -> CellPlan {
        let mut plan = plan.clone();
        plan.recipe.seed = self.seed.wrapping_add(repetition);
        plan
    }

    fn run_plan(&self, plan: &CellPlan, progress: &mut dyn Progress) -> Result<Vec<RmwCell>> {
        let directory = temporary::create_temporary_directory("lsmx-rmw-", &self.directory)?;
        let values = |study: RmwStudy| -> Vec<u64> {
            study.parameter_values().iter().copied().map(round_to_u64).collect()
        };
        match self.study {
            Some(study @ RmwStudy::Operands) => {
                operands::run_operand_groups(plan, &values(study), directory.path(), progress)
            }
            Some(study @ RmwStudy::Scans) => {
                scans::run_scans(plan, &values(study), directory.path(), progress)
            }
            Some(RmwStudy::ReadSources) => {
                read_sources::run_read_sources(plan, directory.path(), progress)
            }
            _ => plan.run_cell(directory.path(), progress).map(|cell| vec![cell]),
        }
    }
}

/// Replaces repeated results by one result with the medians. Results with the same sweep values are repetitions.
fn median_repetitions(repetitions: &[Vec<RmwCell>]) -> Result<Vec<RmwCell>> {
    let mut cells = Vec::new();
    for first in repetitions.first().into_iter().flatten() {
        let is_same = |cell: &&RmwCell| cell.sweep == first.sweep;
        let all = repetitions.iter().filter_map(|cells| cells.iter().find(is_same).cloned());
        cells.extend(repeat::summarize_repetitions(all.collect())?);
    }
    Ok(cells)
}
