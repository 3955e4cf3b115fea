//! `lsmx bench`: from what was typed to a config, from the result to a table and files.

use std::ffi::OsString;

use lsmx_bench::experiment::throughput::Config;
use lsmx_bench::experiment::tuning::{self, Study};
use lsmx_bench::peers::{EngineSettings, Kind};
use lsmx_bench::report::{csv, html, json, throughput, tuning as report};

use crate::args::BenchArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, Bar};

/// Runs the workloads and reports them.
pub(crate) fn run(arguments: &BenchArgs, words: &[OsString]) -> Result<(), Failure> {
    let mut config = config(arguments, words)?;
    for path in [&arguments.json, &arguments.csv, &arguments.html].into_iter().flatten() {
        // A report that cannot be written is better known before the run than after it.
        json::probe(path)?;
    }
    // Everything temporary is made in here, so that an interrupted run can remove it.
    let temporary = match arguments.db {
        Some(_) => None,
        None => Some(interrupt::temporary_directory("lsmx-bench-", &config.directory, None)?),
    };
    if let Some(temporary) = &temporary {
        config.directory = temporary.path().to_owned();
    }
    if let Some(study) = arguments.experiment {
        return experiment(study, arguments, &config);
    }
    let result = config.run(&mut Bar::new())?;
    if let Some(path) = &arguments.json {
        json::write(path, &result)?;
    }
    if let Some(path) = &arguments.csv {
        csv::write(path, &throughput::COLUMNS, throughput::rows(&result.cells))?;
    }
    if let Some(path) = &arguments.html {
        html::write(path, &html::throughput(&result))?;
    }
    output::stdout(throughput::table(&result).as_bytes())
}

/// Runs an experiment and reports it.
fn experiment(study: Study, arguments: &BenchArgs, config: &Config) -> Result<(), Failure> {
    let result = tuning::run(study, config, &mut Bar::new())?;
    if let Some(path) = &arguments.json {
        json::write(path, &result)?;
    }
    if let Some(path) = &arguments.csv {
        csv::write(path, &report::COLUMNS, report::rows(&result))?;
    }
    if let Some(path) = &arguments.html {
        html::write(path, &html::tuning(&result))?;
    }
    output::stdout(report::table(&result).as_bytes())
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
