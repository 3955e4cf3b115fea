//! The shape of a tree: levels → sorted runs → files, as a policy sees them.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::{Error, Files, Key, KeyRange};

/// Names a table file. Never reused, not even after a failed job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64);

/// Names a sorted run inside one tree. Given out by [`TreeShape`], never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(pub u64);

/// A level, 0 for the level where flushes arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Level(pub u8);

impl Level {
    /// The level as an index into [`TreeShape::levels`].
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The level with this index; `None` past the last that can be named.
    #[must_use]
    pub fn from_index(index: usize) -> Option<Level> {
        u8::try_from(index).ok().map(Level)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "L{}", self.0)
    }
}

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
    /// Smallest sequence number of a tombstone; `None` if there is none.
    pub tombstone_seq_smallest: Option<u64>,
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

impl FileShape {
    /// A file of this name and range, of which nothing else is known: no bytes, no entries.
    #[must_use]
    pub fn new(id: FileId, range: KeyRange) -> FileShape {
        FileShape {
            id,
            range,
            bytes: 0,
            entries: 0,
            tombstones: 0,
            tombstone_seq_smallest: None,
            value_bytes: 0,
            oldest_tombstone_us: None,
            seq_smallest: 0,
            seq_largest: 0,
            last_read_us: 0,
            created_us: 0,
            creation: id.0,
        }
    }
}

/// Files with disjoint ranges, in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunShape {
    /// Its name inside the tree.
    pub id: RunId,
    /// Its files in key order; never empty in a tree.
    pub files: Files,
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
    /// Sequence number of the newest registered snapshot, if there is one.
    pub newest_snapshot: Option<u64>,
    /// Target bytes of a memtable of this tree.
    pub memtable_bytes: u64,
    /// Target bytes of a table file of this tree.
    pub table_bytes: u64,
    /// Nothing was written since the last flush: what a policy put off has no reason to wait any more.
    pub resting: bool,
}

/// A level as a manifest keeps it; [`TreeShape::from_levels`] makes a tree of them.
#[derive(Clone, Debug, Default)]
pub struct LevelParts {
    /// Runs, newest first, with their files in any order. Runs without files are left out.
    pub runs: Vec<(RunId, Vec<Arc<FileShape>>)>,
    /// End key of the source files of the last job out of this level.
    pub cursor: Option<Key>,
}

impl FileShape {
    /// Bytes as triggers count them: where tombstones are half of the entries or more, each one above
    /// that half counts as two values, so that they are merged away sooner.
    ///
    /// Source: RocksDB, `compensated_file_size`.
    #[must_use]
    pub fn compensated_bytes(&self) -> u64 {
        let doubled = self.tombstones.saturating_mul(2);
        if self.entries == 0 || doubled < self.entries {
            return self.bytes;
        }
        let values = self.entries.saturating_sub(self.tombstones);
        let value_bytes_mean = self.value_bytes / values.max(1);
        let extra = (doubled - self.entries).saturating_mul(value_bytes_mean).saturating_mul(2);
        self.bytes.saturating_add(extra)
    }
}

impl RunShape {
    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.bytes()
    }

    /// Range from the first key to the last; `None` for a run without files.
    #[must_use]
    pub fn range(&self) -> Option<KeyRange> {
        let (first, last) = (self.files.first()?, self.files.last()?);
        Some(KeyRange {
            smallest: first.range.smallest.clone(),
            largest: last.range.largest.clone(),
        })
    }

    /// Indices of the files that overlap `range`. Binary search.
    #[must_use]
    pub fn overlapping_indices(&self, range: &KeyRange) -> Range<usize> {
        self.files.overlapping_indices(range)
    }

    /// Files that overlap `range`, in key order. Binary search.
    #[must_use]
    pub fn overlapping(&self, range: &KeyRange) -> &[Arc<FileShape>] {
        &self.files[self.overlapping_indices(range)]
    }

    /// The one file that could hold `key`. Binary search.
    #[must_use]
    pub fn file_for(&self, key: &[u8]) -> Option<&Arc<FileShape>> {
        self.files.get(self.files.reaching(key)).filter(|file| file.range.smallest.as_ref() <= key)
    }

    /// Says which two neighbours overlap or stand in the wrong order.
    pub(crate) fn check(&self, level: Level) -> Result<(), Error> {
        self.check_files(level, 0..self.files.len())
    }

    /// [`RunShape::check`] of the files with these indices and of their neighbours.
    pub(crate) fn check_files(&self, level: Level, changed: Range<usize>) -> Result<(), Error> {
        if self.files.is_empty() {
            return Err(Error::EmptyRun { level, run: self.id });
        }
        let from = changed.start.saturating_sub(1);
        let files = &self.files[from..self.files.len().min(changed.end + 1)];
        if let Some(file) = files.iter().find(|f| f.range.smallest > f.range.largest) {
            return Err(Error::InvertedRange { level, file: file.id });
        }
        for pair in files.windows(2) {
            // Not even one key may be shared: outputs are cut between user keys only.
            if pair[0].range.largest >= pair[1].range.smallest {
                let (left, right) = (pair[0].id, pair[1].id);
                return Err(Error::Overlap { level, run: self.id, left, right });
            }
        }
        Ok(())
    }
}

impl LevelShape {
    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes()).sum()
    }

    /// Bytes of the files that overlap `range`.
    #[must_use]
    pub fn overlap_bytes(&self, range: &KeyRange) -> u64 {
        self.runs.iter().map(|run| run.files.overlap_bytes(range)).sum()
    }

    /// Files of all runs, newest run first.
    pub fn files(&self) -> impl Iterator<Item = &Arc<FileShape>> {
        self.runs.iter().flat_map(|run| &run.files)
    }

    /// Place of a run in the level, 0 for the newest.
    #[must_use]
    pub fn run_index(&self, run: RunId) -> Option<usize> {
        self.runs.iter().position(|r| r.id == run)
    }
}

impl TreeShape {
    /// Returns the tree that a manifest describes: runs newest first in each level, files in any
    /// order. Clock, snapshot and target sizes are zero; the caller sets them.
    ///
    /// # Errors
    ///
    /// What [`TreeShape::check`] finds, and too many levels.
    pub fn from_levels(levels: Vec<LevelParts>, run_id_next: u64) -> Result<TreeShape, Error> {
        if levels.len() > usize::from(u8::MAX) + 1 {
            return Err(Error::TooManyLevels { levels: levels.len() });
        }
        let levels = levels
            .into_iter()
            .map(|parts| {
                let runs = parts
                    .runs
                    .into_iter()
                    .filter(|(_, files)| !files.is_empty())
                    .map(|(id, mut files)| {
                        files.sort_by(|a, b| a.range.smallest.cmp(&b.range.smallest));
                        Arc::new(RunShape { id, files: files.into() })
                    })
                    .collect();
                Arc::new(LevelShape { runs, cursor: parts.cursor })
            })
            .collect();
        let mut shape = TreeShape { levels, run_id_next, ..TreeShape::default() };
        shape.trim();
        shape.check()?;
        Ok(shape)
    }

    /// Returns the tree with a flushed run in front of L0, and the name of that run. Without files
    /// the tree stays as it is, and there is no run.
    ///
    /// # Errors
    ///
    /// If the files overlap or are not in key order.
    pub fn with_flush(&self, files: Vec<FileShape>) -> Result<(TreeShape, Option<RunId>), Error> {
        let mut shape = self.clone();
        if files.is_empty() {
            return Ok((shape, None));
        }
        let id = shape.new_run_id();
        let run = RunShape { id, files: files.into_iter().map(Arc::new).collect() };
        run.check(Level(0))?;
        let old = shape.levels.first();
        let mut runs = vec![Arc::new(run)];
        runs.extend(old.iter().flat_map(|level| level.runs.iter().cloned()));
        let level = Arc::new(LevelShape { runs, cursor: old.and_then(|l| l.cursor.clone()) });
        match shape.levels.first_mut() {
            Some(first) => *first = level,
            None => shape.levels.push(level),
        }
        Ok((shape, Some(id)))
    }

    /// Gives out the name of a new run.
    pub(crate) fn new_run_id(&mut self) -> RunId {
        let id = RunId(self.run_id_next);
        self.run_id_next += 1;
        id
    }

    /// Drops trailing levels that hold nothing. A cursor there points at nothing.
    pub(crate) fn trim(&mut self) {
        while self.levels.last().is_some_and(|level| level.runs.is_empty()) {
            self.levels.pop();
        }
    }

    /// The level, if the tree reaches down to it.
    #[must_use]
    pub fn level(&self, level: Level) -> Option<&LevelShape> {
        self.levels.get(level.index()).map(|level| &**level)
    }

    /// Runs of a level, newest first; none for a level that the tree does not reach.
    #[must_use]
    pub fn runs_of(&self, level: Level) -> &[Arc<RunShape>] {
        self.level(level).map_or(&[], |level| &level.runs)
    }

    /// A run by level and name.
    #[must_use]
    pub fn run(&self, level: Level, run: RunId) -> Option<&Arc<RunShape>> {
        self.runs_of(level).iter().find(|r| r.id == run)
    }

    /// All runs with their levels, newest first: the order in which a lookup asks them.
    pub fn runs(&self) -> impl DoubleEndedIterator<Item = (Level, &Arc<RunShape>)> {
        // A tree has no more levels than can be named, so none is skipped.
        (0..=u8::MAX)
            .zip(&self.levels)
            .flat_map(|(level, shape)| shape.runs.iter().map(move |run| (Level(level), run)))
    }

    /// The oldest run: nothing older stands below it.
    #[must_use]
    pub fn last_run(&self) -> Option<(Level, &Arc<RunShape>)> {
        self.runs().next_back()
    }

    /// All files, newest run first.
    pub fn files(&self) -> impl Iterator<Item = &Arc<FileShape>> {
        self.levels.iter().flat_map(|level| level.files())
    }

    /// Looks for a file by name, through the whole tree.
    #[must_use]
    pub fn find_file(&self, file: FileId) -> Option<(Level, RunId, &Arc<FileShape>)> {
        self.runs().find_map(|(level, run)| {
            run.files.iter().find(|f| f.id == file).map(|f| (level, run.id, f))
        })
    }

    /// Bytes of a level; 0 for a level that the tree does not reach.
    #[must_use]
    pub fn level_bytes(&self, level: Level) -> u64 {
        self.level(level).map_or(0, LevelShape::bytes)
    }

    /// Bytes of the files of a level that overlap `range`.
    #[must_use]
    pub fn overlap_bytes(&self, level: Level, range: &KeyRange) -> u64 {
        self.level(level).map_or(0, |level| level.overlap_bytes(range))
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.levels.iter().map(|level| level.bytes()).sum()
    }

    /// Whether a file holds a tombstone that a job could drop, if nothing older is left below: one that
    /// every registered snapshot sees.
    #[must_use]
    pub fn has_droppable(&self, file: &FileShape) -> bool {
        let held = |seq: u64| self.oldest_snapshot.is_some_and(|snapshot| snapshot < seq);
        file.tombstone_seq_smallest.is_some_and(|seq| !held(seq))
    }

    /// The deepest level that holds a file.
    #[must_use]
    pub fn deepest(&self) -> Option<Level> {
        self.levels.iter().rposition(|l| !l.runs.is_empty()).and_then(Level::from_index)
    }

    /// Verifies every invariant that shapes can show.
    ///
    /// 1. The files of a run are in key order and share no user key; no run is empty.
    /// 2. Names of runs and files are unique, those of runs below `run_id_next`.
    /// 3. Age order. Where two files of different runs surely hold one key in common, because an
    ///    end of one range is an end of the other and no range delete has put it there, the file in the
    ///    newer run is not wholly older. Overlap alone proves nothing, not even in L0: operands
    ///    that come from a store beside the tree are newer than what the tree has of their keys, and may be
    ///    older than what it has of all others. [`TreeShape::apply`] watches each step instead.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong, with the files or runs concerned.
    pub fn check(&self) -> Result<(), Error> {
        if self.levels.len() > usize::from(u8::MAX) + 1 {
            return Err(Error::TooManyLevels { levels: self.levels.len() });
        }
        let (mut runs, mut files) = (HashSet::new(), HashSet::new());
        for (level, run) in self.runs() {
            run.check(level)?;
            if run.id.0 >= self.run_id_next {
                return Err(Error::RunFromTheFuture { run: run.id, next: self.run_id_next });
            }
            if !runs.insert(run.id) {
                return Err(Error::RunTwice { run: run.id });
            }
            if let Some(file) = run.files.iter().find(|file| !files.insert(file.id)) {
                return Err(Error::FileTwice { file: file.id });
            }
        }
        self.check_age()
    }

    fn check_age(&self) -> Result<(), Error> {
        let runs: Vec<_> = self.runs().collect();
        for (index, (_, newer)) in runs.iter().enumerate() {
            for (_, older) in &runs[index + 1..] {
                for above in &newer.files {
                    for below in older.overlapping(&above.range) {
                        let inverted = above.seq_largest < below.seq_smallest;
                        let share_a_key = above.range.smallest == below.range.smallest
                            || above.range.largest == below.range.largest
                            || above.range.smallest == below.range.largest
                            || above.range.largest == below.range.smallest;
                        let own_ends = above.tombstones == 0 && below.tombstones == 0;
                        if inverted && share_a_key && own_ends {
                            return Err(Error::AgeOrder { above: above.id, below: below.id });
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
