//! Relocation of values: merges copy values, so that the values of neighbouring keys are in few blob files.
//!
//! Each flush writes a blob file for the whole key range. After many flushes, the values of neighbouring keys are
//! therefore in many blob files, and a scan needs one read per value. A merge that writes the last run divides the keys
//! into windows, and counts the blob files that each window references. If a window references too many files, the
//! merge selects the files with the fewest bytes in this window. It copies their values during the next window, so that
//! entries do not have to be buffered. The selection fits the next window, because files of similar age contain the
//! same key range.
//!
//! In each window, the files with the most bytes keep their values, up to half of the maximum number of files. The
//! values of the other files are copied to one file, as long as the space limit allows it. After a relocation, a window
//! is relocated again only when it references as many new files as half of the maximum. The copied files become larger
//! with each relocation, so each value is copied only a few times in total, as in tiering. Titan (PingCAP, 2019) merges
//! blob files in a similar way, but by file instead of by window.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

/// Maximum number of blob files that a window may reference.
const FILES_MAX: usize = 16;
/// Minimum number of files whose values are relocated together.
const RELOCATED_FILES_MIN: usize = 4;

/// Determines which values are relocated. Values must be added in key order.
#[derive(Debug)]
pub(crate) struct ValueRelocation {
    /// Size of a window in bytes.
    window_bytes: u64,
    /// Bytes of values in the current window.
    bytes: u64,
    /// Bytes of values in the current window, by blob file.
    by_file: BTreeMap<FileId, u64>,
    /// Blob files whose values may be relocated.
    relocatable: Arc<BTreeSet<FileId>>,
    /// Blob files whose values are relocated during the current window.
    relocating: BTreeSet<FileId>,
}

impl ValueRelocation {
    /// Creates a relocation for scans that should read about `scan_read_bytes` bytes with each read.
    pub(crate) fn new(scan_read_bytes: u64, relocatable: Arc<BTreeSet<FileId>>) -> ValueRelocation {
        ValueRelocation {
            window_bytes: scan_read_bytes.saturating_mul(FILES_MAX as u64),
            bytes: 0,
            by_file: BTreeMap::new(),
            relocatable,
            relocating: BTreeSet::new(),
        }
    }

    /// Adds the next value, which has a size of `bytes` bytes and is in `file`. Returns whether the value must be
    /// relocated.
    pub(crate) fn add_value(&mut self, file: FileId, bytes: u64) -> bool {
        let relocate = self.relocating.contains(&file);
        *self.by_file.entry(file).or_default() += bytes;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= self.window_bytes {
            self.finish_window();
        }
        relocate
    }

    fn finish_window(&mut self) {
        self.bytes = 0;
        let mut files: Vec<_> = std::mem::take(&mut self.by_file).into_iter().collect();
        self.relocating.clear();
        if files.len() > FILES_MAX {
            files.sort_unstable_by_key(|&(id, bytes)| (Reverse(bytes), id));
            let smallest = files.drain(FILES_MAX / 2..).map(|(id, _)| id);
            self.relocating = smallest.filter(|id| self.relocatable.contains(id)).collect();
            if self.relocating.len() < RELOCATED_FILES_MIN {
                self.relocating.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a relocation for which the files with ids up to `last` are relocatable.
    fn relocation_of(scan_read_bytes: u64, last: u64) -> ValueRelocation {
        ValueRelocation::new(scan_read_bytes, Arc::new((0..=last).map(FileId).collect()))
    }

    /// Returns the number of relocated values of each file after several equal windows. `values` contains the number of
    /// 10-byte values per window for each file id. Files with ids up to `last` are relocatable.
    fn relocated_counts(values: &[(u64, u64)], windows: usize, last: u64) -> BTreeMap<u64, u64> {
        let all: u64 = values.iter().map(|(_, count)| count).sum();
        let mut relocation = relocation_of(all * 10 / FILES_MAX as u64, last);
        let mut counts = BTreeMap::new();
        for _ in 0..windows {
            for &(file, count) in values {
                for _ in 0..count {
                    if relocation.add_value(FileId(file), 10) {
                        *counts.entry(file).or_default() += 1;
                    }
                }
            }
        }
        counts
    }

    #[test]
    fn relocation_few_files_are_not_relocated() {
        let values: Vec<_> = (0..16).map(|file| (file, 16)).collect();
        assert_eq!(relocated_counts(&values, 5, 99), BTreeMap::new());
    }

    #[test]
    fn relocation_many_files_smallest_are_relocated_from_second_window() {
        let values: Vec<_> = (0..20).map(|file| (file, if file < 8 { 20 } else { 8 })).collect();
        assert_eq!(relocated_counts(&values, 1, 99), BTreeMap::new());
        let expected: BTreeMap<_, _> = (8..20).map(|file| (file, 3 * 8)).collect();
        assert_eq!(relocated_counts(&values, 4, 99), expected);
    }

    #[test]
    fn relocation_skips_other_files_and_too_few_files() {
        let values: Vec<_> = (0..20).map(|file| (file, if file < 8 { 20 } else { 8 })).collect();
        let expected: BTreeMap<_, _> = (8..12).map(|file| (file, 8)).collect();
        assert_eq!(relocated_counts(&values, 2, 11), expected);
        assert_eq!(relocated_counts(&values, 2, 10), BTreeMap::new());
    }

    #[test]
    fn relocation_large_values_are_not_relocated() {
        let mut relocation = relocation_of(100, 1_000);
        assert!((0..1_000).all(|file| !relocation.add_value(FileId(file), 100)));
        // Windows of the maximum size must not overflow.
        let mut relocation = relocation_of(u64::MAX, 1_000);
        assert!((0..1_000).all(|file| !relocation.add_value(FileId(file), u64::MAX / 2)));
    }
}
