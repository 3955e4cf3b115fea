//! Spooky: upper levels are merged preemptively, and large levels in groups of files.
//!
//! X is the first partitioned level. Its number is that of the last level minus `above`.
//!
//! 1. *Dividing merge*: a merge into X splits its outputs at the smallest keys of the files of the last level. Each
//!    file of X then overlaps one file of the last level.
//! 2. *Partitioned merge*: when X is full, its files are merged one after the other in key order. Each merge takes one
//!    file of X, and the files of deeper levels with the same key range. The target is the first level whose capacity
//!    holds the data of X and of all levels from X to the target.
//!
//! Each partitioned merge is small and needs little temporary space. Its key range contains each input file completely.
//!
//! A *pass* over X merges all of its files once. The only state of a pass is the cursor of X: a pass is in progress
//! while all files of X are after the cursor.
//!
//! Source: Dayan et al., "Spooky", PVLDB 15 (2022), section 4.

use std::sync::Arc;

use crate::composed::context::{PickContext, SCORE_DUE, ratio_milli};
use crate::composed::file_rules::FileToCompact;
use crate::composed::preemptive::PreemptivePicker;
use crate::composed::primitives::L0;
use crate::ids::Level;
use crate::job::{Job, JobInput, JobKind, JobReason, OutputTarget, SplitRule};
use crate::key_range::{Key, KeyRange};
use crate::run::SortedRun;
use crate::table_meta::TableMeta;
use crate::trigger::LevelCapacities;

/// Picks jobs of the partition granularity.
pub(super) struct PartitionPicker<'a> {
    context: PickContext<'a>,
    capacities: &'a LevelCapacities,
    preemptive: PreemptivePicker<'a>,
    /// X, the first partitioned level. In a small tree, X is the last level and receives all merges.
    first: Level,
}

impl<'a> PartitionPicker<'a> {
    pub(super) fn new(preemptive: PreemptivePicker<'a>, above: u8) -> PartitionPicker<'a> {
        let PreemptivePicker { context, capacities } = preemptive;
        let first = Level(capacities.last.0.saturating_sub(above)).max(capacities.base);
        PartitionPicker { context, capacities, preemptive, first }
    }

    /// Returns the next job.
    pub(super) fn pick(&self) -> Option<Job> {
        let shape = self.context.shape;
        let (first, last) = (self.first, self.capacities.last);
        // Merges of partitions come first, because a merge that divides L0 into partitions needs free capacity in X.
        let partitioned = (first.0..last.0).map(Level).find_map(|level| {
            let [run] = shape.runs_of(level) else { return None };
            let in_progress = level == first && self.is_partition_pass_in_progress(level, run);
            let score_milli = ratio_milli(run.total_bytes(), self.capacities.bytes(level));
            self.context.explanation.add_score(level, "level-full", score_milli);
            let is_full =
                if level == first { score_milli >= SCORE_DUE } else { score_milli > SCORE_DUE };
            if !is_full && !in_progress {
                return None;
            }
            let reason = JobReason::LevelFull { level, score_milli };
            self.pick_partitioned_merge(level, run, in_progress, &reason)
        });
        partitioned.or_else(|| self.pick_dividing_merge())
    }

    /// Returns the bytes of the next job that takes data from L0, and its target level. Returns `None` if no such job
    /// is due.
    pub(super) fn next_l0_job_size(&self) -> Option<(u64, Level)> {
        self.preemptive.next_l0_job_size(self.first)
    }

    /// Returns a dividing merge. Its source is L0, or a level above X that exceeds its capacity. Its target is X or a
    /// level above X.
    fn pick_dividing_merge(&self) -> Option<Job> {
        let l0_target = self.preemptive.find_target_level(L0, self.first);
        self.preemptive.find_due_levels(self.first).into_iter().find_map(|(level, reason)| {
            if level > L0 && self.context.shape.runs_of(level).len() > 1 {
                return self.context.merge_surplus_runs(level, l0_target);
            }
            if level >= self.first {
                return None;
            }
            self.build_dividing_merge(level, reason)
        })
    }

    /// Returns a dividing merge of a level above X.
    fn build_dividing_merge(&self, level: Level, reason: JobReason) -> Option<Job> {
        let target = self.preemptive.find_target_level(level, self.first)?;
        let mut job = self.preemptive.build_merge_into_level(level, target, reason)?;
        job.split = match target {
            _ if target == self.capacities.last => self.split_rule_of_last_level(),
            _ if target == self.first => self.split_rule_at_last_level_files(),
            _ => SplitRule::by_size(u64::MAX),
        };
        Some(job)
    }

    /// Returns a job that merges a due file into older runs. A file of X or of a deeper level is merged into the last
    /// level.
    pub(super) fn build_due_file_job(&self, due: &FileToCompact<'_>) -> Option<Job> {
        let (level, last, reason) = (due.level, self.capacities.last, due.reason.clone());
        for level in [level, last] {
            if level > L0 && self.context.shape.runs_of(level).len() > 1 {
                return self.context.merge_in_place(level, reason);
            }
        }
        match level < self.first {
            true => self.build_dividing_merge(level, reason),
            false => self.build_group_merge(level, &due.run.files[due.index], last, reason),
        }
    }

    /// Returns a rule that splits outputs at the smallest keys of the files of the last level.
    fn split_rule_at_last_level_files(&self) -> SplitRule {
        let boundaries: Vec<Key> = match self.context.shape.runs_of(self.capacities.last) {
            [run] => run.files.iter().skip(1).map(|file| file.range.smallest.clone()).collect(),
            _ => Vec::new(),
        };
        let file_bytes =
            if boundaries.is_empty() { self.last_level_file_bytes() } else { u64::MAX };
        SplitRule { boundaries, ..SplitRule::by_size(file_bytes) }
    }

    fn split_rule_of_last_level(&self) -> SplitRule {
        SplitRule::by_size(self.last_level_file_bytes())
    }

    /// Returns the target size of a file in the last level: the capacity of X.
    fn last_level_file_bytes(&self) -> u64 {
        let bytes = self.capacities.bytes(self.first);
        let file_bytes = self.context.file_bytes();
        if bytes == u64::MAX { file_bytes } else { bytes.max(file_bytes) }
    }

    fn cursor(&self, level: Level) -> Option<&Key> {
        self.context.shape.level(level).and_then(|level| level.cursor.as_ref())
    }

    fn is_partition_pass_in_progress(&self, level: Level, run: &SortedRun) -> bool {
        let Some(first) = run.files.first() else { return false };
        self.cursor(level).is_some_and(|cursor| first.range.smallest > *cursor)
    }

    /// Returns the partitioned merge of the next group of files.
    fn pick_partitioned_merge(
        &self,
        level: Level,
        run: &SortedRun,
        in_progress: bool,
        reason: &JobReason,
    ) -> Option<Job> {
        let shape = self.context.shape;
        let target = self.partition_target(level, in_progress)?;
        if shape.runs_of(target).len() > 1 {
            return self.context.merge_in_place(target, JobReason::Shape { level: target });
        }
        let is_idle = |file: &&Arc<TableMeta>| !self.context.running.is_file_busy(file.id);
        let mut idle = run.files.iter().filter(is_idle);
        idle.find_map(|file| self.build_group_merge(level, file, target, reason.clone()))
    }

    /// Returns a job that merges the group of a file into level `target`.
    fn build_group_merge(
        &self,
        level: Level,
        file: &TableMeta,
        target: Level,
        reason: JobReason,
    ) -> Option<Job> {
        let shape = self.context.shape;
        let range = self.file_group_range(level, target, &file.range);
        let levels = (level.0..=target.0).map(Level);
        let runs = levels.flat_map(|level| shape.runs_of(level).iter().map(move |r| (level, r)));
        let inputs: Vec<JobInput> =
            runs.filter_map(|(level, run)| JobInput::from_overlap(level, run, &range)).collect();
        let overlaps_below = inputs.iter().any(|input| input.level > level);
        let kind = if overlaps_below { JobKind::Merge } else { JobKind::Move };
        let split = match target {
            _ if target == self.capacities.last => self.split_rule_of_last_level(),
            _ => self.split_rule_at_last_level_files(),
        };
        let target = match shape.runs_of(target) {
            [run] => OutputTarget::join_run(target, run.id),
            _ => OutputTarget::oldest_run(target),
        };
        self.context.admit_job(Job { kind, inputs, target, split, reason })
    }

    /// Returns the target level of a partitioned merge.
    ///
    /// All merges of a pass over X have the same target. During a pass, this is the first level below X with files
    /// before the cursor. Otherwise it is the first level that can hold the data of X and of all levels from X to that
    /// level.
    fn partition_target(&self, level: Level, in_progress: bool) -> Option<Level> {
        let (shape, last) = (self.context.shape, self.capacities.last);
        if in_progress && let Some(cursor) = self.cursor(level) {
            let has_files_before_cursor = |below: &Level| {
                let runs = shape.runs_of(*below).iter();
                runs.flat_map(|run| run.files.first()).any(|file| file.range.smallest <= *cursor)
            };
            let mut below = (level.0 + 1..=last.0).map(Level);
            return below.find(has_files_before_cursor).or(Some(last));
        }
        self.preemptive.find_target_level(level, last)
    }

    /// Returns the key range of all files from `level` to `target` that overlap `range`, directly or through other
    /// files.
    ///
    /// If `target` is the last level and its files in this range together have less than a quarter of the target file
    /// size, the next file of the last level is added.
    fn file_group_range(&self, level: Level, target: Level, range: &KeyRange) -> KeyRange {
        let shape = self.context.shape;
        let mut range = range.clone();
        let runs = || (level.0..=target.0).map(Level).flat_map(|level| shape.runs_of(level));
        // The loop ends soon, because groups have equal ranges in all levels. Only files that another policy wrote may
        // differ.
        loop {
            let mut wider = range.clone();
            for run in runs() {
                let files = run.overlapping_files(&wider);
                let ranges = files.iter().map(|file| &file.range).chain([&wider]);
                wider = KeyRange::enclosing_range(ranges).unwrap_or(wider);
            }
            let grew = wider != range;
            range = wider;
            if grew {
                continue;
            }
            let [run] = shape.runs_of(target) else { return range };
            let next = run.files.get(run.files.overlapping_indices(&range).end);
            let is_small = target == self.capacities.last
                && run.files.overlap_bytes(&range) < self.last_level_file_bytes() / 4;
            match next {
                Some(next) if is_small && !self.context.running.is_file_busy(next.id) => {
                    range = range.enclosing_both(&next.range);
                }
                _ => return range,
            }
        }
    }
}
