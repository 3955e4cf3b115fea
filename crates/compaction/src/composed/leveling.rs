//! Leveling: one run in each level below L0, but for those at the top that are tiered.
//!
//! 1. Each level gets a score: what it holds, over what makes a job due. A level that does not fit
//!    the layout at all, left by another policy, has the highest.
//! 2. Levels of score 1 and more are tried from the highest score down. Ties: the smaller level.
//! 3. The first job that no running job stands in the way of is the answer.
//!
//! A level is brought to one run by merging its runs in place (moving them, if they are disjoint)
//! before anything else goes into it or out of it. Rules about single files stand before or behind
//! all of this, as their priority says.

use std::sync::Arc;

use super::look::{Look, Reach, len_u64, next_level, reach_of, score, whole_runs};
use super::{L0, Rule, SCORE_DUE, SCORE_FOREIGN};
use crate::explain::CANDIDATES_SHOWN;
use crate::granularity::Granularity;
use crate::trigger::{Capacities, Trigger};
use crate::{FileShape, Job, JobInput, KeyRange, Level, Placement, Reason, RunShape, Target};

/// A tree under leveling: its capacities worked out.
pub(super) struct Leveling<'a> {
    pub(super) look: Look<'a>,
    /// The rule for levels that are full.
    pub(super) rule: &'a Rule,
    pub(super) capacities: Capacities,
    /// Runs that L1, L2, … may hold.
    tiered: &'a [usize],
}

/// A level that a job may be due in.
struct Candidate {
    score_milli: u64,
    level: Level,
    reason: Reason,
}

impl<'a> Look<'a> {
    pub(super) fn leveling(&self, tiered: &'a [usize]) -> Option<Leveling<'a>> {
        let (rule, capacity) = self.primitives.full_rule()?;
        let first = Level::from_index(1 + tiered.len())?;
        let capacities = capacity.of(self.shape, first);
        Some(Leveling { look: *self, rule, capacities, tiered })
    }

    pub(super) fn pick_leveling(&self, tiered: &'a [usize]) -> Option<Job> {
        let leveling = self.leveling(tiered)?;
        match leveling.rule.granularity {
            Granularity::Preemptive => return leveling.pick_preemptive(),
            Granularity::Partition { above } => return leveling.pick_partition(above),
            _ => {}
        }
        let (mut scored, mut l0_due) = (false, false);
        for rule in &self.primitives.rules {
            let job = match rule.trigger {
                Trigger::LevelFull(_) | Trigger::RunCount { .. } => {
                    if std::mem::replace(&mut scored, true) {
                        continue;
                    }
                    let picked;
                    (picked, l0_due) = leveling.pick_by_score();
                    picked
                }
                Trigger::SpaceAmplification { percent } => leveling.space_job(rule, percent),
                _ => leveling.file_job(rule),
            };
            if job.is_some() {
                return job;
            }
        }
        // What is due waits for running jobs, and for nothing else.
        if l0_due { None } else { leveling.job_at_rest() }
    }

    /// Bytes that the next job out of L0 will write, and where to; `None` while none is due.
    pub(super) fn l0_work_of_leveling(&self, tiered: &'a [usize]) -> Option<(u64, Level)> {
        let leveling = self.leveling(tiered)?;
        let first_partitioned = match leveling.rule.granularity {
            Granularity::Preemptive => Some(leveling.capacities.last),
            Granularity::Partition { above } => Some(leveling.first_partitioned(above)),
            _ => None,
        };
        if let Some(limit) = first_partitioned {
            leveling.sources(limit).into_iter().find(|(level, _)| *level == L0)?;
            let target = leveling.reach_of_flush(L0, limit)?;
            let bytes = (0..=target.0).map(|level| self.shape.level_bytes(Level(level))).sum();
            return Some((bytes, target));
        }
        leveling.l0_candidate()?;
        let idle = || self.idle_runs(L0);
        let bytes: u64 = idle().map(|run| run.bytes()).sum();
        if !tiered.is_empty() {
            return Some((bytes, Level(1)));
        }
        let target = next_level(self.shape, &leveling.capacities, L0)?;
        let range = KeyRange::hull_of(idle().flat_map(|run| &run.files).map(|file| &file.range))?;
        Some((bytes.saturating_add(self.shape.overlap_bytes(target, &range)), target))
    }
}

impl<'a> Leveling<'a> {
    /// The job of the level with the highest score that one can be made for, and whether L0 is due.
    fn pick_by_score(&self) -> (Option<Job>, bool) {
        if let Some(job) = self.small_runs_job() {
            return (Some(job), true);
        }
        let mut candidates = self.candidates();
        candidates.sort_by(|a, b| b.score_milli.cmp(&a.score_milli).then(a.level.cmp(&b.level)));
        let l0_due = candidates.iter().any(|candidate| candidate.level == L0);
        // The level that hands its runs on to the base.
        let feeder = Level(self.capacities.base.0.min(len_u8(self.tiered.len())));
        let fed = candidates.iter().find(|candidate| candidate.level == feeder);
        let fed_job = fed.and_then(|candidate| self.runs_job(candidate));
        let starves = fed.is_some() && fed_job.is_none();
        let picked = candidates.iter().find_map(|candidate| {
            let level = candidate.level;
            if level == feeder {
                return fed_job.clone();
            }
            if level == L0 || self.runs_max(level) > 1 {
                return self.runs_job(candidate);
            }
            if self.look.shape.runs_of(level).len() > 1 {
                return self.look.merge_in_place(level);
            }
            // What waits above goes first, else it could starve behind its own target.
            if level == self.capacities.base && starves {
                return None;
            }
            self.leveled_job(candidate)
        });
        (picked, l0_due)
    }

    /// Runs that a level may hold, L0 apart.
    fn runs_max(&self, level: Level) -> usize {
        let tiered = level.index().checked_sub(1).and_then(|index| self.tiered.get(index));
        tiered.copied().unwrap_or(1)
    }

    fn candidates(&self) -> Vec<Candidate> {
        let (look, capacities) = (&self.look, &self.capacities);
        let mut candidates = Vec::new();
        for index in 0..look.shape.levels.len() {
            let Some(level) = Level::from_index(index) else { break };
            let runs = look.shape.runs_of(level);
            if level == L0 {
                candidates.extend(self.l0_candidate());
            } else if index <= self.tiered.len() {
                let score_milli = score(len_u64(runs.len()), len_u64(self.runs_max(level)) + 1);
                look.notes.score(level, "run-count", score_milli);
                if score_milli >= SCORE_DUE {
                    let reason = Reason::RunCount { level, runs: runs.len() };
                    candidates.push(Candidate { score_milli, level, reason });
                }
            } else if runs.len() > 1 || (level < capacities.base && !runs.is_empty()) {
                look.notes.score(level, "shape", SCORE_FOREIGN);
                let reason = Reason::Shape { level };
                candidates.push(Candidate { score_milli: SCORE_FOREIGN, level, reason });
            } else if level < capacities.last {
                let bytes =
                    runs.iter().map(|run| look.idle_bytes(run)).fold(0, u64::saturating_add);
                let score_milli = score(bytes, capacities.bytes(level));
                look.notes.score(level, "level-full", score_milli);
                if score_milli >= SCORE_DUE {
                    let reason = Reason::LevelFull { level, score_milli };
                    candidates.push(Candidate { score_milli, level, reason });
                }
            }
        }
        candidates
    }

    /// L0 is due by its runs, once a merge of them is worth it, or by its bytes against the capacity
    /// of the level below.
    fn l0_candidate(&self) -> Option<Candidate> {
        let idle: Vec<_> = self.look.idle_runs(L0).collect();
        let runs = idle.len();
        let bytes: u64 = idle.iter().map(|run| run.bytes()).sum();
        let by_runs = match self.look.primitives.run_counts() {
            Some((trigger, wait))
                if self.is_worth_it(&idle, bytes)
                    || (self.memtables_worth(&idle) >= len_u64(wait)
                        && (wait <= trigger || !self.are_small(&idle, bytes))) =>
            {
                score(len_u64(runs), len_u64(trigger))
            }
            _ => 0,
        };
        let by_bytes = match self.tiered {
            [] => score(bytes, self.capacities.base_bytes),
            _ => 0, // Its runs become one of the next level, however large.
        };
        self.look.notes.score(L0, "run-count", by_runs);
        self.look.notes.score(L0, "level-full", by_bytes);
        let score_milli = by_runs.max(by_bytes);
        let reason = if by_runs >= by_bytes {
            Reason::RunCount { level: L0, runs }
        } else {
            Reason::LevelFull { level: L0, score_milli }
        };
        (score_milli >= SCORE_DUE).then_some(Candidate { score_milli, level: L0, reason })
    }

    /// How many memtables these runs hold. A small run counts as one, but for those that may become one
    /// without the next older run.
    fn memtables_worth(&self, runs: &[&Arc<RunShape>]) -> u64 {
        let memtable_bytes = self.look.shape.memtable_bytes.max(1);
        let (small, others) = runs.split_at(self.small_chain(runs).unwrap_or(0));
        let small_bytes = small.iter().map(|run| run.bytes()).fold(0, u64::saturating_add);
        let others = others.iter().map(|run| (run.bytes() / memtable_bytes).max(1));
        others.fold(small_bytes / memtable_bytes, u64::saturating_add)
    }

    /// How many of the newest of these runs, at least two, are together smaller, by more than the size
    /// ratio, than the next older one; `None` if no older run is so much larger.
    fn small_chain(&self, runs: &[&Arc<RunShape>]) -> Option<usize> {
        let mut newer = 0_u64;
        let larger = runs.iter().position(|run| {
            let most = newer.saturating_mul(self.capacities.size_ratio());
            let is_first = newer == 0;
            newer = newer.saturating_add(run.bytes());
            !is_first && run.bytes() > most
        });
        larger.filter(|chain| *chain >= 2)
    }

    /// Whether a merge of these runs of L0, of so many bytes, moves as much as it rewrites.
    fn is_worth_it(&self, runs: &[&Arc<RunShape>], bytes: u64) -> bool {
        self.rewritten_by(runs).is_none_or(|rewritten| rewritten <= bytes)
    }

    /// Whether a merge of these runs of L0 rewrites more of the next level than a merge further down has
    /// to: of memtables whose operands went beside the tree, or that were flushed long before they were full.
    fn are_small(&self, runs: &[&Arc<RunShape>], bytes: u64) -> bool {
        let most = bytes.saturating_mul(self.capacities.size_ratio());
        self.rewritten_by(runs).is_some_and(|rewritten| rewritten > most)
    }

    /// Bytes of the next level that a merge of these runs of L0 rewrites; none where that is tiered.
    fn rewritten_by(&self, runs: &[&Arc<RunShape>]) -> Option<u64> {
        if !self.tiered.is_empty() {
            return None;
        }
        let files = runs.iter().flat_map(|run| &run.files).map(|file| &file.range);
        let target = next_level(self.look.shape, &self.capacities, L0)?;
        Some(self.look.shape.overlap_bytes(target, &KeyRange::hull_of(files)?))
    }

    /// Small runs of L0 become one of L0 when there are as many runs as may wait: those that are small beside
    /// the next older run, or, if all are small beside what a merge of them would rewrite, all.
    fn small_runs_job(&self) -> Option<Job> {
        let look = &self.look;
        let (trigger, wait) = look.primitives.run_counts()?;
        let runs = look.shape.runs_of(L0);
        if wait <= trigger || runs.len() < wait.max(2) || !self.tiered.is_empty() {
            return None;
        }
        let all: Vec<_> = runs.iter().collect();
        let chain = self.small_chain(&all).or_else(|| {
            let bytes = runs.iter().map(|run| run.bytes()).fold(0, u64::saturating_add);
            // Where already the second is larger, all of them: more runs than may wait do not help.
            self.are_small(&all, bytes).then_some(runs.len())
        })?;
        self.among_themselves(chain, |runs| Reason::SmallRuns { runs })
    }

    /// All runs of L0 or of a tiered level into the next one. All: a newer run may overlap an older
    /// one anywhere.
    fn runs_job(&self, candidate: &Candidate) -> Option<Job> {
        let (look, level) = (&self.look, candidate.level);
        let reason = candidate.reason.clone();
        if level.index() < self.tiered.len() {
            let next = Level(level.0 + 1); // No overflow: tiered levels are counted by a `u8`.
            let before = look.shape.runs_of(next).first().map(|run| run.id);
            let target = Target { level: next, placement: Placement::NewRun { before } };
            return look.merge_runs(level, target, reason);
        }
        let target = next_level(look.shape, &self.capacities, level)?;
        let inputs = whole_runs(level, look.shape.runs_of(level));
        look.job_into(inputs, target, reach_of(self.rule.granularity), reason)
    }

    /// A job out of a full level below L0.
    fn leveled_job(&self, candidate: &Candidate) -> Option<Job> {
        let (look, level) = (&self.look, candidate.level);
        let run = look.shape.runs_of(level).first()?;
        let target = next_level(look.shape, &self.capacities, level)?;
        let whole = || {
            let inputs = whole_runs(level, look.shape.runs_of(level));
            let reach = reach_of(self.rule.granularity);
            look.job_into(inputs, target, reach, candidate.reason.clone())
        };
        if !self.rule.granularity.chooses() {
            return whole();
        }
        // What stands above the base sinks in one step where nothing is in its way, however many
        // files another policy has left there.
        let sinks = level < self.capacities.base && look.shape.runs_of(target).is_empty();
        let at_once = if sinks { whole() } else { None };
        if at_once.as_ref().is_some_and(|job| job.kind == crate::JobKind::Move) {
            return at_once;
        }
        let movement = self.rule.movement;
        let job_of = |index: usize| {
            self.file_into(self.rule, level, run, index, target, candidate.reason.clone())
        };
        debug_assert_eq!(
            movement.first(look.shape, level, run, target),
            movement.order(look.shape, level, run, target).first().copied(),
            "{movement:?}"
        );
        // With nothing in its way the first one mostly is the answer, which saves looking at all others.
        if look.busy.files.is_empty()
            && !look.notes.are_kept()
            && let Some(job) = movement.first(look.shape, level, run, target).and_then(job_of)
        {
            return Some(job);
        }
        let order = movement.order(look.shape, level, run, target);
        look.notes
            .candidates(|| movement.explain(look.shape, run, target, &order, CANDIDATES_SHOWN));
        order.into_iter().find_map(|index| {
            if look.busy.is_busy(run.files[index].id) {
                return None;
            }
            job_of(index)
        })
    }

    /// A job of the file at `index` of `run`, as much as the rule takes with it, and what that
    /// overlaps in `target`.
    pub(super) fn file_into(
        &self,
        rule: &Rule,
        level: Level,
        run: &RunShape,
        index: usize,
        target: Level,
        reason: Reason,
    ) -> Option<Job> {
        let files = self.expand(rule, run, index, target);
        let files = files.iter().map(|file| file.id).collect();
        let inputs = vec![JobInput { level, run: run.id, files }];
        self.look.job_into(inputs, target, Reach::Overlap, reason)
    }

    /// The file at `index`, those to its right that the rule asks for, and the neighbours that come
    /// along for free: all files of the run within the range of the job, if they overlap no further
    /// file of the target level.
    ///
    /// Files of one run share no user key, so every choice of files is a clean cut.
    fn expand<'r>(
        &self,
        rule: &Rule,
        run: &'r RunShape,
        index: usize,
        target: Level,
    ) -> &'r [Arc<FileShape>] {
        let look = &self.look;
        let bytes_of = |files: &[Arc<FileShape>]| files.iter().map(|file| file.bytes).sum::<u64>();
        let mut alone = &run.files[index..=index];
        if let Granularity::Files { count } = rule.granularity {
            for end in index + 1..run.files.len().min(index.saturating_add(count)) {
                let wider = &run.files[index..=end];
                let overlap = KeyRange::hull_of(wider.iter().map(|file| &file.range))
                    .map_or(0, |range| look.shape.overlap_bytes(target, &range));
                if look.busy.is_busy(run.files[end].id)
                    || bytes_of(wider).saturating_add(overlap) > look.job_bytes_max()
                {
                    break;
                }
                alone = wider;
            }
        }
        let [target_run] = look.shape.runs_of(target) else { return alone };
        let Some(range) = KeyRange::hull_of(alone.iter().map(|file| &file.range)) else {
            return alone;
        };
        let below = target_run.overlapping_indices(&range);
        let Some(hull) = KeyRange::hull_of(
            target_run.files[below.clone()].iter().chain(alone).map(|file| &file.range),
        ) else {
            return alone;
        };
        let wider = run.overlapping(&hull);
        let Some(wider_hull) = KeyRange::hull_of(wider.iter().map(|file| &file.range)) else {
            return alone;
        };
        let bytes = bytes_of(wider).saturating_add(bytes_of(&target_run.files[below.clone()]));
        let free = target_run.overlapping_indices(&wider_hull) == below
            && !look.busy.any_busy(wider.iter().map(|file| file.id))
            && bytes <= look.job_bytes_max();
        if free && !below.is_empty() { wider } else { alone }
    }

    /// While nothing is written, runs of L0 that wait for a merge into the next level become one run:
    /// that costs their own bytes alone, and readers have one run instead of many. Small ones become one
    /// without the next older run, which would cost many times that.
    fn job_at_rest(&self) -> Option<Job> {
        let look = &self.look;
        let runs: Vec<_> = look.shape.runs_of(L0).iter().collect();
        let (trigger, _) = look.primitives.run_counts()?;
        if !look.shape.resting || runs.len() < trigger.max(2) {
            return None;
        }
        let among = if self.tiered.is_empty() { self.small_chain(&runs) } else { None };
        self.among_themselves(among.unwrap_or(runs.len()), |runs| Reason::Resting { runs })
    }

    /// The newest runs of L0, so many, become one of L0.
    fn among_themselves(&self, runs: usize, why: impl FnOnce(usize) -> Reason) -> Option<Job> {
        let all = self.look.shape.runs_of(L0);
        let before = all.get(runs).map(|run| run.id);
        let target = Target { level: L0, placement: Placement::NewRun { before } };
        self.look.merge_or_move(whole_runs(L0, all.get(..runs)?), target, why(runs))
    }

    /// Bytes above the last level are too many for those in it: the deepest level above it goes down,
    /// as much as the rule takes.
    fn space_job(&self, rule: &Rule, percent_max: u64) -> Option<Job> {
        let shape = self.look.shape;
        let deepest = shape.deepest()?;
        let above: u64 = (0..deepest.0).map(|level| shape.level_bytes(Level(level))).sum();
        let percent = score(above, shape.level_bytes(deepest)) / 10;
        self.look.notes.score(deepest, rule.trigger.name(), score(percent, percent_max));
        let level = (0..deepest.0).rev().map(Level).find(|l| shape.level_bytes(*l) > 0)?;
        if percent < percent_max {
            return None;
        }
        let reason = Reason::SpaceAmplification { percent };
        let candidate = Candidate { score_milli: SCORE_DUE, level, reason };
        match shape.runs_of(level) {
            [run] if level > L0 && rule.granularity.chooses() => {
                let order = rule.movement.order(shape, level, run, deepest);
                let reason = &candidate.reason;
                order.into_iter().find_map(|index| {
                    self.file_into(rule, level, run, index, deepest, reason.clone())
                })
            }
            runs => {
                let inputs = whole_runs(level, runs);
                self.look.job_into(inputs, deepest, reach_of(rule.granularity), candidate.reason)
            }
        }
    }

    /// All of L0 or of a tiered level into the next one, for this reason.
    pub(super) fn whole_job(&self, level: Level, reason: Reason) -> Option<Job> {
        self.runs_job(&Candidate { score_milli: SCORE_DUE, level, reason })
    }

    /// Whether a level is tiered; L0 apart.
    pub(super) fn is_tiered(&self, level: Level) -> bool {
        (1..=self.tiered.len()).contains(&level.index())
    }
}

/// Tiered levels are few: [`check`](super::Primitives::check) sees to it.
fn len_u8(len: usize) -> u8 {
    u8::try_from(len).unwrap_or(u8::MAX)
}
