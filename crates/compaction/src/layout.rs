//! Primitive 2: how many runs each level may hold.

use crate::Level;

/// How data is laid out over levels and runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One run in each level below L0. Flushes land in L0: with a run count of 1 the tree is
    /// leveled throughout, with more it is 1-leveling, the first level tiered.
    Leveling,
    /// Several runs in every level. A level that is full becomes one new run, the newest of the
    /// next level; the runs that stand there are not touched.
    Tiering,
    /// The whole tree is one list of runs; levels only say where a run is kept.
    RunList {
        /// The level that keeps the oldest run once all have been merged.
        bottom: Level,
    },
}
