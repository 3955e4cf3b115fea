//! A result as flat names and scalars, such as `compaction.jobs` or `point_lookups[0.5].ops`.
//!
//! A name joins the members of objects with dots. An element of an array has its identity in brackets: the share of
//! absent keys, the selectivity, or the level. Arrays whose elements have no identity are left out.

use serde_json::Value;

/// Members that identify the elements of an array.
const IDENTITIES: [&str; 4] = ["alpha", "selectivity", "level", "share_of_run"];

/// Returns all scalars below a value with their flat names, in order. Nulls are left out.
pub fn scalars(value: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    collect(value, String::new(), &mut found);
    found
}

fn collect<'a>(value: &'a Value, name: String, found: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                collect(member, joined(&name, key), found);
            }
        }
        Value::Array(elements) => {
            for element in elements {
                if let Some(identity) = identity(element) {
                    collect(element, format!("{name}[{identity}]"), found);
                }
            }
        }
        Value::Null => {}
        scalar => found.push((name, scalar)),
    }
}

/// Calls a function with the flat name of every scalar below a value. The function may change the scalar.
pub(crate) fn for_each_mut(value: &mut Value, change: &mut dyn FnMut(&str, &mut Value)) {
    visit(value, String::new(), change);
}

fn visit(value: &mut Value, name: String, change: &mut dyn FnMut(&str, &mut Value)) {
    match value {
        Value::Object(members) => {
            for (key, member) in members.iter_mut() {
                visit(member, joined(&name, key), change);
            }
        }
        Value::Array(elements) => {
            for element in elements {
                if let Some(identity) = identity(element) {
                    visit(element, format!("{name}[{identity}]"), change);
                }
            }
        }
        Value::Null => {}
        scalar => change(&name, scalar),
    }
}

fn joined(name: &str, key: &str) -> String {
    if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") }
}

fn identity(element: &Value) -> Option<String> {
    IDENTITIES.iter().find_map(|key| element.get(key)).map(ToString::to_string)
}

/// Returns a scalar as text, without quotes.
pub fn scalar_text(scalar: &Value) -> String {
    scalar.as_str().map_or_else(|| scalar.to_string(), str::to_owned)
}

/// Returns header and rows of a table with a column for each name of any value, in the order of first occurrence.
/// A cell is empty if its value lacks the name.
pub fn union_table(values: &[Value]) -> (Vec<String>, Vec<Vec<String>>) {
    let flat: Vec<Vec<(String, &Value)>> = values.iter().map(scalars).collect();
    let mut header: Vec<String> = Vec::new();
    let mut place_of = std::collections::HashMap::new();
    for (name, _) in flat.iter().flatten() {
        if !place_of.contains_key(name) {
            place_of.insert(name.clone(), header.len());
            header.push(name.clone());
        }
    }
    let rows = flat.iter().map(|scalars| {
        let mut row = vec![String::new(); header.len()];
        for (name, scalar) in scalars {
            row[place_of[name]] = scalar_text(scalar);
        }
        row
    });
    let rows = rows.collect();
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
    fn scalars_have_names_and_order() {
        let cell = cell();
        let names: Vec<String> = scalars(&cell)
            .iter()
            .map(|(name, value)| format!("{name}={}", scalar_text(value)))
            .collect();
        assert_eq!(
            names,
            [
                "policy=full",
                "compaction.jobs=7",
                "compaction.latency_us.mean=1.5",
                "point_lookups[0.5].alpha=0.5",
                "point_lookups[0.5].ops=3",
                "point_lookups[1.0].alpha=1.0",
                "point_lookups[1.0].ops=4",
                "levels[0].level=0",
                "levels[0].runs=2",
            ]
        );
    }

    #[test]
    fn both_walks_find_the_same() {
        let mut changed = cell();
        let mut names = Vec::new();
        for_each_mut(&mut changed, &mut |name, scalar| {
            names.push(name.to_owned());
            *scalar = Value::from(0);
        });
        let cell = cell();
        assert_eq!(names, scalars(&cell).into_iter().map(|(name, _)| name).collect::<Vec<_>>());
        assert_eq!(changed["compaction"]["jobs"], 0);
    }

    #[test]
    fn a_table_has_all_columns_of_all_rows() {
        let (header, rows) =
            union_table(&[json!({ "a": 1, "b": "x" }), json!({ "a": 2, "c": true })]);
        assert_eq!(header, ["a", "b", "c"]);
        assert_eq!(rows, [vec!["1", "x", ""], vec!["2", "", "true"]]);
    }
}
