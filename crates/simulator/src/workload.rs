//! Description of a workload: phases of operations, and the distribution of their keys.
//!
//! The experiments of `lsmx-bench` generate streams of operations from this description. The simulator computes
//! estimates from it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Distribution of the keys that a phase inserts and accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyDistribution {
    /// Inserts and accesses are uniform.
    #[default]
    Uniform,
    /// Inserts are uniform. Accesses follow a zipf distribution with the exponent [`Phase::zipf`]. Popular keys are
    /// scattered over the key domain, and popularity does not depend on the age of a record.
    Zipf,
    /// Each key has one of [`PREFIXES`] prefixes. For inserts and accesses, the popularity of prefixes follows a zipf
    /// distribution with exponent 1.
    PrefixZipf,
    /// Inserts and accesses are normally distributed around the middle of the key domain, with standard
    /// deviation [`NORMAL_DEVIATION`].
    Normal,
    /// Inserts are in ascending order. Accesses visit the present keys in ascending order, repeatedly.
    Sequential,
    /// Inserts fall into a window of 1/[`WINDOWS`] of the key domain. The window moves through the domain once.
    /// [`WINDOW_SHARE`] of the accesses fall into a window that moves in the same way.
    Shifting,
}

/// Default of [`Phase::zipf`], as in YCSB.
pub const ZIPF_EXPONENT: f64 = 0.99;
/// Number of prefixes of [`KeyDistribution::PrefixZipf`].
pub const PREFIXES: u32 = 1024;
/// Standard deviation of [`KeyDistribution::Normal`] ÷ width of the key domain.
///
/// Source: Sarkar et al., PVLDB 14 (2021), who use 34 %.
pub const NORMAL_DEVIATION: f64 = 0.34;
/// Number of windows into which [`KeyDistribution::Shifting`] divides the key domain.
pub const WINDOWS: u64 = 10;
/// Share of the accesses of [`KeyDistribution::Shifting`] that fall into the window.
pub const WINDOW_SHARE: f64 = 0.9;

impl KeyDistribution {
    /// All distributions, in the order in which they are listed to users.
    pub const ALL: [KeyDistribution; 6] = [
        KeyDistribution::Uniform,
        KeyDistribution::Zipf,
        KeyDistribution::PrefixZipf,
        KeyDistribution::Normal,
        KeyDistribution::Sequential,
        KeyDistribution::Shifting,
    ];

    /// Returns the name by which users select the distribution.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            KeyDistribution::Uniform => "uniform",
            KeyDistribution::Zipf => "zipf",
            KeyDistribution::PrefixZipf => "prefix-zipf",
            KeyDistribution::Normal => "normal",
            KeyDistribution::Sequential => "sequential",
            KeyDistribution::Shifting => "shifting",
        }
    }
}

impl fmt::Display for KeyDistribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error for an unknown name of a distribution.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown distribution {name:?}; known: {known}")]
pub struct UnknownDistribution {
    name: String,
    known: String,
}

impl FromStr for KeyDistribution {
    type Err = UnknownDistribution;

    fn from_str(name: &str) -> Result<Self, UnknownDistribution> {
        KeyDistribution::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| {
            UnknownDistribution {
                name: name.to_owned(),
                known: KeyDistribution::ALL.map(KeyDistribution::name).join(", "),
            }
        })
    }
}

/// Number of records that a range delete covers. The records are consecutive in key order, and some may be absent.
pub const RANGE_DELETE_RECORDS: u64 = 10;

/// Returns whether serialization omits a field. Phases without merges and range deletes keep the JSON form of older
/// versions.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn default_zipf() -> f64 {
    ZIPF_EXPONENT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires a reference")]
fn is_default_zipf(exponent: &f64) -> bool {
    exponent.to_bits() == ZIPF_EXPONENT.to_bits()
}

/// A phase of a workload: a number of operations of several kinds, mixed evenly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Name in progress reports and errors.
    pub name: String,
    /// Number of puts of new keys.
    pub inserts: u64,
    /// Number of puts of present keys.
    pub updates: u64,
    /// Number of deletes of present keys.
    pub deletes: u64,
    /// Number of merge operands for present keys. Each operand replaces a few bytes of the value.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub merges: u64,
    /// Number of range deletes, each of [`RANGE_DELETE_RECORDS`] records.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub range_deletes: u64,
    /// Point lookups, grouped by their share of absent keys.
    pub lookups: Vec<LookupGroup>,
    /// Number of range lookups.
    pub ranges: u64,
    /// Share of the present entries that one range lookup reads.
    pub selectivity: f64,
    /// Distribution of the keys.
    pub distribution: KeyDistribution,
    /// Exponent of [`KeyDistribution::Zipf`], above 0.
    #[serde(default = "default_zipf", skip_serializing_if = "is_default_zipf")]
    pub zipf: f64,
    /// Number that selects which of the present keys are popular. Phases with different numbers have different popular
    /// keys.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hot: u64,
    /// True if the phase ends with a flush and then waits for all compactions.
    pub settle: bool,
}

/// A group of point lookups with the same share of absent keys.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LookupGroup {
    /// Share of lookups of absent keys.
    pub alpha: f64,
    /// Number of lookups.
    pub ops: u64,
}

impl Phase {
    /// Returns a phase without operations.
    #[must_use]
    pub fn new(name: impl Into<String>, distribution: KeyDistribution) -> Phase {
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
            zipf: ZIPF_EXPONENT,
            hot: 0,
            settle: false,
        }
    }

    /// Returns the zipf exponent, or `None` if the distribution is not [`KeyDistribution::Zipf`].
    #[must_use]
    pub(crate) fn zipf_exponent(&self) -> Option<f64> {
        (self.distribution == KeyDistribution::Zipf).then_some(self.zipf)
    }

    /// Returns the number of writes of all kinds.
    #[must_use]
    pub fn writes(&self) -> u64 {
        let counts = [self.inserts, self.updates, self.deletes, self.merges, self.range_deletes];
        counts.into_iter().fold(0, u64::saturating_add)
    }

    /// Returns an upper bound of the number of records that the phase deletes.
    #[must_use]
    pub fn deleted_records_max(&self) -> u64 {
        self.deletes.saturating_add(self.range_deletes.saturating_mul(RANGE_DELETE_RECORDS))
    }

    /// Returns the number of operations of all kinds.
    #[must_use]
    pub fn operation_count(&self) -> u64 {
        let lookups = self.lookups.iter().map(|lookups| lookups.ops);
        lookups.chain([self.ranges]).fold(self.writes(), u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distribution_display_parses_back() {
        for distribution in KeyDistribution::ALL {
            assert_eq!(distribution.to_string().parse(), Ok(distribution));
        }
        let error = "pareto".parse::<KeyDistribution>().unwrap_err().to_string();
        assert!(error.contains("\"pareto\"") && error.contains("prefix-zipf"), "{error}");
    }

    #[test]
    fn phase_counts_sum_all_kinds() {
        let mut phase = Phase::new("all", KeyDistribution::Uniform);
        phase.inserts = 1;
        phase.updates = 2;
        phase.deletes = 4;
        phase.merges = 8;
        phase.range_deletes = 16;
        phase.lookups =
            vec![LookupGroup { alpha: 0.0, ops: 32 }, LookupGroup { alpha: 1.0, ops: 64 }];
        phase.ranges = 128;
        assert_eq!((phase.writes(), phase.operation_count()), (31, 255));
        assert_eq!(phase.deleted_records_max(), 4 + 16 * RANGE_DELETE_RECORDS);
    }
}
