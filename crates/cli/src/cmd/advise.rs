//! `lsmx advise`: from what was typed to a question, from the answer to a table and files.

use std::ffi::OsString;
use std::sync::Arc;

use lsmx_bench::experiment::advise::columns::RANKED;
use lsmx_bench::experiment::advise::{Config, Workload};
use lsmx_bench::workload::phases::parse_phases;
use lsmx_bench::workload::trace::TraceFile;

use super::explore;
use crate::args::AdviseArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::Bar;

/// Searches, confirms and reports.
pub(crate) fn run(arguments: &AdviseArgs, words: &[OsString]) -> Result<(), Failure> {
    let mut config = config(arguments, words)?;
    arguments.output.probe(&RANKED)?;
    // Everything temporary is made in here, so that an interrupted run can remove it.
    let temporary = interrupt::temporary_directory("lsmx-advise-", &config.directory, None)?;
    config.directory = temporary.path().to_owned();
    let advice = config.run(&mut Bar::new())?;
    arguments.output.write(&advice)
}

fn config(arguments: &AdviseArgs, words: &[OsString]) -> Result<Config, Failure> {
    let typed = &arguments.workload;
    explore::check(typed)?;
    let spec = typed.phases.as_deref().map(explore::text_of).transpose()?;
    let (workload, entries) = match (&typed.trace, &typed.phases, &spec) {
        (Some(path), _, _) => {
            (Workload::Trace(Arc::new(TraceFile::open(path)?)), arguments.entries)
        }
        (None, Some(path), Some(text)) => {
            (generated(arguments, parse_phases(text, path)?), arguments.entries)
        }
        // A workload of flags has the number of entries already.
        _ => (generated(arguments, explore::mix(typed, arguments.entries).phases()?), None),
    };
    let command: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    Ok(Config {
        workload,
        entries,
        memory_bytes: arguments.memory_budget,
        weights: arguments.weights,
        confirm: arguments.confirm,
        presets: arguments.presets,
        seed: arguments.place.seed,
        directory: arguments.place.directory(),
        command: command.join(" "),
        spec,
    })
}

fn generated(arguments: &AdviseArgs, phases: Vec<lsmx_bench::workload::phases::Phase>) -> Workload {
    Workload::Phases {
        phases,
        key_bytes: arguments.workload.records.key_len.unwrap_or(explore::KEY_LEN_DEFAULT),
        value_bytes: arguments.workload.records.value_len.unwrap_or(explore::VALUE_LEN_DEFAULT),
    }
}
