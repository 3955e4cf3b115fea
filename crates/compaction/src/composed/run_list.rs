//! The tree as one list of runs: RocksDB's universal compaction.
//!
//! Runs are numbered from the newest, r1, to the oldest, rn. Nothing happens below the run count;
//! then the first rule that applies decides:
//!
//! 1. *Space amplification*: the bytes above rn are too many for those of rn: all runs are merged.
//! 2. *Size ratio*: from each start a chain grows while the next older run is not larger than the
//!    chain; the first chain that is long enough is merged.
//! 3. *Run count*: of more idle runs than the count, the newest are merged until as many are left.
//!
//! A run that a running job holds ends a chain, and puts off rule 1.
//!
//! Source: RocksDB 6.11, `compaction_picker_universal.cc`.

use std::sync::Arc;

use super::look::{Look, len_u64, score};
use crate::trigger::Trigger;
use crate::{Job, JobInput, JobKind, KeyRange, Level, Placement, Reason, RunShape, Target};

/// A run with its level, its bytes and whether a running job holds it.
struct Run<'a> {
    level: Level,
    run: &'a Arc<RunShape>,
    bytes: u64,
    busy: bool,
}

impl Look<'_> {
    /// The job that the triggers ask for, in their order.
    pub(super) fn pick_run_list(&self, bottom: Level) -> Option<Job> {
        let runs: Vec<Run<'_>> = self
            .shape
            .runs()
            .map(|(level, run)| Run { level, run, bytes: run.bytes(), busy: !self.is_idle(run) })
            .collect();
        let count_min = self.primitives.run_counts().map_or(2, |(runs, _)| runs.max(2));
        if let (Some(first), true) = (runs.first(), self.notes.are_kept()) {
            let score_milli = score(len_u64(runs.len()), len_u64(count_min));
            self.notes.score(first.level, "run-count", score_milli);
            self.notes.candidates(|| {
                let line = |run: &Run<'_>| {
                    let busy = if run.busy { ", busy" } else { "" };
                    format!("r{} in {}: {} bytes{busy}", run.run.id.0, run.level, run.bytes)
                };
                runs.iter().map(line).collect()
            });
        }
        self.primitives.rules.iter().find_map(|rule| {
            if rule.trigger.is_about_files() {
                return self.due_files(rule).into_iter().find_map(|due| {
                    if due.rewrite {
                        return self.rewrite(&due);
                    }
                    let start = runs.iter().position(|run| run.run.id == due.run.id)?;
                    self.chain_job(&runs, start..runs.len(), bottom, due.reason)
                });
            }
            if runs.len() < count_min {
                return None;
            }
            let chains = chains(&rule.trigger, &runs);
            chains
                .into_iter()
                .find_map(|(chain, reason)| self.chain_job(&runs, chain, bottom, reason))
        })
    }

    /// Neighbouring runs into one.
    fn chain_job(
        &self,
        runs: &[Run<'_>],
        chain: std::ops::Range<usize>,
        bottom: Level,
        reason: Reason,
    ) -> Option<Job> {
        let target = target_of(runs, chain.clone(), bottom);
        let taken = &runs[chain];
        let files = taken.iter().flat_map(|run| &run.run.files);
        let disjoint = KeyRange::are_disjoint(files.map(|file| &file.range));
        // Within a level a move would only rename; merging is what makes one run of many.
        let leaves = taken.iter().all(|run| run.level != target.level);
        let kind = if leaves && disjoint { JobKind::Move } else { JobKind::Merge };
        let inputs = taken.iter().map(|run| JobInput::whole(run.level, run.run)).collect();
        self.admitted(Job { kind, inputs, target, cut: self.cut(target.level), reason })
    }
}

/// The chains that a trigger asks to be merged, first choice first.
fn chains(trigger: &Trigger, runs: &[Run<'_>]) -> Vec<(std::ops::Range<usize>, Reason)> {
    match *trigger {
        Trigger::SpaceAmplification { percent } => {
            space_amplification(runs, percent).into_iter().collect()
        }
        Trigger::SizeRatio { percent, runs_min, runs_max } => {
            size_ratio(runs, percent, runs_min.max(2), runs_max)
        }
        Trigger::RunCount { runs: count, .. } => run_count(runs, count).into_iter().collect(),
        // A list of runs has no level that could be full, and files are looked at elsewhere.
        _ => Vec::new(),
    }
}

fn space_amplification(
    runs: &[Run<'_>],
    percent_max: u64,
) -> Option<(std::ops::Range<usize>, Reason)> {
    let (oldest, newer) = runs.split_last()?;
    let bytes: u128 = newer.iter().map(|run| u128::from(run.bytes)).sum();
    let percent = bytes * 100 / u128::from(oldest.bytes.max(1));
    let due = !newer.is_empty() && percent >= u128::from(percent_max);
    let percent = u64::try_from(percent).unwrap_or(u64::MAX);
    (due && runs.iter().all(|run| !run.busy))
        .then_some((0..runs.len(), Reason::SpaceAmplification { percent }))
}

fn size_ratio(
    runs: &[Run<'_>],
    percent: u64,
    runs_min: usize,
    runs_max: usize,
) -> Vec<(std::ops::Range<usize>, Reason)> {
    let mut found = Vec::new();
    for start in 0..runs.len() {
        let (mut end, mut bytes) = (start, 0u128);
        while let Some(next) = runs.get(end).filter(|run| !run.busy && end - start < runs_max) {
            let fits =
                end == start || bytes * (100 + u128::from(percent)) / 100 >= u128::from(next.bytes);
            if !fits {
                break;
            }
            bytes += u128::from(next.bytes);
            end += 1;
        }
        if end - start >= runs_min {
            found.push((start..end, Reason::SizeRatio { runs: end - start }));
        }
    }
    found
}

fn run_count(runs: &[Run<'_>], count: usize) -> Option<(std::ops::Range<usize>, Reason)> {
    let idle = runs.iter().filter(|run| !run.busy).count();
    let start = runs.iter().position(|run| !run.busy)?;
    let wanted = (idle + 1).checked_sub(count).filter(|_| idle > count)?;
    let taken = runs[start..].iter().take(wanted).take_while(|run| !run.busy).count();
    let reason = Reason::RunCount { level: runs[start].level, runs: idle };
    (taken >= 2).then_some((start..start + taken, reason))
}

/// A chain down to the oldest run goes to the bottom. Any other stands above the run that is next
/// in age: in the level before that one's, or beside it where the chain itself reaches that level.
fn target_of(runs: &[Run<'_>], chain: std::ops::Range<usize>, bottom: Level) -> Target {
    let oldest_level = runs[..chain.end].last().map_or(Level(0), |run| run.level);
    let Some(next) = runs.get(chain.end) else {
        let level = bottom.max(oldest_level);
        return Target { level, placement: Placement::NewRun { before: None } };
    };
    let above = Level(next.level.0.saturating_sub(1));
    let level = above.max(oldest_level);
    let before = (level == next.level).then_some(next.run.id);
    Target { level, placement: Placement::NewRun { before } }
}
