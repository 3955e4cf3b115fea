//! What tells workloads apart.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::experiment::explore::result::Cell;
use crate::experiment::sweep::{SweepPoint, SweepValue};
use crate::numbers::float;
use crate::report::html::value;

/// Where a workload stands among others.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    /// Every value in which it differs, with its name; empty if there is no other workload.
    pub(super) text: String,
    /// The one number in which all differ, with its name; none if there are several or none.
    pub(super) number: Option<(String, f64)>,
}

/// A value of a workload, as people write it and as a number if it is one.
#[derive(Clone, Debug, PartialEq)]
struct Leaf {
    text: String,
    number: Option<f64>,
}

/// The place of each workload among these cells.
pub(super) fn places(cells: &[&Cell]) -> Vec<Place> {
    let all: Vec<BTreeMap<String, Leaf>> = cells.iter().map(|cell| leaves(cell)).collect();
    let differs = |name: &String| all.iter().any(|other| other.get(name) != all[0].get(name));
    let swept = cells.iter().all(|cell| !cell.sweep.is_empty());
    let mut places = Vec::new();
    for ((cell, own), run) in cells.iter().zip(&all).zip(1..) {
        if swept {
            places.push(of_sweep(&cell.sweep));
            continue;
        }
        let differing: Vec<(&String, &Leaf)> =
            own.iter().filter(|(name, _)| differs(name)).collect();
        let texts: Vec<String> =
            differing.iter().map(|(name, leaf)| format!("{name} {}", leaf.text)).collect();
        let number = match differing[..] {
            [(name, leaf)] => leaf.number.map(|number| (name.clone(), number)),
            _ => None,
        };
        let text = match texts.join(", ") {
            text if text.is_empty() && all.len() > 1 => format!("run {run}"),
            text => text,
        };
        places.push(Place { text, number });
    }
    if places.iter().any(|place| place.number.is_none()) {
        places.iter_mut().for_each(|place| place.number = None);
    }
    places
}

/// The place is what was typed, where a sweep was.
fn of_sweep(point: &SweepPoint) -> Place {
    let number = match &point.0[..] {
        [(key, SweepValue::Whole(whole))] => Some((key.clone(), float(*whole))),
        [(key, SweepValue::Real(real))] => Some((key.clone(), *real)),
        _ => None,
    };
    let texts = point.0.iter().map(|(key, value)| format!("{key} {value}"));
    Place { text: texts.collect::<Vec<_>>().join(", "), number }
}

fn leaves(cell: &Cell) -> BTreeMap<String, Leaf> {
    let mut leaves = BTreeMap::new();
    let workload = serde_json::to_value(&cell.workload).unwrap_or_default();
    flatten("", &workload, &mut leaves);
    let seed = Leaf { text: cell.seed.to_string(), number: None };
    leaves.insert("seed".to_owned(), seed);
    leaves
}

/// All values of a JSON tree by their paths.
fn flatten(path: &str, tree: &Value, leaves: &mut BTreeMap<String, Leaf>) {
    let below = |name: &str| match (path, name) {
        ("", name) => name.to_owned(),
        (path, name) => format!("{path} {name}"),
    };
    let mut leaf = |text: String, number| {
        leaves.insert(path.to_owned(), Leaf { text, number });
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
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or_default();
            let bytes = path.ends_with(" bytes");
            leaf(if bytes { value::bytes(number) } else { value::count(number) }, Some(number));
        }
        Value::String(text) => leaf(text.clone(), None),
        other => leaf(other.to_string(), None),
    }
}
