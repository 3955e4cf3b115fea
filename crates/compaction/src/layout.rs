//! The second primitive: how many runs each level may hold.

use crate::ids::Level;

/// Arrangement of the data in levels and runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeLayout {
    /// One run in each level below L0, except for tiered levels at the top. L0 receives flushes. With a
    /// run-count trigger of 1 and no tiered levels, the whole tree is leveled. A larger run count gives
    /// 1-leveling: the first level is tiered.
    Leveling {
        /// Maximum number of runs in L1, L2, …; deeper levels are leveled. A tiered level with more runs is
        /// merged as a whole into the next level. At least two runs are also merged into the last level of the tree
        /// if the merge rewrites at most as many bytes of that level as the runs have. A level that has twice
        /// the runs of a due level gets no more, so that writes stop before reads become slow.
        tiered: Vec<usize>,
    },
    /// Each level holds up to a number of runs. A level with too many runs is merged as a whole; the result
    /// *arrives* in the next level. An arrival is merged into the newest run of a level until that run has
    /// taken its number of arrivals. The next arrival becomes a new run.
    ///
    /// With K runs in upper levels and Z in the last one: leveling is K = Z = 1, tiering is K = Z = T − 1, lazy
    /// leveling is K = T − 1 and Z = 1. If each arrival becomes a run, L0 holds runs as the other levels do.
    /// Otherwise each flush is merged into L1.
    ///
    /// Source: Dayan and Idreos, "Dostoevsky", SIGMOD 2018, section 4.3 ("Fluid LSM-tree").
    Fluid {
        /// Maximum number of runs in L0, L1, … except in the last level. The last value applies to all
        /// deeper levels. Not empty.
        upper: Vec<usize>,
        /// Maximum number of runs in the last level.
        last: usize,
        /// T: a level is full after T − 1 arrivals.
        size_ratio: usize,
    },
    /// The tree is a list of runs; levels only state where a run is stored.
    RunList {
        /// Level that stores the oldest run after a merge of all runs.
        bottom: Level,
    },
    /// First in, first out: nothing is merged, and the oldest files are dropped. Drops data by design.
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
