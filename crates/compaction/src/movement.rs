//! Primitive 4: which file moves, where a job takes less than all.

use std::cmp::{Ordering, Reverse};
use std::fmt::Write as _;

use crate::trigger::compensated_bytes;
use crate::{FileShape, Level, RunShape, TreeShape};

/// The order in which files of a full level are tried.
///
/// Ties: the smaller smallest sequence number, then the smaller key. Names and meaning: Sarkar et al.,
/// PVLDB 14 (2021), section 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Movement {
    /// Jobs take all there is; there is nothing to choose.
    All,
    /// The file with the fewest overlapped bytes in the next level per byte of its own ("LO+1"; the
    /// ratio in place of the bytes is RocksDB's).
    LeastOverlap,
    /// The same with the level after the next; with the next one where that holds nothing ("LO+2").
    LeastOverlapGrandparent,
    /// The first file that begins after the end of the last job out of the level, round and round.
    RoundRobin,
    /// The file that no lookup has read for longest ("Cold").
    ColdestAccess,
    /// The file whose newest entry is oldest.
    ColdestWrite,
    /// The file whose oldest entry is oldest: the key range that was left alone for longest ("Old").
    Oldest,
    /// The file with the most tombstones, in L0 too.
    MostTombstones,
    /// The file with the oldest tombstone; ties: the most tombstones.
    OldestTombstone,
}

impl Movement {
    /// All of them.
    pub const ALL: [Movement; 9] = [
        Movement::All,
        Movement::LeastOverlap,
        Movement::LeastOverlapGrandparent,
        Movement::RoundRobin,
        Movement::ColdestAccess,
        Movement::ColdestWrite,
        Movement::Oldest,
        Movement::MostTombstones,
        Movement::OldestTombstone,
    ];

    /// The name as written in a spec.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Movement::All => "all",
            Movement::LeastOverlap => "least-overlap",
            Movement::LeastOverlapGrandparent => "least-overlap-grandparent",
            Movement::RoundRobin => "round-robin",
            Movement::ColdestAccess => "coldest-access",
            Movement::ColdestWrite => "coldest-write",
            Movement::Oldest => "oldest",
            Movement::MostTombstones => "most-tombstones",
            Movement::OldestTombstone => "oldest-tombstone",
        }
    }

    /// Returns the indices of the files of `run`, which stands in `level`, in the order of choice;
    /// `next` is the level that the file would go to.
    #[must_use]
    pub fn order(self, shape: &TreeShape, level: Level, run: &RunShape, next: Level) -> Vec<usize> {
        let files = &run.files;
        let mut order: Vec<usize> = (0..files.len()).collect();
        match self {
            Movement::All => {}
            Movement::RoundRobin => {
                order.rotate_left(self.round(shape, level, run).unwrap_or(0));
            }
            Movement::LeastOverlap | Movement::LeastOverlapGrandparent => {
                let costs = self.overlaps(shape, run, next);
                order.sort_by(|&a, &b| {
                    compare_ratios(costs[a], costs[b])
                        .then(files[a].seq_smallest.cmp(&files[b].seq_smallest))
                        .then(a.cmp(&b))
                });
            }
            _ => order.sort_by_key(|&index| (self.rank(&files[index]), index)),
        }
        order
    }

    /// Returns the first of [`Movement::order`]. Costs little more for a run of many files.
    #[must_use]
    pub fn first(
        self,
        shape: &TreeShape,
        level: Level,
        run: &RunShape,
        next: Level,
    ) -> Option<usize> {
        let rank = |order: usize| run.files.first_by(order, |file| self.rank(file));
        match self {
            Movement::All => (!run.files.is_empty()).then_some(0),
            Movement::RoundRobin => self.round(shape, level, run),
            Movement::LeastOverlap | Movement::LeastOverlapGrandparent => {
                let below = self.overlapped_level(shape, next);
                let distance = usize::from(below.0.saturating_sub(next.0)) + 1;
                run.files.least_overlap(shape.runs_of(below), distance)
            }
            Movement::ColdestAccess => rank(0),
            Movement::ColdestWrite => rank(1),
            Movement::Oldest => rank(2),
            Movement::MostTombstones => rank(3),
            Movement::OldestTombstone => rank(4),
        }
    }

    /// The first file past the cursor, round and round.
    fn round(self, shape: &TreeShape, level: Level, run: &RunShape) -> Option<usize> {
        let cursor = shape.level(level).and_then(|level| level.cursor.as_ref());
        let first = cursor.map_or(0, |end| {
            run.files.partition_point(|file| file.range.smallest <= *end) % run.files.len().max(1)
        });
        (first < run.files.len()).then_some(first)
    }

    /// What decides between files of any level, the smallest first; two numbers, then the age. Without
    /// meaning for movements that look at other files.
    #[must_use]
    pub fn rank(self, file: &FileShape) -> (u64, Reverse<u64>, u64) {
        let (first, second) = match self {
            Movement::ColdestAccess => (file.last_read_us, 0),
            Movement::ColdestWrite => (file.seq_largest, 0),
            Movement::Oldest => (file.seq_smallest, 0),
            Movement::MostTombstones => (u64::MAX - file.tombstones, 0),
            Movement::OldestTombstone => {
                (file.oldest_tombstone_us.unwrap_or(u64::MAX), file.tombstones)
            }
            Movement::All
            | Movement::LeastOverlap
            | Movement::LeastOverlapGrandparent
            | Movement::RoundRobin => (0, 0),
        };
        (first, Reverse(second), file.seq_smallest)
    }

    /// The level whose overlap counts.
    fn overlapped_level(self, shape: &TreeShape, next: Level) -> Level {
        let grandparent = Level(next.0.saturating_add(1));
        let looks_further = self == Movement::LeastOverlapGrandparent;
        if looks_further && shape.level_bytes(grandparent) > 0 { grandparent } else { next }
    }

    /// Overlapped bytes and own bytes of each file. One walk over both levels.
    fn overlaps(self, shape: &TreeShape, run: &RunShape, next: Level) -> Vec<(u128, u128)> {
        let below = shape.runs_of(self.overlapped_level(shape, next));
        let own = |file: &FileShape| u128::from(compensated_bytes(file).max(1));
        let mut costs: Vec<_> = run.files.iter().map(|file| (0, own(file))).collect();
        for below in below {
            let mut first = 0;
            for (file, cost) in run.files.iter().zip(&mut costs) {
                while below.files.get(first).is_some_and(|f| f.range.largest < file.range.smallest)
                {
                    first += 1;
                }
                let overlapped = below.files[first..]
                    .iter()
                    .take_while(|f| f.range.smallest <= file.range.largest);
                cost.0 += overlapped.map(|f| u128::from(f.bytes)).sum::<u128>();
            }
        }
        costs
    }

    /// What made the order of the first `count` files of `order`, a line each.
    pub(crate) fn explain(
        self,
        shape: &TreeShape,
        run: &RunShape,
        next: Level,
        order: &[usize],
        count: usize,
    ) -> Vec<String> {
        let looks_below =
            matches!(self, Movement::LeastOverlap | Movement::LeastOverlapGrandparent);
        let costs = if looks_below { self.overlaps(shape, run, next) } else { Vec::new() };
        let line = |&index: &usize| {
            let file = &run.files[index];
            let mut line = format!("file {}: ", file.id.0);
            // Writing to a string does not fail.
            let _ = match self {
                Movement::All => write!(line, "{} bytes", file.bytes),
                Movement::RoundRobin => write!(line, "next in key order"),
                Movement::LeastOverlap | Movement::LeastOverlapGrandparent => {
                    let (overlap, own) = costs[index];
                    let level = self.overlapped_level(shape, next);
                    let milli = overlap * 1000 / own;
                    write!(
                        line,
                        "overlaps {}.{:03} of itself in {level}",
                        milli / 1000,
                        milli % 1000
                    )
                }
                Movement::ColdestAccess => write!(line, "last read at {} us", file.last_read_us),
                Movement::ColdestWrite => write!(line, "newest entry {}", file.seq_largest),
                Movement::Oldest => write!(line, "oldest entry {}", file.seq_smallest),
                Movement::MostTombstones | Movement::OldestTombstone => {
                    write!(line, "{} of {} entries are tombstones", file.tombstones, file.entries)
                        .and_then(|()| match file.oldest_tombstone_us {
                            Some(us) => write!(
                                line,
                                ", the oldest {} us old",
                                shape.now_us.saturating_sub(us)
                            ),
                            None => Ok(()),
                        })
                }
            };
            line
        };
        order.iter().take(count).map(line).collect()
    }
}

/// Compares `a.0 / a.1` with `b.0 / b.1`, exactly.
fn compare_ratios(a: (u128, u128), b: (u128, u128)) -> Ordering {
    (a.0 * b.1).cmp(&(b.0 * a.1))
}
