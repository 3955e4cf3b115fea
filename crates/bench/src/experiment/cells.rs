//! Divides an experiment into cells, which independent processes run on any machine.
//!
//! ```text
//! LIST           one line per cell: a `ListedCell` as JSON
//! DIR/*.json     one file per finished cell: the result of the cell, and its `ListedCell` in the field `cell`
//! ```
//! Each line of a list contains the complete command line of the experiment, the index of a cell, and a digest of the whole
//! list. The process that runs a cell parses this command line and computes the list again. If the digest differs, the
//! process refuses the cell. So results of different commands, builds or input files are never combined.

#![expect(clippy::disallowed_methods, reason = "lists and results are not files of a database")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_128;

use super::Progress;
use super::resume::RunIdentity;
use crate::error::{Error, Result};
use crate::numbers::{self, to_usize};
use crate::report::Report;
use crate::report::file::{check_writable, write_file};
use crate::report::json::write_json;

/// Version of the format of lists and results.
const FORMAT: u32 = 1;
/// Extension of the files with the results of cells.
const RESULT_EXTENSION: &str = "json";
/// Maximum number of missing cells that an error names.
const NAMED_MAX: usize = 5;

/// An experiment whose cells are independent of each other.
pub trait CellStudy {
    /// Result of the experiment, or of one of its cells.
    type Output: Report + DeserializeOwned;

    /// Returns a label for each cell, in the order in which one process runs the cells.
    ///
    /// # Errors
    /// A parameter of the experiment is out of range.
    fn labels(&self) -> Result<Vec<String>>;

    /// Returns the directory for temporary databases.
    fn directory_mut(&mut self) -> &mut PathBuf;

    /// Runs one cell. `index` must be less than the number of labels.
    ///
    /// # Errors
    /// The measurement fails, or a database returns a wrong answer.
    fn run_cell(&self, index: u64, progress: &mut dyn Progress) -> Result<Self::Output>;

    /// Combines the results of all cells. The order of `parts` is that of the labels.
    ///
    /// # Errors
    /// Repeated results cannot be summarized.
    fn combine(&self, parts: Vec<Self::Output>) -> Result<Self::Output>;
}

/// One cell of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedCell {
    format: u32,
    /// Digest of the list.
    list: String,
    /// Index of the cell in the list, counted from 0.
    pub index: u64,
    label: String,
    /// Command line of the experiment, without the name of the program. The first argument is the command.
    pub arguments: Vec<String>,
    study: RunIdentity,
}

/// All cells of an experiment.
#[derive(Debug)]
pub struct CellList {
    digest: String,
    arguments: Vec<String>,
    study: RunIdentity,
    labels: Vec<String>,
}

impl CellList {
    /// Computes the list for a command line. `inputs` are the files that the experiment reads.
    ///
    /// # Errors
    /// An input file cannot be read.
    pub fn new(arguments: Vec<String>, inputs: &[&Path], labels: Vec<String>) -> Result<CellList> {
        let count = numbers::to_u64(labels.len());
        let study = RunIdentity::new(arguments.join(" "), inputs, count)?;
        let content = serde_json::to_vec(&(FORMAT, &arguments, &study, &labels))?;
        let digest = format!("{:032x}", xxh3_128(&content));
        Ok(CellList { digest, arguments, study, labels })
    }

    /// Writes one line per cell. The file is replaced atomically.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = Vec::new();
        for cell in (0..).map_while(|index| self.cell(index)) {
            serde_json::to_writer(&mut text, &cell)?;
            text.push(b'\n');
        }
        write_file(path, &text)
    }

    fn cell(&self, index: u64) -> Option<ListedCell> {
        Some(ListedCell {
            format: FORMAT,
            list: self.digest.clone(),
            index,
            label: self.labels.get(to_usize(index))?.clone(),
            arguments: self.arguments.clone(),
            study: self.study.clone(),
        })
    }

    /// Checks that a cell belongs to this list. `path` is the file that contains the cell.
    ///
    /// # Errors
    /// The cell belongs to another list, for example because an input file has changed.
    pub fn check(&self, cell: &ListedCell, path: &Path) -> Result<()> {
        if self.cell(cell.index).as_ref() == Some(cell) {
            return Ok(());
        }
        let why = self.study.differs_from(&cell.study);
        Err(refuse(path, why.unwrap_or_else(|| "its digest is not that of its cells".to_owned())))
    }
}

/// Returns the cell with this index from a list.
///
/// # Errors
/// The list cannot be read, a line is malformed, or no line has this index.
pub fn read_listed_cell(path: &Path, index: u64) -> Result<ListedCell> {
    let failed = Error::io("read", path);
    let lines = BufReader::new(File::open(path).map_err(&failed)?).lines();
    for (number, line) in (1..).zip(lines) {
        let cell: ListedCell = serde_json::from_str(&line.map_err(&failed)?)
            .map_err(|error| refuse(path, format!("line {number} is not a cell: {error}")))?;
        if cell.format != FORMAT {
            return Err(refuse(path, format!("its format {} is not {FORMAT}", cell.format)));
        }
        if cell.index == index {
            return Ok(cell);
        }
    }
    Err(refuse(path, format!("it has no cell {index}")))
}

/// Returns the path of the result file of a cell. If `path` is a directory, the file name is the index of the cell.
///
/// # Errors
/// The file cannot be written, or has the result of another cell or list. The check does not create the file, because its
/// content exists only after the run.
pub fn result_path(path: &Path, cell: &ListedCell) -> Result<PathBuf> {
    let path = match path.is_dir() {
        true => path.join(format!("{:06}.json", cell.index)),
        false => path.to_owned(),
    };
    // A missing directory would otherwise become one file, which all cells of a list replace.
    if !path.exists() && path.extension().is_none_or(|extension| extension != RESULT_EXTENSION) {
        let why =
            format!("there is no such directory, and a result is a file *.{RESULT_EXTENSION}");
        return Err(refuse(&path, why));
    }
    check_other_cell(&path, cell)?;
    check_writable(&path)?;
    Ok(path)
}

/// Refuses a file with the result of another cell, or of a cell of another list.
fn check_other_cell(path: &Path, cell: &ListedCell) -> Result<()> {
    if !path.is_file() {
        return Ok(());
    }
    match read_result::<ResultHeader>(path) {
        Ok(found) if found.cell.index != cell.index => {
            Err(refuse(path, format!("it has the result of cell {}", found.cell.index)))
        }
        Ok(found) if found.cell.list != cell.list => {
            Err(refuse(path, format!("it has the result of cell {} of another list", cell.index)))
        }
        _ => Ok(()),
    }
}

/// Writes the result of a cell. The file is replaced atomically.
///
/// # Errors
/// The file cannot be written, or has the result of another cell or list.
pub fn write_cell_result(path: &Path, cell: &ListedCell, result: &impl Serialize) -> Result<()> {
    let mut fields = Map::from_iter([("cell".to_owned(), serde_json::to_value(cell)?)]);
    if let Value::Object(result) = serde_json::to_value(result)? {
        fields.extend(result);
    }
    check_other_cell(path, cell)?;
    write_json(path, &fields)
}

/// Results of all cells of one list.
#[derive(Debug)]
pub struct CellResults {
    arguments: Vec<String>,
    /// Cells and the files of their results, in the order of the list.
    cells: Vec<(PathBuf, ListedCell)>,
}

#[derive(Deserialize)]
struct ResultHeader {
    cell: ListedCell,
}

impl CellResults {
    /// Finds the results in a directory. Ignores files whose names do not end with `.json`.
    ///
    /// # Errors
    /// A file is not the result of a cell, two files belong to different lists or to the same cell, or a cell has no
    /// file.
    pub fn open(directory: &Path) -> Result<CellResults> {
        let mut first: Option<(PathBuf, ListedCell)> = None;
        let mut by_index: BTreeMap<u64, (PathBuf, ListedCell)> = BTreeMap::new();
        for path in list_result_files(directory).map_err(Error::io("list", directory))? {
            let ResultHeader { cell } = read_result(&path)?;
            let (first_path, first) = first.get_or_insert_with(|| (path.clone(), cell.clone()));
            if cell.list != first.list {
                let other = first_path.display();
                return Err(refuse(&path, format!("it belongs to another list than {other}")));
            }
            let index = cell.index;
            if let Some((other, _)) = by_index.insert(index, (path.clone(), cell)) {
                return Err(refuse(&path, format!("cell {index} is also in {}", other.display())));
            }
        }
        let Some((_, first)) = first else {
            return Err(refuse(directory, "it has no results of cells".to_owned()));
        };
        let count = first.study.cells;
        let missing = count.saturating_sub(numbers::to_u64(by_index.range(..count).count()));
        if missing > 0 {
            // The count is that of an unchecked file, so not all missing cells are listed.
            let missing_indexes = (0..count).filter(|index| !by_index.contains_key(index));
            let named: Vec<String> =
                missing_indexes.take(NAMED_MAX).map(|index| index.to_string()).collect();
            let more = if missing > numbers::to_u64(named.len()) { ", …" } else { "" };
            let named = named.join(", ");
            let why = format!("{missing} of {count} cells are missing: {named}{more}");
            return Err(refuse(directory, why));
        }
        Ok(CellResults { arguments: first.arguments, cells: by_index.into_values().collect() })
    }

    /// Returns the command line of the experiment.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// Returns the paths of the results.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.cells.iter().map(|(path, _)| path.clone()).collect()
    }

    /// Reads all results, in the order of the cells.
    ///
    /// # Errors
    /// The results do not belong to `list`, or a file is not a result of the experiment.
    pub fn read<T: DeserializeOwned>(&self, list: &CellList) -> Result<Vec<T>> {
        let parts = self.cells.iter().map(|(path, cell)| {
            list.check(cell, path)?;
            read_result(path)
        });
        parts.collect()
    }
}

fn refuse(path: &Path, why: String) -> Error {
    Error::Cells { path: path.to_owned(), why }
}

fn list_result_files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == RESULT_EXTENSION) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn read_result<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read(path).map_err(Error::io("read", path))?;
    serde_json::from_slice(&text)
        .map_err(|error| refuse(path, format!("it is not the result of a cell: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(arguments: &str) -> CellList {
        let arguments = arguments.split(' ').map(str::to_owned).collect();
        let labels = ["a", "b", "c"].map(str::to_owned).to_vec();
        CellList::new(arguments, &[], labels).unwrap()
    }

    /// Writes a list and the results of its cells, whose values are 0, 10 and 20.
    fn write_results(directory: &Path, list: &CellList) {
        let lines = directory.join("list");
        list.write(&lines).unwrap();
        for index in 0..3 {
            let cell = read_listed_cell(&lines, index).unwrap();
            let path = result_path(directory, &cell).unwrap();
            let result = serde_json::json!({ "value": 10 * index });
            write_cell_result(&path, &cell, &result).unwrap();
        }
    }

    fn error(directory: &Path) -> String {
        let error = CellResults::open(directory).unwrap_err();
        assert!(error.is_usage(), "{error}");
        error.to_string()
    }

    #[test]
    fn results_are_read_in_the_order_of_the_cells() {
        #[derive(Deserialize)]
        struct Part {
            value: u64,
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        write_results(path, &list("explore x"));
        fs::rename(path.join("000000.json"), path.join("z.json")).unwrap();
        let results = CellResults::open(path).unwrap();
        let parts: Vec<Part> = results.read(&list("explore x")).unwrap();
        assert_eq!(parts.iter().map(|part| part.value).collect::<Vec<_>>(), [0, 10, 20]);
        let error = results.read::<Part>(&list("explore y")).err().unwrap().to_string();
        assert!(error.contains("`explore x`"), "{error}");
    }

    #[test]
    fn missing_duplicate_foreign_and_torn_results_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        assert!(error(path).contains("no results"));
        write_results(path, &list("explore x"));

        // A malformed number of cells must not make the search for missing cells endless.
        let first = path.join("000000.json");
        let text = fs::read_to_string(&first).unwrap();
        fs::write(&first, text.replace("\"cells\": 3", &format!("\"cells\": {}", u64::MAX)))
            .unwrap();
        let why = error(path);
        assert!(why.contains("615 cells are missing: 3, 4, 5, 6, 7, …"), "{why}");
        fs::write(&first, text).unwrap();

        fs::copy(path.join("000001.json"), path.join("copy.json")).unwrap();
        let why = error(path);
        assert!(why.contains("copy.json") && why.contains("000001.json"), "{why}");
        fs::remove_file(path.join("copy.json")).unwrap();

        let text = fs::read(path.join("000002.json")).unwrap();
        for length in [0, 1, text.len() / 2, text.len() - 2] {
            fs::write(path.join("000002.json"), &text[..length]).unwrap();
            let why = error(path);
            assert!(why.contains("000002.json: it is not the result"), "{length}: {why}");
        }
        fs::remove_file(path.join("000002.json")).unwrap();
        fs::remove_file(path.join("000000.json")).unwrap();
        let why = error(path);
        assert!(why.contains("2 of 3 cells are missing: 0, 2"), "{why}");

        let other = tempfile::tempdir().unwrap();
        write_results(other.path(), &list("explore y"));
        fs::copy(other.path().join("000002.json"), path.join("000002.json")).unwrap();
        let why = error(path);
        assert!(why.contains("000002.json: it belongs to another list"), "{why}");
    }

    /// Regression test: only the index was compared, so the result of another list was overwritten.
    #[test]
    fn results_of_other_cells_and_lists_are_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        write_results(path, &list("explore x"));
        let lines = path.join("list");
        list("explore y").write(&lines).unwrap();
        let cell = read_listed_cell(&lines, 1).unwrap();
        let file = path.join("000001.json");
        let before = fs::read(&file).unwrap();
        for error in [
            result_path(path, &cell).unwrap_err(),
            write_cell_result(&file, &cell, &serde_json::json!({})).unwrap_err(),
        ] {
            let why = error.to_string();
            assert!(error.is_usage() && why.ends_with("cell 1 of another list"), "{why}");
        }
        let why = result_path(&path.join("000000.json"), &cell).unwrap_err().to_string();
        assert!(why.ends_with("it has the result of cell 0"), "{why}");
        assert!(fs::read(&file).unwrap() == before, "the result differs");
        // The result of the same cell is replaced.
        list("explore x").write(&lines).unwrap();
        let cell = read_listed_cell(&lines, 1).unwrap();
        result_path(path, &cell).unwrap();
    }

    #[test]
    fn malformed_list_error_names_the_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("list");
        list("explore x").write(&path).unwrap();
        let error = |index| read_listed_cell(&path, index).unwrap_err().to_string();
        assert!(error(3).ends_with("it has no cell 3"));
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replacen("\"format\":1", "\"format\":2", 1)).unwrap();
        assert!(error(1).ends_with("its format 2 is not 1"));
        fs::write(&path, &text[..text.len() - 9]).unwrap();
        assert!(error(2).contains("line 3 is not a cell"));
    }

    #[test]
    fn changed_cell_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("list");
        let list = list("explore x");
        list.write(&path).unwrap();
        let cell = read_listed_cell(&path, 1).unwrap();
        list.check(&cell, &path).unwrap();
        for changed in [
            ListedCell { label: "z".to_owned(), ..cell.clone() },
            ListedCell { index: 7, ..cell.clone() },
            ListedCell { list: "0".to_owned(), ..cell },
        ] {
            let error = list.check(&changed, &path).unwrap_err().to_string();
            assert!(error.contains("digest"), "{error}");
        }
    }
}
