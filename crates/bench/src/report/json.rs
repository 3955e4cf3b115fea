//! JSON files.

use std::path::Path;

use serde::Serialize;

use crate::error::{Error, Result};

/// Writes a result as indented JSON that ends with a newline.
#[expect(clippy::disallowed_methods, reason = "writes a report, not a database file")]
pub fn write_json(path: &Path, result: &impl Serialize) -> Result<()> {
    let failed = Error::io("write", path);
    let mut text = serde_json::to_vec_pretty(result).map_err(|error| failed(error.into()))?;
    text.push(b'\n');
    std::fs::write(path, text).map_err(failed)
}

/// Checks that a report file can be written, without changing its content. Called before a long experiment starts.
pub fn check_writable(path: &Path) -> Result<()> {
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).map_err(Error::io("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_adds_a_newline_and_its_error_names_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        write_json(&path, &[1, 2]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "[\n  1,\n  2\n]\n");
        let error = write_json(&directory.path().join("no/a.json"), &[1]).unwrap_err().to_string();
        assert!(error.starts_with("cannot write ") && error.contains("no/a.json: "), "{error}");
    }
}
