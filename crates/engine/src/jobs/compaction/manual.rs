//! Manual compactions: merge all data of a key range into one sorted run.
//!
//! 1. The runs are visited from newest to oldest. All files that overlap the key range are inputs. Each input extends
//!    the key range for older runs. An older entry can therefore never end up in a newer run than a newer entry of the
//!    same key. If a run of L0 is an input, all older runs of L0 are inputs as well, because runs leave L0 from oldest
//!    to newest.
//! 2. The outputs are added to the oldest run of the deepest level. If the inputs are already in this run, files are
//!    rewritten only if they contain tombstones, or if the keyspace has a compaction filter.
//! 3. If the inputs are used by running jobs, the manual compaction waits. During this time, the policy picks no jobs
//!    for the tree. If L0 is half full, its runs are merged with each other.

use std::collections::BTreeSet;
use std::ops::Bound;

use lsmx_compaction::{
    FileId, Job, JobInput, JobKind, JobReason, Key, KeyRange, Level, OutputPlacement, OutputTarget,
    RunningJobs, SortedRun, SplitRule, TreeShape,
};

use bytes::Bytes;

/// Lower and upper bound of a key range.
pub(crate) type KeyBounds = (Bound<Bytes>, Bound<Bytes>);

/// Next step of a manual compaction.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ManualPlan {
    /// The key range needs no compaction.
    UpToDate,
    /// The job can run now.
    Run(Box<Job>),
    /// The job must wait, because its inputs are busy or it conflicts with a running job.
    Wait(Box<Job>),
}

/// Returns the job that compacts the key range. If `rewrites_all` is true, files of the last run that contain no
/// tombstones are rewritten, too.
pub(crate) fn plan_manual(
    shape: &TreeShape,
    busy: &RunningJobs,
    bounds: &KeyBounds,
    rewrites_all: bool,
) -> Result<ManualPlan, lsmx_compaction::Error> {
    let Some(deepest) = shape.deepest_level() else { return Ok(ManualPlan::UpToDate) };
    let level = deepest.max(Level(1));
    let inputs = select_inputs(shape, bounds);
    let last = shape.runs_of(level).last();
    let is_in_last_run = |input: &JobInput| last.is_some_and(|run| run.id == input.run);
    let job_with_cut = |kind, inputs, placement, boundaries| Job {
        kind,
        inputs,
        target: OutputTarget { level, placement },
        split: SplitRule { file_bytes: shape.table_bytes, grandparent: None, boundaries },
        reason: JobReason::Manual,
    };
    let job = |kind, inputs, placement| job_with_cut(kind, inputs, placement, Vec::new());
    let job = match (inputs.as_slice(), last) {
        ([], _) => return Ok(ManualPlan::UpToDate),
        ([input], Some(last)) if is_in_last_run(input) => {
            let (files, boundaries) = select_to_rewrite(last, input, rewrites_all);
            if files.is_empty() {
                return Ok(ManualPlan::UpToDate);
            }
            let inputs = vec![JobInput { level, run: last.id, files }];
            job_with_cut(JobKind::Rewrite, inputs, OutputPlacement::JoinRun(last.id), boundaries)
        }
        (_, Some(last)) => job(JobKind::Merge, inputs, OutputPlacement::JoinRun(last.id)),
        (_, None) => job(JobKind::Merge, inputs, OutputPlacement::NewRun { before: None }),
    };
    match busy.can_run_job(&job, shape)? {
        true => Ok(ManualPlan::Run(Box::new(job))),
        false => Ok(ManualPlan::Wait(Box::new(job))),
    }
}

/// Selects the input files to rewrite: those with tombstones, or all of them. Also returns the keys at which outputs
/// must be split, so that no output overlaps a file that is not rewritten.
fn select_to_rewrite(
    run: &SortedRun,
    input: &JobInput,
    rewrites_all: bool,
) -> (Vec<FileId>, Vec<Key>) {
    let candidates: BTreeSet<_> = input.files.iter().collect();
    let (mut files, mut boundaries, mut gap) = (Vec::new(), Vec::new(), false);
    for file in &run.files {
        let is_rewritten = (rewrites_all || file.tombstones > 0) && candidates.contains(&file.id);
        if is_rewritten {
            files.push(file.id);
            if gap {
                boundaries.push(file.range.smallest.clone());
            }
        }
        gap = !is_rewritten;
    }
    (files, boundaries)
}

/// Returns all files that must be merged together, ordered from the newest to the oldest run.
fn select_inputs(shape: &TreeShape, bounds: &KeyBounds) -> Vec<JobInput> {
    let mut inputs = Vec::new();
    let mut hull: Option<KeyRange> = None;
    let mut takes_l0 = false;
    for (level, run) in shape.runs() {
        let files: Vec<_> = if level == Level(0) {
            takes_l0 |= run.files.iter().any(|file| overlaps(&file.range, bounds));
            if takes_l0 { run.files.iter().collect() } else { Vec::new() }
        } else {
            let is_selected = |range: &KeyRange| {
                overlaps(range, bounds) || hull.as_ref().is_some_and(|hull| hull.overlaps(range))
            };
            run.files.iter().filter(|file| is_selected(&file.range)).collect()
        };
        for file in &files {
            hull = Some(match hull {
                None => file.range.clone(),
                Some(range) => range.enclosing_both(&file.range),
            });
        }
        // The enclosing range may cover further files between the selected files. They become inputs as well.
        let files = overlapping_file_ids(run, hull.as_ref(), !files.is_empty());
        if !files.is_empty() {
            inputs.push(JobInput { level, run: run.id, files });
        }
    }
    inputs
}

/// Returns the files of a run that overlap `range`. Returns no files if no file of the run was selected.
fn overlapping_file_ids(
    run: &SortedRun,
    range: Option<&KeyRange>,
    is_selected: bool,
) -> Vec<FileId> {
    match range {
        Some(range) if is_selected => {
            run.overlapping_files(range).iter().map(|file| file.id).collect()
        }
        _ => Vec::new(),
    }
}

fn overlaps(range: &KeyRange, (lower, upper): &KeyBounds) -> bool {
    let reaches_lower = match lower {
        Bound::Unbounded => true,
        Bound::Included(key) => range.largest >= *key,
        Bound::Excluded(key) => range.largest > *key,
    };
    let reaches_upper = match upper {
        Bound::Unbounded => true,
        Bound::Included(key) => range.smallest <= *key,
        Bound::Excluded(key) => range.smallest < *key,
    };
    reaches_lower && reaches_upper
}

#[cfg(test)]
mod tests {
    use super::*;
    use lsmx_base::sync::Arc;
    use lsmx_compaction::{LevelShape, RunId, TableMeta};

    fn file(id: u64, key: &'static str, tombstones: u64) -> Arc<TableMeta> {
        Arc::new(TableMeta {
            bytes: 10,
            entries: 1,
            tombstones,
            seq_smallest: id,
            seq_largest: id,
            ..TableMeta::new(FileId(id), KeyRange::new(key, key))
        })
    }

    #[test]
    fn plan_rewrite_of_last_run_skips_files_without_tombstones() {
        let files = vec![file(0, "a", 1), file(1, "b", 0), file(2, "c", 1), file(3, "d", 2)];
        let run = Arc::new(SortedRun { id: RunId(7), files: files.into() });
        let level = Arc::new(LevelShape { runs: vec![run], cursor: None });
        let shape = TreeShape { levels: vec![Arc::default(), level], ..TreeShape::default() };
        let all = (Bound::Unbounded, Bound::Unbounded);
        let plan =
            |rewrites_all| match plan_manual(&shape, &RunningJobs::default(), &all, rewrites_all)
                .unwrap()
            {
                ManualPlan::Run(job) => job,
                other => panic!("the job can run: {other:?}"),
            };
        let job = plan(false);
        assert_eq!(job.kind, JobKind::Rewrite);
        assert_eq!(job.inputs[0].files, [FileId(0), FileId(2), FileId(3)]);
        assert_eq!(job.split.boundaries, [Key::from("c")]);
        let job = plan(true);
        assert_eq!(job.inputs[0].files, [0, 1, 2, 3].map(FileId));
        assert!(job.split.boundaries.is_empty());
    }
}
