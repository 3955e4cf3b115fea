//! Errors of a simulation.

use crate::config::{BYTES_MAX, EstimatedSize, FLUSHES_MAX, MEMTABLE_BYTES_MIN};

/// Reason why a simulation ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The policy picked a job that cannot be applied to the tree.
    #[error("{policy} picked an invalid job: {job}: {source}")]
    Job {
        /// Name of the policy.
        policy: String,
        /// Description of the job.
        job: String,
        /// Why the job is invalid.
        source: Box<lsmx_compaction::Error>,
    },
    /// The policy has picked ten million jobs since the last write and still picks more.
    #[error("{policy} never stops picking jobs")]
    EndlessJobs {
        /// Name of the policy.
        policy: String,
    },
    /// The simulation exceeds [`FLUSHES_MAX`] or [`BYTES_MAX`].
    #[error(
        "about {:.0} flushes of {:.3e} bytes in total are too many: a simulation has at most \
         {FLUSHES_MAX} flushes and {BYTES_MAX} bytes; write fewer entries or set a larger memtable",
        .0.flushes, .0.bytes
    )]
    TooLarge(EstimatedSize),
    /// The memtable is smaller than [`MEMTABLE_BYTES_MIN`].
    #[error("a memtable of {bytes} bytes is too small: the minimum is {MEMTABLE_BYTES_MIN} bytes")]
    SmallMemtable {
        /// Size of the memtable in bytes.
        bytes: u64,
    },
    /// The caller cancelled the simulation.
    #[error("cancelled")]
    Cancelled,
}
