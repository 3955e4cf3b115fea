//! A tree as a policy of primitives sees it, and how jobs are made of it.

use std::sync::Arc;

use super::fluid::Limits;
use super::{L0, Primitives, SCORE_FOREIGN};
use crate::explain::Notes;
use crate::granularity::Granularity;
use crate::layout::Layout;
use crate::trigger::Capacities;
use crate::{
    BusyFiles, CutRule, FileShape, Job, JobInput, JobKind, KeyRange, Level, Placement, Reason,
    RunShape, Target, TreeShape,
};

/// One look at a tree.
#[derive(Clone, Copy)]
pub(super) struct Look<'a> {
    pub(super) primitives: &'a Primitives,
    pub(super) shape: &'a TreeShape,
    pub(super) busy: &'a BusyFiles,
    pub(super) notes: &'a Notes,
}

/// How far a job reaches in the level that it merges into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// All of the level.
    Whole,
    /// What overlaps the sources.
    Overlap,
}

impl<'a> Look<'a> {
    /// Target bytes of an output.
    pub(super) fn file_bytes(&self) -> u64 {
        self.shape.table_bytes.saturating_mul(self.primitives.file_tables).max(1)
    }

    /// Most bytes of a job made out of a choice of files, and most grandparent bytes of an output.
    pub(super) fn job_bytes_max(&self) -> u64 {
        // Whole levels and runs leave no choice: small overlap later would gain nothing.
        match self.primitives.rules.iter().any(|rule| rule.granularity.chooses()) {
            true => self.file_bytes().saturating_mul(self.primitives.grandparent_files),
            false => u64::MAX,
        }
    }

    pub(super) fn cut(&self, target: Level) -> CutRule {
        let bytes_max = self.job_bytes_max();
        let below = Level::from_index(target.index() + 1).filter(|_| bytes_max < u64::MAX);
        CutRule {
            file_bytes: self.file_bytes(),
            grandparent: below.map(|level| (level, bytes_max)),
            boundaries: Vec::new(),
        }
    }

    /// Whether a run is free of running jobs.
    pub(super) fn is_idle(&self, run: &RunShape) -> bool {
        !self.busy.any_busy(run.files.iter().map(|file| file.id))
    }

    /// Bytes of the idle files of a run, as triggers count them.
    pub(super) fn idle_bytes(&self, run: &RunShape) -> u64 {
        if self.busy.files.is_empty() {
            return run.files.compensated_bytes();
        }
        let idle = run.files.iter().filter(|file| !self.busy.is_busy(file.id));
        idle.map(|file| file.compensated_bytes()).fold(0, u64::saturating_add)
    }

    pub(super) fn idle_runs(&self, level: Level) -> impl Iterator<Item = &'a Arc<RunShape>> {
        let look = *self;
        self.shape.runs_of(level).iter().filter(move |run| look.is_idle(run))
    }

    /// A job of `inputs` and what they overlap in `target`, a level of one run or none; `None` if
    /// running jobs stand in its way.
    pub(super) fn job_into(
        &self,
        mut inputs: Vec<JobInput>,
        target: Level,
        reach: Reach,
        reason: Reason,
    ) -> Option<Job> {
        let sources = self.resolve_all(&inputs)?;
        let range = KeyRange::hull_of(sources.iter().map(|file| &file.range))?;
        let target_run = match self.shape.runs_of(target) {
            [] => None,
            [run] => Some(run),
            _ => return None, // First it is brought to one run.
        };
        let kind =
            if self.is_trivial_move(&sources, target) { JobKind::Move } else { JobKind::Merge };
        if let (Some(run), JobKind::Merge) = (target_run, kind) {
            let below = match reach {
                Reach::Whole => &run.files[..],
                Reach::Overlap => run.overlapping(&range),
            };
            if !below.is_empty() {
                let files = below.iter().map(|file| file.id).collect();
                inputs.push(JobInput { level: target, run: run.id, files });
            }
        }
        let placement = match target_run {
            Some(run) => Placement::JoinRun(run.id),
            None => Placement::NewRun { before: None },
        };
        let cut = self.cut(target);
        self.admitted(Job {
            kind,
            inputs,
            target: Target { level: target, placement },
            cut,
            reason,
        })
    }

    /// No file overlaps another one or the target level, and none would be left with so much below
    /// it that its next merge became too large.
    pub(super) fn is_trivial_move(&self, sources: &[&Arc<FileShape>], target: Level) -> bool {
        let bytes_max = self.job_bytes_max();
        let below = Level::from_index(target.index() + 1).filter(|_| bytes_max < u64::MAX);
        KeyRange::are_disjoint(sources.iter().map(|file| &file.range))
            && sources.iter().all(|file| {
                let grandparents =
                    || below.map_or(0, |level| self.shape.overlap_bytes(level, &file.range));
                self.shape.overlap_bytes(target, &file.range) == 0
                    && file.bytes.saturating_add(grandparents()) <= bytes_max
            })
    }

    /// All runs of a level into one, in the same level.
    pub(super) fn merge_in_place(&self, level: Level) -> Option<Job> {
        self.merge_in_place_for(level, Reason::Shape { level })
    }

    pub(super) fn merge_in_place_for(&self, level: Level, reason: Reason) -> Option<Job> {
        let placement = Placement::NewRun { before: None };
        self.merge_runs(level, Target { level, placement }, reason)
    }

    /// All runs of a level into one new run, or a move of them if they are disjoint.
    pub(super) fn merge_runs(&self, level: Level, target: Target, reason: Reason) -> Option<Job> {
        self.merge_or_move(whole_runs(level, self.shape.runs_of(level)), target, reason)
    }

    /// These inputs into one run, or a move of them if they are disjoint.
    pub(super) fn merge_or_move(
        &self,
        inputs: Vec<JobInput>,
        target: Target,
        reason: Reason,
    ) -> Option<Job> {
        let files = self.resolve_all(&inputs)?;
        let disjoint = KeyRange::are_disjoint(files.iter().map(|file| &file.range));
        let kind = if disjoint { JobKind::Move } else { JobKind::Merge };
        let cut = self.cut(target.level);
        self.admitted(Job { kind, inputs, target, cut, reason })
    }

    /// The job, if it may run beside the running ones.
    pub(super) fn admitted(&self, job: Job) -> Option<Job> {
        self.busy.admitted(job, self.shape)
    }

    /// Files of all inputs; `None` if one is not in the tree.
    pub(super) fn resolve_all(&self, inputs: &[JobInput]) -> Option<Vec<&'a Arc<FileShape>>> {
        let mut files = Vec::new();
        for input in inputs {
            files.extend(input.resolve(self.shape).ok()?);
        }
        Some(files)
    }

    /// Whether no file below `run` overlaps `range`.
    pub(super) fn is_undermost(&self, level: Level, run: &RunShape, range: &KeyRange) -> bool {
        let mut below = false;
        for (other_level, other) in self.shape.runs() {
            if below && !other.overlapping(range).is_empty() {
                return false;
            }
            below |= other_level == level && other.id == run.id;
        }
        true
    }

    /// Bytes that the next job out of L0 will write, and the level it writes to; `None` while none
    /// is due.
    pub(super) fn l0_work(&self) -> Option<(u64, Level)> {
        let idle_bytes = || self.idle_runs(L0).map(|run| run.bytes()).sum();
        match &self.primitives.layout {
            Layout::Leveling { tiered } => self.l0_work_of_leveling(tiered),
            Layout::Fluid { upper, last, size_ratio } => {
                let limits = Limits { upper, last: *last, size_ratio: *size_ratio };
                let due = self.idle_runs(L0).count() > limits.runs_max(L0, false);
                due.then(|| (idle_bytes(), Level(1)))
            }
            Layout::RunList { bottom } => {
                let job = self.pick_run_list(*bottom).filter(|job| job.source() == Some(L0))?;
                Some((job.input_bytes(self.shape).ok()?, job.target.level))
            }
            Layout::Queue => None,
        }
    }
}

/// Returns the level that data of `level` goes to: the next one, but between L0 and the base the
/// next one that holds something. `None` for the last level.
pub(super) fn next_level(
    shape: &TreeShape,
    capacities: &Capacities,
    level: Level,
) -> Option<Level> {
    if level >= capacities.last {
        return None;
    }
    let mut next = Level(level.0 + 1); // No overflow: `level` is above another one.
    while next < capacities.base && shape.runs_of(next).is_empty() {
        next = Level(next.0 + 1);
    }
    Some(next)
}

/// A share in thousandths, rounded down; with nothing to hold, anything is too much.
pub(super) fn score(held: u64, limit: u64) -> u64 {
    match limit {
        0 if held == 0 => 0,
        0 => SCORE_FOREIGN,
        _ => u64::try_from(u128::from(held) * 1000 / u128::from(limit)).unwrap_or(SCORE_FOREIGN),
    }
}

pub(super) fn len_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

pub(super) fn whole_runs(level: Level, runs: &[Arc<RunShape>]) -> Vec<JobInput> {
    runs.iter().map(|run| JobInput::whole(level, run)).collect()
}

/// How far jobs of a granularity reach.
pub(super) fn reach_of(granularity: Granularity) -> Reach {
    if granularity == Granularity::Level { Reach::Whole } else { Reach::Overlap }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_exact_thousandths() {
        assert_eq!(score(999, 1000), 999);
        assert_eq!(score(1, 3), 333);
        assert_eq!(score(0, 0), 0);
        assert_eq!(score(1, 0), SCORE_FOREIGN);
        assert_eq!(score(u64::MAX, 1), SCORE_FOREIGN);
    }
}
