//! Fewer, larger files where nobody asks for single ones.
//!
//! A policy that takes whole runs does the same whatever files these are cut into. A tree of ten
//! thousands of tables that it merges over and over is then played with files of many tables each,
//! and in the end the tables are counted.

use lsmx_compaction::{CompactionPolicy, TableMeta};

use crate::numbers::{real, whole};

/// RunFiles that the largest run still has, about.
const FILES_KEPT: u64 = 500;
/// A finished table has so much more than its target at most: its filter, its end, its last entry.
const ABOVE_TARGET: f64 = 1.01;

/// How many tables one simulated file stands for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coarse {
    pub(super) tables_per_file: u64,
    /// Target bytes of a table, as the last job had it.
    table_bytes: u64,
}

impl Coarse {
    /// For a tree of up to `data_bytes` that a policy keeps in tables of these bytes, filled by flushes of
    /// no more than one table each.
    pub(super) fn of(
        policy: &dyn CompactionPolicy,
        data_bytes: u64,
        table_bytes: u64,
        flush_bytes: u64,
    ) -> Coarse {
        let suits = !policy.is_file_based() && flush_bytes <= table_bytes;
        let tables = data_bytes / table_bytes.max(1) / FILES_KEPT;
        Coarse { tables_per_file: if suits { tables.max(1) } else { 1 }, table_bytes }
    }

    /// Each file stands for itself.
    pub(super) fn none() -> Coarse {
        Coarse { tables_per_file: 1, table_bytes: 0 }
    }

    /// Target bytes of a table of a job whose files are to have so many.
    pub(super) fn table_bytes_of(&mut self, file_bytes: u64) -> u64 {
        self.table_bytes = file_bytes / self.tables_per_file;
        self.table_bytes
    }

    /// The tables that a file stands for.
    pub(super) fn tables(&self, file: &TableMeta) -> u64 {
        if self.tables_per_file == 1 {
            return 1;
        }
        whole((real(file.bytes) / (real(self.table_bytes.max(1)) * ABOVE_TARGET)).ceil()).max(1)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::Config;
    use crate::workload::{Distribution, Lookups, Phase};
    use lsmx_compaction::{
        CompactionPolicy, Debt, Job, PolicySpec, Preset, RunningJobs, TreeShape,
    };

    /// A policy that says that it looks at files, whether it does or not.
    #[derive(Debug)]
    struct Looking(Arc<dyn CompactionPolicy>);

    impl CompactionPolicy for Looking {
        fn name(&self) -> &str {
            self.0.name()
        }

        fn pick(&self, shape: &TreeShape, busy: &RunningJobs) -> Option<Job> {
            self.0.pick(shape, busy)
        }

        fn debt(&self, shape: &TreeShape, busy: &RunningJobs) -> Debt {
            self.0.debt(shape, busy)
        }

        fn must_stop(&self, shape: &TreeShape) -> bool {
            self.0.must_stop(shape)
        }
    }

    fn build(preset: Preset) -> Arc<dyn CompactionPolicy> {
        PolicySpec::new(preset).build()
    }

    #[test]
    fn a_large_tree_of_whole_runs_comes_to_the_same_with_fewer_files() {
        let mut writes = Phase::new("write", Distribution::Uniform);
        (writes.inserts, writes.updates) = (230_000_000, 20_000_000);
        let mut reads = Phase::new("read", Distribution::Uniform);
        reads.lookups = vec![Lookups { alpha: 0.5, ops: 1_000_000 }];
        let config = Config {
            phases: vec![writes, reads],
            key_bytes: 32,
            value_bytes: 110,
            memtable_bytes: 16 << 20,
            table_bytes: 16 << 20,
            block_cache_bytes: 1 << 30,
            merge_parts: 2,
            seed: 1,
        };
        let whole = [Preset::Tiering, Preset::LazyLeveling];
        for preset in whole {
            let policy = build(preset);
            assert!(!policy.is_file_based(), "{preset:?}");
            let few = config.run_policy(&*policy, &mut |_| true).unwrap();
            let all = config.run_policy(&Looking(policy), &mut |_| true).unwrap();
            let close = |a: f64, b: f64, within: f64| (a - b).abs() <= within * b;
            assert_eq!(few.compaction.jobs, all.compaction.jobs, "{preset:?}");
            assert!(close(few.data_moved_ratio, all.data_moved_ratio, 0.002), "{preset:?}");
            assert!(close(few.space_amplification, all.space_amplification, 0.002), "{preset:?}");
            let files = |report: &crate::Report| super::real(report.files());
            assert!(
                close(files(&few), files(&all), 0.01),
                "{preset:?}: {} {}",
                files(&few),
                files(&all)
            );
            for (few, all) in few.point_lookups.iter().zip(&all.point_lookups) {
                assert!(close(few.ios_per_get, all.ios_per_get, 0.01), "{preset:?}");
            }
        }
    }

    #[test]
    fn who_chooses_files_sees_each_of_them() {
        let by_run = [Preset::Full, Preset::FullPreemptive, Preset::Universal, Preset::Fluid];
        for preset in by_run {
            assert!(!build(preset).is_file_based(), "{preset:?}");
        }
        let choosing = [
            Preset::LeastOverlap,
            Preset::OneLeveling,
            Preset::Leveled,
            Preset::Spooky,
            Preset::Fifo,
        ];
        for preset in choosing {
            assert!(build(preset).is_file_based(), "{preset:?}");
        }
    }
}
