//! The search: a grid of designs simulated at a small size; the better half of them at a larger one,
//! and so on to the full size; on the way steps around the best, each half as wide as the last.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::experiment::explore::{self, Point, Source};
use crate::experiment::sweep::SweepPoint;
use crate::experiment::{Progress, simulate};
use crate::numbers::{count, float, length, ratio, round};
use crate::peers::EngineSettings;
use crate::workload::phases::Phase;

use super::costs::Costs;
use super::design::{Design, Memory, policies};
use super::result::Searched;
use super::scale::{puts, scaled, writes};
use super::weights::Weights;

/// Flushes of a tree of the first round, about: few enough to be quick, many enough for three levels.
const FLUSHES_FIRST: u64 = 400;
/// Most flushes of a tree around which steps are tried.
const FLUSHES_STEPS: u64 = 3000;
/// From round to round trees grow by this.
const GROWTH: u64 = 4;
/// Designs that every round keeps at least.
const KEPT_MIN: usize = 12;
/// Most designs of a family in the answer.
const FAMILY_MAX: usize = 3;
/// Designs around which steps are tried.
const STEPPED: usize = 4;
/// Widths of the steps.
const STEPS: [f64; 2] = [2.0, 1.0];

/// What is searched for.
pub(super) struct Problem {
    pub(super) phases: Vec<Phase>,
    pub(super) key_bytes: u64,
    pub(super) value_bytes: u64,
    pub(super) memory_bytes: u64,
    pub(super) weights: Weights,
    pub(super) seed: u64,
    pub(super) directory: PathBuf,
}

/// A design with what its simulation found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) design: Design,
    pub(super) costs: Costs,
}

/// What a search found.
pub(super) struct Outcome {
    /// Designs at full size, the best first.
    pub(super) best: Vec<Found>,
    /// The default policy at full size, with the memory divided as suits it best.
    pub(super) reference: Found,
    /// Designs of the grid, with their costs in the smallest trees.
    pub(super) grid: Vec<Found>,
    pub(super) searched: Searched,
}

impl Problem {
    pub(super) fn memory(&self) -> Memory {
        let entry = self.key_bytes + self.value_bytes;
        Memory { bytes: self.memory_bytes, data_bytes: puts(&self.phases).saturating_mul(entry) }
    }

    /// Searches.
    pub(super) fn search(&self, progress: &mut dyn Progress) -> Result<Outcome> {
        let memory = self.memory();
        let splits = memory.splits();
        let Some(split) = splits.first() else {
            return Err(Error::Invalid {
                name: "--memory",
                value: self.memory_bytes.to_string(),
                must: format!(
                    "at least {} bytes: two memtables of the smallest size",
                    2 * super::design::MEMTABLE_BYTES_MIN
                ),
            });
        };
        let deletes = self.phases.iter().any(|it| it.deletes + it.range_deletes > 0);
        let mut designs: Vec<Design> = Vec::new();
        for kind in policies(deletes) {
            designs.extend(splits.iter().map(|it| Design { kind: kind.clone(), ..it.clone() }));
        }
        let mut searched = Searched { designs: count(designs.len()), ..Searched::default() };
        let flushes = memory.data_bytes / split.memtable_bytes.max(1);
        let sizes = sizes(flushes);
        let mut stepped = false;
        let mut found: Vec<Found> = Vec::new();
        let mut grid = Vec::new();
        for (round, &shrink) in sizes.iter().enumerate() {
            let title = format!("round {} of {}", round + 1, sizes.len());
            found = self.simulate(&title, designs, shrink, &mut searched, progress)?;
            if round == 0 {
                grid.clone_from(&found);
            }
            // Steps are for the largest trees that are still quick.
            let next = sizes.get(round + 1);
            if !stepped && next.is_none_or(|next| flushes / next > FLUSHES_STEPS) {
                stepped = true;
                for step in STEPS {
                    let near = steps(&found, step, &memory);
                    searched.designs += count(near.len());
                    let title = format!("{title}, steps");
                    found.extend(self.simulate(&title, near, shrink, &mut searched, progress)?);
                    self.sort(&mut found);
                }
            }
            let kept = (found.len() / 2).max(KEPT_MIN);
            found.truncate(kept);
            designs = found.iter().map(|it| it.design.clone()).collect();
        }
        let found = different(found);
        let is_reference = |it: &&Found| it.design.kind == split.kind;
        let references: Vec<Design> =
            grid.iter().filter(is_reference).map(|it| it.design.clone()).collect();
        let references = self.simulate("the default", references, 1, &mut searched, progress)?;
        let reference = references.into_iter().next().unwrap_or_else(|| found[0].clone());
        Ok(Outcome { best: found, reference, grid, searched })
    }

    /// Simulates designs in trees of so much less data; the best first.
    fn simulate(
        &self,
        title: &str,
        designs: Vec<Design>,
        shrink: u64,
        searched: &mut Searched,
        progress: &mut dyn Progress,
    ) -> Result<Vec<Found>> {
        let factor = ratio(1, shrink);
        let phases = scaled(&self.phases, factor, u64::MAX);
        if searched.rounds.last() != Some(&writes(&phases)) {
            searched.rounds.push(writes(&phases));
        }
        searched.simulations += count(designs.len());
        // Memtables stay, so that a small tree is the upper part of a large one; a cache shrinks with
        // what it caches.
        let costs = self.costs(title, &designs, &phases, (1.0, factor), progress)?;
        let found = designs.into_iter().zip(costs);
        let mut found: Vec<Found> = found.map(|(design, costs)| Found { design, costs }).collect();
        self.sort(&mut found);
        Ok(found)
    }

    /// The costs of designs by simulation, with memtables and caches of these shares of their sizes.
    pub(super) fn costs(
        &self,
        title: &str,
        designs: &[Design],
        phases: &[Phase],
        shares: (f64, f64),
        progress: &mut dyn Progress,
    ) -> Result<Vec<Costs>> {
        if designs.is_empty() {
            return Ok(Vec::new());
        }
        let source =
            || Source::Generated { key_bytes: self.key_bytes, value_bytes: self.value_bytes };
        let points = designs.iter().map(|it| point(it, source(), phases, shares));
        let config = self.config(points.collect::<Result<_>>()?);
        let simulated = simulate::run(&config, &mut Titled { title, progress })?;
        let writes = writes(phases);
        Ok(simulated.cells.iter().map(|cell| Costs::of_report(&cell.report, writes)).collect())
    }

    /// An exploration of these points.
    pub(super) fn config(&self, points: Vec<Point>) -> explore::Config {
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

    fn sort(&self, found: &mut [Found]) {
        found.sort_by(|a, b| a.costs.sum(&self.weights).total_cmp(&b.costs.sum(&self.weights)));
    }
}

/// A design as a point of an exploration.
pub(super) fn point(
    design: &Design,
    source: Source,
    phases: &[Phase],
    (memtable, cache): (f64, f64),
) -> Result<Point> {
    let Some(spec) = design.kind.spec() else {
        // Only designs whose numbers go together are made.
        return Err(Error::Invalid {
            name: "a design",
            value: format!("{:?}", design.kind),
            must: "a policy".to_owned(),
        });
    };
    let share = |bytes: u64, share: f64| round(float(bytes) * share);
    Ok(Point {
        sweep: SweepPoint::default(),
        policies: vec![spec],
        source,
        phases: phases.to_vec(),
        settings: EngineSettings {
            memtable_bytes: Some(
                share(design.memtable_bytes, memtable).max(super::design::MEMTABLE_BYTES_MIN),
            ),
            block_cache_bytes: Some(share(design.block_cache_bytes, cache)),
            ..EngineSettings::default()
        },
        deterministic: true,
    })
}

/// By how much the trees of each round are smaller, for a tree of so many flushes; the last is 1.
fn sizes(flushes: u64) -> Vec<u64> {
    let mut sizes = vec![1];
    while let Some(last) = sizes.last().filter(|last| flushes / **last > FLUSHES_FIRST * GROWTH / 2)
    {
        sizes.push(last * GROWTH);
    }
    sizes.reverse();
    sizes
}

/// Designs around the best, none of which is known.
fn steps(found: &[Found], step: f64, memory: &Memory) -> Vec<Design> {
    let mut near: Vec<Design> = Vec::new();
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

/// The best, without those that come to the same as a better one, and few of each family, so that there
/// is a choice.
fn different(found: Vec<Found>) -> Vec<Found> {
    let mut kept: Vec<Found> = Vec::new();
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

/// Progress under a title of its own.
struct Titled<'a> {
    title: &'a str,
    progress: &'a mut dyn Progress,
}

impl Progress for Titled<'_> {
    fn begin(&mut self, what: &str, ops: u64) {
        self.progress.begin(&format!("{}: {what}", self.title), ops);
    }

    fn advance(&mut self, ops: u64) {
        self.progress.advance(ops);
    }

    fn end(&mut self) {
        self.progress.end();
    }
}

/// Of the designs of the grid, for each preset as it is the one whose memory suits it best.
pub(super) fn best_of_each_preset(grid: &[Found], weights: &Weights) -> Vec<Design> {
    let presets = lsmx_compaction::PolicySpec::all_presets().into_iter();
    let best = presets.filter_map(|preset| {
        let kind = super::design::Kind::Preset(preset);
        let own = grid.iter().filter(|it| it.design.kind == kind);
        own.min_by(|a, b| a.costs.sum(weights).total_cmp(&b.costs.sum(weights)))
    });
    best.map(|it| it.design.clone()).collect()
}

/// How many designs of a list are confirmed.
pub(super) fn confirmed(asked: u64, found: usize) -> usize {
    length(asked).min(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_grow_from_small_trees_to_the_full_one() {
        assert_eq!(sizes(150), [1]);
        assert_eq!(sizes(800), [1]);
        assert_eq!(sizes(1000), [4, 1]);
        assert_eq!(sizes(42_000), [64, 16, 4, 1]);
    }
}
