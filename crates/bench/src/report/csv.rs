//! CSV files as specified by RFC 4180.

use std::path::Path;

use crate::error::{Error, Result};

pub fn write_csv(path: &Path, header: &[String], rows: &[Vec<String>]) -> Result<()> {
    let write = || -> csv::Result<()> {
        let mut writer = csv::Writer::from_path(path)?;
        writer.write_record(header)?;
        rows.iter().try_for_each(|row| writer.write_record(row))?;
        Ok(writer.flush()?)
    };
    write().map_err(|error| Error::io("write", path)(error.into()))
}
