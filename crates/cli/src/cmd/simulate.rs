//! `lsmx simulate`.

use std::ffi::OsString;

use lsmx_bench::experiment::simulate;
use lsmx_bench::report::{csv, html, json, rows, text};

use super::explore;
use crate::args::ExploreArgs;
use crate::failure::Failure;
use crate::output::{self, Bar};

/// Maximum default size of a memtable in bytes. Engines rarely use larger ones.
const MEMTABLE_MAX: u64 = 64 << 20;

/// Runs the simulation and reports it. It creates no files, so an interrupt needs no handler.
pub(crate) fn run(arguments: &ExploreArgs, words: &[OsString]) -> Result<(), Failure> {
    let meaningless = [
        ("--data", arguments.data.is_some()),
        ("--trace", arguments.workload.trace.is_some()),
        ("--resume", arguments.run.resume.is_some()),
        ("--dry-run", arguments.run.dry_run),
        ("--dir", arguments.run.place.dir.is_some()),
        ("--write-control", arguments.engine.write_control.is_some()),
        ("--workers", arguments.engine.workers.is_some()),
        ("--filter-last-run", arguments.engine.filter_last_run),
        ("--explain", arguments.explain),
    ];
    if let Some((flag, _)) = meaningless.into_iter().find(|(_, typed)| *typed) {
        let what = format!("{flag} is a flag of explore only");
        return Err(Failure::Usage(what));
    }
    let mut config = explore::config(arguments, words)?;
    let limits =
        config.points.iter_mut().filter_map(|point| point.limit_default_memtable(MEMTABLE_MAX));
    let head = limits.max().map_or_else(String::new, |share| {
        let [memtable, share] = [MEMTABLE_MAX, share].map(text::bytes);
        format!(
            "memtables and tables hold {memtable} of data: their default, data ÷ 150 = {share}, is limited (--memtable)\n"
        )
    });
    for path in [&arguments.json, &arguments.csv, &arguments.html].into_iter().flatten() {
        // A report that cannot be written is better known before the run than after it.
        json::probe(path)?;
    }
    let result = simulate::run(&config, &mut Bar::new())?;
    if let Some(path) = &arguments.json {
        json::write(path, &result)?;
    }
    if let Some(path) = &arguments.csv {
        let rows = rows::simulation(&result.cells);
        let (header, rows) =
            rows.map_err(|error| Failure::file("write", path.display().to_string(), error.into()))?;
        csv::write(path, &header, rows)?;
    }
    if let Some(path) = &arguments.html {
        html::write(path, &html::simulation(&result))?;
    }
    output::stdout((head + &text::simulation(&result.cells)).as_bytes())
}
