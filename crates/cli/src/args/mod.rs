//! The command line: its commands, flags, and errors.

mod cells;
mod database;
mod design;
mod measure;
mod output;
mod values;
mod workload;

use std::ffi::OsString;

use clap::error::{ContextKind, ErrorKind};
use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::failure::Failure;

pub(crate) use cells::CellArgs;
pub(crate) use database::{
    BackupArgs, BackupsArgs, DbArgs, FileArgs, ImportArgs, RepairArgs, RepositoryArgs, RestoreArgs,
    ScanArgs, StatsArgs, TopArgs, TransferArgs, Verb, VerifyArgs,
};
pub(crate) use design::{
    AdviseArgs, CompareArgs, Compression, DataOrder, ExploreArgs, WriteControl, swept_flags,
};
pub(crate) use measure::{BenchArgs, IocostArgs, RmwArgs, StressArgs};
pub(crate) use output::OutputArgs;
pub(crate) use values::split_outside_brackets;
pub(crate) use workload::{ReadArgs, RunArgs, WorkloadArgs, WriteArgs};

/// LSM storage engine: explore the design space, work on databases.
#[derive(Debug, Parser)]
#[command(name = "lsmx", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a workload under compaction policies and measure their costs.
    Explore(Box<ExploreArgs>),
    /// Simulate the same workload on trees without data, which also works for very large trees.
    Simulate(Box<ExploreArgs>),
    /// Recommend a design for a workload and a memory budget: found by simulation, confirmed on the engine.
    // In `advise`, `--spec` is the old name of `--phases`. In other commands, `--spec` names a policy file.
    #[command(mut_arg("phases", |phases| phases.alias("spec")))]
    Advise(Box<AdviseArgs>),
    /// Run named workloads and measure throughput and latency, also of other engines.
    Bench(BenchArgs),
    /// Measure the reads of a point lookup by the size of the block cache.
    Iocost(IocostArgs),
    /// Measure read-modify-writes of one field of a value: by get and put, by merge operands in the tree, and by operands in
    /// the operand store.
    Rmw(RmwArgs),
    /// Compare two results of `explore`, `simulate`, `bench` or `rmw`, and separate changes from noise.
    Compare(CompareArgs),
    /// Kill writers at random and check that no acknowledged write is lost.
    Stress(StressArgs),
    /// Work on a database.
    Db(DbArgs),
}

/// Parses the command line.
pub(crate) fn parse(words: &[OsString]) -> Result<Arguments, Failure> {
    command()
        .try_get_matches_from(words)
        .and_then(|mut matches| Arguments::from_arg_matches_mut(&mut matches))
        .map_err(|error| failure(&error, words))
}

/// Returns the definition of all commands.
fn command() -> clap::Command {
    accept_negative_numbers(Arguments::command()).mut_subcommands(cells::add_conflicts)
}

/// Lets clap parse a negative number as the value of the preceding flag, so that an error names that flag.
fn accept_negative_numbers(command: clap::Command) -> clap::Command {
    let accept = |arg: Arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    command.mut_args(accept).mut_subcommands(accept_negative_numbers)
}

/// Converts a clap error to one line. The line suggests a similar name, and lists the known commands or refers to
/// `--help`.
fn failure(error: &clap::Error, words: &[OsString]) -> Failure {
    let text = error.to_string();
    let line = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return Failure::Help(text),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "a command is missing",
        // Keeps the first paragraph. Clap adds hints and the usage after an empty line.
        _ => text.split("\n\n").next().unwrap_or(&text),
    };
    let line = line.strip_prefix("error: ").unwrap_or(line);
    let mut line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    let suggested =
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    let separator = match suggested.into_iter().find_map(|kind| error.get(kind)) {
        Some(name) => {
            line.push_str(&format!("; did you mean {name}?"));
            " "
        }
        None => "; ",
    };
    let (path, commands) = command_in(words);
    let hint = match error.kind() {
        ErrorKind::UnknownArgument => {
            // An unknown word that is not a flag may be a mistyped command.
            let word = error.get(ContextKind::InvalidArg).map(ToString::to_string);
            let is_flag = word.is_none_or(|word| word.starts_with('-'));
            match is_flag || commands.is_empty() {
                true => format!("see {path} --help"),
                false => format!("known: {commands}"),
            }
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        | ErrorKind::InvalidSubcommand
        | ErrorKind::MissingSubcommand => format!("known: {commands}"),
        _ => return Failure::Usage(line),
    };
    Failure::Usage(format!("{line}{separator}{hint}"))
}

/// Returns the command that `words` name, such as `lsmx db scan`, and the names of its subcommands.
fn command_in(words: &[OsString]) -> (String, String) {
    let root = command();
    let (mut path, mut command) = ("lsmx".to_owned(), &root);
    for word in words.iter().skip(1) {
        if let Some(below) = word.to_str().and_then(|word| command.find_subcommand(word)) {
            path.push_str(&format!(" {}", below.get_name()));
            command = below;
        }
    }
    let names = command.get_subcommands().map(clap::Command::get_name);
    (path, names.filter(|name| *name != "help").collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    #[test]
    fn command_definition_is_valid() {
        super::command().debug_assert();
    }
}
