//! Implementations of the commands, one module per command.

pub(crate) mod advise;
pub(crate) mod bench;
mod cells;
pub(crate) mod compare;
pub(crate) mod db;
pub(crate) mod explore;
pub(crate) mod iocost;
pub(crate) mod rmw;
pub(crate) mod simulate;
pub(crate) mod stress;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use lsmx_bench::experiment::resume::{RunDirectory, RunIdentity};
use lsmx_bench::peers::EngineKind;

use crate::args::{OutputArgs, RunArgs};
use crate::failure::Failure;

fn command_line(words: &[OsString]) -> String {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// Returns the arguments of the command line, without flags that do not affect the result.
fn result_words(words: &[OsString]) -> Vec<String> {
    const WITH_VALUE: [&str; 7] =
        ["--resume", "--json", "--csv", "--html", "--columns", "--dir", "--emit-cells"];
    let mut kept = Vec::new();
    let mut words = words.iter().skip(1).map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        let flag = word.split('=').next().unwrap_or_default();
        if WITH_VALUE.contains(&flag) {
            if !word.contains('=') {
                words.next();
            }
        } else if !["--dry-run", "--explain", "--no-legend"].contains(&flag) {
            kept.push(word.into_owned());
        }
    }
    kept
}

/// Opens the `--resume` directory, which stores the finished results of earlier runs of the same command. Fails if an
/// output would replace a file of the directory.
///
/// `inputs` lists the files that the run reads. A dry run does not claim the `--resume` directory for its command.
fn open_finished(
    run: &RunArgs,
    output: &OutputArgs,
    words: &[OsString],
    inputs: &[PathBuf],
    cell_count: u64,
) -> Result<Option<RunDirectory>, Failure> {
    match &run.resume {
        Some(directory) if !run.dry_run || RunDirectory::exists(directory)? => {
            RunDirectory::check_outputs(directory, &output.files())?;
            let inputs: Vec<&Path> = inputs.iter().map(PathBuf::as_path).collect();
            let identity = RunIdentity::new(result_words(words).join(" "), &inputs, cell_count)?;
            Ok(Some(RunDirectory::open(directory, &identity)?))
        }
        _ => Ok(None),
    }
}

/// Parses the names of the engines to compare with lsmx. Removes duplicates.
fn peers(names: &[String]) -> Result<Vec<EngineKind>, Failure> {
    let peers =
        names.iter().map(|name| EngineKind::parse_peer(name)).collect::<Result<Vec<_>, _>>()?;
    Ok(distinct(&peers))
}

/// Removes duplicates. Keeps the first occurrence of each value.
fn distinct<T: Clone + PartialEq>(values: &[T]) -> Vec<T> {
    let mut kept: Vec<T> = Vec::new();
    for value in values {
        if !kept.contains(value) {
            kept.push(value.clone());
        }
    }
    kept
}
