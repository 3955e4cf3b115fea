//! Compares bulk loads with sequential puts of the same records: rate and write amplification.
//!
//! ```sh
//! cargo run --release -p lsmx-bench --example bulk_load -- [RECORDS] [ROUNDS]
//! ```
//!
//! Each round measures all methods, in turn, in new databases. The table shows the median of the rounds. A measurement ends
//! when all records are on stable storage and no compaction is due.

#![allow(clippy::print_stdout, reason = "the program prints a table")]
#![allow(clippy::cast_precision_loss, reason = "the numbers fit")]

use std::fs;
use std::path::Path;

use lsmx::ingest::BulkLoadOptions;
use lsmx::{Db, Options};
use lsmx_bench::clock::Stopwatch;

const VALUE_BYTES: usize = 100;
const SORT_MEMORY_BYTES: u64 = 64 << 20;

/// How the records are written.
#[derive(Clone, Copy)]
enum Method {
    Puts,
    SortedLoad,
    /// Records in a scattered order, sorted by the load.
    UnsortedLoad,
}

const METHODS: [(&str, Method); 3] = [
    ("sequential puts", Method::Puts),
    ("bulk load, sorted", Method::SortedLoad),
    ("bulk load, unsorted", Method::UnsortedLoad),
];

/// Returns record `number`: a key of 16 bytes and a value of which half is compressible.
fn record(number: u64) -> (String, [u8; VALUE_BYTES]) {
    let mut value = [b'v'; VALUE_BYTES];
    let mut state = number;
    for byte in &mut value[..VALUE_BYTES / 2] {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        *byte = state.to_be_bytes()[0];
    }
    (format!("{number:016}"), value)
}

/// Writes the records. Returns records per second, and the bytes written per byte of keys and values.
fn measure(path: &Path, method: Method, records: u64) -> lsmx::Result<(f64, f64)> {
    let db = Db::open(path, Options::default())?;
    let keyspace = db.default_keyspace();
    let watch = Stopwatch::start();
    match method {
        Method::Puts => {
            for number in 0..records {
                let (key, value) = record(number);
                keyspace.put(key, value)?;
            }
            db.flush()?;
        }
        Method::SortedLoad => {
            keyspace.bulk_load((0..records).map(record), BulkLoadOptions::default())?;
        }
        Method::UnsortedLoad => {
            // An odd factor visits each number below a power of two once.
            let mask = records.next_power_of_two() - 1;
            let numbers = (0..=mask).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask);
            let scattered = numbers.filter(|&number| number < records).map(record);
            let options = BulkLoadOptions::default().sort_memory_bytes(SORT_MEMORY_BYTES);
            keyspace.bulk_load(scattered, options)?;
        }
    }
    db.wait_idle()?;
    let rate = records as f64 / watch.elapsed_s();
    let metrics = db.metrics();
    let keyspace_metrics = &metrics.keyspaces["default"];
    // Table bytes; puts also write the log.
    let written = keyspace_metrics.total().flow.written_bytes + metrics.wal.written_bytes;
    let amplification = written as f64 / keyspace_metrics.ingested_bytes as f64;
    drop(keyspace);
    db.close(None)?;
    Ok((rate, amplification))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let temporary = tempfile::tempdir()?;
    let directory = temporary.path();
    let records = arguments.next().map_or(Ok(5_000_000), |text| text.parse())?;
    let rounds = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let mut measured = METHODS.map(|_| (Vec::new(), Vec::new()));
    for round in 0..rounds {
        for ((name, method), (rates, amplifications)) in METHODS.iter().zip(&mut measured) {
            let path = directory.join(format!("bulk-load-{round}"));
            let (rate, amplification) = measure(&path, *method, records)?;
            fs::remove_dir_all(&path)?;
            println!("round {round}: {name}: {rate:.0} records/s, {amplification:.2} bytes/byte");
            rates.push(rate);
            amplifications.push(amplification);
        }
    }
    let mut puts = None;
    println!("method                  records/s   x puts   bytes/byte");
    for ((name, _), (rates, amplifications)) in METHODS.iter().zip(&mut measured) {
        let (rate, amplification) = (median(rates), median(amplifications));
        let puts = *puts.get_or_insert(rate);
        println!("{name:<22} {rate:>10.0} {:>8.2} {amplification:>12.2}", rate / puts);
    }
    Ok(())
}
