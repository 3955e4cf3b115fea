//! Names of the files of a database, both ways.
//!
//! All numbered files share one line of numbers, and no number is ever used twice, so a name says
//! at once what a file is and when it came. Parsing is exact: one file kind and number has one
//! name, and a name that this module would not write is somebody else's file.

use std::fmt;
use std::path::{Path, PathBuf};

use lsmx_base::failpoint::{self, Failpoint};

/// The pointer to the manifest in use.
pub const CURRENT: &str = "CURRENT";
/// The file whose lock says who owns the database.
pub const LOCK: &str = "LOCK";
/// The file that keeps room on the disk, and holds nothing.
pub const RESERVE: &str = "RESERVE";

/// How far a number on disk can be ahead of the next number that the manifest knows: more than jobs can give
/// out between two edits.
const NUMBERS_AHEAD_MAX: u64 = 1 << 32;
/// A number from here on is impossible where no manifest says which number is next.
const NUMBERS_END: u64 = 1 << 55;

const MANIFEST_PREFIX: &str = "MANIFEST-";
const TABLE_SUFFIX: &str = ".sst";
const BLOB_SUFFIX: &str = ".blob";
const SEGMENT_SUFFIX: &str = ".wal";
const OPERANDS_SUFFIX: &str = ".operands";
const BUCKET_SUFFIX: &str = ".bucket";
const TEMPORARY_SUFFIX: &str = ".tmp";
/// Numbers are padded to this many digits, so that a listing shows them in order.
const DIGITS_MIN: usize = 6;

/// Largest number of a file. So far from the end of 64 bits that the numbers which come after any
/// one found on disk never wrap.
pub const FILE_NUMBER_MAX: u64 = (1 << 56) - 1;

/// What a file of a database is, and its number.
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
    /// What an operand store holds, `000011.operands`.
    Operands(u64),
    /// Operands of a range of keys, `000012.bucket`.
    Bucket(u64),
    /// A file that will get another name when it is complete, `000009.tmp`; rubbish after a crash.
    Temporary(u64),
    /// The pointer to the manifest in use, `CURRENT`.
    Current,
    /// The lock file, `LOCK`.
    Lock,
    /// Room on the disk that is kept for a full one, `RESERVE`.
    Reserve,
}

impl FileName {
    /// What a name stands for, or `None` for a name that no file of a database has.
    #[must_use]
    pub fn parse(name: &str) -> Option<FileName> {
        let file = if name == CURRENT {
            FileName::Current
        } else if name == LOCK {
            FileName::Lock
        } else if name == RESERVE {
            FileName::Reserve
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

    /// The number, for the kinds that have one.
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
            FileName::Current | FileName::Lock | FileName::Reserve => None,
        }
    }

    /// Whether the file has a number that the database cannot have allocated, so another program named it.
    /// `next` is the next number that the manifest knows, if there is a manifest.
    pub(crate) fn is_stray(self, next: Option<u64>) -> bool {
        let end = next.map_or(NUMBERS_END, |next| next.saturating_add(NUMBERS_AHEAD_MAX));
        let stray = self.number().is_some_and(|number| number >= end);
        stray && !failpoint::is_on(Failpoint::StrayNumberCounts)
    }

    /// The path of this file in the directory `dir`.
    #[must_use]
    pub fn in_dir(self, dir: &Path) -> PathBuf {
        dir.join(self.to_string())
    }
}

/// Only what [`FileName`]'s `Display` writes: six digits or more, padded to six and no further.
fn parse_number(digits: &str) -> Option<u64> {
    let padded = digits.len() > DIGITS_MIN && digits.starts_with('0');
    let plain = digits.len() >= DIGITS_MIN && digits.bytes().all(|byte| byte.is_ascii_digit());
    if padded || !plain {
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_comes_back_from_its_name() {
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
        assert_eq!(FileName::Table(7).to_string(), "000007.sst");
        assert_eq!(FileName::Blob(9).to_string(), "000009.blob");
        assert_eq!(FileName::Segment(3).to_string(), "000003.wal");
        assert_eq!(FileName::Manifest(2).to_string(), "MANIFEST-000002");
    }

    #[test]
    fn a_name_that_would_not_be_written_is_not_parsed() {
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
