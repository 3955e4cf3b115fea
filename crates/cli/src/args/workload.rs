//! Flags that several experiments share: records, operations, seeds and repetitions.

use std::path::PathBuf;

use clap::Args;
use lsmx_bench::workload::KeyDistribution;

use super::values::{bytes, count};

/// Sizes of generated records.
#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// Size of a key in bytes [default: 16].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) key_len: Option<u64>,
    /// Size of a value in bytes [default: 112].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) value_len: Option<u64>,
}

/// Shares of the writes that do not insert a key.
#[derive(Debug, Default, PartialEq, Args)]
pub(crate) struct WriteArgs {
    /// Share of the writes that update an existing key [default: 0.5; 0 if another flag of the
    /// writes or reads is given, or --data of explore].
    #[arg(long, value_name = "F")]
    pub(crate) updates: Option<f64>,
    /// Share of the writes that delete an existing key [default: 0].
    #[arg(long, value_name = "F")]
    pub(crate) deletes: Option<f64>,
    /// Share of the writes that merge 8 bytes into the value of an existing key [default: 0].
    #[arg(long, value_name = "F")]
    pub(crate) merges: Option<f64>,
    /// Share of the writes that delete a range of ten neighbouring keys [default: 0].
    #[arg(long, value_name = "F")]
    pub(crate) range_deletes: Option<f64>,
}

/// Reads, and the distribution of the keys of all operations.
#[derive(Debug, Default, PartialEq, Args)]
pub(crate) struct ReadArgs {
    /// Distribution of the keys of writes and reads [default: uniform]
    /// [possible: uniform, zipf, prefix-zipf, normal, sequential, shifting].
    #[arg(long, value_name = "NAME")]
    pub(crate) distribution: Option<KeyDistribution>,
    /// Exponent of the distribution zipf, above 0 and at most 4 [default: 0.99].
    #[arg(long, value_name = "E", allow_negative_numbers = true)]
    pub(crate) zipf: Option<f64>,
    /// Mix lookups and range lookups into the writes, after the first tenth of the writes.
    #[arg(long)]
    pub(crate) interleave: bool,
    /// Number of point lookups for each share of --empty-lookups [default: a tenth of the writes].
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) lookups: Option<u64>,
    /// Shares of the point lookups that search for an absent key [default: 0,1].
    #[arg(long, value_name = "α,…", value_delimiter = ',')]
    pub(crate) empty_lookups: Option<Vec<f64>>,
    /// Number of range lookups for each share of --selectivity [default: 1000].
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) ranges: Option<u64>,
    /// Entries that a range lookup reads, as shares of all entries [default: 0.0001].
    #[arg(long, value_name = "S,…", value_delimiter = ',')]
    pub(crate) selectivity: Option<Vec<f64>>,
}

/// Workload of `explore`, `simulate` and `advise`.
#[derive(Debug, Args)]
pub(crate) struct WorkloadArgs {
    #[command(flatten)]
    pub(crate) records: RecordArgs,
    #[command(flatten)]
    pub(crate) writes: WriteArgs,
    #[command(flatten)]
    pub(crate) reads: ReadArgs,
    /// TOML file with the phases of the workload.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["WriteArgs", "ReadArgs"])]
    pub(crate) phases: Option<PathBuf>,
    /// Trace to replay: recorded by a database, or text with one operation per line (op, key, value, separated by tabs).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["RecordArgs", "WriteArgs", "ReadArgs", "phases"])]
    pub(crate) trace: Option<PathBuf>,
}

/// Seed of an experiment and directory of its databases.
#[derive(Debug, Args)]
pub(crate) struct SetupArgs {
    /// Seed of records and operations.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Directory for temporary databases, which are removed at the end [default: the system's directory for temporary files].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

impl SetupArgs {
    /// Returns the directory for temporary databases.
    pub(crate) fn directory(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(std::env::temp_dir)
    }
}

/// Repetitions, resumption and dry run of an experiment with several cells.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) setup: SetupArgs,
    /// Number of runs of each cell, with seeds from --seed on; medians and intervals are reported.
    #[arg(long, value_name = "N", value_parser = count, default_value = "1")]
    pub(crate) repeat: u64,
    /// Directory for finished cells; after an interruption the same command continues with the others.
    #[arg(long, value_name = "DIR")]
    pub(crate) resume: Option<PathBuf>,
    /// List the cells and their estimated costs, and run none.
    #[arg(long, conflicts_with_all = ["json", "csv", "html"])]
    pub(crate) dry_run: bool,
}
