//! Arguments that divide an experiment into cells.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

/// Division of an experiment into cells, which other processes run.
#[derive(Clone, Debug, Args)]
#[group(multiple = false)]
pub(crate) struct CellArgs {
    /// Write a list of the cells, which are independent of each other, and run none.
    #[arg(long, value_name = "FILE")]
    pub(crate) emit_cells: Option<PathBuf>,
    /// Run cell N of a list, counted from 0, and write its result to the file or into the directory of --json.
    #[arg(long, value_name = "FILE:N", requires = "json")]
    pub(crate) run_cell: Option<CellAddress>,
    /// Combine the results of all cells of a list, which are the files *.json of a directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) collect: Option<PathBuf>,
}

/// A cell of a list.
#[derive(Clone, Debug)]
pub(crate) struct CellAddress {
    pub(crate) list: PathBuf,
    pub(crate) index: u64,
}

impl FromStr for CellAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<CellAddress, &'static str> {
        let address = text.rsplit_once(':').and_then(|(list, index)| {
            Some(CellAddress { list: list.into(), index: index.parse().ok()? })
        });
        address.ok_or("must be FILE:N with the index N of a cell, such as cells:0")
    }
}

/// Excludes the flags without an effect with [`CellArgs`]. A list contains the flags of the experiment.
pub(super) fn add_conflicts(command: clap::Command) -> clap::Command {
    if command.get_arguments().all(|argument| argument.get_id() != "run_cell") {
        return command;
    }
    command.mut_args(|argument| {
        let modes: &[&str] = match argument.get_id().as_str() {
            "emit_cells" | "run_cell" | "collect" => &[],
            "json" => &["emit_cells"],
            "csv" | "html" | "columns" | "no_legend" => &["emit_cells", "run_cell"],
            "dir" => &["emit_cells", "collect"],
            "db" | "resume" | "dry_run" | "explain" => &["emit_cells", "run_cell", "collect"],
            _ => &["run_cell", "collect"],
        };
        argument.conflicts_with_all(modes)
    })
}
