//! A child process writes to a database on the real file system and is killed without warning, over
//! and over, under options drawn anew each time. Every commit it was told of is there, whole, and
//! nothing that it never began.
//!
//! `LSMX_TEST_SEED` replays the draws; the moment of the kill is counted in acknowledgements, so it
//! is about the same again.

#![allow(clippy::print_stdout, reason = "a test says what it did")]

mod arsenal;
mod killing;

use std::io::{BufReader, Read};
use std::process::{Command, Stdio};

use arsenal::{Chance, Outcome, base_seed, mix, scale};
use killing::Orders;
use lsmx::sabotage::{self, Bug};

/// Kills in CI.
const KILLS: u64 = 40;
/// Kills of one database before the next begins anew.
const KILLS_OF_A_DATABASE: u64 = 8;
/// The variable that makes the child of a test out of it.
const CHILD: &str = "LSMX_TEST_KILL_CHILD";
/// The variable that names a deliberate bug for the child to have.
const BUG: &str = "LSMX_TEST_KILL_BUG";
/// Kills within which a deliberate bug must show.
const KILLS_FOR_A_BUG: u64 = 48;

/// Bugs that make a process that dies break its word, or one that was killed come back with less, or
/// more, than it had.
const VISIBLE: &[Bug] = &[
    Bug::BufferedNotLogged,
    Bug::ReplaySkipsUnflushed,
    Bug::ReplaySkipsRangeDeletes,
    Bug::BatchTorn,
    Bug::FoldedValueStale,
    Bug::SpanDroppedEarly,
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

/// Starts a child, kills it after so many acknowledgements, and returns the last number that each
/// writer was told of, 0 where there is none; after the writers' the last step of the keyspace that
/// comes and goes.
fn kill_one(orders: &Orders, bug: Option<Bug>, acknowledged: u64) -> Outcome<Vec<u64>> {
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(exe)
        .args(["child", "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, orders.to_text())
        .envs(bug.map(|bug| (BUG, bug.name())))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("no child: {error}"))?;
    let told = child.stderr.take().ok_or("no pipe")?;
    let mut told = BufReader::new(told);
    let mut last = vec![0; usize::try_from(orders.writers + 1).map_err(|error| error.to_string())?];
    let (mut bytes, mut count, mut killed) = ([0; 16], 0, false);
    while told.read_exact(&mut bytes).is_ok() {
        let (writer, number) = killing::told(bytes);
        match usize::try_from(writer).ok().and_then(|writer| last.get_mut(writer)) {
            Some(last) => *last = number,
            // The child is about to open the database.
            None if writer == u64::MAX => {}
            None => return Err(format!("the child says {:?}", bytes.escape_ascii().to_string())),
        }
        if !killed && count >= acknowledged {
            child.kill().map_err(|error| format!("no kill: {error}"))?;
            killed = true;
        }
        count += 1;
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    if !killed || status.code().is_some() {
        let mut said = String::new();
        if let Some(mut stdout) = child.stdout.take() {
            let _ = stdout.read_to_string(&mut said);
        }
        return Err(format!("the child ended by itself: {status}: {said}"));
    }
    Ok(last)
}

/// Kills children of one database; returns how many acknowledgements there were. The children may have
/// a bug; whoever looks at what they leave has none.
fn kill_many(seed: u64, kills: u64, bug: Option<Bug>) -> Outcome<u64> {
    let home = tempfile::tempdir().map_err(|error| error.to_string())?;
    let dir = home.path().join("db");
    let mut chance = Chance::new(seed);
    let writers = 1 + chance.below(4);
    let mut counts = vec![0; usize::try_from(writers + 1).map_err(|error| error.to_string())?];
    let (mut acknowledged, mut untold) = (0, 0);
    for round in 0..kills {
        let orders =
            Orders { dir: dir.display().to_string(), seed, round: chance.draw() >> 1, writers };
        // Some die while they open, some soon after, some with much behind them.
        let after = match chance.below(4) {
            0 => chance.below(3),
            1 => chance.below(200),
            _ => chance.below(2500),
        };
        let told = |what| format!("round {round}, killed after {after}: {what}");
        let last = kill_one(&orders, bug, after).map_err(told)?;
        for (count, last) in counts.iter_mut().zip(last) {
            acknowledged += last.saturating_sub(*count);
            *count = last.max(*count);
        }
        // Each of the killed may have got one further than it could tell.
        untold += 1;
        // Often the next child finds what a kill has left: it recovers, and may be killed at that.
        if round + 1 < kills && chance.one_in(2) {
            continue;
        }
        let (db, keyspaces) = killing::open(&dir, chance.draw()).map_err(told)?;
        for (at, count) in counts.iter_mut().enumerate() {
            let found = killing::count_of(&db, &keyspaces, at as u64, writers).map_err(told)?;
            if found < *count || found > *count + untold {
                let what = format!("writer {at}: {found} commits, {count} were acknowledged");
                return Err(told(what));
            }
            *count = found;
        }
        untold = 0;
        killing::check(&keyspaces, seed, &counts).map_err(told)?;
        drop(keyspaces);
        db.close(None).map_err(|error| told(format!("closing: {error}")))?;
        let report = lsmx::verify(&dir).map_err(|error| told(format!("{error:?}")))?;
        if !report.orphans.is_empty() {
            return Err(told(format!("orphans: {:?}", report.orphans)));
        }
    }
    Ok(acknowledged)
}

#[test]
fn a_killed_process_keeps_its_word() {
    if std::env::var(CHILD).is_ok() {
        return;
    }
    let base = base_seed();
    println!("LSMX_TEST_SEED={base}");
    let (kills, mut acknowledged) = (KILLS * scale(), 0);
    for database in 0..kills.div_ceil(KILLS_OF_A_DATABASE) {
        let seed = mix(base, database) >> 16;
        match kill_many(seed, KILLS_OF_A_DATABASE, None) {
            Ok(count) => acknowledged += count,
            Err(what) => panic!("database {database}, seed {seed}: {what}"),
        }
    }
    println!("{kills} kills, {acknowledged} commits acknowledged");
    assert!(acknowledged > kills * 50, "{acknowledged} acknowledgements are too few");
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
            let seed = mix(base, database) >> 16;
            kill_many(seed, KILLS_OF_A_DATABASE, Some(bug)).err().map(|what| (database, what))
        });
        let Some((database, what)) = shown else {
            panic!("{} did not show in {KILLS_FOR_A_BUG} kills", bug.name());
        };
        let what: String = what.chars().take(150).collect();
        println!("{}: at database {database}: {what}", bug.name());
    }
}
