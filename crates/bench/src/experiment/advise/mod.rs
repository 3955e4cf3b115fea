//! `lsmx advise`: recommends a design for a workload, a memory budget and weights.
//!
//! A design is a compaction policy with parameters, and a split of the memory between memtables and block cache. A grid
//! of designs is simulated with small trees. The better half is simulated again with larger trees, and neighbours of
//! the best designs are added. The best designs then run on the engine, with data and memory scaled down to fit a small
//! machine. The scaled-down workload is also simulated. The deviation of measured from simulated costs corrects the
//! simulated costs at full size.

pub mod columns;
mod costs;
mod design;
mod page;
mod reason;
mod result;
mod scale;
mod search;
mod trace;
mod weights;

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::experiment::Progress;
use crate::experiment::explore::RecordSource;
use crate::experiment::explore::result::ExplorationCell;
use crate::numbers::{ratio, to_f64, to_u64, to_usize};
use crate::report::provenance::Provenance;
use crate::workload::phases::Phase;
use crate::workload::trace::TraceFile;

pub use costs::DesignCosts;
pub use design::tiered_top_policy;
pub use result::{
    Advice, AdviceInput, MeasuredDesign, MeasuredPreset, MeasuredPresets, RankedDesign,
    SearchExtent, SimulatedCosts,
};
pub use weights::{CostWeights, SPACE_DEFAULT};

use design::CandidateDesign;
use scale::{count_puts, count_writes, scale_phases};
use search::{SearchOutcome, SearchProblem, SimulatedDesign, design_point, find_best_presets};

/// Maximum total length, in bytes, of the keys and values that a measurement of a design writes.
pub const CONFIRM_BYTES_MAX: u64 = 128 << 20;
/// Maximum number of lookups of each kind in a measurement of a design.
const CONFIRM_LOOKUPS_MAX: u64 = 50_000;
/// Ratio of the data size to the default memory budget.
pub const DATA_PER_MEMORY: u64 = 50;
/// Minimum default memory budget in bytes.
pub const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// Configuration of `lsmx advise`.
#[derive(Debug)]
#[expect(missing_docs, reason = "the `--help` text of each flag documents its field")]
pub struct Config {
    pub workload: PlannedWorkload,
    /// Number of writes for which a design is recommended. If `None`, the number of writes of the workload is used.
    pub entries: Option<u64>,
    /// Memory budget in bytes for two memtables and the block cache. If `None`, the budget is the data size divided by
    /// [`DATA_PER_MEMORY`], but at least [`MEMORY_BYTES_MIN`].
    pub memory_bytes: Option<u64>,
    /// Weights of the four costs. If `None`, all operations have equal weight.
    pub weights: Option<CostWeights>,
    /// Number of designs that are measured on the engine.
    pub confirm: u64,
    pub presets: bool,
    pub seed: u64,
    pub directory: PathBuf,
    pub command: String,
    pub spec: Option<String>,
}

/// Workload for which a design is recommended.
#[derive(Debug)]
pub enum PlannedWorkload {
    /// Phases with generated records.
    Phases {
        /// Phases to run, in order.
        phases: Vec<Phase>,
        /// Length of a key in bytes.
        key_bytes: u64,
        /// Length of a value in bytes.
        value_bytes: u64,
    },
    /// A recorded trace. Simulations use phases that approximate the trace. Runs on the engine replay the trace itself.
    Trace(Arc<TraceFile>),
}

impl Config {
    /// Searches for designs, measures the best designs on the engine, and ranks all designs found.
    ///
    /// # Errors
    /// A parameter is out of range or contradicts the workload, a trace cannot be read, or a database operation fails.
    pub fn run(&self, progress: &mut dyn Progress) -> Result<Advice> {
        let provenance =
            Provenance::new(self.command.clone(), self.spec.clone(), self.seed, &self.directory);
        let problem = self.search_problem()?;
        let outcome = problem.find_designs(progress)?;
        let confirming = self.confirmation_run(&problem);
        let best: Vec<CandidateDesign> = outcome.best.iter().map(|it| it.design.clone()).collect();
        let confirm = to_usize(self.confirm).min(best.len());
        let (measured, cells) = confirming.measure_designs(&problem, &best[..confirm], progress)?;
        let (ranked, order) = rank_designs(&problem, &outcome, &measured);
        let best = ranked.first().and_then(|it| it.measured);
        let presets = self
            .presets
            .then(|| confirming.measure_presets(&problem, &outcome, best, progress))
            .transpose()?;
        let mut cells: Vec<Option<ExplorationCell>> = cells.into_iter().map(Some).collect();
        Ok(Advice {
            provenance,
            asked: AdviceInput {
                entries: count_writes(&problem.phases),
                key_len: problem.key_bytes,
                value_len: problem.value_bytes,
                phases: problem.phases,
                memory_bytes: problem.memory_bytes,
                weights: problem.weights,
            },
            searched: outcome.searched,
            ranked,
            presets,
            cells: order.into_iter().filter_map(|at| cells.get_mut(at)?.take()).collect(),
        })
    }

    fn search_problem(&self) -> Result<SearchProblem> {
        let (mut phases, key_bytes, value_bytes) = match &self.workload {
            PlannedWorkload::Phases { phases, key_bytes, value_bytes } => {
                (phases.clone(), *key_bytes, *value_bytes)
            }
            PlannedWorkload::Trace(trace) => {
                let likeness = trace::approximate_trace(trace)?;
                (likeness.phases, likeness.key_bytes, likeness.value_bytes)
            }
        };
        let written = count_writes(&phases);
        if count_puts(&phases) == 0 {
            let why = "it puts nothing, so there is no tree to be designed";
            return Err(Error::contradictory_arguments("advise", "the workload", why));
        }
        // The default weights are computed before scaling, because scaling changes the ratio of writes to lookups.
        let weights = self.weights.unwrap_or_else(|| CostWeights::from_operations(&phases));
        weights.check(&phases)?;
        if let Some(entries) = self.entries {
            if entries == 0 {
                return Err(Error::invalid_argument("--entries", 0, "at least 1"));
            }
            phases = scale_phases(&phases, ratio(entries, written), u64::MAX);
        }
        let data_bytes = count_puts(&phases).saturating_mul(key_bytes + value_bytes);
        let memory_bytes = self
            .memory_bytes
            .unwrap_or_else(|| (data_bytes / DATA_PER_MEMORY).max(MEMORY_BYTES_MIN));
        Ok(SearchProblem {
            phases,
            key_bytes,
            value_bytes,
            memory_bytes,
            weights,
            seed: self.seed,
            directory: self.directory.clone(),
        })
    }

    /// Returns the workload with which designs are measured on the engine. A large workload is scaled down.
    fn confirmation_run(&self, problem: &SearchProblem) -> ConfirmationRun {
        let entry_bytes = problem.key_bytes + problem.value_bytes;
        if let PlannedWorkload::Trace(trace) = &self.workload {
            // A trace is replayed in full, even if a different number of writes is planned.
            let factor = ratio(trace.counts().writes(), count_writes(&problem.phases));
            let phases = scale_phases(&problem.phases, factor, u64::MAX);
            return ConfirmationRun {
                phases,
                factor: factor.min(1.0),
                trace: Some(Arc::clone(trace)),
            };
        }
        let puts = count_puts(&problem.phases).max(1);
        let factor =
            (to_f64(CONFIRM_BYTES_MAX) / to_f64(entry_bytes.max(1)) / to_f64(puts)).min(1.0);
        let phases = scale_phases(&problem.phases, factor, CONFIRM_LOOKUPS_MAX);
        ConfirmationRun { phases, factor, trace: None }
    }
}

/// Workload with which designs are measured on the engine.
struct ConfirmationRun {
    /// Phases to run. If a trace is replayed, the phases approximate the trace.
    phases: Vec<Phase>,
    /// Number of measured writes divided by the number of planned writes. The memory of each design is scaled by the
    /// same factor.
    factor: f64,
    trace: Option<Arc<TraceFile>>,
}

impl ConfirmationRun {
    /// Runs each design on the engine and simulates it with the same workload.
    fn measure_designs(
        &self,
        problem: &SearchProblem,
        designs: &[CandidateDesign],
        progress: &mut dyn Progress,
    ) -> Result<(Vec<MeasuredDesign>, Vec<ExplorationCell>)> {
        if designs.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let shares = (self.factor, self.factor);
        let simulated =
            problem.simulate_costs("confirming", designs, &self.phases, shares, progress)?;
        let points = designs.iter().map(|design| {
            let (source, phases) = match &self.trace {
                Some(trace) => (RecordSource::Trace(Arc::clone(trace)), &[][..]),
                None => (
                    RecordSource::Generated {
                        key_bytes: problem.key_bytes,
                        value_bytes: problem.value_bytes,
                    },
                    &self.phases[..],
                ),
            };
            design_point(design, source, phases, shares)
        });
        let config = problem.exploration_config(points.collect::<Result<_>>()?);
        let cells = config.run(None, progress)?.cells;
        let entries =
            self.trace.as_ref().map_or(count_writes(&self.phases), |trace| trace.counts().writes());
        let measured = cells.iter().zip(simulated).map(|(cell, simulated)| {
            let costs = DesignCosts::from_cell(cell, entries);
            MeasuredDesign { entries, cost: costs.weighted_sum(&problem.weights), costs, simulated }
        });
        Ok((measured.collect(), cells))
    }

    /// Measures each preset with the memory split that has the lowest simulated cost.
    fn measure_presets(
        &self,
        problem: &SearchProblem,
        outcome: &SearchOutcome,
        best: Option<MeasuredDesign>,
        progress: &mut dyn Progress,
    ) -> Result<MeasuredPresets> {
        let designs = find_best_presets(&outcome.grid, &problem.weights);
        let (measured, _) = self.measure_designs(problem, &designs, progress)?;
        let cells = designs.iter().zip(measured).map(|(design, measured)| MeasuredPreset {
            policy: design.kind.spec().map_or_else(String::new, |spec| spec.name().to_owned()),
            memtable_bytes: design.memtable_bytes,
            block_cache_bytes: design.block_cache_bytes,
            measured,
        });
        let mut cells: Vec<MeasuredPreset> = cells.collect();
        cells.sort_by(|a, b| a.measured.cost.total_cmp(&b.measured.cost));
        let cheapest = cells.first().map_or(0.0, |it| it.measured.cost);
        let ratio = |cost: f64| if cheapest > 0.0 { cost / cheapest } else { 1.0 };
        Ok(MeasuredPresets { advice_to_best: best.map(|it| ratio(it.cost)), cells })
    }
}

/// Returns the designs ranked by corrected cost, and the index of each ranked design in `outcome.best`. Measured
/// designs precede designs without measurements.
fn rank_designs(
    problem: &SearchProblem,
    outcome: &SearchOutcome,
    measured: &[MeasuredDesign],
) -> (Vec<RankedDesign>, Vec<usize>) {
    let weights = &problem.weights;
    let costs: Vec<DesignCosts> = outcome
        .best
        .iter()
        .enumerate()
        .map(|(at, found)| match measured.get(at) {
            Some(it) => found.costs.correct_by(&it.costs, &it.simulated),
            // Designs without measurements are corrected with the mean costs of the measured designs.
            None => found.costs.correct_by(
                &mean_costs(measured, |it| it.costs),
                &mean_costs(measured, |it| it.simulated),
            ),
        })
        .collect();
    let front = costs::find_undominated(&costs);
    let mut order: Vec<usize> = (0..costs.len()).collect();
    order.sort_by(|&a, &b| {
        let unmeasured = |at: usize| at >= measured.len();
        let sums = costs[a].weighted_sum(weights).total_cmp(&costs[b].weighted_sum(weights));
        unmeasured(a).cmp(&unmeasured(b)).then(sums)
    });
    let ranked = order.iter().filter_map(|&at| {
        let SimulatedDesign { design, costs: simulated } = &outcome.best[at];
        let spec = design.kind.spec()?;
        let reference = outcome.reference.design.kind.spec()?.to_string();
        Some(RankedDesign {
            policy: spec.name().to_owned(),
            spec: spec.to_string(),
            memtable_bytes: design.memtable_bytes,
            block_cache_bytes: design.block_cache_bytes,
            cost: costs[at].weighted_sum(weights),
            costs: costs[at],
            simulated: SimulatedCosts { cost: simulated.weighted_sum(weights), costs: *simulated },
            measured: measured.get(at).copied(),
            reason: reason::explain_design(
                &spec,
                simulated,
                (&reference, &outcome.reference.costs),
                weights,
            ),
            pareto: front[at],
        })
    });
    (ranked.collect(), order)
}

/// Returns the mean costs of the measured designs, or 0 if there are none.
fn mean_costs(
    measured: &[MeasuredDesign],
    costs: fn(&MeasuredDesign) -> DesignCosts,
) -> DesignCosts {
    let share = |of: fn(&DesignCosts) -> f64| {
        let sum: f64 = measured.iter().map(|it| of(&costs(it))).sum();
        sum / to_f64(to_u64(measured.len().max(1)))
    };
    DesignCosts {
        writes: share(|it| it.writes),
        points: share(|it| it.points),
        ranges: share(|it| it.ranges),
        space: share(|it| it.space),
    }
}

#[cfg(test)]
mod tests;
