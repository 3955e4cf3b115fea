//! Implements the command `lsmx db PATH dump [FILE…]`.

use std::ffi::OsStr;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use lsmx::dump::{DumpError, DumpOptions};
use lsmx::vfs::{OsVfs, Vfs, missing_dir_reason};
use lsmx_base::file_name::FileName;
use lsmx_bench::numbers::to_usize;

use crate::args::DbArgs;
use crate::failure::Failure;

/// Prints the contents of files. Prints the readable part of a damaged file and continues with the next file. Returns
/// the first error, also if the output ends early.
pub(super) fn run(
    arguments: &DbArgs,
    files: &[PathBuf],
    entries: bool,
    limit: Option<u64>,
) -> Result<(), Failure> {
    super::reject_keyspace(arguments, "dump")?;
    let files = match files {
        [] => all_files(&arguments.path)?,
        named => {
            for (flag, is_given) in [("--hex", arguments.hex), ("--all-entries", entries)] {
                if is_given && named.iter().any(|file| is_operand_file(file)) {
                    let what = "files of operand stores, whose keys are printed as text";
                    return Err(Failure::Usage(format!("{flag} contradicts a dump of {what}")));
                }
            }
            named.iter().map(|file| locate(&arguments.path, file)).collect()
        }
    };
    let options = DumpOptions { hex: arguments.hex, entries, lines_max: limit };
    let mut first = None;
    let printed = print_files(&files, &options, &mut first);
    first.map_or(printed, Err)
}

/// Prints the contents of files until the output fails. Sets `first` to the first error of a file.
fn print_files(
    files: &[PathBuf],
    options: &DumpOptions,
    first: &mut Option<Failure>,
) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    for (number, file) in files.iter().enumerate() {
        if files.len() > 1 {
            let gap = if number > 0 { "\n" } else { "" };
            writeln!(out, "{gap}== {}", file.display()).map_err(Failure::stdout)?;
        }
        let shown = match is_operand_file(file) {
            true => dump_operand_file(file, options, &mut out),
            false => lsmx::dump::dump(&OsVfs, file, options, &mut out),
        };
        match shown {
            Ok(()) => {}
            Err(DumpError::Output(error)) => return Err(Failure::stdout(error)),
            Err(DumpError::File(lsmx::Error::InvalidOption { value, must, .. })) => {
                let must = must.strip_prefix("a ").unwrap_or(must);
                first.get_or_insert(Failure::Usage(format!("{value} is no {must}")));
            }
            Err(error) => {
                first.get_or_insert(Failure::Run(Box::new(error)));
            }
        }
    }
    out.flush().map_err(Failure::stdout)
}

fn is_operand_file(file: &Path) -> bool {
    let name = file.file_name().and_then(OsStr::to_str).and_then(FileName::parse);
    matches!(name, Some(FileName::Operands(_) | FileName::Bucket(_)))
}

/// Prints a file of an operand store, at most `lines_max` lines of it. The dump has no entries, and its keys are always
/// escaped text.
fn dump_operand_file(
    file: &Path,
    options: &DumpOptions,
    out: &mut dyn Write,
) -> Result<(), DumpError> {
    let Some(lines_max) = options.lines_max else { return lsmx_delta::dump(&OsVfs, file, out) };
    let mut text = Vec::new();
    let dumped = lsmx_delta::dump(&OsVfs, file, &mut text);
    let mut lines = text.split_inclusive(|&byte| byte == b'\n');
    let shown: Vec<u8> = lines.by_ref().take(to_usize(lines_max)).flatten().copied().collect();
    let end = if lines.next().is_some() { "…\n" } else { "" };
    out.write_all(&shown)
        .and_then(|()| out.write_all(end.as_bytes()))
        .map_err(DumpError::Output)?;
    dumped
}

/// Resolves a file argument, which is a path or the name of a file in the database directory.
fn locate(database: &Path, file: &Path) -> PathBuf {
    let inside = database.join(file);
    if !file.exists() && inside.exists() { inside } else { file.to_owned() }
}

/// Returns the paths of all database files in a directory.
fn all_files(database: &Path) -> Result<Vec<PathBuf>, Failure> {
    let not_a_database = |why| {
        let path = database.to_owned();
        Failure::from(lsmx::Error::NotADatabase { path, why })
    };
    let listed = OsVfs.list(database).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => not_a_database(missing_dir_reason(&OsVfs, database)),
        io::ErrorKind::NotADirectory => not_a_database("it is not a directory"),
        _ => Failure::file("list", database.display().to_string(), error),
    });
    let names = listed?.into_iter().filter(|name| FileName::parse(name).is_some());
    let files: Vec<PathBuf> = names.map(|name| database.join(name)).collect();
    if files.is_empty() {
        return Err(not_a_database("it has no file of a database"));
    }
    Ok(files)
}
