//! Leveling layout: one run in each level below L0, except for tiered levels at the top.
//!
//! 1. Each level gets a score, which is its current value divided by the threshold of its trigger. A level that does
//!    not fit the layout has the highest score. Another policy has left it in this shape.
//! 2. Levels with a score of at least 1 are tried in descending order of their scores. Among equal scores, the upper
//!    level comes first. While L0 has so many runs that writes stop, levels with several runs below the level into
//!    which L0 is merged come last.
//! 3. The first job that conflicts with no running job is picked.
//!
//! If a leveled level has several runs, these are first merged in place, or moved if they are disjoint. Only then can
//! other jobs use the level. While data is written, at most one of these merges runs below the level into which L0 is
//! merged. Rules about single files come before or after these steps, depending on their priority.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::composed::context::{
    PickContext, SCORE_DUE, SCORE_MISFIT, TargetLevelFiles, len_u64, next_target_level,
    ratio_milli, run_inputs,
};
use crate::composed::file_rules::{FileToCompact, find_due_files, rewrite_job};
use crate::composed::partition::PartitionPicker;
use crate::composed::preemptive::PreemptivePicker;
use crate::composed::primitives::{CompactionRule, L0};
use crate::explain::CANDIDATES_MAX;
use crate::granularity::JobGranularity;
use crate::ids::Level;
use crate::job::{Job, JobInput, JobKind, JobReason, OutputPlacement, OutputTarget};
use crate::key_range::KeyRange;
use crate::run::SortedRun;
use crate::table_meta::TableMeta;
use crate::trigger::{LevelCapacities, Trigger};

/// Minimum number of runs of the last tiered level for an early merge into the last level.
const RUNS_OF_EFFICIENT_MERGE: u64 = 2;

/// Picks jobs of a leveling layout.
pub(super) struct LevelingPicker<'a> {
    context: PickContext<'a>,
    /// Rule that has the level-full trigger.
    rule: &'a CompactionRule,
    capacities: LevelCapacities,
    /// Maximum number of runs in L1, L2, … down to the last tiered level.
    tiered: &'a [usize],
}

/// A level from which a job is due.
struct LevelDueForJob {
    score_milli: u64,
    level: Level,
    reason: JobReason,
}

impl<'a> LevelingPicker<'a> {
    /// Returns a picker, or `None` if the primitives have no level-full trigger.
    pub(super) fn new(context: PickContext<'a>, tiered: &'a [usize]) -> Option<LevelingPicker<'a>> {
        let (rule, capacity) = context.primitives.level_full_rule()?;
        let first = Level::from_index(1 + tiered.len())?;
        let capacities = capacity.level_capacities(context.shape, first);
        Some(LevelingPicker { context, rule, capacities, tiered })
    }

    /// Returns the next job.
    pub(super) fn pick(&self) -> Option<Job> {
        match self.rule.granularity {
            JobGranularity::Preemptive => return self.preemptive_picker().pick(),
            JobGranularity::Partition { above } => {
                return PartitionPicker::new(self.preemptive_picker(), above).pick();
            }
            _ => {}
        }
        let (mut is_scored, mut is_merge_due) = (false, false);
        for rule in &self.context.primitives.rules {
            let job = match rule.trigger {
                Trigger::LevelFull(_) | Trigger::RunCount { .. } => {
                    if std::mem::replace(&mut is_scored, true) {
                        continue;
                    }
                    let picked;
                    (picked, is_merge_due) = self.pick_by_score();
                    picked
                }
                Trigger::SpaceAmplification { percent } => {
                    self.pick_space_amplification_job(rule, percent)
                }
                _ => self.pick_due_file_job(rule),
            };
            if job.is_some() {
                return job;
            }
        }
        // If a merge of L0 or of a tiered level is due but waits for running jobs, the runs of these levels are not
        // merged with each other.
        if is_merge_due { None } else { self.pick_no_writes_job() }
    }

    /// Returns the estimated output bytes and the target level of the next job that takes data from L0. Returns `None`
    /// if no such job is due.
    pub(super) fn next_l0_job_size(&self) -> Option<(u64, Level)> {
        let context = &self.context;
        match self.rule.granularity {
            JobGranularity::Preemptive => {
                return self.preemptive_picker().next_l0_job_size(self.capacities.last);
            }
            JobGranularity::Partition { above } => {
                return PartitionPicker::new(self.preemptive_picker(), above).next_l0_job_size();
            }
            _ => {}
        }
        self.check_l0_due()?;
        let bytes = context.idle_l0_bytes();
        if !self.tiered.is_empty() {
            return Some((bytes, Level(1)));
        }
        let target = next_target_level(context.shape, &self.capacities, L0)?;
        let files = context.idle_runs(L0).flat_map(|run| &run.files);
        let range = KeyRange::enclosing_range(files.map(|file| &file.range))?;
        Some((bytes.saturating_add(context.shape.overlap_bytes(target, &range)), target))
    }

    fn preemptive_picker(&self) -> PreemptivePicker<'_> {
        PreemptivePicker { context: self.context, capacities: &self.capacities }
    }

    /// Returns the feeder: the level whose runs are merged into the base level. This is the last tiered level, or L0 if
    /// no level below L0 is tiered.
    fn feeder(&self) -> Level {
        Level(len_u8(self.tiered.len()))
    }

    /// Returns a job for a due level. Tries the due levels in descending order of their scores. Also returns whether L0
    /// or a tiered level is due.
    fn pick_by_score(&self) -> (Option<Job>, bool) {
        if let Some(job) = self.pick_small_runs_job() {
            return (Some(job), true);
        }
        let mut due = self.find_due_levels();
        let feeder = self.feeder();
        let feeder_target = next_target_level(self.context.shape, &self.capacities, feeder);
        due.sort_by_key(|due| {
            let is_deferred = self.context.is_surplus_merge_deferred(due.level, feeder_target);
            (is_deferred, Reverse(due.score_milli), due.level)
        });
        let is_merge_due = due.iter().any(|due| due.level <= feeder);
        let due_feeder = due.iter().find(|due| due.level == feeder);
        let feeder_job =
            due_feeder.and_then(|due| self.build_level_runs_job(due.level, due.reason.clone()));
        let is_feeder_blocked = due_feeder.is_some() && feeder_job.is_none();
        let picked = due.iter().find_map(|due| {
            let level = due.level;
            if level == feeder {
                return feeder_job.clone();
            }
            if level < feeder {
                // A next level with twice the number of runs that make it due gets no more runs. L0 then fills up until
                // writes stop.
                let next = Level(level.0 + 1);
                let runs_max = self.runs_max(next).saturating_add(1).saturating_mul(2);
                let is_behind = self.context.shape.runs_of(next).len() >= runs_max;
                let job = || self.build_level_runs_job(level, due.reason.clone());
                return if is_behind { None } else { job() };
            }
            if self.context.shape.runs_of(level).len() > 1 {
                return self.context.merge_surplus_runs(level, feeder_target);
            }
            // The feeder waits until it can merge into the base level. A new job that takes files of the base level
            // would delay it further.
            if level == self.capacities.base && is_feeder_blocked {
                return None;
            }
            self.pick_leveled_job(level, &due.reason)
        });
        (picked, is_merge_due)
    }

    /// Returns the maximum number of runs of a level below L0.
    fn runs_max(&self, level: Level) -> usize {
        let tiered = level.index().checked_sub(1).and_then(|index| self.tiered.get(index));
        tiered.copied().unwrap_or(1)
    }

    /// Returns whether a level below L0 is tiered.
    fn is_tiered(&self, level: Level) -> bool {
        (1..=self.tiered.len()).contains(&level.index())
    }

    /// Returns the size at which a tiered level is merged into the next level, even if it has few runs.
    ///
    /// This is the size of the full level if each run of L0 is a full memtable, and L0 is merged as soon as its
    /// run-count trigger permits. The result is at least the capacity of the base level.
    fn tiered_level_bytes(&self, level: Level) -> u64 {
        let trigger = self.context.primitives.run_counts().map_or(1, |(trigger, _)| trigger);
        let memtables = len_u64(trigger);
        let runs = self.tiered.iter().take(level.index());
        let memtables =
            runs.fold(memtables, |n, runs| n.saturating_mul(len_u64(*runs).saturating_add(1)));
        let memtable_bytes = self.context.shape.memtable_bytes.max(1);
        memtable_bytes.saturating_mul(memtables).max(self.capacities.base_bytes)
    }

    fn find_due_levels(&self) -> Vec<LevelDueForJob> {
        let (context, capacities) = (&self.context, &self.capacities);
        let mut due = Vec::new();
        for index in 0..context.shape.levels.len() {
            let Some(level) = Level::from_index(index) else { break };
            let runs = context.shape.runs_of(level);
            let (trigger, score_milli) = if level == L0 {
                due.extend(self.check_l0_due());
                continue;
            } else if self.is_tiered(level) {
                let idle: Vec<_> = context.idle_runs(level).collect();
                let bytes = idle.iter().map(|run| run.total_bytes()).fold(0, u64::saturating_add);
                // If the base level is the last level, an efficient merge may start early. Otherwise the target level
                // is often nearly empty, and early merges into it would be small.
                let is_early = level == self.feeder()
                    && next_target_level(context.shape, capacities, level) == Some(capacities.last)
                    && self.is_merge_efficient(level, &idle, bytes);
                let runs_due = match is_early {
                    true => RUNS_OF_EFFICIENT_MERGE,
                    false => len_u64(self.runs_max(level)).saturating_add(1),
                };
                let by_runs = ratio_milli(len_u64(idle.len()), runs_due);
                let by_bytes = ratio_milli(bytes, self.tiered_level_bytes(level));
                if by_runs >= by_bytes { ("run-count", by_runs) } else { ("level-full", by_bytes) }
            } else if runs.len() > 1 || (level < capacities.base && !runs.is_empty()) {
                ("shape", SCORE_MISFIT)
            } else if level < capacities.last {
                let bytes = runs.iter().map(|run| context.idle_file_bytes(run));
                let bytes = bytes.fold(0, u64::saturating_add);
                ("level-full", ratio_milli(bytes, capacities.bytes(level)))
            } else {
                continue;
            };
            context.explanation.add_score(level, trigger, score_milli);
            if score_milli >= SCORE_DUE {
                let reason = match trigger {
                    "run-count" => JobReason::RunCount { level, runs: runs.len() },
                    "shape" => JobReason::Shape { level },
                    _ => JobReason::LevelFull { level, score_milli },
                };
                due.push(LevelDueForJob { score_milli, level, reason });
            }
        }
        due
    }

    /// Returns L0 if its merge into the next level is due.
    ///
    /// L0 is due if it has enough runs and its merge need not wait. The merge does not wait in these cases:
    ///
    /// - `wait` is at most `runs`.
    /// - The merge [is efficient](Self::is_merge_efficient).
    /// - L0 holds the data of at least `wait` memtables, and its runs [are not small](Self::are_runs_small).
    ///
    /// If no level below L0 is tiered, L0 is also due if its size exceeds the capacity of the base level.
    fn check_l0_due(&self) -> Option<LevelDueForJob> {
        let idle: Vec<_> = self.context.idle_runs(L0).collect();
        let runs = idle.len();
        let bytes: u64 = idle.iter().map(|run| run.total_bytes()).sum();
        let by_runs = match self.context.primitives.run_counts() {
            Some((trigger, wait))
                if wait <= trigger // Merges never wait.
                    || self.is_merge_efficient(L0, &idle, bytes)
                    || (self.memtable_count(&idle) >= len_u64(wait)
                        && !self.are_runs_small(L0, &idle, bytes)) =>
            {
                ratio_milli(len_u64(runs), len_u64(trigger))
            }
            _ => 0,
        };
        let by_bytes = match self.tiered {
            [] => ratio_milli(bytes, self.capacities.base_bytes),
            _ => 0, // A merge into a tiered level rewrites no data of that level.
        };
        self.context.explanation.add_score(L0, "run-count", by_runs);
        self.context.explanation.add_score(L0, "level-full", by_bytes);
        let score_milli = by_runs.max(by_bytes);
        let reason = if by_runs >= by_bytes {
            JobReason::RunCount { level: L0, runs }
        } else {
            JobReason::LevelFull { level: L0, score_milli }
        };
        (score_milli >= SCORE_DUE).then_some(LevelDueForJob { score_milli, level: L0, reason })
    }

    /// Returns the number of memtables that these runs of L0 hold, computed from their bytes.
    ///
    /// Each run counts as at least one memtable. Exception: the bytes of the small runs, see
    /// [`small_run_count`](Self::small_run_count), are added up before they are divided by the memtable size.
    fn memtable_count(&self, runs: &[&Arc<SortedRun>]) -> u64 {
        let memtable_bytes = self.context.shape.memtable_bytes.max(1);
        let (small, others) = runs.split_at(self.small_run_count(runs).unwrap_or(0));
        let small_bytes = small.iter().map(|run| run.total_bytes()).fold(0, u64::saturating_add);
        let others = others.iter().map(|run| (run.total_bytes() / memtable_bytes).max(1));
        others.fold(small_bytes / memtable_bytes, u64::saturating_add)
    }

    /// Returns the number of newest runs that are small compared to the next older run.
    ///
    /// Searches for the newest run that has more than the size ratio times the bytes of all newer runs together.
    /// Returns the number of newer runs. Returns `None` if there is no such run, or if fewer than two runs are newer.
    fn small_run_count(&self, runs: &[&Arc<SortedRun>]) -> Option<usize> {
        let mut newer_bytes = 0_u64;
        let larger = runs.iter().position(|run| {
            let bytes_max = newer_bytes.saturating_mul(self.capacities.size_ratio);
            let is_first = newer_bytes == 0;
            newer_bytes = newer_bytes.saturating_add(run.total_bytes());
            !is_first && run.total_bytes() > bytes_max
        });
        larger.filter(|count| *count >= 2)
    }

    /// Returns whether a merge of these runs of `level` rewrites at most `bytes` bytes of the next level. `bytes` is
    /// the size of the runs.
    fn is_merge_efficient(&self, level: Level, runs: &[&Arc<SortedRun>], bytes: u64) -> bool {
        self.rewritten_bytes(level, runs).is_none_or(|rewritten| rewritten <= bytes)
    }

    /// Returns whether a merge of these runs of `level` rewrites more than the size ratio times `bytes` in the next
    /// level. `bytes` is the size of the runs.
    ///
    /// Merges of deeper levels rewrite at most the size ratio times their input. Runs are small if memtables were
    /// flushed before they were full, or if an operand store took most of their data.
    fn are_runs_small(&self, level: Level, runs: &[&Arc<SortedRun>], bytes: u64) -> bool {
        let bytes_max = bytes.saturating_mul(self.capacities.size_ratio);
        self.rewritten_bytes(level, runs).is_some_and(|rewritten| rewritten > bytes_max)
    }

    /// Returns the number of bytes of the next level that a merge of these runs of `level` rewrites. Returns `None` if
    /// the next level is tiered, because a merge into it rewrites nothing.
    fn rewritten_bytes(&self, level: Level, runs: &[&Arc<SortedRun>]) -> Option<u64> {
        if level != self.feeder() {
            return None;
        }
        let ranges = runs.iter().flat_map(|run| &run.files).map(|file| &file.range);
        let target = next_target_level(self.context.shape, &self.capacities, level)?;
        Some(self.context.shape.overlap_bytes(target, &KeyRange::enclosing_range(ranges)?))
    }

    /// Returns a job that merges runs of the [`feeder`](Self::feeder) with each other, if the feeder has too many runs
    /// and these are small.
    ///
    /// The job takes the runs of [`small_run_count`](Self::small_run_count). Without such runs, it takes all runs if
    /// [`are_runs_small`](Self::are_runs_small).
    fn pick_small_runs_job(&self) -> Option<Job> {
        let context = &self.context;
        let feeder = self.feeder();
        let runs_min = match context.primitives.run_counts()? {
            _ if feeder > L0 => self.runs_max(feeder).saturating_add(1),
            (trigger, wait) if wait > trigger => wait,
            _ => return None,
        };
        let runs: Vec<_> = context.shape.runs_of(feeder).iter().collect();
        if runs.len() < runs_min.max(2) {
            return None;
        }
        let count = self.small_run_count(&runs).or_else(|| {
            let bytes = runs.iter().map(|run| run.total_bytes()).fold(0, u64::saturating_add);
            self.are_runs_small(feeder, &runs, bytes).then_some(runs.len())
        })?;
        self.merge_newest_runs(feeder, count, JobReason::SmallRuns { level: feeder, runs: count })
    }

    /// Returns a job that merges all runs of L0 or of a tiered level into the next level.
    ///
    /// The job takes all runs, because a newer run may overlap any older run.
    fn build_level_runs_job(&self, level: Level, reason: JobReason) -> Option<Job> {
        let context = &self.context;
        let inputs = context.level_inputs(level);
        if level.index() < self.tiered.len() {
            let next = Level(level.0 + 1); // Cannot overflow, because at most 32 levels are tiered.
            return context.merge_or_move(
                inputs,
                OutputTarget::newest_run(next, context.shape),
                reason,
            );
        }
        let target = next_target_level(context.shape, &self.capacities, level)?;
        context.build_job_into_level(
            inputs,
            target,
            TargetLevelFiles::from_granularity(self.rule.granularity),
            reason,
        )
    }

    /// Returns a job for the first file that is due because of `rule` and can be moved down or rewritten.
    fn pick_due_file_job(&self, rule: &CompactionRule) -> Option<Job> {
        find_due_files(&self.context, rule).iter().find_map(|due| match due.can_rewrite {
            true => rewrite_job(&self.context, due),
            false => self.build_due_file_job(rule, due),
        })
    }

    /// Returns a job that merges a due file into the next level.
    fn build_due_file_job(&self, rule: &CompactionRule, due: &FileToCompact<'_>) -> Option<Job> {
        let (shape, level, reason) = (self.context.shape, due.level, due.reason.clone());
        if level == L0 || self.is_tiered(level) {
            return self.build_level_runs_job(level, reason);
        }
        if shape.runs_of(level).len() > 1 {
            return None; // The runs of the level must first be merged into one run.
        }
        let target = next_target_level(shape, &self.capacities, level)?;
        self.build_file_job(rule, level, due.run, due.index, target, reason)
    }

    /// Returns a job that merges a file into an older run, because delete persistence makes the file due.
    pub(super) fn build_persistence_job(&self, due: &FileToCompact<'_>) -> Option<Job> {
        match self.rule.granularity {
            JobGranularity::Preemptive => self.preemptive_picker().build_due_file_job(due),
            JobGranularity::Partition { above } => {
                PartitionPicker::new(self.preemptive_picker(), above).build_due_file_job(due)
            }
            _ => self.build_due_file_job(self.rule, due),
        }
    }

    /// Returns a job that takes data from a leveled level that is full.
    fn pick_leveled_job(&self, level: Level, reason: &JobReason) -> Option<Job> {
        let context = &self.context;
        let run = context.shape.runs_of(level).first()?;
        let target = next_target_level(context.shape, &self.capacities, level)?;
        let whole_level_job = || {
            let target_files = TargetLevelFiles::from_granularity(self.rule.granularity);
            context.build_job_into_level(
                context.level_inputs(level),
                target,
                target_files,
                reason.clone(),
            )
        };
        if !self.rule.granularity.is_file_granular() {
            return whole_level_job();
        }
        // If the target is empty, a level above the base level is moved as a whole. Another policy may have left many
        // files in this level.
        if level < self.capacities.base
            && context.shape.runs_of(target).is_empty()
            && let Some(job) = whole_level_job().filter(|job| job.kind == JobKind::Move)
        {
            return Some(job);
        }
        let movement = self.rule.movement;
        let job_of = |index: usize| {
            self.build_file_job(self.rule, level, run, index, target, reason.clone())
        };
        debug_assert_eq!(
            movement.first_file(context.shape, level, run, target),
            movement.order_files(context.shape, level, run, target).first().copied(),
            "{movement:?}"
        );
        // Without running jobs, the first file usually gives a job. Sorting all files is then not necessary.
        if context.running.files.is_empty()
            && !context.explanation.is_recording()
            && let Some(job) =
                movement.first_file(context.shape, level, run, target).and_then(job_of)
        {
            return Some(job);
        }
        let order = movement.order_files(context.shape, level, run, target);
        context.explanation.add_candidates(|| {
            movement.explain(context.shape, run, target, &order, CANDIDATES_MAX)
        });
        let is_idle = |index: &usize| !context.running.is_file_busy(run.files[*index].id);
        order.into_iter().filter(is_idle).find_map(job_of)
    }

    /// Returns a job that merges the file at `index` of `run` and adjacent files with the overlapping files of
    /// `target`.
    ///
    /// [`expand_to_adjacent_files`](Self::expand_to_adjacent_files) selects the adjacent files.
    fn build_file_job(
        &self,
        rule: &CompactionRule,
        level: Level,
        run: &SortedRun,
        index: usize,
        target: Level,
        reason: JobReason,
    ) -> Option<Job> {
        let files = self
            .expand_to_adjacent_files(rule, run, index, target)
            .iter()
            .map(|file| file.id)
            .collect();
        let inputs = vec![JobInput { level, run: run.id, files }];
        self.context.build_job_into_level(inputs, target, TargetLevelFiles::Overlapping, reason)
    }

    /// Returns the file at `index` and adjacent files of the same run.
    ///
    /// With [`JobGranularity::Files`], includes the following files up to the limits of the rule. Also includes
    /// adjacent files that do not add files of `target` to the job. Files of one run have no user key in common, so a
    /// job may take any of them.
    fn expand_to_adjacent_files<'r>(
        &self,
        rule: &CompactionRule,
        run: &'r SortedRun,
        index: usize,
        target: Level,
    ) -> &'r [Arc<TableMeta>] {
        let context = &self.context;
        let bytes_of = |files: &[Arc<TableMeta>]| files.iter().map(|file| file.bytes).sum::<u64>();
        let enclosing_range = |files: &[Arc<TableMeta>]| {
            KeyRange::enclosing_range(files.iter().map(|file| &file.range))
        };
        let mut chosen = &run.files[index..=index];
        if let JobGranularity::Files { count } = rule.granularity {
            for end in index + 1..run.files.len().min(index.saturating_add(count)) {
                let wider = &run.files[index..=end];
                let overlap = enclosing_range(wider)
                    .map_or(0, |range| context.shape.overlap_bytes(target, &range));
                if context.running.is_file_busy(run.files[end].id)
                    || bytes_of(wider).saturating_add(overlap) > context.job_bytes_max()
                {
                    break;
                }
                chosen = wider;
            }
        }
        let expand_within_overlap = || {
            let [target_run] = context.shape.runs_of(target) else { return None };
            let below = target_run.files.overlapping_indices(&enclosing_range(chosen)?);
            let below_files = &target_run.files[below.clone()];
            let hull = enclosing_range(below_files)?.enclosing_both(&enclosing_range(chosen)?);
            let wider = run.overlapping_files(&hull);
            let bytes = bytes_of(wider).saturating_add(bytes_of(below_files));
            let is_free = target_run.files.overlapping_indices(&enclosing_range(wider)?) == below
                && !context.running.is_any_file_busy(wider.iter().map(|file| file.id))
                && bytes <= context.job_bytes_max();
            is_free.then_some(wider)
        };
        expand_within_overlap().unwrap_or(chosen)
    }

    /// Returns a job that merges runs of L0 and of the tiered levels with each other while no data is written.
    ///
    /// The merge rewrites only these runs, and later lookups search fewer runs. If the newest runs are small, the job
    /// does not take the next older run, which has many times their size.
    fn pick_no_writes_job(&self) -> Option<Job> {
        let context = &self.context;
        let levels = (0..=self.feeder().0).map(Level);
        let runs: Vec<_> = levels.flat_map(|level| context.shape.runs_of(level)).collect();
        let (trigger, _) = context.primitives.run_counts()?;
        if !context.shape.memtables_empty || runs.len() < trigger.max(2) {
            return None;
        }
        let count = self.small_run_count(&runs).unwrap_or(runs.len());
        self.merge_newest_runs(L0, count, JobReason::NoWrites { runs: count })
    }

    /// Returns a job that merges the `count` newest runs of the levels from `first` on into one run. The new run takes
    /// the position of the oldest of them.
    fn merge_newest_runs(&self, first: Level, count: usize, reason: JobReason) -> Option<Job> {
        let (mut inputs, mut missing) = (Vec::new(), count);
        for level in (first.0..=self.feeder().0).map(Level) {
            let runs = self.context.shape.runs_of(level);
            let taken = missing.min(runs.len());
            inputs.extend(run_inputs(level, &runs[..taken]));
            missing -= taken;
            if missing == 0 {
                let before = runs.get(taken).map(|run| run.id);
                let target = OutputTarget { level, placement: OutputPlacement::NewRun { before } };
                return self.context.merge_or_move(inputs, target, reason);
            }
        }
        None
    }

    /// Returns a job that moves data down from the deepest level above the last level, if the levels above the last
    /// level have too many bytes.
    fn pick_space_amplification_job(&self, rule: &CompactionRule, percent_max: u64) -> Option<Job> {
        let shape = self.context.shape;
        let deepest = shape.deepest_level()?;
        let above: u64 = (0..deepest.0).map(|level| shape.level_bytes(Level(level))).sum();
        let percent = ratio_milli(above, shape.level_bytes(deepest)) / 10;
        let score_milli = ratio_milli(percent, percent_max);
        self.context.explanation.add_score(deepest, rule.trigger.name(), score_milli);
        let level = (0..deepest.0).rev().map(Level).find(|l| shape.level_bytes(*l) > 0)?;
        if percent < percent_max {
            return None;
        }
        let reason = JobReason::SpaceAmplification { percent };
        match shape.runs_of(level) {
            [run] if level > L0 && rule.granularity.is_file_granular() => {
                let order = rule.movement.order_files(shape, level, run, deepest);
                order.into_iter().find_map(|index| {
                    self.build_file_job(rule, level, run, index, deepest, reason.clone())
                })
            }
            runs => {
                let target_files = TargetLevelFiles::from_granularity(rule.granularity);
                self.context.build_job_into_level(
                    run_inputs(level, runs),
                    deepest,
                    target_files,
                    reason,
                )
            }
        }
    }
}

/// Converts the number of tiered levels to `u8`. [`check_primitives`](super::check_primitives) limits this number.
fn len_u8(len: usize) -> u8 {
    u8::try_from(len).unwrap_or(u8::MAX)
}
