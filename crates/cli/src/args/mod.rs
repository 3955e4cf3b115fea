//! What was typed.

mod database;
mod design;
mod measure;
mod words;

use std::ffi::OsString;

use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

use crate::failure::Failure;

pub(crate) use database::{DbArgs, FileArgs, RepairArgs, ScanArgs, StatsArgs, Verb};
pub(crate) use design::{
    AdviseArgs, CompareArgs, DataOrder, ExploreArgs, WorkloadArgs, WriteControl, is_switch,
    sweepable,
};
pub(crate) use measure::{BenchArgs, IocostArgs, RmwArgs, StressArgs};
pub(crate) use words::split_outside_brackets;

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
}
