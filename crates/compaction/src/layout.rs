//! Layout, the second primitive of a policy: how many runs each level may hold.

use crate::ids::Level;

/// Arrangement of the data in levels and runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeLayout {
    /// One run in each level below L0, except for tiered levels at the top. L0 receives flushes.
    ///
    /// If the run-count trigger is 1 and no level is tiered, the whole tree is leveled. A larger run count gives
    /// 1-leveling, in which only L0 is tiered.
    Leveling {
        /// Maximum number of runs in L1, L2, …. The levels after these are leveled. Empty if no level below L0 is
        /// tiered.
        ///
        /// A tiered level with more runs is merged as a whole into the next level.
        ///
        /// The last tiered level is merged as soon as it has two runs if its target is the last level of the tree and
        /// the merge is efficient. A merge is efficient if it rewrites at most as many bytes of the target as the runs
        /// have.
        ///
        /// A tiered level with twice the runs of a due level receives no more runs. L0 then fills up and writes stop
        /// before reads become slow.
        tiered: Vec<usize>,
    },
    /// Each level holds up to a maximum number of runs. A level with more runs is merged as a whole, and the result
    /// *arrives* in the next level. The newest run of a level absorbs a fixed number of arrivals. The next arrival then
    /// becomes a new run.
    ///
    /// Let K be the maximum number of runs in upper levels, and Z that in the last level. Leveling is K = Z = 1,
    /// tiering is K = Z = T − 1, and lazy leveling is K = T − 1 and Z = 1. If each arrival becomes a run, L0 holds runs
    /// like the other levels. Otherwise each flush is merged into L1.
    ///
    /// Source: Dayan and Idreos, "Dostoevsky", SIGMOD 2018, section 4.3 ("Fluid LSM-tree").
    Fluid {
        /// Maximum number of runs in L0, L1, …, except in the last level. Deeper levels use the last value. Not empty.
        upper: Vec<usize>,
        /// Maximum number of runs in the last level.
        last: usize,
        /// T: a level is full after T − 1 arrivals.
        size_ratio: usize,
    },
    /// The tree is a list of runs. Levels have no capacity. The level of a run only gives its position in the list.
    RunList {
        /// Level that stores the oldest run after a merge of all runs.
        bottom: Level,
    },
    /// First in, first out: nothing is merged, and the oldest files are dropped. This layout drops data by design.
    Fifo,
}

impl TreeLayout {
    /// Leveling without tiered levels.
    pub(crate) const LEVELED: TreeLayout = TreeLayout::Leveling { tiered: Vec::new() };

    /// Returns the name as written in a spec.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            TreeLayout::Leveling { .. } => "leveling",
            TreeLayout::Fluid { .. } => "fluid",
            TreeLayout::RunList { .. } => "run-list",
            TreeLayout::Fifo => "queue",
        }
    }
}
