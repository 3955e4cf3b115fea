//! Fluid: every level holds up to a number of runs, and moves on as a whole.
//!
//! What arrives in a level joins its newest run until that has had its share of arrivals, then it is
//! a run of its own. Arrivals are told by bytes: a run that is n times as large as what arrives has
//! had n of them. So no capacity has to be known: a level of K runs moves on with the arrival that
//! would make it K + 1, and whatever updates and deletes leave of a level counts as what it is.

use super::look::{Look, len_u64, score, whole_runs};
use super::{L0, SCORE_DUE};
use crate::trigger::Trigger;
use crate::{Job, JobInput, JobKind, KeyRange, Level, Placement, Reason, RunShape, Target};

/// How many runs each level may hold.
#[derive(Clone, Copy)]
pub(super) struct Limits<'a> {
    pub(super) upper: &'a [usize],
    pub(super) last: usize,
    pub(super) size_ratio: usize,
}

impl Limits<'_> {
    /// Runs that a level holds at rest.
    pub(super) fn runs_max(&self, level: Level, is_last: bool) -> usize {
        if is_last && level > L0 {
            return self.last.max(1);
        }
        let runs = self.upper.get(level.index()).or(self.upper.last()).map_or(1, |runs| *runs);
        // A run of L0 is a flush. Where a run takes in several of them, that happens in L1.
        if level == L0 && self.arrivals_per_run(runs) > 1 { 0 } else { runs.max(1) }
    }

    /// Arrivals that one of `runs` runs takes in until the level moves on.
    fn arrivals_per_run(&self, runs: usize) -> usize {
        self.size_ratio.saturating_sub(1).max(1).div_ceil(runs.max(1))
    }

    /// Whether the newest run of a level, with so many runs at most, takes in what arrives.
    fn absorbs(&self, runs_max: usize, active: &RunShape, arriving_bytes: u64) -> bool {
        let arrivals = len_u64(self.arrivals_per_run(runs_max));
        // Arrivals so far, rounded, are fewer: active ÷ arriving + ½ < arrivals.
        let had = u128::from(active.bytes()) * 2 + u128::from(arriving_bytes);
        had < u128::from(arriving_bytes) * 2 * u128::from(arrivals)
    }
}

impl Look<'_> {
    pub(super) fn pick_fluid(&self, limits: &Limits<'_>) -> Option<Job> {
        self.primitives.rules.iter().find_map(|rule| match rule.trigger {
            Trigger::TooManyRuns => self.fluid_by_runs(limits),
            Trigger::SpaceAmplification { percent } => self.fluid_by_space(percent),
            _ => self.due_files(rule).into_iter().find_map(|due| {
                if due.rewrite {
                    return self.rewrite(&due);
                }
                if self.shape.deepest() == Some(due.level) {
                    return self.merge_in_place_for(due.level, due.reason);
                }
                self.fluid_step(limits, due.level, due.reason)
            }),
        })
    }

    /// The level that is furthest above its limit moves on. Ties: the smaller level.
    fn fluid_by_runs(&self, limits: &Limits<'_>) -> Option<Job> {
        let deepest = self.shape.deepest()?;
        let mut due = Vec::new();
        for level in (0..=deepest.0).map(Level) {
            let runs = self.shape.runs_of(level).len();
            let runs_max = limits.runs_max(level, level == deepest);
            let score_milli = score(len_u64(runs), len_u64(runs_max) + 1);
            self.notes.score(level, "too-many-runs", score_milli);
            if score_milli >= SCORE_DUE {
                due.push((score_milli, level, runs));
            }
        }
        due.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        due.into_iter().find_map(|(_, level, runs)| {
            self.fluid_step(limits, level, Reason::RunCount { level, runs })
        })
    }

    /// All of a level to the next one: into its newest run, or beside it as a new one.
    fn fluid_step(&self, limits: &Limits<'_>, level: Level, reason: Reason) -> Option<Job> {
        let shape = self.shape;
        let Some(next) = Level::from_index(level.index() + 1) else {
            return self.merge_in_place(level); // The deepest level that can be named.
        };
        let mut inputs = whole_runs(level, shape.runs_of(level));
        let deepest = shape.deepest()?;
        let runs_max = limits.runs_max(next, next >= deepest);
        let active = shape.runs_of(next).first();
        let Some(active) =
            active.filter(|run| limits.absorbs(runs_max, run, shape.level_bytes(level)))
        else {
            let before = shape.runs_of(next).first().map(|run| run.id);
            let target = Target { level: next, placement: Placement::NewRun { before } };
            return self.merge_or_move(inputs, target, reason);
        };
        let sources = self.resolve_all(&inputs)?;
        let range = KeyRange::hull_of(sources.iter().map(|file| &file.range))?;
        let overlapped = active.overlapping(&range);
        let placement = Placement::JoinRun(active.id);
        let target = Target { level: next, placement };
        let apart = overlapped
            .iter()
            .all(|file| sources.iter().all(|source| !source.range.overlaps(&file.range)));
        if apart && KeyRange::are_disjoint(sources.iter().map(|file| &file.range)) {
            let (kind, cut) = (JobKind::Move, self.cut(next));
            return self.admitted(Job { kind, inputs, target, cut, reason });
        }
        if !overlapped.is_empty() {
            let files = overlapped.iter().map(|file| file.id).collect();
            inputs.push(JobInput { level: next, run: active.id, files });
        }
        let (kind, cut) = (JobKind::Merge, self.cut(next));
        self.admitted(Job { kind, inputs, target, cut, reason })
    }

    /// The bytes above the oldest run are too many for those in it: all runs become one.
    fn fluid_by_space(&self, percent_max: u64) -> Option<Job> {
        let (deepest, oldest) = self.shape.last_run()?;
        let above = self.shape.bytes().saturating_sub(oldest.bytes());
        let percent = score(above, oldest.bytes()) / 10;
        self.notes.score(deepest, "space-amplification", score(percent, percent_max));
        if above == 0 || percent < percent_max {
            return None;
        }
        let inputs: Vec<_> =
            self.shape.runs().map(|(level, run)| JobInput::whole(level, run)).collect();
        let target = Target { level: deepest, placement: Placement::NewRun { before: None } };
        let (kind, cut) = (JobKind::Merge, self.cut(deepest));
        let reason = Reason::SpaceAmplification { percent };
        self.admitted(Job { kind, inputs, target, cut, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_the_named_layouts() {
        let tiering = Limits { upper: &[9], last: 9, size_ratio: 10 };
        assert_eq!(tiering.runs_max(L0, true), 9);
        assert_eq!((tiering.runs_max(Level(1), false), tiering.runs_max(Level(1), true)), (9, 9));
        let lazy = Limits { upper: &[9], last: 1, size_ratio: 10 };
        assert_eq!((lazy.runs_max(Level(2), false), lazy.runs_max(Level(2), true)), (9, 1));
        // Three runs, three arrivals each: L0 hands on every flush.
        let fluid = Limits { upper: &[3], last: 1, size_ratio: 10 };
        assert_eq!((fluid.runs_max(L0, true), fluid.runs_max(Level(1), false)), (0, 3));
        let hybrid = Limits { upper: &[9, 4, 2], last: 1, size_ratio: 10 };
        let runs: Vec<_> = (0..5).map(|level| hybrid.runs_max(Level(level), false)).collect();
        assert_eq!(runs, [9, 4, 2, 2, 2]);
    }

    #[test]
    fn a_run_takes_in_its_share_of_arrivals() {
        let lazy = Limits { upper: &[9], last: 1, size_ratio: 10 };
        let run = |bytes| {
            let file = crate::FileShape {
                bytes,
                ..crate::FileShape::new(crate::FileId(1), KeyRange::new("a", "z"))
            };
            RunShape { id: crate::RunId(1), files: vec![std::sync::Arc::new(file)].into() }
        };
        // One run for nine arrivals: the ninth joins eight, the tenth does not join nine.
        assert!(lazy.absorbs(1, &run(8000), 1000));
        assert!(!lazy.absorbs(1, &run(9000), 1000));
        // A run for each arrival, but for a rest.
        assert!(!lazy.absorbs(9, &run(900), 1000));
        assert!(lazy.absorbs(9, &run(400), 1000));
    }
}
