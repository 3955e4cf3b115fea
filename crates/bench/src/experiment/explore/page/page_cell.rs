//! Names and plot markers of the runs on a page, grouped by workload.

use std::collections::BTreeMap;

use super::workload_difference::{self, WorkloadDifference};
use crate::error::Result;
use crate::experiment::explore::columns::build_row;
use crate::experiment::explore::result::{
    ExplorationCell, HistoryPoint, LevelSummary, WorkloadSummary,
};
use crate::experiment::simulate;
use crate::experiment::sweep::SweepPoint;
use crate::metric::ResultRow;
use crate::metric::html::PageRow;
use crate::report::html::plot::marker::{MARKERS, Marker};

/// Policies in the order of their plot markers, so that each policy has the same marker on every page. Only the first
/// six markers have distinct colors.
const KNOWN: [&str; 18] = [
    "full",
    "lo+1",
    "tiering",
    "universal",
    "1-leveling",
    "leveled",
    "lo+2",
    "rr",
    "cold-access",
    "cold-write",
    "old",
    "tsd",
    "tsa",
    "lazy-leveling",
    "fluid",
    "full-preemptive",
    "spooky",
    "fifo",
];

/// A measured or simulated run, as shown on a page.
#[derive(Clone, Debug)]
pub(crate) struct PageCell<'a> {
    pub(super) policy: &'a str,
    pub(super) spec: &'a str,
    pub(super) sweep: &'a SweepPoint,
    pub(super) workload: &'a WorkloadSummary,
    pub(super) seed: u64,
    pub(super) repetitions: usize,
    /// Recorded levels of the tree over time. A simulation has neither history nor levels.
    pub(super) history: &'a [HistoryPoint],
    pub(super) levels: &'a [LevelSummary],
    pub(crate) row: ResultRow,
}

impl<'a> PageCell<'a> {
    pub(crate) fn from_exploration(cell: &'a ExplorationCell) -> Result<PageCell<'a>> {
        Ok(PageCell {
            policy: &cell.policy,
            spec: &cell.spec,
            sweep: &cell.sweep,
            workload: &cell.workload,
            seed: cell.seed,
            repetitions: cell.repeats.as_ref().map_or(1, |repeats| repeats.seeds.len()),
            history: &cell.history,
            levels: &cell.levels,
            row: build_row(cell, false)?,
        })
    }

    pub(super) fn from_simulation(cell: &'a simulate::SimulationCell) -> Result<PageCell<'a>> {
        Ok(PageCell {
            policy: &cell.policy,
            spec: &cell.spec,
            sweep: &cell.sweep,
            workload: &cell.workload,
            seed: cell.seed,
            repetitions: 1,
            history: &[],
            levels: &[],
            row: simulate::columns::build_row(cell, false)?,
        })
    }
}

/// Runs with the same workload. `cells` and `subjects` have the same order.
#[derive(Clone, Debug)]
pub(super) struct WorkloadGroup<'a> {
    pub(super) place: WorkloadDifference,
    pub(super) cells: Vec<&'a PageCell<'a>>,
    pub(super) subjects: Vec<PageRow>,
}

/// Groups runs by workload and keeps their order. Runs with equal policy and workload are put into different groups.
pub(super) fn group_by_workload<'a>(cells: &'a [PageCell<'a>]) -> Vec<WorkloadGroup<'a>> {
    let mut groups: Vec<Vec<&PageCell<'_>>> = Vec::new();
    for cell in cells {
        let has_room = |group: &&mut Vec<&PageCell<'_>>| {
            group.iter().all(|it| {
                it.workload == cell.workload && it.sweep == cell.sweep && it.spec != cell.spec
            })
        };
        match groups.iter_mut().find(has_room) {
            Some(group) => group.push(cell),
            None => groups.push(vec![cell]),
        }
    }
    let firsts: Vec<&PageCell<'_>> = groups.iter().map(|group| group[0]).collect();
    let names: Vec<Vec<String>> = groups.iter().map(|group| name_cells(group)).collect();
    let markers = assign_markers(names.iter().flatten());
    let groups = groups.into_iter().zip(names).zip(workload_difference::find_differences(&firsts));
    let group =
        |((cells, names), place): ((Vec<&'a PageCell<'a>>, Vec<String>), WorkloadDifference)| {
            let subjects = cells.iter().zip(names).map(|(cell, name)| PageRow {
                marker: markers[&name],
                name,
                row: cell.row.clone(),
            });
            WorkloadGroup { place, subjects: subjects.collect(), cells }
        };
    groups.map(group).collect()
}

/// Returns the names of the runs. The name is the policy, with its parameters if several runs have the same policy.
fn name_cells(group: &[&PageCell<'_>]) -> Vec<String> {
    let count = |policy: &str| group.iter().filter(|it| it.policy == policy).count();
    let names = group.iter().map(|it| if count(it.policy) > 1 { it.spec } else { it.policy });
    names.map(str::to_owned).collect()
}

/// Returns a marker for each name. If the marker of the policy is taken, the next free marker is used.
fn assign_markers<'a>(names: impl Iterator<Item = &'a String>) -> BTreeMap<String, Marker> {
    let mut markers = BTreeMap::new();
    let mut taken = [false; MARKERS];
    for name in names {
        if markers.contains_key(name) {
            continue;
        }
        let policy = name.split('(').next().unwrap_or(name);
        let own = KNOWN.iter().position(|known| *known == policy);
        let after = KNOWN.len()..MARKERS;
        let number = own
            .filter(|&number| !taken[number])
            .or_else(|| after.chain(0..KNOWN.len()).find(|&number| !taken[number]))
            // Markers repeat if there are more names than markers.
            .unwrap_or(markers.len() % MARKERS);
        taken[number] = true;
        markers.insert(name.clone(), Marker::with_number(number));
    }
    markers
}
