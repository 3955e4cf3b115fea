//! A compaction that a user asked for: all data of a range of keys into one sorted run.
//!
//! 1. From the newest run to the oldest, every file that overlaps the range joins the job; from L0
//!    whole runs, and with one all older ones, for they leave oldest first. Each file widens the range
//!    for the runs below it, so that nothing older can come to stand above something newer.
//! 2. The outputs go to the oldest run of the deepest level. What is there already and has nothing
//!    above it is written again only where it holds tombstones.
//! 3. While the job waits for running ones to let its files go, the policy picks no new ones in the
//!    tree.

use std::collections::BTreeSet;
use std::ops::Bound;

use lsmx_compaction::{
    FileId, Job, JobInput, JobKind, Key, KeyRange, Level, Placement, Reason, RunningJobs,
    SortedRun, SplitRule, Target, TreeShape,
};

use bytes::Bytes;

/// Two ends of a range of keys.
pub(crate) type Bounds = (Bound<Bytes>, Bound<Bytes>);

/// What is to be done about a range.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// It is as it should be.
    Nothing,
    /// This job may run now.
    Run(Box<Job>),
    /// This job has to wait: its files are busy, or running jobs are in the way.
    Wait(Box<Job>),
}

/// The job that brings the data of a range together, if there is need for one.
///
/// # Errors
/// If the shape contradicts itself.
pub(crate) fn plan(
    shape: &TreeShape,
    busy: &RunningJobs,
    bounds: &Bounds,
) -> Result<Plan, lsmx_compaction::Error> {
    let Some(deepest) = shape.deepest_level() else { return Ok(Plan::Nothing) };
    let level = deepest.max(Level(1));
    let inputs = inputs(shape, bounds);
    let last = shape.runs_of(level).last();
    let in_last = |input: &JobInput| last.is_some_and(|run| run.id == input.run);
    let job_cut = |kind, inputs, placement, boundaries| Job {
        kind,
        inputs,
        target: Target { level, placement },
        split: SplitRule { file_bytes: shape.table_bytes, grandparent: None, boundaries },
        reason: Reason::Manual,
    };
    let job = |kind, inputs, placement| job_cut(kind, inputs, placement, Vec::new());
    let job = match (inputs.as_slice(), last) {
        ([], _) => return Ok(Plan::Nothing),
        ([only], Some(last)) if in_last(only) => {
            let (files, boundaries) = stale(last, only);
            if files.is_empty() {
                return Ok(Plan::Nothing);
            }
            let inputs = vec![JobInput { level, run: last.id, files }];
            job_cut(JobKind::Rewrite, inputs, Placement::JoinRun(last.id), boundaries)
        }
        (_, Some(last)) => job(JobKind::Merge, inputs, Placement::JoinRun(last.id)),
        (_, None) => job(JobKind::Merge, inputs, Placement::NewRun { before: None }),
    };
    match busy.can_run(&job, shape)? {
        true => Ok(Plan::Run(Box::new(job))),
        false => Ok(Plan::Wait(Box::new(job))),
    }
}

/// The files that hold tombstones, and where outputs have to end so that none reaches over a file
/// between them that stays as it is.
fn stale(run: &SortedRun, among: &JobInput) -> (Vec<FileId>, Vec<Key>) {
    let among: BTreeSet<_> = among.files.iter().collect();
    let (mut files, mut boundaries, mut gap) = (Vec::new(), Vec::new(), false);
    for file in &run.files {
        let stale = file.tombstones > 0 && among.contains(&file.id);
        if stale {
            files.push(file.id);
            if gap {
                boundaries.push(file.range.smallest.clone());
            }
        }
        gap = !stale;
    }
    (files, boundaries)
}

/// All files that have to go together, newest run first.
fn inputs(shape: &TreeShape, bounds: &Bounds) -> Vec<JobInput> {
    let mut inputs = Vec::new();
    let mut widened: Option<KeyRange> = None;
    let mut l0_leaves = false;
    for (level, run) in shape.runs() {
        let files: Vec<_> = if level == Level(0) {
            l0_leaves |= run.files.iter().any(|file| overlaps(&file.range, bounds));
            if l0_leaves { run.files.iter().collect() } else { Vec::new() }
        } else {
            let wanted = |range: &KeyRange| {
                overlaps(range, bounds)
                    || widened.as_ref().is_some_and(|widened| widened.overlaps(range))
            };
            run.files.iter().filter(|file| wanted(&file.range)).collect()
        };
        for file in &files {
            widened = Some(match widened {
                None => file.range.clone(),
                Some(range) => range.hull(&file.range),
            });
        }
        // The hull may cover files between those that were chosen.
        let files = between(run, widened.as_ref(), !files.is_empty());
        if !files.is_empty() {
            inputs.push(JobInput { level, run: run.id, files });
        }
    }
    inputs
}

/// The files of a run that overlap the range, if any of them takes part.
fn between(run: &SortedRun, range: Option<&KeyRange>, takes_part: bool) -> Vec<FileId> {
    match range {
        Some(range) if takes_part => run.overlapping(range).iter().map(|file| file.id).collect(),
        _ => Vec::new(),
    }
}

fn overlaps(range: &KeyRange, (lower, upper): &Bounds) -> bool {
    let above = match lower {
        Bound::Unbounded => true,
        Bound::Included(key) => range.largest >= *key,
        Bound::Excluded(key) => range.largest > *key,
    };
    let below = match upper {
        Bound::Unbounded => true,
        Bound::Included(key) => range.smallest <= *key,
        Bound::Excluded(key) => range.smallest < *key,
    };
    above && below
}

#[cfg(test)]
mod tests {
    use super::*;
    use lsmx_base::sync::Arc;
    use lsmx_compaction::{LevelShape, RunId, TableMeta};

    fn file(id: u64, key: &'static str, tombstones: u64) -> Arc<TableMeta> {
        Arc::new(TableMeta {
            id: FileId(id),
            range: KeyRange::new(key, key),
            bytes: 10,
            entries: 1,
            tombstones,
            tombstone_seq_smallest: None,
            value_bytes: 0,
            oldest_tombstone_us: None,
            seq_smallest: id,
            seq_largest: id,
            last_read_us: 0,
            created_us: 0,
            creation: id,
        })
    }

    #[test]
    fn a_rewrite_of_the_last_run_leaves_what_lies_between_alone() {
        let files = vec![file(0, "a", 1), file(1, "b", 0), file(2, "c", 1), file(3, "d", 2)];
        let run = Arc::new(SortedRun { id: RunId(7), files: files.into() });
        let level = Arc::new(LevelShape { runs: vec![run], cursor: None });
        let shape = TreeShape { levels: vec![Arc::default(), level], ..TreeShape::default() };
        let all = (Bound::Unbounded, Bound::Unbounded);
        let Plan::Run(job) = plan(&shape, &RunningJobs::default(), &all).unwrap() else {
            panic!("there are tombstones");
        };
        assert_eq!(job.kind, JobKind::Rewrite);
        assert_eq!(job.inputs[0].files, [FileId(0), FileId(2), FileId(3)]);
        assert_eq!(job.split.boundaries, [Key::from("c")]);
    }
}
