use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Number, Value};

use super::flatten::flatten_scalars;
use crate::experiment::repeat::Repeats;

/// A row of a table: the scalars of a result by flat name, such as `compaction.jobs`.
#[derive(Clone, Debug, Default)]
pub struct ResultRow {
    values: Map<String, Value>,
    /// Minimum and maximum of each number over the repetitions, by flat name.
    spread: BTreeMap<String, [Number; 2]>,
}

impl ResultRow {
    /// Flattens a result, without the JSON field `repeats`.
    pub fn new(result: &impl Serialize) -> serde_json::Result<ResultRow> {
        let value = serde_json::to_value(result)?;
        let values =
            flatten_scalars(&value).into_iter().filter(|(name, _)| !name.starts_with("repeats."));
        let values = values.map(|(name, scalar)| (name, scalar.clone())).collect();
        Ok(ResultRow { values, spread: BTreeMap::new() })
    }

    /// Adds a number or a text that the caller computed from other values of the row.
    pub fn with_value(mut self, name: impl Into<String>, value: impl Into<Value>) -> ResultRow {
        self.values.insert(name.into(), value.into());
        self
    }

    pub fn remove_prefix(&mut self, prefix: &str) {
        self.values.retain(|name, _| !name.starts_with(prefix));
    }

    /// Adds the minimum and maximum of each number over the repetitions.
    pub fn with_repeats(mut self, repeats: Option<&Repeats>) -> ResultRow {
        for (name, repeated) in repeats.iter().flat_map(|repeats| &repeats.metrics) {
            self.spread.insert(name.clone(), [repeated.low.clone(), repeated.high.clone()]);
        }
        self
    }

    /// Returns the columns of a CSV row: the swept flags, then all other values. Each repeated number is followed by
    /// its minimum and maximum, whose names end with `.low` and `.high`.
    pub fn into_csv(self) -> Map<String, Value> {
        let (swept, others): (Vec<_>, Vec<_>) =
            self.values.into_iter().partition(|(name, _)| name.starts_with("sweep."));
        let flag = |(name, value): (String, Value)| (name.replacen("sweep.", "", 1), value);
        let mut all: Map<String, Value> = swept.into_iter().map(flag).collect();
        for (name, value) in others {
            all.insert(name.clone(), value);
            if let Some([low, high]) = self.spread.get(&name) {
                all.insert(format!("{name}.low"), low.clone().into());
                all.insert(format!("{name}.high"), high.clone().into());
            }
        }
        all
    }

    /// Returns the flat names of all values, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    pub fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64()
    }

    /// Returns the value that a table shows for a flat name. Returns `None` if the value is missing, null or an empty
    /// text. Also returns `None` for a field of a latency if no operation was measured.
    pub fn displayed_value(&self, name: &str) -> Option<&Value> {
        let value = self.get(name).filter(|value| !value.is_null() && **value != "")?;
        let measured = || match name.rsplit_once('.') {
            Some((latency, _)) if latency.ends_with("latency_us") => {
                self.number(&format!("{latency}.max")).is_none_or(|max| max > 0.0)
            }
            _ => true,
        };
        measured().then_some(value)
    }

    /// Returns the minimum and the maximum of a number over the repetitions.
    pub fn repeat_range(&self, name: &str) -> Option<[f64; 2]> {
        let [low, high] = self.spread.get(name)?;
        Some([low.as_f64()?, high.as_f64()?])
    }
}
