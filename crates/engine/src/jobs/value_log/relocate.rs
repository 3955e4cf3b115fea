//! Relocates scattered values during merges, so that scans find neighbouring values in few files.
//!
//! Each flush writes a blob file over its whole key range. In time, neighbouring values lie in many files, and a scan
//! reads each value separately. The merge that writes the last run counts the files per window of keys. If there are
//! too many, it copies values of the files with the fewest bytes in the window to its output, during the next window.
//! Files of similar age span the same keys, so consecutive windows are alike, and no entry has to be buffered.
//!
//! In each window, the files with the most bytes keep their values, up to half of the allowed number of files. The
//! values of the other files are copied to one file, within the space allowance for copies. A value is copied again
//! only after half the allowed number of new files has covered its window. Each copy has more neighbours of the value,
//! so a value is copied a few times in total, as in tiering. Titan (PingCAP, 2019) merges files in the same way, but by
//! file instead of by window.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

/// Maximum number of files per window.
const FILES_MAX: usize = 16;
/// Minimum number of files worth merging into one.
const RELOCATED_FILES_MIN: usize = 4;

/// Chooses the values to be relocated. Values are passed in key order.
#[derive(Debug)]
pub(crate) struct ValueRelocation {
    /// Size of a window, in bytes.
    window_bytes: u64,
    /// Bytes of the current window.
    bytes: u64,
    /// Bytes of the current window by file.
    by_file: BTreeMap<FileId, u64>,
    /// Files whose values may be relocated.
    relocatable: Arc<BTreeSet<FileId>>,
    /// Files whose values are relocated in the current window.
    relocating: BTreeSet<FileId>,
}

impl ValueRelocation {
    /// Creates a relocation for scans that shall read `scan_read_bytes` per I/O on average.
    pub(crate) fn new(scan_read_bytes: u64, relocatable: Arc<BTreeSet<FileId>>) -> ValueRelocation {
        ValueRelocation {
            window_bytes: scan_read_bytes.saturating_mul(FILES_MAX as u64),
            bytes: 0,
            by_file: BTreeMap::new(),
            relocatable,
            relocating: BTreeSet::new(),
        }
    }

    /// Adds the next value, of `bytes` bytes in `file`. Returns whether to relocate it.
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

    /// Creates a relocation of the files up to `last`.
    fn relocation_of(scan_read_bytes: u64, last: u64) -> ValueRelocation {
        ValueRelocation::new(scan_read_bytes, Arc::new((0..=last).map(FileId).collect()))
    }

    /// Returns the number of relocated values by file over equal windows. `values` gives the number of 10-byte values
    /// per file and window; files up to `last` may be relocated.
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
        // Windows of any size end.
        let mut relocation = relocation_of(u64::MAX, 1_000);
        assert!((0..1_000).all(|file| !relocation.add_value(FileId(file), u64::MAX / 2)));
    }
}
