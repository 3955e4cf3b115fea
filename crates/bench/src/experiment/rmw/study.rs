//! Experiments by name: what each varies, and over which values.

use std::fmt;
use std::str::FromStr;

/// An experiment by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Study {
    /// Over the share of reads.
    ReadRatio,
    /// Over the exponent of the popularity.
    Zipf,
    /// Over the size of values, of ten fields each; the loaded bytes stay.
    ValueSize,
    /// Over the size of what an update writes, in values of 8 KB; the loaded bytes stay.
    DeltaSize,
    /// Opening after a kill, over the number of operations before.
    Recovery,
    /// Reads of keys that were updated so many times since their last put.
    Operands,
    /// Scans of so many entries each, after the operations.
    Scans,
    /// Over the size of the KD cache.
    KdCache,
    /// Over the size of buckets.
    BucketSize,
    /// Over the fill of a bucket at which it is split.
    SplitThreshold,
}

/// What is known of an experiment.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The experiment.
    pub study: Study,
    /// Its name as typed.
    pub name: &'static str,
    /// What it varies, as results call it.
    pub varies: &'static str,
    /// The values.
    pub values: &'static [f64],
    /// Whether it is about operands that are kept apart from the tree, and runs in that mode alone.
    pub kd_alone: bool,
}

const fn known(
    study: Study,
    name: &'static str,
    varies: &'static str,
    values: &'static [f64],
) -> Known {
    Known { study, name, varies, values, kd_alone: false }
}

const fn of_kd(
    study: Study,
    name: &'static str,
    varies: &'static str,
    values: &'static [f64],
) -> Known {
    Known { study, name, varies, values, kd_alone: true }
}

/// All experiments, in the order in which they are listed to users.
pub const KNOWN: [Known; 10] = [
    known(Study::ReadRatio, "read-ratio", "read_ratio", &[0.1, 0.3, 0.5, 0.7, 0.9]),
    known(Study::Zipf, "zipf", "zipf", &[0.8, 0.9, 0.99, 1.1, 1.2]),
    known(
        Study::ValueSize,
        "value-size",
        "value_len",
        &[100.0, 400.0, 1000.0, 2000.0, 4000.0, 8000.0],
    ),
    known(Study::DeltaSize, "delta-size", "delta_len", &[25.0, 50.0, 100.0, 200.0, 400.0, 800.0]),
    // Shares of --ops.
    known(Study::Recovery, "recovery", "ops", &[0.25, 0.5, 1.0]),
    known(
        Study::Operands,
        "operands",
        "operands",
        &[0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0],
    ),
    known(Study::Scans, "scans", "scan_entries", &[10.0, 100.0, 1000.0, 10_000.0]),
    // MiB of 4 GiB of memory, as published; the same share of what memory there is.
    of_kd(
        Study::KdCache,
        "kd-cache",
        "kd_cache_mib",
        &[0.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0],
    ),
    // KiB.
    of_kd(Study::BucketSize, "bucket-size", "bucket_kib", &[64.0, 128.0, 256.0, 512.0]),
    of_kd(Study::SplitThreshold, "split-threshold", "split_threshold", &[0.1, 0.3, 0.5, 0.8, 0.9]),
];

/// Memory that the published sizes of the KD cache are a part of.
pub(super) const PUBLISHED_MEMORY_MIB: f64 = 4096.0;
/// Bytes of a value in [`Study::DeltaSize`].
pub(super) const DELTA_SIZE_VALUE_BYTES: u64 = 8000;
/// Fields of a value in [`Study::ValueSize`].
pub(super) const VALUE_SIZE_FIELDS: u64 = 10;

impl Study {
    /// What is known of it.
    #[must_use]
    pub fn known(self) -> &'static Known {
        KNOWN.iter().find(|known| known.study == self).unwrap_or(&KNOWN[0])
    }

    /// Whether one database gives the cells of all values.
    #[must_use]
    pub fn has_one_run(self) -> bool {
        matches!(self, Study::Operands | Study::Scans)
    }

    /// The name as typed and reported.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.known().name
    }
}

impl fmt::Display for Study {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Study {
    type Err = String;
    fn from_str(text: &str) -> Result<Study, String> {
        let all = || KNOWN.map(|known| known.name).join(", ");
        let found = KNOWN.iter().find(|known| known.name == text);
        found
            .map(|known| known.study)
            .ok_or_else(|| format!("unknown experiment {text:?}; known: {}", all()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_experiment_is_known_once_by_its_name() {
        for known in KNOWN {
            assert_eq!(known.name.parse(), Ok(known.study));
            assert_eq!(known.study.known().varies, known.varies);
            assert!(known.values.is_sorted() && known.values.len() > 2);
        }
        assert!("speed".parse::<Study>().unwrap_err().contains("split-threshold"));
    }
}
