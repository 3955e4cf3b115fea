//! Power is cut before every operation of the file system, in every way that a strict reading of
//! POSIX allows; each time the database reopens to exactly one prefix of its history, which holds
//! what was promised, and goes on.
//!
//! `LSMX_TEST_REPLAY=run:operation:image:seed`, as a failure prints it, plays that crash alone.

mod arsenal;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arsenal::coverage::Coverage;
use arsenal::recorder::Sampling;
use arsenal::workload::{Plan, play};
use arsenal::{Chance, Outcome, base_seed, options, oracle, scale};
use lsmx::env::Background;
use lsmx::vfs::Image;

/// Images that CI checks.
const IMAGES: u64 = 10_000;
/// Images taken of one run, about.
const IMAGES_OF_A_RUN: u64 = 120;

/// The run that follows from a seed.
fn plan(seed: u64) -> Plan {
    let mut chance = Chance::new(seed);
    let stepped = chance.one_in(5);
    let background = match stepped {
        true => Background::Stepped { seed: chance.draw(), workers: 2 },
        false => Background::Inline,
    };
    Plan {
        seed,
        steps: 60 + chance.below(300),
        policy: options::draw_policy(&mut chance),
        background,
        faults: !stepped && chance.one_in(2),
        sampling: Sampling::NONE,
    }
}

/// Plays a run twice: to learn how long it is, and to take images of it.
fn enumerate(seed: u64, coverage: &Arc<Coverage>) -> Outcome<u64> {
    let mut plan = plan(seed);
    let told = |what| format!("run {seed}: {what}\nreplay: LSMX_TEST_REPLAY={seed}");
    let aside = Arc::new(Coverage::default());
    let operations = play(&plan, &aside).map_err(told)?.operations;
    let images = operations * Image::ALL.len() as u64;
    plan.sampling = Sampling::Chance((IMAGES_OF_A_RUN * 1_000_000).div_ceil(images));
    crashes_of(&plan, coverage)
}

fn crashes_of(plan: &Plan, coverage: &Arc<Coverage>) -> Outcome<u64> {
    let seed = plan.seed;
    let played = play(plan, coverage)
        .map_err(|what| format!("run {seed}: {what}\nreplay: LSMX_TEST_REPLAY={seed}"))?;
    coverage.add("runs", plan.policy.name());
    let mut checked = 0;
    for crash in played.crashes {
        let history = &played.histories[crash.promises.epoch];
        checked += oracle::check(&crash, history, coverage)
            .map_err(|what| oracle::tell(seed, &crash, &what))?;
    }
    Ok(checked)
}

/// Calls `work` with the numbers from 0 on, on two threads, while it says so; returns the first
/// failure.
fn in_parallel(work: impl Fn(u64) -> Outcome<bool> + Sync) -> Outcome {
    let (next, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let failure = Mutex::new(Ok(()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    match work(next.fetch_add(1, Ordering::Relaxed)) {
                        Ok(true) => {}
                        Ok(false) => over.store(true, Ordering::Relaxed),
                        Err(what) => {
                            over.store(true, Ordering::Relaxed);
                            *failure.lock().unwrap() = Err(what);
                        }
                    }
                }
            });
        }
    });
    failure.into_inner().unwrap()
}

/// Plays what a failure printed, if that is what is asked.
fn replay() -> Option<Outcome<u64>> {
    let text = std::env::var("LSMX_TEST_REPLAY").ok()?;
    let parts: Vec<&str> = text.split(':').collect();
    let number = |at: usize| parts[at].parse::<u64>().expect("a number");
    let coverage = Arc::new(Coverage::default());
    let mut plan = plan(number(0));
    if parts.len() == 4 {
        let image = Image::ALL.into_iter().find(|image| format!("{image:?}") == parts[2]);
        plan.sampling = Sampling::Only(number(1), image.expect("an image"), number(3));
    }
    println!("{plan:?}");
    Some(crashes_of(&plan, &coverage))
}

#[test]
fn every_crash_leaves_one_prefix_that_holds_what_was_promised() {
    if let Some(replayed) = replay() {
        println!("{} images checked", replayed.unwrap());
        return;
    }
    let seed = base_seed();
    println!("LSMX_TEST_SEED={seed}");
    let coverage = Arc::new(Coverage::default());
    let (checked, goal) = (AtomicU64::new(0), IMAGES * scale());
    let failure = in_parallel(|number| {
        let images = enumerate(arsenal::mix(seed, number) >> 16, &coverage)?;
        Ok(checked.fetch_add(images, Ordering::Relaxed) + images < goal)
    });
    println!("{} images checked\n{coverage}", checked.load(Ordering::Relaxed));
    if let Err(what) = failure {
        panic!("{what}");
    }
    assert!(checked.load(Ordering::Relaxed) >= goal);
}
