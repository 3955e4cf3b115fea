//! What holds for every preset: from any legal shape, with jobs running side by side and ending in
//! any order, all invariants stand after every step, and the tree comes to rest.
//!
//! `LSMX_TEST_SCALE` multiplies the number of runs, `LSMX_TEST_SEED` sets the first seed; a failure
//! prints the seed that repeats it.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]
#![allow(clippy::print_stderr, reason = "a failure prints its seed")]

mod world;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use lsmx_compaction::layout::Layout;
use lsmx_compaction::movement::Movement;
use lsmx_compaction::trigger::Trigger;
use lsmx_compaction::{
    BusyFiles, CompactionPolicy, CutRule, FileId, Job, JobInput, JobKind, KeyRange, Level,
    Placement, PolicySpec, Primitives, Reason, Target, TreeShape,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use world::{World, describe};

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Runs `test` with many seeds; says which one failed.
fn for_seeds(runs: u64, test: impl Fn(&mut ChaCha8Rng)) {
    let first = env("LSMX_TEST_SEED", 1);
    for seed in first..first + runs * env("LSMX_TEST_SCALE", 1) {
        let run = || test(&mut ChaCha8Rng::seed_from_u64(seed));
        if let Err(failure) = catch_unwind(AssertUnwindSafe(run)) {
            eprintln!("repeat with LSMX_TEST_SEED={seed}");
            resume_unwind(failure);
        }
    }
}

/// Every preset, with its defaults and with small parameters that make small trees deep.
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
        "leveled(T=2,base=1)",
        "leveled(T=2,base=1,wait=4)",
        "leveled(T=3,base=1,trigger=2,last=4,grandparents=3)",
        "leveled(T=3,base=1,trigger=2,wait=3,last=4)",
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
        // Compositions.
        r#"{layout="leveling", tiered=[2,1], rule=[{trigger="run-count",runs=2},
            {trigger="level-full",capacity="from-top",l1=1,size-ratio=3}]}"#,
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

fn random_writes(rng: &mut ChaCha8Rng, count: usize) -> Vec<(u32, bool)> {
    // A window of keys: sometimes all, sometimes few, so that runs may be disjoint.
    let width = *[20u32, 100, 400].choose(rng).unwrap();
    let start = rng.random_range(0..=400 - width);
    (0..count).map(|_| (rng.random_range(start..start + width), rng.random_bool(0.15))).collect()
}

/// A legal shape that no preset would make: flushes, shuffled by random legal jobs.
fn random_world(rng: &mut ChaCha8Rng) -> World {
    let mut world = World::new(12, *[4u64, 12, 30].choose(rng).unwrap());
    for _ in 0..rng.random_range(1..40) {
        if rng.random_bool(0.5) {
            let count = rng.random_range(1..20);
            let writes = random_writes(rng, count);
            world.flush(&writes, rng.random_range(2..20));
        } else if let Some(job) = random_job(&world, rng) {
            world.finish(&job);
        }
        world.check();
    }
    world
}

/// Neighbouring whole runs to a place below, or into the run below, or one file to the next run.
fn random_job(world: &World, rng: &mut ChaCha8Rng) -> Option<Job> {
    let shape = &world.shape;
    let runs: Vec<_> = shape.runs().collect();
    let start = rng.random_range(0..runs.len().max(1));
    let end = (start + rng.random_range(1..4)).min(runs.len());
    let taken = runs.get(start..end).filter(|taken| !taken.is_empty())?;
    let oldest = taken.last()?.0;
    let deepest_allowed = runs.get(end).map_or(Level(7), |(level, _)| *level);
    let level = Level(rng.random_range(oldest.0..=deepest_allowed.0));
    let before = runs.get(end).filter(|(l, _)| *l == level).map(|(_, run)| run.id);
    let job = Job {
        kind: JobKind::Merge,
        inputs: taken.iter().map(|(level, run)| JobInput::whole(*level, run)).collect(),
        target: Target { level, placement: Placement::NewRun { before } },
        cut: CutRule {
            file_bytes: rng.random_range(200..3000),
            grandparent: None,
            boundaries: Vec::new(),
        },
        reason: Reason::Manual,
    };
    // L0 hands on its oldest runs only.
    let l0_left = taken.iter().any(|(level, _)| *level == Level(0))
        && level != Level(0)
        && runs.get(end).is_some_and(|(level, _)| *level == Level(0));
    (!l0_left).then_some(job)
}

/// What every answer of a policy must be.
fn checked_pick(policy: &dyn CompactionPolicy, world: &World, busy: &BusyFiles) -> Option<Job> {
    let job = policy.pick(&world.shape, busy);
    assert_eq!(job, policy.pick(&world.shape, busy), "equal arguments, other answer");
    let debt = policy.debt(&world.shape, busy);
    assert_eq!(debt, policy.debt(&world.shape, busy));
    assert_eq!(debt.headroom_bytes == 0, policy.must_stop(&world.shape));
    if let Some(job) = &job {
        let names: Vec<FileId> = job.input_files().collect();
        let unique: HashSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len(), "a file twice: {job}");
        assert!(!names.iter().any(|file| busy.is_busy(*file)), "busy file: {job}");
        assert!(busy.admits(job, &world.shape).unwrap(), "not admitted: {job}");
        let l0_jobs = busy.jobs.iter().filter(|(running, _)| running.leaves_l0()).count();
        assert!(!job.leaves_l0() || l0_jobs == 0, "two jobs out of L0: {job}");
    }
    if policy.must_stop(&world.shape) && busy.jobs.is_empty() {
        assert!(job.is_some(), "writes wait for nothing:\n{}", describe(&world.shape));
    }
    job
}

/// The shape that a policy rests in.
fn check_rest(spec: &PolicySpec, world: &World) {
    let shape = &world.shape;
    let primitives = spec.primitives();
    let runs = |level: usize| shape.levels[level].runs.len();
    let text = || format!("{spec}\n{}", describe(shape));
    let run_count = primitives.rules.iter().find_map(|rule| match rule.trigger {
        Trigger::RunCount { runs, wait } => Some((runs, wait)),
        _ => None,
    });
    let depth = shape.levels.len();
    match &primitives.layout {
        Layout::Fluid { upper, last, .. } => {
            let limit = |level| upper.get(level).or(upper.last()).unwrap();
            for level in 0..depth {
                let max = if level > 0 && level + 1 == depth { last } else { limit(level) };
                assert!(runs(level) <= *max, "L{level}: {}", text());
            }
        }
        Layout::RunList { .. } => {
            assert!(shape.runs().count() <= run_count.unwrap().0.max(1), "{}", text());
        }
        Layout::Leveling { tiered } => {
            let (trigger, wait) = run_count.unwrap();
            for level in 1..depth {
                let max = tiered.get(level - 1).unwrap_or(&1);
                assert!(runs(level) <= *max, "L{level}: {}", text());
            }
            assert!(shape.levels.is_empty() || runs(0) < wait, "{}", text());
            if !shape.levels.is_empty() && runs(0) >= trigger {
                // One run of L0 may have been several.
                assert!(!shape.resting || runs(0) == 1, "{}", text());
                assert!(rewrites_more_than_it_moves(shape), "{}", text());
            }
        }
        Layout::Queue => {}
    }
    check_files_at_rest(&primitives, world, &text);
}

/// Rules about files leave none that they make due.
fn check_files_at_rest(primitives: &Primitives, world: &World, text: &dyn Fn() -> String) {
    let shape = &world.shape;
    let last = shape.last_run().map(|(_, run)| run.id);
    for (level, run) in shape.runs() {
        for file in &run.files {
            let can_go = shape.has_droppable(file);
            for rule in &primitives.rules {
                match rule.trigger {
                    Trigger::TombstoneDensity { ppm } => {
                        let density = file.tombstones * 1_000_000 / file.entries;
                        assert!(!can_go || density < ppm, "{} in {level}: {}", file.id.0, text());
                    }
                    Trigger::TombstoneTtl { bound_us, .. } => {
                        let age = file.oldest_tombstone_us.map(|us| shape.now_us - us);
                        let young = age.is_none_or(|age| age < bound_us);
                        assert!(!can_go || young, "{} in {level}: {}", file.id.0, text());
                    }
                    Trigger::FileStaleness { ttl_us } => {
                        let young = shape.now_us - file.created_us < ttl_us;
                        assert!(young || Some(run.id) == last, "{}: {}", file.id.0, text());
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Whether L0 holds less than it overlaps in the next level that holds something.
fn rewrites_more_than_it_moves(shape: &TreeShape) -> bool {
    let files = |level: usize| shape.levels[level].runs.iter().flat_map(|run| &run.files);
    let bytes: u64 = files(0).map(|file| file.bytes).sum();
    let hull = KeyRange::hull_of(files(0).map(|file| &file.range)).unwrap();
    let below = (1..shape.levels.len()).find(|level| files(*level).next().is_some());
    let overlapped = below.into_iter().flat_map(files).filter(|file| file.range.overlaps(&hull));
    overlapped.map(|file| file.bytes).sum::<u64>() > bytes
}

#[test]
fn every_preset_brings_any_legal_shape_to_its_own() {
    for_seeds(60, |rng| {
        let mut world = random_world(rng);
        world.shape.resting = rng.random_bool(0.5);
        world.snapshot(rng.random_bool(0.3).then(|| rng.random_range(0..400)));
        for spec in policies() {
            let policy = spec.build();
            let mut world = world.clone();
            for jobs in 0.. {
                let Some(job) = checked_pick(&*policy, &world, &BusyFiles::default()) else {
                    break;
                };
                let explained = policy.explain(&world.shape, &BusyFiles::default());
                assert_eq!(explained.picked.as_ref(), Some(&job), "{spec}: {explained}");
                assert!(jobs < 2000, "{spec} does not rest:\n{}", describe(&world.shape));
                let before = world.shape.clone();
                world.finish(&job);
                world.check();
                assert_ne!(
                    before.levels, world.shape.levels,
                    "{spec}: a job without effect: {job}"
                );
            }
            check_rest(&spec, &world);
            let debt = policy.debt(&world.shape, &BusyFiles::default());
            assert_eq!(debt.pending_bytes, 0, "{spec}: debt at rest");
        }
    });
}

/// Flushes and jobs side by side; up to `parallel` jobs run, and end in any order.
fn play(spec: &PolicySpec, world: &mut World, rng: &mut ChaCha8Rng, parallel: usize) {
    let mut policy = spec.build();
    let mut busy = BusyFiles::default();
    for _ in 0..120 {
        match rng.random_range(0..10) {
            0..4 if !policy.must_stop(&world.shape) => {
                let count = rng.random_range(1..16);
                let writes = random_writes(rng, count);
                world.flush(&writes, rng.random_range(4..20));
            }
            0..7 if busy.jobs.len() < parallel => {
                if let Some(job) = checked_pick(&*policy, world, &busy) {
                    let bytes = job.input_bytes(&world.shape).unwrap();
                    busy.start(job, bytes);
                }
            }
            7 if rng.random_bool(0.05) => policy = policies().choose(rng).unwrap().build(),
            8 => {
                world.shape.resting = !world.shape.resting;
                world.snapshot(rng.random_bool(0.2).then(|| rng.random_range(0..900)));
                world.shape.now_us += rng.random_range(0..40);
            }
            _ => {
                if let Some((job, _)) = busy.jobs.choose(rng).cloned() {
                    world.finish(&job);
                    assert!(busy.finish(&job));
                    assert!(!busy.finish(&job));
                }
            }
        }
        world.check();
    }
    for (job, _) in busy.jobs.clone() {
        world.finish(&job);
        busy.finish(&job);
        world.check();
    }
    world.shape.resting = rng.random_bool(0.5);
    assert!(busy.files.is_empty() && busy.jobs.is_empty());
    let policy = spec.build();
    world.settle(&*policy);
    world.check();
    check_rest(spec, world);
}

#[test]
fn parallel_jobs_that_end_in_any_order_keep_every_invariant() {
    for_seeds(25, |rng| {
        for spec in policies() {
            let mut world = World::new(12, *[6u64, 12].choose(rng).unwrap());
            let parallel = rng.random_range(1..5);
            play(&spec, &mut world, rng, parallel);
        }
    });
}

#[test]
fn a_foreign_shape_with_parallel_jobs_keeps_every_invariant() {
    for_seeds(25, |rng| {
        let world = random_world(rng);
        for spec in policies() {
            play(&spec, &mut world.clone(), rng, 3);
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: u32::try_from(64 * env("LSMX_TEST_SCALE", 1)).unwrap_or(u32::MAX),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(env("LSMX_TEST_SEED", 1)),
        ..ProptestConfig::default()
    })]

    /// Small inputs, so that a failure shrinks to something that can be read.
    #[test]
    fn flushes_of_any_keys_settle_and_are_found(
        flushes in prop::collection::vec(
            prop::collection::vec((0u32..60, any::<bool>()), 1..12), 1..24),
        table_entries in 2u64..12,
        index in 0usize..200,
    ) {
        let specs = policies();
        let policy = specs[index % specs.len()].build();
        let mut world = World::new(6, table_entries);
        for writes in &flushes {
            world.flush(writes, 6);
            world.settle(&*policy);
            world.check();
        }
        check_rest(&specs[index % specs.len()], &world);
    }
}

/// The first choice is found by other means than the order of all files.
#[test]
fn the_first_of_an_order_is_the_first_choice() {
    for_seeds(40, |rng| {
        let world = random_world(rng);
        let deepest = world.shape.deepest().unwrap_or(Level(0));
        for (level, next) in (0..=deepest.0).map(|level| (Level(level), Level(level + 1))) {
            for run in world.shape.runs_of(level) {
                for movement in Movement::ALL {
                    let order = movement.order(&world.shape, level, run, next);
                    let first = movement.first(&world.shape, level, run, next);
                    assert_eq!(first, order.first().copied(), "{movement:?} of {}", run.id.0);
                }
            }
        }
    });
}
