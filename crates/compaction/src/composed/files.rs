//! Rules about single files, wherever they stand: many tombstones, old tombstones, old files.
//!
//! A file with tombstones sinks, level by level, until nothing older lies below it; there it is
//! written again without them. So each job brings the tombstones nearer to their end, and ends some
//! in the end. Those that a snapshot holds make no job due.

use std::sync::Arc;

use super::leveling::Leveling;
use super::look::{Look, next_level};
use super::{L0, Primitives, Rule};
use crate::explain::CANDIDATES_SHOWN;
use crate::trigger::Trigger;
use crate::ttl::Ttl;
use crate::{
    FileShape, Job, JobInput, JobKind, Level, Placement, Reason, RunShape, Target, TreeShape,
};

/// What makes a file due.
enum Test<'a> {
    Density(u64),
    Ttl(Ttl),
    /// Written so long ago, and not in the last run.
    Stale {
        ttl_us: u64,
        last: Option<&'a RunShape>,
    },
}

impl<'a> Test<'a> {
    fn of(trigger: &Trigger, shape: &'a TreeShape) -> Option<Test<'a>> {
        Some(match *trigger {
            Trigger::TombstoneDensity { ppm } => Test::Density(ppm),
            Trigger::TombstoneTtl { bound_us, size_ratio } => {
                Test::Ttl(Ttl::of(shape, bound_us, size_ratio))
            }
            Trigger::FileStaleness { ttl_us } => {
                Test::Stale { ttl_us, last: shape.last_run().map(|(_, run)| &**run) }
            }
            _ => return None,
        })
    }

    /// Why the file is due, if it is.
    fn due(
        &self,
        shape: &TreeShape,
        level: Level,
        run: &RunShape,
        file: &FileShape,
    ) -> Option<Reason> {
        match self {
            Test::Density(ppm) => {
                let density = ppm_of(file.tombstones, file.entries);
                let due = density >= *ppm && shape.has_droppable(file);
                due.then_some(Reason::TombstoneDensity { file: file.id, ppm: density })
            }
            Test::Ttl(ttl) => {
                let due_us = ttl.due_us(shape, level, file)?;
                let age_us = shape.now_us.saturating_sub(file.oldest_tombstone_us?);
                (due_us <= shape.now_us).then_some(Reason::TombstoneAge { file: file.id, age_us })
            }
            Test::Stale { .. } => {
                let due_us = self.due_us(shape, level, run, file)?;
                let age_us = shape.now_us.saturating_sub(file.created_us);
                (due_us <= shape.now_us).then_some(Reason::Stale { file: file.id, age_us })
            }
        }
    }

    /// Whether the file is written again where nothing older lies below it.
    fn ends_in_rewrite(&self) -> bool {
        !matches!(self, Test::Stale { .. })
    }

    /// The files of a run that may be due, with their indices.
    fn files<'r>(
        &self,
        run: &'r RunShape,
    ) -> Box<dyn Iterator<Item = (usize, &'r Arc<FileShape>)> + 'r> {
        match self {
            Test::Density(_) | Test::Ttl(_) => Box::new(run.files.with_tombstones()),
            Test::Stale { .. } => Box::new(run.files.iter().enumerate()),
        }
    }

    /// When time alone makes the file due.
    fn due_us(
        &self,
        shape: &TreeShape,
        level: Level,
        run: &RunShape,
        file: &FileShape,
    ) -> Option<u64> {
        match self {
            Test::Density(_) => None,
            Test::Ttl(ttl) => ttl.due_us(shape, level, file),
            Test::Stale { ttl_us, last, .. } => (last.is_none_or(|last| last.id != run.id))
                .then(|| file.created_us.saturating_add(*ttl_us)),
        }
    }
}

/// Tombstones in millionths of the entries; range tombstones are no entries, so it may be more.
fn ppm_of(tombstones: u64, entries: u64) -> u64 {
    let ppm = u128::from(tombstones) * 1_000_000 / u128::from(entries.max(1));
    u64::try_from(ppm).unwrap_or(u64::MAX)
}

/// A file that a rule makes due.
pub(super) struct DueFile<'a> {
    pub(super) level: Level,
    pub(super) run: &'a Arc<RunShape>,
    /// Its place in the run.
    pub(super) index: usize,
    pub(super) reason: Reason,
    /// Nothing older lies below it, and written again it will be without what made it due.
    pub(super) rewrite: bool,
}

impl<'a> Look<'a> {
    /// The idle files that a rule about files makes due, in the order of its movement.
    pub(super) fn due_files(&self, rule: &Rule) -> Vec<DueFile<'a>> {
        let Some(test) = Test::of(&rule.trigger, self.shape) else { return Vec::new() };
        let mut due = Vec::new();
        for (level, run) in self.shape.runs() {
            for (index, file) in test.files(run) {
                if !self.busy.is_busy(file.id)
                    && let Some(reason) = test.due(self.shape, level, run, file)
                {
                    // Of L0 whole runs are rewritten.
                    let of_run = run.range().filter(|_| level == L0);
                    let range = of_run.unwrap_or_else(|| file.range.clone());
                    let rewrite = test.ends_in_rewrite() && self.is_undermost(level, run, &range);
                    due.push(DueFile { level, run, index, reason, rewrite });
                }
            }
        }
        due.sort_by_key(|due| {
            (rule.movement.rank(&due.run.files[due.index]), due.level, due.index)
        });
        self.notes.candidates(|| {
            let line = |due: &DueFile<'_>| format!("in {}: {}", due.level, due.reason);
            due.iter().take(CANDIDATES_SHOWN).map(line).collect()
        });
        due
    }

    /// A file again in its place, without what can be dropped; of L0 its whole run.
    pub(super) fn rewrite(&self, due: &DueFile<'_>) -> Option<Job> {
        let DueFile { level, run, index, .. } = *due;
        let input = match level {
            L0 => JobInput::whole(L0, run),
            _ => JobInput { level, run: run.id, files: vec![run.files[index].id] },
        };
        let target = Target { level, placement: Placement::JoinRun(run.id) };
        let (kind, cut, reason) = (JobKind::Rewrite, self.cut(level), due.reason.clone());
        self.admitted(Job { kind, inputs: vec![input], target, cut, reason })
    }
}

impl Leveling<'_> {
    /// The job of the first file, in the order of the rule's movement, that the rule makes due.
    pub(super) fn file_job(&self, rule: &Rule) -> Option<Job> {
        let shape = self.look.shape;
        self.look.due_files(rule).into_iter().find_map(|due| {
            let DueFile { level, run, index, .. } = due;
            if due.rewrite {
                return self.look.rewrite(&due);
            }
            if level == L0 || self.is_tiered(level) {
                return self.whole_job(level, due.reason);
            }
            if shape.runs_of(level).len() > 1 {
                return None; // First it is brought to one run.
            }
            let target = next_level(shape, &self.capacities, level)?;
            self.file_into(rule, level, run, index, target, due.reason)
        })
    }
}

/// When, later than now, time alone makes a file of the tree due.
pub(super) fn due_us(primitives: &Primitives, shape: &TreeShape) -> Option<u64> {
    let is_queue = primitives.drops_data();
    let later = |at_us: &u64| *at_us > shape.now_us;
    let of_rule = |rule: &Rule| {
        if let (Trigger::FileStaleness { ttl_us }, true) = (&rule.trigger, is_queue) {
            // What leaves a queue stands in its last run.
            let (_, run) = shape.last_run()?;
            let created_us = run.files.iter().map(|file| file.created_us);
            return created_us.map(|us| us.saturating_add(*ttl_us)).filter(later).min();
        }
        let test = Test::of(&rule.trigger, shape)?;
        let due = shape.runs().flat_map(|(level, run)| {
            let test = &test;
            test.files(run).filter_map(move |(_, file)| test.due_us(shape, level, run, file))
        });
        due.filter(later).min()
    };
    primitives.rules.iter().filter_map(of_rule).min()
}
