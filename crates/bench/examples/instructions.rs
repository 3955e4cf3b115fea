//! Performs operations whose instructions `callgrind` counts. `scripts/instructions` counts all of them.
//!
//! ```text
//! instructions DIRECTORY load
//! instructions DIRECTORY OPERATION COUNT
//! ```
//!
//! Operations: `absent` (gets of absent keys), `absent-unfiltered` (the same without the filter of the last sorted run),
//! `present`, `put`, `scan`. An equal pass before the counted one fills the block cache. `load` runs the jobs inline, so
//! that each load creates the same tables.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "the program prints errors and panics on failures"
)]

use std::process::ExitCode;

use lsmx::env::Background;
use lsmx::{Compression, Db, FilterLastRun, KeyspaceOptions, Options};

const RECORDS: u64 = 1_000_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [dir, "load"] => load(dir),
        [dir, operation, count] => measure(dir, operation, count.parse().unwrap()),
        _ => {
            println!("usage: instructions DIRECTORY load | DIRECTORY OPERATION COUNT");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn open(dir: &str, filter: FilterLastRun, background: Background) -> Db {
    let keyspace =
        KeyspaceOptions::default().compression(Compression::None).filter_last_run(filter);
    let options =
        Options::default().keyspace_defaults(keyspace).background(background).warm_up(false);
    Db::open(dir, options).unwrap()
}

/// Returns the key of record `number`. Consecutive records have distant keys.
fn make_key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Writes the records. The tree then has a sorted run with most of the records and a newer run with the others.
fn load(dir: &str) {
    let db = open(dir, FilterLastRun::Auto, Background::Inline);
    let put = |number| db.put(make_key(number), [7; 100]).unwrap();
    (0..RECORDS / 10 * 9).for_each(put);
    db.flush().unwrap();
    db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
    (RECORDS / 10 * 9..RECORDS).for_each(put);
    db.flush().unwrap();
    db.wait_idle().unwrap();
    db.close(None).unwrap();
}

fn measure(dir: &str, operation: &str, count: u64) {
    let filter = match operation {
        "absent-unfiltered" => FilterLastRun::Off,
        _ => FilterLastRun::Auto,
    };
    let db = open(dir, filter, Background::default());
    run(&db, operation, count);
    count_instructions(&db, operation, count);
    db.close(None).unwrap();
}

/// Performs the operations that are counted.
#[inline(never)]
fn count_instructions(db: &Db, operation: &str, count: u64) {
    run(db, operation, count);
}

fn run(db: &Db, operation: &str, count: u64) {
    // The step is coprime to the number of records.
    let numbers = (0..count).map(|at| at * 7919 % RECORDS);
    match operation {
        "absent" | "absent-unfiltered" => {
            numbers.for_each(|at| assert!(db.get(make_key(at + RECORDS)).unwrap().is_none()));
        }
        "present" => numbers.for_each(|at| assert!(db.get(make_key(at)).unwrap().is_some())),
        "put" => numbers.for_each(|at| db.put(make_key(at + 2 * RECORDS), [7; 100]).unwrap()),
        "scan" => {
            let entries = db.default_keyspace().iter().take(usize::try_from(count).unwrap());
            assert_eq!(entries.map(Result::unwrap).count() as u64, count);
        }
        _ => panic!("unknown operation {operation}"),
    }
}
