//! `lsmx simulate`: the workloads and policies of `lsmx explore` on trees without data.
//!
//! A cell is a simulation ([`lsmx_compaction::simulator`]); cells run side by side on a few threads,
//! and come out in the order in which they were asked for. Sizes are bound by nothing but patience.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use lsmx_compaction::PolicySpec;
use lsmx_compaction::cost::Costs;
use lsmx_compaction::simulator::{self, Report};
use serde::Serialize;

use crate::clock::Stopwatch;
use crate::error::{Error, Result};
use crate::report::provenance::Provenance;
use crate::workload::phases::Phase;

use super::Progress;
use super::explore::result::Workload;
use super::explore::{self, Place};
use super::sweep::SweepPoint;

/// Cells that run at a time.
pub const THREADS: usize = 2;
/// Time between two looks at how far they are.
const LOOK: Duration = Duration::from_millis(100);

/// Everything that a simulation found out.
#[derive(Clone, Debug, Serialize)]
pub struct Simulation {
    /// Where the figures come from.
    pub provenance: Provenance,
    /// Always true: tells the result from an exploration's.
    pub simulated: bool,
    /// One cell per policy.
    pub cells: Vec<Cell>,
}

/// One policy under one workload.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Canonical name of the policy.
    pub policy: String,
    /// The policy with all its parameters.
    pub spec: String,
    /// What the swept flags are; left out where nothing is swept.
    #[serde(skip_serializing_if = "SweepPoint::is_empty")]
    pub sweep: SweepPoint,
    /// What was played.
    pub workload: Workload,
    /// The seed.
    pub seed: u64,
    /// Always true.
    pub simulated: bool,
    /// What was found out.
    #[serde(flatten)]
    pub report: Report,
    /// What the closed form says; null for a policy that it does not describe.
    pub model: Option<Costs>,
    /// Seconds that the simulation took.
    pub elapsed_s: f64,
}

/// One simulation that is to be run.
struct Task {
    policy: PolicySpec,
    sweep: SweepPoint,
    workload: Workload,
    seed: u64,
    config: simulator::Config,
    model: Option<Costs>,
}

/// Simulates all cells of an exploration.
///
/// # Errors
/// When a parameter is out of range, the records do not come from a generator, or a policy makes a
/// mistake.
pub fn run(config: &explore::Config, progress: &mut dyn Progress) -> Result<Simulation> {
    config.check_count()?;
    let provenance = Provenance::new(
        config.command.clone(),
        config.spec.clone(),
        config.seed,
        &config.directory,
    );
    let tasks: Vec<Task> = config.places().map(|place| task(&place)).collect::<Result<_>>()?;
    let writes = tasks.iter().map(|task| task.config.phases.iter().map(Phase::writes).sum::<u64>());
    progress.begin("simulate", writes.fold(0, u64::saturating_add));
    let cells = run_tasks(&tasks, progress)?;
    progress.end();
    Ok(Simulation { provenance, simulated: true, cells })
}

fn task(place: &Place<'_>) -> Result<Task> {
    let Some(config) = place.point.simulation(place.seed)? else {
        return Err(Error::Contradiction {
            first: "simulate".to_owned(),
            second: "--data or --trace".to_owned(),
            why: "only generated records can be simulated",
        });
    };
    Ok(Task {
        policy: place.policy.clone(),
        sweep: place.point.sweep.clone(),
        workload: place.point.workload_simulated()?,
        seed: place.seed,
        model: place.point.model(place.policy),
        config,
    })
}

/// Runs the tasks on threads; their cells in the order of the tasks.
fn run_tasks(tasks: &[Task], progress: &mut dyn Progress) -> Result<Vec<Cell>> {
    let (next, done, failed) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    // What takes longest goes first, so that no thread is left with it in the end.
    let mut order: Vec<usize> = (0..tasks.len()).collect();
    order.sort_by_cached_key(|&index| !tasks[index].policy.clone().build().looks_at_files());
    let work = |sender: mpsc::Sender<(usize, Result<Cell>)>| {
        while let Some((index, task)) = {
            let index = order.get(next.fetch_add(1, Ordering::Relaxed)).copied();
            index.map(|index| (index, &tasks[index]))
        } {
            let cell = cell(task, &done, &failed);
            failed.fetch_or(cell.is_err(), Ordering::Relaxed);
            // Nobody listens any more once a cell has failed.
            let _ = sender.send((index, cell));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS.min(tasks.len()) {
            let (work, sender) = (&work, sender.clone());
            scope.spawn(move || work(sender));
        }
        drop(sender);
        let mut cells: Vec<Option<Cell>> = tasks.iter().map(|_| None).collect();
        let (mut told, mut left) = (0, tasks.len());
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
        Ok(cells.into_iter().flatten().collect())
    })
}

fn cell(task: &Task, done: &AtomicU64, failed: &AtomicBool) -> Result<Cell> {
    let stopwatch = Stopwatch::start();
    let mut told = 0;
    let mut go_on = |writes: u64| {
        done.fetch_add(writes - told, Ordering::Relaxed);
        told = writes;
        !failed.load(Ordering::Relaxed)
    };
    let report = task.config.run(&task.policy, &mut go_on);
    let report = report.map_err(|source| Error::Simulation { source: Box::new(source) })?;
    Ok(Cell {
        policy: task.policy.name().to_owned(),
        spec: task.policy.to_string(),
        sweep: task.sweep.clone(),
        workload: task.workload.clone(),
        seed: task.seed,
        simulated: true,
        report,
        model: task.model,
        elapsed_s: stopwatch.elapsed_s(),
    })
}

impl explore::Point {
    /// What the simulator is to play; `None` where records come from a file or a trace, of which it
    /// knows too little.
    ///
    /// # Errors
    /// When a parameter is out of range.
    pub fn simulation(&self, seed: u64) -> Result<Option<simulator::Config>> {
        let Some((key_bytes, value_bytes)) = self.generated_lengths()? else { return Ok(None) };
        let sizes = self.sizes();
        Ok(Some(simulator::Config {
            phases: self.phases.clone(),
            key_bytes,
            value_bytes,
            memtable_bytes: sizes.memtable_bytes,
            table_bytes: sizes.table_bytes,
            block_cache_bytes: sizes.block_cache_bytes,
            merge_parts: simulator::MERGE_PARTS_DEFAULT,
            seed,
        }))
    }

    /// What the simulator says of a policy here; `None` as for [`Point::simulation`](Self::simulation).
    ///
    /// # Errors
    /// When a parameter is out of range, or the policy makes a mistake.
    pub fn simulate(&self, policy: &PolicySpec, seed: u64) -> Result<Option<Report>> {
        let Some(config) = self.simulation(seed)? else { return Ok(None) };
        let report = config.run(policy, &mut |_| true);
        report.map(Some).map_err(|source| Error::Simulation { source: Box::new(source) })
    }

    /// What the closed form says of a policy here; `None` where it says nothing.
    #[must_use]
    pub fn model(&self, policy: &PolicySpec) -> Option<Costs> {
        let (key_bytes, value_bytes) = self.generated_lengths().ok().flatten()?;
        let table_bytes = self.sizes().table_bytes;
        super::model::costs(policy, &self.phases, key_bytes + value_bytes, table_bytes)
    }
}
