//! Run-list layout: RocksDB's universal compaction.
//!
//! A run is idle if none of its files is busy. Nothing is merged if there are fewer runs than the run count. Otherwise
//! the first applicable rule decides, in the order of the triggers:
//!
//! 1. *Space amplification*: if the size of all runs except the oldest is at least a percentage of the size of the
//!    oldest run, all runs are merged.
//! 2. *Size ratio*: a sequence starts at each run. The next older run joins the sequence if it is at most as large as
//!    the sequence plus the tolerance. The newest sequence with at least the minimum number of runs is merged.
//! 3. *Run count*: if there are more than `runs` idle runs, the newest runs are merged so that `runs` runs remain.
//!
//! A busy run ends a sequence. Rule 1 is skipped while a run is busy.
//!
//! Source: RocksDB 6.11, `compaction_picker_universal.cc`.

use std::ops::Range;
use std::sync::Arc;

use crate::composed::context::{PickContext, len_u64, ratio_milli};
use crate::composed::file_rules::{FileToCompact, find_due_files, rewrite_job};
use crate::composed::primitives::L0;
use crate::ids::{Level, RunId};
use crate::job::{Job, JobInput, JobKind, JobReason, OutputPlacement, OutputTarget};
use crate::key_range::KeyRange;
use crate::run::SortedRun;
use crate::trigger::Trigger;

/// A run of the list.
struct RunCandidate<'a> {
    level: Level,
    run: &'a Arc<SortedRun>,
    bytes: u64,
    is_busy: bool,
}

/// Indices of adjacent runs that are merged, and the reason.
type RunSequence = (Range<usize>, JobReason);

/// Picks jobs of a run list.
pub(super) struct RunListPicker<'a> {
    pub(super) context: PickContext<'a>,
    /// Level of the oldest run after a merge of all runs.
    pub(super) bottom: Level,
    /// This run and all older runs count as busy.
    pub(super) reserved: Option<RunId>,
}

impl RunListPicker<'_> {
    /// Returns the next job.
    pub(super) fn pick(&self) -> Option<Job> {
        let context = &self.context;
        let runs = self.list_runs();
        let count_min = context.primitives.run_counts().map_or(2, |(runs, _)| runs.max(2));
        if let (Some(first), true) = (runs.first(), context.explanation.is_recording()) {
            let score_milli = ratio_milli(len_u64(runs.len()), len_u64(count_min));
            context.explanation.add_score(first.level, "run-count", score_milli);
            context.explanation.add_candidates(|| {
                let line = |run: &RunCandidate<'_>| {
                    let busy = if run.is_busy { ", busy" } else { "" };
                    format!("r{} in {}: {} bytes{busy}", run.run.id.0, run.level, run.bytes)
                };
                runs.iter().map(line).collect()
            });
        }
        context.primitives.rules.iter().find_map(|rule| {
            if rule.trigger.is_file_trigger() {
                return find_due_files(context, rule).iter().find_map(|due| {
                    match due.can_rewrite {
                        true => rewrite_job(context, due),
                        false => self.build_due_file_job(due),
                    }
                });
            }
            if runs.len() < count_min {
                return None;
            }
            let mut sequences = find_due_sequences(&rule.trigger, &runs).into_iter();
            sequences.find_map(|(range, reason)| self.build_sequence_merge(&runs, range, reason))
        })
    }

    fn list_runs(&self) -> Vec<RunCandidate<'_>> {
        let mut is_reserved = false;
        let listed = |(level, run)| {
            let run: &Arc<SortedRun> = run;
            is_reserved |= self.reserved == Some(run.id);
            let is_busy = is_reserved || !self.context.is_run_idle(run);
            RunCandidate { level, run, bytes: run.total_bytes(), is_busy }
        };
        self.context.shape.runs().map(listed).collect()
    }

    /// Returns a job that merges the run of a due file with all older runs.
    pub(super) fn build_due_file_job(&self, due: &FileToCompact<'_>) -> Option<Job> {
        let runs = self.list_runs();
        let start = runs.iter().position(|run| run.run.id == due.run.id)?;
        self.build_sequence_merge(&runs, start..runs.len(), due.reason.clone())
    }

    /// Returns the bytes and the target level of the next job, if this job takes runs of L0.
    pub(super) fn next_l0_job_size(&self) -> Option<(u64, Level)> {
        let job = self.pick().filter(|job| job.source_level() == Some(L0))?;
        Some((job.input_bytes(self.context.shape).ok()?, job.target.level))
    }

    /// Returns a job that turns a sequence of runs into one run.
    fn build_sequence_merge(
        &self,
        runs: &[RunCandidate<'_>],
        range: Range<usize>,
        reason: JobReason,
    ) -> Option<Job> {
        let target = sequence_target(runs, range.clone(), self.bottom);
        let taken = &runs[range];
        let files = taken.iter().flat_map(|run| &run.run.files);
        let is_disjoint = KeyRange::are_disjoint(files.map(|file| &file.range));
        // A move within the target level would have no effect. If a run of the sequence is in the target level, the
        // sequence is merged instead.
        let leaves_levels = taken.iter().all(|run| run.level != target.level);
        let kind = if leaves_levels && is_disjoint { JobKind::Move } else { JobKind::Merge };
        let inputs = taken.iter().map(|run| JobInput::from_run(run.level, run.run)).collect();
        self.context.build_job(kind, inputs, target, reason)
    }
}

/// Returns the sequences of runs that are due because of a trigger, best sequence first.
fn find_due_sequences(trigger: &Trigger, runs: &[RunCandidate<'_>]) -> Vec<RunSequence> {
    match *trigger {
        Trigger::SpaceAmplification { percent } => {
            space_amplification(runs, percent).into_iter().collect()
        }
        Trigger::SizeRatio { percent, runs_min, runs_max } => {
            size_ratio(runs, percent, runs_min.max(2), runs_max)
        }
        Trigger::RunCount { runs: count, .. } => run_count(runs, count).into_iter().collect(),
        // Levels of a run list have no capacity, and the caller handles triggers that test single files.
        _ => Vec::new(),
    }
}

fn space_amplification(runs: &[RunCandidate<'_>], percent_max: u64) -> Option<RunSequence> {
    let (oldest, newer) = runs.split_last()?;
    let bytes: u128 = newer.iter().map(|run| u128::from(run.bytes)).sum();
    let percent = bytes * 100 / u128::from(oldest.bytes.max(1));
    let is_due = !newer.is_empty() && percent >= u128::from(percent_max);
    let percent = u64::try_from(percent).unwrap_or(u64::MAX);
    (is_due && runs.iter().all(|run| !run.is_busy))
        .then_some((0..runs.len(), JobReason::SpaceAmplification { percent }))
}

fn size_ratio(
    runs: &[RunCandidate<'_>],
    percent: u64,
    runs_min: usize,
    runs_max: usize,
) -> Vec<RunSequence> {
    let mut found = Vec::new();
    for start in 0..runs.len() {
        let (mut end, mut bytes) = (start, 0u128);
        while let Some(next) = runs.get(end).filter(|run| !run.is_busy && end - start < runs_max) {
            let is_similar =
                end == start || bytes * (100 + u128::from(percent)) / 100 >= u128::from(next.bytes);
            if !is_similar {
                break;
            }
            bytes += u128::from(next.bytes);
            end += 1;
        }
        if end - start >= runs_min {
            found.push((start..end, JobReason::SizeRatio { runs: end - start }));
        }
    }
    found
}

fn run_count(runs: &[RunCandidate<'_>], count: usize) -> Option<RunSequence> {
    let idle = runs.iter().filter(|run| !run.is_busy).count();
    let start = runs.iter().position(|run| !run.is_busy)?;
    let wanted = (idle + 1).checked_sub(count).filter(|_| idle > count)?;
    let taken = runs[start..].iter().take(wanted).take_while(|run| !run.is_busy).count();
    let reason = JobReason::RunCount { level: runs[start].level, runs: idle };
    (taken >= 2).then_some((start..start + taken, reason))
}

/// Returns the position of the run that a merge of `range` writes.
///
/// If the sequence includes the oldest run, the position is in the bottom level. Otherwise it is in the level above the
/// next older run. If the sequence ends in the level of the next older run, the position is in that level, directly
/// before that run.
fn sequence_target(runs: &[RunCandidate<'_>], range: Range<usize>, bottom: Level) -> OutputTarget {
    let oldest_level = runs[..range.end].last().map_or(L0, |run| run.level);
    let Some(next) = runs.get(range.end) else {
        return OutputTarget::oldest_run(bottom.max(oldest_level));
    };
    let level = Level(next.level.0.saturating_sub(1)).max(oldest_level);
    let before = (level == next.level).then_some(next.run.id);
    OutputTarget { level, placement: OutputPlacement::NewRun { before } }
}
