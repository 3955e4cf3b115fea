//! The trait of compaction policies.

use std::fmt;

use crate::explain::Explanation;
use crate::job::Job;
use crate::running_jobs::RunningJobs;
use crate::shape::TreeShape;

/// Compaction work that limits writes. It controls the write throttle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debt {
    /// Bytes that compactions have yet to write until L0 shrinks. 0 means that the throttle does not limit
    /// writes.
    pub pending_bytes: u64,
    /// Bytes that can be flushed to L0 until writes stop. Data in memtables counts as not flushed.
    pub headroom_bytes: u64,
}

/// A compaction policy: picks the next job for a tree.
///
/// All methods are pure functions of their arguments. [`check_policy`](crate::check_policy()) tests an
/// implementation.
pub trait CompactionPolicy: fmt::Debug + Send + Sync {
    /// Returns the name as written in a spec or after `--policy`, such as `tiering`.
    fn name(&self) -> &str;

    /// Returns the next job, or `None` if the tree has the shape that the policy wants.
    ///
    /// The job must satisfy [`RunningJobs::can_run_job`] and [`TreeShape::check_job`].
    fn pick(&self, shape: &TreeShape, running: &RunningJobs) -> Option<Job>;

    /// Returns the work that limits writes.
    fn debt(&self, shape: &TreeShape, running: &RunningJobs) -> Debt;

    /// Returns whether writes must wait because the tree has reached its stop limit. If it returns true
    /// and no job is running, [`pick`](Self::pick) must return a job.
    fn must_stop_writes(&self, shape: &TreeShape) -> bool;

    /// Returns the result of [`pick`](Self::pick) and the facts that led to it.
    fn explain(&self, shape: &TreeShape, running: &RunningJobs) -> Explanation {
        Explanation { picked: self.pick(shape, running), ..Explanation::default() }
    }

    /// Returns the next time, after [`TreeShape::now_us`], at which a job becomes due without further
    /// writes. The engine then calls [`pick`](Self::pick). Default: `None`.
    fn next_pick_due_us(&self, _shape: &TreeShape) -> Option<u64> {
        None
    }

    /// Returns the maximum age of a tombstone in a memtable, in microseconds. An older memtable is
    /// flushed before it is full. Default: `None`, no limit.
    fn memtable_tombstone_age_max_us(&self, _shape: &TreeShape) -> Option<u64> {
        None
    }

    /// Returns whether the policy uses [`TableMeta::last_read_us`](crate::TableMeta::last_read_us). If
    /// not, the engine does not update it. Default: false.
    fn needs_file_read_times(&self) -> bool {
        false
    }

    /// Returns whether a job may become due when a snapshot is released. Default: false.
    fn is_waiting_for_snapshots(&self, _shape: &TreeShape) -> bool {
        false
    }

    /// Returns whether some jobs take single files of a run. If false, all jobs take whole runs, and a
    /// simulation may represent a run by fewer, larger files. Default: true.
    fn can_pick_single_files(&self) -> bool {
        true
    }

    /// Returns whether jobs may drop data that was not deleted. Default: false.
    fn can_drop_data(&self) -> bool {
        false
    }
}
