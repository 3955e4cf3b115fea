//! Kills processes that write to a database on the real file system. Each process opens the database with new random
//! options.
//!
//! After a kill, each acknowledged commit must be present and complete. The times of kills depend on thread scheduling,
//! so `LSMX_TEST_SEED` repeats a run only approximately. `lsmx stress` runs the same test for a given time.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a test may print and panic")]

use lsmx::env::Env;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_stress::{
    ChildCommand, ChildCounts, Detection, KillCounts, KillPlan, Orders, Outcome, format_detections,
    kill_many,
};
use lsmx_testkit::{mix_seeds, scaled, seed};

/// Number of kills if `LSMX_TEST_SCALE` is 1.
const KILLS: u64 = 40;
/// Number of kills per database.
const KILLS_PER_DATABASE: u64 = 8;
/// Maximum number of databases until the children must have executed every required operation.
const DATABASES_MAX: u64 = 40;
/// Maximum number of databases until a failpoint must be detected. `IngestSkipsFlush` has the fewest detections: a
/// quarter of the databases detect it on an idle machine, fewer on a loaded one. If a tenth of the databases detect it,
/// 150 databases miss it once in seven million runs.
const DATABASES_PER_FAILPOINT: u64 = 150;
/// Environment variable with the name of the failpoint that a child enables.
const FAILPOINT: &str = "LSMX_TEST_KILL_BUG";

/// Failpoints that make the database lose, tear or repeat commits when its process is killed.
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
    Failpoint::ExpiryUncoversOlderVersion,
    Failpoint::ExpiryLostAtSeparation,
    Failpoint::IngestSkipsFlush,
];

/// Entry point of the child processes that the other tests start and kill. Does nothing in any other process.
#[test]
fn child() {
    let Some(orders) = Orders::from_env().unwrap() else { return };
    if let Ok(name) = std::env::var(FAILPOINT) {
        failpoint::enable(Failpoint::from_name(&name).expect("the variable names a failpoint"));
    }
    println!("{:?}", lsmx_stress::write_until_killed(&orders));
    // The parent reports a failure if a child ends before the parent kills it.
    std::process::exit(3);
}

/// Runs the kill test on one database.
fn kill_database(seed: u64, failpoint: Option<Failpoint>) -> Outcome<KillCounts> {
    let plan = KillPlan {
        seed,
        kills: KILLS_PER_DATABASE,
        acknowledgements_max: 600,
        faults: false,
        keep: false,
    };
    let arguments = ["child", "--exact", "--nocapture", "--test-threads=1"];
    let children = ChildCommand {
        program: std::env::current_exe().unwrap(),
        arguments: arguments.map(str::to_owned).to_vec(),
        variables: failpoint
            .map(|point| (FAILPOINT, point.name().to_owned()))
            .into_iter()
            .collect(),
    };
    kill_many(plan, &children, &std::env::temp_dir())
}

fn database_seed(base: u64, database: u64) -> u64 {
    mix_seeds(base, database) >> 16
}

/// Returns the required operations that no child has executed.
fn missing_operations(reached: ChildCounts) -> Vec<&'static str> {
    let required = [
        ("commit of a transaction", reached.transactions),
        ("drop of an expired entry", reached.expired),
        ("ingest of a file", reached.loads),
        ("rename of a keyspace", reached.renamed),
        ("clone of a keyspace", reached.cloned),
        ("read of a metrics file", reached.metrics_files),
        ("write to an operand store", reached.operands),
        ("rewrite of a bucket", reached.rewrites + reached.splits + reached.overflows),
        ("rewrite of a blob file", reached.blob_rewrites),
        ("comparison of a checkpoint", reached.copies),
    ];
    required.into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
}

#[test]
fn killed_process_loses_no_acknowledged_commit() {
    let base = seed();
    let mut sum = KillCounts::default();
    let databases = scaled(KILLS).div_ceil(KILLS_PER_DATABASE);
    // On a loaded machine, few databases may miss a rare operation, so the test continues until all have occurred.
    for database in 0..databases.max(DATABASES_MAX) {
        if database >= databases && missing_operations(sum.reached).is_empty() {
            break;
        }
        let seed = database_seed(base, database);
        match kill_database(seed, None) {
            Ok(one) => sum.add(one),
            Err(what) => panic!("database {database}, seed {seed}: {what}"),
        }
    }
    println!("{sum:?}");
    assert!(sum.acknowledged > sum.kills * 50, "too few acknowledgements: {sum:?}");
    let missing = missing_operations(sum.reached);
    assert!(missing.is_empty(), "never executed: {missing:?}: {sum:?}");
}

#[test]
fn kills_detect_each_failpoint() {
    let base = seed();
    let clock = Env::default();
    let mut detections = Vec::new();
    for &failpoint in VISIBLE {
        let name = failpoint.name();
        let start_ns = clock.monotonic_ns();
        let detected = (0..DATABASES_PER_FAILPOINT).find_map(|database| {
            let outcome = kill_database(database_seed(base, database), Some(failpoint));
            outcome.err().map(|what| (database + 1, what))
        });
        let Some((runs, what)) = detected else {
            panic!("{name} was not detected with {DATABASES_PER_FAILPOINT} databases");
        };
        let ms = (clock.monotonic_ns() - start_ns) / 1_000_000;
        detections.push(Detection { failpoint, check: "a killed process", runs, ms });
        let what: String = what.chars().take(250).collect();
        println!("{name}: at database {runs}: {what}");
    }
    println!("\n{}", format_detections(&detections));
}
