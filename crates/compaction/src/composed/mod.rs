//! Policies composed of four primitives.
//!
//! A module for each layout picks the jobs: `leveling` (with `preemptive` and `partition`), `fluid`, `run_list` and
//! `fifo`. `file_rules` implements the triggers that test single files, for all layouts. `check` rejects invalid
//! combinations of primitives.

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

use std::collections::HashSet;
use std::sync::Arc;

use crate::delete_persistence::DeletePersistence;
use crate::error::Error;
use crate::explain::{Explanation, ExplanationBuilder};
use crate::file_picker::FilePicker;
use crate::ids::{FileId, Level, RunId};
use crate::job::{Job, JobReason};
use crate::layout::TreeLayout;
use crate::policy::{CompactionPolicy, Debt};
use crate::running_jobs::RunningJobs;
use crate::shape::TreeShape;
use crate::table_meta::TableMeta;
use context::{PickContext, len_u64};
use file_rules::FileToCompact;
use fluid::FluidPicker;
use leveling::LevelingPicker;
use primitives::L0;
use run_list::RunListPicker;

pub use check::check_primitives;
pub(crate) use check::{PrimitiveConflict, find_conflict, remove_ignored_values};
pub use primitives::{CompactionRule, PolicyPrimitives};

/// A policy composed of [`PolicyPrimitives`].
#[derive(Clone, Debug)]
pub struct ComposedPolicy {
    name: Arc<str>,
    primitives: PolicyPrimitives,
}

impl ComposedPolicy {
    /// Returns a policy with these primitives.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::InvalidCombination`] if the primitives cannot be combined.
    pub fn new(name: impl Into<Arc<str>>, primitives: PolicyPrimitives) -> Result<Self, Error> {
        check_primitives(&primitives)?;
        Ok(ComposedPolicy { name: name.into(), primitives })
    }

    /// Returns a policy without checking the primitives. The caller must have checked them.
    pub(crate) fn from_checked_primitives(name: &str, primitives: PolicyPrimitives) -> Self {
        debug_assert_eq!(check_primitives(&primitives), Ok(()), "{name}");
        ComposedPolicy { name: name.into(), primitives }
    }

    /// Returns the primitives.
    #[must_use]
    pub fn primitives(&self) -> &PolicyPrimitives {
        &self.primitives
    }

    fn pick_context<'a>(
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
        let context = self.pick_context(shape, running, explanation);
        let by_persistence = || self.pick_persistence_job(context);
        // Delete persistence may make files due without end. Writes must not wait for these jobs.
        match context.is_l0_half_full() {
            true => self.pick_job_of_rules(context, None).or_else(by_persistence),
            false => by_persistence()
                .or_else(|| self.pick_job_of_rules(context, self.find_waiting_run(shape, running))),
        }
    }

    /// Returns the newest run that a job of a run list needs for delete persistence, if this job waits for running
    /// jobs. The job also needs all older runs.
    ///
    /// If the rules took some of these runs meanwhile, two workers could take them in turn, and the job would never
    /// start. The end of a manual compaction may be hours away, and the end of a quarantine is unknown, so the rules do
    /// not wait for them.
    fn find_waiting_run(&self, shape: &TreeShape, running: &RunningJobs) -> Option<RunId> {
        let TreeLayout::RunList { .. } = &self.primitives.layout else { return None };
        shape.delete_persistence_us?;
        let explanation = ExplanationBuilder::default();
        let context = self.pick_context(shape, running, &explanation);
        let policy_jobs = running.jobs.iter().filter(|(job, _)| job.reason != JobReason::Manual);
        let soon_idle: HashSet<FileId> =
            policy_jobs.flat_map(|(job, _)| job.input_files()).collect();
        let waits = |due: &FileToCompact<'_>| {
            let needed = shape.runs().skip_while(|(_, run)| run.id != due.run.id);
            let files = needed.flat_map(|(_, run)| &run.files).map(|file| file.id);
            let mut busy = files.filter(|file| running.is_file_busy(*file)).peekable();
            busy.peek().is_some() && busy.all(|file| soon_idle.contains(&file))
        };
        let due = file_rules::find_files_due_by_persistence(&context);
        due.iter().find(|due| !due.can_rewrite && waits(due)).map(|due| due.run.id)
    }

    /// Returns the job of the layout and its rules, or of the rule about expired entries. The rules of a run list do not
    /// take the run `reserved` and older runs.
    fn pick_job_of_rules(&self, context: PickContext<'_>, reserved: Option<RunId>) -> Option<Job> {
        let picked = match &self.primitives.layout {
            TreeLayout::Leveling { tiered } => LevelingPicker::new(context, tiered)?.pick(),
            TreeLayout::Fluid { upper, last, size_ratio } => {
                FluidPicker::new(context, upper, *last, *size_ratio).pick()
            }
            TreeLayout::RunList { bottom } => {
                RunListPicker { context, bottom: *bottom, reserved }.pick()
            }
            TreeLayout::Fifo => return fifo::pick_fifo(&context),
        };
        picked.or_else(|| file_rules::pick_expired_file_job(&context))
    }

    /// Returns a job for a file that delete persistence makes due.
    ///
    /// The job rewrites the file if no older file overlaps it, and otherwise merges it into an older run, as the layout
    /// permits. If L0 is half full and its next job waits for running jobs, the returned job does not delay it further.
    fn pick_persistence_job(&self, context: PickContext<'_>) -> Option<Job> {
        let PickContext { shape, running, .. } = context;
        shape.delete_persistence_us?;
        let due = file_rules::find_files_due_by_persistence(&context);
        let l0_job = context.is_l0_half_full().then(|| self.next_l0_job_size(shape, running));
        let l0_target = l0_job.flatten().map(|(_, target)| target);
        // The end of a manual compaction may be hours away, and the end of a quarantine is unknown.
        let is_waiting = running
            .jobs
            .iter()
            .any(|(job, _)| job.reason != JobReason::Manual && is_in_way_of_l0_job(job, l0_target));
        let delays_l0 =
            |job: &Job| is_waiting && l0_target.is_some() && is_in_way_of_l0_job(job, l0_target);
        let build = |due: &FileToCompact<'_>| match &self.primitives.layout {
            _ if due.can_rewrite => file_rules::rewrite_job(&context, due),
            TreeLayout::Leveling { tiered } => {
                LevelingPicker::new(context, tiered)?.build_persistence_job(due)
            }
            TreeLayout::Fluid { upper, last, size_ratio } => {
                FluidPicker::new(context, upper, *last, *size_ratio).build_due_file_job(due)
            }
            TreeLayout::RunList { bottom } => {
                RunListPicker { context, bottom: *bottom, reserved: None }.build_due_file_job(due)
            }
            TreeLayout::Fifo => None,
        };
        due.iter().find_map(|due| build(due).filter(|job| !delays_l0(job)))
    }

    /// Returns the estimated output bytes and the target level of the next job that takes data from L0. Returns `None`
    /// if no such job is due.
    fn next_l0_job_size(&self, shape: &TreeShape, running: &RunningJobs) -> Option<(u64, Level)> {
        let explanation = ExplanationBuilder::default();
        let context = self.pick_context(shape, running, &explanation);
        match &self.primitives.layout {
            TreeLayout::Leveling { tiered } => {
                LevelingPicker::new(context, tiered)?.next_l0_job_size()
            }
            TreeLayout::Fluid { upper, last, size_ratio } => {
                FluidPicker::new(context, upper, *last, *size_ratio).next_l0_job_size()
            }
            TreeLayout::RunList { bottom } => {
                RunListPicker { context, bottom: *bottom, reserved: None }.next_l0_job_size()
            }
            TreeLayout::Fifo => None,
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
        let explanation = ExplanationBuilder::new_recording();
        let picked = self.pick_and_explain(shape, running, &explanation);
        explanation.finish(picked)
    }

    fn debt(&self, shape: &TreeShape, running: &RunningJobs) -> Debt {
        let work = self.next_l0_job_size(shape, running);
        let target = work.map(|(_, target)| target);
        // The debt includes a running job if it takes data from L0, or if the next job that takes data from L0 must
        // wait for it.
        let is_manual = |job: &Job| job.reason == JobReason::Manual;
        let in_way = || running.jobs.iter().filter(|(job, _)| is_in_way_of_l0_job(job, target));
        // A manual compaction may take hours. If the next job waits for it alone, the engine merges the other runs of L0
        // with each other meanwhile.
        let waits_for_manual_only =
            in_way().next().is_some() && in_way().all(|(job, _)| is_manual(job));
        let pending_bytes = match waits_for_manual_only {
            true => 0,
            false => work.map_or(0, |(bytes, _)| bytes).saturating_add(
                running.unwritten_bytes(|job| is_in_way_of_l0_job(job, target) && !is_manual(job)),
            ),
        };
        let free = self.primitives.stop_runs.saturating_sub(shape.runs_of(L0).len());
        Debt { pending_bytes, headroom_bytes: len_u64(free).saturating_mul(shape.memtable_bytes) }
    }

    fn must_stop_writes(&self, shape: &TreeShape) -> bool {
        // A FIFO layout merges nothing. If writes were stopped, no job would let them continue.
        !self.primitives.can_drop_data() && shape.runs_of(L0).len() >= self.primitives.stop_runs
    }

    fn next_pick_due_us(&self, shape: &TreeShape) -> Option<u64> {
        file_rules::next_file_due_us(&self.primitives, shape)
    }

    fn memtable_tombstone_age_max_us(&self, shape: &TreeShape) -> Option<u64> {
        let of_rule = self.primitives.tombstone_ages(shape).map(|ages| ages.memtable_us());
        let of_bound = shape.delete_persistence_us.map(|bound_us| {
            let parts = DeletePersistence::new(bound_us);
            parts.tombstone_ages(shape, self.primitives.size_ratio()).memtable_us()
        });
        of_rule.into_iter().chain(of_bound).min()
    }

    fn needs_file_read_times(&self) -> bool {
        self.primitives.rules.iter().any(|rule| rule.movement == FilePicker::ColdestAccess)
    }

    fn can_pick_single_files(&self) -> bool {
        let takes_runs = |rule: &CompactionRule| {
            let granularity = rule.granularity;
            !rule.trigger.is_file_trigger()
                && !granularity.is_file_granular()
                && !granularity.is_partitioned()
        };
        self.primitives.layout == TreeLayout::Fifo || !self.primitives.rules.iter().all(takes_runs)
    }

    fn is_waiting_for_snapshots(&self, shape: &TreeShape) -> bool {
        let is_held =
            |file: &Arc<TableMeta>| file.tombstones > 0 && !shape.has_droppable_tombstone(file);
        let mut rules = self.primitives.rules.iter();
        shape.newest_snapshot.is_some()
            && (self.primitives.can_drop_data()
                || file_rules::is_expired_file_held(shape)
                || file_rules::is_persistence_held(shape)
                || (rules.any(|rule| rule.trigger.needs_tombstones())
                    && shape.files().any(is_held)))
    }

    fn can_drop_data(&self) -> bool {
        self.primitives.can_drop_data()
    }
}

/// Returns whether a job takes data from L0, or uses the target level of the next job that takes data from L0.
fn is_in_way_of_l0_job(job: &Job, l0_target: Option<Level>) -> bool {
    job.source_level() == Some(L0)
        || l0_target.is_some_and(|level| {
            job.target.level == level || job.inputs.iter().any(|input| input.level == level)
        })
}
