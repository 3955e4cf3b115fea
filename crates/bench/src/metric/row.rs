//! A row of a table: a result as flat names and scalars.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Number, Value};

use super::flatten::scalars;
use crate::experiment::repeat::Repeats;

/// A result as flat names and scalars.
#[derive(Clone, Debug, Default)]
pub struct Row {
    values: Map<String, Value>,
    /// Lowest and highest value of each repeated number.
    spread: BTreeMap<String, [Number; 2]>,
}

impl Row {
    /// Flattens a result. Members `repeats` and `history` are left out.
    ///
    /// # Errors
    /// If the result cannot be JSON.
    pub fn new(result: &impl Serialize) -> serde_json::Result<Row> {
        let value = serde_json::to_value(result)?;
        let mut values = Map::new();
        for (name, scalar) in scalars(&value) {
            if !name.starts_with("repeats.") {
                values.insert(name, scalar.clone());
            }
        }
        Ok(Row { values, spread: BTreeMap::new() })
    }

    /// Adds a number or text that the result does not have by itself.
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Value>) -> Row {
        self.values.insert(name.into(), value.into());
        self
    }

    /// Removes all values whose names start with `prefix`.
    pub fn remove_prefix(&mut self, prefix: &str) {
        self.values.retain(|name, _| !name.starts_with(prefix));
    }

    /// Adds the lowest and highest values of repetitions.
    pub fn with_repeats(mut self, repeats: Option<&Repeats>) -> Row {
        for (name, repeated) in repeats.iter().flat_map(|repeats| &repeats.metrics) {
            self.spread.insert(name.clone(), [repeated.low.clone(), repeated.high.clone()]);
        }
        self
    }

    /// Returns the swept flags and then every number. A repeated number is followed by its lowest and highest value,
    /// named `.low` and `.high`.
    pub fn into_csv(self) -> Map<String, Value> {
        let mut all = Map::new();
        for (name, value) in &self.values {
            if let Some(key) = name.strip_prefix("sweep.") {
                all.insert(key.to_owned(), value.clone());
            }
        }
        for (name, value) in self.values {
            if name.starts_with("sweep.") {
                continue;
            }
            all.insert(name.clone(), value);
            if let Some([low, high]) = self.spread.get(&name) {
                all.insert(format!("{name}.low"), low.clone().into());
                all.insert(format!("{name}.high"), high.clone().into());
            }
        }
        all
    }

    /// Returns all names in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Returns a value.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// Returns a number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64()
    }

    /// Returns a value for a table. A latency that was never measured has none.
    pub fn shown(&self, name: &str) -> Option<&Value> {
        let value = self.get(name).filter(|value| !value.is_null() && **value != "")?;
        let measured = || match name.rsplit_once('.') {
            Some((latency, _)) if latency.ends_with("latency_us") => {
                self.number(&format!("{latency}.max")).is_none_or(|max| max > 0.0)
            }
            _ => true,
        };
        measured().then_some(value)
    }

    /// Returns the lowest and the highest value of the repetitions.
    pub fn spread(&self, name: &str) -> Option<[f64; 2]> {
        let [low, high] = self.spread.get(name)?;
        Some([low.as_f64()?, high.as_f64()?])
    }
}
