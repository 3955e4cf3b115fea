//! What is compared on a page: cells with a name and a marker, in groups of one workload each.

use std::collections::BTreeMap;

use serde_json::Value;

use super::plot::marker::{MARKERS, Marker};
use super::value;
use crate::experiment::explore::result::Cell;

/// Policies that look the same on every page, in the order of their markers: the first six differ
/// in colour too.
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

/// A cell with the name and the marker that it has all over the page.
#[derive(Clone, Debug)]
pub(super) struct Subject<'a> {
    pub(super) name: String,
    pub(super) marker: Marker,
    pub(super) cell: &'a Cell,
}

/// Cells of one workload.
#[derive(Clone, Debug)]
pub(super) struct Group<'a> {
    /// In what its workload differs from that of the other groups; empty if there is no other.
    pub(super) difference: String,
    pub(super) subjects: Vec<Subject<'a>>,
}

/// The cells by workload, in their order.
pub(super) fn groups(cells: &[Cell]) -> Vec<Group<'_>> {
    let names = names(cells);
    let markers = markers(&names);
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (cell, name) in cells.iter().zip(names) {
        let marker = markers.get(&name).copied().unwrap_or(Marker::number(0));
        let subject = Subject { name, marker, cell };
        let same = |group: &&mut Group<'_>| {
            group
                .subjects
                .iter()
                .all(|it| it.cell.workload == cell.workload && it.name != subject.name)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.subjects.push(subject),
            None => groups.push(Group { difference: String::new(), subjects: vec![subject] }),
        }
    }
    tell_apart(&mut groups);
    groups
}

/// The policy where that says which cell it is, else the policy with its parameters.
fn names(cells: &[Cell]) -> Vec<String> {
    let specs_of = |policy: &str| {
        let mut specs: Vec<&str> =
            cells.iter().filter(|it| it.policy == policy).map(|it| it.spec.as_str()).collect();
        specs.sort_unstable();
        specs.dedup();
        specs.len()
    };
    cells
        .iter()
        .map(|cell| if specs_of(&cell.policy) > 1 { &cell.spec } else { &cell.policy })
        .cloned()
        .collect()
}

/// A marker per name: that of the policy if it is free, else the next that is.
fn markers(names: &[String]) -> BTreeMap<String, Marker> {
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

/// Gives each group the values that are not the same in all workloads.
fn tell_apart(groups: &mut [Group<'_>]) {
    let leaves: Vec<BTreeMap<String, String>> = groups
        .iter()
        .map(|group| {
            let mut leaves = BTreeMap::new();
            if let Some(subject) = group.subjects.first() {
                let workload = serde_json::to_value(&subject.cell.workload).unwrap_or_default();
                flatten("", &workload, &mut leaves);
                leaves.insert("seed".to_owned(), subject.cell.seed.to_string());
            }
            leaves
        })
        .collect();
    for (group, own) in groups.iter_mut().zip(&leaves) {
        let differing = own
            .iter()
            .filter(|(path, text)| leaves.iter().any(|others| others.get(*path) != Some(*text)));
        let parts: Vec<String> = differing.map(|(path, text)| format!("{path} {text}")).collect();
        group.difference = parts.join(", ");
    }
    if groups.len() > 1 {
        for (group, number) in groups.iter_mut().zip(1..) {
            if group.difference.is_empty() {
                group.difference = format!("run {number}");
            }
        }
    }
}

/// All values of a JSON tree by their paths, as people write them.
fn flatten(path: &str, tree: &Value, leaves: &mut BTreeMap<String, String>) {
    let below = |name: &str| match (path, name) {
        ("", name) => name.to_owned(),
        (path, name) => format!("{path} {name}"),
    };
    match tree {
        Value::Object(fields) => {
            for (name, field) in fields {
                flatten(&below(&name.replace('_', " ")), field, leaves);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                // A phase is called by its name.
                let name = item.get("name").and_then(Value::as_str);
                flatten(&below(name.unwrap_or(&(index + 1).to_string())), item, leaves);
            }
        }
        Value::Number(number) if path.ends_with(" bytes") => {
            leaves.insert(path.to_owned(), value::bytes(number.as_f64().unwrap_or_default()));
        }
        Value::String(text) => {
            leaves.insert(path.to_owned(), text.clone());
        }
        other => {
            leaves.insert(path.to_owned(), other.to_string());
        }
    }
}
