//! Data movement, the fourth primitive: which files of a level a job takes.

use std::cmp::Reverse;
use std::fmt::Write as _;

use crate::ids::Level;
use crate::run::SortedRun;
use crate::shape::TreeShape;
use crate::table_meta::TableMeta;

/// Order in which the files of a full level are tried. Ties: the smaller `seq_smallest`, then the
/// smaller key.
///
/// Source: Sarkar et al., PVLDB 14 (2021), section 3, "data movement policy".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FilePicker {
    /// Jobs take all files.
    All,
    /// The file that overlaps the fewest bytes of the next level per byte of its own ("LO+1"). As in RocksDB,
    /// files are compared by overlapped bytes divided by their own bytes, not by overlapped bytes alone.
    LeastOverlap,
    /// As `LeastOverlap`, for the level below the next one ("LO+2"). If that level is empty, the next
    /// level counts.
    LeastOverlapGrandparent,
    /// The first file that begins after the level's cursor; continues with the first file of the level.
    RoundRobin,
    /// The file whose last read by a lookup is longest ago ("Cold").
    ColdestAccess,
    /// The file whose newest entry is oldest.
    ColdestWrite,
    /// The file whose oldest entry is oldest: the last compaction of its key range is longest ago ("Old").
    Oldest,
    /// The file with the most tombstones, including files of L0.
    MostTombstones,
    /// The file with the oldest tombstone. Ties: the most tombstones.
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

    /// Returns the indices of the files of `run`, best first. `level` is the level of the run and `next`
    /// the target level.
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

    /// Returns the first index of [`FilePicker::order_files`]. Examines only files that have changed since the last
    /// call.
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

    /// Returns the index of the first file after the cursor, or 0 if no file follows.
    fn first_after_cursor(self, shape: &TreeShape, level: Level, run: &SortedRun) -> Option<usize> {
        let cursor = shape.level(level).and_then(|level| level.cursor.as_ref());
        let first = cursor.map_or(0, |end| {
            run.files.partition_point(|file| file.range.smallest <= *end) % run.files.len().max(1)
        });
        (first < run.files.len()).then_some(first)
    }

    /// Returns a sort key that compares files of any level; smaller is better. File pickers that compare
    /// overlaps or use the cursor give all files the same first two numbers.
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

    /// Returns the level whose overlap counts.
    fn overlapped_level(self, shape: &TreeShape, next: Level) -> Level {
        let grandparent = Level(next.0.saturating_add(1));
        let uses_grandparent = self == FilePicker::LeastOverlapGrandparent;
        if uses_grandparent && shape.level_bytes(grandparent) > 0 { grandparent } else { next }
    }

    /// Returns one line for each of the first `count` files of `order`, with the value that decides.
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
