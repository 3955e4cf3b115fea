//! A child process writes to a database on the real file system and is killed without warning, over
//! and over, under options drawn anew each time: with operand stores and without, which keyspaces take
//! on and leave while commits go on, with values in blob files and in tables. Every commit it was told
//! of is there, whole, and nothing that it never began.
//!
//! `LSMX_TEST_SEED` replays the draws; the moment of the kill is counted in acknowledgements, so it
//! is about the same again. The soak goes on for `LSMX_TEST_MINUTES` (10 if unset):
//!
//! ```text
//! LSMX_TEST_MINUTES=60 cargo test -p lsmx --test kill soak -- --ignored --nocapture
//! ```
//!
//! It prints the seed of each database before it begins. One that fails leaves its files where the failure
//! says, as they are and as the last kill had left them, and `LSMX_TEST_REPLAY` with its seed plays
//! that database alone.

#![allow(clippy::print_stdout, reason = "a test says what it did")]

mod arsenal;
mod killing;

use arsenal::{Chance, base_seed, mix, number, scale};
use killing::{BUG, CHILD, Orders, Plan, Reached, Sum, kill_many};
use lsmx::env::Env;
use lsmx::sabotage::{self, Bug};

/// Kills in CI.
const KILLS: u64 = 40;
/// Kills of one database before the next begins anew.
const KILLS_OF_A_DATABASE: u64 = 8;
/// Kills within which a deliberate bug must show.
const KILLS_FOR_A_BUG: u64 = 96;
/// Acknowledgements within which a child is killed.
const LONGEST: u64 = 600;
/// Minutes of the soak where nothing else is said.
const MINUTES: u64 = 10;
/// Kills of one database of the soak, at most.
const KILLS_SOAKED: u64 = 40;
/// Acknowledgements within which a child of the soak is killed, at most.
const LONGEST_SOAKED: u64 = 20_000;

/// Bugs that make a process that dies break its word, or one that was killed come back with less, or
/// more, than it had.
const VISIBLE: &[Bug] = &[
    Bug::BufferedNotLogged,
    Bug::ReplaySkipsUnflushed,
    Bug::ReplaySkipsRangeDeletes,
    Bug::BatchTorn,
    Bug::FoldedValueStale,
    Bug::SpanDroppedEarly,
    Bug::AnchorForgotten,
    Bug::TokenNotCommitted,
    Bug::LiveBlobDeleted,
];

/// Not a test of its own: what [`a_killed_process_keeps_its_word`] starts and kills.
#[test]
fn child() {
    let Ok(text) = std::env::var(CHILD) else { return };
    let orders = Orders::from_text(&text).expect("orders that the parent wrote");
    if let Ok(name) = std::env::var(BUG) {
        let bug = Bug::ALL.iter().find(|bug| bug.name() == name);
        sabotage::arm(Some(*bug.expect("a bug that the parent knows")));
    }
    let outcome = killing::write_for_ever(&orders);
    println!("{outcome:?}");
    // Nobody asked it to end.
    std::process::exit(3);
}

/// A database that is killed as often as CI does it.
fn short(base: u64, database: u64, bug: Option<Bug>) -> Plan {
    let seed = mix(base, database) >> 16;
    Plan { seed, kills: KILLS_OF_A_DATABASE, longest: LONGEST, bug, keep: false }
}

#[test]
fn a_killed_process_keeps_its_word() {
    if std::env::var(CHILD).is_ok() {
        return;
    }
    let base = base_seed();
    println!("LSMX_TEST_SEED={base}");
    let mut sum = Sum::default();
    for database in 0..(KILLS * scale()).div_ceil(KILLS_OF_A_DATABASE) {
        let plan = short(base, database, None);
        match kill_many(plan) {
            Ok(one) => sum.add(one),
            Err(what) => panic!("database {database}, {plan:?}: {what}"),
        }
    }
    println!("{sum:?}");
    assert!(sum.acknowledged > sum.kills * 50, "too little was acknowledged: {sum:?}");
    let Reached { operands, rewrites, splits, overflows, blob_rewrites, .. } = sum.reached;
    let collected = rewrites + splits + overflows;
    assert!(operands > 0 && collected > 0, "no operand store had anything to do: {sum:?}");
    assert!(blob_rewrites > 0, "no blob file was emptied: {sum:?}");
}

/// Minutes of commits, kills and reopenings, each database under draws of its own.
#[test]
#[ignore = "takes LSMX_TEST_MINUTES, 10 if unset; run with --test kill soak -- --ignored --nocapture"]
fn soak() {
    let plan = |seed: u64| {
        let mut chance = Chance::new(!seed);
        let kills = 1 + chance.below(KILLS_SOAKED);
        let longest = *chance.of(&[LONGEST_SOAKED / 100, LONGEST_SOAKED / 8, LONGEST_SOAKED]);
        Plan { seed, kills, longest, bug: None, keep: true }
    };
    let play = |plan: Plan| {
        let Plan { seed, kills, longest, .. } = plan;
        // Before, for one that hangs.
        println!("seed {seed}: {kills} kills within {longest} commits");
        kill_many(plan).unwrap_or_else(|what| {
            panic!(
                "{what}\nreplay: LSMX_TEST_REPLAY={seed} \
                 cargo test -p lsmx --test kill soak -- --ignored --nocapture"
            )
        })
    };
    if let Some(seed) = number("LSMX_TEST_REPLAY") {
        println!("{:?}", play(plan(seed)));
        return;
    }
    let (env, base) = (Env::default(), base_seed());
    let minutes = number("LSMX_TEST_MINUTES").unwrap_or(MINUTES);
    println!("LSMX_TEST_SEED={base}, {minutes} minutes");
    let end_ns = env.monotonic_ns() + minutes * 60_000_000_000;
    let mut sum = Sum::default();
    for database in 0.. {
        sum.add(play(plan(mix(base, database) >> 16)));
        if env.monotonic_ns() >= end_ns {
            println!("{} databases: {sum:?}", database + 1);
            break;
        }
    }
    if minutes > 0 {
        sum.reached.all().unwrap_or_else(|what| panic!("never reached: {what}: {sum:?}"));
    }
}

/// The test is tested: children that have a bug are found out.
#[test]
fn kills_show_what_a_bug_does() {
    if std::env::var(CHILD).is_ok() {
        return;
    }
    let base = base_seed();
    println!("LSMX_TEST_SEED={base}");
    for &bug in VISIBLE {
        let databases = 0..KILLS_FOR_A_BUG / KILLS_OF_A_DATABASE;
        let shown = databases.into_iter().find_map(|database| {
            kill_many(short(base, database, Some(bug))).err().map(|what| (database, what))
        });
        let Some((database, what)) = shown else {
            panic!("{} did not show in {KILLS_FOR_A_BUG} kills", bug.name());
        };
        let what: String = what.chars().take(250).collect();
        println!("{}: at database {database}: {what}", bug.name());
    }
}
