//! Measures scans over deleted keys, the time to open a database, and resident memory.
//!
//! Usage: `cargo run --release -p lsmx-bench --example operations -- [deletes] [opening] [memory] [RECORDS]`
//!
//! If no measurement is named, all three run. `RECORDS` is the number of records to load, with keys of 16 bytes and
//! values of 100 bytes. Each measurement has its own default. Resident memory is measured on Linux only.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "the program prints measurements")]
#![allow(clippy::disallowed_methods, reason = "measures real time and aborts a child process")]

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lsmx::{Compression, Db, KeyspaceOptions, Options};
use lsmx_bench::process::{directory_file_bytes, process_resident_bytes};

/// Argument that makes a child process fill the WAL and abort.
const ABORT: &str = "abort-with-a-full-log";

/// Function that runs a measurement. The argument overrides the default number of records.
type MeasurementPart = fn(Option<u64>);

const PARTS: [(&str, MeasurementPart); 3] =
    [("deletes", measure_deletes), ("opening", measure_opening), ("memory", measure_memory)];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [argument, dir] = arguments.as_slice()
        && argument == ABORT
    {
        return abort_with_a_full_log(Path::new(dir));
    }
    let records = arguments.iter().find_map(|argument| argument.parse().ok());
    let named: Vec<&str> =
        arguments.iter().map(String::as_str).filter(|at| at.parse::<u64>().is_err()).collect();
    if let Some(unknown) = named.iter().find(|name| !PARTS.iter().any(|(part, _)| part == *name)) {
        println!("unknown part {unknown}");
        std::process::exit(2);
    }
    for (name, part) in PARTS {
        if named.is_empty() || named.contains(&name) {
            println!("# {name}");
            part(records);
        }
    }
}

fn options() -> Options {
    let keyspaces = KeyspaceOptions::default().compression(Compression::None);
    Options::default().keyspace_defaults(keyspaces)
}

fn wait_until_idle(db: &Db) {
    db.flush().unwrap();
    db.wait_idle().unwrap();
}

/// Returns the key of record `number`. Consecutive records have distant keys, so that the key ranges of runs overlap.
fn make_key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

fn load_records(db: &Db, records: u64, ordered: bool) {
    for number in 0..records {
        let key = if ordered { u128::from(number).to_be_bytes() } else { make_key(number) };
        db.put(key, [u8::try_from(number % 251).unwrap_or(0); 100]).unwrap();
    }
}

/// Measures scans after the first half of the keys was deleted, either key by key or with one range delete.
fn measure_deletes(records: Option<u64>) {
    let records = records.unwrap_or(2_000_000);
    let half = u128::from(records / 2);
    for by_range in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), options()).unwrap();
        load_records(&db, records, true);
        wait_until_idle(&db);
        let started = Instant::now();
        if by_range {
            db.default_keyspace().delete_range(..half.to_be_bytes()).unwrap();
        } else {
            for number in 0..half {
                db.delete(number.to_be_bytes()).unwrap();
            }
        }
        let how = if by_range { "one range" } else { "one by one" };
        println!("{half} keys deleted, {how}: {:?}", started.elapsed());
        measure_first_entries(&db, half, "at once");
        wait_until_idle(&db);
        measure_first_entries(&db, half, "flushed, compactions at rest");
        let files: u64 = db.metrics().keyspaces["default"].levels.iter().map(|at| at.bytes).sum();
        println!("  tables {} MB", files / 1_000_000);
    }
}

/// Reads the first ten entries of a database. Prints the time and the number of blocks read.
fn measure_first_entries(db: &Db, first: u128, when: &str) {
    let blocks = |db: &Db| {
        let cache = db.metrics().cache;
        cache.values().map(|kind| kind.hits + kind.misses).sum::<u64>()
    };
    let before = blocks(db);
    let started = Instant::now();
    let found: Vec<_> = db.default_keyspace().iter().take(10).collect::<Result<_, _>>().unwrap();
    let elapsed = started.elapsed();
    assert_eq!(found[0].0[..], first.to_be_bytes());
    println!("  first 10 entries {when}: {elapsed:?}, {} blocks", blocks(db) - before);
}

/// Opens a database `attempts` times. Returns the shortest time.
fn measure_open_time(dir: &Path, attempts: u32) -> Duration {
    let fastest = (0..attempts).map(|_| {
        let started = Instant::now();
        let db = Db::open(dir, options()).unwrap();
        let opened = started.elapsed();
        db.close(None).unwrap();
        opened
    });
    fastest.min().unwrap_or_default()
}

/// Measures the time to open a database after a clean close, and after a kill with a full WAL.
fn measure_opening(records: Option<u64>) {
    let records = records.unwrap_or(9_000_000);
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    load_records(&db, records, false);
    wait_until_idle(&db);
    db.close(None).unwrap();
    let bytes = directory_file_bytes(dir.path());
    let opened = measure_open_time(dir.path(), 5);
    println!("after a clean close of {} MB: {opened:?}, the least of 5", bytes / 1_000_000);

    let mut least = Duration::MAX;
    let mut log = 0;
    for _ in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let child = Command::new(std::env::current_exe().unwrap());
        let status = { child }.arg(ABORT).arg(dir.path()).status().unwrap();
        assert!(!status.success());
        log = std::fs::read_dir(dir.path())
            .unwrap()
            .flatten()
            .filter(|entry| entry.path().extension().is_some_and(|it| it == "wal"))
            .map(|entry| entry.metadata().unwrap().len())
            .sum();
        let started = Instant::now();
        let db = Db::open(dir.path(), options()).unwrap();
        least = least.min(started.elapsed());
        drop(db);
    }
    println!("after a kill with {} MB of log: {least:?}, the least of 3", log / 1_000_000);
}

/// Writes until the WAL contains almost 64 MiB of unflushed data, then aborts the process.
fn abort_with_a_full_log(dir: &Path) {
    // The memtable must be large. A memtable of the default size would be flushed before the WAL is full.
    let keyspaces = KeyspaceOptions::default().memtable_bytes(256 << 20);
    let db = Db::open(dir, options().keyspace_defaults(keyspaces)).unwrap();
    let mut number = 0;
    while db.metrics().wal.live_bytes < (64 << 20) - (64 << 10) {
        for _ in 0..100 {
            db.put(make_key(number), [7; 100]).unwrap();
            number += 1;
        }
        assert_eq!(db.metrics().keyspaces["default"].flushes, 0, "flush before the WAL is full");
    }
    std::process::abort();
}

fn resident_bytes() -> u64 {
    process_resident_bytes().unwrap()
}

/// Measures the maximum resident memory while a database with a memory budget is loaded, read and reopened.
fn measure_memory(records: Option<u64>) {
    let records = records.unwrap_or(5_000_000);
    for budget in [64u64 << 20, 256 << 20] {
        let dir = tempfile::tempdir().unwrap();
        let before = resident_bytes();
        let peak = AtomicU64::new(0);
        let phase = |name: &str| {
            let peak = peak.swap(0, Ordering::Relaxed).max(resident_bytes()) - before;
            let bound = budget * 115 / 100 + (32 << 20);
            println!(
                "budget {} MiB, {name}: most resident {} MiB, {:.2} of the bound (1.15 budgets + 32 MiB)",
                budget >> 20,
                peak >> 20,
                peak as f64 / bound as f64
            );
        };
        std::thread::scope(|scope| {
            let operations = scope.spawn(|| {
                let open = || Db::open(dir.path(), options().memory_budget(budget)).unwrap();
                let db = open();
                load_records(&db, records, false);
                phase("load");
                wait_until_idle(&db);
                phase("settling");
                for round in 0..2 {
                    let step = 7 + round;
                    for number in (0..records).step_by(step) {
                        assert!(db.get(make_key(number)).unwrap().is_some());
                    }
                    phase("lookups");
                }
                assert_eq!(db.default_keyspace().iter().count() as u64, records);
                phase("a scan of everything");
                db.close(None).unwrap();
                drop(db);
                let db = open();
                phase("opening");
                for number in (0..records).step_by(5) {
                    assert!(db.get(make_key(number)).unwrap().is_some());
                }
                phase("lookups after opening");
                db.close(None).unwrap();
            });
            // The samples end even if an assertion fails.
            while !operations.is_finished() {
                peak.fetch_max(resident_bytes(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
    }
}
