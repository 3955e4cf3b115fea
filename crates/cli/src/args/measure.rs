//! Arguments of what measures and tries databases: `bench`, `iocost`, `rmw`, `stress`.

use std::path::PathBuf;

use clap::Args;
use lsmx::{BlockCacheKind, FilterBits};
use lsmx_bench::experiment::iocost::CacheSweep;
use lsmx_bench::experiment::rmw::{Base, Mode, Study};
use lsmx_bench::experiment::throughput::workload::Workload;
use lsmx_bench::experiment::tuning;
use lsmx_bench::workload::operation_mix::OperationMix;

use super::words::{bytes, count};

/// Arguments of `lsmx stress`.
#[derive(Debug, Args)]
pub(crate) struct StressArgs {
    /// Seed of the first database; each one after it has the next [default: a new one]. The moments at which
    /// processes die do not follow from it alone.
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
    /// Have the disks of some processes fail now and then: errors, short writes, no space left.
    #[arg(long)]
    pub(crate) faults: bool,
    /// In memory, against a model: all operations, under options drawn at random, with power losses,
    /// checkpoints and other policies. All follows from the seed; what fails is made as short as it can be.
    #[arg(long, conflicts_with_all = ["faults", "dir"])]
    pub(crate) in_memory: bool,
    /// No further database after so many seconds [default: 60; none with --runs].
    #[arg(long, value_name = "N")]
    pub(crate) seconds: Option<u64>,
    /// No further database after so many.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) runs: Option<u64>,
    /// Write what was done as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Directory for the databases, which are removed afterwards, but for one that has failed [default: that for
    /// temporary files].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

/// Arguments of `lsmx bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Workloads, run in this order on one database: fillseq, fillrandom, overwrite, readrandom,
    /// readmissing, seekrandom, scan, readwhilewriting, deleterandom, fillsync, ycsb-a … ycsb-f.
    #[arg(required_unless_present = "experiment", value_name = "WORKLOAD")]
    pub(crate) workloads: Vec<Workload>,
    /// In place of workloads: caching (reads by what the block cache holds), filter-size (reads by the
    /// width of filters), put-over-time (puts per slice of time while compactions run).
    #[arg(long, value_name = "NAME", conflicts_with_all = ["workloads", "seek_entries"])]
    pub(crate) experiment: Option<tuning::Study>,
    /// Database that stays; reads may go on with one that was filled by the same flags [default: a
    /// temporary one].
    #[arg(long, value_name = "PATH")]
    pub(crate) db: Option<PathBuf>,
    /// Records of a fill.
    #[arg(long, value_name = "N", value_parser = count, default_value = "1000000")]
    pub(crate) entries: u64,
    /// Bytes of a key.
    #[arg(long, value_name = "BYTES", default_value_t = 16)]
    pub(crate) key_len: u64,
    /// Bytes of a value.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "100")]
    pub(crate) value_len: u64,
    /// Threads [default: 1; fillsync runs with 1 and with 8].
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Operations of a workload that does not put every record once [default: --entries; of
    /// deleterandom half, of fillsync a hundredth of them].
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) ops: Option<u64>,
    /// Entries that seekrandom reads from the key it sought.
    #[arg(long, value_name = "N", value_parser = count, default_value = "10")]
    pub(crate) seek_entries: u64,
    /// Bytes of the block cache.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "64M")]
    pub(crate) block_cache: u64,
    /// Bytes of a memtable.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "64M")]
    pub(crate) memtable: u64,
    /// Operations per second that are due; latencies count from the moment each was due [default:
    /// an operation begins when the one before has ended].
    #[arg(long, value_name = "OPS", allow_negative_numbers = true)]
    pub(crate) rate: Option<f64>,
    /// Options of lsmx by name, such as `policy=tiering` or `filter_last_run=on`.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) option: Vec<String>,
    /// Other engines to run side by side, separated by commas: rocksdb, fjall.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) peers: Vec<String>,
    /// Seed of the workloads.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Run everything so often; the repetition with the median rate is reported.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) repeat: u64,
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the result as one page with plots, to be read in a browser.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write a flat row per cell.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Directory for temporary databases [default: that for temporary files].
    #[arg(long, value_name = "DIR", conflicts_with = "db")]
    pub(crate) dir: Option<PathBuf>,
}

/// Arguments of `lsmx iocost`.
#[derive(Debug, Args)]
pub(crate) struct IocostArgs {
    /// An existing database, opened for reading; a sample of its own keys is asked for, which a scan
    /// of all of it finds [default: one is built, and removed].
    #[arg(long, value_name = "PATH", conflicts_with_all = [
        "entries", "key_len", "value_len", "memtable", "table", "block_bytes", "filter_bits", "dir",
    ])]
    pub(crate) db: Option<PathBuf>,
    /// Keyspace of the existing database [default: the default one].
    #[arg(long, value_name = "NAME", requires = "db")]
    pub(crate) keyspace: Option<String>,
    /// Records to build with.
    #[arg(long, value_name = "N", value_parser = count, default_value = "1000000")]
    pub(crate) entries: u64,
    /// Bytes of a key, which is a hash.
    #[arg(long, value_name = "BYTES", default_value_t = 32)]
    pub(crate) key_len: u64,
    /// Bytes of a value.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "110")]
    pub(crate) value_len: u64,
    /// Bytes of a memtable.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "8M")]
    pub(crate) memtable: u64,
    /// Target bytes of a table.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "8M")]
    pub(crate) table: u64,
    /// Target bytes of a data block; a database is built for each.
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_value = "4096")]
    pub(crate) block_bytes: Vec<u32>,
    /// Bits of a filter's fingerprints: 8, 16, or monkey(B), which spends B bits per key, 9 to 18, on wide
    /// filters for small runs; a database is built for each.
    #[arg(long, value_name = "BITS,…", value_delimiter = ',', default_value = "8")]
    pub(crate) filter_bits: Vec<FilterBits>,
    /// Block cache, quick or moka; with several each database is read with each.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "quick")]
    pub(crate) cache_kind: Vec<BlockCacheKind>,
    /// Cache sizes in per cent of the database; `auto` takes both inflection points, places between and
    /// around them, and the sizes of the study.
    #[arg(long, value_name = "auto|PCT,…", default_value = "auto", allow_hyphen_values = true)]
    pub(crate) cache_sweep: CacheSweep,
    /// Lookups of present keys at each cache size, and as many of absent ones.
    #[arg(long, value_name = "N", value_parser = count, default_value = "100000")]
    pub(crate) gets: u64,
    /// Read tables past the system's page cache, and show what the device counts.
    #[arg(long)]
    pub(crate) direct_io: bool,
    /// Seed of keys and lookups.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the result as one page with plots, to be read in a browser.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write a flat row per cache size.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Directory for temporary databases [default: that for temporary files].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

/// Arguments of `lsmx rmw`.
#[derive(Debug, Args)]
pub(crate) struct RmwArgs {
    /// How a field is updated: get-put reads, changes and puts the value, merge writes an operand into the
    /// tree, kd an operand beside the tree; with several each has cells of its own.
    #[arg(long, value_name = "MODE,…", value_delimiter = ',', default_values_t = Mode::DEFAULT)]
    pub(crate) mode: Vec<Mode>,
    /// Where values lie: tree, value-log.
    #[arg(long, value_name = "BASE,…", value_delimiter = ',', default_values_t = [Base::Tree])]
    pub(crate) base: Vec<Base>,
    /// Shares of reads among the operations of the default mix [default: 0.1].
    #[arg(long, value_name = "R,…", value_delimiter = ',', allow_negative_numbers = true)]
    pub(crate) read_ratio: Option<Vec<f64>>,
    /// What is done how often: default, up2x, ycsb-a … ycsb-f, or am, bm, fm, which are A, B and F with
    /// updates of a field in place of puts.
    #[arg(long, value_name = "NAME", default_value_t = OperationMix::Default)]
    pub(crate) mix: OperationMix,
    /// Vary one thing: read-ratio, zipf, value-size, delta-size, recovery, operands, scans, kd-cache,
    /// bucket-size, split-threshold.
    #[arg(long, value_name = "NAME")]
    pub(crate) experiment: Option<Study>,
    /// Records to load.
    #[arg(long, value_name = "N", value_parser = count, default_value = "200000")]
    pub(crate) records: u64,
    /// Bytes of a key [default: 24; of up2x 10.45 ± 1.4].
    #[arg(long, value_name = "BYTES")]
    pub(crate) key_len: Option<u64>,
    /// Bytes of a value [default: 1000; of up2x 46.8 ± 11.6].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) value_len: Option<u64>,
    /// Bytes of a field; a value is fields, one after the other [default: 100; of up2x 10].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) field_len: Option<u64>,
    /// Bytes that an update writes, at the beginning of a field [default: --field-len].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) delta_len: Option<u64>,
    /// Operations of each cell.
    #[arg(long, value_name = "N", value_parser = count, default_value = "1000000")]
    pub(crate) ops: u64,
    /// Exponent of the popularity of records [default: 0.99].
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    pub(crate) zipf: Option<f64>,
    /// Bytes for memtables, cached blocks and open tables [default: 4 % of what is loaded, at least 4M].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) memory_budget: Option<u64>,
    /// Read tables past the system's page cache.
    #[arg(long)]
    pub(crate) direct_io: bool,
    /// Bytes of values that a scan is to get by one read of a blob file, on average, with --base value-log:
    /// where it gets less, compactions bring values of neighbours together; 0: never [default: 16K].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) scan_read_bytes: Option<u64>,
    /// Threads; each has records of its own.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: u64,
    /// Other engines to run side by side: rocksdb.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) peers: Vec<String>,
    /// Seed of records and operations.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Run every cell so often, with the seeds from --seed on, and report medians with intervals.
    #[arg(long, value_name = "N", value_parser = count, default_value = "1")]
    pub(crate) repeat: u64,
    /// Keep finished cells in this directory; the same command goes on from there after an
    /// interruption.
    #[arg(long, value_name = "DIR")]
    pub(crate) resume: Option<PathBuf>,
    /// List the cells with what each will load and do, and run none.
    #[arg(long, conflicts_with_all = ["json", "csv", "html"])]
    pub(crate) dry_run: bool,
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the result as one page with plots, to be read in a browser.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write a flat row per cell.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Directory for the databases, which are removed afterwards [default: that for temporary files].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}
