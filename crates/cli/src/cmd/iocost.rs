//! `lsmx iocost`: from what was typed to a config, from the result to a table and files.

use std::ffi::OsString;

use lsmx::DEFAULT_KEYSPACE;
use lsmx_bench::experiment::iocost::Config;
use lsmx_bench::experiment::iocost::columns::REGISTRY;
use lsmx_bench::peers::EngineSettings;

use crate::args::IocostArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::Bar;

/// Measures and reports.
pub(crate) fn run(arguments: &IocostArgs, words: &[OsString]) -> Result<(), Failure> {
    let mut config = config(arguments, words);
    arguments.output.probe(&REGISTRY)?;
    // Everything temporary is made in here, so that an interrupted run can remove it.
    let temporary = match arguments.db {
        Some(_) => None,
        None => Some(interrupt::temporary_directory("lsmx-iocost-", &config.directory, None)?),
    };
    if let Some(temporary) = &temporary {
        config.directory = temporary.path().to_owned();
    }
    let result = config.run(&mut Bar::new())?;
    arguments.output.write(&result)
}

fn config(arguments: &IocostArgs, words: &[OsString]) -> Config {
    let command: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    Config {
        database: arguments.db.clone(),
        keyspace: arguments.keyspace.clone().unwrap_or_else(|| DEFAULT_KEYSPACE.to_owned()),
        entries: arguments.entries,
        key_bytes: arguments.key_len,
        value_bytes: arguments.value_len,
        settings: EngineSettings {
            memtable_bytes: Some(arguments.memtable),
            table_bytes: Some(arguments.table),
            direct_io: arguments.direct_io,
            ..EngineSettings::default()
        },
        block_bytes: arguments.block_bytes.clone(),
        filter_bits: arguments.filter_bits.clone(),
        cache_kinds: arguments.cache_kind.clone(),
        sweep: arguments.cache_sweep.clone(),
        gets: arguments.lookups,
        seed: arguments.place.seed,
        directory: arguments.place.directory(),
        command: command.join(" "),
    }
}
