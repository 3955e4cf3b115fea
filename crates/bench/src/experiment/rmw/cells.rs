//! Divides `lsmx rmw` into cells. A cell is one repetition of a measurement.

use std::path::PathBuf;

use super::cell::CellPlan;
use super::result::{RmwCell, RmwResult};
use super::{Config, median_repetitions};
use crate::error::Result;
use crate::experiment::Progress;
use crate::experiment::cells::CellStudy;
use crate::numbers;

impl CellStudy for Config {
    type Output = RmwResult;

    fn labels(&self) -> Result<Vec<String>> {
        let plans = self.cell_plans()?;
        let label = |plan: &CellPlan, repetition| {
            let CellPlan { design, recipe, sweep, .. } = self.repeated_plan(plan, repetition);
            let (mix, read_ratio, seed) = (recipe.mix, recipe.read_ratio, recipe.seed);
            let sweep = if sweep.is_empty() { String::new() } else { format!(" {sweep}") };
            format!("{design} read_ratio={}{sweep} seed={seed}", mix.read_ratio(read_ratio))
        };
        let labels = plans.iter().flat_map(|plan| (0..self.repeat).map(move |at| label(plan, at)));
        Ok(labels.collect())
    }

    fn directory_mut(&mut self) -> &mut PathBuf {
        &mut self.directory
    }

    fn run_cell(&self, index: u64, progress: &mut dyn Progress) -> Result<RmwResult> {
        let plans = self.cell_plans()?;
        let plan =
            self.repeated_plan(&plans[numbers::to_usize(index / self.repeat)], index % self.repeat);
        Ok(self.result(self.provenance(), self.run_plan(&plan, progress)?))
    }

    fn combine(&self, parts: Vec<RmwResult>) -> Result<RmwResult> {
        let provenance = self.provenance().with_machines_of(&parts);
        let runs: Vec<Vec<RmwCell>> = parts.into_iter().map(|part| part.cells).collect();
        let mut cells = Vec::new();
        for repetitions in runs.chunks(numbers::to_usize(self.repeat)) {
            cells.extend(median_repetitions(repetitions)?);
        }
        Ok(self.result(provenance, cells))
    }
}
