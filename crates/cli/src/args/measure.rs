//! Arguments of `bench`, `iocost`, `rmw` and `stress`.

use std::path::PathBuf;

use clap::Args;
use lsmx::{BlockCacheKind, FilterBits};
use lsmx_bench::experiment::bench_experiment::BenchExperiment;
use lsmx_bench::experiment::iocost::CacheSweep;
use lsmx_bench::experiment::rmw::{RmwStudy, UpdateMode, ValuePlacement};
use lsmx_bench::experiment::throughput::workload_argument::WorkloadArgument;
use lsmx_bench::workload::operation_mix::OperationMix;

use super::cells::CellArgs;
use super::output::OutputArgs;
use super::values::{block_bytes, bytes, count, positive_count, rate};
use super::workload::{RunArgs, SetupArgs};

/// Arguments of `lsmx stress`.
#[derive(Debug, Args)]
pub(crate) struct StressArgs {
    /// Seed of the first database; each further one has the next seed [default: random].
    ///
    /// The moments at which processes are killed do not depend on the seed alone.
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
    /// Inject disk failures into some processes: I/O errors, short writes, no space left.
    #[arg(long)]
    pub(crate) faults: bool,
    /// Run random histories in memory and compare every answer with a model.
    ///
    /// The histories have all operations, random options, power losses, checkpoints and changes of the policy. They
    /// depend on the seed alone. A failed history is shortened.
    #[arg(long, conflicts_with_all = ["faults", "dir"])]
    pub(crate) in_memory: bool,
    /// Time in seconds after which no further database starts [default: 60; none with --runs].
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) seconds: Option<u64>,
    /// Maximum number of databases or histories [default: no limit].
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub(crate) runs: Option<u64>,
    /// Write the counts as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Directory for the databases [default: the system's directory for temporary files].
    ///
    /// All databases are removed except one that failed.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

/// Arguments of `lsmx bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Workloads, which run in this order on one database: fillseq, fillrandom, overwrite, readrandom,
    /// readmissing, seekrandom, scan, readwhilewriting, deleterandom, fillsync, ycsb-a … ycsb-f, mixgraph. Settings after
    /// a colon replace flags: seekrandom:entries=100, readrandom:threads=2,ops=500K (keys: threads, ops, entries,
    /// rate, writer-rate).
    #[arg(required_unless_present_any = ["experiment", "run_cell", "collect"], value_name = "WORKLOAD")]
    pub(crate) workloads: Vec<WorkloadArgument>,
    /// Experiment to run in place of workloads: caching (reads by contents of the block cache), filter-size
    /// (puts and reads by width of the filters), put-over-time (puts over time while compactions run), data-size (puts,
    /// gets and deletes by number of records), steady-state (latencies at a rate that each engine sustains).
    #[arg(long, value_name = "NAME", conflicts_with_all = ["workloads", "seek_entries", "emit_cells"])]
    pub(crate) experiment: Option<BenchExperiment>,
    /// Database that is kept; reads need one that was filled with the same flags [default: a temporary database].
    #[arg(long, value_name = "PATH", conflicts_with = "dir")]
    pub(crate) db: Option<PathBuf>,
    /// Number of records that a fill writes; of data-size the largest number of records [default: 1000000; of data-size
    /// 16384].
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) entries: Option<u64>,
    /// Size of a key in bytes.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "16")]
    pub(crate) key_len: u64,
    /// Size of a value in bytes [default: 100]. The values of data-size have from 1 to --entries bytes.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) value_len: Option<u64>,
    /// Number of threads [default: 1; fillsync runs with 1 and with 8].
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) threads: Option<u64>,
    /// Number of operations of a workload other than a fill [default: --entries; of deleterandom a half, of fillsync
    /// a hundredth of them].
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) ops: Option<u64>,
    /// Number of entries that seekrandom reads after each seek.
    #[arg(long, value_name = "N", value_parser = count, default_value = "10")]
    pub(crate) seek_entries: u64,
    /// Size of the block cache in bytes [default: 64M].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) block_cache: Option<u64>,
    /// Size of a memtable in bytes.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "64M")]
    pub(crate) memtable: u64,
    /// Limit of the memory of each engine, with the page cache of its files [default: no limit].
    ///
    /// Each engine runs in a process of its own, in a memory control group of Linux. Where no group can be created,
    /// engines read without the page cache.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) memory_limit: Option<u64>,
    /// Length of the testing phase of steady-state in minutes [default: 10; none with --rate]. Its second half finds the
    /// sustained rate.
    #[arg(long, value_name = "N")]
    pub(crate) testing_minutes: Option<f64>,
    /// Length of the running phase of steady-state in minutes [default: 20].
    #[arg(long, value_name = "N")]
    pub(crate) minutes: Option<f64>,
    /// Share of gets among the operations of steady-state [default: 0.5]. The others are puts.
    #[arg(long, value_name = "R")]
    pub(crate) read_ratio: Option<f64>,
    /// Operations per second [default: no limit; of steady-state 95 % of the sustained rate]. Latencies count from the
    /// time at which an operation was due.
    #[arg(long, value_name = "OPS", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// Option of lsmx, such as `policy=tiering` or `filter_last_run=on`; may be given several times.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) option: Vec<String>,
    /// Other engines to run, separated by commas: rocksdb, fjall.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) peers: Vec<String>,
    /// Number of runs; the run with the median rate is reported.
    #[arg(long, value_name = "N", value_parser = count, default_value = "1")]
    pub(crate) repeat: u64,
    #[command(flatten)]
    pub(crate) setup: SetupArgs,
    #[command(flatten)]
    pub(crate) cells: CellArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Arguments of `lsmx iocost`.
#[derive(Debug, Args)]
pub(crate) struct IocostArgs {
    /// Existing database, opened read-only; a scan of it chooses the keys of the lookups [default: a new database].
    #[arg(long, value_name = "PATH", conflicts_with_all = [
        "entries", "key_len", "value_len", "memtable", "table", "block_bytes", "filter_bits", "dir",
    ])]
    pub(crate) db: Option<PathBuf>,
    /// Keyspace of the existing database [default: the default keyspace].
    #[arg(long, value_name = "NAME", requires = "db")]
    pub(crate) keyspace: Option<String>,
    /// Directory of the new database, which is kept. If the directory exists, the database in it is measured.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["db", "dir"])]
    pub(crate) keep: Option<PathBuf>,
    /// Number of records of the new database.
    #[arg(long, value_name = "N", value_parser = count, default_value = "1000000")]
    pub(crate) entries: u64,
    /// Size of a key in bytes. Keys are hashes.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "32")]
    pub(crate) key_len: u64,
    /// Size of a value in bytes.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "110")]
    pub(crate) value_len: u64,
    /// Size of a memtable in bytes.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "8M")]
    pub(crate) memtable: u64,
    /// Target size of a table in bytes.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "8M")]
    pub(crate) table: u64,
    /// Target sizes of a data block in bytes. A database is built for each.
    #[arg(long, value_name = "BYTES,…", value_parser = block_bytes, value_delimiter = ',', default_value = "4096")]
    pub(crate) block_bytes: Vec<u32>,
    /// Fingerprint bits of the filters: 8, 16, or monkey(B) with B bits per key from 9 to 18. A database is built for each.
    #[arg(long, value_name = "BITS,…", value_delimiter = ',', default_value = "8")]
    pub(crate) filter_bits: Vec<FilterBits>,
    /// Block caches, quick or moka. Each database is read with each.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "quick")]
    pub(crate) cache_kind: Vec<BlockCacheKind>,
    /// Sizes of the block cache as percentages of the database; `auto` chooses sizes around both inflection points, and
    /// those of the study.
    #[arg(long, value_name = "auto|PCT,…", default_value = "auto", allow_hyphen_values = true)]
    pub(crate) cache_sweep: CacheSweep,
    /// Number of lookups of present keys for each cache size, and of as many lookups of absent keys.
    #[arg(long, value_name = "N", value_parser = count, default_value = "100000", alias = "gets")]
    pub(crate) lookups: u64,
    /// Read tables without the page cache of the system, and report the I/O of the device.
    #[arg(long)]
    pub(crate) direct_io: bool,
    #[command(flatten)]
    pub(crate) setup: SetupArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Arguments of `lsmx rmw`.
#[derive(Debug, Args)]
pub(crate) struct RmwArgs {
    /// How a field is updated: get-put reads, changes and puts the value; merge writes an operand into the tree; kd
    /// writes an operand into the operand store. merge-unfolded is merge without combining operands before they are
    /// applied to their value. merge-adaptive and kd-adaptive are merge and kd with RmwMode::Adaptive:
    /// reads of frequently read keys store the combined value in the memtable. Each mode has its own cells.
    #[arg(long, value_name = "MODE,…", value_delimiter = ',', default_values_t = UpdateMode::DEFAULT)]
    pub(crate) mode: Vec<UpdateMode>,
    /// Where values are stored: tree, value-log.
    #[arg(long, value_name = "BASE,…", value_delimiter = ',', default_values_t = [ValuePlacement::Tree])]
    pub(crate) base: Vec<ValuePlacement>,
    /// Shares of reads among the operations of the default mix [default: 0.1].
    #[arg(long, value_name = "R,…", value_delimiter = ',')]
    pub(crate) read_ratio: Option<Vec<f64>>,
    /// Mix of operations: default, changing, put-only, up2x, ycsb-a … ycsb-f, am, bm, fm. With changing, the share of
    /// reads changes every 100,000 operations. am, bm and fm are A, B and F with updates of a field in place of puts.
    #[arg(long, value_name = "NAME", default_value_t = OperationMix::Default)]
    pub(crate) mix: OperationMix,
    /// Experiment: read-ratio, zipf, value-size, delta-size, recovery, operands, scans, kd-cache, bucket-size,
    /// bucket-count, memtable and split-threshold vary one parameter; read-sources counts block reads and operands by
    /// level.
    #[arg(long, value_name = "NAME")]
    pub(crate) experiment: Option<RmwStudy>,
    /// Number of records to load.
    #[arg(long, value_name = "N", value_parser = count, default_value = "200000", alias = "records")]
    pub(crate) entries: u64,
    /// Size of a key in bytes [default: 24; of up2x 10.45 ± 1.4].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) key_len: Option<u64>,
    /// Size of a value in bytes [default: 1000; of up2x 46.8 ± 11.6].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) value_len: Option<u64>,
    /// Size of a field in bytes; a value consists of fields [default: 100; of up2x 10].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) field_len: Option<u64>,
    /// Bytes that an update writes, from the start of a field [default: --field-len].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) delta_len: Option<u64>,
    /// Number of operations of each cell.
    #[arg(long, value_name = "N", value_parser = count, default_value = "1000000")]
    pub(crate) ops: u64,
    /// Exponent of the Zipf distribution of the records [default: 0.99].
    #[arg(long, value_name = "S")]
    pub(crate) zipf: Option<f64>,
    /// Memory in bytes for memtables, cached blocks and open tables [default: 4 % of the loaded data, at least 4M].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) memory_budget: Option<u64>,
    /// Size of a memtable in bytes [default: 3/16 of the memory budget, at most 64M].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) memtable: Option<u64>,
    /// Size in bytes at which a bucket of the operand store is full [default: 256K].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) bucket_bytes: Option<u64>,
    /// Read tables without the page cache of the system.
    #[arg(long)]
    pub(crate) direct_io: bool,
    /// Bytes of values that one read of a blob file should give a scan, with --base value-log [default: 16K].
    ///
    /// If scans get fewer bytes on average, compactions move the values of neighbouring keys together. 0 turns this off.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) scan_read_bytes: Option<u64>,
    /// Number of threads. Each thread has its own records.
    #[arg(long, value_name = "N", value_parser = count, default_value = "1")]
    pub(crate) threads: u64,
    /// Other engines to run: rocksdb.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) peers: Vec<String>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) cells: CellArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
