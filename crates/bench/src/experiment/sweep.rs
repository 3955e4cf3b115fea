//! Points of a sweep: the values of the swept flags in one cell.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::quantity::parse_bytes;

/// Value of a swept flag.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SweepValue {
    /// Value of a switch.
    Flag(bool),
    /// Count or number of bytes.
    Whole(u64),
    /// Real number.
    Real(f64),
    /// Name.
    Text(String),
}

impl SweepValue {
    /// Parses a value. A number with a unit (`64K`, `1MiB`) is a number of bytes.
    #[must_use]
    pub fn typed(text: &str) -> SweepValue {
        let digits = text.replace('_', "");
        if let Ok(flag) = digits.parse() {
            return SweepValue::Flag(flag);
        }
        if let Ok(whole) = digits.parse() {
            return SweepValue::Whole(whole);
        }
        // `inf` and `nan` are names.
        let numeric = digits.starts_with(|first: char| first.is_ascii_digit() || first == '.');
        match digits.parse::<f64>() {
            Ok(real) if numeric && real.is_finite() => SweepValue::Real(real),
            _ => parse_bytes(text)
                .map_or_else(|_| SweepValue::Text(text.to_owned()), SweepValue::Whole),
        }
    }
}

impl fmt::Display for SweepValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SweepValue::Flag(flag) => flag.fmt(f),
            SweepValue::Whole(whole) => whole.fmt(f),
            SweepValue::Real(real) => real.fmt(f),
            SweepValue::Text(text) => text.fmt(f),
        }
    }
}

/// Swept flags with their values, in the order of the command line. Serializes as a map.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SweepPoint(pub Vec<(String, SweepValue)>);

impl SweepPoint {
    /// Returns whether nothing is swept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value of a flag.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&SweepValue> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }
}

impl fmt::Display for SweepPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (key, value)) in self.0.iter().enumerate() {
            let gap = if place == 0 { "" } else { " " };
            write!(f, "{gap}{key}={value}")?;
        }
        Ok(())
    }
}

impl Serialize for SweepPoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for SweepPoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SweepPoint, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = SweepPoint;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of swept flags to their values")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<SweepPoint, M::Error> {
                let mut values = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    values.push(entry);
                }
                Ok(SweepPoint(values))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// Returns all combinations of the values of flags. The last flag changes fastest. Without flags there is one empty
/// combination.
#[must_use]
pub fn combinations(sweeps: &[(String, Vec<String>)]) -> Vec<Vec<(String, String)>> {
    let mut all = vec![Vec::new()];
    for (key, values) in sweeps {
        let grown = all.iter().flat_map(|before: &Vec<(String, String)>| {
            values.iter().map(|value| {
                let mut next = before.clone();
                next.push((key.clone(), value.clone()));
                next
            })
        });
        all = grown.collect();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numeric_text_becomes_a_number() {
        for (text, value) in [
            ("10", SweepValue::Whole(10)),
            ("1_000", SweepValue::Whole(1000)),
            ("64K", SweepValue::Whole(64 << 10)),
            ("1MiB", SweepValue::Whole(1 << 20)),
            ("0.5", SweepValue::Real(0.5)),
            ("1e-4", SweepValue::Real(1e-4)),
            ("true", SweepValue::Flag(true)),
            ("zipf", SweepValue::Text("zipf".to_owned())),
            ("inf", SweepValue::Text("inf".to_owned())),
            ("99999999999T", SweepValue::Text("99999999999T".to_owned())),
        ] {
            assert_eq!(SweepValue::typed(text), value, "{text}");
        }
    }

    #[test]
    fn json_keeps_the_order_of_flags() {
        let point = SweepPoint(vec![
            ("size-ratio".to_owned(), SweepValue::Whole(4)),
            ("block-cache".to_owned(), SweepValue::Real(0.25)),
            ("distribution".to_owned(), SweepValue::Text("zipf".to_owned())),
        ]);
        let text = serde_json::to_string(&point).unwrap();
        assert_eq!(text, r#"{"size-ratio":4,"block-cache":0.25,"distribution":"zipf"}"#);
        assert_eq!(serde_json::from_str::<SweepPoint>(&text).unwrap(), point);
        assert_eq!(point.to_string(), "size-ratio=4 block-cache=0.25 distribution=zipf");
    }

    #[test]
    fn combinations_contain_every_pair_once() {
        let sweep = |key: &str, values: &[&str]| {
            (key.to_owned(), values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>())
        };
        let all = combinations(&[sweep("a", &["1", "2"]), sweep("b", &["x", "y", "z"])]);
        let texts: Vec<String> = all
            .iter()
            .map(|point| point.iter().map(|(key, value)| format!("{key}{value}")).collect())
            .collect();
        assert_eq!(texts, ["a1bx", "a1by", "a1bz", "a2bx", "a2by", "a2bz"]);
        assert_eq!(combinations(&[]), [vec![]]);
    }
}
