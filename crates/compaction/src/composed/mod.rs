//! Policies composed of four primitives.
//!
//! Each layout has its own module that picks jobs: `leveling` (with `preemptive` and `partition`), `fluid`,
//! `run_list` and `fifo`. `file_rules` implements triggers about single files for all layouts. `check`
//! rejects combinations of primitives that have no effect.

mod check;
mod context;
mod fifo;
mod file_rules;
mod fluid;
mod leveling;
mod partition;
mod preemptive;
mod primitives;
mod run_list;

use std::sync::Arc;

use crate::error::Error;
use crate::explain::{Explanation, ExplanationBuilder};
use crate::file_picker::FilePicker;
use crate::ids::Level;
use crate::job::Job;
use crate::layout::Layout;
use crate::policy::{CompactionPolicy, Debt};
use crate::running_jobs::RunningJobs;
use crate::shape::TreeShape;
use crate::table_meta::TableMeta;
use context::{PickContext, len_u64};
use fluid::FluidPicker;
use leveling::LevelingPicker;
use primitives::L0;
use run_list::RunListPicker;

pub use check::check_primitives;
pub use primitives::{Primitives, Rule};

/// A policy composed of [`Primitives`].
#[derive(Clone, Debug)]
pub struct ComposedPolicy {
    name: Arc<str>,
    primitives: Primitives,
}

impl ComposedPolicy {
    /// Returns a policy with these primitives.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidCombination`] if the primitives cannot be combined.
    pub fn new(name: impl Into<Arc<str>>, primitives: Primitives) -> Result<Self, Error> {
        check_primitives(&primitives)?;
        Ok(ComposedPolicy { name: name.into(), primitives })
    }

    /// Returns a policy with primitives that were checked before.
    pub(crate) fn from_checked(name: &str, primitives: Primitives) -> Self {
        debug_assert_eq!(check_primitives(&primitives), Ok(()), "{name}");
        ComposedPolicy { name: name.into(), primitives }
    }

    /// Returns the primitives.
    #[must_use]
    pub fn primitives(&self) -> &Primitives {
        &self.primitives
    }

    fn context<'a>(
        &'a self,
        shape: &'a TreeShape,
        running: &'a RunningJobs,
        explanation: &'a ExplanationBuilder,
    ) -> PickContext<'a> {
        PickContext { primitives: &self.primitives, shape, running, explanation }
    }

    fn pick_and_explain(
        &self,
        shape: &TreeShape,
        running: &RunningJobs,
        explanation: &ExplanationBuilder,
    ) -> Option<Job> {
        let context = self.context(shape, running, explanation);
        match &self.primitives.layout {
            Layout::Leveling { tiered } => LevelingPicker::new(context, tiered)?.pick(),
            Layout::Fluid { upper, last, size_ratio } => {
                FluidPicker::new(context, upper, *last, *size_ratio).pick()
            }
            Layout::RunList { bottom } => RunListPicker { context, bottom: *bottom }.pick(),
            Layout::Fifo => fifo::pick_fifo(&context),
        }
    }

    /// Returns the bytes that the next job out of L0 will write, and its target level; `None` if no such
    /// job is due.
    fn l0_work(&self, shape: &TreeShape, running: &RunningJobs) -> Option<(u64, Level)> {
        let explanation = ExplanationBuilder::default();
        let context = self.context(shape, running, &explanation);
        match &self.primitives.layout {
            Layout::Leveling { tiered } => LevelingPicker::new(context, tiered)?.l0_work(),
            Layout::Fluid { upper, last, size_ratio } => {
                FluidPicker::new(context, upper, *last, *size_ratio).l0_work()
            }
            Layout::RunList { bottom } => RunListPicker { context, bottom: *bottom }.l0_work(),
            Layout::Fifo => None,
        }
    }
}

impl CompactionPolicy for ComposedPolicy {
    fn name(&self) -> &str {
        &self.name
    }

    fn pick(&self, shape: &TreeShape, running: &RunningJobs) -> Option<Job> {
        self.pick_and_explain(shape, running, &ExplanationBuilder::default())
    }

    fn explain(&self, shape: &TreeShape, running: &RunningJobs) -> Explanation {
        let explanation = ExplanationBuilder::recording();
        let picked = self.pick_and_explain(shape, running, &explanation);
        explanation.finish(picked)
    }

    fn debt(&self, shape: &TreeShape, running: &RunningJobs) -> Debt {
        let work = self.l0_work(shape, running);
        let target = work.map(|(_, target)| target);
        // Running jobs count if they take data from L0, or if the next such job must wait for them.
        let running_bytes = running.bytes_left(|job| {
            job.source() == Some(L0)
                || target.is_some_and(|level| {
                    job.target.level == level || job.inputs.iter().any(|i| i.level == level)
                })
        });
        let free = self.primitives.stop_runs.saturating_sub(shape.runs_of(L0).len());
        Debt {
            pending_bytes: work.map_or(0, |(bytes, _)| bytes).saturating_add(running_bytes),
            headroom_bytes: len_u64(free).saturating_mul(shape.memtable_bytes),
        }
    }

    fn must_stop(&self, shape: &TreeShape) -> bool {
        // A FIFO layout merges nothing, so no job would let stopped writes continue.
        !self.primitives.can_drop_data() && shape.runs_of(L0).len() >= self.primitives.stop_runs
    }

    fn next_due_us(&self, shape: &TreeShape) -> Option<u64> {
        file_rules::next_due_us(&self.primitives, shape)
    }

    fn memtable_tombstone_age_max_us(&self, shape: &TreeShape) -> Option<u64> {
        self.primitives.tombstone_ages(shape).map(|ages| ages.memtable_us())
    }

    fn needs_read_times(&self) -> bool {
        self.primitives.rules.iter().any(|rule| rule.movement == FilePicker::ColdestAccess)
    }

    fn is_file_based(&self) -> bool {
        let takes_runs = |rule: &Rule| {
            let granularity = rule.granularity;
            !rule.trigger.is_about_files()
                && !granularity.is_by_file()
                && !granularity.is_partitioned()
        };
        self.primitives.layout == Layout::Fifo || !self.primitives.rules.iter().all(takes_runs)
    }

    fn is_waiting_for_snapshots(&self, shape: &TreeShape) -> bool {
        let is_held =
            |file: &Arc<TableMeta>| file.tombstones > 0 && !shape.has_droppable_tombstone(file);
        let mut rules = self.primitives.rules.iter();
        shape.newest_snapshot.is_some()
            && (self.primitives.can_drop_data()
                || (rules.any(|rule| rule.trigger.needs_tombstones())
                    && shape.files().any(is_held)))
    }

    fn can_drop_data(&self) -> bool {
        self.primitives.can_drop_data()
    }
}
