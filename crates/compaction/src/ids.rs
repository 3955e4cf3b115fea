//! Numbers of files, runs and levels.

use std::fmt;

/// Number of a table file. A number is never reused, not even after a failed job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64);

/// Number of a sorted run, unique within one tree. [`TreeShape`](crate::TreeShape) assigns the numbers and never reuses
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(pub u64);

/// Number of a level. Level 0 (L0) receives flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Level(pub u8);

impl Level {
    /// The level with the largest number.
    pub const MAX: Level = Level(u8::MAX);

    /// Returns the index of this level in [`TreeShape::levels`](crate::TreeShape::levels).
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the level with this index, or `None` if the index exceeds 255.
    #[must_use]
    pub fn from_index(index: usize) -> Option<Level> {
        u8::try_from(index).ok().map(Level)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "L{}", self.0)
    }
}
