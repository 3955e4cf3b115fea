//! Killed writers on the real file system, with new random options for each process.
//!
//! Each acknowledged commit is present and whole, and no commit that was not begun. A kill happens after a number
//! of acknowledgements, so `LSMX_TEST_SEED` repeats it roughly. `lsmx stress` runs the same without end.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test says what it did, and may panic"
)]

use lsmx::env::Env;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_stress::{
    ChildCommand, ChildCounts, Detection, Orders, Outcome, Plan, Sum, format_detections, kill_many,
};
use lsmx_testkit::{mix_seeds, scaled, seed};

/// Kills in CI.
const KILLS: u64 = 40;
/// Kills of one database before the next begins anew.
const KILLS_OF_A_DATABASE: u64 = 8;
/// Kills within which a deliberate bug must show.
const KILLS_FOR_A_BUG: u64 = 96;
/// Acknowledgements within which a child is killed.
const LONGEST: u64 = 600;
/// The variable that names a deliberate bug for the child to have.
const BUG: &str = "LSMX_TEST_KILL_BUG";

/// Bugs that make a process that dies break its word, or one that was killed come back with less, or
/// more, than it had.
const VISIBLE: &[Failpoint] = &[
    Failpoint::BufferedNotLogged,
    Failpoint::ReplaySkipsUnflushed,
    Failpoint::ReplaySkipsRangeDeletes,
    Failpoint::BatchSplit,
    Failpoint::FoldedValueStale,
    Failpoint::SpanDroppedEarly,
    Failpoint::DeleteMarkerSkipped,
    Failpoint::TokenNotCommitted,
    Failpoint::LiveBlobDeleted,
];

fn is_child() -> bool {
    std::env::var(lsmx_stress::ORDERS).is_ok()
}

/// Not a test of its own: what [`a_killed_process_keeps_its_word`] starts and kills.
#[test]
fn child() {
    let Some(orders) = Orders::from_env().unwrap() else { return };
    if let Ok(name) = std::env::var(BUG) {
        failpoint::enable(
            Failpoint::from_name(&name).expect("the parent passes the name of a failpoint"),
        );
    }
    let outcome = lsmx_stress::write_until_killed(&orders);
    println!("{outcome:?}");
    // Nobody asked it to end.
    std::process::exit(3);
}

/// A database that is killed as often as CI does it.
fn short(base: u64, database: u64, bug: Option<Failpoint>) -> (u64, Outcome<Sum>) {
    let seed = mix_seeds(base, database) >> 16;
    let (kills, longest) = (KILLS_OF_A_DATABASE, LONGEST);
    let plan = Plan { seed, kills, longest, faults: false, keep: false };
    let arguments = ["child", "--exact", "--nocapture", "--test-threads=1"];
    let children = ChildCommand {
        program: std::env::current_exe().unwrap(),
        arguments: arguments.map(str::to_owned).to_vec(),
        variables: bug.map(|bug| (BUG, bug.name().to_owned())).into_iter().collect(),
    };
    (seed, kill_many(plan, &children, &std::env::temp_dir()))
}

#[test]
fn a_killed_process_keeps_its_word() {
    if is_child() {
        return;
    }
    let base = seed();
    let mut sum = Sum::default();
    for database in 0..scaled(KILLS).div_ceil(KILLS_OF_A_DATABASE) {
        match short(base, database, None) {
            (_, Ok(one)) => sum.add(one),
            (seed, Err(what)) => panic!("database {database}, seed {seed}: {what}"),
        }
    }
    println!("{sum:?}");
    assert!(sum.acknowledged > sum.kills * 50, "too little was acknowledged: {sum:?}");
    let ChildCounts { operands, rewrites, splits, overflows, blob_rewrites, copies, .. } =
        sum.reached;
    let collected = rewrites + splits + overflows;
    assert!(operands > 0 && collected > 0, "no operand store had anything to do: {sum:?}");
    assert!(blob_rewrites > 0, "no blob file was emptied: {sum:?}");
    assert!(copies > 0, "no checkpoint was compared: {sum:?}");
}

/// The test is tested: children that have a bug are found out.
#[test]
fn kills_show_what_a_bug_does() {
    if is_child() {
        return;
    }
    let base = seed();
    let clock = Env::default();
    let mut found = Vec::new();
    for &bug in VISIBLE {
        let start_ns = clock.monotonic_ns();
        let databases = 0..KILLS_FOR_A_BUG / KILLS_OF_A_DATABASE;
        let shown = databases.into_iter().find_map(|database| {
            short(base, database, Some(bug)).1.err().map(|what| (database, what))
        });
        let Some((database, what)) = shown else {
            panic!("{} did not show in {KILLS_FOR_A_BUG} kills", bug.name());
        };
        let ms = (clock.monotonic_ns() - start_ns) / 1_000_000;
        let check = "a killed process";
        found.push(Detection { failpoint: bug, check, runs: database + 1, ms });
        let what: String = what.chars().take(250).collect();
        println!("{}: at database {}: {what}", bug.name(), database + 1);
    }
    println!("\n{}", format_detections(&found));
}
