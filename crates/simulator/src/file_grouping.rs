//! Grouping: a simulated file may represent several tables, if the jobs of the policy take whole runs.
//!
//! If jobs take whole runs, the number of files in a run does not affect which jobs the policy picks. A tree with tens
//! of thousands of tables is then simulated with fewer and larger files, which takes less time. Reports convert the
//! number of files to the number of tables.

use lsmx_compaction::{CompactionPolicy, TableMeta};

use crate::math::{round_to_u64, to_f64};

/// Approximate number of simulated files in the largest run of a tree.
const RUN_FILES: u64 = 500;
/// Maximum size of a table ÷ target size of a table. The filter, the footer and the last entry may exceed the target.
const OVERSHOOT_RATIO: f64 = 1.01;

/// Number of tables that one simulated file represents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileGrouping {
    pub(crate) tables_per_file: u64,
    /// Target size of a table in the last job, in bytes.
    table_bytes: u64,
}

impl FileGrouping {
    /// Returns the grouping for a tree that grows to `data_bytes` bytes.
    ///
    /// Files represent several tables only if each job takes whole runs and a flush writes at most one table.
    pub(crate) fn for_policy(
        policy: &dyn CompactionPolicy,
        data_bytes: u64,
        table_bytes: u64,
        flush_bytes: u64,
    ) -> FileGrouping {
        let can_group = !policy.can_pick_single_files() && flush_bytes <= table_bytes;
        let tables = data_bytes / table_bytes.max(1) / RUN_FILES;
        FileGrouping { tables_per_file: if can_group { tables.max(1) } else { 1 }, table_bytes }
    }

    /// Returns the grouping in which each file represents one table.
    pub(crate) fn ungrouped() -> FileGrouping {
        FileGrouping { tables_per_file: 1, table_bytes: 0 }
    }

    /// Sets the target size of a file for the next job. Returns the target size of a table. Both are in bytes.
    pub(crate) fn set_file_bytes(&mut self, file_bytes: u64) -> u64 {
        self.table_bytes = file_bytes / self.tables_per_file;
        self.table_bytes
    }

    /// Returns the number of tables that this file represents.
    pub(crate) fn table_count(&self, file: &TableMeta) -> u64 {
        if self.tables_per_file == 1 {
            return 1;
        }
        let table_bytes = to_f64(self.table_bytes.max(1)) * OVERSHOOT_RATIO;
        round_to_u64((to_f64(file.bytes) / table_bytes).ceil()).max(1)
    }
}
