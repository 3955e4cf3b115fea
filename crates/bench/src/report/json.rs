//! JSON files.

use std::path::Path;

use serde::Serialize;

use super::file::write_file;
use crate::error::Result;

/// Writes a result as indented JSON that ends with a newline.
pub fn write_json(path: &Path, result: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(result)?;
    text.push(b'\n');
    write_file(path, &text)
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
