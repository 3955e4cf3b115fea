//! `lsmx rmw`: from what was typed to a config, from the result to a table and files.

use std::ffi::OsString;
use std::path::Path;

use lsmx_bench::experiment::resume::{Finished, Identity};
use lsmx_bench::experiment::rmw::Config;
use lsmx_bench::experiment::rmw::columns::REGISTRY;
use lsmx_bench::experiment::rmw::columns::estimates as estimates_table;
use lsmx_bench::peers::Kind;

use crate::args::RmwArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, Bar};

/// Measures and reports.
pub(crate) fn run(arguments: &RmwArgs, words: &[OsString]) -> Result<(), Failure> {
    let mut config = config(arguments, words)?;
    config.check()?;
    arguments.output.probe(&REGISTRY)?;
    let finished = finished(arguments, words, &config)?;
    if arguments.run.dry_run {
        let estimates = config.estimates(finished.as_ref())?;
        return output::stdout(estimates_table(&estimates).as_bytes());
    }
    // Everything temporary is made in here, so that an interrupted run can remove it.
    let parting = arguments.run.resume.as_deref().map(super::parting);
    let temporary = interrupt::temporary_directory("lsmx-rmw-", &config.directory, parting)?;
    config.directory = temporary.path().to_owned();
    let result = config.run(finished.as_ref(), &mut Bar::new())?;
    arguments.output.write(&result)
}

/// The cells that an earlier run of the same command has finished.
fn finished(
    arguments: &RmwArgs,
    words: &[OsString],
    config: &Config,
) -> Result<Option<Finished>, Failure> {
    let Some(directory) = &arguments.run.resume else { return Ok(None) };
    if arguments.run.dry_run && !directory.exists() {
        return Ok(None);
    }
    let inputs: [&Path; 0] = [];
    let identity = Identity::new(super::result_words(words), &inputs, config.cell_count()?)?;
    Ok(Some(Finished::open(directory, &identity)?))
}

fn config(arguments: &RmwArgs, words: &[OsString]) -> Result<Config, Failure> {
    let mut peers: Vec<Kind> = Vec::new();
    for name in &arguments.peers {
        let peer = Kind::peer(name)?;
        if !peers.contains(&peer) {
            peers.push(peer);
        }
    }
    let command: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    Ok(Config {
        modes: once(&arguments.mode),
        bases: once(&arguments.base),
        peers,
        read_ratios: arguments.read_ratio.as_deref().map(once),
        mix: arguments.mix,
        study: arguments.experiment,
        records: arguments.entries,
        key_bytes: arguments.key_len,
        value_bytes: arguments.value_len,
        field_bytes: arguments.field_len,
        delta_bytes: arguments.delta_len,
        ops: arguments.ops,
        zipf: arguments.zipf,
        memory_budget: arguments.memory_budget,
        direct_io: arguments.direct_io,
        scan_read_bytes: arguments.scan_read_bytes,
        threads: arguments.threads,
        repeat: arguments.run.repeat,
        seed: arguments.run.place.seed,
        directory: arguments.run.place.directory(),
        command: command.join(" "),
    })
}

/// Each of them once, in their order.
fn once<T: Clone + PartialEq>(all: &[T]) -> Vec<T> {
    let mut kept: Vec<T> = Vec::new();
    for one in all {
        if !kept.contains(one) {
            kept.push(one.clone());
        }
    }
    kept
}
