//! Implements the command `lsmx simulate`.

use std::ffi::OsString;

use lsmx_bench::experiment::explore::Config;
use lsmx_bench::experiment::simulate::{self, SimulationStudy, columns::REGISTRY};
use lsmx_bench::report::text;

use super::cells::{self, PreparedStudy};
use super::explore;
use crate::args::{Command, ExploreArgs};
use crate::failure::Failure;
use crate::output::Bar;

/// Maximum default memtable size in bytes. Engines rarely use larger memtables.
const MEMTABLE_MAX: u64 = 64 << 20;

/// Runs the simulation and writes the results. The simulation creates no temporary files, so SIGINT needs no handler.
pub(crate) fn run(arguments: &ExploreArgs, words: &[OsString]) -> Result<(), Failure> {
    let prepare = |command, words: &[OsString]| match command {
        Command::Simulate(arguments) => {
            let (config, head) = config(&arguments, words)?;
            let inputs = explore::input_files(&arguments);
            Ok(Some(PreparedStudy { study: SimulationStudy(config), inputs, head }))
        }
        _ => Ok(None),
    };
    let dir = arguments.run.setup.dir.as_deref();
    if cells::run(&arguments.cells, &arguments.output, dir, words, prepare)? {
        return Ok(());
    }
    let (config, head) = config(arguments, words)?;
    arguments.output.probe(&REGISTRY, &explore::input_files(arguments))?;
    let result = simulate::simulate_exploration(&config, &mut Bar::new())?;
    arguments.output.write_with_head(&head, &result)
}

/// Returns the configuration and a heading. The heading states the limited memtable size. It is empty if no size was
/// limited.
fn config(arguments: &ExploreArgs, words: &[OsString]) -> Result<(Config, String), Failure> {
    let mut config = explore::config(arguments, words, check_flags)?;
    let limits =
        config.points.iter_mut().filter_map(|point| point.limit_default_memtable(MEMTABLE_MAX));
    let head = limits.max().map_or_else(String::new, |share| {
        let [memtable, share] = [MEMTABLE_MAX, share].map(text::format_bytes);
        format!(
            "memtables and tables hold {memtable} of data: their default, data ÷ 150 = {share}, is limited (--memtable)\n"
        )
    });
    Ok((config, head))
}

/// Rejects flags that only `lsmx explore` supports.
fn check_flags(arguments: &ExploreArgs) -> Result<(), Failure> {
    let of_explore_only = [
        ("--data", arguments.data.is_some()),
        ("--trace", arguments.workload.trace.is_some()),
        ("--resume", arguments.run.resume.is_some()),
        ("--dry-run", arguments.run.dry_run),
        ("--dir", arguments.run.setup.dir.is_some()),
        ("--write-control", arguments.engine.write_control.is_some()),
        ("--memtable-kind", arguments.engine.memtable_kind.is_some()),
        ("--filter-bits", arguments.engine.filter_bits.is_some()),
        ("--block-bytes", arguments.engine.block_bytes.is_some()),
        ("--compression", arguments.engine.compression.is_some()),
        ("--direct-io", arguments.engine.direct_io),
        ("--threads", arguments.threads.is_some()),
        ("--write-rate", arguments.write_rate.is_some()),
        ("--workers", arguments.engine.workers.is_some()),
        ("--filter-last-run", arguments.engine.filter_last_run),
        ("--explain", arguments.explain),
    ];
    match of_explore_only.into_iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => Err(Failure::Usage(format!("{flag} is a flag of explore only"))),
        None => Ok(()),
    }
}
