//! Which values a merge brings together again, so that scans find neighbours side by side.
//!
//! Each flush leaves a blob file of its own over all keys it had. After a while neighbours lie in many files,
//! and a scan reads each value by itself. So the merge that writes the last run counts, over a stretch of
//! keys, how many files their values lie in. If these are too many, it copies those of the files that
//! have least of the stretch to the file it writes, over the next stretch: files as old as each other span the same
//! keys, so one stretch is like the next, and no entry has to wait until those behind it are known.
//!
//! The fullest files stay, half as many as there may be, and the rest becomes one, as far as there is room
//! for what is copied beside what it was copied from. So a value is copied
//! about once each time that the files which came since are as many as half the bound, into a file that has as many
//! times its neighbours: a few times in all, as with tiering, and not with each merge. That is the range merge of
//! Titan (PingCAP, 2019), by stretch and not by file.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

/// Files that the values of a stretch may lie in.
const FILES_MAX: usize = 16;
/// Fewer files than this are not worth to be copied into one.
const GATHERED_MIN: usize = 4;

/// Decides value by value, in key order.
#[derive(Debug)]
pub(crate) struct Gathering {
    /// Bytes of a stretch.
    stretch_bytes: u64,
    /// Bytes of the stretch at hand.
    bytes: u64,
    /// The same by file.
    by_file: BTreeMap<FileId, u64>,
    /// Files whose values may be copied.
    gatherable: Arc<BTreeSet<FileId>>,
    /// Files whose values are copied.
    scattered: BTreeSet<FileId>,
}

impl Gathering {
    /// For scans that are to get so many bytes by one read, on average; of these files.
    pub(crate) fn new(scan_read_bytes: u64, gatherable: Arc<BTreeSet<FileId>>) -> Gathering {
        Gathering {
            stretch_bytes: scan_read_bytes.saturating_mul(FILES_MAX as u64),
            bytes: 0,
            by_file: BTreeMap::new(),
            gatherable,
            scattered: BTreeSet::new(),
        }
    }

    /// Whether the next value, of so many bytes in this file, is copied.
    pub(crate) fn takes(&mut self, file: FileId, bytes: u64) -> bool {
        let takes = self.scattered.contains(&file);
        *self.by_file.entry(file).or_default() += bytes;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= self.stretch_bytes {
            self.end_stretch();
        }
        takes
    }

    fn end_stretch(&mut self) {
        self.bytes = 0;
        let mut files: Vec<_> = std::mem::take(&mut self.by_file).into_iter().collect();
        self.scattered.clear();
        if files.len() > FILES_MAX {
            files.sort_unstable_by_key(|&(id, bytes)| (Reverse(bytes), id));
            let emptiest = files.drain(FILES_MAX / 2..).map(|(id, _)| id);
            self.scattered = emptiest.filter(|id| self.gatherable.contains(id)).collect();
            if self.scattered.len() < GATHERED_MIN {
                self.scattered.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For scans of so many bytes by one read, of files up to this one.
    fn gathering(scan_read_bytes: u64, last: u64) -> Gathering {
        Gathering::new(scan_read_bytes, Arc::new((0..=last).map(FileId).collect()))
    }

    /// The files of which values are taken over so many stretches, of which each has the same values: by
    /// file so many, of 10 bytes. Up to the last file they may be.
    fn taken(values: &[(u64, u64)], stretches: usize, last: u64) -> BTreeMap<u64, u64> {
        let all: u64 = values.iter().map(|(_, count)| count).sum();
        let mut gathering = gathering(all * 10 / FILES_MAX as u64, last);
        let mut taken = BTreeMap::new();
        for _ in 0..stretches {
            for &(file, count) in values {
                for _ in 0..count {
                    if gathering.takes(FileId(file), 10) {
                        *taken.entry(file).or_default() += 1;
                    }
                }
            }
        }
        taken
    }

    #[test]
    fn few_files_are_left_alone() {
        let values: Vec<_> = (0..16).map(|file| (file, 16)).collect();
        assert_eq!(taken(&values, 5, 99), BTreeMap::new());
    }

    #[test]
    fn of_many_files_the_emptiest_are_taken_from_the_second_stretch_on() {
        // Files 0 to 7 have most.
        let values: Vec<_> = (0..20).map(|file| (file, if file < 8 { 20 } else { 8 })).collect();
        assert_eq!(taken(&values, 1, 99), BTreeMap::new());
        let expected: BTreeMap<_, _> = (8..20).map(|file| (file, 3 * 8)).collect();
        assert_eq!(taken(&values, 4, 99), expected);
    }

    #[test]
    fn what_must_stay_does_and_a_few_files_are_not_worth_it() {
        let values: Vec<_> = (0..20).map(|file| (file, if file < 8 { 20 } else { 8 })).collect();
        let expected: BTreeMap<_, _> = (8..12).map(|file| (file, 8)).collect();
        assert_eq!(taken(&values, 2, 11), expected);
        assert_eq!(taken(&values, 2, 10), BTreeMap::new());
    }

    #[test]
    fn values_that_fill_a_read_are_left_where_they_are() {
        let mut some = gathering(100, 1_000);
        assert!((0..1_000).all(|file| !some.takes(FileId(file), 100)));
        // Nor is a stretch ever so long that it does not end.
        let mut some = gathering(u64::MAX, 1_000);
        assert!((0..1_000).all(|file| !some.takes(FileId(file), u64::MAX / 2)));
    }
}
