//! Formatting and parsing of the names of database files.
//!
//! All numbered files share one sequence of numbers, and no number is reused. Each kind and number has exactly one
//! valid name. A file with any other name belongs to another program.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::failpoint::{self, Failpoint};

/// Name of the file that points to the current manifest.
pub const CURRENT: &str = "CURRENT";
/// Name of the file whose lock protects the database.
pub const LOCK: &str = "LOCK";
/// Name of the empty file that reserves disk space.
pub const RESERVE: &str = "RESERVE";
/// Name of the file that shows the metrics of an open database to other processes.
pub const METRICS: &str = "METRICS";
/// Name of a metrics file under construction.
pub const METRICS_TEMPORARY: &str = "METRICS.tmp";

/// Name of the directory with the files of followers. A follower is a read-only handle of a database that another
/// handle has open for writing.
pub const FOLLOWERS: &str = "FOLLOWERS";

/// Maximum difference between a file number on disk and the next file number in the manifest. Jobs allocate fewer
/// numbers between two manifest edits. A file beyond this distance therefore belongs to another program.
const NUMBER_DISTANCE_MAX: u64 = 1 << 32;
/// Exclusive upper bound of file numbers in a database without a manifest.
const NUMBER_END: u64 = 1 << 55;

const MANIFEST_PREFIX: &str = "MANIFEST-";
const TABLE_SUFFIX: &str = ".sst";
const BLOB_SUFFIX: &str = ".blob";
const SEGMENT_SUFFIX: &str = ".wal";
const OPERANDS_SUFFIX: &str = ".operands";
const BUCKET_SUFFIX: &str = ".bucket";
const TEMPORARY_SUFFIX: &str = ".tmp";
/// Minimum number of digits. Smaller numbers are padded with zeros, so that a directory listing is in numeric order.
const DIGITS_MIN: usize = 6;

/// Largest file number. It is far below the maximum of `u64`, so computing later numbers cannot overflow.
pub const FILE_NUMBER_MAX: u64 = (1 << 56) - 1;

/// Kind and number of a database file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileName {
    /// A table, `000007.sst`.
    Table(u64),
    /// A blob file, `000009.blob`.
    Blob(u64),
    /// A WAL segment, `000003.wal`.
    Segment(u64),
    /// A manifest, `MANIFEST-000002`.
    Manifest(u64),
    /// The log of an operand store, `000011.operands`.
    Operands(u64),
    /// A bucket file of an operand store, which holds the operands of a key range, `000012.bucket`.
    Bucket(u64),
    /// A file under construction, `000009.tmp`. It is deleted after a crash.
    Temporary(u64),
    /// The pointer to the current manifest, `CURRENT`.
    Current,
    /// The lock file, `LOCK`.
    Lock,
    /// Reserved disk space, `RESERVE`.
    Reserve,
    /// Metrics of an open database, `METRICS`.
    Metrics,
    /// A metrics file under construction, `METRICS.tmp`.
    MetricsTemporary,
}

impl FileName {
    /// Parses a file name. Returns `None` if it is not the name of a database file.
    #[must_use]
    pub fn parse(name: &str) -> Option<FileName> {
        let file = if name == CURRENT {
            FileName::Current
        } else if name == LOCK {
            FileName::Lock
        } else if name == RESERVE {
            FileName::Reserve
        } else if name == METRICS {
            FileName::Metrics
        } else if name == METRICS_TEMPORARY {
            FileName::MetricsTemporary
        } else if let Some(digits) = name.strip_prefix(MANIFEST_PREFIX) {
            FileName::Manifest(parse_number(digits)?)
        } else if let Some(digits) = name.strip_suffix(TABLE_SUFFIX) {
            FileName::Table(parse_number(digits)?)
        } else if let Some(digits) = name.strip_suffix(BLOB_SUFFIX) {
            FileName::Blob(parse_number(digits)?)
        } else if let Some(digits) = name.strip_suffix(SEGMENT_SUFFIX) {
            FileName::Segment(parse_number(digits)?)
        } else if let Some(digits) = name.strip_suffix(OPERANDS_SUFFIX) {
            FileName::Operands(parse_number(digits)?)
        } else if let Some(digits) = name.strip_suffix(BUCKET_SUFFIX) {
            FileName::Bucket(parse_number(digits)?)
        } else {
            FileName::Temporary(parse_number(name.strip_suffix(TEMPORARY_SUFFIX)?)?)
        };
        Some(file)
    }

    /// Returns the number, for kinds that have one.
    #[must_use]
    pub fn number(self) -> Option<u64> {
        match self {
            FileName::Table(number)
            | FileName::Blob(number)
            | FileName::Segment(number)
            | FileName::Manifest(number)
            | FileName::Operands(number)
            | FileName::Bucket(number)
            | FileName::Temporary(number) => Some(number),
            FileName::Current
            | FileName::Lock
            | FileName::Reserve
            | FileName::Metrics
            | FileName::MetricsTemporary => None,
        }
    }

    /// Returns whether the file number is so large that the database cannot have allocated it. The file then belongs to
    /// another program.
    ///
    /// `next` is the next file number in the manifest, or `None` without a manifest.
    pub fn has_unallocated_number(self, next: Option<u64>) -> bool {
        let end = next.map_or(NUMBER_END, |next| next.saturating_add(NUMBER_DISTANCE_MAX));
        let is_out_of_range = self.number().is_some_and(|number| number >= end);
        is_out_of_range && !failpoint::is_on(Failpoint::StrayFileNumberCounts)
    }

    /// Returns the path of this file in a directory.
    #[must_use]
    pub fn in_dir(self, dir: &Path) -> PathBuf {
        dir.join(self.to_string())
    }
}

/// Parses a number with at least six digits. Rejects leading zeros in longer numbers, because `Display` does not write
/// them.
fn parse_number(digits: &str) -> Option<u64> {
    let is_padded = digits.len() > DIGITS_MIN && digits.starts_with('0');
    let is_digits = digits.len() >= DIGITS_MIN && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_padded || !is_digits {
        return None;
    }
    digits.parse().ok().filter(|number| *number <= FILE_NUMBER_MAX)
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileName::Table(number) => write!(f, "{number:06}{TABLE_SUFFIX}"),
            FileName::Blob(number) => write!(f, "{number:06}{BLOB_SUFFIX}"),
            FileName::Segment(number) => write!(f, "{number:06}{SEGMENT_SUFFIX}"),
            FileName::Manifest(number) => write!(f, "{MANIFEST_PREFIX}{number:06}"),
            FileName::Operands(number) => write!(f, "{number:06}{OPERANDS_SUFFIX}"),
            FileName::Bucket(number) => write!(f, "{number:06}{BUCKET_SUFFIX}"),
            FileName::Temporary(number) => write!(f, "{number:06}{TEMPORARY_SUFFIX}"),
            FileName::Current => f.write_str(CURRENT),
            FileName::Lock => f.write_str(LOCK),
            FileName::Reserve => f.write_str(RESERVE),
            FileName::Metrics => f.write_str(METRICS),
            FileName::MetricsTemporary => f.write_str(METRICS_TEMPORARY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_name_every_kind_round_trips() {
        for number in [0, 1, 7, 999_999, 1_000_000, FILE_NUMBER_MAX] {
            for name in [
                FileName::Table(number),
                FileName::Blob(number),
                FileName::Segment(number),
                FileName::Manifest(number),
                FileName::Operands(number),
                FileName::Bucket(number),
                FileName::Temporary(number),
            ] {
                assert_eq!(FileName::parse(&name.to_string()), Some(name));
                assert_eq!(name.number(), Some(number));
            }
        }
        assert_eq!(FileName::parse("CURRENT"), Some(FileName::Current));
        assert_eq!(FileName::parse("LOCK"), Some(FileName::Lock));
        assert_eq!(FileName::parse("RESERVE"), Some(FileName::Reserve));
        for name in [FileName::Metrics, FileName::MetricsTemporary] {
            assert_eq!(FileName::parse(&name.to_string()), Some(name));
        }
        assert_eq!(FileName::Table(7).to_string(), "000007.sst");
        assert_eq!(FileName::Blob(9).to_string(), "000009.blob");
        assert_eq!(FileName::Segment(3).to_string(), "000003.wal");
        assert_eq!(FileName::Manifest(2).to_string(), "MANIFEST-000002");
    }

    #[test]
    fn file_name_nonstandard_is_not_parsed() {
        for name in [
            "",
            "7.sst",
            "0000007.sst",
            "00007.sst",
            "+00007.sst",
            "000007.SST",
            "000007.sst ",
            "7.blob",
            "000007.BLOB",
            "000007",
            "000007.sst.tmp",
            "7.operands",
            "000007.bucket ",
            "MANIFEST-2",
            "MANIFEST-0000002",
            "MANIFEST-",
            "current",
            "LOCK2",
            "72057594037927936.wal",
            "18446744073709551615.sst",
            "18446744073709551616.wal",
            "\u{0663}00003.wal",
            ".wal",
        ] {
            assert_eq!(FileName::parse(name), None, "{name:?}");
        }
    }
}
