//! Merges of L0 runs while a quarantined file or a manual compaction blocks the job of the policy. A file is
//! quarantined while background jobs cannot read it.
//!
//! A compaction removes whole runs from L0, from oldest to newest. One quarantined file in L0 or L1 can therefore block
//! all runs of L0, and so can a manual compaction, which may take hours. Adjacent L0 runs can still be merged into one
//! L0 run. Such merges keep the number of L0 runs below the hard stop of the policy until the block ends.

use lsmx_base::sync::Arc;
use lsmx_compaction::{
    Job, JobInput, JobKind, JobReason, Level, OutputPlacement, OutputTarget, RunningJobs,
    SortedRun, SplitRule, TreeShape,
};

const L0: Level = Level(0);
/// Minimum number of runs in a merge, except while writes are stopped.
const RUNS_MIN: usize = 4;
/// A merge ends before a run that is larger than this multiple of the total size of all newer runs in the merge. As in
/// tiering, the write amplification is therefore at most logarithmic in the size of the data.
const SIZE_RATIO: u64 = 2;

/// Returns a merge of L0 runs that uses no busy or quarantined file. Returns `None` if no merge is needed. `reason`
/// becomes the reason of the job.
///
/// While writes are stopped, a merge may consist of only two runs.
pub(crate) fn pick_l0_merge(
    shape: &TreeShape,
    busy: &RunningJobs,
    reason: JobReason,
    stopped: bool,
) -> Option<Job> {
    let runs = shape.runs_of(L0);
    let is_idle = |run: &SortedRun| !busy.is_any_file_busy(run.files.iter().map(|file| file.id));
    let mut start = 0;
    let mut longest: Option<&[Arc<SortedRun>]> = None;
    while start < runs.len() {
        let count = runs[start..].iter().take_while(|run| is_idle(run)).count();
        let idle_runs = &runs[start..start + count];
        let chain = &idle_runs[..count_merged_runs(idle_runs)];
        if chain.len() >= RUNS_MIN {
            return busy.admit_job(build_merge(runs, chain, shape.table_bytes, reason), shape);
        }
        if longest.is_none_or(|longest| idle_runs.len() > longest.len()) {
            longest = Some(idle_runs);
        }
        start += count + 1;
    }
    let idle_runs = longest.filter(|idle_runs| stopped && idle_runs.len() >= 2)?;
    let chain = &idle_runs[..count_merged_runs(idle_runs).max(2)];
    busy.admit_job(build_merge(runs, chain, shape.table_bytes, reason), shape)
}

/// Returns the number of runs to merge. `runs` is ordered from newest to oldest.
fn count_merged_runs(runs: &[Arc<SortedRun>]) -> usize {
    let mut newer_bytes = 0u64;
    let fits_ratio = |run: &&Arc<SortedRun>| {
        let fits = newer_bytes == 0 || run.total_bytes() <= newer_bytes.saturating_mul(SIZE_RATIO);
        newer_bytes = newer_bytes.saturating_add(run.total_bytes());
        fits
    };
    runs.iter().take_while(fits_ratio).count()
}

/// Returns a job that replaces the adjacent L0 runs in `chain` by one run.
fn build_merge(
    runs: &[Arc<SortedRun>],
    chain: &[Arc<SortedRun>],
    file_bytes: u64,
    reason: JobReason,
) -> Job {
    let last = chain.last().map(|run| run.id);
    let older = runs.iter().skip_while(|run| Some(run.id) != last).nth(1);
    let placement = OutputPlacement::NewRun { before: older.map(|run| run.id) };
    Job {
        kind: JobKind::Merge,
        inputs: chain.iter().map(|run| JobInput::from_run(L0, run)).collect(),
        target: OutputTarget { level: L0, placement },
        split: SplitRule { file_bytes, grandparent: None, boundaries: Vec::new() },
        reason,
    }
}

#[cfg(test)]
mod tests {
    use lsmx_compaction::{FileId, KeyRange, LevelShape, RunId, TableMeta};

    use super::*;

    /// Returns a shape with one file per L0 run. `bytes` contains the sizes of the files, from the newest to the oldest
    /// run.
    fn tree(bytes: &[u64]) -> TreeShape {
        let run = |(id, bytes): (u64, &u64)| {
            let range = KeyRange::new("a", "z");
            let file = TableMeta { bytes: *bytes, ..TableMeta::new(FileId(id), range) };
            Arc::new(SortedRun { id: RunId(id), files: [Arc::new(file)].into_iter().collect() })
        };
        let runs = (0..).zip(bytes).map(run).collect();
        let level = Arc::new(LevelShape { runs, cursor: None });
        TreeShape { levels: vec![level], table_bytes: 1 << 20, ..TreeShape::default() }
    }

    fn merged(bytes: &[u64], excluded: &[u64], stopped: bool) -> Vec<u64> {
        let (shape, mut busy) = (tree(bytes), RunningJobs::default());
        excluded.iter().for_each(|id| busy.block_file(FileId(*id)));
        let reason = JobReason::Quarantine { file: FileId(9) };
        let Some(job) = pick_l0_merge(&shape, &busy, reason, stopped) else { return Vec::new() };
        shape.apply_job(&job, Vec::new()).unwrap();
        job.input_files().map(|file| file.0).collect()
    }

    #[test]
    fn l0_merge_skips_quarantined_run() {
        assert_eq!(merged(&[1, 1, 1, 1, 1], &[4], false), [0, 1, 2, 3]);
        assert_eq!(merged(&[1, 1, 1, 1, 1, 1], &[1], false), [2, 3, 4, 5]);
        assert_eq!(merged(&[1, 1, 1, 1], &[3], false), Vec::<u64>::new());
        assert_eq!(merged(&[1, 1, 1, 1], &[3], true), [0, 1, 2]);
        assert_eq!(merged(&[1, 1, 1, 1, 100], &[], false), [0, 1, 2, 3]);
        assert_eq!(merged(&[1, 100, 1], &[2], true), [0, 1]);
        assert_eq!(merged(&[1, 1, 1, 1, 1], &[1, 3], true), Vec::<u64>::new());
    }
}
