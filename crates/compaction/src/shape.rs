//! The shape of a tree: levels → sorted runs → files, as a policy sees them.

use std::sync::Arc;

use crate::{Key, KeyRange};

/// Names a table file. Never reused, not even after a failed job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64);

/// Names a sorted run inside one tree. Given out by [`TreeShape`], never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(pub u64);

/// A level, 0 for the level where flushes arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Level(pub u8);

/// What a policy knows of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileShape {
    /// Its name.
    pub id: FileId,
    /// Smallest and largest user key of its entries and range tombstones.
    pub range: KeyRange,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Entries of all kinds.
    pub entries: u64,
    /// Point tombstones among them, and range tombstones.
    pub tombstones: u64,
    /// Tombstones that a job could drop now: no registered snapshot holds them.
    pub tombstones_droppable: u64,
    /// Bytes of the values of all entries.
    pub value_bytes: u64,
    /// When the oldest tombstone was written, in microseconds of the tree's clock.
    pub oldest_tombstone_us: Option<u64>,
    /// Smallest sequence number of an entry.
    pub seq_smallest: u64,
    /// Largest sequence number of an entry.
    pub seq_largest: u64,
    /// When a lookup last read a block of this file, in microseconds; its creation until then.
    pub last_read_us: u64,
    /// When the file was written, in microseconds of the tree's clock.
    pub created_us: u64,
    /// Order of creation: a later file has a larger number. A move keeps it.
    pub creation: u64,
}

/// Files with disjoint ranges, in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunShape {
    /// Its name inside the tree.
    pub id: RunId,
    /// Its files in key order; never empty in a tree.
    pub files: Vec<Arc<FileShape>>,
}

/// A level: sorted runs, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LevelShape {
    /// Sorted runs, newest first.
    pub runs: Vec<Arc<RunShape>>,
    /// End key of the source files of the last job out of this level; persisted, so that round
    /// robin goes on where it stopped.
    pub cursor: Option<Key>,
}

/// A whole tree at one moment, and what a policy needs to know besides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeShape {
    /// Levels from L0, where flushes arrive, downward. Data gets older with the level, and inside
    /// a level with the place of the run.
    pub levels: Vec<Arc<LevelShape>>,
    /// Name that the next new run gets.
    pub run_id_next: u64,
    /// Now, in microseconds of the tree's clock.
    pub now_us: u64,
    /// Sequence number of the oldest registered snapshot, if there is one.
    pub oldest_snapshot: Option<u64>,
    /// Target bytes of a memtable of this tree.
    pub memtable_bytes: u64,
    /// Target bytes of a table file of this tree.
    pub table_bytes: u64,
}
