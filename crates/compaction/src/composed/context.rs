//! Arguments of one decision of a composed policy, and helper functions that build jobs.

use std::sync::Arc;

use crate::composed::primitives::{L0, PolicyPrimitives};
use crate::explain::ExplanationBuilder;
use crate::granularity::JobGranularity;
use crate::ids::Level;
use crate::job::{Job, JobInput, JobKind, JobReason, OutputTarget, SplitRule, resolve_inputs};
use crate::key_range::KeyRange;
use crate::run::SortedRun;
use crate::running_jobs::RunningJobs;
use crate::shape::TreeShape;
use crate::table_meta::TableMeta;
use crate::trigger::LevelCapacities;

/// Score of a level that does not fit the layout.
pub(super) const SCORE_MISFIT: u64 = u64::MAX;
/// Minimum score at which a job is due.
pub(super) const SCORE_DUE: u64 = 1000;

/// Arguments of one decision of a composed policy.
#[derive(Clone, Copy)]
pub(super) struct PickContext<'a> {
    pub(super) primitives: &'a PolicyPrimitives,
    pub(super) shape: &'a TreeShape,
    pub(super) running: &'a RunningJobs,
    pub(super) explanation: &'a ExplanationBuilder,
}

/// Which files of the target level a job takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetLevelFiles {
    /// All files of the level.
    All,
    /// The files that overlap the inputs.
    Overlapping,
}

impl TargetLevelFiles {
    pub(super) fn from_granularity(granularity: JobGranularity) -> TargetLevelFiles {
        match granularity {
            JobGranularity::Level => TargetLevelFiles::All,
            _ => TargetLevelFiles::Overlapping,
        }
    }
}

impl<'a> PickContext<'a> {
    /// Returns the target size of an output in bytes.
    pub(super) fn file_bytes(&self) -> u64 {
        self.shape.table_bytes.saturating_mul(self.primitives.file_tables).max(1)
    }

    /// Returns the maximum number of input bytes of a job whose files a file picker selects. It is also the maximum
    /// number of bytes of the grandparent level that one output may overlap.
    pub(super) fn job_bytes_max(&self) -> u64 {
        // If no rule uses a file picker, jobs take whole levels. The overlap of a single output does not matter then.
        match self.primitives.rules.iter().any(|rule| rule.granularity.is_file_granular()) {
            true => self.file_bytes().saturating_mul(self.primitives.grandparent_files),
            false => u64::MAX,
        }
    }

    /// Returns the level below `target`. Returns `None` if there is no limit on the overlap of outputs.
    fn grandparent(&self, target: Level) -> Option<Level> {
        Level::from_index(target.index() + 1).filter(|_| self.job_bytes_max() < u64::MAX)
    }

    /// Returns the split rule for the outputs of a job that writes to level `target`.
    pub(super) fn split_rule(&self, target: Level) -> SplitRule {
        let grandparent = self.grandparent(target).map(|level| (level, self.job_bytes_max()));
        SplitRule { grandparent, ..SplitRule::by_size(self.file_bytes()) }
    }

    /// Returns whether no file of the run is busy.
    pub(super) fn is_run_idle(&self, run: &SortedRun) -> bool {
        !self.running.is_any_file_busy(run.files.iter().map(|file| file.id))
    }

    /// Returns the compensated bytes of the files of a run that are not busy.
    pub(super) fn idle_file_bytes(&self, run: &SortedRun) -> u64 {
        if self.running.files.is_empty() {
            return run.files.compensated_bytes();
        }
        let idle = run.files.iter().filter(|file| !self.running.is_file_busy(file.id));
        idle.map(|file| file.compensated_bytes()).fold(0, u64::saturating_add)
    }

    /// Returns the runs of a level that have no busy files.
    pub(super) fn idle_runs(&self, level: Level) -> impl Iterator<Item = &'a Arc<SortedRun>> {
        let context = *self;
        self.shape.runs_of(level).iter().filter(move |run| context.is_run_idle(run))
    }

    /// Returns one input for each run of a level, with all files of the run.
    pub(super) fn level_inputs(&self, level: Level) -> Vec<JobInput> {
        run_inputs(level, self.shape.runs_of(level))
    }

    /// Returns a job that merges `inputs` with files of level `target`. Returns `None` if the level has several runs or
    /// a running job conflicts.
    pub(super) fn build_job_into_level(
        &self,
        mut inputs: Vec<JobInput>,
        target: Level,
        target_files: TargetLevelFiles,
        reason: JobReason,
    ) -> Option<Job> {
        let sources = resolve_inputs(&inputs, self.shape).ok()?;
        let range = KeyRange::enclosing_range(sources.iter().map(|file| &file.range))?;
        let target_run = match self.shape.runs_of(target) {
            [] => None,
            [run] => Some(run),
            _ => return None, // The runs of the target level must first be merged into one run.
        };
        let is_move = self.is_trivial_move(&sources, target);
        if let (Some(run), false) = (target_run, is_move) {
            inputs.extend(match target_files {
                TargetLevelFiles::All => Some(JobInput::from_run(target, run)),
                TargetLevelFiles::Overlapping => JobInput::from_overlap(target, run, &range),
            });
        }
        let target = match target_run {
            Some(run) => OutputTarget::join_run(target, run.id),
            None => OutputTarget::oldest_run(target),
        };
        self.build_job(if is_move { JobKind::Move } else { JobKind::Merge }, inputs, target, reason)
    }

    /// Returns whether the files can be moved to level `target` without a merge.
    ///
    /// The files must overlap neither each other nor files of that level. The later merge of each file into the level
    /// below `target` must read at most [`PickContext::job_bytes_max`] bytes.
    pub(super) fn is_trivial_move(&self, sources: &[&Arc<TableMeta>], target: Level) -> bool {
        let bytes_max = self.job_bytes_max();
        let grandparent = self.grandparent(target);
        KeyRange::are_disjoint(sources.iter().map(|file| &file.range))
            && sources.iter().all(|file| {
                let overlap =
                    || grandparent.map_or(0, |level| self.shape.overlap_bytes(level, &file.range));
                self.shape.overlap_bytes(target, &file.range) == 0
                    && file.bytes.saturating_add(overlap()) <= bytes_max
            })
    }

    /// Returns a job that merges all runs of a level into one run of the same level.
    pub(super) fn merge_in_place(&self, level: Level, reason: JobReason) -> Option<Job> {
        self.merge_or_move(self.level_inputs(level), OutputTarget::oldest_run(level), reason)
    }

    /// Returns whether L0 has at least half of the runs at which writes stop.
    pub(super) fn is_l0_half_full(&self) -> bool {
        self.shape.runs_of(L0).len() >= self.primitives.stop_runs.div_ceil(2)
    }

    /// Returns whether the merge of the surplus runs of a level is tried after the jobs of all other due levels. L0 is
    /// merged into level `l0_target`, directly or through tiered levels.
    ///
    /// This applies to the levels below `l0_target` while L0 has so many runs that writes stop. Otherwise, writes could
    /// wait for the merges of several levels. With a lower limit, runs that are flushed during each merge of L0 could
    /// reach the limit again. A single worker would then never merge the surplus runs, and the level above them would
    /// grow without bound.
    pub(super) fn is_surplus_merge_deferred(&self, level: Level, l0_target: Option<Level>) -> bool {
        self.shape.runs_of(L0).len() >= self.primitives.stop_runs
            && l0_target.is_some_and(|target| level > target)
            && self.shape.runs_of(level).len() > 1
    }

    /// Returns a job that merges the runs of a level that must have one run. L0 is merged into level `l0_target`,
    /// directly or through tiered levels.
    ///
    /// While data is written, at most one such merge of a level below `l0_target` runs at a time. These merges may take
    /// hours. If they used all workers, no worker would merge L0, and writes would stop.
    pub(super) fn merge_surplus_runs(&self, level: Level, l0_target: Option<Level>) -> Option<Job> {
        let is_deep = |job: &Job| {
            job.kind == JobKind::Merge
                && matches!(job.reason, JobReason::Shape { .. })
                && job.source_level() == Some(job.target.level)
                && l0_target.is_some_and(|target| job.target.level > target)
        };
        let job = self.merge_in_place(level, JobReason::Shape { level })?;
        let waits = !self.shape.memtables_empty
            && is_deep(&job)
            && self.running.jobs.iter().any(|(running, _)| is_deep(running));
        (!waits).then_some(job)
    }

    /// Returns a job that turns the inputs into one run. Disjoint inputs are moved, other inputs are merged.
    pub(super) fn merge_or_move(
        &self,
        inputs: Vec<JobInput>,
        target: OutputTarget,
        reason: JobReason,
    ) -> Option<Job> {
        let files = resolve_inputs(&inputs, self.shape).ok()?;
        let is_disjoint = KeyRange::are_disjoint(files.iter().map(|file| &file.range));
        let kind = if is_disjoint { JobKind::Move } else { JobKind::Merge };
        self.build_job(kind, inputs, target, reason)
    }

    /// Returns a job with [`PickContext::split_rule`], or `None` if the job cannot run now.
    pub(super) fn build_job(
        &self,
        kind: JobKind,
        inputs: Vec<JobInput>,
        target: OutputTarget,
        reason: JobReason,
    ) -> Option<Job> {
        let split = self.split_rule(target.level);
        self.admit_job(Job { kind, inputs, target, split, reason })
    }

    /// Returns the job, or `None` if it cannot run now.
    pub(super) fn admit_job(&self, job: Job) -> Option<Job> {
        self.running.admit_job(job, self.shape)
    }

    /// Returns the bytes of all runs of L0 that have no busy files.
    pub(super) fn idle_l0_bytes(&self) -> u64 {
        self.idle_runs(L0).map(|run| run.total_bytes()).sum()
    }
}

/// Returns whether no run older than `run` overlaps `range`.
pub(super) fn is_oldest_in_range(
    shape: &TreeShape,
    level: Level,
    run: &SortedRun,
    range: &KeyRange,
) -> bool {
    let mut is_older = false;
    for (other_level, other) in shape.runs() {
        if is_older && !other.overlapping_files(range).is_empty() {
            return false;
        }
        is_older |= other_level == level && other.id == run.id;
    }
    true
}

/// Returns the level into which data of `level` is merged, or `None` for the last level. This is the next level, except
/// that empty levels above the base level are skipped.
pub(super) fn next_target_level(
    shape: &TreeShape,
    capacities: &LevelCapacities,
    level: Level,
) -> Option<Level> {
    if level >= capacities.last {
        return None;
    }
    let mut next = Level(level.0 + 1); // Cannot overflow, because `level` is above the last level.
    while next < capacities.base && shape.runs_of(next).is_empty() {
        next = Level(next.0 + 1);
    }
    Some(next)
}

/// Returns `value / limit` in thousandths, rounded down. If the limit is 0, any positive value exceeds it.
pub(super) fn ratio_milli(value: u64, limit: u64) -> u64 {
    match limit {
        0 if value == 0 => 0,
        0 => SCORE_MISFIT,
        _ => u64::try_from(u128::from(value) * 1000 / u128::from(limit)).unwrap_or(SCORE_MISFIT),
    }
}

pub(super) fn len_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// Returns one input for each of the runs of a level, with all files of the run.
pub(super) fn run_inputs(level: Level, runs: &[Arc<SortedRun>]) -> Vec<JobInput> {
    runs.iter().map(|run| JobInput::from_run(level, run)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn score_is_thousandths_rounded_down() {
        assert_eq!(ratio_milli(999, 1000), 999);
        assert_eq!(ratio_milli(1, 3), 333);
        assert_eq!(ratio_milli(0, 0), 0);
        assert_eq!(ratio_milli(1, 0), SCORE_MISFIT);
        assert_eq!(ratio_milli(u64::MAX, 1), SCORE_MISFIT);
    }
}
