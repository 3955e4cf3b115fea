//! What a policy is: it looks at a shape and says what to do next.

use std::fmt;

use crate::{BusyFiles, Explanation, Job, TreeShape};

/// How far the tree is behind, as one pair of numbers; drives the write throttle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debt {
    /// Bytes that must still be written before the next run is released, less what running jobs
    /// have written. 0: no limit on writes.
    pub pending_bytes: u64,
    /// Bytes of memtables that may still become runs under the hard stop, what they hold by now included.
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
    /// have done, and the bytes of memtables that fit under the hard stop.
    fn debt(&self, shape: &TreeShape, busy: &BusyFiles) -> Debt;

    /// Returns whether writes must wait: the tree is at the hard stop, a parameter of the policy.
    /// As long as this is true, [`pick`](Self::pick) has work to do, or a job is running.
    fn must_stop(&self, shape: &TreeShape) -> bool;

    /// Decides as [`pick`](Self::pick) does, and tells what led to it.
    fn explain(&self, shape: &TreeShape, busy: &BusyFiles) -> Explanation {
        Explanation { picked: self.pick(shape, busy), ..Explanation::default() }
    }

    /// When, later than [`TreeShape::now_us`], time alone will make a job due; `None` if it never
    /// does. Whoever drives the tree asks again then, whether or not anything was written.
    fn due_us(&self, _shape: &TreeShape) -> Option<u64> {
        None
    }

    /// How long, in microseconds, a tombstone may stay in a memtable before that is to be flushed;
    /// `None` for as long as it takes to fill.
    fn memtable_tombstone_us(&self, _shape: &TreeShape) -> Option<u64> {
        None
    }

    /// Whether it looks at [`FileShape::last_read_us`](crate::FileShape::last_read_us), which is
    /// otherwise not kept up.
    fn asks_for_reads(&self) -> bool {
        false
    }

    /// Whether it may have more to do once a snapshot has been let go of.
    fn waits_for_snapshots(&self, _shape: &TreeShape) -> bool {
        false
    }

    /// Whether it tells the files of a run apart. Of one that does not, jobs take whole runs, whatever
    /// files these are cut into; a simulation of a large tree may then make do with fewer, larger ones.
    fn looks_at_files(&self) -> bool {
        true
    }

    /// Whether its jobs let data go that nobody has deleted.
    fn drops_data(&self) -> bool {
        false
    }
}
