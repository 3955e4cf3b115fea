//! The digest of a deterministic run: a hash over this text.
//!
//! ```text
//! spec <policy spec>
//! workload <as JSON>
//! seed <seed>
//! job <kind> in <level>/<run>:<files> … to <level> out <files> read <bytes> written <bytes>
//! counters <name>=<number> …
//! level <level> runs <n> files <n> bytes <n> entries <n> tombstones <n>
//! scan <entries> <hash>
//! ```
//!
//! Results that depend on caches or clocks (latencies, cache counts, I/Os) are excluded.

use std::fmt;

use lsmx_compaction::{Job, JobReason};
use xxhash_rust::xxh3::Xxh3;

use crate::numbers;

use super::result::LevelSummary;

/// Hash of the text.
#[derive(Clone)]
pub struct Digest(Xxh3);

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Digest").field(&format_args!("{:032x}", self.0.digest128())).finish()
    }
}

impl Default for Digest {
    fn default() -> Self {
        Digest::new()
    }
}

impl Digest {
    /// Returns the digest of an empty text.
    #[must_use]
    pub fn new() -> Digest {
        Digest(Xxh3::new())
    }

    /// Appends a line.
    pub fn line(&mut self, line: fmt::Arguments<'_>) {
        self.0.update(line.to_string().as_bytes());
        self.0.update(b"\n");
    }

    /// Appends the levels of the tree.
    pub fn levels(&mut self, levels: &[LevelSummary]) {
        for level in levels {
            self.line(format_args!(
                "level {} runs {} files {} bytes {} entries {} tombstones {}",
                level.level, level.runs, level.files, level.bytes, level.entries, level.tombstones
            ));
        }
    }

    /// Returns the digest of the lines, as 32 hexadecimal digits.
    #[must_use]
    pub fn hex(&self) -> String {
        format!("{:032x}", self.0.digest128())
    }
}

/// Prints a job for a digest: kind, inputs by level and run, target and reason.
///
/// Digests of published results must stay reproducible. Therefore the texts of reasons are fixed here and do not
/// follow the texts that [`JobReason`] prints for readers.
#[derive(Debug)]
pub struct DigestedJob<'a>(pub &'a Job);

impl fmt::Display for DigestedJob<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}   why: ", self.0)?;
        match &self.0.reason {
            JobReason::NoWrites { runs } => write!(f, "at rest with {runs} runs in L0"),
            JobReason::SizeRatio { runs } => write!(f, "{runs} runs of like size"),
            JobReason::Shape { level } => write!(f, "{level} has a foreign shape"),
            JobReason::TotalBytes { bytes } => write!(f, "the queue holds {bytes} bytes"),
            JobReason::RangeDeleted => f.write_str("range deletes cover it"),
            JobReason::Manual => f.write_str("asked for"),
            reason => write!(f, "{reason}"),
        }
    }
}

/// Hash and size of the entries of a full scan.
#[derive(Clone)]
pub struct Scan {
    hash: Xxh3,
    entries: u64,
    key_bytes: u64,
    value_bytes: u64,
}

impl fmt::Debug for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scan").field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl Default for Scan {
    fn default() -> Self {
        Scan::new()
    }
}

impl Scan {
    /// Returns a scan without entries.
    #[must_use]
    pub fn new() -> Scan {
        Scan { hash: Xxh3::new(), entries: 0, key_bytes: 0, value_bytes: 0 }
    }

    /// Adds the next entry in key order.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        // The lengths make the hashed bytes unambiguous.
        for bytes in [key, value] {
            self.hash.update(&numbers::count(bytes.len()).to_le_bytes());
            self.hash.update(bytes);
        }
        self.entries += 1;
        self.key_bytes += numbers::count(key.len());
        self.value_bytes += numbers::count(value.len());
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Returns the length of keys and values in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.key_bytes + self.value_bytes
    }

    /// Returns the length of keys in bytes.
    #[must_use]
    pub fn key_bytes(&self) -> u64 {
        self.key_bytes
    }

    /// Returns the hash of all entries, as 32 hexadecimal digits.
    #[must_use]
    pub fn hex(&self) -> String {
        format!("{:032x}", self.hash.digest128())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_xxh3_128_of_the_text() {
        let mut digest = Digest::new();
        digest.line(format_args!("seed {}", 7));
        let expected = xxhash_rust::xxh3::xxh3_128(b"seed 7\n");
        assert_eq!(digest.hex(), format!("{expected:032x}"));
        assert_eq!(digest.hex().len(), 32);
    }

    #[test]
    fn digest_depends_on_every_number_of_a_level() {
        let level =
            LevelSummary { level: 1, runs: 2, files: 3, bytes: 4, entries: 5, tombstones: 6 };
        let hex = |level: LevelSummary| {
            let mut digest = Digest::new();
            digest.levels(&[level]);
            digest.hex()
        };
        let all = [
            hex(level.clone()),
            hex(LevelSummary { level: 9, ..level.clone() }),
            hex(LevelSummary { runs: 9, ..level.clone() }),
            hex(LevelSummary { files: 9, ..level.clone() }),
            hex(LevelSummary { bytes: 9, ..level.clone() }),
            hex(LevelSummary { entries: 9, ..level.clone() }),
            hex(LevelSummary { tombstones: 9, ..level }),
        ];
        let distinct: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn scans_with_equal_concatenation_differ() {
        let (mut a, mut b) = (Scan::new(), Scan::new());
        a.add(b"ab", b"c");
        b.add(b"a", b"bc");
        assert_ne!(a.hex(), b.hex());
        assert_eq!((a.entries(), a.bytes(), a.key_bytes()), (1, 3, 2));
    }
}
