//! Simulated power losses before every file system operation, with every kind of disk image that POSIX allows.
//!
//! Each reopened database must contain a prefix of the commits that includes all durable commits, and must accept new
//! commits. A failure prints a setting `LSMX_TEST_REPLAY=run:operation:image:seed` that replays one disk image.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::harness::coverage::Coverage;
use crate::harness::parallel::{in_parallel, watched};
use crate::harness::recorder::{Sampling, image_name};
use crate::harness::workload::{Faults, Plan, play};
use crate::harness::{Outcome, crash_history, options, oracle, writers};
use lsmx::PolicySpec;
use lsmx::env::Background;
use lsmx::vfs::CrashImage;
use lsmx_testkit::{TestRng, mix_seeds, scale, scaled, seed};

/// Number of disk images checked in CI.
const IMAGES: u64 = 25_000;
/// This suffix of a seed in `LSMX_TEST_REPLAY` selects a short run of 25 steps.
const SHORT: char = 's';
/// Number of histories of fewer than 60 steps in CI.
const SHORT_HISTORIES: u64 = 2_000;
/// Number of disk images checked in CI for runs with several writer threads.
const WRITERS_IMAGES: u64 = 3_000;
/// Mean number of disk images sampled from one run.
const IMAGES_OF_A_RUN: u64 = 120;

/// Returns the seed of a run. Consecutive runs use the compaction policies in turn, so a few runs cover all policies.
fn run_seed(seed: u64, number: u64) -> u64 {
    let policies = options::policies().len() as u64;
    let drawn = mix_seeds(seed, number) >> 16;
    drawn - drawn % policies + number % policies
}

fn plan(seed: u64) -> Plan {
    let mut rng = TestRng::new(seed);
    let policies = options::policies();
    let in_turn = policies.len() as u64;
    let policy = policies[usize::try_from(seed % in_turn).unwrap()].clone();
    let stepped = rng.is_one_in(5);
    let long = rng.is_one_in(8);
    let background = match stepped {
        true => Background::Stepped { seed: rng.next_u64(), workers: 2 },
        false => Background::Inline,
    };
    Plan {
        name: seed.to_string(),
        seed,
        steps: if long { 700 } else { 60 + rng.below(300) },
        reopens: !long,
        policy,
        background,
        faults: if !stepped && !long && rng.is_one_in(2) { Faults::Random } else { Faults::None },
        sampling: Sampling::NONE,
    }
}

/// Executes a run twice: first to count its file system operations, then to sample and check disk images. Returns the
/// number of checked images.
fn enumerate(seed: u64, coverage: &Arc<Coverage>) -> Outcome<u64> {
    let mut plan = plan(seed);
    let describe = |what| format!("run {seed}: {what}\nreplay: LSMX_TEST_REPLAY={seed}");
    let operations = play(&plan, &Arc::default()).map_err(describe)?.operations;
    let images = operations * CrashImage::ALL.len() as u64;
    plan.sampling = Sampling::Chance((IMAGES_OF_A_RUN * 1_000_000).div_ceil(images));
    crashes_of(&plan, coverage)
}

fn preset_name(policy: &PolicySpec) -> &'static str {
    policy.preset().expect("the policy is a preset").name()
}

/// Executes a run and checks its disk images. Returns the number of checked images.
fn crashes_of(plan: &Plan, coverage: &Arc<Coverage>) -> Outcome<u64> {
    let name = &plan.name;
    let played = play(plan, coverage)
        .map_err(|what| format!("run {name}: {what}\nreplay: LSMX_TEST_REPLAY={name}"))?;
    coverage.add("runs", preset_name(&plan.policy));
    let stepped = matches!(plan.background, Background::Stepped { .. });
    coverage.add("runs", if stepped { "stepped" } else { "inline" });
    let mut checked = 0;
    for crash in played.crashes {
        let history = &played.histories[crash.promises.epoch];
        checked += oracle::check(&crash, history, coverage)
            .map_err(|what| oracle::tell(name, &crash, &what))?;
    }
    Ok(checked)
}

/// Shortens a run to 25 steps, so that the test can check disk images at every operation.
fn short(plan: Plan) -> Plan {
    Plan { name: format!("{}{SHORT}", plan.seed), steps: 25, sampling: Sampling::ALL, ..plan }
}

/// Asserts that every kind of background job, crash and disk image occurred at least once.
fn require_everything(coverage: &Coverage) -> Outcome {
    let images = CrashImage::ALL.map(image_name);
    for group in ["images", "crashes in recovery", "second crashes"] {
        coverage.require(group, &images)?;
    }
    coverage.require("crashes while", &["opening", "running", "resuming", "closing"])?;
    let jobs = ["flush", "merge", "rewrite", "trivial move", "segment turn", "segment retired"];
    coverage.require("jobs", &jobs)?;
    let others = ["fresh manifest", "tail cut", "read-only", "resume", "background failure"];
    coverage.require("jobs", &others)?;
    let calls = ["create keyspace", "change policy", "change options", "clean close", "snapshot"];
    coverage.require("calls", &calls)?;
    if scale() > 1.0 {
        // The following events are rare. A test is certain to see them only if `LSMX_TEST_SCALE` is above 1.
        coverage.require("calls", &["resume that failed", "reopen after an error"])?;
    }
    coverage.require(
        "calls",
        &["drop keyspace", "rename keyspace", "clone keyspace", "checkpoint", "compact range"],
    )?;
    coverage.require("calls", &["ingest", "bulk load", "set options"])?;
    coverage.require("calls", &["puts with a default time to live"])?;
    coverage.require("commits", &["batch", "transaction", "locking transaction"])?;
    coverage.require("entries", &["expired"])?;
    coverage.require("jobs", &["rewrite of an expired table"])?;
    coverage.require("crashes before link", &["blob", "table"])?;
    let files = ["blob", "manifest", "segment", "table", "temporary"];
    for group in ["crashes before create", "crashes before append", "crashes before sync"] {
        coverage.require(group, &files)?;
        coverage.require(group, &["operands"])?;
    }
    coverage.require("calls", &["operands to the tree"])?;
    let removed = ["blob", "manifest", "segment", "table", "operands"];
    coverage.require("crashes before remove", &removed)?;
    coverage.require("crashes before rename", &["temporary"])?;
    coverage.require("crashes before sync_dir", &["directory"])?;
    coverage.require("runs", &["stepped", "inline"])?;
    let policies = options::policies();
    coverage.require("runs", &policies.iter().map(preset_name).collect::<Vec<_>>())
}

/// `proptest` shrinks a failing history. The panic message contains the shrunk history as a test.
#[test]
fn short_histories_with_power_losses_keep_the_promises() {
    let played = crash_history::play_random(scaled(SHORT_HISTORIES), seed());
    played.unwrap_or_else(|(report, _)| panic!("{report}"));
}

/// The test has the form in which `print_as_test` prints a failing history.
#[test]
fn history_found_by_proptest_passes() {
    use lsmx::vfs::CrashImage::*;

    use crate::harness::crash_history::{Step::*, play};

    play(&[
        Put(3, 20),
        Merge(3),
        Flush,
        DeleteRange(1, 2),
        PowerLoss { delay: 1, image: Torn, seed: 7 },
        Merge(3),
        Get(3),
        Reopen,
        Delete(3),
    ])
    .unwrap();
}

/// The printed test is part of this file, so it compiles.
#[test]
fn failing_history_is_printed_as_test() {
    use crate::harness::crash_history::Step::*;

    let steps = [
        Put(3, 20),
        Merge(3),
        Flush,
        DeleteRange(1, 2),
        PowerLoss { delay: 1, image: CrashImage::Torn, seed: 7 },
        Merge(3),
        Get(3),
        Reopen,
        Delete(3),
    ];
    let printed = crash_history::print_as_test(&steps);
    assert!(include_str!("crash.rs").contains(&printed), "{printed}");
}

/// If a commit survives a crash, all commits acknowledged before the start of that commit also survive.
#[test]
fn crash_with_concurrent_writers_keeps_the_order_of_commits() {
    let seed = seed();
    let (checked, goal) = (AtomicU64::new(0), scaled(WRITERS_IMAGES));
    let failure = in_parallel(|number| {
        let seed = mix_seeds(seed, number) >> 16;
        let describe = |what| format!("schedule {seed}: {what}");
        let images =
            watched(&format!("schedule {seed}"), || writers::play(seed).map_err(describe))?;
        Ok(checked.fetch_add(images, Ordering::Relaxed) + images < goal)
    });
    println!("{} images checked", checked.load(Ordering::Relaxed));
    failure.unwrap_or_else(|what| panic!("{what}"));
}

/// Replays the run or the single disk image that `LSMX_TEST_REPLAY` names. Returns `None` if the variable is not set.
fn replay() -> Option<Outcome<u64>> {
    let text = std::env::var("LSMX_TEST_REPLAY").ok()?;
    let parts: Vec<&str> = text.split(':').collect();
    let number = |at: usize| parts[at].parse::<u64>().expect("a number");
    let coverage = Arc::new(Coverage::default());
    let mut plan = match parts[0].strip_suffix(SHORT) {
        Some(seed) => short(plan(seed.parse().expect("a number"))),
        None => plan(number(0)),
    };
    if parts.len() == 4 {
        let image = CrashImage::ALL.into_iter().find(|image| format!("{image:?}") == parts[2]);
        plan.sampling = Sampling::Only(number(1), image.expect("an image"), number(3));
    }
    Some(crashes_of(&plan, &coverage))
}

#[test]
fn crash_at_any_operation_leaves_a_prefix_with_all_durable_commits() {
    if let Some(replayed) = replay() {
        println!("{} images checked", replayed.unwrap());
        return;
    }
    let seed = seed();
    let coverage = Arc::new(Coverage::default());
    let (checked, goal) = (AtomicU64::new(0), scaled(IMAGES));
    let failure = in_parallel(|number| {
        let seed = run_seed(seed, number);
        let images = match number {
            0 => {
                let plan = short(plan(seed));
                watched(&format!("LSMX_TEST_REPLAY={}", plan.name), || crashes_of(&plan, &coverage))
            }
            _ => watched(&format!("LSMX_TEST_REPLAY={seed}"), || enumerate(seed, &coverage)),
        }?;
        Ok(checked.fetch_add(images, Ordering::Relaxed) + images < goal)
    });
    println!("{} images checked\n{coverage}", checked.load(Ordering::Relaxed));
    failure.unwrap_or_else(|what| panic!("{what}"));
    assert!(checked.load(Ordering::Relaxed) >= goal);
    require_everything(&coverage).unwrap();
}
