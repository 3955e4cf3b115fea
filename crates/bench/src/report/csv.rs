//! CSV files as specified by RFC 4180.

use std::path::Path;

use crate::error::{Error, Result};

/// Writes a header and rows.
#[expect(clippy::disallowed_methods, reason = "a report of the user, not part of a database")]
pub fn write(
    path: &Path,
    header: &[impl AsRef<str>],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> Result<()> {
    let mut text = line(header.iter().map(AsRef::as_ref));
    for row in rows {
        text.push_str(&line(row.iter().map(String::as_str)));
    }
    std::fs::write(path, text).map_err(Error::io("write", path))
}

fn line<'a>(fields: impl Iterator<Item = &'a str>) -> String {
    let mut line = fields.map(quoted).collect::<Vec<_>>().join(",");
    line.push('\n');
    line
}

/// Puts a field with a comma, a quote or a line break in quotes.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_field_with_special_characters_is_quoted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.csv");
        let rows =
            [vec!["1".to_owned(), "fluid(3,1)".to_owned()], vec!["\"".to_owned(), String::new()]];
        write(&path, &["n", "policy"], rows).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "n,policy\n1,\"fluid(3,1)\"\n\"\"\"\",\n");
    }
}
