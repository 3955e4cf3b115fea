//! Sweeps over command line flags. A point of a sweep is one combination of flag values.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::quantity::parse_bytes;

/// Value of a swept flag.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SweepValue {
    /// Boolean flag.
    Flag(bool),
    /// Count, or number of bytes.
    Whole(u64),
    /// Real number.
    Real(f64),
    /// Name, or any other text.
    Text(String),
}

impl SweepValue {
    /// Parses the value of a flag. A number with a unit (`64K`, `1MiB`) is parsed as a number of bytes.
    pub fn parse(text: &str) -> SweepValue {
        let digits = text.replace('_', "");
        if let Ok(flag) = digits.parse() {
            return SweepValue::Flag(flag);
        }
        if let Ok(whole) = digits.parse() {
            return SweepValue::Whole(whole);
        }
        // `inf` and `nan` are parsed as text.
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

/// Names and values of the swept flags, in the order of the command line. Serialized as a JSON object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SweepPoint(pub Vec<(String, SweepValue)>);

impl SweepPoint {
    /// Returns whether no flag is swept.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value of the flag with this name, or `None` if the flag is not swept.
    pub fn value(&self, key: &str) -> Option<&SweepValue> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }
}

impl fmt::Display for SweepPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> =
            self.0.iter().map(|(key, value)| format!("{key}={value}")).collect();
        f.write_str(&texts.join(" "))
    }
}

impl Serialize for SweepPoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl<'de> Deserialize<'de> for SweepPoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SweepPoint, D::Error> {
        // `serde_json::Map` preserves the order of the keys.
        let map = serde_json::Map::deserialize(deserializer)?;
        let value = |value| serde_json::from_value(value).map_err(D::Error::custom);
        let values = map.into_iter().map(|(key, of_key)| Ok((key, value(of_key)?)));
        Ok(SweepPoint(values.collect::<Result<_, _>>()?))
    }
}

/// Returns all combinations of the flag values. The value of the last flag changes fastest. Without flags, a single
/// empty combination is returned.
pub fn flag_combinations(sweeps: &[(String, Vec<String>)]) -> Vec<Vec<(String, String)>> {
    sweeps.iter().fold(vec![Vec::new()], |all, (key, values)| {
        let with = |before: &Vec<(String, String)>, value: &String| {
            [&before[..], &[(key.clone(), value.clone())]].concat()
        };
        all.iter().flat_map(|before| values.iter().map(move |value| with(before, value))).collect()
    })
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
            assert_eq!(SweepValue::parse(text), value, "{text}");
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
}
