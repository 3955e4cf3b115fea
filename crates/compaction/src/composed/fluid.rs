//! Fluid layout: each level holds up to a maximum number of runs. A full level is merged as a whole into the next
//! level.
//!
//! The result of such a merge *arrives* in the next level. T is the size ratio. A level of K runs takes T − 1 arrivals,
//! so each of its runs takes (T − 1) ÷ K arrivals. An arrival is merged into the newest run until that run has taken
//! this number. The next arrival becomes a new run. Before a level gets more than K runs, it is merged into the next
//! level.
//!
//! The number of arrivals in a run is not stored. It is computed as the size of the run divided by the size of the
//! arriving data. Therefore levels need no capacities, and the number reflects updates and deletes.

use crate::composed::context::{PickContext, SCORE_DUE, len_u64, ratio_milli};
use crate::composed::file_rules::{FileToCompact, find_due_files, rewrite_job};
use crate::composed::primitives::L0;
use crate::ids::Level;
use crate::job::{Job, JobInput, JobKind, JobReason, OutputTarget, resolve_inputs};
use crate::key_range::KeyRange;
use crate::run::SortedRun;
use crate::trigger::Trigger;

/// Maximum number of runs of each level.
#[derive(Clone, Copy)]
pub(super) struct FluidRunLimits<'a> {
    pub(super) upper: &'a [usize],
    pub(super) last: usize,
    pub(super) size_ratio: usize,
}

impl FluidRunLimits<'_> {
    /// Returns the maximum number of runs of a level.
    pub(super) fn runs_max(&self, level: Level, is_last: bool) -> usize {
        if is_last && level > L0 {
            return self.last.max(1);
        }
        let runs = self.upper.get(level.index()).or(self.upper.last()).map_or(1, |runs| *runs);
        // Each run of L0 is a flush. If the layout merges several arrivals into one run, L0 keeps no runs, and flushes
        // are merged into runs of L1.
        if level == L0 && self.arrivals_per_run(runs) > 1 { 0 } else { runs.max(1) }
    }

    /// Returns the number of arrivals per run, in a level with at most `runs` runs.
    fn arrivals_per_run(&self, runs: usize) -> usize {
        self.size_ratio.saturating_sub(1).max(1).div_ceil(runs.max(1))
    }

    /// Returns whether arriving data is merged into the newest run of a level. `runs_max` is the maximum number of runs
    /// of the level.
    fn is_run_active(&self, runs_max: usize, newest: &SortedRun, arriving_bytes: u64) -> bool {
        let arrivals = len_u64(self.arrivals_per_run(runs_max));
        // The condition is newest ÷ arriving + ½ < arrivals. Both sides are multiplied by 2 × arriving.
        let doubled = u128::from(newest.total_bytes()) * 2 + u128::from(arriving_bytes);
        doubled < u128::from(arriving_bytes) * 2 * u128::from(arrivals)
    }
}

/// Picks jobs of a fluid layout.
pub(super) struct FluidPicker<'a> {
    context: PickContext<'a>,
    limits: FluidRunLimits<'a>,
}

impl<'a> FluidPicker<'a> {
    pub(super) fn new(
        context: PickContext<'a>,
        upper: &'a [usize],
        last: usize,
        size_ratio: usize,
    ) -> FluidPicker<'a> {
        FluidPicker { context, limits: FluidRunLimits { upper, last, size_ratio } }
    }

    /// Returns the next job.
    pub(super) fn pick(&self) -> Option<Job> {
        let context = &self.context;
        context.primitives.rules.iter().find_map(|rule| match rule.trigger {
            Trigger::TooManyRuns => self.pick_too_many_runs_job(),
            Trigger::SpaceAmplification { percent } => self.pick_space_amplification_job(percent),
            _ => find_due_files(context, rule).iter().find_map(|due| match due.can_rewrite {
                true => rewrite_job(context, due),
                false => self.build_due_file_job(due),
            }),
        })
    }

    /// Returns a job that merges the level of a due file with older runs.
    pub(super) fn build_due_file_job(&self, due: &FileToCompact<'_>) -> Option<Job> {
        let (level, reason) = (due.level, due.reason.clone());
        if self.context.shape.deepest_level() == Some(level) {
            return self.context.merge_in_place(level, reason);
        }
        self.build_level_job(level, reason)
    }

    /// Returns the bytes of the next job that takes data from L0, and its target level. Returns `None` if no such job
    /// is due.
    pub(super) fn next_l0_job_size(&self) -> Option<(u64, Level)> {
        let is_due = self.context.idle_runs(L0).count() > self.limits.runs_max(L0, false);
        is_due.then(|| (self.context.idle_l0_bytes(), Level(1)))
    }

    /// Returns a job for the level that exceeds its run limit the most. Among equal levels, the upper level is
    /// preferred.
    fn pick_too_many_runs_job(&self) -> Option<Job> {
        let shape = self.context.shape;
        let deepest = shape.deepest_level()?;
        let mut due = Vec::new();
        for level in (0..=deepest.0).map(Level) {
            let runs = shape.runs_of(level).len();
            let runs_max = self.limits.runs_max(level, level == deepest);
            let score_milli = ratio_milli(len_u64(runs), len_u64(runs_max).saturating_add(1));
            self.context.explanation.add_score(level, "too-many-runs", score_milli);
            if score_milli >= SCORE_DUE {
                due.push((score_milli, level, runs));
            }
        }
        due.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        due.into_iter().find_map(|(_, level, runs)| {
            self.build_level_job(level, JobReason::RunCount { level, runs })
        })
    }

    /// Returns a job that merges a whole level into the next level. The data is merged into the newest run of that
    /// level if [`FluidRunLimits::is_run_active`], otherwise it becomes a new run.
    fn build_level_job(&self, level: Level, reason: JobReason) -> Option<Job> {
        let (context, shape) = (&self.context, self.context.shape);
        let Some(next) = Level::from_index(level.index() + 1) else {
            return context.merge_in_place(level, JobReason::Shape { level });
        };
        let mut inputs = context.level_inputs(level);
        let deepest = shape.deepest_level()?;
        let runs_max = self.limits.runs_max(next, next >= deepest);
        let newest = shape.runs_of(next).first();
        let bytes = shape.level_bytes(level);
        let Some(active) = newest.filter(|run| self.limits.is_run_active(runs_max, run, bytes))
        else {
            return context.merge_or_move(inputs, OutputTarget::newest_run(next, shape), reason);
        };
        let sources = resolve_inputs(&inputs, shape).ok()?;
        let range = KeyRange::enclosing_range(sources.iter().map(|file| &file.range))?;
        let target = OutputTarget::join_run(next, active.id);
        let is_apart = active
            .overlapping_files(&range)
            .iter()
            .all(|file| sources.iter().all(|source| !source.range.overlaps(&file.range)));
        if is_apart && KeyRange::are_disjoint(sources.iter().map(|file| &file.range)) {
            return context.build_job(JobKind::Move, inputs, target, reason);
        }
        inputs.extend(JobInput::from_overlap(next, active, &range));
        context.build_job(JobKind::Merge, inputs, target, reason)
    }

    /// Returns a job that merges all runs, if the size of all runs except the oldest is at least a percentage of the
    /// oldest run.
    fn pick_space_amplification_job(&self, percent_max: u64) -> Option<Job> {
        let (context, shape) = (&self.context, self.context.shape);
        let (deepest, oldest) = shape.last_run()?;
        let above = shape.total_bytes().saturating_sub(oldest.total_bytes());
        let percent = ratio_milli(above, oldest.total_bytes()) / 10;
        context.explanation.add_score(
            deepest,
            "space-amplification",
            ratio_milli(percent, percent_max),
        );
        if above == 0 || percent < percent_max {
            return None;
        }
        let inputs = shape.runs().map(|(level, run)| JobInput::from_run(level, run)).collect();
        let reason = JobReason::SpaceAmplification { percent };
        context.build_job(JobKind::Merge, inputs, OutputTarget::oldest_run(deepest), reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{FileId, RunId};
    use crate::table_meta::TableMeta;

    #[test]
    fn runs_max_follows_layout() {
        let tiering = FluidRunLimits { upper: &[9], last: 9, size_ratio: 10 };
        assert_eq!(tiering.runs_max(L0, true), 9);
        assert_eq!((tiering.runs_max(Level(1), false), tiering.runs_max(Level(1), true)), (9, 9));
        let lazy = FluidRunLimits { upper: &[9], last: 1, size_ratio: 10 };
        assert_eq!((lazy.runs_max(Level(2), false), lazy.runs_max(Level(2), true)), (9, 1));
        // Three runs with three arrivals each. Every flush is merged into L1.
        let fluid = FluidRunLimits { upper: &[3], last: 1, size_ratio: 10 };
        assert_eq!((fluid.runs_max(L0, true), fluid.runs_max(Level(1), false)), (0, 3));
        let hybrid = FluidRunLimits { upper: &[9, 4, 2], last: 1, size_ratio: 10 };
        let runs: Vec<_> = (0..5).map(|level| hybrid.runs_max(Level(level), false)).collect();
        assert_eq!(runs, [9, 4, 2, 2, 2]);
    }

    #[test]
    fn is_run_active_until_run_has_its_share_of_arrivals() {
        let lazy = FluidRunLimits { upper: &[9], last: 1, size_ratio: 10 };
        let run = |bytes| {
            let meta = TableMeta::new(FileId(1), KeyRange::new("a", "z"));
            let file = TableMeta { bytes, ..meta };
            SortedRun { id: RunId(1), files: vec![std::sync::Arc::new(file)].into() }
        };
        // One run takes nine arrivals. The ninth arrival is merged into the run of eight. The tenth is not.
        assert!(lazy.is_run_active(1, &run(8000), 1000));
        assert!(!lazy.is_run_active(1, &run(9000), 1000));
        // Each arrival becomes a run, unless the newest run is a small remainder.
        assert!(!lazy.is_run_active(9, &run(900), 1000));
        assert!(lazy.is_run_active(9, &run(400), 1000));
    }
}
