//! The third primitive: how much data one job takes.

/// Amount of data that one job takes from a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobGranularity {
    /// All files of two adjacent levels.
    Level,
    /// One merge of several levels: from the first level to the first deeper level that can hold the data of
    /// all of them. When several levels are full, each entry is rewritten once, not once per level.
    ///
    /// Source: Dayan et al., "Spooky", PVLDB 15 (2022), section 2, "full preemptive merge".
    Preemptive,
    /// Upper levels as [`Preemptive`](Self::Preemptive). The `above` levels before the last one are merged
    /// by groups of files with equal key ranges, one group at a time, in key order.
    ///
    /// Source: Dayan et al., "Spooky", PVLDB 15 (2022), section 4.
    Partition {
        /// Distance of the first partitioned level from the last level: 2 is Spooky, 1 is "2L-Spooky".
        above: u8,
    },
    /// Whole runs.
    Runs,
    /// One file and the files that it overlaps in the next level. Adjacent files within the same range are
    /// included if they overlap no further file of the next level.
    File,
    /// Up to `count` adjacent files, and the files that they overlap in the next level.
    Files {
        /// Maximum number of files; at least 1.
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

    /// Returns whether groups of overlapping files are merged.
    pub(crate) fn is_partitioned(self) -> bool {
        matches!(self, JobGranularity::Partition { .. })
    }

    /// Returns whether a file picker chooses among the files of a level.
    #[must_use]
    pub fn is_file_granular(self) -> bool {
        matches!(self, JobGranularity::File | JobGranularity::Files { .. })
    }
}
