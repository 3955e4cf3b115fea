//! Whole levels in one pass: a merge goes straight to the first level that can hold what it takes.
//!
//! Where several levels are nearly full, merging level by level would rewrite the same entries once
//! for each. Here a flush is merged with levels 1..q at once, q being the smallest level whose
//! capacity is at least what it and all levels above hold.
//!
//! Source: Dayan et al., "Spooky", PVLDB 15 (2022), section 2.

use super::leveling::Leveling;
use super::look::{len_u64, score, whole_runs};
use super::{L0, SCORE_DUE, SCORE_FOREIGN};
use crate::{Job, Level, Placement, Reason, Target};

impl Leveling<'_> {
    pub(super) fn pick_preemptive(&self) -> Option<Job> {
        let last = self.capacities.last;
        self.sources(last).into_iter().find_map(|(level, reason)| {
            if level > L0 && self.look.shape.runs_of(level).len() > 1 {
                return self.look.merge_in_place(level);
            }
            let target = self.reach_of_flush(level, last)?;
            self.preemptive_job(level, target, reason)
        })
    }

    /// Levels down to `limit` from which a merge is due, the most urgent first: those of a foreign
    /// shape, L0 by its runs, and levels that hold more than they can, which another policy has left.
    pub(super) fn sources(&self, limit: Level) -> Vec<(Level, Reason)> {
        let look = &self.look;
        let (trigger, _) = look.primitives.run_counts().unwrap_or((1, 1));
        let mut due = Vec::new();
        for index in 0..look.shape.levels.len() {
            let Some(level) = Level::from_index(index) else { break };
            let runs = look.shape.runs_of(level).len();
            let bytes = look.shape.level_bytes(level);
            let (name, score_milli) = if level == L0 {
                ("run-count", score(len_u64(look.idle_runs(L0).count()), len_u64(trigger)))
            } else if runs > 1 || (runs > 0 && level < self.capacities.base) {
                ("shape", SCORE_FOREIGN)
            } else if level < self.capacities.last.min(limit) {
                // What fills a level exactly may stay: it is where a merge ends.
                let full = score(bytes, self.capacities.bytes(level).saturating_add(1));
                ("level-full", full)
            } else {
                continue;
            };
            look.notes.score(level, name, score_milli);
            if score_milli >= SCORE_DUE {
                let reason = match (name, level) {
                    ("run-count", _) => Reason::RunCount { level, runs },
                    ("shape", _) => Reason::Shape { level },
                    _ => Reason::LevelFull { level, score_milli },
                };
                due.push((score_milli, level, reason));
            }
        }
        due.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        due.into_iter().map(|(_, level, reason)| (level, reason)).collect()
    }

    /// The smallest level below `source`, down to `limit`, that can hold what it and all levels from
    /// the source on have together.
    pub(super) fn reach_of_flush(&self, source: Level, limit: Level) -> Option<Level> {
        let shape = self.look.shape;
        let mut sum = shape.level_bytes(source);
        for level in (source.0..limit.0).map(|above| Level(above + 1)) {
            sum = sum.saturating_add(shape.level_bytes(level));
            let takes = level >= self.capacities.base && self.capacities.bytes(level) >= sum;
            if takes || level == limit {
                return Some(level);
            }
        }
        None
    }

    /// All of levels `source` to `target` into one run of `target`.
    pub(super) fn preemptive_job(
        &self,
        source: Level,
        target: Level,
        reason: Reason,
    ) -> Option<Job> {
        let levels = (source.0..=target.0).map(Level);
        let inputs = levels.flat_map(|level| whole_runs(level, self.look.shape.runs_of(level)));
        let target = Target { level: target, placement: Placement::NewRun { before: None } };
        self.look.merge_or_move(inputs.collect(), target, reason)
    }
}
