//! The policy that four primitives make.
//!
//! `Look` is a tree as such a policy sees it, with the tools to make jobs of it; how it decides
//! depends on the layout: `leveling`, `fluid`, `run_list` or `queue`. What can be told apart in
//! advance is refused by [`check`](Primitives::check): a combination that is accepted does something.

mod check;
mod files;
mod fluid;
mod leveling;
mod look;
mod partition;
mod preemptive;
mod queue;
mod run_list;

use std::sync::Arc;

use crate::explain::{Explanation, Notes};
use crate::granularity::Granularity;
use crate::layout::Layout;
use crate::movement::Movement;
use crate::trigger::{Capacity, Trigger};
use crate::ttl::Ttl;
use crate::{BusyFiles, CompactionPolicy, Debt, Error, FileShape, Job, Level, TreeShape};
use look::{Look, len_u64};

/// When a job is due, how much it takes, and what of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// When a job is due.
    pub trigger: Trigger,
    /// How much one job takes.
    pub granularity: Granularity,
    /// Which file is taken.
    pub movement: Movement,
}

/// The four primitives, and the limits that every job keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Primitives {
    /// Triggers in order of priority, each with its granularity and its movement. Levels that are
    /// full or hold many runs compare by score, wherever these two triggers stand.
    pub rules: Vec<Rule>,
    /// How many runs a level may hold.
    pub layout: Layout,
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
    name: Arc<str>,
    primitives: Primitives,
}

/// The score of a level that the layout does not allow.
const SCORE_FOREIGN: u64 = u64::MAX;
const SCORE_DUE: u64 = 1000;
const L0: Level = Level(0);

impl Primitives {
    /// The rule for levels that are full, if there is one.
    fn full_rule(&self) -> Option<(&Rule, &Capacity)> {
        self.rules.iter().find_map(|rule| match &rule.trigger {
            Trigger::LevelFull(capacity) => Some((rule, capacity)),
            _ => None,
        })
    }

    /// Runs that make a merge due if it is worth what it rewrites, and those that make it due anyway.
    fn run_counts(&self) -> Option<(usize, usize)> {
        self.rules.iter().find_map(|rule| match rule.trigger {
            Trigger::RunCount { runs, wait } => Some((runs.max(1), wait)),
            _ => None,
        })
    }

    fn tombstone_ttl(&self, shape: &TreeShape) -> Option<Ttl> {
        self.rules.iter().find_map(|rule| match rule.trigger {
            Trigger::TombstoneTtl { bound_us, size_ratio } => {
                Some(Ttl::of(shape, bound_us, size_ratio))
            }
            _ => None,
        })
    }

    /// What is left of them where nothing is ever deleted: a policy of these does the same there.
    #[must_use]
    pub fn without_tombstones(mut self) -> Primitives {
        self.rules.retain(|rule| !rule.trigger.needs_tombstones());
        self
    }

    /// Whether the policy lets data go that nobody has deleted.
    #[must_use]
    pub fn drops_data(&self) -> bool {
        self.layout == Layout::Queue
    }
}

impl Composed {
    /// Returns the policy that `primitives` make, under a name.
    ///
    /// # Errors
    ///
    /// If the combination has no meaning, with the reason.
    pub fn new(name: impl Into<Arc<str>>, primitives: Primitives) -> Result<Self, Error> {
        primitives.check()?;
        Ok(Composed { name: name.into(), primitives })
    }

    /// The policy of primitives that were checked.
    pub(crate) fn of_checked(name: &str, primitives: Primitives) -> Self {
        debug_assert_eq!(primitives.check(), Ok(()), "{name}");
        Composed { name: name.into(), primitives }
    }

    /// The primitives of this policy.
    #[must_use]
    pub fn primitives(&self) -> &Primitives {
        &self.primitives
    }

    fn look<'a>(&'a self, shape: &'a TreeShape, busy: &'a BusyFiles, notes: &'a Notes) -> Look<'a> {
        Look { primitives: &self.primitives, shape, busy, notes }
    }

    fn pick_noting(&self, shape: &TreeShape, busy: &BusyFiles, notes: &Notes) -> Option<Job> {
        let look = self.look(shape, busy, notes);
        match &self.primitives.layout {
            Layout::Leveling { tiered } => look.pick_leveling(tiered),
            Layout::Fluid { upper, last, size_ratio } => {
                look.pick_fluid(&fluid::Limits { upper, last: *last, size_ratio: *size_ratio })
            }
            Layout::RunList { bottom } => look.pick_run_list(*bottom),
            Layout::Queue => look.pick_queue(),
        }
    }
}

impl CompactionPolicy for Composed {
    fn name(&self) -> &str {
        &self.name
    }

    fn pick(&self, shape: &TreeShape, busy: &BusyFiles) -> Option<Job> {
        self.pick_noting(shape, busy, &Notes::default())
    }

    fn explain(&self, shape: &TreeShape, busy: &BusyFiles) -> Explanation {
        let notes = Notes::kept();
        let picked = self.pick_noting(shape, busy, &notes);
        notes.explain(picked)
    }

    fn debt(&self, shape: &TreeShape, busy: &BusyFiles) -> Debt {
        let work = self.look(shape, busy, &Notes::default()).l0_work();
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
        // A queue merges nothing, so nothing would come of waiting.
        !self.primitives.drops_data() && shape.runs_of(L0).len() >= self.primitives.stop_runs
    }

    fn due_us(&self, shape: &TreeShape) -> Option<u64> {
        files::due_us(&self.primitives, shape)
    }

    fn memtable_tombstone_us(&self, shape: &TreeShape) -> Option<u64> {
        self.primitives.tombstone_ttl(shape).map(|ttl| ttl.memtable_us())
    }

    fn asks_for_reads(&self) -> bool {
        self.primitives.rules.iter().any(|rule| rule.movement == Movement::ColdestAccess)
    }

    fn looks_at_files(&self) -> bool {
        let whole = |rule: &Rule| {
            let granularity = rule.granularity;
            !rule.trigger.is_about_files() && !granularity.chooses() && !granularity.partitions()
        };
        self.primitives.layout == Layout::Queue || !self.primitives.rules.iter().all(whole)
    }

    fn waits_for_snapshots(&self, shape: &TreeShape) -> bool {
        let about_tombstones = |rule: &Rule| {
            let trigger = &rule.trigger;
            matches!(trigger, Trigger::TombstoneDensity { .. } | Trigger::TombstoneTtl { .. })
        };
        let held = |file: &Arc<FileShape>| file.tombstones > 0 && !shape.has_droppable(file);
        shape.newest_snapshot.is_some()
            && (self.primitives.drops_data()
                || (self.primitives.rules.iter().any(about_tombstones) && shape.files().any(held)))
    }

    fn drops_data(&self) -> bool {
        self.primitives.drops_data()
    }
}
