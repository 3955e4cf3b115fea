//! Measures the time and memory of thousands of keyspaces. The measurement cannot fail, so it is ignored by default.
//! Command:
//!
//! `cargo test -p lsmx --test process many_keyspaces:: -- --ignored --nocapture`

#![allow(clippy::disallowed_methods, reason = "measures time")]

use std::time::{Duration, Instant};

use lsmx::{Db, KeyspaceOptions, Options};

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit(") ").next().unwrap();
    let ticks = |at: usize| after_name.split(' ').nth(at).unwrap().parse::<u64>().unwrap();
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// Runs `work`. Prints the wall time, the CPU time and the memory growth, in total and per item. `count` is the number
/// of items.
fn measure<T>(name: &str, count: u32, work: impl FnOnce() -> T) -> T {
    let (started, cpu_before, resident_before) = (Instant::now(), cpu_time(), resident_bytes());
    let done = work();
    let (wall, used) = (started.elapsed(), cpu_time() - cpu_before);
    let grown = resident_bytes().saturating_sub(resident_before) / u64::from(count);
    println!(
        "{name}: {:.1} ms, processor {} ms; each {:.1} us, processor {:.1} us, {grown} bytes resident",
        wall.as_secs_f64() * 1e3,
        used.as_millis(),
        wall.as_secs_f64() * 1e6 / f64::from(count),
        used.as_secs_f64() * 1e6 / f64::from(count),
    );
    done
}

fn measure_keyspaces(keyspaces: u32, values: u32) {
    println!("{keyspaces} keyspaces, {values} of 100 bytes in each");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let open = || Db::open(&path, Options::default()).unwrap();
    let db = open();
    measure("create", keyspaces, || {
        for number in 0..keyspaces {
            db.keyspace(&format!("keyspace-{number}"), KeyspaceOptions::default()).unwrap();
        }
    });
    if values > 0 {
        measure("fill", keyspaces, || {
            for number in 0..keyspaces {
                let keyspace = db.open_keyspace(&format!("keyspace-{number}"), None).unwrap();
                for key in 0..values {
                    keyspace.put(key.to_be_bytes(), [7; 100]).unwrap();
                }
            }
        });
        measure("flush", keyspaces, || db.flush().unwrap());
    }
    measure("close", keyspaces, || db.close(None).unwrap());
    drop(db);
    let db = measure("open", keyspaces, open);
    measure("settle", keyspaces, || db.wait_idle().unwrap());
    let before = cpu_time();
    std::thread::sleep(Duration::from_secs(10));
    println!("idle: {} ms of processor time in 10 s", (cpu_time() - before).as_millis());
    measure("one put and flush", 1, || {
        db.put("k", "v").unwrap();
        db.flush().unwrap();
    });
    measure("drop", 100, || {
        for number in 0..100 {
            db.drop_keyspace(&format!("keyspace-{number}")).unwrap();
        }
    });
    db.close(None).unwrap();
}

#[test]
#[ignore = "measures, checks nothing; run with --test process many_keyspaces -- --ignored --nocapture"]
fn measure_ten_thousand_empty_keyspaces() {
    measure_keyspaces(10_000, 0);
}

#[test]
#[ignore = "measures, checks nothing; run with --test process many_keyspaces -- --ignored --nocapture"]
fn measure_a_thousand_keyspaces_with_data() {
    measure_keyspaces(1_000, 100);
}
