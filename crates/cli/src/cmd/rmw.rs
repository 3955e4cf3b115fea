//! Implements the command `lsmx rmw`.

use std::ffi::OsString;

use lsmx_bench::experiment::rmw::Config;
use lsmx_bench::experiment::rmw::columns::{REGISTRY, format_estimates as estimates_table};

use super::cells::{self, PreparedStudy};
use super::distinct;
use crate::args::{Command, RmwArgs};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, Bar};

/// Measures each configuration and writes the results. With `--dry-run`, prints only the estimated costs.
pub(crate) fn run(arguments: &RmwArgs, words: &[OsString]) -> Result<(), Failure> {
    let dir = arguments.run.setup.dir.as_deref();
    let prepare = |command, words: &[OsString]| match command {
        Command::Rmw(arguments) => Ok(Some(PreparedStudy::new(config(&arguments, words)?))),
        _ => Ok(None),
    };
    if cells::run(&arguments.cells, &arguments.output, dir, words, prepare)? {
        return Ok(());
    }
    let mut config = config(arguments, words)?;
    config.check()?;
    let RmwArgs { run, output: outputs, .. } = arguments;
    outputs.probe(&REGISTRY, &[])?;
    let finished = super::open_finished(run, outputs, words, &[], config.cell_count()?)?;
    if run.dry_run {
        let estimates = config.estimate_cells(finished.as_ref())?;
        return output::stdout(estimates_table(&estimates).as_bytes());
    }
    let resume = run.resume.as_deref();
    let _temporary = interrupt::make_temporary("lsmx-rmw-", &mut config.directory, resume)?;
    let result = config.run(finished.as_ref(), &mut Bar::new())?;
    outputs.write(&result)
}

fn config(arguments: &RmwArgs, words: &[OsString]) -> Result<Config, Failure> {
    Ok(Config {
        modes: distinct(&arguments.mode),
        bases: distinct(&arguments.base),
        peers: super::peers(&arguments.peers)?,
        read_ratios: arguments.read_ratio.as_deref().map(distinct),
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
        memtable_bytes: arguments.memtable,
        bucket_bytes: arguments.bucket_bytes,
        scan_read_bytes: arguments.scan_read_bytes,
        threads: arguments.threads,
        repeat: arguments.run.repeat,
        seed: arguments.run.setup.seed,
        directory: arguments.run.setup.directory(),
        command: super::command_line(words),
    })
}
