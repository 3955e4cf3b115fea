//! A compaction that a user asked for: all data of a range of keys into one sorted run.
//!
//! 1. From the newest run to the oldest, every file that overlaps the range joins the job; from L0
//!    whole runs, and with one all older ones, for they leave oldest first. Each file widens the range
//!    for the runs below it, so that nothing older can come to stand above something newer.
//! 2. The outputs go to the oldest run of the deepest level. What is there already and has nothing
//!    above it is written again only where it holds tombstones.
//! 3. While the job waits for running ones to let its files go, the policy picks no new ones in the
//!    tree.

use std::ops::Bound;

use lsmx_compaction::{
    BusyFiles, CutRule, Job, JobInput, JobKind, KeyRange, Level, Placement, Reason, RunShape,
    Target, TreeShape,
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
    /// Running jobs are in the way.
    Wait,
}

/// The job that brings the data of a range together, if there is need for one.
///
/// # Errors
/// If the shape contradicts itself.
pub(crate) fn plan(
    shape: &TreeShape,
    busy: &BusyFiles,
    bounds: &Bounds,
) -> Result<Plan, lsmx_compaction::Error> {
    let Some(deepest) = shape.deepest() else { return Ok(Plan::Nothing) };
    let level = deepest.max(Level(1));
    let inputs = inputs(shape, bounds);
    let last = shape.runs_of(level).last();
    let in_last = |input: &JobInput| last.is_some_and(|run| run.id == input.run);
    let job = |kind, inputs, placement| Job {
        kind,
        inputs,
        target: Target { level, placement },
        cut: CutRule { file_bytes: shape.table_bytes, grandparent: None, boundaries: Vec::new() },
        reason: Reason::Manual,
    };
    let job = match (inputs.as_slice(), last) {
        ([], _) => return Ok(Plan::Nothing),
        ([only], Some(last)) if in_last(only) => {
            let stale = |id| last.files.iter().any(|file| file.id == id && file.tombstones > 0);
            let files: Vec<_> = only.files.iter().copied().filter(|&id| stale(id)).collect();
            if files.is_empty() {
                return Ok(Plan::Nothing);
            }
            let inputs = vec![JobInput { level, run: last.id, files }];
            job(JobKind::Rewrite, inputs, Placement::JoinRun(last.id))
        }
        (_, Some(last)) => job(JobKind::Merge, inputs, Placement::JoinRun(last.id)),
        (_, None) => job(JobKind::Merge, inputs, Placement::NewRun { before: None }),
    };
    match busy.admits(&job, shape)? {
        true => Ok(Plan::Run(Box::new(job))),
        false => Ok(Plan::Wait),
    }
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
fn between(
    run: &RunShape,
    range: Option<&KeyRange>,
    takes_part: bool,
) -> Vec<lsmx_compaction::FileId> {
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
