//! Errors of policy specs, tree shapes and jobs.

use crate::ids::{FileId, Level, RunId};

/// Minimum similarity of a suggested name, from 0 to 1.
const SUGGESTION_SIMILARITY: f64 = 0.7;

/// Returns the end of an error message about an unknown name.
///
/// It contains the most similar known name, if there is one, and the list of all known names. `known` is this list,
/// separated by commas.
#[must_use]
pub fn known_names(name: &str, known: &str) -> String {
    let name = name.to_ascii_lowercase();
    let candidates = known.split(", ").map(|known| (strsim::jaro_winkler(&name, known), known));
    let nearest = candidates.max_by(|(a, _), (b, _)| a.total_cmp(b));
    match nearest {
        Some((similarity, nearest)) if similarity > SUGGESTION_SIMILARITY => {
            format!("did you mean {nearest}? known: {known}")
        }
        _ => format!("known: {known}"),
    }
}

/// An error of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The spec names an unknown policy.
    #[error("unknown policy {name:?}; {}", known_names(name, known))]
    UnknownPolicy {
        /// Name in the spec.
        name: String,
        /// Known names, separated by commas.
        known: String,
    },
    /// The policy does not have this parameter.
    #[error("policy {policy} has no parameter {parameter:?}; it has: {known}")]
    UnknownParameter {
        /// Canonical name of the policy.
        policy: String,
        /// Parameter in the spec.
        parameter: String,
        /// Parameters of the policy, separated by commas.
        known: String,
    },
    /// The value of a parameter is outside its allowed range.
    #[error("policy {policy}: parameter {parameter} = {value:?} is not {expected}")]
    BadParameter {
        /// Canonical name of the policy.
        policy: &'static str,
        /// Name of the parameter.
        parameter: &'static str,
        /// Value in the spec.
        value: String,
        /// Accepted values.
        expected: String,
    },
    /// The spec does not have the form `name` or `name(key=value,…)`.
    #[error("policy spec {spec:?} is not of the form name or name(key=value,...)")]
    MalformedSpec {
        /// The spec.
        spec: String,
    },
    /// The primitives cannot be combined.
    #[error("invalid combination of primitives: {reason}")]
    InvalidCombination {
        /// Reason.
        reason: String,
    },
    /// The TOML text of a policy is invalid.
    #[error("line {line}, column {column}: {what}")]
    InvalidSpec {
        /// Line of the text, from 1.
        line: u64,
        /// Column in the line, in characters from 1.
        column: u64,
        /// Description of the mistake.
        what: String,
    },
    /// The maximum age of tombstones is a share of the duration of an experiment. A database needs an absolute time.
    #[error(
        "policy {policy}: D = {share} is relative to the duration of an experiment; a database needs a time, such as {policy}(D=3600s)"
    )]
    RelativeBound {
        /// Canonical name of the policy.
        policy: String,
        /// Value of the bound, such as `0.5`.
        share: String,
    },
    /// The smallest key of a file is greater than its largest key.
    #[error("file {} of {level} has its smallest key after its largest key", file.0)]
    InvertedRange {
        /// Level of the file.
        level: Level,
        /// The file.
        file: FileId,
    },
    /// Two neighbouring files of a run overlap or are not in key order.
    #[error("files {} and {} of run {} in {level} overlap or are out of order", left.0, right.0, run.0)]
    Overlap {
        /// Level of the run.
        level: Level,
        /// The run.
        run: RunId,
        /// First file.
        left: FileId,
        /// Second file.
        right: FileId,
    },
    /// A run has no files.
    #[error("run {} in {level} is empty", run.0)]
    EmptyRun {
        /// Level of the run.
        level: Level,
        /// The run.
        run: RunId,
    },
    /// A run number occurs twice in the tree.
    #[error("run {} is in the tree twice", run.0)]
    DuplicateRun {
        /// The run.
        run: RunId,
    },
    /// A run number is not below the next unused run number.
    #[error("run {} is in the tree, but the next unused run number is {next}", run.0)]
    RunIdTooLarge {
        /// The run.
        run: RunId,
        /// `run_id_next` of the tree.
        next: u64,
    },
    /// A file occurs twice in the tree or in a job.
    #[error("file {} occurs twice", file.0)]
    DuplicateFile {
        /// The file.
        file: FileId,
    },
    /// All entries of a file in a newer run are older than those of a file in an older run, although both contain the
    /// same key.
    #[error("file {} is in a newer run than file {}, but all its entries are older", above.0, below.0)]
    AgeOrder {
        /// File in the newer run.
        above: FileId,
        /// File in the older run.
        below: FileId,
    },
    /// The tree has more than 256 levels.
    #[error("a tree has at most 256 levels, not {levels}")]
    TooManyLevels {
        /// Number of levels.
        levels: usize,
    },
    /// A file is not part of the tree.
    #[error("file {} is not part of the tree", file.0)]
    UnknownFile {
        /// The file.
        file: FileId,
    },
    /// A job has no inputs, or an input has no files.
    #[error("the job has no inputs")]
    NoInputs,
    /// An input run is not in the tree.
    #[error("input run {} is not in {level}", run.0)]
    NoSuchRun {
        /// Level in the job.
        level: Level,
        /// Run in the job.
        run: RunId,
    },
    /// A job names a file that is not in the named run, or it names the files of a run out of key order.
    #[error("input file {} is not in run {} of {level}, or not in key order", file.0, run.0)]
    NoSuchFile {
        /// Level in the job.
        level: Level,
        /// Run in the job.
        run: RunId,
        /// The file.
        file: FileId,
    },
    /// The inputs of a job are not ordered from the newest run to the oldest.
    #[error("input run {} of {level} is not older than the input before it", run.0)]
    InputOrder {
        /// Level of the run.
        level: Level,
        /// The run that is out of order.
        run: RunId,
    },
    /// The split boundaries of a job are not in ascending key order.
    #[error("boundary {index} of the split rule is not greater than the boundary before it")]
    BoundaryOrder {
        /// Index of the boundary that is out of order, from 1.
        index: usize,
    },
    /// A move or a drop has outputs.
    #[error("a move or drop job has {outputs} outputs; it must have none")]
    UnexpectedOutputs {
        /// Number of outputs.
        outputs: usize,
    },
    /// An output contains keys outside the range of all inputs.
    #[error("output {} exceeds the key range of the inputs", file.0)]
    OutputOutsideInputs {
        /// The output.
        file: FileId,
    },
    /// Two files of a move overlap, so they cannot become one run.
    #[error("files {} and {} of a move overlap and cannot form one run", left.0, right.0)]
    MoveOverlap {
        /// File with the smaller key.
        left: FileId,
        /// The other file.
        right: FileId,
    },
    /// The target of a rewrite is not its single input run.
    #[error("the target of a rewrite must be its single input run")]
    RewriteTarget,
    /// A job would change the order of age of an input and an overlapping file. An older version of a key could then
    /// hide a newer version.
    #[error("file {} would pass file {}, which may contain the same keys", input.0, other.0)]
    PassesOverlap {
        /// Input file.
        input: FileId,
        /// File that is not an input.
        other: FileId,
    },
    /// A job breaks the rules of L0: it must take whole adjacent runs, and the oldest runs leave first.
    #[error("run {} of L0: {why}", run.0)]
    L0Order {
        /// The run.
        run: RunId,
        /// Rule that the job breaks.
        why: &'static str,
    },
}
