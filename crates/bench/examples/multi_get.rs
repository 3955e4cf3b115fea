//! Measures `multi_get` without the page cache.
//!
//! Usage: `cargo run --release -p lsmx-bench --example multi_get -- [RECORDS [DIR]]`. The program builds a database
//! whose keys are hashes, and looks up present keys one by one and in batches. Reads bypass the page cache, and the
//! block cache has just enough space for filters and index blocks. `docs/results/read-cost.md` contains the measured
//! figures.

#![allow(clippy::print_stdout, reason = "the program prints a table")]
#![allow(clippy::disallowed_methods, reason = "measures real time")]

use std::path::PathBuf;
use std::time::Instant;

use lsmx::{Db, KeyspaceOptions, Options};
use lsmx_bench::workload::random::{hash_u64, random_bytes};

type Failure = Box<dyn std::error::Error>;

const RECORDS: u64 = 1_000_000;
const KEY_BYTES: usize = 32;
const VALUE_BYTES: usize = 110;
const TABLE_BYTES: u64 = 8 << 20;
/// Number of lookups for each batch size.
const LOOKUPS: usize = 20_000;
const BATCHES: [usize; 6] = [1, 2, 8, 32, 128, 512];

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let records = arguments.next().map_or(Ok(RECORDS), |records| records.parse())?;
    let place = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = tempfile::tempdir_in(place)?;
    let path = directory.path().join("db");
    build_database(&path, records)?;
    let cache_bytes = {
        let db = Db::open(&path, Options::default().read_only(true))?;
        let sizes = db.default_keyspace().metadata()?;
        sizes.inflection_2() + sizes.inflection_2() / 20
    };
    let options = Options::default().block_cache_bytes(cache_bytes).direct_reads(true);
    let db = Db::open(&path, options.read_only(true))?;
    let keyspace = db.default_keyspace();
    let mut numbers = (1..).map(|number| hash_u64(number) % records);
    for number in numbers.by_ref().take(LOOKUPS) {
        keyspace.get(make_key(number))?;
    }
    println!("{records} records, a cache of {cache_bytes} bytes\n");
    println!("| keys at once | microseconds per key | blocks read per key |");
    println!("| --- | --- | --- |");
    for batch in BATCHES {
        let read = || db.read_metrics().cache.values().map(|cache| cache.misses).sum::<u64>();
        let (before, start) = (read(), Instant::now());
        for _ in 0..LOOKUPS / batch {
            let keys: Vec<_> = numbers.by_ref().take(batch).map(make_key).collect();
            let values = match batch {
                1 => vec![keyspace.get(&keys[0])?],
                _ => keyspace.multi_get(&keys)?,
            };
            if values.iter().any(Option::is_none) {
                return Err("a key is missing".into());
            }
        }
        let lookups = (LOOKUPS / batch * batch) as f64;
        let each = start.elapsed().as_secs_f64() * 1e6 / lookups;
        println!("| {batch} | {each:.1} | {:.3} |", (read() - before) as f64 / lookups);
    }
    Ok(())
}

fn make_key(number: u64) -> Vec<u8> {
    random_bytes(hash_u64(number), KEY_BYTES)
}

fn build_database(path: &std::path::Path, records: u64) -> Result<(), Failure> {
    let tuning = KeyspaceOptions::default().memtable_bytes(TABLE_BYTES).table_bytes(TABLE_BYTES);
    let db = Db::open(path, Options::default().keyspace_defaults(tuning))?;
    for number in 0..records {
        db.put(make_key(number), random_bytes(number, VALUE_BYTES))?;
    }
    db.flush()?;
    db.wait_idle()?;
    Ok(db.close(None)?)
}
