//! Primitive 2: how many runs each level may hold.

use crate::Level;

/// How data is laid out over levels and runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One run in each level below L0, except in the first ones if `tiered` says so. Flushes land in
    /// L0: with a run count of 1 and nothing tiered the tree is leveled throughout, with a larger
    /// count it is 1-leveling, the first level tiered.
    Leveling {
        /// Runs that L1, L2, … may hold; deeper levels than this names are leveled. A tiered level
        /// with more runs is merged as a whole into the next one.
        tiered: Vec<usize>,
    },
    /// Each level holds up to a number of runs. The newest of them is *active*: it takes in what
    /// arrives until it has its share of the level, then what arrives is a new run. A level with
    /// too many runs becomes, as a whole, what arrives in the next one.
    ///
    /// With K runs in upper levels and Z in the last: leveling is K = Z = 1, tiering K = Z = T − 1,
    /// lazy leveling K = T − 1, Z = 1. Where a run takes in one arrival only, L0 is the first such
    /// level; otherwise L0 hands every flush on to L1.
    ///
    /// Source: Dayan and Idreos, "Dostoevsky", SIGMOD 2018, section 4.3 ("Fluid LSM-tree").
    Fluid {
        /// Runs that L0, L1, … may hold while they are not the last level; the last number holds
        /// for all deeper ones. Not empty.
        upper: Vec<usize>,
        /// Runs that the last level may hold.
        last: usize,
        /// Arrivals that a level takes in until it moves on, and one more: T.
        size_ratio: usize,
    },
    /// The whole tree is one list of runs; levels only say where a run is kept.
    RunList {
        /// The level that keeps the oldest run once all have been merged.
        bottom: Level,
    },
    /// Nothing is merged: what is oldest leaves the tree. Loses data, by design.
    Queue,
}

impl Layout {
    /// The name as written in a spec.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Layout::Leveling { .. } => "leveling",
            Layout::Fluid { .. } => "fluid",
            Layout::RunList { .. } => "run-list",
            Layout::Queue => "queue",
        }
    }

    /// Leveled throughout below L0.
    pub(crate) const LEVELED: Layout = Layout::Leveling { tiered: Vec::new() };
}
