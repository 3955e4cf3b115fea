//! Compares transactions with the same operations outside of transactions, and with the transactions of other engines.
//!
//! ```sh
//! cargo run --release -p lsmx-bench --example transactions -- [RECORDS] [ROUNDS] [THREADS]
//! ```
//!
//! The features `peer-fjall` and `peer-rocksdb` add these engines. Each engine has one database of records with a value of
//! 100 bytes. Each round measures all rows, in turn. Commits do not wait for a sync. The table shows the median and the
//! range of the rounds.
//!
//! The keys of rows other than YCSB-A are uniform, and the threads use disjoint keys. YCSB-A reads or overwrites one record
//! per transaction, with equal probability. Its records have Zipfian popularity, and a transaction is repeated after a
//! conflict.

#![allow(clippy::print_stdout, reason = "the program prints a table")]

use std::error::Error;
use std::panic::resume_unwind;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use lsmx::{Db, Durability, Keyspace, Options, Transaction, WriteBatch};
use lsmx_bench::clock::Stopwatch;
use lsmx_bench::numbers;
use lsmx_bench::workload::ZIPF_EXPONENT;
use lsmx_bench::workload::random::{Random, Zipf, hash_u64};

const VALUE: [u8; 100] = [b'v'; 100];
const CACHE_BYTES: u64 = 256 << 20;
/// Duration of one measurement, in seconds.
const MEASUREMENT_S: f64 = 1.0;
/// Number of units of work between two readings of the clock.
const UNITS_PER_CHECK: u64 = 64;
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Draws the keys of one thread.
struct Keys {
    random: Random,
    zipf: Zipf,
    records: u64,
    thread: u64,
    threads: u64,
}

impl Keys {
    /// Returns a uniform key that no other thread draws.
    fn uniform(&mut self) -> [u8; 16] {
        let own_records = self.records / self.threads;
        key(self.random.next_below(own_records) * self.threads + self.thread)
    }

    /// Returns a key of Zipfian popularity.
    fn popular(&mut self) -> [u8; 16] {
        let rank = self.zipf.draw(&mut self.random, self.records);
        key(hash_u64(rank) % self.records)
    }

    fn coin(&mut self) -> bool {
        self.random.next_below(2) == 0
    }
}

fn key(record: u64) -> [u8; 16] {
    let mut key = [b'0'; 16];
    key[8..].copy_from_slice(&record.to_be_bytes());
    key
}

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// One unit of work.
type Work<'a> = Box<dyn Fn(&mut Keys) -> Outcome<()> + Sync + 'a>;

/// A row of the table.
struct Row<'a> {
    name: &'static str,
    /// The row with which this one is compared.
    base: &'static str,
    work: Work<'a>,
    /// Units of work per second, one element per round.
    rates: Vec<f64>,
}

fn row<'a>(
    name: &'static str,
    base: &'static str,
    work: impl Fn(&mut Keys) -> Outcome<()> + Sync + 'a,
) -> Row<'a> {
    Row { name, base, work: Box::new(work), rates: Vec::new() }
}

/// Reads four keys and writes two, in a transaction.
fn read_4_and_write_2(tx: Transaction, records: &Keyspace, keys: &mut Keys) -> Outcome<()> {
    for _ in 0..4 {
        tx.get(records, keys.uniform())?;
    }
    tx.put(records, keys.uniform(), VALUE)?;
    tx.put(records, keys.uniform(), VALUE)?;
    Ok(tx.commit(Durability::Buffered)?)
}

/// Reads a key and writes it, in a transaction.
fn read_and_write(tx: Transaction, records: &Keyspace, keys: &mut Keys) -> Outcome<()> {
    let key = keys.uniform();
    tx.get_for_update(records, key)?;
    tx.put(records, key, VALUE)?;
    Ok(tx.commit(Durability::Buffered)?)
}

/// Returns the rows of lsmx.
fn lsmx_rows<'a>(db: &'a Db, records: &'a Keyspace) -> Vec<Row<'a>> {
    let read_4 = move |keys: &mut Keys| -> lsmx::Result<()> {
        for _ in 0..4 {
            records.get(keys.uniform())?;
        }
        Ok(())
    };
    let four_and_two = "4 gets, 2 puts";
    let get_and_put = "get, put";
    vec![
        row(four_and_two, four_and_two, move |keys| {
            read_4(keys)?;
            records.put(keys.uniform(), VALUE)?;
            records.put(keys.uniform(), VALUE)?;
            Ok(())
        }),
        row("4 gets, batch of 2 puts", four_and_two, move |keys| {
            read_4(keys)?;
            let mut batch = WriteBatch::new();
            batch.put(records, keys.uniform(), VALUE);
            batch.put(records, keys.uniform(), VALUE);
            db.write(batch, Durability::Buffered)?;
            Ok(())
        }),
        row("transaction of 4 gets, 2 puts", four_and_two, |keys| {
            read_4_and_write_2(db.transaction(), records, keys)
        }),
        row("  with locks", four_and_two, |keys| {
            read_4_and_write_2(db.locking_transaction(LOCK_TIMEOUT), records, keys)
        }),
        row(get_and_put, get_and_put, move |keys| {
            let key = keys.uniform();
            records.get(key)?;
            records.put(key, VALUE)?;
            Ok(())
        }),
        row("transaction of get_for_update, put", get_and_put, |keys| {
            read_and_write(db.transaction(), records, keys)
        }),
        row("  with locks", get_and_put, |keys| {
            read_and_write(db.locking_transaction(LOCK_TIMEOUT), records, keys)
        }),
        row("YCSB-A, lsmx", "YCSB-A, lsmx", |keys| {
            let (key, reads) = (keys.popular(), keys.coin());
            loop {
                let tx = db.transaction();
                if reads {
                    tx.get(records, key)?;
                } else {
                    tx.put(records, key, VALUE)?;
                }
                match tx.commit(Durability::Buffered) {
                    Err(lsmx::Error::Conflict { .. }) => {}
                    committed => return Ok(committed?),
                }
            }
        }),
    ]
}

/// Returns a database of fjall with the records.
#[cfg(feature = "peer-fjall")]
fn open_fjall(
    path: &std::path::Path,
    count: u64,
) -> fjall::Result<(fjall::OptimisticTxDatabase, fjall::OptimisticTxKeyspace)> {
    use fjall::config::{
        BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
    };

    let database = fjall::OptimisticTxDatabase::builder(path)
        .journal_compression(fjall::CompressionType::None)
        .cache_size(CACHE_BYTES)
        .open()?;
    let filter = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0));
    let records = database.keyspace("default", || {
        fjall::KeyspaceCreateOptions::default()
            .data_block_compression_policy(CompressionPolicy::all(fjall::CompressionType::None))
            .filter_policy(FilterPolicy::all(filter))
    })?;
    for record in 0..count {
        records.inner().insert(key(record), VALUE)?;
    }
    Ok((database, records))
}

#[cfg(feature = "peer-fjall")]
fn fjall_row<'a>(
    (database, records): &'a (fjall::OptimisticTxDatabase, fjall::OptimisticTxKeyspace),
) -> Row<'a> {
    row("YCSB-A, fjall", "YCSB-A, lsmx", move |keys| {
        use fjall::Readable;

        let (key, reads) = (keys.popular(), keys.coin());
        loop {
            let mut tx = database.write_tx()?;
            if reads {
                tx.get(records, key)?;
            } else {
                tx.insert(records, key, VALUE);
            }
            if tx.commit()?.is_ok() {
                return Ok(());
            }
        }
    })
}

#[cfg(feature = "peer-rocksdb")]
type OptimisticRocksdb = rocksdb::OptimisticTransactionDB;

/// Returns a database of RocksDB with the records.
#[cfg(feature = "peer-rocksdb")]
fn open_rocksdb(path: &std::path::Path, count: u64) -> Result<OptimisticRocksdb, rocksdb::Error> {
    let mut tables = rocksdb::BlockBasedOptions::default();
    tables.set_bloom_filter(10.0, false);
    tables
        .set_block_cache(&rocksdb::Cache::new_hyper_clock_cache(numbers::to_usize(CACHE_BYTES), 0));
    let mut options = rocksdb::Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&tables);
    options.set_compression_type(rocksdb::DBCompressionType::None);
    let database = OptimisticRocksdb::open(&options, path)?;
    for record in 0..count {
        database.put(key(record), VALUE)?;
    }
    Ok(database)
}

#[cfg(feature = "peer-rocksdb")]
fn rocksdb_row(database: &OptimisticRocksdb) -> Row<'_> {
    row("YCSB-A, RocksDB", "YCSB-A, lsmx", |keys| {
        let (key, reads) = (keys.popular(), keys.coin());
        loop {
            let tx = database.transaction();
            if reads {
                tx.get_pinned(key)?;
            } else {
                tx.put(key, VALUE)?;
            }
            match tx.commit() {
                Err(error) if error.kind() == rocksdb::ErrorKind::Busy => {}
                committed => return Ok(committed?),
            }
        }
    })
}

/// Returns the units of work per second of all threads.
fn measure(work: &Work<'_>, records: u64, seed: u64, threads: u64) -> Outcome<f64> {
    let run = |thread| -> Outcome<f64> {
        let (random, zipf) = (Random::new(seed, thread), Zipf::new(ZIPF_EXPONENT));
        let mut keys = Keys { random, zipf, records, thread, threads };
        let (watch, mut units) = (Stopwatch::start(), 0);
        while watch.elapsed_s() < MEASUREMENT_S {
            for _ in 0..UNITS_PER_CHECK {
                work(&mut keys)?;
            }
            units += UNITS_PER_CHECK;
        }
        Ok(numbers::to_f64(units) / watch.elapsed_s())
    };
    thread::scope(|scope| {
        let run = &run;
        let workers: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let join = |worker: ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        workers.into_iter().map(join).sum()
    })
}

/// Measures all rows and prints the table.
fn compare(mut rows: Vec<Row<'_>>, records: u64, rounds: u64, threads: u64) -> Outcome<()> {
    for round in 0..rounds {
        for row in &mut rows {
            row.rates.push(measure(&row.work, records, round, threads)?);
        }
    }
    for row in &mut rows {
        row.rates.sort_by(f64::total_cmp);
    }
    println!("{records} records, {threads} threads, {rounds} rounds");
    println!("unit of work                             units/s          range     x base");
    let median = |row: &Row<'_>| row.rates[row.rates.len() / 2];
    for row in &rows {
        let base = rows.iter().find(|base| base.name == row.base).map_or(0.0, median);
        let (rates, rate) = (&row.rates, median(row));
        let range = format!("{:.0}-{:.0}", rates[0], rates[rates.len() - 1]);
        println!("{:<36} {rate:>12.0} {range:>18} {:>8.2}", row.name, rate / base);
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let temporary = tempfile::tempdir()?;
    let directory = temporary.path();
    let mut number = |default| arguments.next().map_or(Ok(default), |text| text.parse());
    let (count, rounds, threads) = (number(1_000_000)?, number(9)?, number(1)?.max(1));
    if count < threads || rounds == 0 {
        return Err("at least one record per thread and one round".into());
    }
    let db = Db::open(directory.join("lsmx"), Options::default().block_cache_bytes(CACHE_BYTES))?;
    let records = db.default_keyspace();
    for record in 0..count {
        records.put(key(record), VALUE)?;
    }
    db.flush()?;
    db.wait_idle()?;
    #[cfg(feature = "peer-fjall")]
    let fjall = open_fjall(&directory.join("fjall"), count)?;
    #[cfg(feature = "peer-rocksdb")]
    let rocksdb = open_rocksdb(&directory.join("rocksdb"), count)?;
    #[cfg_attr(
        not(any(feature = "peer-fjall", feature = "peer-rocksdb")),
        expect(unused_mut, reason = "only other engines add rows")
    )]
    let mut rows = lsmx_rows(&db, &records);
    #[cfg(feature = "peer-fjall")]
    rows.push(fjall_row(&fjall));
    #[cfg(feature = "peer-rocksdb")]
    rows.push(rocksdb_row(&rocksdb));
    compare(rows, count, rounds, threads)
}
