//! Data movement, the fourth primitive of a policy: which files of a level a job takes.

use std::cmp::Reverse;
use std::fmt::Write as _;

use crate::ids::Level;
use crate::run::SortedRun;
use crate::shape::TreeShape;
use crate::table_meta::TableMeta;

/// Rule that selects the files of a full level. It defines the order in which files are tried.
///
/// Among equal files, the file with the smaller `seq_smallest` comes first, then the file with the smaller key.
///
/// Source: Sarkar et al., PVLDB 14 (2021), section 3, "data movement policy".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FilePicker {
    /// No selection: jobs take all files.
    All,
    /// The file with the smallest ratio of overlapped bytes in the next level to its own bytes ("LO+1"). RocksDB uses
    /// the same ratio.
    LeastOverlap,
    /// Like `LeastOverlap`, but with the overlap in the level below the next level ("LO+2"). If that level is empty,
    /// the overlap in the next level is used.
    LeastOverlapGrandparent,
    /// The first file after the level's cursor. After the last file, the first file of the level follows.
    RoundRobin,
    /// The file that lookups have not read for the longest time ("Cold").
    ColdestAccess,
    /// The file whose newest entry is older than the newest entry of any other file: the smallest `seq_largest`.
    ColdestWrite,
    /// The file with the smallest `seq_smallest`. Its key range has not been compacted for the longest time ("Old").
    Oldest,
    /// The file with the most tombstones, among all levels including L0.
    MostTombstones,
    /// The file with the oldest tombstone. Among equal files, the file with the most tombstones.
    OldestTombstone,
}

impl FilePicker {
    /// All file pickers.
    pub const ALL: [FilePicker; 9] = [
        FilePicker::All,
        FilePicker::LeastOverlap,
        FilePicker::LeastOverlapGrandparent,
        FilePicker::RoundRobin,
        FilePicker::ColdestAccess,
        FilePicker::ColdestWrite,
        FilePicker::Oldest,
        FilePicker::MostTombstones,
        FilePicker::OldestTombstone,
    ];

    /// Returns the name as written in a spec.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FilePicker::All => "all",
            FilePicker::LeastOverlap => "least-overlap",
            FilePicker::LeastOverlapGrandparent => "least-overlap-grandparent",
            FilePicker::RoundRobin => "round-robin",
            FilePicker::ColdestAccess => "coldest-access",
            FilePicker::ColdestWrite => "coldest-write",
            FilePicker::Oldest => "oldest",
            FilePicker::MostTombstones => "most-tombstones",
            FilePicker::OldestTombstone => "oldest-tombstone",
        }
    }

    /// Returns the indices of the files of `run`, best file first. `level` is the level of the run, and `next` is the
    /// target level.
    #[must_use]
    pub fn order_files(
        self,
        shape: &TreeShape,
        level: Level,
        run: &SortedRun,
        next: Level,
    ) -> Vec<usize> {
        let files = &run.files;
        let mut order: Vec<usize> = (0..files.len()).collect();
        match self {
            FilePicker::All => {}
            FilePicker::RoundRobin => {
                order.rotate_left(self.first_after_cursor(shape, level, run).unwrap_or(0));
            }
            FilePicker::LeastOverlap | FilePicker::LeastOverlapGrandparent => {
                let below = shape.runs_of(self.overlapped_level(shape, next));
                let overlaps = files.overlaps(0..files.len(), below);
                order.sort_by_key(|&index| (files.overlap_cost(index, overlaps[index]), index));
            }
            _ => order.sort_by_key(|&index| (self.rank(&files[index]), index)),
        }
        order
    }

    /// Returns the first index in the result of [`FilePicker::order_files`]. Examines only groups of files that have
    /// changed since the last call.
    #[must_use]
    pub fn first_file(
        self,
        shape: &TreeShape,
        level: Level,
        run: &SortedRun,
        next: Level,
    ) -> Option<usize> {
        let files = &run.files;
        match self {
            FilePicker::All => (!files.is_empty()).then_some(0),
            FilePicker::RoundRobin => self.first_after_cursor(shape, level, run),
            FilePicker::LeastOverlap | FilePicker::LeastOverlapGrandparent => {
                files.find_least_overlap(shape.runs_of(self.overlapped_level(shape, next)))
            }
            FilePicker::ColdestAccess => files.find_least_rank(0, |file| self.rank(file)),
            FilePicker::ColdestWrite => files.find_least_rank(1, |file| self.rank(file)),
            FilePicker::Oldest => files.find_least_rank(2, |file| self.rank(file)),
            FilePicker::MostTombstones => files.find_least_rank(3, |file| self.rank(file)),
            FilePicker::OldestTombstone => files.find_least_rank(4, |file| self.rank(file)),
        }
    }

    /// Returns the index of the first file after the cursor. Returns 0 if no file is after the cursor, and `None` if
    /// there are no files.
    fn first_after_cursor(self, shape: &TreeShape, level: Level, run: &SortedRun) -> Option<usize> {
        let cursor = shape.level(level).and_then(|level| level.cursor.as_ref());
        let first = cursor.map_or(0, |end| {
            run.files.partition_point(|file| file.range.smallest <= *end) % run.files.len().max(1)
        });
        (first < run.files.len()).then_some(first)
    }

    /// Returns a sort key for files of any level. The file with the smallest key is the best.
    ///
    /// For file pickers that compare overlaps or use the cursor, only the smallest sequence number of the file decides.
    #[must_use]
    pub fn rank(self, file: &TableMeta) -> (u64, Reverse<u64>, u64) {
        let (first, second) = match self {
            FilePicker::ColdestAccess => (file.last_read_us, 0),
            FilePicker::ColdestWrite => (file.seq_largest, 0),
            FilePicker::Oldest => (file.seq_smallest, 0),
            FilePicker::MostTombstones => (u64::MAX - file.tombstones, 0),
            FilePicker::OldestTombstone => {
                (file.oldest_tombstone_us.unwrap_or(u64::MAX), file.tombstones)
            }
            FilePicker::All
            | FilePicker::LeastOverlap
            | FilePicker::LeastOverlapGrandparent
            | FilePicker::RoundRobin => (0, 0),
        };
        (first, Reverse(second), file.seq_smallest)
    }

    /// Returns the level in which the file picker measures the overlap.
    fn overlapped_level(self, shape: &TreeShape, next: Level) -> Level {
        let grandparent = Level(next.0.saturating_add(1));
        let uses_grandparent = self == FilePicker::LeastOverlapGrandparent;
        if uses_grandparent && shape.level_bytes(grandparent) > 0 { grandparent } else { next }
    }

    /// Returns one line for each of the first `count` files of `order`. A line states the value that the file picker
    /// compares.
    pub(crate) fn explain(
        self,
        shape: &TreeShape,
        run: &SortedRun,
        next: Level,
        order: &[usize],
        count: usize,
    ) -> Vec<String> {
        let level = self.overlapped_level(shape, next);
        let overlaps = match self {
            FilePicker::LeastOverlap | FilePicker::LeastOverlapGrandparent => {
                run.files.overlaps(0..run.files.len(), shape.runs_of(level))
            }
            _ => Vec::new(),
        };
        let line = |&index: &usize| {
            let file = &run.files[index];
            let mut line = format!("file {}: ", file.id.0);
            // Writing to a string does not fail.
            let _ = match self {
                FilePicker::All => write!(line, "{} bytes", file.bytes),
                FilePicker::RoundRobin => write!(line, "next in key order"),
                FilePicker::LeastOverlap | FilePicker::LeastOverlapGrandparent => {
                    let own = u128::from(file.compensated_bytes().max(1));
                    let milli = u128::from(overlaps[index]) * 1000 / own;
                    let (whole, milli) = (milli / 1000, milli % 1000);
                    write!(line, "overlaps {whole}.{milli:03} times its size in {level}")
                }
                FilePicker::ColdestAccess => write!(line, "last read at {} us", file.last_read_us),
                FilePicker::ColdestWrite => write!(line, "newest entry {}", file.seq_largest),
                FilePicker::Oldest => write!(line, "oldest entry {}", file.seq_smallest),
                FilePicker::MostTombstones | FilePicker::OldestTombstone => {
                    line +=
                        &format!("{} of {} entries are tombstones", file.tombstones, file.entries);
                    file.oldest_tombstone_us.map_or(Ok(()), |us| {
                        let age_us = shape.now_us.saturating_sub(us);
                        write!(line, ", the oldest is {age_us} us old")
                    })
                }
            };
            line
        };
        order.iter().take(count).map(line).collect()
    }
}
