//! Merges among runs of L0 while a quarantined file blocks the job that the policy wants.
//!
//! L0 leaves for the next level whole and oldest run first, so one quarantined file in L0 or below it can
//! block that. Runs of L0 that are neighbours may become one run of L0 in any case. Such merges keep L0 below
//! the policy's hard stop until the quarantine ends.

use lsmx_base::sync::Arc;
use lsmx_compaction::{
    FileId, Job, JobInput, JobKind, Level, Placement, Reason, RunningJobs, SortedRun, SplitRule,
    Target, TreeShape,
};

const L0: Level = Level(0);
/// Runs that a merge takes at least, unless writes have stopped.
const RUNS_MIN: usize = 4;
/// The next older run joins a merge if it has at most so many times the bytes of the newer ones. So runs
/// grow as in a tiered tree, and the bytes of a run are written again a logarithmic number of times.
const SIZE_RATIO: u64 = 2;

/// The merge that keeps L0 small while `quarantined` blocks other jobs, if one is due. Where writes have
/// stopped, any two neighbours are enough.
pub(crate) fn merge_in_l0(
    shape: &TreeShape,
    busy: &RunningJobs,
    quarantined: FileId,
    stopped: bool,
) -> Option<Job> {
    let runs = shape.runs_of(L0);
    let idle = |run: &SortedRun| !busy.any_busy(run.files.iter().map(|file| file.id));
    let mut start = 0;
    let mut longest: Option<&[Arc<SortedRun>]> = None;
    while start < runs.len() {
        let count = runs[start..].iter().take_while(|run| idle(run)).count();
        let stretch = &runs[start..start + count];
        let chain = &stretch[..chain(stretch)];
        if chain.len() >= RUNS_MIN {
            return busy.admit(job(runs, chain, shape.table_bytes, quarantined), shape);
        }
        if longest.is_none_or(|longest| stretch.len() > longest.len()) {
            longest = Some(stretch);
        }
        start += count + 1;
    }
    let stretch = longest.filter(|stretch| stopped && stretch.len() >= 2)?;
    let chain = &stretch[..chain(stretch).max(2)];
    busy.admit(job(runs, chain, shape.table_bytes, quarantined), shape)
}

/// How many of the newest of these runs are merged.
fn chain(runs: &[Arc<SortedRun>]) -> usize {
    let mut newer = 0u64;
    let grows = |run: &&Arc<SortedRun>| {
        let fits = newer == 0 || run.bytes() <= newer.saturating_mul(SIZE_RATIO);
        newer = newer.saturating_add(run.bytes());
        fits
    };
    runs.iter().take_while(grows).count()
}

/// These neighbours among `runs` become one run in their place.
fn job(
    runs: &[Arc<SortedRun>],
    chain: &[Arc<SortedRun>],
    file_bytes: u64,
    quarantined: FileId,
) -> Job {
    let last = chain.last().map(|run| run.id);
    let older = runs.iter().skip_while(|run| Some(run.id) != last).nth(1);
    let placement = Placement::NewRun { before: older.map(|run| run.id) };
    Job {
        kind: JobKind::Merge,
        inputs: chain.iter().map(|run| JobInput::from_run(L0, run)).collect(),
        target: Target { level: L0, placement },
        split: SplitRule { file_bytes, grandparent: None, boundaries: Vec::new() },
        reason: Reason::Quarantine { file: quarantined },
    }
}

#[cfg(test)]
mod tests {
    use lsmx_compaction::{KeyRange, LevelShape, RunId, TableMeta};

    use super::*;

    /// L0 of runs of one file each, newest first, with so many bytes.
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

    fn merged(bytes: &[u64], withheld: &[u64], stopped: bool) -> Vec<u64> {
        let (shape, mut busy) = (tree(bytes), RunningJobs::default());
        withheld.iter().for_each(|id| busy.block_file(FileId(*id)));
        let Some(job) = merge_in_l0(&shape, &busy, FileId(9), stopped) else { return Vec::new() };
        shape.apply(&job, Vec::new()).unwrap();
        job.input_files().map(|file| file.0).collect()
    }

    #[test]
    fn neighbours_in_l0_merge_around_a_withheld_run() {
        assert_eq!(merged(&[1, 1, 1, 1, 1], &[4], false), [0, 1, 2, 3]);
        assert_eq!(merged(&[1, 1, 1, 1, 1, 1], &[1], false), [2, 3, 4, 5]);
        assert_eq!(merged(&[1, 1, 1, 1], &[3], false), Vec::<u64>::new());
        assert_eq!(merged(&[1, 1, 1, 1], &[3], true), [0, 1, 2]);
        assert_eq!(merged(&[1, 1, 1, 1, 100], &[], false), [0, 1, 2, 3]);
        assert_eq!(merged(&[1, 100, 1], &[2], true), [0, 1]);
        assert_eq!(merged(&[1, 1, 1, 1, 1], &[1, 3], true), Vec::<u64>::new());
    }
}
