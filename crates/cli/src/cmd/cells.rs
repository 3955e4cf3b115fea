//! Implements the flags `--emit-cells`, `--run-cell` and `--collect` of all experiments that have cells.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use lsmx_bench::experiment::cells::{self, CellList, CellResults, CellStudy};
use lsmx_bench::report::{Report, file};

use super::result_words;
use crate::args::{self, CellArgs, Command, OutputArgs};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::Bar;

/// An experiment as specified by a command line.
pub(super) struct PreparedStudy<S> {
    pub(super) study: S,
    /// Files that the experiment reads.
    pub(super) inputs: Vec<PathBuf>,
    /// Text that is printed above the tables.
    pub(super) head: String,
}

impl<S> PreparedStudy<S> {
    pub(super) fn new(study: S) -> PreparedStudy<S> {
        PreparedStudy { study, inputs: Vec::new(), head: String::new() }
    }
}

/// Executes the flag that `flags` contains. Returns `false` if no flag is given.
///
/// `prepare` returns the experiment of a parsed command line, or `None` if the command line runs another command.
pub(super) fn run<S: CellStudy>(
    flags: &CellArgs,
    output: &OutputArgs,
    dir: Option<&Path>,
    words: &[OsString],
    prepare: impl Fn(Command, &[OsString]) -> Result<Option<PreparedStudy<S>>, Failure>,
) -> Result<bool, Failure> {
    let study = |arguments: &[String], dir: Option<&Path>, source: &Path| {
        let program = words.iter().take(1).cloned();
        let mut words: Vec<OsString> = program.chain(arguments.iter().map(Into::into)).collect();
        if let Some(dir) = dir {
            words.extend(["--dir".into(), dir.into()]);
        }
        prepare_list(&words, &prepare, arguments, source)
    };
    match flags {
        CellArgs { emit_cells: Some(path), .. } => {
            if words.iter().any(|word| word.to_str().is_none()) {
                let what = "--emit-cells: the arguments are not UTF-8".to_owned();
                return Err(Failure::Usage(what));
            }
            let (PreparedStudy { inputs, .. }, list) = study(&result_words(words), None, path)?;
            file::check_distinct(&[("--emit-cells", path)], &inputs)?;
            list.write(path)?;
        }
        CellArgs { run_cell: Some(address), .. } => {
            // The argument parser rejects `--run-cell` without `--json`.
            let Some(target) = &output.json else { return Ok(false) };
            let cell = cells::read_listed_cell(&address.list, address.index)?;
            let (PreparedStudy { mut study, mut inputs, .. }, list) =
                study(&cell.arguments, dir, &address.list)?;
            list.check(&cell, &address.list)?;
            inputs.push(address.list.clone());
            let target = cells::result_path(target, &cell)?;
            file::check_distinct(&[("--json", &target)], &inputs)?;
            let _temporary = interrupt::make_temporary("lsmx-cell-", study.directory_mut(), None)?;
            let result = study.run_cell(cell.index, &mut Bar::new())?;
            cells::write_cell_result(&target, &cell, &result)?;
        }
        CellArgs { collect: Some(directory), .. } => {
            let results = CellResults::open(directory)?;
            let (PreparedStudy { study, mut inputs, head }, list) =
                study(results.arguments(), None, directory)?;
            let result = study.combine(results.read(&list)?)?;
            inputs.extend(results.paths());
            output.probe(result.registry(), &inputs)?;
            output.write_with_head(&head, &result)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Returns the experiment of a list, and the list of its cells. `source` is the file that contains `arguments`.
fn prepare_list<S: CellStudy>(
    words: &[OsString],
    prepare: &impl Fn(Command, &[OsString]) -> Result<Option<PreparedStudy<S>>, Failure>,
    arguments: &[String],
    source: &Path,
) -> Result<(PreparedStudy<S>, CellList), Failure> {
    let Some(prepared) = prepare(args::parse(words)?.command, words)? else {
        let command = arguments.first().map_or("nothing", |command| command);
        let what = format!("{}: it has cells of `lsmx {command}`", source.display());
        return Err(Failure::Usage(what));
    };
    let inputs: Vec<&Path> = prepared.inputs.iter().map(PathBuf::as_path).collect();
    let list = CellList::new(arguments.to_vec(), &inputs, prepared.study.labels()?)?;
    Ok((prepared, list))
}
