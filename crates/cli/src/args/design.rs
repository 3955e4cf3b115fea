//! Arguments of what explores designs: `explore`, `simulate`, `advise`, `compare`.

use std::path::PathBuf;

use clap::{Args, CommandFactory, ValueEnum};
use lsmx_bench::experiment::advise::Weights;
use lsmx_bench::workload::KeyDistribution;
use lsmx_bench::workload::record::Format;

use super::Arguments;
use super::words::{Policies, bytes, count, percent, policies};

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
    pub(crate) distribution: Option<KeyDistribution>,
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
    /// A policy put together from primitives in a TOML file; docs/design/compaction.md says how. It comes
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
