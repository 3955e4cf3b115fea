//! The strategies RR and TSA as the published code of the study picks files, on the simulator.
//!
//! The code (github.com/BU-DiSC/LSM-Compaction-Analysis, commit 6ded10f, `db/version_set.cc`) sorts the files of all
//! levels after each change of the tree. A level above its capacity then merges its first file.
//!
//! - RR counts the files of a level in key order. With each change of the tree, the position in each level moves to the
//!   next file, even if no file of the level was merged.
//! - TSA puts files with too old tombstones first, and then the files with the fewest tombstones. The overlap with the
//!   next level does not matter.

use lsmx_base::sync::{Arc, Mutex};
use lsmx_compaction::{
    CompactionPolicy, Debt, Job, JobReason, Level, PolicySpec, RunningJobs, TreeShape,
};
use lsmx_simulator::{Report, simulate_policy};

use crate::published_full::{load_config, merge_down};

/// Order in which the published code picks files of a level above its capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublishedPick {
    RoundRobin,
    FewestTombstones,
}

/// A preset that picks other files of levels above their capacity. [`CompactionPolicy::pick`] changes the positions, so
/// it must be called exactly once after each change of the tree, as the simulator does.
#[derive(Debug)]
struct PublishedPicks {
    preset: Arc<dyn CompactionPolicy>,
    pick: PublishedPick,
    /// Position of [`PublishedPick::RoundRobin`] in each level.
    positions: Mutex<Vec<usize>>,
}

/// Simulates a load of unique keys under a preset that picks files like the published code. `deletes` is the number of
/// deletes between the inserts.
pub(crate) fn simulate_picks(
    preset: &str,
    pick: PublishedPick,
    inserts: u64,
    deletes: u64,
) -> Option<Report> {
    let spec: PolicySpec = preset.parse().ok()?;
    // Each operation of the simulator takes one microsecond.
    let preset = spec.with_experiment_duration(inserts + deletes).build();
    let policy = PublishedPicks { preset, pick, positions: Mutex::new(Vec::new()) };
    simulate_policy(&load_config(inserts, deletes), &policy, &mut |_| true).ok()
}

impl CompactionPolicy for PublishedPicks {
    fn name(&self) -> &str {
        "published-picks"
    }

    fn pick(&self, shape: &TreeShape, running: &RunningJobs) -> Option<Job> {
        let indices = self.advance_positions(shape);
        let job = self.preset.pick(shape, running)?;
        let level = match job.reason {
            JobReason::LevelFull { level, .. } if level != Level(0) => level,
            _ => return Some(job),
        };
        let files = &shape.runs_of(level).first()?.files;
        let file = match self.pick {
            PublishedPick::RoundRobin => files.get(*indices.get(level.index())?),
            PublishedPick::FewestTombstones => files.iter().min_by_key(|file| file.tombstones),
        };
        merge_down(shape, level, file?)
    }

    fn debt(&self, shape: &TreeShape, running: &RunningJobs) -> Debt {
        self.preset.debt(shape, running)
    }

    fn must_stop_writes(&self, shape: &TreeShape) -> bool {
        self.preset.must_stop_writes(shape)
    }
}

impl PublishedPicks {
    /// Moves the position of each level with files by one file. Returns the index of the file to merge for each level.
    fn advance_positions(&self, shape: &TreeShape) -> Vec<usize> {
        let mut positions = self.positions.lock();
        let levels = positions.len().max(shape.levels.len());
        positions.resize(levels, 0);
        let levels = positions.iter_mut().zip(&shape.levels);
        levels.map(|(position, level)| advance(position, level.files().count())).collect()
    }
}

/// Moves the position in a level with this number of files. Returns the index of the file to merge.
fn advance(position: &mut usize, files: usize) -> usize {
    if files == 0 {
        return 0;
    }
    // If the level has become smaller than the position, the code starts again with the second file.
    let index = if *position > files { 1 } else { *position };
    *position = index + 1;
    index % files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_visits_all_files_and_starts_again() {
        let mut position = 0;
        let files = [3, 3, 3, 3, 3, 0, 2];
        assert_eq!(files.map(|files| advance(&mut position, files)), [0, 1, 2, 0, 1, 0, 0]);
    }

    #[test]
    fn published_picks_move_more_than_least_overlap() {
        let inserts = 10_000_000;
        let least_overlap = |deletes| {
            let spec: PolicySpec = "lo+1(l1=7)".parse().unwrap();
            lsmx_simulator::simulate(&load_config(inserts, deletes), &spec, &mut |_| true).unwrap()
        };
        for (preset, pick, deletes, range) in [
            ("rr(l1=7)", PublishedPick::RoundRobin, 0, 1.1..1.4),
            ("tsa(0.5,l1=7)", PublishedPick::FewestTombstones, 1_000_000, 2.0..3.0),
        ] {
            let report = simulate_picks(preset, pick, inserts, deletes).unwrap();
            let ratio = report.data_moved_ratio / least_overlap(deletes).data_moved_ratio;
            assert!(range.contains(&ratio), "{preset}: {ratio}");
        }
    }
}
