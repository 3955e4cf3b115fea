//! Checks all presets and several compositions on random valid trees. Parallel jobs end in random order. All
//! invariants must hold after every step, and finally no job may be due.
//!
//! `LSMX_TEST_SCALE` multiplies the number of seeds, `LSMX_TEST_SEED` sets the first seed. A failure prints its
//! seed.

use std::sync::Arc;

use lsmx_compaction::check_policy::PolicyChecker;
use lsmx_compaction::file_picker::FilePicker;
use lsmx_compaction::layout::TreeLayout;
use lsmx_compaction::model_tree::ModelTree;
use lsmx_compaction::trigger::Trigger;
use lsmx_compaction::{
    CompactionPolicy, Debt, DeletePersistence, Job, KeyRange, Level, PolicyPrimitives, PolicySpec,
    PolicyViolation, RunningJobs, TreeShape, check_policy,
};
use lsmx_testkit::{case_seeds, scaled, seed};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Calls `test` with many seeds.
fn for_seeds(count: u64, test: impl Fn(u64)) {
    case_seeds(REGRESSIONS, count).for_each(test);
}

/// Seeds that have found a defect.
const REGRESSIONS: &[u64] = &[
    590_526_710_841, // A merge of L0 waited, although its wait limit was its trigger.
];

/// Returns every preset with default parameters, and presets and compositions with parameters so small that small
/// trees have many levels.
fn policies() -> Vec<PolicySpec> {
    let mut specs = PolicySpec::all_presets();
    let small = [
        "full(T=2,l1=1)",
        "full(T=3,l1=2,trigger=2,stop=5)",
        "lo+1(T=2,l1=1)",
        "lo+1(T=4,grandparents=2)",
        "tiering(T=2)",
        "tiering(T=4)",
        "universal(trigger=2,space=50)",
        "universal(trigger=3,ratio=100,last=3)",
        "1-leveling(T=3,trigger=2)",
        "leveled(T=2,K=1,base=1)",
        "leveled(T=2,K=1,base=1,wait=4)",
        "leveled(T=3,K=1,base=1,trigger=2,last=4,grandparents=3)",
        "leveled(T=3,K=1,base=1,trigger=2,wait=3,last=4)",
        "leveled(T=2,K=2,base=1)",
        "leveled(T=3,K=3,base=1,trigger=2,last=4,grandparents=3)",
        "lo+2(T=3,l1=1)",
        "rr(T=3,l1=1)",
        "cold-access(T=3,l1=1)",
        "cold-write(T=2,l1=1,grandparents=2)",
        "old(T=3,l1=1)",
        "tsd(F=0.1,T=3,l1=1)",
        "tsd(F=0.01,T=3,l1=4,trigger=3,stop=5)",
        "tsa(30us,T=3,l1=1)",
        "tsa(500us,T=3,l1=4,trigger=3,stop=5)",
        "lazy-leveling(T=2)",
        "lazy-leveling(T=4)",
        "fluid(1,1,T=3)",
        "fluid(2,1,T=5)",
        "fluid(2,3,T=4)",
        "full-preemptive(T=2,l1=1)",
        "full-preemptive(T=3,l1=2,trigger=3)",
        "spooky(T=2)",
        "spooky(T=3,last=3,above=1)",
        "spooky(T=2,last=4,above=3,trigger=2)",
        r#"{layout="leveling", tiered=[2,1], rule=[{trigger="run-count",runs=2},
            {trigger="level-full",capacity="from-top",l1=1,size-ratio=3}]}"#,
        r#"{layout="leveling", tiered=[1,3], rule=[{trigger="run-count",runs=2},
            {trigger="level-full",base=1,last=3,size-ratio=3}]}"#,
        r#"{layout="leveling", tiered=[3], rule=[{trigger="run-count",runs=3},
            {trigger="level-full",base=1,last=3,size-ratio=2,granularity="files",files=3}]}"#,
        r#"{layout="leveling", rule=[{trigger="run-count",runs=1},
            {trigger="level-full",capacity="from-top",l1=1,size-ratio=3,granularity="files",files=2},
            {trigger="file-staleness",ttl="40us"},
            {trigger="space-amplification",percent=50,granularity="level"}]}"#,
        r#"{layout="leveling", tiered=[2], rule=[{trigger="tombstone-ttl",bound="60us",size-ratio=3},
            {trigger="run-count",runs=2,wait=2}, {trigger="tombstone-density",share=0.2},
            {trigger="level-full",base=1,size-ratio=3,movement="round-robin"},
            {trigger="space-amplification",percent=20,granularity="file",movement="oldest"}]}"#,
        r#"{layout="fluid", runs=[4,2,1], last-runs=2, size-ratio=5,
            rule=[{trigger="tombstone-ttl",bound="50us"}, {trigger="too-many-runs"}]}"#,
        r#"{layout="fluid", runs=[2], size-ratio=3, rule=[{trigger="space-amplification",percent=80},
            {trigger="too-many-runs"}, {trigger="tombstone-density",share=0.3}]}"#,
        r#"{layout="run-list", bottom=3, rule=[{trigger="tombstone-ttl",bound="45us"},
            {trigger="run-count",runs=3}, {trigger="size-ratio",percent=50}]}"#,
        r#"{layout="run-list", rule=[{trigger="run-count",runs=3}, {trigger="file-staleness",ttl="90us"}]}"#,
    ];
    specs.extend(small.map(|spec| spec.parse::<PolicySpec>().unwrap()));
    specs
}

/// A policy that forwards calls to a preset or composition. It checks that the headroom is 0 if and only if writes
/// must stop.
#[derive(Debug)]
struct WithExactHeadroom(Arc<dyn CompactionPolicy>);

impl CompactionPolicy for WithExactHeadroom {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn pick(&self, shape: &TreeShape, running: &RunningJobs) -> Option<Job> {
        self.0.pick(shape, running)
    }

    fn explain(&self, shape: &TreeShape, running: &RunningJobs) -> lsmx_compaction::Explanation {
        self.0.explain(shape, running)
    }

    fn debt(&self, shape: &TreeShape, running: &RunningJobs) -> Debt {
        let debt = self.0.debt(shape, running);
        assert_eq!(debt.headroom_bytes == 0, self.must_stop_writes(shape), "headroom of {self:?}");
        debt
    }

    fn must_stop_writes(&self, shape: &TreeShape) -> bool {
        self.0.must_stop_writes(shape)
    }
}

/// Calls `test` with a checker of `spec`. Afterwards, the tree must have a shape for which the policy needs no job.
fn check(
    spec: &PolicySpec,
    seed: u64,
    test: impl FnOnce(&mut PolicyChecker<'_>) -> Result<(), PolicyViolation>,
) {
    let policy = WithExactHeadroom(spec.build());
    let mut checker = PolicyChecker::new(&policy, seed);
    if let Err(violation) = test(&mut checker) {
        let PolicyViolation { property, seed, tree, .. } = &violation;
        panic!("{spec}: {violation}: {property:?}; repeat with LSMX_TEST_SEED={seed}\n{tree}");
    }
    check_settled(spec, &checker.tree);
}

/// Checks that no level has more runs than the policy permits, and that no rule about single files requires a job.
fn check_settled(spec: &PolicySpec, tree: &ModelTree) {
    let shape = &tree.shape;
    let primitives = spec.primitives();
    let runs = |level: usize| shape.levels[level].runs.len();
    let text = || format!("{spec}\n{}", tree.to_text());
    let run_count = primitives.rules.iter().find_map(|rule| match rule.trigger {
        Trigger::RunCount { runs, wait } => Some((runs, wait)),
        _ => None,
    });
    let depth = shape.levels.len();
    match &primitives.layout {
        TreeLayout::Fluid { upper, last, .. } => {
            let limit = |level| upper.get(level).or(upper.last()).unwrap();
            for level in 0..depth {
                let max = if level > 0 && level + 1 == depth { last } else { limit(level) };
                assert!(runs(level) <= *max, "L{level}: {}", text());
            }
        }
        TreeLayout::RunList { .. } => {
            assert!(shape.runs().count() <= run_count.unwrap().0.max(1), "{}", text());
        }
        TreeLayout::Leveling { tiered } => {
            let (trigger, wait) = run_count.unwrap();
            for level in 1..depth {
                let max = tiered.get(level - 1).unwrap_or(&1);
                assert!(runs(level) <= *max, "L{level}: {}", text());
            }
            assert!(shape.levels.is_empty() || runs(0) < wait, "{}", text());
            if !shape.levels.is_empty() && runs(0) >= trigger {
                // If the memtables are empty, the policy merges the waiting runs of L0 into one.
                assert!(!shape.memtables_empty || runs(0) == 1, "{}", text());
                assert!(is_merge_of_l0_inefficient(shape), "{}", text());
            }
        }
        TreeLayout::Fifo => {}
    }
    check_settled_files(&primitives, tree, &text);
}

/// Checks that no rule about single files, such as an age limit, requires a job.
fn check_settled_files(primitives: &PolicyPrimitives, tree: &ModelTree, text: &dyn Fn() -> String) {
    let shape = &tree.shape;
    let last = shape.last_run().map(|(_, run)| run.id);
    let is_fifo = matches!(primitives.layout, TreeLayout::Fifo);
    for (level, run) in shape.runs() {
        for file in &run.files {
            let half_expired_us = file.half_expired_us().filter(|us| *us <= shape.expiry_limit_us);
            let is_due = !is_fifo && half_expired_us.is_some();
            assert!(!is_due, "file {} in {level}: {}", file.id.0, text());
            let is_droppable = shape.has_droppable_tombstone(file);
            for rule in &primitives.rules {
                let is_due = match rule.trigger {
                    Trigger::TombstoneDensity { ppm } => {
                        is_droppable && file.tombstones * 1_000_000 / file.entries >= ppm
                    }
                    Trigger::TombstoneTtl { bound_us, .. } => {
                        let age_us = file.oldest_tombstone_us.map(|us| shape.now_us - us);
                        is_droppable && age_us.is_some_and(|age_us| age_us >= bound_us)
                    }
                    Trigger::FileStaleness { ttl_us } => {
                        shape.now_us - file.created_us >= ttl_us && Some(run.id) != last
                    }
                    _ => false,
                };
                assert!(!is_due, "file {} in {level}: {}", file.id.0, text());
            }
        }
    }
}

/// Returns whether a merge of L0 into the next nonempty level would rewrite more bytes of that level than L0 has.
fn is_merge_of_l0_inefficient(shape: &TreeShape) -> bool {
    let files = |level: usize| shape.levels[level].runs.iter().flat_map(|run| &run.files);
    let bytes: u64 = files(0).map(|file| file.bytes).sum();
    let hull = KeyRange::enclosing_range(files(0).map(|file| &file.range)).unwrap();
    let below = (1..shape.levels.len()).find(|level| files(*level).next().is_some());
    let overlapped = below.into_iter().flat_map(files).filter(|file| file.range.overlaps(&hull));
    overlapped.map(|file| file.bytes).sum::<u64>() > bytes
}

#[test]
fn every_policy_any_valid_tree_settles() {
    for_seeds(60, |seed| {
        for spec in policies() {
            check(&spec, seed, |checker| {
                checker.set_random_tree()?;
                checker.set_random_snapshot_and_memtable();
                checker.run_until_idle()
            });
        }
    });
}

#[test]
fn every_policy_parallel_jobs_keep_invariants() {
    let others: Vec<_> = policies().iter().map(PolicySpec::build).collect();
    for_seeds(25, |seed| {
        for spec in policies() {
            check(&spec, seed, |checker| {
                checker.set_empty_tree();
                let jobs_max = checker.rng.between(1, 5);
                checker.run_random_history(&others, jobs_max)
            });
        }
    });
}

#[test]
fn every_policy_parallel_jobs_on_any_valid_tree_keep_invariants() {
    let others: Vec<_> = policies().iter().map(PolicySpec::build).collect();
    for_seeds(25, |seed| {
        for spec in policies() {
            check(&spec, seed, |checker| {
                checker.set_random_tree()?;
                checker.run_random_history(&others, 3)
            });
        }
    });
}

/// Bug: a single worker never merged the surplus runs of deep levels if, after each merge of L0, L0 again had half of
/// the runs at which writes stop.
#[test]
fn surplus_runs_of_deep_levels_are_merged_by_single_worker_during_writes() {
    let specs = [
        "full(T=3,l1=2)",
        "lo+1(T=3,l1=1)",
        "rr(T=3,l1=1,stop=4)",
        "tsd(F=0.1,T=3,l1=1,stop=3)",
        "1-leveling(T=3,trigger=2,stop=4)",
        "full-preemptive(T=3,l1=1,stop=2)",
        "spooky(T=3,stop=2)",
    ];
    let tiering = "tiering(T=3)".parse::<PolicySpec>().unwrap().build();
    let flush = |checker: &mut PolicyChecker<'_>| {
        let writes = (0..12).map(|_| (u32::try_from(checker.rng.below(400)).unwrap(), false));
        let writes: Vec<_> = writes.collect();
        checker.tree.flush(&writes, 12).unwrap();
    };
    let has_surplus =
        |tree: &ModelTree| tree.shape.levels.iter().skip(2).any(|level| level.runs.len() > 1);
    for_seeds(10, |seed| {
        let mut checker = PolicyChecker::new(&*tiering, seed);
        checker.set_empty_tree();
        // L0 has no run after this number of flushes, and L2 has two runs.
        for _ in 0..78 {
            flush(&mut checker);
            checker.run_until_idle().unwrap();
        }
        let tree = checker.tree.clone();
        assert!(has_surplus(&tree), "{}", tree.to_text());
        // The writer flushes this number of memtables during each job, unless writes are stopped.
        for (spec, flushes) in specs.iter().flat_map(|spec| [(spec, 1), (spec, 2), (spec, 9)]) {
            checker.tree = tree.clone();
            let policy = spec.parse::<PolicySpec>().unwrap().build();
            for jobs in 0.. {
                let text = || format!("{spec}, {flushes} flushes:\n{}", checker.tree.to_text());
                assert!(jobs < 30, "{}", text());
                let job = policy.pick(&checker.tree.shape, &RunningJobs::default());
                let job = job.unwrap_or_else(|| panic!("{}", text()));
                for _ in 0..flushes {
                    if !policy.must_stop_writes(&checker.tree.shape) {
                        flush(&mut checker);
                    }
                }
                checker.tree.execute_job(&job).unwrap();
                if !has_surplus(&checker.tree) {
                    break;
                }
            }
        }
    });
}

#[test]
fn check_policy_accepts_every_preset() {
    let fifo = "fifo(2K,ttl=300us)".parse().unwrap();
    for spec in policies().into_iter().chain([fifo]) {
        if let Err(violation) = check_policy(&*spec.build(), 1, 300) {
            panic!("{spec}: {violation}: {:?}\n{}", violation.property, violation.tree);
        }
    }
}

/// Bound for deleted values, in microseconds.
const PERSISTENCE_US: u64 = 8_000;

/// Checks that no file has a tombstone or an expired entry beyond its part of the bound. A tombstone that a snapshot
/// needs may stay where no older file overlaps it.
fn check_persistence(spec: &PolicySpec, tree: &ModelTree) {
    let (shape, parts) = (&tree.shape, DeletePersistence::new(PERSISTENCE_US));
    for (index, (level, run)) in shape.runs().enumerate() {
        let is_oldest = |range: &KeyRange| {
            shape.runs().skip(index + 1).all(|(_, run)| run.overlapping_files(range).is_empty())
        };
        let range_of_l0 = run.range().filter(|_| level == Level(0));
        for file in &run.files {
            let text = || format!("{spec}: file {} in {level}\n{}", file.id.0, tree.to_text());
            let range = range_of_l0.as_ref().unwrap_or(&file.range);
            let is_held = !shape.has_droppable_tombstone(file) && is_oldest(range);
            if let Some(written_us) = file.oldest_tombstone_us {
                let age_us = shape.now_us - written_us;
                assert!(is_held || age_us < parts.tombstone_us(), "{age_us} us: {}", text());
            }
            let expired = file.expiry.filter(|expiry| expiry.earliest_us <= shape.expiry_limit_us);
            if let Some(expiry) = expired {
                let age_us = shape.now_us - expiry.earliest_us;
                assert!(age_us < parts.expiry_us(), "{age_us} us: {}", text());
            }
        }
    }
}

/// With a bound for deleted values, each tombstone leaves the tree within its part of the bound, although nothing is
/// written any more. The policy states the times at which it needs to be called.
#[test]
fn every_policy_tombstones_leave_within_bound_of_deleted_values() {
    for_seeds(20, |seed| {
        for spec in policies() {
            let policy = spec.build();
            check(&spec, seed, |checker| {
                if checker.rng.is_true_with_percent(50) {
                    checker.set_random_tree()?;
                } else {
                    checker.tree = ModelTree::new(6, 8);
                }
                checker.tree.shape.delete_persistence_us = Some(PERSISTENCE_US);
                let ttl_us = checker.rng.is_true_with_percent(50).then_some(3_000);
                checker.tree.set_ttl(ttl_us);
                for _ in 0..checker.rng.between(1, 12) {
                    let writes: Vec<_> = (0..checker.rng.between(1, 8))
                        .map(|_| (checker.rng.below(60), checker.rng.is_true_with_percent(40)))
                        .map(|(key, is_deleted)| (u32::try_from(key).unwrap(), is_deleted))
                        .collect();
                    checker.tree.flush(&writes, 4).unwrap();
                    let wait_us = checker.rng.below(PERSISTENCE_US / 4);
                    checker.tree.advance_us(wait_us);
                    checker.run_until_idle()?;
                    check_persistence(&spec, &checker.tree);
                }
                if checker.rng.is_true_with_percent(30) {
                    let newest = checker.tree.shape.files().map(|file| file.seq_largest).max();
                    let snapshot = checker.rng.below(newest.unwrap_or(0) + 1);
                    checker.tree.set_snapshot(Some(snapshot));
                    checker.run_until_idle()?;
                }
                let end_us = checker.tree.shape.now_us + PERSISTENCE_US;
                while let Some(due_us) = policy.next_pick_due_us(&checker.tree.shape) {
                    let now_us = checker.tree.shape.now_us;
                    assert!(due_us > now_us, "{spec}: due at {due_us} of {now_us}");
                    if due_us > end_us {
                        break;
                    }
                    checker.tree.advance_us(due_us - now_us);
                    checker.run_until_idle()?;
                    check_persistence(&spec, &checker.tree);
                }
                checker.tree.set_snapshot(None);
                checker.tree.advance_us(end_us.saturating_sub(checker.tree.shape.now_us));
                checker.run_until_idle()?;
                check_persistence(&spec, &checker.tree);
                Ok(())
            });
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: u32::try_from(scaled(64)).unwrap_or(u32::MAX),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed()),
        ..ProptestConfig::default()
    })]

    /// The inputs are small, so that a failure shrinks to a readable case.
    #[test]
    fn every_policy_any_flushes_settle_and_are_found(
        flushes in prop::collection::vec(
            prop::collection::vec((0u32..60, any::<bool>()), 1..12), 1..24),
        table_entries in 2u64..12,
        index in 0usize..200,
    ) {
        let specs = policies();
        check(&specs[index % specs.len()], 0, |checker| {
            checker.tree = ModelTree::new(6, table_entries);
            for writes in &flushes {
                checker.tree.flush(writes, 6).unwrap();
                checker.run_until_idle()?;
            }
            Ok(())
        });
    }
}

#[test]
fn file_picker_first_equals_first_of_order() {
    for_seeds(40, |seed| {
        let policy = PolicySpec::default().build();
        let mut checker = PolicyChecker::new(&*policy, seed);
        checker.set_random_tree().unwrap();
        let shape = &checker.tree.shape;
        let deepest = shape.deepest_level().unwrap_or(Level(0));
        for (level, next) in (0..=deepest.0).map(|level| (Level(level), Level(level + 1))) {
            for run in shape.runs_of(level) {
                for picker in FilePicker::ALL {
                    let order = picker.order_files(shape, level, run, next);
                    let first = picker.first_file(shape, level, run, next);
                    assert_eq!(first, order.first().copied(), "{picker:?} of {}", run.id.0);
                }
            }
        }
    });
}
