//! CSV files as specified by RFC 4180.

use std::io;
use std::path::Path;

use super::file::write_file;
use crate::error::{Error, Result};

pub fn write_csv(path: &Path, header: &[String], rows: &[Vec<String>]) -> Result<()> {
    let failed = |error: io::Error| Error::io("write", path)(error);
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in std::iter::once(header).chain(rows.iter().map(Vec::as_slice)) {
        writer.write_record(row).map_err(|error| failed(error.into()))?;
    }
    write_file(path, &writer.into_inner().map_err(|error| failed(error.into_error()))?)
}
