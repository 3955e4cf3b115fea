//! Primitive 3: how much one job takes.

/// How much one job takes out of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// All files of two consecutive levels.
    Level,
    /// Whole runs.
    Runs,
    /// One file and what it overlaps in the next level. Neighbours that fall into the same range
    /// come along where that costs no further file of the next level.
    File,
}
