//! Tests the rules for compaction policies on random trees.

use std::sync::Arc;

use crate::error::Error;
use crate::ids::Level;
use crate::job::{Job, JobInput, JobKind, JobReason, OutputPlacement, OutputTarget, SplitRule};
use crate::model_tree::ModelTree;
use crate::policy::CompactionPolicy;
use crate::rng::TestRng;
use crate::running_jobs::RunningJobs;

/// Maximum number of jobs that a policy may pick while no data is written.
const SETTLE_JOBS_MAX: u64 = 2000;
/// Number of keys of a random tree.
const KEYS: u64 = 400;
/// Number of random operations in one history.
const HISTORY_OPERATIONS: u64 = 120;

/// A property of policies that [`check_policy`] tests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyProperty {
    /// Equal arguments give equal results.
    #[error("{method} returns different values for equal arguments")]
    Deterministic {
        /// Method of [`CompactionPolicy`].
        method: &'static str,
    },
    /// [`CompactionPolicy::explain`] reports the job that [`CompactionPolicy::pick`] returns.
    #[error("explain and pick return different jobs")]
    Explained,
    /// A picked job can run at the same time as the running jobs.
    #[error("a job uses a busy file or conflicts with a running job: {job}")]
    CanRun {
        /// The job.
        job: String,
    },
    /// A picked job is valid for the tree.
    #[error("a job is invalid: {job}")]
    ValidJob {
        /// The job.
        job: String,
        /// Rule that the job breaks.
        #[source]
        source: Error,
    },
    /// Only a policy with [`CompactionPolicy::can_drop_data`] picks jobs that drop files.
    #[error("a job drops data, but can_drop_data() of the policy is false: {job}")]
    DropsData {
        /// The job.
        job: String,
    },
    /// Each job changes the tree.
    #[error("a job does not change the tree: {job}")]
    Progress {
        /// The job.
        job: String,
    },
    /// Without writes, the policy returns no job after a finite number of jobs.
    #[error("the tree does not settle after {jobs} jobs")]
    Settles {
        /// Number of jobs.
        jobs: u64,
    },
    /// A job is running or due whenever writes are stopped.
    #[error("writes are stopped, but no job is running or due")]
    ReleasesWrites,
    /// While writes are stopped, [`Debt::headroom_bytes`](crate::Debt::headroom_bytes) is 0.
    #[error("writes are stopped, but the headroom is {headroom_bytes} bytes")]
    NoHeadroomAtStop {
        /// Headroom in bytes.
        headroom_bytes: u64,
    },
    /// If no job is due or running, [`Debt::pending_bytes`](crate::Debt::pending_bytes) is 0.
    #[error("no job is due, but {pending_bytes} bytes are pending")]
    NoDebtAtRest {
        /// Pending bytes.
        pending_bytes: u64,
    },
    /// Lookups return the newest entry of each key.
    #[error("a lookup of key {key} returns a wrong result")]
    Lookups {
        /// The key.
        key: u32,
    },
    /// All invariants of [`TreeShape::check_invariants`](crate::TreeShape::check_invariants) hold.
    #[error("the tree is invalid")]
    ValidTree(#[source] Error),
    /// The tree refers to exactly the stored files.
    #[error("the files of the tree differ from the stored files")]
    Files,
}

/// A property that a policy violates, and the place of the violation.
///
/// [`check_policy`] finds the same violation again with the same policy, seed and number of steps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy {policy} violates a property at step {step} of seed {seed}")]
pub struct PolicyViolation {
    /// Name of the policy.
    pub policy: String,
    /// The violated property.
    #[source]
    pub property: Box<PolicyProperty>,
    /// Seed passed to [`check_policy`].
    pub seed: u64,
    /// Number of the operation in the test, counted from 1.
    pub step: u64,
    /// The tree as text, one line per level. A file is written as `id[smallest..largest]bytes`.
    pub tree: String,
}

/// Tests the properties in [`PolicyProperty`] on random trees and on random histories of flushes, jobs and snapshots.
/// For half of the seeds, some entries expire.
///
/// Jobs run in parallel and end in any order. Each file contains real keys. After each of at least `steps` operations,
/// lookups of all keys are tested. A thousand steps take less than a second.
///
/// # Errors
///
/// Returns the first violated property. Equal arguments give equal results.
///
/// # Examples
///
/// ```
/// use lsmx_compaction::{PolicySpec, check_policy};
///
/// let policy = "lazy-leveling(T=3)".parse::<PolicySpec>()?.build();
/// check_policy(&*policy, 7, 500)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn check_policy(
    policy: &dyn CompactionPolicy,
    seed: u64,
    steps: u64,
) -> Result<(), PolicyViolation> {
    let mut checker = PolicyChecker::new(policy, seed);
    while checker.step < steps {
        match checker.rng.below(3) {
            0 => {
                checker.set_random_tree()?;
                checker.set_random_snapshot_and_memtable();
                checker.run_until_idle()?;
            }
            1 => {
                checker.set_random_tree()?;
                checker.run_random_history(&[], 3)?;
            }
            _ => {
                checker.set_empty_tree();
                let jobs_max = checker.rng.between(1, 5);
                checker.run_random_history(&[], jobs_max)?;
            }
        }
    }
    Ok(())
}

/// A policy and the tree on which it is tested.
#[derive(Debug)]
pub struct PolicyChecker<'a> {
    policy: &'a dyn CompactionPolicy,
    /// Source of random decisions.
    pub rng: TestRng,
    /// The tree.
    pub tree: ModelTree,
    seed: u64,
    step: u64,
    /// Source of the times to live of entries. `None` if no entry expires.
    expiry_rng: Option<TestRng>,
}

impl<'a> PolicyChecker<'a> {
    /// Returns a checker with an empty tree.
    #[must_use]
    pub fn new(policy: &'a dyn CompactionPolicy, seed: u64) -> PolicyChecker<'a> {
        let rng = TestRng::new(seed);
        let mut expiry_rng = TestRng::new(!seed);
        let expiry_rng = expiry_rng.is_true_with_percent(50).then_some(expiry_rng);
        PolicyChecker { policy, rng, tree: ModelTree::new(12, 12), seed, step: 0, expiry_rng }
    }

    fn make_violation(&self, property: PolicyProperty) -> PolicyViolation {
        PolicyViolation {
            policy: self.policy.name().to_owned(),
            property: Box::new(property),
            seed: self.seed,
            step: self.step,
            tree: self.tree.to_text(),
        }
    }

    /// Sets an empty tree with a random table size.
    pub fn set_empty_tree(&mut self) {
        self.tree = ModelTree::new(12, *self.rng.choose(&[6, 12]).unwrap_or(&12));
    }

    /// Replaces the tree by a random tree that no preset would produce. It results from random flushes and random valid
    /// jobs.
    ///
    /// # Errors
    ///
    /// Fails if the tree becomes invalid.
    pub fn set_random_tree(&mut self) -> Result<(), PolicyViolation> {
        self.tree = ModelTree::new(12, *self.rng.choose(&[4, 12, 30]).unwrap_or(&12));
        for _ in 0..self.rng.between(1, 40) {
            self.step += 1;
            if self.rng.is_true_with_percent(50) {
                self.flush_memtable(20, (2, 20))?;
            } else if let Some(job) = self.random_job() {
                self.execute_job(&job)?;
            }
        }
        Ok(())
    }

    /// Sets a random snapshot, and randomly sets whether the memtables are empty.
    pub fn set_random_snapshot_and_memtable(&mut self) {
        self.tree.shape.memtables_empty = self.rng.is_true_with_percent(50);
        let snapshot = self.rng.is_true_with_percent(30).then(|| self.rng.below(400));
        self.tree.set_snapshot(snapshot);
    }

    /// Flushes at most `writes_max` random writes to files with a random number of entries.
    fn flush_memtable(
        &mut self,
        writes_max: u64,
        (file_min, file_max): (u64, u64),
    ) -> Result<(), PolicyViolation> {
        let rng = &mut self.rng;
        // The key range is sometimes narrow, so that runs may be disjoint.
        let width = *rng.choose(&[20, 100, KEYS]).unwrap_or(&KEYS);
        let start = rng.below(KEYS - width + 1);
        let key = |rng: &mut TestRng| u32::try_from(start + rng.below(width)).unwrap_or(u32::MAX);
        let writes: Vec<(u32, bool)> = (0..rng.between(1, writes_max))
            .map(|_| (key(rng), rng.is_true_with_percent(15)))
            .collect();
        let file_entries = usize::try_from(rng.between(file_min, file_max)).unwrap_or(usize::MAX);
        let ttl_us = self.expiry_rng.as_mut().and_then(|rng| {
            let ttl_us = rng.below(300);
            rng.is_true_with_percent(60).then_some(ttl_us)
        });
        self.tree.set_ttl(ttl_us);
        let flushed = self.tree.flush(&writes, file_entries);
        flushed.map_err(|error| self.make_violation(PolicyProperty::ValidTree(error)))?;
        self.check_tree()
    }

    /// Returns a random valid job, which merges adjacent runs into the same or a deeper level.
    fn random_job(&mut self) -> Option<Job> {
        let (shape, rng) = (&self.tree.shape, &mut self.rng);
        let runs: Vec<_> = shape.runs().collect();
        let start = usize::try_from(rng.below(u64::try_from(runs.len()).ok()?.max(1))).ok()?;
        let end = (start + usize::try_from(rng.between(1, 4)).ok()?).min(runs.len());
        let taken = runs.get(start..end).filter(|taken| !taken.is_empty())?;
        let next = runs.get(end);
        let (oldest, _) = taken.last()?;
        let deepest = next.map_or(Level(7), |(level, _)| *level);
        let level = rng.between(u64::from(oldest.0), u64::from(deepest.0) + 1);
        let level = Level(u8::try_from(level).ok()?);
        let before = next.filter(|(l, _)| *l == level).map(|(_, run)| run.id);
        let inputs = taken.iter().map(|(level, run)| JobInput::from_run(*level, run)).collect();
        let split = SplitRule::by_size(rng.between(200, 3000));
        let target = OutputTarget { level, placement: OutputPlacement::NewRun { before } };
        let reason = JobReason::Manual;
        let job = Job { kind: JobKind::Merge, inputs, target, split, reason };
        // Runs must leave L0 in the order of their age, oldest first.
        let leaves_older = job.is_from_l0() && next.is_some_and(|(level, _)| *level == Level(0));
        (!leaves_older).then_some(job)
    }

    /// Executes a job and checks the tree.
    fn execute_job(&mut self, job: &Job) -> Result<(), PolicyViolation> {
        self.tree.execute_job(job).map_err(|source| {
            self.make_violation(PolicyProperty::ValidJob { job: job.to_string(), source })
        })?;
        self.check_tree()
    }

    /// Checks the invariants of the tree and all lookups.
    fn check_tree(&self) -> Result<(), PolicyViolation> {
        let valid = self.tree.shape.check_invariants();
        valid.map_err(|error| self.make_violation(PolicyProperty::ValidTree(error)))?;
        if !self.tree.has_all_files() {
            return Err(self.make_violation(PolicyProperty::Files));
        }
        match self.tree.find_wrong_lookup() {
            Some(key) => Err(self.make_violation(PolicyProperty::Lookups { key })),
            None => Ok(()),
        }
    }

    /// Returns the next job of `policy` and checks it.
    fn pick(
        &mut self,
        policy: &dyn CompactionPolicy,
        running: &RunningJobs,
    ) -> Result<Option<Job>, PolicyViolation> {
        let shape = &self.tree.shape;
        let picked = policy.pick(shape, running);
        let (debt, must_stop_writes) =
            (policy.debt(shape, running), policy.must_stop_writes(shape));
        let different = if picked != policy.pick(shape, running) {
            Some("pick")
        } else if debt != policy.debt(shape, running) {
            Some("debt")
        } else {
            (must_stop_writes != policy.must_stop_writes(shape)).then_some("must_stop_writes")
        };
        if let Some(method) = different {
            return Err(self.make_violation(PolicyProperty::Deterministic { method }));
        }
        if policy.explain(shape, running).picked != picked {
            return Err(self.make_violation(PolicyProperty::Explained));
        }
        if must_stop_writes && debt.headroom_bytes > 0 {
            let headroom_bytes = debt.headroom_bytes;
            return Err(self.make_violation(PolicyProperty::NoHeadroomAtStop { headroom_bytes }));
        }
        let Some(job) = &picked else {
            if must_stop_writes && running.jobs.is_empty() {
                return Err(self.make_violation(PolicyProperty::ReleasesWrites));
            }
            return Ok(None);
        };
        let text = || job.to_string();
        match running.can_run_job(job, shape) {
            Err(source) => {
                return Err(self.make_violation(PolicyProperty::ValidJob { job: text(), source }));
            }
            Ok(false) => return Err(self.make_violation(PolicyProperty::CanRun { job: text() })),
            Ok(true) => {}
        }
        if job.kind == JobKind::Drop && !policy.can_drop_data() {
            return Err(self.make_violation(PolicyProperty::DropsData { job: text() }));
        }
        let valid = shape.check_job(job);
        valid.map_err(|source| {
            self.make_violation(PolicyProperty::ValidJob { job: text(), source })
        })?;
        Ok(picked)
    }

    /// Executes jobs one after the other until the policy returns no job.
    ///
    /// # Errors
    ///
    /// Returns the first violated property.
    pub fn run_until_idle(&mut self) -> Result<(), PolicyViolation> {
        let none_running = RunningJobs::default();
        for _ in 0..SETTLE_JOBS_MAX {
            self.step += 1;
            let Some(job) = self.pick(self.policy, &none_running)? else {
                let pending_bytes = self.policy.debt(&self.tree.shape, &none_running).pending_bytes;
                return match pending_bytes {
                    0 => Ok(()),
                    _ => Err(self.make_violation(PolicyProperty::NoDebtAtRest { pending_bytes })),
                };
            };
            let before = self.tree.shape.levels.clone();
            self.execute_job(&job)?;
            if self.tree.shape.levels == before {
                return Err(self.make_violation(PolicyProperty::Progress { job: job.to_string() }));
            }
        }
        Err(self.make_violation(PolicyProperty::Settles { jobs: SETTLE_JOBS_MAX }))
    }

    /// Executes a random history of flushes, snapshots and jobs. At most `jobs_max` jobs run in parallel, and they end
    /// in any order.
    ///
    /// Sometimes one of the `others` replaces the policy. At the end, runs jobs until the policy returns no job.
    ///
    /// # Errors
    ///
    /// Returns the first violated property.
    pub fn run_random_history(
        &mut self,
        others: &[Arc<dyn CompactionPolicy>],
        jobs_max: u64,
    ) -> Result<(), PolicyViolation> {
        let mut policy = self.policy;
        let jobs_max = usize::try_from(jobs_max).unwrap_or(usize::MAX);
        let mut running = RunningJobs::default();
        for _ in 0..HISTORY_OPERATIONS {
            self.step += 1;
            match self.rng.below(10) {
                0..4 if !policy.must_stop_writes(&self.tree.shape) => {
                    self.flush_memtable(16, (4, 20))?
                }
                0..7 if running.jobs.len() < jobs_max => {
                    if let Some(job) = self.pick(policy, &running)? {
                        let bytes = job.input_bytes(&self.tree.shape).unwrap_or(0);
                        running.start(job, bytes);
                    }
                }
                7 if self.rng.is_true_with_percent(5) => {
                    policy = self.rng.choose(others).map_or(policy, |other| &**other);
                }
                8 => {
                    let shape = &mut self.tree.shape;
                    shape.memtables_empty = !shape.memtables_empty;
                    self.tree.advance_us(self.rng.below(40));
                    let snapshot = self.rng.is_true_with_percent(20).then(|| self.rng.below(900));
                    self.tree.set_snapshot(snapshot);
                }
                _ => {
                    if let Some((job, _)) = self.rng.choose(&running.jobs).cloned() {
                        self.execute_job(&job)?;
                        running.finish(&job);
                    }
                }
            }
        }
        for (job, _) in running.jobs {
            self.execute_job(&job)?;
        }
        self.tree.shape.memtables_empty = self.rng.is_true_with_percent(50);
        self.run_until_idle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Debt;
    use crate::shape::TreeShape;

    /// A policy with one mistake.
    #[derive(Debug)]
    enum BadPolicy {
        DropsData,
        NeverSettles,
        NeverReleasesWrites,
        TakesNewestRunOfL0,
        UsesBusyFiles,
        HasDebtAtRest,
    }

    impl CompactionPolicy for BadPolicy {
        fn name(&self) -> &str {
            "bad"
        }

        fn pick(&self, shape: &TreeShape, running: &RunningJobs) -> Option<Job> {
            let level = Level(0);
            let runs = shape.runs_of(level);
            let (newest, oldest) = (runs.first()?, runs.last()?);
            let (kind, run, target) = match self {
                BadPolicy::DropsData => (JobKind::Drop, oldest, OutputTarget::oldest_run(level)),
                BadPolicy::NeverSettles => {
                    (JobKind::Merge, oldest, OutputTarget::oldest_run(level))
                }
                BadPolicy::NeverReleasesWrites | BadPolicy::HasDebtAtRest => return None,
                BadPolicy::TakesNewestRunOfL0 => {
                    (JobKind::Merge, newest, OutputTarget::newest_run(Level(1), shape))
                }
                BadPolicy::UsesBusyFiles => {
                    (JobKind::Merge, oldest, OutputTarget::newest_run(Level(1), shape))
                }
            };
            let inputs = vec![JobInput::from_run(level, run)];
            let job = Job::new(shape, kind, inputs, target, JobReason::custom("a mistake"));
            match self {
                BadPolicy::UsesBusyFiles => Some(job),
                _ => running.admit_job(job, shape),
            }
        }

        fn debt(&self, _shape: &TreeShape, _running: &RunningJobs) -> Debt {
            let pending_bytes = u64::from(matches!(self, BadPolicy::HasDebtAtRest));
            Debt { pending_bytes, headroom_bytes: 0 }
        }

        fn must_stop_writes(&self, shape: &TreeShape) -> bool {
            matches!(self, BadPolicy::NeverReleasesWrites) && shape.runs_of(Level(0)).len() >= 6
        }
    }

    #[test]
    fn check_policy_reports_violated_property_and_repeats_it() {
        let is_expected = |policy: &BadPolicy, property: &PolicyProperty| match policy {
            BadPolicy::DropsData => matches!(property, PolicyProperty::DropsData { .. }),
            BadPolicy::NeverSettles => {
                matches!(property, PolicyProperty::Settles { .. } | PolicyProperty::Progress { .. })
            }
            BadPolicy::NeverReleasesWrites => *property == PolicyProperty::ReleasesWrites,
            BadPolicy::TakesNewestRunOfL0 => {
                matches!(property, PolicyProperty::ValidJob { source: Error::L0Order { .. }, .. })
            }
            BadPolicy::UsesBusyFiles => matches!(property, PolicyProperty::CanRun { .. }),
            BadPolicy::HasDebtAtRest => {
                *property == PolicyProperty::NoDebtAtRest { pending_bytes: 1 }
            }
        };
        for policy in [
            BadPolicy::DropsData,
            BadPolicy::NeverSettles,
            BadPolicy::NeverReleasesWrites,
            BadPolicy::TakesNewestRunOfL0,
            BadPolicy::UsesBusyFiles,
            BadPolicy::HasDebtAtRest,
        ] {
            let violation = check_policy(&policy, 3, 5000).unwrap_err();
            assert!(is_expected(&policy, &violation.property), "{policy:?}: {violation:?}");
            assert_eq!(check_policy(&policy, 3, 5000), Err(violation));
        }
    }
}
