//! The cells of an exploration as flat rows: the swept flags, then every scalar of the cell.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::experiment::explore::result::Cell;
use crate::experiment::simulate;

use super::flat;

/// Header and rows. What was repeated has its lowest and highest value in columns beside the median,
/// named `.low` and `.high`.
///
/// # Errors
/// Never for cells that can be written as JSON.
pub fn exploration(cells: &[Cell]) -> serde_json::Result<(Vec<String>, Vec<Vec<String>>)> {
    let rows = cells.iter().map(row).collect::<Result<Vec<_>, _>>()?;
    Ok(flat::table(&rows))
}

/// Header and rows of a simulation.
///
/// # Errors
/// Never for cells that can be written as JSON.
pub fn simulation(cells: &[simulate::Cell]) -> serde_json::Result<(Vec<String>, Vec<Vec<String>>)> {
    let rows = cells.iter().map(|cell| {
        let mut row = Map::new();
        for (key, value) in &cell.sweep.0 {
            row.insert(key.clone(), serde_json::to_value(value)?);
        }
        let value = serde_json::to_value(cell)?;
        let scalars = flat::scalars(&value).into_iter();
        let scalars = scalars.filter(|(name, _)| !name.starts_with("sweep."));
        row.extend(scalars.map(|(name, scalar)| (name, scalar.clone())));
        Ok(Value::Object(row))
    });
    Ok(flat::table(&rows.collect::<serde_json::Result<Vec<_>>>()?))
}

/// Header and rows of anything, a row each.
///
/// # Errors
/// Never for what can be written as JSON.
pub fn of(results: &[impl Serialize]) -> serde_json::Result<(Vec<String>, Vec<Vec<String>>)> {
    let values = results.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
    Ok(flat::table(&values))
}

fn row(cell: &Cell) -> serde_json::Result<Value> {
    let mut row = Map::new();
    for (key, value) in &cell.sweep.0 {
        row.insert(key.clone(), serde_json::to_value(value)?);
    }
    let value = serde_json::to_value(cell)?;
    let repeated = cell.repeats.as_ref().map(|repeats| &repeats.metrics);
    for (name, scalar) in flat::scalars(&value) {
        // Both stand in columns of their own.
        if name.starts_with("sweep.") || name.starts_with("repeats.") {
            continue;
        }
        let repeated = repeated.and_then(|metrics| metrics.get(&name));
        row.insert(name.clone(), scalar.clone());
        if let Some(repeated) = repeated {
            row.insert(format!("{name}.low"), Value::Number(repeated.low.clone()));
            row.insert(format!("{name}.high"), Value::Number(repeated.high.clone()));
        }
    }
    Ok(Value::Object(row))
}
