//! The trait of compaction policies.

use std::fmt;

use crate::explain::Explanation;
use crate::job::Job;
use crate::running_jobs::RunningJobs;
use crate::shape::TreeShape;

/// Compaction debt: pending compaction work that makes the engine throttle writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debt {
    /// Bytes that compactions still have to write before L0 shrinks. If 0, the throttle does not limit writes.
    pub pending_bytes: u64,
    /// Bytes that can still be flushed to L0 before writes stop. Data in memtables counts as not flushed.
    pub headroom_bytes: u64,
}

/// A compaction policy: picks the next job for a tree.
///
/// All methods are pure functions of their arguments. [`check_policy`](crate::check_policy()) tests an
/// implementation.
pub trait CompactionPolicy: fmt::Debug + Send + Sync {
    /// Returns the name in specs and on the command line, such as `tiering`.
    fn name(&self) -> &str;

    /// Returns the next job, or `None` if no job is due.
    ///
    /// The job must satisfy [`RunningJobs::can_run_job`] and [`TreeShape::check_job`].
    fn pick(&self, shape: &TreeShape, running: &RunningJobs) -> Option<Job>;

    /// Returns the compaction debt that limits writes.
    fn debt(&self, shape: &TreeShape, running: &RunningJobs) -> Debt;

    /// Returns whether writes must stop because the tree has reached its stop limit.
    ///
    /// If this function returns true and no job is running, [`pick`](Self::pick) must return a job.
    fn must_stop_writes(&self, shape: &TreeShape) -> bool;

    /// Returns the result of [`pick`](Self::pick), with the facts that led to it.
    fn explain(&self, shape: &TreeShape, running: &RunningJobs) -> Explanation {
        Explanation { picked: self.pick(shape, running), ..Explanation::default() }
    }

    /// Returns the first time after [`TreeShape::now_us`] at which a job becomes due without further writes. The engine
    /// calls [`pick`](Self::pick) at that time. Default: `None`.
    fn next_pick_due_us(&self, _shape: &TreeShape) -> Option<u64> {
        None
    }

    /// Returns the maximum age of a tombstone in a memtable, in microseconds. A memtable with an older tombstone is
    /// flushed before it is full. Default: `None` for no limit.
    fn memtable_tombstone_age_max_us(&self, _shape: &TreeShape) -> Option<u64> {
        None
    }

    /// Returns whether the policy uses [`TableMeta::last_read_us`](crate::TableMeta::last_read_us). Otherwise the
    /// engine does not update this time. Default: false.
    fn needs_file_read_times(&self) -> bool {
        false
    }

    /// Returns whether the release of a snapshot may make a job due. Default: false.
    fn is_waiting_for_snapshots(&self, _shape: &TreeShape) -> bool {
        false
    }

    /// Returns whether some jobs take single files of a run. Default: true.
    ///
    /// If false, all jobs take whole runs. A simulation may then represent a run by fewer and larger files.
    fn can_pick_single_files(&self) -> bool {
        true
    }

    /// Returns whether jobs may drop data that was not deleted. Default: false.
    ///
    /// While a snapshot sees an entry of a file, the engine runs no job that drops the file. If [`pick`](Self::pick)
    /// returns such a job, the engine treats it as `None`, and calls `pick` again after the release of a snapshot.
    /// Stopped writes wait until then.
    fn can_drop_data(&self) -> bool {
        false
    }
}
