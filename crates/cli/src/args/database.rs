//! Arguments of `lsmx db`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use lsmx_bench::workload::record::Format;

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
    /// Make a damaged database openable, keep all that can be read, and report what is lost.
    ///
    /// The damaged files stay in a subdirectory. Where the log is damaged, each keyspace keeps its commits before the
    /// damage, and what it had flushed after them; the report says through which sequence number each
    /// keyspace is complete. Exit code 3 if data is or would be lost, or if parts of the
    /// manifest are lost, so that this cannot be known.
    Repair(RepairArgs),
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
    /// Set the database clock, from which files age, to the clock of this host.
    ///
    /// The database clock never goes back. After the host once had a clock far ahead, files age only when
    /// that time has come; this ends it. Data whose TTL had passed may come back to life: it is as old as
    /// the host's clock says, and times of files in the future become the time of this call.
    ResetClock,
    /// Drop a keyspace with everything in it.
    DropKeyspace {
        /// Its name.
        name: String,
    },
}

/// Arguments of `db PATH repair`.
#[derive(Args, Debug)]
pub(crate) struct RepairArgs {
    /// Change nothing; report what would be done.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Repair a directory in which no file carries a magic number of lsmx.
    #[arg(long)]
    pub(crate) force: bool,
    /// Bring all keyspaces to the last commit before the damage of the log, and drop tables with later commits.
    ///
    /// Fails, and changes nothing, where compactions have merged later commits with earlier ones, or where a
    /// keyspace with later commits has an operand store.
    #[arg(long)]
    pub(crate) common_prefix: bool,
    /// What was found and done as JSON.
    #[arg(long)]
    pub(crate) json: bool,
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
