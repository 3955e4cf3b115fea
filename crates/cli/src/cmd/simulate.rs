//! `lsmx simulate`: the arguments of `lsmx explore`, played without data.

use std::ffi::OsString;

use lsmx_bench::experiment::simulate;
use lsmx_bench::report::{csv, html, json, rows, text};

use super::explore;
use crate::args::ExploreArgs;
use crate::failure::Failure;
use crate::output::{self, Bar};

/// Runs the simulation and reports it. There is nothing temporary, so an interrupt just ends it.
pub(crate) fn run(arguments: &ExploreArgs, words: &[OsString]) -> Result<(), Failure> {
    let meaningless = [
        ("--data", arguments.data.is_some()),
        ("--trace", arguments.workload.trace.is_some()),
        ("--resume", arguments.resume.is_some()),
        ("--dry-run", arguments.dry_run),
        ("--dir", arguments.dir.is_some()),
        ("--write-control", arguments.write_control.is_some()),
        ("--workers", arguments.workers.is_some()),
        ("--filter-last-run", arguments.filter_last_run),
        ("--explain", arguments.explain),
    ];
    if let Some((flag, _)) = meaningless.into_iter().find(|(_, typed)| *typed) {
        let what = format!("{flag} goes with explore alone");
        return Err(Failure::Usage(what));
    }
    let config = explore::config(arguments, words)?;
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
    output::stdout(text::simulation(&result.cells).as_bytes())
}
