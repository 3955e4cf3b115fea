//! `lsmx simulate`: runs the workloads and policies of `lsmx explore` in a simulator that stores no data.
//!
//! Simulations run on several threads ([`lsmx_simulator`]), but the order of the results is fixed. Equivalent
//! simulations run only once. [`simulator::BYTES_MAX`] and [`simulator::FLUSHES_MAX`] limit the size of a simulation.

pub mod columns;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use lsmx::FilterLastRun;
use lsmx_compaction::{PolicyPrimitives, PolicySpec};
use lsmx_simulator::cost_model::Costs;
use lsmx_simulator::{self as simulator, RangeLookupReport, Report};
use serde::{Deserialize, Serialize};

use crate::clock::Stopwatch;
use crate::error::{Error, Result};
use crate::numbers;
use crate::report::provenance::Provenance;
use crate::workload::phases::Phase;

use super::Progress;
use super::cells::CellStudy;
use super::explore::result::WorkloadSummary;
use super::explore::{self, PlannedCell};
use super::model::ModelledTree;
use super::sweep::SweepPoint;

/// Number of threads that run simulations.
pub const THREADS: usize = 2;
/// Interval between two progress reports.
const LOOK: Duration = Duration::from_millis(100);

/// Result of `lsmx simulate`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Simulation {
    /// Version, command line and machine that produced the result.
    pub provenance: Provenance,
    /// Always true. Marks the JSON as the result of a simulation.
    pub simulated: bool,
    /// Results of the simulations, ordered by workload, then by policy, then by seed.
    pub cells: Vec<SimulationCell>,
}

/// Simulation of one policy under one workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SimulationCell {
    /// Canonical name of the policy.
    pub policy: String,
    /// Policy with all its parameters.
    pub spec: String,
    /// Values of the swept flags. Omitted if no flag is swept.
    #[serde(default, skip_serializing_if = "SweepPoint::is_empty")]
    pub sweep: SweepPoint,
    /// Simulated workload and engine settings.
    pub workload: WorkloadSummary,
    /// Seed of the workload.
    pub seed: u64,
    /// Always true. Marks the JSON as the result of a simulation.
    pub simulated: bool,
    /// Costs that the simulator reports.
    #[serde(flatten)]
    pub report: Report,
    /// Costs that the closed-form cost model predicts. `None` if the model does not cover the policy.
    pub model: Option<Costs>,
    /// Duration of the simulation in seconds. 0 if the result was copied from an equivalent policy. For example, `tsd`
    /// and `tsa` are equivalent to `lo+1` if the workload has no deletes.
    pub elapsed_s: f64,
}

struct SimulationTask {
    policy: PolicySpec,
    sweep: SweepPoint,
    workload: WorkloadSummary,
    seed: u64,
    config: simulator::Config,
    model: Option<Costs>,
}

/// Simulates all policies of an exploration with all workloads.
///
/// # Errors
/// A parameter is out of range, the workload does not use generated records, or a policy violates an invariant.
pub fn simulate_exploration(
    config: &explore::Config,
    progress: &mut dyn Progress,
) -> Result<Simulation> {
    config.check_count()?;
    let provenance = config.provenance();
    let tasks: Vec<SimulationTask> =
        config.planned_cells().map(|place| simulation_task(&place)).collect::<Result<_>>()?;
    let first = find_equivalent_tasks(&tasks);
    let run = tasks.iter().zip(&first).enumerate().filter(|(index, (_, first))| index == *first);
    let writes =
        run.map(|(_, (task, _))| task.config.phases.iter().map(Phase::writes).sum::<u64>());
    progress.begin_phase("simulate", writes.fold(0, u64::saturating_add));
    let cells = run_tasks(&tasks, &first, progress)?;
    progress.end_phase();
    Ok(Simulation { provenance, simulated: true, cells })
}

/// An exploration whose cells are simulated.
#[derive(Debug)]
pub struct SimulationStudy(pub explore::Config);

impl CellStudy for SimulationStudy {
    type Output = Simulation;

    fn labels(&self) -> Result<Vec<String>> {
        self.0.check_count()?;
        Ok(self.0.planned_labels())
    }

    fn directory_mut(&mut self) -> &mut PathBuf {
        &mut self.0.directory
    }

    fn run_cell(&self, index: u64, progress: &mut dyn Progress) -> Result<Simulation> {
        let provenance = self.0.provenance();
        let planned = self.0.planned_cells().skip(numbers::to_usize(index)).take(1);
        let tasks: Vec<SimulationTask> =
            planned.map(|place| simulation_task(&place)).collect::<Result<_>>()?;
        let cells = run_tasks(&tasks, &[0], progress)?;
        Ok(Simulation { provenance, simulated: true, cells })
    }

    fn combine(&self, parts: Vec<Simulation>) -> Result<Simulation> {
        let provenance = self.0.provenance().with_machines_of(&parts);
        let cells = parts.into_iter().flat_map(|part| part.cells).collect();
        Ok(Simulation { provenance, simulated: true, cells })
    }
}

fn simulation_task(place: &PlannedCell<'_>) -> Result<SimulationTask> {
    let Some(config) = place.point.simulator_config(place.seed)? else {
        let why = "only generated records can be simulated";
        return Err(Error::contradictory_arguments("simulate", "--data or --trace", why));
    };
    Ok(SimulationTask {
        policy: place.policy.clone(),
        sweep: place.point.sweep.clone(),
        workload: place.point.simulated_workload_summary()?,
        seed: place.seed,
        model: place.point.model_costs(place.policy),
        config,
    })
}

impl SimulationTask {
    /// Returns the simulator configuration and the policy. Simulations for which both are equal have equal results.
    fn equivalence_key(&self) -> (&simulator::Config, PolicyPrimitives) {
        let deletes =
            self.config.phases.iter().any(|phase| phase.deletes + phase.range_deletes > 0);
        let primitives = self.policy.clone().primitives();
        (&self.config, if deletes { primitives } else { primitives.without_tombstone_triggers() })
    }

    fn result_cell(&self, report: Report, elapsed_s: f64) -> SimulationCell {
        SimulationCell {
            policy: self.policy.name().to_owned(),
            spec: self.policy.to_string(),
            sweep: self.sweep.clone(),
            workload: self.workload.clone(),
            seed: self.seed,
            simulated: true,
            report,
            model: self.model,
            elapsed_s,
        }
    }
}

/// Returns for each task the index of the first equivalent task, which may be the task itself.
fn find_equivalent_tasks(tasks: &[SimulationTask]) -> Vec<usize> {
    let mut first: HashMap<String, usize> = HashMap::new();
    let keys = tasks.iter().map(|task| format!("{:?}", task.equivalence_key()));
    keys.enumerate().map(|(index, key)| *first.entry(key).or_insert(index)).collect()
}

/// Simulates one task of each set of equivalent tasks. Returns the results of all tasks, in the order of the tasks.
fn run_tasks(
    tasks: &[SimulationTask],
    first: &[usize],
    progress: &mut dyn Progress,
) -> Result<Vec<SimulationCell>> {
    let (next, done, failed) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    // The slowest simulations start first, so that all threads finish at about the same time.
    let mut order: Vec<usize> = (0..tasks.len()).filter(|index| first[*index] == *index).collect();
    order.sort_by_cached_key(|&index| !tasks[index].policy.clone().build().can_pick_single_files());
    let work = |sender: mpsc::Sender<(usize, Result<SimulationCell>)>| {
        while let Some((index, task)) = {
            let index = order.get(next.fetch_add(1, Ordering::Relaxed)).copied();
            index.map(|index| (index, &tasks[index]))
        } {
            let cell = simulate_task(task, &done, &failed);
            failed.fetch_or(cell.is_err(), Ordering::Relaxed);
            // Sending fails if the receiver was dropped after an error.
            let _ = sender.send((index, cell));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS.min(order.len()) {
            let (work, sender) = (&work, sender.clone());
            scope.spawn(move || work(sender));
        }
        drop(sender);
        let mut cells: Vec<Option<SimulationCell>> = tasks.iter().map(|_| None).collect();
        let (mut told, mut left) = (0, order.len());
        while left > 0 {
            match receiver.recv_timeout(LOOK) {
                Ok((index, cell)) => {
                    left -= 1;
                    match cell {
                        Ok(cell) => cells[index] = Some(cell),
                        Err(error) => return Err(error),
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            let now = done.load(Ordering::Relaxed);
            progress.advance(now - told);
            told = now;
        }
        let alike = |(index, task): (usize, &SimulationTask)| match &cells[first[index]] {
            Some(cell) if first[index] != index => Some(task.result_cell(cell.report.clone(), 0.0)),
            cell => cell.clone(),
        };
        Ok(tasks.iter().enumerate().filter_map(alike).collect())
    })
}

fn simulate_task(
    task: &SimulationTask,
    done: &AtomicU64,
    failed: &AtomicBool,
) -> Result<SimulationCell> {
    let stopwatch = Stopwatch::start();
    let mut told = 0;
    let mut go_on = |writes: u64| {
        done.fetch_add(writes - told, Ordering::Relaxed);
        told = writes;
        !failed.load(Ordering::Relaxed)
    };
    let report = simulator::simulate(&task.config, &task.policy, &mut go_on);
    let report = report.map_err(|source| Error::Simulation { source: Box::new(source) })?;
    Ok(task.result_cell(report, stopwatch.elapsed_s()))
}

impl explore::WorkloadPoint {
    /// Returns the configuration of the simulation, or `None` if the records come from a file or a trace.
    ///
    /// # Errors
    /// A parameter is out of range.
    pub fn simulator_config(&self, seed: u64) -> Result<Option<simulator::Config>> {
        let Some((key_bytes, value_bytes)) = self.generated_lengths()? else { return Ok(None) };
        let sizes = self.effective_sizes();
        Ok(Some(simulator::Config {
            phases: self.phases.clone(),
            key_bytes,
            value_bytes,
            memtable_bytes: sizes.memtable_bytes,
            table_bytes: sizes.table_bytes,
            block_cache_bytes: sizes.block_cache_bytes,
            subcompactions_max: simulator::SUBCOMPACTIONS_DEFAULT,
            seed,
        }))
    }

    /// Simulates a policy. Returns `None` if the records come from a file or a trace, or if tables are compressed. If
    /// the settings of blocks or filters are not those of the simulator, the report contains no lookups.
    ///
    /// # Errors
    /// A parameter is out of range, or the policy violates an invariant.
    pub fn simulate(&self, policy: &PolicySpec, seed: u64) -> Result<Option<Report>> {
        let config = self.simulator_config(seed)?.filter(|_| !self.has_compression());
        let Some(config) = config else { return Ok(None) };
        let mut report = simulator::simulate(&config, policy, &mut |_| true)
            .map_err(|source| Error::Simulation { source: Box::new(source) })?;
        if self.has_lookup_settings() {
            report.point_lookups.clear();
            report.range_lookups = RangeLookupReport::default();
        }
        Ok(Some(report))
    }

    /// Returns the costs that the closed-form cost model predicts, or `None` if the model does not cover the policy.
    pub fn model_costs(&self, policy: &PolicySpec) -> Option<Costs> {
        let (key_bytes, value_bytes) = self.generated_lengths().ok().flatten()?;
        let settings = self.effective_settings();
        let tree = ModelledTree {
            entry_bytes: key_bytes + value_bytes,
            table_bytes: self.effective_sizes().table_bytes,
            block_bytes: settings.block_bytes,
            filter_last_run: settings.filter_last_run == Some(FilterLastRun::On),
        };
        super::model::closed_form_costs(policy, &self.phases, tree)
    }
}

#[cfg(test)]
mod tests {
    use lsmx::{Compression, FilterBits};

    use super::*;
    use crate::experiment::NoProgress;
    use crate::experiment::explore::{RecordSource, WorkloadPoint};
    use crate::peers::EngineSettings;
    use crate::workload::phases::WorkloadMix;

    const POLICIES: [&str; 4] = ["lo+1", "rr", "tsd(0.01)", "tsa"];

    fn config(deletes: f64) -> explore::Config {
        let mix = WorkloadMix { entries: 200_000, updates: 0.2, deletes, ..WorkloadMix::default() };
        let point = WorkloadPoint {
            sweep: SweepPoint::default(),
            policies: POLICIES.iter().map(|policy| policy.parse().unwrap()).collect(),
            source: RecordSource::Generated { key_bytes: 16, value_bytes: 112 },
            phases: mix.phases().unwrap(),
            settings: EngineSettings::default(),
            deterministic: true,
            threads: 1,
            write_rate: None,
        };
        explore::Config {
            points: vec![point],
            repeat: 1,
            seed: 3,
            directory: std::env::temp_dir(),
            command: "test".to_owned(),
            spec: None,
            decisions: None,
        }
    }

    #[test]
    fn equivalent_policies_are_simulated_once() {
        let config = config(0.0);
        let cells = simulate_exploration(&config, &mut NoProgress).unwrap().cells;
        assert_eq!(cells.len(), POLICIES.len());
        assert_eq!(
            cells.iter().map(|cell| cell.elapsed_s > 0.0).collect::<Vec<_>>(),
            [true, true, false, false]
        );
        for (cell, place) in cells.iter().zip(config.planned_cells()) {
            assert_eq!(cell.policy, place.policy.name());
            let alone = place.point.simulate(place.policy, place.seed).unwrap().unwrap();
            assert_eq!(cell.report, alone, "{}", cell.policy);
        }
    }

    /// Regression test: with other blocks, filters or compression than those of the simulator, the result of `explore`
    /// contained the simulation of the default settings.
    #[test]
    fn settings_that_the_simulator_ignores_leave_out_its_lookups() {
        let mut config = config(0.0);
        let point = &mut config.points[0];
        let mix = WorkloadMix {
            entries: 20_000,
            lookups: 100,
            empty_lookups: vec![0.5],
            ranges: 10,
            selectivities: vec![0.01],
            ..WorkloadMix::default()
        };
        point.phases = mix.phases().unwrap();
        let mut simulate = |settings: EngineSettings| {
            point.settings = settings;
            point.simulate(&point.policies[0], 3).unwrap()
        };
        let usual = simulate(EngineSettings::default()).unwrap();
        assert!(!usual.point_lookups.is_empty() && usual.range_lookups.ops > 0);
        for settings in [
            EngineSettings {
                filter_last_run: Some(FilterLastRun::On),
                ..EngineSettings::default()
            },
            EngineSettings { block_bytes: 16 << 10, ..EngineSettings::default() },
            EngineSettings { filter_bits: Some(FilterBits::Fuse16), ..EngineSettings::default() },
        ] {
            let report = simulate(settings).unwrap();
            assert!(report.point_lookups.is_empty() && report.range_lookups.ops == 0);
            assert_eq!(report.compaction, usual.compaction);
        }
        let compressed = Some(Compression::Lz4);
        assert!(
            simulate(EngineSettings { compression: compressed, ..EngineSettings::default() })
                .is_none()
        );
        let same = EngineSettings {
            filter_last_run: Some(FilterLastRun::Off),
            filter_bits: Some(FilterBits::Fuse8),
            compression: Some(Compression::None),
            ..EngineSettings::default()
        };
        assert_eq!(simulate(same).unwrap(), usual);
    }

    #[test]
    fn tombstone_policies_are_simulated_with_deletes() {
        let cells = simulate_exploration(&config(0.2), &mut NoProgress).unwrap().cells;
        assert!(cells.iter().all(|cell| cell.elapsed_s > 0.0));
        assert!(cells[2..].iter().all(|cell| cell.report != cells[0].report));
    }
}
