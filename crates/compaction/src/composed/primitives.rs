//! The four primitives of a composed policy.

use crate::file_picker::FilePicker;
use crate::granularity::JobGranularity;
use crate::ids::Level;
use crate::layout::TreeLayout;
use crate::shape::TreeShape;
use crate::trigger::{LevelCapacity, Trigger};
use crate::ttl::TombstoneAges;

pub(super) const L0: Level = Level(0);

/// A trigger, together with the granularity and the data movement of its jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionRule {
    /// Condition that makes a job due.
    pub trigger: Trigger,
    /// Amount of data that the job takes.
    pub granularity: JobGranularity,
    /// Order in which the files of a level are selected.
    pub movement: FilePicker,
}

/// The primitives of a policy, and the limits for its jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyPrimitives {
    /// Rules in order of priority.
    ///
    /// Exception: in a leveling layout, the level-full rule and the run-count rule both have the priority of the first
    /// of them. Among the levels that they make due, the level with the highest score comes first.
    pub rules: Vec<CompactionRule>,
    /// Maximum number of runs in each level.
    pub layout: TreeLayout,
    /// Number of runs in L0 at which writes stop. It must exceed the run counts of all triggers.
    pub stop_runs: usize,
    /// Target size of an output file, as a multiple of the target size of a table.
    pub file_tables: u64,
    /// Maximum bytes of the grandparent level that one output may overlap, as a multiple of the target size of an
    /// output. The grandparent level is the level below the target level.
    ///
    /// This is also the maximum input size of jobs and moves whose files a file picker selects.
    pub grandparent_files: u64,
}

impl PolicyPrimitives {
    /// Returns the rule that has a level-full trigger, and the capacity in this trigger.
    pub(super) fn level_full_rule(&self) -> Option<(&CompactionRule, &LevelCapacity)> {
        self.rules.iter().find_map(|rule| match &rule.trigger {
            Trigger::LevelFull(capacity) => Some((rule, capacity)),
            _ => None,
        })
    }

    /// Returns `runs` and `wait` of the run-count trigger.
    pub(super) fn run_counts(&self) -> Option<(usize, usize)> {
        self.rules.iter().find_map(|rule| match rule.trigger {
            Trigger::RunCount { runs, wait } => Some((runs.max(1), wait)),
            _ => None,
        })
    }

    /// Returns the maximum ages of tombstones if a trigger limits them.
    pub(super) fn tombstone_ages(&self, shape: &TreeShape) -> Option<TombstoneAges> {
        self.rules.iter().find_map(|rule| match rule.trigger {
            Trigger::TombstoneTtl { bound_us, size_ratio } => {
                Some(TombstoneAges::new(shape, bound_us, size_ratio))
            }
            _ => None,
        })
    }

    /// Returns the ratio of the sizes of adjacent levels, or 2 if the layout has none.
    pub(super) fn size_ratio(&self) -> u64 {
        match (&self.layout, self.level_full_rule()) {
            (TreeLayout::Fluid { size_ratio, .. }, _) => u64::try_from(*size_ratio).unwrap_or(2),
            (_, Some((_, LevelCapacity::FromTop { size_ratio, .. })))
            | (_, Some((_, LevelCapacity::FromBottom { size_ratio, .. }))) => *size_ratio,
            _ => 2,
        }
    }

    /// Returns the primitives without tombstone triggers. In a tree without tombstones, the picked jobs do not change.
    #[must_use]
    pub fn without_tombstone_triggers(mut self) -> PolicyPrimitives {
        self.rules.retain(|rule| !rule.trigger.needs_tombstones());
        self
    }

    /// Returns whether jobs drop data that was not deleted.
    #[must_use]
    pub fn can_drop_data(&self) -> bool {
        self.layout == TreeLayout::Fifo
    }
}
