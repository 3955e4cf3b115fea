//! The policy that four primitives make.
//!
//! [`pick`](CompactionPolicy::pick) goes over the levels:
//!
//! 1. Each level gets a score: what it holds, over what makes a job due. A level that does not fit
//!    the layout at all, left by another policy, has the highest.
//! 2. Levels of score 1 and more are tried from the highest score down. Ties: the smaller level.
//! 3. The first job that no running job stands in the way of is the answer.
//!
//! A level is brought to one run by merging its runs in place (moving them, if they are disjoint)
//! before anything else goes into it or out of it.

use std::sync::Arc;

use crate::granularity::Granularity;
use crate::layout::Layout;
use crate::movement::Movement;
use crate::trigger::{Capacities, Capacity, Trigger, compensated_bytes};
use crate::{
    BusyFiles, CompactionPolicy, CutRule, Debt, FileShape, Job, JobInput, JobKind, KeyRange, Level,
    Placement, Reason, RunShape, Target, TreeShape, run_list,
};

/// The four primitives, and the limits that every job keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Primitives {
    /// When a job is due. Their order is their priority in a list of runs; levels compare scores.
    pub triggers: Vec<Trigger>,
    /// How many runs a level may hold.
    pub layout: Layout,
    /// How much one job takes.
    pub granularity: Granularity,
    /// Which file is taken.
    pub movement: Movement,
    /// Writes stop while L0 holds this many runs. Must be above every run count of the triggers.
    pub stop_runs: usize,
    /// Target size of an output, in target sizes of a table of the keyspace.
    pub file_tables: u64,
    /// An output overlaps at most this many target file sizes of the level below its own, and a
    /// larger job or move is not made out of a choice of files.
    pub grandparent_files: u64,
}

/// A policy made of [`Primitives`].
#[derive(Clone, Debug)]
pub struct Composed {
    name: &'static str,
    primitives: Primitives,
}

/// The score of a level that the layout does not allow.
const SCORE_FOREIGN: u64 = u64::MAX;
const SCORE_DUE: u64 = 1000;
const L0: Level = Level(0);

/// A level that a job may be due in.
struct Candidate {
    score_milli: u64,
    level: Level,
    reason: Reason,
}

impl Composed {
    /// Returns the policy that `primitives` make, under a name.
    #[must_use]
    pub fn new(name: &'static str, primitives: Primitives) -> Self {
        Composed { name, primitives }
    }

    /// The primitives of this policy.
    #[must_use]
    pub fn primitives(&self) -> &Primitives {
        &self.primitives
    }

    /// Runs that make a merge due if it is worth what it rewrites, and those that make it due anyway.
    fn run_counts(&self) -> Option<(usize, usize)> {
        self.primitives.triggers.iter().find_map(|trigger| match trigger {
            Trigger::RunCount { runs, wait } => Some(((*runs).max(1), *wait)),
            _ => None,
        })
    }

    fn capacity(&self) -> Option<&Capacity> {
        self.primitives.triggers.iter().find_map(|trigger| match trigger {
            Trigger::LevelFull(capacity) => Some(capacity),
            _ => None,
        })
    }

    fn file_bytes(&self, shape: &TreeShape) -> u64 {
        shape.table_bytes.saturating_mul(self.primitives.file_tables).max(1)
    }

    /// Most bytes of a job made out of a choice of files, and most grandparent bytes of an output.
    fn job_bytes_max(&self, shape: &TreeShape) -> u64 {
        match self.primitives.granularity {
            Granularity::File => {
                self.file_bytes(shape).saturating_mul(self.primitives.grandparent_files)
            }
            // Whole levels and runs leave no choice: small overlap later would gain nothing.
            Granularity::Level | Granularity::Runs => u64::MAX,
        }
    }

    fn cut(&self, shape: &TreeShape, target: Level) -> CutRule {
        let bytes_max = self.job_bytes_max(shape);
        let below = Level::from_index(target.index() + 1).filter(|_| bytes_max < u64::MAX);
        CutRule {
            file_bytes: self.file_bytes(shape),
            grandparent: below.map(|level| (level, bytes_max)),
            boundaries: Vec::new(),
        }
    }

    // --- Leveling: one run in each level below L0 ---------------------------------------------

    fn pick_leveling(&self, shape: &TreeShape, busy: &BusyFiles) -> Option<Job> {
        let capacities = self.capacity()?.of(shape);
        let mut candidates = self.leveling_candidates(shape, busy, &capacities);
        candidates.sort_by(|a, b| b.score_milli.cmp(&a.score_milli).then(a.level.cmp(&b.level)));
        let l0_due = candidates.iter().any(|candidate| candidate.level == L0);
        let l0_job = candidates
            .iter()
            .find(|candidate| candidate.level == L0)
            .and_then(|c| self.l0_job(shape, busy, &capacities, c.reason.clone()));
        let picked = candidates.into_iter().find_map(|candidate| {
            let level = candidate.level;
            if level == L0 {
                return l0_job.clone();
            }
            if shape.runs_of(level).len() > 1 {
                return self.merge_in_place(shape, busy, level);
            }
            // What waits in L0 goes first, else L0 could starve behind its own target.
            if level == capacities.base && l0_due && l0_job.is_none() {
                return None;
            }
            self.leveled_job(shape, busy, &capacities, &candidate)
        });
        // What is due waits for running jobs, and for nothing else.
        picked.or_else(|| if l0_due { None } else { self.job_at_rest(shape, busy) })
    }

    /// While nothing is written, runs of L0 that wait for a merge into the next level become one run:
    /// that costs their own bytes alone, and readers have one run instead of many.
    fn job_at_rest(&self, shape: &TreeShape, busy: &BusyFiles) -> Option<Job> {
        let runs = shape.runs_of(L0).len();
        let (trigger, _) = self.run_counts()?;
        if !shape.resting || runs < trigger.max(2) {
            return None;
        }
        let target = Target { level: L0, placement: Placement::NewRun { before: None } };
        self.merge_runs(shape, busy, L0, target, Reason::Resting { runs })
    }

    fn leveling_candidates(
        &self,
        shape: &TreeShape,
        busy: &BusyFiles,
        capacities: &Capacities,
    ) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for index in 0..shape.levels.len() {
            let Some(level) = Level::from_index(index) else { break };
            let runs = shape.runs_of(level);
            if level == L0 {
                candidates.extend(self.l0_candidate(shape, busy, capacities));
            } else if runs.len() > 1 || (level < capacities.base && !runs.is_empty()) {
                let reason = Reason::Shape { level };
                candidates.push(Candidate { score_milli: SCORE_FOREIGN, level, reason });
            } else if level < capacities.last {
                let idle = runs.iter().flat_map(|r| &r.files).filter(|f| !busy.is_busy(f.id));
                let bytes = idle.map(|file| compensated_bytes(file)).fold(0, u64::saturating_add);
                let score_milli = score(bytes, capacities.bytes(level));
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
    fn l0_candidate(
        &self,
        shape: &TreeShape,
        busy: &BusyFiles,
        capacities: &Capacities,
    ) -> Option<Candidate> {
        let idle: Vec<_> = idle_runs(shape.runs_of(L0), busy).collect();
        let runs = idle.len();
        let bytes: u64 = idle.iter().map(|run| run.bytes()).sum();
        let by_runs = match self.run_counts() {
            Some((trigger, wait))
                if memtables_worth(shape, &idle) >= len_u64(wait)
                    || is_worth_it(shape, capacities, &idle, bytes) =>
            {
                score(len_u64(runs), len_u64(trigger))
            }
            _ => 0,
        };
        let by_bytes = score(bytes, capacities.base_bytes);
        let score_milli = by_runs.max(by_bytes);
        let reason = if by_runs >= by_bytes {
            Reason::RunCount { level: L0, runs }
        } else {
            Reason::LevelFull { level: L0, score_milli }
        };
        (score_milli >= SCORE_DUE).then_some(Candidate { score_milli, level: L0, reason })
    }

    /// All runs of L0 into the next level. All: a newer run may overlap an older one anywhere.
    fn l0_job(
        &self,
        shape: &TreeShape,
        busy: &BusyFiles,
        capacities: &Capacities,
        reason: Reason,
    ) -> Option<Job> {
        let inputs = whole_runs(L0, shape.runs_of(L0));
        let target = next_level(shape, capacities, L0)?;
        self.job_into(shape, busy, inputs, target, reason)
    }

    /// A job out of a full level below L0.
    fn leveled_job(
        &self,
        shape: &TreeShape,
        busy: &BusyFiles,
        capacities: &Capacities,
        candidate: &Candidate,
    ) -> Option<Job> {
        let level = candidate.level;
        let run = shape.runs_of(level).first()?;
        let target = next_level(shape, capacities, level)?;
        let whole = || {
            let inputs = whole_runs(level, shape.runs_of(level));
            self.job_into(shape, busy, inputs, target, candidate.reason.clone())
        };
        if self.primitives.granularity != Granularity::File {
            return whole();
        }
        // What stands above the base sinks in one step where nothing is in its way, however many
        // files another policy has left there.
        let sinks = level < capacities.base && shape.runs_of(target).is_empty();
        let at_once = if sinks { whole() } else { None };
        if at_once.as_ref().is_some_and(|job| job.kind == JobKind::Move) {
            return at_once;
        }
        self.primitives.movement.order(shape, run, target).into_iter().find_map(|index| {
            if busy.is_busy(run.files[index].id) {
                return None;
            }
            let files = self.expand(shape, busy, run, index, target);
            let files = files.iter().map(|file| file.id).collect();
            let inputs = vec![JobInput { level, run: run.id, files }];
            self.job_into(shape, busy, inputs, target, candidate.reason.clone())
        })
    }

    /// The file at `index`, with the neighbours that come along for free: all files of the run
    /// within the range of the job, if they overlap no further file of the target level.
    ///
    /// Files of one run share no user key, so every choice of files is a clean cut.
    fn expand<'a>(
        &self,
        shape: &TreeShape,
        busy: &BusyFiles,
        run: &'a RunShape,
        index: usize,
        target: Level,
    ) -> &'a [Arc<FileShape>] {
        let alone = &run.files[index..=index];
        let [target_run] = shape.runs_of(target) else { return alone };
        let below = target_run.overlapping_indices(&run.files[index].range);
        let Some(hull) = KeyRange::hull_of(
            target_run.files[below.clone()].iter().chain(alone).map(|file| &file.range),
        ) else {
            return alone;
        };
        let wider = run.overlapping(&hull);
        let Some(wider_hull) = KeyRange::hull_of(wider.iter().map(|file| &file.range)) else {
            return alone;
        };
        let bytes: u64 =
            wider.iter().chain(&target_run.files[below.clone()]).map(|file| file.bytes).sum();
        let free = target_run.overlapping_indices(&wider_hull) == below
            && !busy.any_busy(wider.iter().map(|file| file.id))
            && bytes <= self.job_bytes_max(shape);
        if free && !below.is_empty() { wider } else { alone }
    }

    /// A job of `inputs` and what they overlap in `target`, a level of one run or none; `None` if
    /// running jobs stand in its way.
    fn job_into(
        &self,
        shape: &TreeShape,
        busy: &BusyFiles,
        mut inputs: Vec<JobInput>,
        target: Level,
        reason: Reason,
    ) -> Option<Job> {
        let sources = resolve_all(shape, &inputs)?;
        let range = KeyRange::hull_of(sources.iter().map(|file| &file.range))?;
        let target_run = match shape.runs_of(target) {
            [] => None,
            [run] => Some(run),
            _ => return None, // First it is brought to one run.
        };
        let kind = if self.is_trivial_move(shape, &sources, target) {
            JobKind::Move
        } else {
            JobKind::Merge
        };
        if let (Some(run), JobKind::Merge) = (target_run, kind) {
            let below = match self.primitives.granularity {
                Granularity::Level => &run.files[..],
                Granularity::Runs | Granularity::File => run.overlapping(&range),
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
        let target = Target { level: target, placement };
        let cut = self.cut(shape, target.level);
        busy.admitted(Job { kind, inputs, target, cut, reason }, shape)
    }

    /// No file overlaps another one or the target level, and none would be left with so much below
    /// it that its next merge became too large.
    fn is_trivial_move(
        &self,
        shape: &TreeShape,
        sources: &[&Arc<FileShape>],
        target: Level,
    ) -> bool {
        let bytes_max = self.job_bytes_max(shape);
        let below = Level::from_index(target.index() + 1);
        KeyRange::are_disjoint(sources.iter().map(|file| &file.range))
            && sources.iter().all(|file| {
                let grandparents = below.map_or(0, |level| shape.overlap_bytes(level, &file.range));
                shape.overlap_bytes(target, &file.range) == 0
                    && file.bytes.saturating_add(grandparents) <= bytes_max
            })
    }

    /// All runs of a level into one, in the same level.
    fn merge_in_place(&self, shape: &TreeShape, busy: &BusyFiles, level: Level) -> Option<Job> {
        let placement = Placement::NewRun { before: None };
        self.merge_runs(shape, busy, level, Target { level, placement }, Reason::Shape { level })
    }

    /// All runs of a level into one, or a move of them if they are disjoint.
    fn merge_runs(
        &self,
        shape: &TreeShape,
        busy: &BusyFiles,
        level: Level,
        target: Target,
        reason: Reason,
    ) -> Option<Job> {
        let inputs = whole_runs(level, shape.runs_of(level));
        let files = resolve_all(shape, &inputs)?;
        let disjoint = KeyRange::are_disjoint(files.iter().map(|file| &file.range));
        let kind = if disjoint { JobKind::Move } else { JobKind::Merge };
        let cut = self.cut(shape, target.level);
        busy.admitted(Job { kind, inputs, target, cut, reason }, shape)
    }

    // --- Tiering: a full level becomes one run of the next -------------------------------------

    fn pick_tiering(&self, shape: &TreeShape, busy: &BusyFiles) -> Option<Job> {
        let (trigger, _) = self.run_counts()?;
        let mut candidates: Vec<_> = (0..shape.levels.len())
            .filter_map(Level::from_index)
            .map(|level| (shape.runs_of(level).len(), level))
            .filter(|(runs, _)| *runs >= trigger)
            .collect();
        candidates.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        candidates.into_iter().find_map(|(runs, level)| {
            // The deepest level that can be named merges in place.
            let next = Level::from_index(level.index() + 1).unwrap_or(level);
            let before = shape.runs_of(next).first().map(|run| run.id).filter(|_| next != level);
            let target = Target { level: next, placement: Placement::NewRun { before } };
            self.merge_runs(shape, busy, level, target, Reason::RunCount { level, runs })
        })
    }

    /// Bytes that the next job out of L0 will write, and the level it writes to; `None` while none
    /// is due.
    fn l0_work(&self, shape: &TreeShape, busy: &BusyFiles) -> Option<(u64, Level)> {
        let idle = || idle_runs(shape.runs_of(L0), busy);
        let idle_bytes: u64 = idle().map(|run| run.bytes()).sum();
        match self.primitives.layout {
            Layout::Leveling => {
                let capacities = self.capacity()?.of(shape);
                self.l0_candidate(shape, busy, &capacities)?;
                let target = next_level(shape, &capacities, L0)?;
                let files = idle().flat_map(|run| &run.files).map(|file| &file.range);
                let range = KeyRange::hull_of(files)?;
                Some((idle_bytes.saturating_add(shape.overlap_bytes(target, &range)), target))
            }
            Layout::Tiering => {
                let (trigger, _) = self.run_counts()?;
                (idle().count() >= trigger).then_some((idle_bytes, Level(1)))
            }
            Layout::RunList { .. } => {
                let job = self.pick(shape, busy).filter(|job| job.source() == Some(L0))?;
                Some((job.input_bytes(shape).ok()?, job.target.level))
            }
        }
    }
}

impl CompactionPolicy for Composed {
    fn name(&self) -> &str {
        self.name
    }

    fn pick(&self, shape: &TreeShape, busy: &BusyFiles) -> Option<Job> {
        match self.primitives.layout {
            Layout::Leveling => self.pick_leveling(shape, busy),
            Layout::Tiering => self.pick_tiering(shape, busy),
            Layout::RunList { bottom } => {
                run_list::pick(&self.primitives.triggers, bottom, shape, busy, |target| {
                    self.cut(shape, target)
                })
            }
        }
    }

    fn debt(&self, shape: &TreeShape, busy: &BusyFiles) -> Debt {
        let work = self.l0_work(shape, busy);
        let target = work.map(|(_, target)| target);
        // Running jobs count if they empty L0, or if the next one that does must wait for them.
        let running = busy.bytes_left(|job| {
            job.source() == Some(L0)
                || target.is_some_and(|level| {
                    job.target.level == level || job.inputs.iter().any(|i| i.level == level)
                })
        });
        let free = self.primitives.stop_runs.saturating_sub(shape.runs_of(L0).len());
        Debt {
            pending_bytes: work.map_or(0, |(bytes, _)| bytes).saturating_add(running),
            headroom_bytes: len_u64(free).saturating_mul(shape.memtable_bytes),
        }
    }

    fn must_stop(&self, shape: &TreeShape) -> bool {
        shape.runs_of(L0).len() >= self.primitives.stop_runs
    }
}

/// Returns the level that data of `level` goes to: the next one, but between L0 and the base the
/// next one that holds something. `None` for the last level.
fn next_level(shape: &TreeShape, capacities: &Capacities, level: Level) -> Option<Level> {
    if level >= capacities.last {
        return None;
    }
    let mut next = Level(level.0 + 1); // No overflow: `level` is above another one.
    while next < capacities.base && shape.runs_of(next).is_empty() {
        next = Level(next.0 + 1);
    }
    Some(next)
}

/// How many memtables these runs hold; a small run counts as one.
fn memtables_worth(shape: &TreeShape, runs: &[&Arc<RunShape>]) -> u64 {
    runs.iter().map(|run| (run.bytes() / shape.memtable_bytes.max(1)).max(1)).sum()
}

/// Whether a merge of these runs of L0, of so many bytes, moves as much as it rewrites.
fn is_worth_it(
    shape: &TreeShape,
    capacities: &Capacities,
    runs: &[&Arc<RunShape>],
    bytes: u64,
) -> bool {
    let files = runs.iter().flat_map(|run| &run.files).map(|file| &file.range);
    match (next_level(shape, capacities, L0), KeyRange::hull_of(files)) {
        (Some(target), Some(range)) => shape.overlap_bytes(target, &range) <= bytes,
        _ => true,
    }
}

/// A share in thousandths, rounded down; with nothing to hold, anything is too much.
fn score(held: u64, limit: u64) -> u64 {
    match limit {
        0 if held == 0 => 0,
        0 => SCORE_FOREIGN,
        _ => u64::try_from(u128::from(held) * 1000 / u128::from(limit)).unwrap_or(SCORE_FOREIGN),
    }
}

fn len_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

fn whole_runs(level: Level, runs: &[Arc<RunShape>]) -> Vec<JobInput> {
    runs.iter().map(|run| JobInput::whole(level, run)).collect()
}

fn idle_runs<'a>(
    runs: &'a [Arc<RunShape>],
    busy: &'a BusyFiles,
) -> impl Iterator<Item = &'a Arc<RunShape>> {
    runs.iter().filter(|run| !busy.any_busy(run.files.iter().map(|file| file.id)))
}

/// Files of all inputs; `None` if one is not in the tree.
fn resolve_all<'a>(shape: &'a TreeShape, inputs: &[JobInput]) -> Option<Vec<&'a Arc<FileShape>>> {
    let mut files = Vec::new();
    for input in inputs {
        files.extend(input.resolve(shape).ok()?);
    }
    Some(files)
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
