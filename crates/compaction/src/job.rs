//! A unit of compaction work: what goes in, where it comes out, how outputs are cut, and why.

use std::fmt;
use std::sync::Arc;

use crate::{Error, FileId, FileShape, Key, KeyRange, Level, RunId, RunShape, TreeShape};

/// Files of one run that a job takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobInput {
    /// Level of the run.
    pub level: Level,
    /// The run.
    pub run: RunId,
    /// Files of that run, in key order.
    pub files: Vec<FileId>,
}

/// What a job does with its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobKind {
    /// Reads the inputs, writes outputs, drops what is shadowed.
    Merge,
    /// A trivial move: only the manifest changes.
    Move,
    /// The files leave the tree without being read.
    Drop,
    /// Writes the same entries again, in place: same level, same run.
    Rewrite,
}

/// Where outputs go inside the target level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// They form a new run. It stands directly before `before` (newer than it), or last (oldest)
    /// in the level if `None`. `before` is never an input run that disappears. If another job has
    /// taken `before` away meanwhile, see [`TreeShape::apply`].
    NewRun {
        /// The run that the new one stands before.
        before: Option<RunId>,
    },
    /// They join this run, in place of the inputs taken from it.
    JoinRun(RunId),
}

/// The level and the place in it that outputs go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Level of the outputs.
    pub level: Level,
    /// Place in that level.
    pub placement: Placement,
}

/// Where one output file ends and the next begins. Ends lie between user keys only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutRule {
    /// Target size of an output file in bytes; `u64::MAX` for one file however large.
    pub file_bytes: u64,
    /// Cut earlier once an output overlaps more than this many bytes of this level.
    pub grandparent: Option<(Level, u64)>,
    /// Cut before each of these keys too; in key order.
    pub boundaries: Vec<Key>,
}

/// Why a job was picked; prints as a short sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A level holds more than its capacity; score in thousandths.
    LevelFull {
        /// The full level.
        level: Level,
        /// Its bytes over its capacity, in thousandths.
        score_milli: u64,
    },
    /// A level holds as many runs as trigger a merge.
    RunCount {
        /// The level.
        level: Level,
        /// Its runs.
        runs: usize,
    },
    /// Nothing is written any more, and runs of L0 had waited to be worth a merge into the next level.
    Resting {
        /// Runs of L0.
        runs: usize,
    },
    /// As many runs of L0 as may wait are small beside what a merge into the next level would rewrite.
    SmallRuns {
        /// Runs merged.
        runs: usize,
    },
    /// Estimated space amplification is above the threshold.
    SpaceAmplification {
        /// Bytes above the oldest run over bytes of the oldest run, in per cent.
        percent: u64,
    },
    /// Neighbouring runs of like size.
    SizeRatio {
        /// Runs merged.
        runs: usize,
    },
    /// The tree has a shape foreign to the policy, which brings it to its own.
    Shape {
        /// The level that does not fit.
        level: Level,
    },
    /// Tombstones of a file that can be dropped are many.
    TombstoneDensity {
        /// The file.
        file: FileId,
        /// Its tombstones, in millionths of its entries.
        ppm: u64,
    },
    /// The oldest tombstone of a file is too old for its level.
    TombstoneAge {
        /// The file.
        file: FileId,
        /// Age of its oldest tombstone in microseconds.
        age_us: u64,
    },
    /// A file was written long ago.
    Stale {
        /// The file.
        file: FileId,
        /// Its age in microseconds.
        age_us: u64,
    },
    /// All files together are too large for a queue.
    TotalBytes {
        /// Their bytes.
        bytes: u64,
    },
    /// A blob file holds much that no table references; its values go elsewhere.
    BlobGarbage {
        /// The blob file.
        blob: FileId,
        /// What is not referenced, in millionths of its bytes.
        ppm: u64,
    },
    /// Range deletes cover the files, and no snapshot sees into them.
    RangeDeleted,
    /// The job that the policy wants is blocked by a quarantined file. Other runs of L0 become one
    /// instead, so that L0 stays below the hard stop.
    Quarantine {
        /// The quarantined file.
        file: FileId,
    },
    /// Somebody asked for it by hand.
    Manual,
}

/// A unit of compaction work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// What is done.
    pub kind: JobKind,
    /// What goes in, newest first: no run here is newer than the one before it.
    pub inputs: Vec<JobInput>,
    /// Where it comes out; without meaning for [`JobKind::Drop`].
    pub target: Target,
    /// How outputs are cut.
    pub cut: CutRule,
    /// Why it was picked.
    pub reason: Reason,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::LevelFull { level, score_milli } => {
                write!(
                    f,
                    "L{} is full, score {}.{:03}",
                    level.0,
                    score_milli / 1000,
                    score_milli % 1000
                )
            }
            Reason::RunCount { level, runs: 1 } => write!(f, "L{} holds 1 run", level.0),
            Reason::RunCount { level, runs } => write!(f, "L{} holds {runs} runs", level.0),
            Reason::Resting { runs } => write!(f, "at rest with {runs} runs in L0"),
            Reason::SmallRuns { runs } => write!(f, "{runs} runs of L0 are small"),
            Reason::SpaceAmplification { percent } => write!(f, "space amplification {percent} %"),
            Reason::SizeRatio { runs } => write!(f, "{runs} runs of like size"),
            Reason::Shape { level } => write!(f, "L{} has a foreign shape", level.0),
            Reason::TombstoneDensity { file, ppm } => {
                let permille = ppm / 1000;
                let (percent, tenth) = (permille / 10, permille % 10);
                write!(f, "file {} has {percent}.{tenth} % tombstones", file.0)
            }
            Reason::TombstoneAge { file, age_us } => {
                write!(f, "file {} has a tombstone {age_us} us old", file.0)
            }
            Reason::Stale { file, age_us } => write!(f, "file {} is {age_us} us old", file.0),
            Reason::TotalBytes { bytes } => write!(f, "the queue holds {bytes} bytes"),
            Reason::BlobGarbage { blob, ppm } => {
                let permille = ppm / 1000;
                let (percent, tenth) = (permille / 10, permille % 10);
                write!(f, "blob file {} is {percent}.{tenth} % garbage", blob.0)
            }
            Reason::RangeDeleted => write!(f, "range deletes cover it"),
            Reason::Quarantine { file } => write!(f, "file {} is quarantined", file.0),
            Reason::Manual => write!(f, "asked for"),
        }
    }
}

impl JobInput {
    /// Returns an input of every file of a run.
    #[must_use]
    pub fn whole(level: Level, run: &RunShape) -> JobInput {
        JobInput { level, run: run.id, files: run.files.iter().map(|file| file.id).collect() }
    }

    /// Looks up the files in the tree, in key order. Costs little more for a run of many files.
    ///
    /// # Errors
    ///
    /// If the run or a file is not there, or files are not in key order.
    pub fn resolve<'a>(&self, shape: &'a TreeShape) -> Result<Vec<&'a Arc<FileShape>>, Error> {
        let (level, run) = (self.level, self.run);
        let found = shape.run(level, run).ok_or(Error::NoSuchRun { level, run })?;
        Ok(self.indices(found)?.into_iter().map(|index| &found.files[index]).collect())
    }

    /// Indices of the files in their run.
    ///
    /// # Errors
    ///
    /// If a file is not there, or files are not in key order.
    pub(crate) fn indices(&self, run: &RunShape) -> Result<Vec<usize>, Error> {
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

impl Job {
    /// Names of all input files.
    pub fn input_files(&self) -> impl Iterator<Item = FileId> + '_ {
        self.inputs.iter().flat_map(|input| input.files.iter().copied())
    }

    /// The newest level that the job takes from; `None` for a job without inputs.
    #[must_use]
    pub fn source(&self) -> Option<Level> {
        self.inputs.first().map(|input| input.level)
    }

    /// Range that covers all inputs.
    ///
    /// # Errors
    ///
    /// If an input is not in the tree, or there is none.
    pub fn range(&self, shape: &TreeShape) -> Result<KeyRange, Error> {
        let mut ranges = Vec::new();
        for input in &self.inputs {
            ranges.extend(input.resolve(shape)?.into_iter().map(|file| &file.range));
        }
        KeyRange::hull_of(ranges).ok_or(Error::NoInputs)
    }

    /// Bytes of all inputs: what a merge reads, and about the most that it writes.
    ///
    /// # Errors
    ///
    /// If an input is not in the tree.
    pub fn input_bytes(&self, shape: &TreeShape) -> Result<u64, Error> {
        let mut bytes = 0;
        for input in &self.inputs {
            bytes += input.resolve(shape)?.into_iter().map(|file| file.bytes).sum::<u64>();
        }
        Ok(bytes)
    }

    /// Whether the job takes files out of L0 to a deeper level.
    #[must_use]
    pub fn leaves_l0(&self) -> bool {
        self.source() == Some(Level(0))
            && self.target.level != Level(0)
            && matches!(self.kind, JobKind::Merge | JobKind::Move)
    }
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

/// One line such as `merge L0{7 6} -> new run in L1   why: L0 holds 2 runs`; runs of one level are
/// set apart by `/`.
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
                Placement::NewRun { before: None } => write!(f, " -> new run in {level}")?,
                Placement::NewRun { before: Some(run) } => {
                    write!(f, " -> new run in {level} before r{}", run.0)?;
                }
                Placement::JoinRun(run) => write!(f, " -> r{} of {level}", run.0)?,
            }
        }
        write!(f, "   why: {}", self.reason)
    }
}
