//! Implements the command `lsmx advise`.

use std::ffi::OsString;
use std::sync::Arc;

use lsmx_bench::experiment::advise::columns::RANKED;
use lsmx_bench::experiment::advise::{Config, PlannedWorkload};
use lsmx_bench::workload::phases::parse_phases;
use lsmx_bench::workload::trace::TraceFile;

use super::explore;
use crate::args::{AdviseArgs, WorkloadArgs};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::Bar;

/// Searches for designs by simulation, measures the best designs on the engine, and writes the ranking.
pub(crate) fn run(arguments: &AdviseArgs, words: &[OsString]) -> Result<(), Failure> {
    let mut config = config(arguments, words)?;
    let WorkloadArgs { phases, trace, .. } = &arguments.workload;
    let inputs: Vec<_> = [phases, trace].into_iter().flatten().cloned().collect();
    arguments.output.probe(&RANKED, &inputs)?;
    let _temporary = interrupt::make_temporary("lsmx-advise-", &mut config.directory, None)?;
    let advice = config.run(&mut Bar::new())?;
    arguments.output.write(&advice)
}

fn config(arguments: &AdviseArgs, words: &[OsString]) -> Result<Config, Failure> {
    let flags = &arguments.workload;
    explore::check(flags)?;
    let spec = flags.phases.as_deref().map(explore::read_text).transpose()?;
    let generated = |phases| PlannedWorkload::Phases {
        phases,
        key_bytes: flags.records.key_len.unwrap_or(explore::KEY_LEN_DEFAULT),
        value_bytes: flags.records.value_len.unwrap_or(explore::VALUE_LEN_DEFAULT),
    };
    let (workload, entries) = match (&flags.trace, &flags.phases, &spec) {
        (Some(path), _, _) => {
            (PlannedWorkload::Trace(Arc::new(TraceFile::open(path)?)), arguments.entries)
        }
        (None, Some(path), Some(text)) => (generated(parse_phases(text, path)?), arguments.entries),
        // The phases already contain the number of entries that `--entries` sets.
        _ => (generated(explore::mix(flags, arguments.entries).phases()?), None),
    };
    Ok(Config {
        workload,
        entries,
        memory_bytes: arguments.memory_budget,
        weights: arguments.weights,
        confirm: arguments.confirm,
        presets: arguments.presets,
        seed: arguments.setup.seed,
        directory: arguments.setup.directory(),
        command: super::command_line(words),
        spec,
    })
}
