//! What a policy is: it looks at a shape and says what to do next.

use std::fmt;

use crate::{BusyFiles, Job, TreeShape};

/// How far the tree is behind, as one pair of numbers; drives the write throttle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debt {
    /// Bytes that must still be written before the next run is released, less what running jobs
    /// have written. 0: no limit on writes.
    pub pending_bytes: u64,
    /// Flushed bytes that still fit under the hard stop.
    pub headroom_bytes: u64,
}

/// A compaction policy.
pub trait CompactionPolicy: fmt::Debug + Send + Sync {
    /// Name as written in a spec or after `--policy`, such as `tiering`.
    fn name(&self) -> &str;

    /// Returns the next job, or `None` while the tree has the shape this policy wants.
    ///
    /// Equal arguments give equal answers. No file in `busy` is ever picked.
    fn pick(&self, shape: &TreeShape, busy: &BusyFiles) -> Option<Job>;

    /// Returns what must still be written before the next run is released, less what running jobs
    /// have done, and the flushed bytes that fit under the hard stop.
    fn debt(&self, shape: &TreeShape, busy: &BusyFiles) -> Debt;

    /// Returns whether writes must wait: the tree is at the hard stop, a parameter of the policy.
    /// As long as this is true, [`pick`](Self::pick) has work to do, or a job is running.
    fn must_stop(&self, shape: &TreeShape) -> bool;
}
