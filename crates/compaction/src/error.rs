//! What can be wrong with a shape, a job or a spec.

use crate::{FileId, Level, RunId};

/// An error of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A policy name that is not known.
    #[error("unknown policy {name:?}; known: {known}")]
    UnknownPolicy {
        /// What was asked for.
        name: String,
        /// All names, separated by commas.
        known: String,
    },
    /// A parameter that the policy does not have.
    #[error("policy {policy} has no parameter {parameter:?}; it has: {known}")]
    UnknownParameter {
        /// Canonical name of the policy.
        policy: String,
        /// What was asked for.
        parameter: String,
        /// All parameters of the policy, separated by commas.
        known: String,
    },
    /// A parameter with a value outside its domain.
    #[error("policy {policy}: parameter {parameter} = {value:?} is not {expected}")]
    BadParameter {
        /// Canonical name of the policy.
        policy: &'static str,
        /// The parameter.
        parameter: &'static str,
        /// What was given.
        value: String,
        /// What is accepted.
        expected: String,
    },
    /// A policy spec that does not have the form `name` or `name(key=value,…)`.
    #[error("policy spec {spec:?} is not of the form name or name(key=value,...)")]
    MalformedSpec {
        /// What was given.
        spec: String,
    },
    /// Primitives that mean nothing together.
    #[error("the primitives do not go together: {reason}")]
    Combination {
        /// Why.
        reason: String,
    },
    /// A policy in TOML that is not one.
    #[error("line {line}: {what}")]
    SpecText {
        /// Line in the text, from 1.
        line: u64,
        /// What is wrong there.
        what: String,
    },
    /// A policy of which a parameter is a share of a run, where there is no run.
    #[error(
        "policy {policy}: D = {share} is a share of a run; outside an experiment it is a time, such as {policy}(D=3600s)"
    )]
    ShareOfRun {
        /// Canonical name of the policy.
        policy: String,
        /// The share.
        share: String,
    },
    /// A file whose smallest key is above its largest.
    #[error("file {} of {level} ends before it begins", file.0)]
    InvertedRange {
        /// Level of the file.
        level: Level,
        /// The file.
        file: FileId,
    },
    /// Neighbouring files of a run that overlap or stand in the wrong order.
    #[error("files {} and {} of run {} in {level} overlap or are out of order", left.0, right.0, run.0)]
    Overlap {
        /// Level of the run.
        level: Level,
        /// The run.
        run: RunId,
        /// The file that stands first.
        left: FileId,
        /// The file that stands second.
        right: FileId,
    },
    /// A run without files.
    #[error("run {} in {level} is empty", run.0)]
    EmptyRun {
        /// Level of the run.
        level: Level,
        /// The run.
        run: RunId,
    },
    /// Two runs with one name.
    #[error("run {} is in the tree twice", run.0)]
    RunTwice {
        /// The run.
        run: RunId,
    },
    /// A run whose name has not been given out yet.
    #[error("run {} is in the tree, but the next new run would be {next}", run.0)]
    RunFromTheFuture {
        /// The run.
        run: RunId,
        /// `run_id_next` of the tree.
        next: u64,
    },
    /// A file that is in the tree, or in a job, twice.
    #[error("file {} appears twice", file.0)]
    FileTwice {
        /// The file.
        file: FileId,
    },
    /// A file above another one whose entries are all younger.
    #[error("file {} stands above file {}, which is younger", above.0, below.0)]
    AgeOrder {
        /// The file in the newer run.
        above: FileId,
        /// The file in the older run.
        below: FileId,
    },
    /// A tree with more levels than [`Level`] can name.
    #[error("a tree has at most 256 levels, not {levels}")]
    TooManyLevels {
        /// Levels given.
        levels: usize,
    },
    /// A file that nobody has open.
    #[error("file {} is not part of the tree", file.0)]
    UnknownFile {
        /// The file.
        file: FileId,
    },
    /// A job without inputs.
    #[error("the job has no inputs")]
    NoInputs,
    /// A job whose input run is not in the tree.
    #[error("input run {} is not in {level}", run.0)]
    NoSuchRun {
        /// Level that the job names.
        level: Level,
        /// Run that the job names.
        run: RunId,
    },
    /// A job whose input file is not in its run, or not in key order among the inputs.
    #[error("input file {} is not in run {} of {level}, or not in key order", file.0, run.0)]
    NoSuchFile {
        /// Level that the job names.
        level: Level,
        /// Run that the job names.
        run: RunId,
        /// The file.
        file: FileId,
    },
    /// A job whose inputs are not ordered from the newest run to the oldest.
    #[error("input run {} of {level} does not stand below the input before it", run.0)]
    InputOrder {
        /// Level of the run out of order.
        level: Level,
        /// The run out of order.
        run: RunId,
    },
    /// Outputs for a job that writes none: a move or a drop.
    #[error("a job that writes nothing was given {outputs} outputs")]
    UnexpectedOutputs {
        /// Outputs given.
        outputs: usize,
    },
    /// An output that reaches beyond the keys of all inputs.
    #[error("output {} reaches beyond the inputs", file.0)]
    OutputOutside {
        /// The output.
        file: FileId,
    },
    /// A move of files that overlap each other.
    #[error("a move cannot make one run of files {} and {}, which overlap", left.0, right.0)]
    MoveOverlap {
        /// The file that begins first.
        left: FileId,
        /// The other file.
        right: FileId,
    },
    /// A rewrite whose target is not its only input run.
    #[error("a rewrite puts its outputs in the place of its inputs, nowhere else")]
    RewriteElsewhere,
    /// A job that would carry entries past others of the same keys.
    #[error("file {} would pass file {}, which may hold the same keys", input.0, other.0)]
    PassesOver {
        /// The input.
        input: FileId,
        /// The file that stays.
        other: FileId,
    },
    /// A job that breaks the order of L0: whole neighbouring runs only, the oldest leave first.
    #[error("run {} of L0: {why}", run.0)]
    L0Order {
        /// The run.
        run: RunId,
        /// The rule that the job breaks.
        why: &'static str,
    },
}
