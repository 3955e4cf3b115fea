//! The shape of a tree as policies see it: levels, sorted runs and files.

use std::collections::HashSet;
use std::sync::Arc;

use crate::error::Error;
use crate::ids::{FileId, Level, RunId};
use crate::key_range::{Key, KeyRange};
use crate::run::SortedRun;
use crate::table_meta::TableMeta;

/// Maximum number of levels of a tree.
const LEVELS_MAX: usize = 256;

/// Sorted runs of one level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LevelShape {
    /// Sorted runs, newest first.
    pub runs: Vec<Arc<SortedRun>>,
    /// Largest key of the files that the last job took from this level. The cursor is persisted, so that the
    /// round-robin file picker continues after a restart.
    pub cursor: Option<Key>,
}

/// A tree at one moment: its levels, and the properties that policies use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeShape {
    /// Levels from L0 downward. Deeper levels are older. Within a level, later runs are older.
    pub levels: Vec<Arc<LevelShape>>,
    /// Number that the next new run gets.
    pub run_id_next: u64,
    /// Current time, in microseconds of the tree's clock.
    pub now_us: u64,
    /// Entries with an expiry time up to this time have expired for all readers. This time is the earlier of `now_us`
    /// and the time of the oldest snapshot, in microseconds. 0 if entries do not expire.
    pub expiry_limit_us: u64,
    /// Sequence number of the oldest registered snapshot.
    pub oldest_snapshot: Option<u64>,
    /// Sequence number of the newest registered snapshot.
    pub newest_snapshot: Option<u64>,
    /// Target size of a memtable in bytes.
    pub memtable_bytes: u64,
    /// Target size of a table file in bytes.
    pub table_bytes: u64,
    /// True if all memtables are empty: nothing was written since the last flush.
    pub memtables_empty: bool,
    /// Time within which deleted and expired values must leave the tree and its blob files, in microseconds. `None`
    /// without such a bound. See [`DeletePersistence`](crate::DeletePersistence).
    pub delete_persistence_us: Option<u64>,
}

impl LevelShape {
    /// Returns the size of all files in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.total_bytes()).sum()
    }

    /// Returns the bytes of the files that overlap `range`.
    #[must_use]
    pub fn overlap_bytes(&self, range: &KeyRange) -> u64 {
        self.runs.iter().map(|run| run.files.overlap_bytes(range)).sum()
    }

    /// Returns the files of all runs, newest run first.
    pub fn files(&self) -> impl Iterator<Item = &Arc<TableMeta>> {
        self.runs.iter().flat_map(|run| &run.files)
    }
}

impl TreeShape {
    /// Allocates a number for a new run.
    pub(crate) fn new_run_id(&mut self) -> RunId {
        let id = RunId(self.run_id_next);
        self.run_id_next += 1;
        id
    }

    /// Removes empty levels at the end, together with their cursors.
    pub(crate) fn remove_empty_last_levels(&mut self) {
        while self.levels.last().is_some_and(|level| level.runs.is_empty()) {
            self.levels.pop();
        }
    }

    /// Returns a level, or `None` if it is below the deepest level.
    #[must_use]
    pub fn level(&self, level: Level) -> Option<&LevelShape> {
        self.levels.get(level.index()).map(|level| &**level)
    }

    /// Returns the runs of a level, newest first. The result is empty if the level is below the deepest level.
    #[must_use]
    pub fn runs_of(&self, level: Level) -> &[Arc<SortedRun>] {
        self.level(level).map_or(&[], |level| &level.runs)
    }

    /// Returns a run of a level.
    #[must_use]
    pub fn run(&self, level: Level, run: RunId) -> Option<&Arc<SortedRun>> {
        self.runs_of(level).iter().find(|r| r.id == run)
    }

    /// Returns all runs and their levels, newest first. Lookups search runs in this order.
    pub fn runs(&self) -> impl DoubleEndedIterator<Item = (Level, &Arc<SortedRun>)> {
        // A tree has at most 256 levels, so the zip skips no level.
        (0..=u8::MAX)
            .zip(&self.levels)
            .flat_map(|(level, shape)| shape.runs.iter().map(move |run| (Level(level), run)))
    }

    /// Returns the oldest run and its level.
    #[must_use]
    pub fn last_run(&self) -> Option<(Level, &Arc<SortedRun>)> {
        self.runs().next_back()
    }

    /// Returns all files, newest run first.
    pub fn files(&self) -> impl Iterator<Item = &Arc<TableMeta>> {
        self.levels.iter().flat_map(|level| level.files())
    }

    /// Returns all files with their levels and runs, newest run first.
    pub fn positioned_files(&self) -> impl Iterator<Item = (Level, RunId, &Arc<TableMeta>)> {
        self.runs().flat_map(|(level, run)| run.files.iter().map(move |file| (level, run.id, file)))
    }

    /// Returns the file with this number, and its level and run. Scans the whole tree.
    #[must_use]
    pub fn find_file(&self, file: FileId) -> Option<(Level, RunId, &Arc<TableMeta>)> {
        self.positioned_files().find(|(.., placed)| placed.id == file)
    }

    /// Returns the size of a level in bytes.
    #[must_use]
    pub fn level_bytes(&self, level: Level) -> u64 {
        self.level(level).map_or(0, LevelShape::total_bytes)
    }

    /// Returns the bytes of the files of a level that overlap `range`.
    #[must_use]
    pub fn overlap_bytes(&self, level: Level, range: &KeyRange) -> u64 {
        self.level(level).map_or(0, |level| level.overlap_bytes(range))
    }

    /// Returns the size of all files in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.levels.iter().map(|level| level.total_bytes()).sum()
    }

    /// Returns whether the file has a tombstone that all registered snapshots see. A job can drop such a tombstone if
    /// no older run overlaps the job.
    #[must_use]
    pub fn has_droppable_tombstone(&self, file: &TableMeta) -> bool {
        let is_held = |seq: u64| self.oldest_snapshot.is_some_and(|snapshot| snapshot < seq);
        file.tombstone_seq_bound().is_some_and(|seq| !is_held(seq))
    }

    /// Returns the deepest level that has files.
    #[must_use]
    pub fn deepest_level(&self) -> Option<Level> {
        self.levels.iter().rposition(|l| !l.runs.is_empty()).and_then(Level::from_index)
    }

    /// Checks the invariants of a tree.
    ///
    /// 1. The files of a run are in key order and have no user key in common. No run is empty.
    /// 2. The numbers of runs and files are unique. Run numbers are below `run_id_next`.
    /// 3. If two files of different runs certainly contain the same key, the newest entry of the file in the newer run
    ///    is not older than the oldest entry of the other file.
    ///
    /// Two files certainly contain the same key if their key ranges have a bound in common and both files have no
    /// tombstones. If a file has a range tombstone, a bound of its key range need not be the key of an entry.
    ///
    /// Files whose key ranges only overlap are not compared. Entries from an operand store are newer than the tree's
    /// entries of the same key, but may have smaller sequence numbers than entries of other keys. Therefore
    /// [`TreeShape::apply_job`] also checks the order of age for each job.
    ///
    /// # Errors
    ///
    /// Returns the first violation, with the files or runs.
    pub fn check_invariants(&self) -> Result<(), Error> {
        if self.levels.len() > LEVELS_MAX {
            return Err(Error::TooManyLevels { levels: self.levels.len() });
        }
        let (mut runs, mut files) = (HashSet::new(), HashSet::new());
        for (level, run) in self.runs() {
            run.check_files(level)?;
            if run.id.0 >= self.run_id_next {
                return Err(Error::RunIdTooLarge { run: run.id, next: self.run_id_next });
            }
            if !runs.insert(run.id) {
                return Err(Error::DuplicateRun { run: run.id });
            }
            if let Some(file) = run.files.iter().find(|file| !files.insert(file.id)) {
                return Err(Error::DuplicateFile { file: file.id });
            }
        }
        self.check_age_order()
    }

    /// Checks invariant 3 of [`TreeShape::check_invariants`].
    fn check_age_order(&self) -> Result<(), Error> {
        let runs: Vec<_> = self.runs().collect();
        for (index, (_, newer)) in runs.iter().enumerate() {
            for (_, older) in &runs[index + 1..] {
                for above in &newer.files {
                    for below in older.overlapping_files(&above.range) {
                        let (a, b) = (&above.range, &below.range);
                        let share_bound = a.smallest == b.smallest
                            || a.largest == b.largest
                            || a.smallest == b.largest
                            || a.largest == b.smallest;
                        let is_older = above.seq_largest < below.seq_smallest;
                        if is_older && share_bound && above.tombstones == 0 && below.tombstones == 0
                        {
                            return Err(Error::AgeOrder { above: above.id, below: below.id });
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
