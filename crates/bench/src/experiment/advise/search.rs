//! Searches for the cheapest designs. The first round simulates a grid of designs with small trees. Each further round
//! simulates the better half with larger trees, up to the full size. The last round whose trees have at most
//! [`FLUSHES_STEPS`] flushes also simulates neighbours of the best designs. A neighbour differs from a design in one
//! parameter.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::experiment::explore::{self, RecordSource, WorkloadPoint};
use crate::experiment::sweep::SweepPoint;
use crate::experiment::{Progress, simulate};
use crate::numbers::{ratio, round_to_u64, to_f64, to_u64};
use crate::peers::EngineSettings;
use crate::workload::phases::Phase;

use super::costs::DesignCosts;
use super::design::{CandidateDesign, MEMTABLE_BYTES_MIN, MemoryBudget, PolicyKind, grid_policies};
use super::result::SearchExtent;
use super::scale::{count_puts, count_writes, scale_phases};
use super::weights::CostWeights;

/// Approximate number of flushes per tree in the first round, enough to fill three levels.
const FLUSHES_FIRST: u64 = 400;
/// Maximum number of flushes per tree in the round that also simulates neighbours of the best designs.
const FLUSHES_STEPS: u64 = 3000;
/// Factor by which the data grows from one round to the next.
const GROWTH: u64 = 4;
/// Minimum number of designs kept after a round. Also the maximum number of designs in the result.
const KEPT_MIN: usize = 12;
/// Maximum number of designs in the result whose policies have the same name.
const FAMILY_MAX: usize = 3;
/// Number of best designs whose neighbours are simulated.
const STEPPED: usize = 4;
/// Step sizes for the neighbours of a design. A step `n` divides or multiplies a parameter by `1 + 0.25 * n`.
const STEPS: [f64; 2] = [2.0, 1.0];

pub(super) struct SearchProblem {
    pub(super) phases: Vec<Phase>,
    pub(super) key_bytes: u64,
    pub(super) value_bytes: u64,
    pub(super) memory_bytes: u64,
    pub(super) weights: CostWeights,
    pub(super) seed: u64,
    pub(super) directory: PathBuf,
}

/// A design with its simulated costs.
#[derive(Clone, Debug)]
pub(super) struct SimulatedDesign {
    pub(super) design: CandidateDesign,
    pub(super) costs: DesignCosts,
}

pub(super) struct SearchOutcome {
    /// Best designs with the costs of the full-size simulation, in order of increasing cost.
    pub(super) best: Vec<SimulatedDesign>,
    /// The default policy with its best memory split, simulated at full size.
    pub(super) reference: SimulatedDesign,
    /// All designs on the grid with their costs in the first round.
    pub(super) grid: Vec<SimulatedDesign>,
    pub(super) searched: SearchExtent,
}

impl SearchProblem {
    pub(super) fn memory_budget(&self) -> MemoryBudget {
        let entry = self.key_bytes + self.value_bytes;
        MemoryBudget {
            bytes: self.memory_bytes,
            data_bytes: count_puts(&self.phases).saturating_mul(entry),
        }
    }

    /// Searches for the designs with the lowest weighted cost.
    pub(super) fn find_designs(&self, progress: &mut dyn Progress) -> Result<SearchOutcome> {
        let memory = self.memory_budget();
        let splits = memory.default_designs();
        let Some(split) = splits.first() else {
            let least = 2 * MEMTABLE_BYTES_MIN;
            let must = format!("at least {least} bytes: two memtables of the smallest size");
            return Err(Error::invalid_argument("--memory-budget", self.memory_bytes, must));
        };
        let deletes = self.phases.iter().any(|it| it.deletes + it.range_deletes > 0);
        let mut designs: Vec<CandidateDesign> = Vec::new();
        for kind in grid_policies(deletes) {
            designs.extend(
                splits.iter().map(|it| CandidateDesign { kind: kind.clone(), ..it.clone() }),
            );
        }
        let mut searched =
            SearchExtent { designs: to_u64(designs.len()), ..SearchExtent::default() };
        let flushes = memory.data_bytes / split.memtable_bytes.max(1);
        let sizes = round_divisors(flushes);
        let mut stepped = false;
        let mut found: Vec<SimulatedDesign> = Vec::new();
        let mut grid = Vec::new();
        for (round, &shrink) in sizes.iter().enumerate() {
            let title = format!("round {} of {}", round + 1, sizes.len());
            found = self.simulate_designs(&title, designs, shrink, &mut searched, progress)?;
            if round == 0 {
                grid.clone_from(&found);
            }
            // Neighbours are simulated in the last round whose trees have at most `FLUSHES_STEPS` flushes.
            let next = sizes.get(round + 1);
            if !stepped && next.is_none_or(|next| flushes / next > FLUSHES_STEPS) {
                stepped = true;
                for step in STEPS {
                    let near = neighbour_designs(&found, step, &memory);
                    searched.designs += to_u64(near.len());
                    let title = format!("{title}, steps");
                    found.extend(self.simulate_designs(
                        &title,
                        near,
                        shrink,
                        &mut searched,
                        progress,
                    )?);
                    self.sort_by_cost(&mut found);
                }
            }
            let kept = (found.len() / 2).max(KEPT_MIN);
            found.truncate(kept);
            designs = found.iter().map(|it| it.design.clone()).collect();
        }
        let found = select_distinct_designs(found);
        let is_reference = |it: &&SimulatedDesign| it.design.kind == split.kind;
        let references: Vec<CandidateDesign> =
            grid.iter().filter(is_reference).map(|it| it.design.clone()).collect();
        let references =
            self.simulate_designs("the default", references, 1, &mut searched, progress)?;
        let reference = references.into_iter().next().unwrap_or_else(|| found[0].clone());
        Ok(SearchOutcome { best: found, reference, grid, searched })
    }

    /// Simulates the designs with the amount of data divided by `shrink`. Returns the designs in order of increasing
    /// cost.
    fn simulate_designs(
        &self,
        title: &str,
        designs: Vec<CandidateDesign>,
        shrink: u64,
        searched: &mut SearchExtent,
        progress: &mut dyn Progress,
    ) -> Result<Vec<SimulatedDesign>> {
        let factor = ratio(1, shrink);
        let phases = scale_phases(&self.phases, factor, u64::MAX);
        if searched.rounds.last() != Some(&count_writes(&phases)) {
            searched.rounds.push(count_writes(&phases));
        }
        searched.simulations += to_u64(designs.len());
        // The memtable size is not scaled. A tree with fewer records then has the same upper levels as the full tree.
        // The block cache is scaled with the data.
        let costs = self.simulate_costs(title, &designs, &phases, (1.0, factor), progress)?;
        let found = designs.into_iter().zip(costs);
        let mut found: Vec<SimulatedDesign> =
            found.map(|(design, costs)| SimulatedDesign { design, costs }).collect();
        self.sort_by_cost(&mut found);
        Ok(found)
    }

    /// Simulates the designs and returns their costs. `shares` are the scale factors of the memtables and of the block
    /// cache.
    pub(super) fn simulate_costs(
        &self,
        title: &str,
        designs: &[CandidateDesign],
        phases: &[Phase],
        shares: (f64, f64),
        progress: &mut dyn Progress,
    ) -> Result<Vec<DesignCosts>> {
        if designs.is_empty() {
            return Ok(Vec::new());
        }
        let source =
            || RecordSource::Generated { key_bytes: self.key_bytes, value_bytes: self.value_bytes };
        let points = designs.iter().map(|it| design_point(it, source(), phases, shares));
        let config = self.exploration_config(points.collect::<Result<_>>()?);
        let simulated =
            simulate::simulate_exploration(&config, &mut TitledProgress { title, progress })?;
        let writes = count_writes(phases);
        Ok(simulated
            .cells
            .iter()
            .map(|cell| DesignCosts::from_report(&cell.report, writes))
            .collect())
    }

    /// Returns the configuration of `lsmx explore` for these workloads and engine settings.
    pub(super) fn exploration_config(&self, points: Vec<WorkloadPoint>) -> explore::Config {
        explore::Config {
            points,
            repeat: 1,
            seed: self.seed,
            directory: self.directory.clone(),
            command: String::new(),
            spec: None,
            decisions: None,
        }
    }

    fn sort_by_cost(&self, found: &mut [SimulatedDesign]) {
        found.sort_by(|a, b| {
            a.costs.weighted_sum(&self.weights).total_cmp(&b.costs.weighted_sum(&self.weights))
        });
    }
}

/// Converts a design to a workload and engine settings for `lsmx explore`. The last argument contains the scale factors
/// of the memtable size and of the block cache size.
pub(super) fn design_point(
    design: &CandidateDesign,
    source: RecordSource,
    phases: &[Phase],
    (memtable, cache): (f64, f64),
) -> Result<WorkloadPoint> {
    let Some(spec) = design.kind.spec() else {
        // Designs of the search always have valid parameters.
        return Err(Error::invalid_argument("a design", format!("{:?}", design.kind), "a policy"));
    };
    let share = |bytes: u64, share: f64| round_to_u64(to_f64(bytes) * share);
    Ok(WorkloadPoint {
        sweep: SweepPoint::default(),
        policies: vec![spec],
        source,
        phases: phases.to_vec(),
        settings: EngineSettings {
            memtable_bytes: Some(share(design.memtable_bytes, memtable).max(MEMTABLE_BYTES_MIN)),
            block_cache_bytes: Some(share(design.block_cache_bytes, cache)),
            ..EngineSettings::default()
        },
        deterministic: true,
        threads: 1,
        write_rate: None,
    })
}

/// Returns the divisors of the data size, one per round of the search, in descending order. The last divisor is 1.
/// `flushes` is the number of flushes at full size.
fn round_divisors(flushes: u64) -> Vec<u64> {
    let mut sizes = vec![1];
    while let Some(last) = sizes.last().filter(|last| flushes / **last > FLUSHES_FIRST * GROWTH / 2)
    {
        sizes.push(last * GROWTH);
    }
    sizes.reverse();
    sizes
}

/// Returns the neighbours of the best designs that are not in `found` yet.
fn neighbour_designs(
    found: &[SimulatedDesign],
    step: f64,
    memory: &MemoryBudget,
) -> Vec<CandidateDesign> {
    let mut near: Vec<CandidateDesign> = Vec::new();
    for best in found.iter().take(STEPPED) {
        for design in best.design.neighbours(step, memory) {
            let known = found.iter().any(|it| it.design == design) || near.contains(&design);
            if !known {
                near.push(design);
            }
        }
    }
    near
}

/// Returns the best designs with distinct costs, at most [`FAMILY_MAX`] per policy name.
fn select_distinct_designs(found: Vec<SimulatedDesign>) -> Vec<SimulatedDesign> {
    let mut kept: Vec<SimulatedDesign> = Vec::new();
    for it in found {
        let family = it.design.kind.family();
        let alike = kept.iter().filter(|other| other.design.kind.family() == family).count();
        let same = kept.iter().any(|other| other.costs == it.costs);
        if !same && alike < FAMILY_MAX && kept.len() < KEPT_MIN {
            kept.push(it);
        }
    }
    kept
}

/// Forwards progress reports with a prefix before each title.
struct TitledProgress<'a> {
    title: &'a str,
    progress: &'a mut dyn Progress,
}

impl Progress for TitledProgress<'_> {
    fn begin_phase(&mut self, what: &str, ops: u64) {
        self.progress.begin_phase(&format!("{}: {what}", self.title), ops);
    }

    fn advance(&mut self, ops: u64) {
        self.progress.advance(ops);
    }

    fn end_phase(&mut self) {
        self.progress.end_phase();
    }
}

/// Returns each preset with its default parameters and the memory split that was cheapest on the grid.
pub(super) fn find_best_presets(
    grid: &[SimulatedDesign],
    weights: &CostWeights,
) -> Vec<CandidateDesign> {
    let presets = lsmx_compaction::PolicySpec::all_presets().into_iter();
    let best = presets.filter_map(|preset| {
        let kind = PolicyKind::Preset(preset);
        let own = grid.iter().filter(|it| it.design.kind == kind);
        own.min_by(|a, b| a.costs.weighted_sum(weights).total_cmp(&b.costs.weighted_sum(weights)))
    });
    best.map(|it| it.design.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_last_round_has_full_size() {
        assert_eq!(round_divisors(150), [1]);
        assert_eq!(round_divisors(800), [1]);
        assert_eq!(round_divisors(1000), [4, 1]);
        assert_eq!(round_divisors(42_000), [64, 16, 4, 1]);
    }
}
