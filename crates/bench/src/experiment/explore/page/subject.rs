//! What is compared on a page: cells with a name and a marker, in groups of one workload each.

use std::collections::BTreeMap;

use super::place::{self, Place};
use crate::experiment::explore::columns::row;
use crate::experiment::explore::result::Cell;
use crate::report::html::plot::marker::{MARKERS, Marker};

/// Policies in the order of their markers, so that a policy has the same marker on every page. Only the first six
/// markers differ in color.
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

/// A figure of a cell, if it has one.
pub(super) type FigureOf = Box<dyn Fn(&Cell) -> Option<f64>>;

/// Lowest and highest value over the repetitions of a cell; none where there is one run. `metric` is
/// the flat name of the figure.
pub(super) fn spread(cell: &Cell, metric: &str) -> Option<(f64, f64)> {
    let repeated = cell.repeats.as_ref()?.metrics.get(metric)?;
    Some((repeated.low.as_f64()?, repeated.high.as_f64()?))
}

/// A cell with the name and the marker that it has all over the page.
#[derive(Clone, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) name: String,
    pub(crate) marker: Marker,
    pub(crate) cell: &'a Cell,
}

/// Returns the subjects with their metrics. A cell that cannot be JSON has none.
pub(super) fn metric_subjects(subjects: &[Subject<'_>]) -> Vec<crate::metric::html::Subject> {
    let row = |cell: &Cell| {
        let mut row = row(cell, false).unwrap_or_default();
        if cell.is_simulated {
            // A simulation has no files and no stalls.
            ["disk_", "stalls."].iter().for_each(|prefix| row.remove_prefix(prefix));
        }
        row
    };
    let subject = |it: &Subject<'_>| crate::metric::html::Subject {
        name: it.name.clone(),
        marker: it.marker,
        row: row(it.cell),
    };
    subjects.iter().map(subject).collect()
}

/// Cells of one workload.
#[derive(Clone, Debug)]
pub(super) struct Group<'a> {
    /// In what its workload differs from that of the other groups.
    pub(super) place: Place,
    pub(super) subjects: Vec<Subject<'a>>,
}

/// The cells by workload, in their order.
pub(super) fn groups(cells: &[Cell]) -> Vec<Group<'_>> {
    let mut groups: Vec<Vec<&Cell>> = Vec::new();
    for cell in cells {
        // The same policy twice is another run.
        let takes = |group: &&mut Vec<&Cell>| {
            group.iter().all(|it| {
                it.workload == cell.workload && it.sweep == cell.sweep && it.spec != cell.spec
            })
        };
        match groups.iter_mut().find(takes) {
            Some(group) => group.push(cell),
            None => groups.push(vec![cell]),
        }
    }
    let firsts: Vec<&Cell> = groups.iter().filter_map(|group| group.first().copied()).collect();
    let places = place::places(&firsts);
    let names: Vec<Vec<String>> = groups.iter().map(|group| names(group)).collect();
    let markers = markers(names.iter().flatten());
    let mut whole = Vec::new();
    for ((group, names), place) in groups.into_iter().zip(names).zip(places) {
        let subjects = group.into_iter().zip(names).map(|(cell, name)| {
            let marker = markers.get(&name).copied().unwrap_or(Marker::number(0));
            Subject { name, marker, cell }
        });
        whole.push(Group { place, subjects: subjects.collect() });
    }
    whole
}

/// The policy where that says which cell of its group it is, else the policy with its parameters.
fn names(group: &[&Cell]) -> Vec<String> {
    let count = |policy: &str| group.iter().filter(|it| it.policy == policy).count();
    let name = |cell: &Cell| {
        if count(&cell.policy) > 1 { cell.spec.clone() } else { cell.policy.clone() }
    };
    group.iter().map(|cell| name(cell)).collect()
}

/// A marker per name: that of the policy if it is free, else the next that is.
fn markers<'a>(names: impl Iterator<Item = &'a String>) -> BTreeMap<String, Marker> {
    let mut markers = BTreeMap::new();
    let mut taken = [false; MARKERS];
    for name in names {
        if markers.contains_key(name) {
            continue;
        }
        let policy = name.split('(').next().unwrap_or(name);
        let wished = KNOWN.iter().position(|known| *known == policy);
        let after = KNOWN.len()..MARKERS;
        let number = wished
            .filter(|&number| !taken[number])
            .or_else(|| after.chain(0..KNOWN.len()).find(|&number| !taken[number]))
            // All are taken: they repeat, and names alone tell series apart.
            .unwrap_or(markers.len() % MARKERS);
        taken[number] = true;
        markers.insert(name.clone(), Marker::number(number));
    }
    markers
}
