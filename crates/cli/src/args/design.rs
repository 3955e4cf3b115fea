//! Arguments of `explore`, `simulate`, `advise` and `compare`.

use std::path::PathBuf;

use clap::{Arg, Args, ValueEnum};
use lsmx::{FilterBits, MemtableKind};
use lsmx_bench::experiment::advise::CostWeights;
use lsmx_bench::workload::record::RecordFormat;

use super::cells::CellArgs;
use super::output::OutputArgs;
use super::values::{Policies, block_bytes, bytes, count, percent, policies, rate, thread_count};
use super::workload::{RunArgs, SetupArgs, WorkloadArgs};

/// Settings of the engine.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// Size of a memtable in bytes [default: data ÷ 150, at least 256K; of simulate also at most 64M].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) memtable: Option<u64>,
    /// Size of a table in bytes [default: --memtable]. A flush is smaller, because a memtable also counts its overhead.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) table: Option<u64>,
    /// Size ratio between levels [default: 10].
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) size_ratio: Option<u64>,
    /// Size of the block cache in bytes [default: data ÷ 150, at least 256K].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) block_cache: Option<u64>,
    /// Data structure of memtables: b-link-tree or skip-list [default: b-link-tree].
    #[arg(long, value_name = "KIND")]
    pub(crate) memtable_kind: Option<MemtableKind>,
    /// How writes are delayed when compaction falls behind [default: smooth].
    #[arg(long, value_name = "HOW", conflicts_with = "deterministic")]
    pub(crate) write_control: Option<WriteControl>,
    /// Number of compaction threads, 1 to 64, in addition to one for flushes [default: 2].
    #[arg(long, value_name = "N", value_parser = thread_count, conflicts_with = "deterministic")]
    pub(crate) workers: Option<u64>,
    /// Use the filter of the last sorted run; without it, a lookup of an absent key searches that run.
    #[arg(long)]
    pub(crate) filter_last_run: bool,
    /// Width of filters: 8, 16, or monkey(B) with B bits per key from 9 to 18 [default: 8].
    #[arg(long, value_name = "BITS")]
    pub(crate) filter_bits: Option<FilterBits>,
    /// Target size of a data block in bytes [default: 4096].
    #[arg(long, value_name = "BYTES", value_parser = block_bytes)]
    pub(crate) block_bytes: Option<u32>,
    /// Compression of blocks [default: none].
    #[arg(long, value_name = "NAME")]
    pub(crate) compression: Option<Compression>,
    /// Read tables without the page cache of the system.
    #[arg(long)]
    pub(crate) direct_io: bool,
    /// Run all jobs on the writing thread, so that equal seeds give equal trees and digests.
    #[arg(long)]
    pub(crate) deterministic: bool,
}

/// Arguments of `lsmx explore` and `lsmx simulate`. Defaults of optional flags depend on other flags.
#[derive(Debug, Args)]
pub(crate) struct ExploreArgs {
    /// Policies, separated by commas, or `all` for every preset that drops no data.
    #[arg(long, value_name = "NAME,…", value_parser = policies, required_unless_present_any = ["spec", "run_cell", "collect"])]
    pub(crate) policy: Option<Policies>,
    /// TOML file with a policy composed of primitives; may be given several times. The policies of --policy come first.
    #[arg(long, value_name = "FILE")]
    pub(crate) spec: Vec<PathBuf>,
    /// Write the reasons for each compaction to standard error: scores, candidates, the job.
    #[arg(long)]
    pub(crate) explain: bool,
    /// Number of write operations [default: 1000000].
    #[arg(long, value_name = "N", value_parser = count, conflicts_with_all = ["phases", "trace"])]
    pub(crate) entries: Option<u64>,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    /// Number of threads that perform the lookups of phases without writes, 1 to 64 [default: 1].
    #[arg(long, value_name = "N", value_parser = thread_count)]
    pub(crate) threads: Option<u64>,
    /// Maximum number of writes per second [default: no limit].
    #[arg(long, value_name = "OPS", value_parser = rate, conflicts_with_all = ["deterministic", "trace"])]
    pub(crate) write_rate: Option<f64>,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// File with records to load in place of generated ones.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["entries", "RecordArgs", "WriteArgs", "phases", "trace"])]
    pub(crate) data: Option<PathBuf>,
    /// Order in which the records of --data are loaded [default: file].
    #[arg(long, value_name = "ORDER")]
    pub(crate) data_order: Option<DataOrder>,
    /// Format of --data [default: by the file name] [possible: tsv, jsonl].
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<RecordFormat>,
    /// Values of a flag, such as `size-ratio=4,10`, or of a policy parameter, such as `policy.trigger=2,4`: a cell is run
    /// for each. Several sweeps give all combinations.
    #[arg(long, value_name = "KEY=V,…")]
    pub(crate) sweep: Vec<String>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) cells: CellArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Arguments of `lsmx advise`.
#[derive(Debug, Args)]
pub(crate) struct AdviseArgs {
    /// Number of write operations of the planned tree [default: 1000000, or the writes of --phases or --trace].
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) entries: Option<u64>,
    /// Memory in bytes for two memtables and the block cache [default: data ÷ 50, at least 1M].
    #[arg(long, value_name = "BYTES", value_parser = bytes, alias = "memory")]
    pub(crate) memory_budget: Option<u64>,
    /// Weights of the costs: a block moved by a write, an I/O of a point lookup, an I/O of a range lookup, a copy of the
    /// data on disk [default: equal weight of each operation, space 0.1].
    #[arg(long, value_name = "writes=W,points=R,ranges=Q,space=S")]
    pub(crate) weights: Option<CostWeights>,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    /// Number of the best designs that are run on the engine.
    #[arg(long, value_name = "N", value_parser = count, default_value = "3")]
    pub(crate) confirm: u64,
    /// Also run every preset on the engine, with the best division of the memory, to compare the advice with the best of them.
    #[arg(long)]
    pub(crate) presets: bool,
    #[command(flatten)]
    pub(crate) setup: SetupArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Arguments of `lsmx compare`.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// Result to compare with.
    #[arg(value_name = "A.json")]
    pub(crate) old: PathBuf,
    /// Result that is compared with A.
    #[arg(value_name = "B.json")]
    pub(crate) new: PathBuf,
    /// Fail if a cost or a rate is worse by more than this percentage, or if B lacks a cell of A. Ignores times.
    #[arg(long, value_name = "PCT", value_parser = percent)]
    pub(crate) fail_above: Option<f64>,
    /// Fail if a latency, a stall or another time is worse by more than this percentage, or if B lacks a cell of A.
    #[arg(long, value_name = "PCT", value_parser = percent)]
    pub(crate) fail_latency_above: Option<f64>,
    /// Print every number that differs.
    #[arg(long)]
    pub(crate) all: bool,
    /// Write the differences as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DataOrder {
    /// Order of the file.
    File,
    /// Random order, which depends on the seed.
    Shuffled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compression {
    /// Blocks are not compressed.
    None,
    /// A block is compressed if this saves at least an eighth of its size.
    Lz4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WriteControl {
    /// Writes are delayed in proportion to the backlog of compaction.
    Smooth,
    /// Writes stop while the backlog is above a limit.
    Stop,
}

/// Returns the flags of `explore` that a sweep can vary.
pub(crate) fn swept_flags() -> Vec<Arg> {
    /// Flags that a sweep cannot vary: they select configurations, name files, or do not affect the results.
    const NOT_SWEPT: [&str; 21] = [
        "policy",
        "spec",
        "phases",
        "data",
        "trace",
        "format",
        "seed",
        "sweep",
        "repeat",
        "resume",
        "dry-run",
        "json",
        "csv",
        "html",
        "columns",
        "no-legend",
        "explain",
        "dir",
        "emit-cells",
        "run-cell",
        "collect",
    ];
    let explore = ExploreArgs::augment_args(clap::Command::new("explore"));
    let is_swept = |flag: &&Arg| flag.get_long().is_some_and(|name| !NOT_SWEPT.contains(&name));
    explore.get_arguments().filter(is_swept).cloned().collect()
}
