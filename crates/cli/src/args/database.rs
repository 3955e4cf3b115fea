//! Arguments of `lsmx db`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use lsmx_bench::workload::record::RecordFormat;

use super::values::{bytes, count, sort_memory_bytes, unix_ms};

/// Arguments of `lsmx db`.
#[derive(Debug, Args)]
pub(crate) struct DbArgs {
    /// Directory of the database.
    pub(crate) path: PathBuf,
    /// Keyspace [default: the default keyspace].
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) keyspace: Option<String>,
    /// Read and print keys and values in hexadecimal.
    #[arg(long, global = true)]
    pub(crate) hex: bool,
    /// Read the database while another process has it open for writing. For get, scan, export, explain and stats.
    ///
    /// The command opens a follower, which shows the commits that are on stable storage. It creates files in the directory
    /// FOLLOWERS of the database while it runs. Keyspaces with an operand store cannot be read.
    #[arg(long, global = true)]
    pub(crate) follower: bool,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Put a value. Creates the database if it does not exist.
    Put {
        /// Key.
        key: OsString,
        /// Value.
        value: OsString,
    },
    /// Print the value of a key. Exit code 1 if there is none.
    Get {
        /// Key.
        key: OsString,
    },
    /// Delete a key. It need not exist.
    Delete {
        /// Key.
        key: OsString,
    },
    /// Print entries in key order: key, tab, value.
    Scan(ScanArgs),
    /// Put the records of a file. Creates the database if it does not exist.
    Import(ImportArgs),
    /// Write all entries to a file in key order.
    Export(FileArgs),
    /// Print the levels, files and memory of the database.
    ///
    /// If another process has the database open and writes a metrics file (option `metrics_file`), print the metrics in
    /// this file, with all counters.
    Stats(StatsArgs),
    /// Show a live view of a database that another process has open.
    ///
    /// The view is refreshed each second, until `q` or Ctrl-C. It shows rates, levels, jobs, stalls, caches and the log
    /// if the other process writes a metrics file (option `metrics_file`), and the manifest and file sizes otherwise.
    Top(TopArgs),
    /// Read all files and check all checksums and invariants.
    Verify(VerifyArgs),
    /// Repair a damaged database: keep all readable data and report the lost data.
    ///
    /// Damaged files are moved to a subdirectory. If the log is damaged, each keyspace keeps its commits before the damage
    /// and its flushed data. The report states the sequence number through which each keyspace is complete. Exit code 3
    /// if data is lost, or if parts of the manifest are lost, so that lost data cannot be excluded.
    Repair(RepairArgs),
    /// Look up a key and print each step: memtables, runs, filters, blocks.
    Explain {
        /// Key.
        key: OsString,
        /// Print the steps as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Copy the database. Tables become hard links if the file system has them.
    Checkpoint {
        /// Directory of the copy. It must not exist, or be empty.
        target: PathBuf,
    },
    /// Back up the database to a repository. Uploads only files that the last backup does not contain.
    Backup(BackupArgs),
    /// List the backups of the database in a repository, oldest first. Verify or remove them.
    Backups(BackupsArgs),
    /// Restore a backup to PATH, which must not exist, or be empty. Continues an interrupted restore.
    Restore(RestoreArgs),
    /// Compact a keyspace, or a range of its keys, to one sorted run without deleted entries.
    Compact {
        /// First key [default: the first key of the keyspace].
        #[arg(long, value_name = "KEY")]
        from: Option<OsString>,
        /// Key after the last key [default: no limit].
        #[arg(long, value_name = "KEY")]
        to: Option<OsString>,
    },
    /// Print the contents of files: tables, log segments, manifests, traces.
    Dump {
        /// Paths of files, or names of files in the database [default: all files].
        files: Vec<PathBuf>,
        /// Print every entry of a table, not only the restart points.
        #[arg(long, alias = "entries")]
        all_entries: bool,
        /// Maximum number of lines per file [default: no limit].
        #[arg(long, value_name = "N", value_parser = count)]
        limit: Option<u64>,
    },
    /// Set the database clock, which dates files, to the clock of this host.
    ///
    /// Without this command the database clock never goes back. So if the clock of the host was once far ahead, files
    /// do not age until that time. File times in the future become the current time. Expired data that was not yet
    /// dropped may become visible again.
    ResetClock,
    /// Drop a keyspace with all its data.
    DropKeyspace {
        /// Name of the keyspace.
        name: String,
    },
    /// Rename a keyspace.
    RenameKeyspace {
        /// Current name of the keyspace.
        old: String,
        /// New name, which no other keyspace has.
        new: String,
    },
    /// Create a keyspace with the contents and the policy of another one.
    CloneKeyspace {
        /// Name of the keyspace to copy.
        source: String,
        /// Name of the clone, which no other keyspace has.
        new: String,
    },
}

/// The repository of backups.
#[derive(Args, Debug)]
pub(crate) struct RepositoryArgs {
    /// Directory, or URL such as `s3://bucket/prefix`. URLs need a build with the feature `backup-aws`, `backup-azure` or
    /// `backup-gcp`, and read credentials from environment variables.
    pub(crate) repository: String,
    /// Name of the database in the repository [default: the name of the directory PATH].
    #[arg(long, value_name = "NAME")]
    pub(crate) writer: Option<String>,
}

/// Arguments of `db PATH backup`.
#[derive(Args, Debug)]
pub(crate) struct BackupArgs {
    #[command(flatten)]
    pub(crate) repository: RepositoryArgs,
    /// Directory for a checkpoint, on the file system of the database. It is removed at the end [default: PATH.backup].
    #[arg(long, value_name = "DIR")]
    pub(crate) staging: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) transfer: TransferArgs,
}

/// Limits of a backup or a restore.
#[derive(Args, Debug)]
pub(crate) struct TransferArgs {
    /// Number of files that are transferred at the same time.
    #[arg(long, value_name = "N", default_value = "4", value_parser = count)]
    pub(crate) files: u64,
    /// Maximum rate in bytes per second [default: no limit].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) rate: Option<u64>,
}

/// Arguments of `db PATH backups`.
#[derive(Args, Debug)]
pub(crate) struct BackupsArgs {
    #[command(flatten)]
    pub(crate) repository: RepositoryArgs,
    /// Include the backups of other databases.
    #[arg(long, conflicts_with = "writer")]
    pub(crate) all: bool,
    /// Check that all objects of the listed backups and their archived logs exist and have the right sizes.
    #[arg(long)]
    pub(crate) verify: bool,
    /// Read the objects and compare their checksums.
    #[arg(long, requires = "verify")]
    pub(crate) contents: bool,
    /// Remove all backups except the newest N of each listed database, and delete unused objects.
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) keep: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `db PATH restore`.
#[derive(Args, Debug)]
pub(crate) struct RestoreArgs {
    /// Directory, or URL such as `s3://bucket/prefix`.
    pub(crate) repository: String,
    /// Number of the backup [default: the newest].
    #[arg(long, value_name = "ID", value_parser = count, conflicts_with = "writer")]
    pub(crate) id: Option<u64>,
    /// Restore the newest backup of this database. Required if the repository contains backups of several databases.
    #[arg(long, value_name = "NAME")]
    pub(crate) writer: Option<String>,
    /// Restore the state after the commit with this sequence number, from a backup and the archived log.
    ///
    /// `backups` prints the commits that can be restored.
    #[arg(long, value_name = "SEQ", value_parser = count, group = "point")]
    pub(crate) to_commit: Option<u64>,
    /// Restore the newest archived state that contains only commits before this time in UTC, such as `2026-11-28T12:00:00Z`.
    #[arg(long, value_name = "TIME", value_parser = unix_ms, group = "point")]
    pub(crate) to_time: Option<u64>,
    /// Restore the newest archived state: a backup and all commits of the archived log.
    #[arg(long, group = "point")]
    pub(crate) newest_log: bool,
    #[command(flatten)]
    pub(crate) transfer: TransferArgs,
}

/// Arguments of `db PATH verify`.
#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    /// Search all files for entries of this key, instead of all checks.
    ///
    /// Finds every version of the key in tables, blob files, log segments and operand stores, including versions that
    /// newer ones hide. Searches all keyspaces unless --keyspace is given. Exit code 4 if an entry remains, or if a file
    /// cannot be searched.
    #[arg(long, value_name = "KEY")]
    pub(crate) no_trace_of: Option<OsString>,
    /// Print the result of --no-trace-of as JSON.
    #[arg(long, requires = "no_trace_of")]
    pub(crate) json: bool,
}

/// Arguments of `db PATH repair`.
#[derive(Args, Debug)]
pub(crate) struct RepairArgs {
    /// Report what a repair would do, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Repair the directory even if no file has a magic number of lsmx.
    #[arg(long)]
    pub(crate) force: bool,
    /// Restore all keyspaces to the last commit before the damage of the log, and drop tables with later commits.
    ///
    /// Fails without a change if compactions merged later commits with earlier ones, or if a keyspace with later commits
    /// has an operand store.
    #[arg(long)]
    pub(crate) common_prefix: bool,
    /// Print the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Print one view, with average rates since the open of the database.
    #[arg(long)]
    pub(crate) once: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// Print JSON; with --watch one object per line.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the metrics of the process that has the database open, or the sizes, repeatedly, with this interval in
    /// seconds [default: 1].
    ///
    /// The database is not opened. Without a metrics file (option `metrics_file`), or if it is out of date, the manifest
    /// and the file sizes are printed.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    pub(crate) watch: Option<f64>,
    /// Number of outputs of --watch [default: no limit].
    #[arg(long, value_name = "N", value_parser = count, requires = "watch")]
    pub(crate) count: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    /// First key [default: the first key of the keyspace].
    #[arg(long, value_name = "KEY", conflicts_with = "prefix")]
    pub(crate) from: Option<OsString>,
    /// Key after the last key [default: no limit].
    #[arg(long, value_name = "KEY", conflicts_with = "prefix")]
    pub(crate) to: Option<OsString>,
    /// Prefix of the keys [default: all keys].
    #[arg(long, value_name = "KEY")]
    pub(crate) prefix: Option<OsString>,
    /// Maximum number of entries [default: no limit].
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) limit: Option<u64>,
    /// Print entries in descending key order.
    #[arg(long)]
    pub(crate) reverse: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    pub(crate) file: FileArgs,
    /// Load the records as tables, without the log and without memtables. Loads all records or none.
    ///
    /// The records are sorted first. Of several records with one key, the last one is loaded. The keyspace must have no
    /// operand store.
    #[arg(long)]
    pub(crate) bulk: bool,
    /// Memory for sorting the records of --bulk [default: 64MiB]. More records are sorted in temporary files.
    #[arg(long, value_name = "BYTES", value_parser = sort_memory_bytes, requires = "bulk")]
    pub(crate) sort_memory: Option<u64>,
    /// The records of --bulk are in ascending order of distinct keys: do not sort them.
    #[arg(long, requires = "bulk", conflicts_with = "sort_memory")]
    pub(crate) sorted: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// File; `-` for standard input or output.
    pub(crate) file: PathBuf,
    /// Format with one record per line [default: by the file name] [possible: tsv, jsonl].
    ///
    /// tsv: key, tab, value, with the escapes `\t \n \r \\`. jsonl: a JSON object with `key` or `key_hex`, and `value` or
    /// `value_hex`.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<RecordFormat>,
}
