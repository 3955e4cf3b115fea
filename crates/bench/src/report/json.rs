//! JSON for programs.

use std::path::Path;

use serde::Serialize;

use crate::error::{Error, Result};

/// Writes a result as indented JSON with a newline at its end.
///
/// # Errors
/// When the file cannot be written.
#[expect(clippy::disallowed_methods, reason = "a report of the user, no part of a database")]
pub fn write(path: &Path, result: &impl Serialize) -> Result<()> {
    let failed = |source| Error::Io { action: "write", path: path.to_owned(), source };
    let mut text = serde_json::to_vec_pretty(result).map_err(|error| failed(error.into()))?;
    text.push(b'\n');
    std::fs::write(path, text).map_err(failed)
}

/// Finds out whether a report can be written here, so that nobody waits for one that cannot. What
/// the file holds stays.
///
/// # Errors
/// When the file cannot be opened for writing.
pub fn probe(path: &Path) -> Result<()> {
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    let failed = |source| Error::Io { action: "write", path: path.to_owned(), source };
    opened.map(|_| ()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_ends_with_a_newline_and_an_unwritable_file_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        write(&path, &[1, 2]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "[\n  1,\n  2\n]\n");
        let error = write(&directory.path().join("no/a.json"), &[1]).unwrap_err().to_string();
        assert!(error.starts_with("cannot write ") && error.contains("no/a.json: "), "{error}");
    }
}
