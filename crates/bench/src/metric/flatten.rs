//! Flattens JSON results to scalars with names such as `compaction.jobs` or `point_lookups[0.5].ops`.
//!
//! A flat name joins the names of JSON fields with dots. Brackets contain a value that identifies an array element,
//! such as the fraction of absent keys. Array elements without such a value are omitted.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

/// JSON fields that identify the elements of an array.
const IDENTITIES: [&str; 4] = ["alpha", "selectivity", "level", "share_of_run"];

/// Returns all scalars in a JSON value with their flat names, in the order of the JSON text. Omits nulls.
pub fn flatten_scalars(value: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    collect_scalars(value, String::new(), &mut found);
    found
}

fn collect_scalars<'a>(value: &'a Value, name: String, found: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                collect_scalars(member, join_names(&name, key), found);
            }
        }
        Value::Array(elements) => {
            for element in elements {
                if let Some(identity) = find_identity(element) {
                    collect_scalars(element, format!("{name}[{identity}]"), found);
                }
            }
        }
        Value::Null => {}
        scalar => found.push((name, scalar)),
    }
}

/// Calls `change` with each scalar in a JSON value and its flat name.
pub(crate) fn for_each_scalar_mut(value: &mut Value, change: &mut dyn FnMut(&str, &mut Value)) {
    visit_scalars_mut(value, String::new(), change);
}

fn visit_scalars_mut(value: &mut Value, name: String, change: &mut dyn FnMut(&str, &mut Value)) {
    match value {
        Value::Object(members) => {
            for (key, member) in members.iter_mut() {
                visit_scalars_mut(member, join_names(&name, key), change);
            }
        }
        Value::Array(elements) => {
            for element in elements {
                if let Some(identity) = find_identity(element) {
                    visit_scalars_mut(element, format!("{name}[{identity}]"), change);
                }
            }
        }
        Value::Null => {}
        scalar => change(&name, scalar),
    }
}

fn join_names(name: &str, key: &str) -> String {
    if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") }
}

fn find_identity(element: &Value) -> Option<String> {
    IDENTITIES.iter().find_map(|key| element.get(key)).map(ToString::to_string)
}

/// Returns a scalar as text, without quotes.
pub fn format_scalar(scalar: &Value) -> String {
    scalar.as_str().map_or_else(|| scalar.to_string(), str::to_owned)
}

/// Returns the header and the rows of a table with one row per JSON value and one column per flat name. Columns are in
/// the order in which their names first occur. A cell is empty if its JSON value lacks the name.
pub fn build_union_table(values: &[Value]) -> (Vec<String>, Vec<Vec<String>>) {
    let flat: Vec<HashMap<String, &Value>> =
        values.iter().map(|value| flatten_scalars(value).into_iter().collect()).collect();
    let mut seen = HashSet::new();
    let names = values.iter().flat_map(flatten_scalars).map(|(name, _)| name);
    let header: Vec<String> = names.filter(|name| seen.insert(name.clone())).collect();
    let row = |scalars: &HashMap<String, &Value>| {
        let cell = |name| scalars.get(name).map(|scalar| format_scalar(scalar)).unwrap_or_default();
        header.iter().map(cell).collect()
    };
    let rows = flat.iter().map(row).collect();
    (header, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cell() -> Value {
        json!({
            "policy": "full",
            "compaction": { "jobs": 7, "latency_us": { "mean": 1.5 } },
            "point_lookups": [ { "alpha": 0.5, "ops": 3 }, { "alpha": 1.0, "ops": 4 } ],
            "levels": [ { "level": 0, "runs": 2 } ],
            "history": [ { "at": 1 }, 7 ],
            "digest": null,
        })
    }

    #[test]
    fn scalars_have_flat_names_in_order() {
        let cell = cell();
        let text = |(name, value): &(String, &Value)| format!("{name}={}", format_scalar(value));
        let names: Vec<String> = flatten_scalars(&cell).iter().map(text).collect();
        let expected = "policy=full compaction.jobs=7 compaction.latency_us.mean=1.5 \
            point_lookups[0.5].alpha=0.5 point_lookups[0.5].ops=3 \
            point_lookups[1.0].alpha=1.0 point_lookups[1.0].ops=4 \
            levels[0].level=0 levels[0].runs=2";
        assert_eq!(names.join(" "), expected);
    }

    #[test]
    fn for_each_mut_visits_the_names_of_scalars() {
        let mut changed = cell();
        let mut names = Vec::new();
        for_each_scalar_mut(&mut changed, &mut |name, scalar| {
            names.push(name.to_owned());
            *scalar = Value::from(0);
        });
        let cell = cell();
        assert_eq!(
            names,
            flatten_scalars(&cell).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        );
        assert_eq!(changed["compaction"]["jobs"], 0);
    }

    #[test]
    fn union_table_has_the_columns_of_all_rows() {
        let (header, rows) =
            build_union_table(&[json!({ "a": 1, "b": "x" }), json!({ "a": 2, "c": true })]);
        assert_eq!(header, ["a", "b", "c"]);
        assert_eq!(rows, [vec!["1", "x", ""], vec!["2", "", "true"]]);
    }
}
