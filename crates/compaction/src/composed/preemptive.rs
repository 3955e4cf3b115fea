//! Full preemptive merges: a merge goes directly to the first level that can hold its data.
//!
//! If several levels are almost full, merges from level to level would rewrite the same entries once per level. A full
//! preemptive merge combines a flush with levels 1 to q at once. Level q is the first level whose capacity is at least
//! the size of the flush and of all levels from 1 to q.
//!
//! Source: Dayan et al., "Spooky", PVLDB 15 (2022), section 2.

use std::cmp::Reverse;

use crate::composed::context::{PickContext, SCORE_DUE, SCORE_MISFIT, len_u64, ratio_milli};
use crate::composed::file_rules::FileToCompact;
use crate::composed::primitives::L0;
use crate::ids::Level;
use crate::job::{Job, JobReason, OutputTarget};
use crate::trigger::LevelCapacities;

/// Picks jobs of the preemptive granularity.
#[derive(Clone, Copy)]
pub(super) struct PreemptivePicker<'a> {
    pub(super) context: PickContext<'a>,
    pub(super) capacities: &'a LevelCapacities,
}

impl PreemptivePicker<'_> {
    /// Returns the next job.
    pub(super) fn pick(&self) -> Option<Job> {
        let last = self.capacities.last;
        let l0_target = self.find_target_level(L0, last);
        self.find_due_levels(last).into_iter().find_map(|(level, reason)| {
            if level > L0 && self.context.shape.runs_of(level).len() > 1 {
                return self.context.merge_surplus_runs(level, l0_target);
            }
            let target = self.find_target_level(level, last)?;
            self.build_merge_into_level(level, target, reason)
        })
    }

    /// Returns the levels above `limit` from which a merge is due, the most urgent level first.
    ///
    /// L0 is due if it has enough runs. Other levels are due if they do not fit the layout or exceed their capacity.
    /// This happens only after a change of the policy.
    pub(super) fn find_due_levels(&self, limit: Level) -> Vec<(Level, JobReason)> {
        let context = &self.context;
        let (trigger, _) = context.primitives.run_counts().unwrap_or((1, 1));
        let mut due = Vec::new();
        for index in 0..context.shape.levels.len() {
            let Some(level) = Level::from_index(index) else { break };
            let runs = context.shape.runs_of(level).len();
            let bytes = context.shape.level_bytes(level);
            let (name, score_milli) = if level == L0 {
                ("run-count", ratio_milli(len_u64(context.idle_runs(L0).count()), len_u64(trigger)))
            } else if runs > 1 || (runs > 0 && level < self.capacities.base) {
                ("shape", SCORE_MISFIT)
            } else if level < self.capacities.last.min(limit) {
                // Merges may fill a level exactly to its capacity, so a level is due only above its capacity.
                ("level-full", ratio_milli(bytes, self.capacities.bytes(level).saturating_add(1)))
            } else {
                continue;
            };
            context.explanation.add_score(level, name, score_milli);
            if score_milli >= SCORE_DUE {
                let reason = match name {
                    "run-count" => JobReason::RunCount { level, runs },
                    "shape" => JobReason::Shape { level },
                    _ => JobReason::LevelFull { level, score_milli },
                };
                due.push((score_milli, level, reason));
            }
        }
        let l0_target = self.find_target_level(L0, limit);
        due.sort_by_key(|(score_milli, level, _)| {
            let is_deferred = context.is_surplus_merge_deferred(*level, l0_target);
            (is_deferred, Reverse(*score_milli), *level)
        });
        due.into_iter().map(|(_, level, reason)| (level, reason)).collect()
    }

    /// Returns the first level below `source` that can hold its own data and the data of all levels from `source` on.
    /// Returns `limit` if no level above `limit` can hold the data.
    pub(super) fn find_target_level(&self, source: Level, limit: Level) -> Option<Level> {
        let shape = self.context.shape;
        let mut sum = shape.level_bytes(source);
        for level in (source.0..limit.0).map(|above| Level(above + 1)) {
            sum = sum.saturating_add(shape.level_bytes(level));
            let fits = level >= self.capacities.base && self.capacities.bytes(level) >= sum;
            if fits || level == limit {
                return Some(level);
            }
        }
        None
    }

    /// Returns the bytes of the next job that takes data from L0, and its target level. Returns `None` if no such job
    /// is due.
    pub(super) fn next_l0_job_size(&self, limit: Level) -> Option<(u64, Level)> {
        self.find_due_levels(limit).into_iter().find(|(level, _)| *level == L0)?;
        let target = self.find_target_level(L0, limit)?;
        let levels = (0..=target.0).map(Level);
        Some((levels.map(|level| self.context.shape.level_bytes(level)).sum(), target))
    }

    /// Returns a job that merges the level of a due file with all levels down to the first one that can hold its data.
    pub(super) fn build_due_file_job(&self, due: &FileToCompact<'_>) -> Option<Job> {
        let (level, reason) = (due.level, due.reason.clone());
        if level > L0 && self.context.shape.runs_of(level).len() > 1 {
            return self.context.merge_in_place(level, reason);
        }
        let target = self.find_target_level(level, self.capacities.last)?;
        self.build_merge_into_level(level, target, reason)
    }

    /// Returns a job that merges all levels from `source` to `target` into one run of `target`.
    pub(super) fn build_merge_into_level(
        &self,
        source: Level,
        target: Level,
        reason: JobReason,
    ) -> Option<Job> {
        let levels = (source.0..=target.0).map(Level);
        let inputs = levels.flat_map(|level| self.context.level_inputs(level)).collect();
        self.context.merge_or_move(inputs, OutputTarget::oldest_run(target), reason)
    }
}
