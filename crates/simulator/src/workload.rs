//! What a workload is, as data: phases, and how keys are chosen. Engine experiments turn it into
//! streams of operations, the simulator into estimates.

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

/// Places in key order that a range delete covers: those of ten neighbouring records of the
/// workload, whether they are there or not.
pub const RANGE_DELETE_PLACES: u64 = 10;

/// Left out where it is zero, so that workloads without range deletes read as ever.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A stretch of operations that are mixed evenly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// What it is called in progress and errors.
    pub name: String,
    /// Puts of new keys.
    pub inserts: u64,
    /// Puts of present keys.
    pub updates: u64,
    /// Deletes of present keys.
    pub deletes: u64,
    /// Merge operands for present keys, each of which writes a few bytes of the value.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub merges: u64,
    /// Deletes of a range of [`RANGE_DELETE_PLACES`] places in key order.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub range_deletes: u64,
    /// Point lookups, by the share of them that ask for absent keys.
    pub lookups: Vec<Lookups>,
    /// Range lookups.
    pub ranges: u64,
    /// Entries a range lookup reads, as a share of the entries there.
    pub selectivity: f64,
    /// Which keys.
    pub distribution: Distribution,
    /// Which of the present keys are the popular ones, where some are: phases with other numbers here
    /// have other favourites, drawn anew.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hot: u64,
    /// Whether the memtable is flushed and all compactions are waited for at the end.
    pub settle: bool,
}

/// Point lookups of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lookups {
    /// Share of lookups that ask for absent keys.
    pub alpha: f64,
    /// How many lookups.
    pub ops: u64,
}

impl Phase {
    /// An empty phase.
    #[must_use]
    pub fn new(name: impl Into<String>, distribution: Distribution) -> Phase {
        Phase {
            name: name.into(),
            inserts: 0,
            updates: 0,
            deletes: 0,
            merges: 0,
            range_deletes: 0,
            lookups: Vec::new(),
            ranges: 0,
            selectivity: 0.0,
            distribution,
            hot: 0,
            settle: false,
        }
    }

    /// Puts, deletes and merges.
    #[must_use]
    pub fn writes(&self) -> u64 {
        let counts = [self.inserts, self.updates, self.deletes, self.merges, self.range_deletes];
        counts.into_iter().fold(0, u64::saturating_add)
    }

    /// Most records that its deletes take away.
    #[must_use]
    pub fn deleted_max(&self) -> u64 {
        self.deletes.saturating_add(self.range_deletes.saturating_mul(RANGE_DELETE_PLACES))
    }

    /// All operations.
    #[must_use]
    pub fn ops(&self) -> u64 {
        let lookups = self.lookups.iter().map(|lookups| lookups.ops);
        lookups.chain([self.ranges]).fold(self.writes(), u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_typed_and_printed() {
        for distribution in Distribution::ALL {
            assert_eq!(distribution.to_string().parse(), Ok(distribution));
        }
        let error = "pareto".parse::<Distribution>().unwrap_err().to_string();
        assert!(error.contains("\"pareto\"") && error.contains("prefix-zipf"), "{error}");
    }

    #[test]
    fn operations_are_all_that_a_phase_does() {
        let mut phase = Phase::new("all", Distribution::Uniform);
        phase.inserts = 1;
        phase.updates = 2;
        phase.deletes = 4;
        phase.merges = 8;
        phase.range_deletes = 16;
        phase.lookups = vec![Lookups { alpha: 0.0, ops: 32 }, Lookups { alpha: 1.0, ops: 64 }];
        phase.ranges = 128;
        assert_eq!((phase.writes(), phase.ops()), (31, 255));
        assert_eq!(phase.deleted_max(), 4 + 16 * RANGE_DELETE_PLACES);
    }
}
