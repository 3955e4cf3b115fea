//! Liveness tests. Each run executes random operations and injects one fault: a failed call, an altered read, a panic
//! in user code, or a hanging device call.
//!
//! After the fault, and after `resume` if the database is read-only, every call must return within a bounded number of
//! steps. Each keyspace must then accept writes, flush, become idle, read correctly and close.
//!
//! A failure prints a command that replays the run. `LSMX_TEST_LIVENESS=TEXT` injects only faults whose names contain
//! `TEXT` (`all` selects every fault). The test then reports all failures instead of only the first.

use lsmx_testkit::{scaled, seed};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::harness::Outcome;
use crate::harness::liveness::{Kind, Mode, plan, play};
use crate::harness::parallel::on_threads;

/// Number of runs in CI.
const HISTORIES: u64 = 2_000;
/// Maximum number of further runs for a disturbance that did not occur in these.
const ROUNDS_MORE: u64 = 200;
/// Number of threads that execute runs in parallel. A run spends most of its time waiting.
const THREADS: usize = 8;
/// Time limit of one run. A run normally takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit of one run if `LSMX_TEST_LIVENESS` is set.
const SHORT_PATIENCE: Duration = Duration::from_secs(10);
/// After this number of failures with one kind of fault, the test skips this kind.
const FAILURES_MAX: usize = 10;

/// Replays the run that `LSMX_TEST_REPLAY` names. Returns `None` if the variable is not set.
fn replay() -> Option<Outcome<bool>> {
    let text = std::env::var("LSMX_TEST_REPLAY").ok()?;
    let parts: Vec<&str> = text.split(':').collect();
    let kind = Kind::all().into_iter().find(|kind| kind.to_string() == parts[0]);
    let mode = Mode::ALL.into_iter().find(|mode| format!("{mode:?}") == parts[1]);
    let seed = parts[2].parse().expect("a number");
    Some(play(kind.expect("a kind of disturbance"), mode.expect("a mode"), seed, PATIENCE))
}

#[test]
fn database_works_after_a_disturbance() {
    if let Some(played) = replay() {
        println!("fault injected: {}", played.unwrap());
        return;
    }
    let seed = seed();
    let chosen = std::env::var("LSMX_TEST_LIVENESS").ok();
    let mut kinds = Kind::all();
    match &chosen {
        Some(text) if text != "all" => kinds.retain(|kind| kind.to_string().contains(text)),
        _ => {}
    }
    let fired = kinds.iter().map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let failures = Mutex::new(BTreeMap::<String, Vec<String>>::new());
    let known = || failures.lock().unwrap_or_else(PoisonError::into_inner);
    let count = scaled(HISTORIES);
    let failure = on_threads(THREADS, |number| {
        if number >= count {
            return Ok(false);
        }
        let (kind, mode, seed) = plan(&kinds, seed, number);
        let patience = if chosen.is_some() { SHORT_PATIENCE } else { PATIENCE };
        let count_known = known().get(&kind.to_string()).map_or(0, Vec::len);
        if count_known >= FAILURES_MAX {
            return Ok(true);
        }
        match play(kind, mode, seed, patience) {
            Ok(true) => {
                let at = kinds.iter().position(|other| *other == kind).unwrap_or(0);
                fired[at].fetch_add(1, Ordering::Relaxed);
            }
            Ok(false) => {}
            Err(what) if chosen.is_some() => {
                known().entry(kind.to_string()).or_default().push(what);
            }
            Err(what) => return Err(what),
        }
        Ok(true)
    });
    for (kind, fired) in kinds.iter().zip(&fired) {
        print!("{kind} {}, ", fired.load(Ordering::Relaxed));
    }
    println!("\n{count} histories");
    for (kind, failures) in &*known() {
        println!(
            "FAILED {kind}: {} times\n  {}",
            failures.len(),
            failures[0].replace('\n', "\n  ")
        );
    }
    failure.unwrap();
    assert!(known().is_empty());
    // Some disturbances occur in few runs of their kind.
    let (kind_count, rounds) = (kinds.len() as u64, count / kinds.len() as u64 + 1);
    for (at, fired) in fired.iter().enumerate().filter(|_| chosen.is_none()) {
        for round in rounds..rounds + ROUNDS_MORE {
            if fired.load(Ordering::Relaxed) > 0 {
                break;
            }
            let (kind, mode, seed) = plan(&kinds, seed, round * kind_count + at as u64);
            fired
                .fetch_add(u64::from(play(kind, mode, seed, PATIENCE).unwrap()), Ordering::Relaxed);
        }
    }
    let never = kinds.iter().zip(&fired).filter(|(_, fired)| fired.load(Ordering::Relaxed) == 0);
    let never: Vec<_> = never.map(|(kind, _)| kind.to_string()).collect();
    assert!(never.is_empty(), "disturbances that never occurred: {never:?}");
}
