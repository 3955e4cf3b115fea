//! What was typed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use lsmx::{BlockCacheKind, FilterBits};
use lsmx_bench::experiment::advise::Weights;
use lsmx_bench::experiment::iocost::CacheSweep;
use lsmx_bench::experiment::rmw::{Base, Mix, Mode, Study};
use lsmx_bench::experiment::throughput::workload::Workload;
use lsmx_bench::experiment::tuning;
use lsmx_bench::workload::Distribution;
use lsmx_bench::workload::record::Format;
use lsmx_compaction::PolicySpec;

use crate::failure::Failure;

/// An LSM storage engine: explore its design space, work on databases.
#[derive(Debug, Parser)]
#[command(name = "lsmx", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Play a workload against compaction policies and measure what they do.
    Explore(Box<ExploreArgs>),
    /// Play the same on trees without data: sizes that no machine could hold, in seconds.
    Simulate(Box<ExploreArgs>),
    /// Say which design suits a workload, a memory and what matters: searched for by simulation,
    /// confirmed on the engine.
    Advise(Box<AdviseArgs>),
    /// Run named workloads and measure throughput and latency, also of other engines.
    Bench(BenchArgs),
    /// Measure what a point lookup costs in reads, by the size of the cache: on a database of hashed
    /// keys, or on one that there is.
    Iocost(IocostArgs),
    /// Measure read-modify-writes of one field of a value, by how they are done: read and put, merge
    /// operands in the tree, operands kept apart from it.
    Rmw(RmwArgs),
    /// Put two results of `explore`, `simulate` or `bench` side by side: what changed, and by more than
    /// chance or not.
    Compare(CompareArgs),
    /// Find out whether databases keep their word: write under options drawn at random, from processes that
    /// are killed, and compare what they leave with what they were told.
    Stress(StressArgs),
    /// Work on a database.
    Db(DbArgs),
}

/// What is done with records: the flags that `explore`, `simulate` and `advise` share.
#[derive(Debug, Args)]
pub(crate) struct WorkloadArgs {
    /// Bytes of a key [default: 16].
    #[arg(long, value_name = "BYTES")]
    pub(crate) key_len: Option<u64>,
    /// Bytes of a value [default: 112].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) value_len: Option<u64>,
    /// Share of the writes that update a present key [default: 0].
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub(crate) updates: Option<f64>,
    /// Share of the writes that delete a present key [default: 0].
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub(crate) deletes: Option<f64>,
    /// Share of the writes that merge 8 bytes into the value of a present key [default: 0].
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub(crate) merges: Option<f64>,
    /// Share of the writes that delete a range of ten neighbours in key order.
    #[arg(long, value_name = "F", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) range_deletes: f64,
    /// Where keys fall and which are asked for [default: uniform]
    /// [possible: uniform, zipf, prefix-zipf, normal, sequential, shifting].
    #[arg(long, value_name = "NAME")]
    pub(crate) distribution: Option<Distribution>,
    /// Mix lookups and ranges into the writes, past the first tenth of them.
    #[arg(long)]
    pub(crate) interleave: bool,
    /// Phases of the workload from a TOML file, in place of the flags for operations.
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "updates", "deletes", "merges", "range_deletes", "distribution", "interleave", "lookups", "empty_lookups",
        "ranges", "selectivity",
    ])]
    pub(crate) phases: Option<PathBuf>,
    /// Point lookups for each share of absent keys [default: a tenth of the writes].
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) lookups: Option<u64>,
    /// Shares of lookups that ask for absent keys [default: 0,1].
    #[arg(long, value_name = "α,…", value_delimiter = ',', allow_negative_numbers = true)]
    pub(crate) empty_lookups: Option<Vec<f64>>,
    /// Range lookups [default: 1000].
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) ranges: Option<u64>,
    /// Entries a range lookup reads, as a share of all; each of these shares for all --ranges, one
    /// after the other [default: 0.0001].
    #[arg(long, value_name = "S,…", value_delimiter = ',', allow_negative_numbers = true)]
    pub(crate) selectivity: Option<Vec<f64>>,
    /// Play the operations of a trace, recorded by a database or a line each: op, key, value,
    /// separated by tabs.
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "key_len", "value_len", "updates", "deletes", "merges", "range_deletes",
        "distribution", "interleave", "phases", "lookups", "empty_lookups", "ranges", "selectivity",
    ])]
    pub(crate) trace: Option<PathBuf>,
}

/// Arguments of `lsmx explore` and `lsmx simulate`. What has no default here has one that depends on others.
#[derive(Debug, Args)]
pub(crate) struct ExploreArgs {
    /// Policies, separated by commas, or `all` (every one that drops no data).
    #[arg(long, value_name = "NAME,…", value_parser = policies, required_unless_present = "spec")]
    pub(crate) policy: Option<Policies>,
    /// A policy put together from primitives in a TOML file; docs/compaction.md says how. It comes
    /// behind those of --policy.
    #[arg(long, value_name = "FILE")]
    pub(crate) spec: Option<PathBuf>,
    /// Write to standard error what led to each compaction: scores, candidates, the job.
    #[arg(long)]
    pub(crate) explain: bool,
    /// Write operations in all [default: 1000000].
    #[arg(long, value_name = "N", value_parser = count, conflicts_with_all = ["phases", "trace"])]
    pub(crate) entries: Option<u64>,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    /// Bytes of a memtable and of a table [default: data ÷ 150, at least 256K].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) memtable: Option<u64>,
    /// Bytes of a table [default: as --memtable]. A memtable also counts what an entry takes beside
    /// key and value, so what it flushes is smaller.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) table: Option<u64>,
    /// Size ratio between levels [default: 10].
    #[arg(long, value_name = "T")]
    pub(crate) size_ratio: Option<u64>,
    /// Bytes of the block cache [default: data ÷ 150, at least 256K].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) block_cache: Option<u64>,
    /// Load the records of a file instead of generated ones.
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "entries", "key_len", "value_len", "updates", "deletes", "merges", "range_deletes",
        "phases", "trace",
    ])]
    pub(crate) data: Option<PathBuf>,
    /// Order in which the records of --data are loaded [default: file].
    #[arg(long, value_name = "ORDER")]
    pub(crate) data_order: Option<DataOrder>,
    /// Format of --data [default: what its name suggests] [possible: tsv, jsonl].
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,
    /// How writes are held back when compaction falls behind [default: smooth].
    #[arg(long, value_name = "HOW", conflicts_with = "deterministic")]
    pub(crate) write_control: Option<WriteControl>,
    /// Threads that compact, beside one that flushes [default: 2].
    #[arg(long, value_name = "N", conflicts_with = "deterministic",
        value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) workers: Option<u64>,
    /// Ask the filter of the last sorted run too, as the study did; without it an absent key costs a
    /// probe of that run.
    #[arg(long)]
    pub(crate) filter_last_run: bool,
    /// Run all jobs on the writer's thread, so that equal seeds give equal trees and digests.
    #[arg(long)]
    pub(crate) deterministic: bool,
    /// Seed of the workload.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Run a cell for each value of a flag, such as `size-ratio=4,10`, or of a parameter of the
    /// policies, such as `policy.trigger=2,4`; given again, for each combination.
    #[arg(long, value_name = "KEY=V,…")]
    pub(crate) sweep: Vec<String>,
    /// Run every cell so often, with the seeds from --seed on, and report medians with intervals.
    #[arg(long, value_name = "N", value_parser = count, default_value = "1")]
    pub(crate) repeat: u64,
    /// Keep finished cells in this directory; the same command goes on from there after an
    /// interruption.
    #[arg(long, value_name = "DIR")]
    pub(crate) resume: Option<PathBuf>,
    /// List the cells with what each will cost, and run none.
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    pub(crate) dry_run: bool,
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the result as one page with plots, to be read in a browser.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write a flat row per cell: the swept flags, then every number.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Directory for the databases, which are removed afterwards [default: that for temporary files].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

/// Arguments of `lsmx advise`.
#[derive(Debug, Args)]
pub(crate) struct AdviseArgs {
    /// Write operations of the tree that is planned [default: 1000000, or what --phases or --trace
    /// write].
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) entries: Option<u64>,
    /// Bytes for two memtables and the block cache together [default: data ÷ 50, at least 1M].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) memory: Option<u64>,
    /// What matters: how much a block moved by a write counts, an I/O of a point lookup, one of a range
    /// lookup, a copy of the data on disk [default: each operation alike, space 0.1].
    #[arg(long, value_name = "writes=W,points=R,ranges=Q,space=S")]
    pub(crate) weights: Option<Weights>,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    /// The same as --phases.
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "phases", "trace", "updates", "deletes", "merges", "range_deletes", "distribution", "interleave",
        "lookups", "empty_lookups", "ranges", "selectivity",
    ])]
    pub(crate) spec: Option<PathBuf>,
    /// Confirm so many of the best on the engine.
    #[arg(long, value_name = "N", value_parser = count, default_value = "3")]
    pub(crate) confirm: u64,
    /// Run every preset on the engine too, with the memory divided as suits it, to see how far the
    /// advice is from the best of them.
    #[arg(long)]
    pub(crate) presets: bool,
    /// Seed of the workload and of what is drawn.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the result as one page with plots, to be read in a browser.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write a flat row per design.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Directory for the databases, which are removed afterwards [default: that for temporary files].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

/// Arguments of `lsmx compare`.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// The result to compare with.
    #[arg(value_name = "A.json")]
    pub(crate) old: PathBuf,
    /// The result that may be better or worse.
    #[arg(value_name = "B.json")]
    pub(crate) new: PathBuf,
    /// Exit code 1 if a cost or a rate is worse by more than so many per cent, latencies and other
    /// times apart, or a cell of A is missing in B.
    #[arg(long, value_name = "PCT", value_parser = percent, allow_negative_numbers = true)]
    pub(crate) fail_above: Option<f64>,
    /// The same for latencies, stalls and other times.
    #[arg(long, value_name = "PCT", value_parser = percent, allow_negative_numbers = true)]
    pub(crate) fail_latency_above: Option<f64>,
    /// Show every number that differs.
    #[arg(long)]
    pub(crate) all: bool,
    /// Write the differences as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

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
    #[arg(long, value_name = "NAME", default_value_t = Mix::Default)]
    pub(crate) mix: Mix,
    /// Vary one thing: read-ratio, zipf, value-size, delta-size, recovery, operands, kd-cache,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DataOrder {
    /// As in the file.
    File,
    /// Shuffled by the seed.
    Shuffled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WriteControl {
    /// Writes are slowed by how far compaction is behind.
    Smooth,
    /// Writes stop at a limit and go on below it.
    Stop,
}

/// Policies as typed, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Policies(pub(crate) Vec<PolicySpec>);

/// Arguments of `lsmx db`.
#[derive(Debug, Args)]
pub(crate) struct DbArgs {
    /// Directory of the database.
    pub(crate) path: PathBuf,
    /// Keyspace to work on [default: the default one].
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) keyspace: Option<String>,
    /// Keys and values are typed and shown in hexadecimal.
    #[arg(long, global = true)]
    pub(crate) hex: bool,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Store a value; creates the database where there is none.
    Put {
        /// The key.
        key: OsString,
        /// The value.
        value: OsString,
    },
    /// Print the value of a key; exit code 1 if there is none.
    Get {
        /// The key.
        key: OsString,
    },
    /// Delete a key, present or not.
    Delete {
        /// The key.
        key: OsString,
    },
    /// Print entries in key order: key, tab, value.
    Scan(ScanArgs),
    /// Store the records of a file; creates the database where there is none.
    Import(FileArgs),
    /// Write all entries to a file in key order.
    Export(FileArgs),
    /// Print what the database holds and what it costs.
    Stats(StatsArgs),
    /// Read every file and check every checksum and every invariant.
    Verify,
    /// Look a key up and print what that takes: memtables, runs, filters, blocks.
    Explain {
        /// The key.
        key: OsString,
        /// The steps as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Copy the database as it is now; tables are linked where the file system can.
    Checkpoint {
        /// Directory for the copy, which must not exist or be empty.
        target: PathBuf,
    },
    /// Bring a keyspace, or a range of its keys, into one sorted run without dead entries.
    Compact {
        /// First key.
        #[arg(long, value_name = "KEY")]
        from: Option<OsString>,
        /// Key to end before.
        #[arg(long, value_name = "KEY")]
        to: Option<OsString>,
    },
    /// Print what files of a database hold: tables, segments of the log, manifests; or a trace.
    Dump {
        /// Files, by path or by name in the database [default: all of them].
        files: Vec<PathBuf>,
        /// Every entry of a table, not only those where a search may start.
        #[arg(long)]
        entries: bool,
        /// At most so many lines of each file.
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
    },
    /// Drop a keyspace with everything in it.
    DropKeyspace {
        /// Its name.
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// All counters as JSON; with --watch one object a line.
    #[arg(long)]
    pub(crate) json: bool,
    /// Look at manifest and file sizes every so many seconds [default: 1], without opening the
    /// database: somebody else may own it.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    pub(crate) watch: Option<f64>,
    /// End after so many looks [default: never].
    #[arg(long, value_name = "N", requires = "watch")]
    pub(crate) count: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    /// First key.
    #[arg(long, value_name = "KEY", conflicts_with = "prefix")]
    pub(crate) from: Option<OsString>,
    /// Key to end before.
    #[arg(long, value_name = "KEY", conflicts_with = "prefix")]
    pub(crate) to: Option<OsString>,
    /// Only keys that begin with this.
    #[arg(long, value_name = "KEY")]
    pub(crate) prefix: Option<OsString>,
    /// At most so many entries.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// From the last key to the first.
    #[arg(long)]
    pub(crate) reverse: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// The file; `-` for standard input or output.
    pub(crate) file: PathBuf,
    /// One record a line: key, tab, value with `\t \n \r \\` for those bytes, or a JSON object with
    /// `key` or `key_hex`, and `value` or `value_hex` [default: what the file's name suggests]
    /// [possible: tsv, jsonl].
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,
}

fn policies(text: &str) -> Result<Policies, lsmx_compaction::Error> {
    let mut policies = Vec::new();
    for name in split_outside_brackets(text) {
        if name.eq_ignore_ascii_case("all") {
            policies.extend(PolicySpec::all_presets());
        } else {
            policies.push(name.parse()?);
        }
    }
    Ok(Policies(policies))
}

/// Names of the flags of `explore` that a sweep may give values.
pub(crate) fn sweepable() -> Vec<String> {
    /// What says which cells there are and where results go, or names a file.
    const NOT_SWEPT: [&str; 16] = [
        "policy", "spec", "phases", "data", "trace", "format", "seed", "sweep", "repeat", "resume",
        "dry-run", "json", "csv", "html", "explain", "dir",
    ];
    let root = Arguments::command();
    let explore = root.find_subcommand("explore");
    let flags = explore.into_iter().flat_map(clap::Command::get_arguments);
    let names = flags.filter_map(|flag| flag.get_long()).map(str::to_owned);
    names.filter(|name| name != "help" && !NOT_SWEPT.contains(&name.as_str())).collect()
}

/// Whether a flag of `explore` takes no value.
pub(crate) fn is_switch(name: &str) -> bool {
    let root = Arguments::command();
    let explore = root.find_subcommand("explore");
    explore
        .into_iter()
        .flat_map(clap::Command::get_arguments)
        .any(|flag| flag.get_long() == Some(name) && !flag.get_action().takes_values())
}

/// Splits at commas, but not at those between the parameters of a policy, as in `fluid(3,1)`, or in a
/// composition on one line.
pub(crate) fn split_outside_brackets(text: &str) -> Vec<&str> {
    let mut depth = 0usize;
    text.split(|c| {
        match c {
            '(' | '{' | '[' => depth += 1,
            ')' | '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
    .collect()
}

/// A count, in which underscores may group digits.
fn count(text: &str) -> Result<u64, String> {
    text.replace('_', "").parse().map_err(|error| format!("{error}"))
}

/// Per cent, with its sign or without: 0 or more.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent),
        _ => Err(format!("{text} is not a number of per cent, 0 or more")),
    }
}

/// Bytes: a number, with K, M, G or T behind it for powers of 1024 (KiB, MiB, … likewise).
fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        _ => return Err(format!("unknown unit {unit:?}; known: K, M, G, T (powers of 1024)")),
    };
    let number = count(number)?;
    number.checked_mul(1 << shift).ok_or_else(|| "more bytes than 64 bits can say".to_owned())
}

/// What clap found wrong, as one line; for an unknown flag or command with the known ones.
pub(crate) fn failure(error: &clap::Error, words: &[OsString]) -> Failure {
    let text = error.to_string();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return Failure::Help(text);
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Failure::Usage(format!("a command is missing; known: {}", known(words, true)));
    }
    let message = text.strip_prefix("error: ").unwrap_or(&text);
    // Behind the first empty line stand tips and usage.
    let message = message.split("\n\n").next().unwrap_or(message);
    let words_of_line: Vec<&str> = message.split_whitespace().collect();
    let line = words_of_line.join(" ");
    Failure::Usage(match error.kind() {
        ErrorKind::UnknownArgument => {
            // A word that is no flag stands where a command could stand.
            let word = error.get(ContextKind::InvalidArg).map(ToString::to_string);
            let flag = word.is_none_or(|word| word.starts_with('-'));
            let commands = if flag { String::new() } else { known(words, true) };
            let known = if commands.is_empty() { known(words, false) } else { commands };
            format!("{line}; known: {known}")
        }
        ErrorKind::InvalidSubcommand | ErrorKind::MissingSubcommand => {
            format!("{line}; known: {}", known(words, true))
        }
        _ => line,
    })
}

/// The flags, or the commands, that go with the command in `words`.
fn known(words: &[OsString], commands: bool) -> String {
    let mut root = Arguments::command();
    // Flags that are valid everywhere reach the subcommands.
    root.build();
    let mut command = &root;
    for word in words.iter().skip(1) {
        if let Some(below) = word.to_str().and_then(|word| command.find_subcommand(word)) {
            command = below;
        }
    }
    if commands {
        let names = command.get_subcommands().map(clap::Command::get_name);
        return names.filter(|name| *name != "help").collect::<Vec<_>>().join(", ");
    }
    let names = command.get_arguments().filter_map(|argument| argument.get_long());
    names.map(|name| format!("--{name}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        Arguments::try_parse_from(&words).map_err(|error| match failure(&error, &words) {
            Failure::Usage(line) => line,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn bytes_take_units() {
        for (text, n) in
            [("7", 7), ("64K", 64 << 10), ("8MiB", 8 << 20), ("1_000", 1000), ("2g", 2 << 30)]
        {
            assert_eq!(bytes(text), Ok(n), "{text}");
        }
        for text in ["", "K", "1X", "-1", "1.5M", "99999999999T"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn commas_inside_brackets_do_not_split() {
        assert_eq!(split_outside_brackets("full,fluid(3,1), rr"), ["full", "fluid(3,1)", "rr"]);
        assert_eq!(split_outside_brackets("a),b"), ["a)", "b"]);
        assert_eq!(split_outside_brackets("{a=[1,2],b=3},rr"), ["{a=[1,2],b=3}", "rr"]);
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones_on_one_line() {
        for (line, parts) in [
            ("lsmx explore --policy full --sped 3", &["--sped", "--seed", "--phases"][..]),
            ("lsmx explore --policy nosuch", &["nosuch", "tiering", "lo+1"]),
            (
                "lsmx explore --policy full --distribution pareto",
                &["pareto", "uniform", "prefix-zipf", "shifting"],
            ),
            (
                "lsmx explore --policy full --write-control never",
                &["never", "smooth", "stop", "--write-control"],
            ),
            ("lsmx exlore", &["exlore", "explore", "db"]),
            ("lsmx", &["explore", "db"]),
            ("lsmx db x", &["put", "verify"]),
            ("lsmx db x frob", &["frob", "put", "verify"]),
            ("lsmx db x scan --form a", &["--form", "--from", "--hex", "--keyspace"]),
            ("lsmx db x export f --format xml", &["xml", "tsv", "jsonl"]),
        ] {
            let message = parse(line).unwrap_err();
            assert!(!message.contains('\n'), "{message}");
            for part in parts {
                assert!(message.contains(part), "{line}: {message} lacks {part}");
            }
        }
    }

    #[test]
    fn contradictions_name_both() {
        for (line, first, second) in [
            ("--data a.tsv --entries 5", "--data", "--entries"),
            ("--data a.tsv --value-len 5", "--data", "--value-len"),
            ("--phases p.toml --lookups 5", "--phases", "--lookups"),
            ("--phases p.toml --data a.tsv", "--phases", "--data"),
            ("--deterministic --write-control stop", "--write-control", "--deterministic"),
        ] {
            let message = parse(&format!("lsmx explore --policy full {line}")).unwrap_err();
            assert!(message.contains(first) && message.contains(second), "{line}: {message}");
        }
        let message = parse("lsmx db x scan --prefix a --from b").unwrap_err();
        assert!(message.contains("--prefix") && message.contains("--from"), "{message}");
    }

    #[test]
    fn all_leaves_out_what_drops_data() {
        let Policies(all) = policies("all").unwrap();
        let names: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert!(names.iter().any(|name| name == "tiering"), "{names:?}");
        assert!(!names.iter().any(|name| name.starts_with("fifo")), "{names:?}");
    }
}
