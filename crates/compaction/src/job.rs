//! A unit of compaction work: what goes in, where it comes out, how outputs are cut, and why.

use std::fmt;

use crate::{FileId, Key, Level, RunId};

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
    /// in the level if `None`. `before` is never an input run that disappears.
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
            Reason::RunCount { level, runs } => write!(f, "L{} holds {runs} runs", level.0),
            Reason::SpaceAmplification { percent } => write!(f, "space amplification {percent} %"),
            Reason::SizeRatio { runs } => write!(f, "{runs} runs of like size"),
            Reason::Shape { level } => write!(f, "L{} has a foreign shape", level.0),
            Reason::Manual => write!(f, "asked for"),
        }
    }
}
