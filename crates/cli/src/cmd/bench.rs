//! `lsmx bench`: from what was typed to a config, from the result to a table and files.

use std::ffi::OsString;

use lsmx_bench::experiment::throughput::{self, Config};
use lsmx_bench::experiment::tuning::{self, Study};
use lsmx_bench::peers::{EngineSettings, Kind};

use crate::args::BenchArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::Bar;

/// Runs the workloads and reports them.
pub(crate) fn run(arguments: &BenchArgs, words: &[OsString]) -> Result<(), Failure> {
    let mut config = config(arguments, words)?;
    let registry = match arguments.experiment {
        None => &throughput::columns::REGISTRY,
        Some(Study::PutOverTime) => &tuning::columns::SLICES,
        Some(_) => &tuning::columns::READS,
    };
    arguments.output.probe(registry)?;
    // Everything temporary is made in here, so that an interrupted run can remove it.
    let temporary = match arguments.db {
        Some(_) => None,
        None => Some(interrupt::temporary_directory("lsmx-bench-", &config.directory, None)?),
    };
    if let Some(temporary) = &temporary {
        config.directory = temporary.path().to_owned();
    }
    match arguments.experiment {
        Some(study) => arguments.output.write(&tuning::run(study, &config, &mut Bar::new())?),
        None => arguments.output.write(&config.run(&mut Bar::new())?),
    }
}

fn config(arguments: &BenchArgs, words: &[OsString]) -> Result<Config, Failure> {
    let mut settings = EngineSettings {
        memtable_bytes: Some(arguments.memtable),
        block_cache_bytes: Some(arguments.block_cache),
        ..EngineSettings::default()
    };
    for option in &arguments.option {
        settings = settings.set(option)?;
    }
    let mut peers = Vec::new();
    for name in &arguments.peers {
        let peer = Kind::peer(name)?;
        if !peers.contains(&peer) {
            peers.push(peer);
        }
    }
    let command: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    Ok(Config {
        workloads: arguments.workloads.clone(),
        peers,
        settings,
        options: arguments.option.clone(),
        entries: arguments.entries,
        key_bytes: arguments.key_len,
        value_bytes: arguments.value_len,
        threads: arguments.threads,
        ops: arguments.ops,
        seek_entries: arguments.seek_entries,
        rate: arguments.rate,
        repeat: arguments.repeat,
        seed: arguments.place.seed,
        directory: arguments.place.directory(),
        database: arguments.db.clone(),
        command: command.join(" "),
    })
}
