//! Implements the command `lsmx iocost`.

use std::ffi::OsString;

use lsmx::DEFAULT_KEYSPACE;
use lsmx_bench::experiment::iocost::Config;
use lsmx_bench::experiment::iocost::columns::REGISTRY;
use lsmx_bench::peers::EngineSettings;

use crate::args::IocostArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::Bar;

/// Measures point lookups with each block cache size and writes the results.
pub(crate) fn run(arguments: &IocostArgs, words: &[OsString]) -> Result<(), Failure> {
    let mut config = config(arguments, words);
    arguments.output.probe(&REGISTRY, &[])?;
    let _temporary = match arguments.db.as_ref().or(arguments.keep.as_ref()) {
        Some(_) => None,
        None => Some(interrupt::make_temporary("lsmx-iocost-", &mut config.directory, None)?),
    };
    arguments.output.write(&config.run(&mut Bar::new())?)
}

fn config(arguments: &IocostArgs, words: &[OsString]) -> Config {
    Config {
        database: arguments.db.clone(),
        keep: arguments.keep.clone(),
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
        seed: arguments.setup.seed,
        directory: arguments.setup.directory(),
        command: super::command_line(words),
    }
}
