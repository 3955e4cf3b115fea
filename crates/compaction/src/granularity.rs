//! Primitive 3: how much one job takes.

/// How much one job takes out of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// All files of two consecutive levels.
    Level,
    /// All levels from the first down to the first that can hold them together, in one pass. No
    /// entry is rewritten level by level when several are full at once.
    ///
    /// Source: Dayan et al., "Spooky", PVLDB 15 (2022), section 2, "full preemptive merge".
    Preemptive,
    /// Upper levels as [`Preemptive`](Self::Preemptive); from the level `above` levels over the last
    /// one on, groups of files that overlap perfectly, one group at a time, in key order.
    ///
    /// Source: Dayan et al., "Spooky", PVLDB 15 (2022), section 4.
    Partition {
        /// Levels between the first partitioned one and the last, that one included: 2 is Spooky,
        /// 1 is "2L-Spooky".
        above: u8,
    },
    /// Whole runs.
    Runs,
    /// One file and what it overlaps in the next level. Neighbours that fall into the same range
    /// come along where that costs no further file of the next level.
    File,
    /// A file, its neighbours to the right up to this number of files, and what they overlap.
    Files {
        /// Files that one job takes; at least 1.
        count: usize,
    },
}

impl Granularity {
    /// The name as written in a spec.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Granularity::Level => "level",
            Granularity::Preemptive => "preemptive",
            Granularity::Partition { .. } => "partition",
            Granularity::Runs => "runs",
            Granularity::File => "file",
            Granularity::Files { .. } => "files",
        }
    }

    /// Whether files are merged in groups that overlap.
    pub(crate) fn partitions(self) -> bool {
        matches!(self, Granularity::Partition { .. })
    }

    /// Whether there is a choice among the files of a level.
    #[must_use]
    pub fn chooses(self) -> bool {
        matches!(self, Granularity::File | Granularity::Files { .. })
    }
}
