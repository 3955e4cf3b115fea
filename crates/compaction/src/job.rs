//! Compaction jobs: inputs, target, split rule and reason.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::Error;
use crate::ids::{FileId, Level, RunId};
use crate::key_range::{Key, KeyRange};
use crate::run::SortedRun;
use crate::shape::TreeShape;
use crate::table_meta::TableMeta;

/// Files of one run that a job takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobInput {
    /// Level of the run.
    pub level: Level,
    /// Number of the run.
    pub run: RunId,
    /// Files of the run, in key order.
    pub files: Vec<FileId>,
}

/// Operation of a job on its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobKind {
    /// Reads the inputs, drops obsolete entries and writes outputs.
    Merge,
    /// Trivial move: moves the files to another run without reading them.
    Move,
    /// Removes the files from the tree without reading them.
    Drop,
    /// Rewrites the files of one run. The outputs replace them in that run.
    Rewrite,
}

/// Position of the outputs in the target level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputPlacement {
    /// The outputs form a new run.
    NewRun {
        /// The next older run of the level. `None` if the new run becomes the oldest run.
        ///
        /// The job must not take all files of this run. [`TreeShape::apply_job`] documents what happens if another job
        /// removes the run before this job ends.
        before: Option<RunId>,
    },
    /// The outputs join this run and replace the inputs taken from it.
    JoinRun(RunId),
}

/// Level and position of the outputs of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputTarget {
    /// Level of the outputs.
    pub level: Level,
    /// Position in that level.
    pub placement: OutputPlacement,
}

/// Rule that decides where an output file ends. All versions of a user key are in the same output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitRule {
    /// Target size of an output file in bytes. `u64::MAX` means a single output.
    pub file_bytes: u64,
    /// The level below the target level, and the maximum number of its bytes that one output may overlap.
    pub grandparent: Option<(Level, u64)>,
    /// Keys at which a new output begins, in ascending order.
    pub boundaries: Vec<Key>,
}

/// Reason why a job was picked. The text form is a short sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobReason {
    /// A level has reached its capacity.
    LevelFull {
        /// The level.
        level: Level,
        /// Size of the level divided by its capacity, in thousandths.
        score_milli: u64,
    },
    /// A level has enough runs for a merge.
    RunCount {
        /// The level.
        level: Level,
        /// Number of its runs.
        runs: usize,
    },
    /// No data is written, so the newest runs are merged with each other. They would otherwise wait for a merge into a
    /// deeper level.
    NoWrites {
        /// Number of merged runs.
        runs: usize,
    },
    /// The maximum number of waiting runs in a level is reached. A merge into the next level would rewrite much more
    /// data than the runs have, so the runs are merged with each other.
    SmallRuns {
        /// The level.
        level: Level,
        /// Number of merged runs.
        runs: usize,
    },
    /// The estimated space amplification exceeds its threshold.
    SpaceAmplification {
        /// Bytes of all runs except the oldest, divided by the bytes of the oldest run, in per cent.
        percent: u64,
    },
    /// Adjacent runs have similar sizes.
    SizeRatio {
        /// Number of merged runs.
        runs: usize,
    },
    /// A level has a shape that the layout does not allow. Another policy has left it in this shape.
    Shape {
        /// The level.
        level: Level,
    },
    /// A file has many tombstones that can be dropped.
    TombstoneDensity {
        /// The file.
        file: FileId,
        /// Number of tombstones per million entries.
        ppm: u64,
    },
    /// The oldest tombstone of a file exceeds the maximum age of its level.
    TombstoneAge {
        /// The file.
        file: FileId,
        /// Age of the tombstone in microseconds, or age of the file if the age of the tombstone is unknown.
        age_us: u64,
    },
    /// A file exceeds its maximum age.
    Stale {
        /// The file.
        file: FileId,
        /// Age of the file in microseconds.
        age_us: u64,
    },
    /// Half of the expiring entries of a file, or half of their bytes, have expired for all readers; see
    /// [`TableMeta::half_expired_us`](crate::TableMeta::half_expired_us).
    Expired {
        /// The file.
        file: FileId,
        /// Time since this half had expired, in microseconds.
        age_us: u64,
    },
    /// An entry of a file expired longer ago than delete persistence permits.
    EntryExpired {
        /// The file.
        file: FileId,
        /// Time since the earliest expiry, in microseconds.
        age_us: u64,
    },
    /// The tree exceeds the maximum size of a FIFO layout.
    TotalBytes {
        /// Size of all files in bytes.
        bytes: u64,
    },
    /// A large part of a blob file is unreferenced. The job relocates its live values.
    BlobGarbage {
        /// The blob file.
        blob: FileId,
        /// Unreferenced bytes per million bytes of the file.
        ppm: u64,
    },
    /// Range tombstones cover all entries of the files, and no snapshot needs these entries.
    RangeDeleted,
    /// The policy picked a job with a quarantined file, which cannot run. This job merges other runs of L0 in its place,
    /// so that L0 stays below its stop limit.
    Quarantine {
        /// The quarantined file.
        file: FileId,
    },
    /// The user requested the job.
    Manual,
    /// Reason of a custom policy as text. See [`JobReason::custom`].
    Custom(Arc<str>),
}

/// A compaction job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Operation on the inputs.
    pub kind: JobKind,
    /// Inputs, ordered from the newest run to the oldest.
    pub inputs: Vec<JobInput>,
    /// Position of the outputs. Not used by [`JobKind::Drop`].
    pub target: OutputTarget,
    /// Rule that divides the outputs into files.
    pub split: SplitRule,
    /// Why the job was picked.
    pub reason: JobReason,
}

impl JobReason {
    /// Returns the reason of a custom policy. `text` is one short sentence without a full stop.
    pub fn custom(text: impl Into<Arc<str>>) -> JobReason {
        JobReason::Custom(text.into())
    }
}

impl fmt::Display for JobReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |ppm: &u64| format!("{}.{} %", ppm / 10_000, ppm / 1000 % 10);
        match self {
            JobReason::LevelFull { level, score_milli } => {
                let (whole, milli) = (score_milli / 1000, score_milli % 1000);
                write!(f, "{level} is full, score {whole}.{milli:03}")
            }
            JobReason::RunCount { level, runs: 1 } => write!(f, "{level} holds 1 run"),
            JobReason::RunCount { level, runs } => write!(f, "{level} holds {runs} runs"),
            JobReason::NoWrites { runs } => write!(f, "no writes, {runs} newest runs"),
            JobReason::SmallRuns { level, runs } => write!(f, "{runs} runs of {level} are small"),
            JobReason::SpaceAmplification { percent } => {
                write!(f, "space amplification {percent} %")
            }
            JobReason::SizeRatio { runs } => write!(f, "{runs} runs of similar size"),
            JobReason::Shape { level } => write!(f, "{level} does not fit the layout"),
            JobReason::TombstoneDensity { file, ppm } => {
                write!(f, "file {} has {} tombstones", file.0, percent(ppm))
            }
            JobReason::TombstoneAge { file, age_us } => {
                write!(f, "file {} has a tombstone {age_us} us old", file.0)
            }
            JobReason::Stale { file, age_us } => write!(f, "file {} is {age_us} us old", file.0),
            JobReason::Expired { file, age_us } => {
                write!(f, "half of file {} expired {age_us} us ago", file.0)
            }
            JobReason::EntryExpired { file, age_us } => {
                write!(f, "an entry of file {} expired {age_us} us ago", file.0)
            }
            JobReason::TotalBytes { bytes } => write!(f, "the tree holds {bytes} bytes"),
            JobReason::BlobGarbage { blob, ppm } => {
                write!(f, "blob file {} is {} garbage", blob.0, percent(ppm))
            }
            JobReason::RangeDeleted => write!(f, "covered by range tombstones"),
            JobReason::Quarantine { file } => write!(f, "file {} is quarantined", file.0),
            JobReason::Manual => write!(f, "manual"),
            // Control characters are replaced, so that a job prints on one line.
            JobReason::Custom(text) => write!(f, "{}", text.replace(char::is_control, " ")),
        }
    }
}

impl JobInput {
    /// Returns an input with all files of a run.
    #[must_use]
    pub fn from_run(level: Level, run: &SortedRun) -> JobInput {
        JobInput::from_files(level, run, 0..run.files.len())
    }

    /// Returns an input with the files at these indices.
    ///
    /// # Panics
    ///
    /// Panics if an index is out of bounds.
    #[must_use]
    pub fn from_files(level: Level, run: &SortedRun, indices: Range<usize>) -> JobInput {
        let files = run.files[indices].iter().map(|file| file.id).collect();
        JobInput { level, run: run.id, files }
    }

    /// Returns an input with the files of a run that overlap `range`, or `None` if there are none.
    #[must_use]
    pub fn from_overlap(level: Level, run: &SortedRun, range: &KeyRange) -> Option<JobInput> {
        let indices = run.files.overlapping_indices(range);
        (!indices.is_empty()).then(|| JobInput::from_files(level, run, indices))
    }

    /// Returns the metadata of the files, in key order.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::NoSuchRun`] or [`Error::NoSuchFile`] if the run or a file is not in the tree, or if the
    /// files are not in key order.
    pub fn resolve_files<'a>(
        &self,
        shape: &'a TreeShape,
    ) -> Result<Vec<&'a Arc<TableMeta>>, Error> {
        let (level, run) = (self.level, self.run);
        let found = shape.run(level, run).ok_or(Error::NoSuchRun { level, run })?;
        Ok(self.file_indices(found)?.into_iter().map(|index| &found.files[index]).collect())
    }

    /// Returns the indices of the files in their run, in ascending order.
    pub(crate) fn file_indices(&self, run: &SortedRun) -> Result<Vec<usize>, Error> {
        let mut next = 0;
        let mut indices = Vec::with_capacity(self.files.len());
        for &file in &self.files {
            let index = run.files.index_of(file, next).filter(|index| *index >= next);
            let index = index.ok_or(Error::NoSuchFile { level: self.level, run: run.id, file })?;
            indices.push(index);
            next = index + 1;
        }
        Ok(indices)
    }
}

impl OutputTarget {
    /// Returns the position of a new run that is older than all runs of the level.
    #[must_use]
    pub fn oldest_run(level: Level) -> OutputTarget {
        OutputTarget { level, placement: OutputPlacement::NewRun { before: None } }
    }

    /// Returns the position of a new run that is newer than all runs of the level.
    #[must_use]
    pub fn newest_run(level: Level, shape: &TreeShape) -> OutputTarget {
        let before = shape.runs_of(level).first().map(|run| run.id);
        OutputTarget { level, placement: OutputPlacement::NewRun { before } }
    }

    /// Returns the position of outputs that become part of an existing run.
    #[must_use]
    pub fn join_run(level: Level, run: RunId) -> OutputTarget {
        OutputTarget { level, placement: OutputPlacement::JoinRun(run) }
    }
}

impl SplitRule {
    /// Returns a rule that ends outputs at a target size in bytes.
    #[must_use]
    pub fn by_size(file_bytes: u64) -> SplitRule {
        SplitRule { file_bytes, grandparent: None, boundaries: Vec::new() }
    }

    /// Checks that the boundaries are in ascending order.
    pub(crate) fn check_boundary_order(&self) -> Result<(), Error> {
        let broken = self.boundaries.windows(2).position(|pair| pair[0] >= pair[1]);
        broken.map_or(Ok(()), |index| Err(Error::BoundaryOrder { index: index + 1 }))
    }
}

impl Job {
    /// Returns a job whose outputs have the target size of a table. Sorts the inputs from the newest run to the oldest.
    /// [`TreeShape::check_job`] checks all other rules.
    #[must_use]
    pub fn new(
        shape: &TreeShape,
        kind: JobKind,
        mut inputs: Vec<JobInput>,
        target: OutputTarget,
        reason: JobReason,
    ) -> Job {
        inputs.sort_by_key(|input| {
            let run = shape.runs_of(input.level).iter().position(|run| run.id == input.run);
            (input.level, run)
        });
        Job { kind, inputs, target, split: SplitRule::by_size(shape.table_bytes), reason }
    }

    /// Returns the numbers of all input files.
    pub fn input_files(&self) -> impl Iterator<Item = FileId> + '_ {
        self.inputs.iter().flat_map(|input| input.files.iter().copied())
    }

    /// Returns the level of the newest input, or `None` for a job without inputs.
    #[must_use]
    pub fn source_level(&self) -> Option<Level> {
        self.inputs.first().map(|input| input.level)
    }

    /// Returns the smallest key range that covers all inputs.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::NoSuchRun`], [`Error::NoSuchFile`] or [`Error::NoInputs`] if an input is not in the tree.
    pub fn input_key_range(&self, shape: &TreeShape) -> Result<KeyRange, Error> {
        let files = resolve_inputs(&self.inputs, shape)?;
        KeyRange::enclosing_range(files.iter().map(|file| &file.range)).ok_or(Error::NoInputs)
    }

    /// Returns the size of all inputs in bytes. A merge writes at most about this number of bytes.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::NoSuchRun`] or [`Error::NoSuchFile`] if an input is not in the tree.
    pub fn input_bytes(&self, shape: &TreeShape) -> Result<u64, Error> {
        Ok(resolve_inputs(&self.inputs, shape)?.iter().map(|file| file.bytes).sum())
    }

    /// Returns whether the job moves files from L0 to a deeper level.
    #[must_use]
    pub fn is_from_l0(&self) -> bool {
        self.source_level() == Some(Level(0))
            && self.target.level != Level(0)
            && matches!(self.kind, JobKind::Merge | JobKind::Move)
    }
}

/// Returns the files of all inputs.
pub(crate) fn resolve_inputs<'a>(
    inputs: &[JobInput],
    shape: &'a TreeShape,
) -> Result<Vec<&'a Arc<TableMeta>>, Error> {
    let mut files = Vec::new();
    for input in inputs {
        files.extend(input.resolve_files(shape)?);
    }
    Ok(files)
}

impl fmt::Display for JobKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JobKind::Merge => "merge",
            JobKind::Move => "move",
            JobKind::Drop => "drop",
            JobKind::Rewrite => "rewrite",
        })
    }
}

/// Formats the job on one line such as `merge L0{7 6} -> new run in L1   why: L0 holds 2 runs`. Runs of the same level
/// are separated by `/`. The alternate form `{:#}` omits the reason.
impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        let mut open = None;
        for input in &self.inputs {
            match open {
                Some(level) if level == input.level => f.write_str(" / ")?,
                Some(_) => write!(f, "}} {}{{", input.level)?,
                None => write!(f, " {}{{", input.level)?,
            }
            open = Some(input.level);
            for (index, file) in input.files.iter().enumerate() {
                write!(f, "{}{}", if index > 0 { " " } else { "" }, file.0)?;
            }
        }
        if open.is_some() {
            f.write_str("}")?;
        }
        if self.kind != JobKind::Drop {
            let level = self.target.level;
            match self.target.placement {
                OutputPlacement::NewRun { before: None } => write!(f, " -> new run in {level}")?,
                OutputPlacement::NewRun { before: Some(run) } => {
                    write!(f, " -> new run in {level} before r{}", run.0)?;
                }
                OutputPlacement::JoinRun(run) => write!(f, " -> r{} of {level}", run.0)?,
            }
        }
        if f.alternate() {
            return Ok(());
        }
        write!(f, "   why: {}", self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_new_inputs_in_any_order_are_sorted_newest_first() {
        let mut shape = TreeShape::default();
        for id in 0..3 {
            let file = TableMeta::new(FileId(id), KeyRange::new("a", "z"));
            shape = shape.with_flushed_run(vec![file.into()]).unwrap().shape;
        }
        let oldest_first = shape.runs_of(Level(0)).iter().rev();
        let inputs = oldest_first.map(|run| JobInput::from_run(Level(0), run)).collect();
        let target = OutputTarget::newest_run(Level(1), &shape);
        let job =
            Job::new(&shape, JobKind::Merge, inputs, target, JobReason::custom("three\nruns"));
        assert_eq!(job.to_string(), "merge L0{2 / 1 / 0} -> new run in L1   why: three runs");
        assert_eq!(shape.check_job(&job), Ok(()));
    }

    #[test]
    fn split_rule_check_unsorted_boundaries_is_error() {
        let boundaries = ["a", "b"].map(Key::from).to_vec();
        let mut rule = SplitRule { boundaries, ..SplitRule::by_size(1) };
        assert_eq!(rule.check_boundary_order(), Ok(()));
        rule.boundaries.swap(0, 1);
        assert_eq!(rule.check_boundary_order(), Err(Error::BoundaryOrder { index: 1 }));
    }
}
