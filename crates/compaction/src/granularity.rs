//! Granularity, the third primitive of a policy: how much data one job takes.

/// Amount of data that one job takes from a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobGranularity {
    /// All files of two adjacent levels.
    Level,
    /// Full preemptive merge: one merge of several levels. The target is the first deeper level that can hold the data
    /// of all merged levels. If several levels are full, each entry is rewritten once instead of once per level.
    ///
    /// Source: Dayan et al., "Spooky", PVLDB 15 (2022), section 2, "full preemptive merge".
    Preemptive,
    /// Levels above the first partitioned level work like [`Preemptive`](Self::Preemptive). The partitioned levels are
    /// merged in groups of files with equal key ranges, one group at a time, in key order. The capacities must be
    /// computed from the bottom.
    ///
    /// Source: Dayan et al., "Spooky", PVLDB 15 (2022), section 4.
    Partition {
        /// Distance from the first partitioned level to the last level. 2 is Spooky, 1 is "2L-Spooky".
        above: u8,
    },
    /// Whole runs.
    Runs,
    /// One file and the files that it overlaps in the next level. Adjacent files are added if they overlap no other
    /// files of the next level.
    File,
    /// Up to `count` adjacent files, and the files that they overlap in the next level.
    Files {
        /// Maximum number of files, at least 1.
        count: usize,
    },
}

impl JobGranularity {
    /// Returns the name as written in a spec.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            JobGranularity::Level => "level",
            JobGranularity::Preemptive => "preemptive",
            JobGranularity::Partition { .. } => "partition",
            JobGranularity::Runs => "runs",
            JobGranularity::File => "file",
            JobGranularity::Files { .. } => "files",
        }
    }

    /// Returns whether jobs merge groups of overlapping files.
    pub(crate) fn is_partitioned(self) -> bool {
        matches!(self, JobGranularity::Partition { .. })
    }

    /// Returns whether a file picker selects files of a level.
    #[must_use]
    pub fn is_file_granular(self) -> bool {
        matches!(self, JobGranularity::File | JobGranularity::Files { .. })
    }
}
