//! The strategy Full as the published code of the study runs it, on the simulator.
//!
//! The code (github.com/BU-DiSC/LSM-Compaction-Analysis, commit 6ded10f, `db/version_set.cc`) does not merge whole
//! levels. After each change of the tree, it marks all files of the level with the highest score, even if the score is
//! below 1. Then it unmarks the files of levels with a single file. The marks take effect at the next change. While no
//! level exceeds its capacity, RocksDB merges the marked files one at a time, in random order. It does not merge the
//! marked files of the last level.

use std::collections::HashSet;

use lsmx_base::sync::{Arc, Mutex};
use lsmx_bench::numbers::{to_f64, to_u64};
use lsmx_compaction::{
    CompactionPolicy, Debt, FileId, Job, JobInput, JobKind, JobReason, Level, OutputTarget,
    PolicySpec, RunningJobs, TableMeta, TreeShape,
};
use lsmx_simulator::workload::{KeyDistribution, Phase};
use lsmx_simulator::{Config, Report, SUBCOMPACTIONS_DEFAULT, simulate_policy};
use lsmx_testkit::TestRng;

const ENTRIES: u64 = 10_000_000;
const MEMTABLE_BYTES: u64 = 12_152_698;
const TABLE_BYTES: u64 = 8 << 20;
const L1_BYTES: u64 = 7 * MEMTABLE_BYTES;
const SIZE_RATIO: u64 = 10;

/// Simulates the load of R1 with the published strategy Full.
pub(crate) fn simulate_load() -> Option<Report> {
    // Levels above their capacity are merged file by file in key order.
    let spec: PolicySpec = "rr(l1=7)".parse().ok()?;
    let marks = Marks { files: HashSet::new(), random: TestRng::new(0) };
    let policy = PublishedFull { by_capacity: spec.build(), marks: Mutex::new(marks) };
    simulate_policy(&load_config(ENTRIES, 0), &policy, &mut |_| true).ok()
}

/// Returns the configuration of a load with the settings of the study.
pub(crate) fn load_config(inserts: u64, deletes: u64) -> Config {
    let mut load = Phase::new("load", KeyDistribution::Uniform);
    (load.inserts, load.deletes, load.settle) = (inserts, deletes, true);
    Config {
        phases: vec![load],
        key_bytes: 4,
        value_bytes: 124,
        memtable_bytes: MEMTABLE_BYTES,
        table_bytes: TABLE_BYTES,
        block_cache_bytes: 0,
        subcompactions_max: SUBCOMPACTIONS_DEFAULT,
        seed: 0,
    }
}

/// The strategy Full of the published code. [`CompactionPolicy::pick`] changes the marks, so it must be called exactly
/// once after each change of the tree, as the simulator does.
#[derive(Debug)]
struct PublishedFull {
    /// Merges levels above their capacity, and L0.
    by_capacity: Arc<dyn CompactionPolicy>,
    marks: Mutex<Marks>,
}

#[derive(Debug)]
struct Marks {
    /// Marked files. Some of them may no longer exist.
    files: HashSet<FileId>,
    random: TestRng,
}

impl CompactionPolicy for PublishedFull {
    fn name(&self) -> &str {
        "published-full"
    }

    fn pick(&self, shape: &TreeShape, running: &RunningJobs) -> Option<Job> {
        let mut marks = self.marks.lock();
        let last = shape.deepest_level();
        let marked: Vec<(Level, &Arc<TableMeta>)> = shape
            .positioned_files()
            .filter(|(level, _, file)| Some(*level) != last && marks.files.contains(&file.id))
            .map(|(level, _, file)| (level, file))
            .collect();
        marks.update(shape);
        if let Some(job) = self.by_capacity.pick(shape, running) {
            return Some(job);
        }
        if marked.is_empty() {
            return None;
        }
        let (level, file) = *marks.random.choose(&marked);
        merge_down(shape, level, file)
    }

    fn debt(&self, shape: &TreeShape, running: &RunningJobs) -> Debt {
        self.by_capacity.debt(shape, running)
    }

    fn must_stop_writes(&self, shape: &TreeShape) -> bool {
        self.by_capacity.must_stop_writes(shape)
    }
}

impl Marks {
    /// Marks the files of the level with the highest score. Then unmarks the file of each level with a single file,
    /// except the last level.
    fn update(&mut self, shape: &TreeShape) {
        let Some(last) = shape.deepest_level() else { return };
        let levels = || (0..=last.0).map(Level);
        let mut best = (Level(0), 0.0);
        for level in levels() {
            let found = score(shape, level);
            if found > best.1 {
                best = (level, found);
            }
        }
        let files_of = |level| shape.runs_of(level).iter().flat_map(|run| run.files.iter());
        self.files.extend(files_of(best.0).map(|file| file.id));
        for level in levels().filter(|level| *level != last) {
            if files_of(level).count() == 1 {
                for file in files_of(level) {
                    self.files.remove(&file.id);
                }
            }
        }
    }
}

/// Returns the score of a level: the number of runs of L0, or bytes ÷ capacity of another level.
fn score(shape: &TreeShape, level: Level) -> f64 {
    if level == Level(0) {
        return to_f64(to_u64(shape.runs_of(level).len()));
    }
    let capacity = L1_BYTES * SIZE_RATIO.pow(u32::from(level.0) - 1);
    to_f64(shape.level_bytes(level)) / to_f64(capacity)
}

/// Returns a job that merges a file into the next level. Returns `None` for a file of L0, because L0 is merged by
/// capacity.
pub(crate) fn merge_down(shape: &TreeShape, level: Level, file: &TableMeta) -> Option<Job> {
    let run = shape.runs_of(level).first().filter(|_| level != Level(0))?;
    let index = run.files.iter().position(|at| at.id == file.id)?;
    let target_level = Level(level.0 + 1);
    let below = shape.runs_of(target_level).first();
    let target = match below {
        Some(run) => OutputTarget::join_run(target_level, run.id),
        None => OutputTarget::newest_run(target_level, shape),
    };
    let mut inputs = vec![JobInput::from_files(level, run, index..index + 1)];
    inputs.extend(below.and_then(|run| JobInput::from_overlap(target_level, run, &file.range)));
    let kind = if inputs.len() > 1 { JobKind::Merge } else { JobKind::Move };
    Some(Job::new(shape, kind, inputs, target, JobReason::custom("marked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_full_writes_half_of_the_published_figure() {
        let report = simulate_load().unwrap();
        let written = to_f64(report.compaction.written_bytes) / to_f64(report.ingested_bytes);
        assert!((12.0..18.0).contains(&written), "{written}");
    }
}
