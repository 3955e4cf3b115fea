//! The digest of a deterministic run. The digest is a hash of a text with the following lines.
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
//! The digest excludes results that depend on caches or clocks: latencies, cache counters and I/Os.

use std::fmt;

use lsmx_compaction::{Job, JobReason};
use xxhash_rust::xxh3::Xxh3;

use crate::numbers;

use super::result::LevelSummary;

/// Hash of the digest lines.
#[derive(Clone, Default)]
pub(super) struct TextDigest(Xxh3);

impl TextDigest {
    /// Appends a line to the hashed text.
    pub(super) fn add_line(&mut self, line: fmt::Arguments<'_>) {
        self.0.update(line.to_string().as_bytes());
        self.0.update(b"\n");
    }

    pub(super) fn add_levels(&mut self, levels: &[LevelSummary]) {
        for level in levels {
            self.add_line(format_args!(
                "level {} runs {} files {} bytes {} entries {} tombstones {}",
                level.level, level.runs, level.files, level.bytes, level.entries, level.tombstones
            ));
        }
    }

    pub(super) fn to_hex(&self) -> String {
        format!("{:032x}", self.0.digest128())
    }
}

/// Formats a compaction job for the digest: kind, inputs by level and run, output level, and reason.
///
/// Published digests must stay reproducible. Therefore the texts of the reasons are fixed here and may differ from the
/// texts that [`JobReason`] prints.
pub(super) struct DigestedJob<'a>(pub(super) &'a Job);

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

/// Hash and size of all entries that a full scan returns.
#[derive(Clone, Default)]
pub(super) struct ScanDigest {
    hash: Xxh3,
    pub(super) entries: u64,
    pub(super) key_bytes: u64,
    value_bytes: u64,
}

impl ScanDigest {
    /// Adds an entry. Entries must be added in key order.
    pub(super) fn add_entry(&mut self, key: &[u8], value: &[u8]) {
        // Hashing the lengths makes the boundary between key and value unambiguous.
        for bytes in [key, value] {
            self.hash.update(&numbers::to_u64(bytes.len()).to_le_bytes());
            self.hash.update(bytes);
        }
        self.entries += 1;
        self.key_bytes += numbers::to_u64(key.len());
        self.value_bytes += numbers::to_u64(value.len());
    }

    pub(super) fn entry_bytes(&self) -> u64 {
        self.key_bytes + self.value_bytes
    }

    pub(super) fn to_hex(&self) -> String {
        format!("{:032x}", self.hash.digest128())
    }
}
