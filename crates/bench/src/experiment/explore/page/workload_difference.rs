//! Describes how each workload of a page differs from the others.

use std::collections::BTreeMap;

use serde_json::Value;

use super::page_cell::PageCell;
use crate::experiment::sweep::{SweepPoint, SweepValue};
use crate::numbers::to_f64;
use crate::report::html::value;

/// Differences between a workload and the other workloads of the page.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WorkloadDifference {
    /// Names and values of the parameters in which this workload differs from the others. Empty if the page has a
    /// single workload.
    pub(super) text: String,
    /// Name and value of the parameter in which the workloads differ. `None` if the workloads differ in several
    /// parameters, or if the parameter is not numeric.
    pub(super) number: Option<(String, f64)>,
}

/// Parameters of a workload by name. Each value is a text, and also a number if the parameter is numeric.
type WorkloadValues = BTreeMap<String, (String, Option<f64>)>;

/// Returns for each run the differences between its workload and the workloads of the other runs.
pub(super) fn find_differences(cells: &[&PageCell<'_>]) -> Vec<WorkloadDifference> {
    if cells.iter().all(|cell| !cell.sweep.is_empty()) {
        return keep_common_numbers(
            cells.iter().map(|cell| sweep_point_difference(cell.sweep)).collect(),
        );
    }
    let all: Vec<WorkloadValues> = cells.iter().map(|cell| workload_values(cell)).collect();
    let differs = |name: &String| all.iter().any(|other| other.get(name) != all[0].get(name));
    let place = |(run, own): (u64, &WorkloadValues)| {
        let differing: Vec<_> = own.iter().filter(|(name, _)| differs(name)).collect();
        let texts = differing.iter().map(|(name, (text, _))| format!("{name} {text}"));
        let text = match texts.collect::<Vec<_>>().join(", ") {
            text if text.is_empty() && all.len() > 1 => format!("run {run}"),
            text => text,
        };
        let number = match differing[..] {
            [(name, (_, number))] => number.map(|number| (name.clone(), number)),
            _ => None,
        };
        WorkloadDifference { text, number }
    };
    keep_common_numbers((1..).zip(&all).map(place).collect())
}

/// Removes the numbers of all workloads if any workload has no number.
fn keep_common_numbers(mut places: Vec<WorkloadDifference>) -> Vec<WorkloadDifference> {
    if places.iter().any(|place| place.number.is_none()) {
        places.iter_mut().for_each(|place| place.number = None);
    }
    places
}

fn sweep_point_difference(point: &SweepPoint) -> WorkloadDifference {
    let number = match &point.0[..] {
        [(key, SweepValue::Whole(whole))] => Some((key.clone(), to_f64(*whole))),
        [(key, SweepValue::Real(real))] => Some((key.clone(), *real)),
        _ => None,
    };
    let texts = point.0.iter().map(|(key, value)| format!("{key} {value}"));
    WorkloadDifference { text: texts.collect::<Vec<_>>().join(", "), number }
}

fn workload_values(cell: &PageCell<'_>) -> WorkloadValues {
    let mut leaves = WorkloadValues::from([("seed".to_owned(), (cell.seed.to_string(), None))]);
    let workload = serde_json::to_value(cell.workload).unwrap_or_default();
    collect_values("", &workload, &mut leaves);
    leaves
}

/// Adds all leaf values of a JSON tree to `leaves`. The name of a leaf is its path, joined with spaces. An array
/// element is named by its `name` field, or by its index counted from 1.
fn collect_values(path: &str, tree: &Value, leaves: &mut WorkloadValues) {
    let below =
        |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path} {name}") };
    match tree {
        Value::Object(fields) => {
            for (name, field) in fields {
                collect_values(&below(&name.replace('_', " ")), field, leaves);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let name = item.get("name").and_then(Value::as_str);
                collect_values(&below(name.unwrap_or(&(index + 1).to_string())), item, leaves);
            }
        }
        leaf => {
            let number = leaf.as_f64();
            let text = match (number, leaf.as_str()) {
                (Some(number), _) if path.ends_with(" bytes") => value::format_bytes(number),
                (Some(number), _) => value::format_count(number),
                (None, Some(text)) => text.to_owned(),
                (None, None) => leaf.to_string(),
            };
            leaves.insert(path.to_owned(), (text, number));
        }
    }
}
