//! Workloads: seeded streams of operations that are equal on every machine.
//!
//! 1. [`phases`] says how many operations of which kind, in which order, chosen how.
//! 2. [`keys`] gives every record a key: a place in a key domain, made from the record's number, so
//!    that no list of keys is ever held.
//! 3. [`choice`] picks among the records that are there.
//! 4. [`stream`] is the iterator of operations.
//! 5. [`record`] and [`data_file`] are the records of a file in place of generated ones.
//! 6. [`trace`] is operations of somebody else, [`model`] what a database must hold after them.

pub mod choice;
pub mod data_file;
pub mod keys;
pub mod model;
pub mod phases;
pub mod random;
pub mod record;
pub mod records;
pub mod stream;
pub mod trace;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where new keys fall in the key domain, and which of the present ones are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// New keys anywhere; every present key alike.
    #[default]
    Uniform,
    /// New keys anywhere; present keys by zipf with exponent [`ZIPF_EXPONENT`], the popular ones
    /// scattered over the key domain and over the age of the records.
    Zipf,
    /// New keys under [`PREFIXES`] prefixes whose popularity is zipf with exponent 1; present keys
    /// likewise.
    PrefixZipf,
    /// New keys around the middle of the key domain, with a standard deviation of
    /// [`NORMAL_DEVIATION`] of it; present keys likewise.
    Normal,
    /// New keys in ascending order; present keys one after the other, round and round.
    Sequential,
    /// New keys in a window of 1/[`WINDOWS`] of the key domain that moves through it once;
    /// [`WINDOW_SHARE`] of the accesses to present keys go to a window that moves alike.
    Shifting,
}

/// Exponent of [`Distribution::Zipf`], as in YCSB.
pub const ZIPF_EXPONENT: f64 = 0.99;
/// Prefixes of [`Distribution::PrefixZipf`].
pub const PREFIXES: u32 = 1024;
/// Standard deviation of [`Distribution::Normal`] as a share of the key domain (the study's 34 %).
pub const NORMAL_DEVIATION: f64 = 0.34;
/// Windows that [`Distribution::Shifting`] goes through.
pub const WINDOWS: u64 = 10;
/// Share of accesses that go to the window of [`Distribution::Shifting`].
pub const WINDOW_SHARE: f64 = 0.9;

impl Distribution {
    /// All of them, in the order in which they are listed to users.
    pub const ALL: [Distribution; 6] = [
        Distribution::Uniform,
        Distribution::Zipf,
        Distribution::PrefixZipf,
        Distribution::Normal,
        Distribution::Sequential,
        Distribution::Shifting,
    ];

    /// The name as typed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Distribution::Uniform => "uniform",
            Distribution::Zipf => "zipf",
            Distribution::PrefixZipf => "prefix-zipf",
            Distribution::Normal => "normal",
            Distribution::Sequential => "sequential",
            Distribution::Shifting => "shifting",
        }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A distribution of this name is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown distribution {name:?}; known: {known}")]
pub struct UnknownDistribution {
    name: String,
    known: String,
}

impl FromStr for Distribution {
    type Err = UnknownDistribution;
    fn from_str(name: &str) -> Result<Self, UnknownDistribution> {
        Distribution::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| {
            UnknownDistribution {
                name: name.to_owned(),
                known: Distribution::ALL.map(Distribution::name).join(", "),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_typed_and_serialized() {
        for distribution in Distribution::ALL {
            assert_eq!(distribution.name().parse(), Ok(distribution));
            assert_eq!(
                serde_json::to_string(&distribution).unwrap(),
                format!("\"{}\"", distribution.name())
            );
        }
        let error = "pareto".parse::<Distribution>().unwrap_err().to_string();
        assert!(error.contains("\"pareto\"") && error.contains("prefix-zipf"), "{error}");
    }
}
